//! A graph as text, one call per line.

use std::collections::HashMap;
use std::fmt::{self, Display, Write};

use keyfold_core::Scalar;
use keyfold_dispatch::Value as _;
use keyfold_tensor::{Value, ValueRef};

use super::ir::{Arg, Argument, Graph, Info, Node, ValueId};

/// The number of list items that a line shows.
const SHOWN: usize = 16;

impl Display for Info {
    /// `float64[2, 3]`, and the device unless it is the CPU.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(dtype) = self.dtype else { return f.write_str("object") };
        write!(f, "{dtype}{:?}", self.shape)?;
        if self.device == keyfold_core::Device::CPU {
            Ok(())
        } else {
            write!(f, " {}", self.device)
        }
    }
}

/// The names of a graph's values: inputs and results share one numbering, constants have their own.
pub(super) struct ValueNames(HashMap<ValueId, String>);

impl ValueNames {
    pub(super) fn of(graph: &Graph) -> ValueNames {
        let inputs = graph.inputs.iter().map(|input| input.id);
        let results = graph.nodes.iter().flat_map(Node::makes);
        let row = inputs.chain(results).enumerate().map(|(i, id)| (id, format!("%{i}")));
        let constants = graph.constants.iter().enumerate();
        ValueNames(row.chain(constants.map(|(i, c)| (c.id, format!("%c{i}")))).collect())
    }

    pub(super) fn get(&self, id: ValueId) -> &str {
        self.0.get(&id).map_or("%?", String::as_str)
    }

    /// Returns the text of an argument.
    pub(super) fn arg(&self, arg: &Arg) -> String {
        match arg {
            Arg::Value(id) => self.get(*id).to_owned(),
            Arg::Literal(value) => literal((**value).as_ref()),
            Arg::List(items) => {
                let mut shown: Vec<_> = items.iter().take(SHOWN).map(|i| self.arg(i)).collect();
                if items.len() > SHOWN {
                    shown.push(format!("... {} in all", items.len()));
                }
                format!("[{}]", shown.join(", "))
            }
        }
    }

    /// Returns the text of arguments without defaults. After an omitted one they have names.
    pub(super) fn args(&self, args: &[Argument]) -> String {
        let mut named = false;
        let mut text = Vec::new();
        for argument in args {
            if argument.is_default {
                named = true;
                continue;
            }
            let plain = matches!(argument.arg.as_literal(), Some(Value::Bool(_) | Value::None));
            let shown = self.arg(&argument.arg);
            text.push(match named || plain {
                true => format!("{}={shown}", argument.name),
                false => shown,
            });
        }
        text.join(", ")
    }

    /// Returns the text of a call's results: `%3`, `(%3, %4)`, `[%3, %4]`.
    pub(super) fn results(&self, results: &[Arg]) -> String {
        match results {
            [one] => self.arg(one),
            many => {
                let items: Vec<_> = many.iter().map(|item| self.arg(item)).collect();
                format!("({})", items.join(", "))
            }
        }
    }
}

/// Returns text in single quotes, with quotes and invisible characters escaped.
fn quoted(text: &str) -> String {
    let mut shown = String::from("'");
    for c in text.chars() {
        match c {
            '"' => shown.push(c),
            other => shown.extend(other.escape_debug()),
        }
    }
    shown + "'"
}

/// Formats a number, text and the like as Python does.
pub(super) fn literal(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Float(x) if x.is_infinite() => if x > 0.0 { "inf" } else { "-inf" }.to_owned(),
        ValueRef::Str(text) => quoted(text),
        ValueRef::DType(dtype) => dtype.to_string(),
        ValueRef::Device(device) => device.to_string(),
        ValueRef::None => "None".to_owned(),
        ValueRef::Foreign(object) => format!("<{}>", object.describe()),
        other => other.scalar().map_or_else(|| Value::describe(other), |s: Scalar| s.to_string()),
    }
}

impl Graph {
    /// Returns the names of all values in the graph's text: `%3`, `%c0`.
    pub fn value_names(&self) -> Vec<String> {
        let names = ValueNames::of(self);
        (0..self.values.len()).map(|i| names.get(ValueId(i as u32)).to_owned()).collect()
    }

    /// Returns the text of one call.
    pub fn node_text(&self, node: &Node) -> String {
        let names = ValueNames::of(self);
        let call = format!("{}({})", node.operator, names.args(&node.args));
        match node.results.is_empty() {
            true => call,
            false => {
                let (results, types) = (names.results(&node.results), self.types(&node.results));
                format!("{results}: {types} = {call}")
            }
        }
    }

    /// Returns the types of a call's results: `float64[2, 3]`, `(float64[], int64[2])`.
    pub(super) fn types(&self, results: &[Arg]) -> String {
        let one = |arg: &Arg| self.type_of(arg);
        match results {
            [single] => one(single),
            many => format!("({})", many.iter().map(one).collect::<Vec<_>>().join(", ")),
        }
    }

    fn type_of(&self, arg: &Arg) -> String {
        match arg {
            Arg::Value(id) => self.info(*id).to_string(),
            Arg::List(items) => {
                let items: Vec<_> = items.iter().map(|item| self.type_of(item)).collect();
                format!("[{}]", items.join(", "))
            }
            Arg::Literal(value) => match &**value {
                Value::None => "None",
                Value::Bool(_) => "bool",
                Value::Int(_) | Value::UInt(_) => "int",
                Value::Float(_) => "float",
                Value::Complex(_) => "complex",
                Value::Str(_) => "str",
                Value::DType(_) => "dtype",
                Value::Device(_) => "device",
                _ => "object",
            }
            .to_owned(),
        }
    }
}

impl Display for Graph {
    /// Prints one line per constant and call, in order, with aligned columns.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ValueNames::of(self);
        let inputs = self.inputs.iter().map(|input| {
            let title = match input.name.as_str() {
                "" => String::new(),
                name => format!(" {}", name.escape_debug()),
            };
            format!("{}{title}: {}", names.get(input.id), self.info(input.id))
        });
        let inputs: Vec<_> = inputs.collect();
        let long = inputs.iter().map(String::len).sum::<usize>() > 80;
        match long {
            true => writeln!(f, "graph(\n    {}\n):", inputs.join(",\n    "))?,
            false => writeln!(f, "graph({}):", inputs.join(", "))?,
        }
        let constants = self.constants.iter().map(|constant| {
            let what = match constant.tensor() {
                Ok(tensor) if tensor.numel() == 1 && tensor.ndim() == 0 => {
                    let value = tensor.item().map(|s| format!(" {}", literal(s.into())));
                    format!("constant{}", value.unwrap_or_default())
                }
                Ok(_) => "constant".to_owned(),
                Err(_) => format!("constant {}", Value::describe(constant.value.as_ref())),
            };
            (names.get(constant.id).to_owned(), self.info(constant.id).to_string(), what)
        });
        let calls = self.nodes.iter().map(|node| {
            let call = format!("{}({})", node.operator, names.args(&node.args));
            match node.results.is_empty() {
                true => (String::new(), String::new(), call),
                false => (names.results(&node.results), self.types(&node.results), call),
            }
        });
        let lines: Vec<(String, String, String)> = constants.chain(calls).collect();
        let width = |part: fn(&(String, String, String)) -> usize| {
            // A long list of results doesn't widen the column.
            lines.iter().map(part).filter(|width| *width <= 40).max().unwrap_or(0)
        };
        let (wide, wider) = (width(|line| line.0.len()), width(|line| line.1.len()));
        let mut text = String::new();
        for (name, types, call) in &lines {
            if name.is_empty() {
                let indent = wide + wider + 5;
                writeln!(text, "  {:indent$}{call}", "")?;
            } else {
                let after = wide + 1;
                writeln!(text, "  {:after$} {types:wider$} = {call}", format!("{name}:"))?;
            }
        }
        let outputs: Vec<_> = self.outputs.iter().map(|output| names.arg(output)).collect();
        writeln!(
            text,
            "  return {}",
            if outputs.is_empty() { "None".into() } else { outputs.join(", ") }
        )?;
        f.write_str(&text)
    }
}
