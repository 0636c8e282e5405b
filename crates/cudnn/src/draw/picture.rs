//! The boxes and arrows of a graph, which all drawings show.

use std::collections::HashMap;

use serde_json::Value;

use crate::{Convolution, GraphSpec, Layout, OpSpec, Operation, Pointwise, TensorSpec, Uid};

/// The kind of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A tensor that is given when the graph is run.
    Input,
    /// A number that belongs to the graph.
    Scalar,
    /// A tensor that the graph writes.
    Output,
    /// A virtual tensor that several operations read.
    Virtual,
    /// A virtual tensor that nothing produces, or nothing reads.
    Loose,
    /// A number of a tensor that the graph lacks.
    Missing,
    /// An operation.
    Operation,
}

impl Kind {
    pub(super) const ALL: [Kind; 7] = [
        Kind::Input,
        Kind::Scalar,
        Kind::Output,
        Kind::Virtual,
        Kind::Loose,
        Kind::Missing,
        Kind::Operation,
    ];

    /// Returns the name of the kind in drawings that have classes.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Input => "input",
            Kind::Scalar => "scalar",
            Kind::Output => "output",
            Kind::Virtual => "virtual",
            Kind::Loose => "loose",
            Kind::Missing => "missing",
            Kind::Operation => "operation",
        }
    }

    /// Returns the colours of the inside and of the line.
    pub(super) fn colours(self) -> [&'static str; 2] {
        match self {
            Kind::Input => ["#e3f2fd", "#1565c0"],
            Kind::Scalar => ["#f1f3f4", "#7b8794"],
            Kind::Output => ["#e8f5e9", "#2e7d32"],
            Kind::Virtual => ["#ffffff", "#90a4ae"],
            Kind::Loose | Kind::Missing => ["#ffebee", "#c62828"],
            Kind::Operation => ["#fffdf5", "#8d6e63"],
        }
    }

    /// Returns whether its line is dashed: there is no memory behind the box.
    pub(super) fn is_dashed(self) -> bool {
        matches!(self, Kind::Virtual | Kind::Loose | Kind::Missing)
    }
}

/// A box: a title, and lines below it.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) lines: Vec<String>,
}

/// An arrow. Between operations it is a virtual tensor, whose lines are beside it; then, and at a virtual
/// tensor's box, it is dashed.
#[derive(Debug)]
pub(super) struct Arrow {
    pub(super) from: usize,
    pub(super) to: usize,
    /// The port at which an operation writes the tensor; empty where a tensor's box is.
    pub(super) written_at: String,
    /// The port at which an operation reads the tensor.
    pub(super) read_at: String,
    pub(super) is_dashed: bool,
    /// The virtual tensor.
    pub(super) lines: Vec<String>,
}

/// Boxes, and arrows between them by place.
#[derive(Debug)]
pub(super) struct Picture {
    pub(super) nodes: Vec<Node>,
    pub(super) arrows: Vec<Arrow>,
}

impl Picture {
    pub(super) fn of(graph: &GraphSpec) -> Picture {
        let operations = graph.operations.iter();
        let nodes = operations.map(|op| Node { kind: Kind::Operation, lines: operation(op) });
        let mut picture = Picture { nodes: nodes.collect(), arrows: Vec::new() };

        let mut writers: HashMap<Uid, Vec<(usize, String)>> = HashMap::new();
        let mut readers: HashMap<Uid, Vec<(usize, String)>> = HashMap::new();
        for (at, op) in graph.operations.iter().enumerate() {
            for (port, uid) in &op.outputs {
                writers.entry(*uid).or_default().push((at, port.to_string()));
            }
            for (port, uid) in &op.inputs {
                readers.entry(*uid).or_default().push((at, port.to_string()));
            }
        }
        for tensor in &graph.tensors {
            // Of several tensors of one number, operations read and write the first.
            let written = writers.remove(&tensor.uid).unwrap_or_default();
            let read = readers.remove(&tensor.uid).unwrap_or_default();
            picture.add(lines_of(tensor), kind(tensor, &written, &read), &written, &read);
        }
        let mut unknown: Vec<Uid> = writers.keys().chain(readers.keys()).copied().collect();
        unknown.sort_unstable();
        unknown.dedup();
        for uid in unknown {
            let written = writers.remove(&uid).unwrap_or_default();
            let read = readers.remove(&uid).unwrap_or_default();
            let lines = vec![format!("#{uid}"), "no such tensor".to_string()];
            picture.add(lines, Some(Kind::Missing), &written, &read);
        }
        picture
    }

    /// Adds a tensor: a box with its arrows, or arrows alone.
    fn add(
        &mut self,
        lines: Vec<String>,
        kind: Option<Kind>,
        written: &[(usize, String)],
        read: &[(usize, String)],
    ) {
        let is_dashed = kind.is_none_or(Kind::is_dashed);
        let mut arrow = |from, to, written_at: &str, read_at: &str, lines: &[String]| {
            let (written_at, read_at) = (written_at.to_string(), read_at.to_string());
            let lines = lines.to_vec();
            self.arrows.push(Arrow { from, to, written_at, read_at, is_dashed, lines });
        };
        let Some(kind) = kind else {
            for (from, written_at) in written {
                for (to, read_at) in read {
                    arrow(*from, *to, written_at, read_at, &lines);
                }
            }
            return;
        };
        let at = self.nodes.len();
        for (from, port) in written {
            arrow(*from, at, port, "", &[]);
        }
        for (to, port) in read {
            arrow(at, *to, "", port, &[]);
        }
        self.nodes.push(Node { kind, lines });
    }
}

/// The kind of a tensor's box, or `None` for one that is an arrow.
fn kind(
    tensor: &TensorSpec,
    written: &[(usize, String)],
    read: &[(usize, String)],
) -> Option<Kind> {
    match (written.is_empty(), tensor.is_virtual) {
        (false, true) if written.len() == 1 && read.len() == 1 => None,
        (false, true) if !read.is_empty() => Some(Kind::Virtual),
        (_, true) => Some(Kind::Loose),
        (false, false) => Some(Kind::Output),
        (true, false) if tensor.scalar.is_some() => Some(Kind::Scalar),
        (true, false) => Some(Kind::Input),
    }
}

/// A tensor's name or number, then its dtype, dimensions and layout.
fn lines_of(tensor: &TensorSpec) -> Vec<String> {
    let title =
        if tensor.name.is_empty() { format!("#{}", tensor.uid) } else { tensor.name.clone() };
    let dtype = tensor.dtype.map_or("no dtype", |dtype| dtype.name());
    if let Some(value) = tensor.scalar {
        let value = serde_json::to_string(&value).unwrap_or_default();
        return vec![title, format!("{dtype} {}", value.trim_matches('"'))];
    }
    let mut lines = vec![title, format!("{dtype} {}", list(&tensor.dims))];
    lines.extend(layout(&tensor.dims, &tensor.strides));
    if tensor.by_value {
        lines.push("by value".to_string());
    }
    lines
}

/// The name of the order in which elements lie, or their strides; `None` for one element.
fn layout(dims: &[i64], strides: &[i64]) -> Option<String> {
    let is = |layout: Layout| {
        dims.len() == strides.len()
            && layout.strides(dims).is_ok_and(|packed| {
                // The stride of a single element isn't used.
                let both = packed.iter().zip(strides).zip(dims);
                both.into_iter().all(|((packed, given), size)| *size == 1 || packed == given)
            })
    };
    if dims.len() == strides.len() && dims.iter().all(|size| *size == 1) {
        return None;
    }
    let [packed, last] = match dims.len() {
        4 => ["NCHW", "NHWC"],
        5 => ["NCDHW", "NDHWC"],
        _ => ["row-major", "channels last"],
    };
    if is(Layout::Packed) {
        return Some(packed.to_string());
    }
    if is(Layout::ChannelsLast) {
        return Some(last.to_string());
    }
    Some(format!("strides {}", list(strides)))
}

fn list(numbers: &[i64]) -> String {
    let numbers: Vec<String> = numbers.iter().map(i64::to_string).collect();
    format!("[{}]", numbers.join(", "))
}

/// An operation's name, then the attributes that differ from their defaults, then its dtype.
fn operation(op: &OpSpec) -> Vec<String> {
    let name = op.operation.name();
    let mut lines = match op.name.as_str() {
        "" => vec![name.to_string()],
        own => vec![format!("{own}: {name}")],
    };
    lines.extend(attributes(&op.operation));
    lines.extend(op.compute.map(|dtype| format!("computes in {dtype}")));
    lines
}

/// An operation's attributes as JSON has them, without those that are cuDNN's defaults.
fn attributes(operation: &Operation) -> Vec<String> {
    let default = match operation {
        Operation::ConvFprop(conv) | Operation::ConvDgrad(conv) | Operation::ConvWgrad(conv) => {
            serde_json::to_value(Convolution::new(conv.stride.len()))
        }
        Operation::Pointwise(pointwise) => serde_json::to_value(Pointwise::new(pointwise.mode)),
        _ => Ok(Value::Null),
    };
    let default = default.unwrap_or_default();
    let Ok(Value::Object(named)) = serde_json::to_value(operation) else { return Vec::new() };
    let Some((_, Value::Object(mut all))) = named.into_iter().next() else { return Vec::new() };
    // The operation's name says the mode of a normalization.
    let is_norm = matches!(operation, Operation::Norm(_) | Operation::NormBackward(_));
    let is_default = |name: &str, value: &Value| {
        value.is_null() || default.get(name) == Some(value) || (is_norm && name == "mode")
    };
    if let Some(padding) = all.get("pre_padding").filter(|pre| all.get("post_padding") == Some(pre))
    {
        // One line where both sides are padded alike.
        let padding = padding.clone();
        let shown = !is_default("pre_padding", &padding);
        all.retain(|name, _| name != "pre_padding" && name != "post_padding");
        all.extend(shown.then(|| ("padding".to_string(), padding)));
    }
    let shown = all.iter().filter(|(name, value)| !is_default(name, value));
    shown.map(|(name, value)| format!("{} {}", name.replace('_', " "), compact(value))).collect()
}

fn compact(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(compact).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// Text with spaces for line breaks and other control characters, and an end to what is too long.
pub(super) fn clean(line: &str) -> String {
    const MOST: usize = 60;
    let mut text: String =
        line.chars().take(MOST).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.chars().nth(MOST).is_some() {
        text.push_str("...");
    }
    text
}
