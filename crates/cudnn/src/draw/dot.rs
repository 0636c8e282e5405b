//! A graph as Graphviz text.

use std::fmt::Write;

use super::picture::{Picture, clean};
use crate::GraphSpec;

impl GraphSpec {
    /// Returns the graph as Graphviz text, to be drawn by `dot -Tsvg`.
    ///
    /// Tensors with memory are boxes with dtype, dimensions and layout; virtual ones are dashed arrows
    /// between the operations that they are passed on by. A graph that isn't valid is drawn as it is.
    pub fn to_dot(&self) -> String {
        let picture = Picture::of(self);
        let mut text = format!(
            "digraph {} {{\n  rankdir=TB;\n  bgcolor=\"transparent\";\n  \
             node [fontname=\"Helvetica\", fontsize=11, shape=box, penwidth=1.2, \
             margin=\"0.14,0.07\"];\n  \
             edge [fontname=\"Helvetica\", fontsize=9, color=\"#78909c\", arrowsize=0.7];\n",
            quoted([if self.name.is_empty() { "graph" } else { &self.name }])
        );
        // Writing to a String can't fail.
        for (at, node) in picture.nodes.iter().enumerate() {
            let [fill, line] = node.kind.colours();
            let style = if node.kind.is_dashed() { ",dashed" } else { "" };
            let label = quoted(node.lines.iter().map(String::as_str));
            let _ = writeln!(
                text,
                "  n{at} [label={label}, style=\"filled,rounded{style}\", fillcolor=\"{fill}\", \
                 color=\"{line}\"];"
            );
        }
        for arrow in &picture.arrows {
            let mut parts = Vec::new();
            if !arrow.lines.is_empty() {
                let label = quoted(arrow.lines.iter().map(String::as_str));
                parts.push(format!("label={label}"));
            }
            if arrow.is_dashed {
                parts.push("style=dashed".to_string());
            }
            for (name, port) in [("taillabel", &arrow.written_at), ("headlabel", &arrow.read_at)] {
                if !port.is_empty() {
                    parts.push(format!("{name}={}", quoted([port.as_str()])));
                }
            }
            let _ = writeln!(text, "  n{} -> n{} [{}];", arrow.from, arrow.to, parts.join(", "));
        }
        text + "}\n"
    }
}

/// Quotes lines. Graphviz reads entities as HTML does, and backslashes as escapes.
fn quoted<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    let lines = lines
        .into_iter()
        .map(|line| clean(line).replace('&', "&amp;").replace('\\', "\\\\").replace('"', "\\\""));
    format!("\"{}\"", lines.collect::<Vec<_>>().join("\\n"))
}
