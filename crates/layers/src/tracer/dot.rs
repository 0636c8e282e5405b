//! A graph as Graphviz text.

use std::collections::HashSet;
use std::fmt::Write;

use keyfold_tensor::Value;

use super::ir::{Graph, Node, ValueId};
use super::print::ValueNames;

/// The direction of a drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Direction {
    /// Top to bottom.
    #[default]
    Down,
    /// Left to right.
    Right,
}

/// Fill and line colours of a kind of box, shared by the drawings.
pub(super) struct Colours {
    pub(super) fill: &'static str,
    pub(super) line: &'static str,
}

pub(super) const INPUT: Colours = Colours { fill: "#e3f2fd", line: "#1565c0" };
pub(super) const CONSTANT: Colours = Colours { fill: "#f1f3f4", line: "#7b8794" };
pub(super) const CALL: Colours = Colours { fill: "#fffdf5", line: "#8d6e63" };
pub(super) const VIEW: Colours = Colours { fill: "#f3e5f5", line: "#7b1fa2" };
pub(super) const WRITE: Colours = Colours { fill: "#ffebee", line: "#c62828" };
pub(super) const OUTPUT: Colours = Colours { fill: "#e8f5e9", line: "#2e7d32" };

/// Operators that return a view of their argument.
const VIEWS: [&str; 14] = [
    "alias",
    "detach",
    "expand",
    "flip",
    "permute",
    "reshape",
    "select",
    "slice",
    "squeeze",
    "transpose",
    "unsqueeze",
    "view",
    "contiguous",
    "matrix_transpose",
];

pub(super) fn colours(node: &Node) -> &'static Colours {
    if node.args.iter().any(|argument| argument.written) {
        return &WRITE;
    }
    let bare = node.operator.split_once("::").map_or(&*node.operator, |(_, name)| name);
    let name = bare.split('.').next().unwrap_or(bare);
    if node.operator.starts_with("aten::") && VIEWS.contains(&name) { &VIEW } else { &CALL }
}

/// Returns the caption of a call: its name, its literal arguments, its result types.
pub(super) fn caption(graph: &Graph, names: &ValueNames, node: &Node) -> [String; 3] {
    // The namespace of built-in operators is left out.
    let name = node.operator.strip_prefix("aten::").unwrap_or(&node.operator).to_owned();
    let plain = node.args.iter().filter(|argument| {
        !argument.is_default && !matches!(argument.arg.as_literal(), Some(Value::None))
    });
    let plain = plain.filter(|argument| argument.arg.values().is_empty());
    let plain: Vec<_> =
        plain.map(|argument| format!("{}={}", argument.name, names.arg(&argument.arg))).collect();
    let gives = match node.results.is_empty() {
        true => String::new(),
        false => graph.types(&node.results),
    };
    [name, plain.join(", "), gives]
}

/// Returns the caption of a constant: its name and type, or its value if it is one number.
pub(super) fn constant_caption(graph: &Graph, names: &ValueNames, at: usize) -> [String; 2] {
    let constant = &graph.constants[at];
    let types = graph.info(constant.id).to_string();
    let number = constant.tensor().ok().filter(|tensor| tensor.ndim() == 0);
    match number.and_then(|tensor| tensor.item().ok()) {
        Some(number) => [number.to_string(), types],
        None => [names.get(constant.id).to_owned(), types],
    }
}

/// Returns a function from values to the boxes that make them: `input_0`, `constant_1`, `node_2`.
pub(super) fn sources(graph: &Graph) -> impl Fn(ValueId) -> String {
    let mut all = vec![String::new(); graph.value_count()];
    for (at, input) in graph.inputs.iter().enumerate() {
        all[input.id.index()] = format!("input_{at}");
    }
    for (at, constant) in graph.constants.iter().enumerate() {
        all[constant.id.index()] = format!("constant_{at}");
    }
    for (at, node) in graph.nodes.iter().enumerate() {
        for id in node.makes() {
            all[id.index()] = format!("node_{at}");
        }
    }
    move |id| all[id.index()].clone()
}

/// Returns the results of calls with several, whose arrows are labelled.
pub(super) fn one_of_several(graph: &Graph) -> HashSet<ValueId> {
    graph.nodes.iter().map(Node::makes).filter(|made| made.len() > 1).flatten().collect()
}

/// Quotes text with centred lines.
fn quoted(lines: &[&str]) -> String {
    let lines = lines.iter().filter(|line| !line.is_empty());
    let lines: Vec<_> = lines
        .map(|line| {
            let shown: String =
                line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            shown.replace('\\', "\\\\").replace('"', "\\\"")
        })
        .collect();
    format!("\"{}\"", lines.join("\\n"))
}

impl Graph {
    /// Returns the graph as Graphviz text, to be drawn by `dot -Tsvg`: inputs, constants and
    /// outputs are grouped, calls are styled by kind (views, in-place writes, others), arrows lead
    /// from values to the calls that use them, and are labelled if a call has several results.
    pub fn to_dot(&self, direction: Direction) -> String {
        let names = ValueNames::of(self);
        let source = sources(self);
        let rank = match direction {
            Direction::Down => "TB",
            Direction::Right => "LR",
        };
        let mut text = format!(
            "digraph keyfold {{\n  rankdir={rank};\n  bgcolor=\"transparent\";\n  \
             node [fontname=\"Helvetica\", fontsize=11, style=\"filled,rounded\", shape=box, \
             penwidth=1.2, margin=\"0.14,0.07\"];\n  \
             edge [fontname=\"Helvetica\", fontsize=9, color=\"#90a4ae\", arrowsize=0.7];\n"
        );
        let boxed = |name: &str, lines: &[&str], colours: &Colours| {
            let Colours { fill, line } = colours;
            format!("{name} [label={}, fillcolor=\"{fill}\", color=\"{line}\"];", quoted(lines))
        };
        let inputs = self.inputs.iter().enumerate().map(|(at, input)| {
            let title = if input.name.is_empty() { names.get(input.id) } else { &input.name };
            boxed(&format!("input_{at}"), &[title, &self.info(input.id).to_string()], &INPUT)
        });
        group(&mut text, "inputs", inputs.collect());
        let constants = (0..self.constants.len()).map(|at| {
            let [title, types] = constant_caption(self, &names, at);
            boxed(&format!("constant_{at}"), &[&title, &types], &CONSTANT)
        });
        group(&mut text, "constants", constants.collect());
        for (at, node) in self.nodes.iter().enumerate() {
            let [name, plain, gives] = caption(self, &names, node);
            let shown = boxed(&format!("node_{at}"), &[&name, &plain, &gives], colours(node));
            // Writing to a String can't fail.
            let _ = writeln!(text, "  {shown}");
        }
        let outputs = self.outputs.iter().enumerate().map(|(at, output)| {
            let title = format!("output {at}");
            let value = match output.values().is_empty() {
                true => names.arg(output),
                false => self.types(std::slice::from_ref(output)),
            };
            boxed(&format!("output_{at}"), &[&title, &value], &OUTPUT)
        });
        group(&mut text, "outputs", outputs.collect());
        let several = one_of_several(self);
        let mut arrow = |id: ValueId, to: &str| {
            let from = source(id);
            let label = match several.contains(&id) {
                true => format!(" [label={}]", quoted(&[names.get(id)])),
                false => String::new(),
            };
            let _ = writeln!(text, "  {from} -> {to}{label};");
        };
        for (at, node) in self.nodes.iter().enumerate() {
            node.reads().into_iter().for_each(|id| arrow(id, &format!("node_{at}")));
        }
        for (at, output) in self.outputs.iter().enumerate() {
            output.values().into_iter().for_each(|id| arrow(id, &format!("output_{at}")));
        }
        text + "}\n"
    }
}

fn group(text: &mut String, name: &str, boxes: Vec<String>) {
    if boxes.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "  subgraph cluster_{name} {{\n    label=\"{name}\"; fontname=\"Helvetica\"; fontsize=10; \
         fontcolor=\"#78909c\"; color=\"#cfd8dc\"; style=\"rounded,dashed\";\n    {}\n  }}",
        boxes.join("\n    ")
    );
}
