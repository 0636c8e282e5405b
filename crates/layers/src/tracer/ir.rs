//! The intermediate representation of a graph.

use keyfold_core::{DType, Device, Shape};
use keyfold_tensor::{Tensor, Value, ValueRef};

/// The name of nodes in which the host language wraps a tensor in an object of its own class, like
/// another object. No operator has it.
pub(super) const WRAP_NODE: &str = "keyfold::in_kind";

/// A value of a graph: its index in the graph's list of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub(super) u32);

impl ValueId {
    /// Returns the index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The properties of a value when it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// The element type; `None` for an object that can't be viewed as a tensor.
    pub dtype: Option<DType>,
    /// The size of each dimension.
    pub shape: Shape,
    /// The device.
    pub device: Device,
}

impl Info {
    /// Returns the properties of a tensor.
    pub fn of(tensor: &Tensor) -> Info {
        Info { dtype: Some(tensor.dtype()), shape: tensor.shape().clone(), device: tensor.device() }
    }

    /// Returns the properties of an object that can't be viewed as a tensor.
    pub(super) fn opaque() -> Info {
        Info { dtype: None, shape: Shape::empty(), device: Device::CPU }
    }

    /// Returns the size of its elements in bytes; `None` if unknown.
    pub fn nbytes(&self) -> usize {
        self.dtype.map_or(0, |dtype| self.shape.iter().product::<usize>() * dtype.size())
    }
}

/// An argument, a result or an output.
#[derive(Clone, Debug)]
pub enum Arg {
    /// A value of the graph.
    Value(ValueId),
    /// A list of arguments.
    List(Vec<Arg>),
    /// Any other argument: a number, text, a dtype, None.
    Literal(Box<Value>),
}

impl Arg {
    /// Returns an argument that isn't a value of the graph.
    pub(super) fn literal(value: Value) -> Arg {
        Arg::Literal(Box::new(value))
    }

    /// Returns the literal, if it is one.
    pub fn as_literal(&self) -> Option<&Value> {
        match self {
            Arg::Literal(value) => Some(value),
            _ => None,
        }
    }

    /// Calls `visit` with every value in it, in order.
    pub fn visit(&self, visit: &mut impl FnMut(ValueId)) {
        match self {
            Arg::Value(id) => visit(*id),
            Arg::List(items) => items.iter().for_each(|item| item.visit(visit)),
            Arg::Literal(_) => {}
        }
    }

    /// Returns the values in it, in order.
    pub fn values(&self) -> Vec<ValueId> {
        let mut all = Vec::new();
        self.visit(&mut |id| all.push(id));
        all
    }

    /// Returns the argument with its values renamed.
    pub(super) fn renamed(&self, name: &mut impl FnMut(ValueId) -> ValueId) -> Arg {
        match self {
            Arg::Value(id) => Arg::Value(name(*id)),
            Arg::List(items) => Arg::List(items.iter().map(|item| item.renamed(name)).collect()),
            literal => literal.clone(),
        }
    }
}

/// One argument of a recorded call.
#[derive(Clone, Debug)]
pub struct Argument {
    /// Its name in the schema.
    pub name: String,
    /// The argument passed.
    pub arg: Arg,
    /// Whether it equals the schema's default.
    pub is_default: bool,
    /// Whether the operator writes to it.
    pub written: bool,
}

/// One call that was recorded.
#[derive(Clone, Debug)]
pub struct Node {
    /// The operator's name, with its overload.
    pub operator: String,
    /// The arguments, in the order of the schema, including defaults.
    pub args: Vec<Argument>,
    /// One item per result that the schema declares. A number or None has its value from the
    /// recording, also where it was used later.
    pub results: Vec<Arg>,
    /// Whether the call has effects besides its results: it writes to an argument, returns nothing
    /// or draws random numbers.
    pub effects: bool,
}

impl Node {
    /// Returns the values that it reads.
    pub fn reads(&self) -> Vec<ValueId> {
        self.args.iter().flat_map(|argument| argument.arg.values()).collect()
    }

    /// Returns the values that it makes.
    pub fn makes(&self) -> Vec<ValueId> {
        self.results.iter().flat_map(Arg::values).collect()
    }
}

/// An input of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Its value.
    pub id: ValueId,
    /// Its name in the traced function; may be empty.
    pub name: String,
}

/// A tensor that the function used and that neither was an input nor depends on one: a weight.
///
/// It is held by reference: later writes to it affect the next replay, and an in-place operator
/// writes to it at each replay.
#[derive(Clone, Debug)]
pub struct Constant {
    /// Its value.
    pub id: ValueId,
    /// The tensor, or the object that represents one in its own language.
    pub value: Value,
}

impl Constant {
    /// Returns the tensor, or the view of a foreign one.
    ///
    /// # Errors
    /// If the object can't be viewed.
    pub fn tensor(&self) -> keyfold_core::Result<&Tensor> {
        match &self.value {
            Value::Tensor(tensor) => Ok(tensor),
            Value::Foreign(object) => object.tensor(),
            other => {
                let other: ValueRef<'_> = keyfold_dispatch::Value::as_ref(other);
                other.tensor()
            }
        }
    }
}

/// A recorded function: inputs, constants, calls in order, outputs.
///
/// Every value is defined once (static single assignment): as an input, a constant, or a result of
/// one node. An in-place operator's result is a new value. Values are numbered in order of
/// definition.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub(super) values: Vec<Info>,
    pub(super) inputs: Vec<Input>,
    pub(super) constants: Vec<Constant>,
    pub(super) nodes: Vec<Node>,
    pub(super) outputs: Vec<Arg>,
    pub(super) extra: serde_json::Value,
}

impl Graph {
    /// Returns the inputs, in order.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// Returns the constants.
    pub fn constants(&self) -> &[Constant] {
        &self.constants
    }

    /// Returns the calls, in order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the outputs.
    pub fn outputs(&self) -> &[Arg] {
        &self.outputs
    }

    /// Returns the number of values.
    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    /// Returns the properties of a value.
    ///
    /// # Panics
    /// For a value of another graph whose index is out of range.
    pub fn info(&self, id: ValueId) -> &Info {
        &self.values[id.index()]
    }

    /// Returns the properties of all values, in order.
    pub fn infos(&self) -> &[Info] {
        &self.values
    }

    /// Returns the binding's data in the graph and its JSON, such as the mapping from a host
    /// language's arguments to inputs. Null by default.
    pub fn extra(&self) -> &serde_json::Value {
        &self.extra
    }

    /// Sets the data that [`Graph::extra`] returns.
    pub fn set_extra(&mut self, extra: serde_json::Value) {
        self.extra = extra;
    }

    /// As [`Graph::set_extra`], from JSON text.
    ///
    /// # Errors
    /// [`keyfold_core::ErrorKind::Trace`] for invalid JSON.
    pub fn set_extra_json(&mut self, text: &str) -> keyfold_core::Result<()> {
        self.extra = serde_json::from_str(text).map_err(|error| {
            let message = format!("what goes with a graph must be JSON: {error}");
            keyfold_core::Error::new(keyfold_core::ErrorKind::Trace, message)
        })?;
        Ok(())
    }

    /// ValueNames the inputs, in order, for display; surplus names are ignored.
    pub fn name_inputs<'n>(&mut self, names: impl IntoIterator<Item = &'n str>) {
        for (input, name) in self.inputs.iter_mut().zip(names) {
            name.clone_into(&mut input.name);
        }
    }
}
