//! Graphs as Mermaid text, which many Markdown renderers draw.

use std::fmt::Write;

use super::dot::{
    CALL, CONSTANT, Colours, Direction, INPUT, OUTPUT, VIEW, WRITE, caption, colours,
    constant_caption, one_of_several, sources,
};
use super::ir::{Graph, ValueId};
use super::print::ValueNames;

/// Quotes text with line breaks. Characters with a meaning in markup are written as Mermaid's
/// character codes, `#...;`.
fn quoted(lines: &[&str]) -> String {
    let lines = lines.iter().filter(|line| !line.is_empty());
    let lines: Vec<String> = lines
        .map(|line| {
            line.chars().fold(String::new(), |mut text, c| {
                match c {
                    c if c.is_alphanumeric() || " .,:=_-+()[]/'".contains(c) => text.push(c),
                    c if c.is_control() => text.push(' '),
                    // Writing to a String can't fail.
                    other => {
                        let _ = write!(text, "#{};", u32::from(other));
                    }
                }
                text
            })
        })
        .collect();
    format!("\"{}\"", lines.join("<br/>"))
}

fn class(colours: &Colours) -> &'static str {
    let all = [(&WRITE, "write"), (&VIEW, "view")];
    all.iter().find(|(known, _)| known.fill == colours.fill).map_or("plain", |(_, name)| name)
}

impl Graph {
    /// Returns the graph as Mermaid text (`flowchart`), with the same boxes and colours as
    /// [`Graph::to_dot`].
    pub fn to_mermaid(&self, direction: Direction) -> String {
        let names = ValueNames::of(self);
        let source = sources(self);
        let mut text = match direction {
            Direction::Down => "flowchart TD\n".to_owned(),
            Direction::Right => "flowchart LR\n".to_owned(),
        };
        let inputs = self.inputs.iter().enumerate().map(|(at, input)| {
            let title = if input.name.is_empty() { names.get(input.id) } else { &input.name };
            let label = quoted(&[title, &self.info(input.id).to_string()]);
            format!("input_{at}([{label}]):::input")
        });
        group(&mut text, "inputs", inputs.collect());
        let constants = (0..self.constants.len()).map(|at| {
            let [title, types] = constant_caption(self, &names, at);
            format!("constant_{at}[/{}/]:::constant", quoted(&[&title, &types]))
        });
        group(&mut text, "constants", constants.collect());
        for (at, node) in self.nodes.iter().enumerate() {
            let [name, plain, gives] = caption(self, &names, node);
            let label = quoted(&[&name, &plain, &gives]);
            let _ = writeln!(text, "  node_{at}[{label}]:::{}", class(colours(node)));
        }
        let outputs = self.outputs.iter().enumerate().map(|(at, output)| {
            let value = match output.values().is_empty() {
                true => names.arg(output),
                false => self.types(std::slice::from_ref(output)),
            };
            format!("output_{at}([{}]):::output", quoted(&[&format!("output {at}"), &value]))
        });
        group(&mut text, "outputs", outputs.collect());
        let several = one_of_several(self);
        let mut arrow = |id: ValueId, to: &str| {
            let label = match several.contains(&id) {
                true => format!("|{}|", quoted(&[names.get(id)])),
                false => String::new(),
            };
            let _ = writeln!(text, "  {} -->{label} {to}", source(id));
        };
        for (at, node) in self.nodes.iter().enumerate() {
            node.reads().into_iter().for_each(|id| arrow(id, &format!("node_{at}")));
        }
        for (at, output) in self.outputs.iter().enumerate() {
            output.values().into_iter().for_each(|id| arrow(id, &format!("output_{at}")));
        }
        let classes = [
            ("input", INPUT),
            ("constant", CONSTANT),
            ("plain", CALL),
            ("view", VIEW),
            ("write", WRITE),
            ("output", OUTPUT),
        ];
        for (name, Colours { fill, line }) in classes {
            let _ = writeln!(text, "  classDef {name} fill:{fill},stroke:{line},color:#263238");
        }
        text
    }
}

fn group(text: &mut String, name: &str, boxes: Vec<String>) {
    if !boxes.is_empty() {
        let _ = writeln!(text, "  subgraph {name}\n    {}\n  end", boxes.join("\n    "));
    }
}
