//! A graph as Mermaid text.

use std::fmt::Write;

use super::picture::{Kind, Picture, clean};
use crate::GraphSpec;

impl GraphSpec {
    /// Returns the graph as Mermaid text (`flowchart`), with the boxes of [`GraphSpec::to_dot`].
    pub fn to_mermaid(&self) -> String {
        let picture = Picture::of(self);
        let mut text = "flowchart TD\n".to_string();
        // Writing to a String can't fail.
        for (at, node) in picture.nodes.iter().enumerate() {
            let label = quoted(node.lines.iter().map(String::as_str));
            let [open, close] = match node.kind {
                Kind::Operation => ["[", "]"],
                Kind::Scalar => ["[/", "/]"],
                _ => ["([", "])"],
            };
            let _ = writeln!(text, "  n{at}{open}{label}{close}:::{}", node.kind.name());
        }
        for arrow in &picture.arrows {
            let ports = match (arrow.written_at.as_str(), arrow.read_at.as_str()) {
                ("", port) | (port, "") => port.to_string(),
                (written, read) => format!("{written} to {read}"),
            };
            let label =
                quoted([ports.as_str()].into_iter().chain(arrow.lines.iter().map(|x| &**x)));
            let line = if arrow.is_dashed { "-.->" } else { "-->" };
            let _ = writeln!(text, "  n{} {line}|{label}| n{}", arrow.from, arrow.to);
        }
        for kind in Kind::ALL {
            let [fill, line] = kind.colours();
            let dashes = if kind.is_dashed() { ",stroke-dasharray:4" } else { "" };
            let name = kind.name();
            let _ =
                writeln!(text, "  classDef {name} fill:{fill},stroke:{line},color:#263238{dashes}");
        }
        text
    }
}

/// Quotes lines. Characters with a meaning in markup are written as Mermaid's codes, `#...;`.
fn quoted<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    let lines = lines.into_iter().map(|line| {
        let mut text = String::new();
        for c in clean(line).chars() {
            if c.is_alphanumeric() || " .,:=_-+()[]/'".contains(c) {
                text.push(c);
            } else {
                // Writing to a String can't fail.
                let _ = write!(text, "#{};", u32::from(c));
            }
        }
        text
    });
    format!("\"{}\"", lines.collect::<Vec<_>>().join("<br/>"))
}
