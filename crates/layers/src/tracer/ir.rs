//! What a graph is made of.

use keyfold_core::{DType, Device, Shape};
use keyfold_tensor::{Tensor, Value, ValueRef};

/// What a node is called that makes an object of a host language's own class of a tensor, like
/// another object: the host language does it, and no operator.
pub(super) const IN_KIND: &str = "keyfold::in_kind";

/// A value of a graph: its place in the graph's list of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub(super) u32);

impl ValueId {
    /// The place.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What is known of a value: what a tensor was like when it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// The elements' type; `None` for an object that isn't a tensor that can be looked at.
    pub dtype: Option<DType>,
    /// The size of each dimension.
    pub shape: Shape,
    /// Where it was.
    pub device: Device,
}

impl Info {
    /// What there is to know of a tensor.
    pub fn of(tensor: &Tensor) -> Info {
        Info { dtype: Some(tensor.dtype()), shape: tensor.shape().clone(), device: tensor.device() }
    }

    /// Of an object that can't be viewed as a tensor.
    pub(super) fn opaque() -> Info {
        Info { dtype: None, shape: Shape::empty(), device: Device::CPU }
    }

    /// Its elements' bytes; none where they are unknown.
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
    /// Anything else, as it was: a number, text, a dtype, None.
    Literal(Box<Value>),
}

impl Arg {
    /// Something that is no value of the graph.
    pub(super) fn literal(value: Value) -> Arg {
        Arg::Literal(Box::new(value))
    }

    /// The literal, if it is one.
    pub fn as_literal(&self) -> Option<&Value> {
        match self {
            Arg::Literal(value) => Some(value),
            _ => None,
        }
    }

    /// Shows every value in it to `visit`, in order.
    pub fn visit(&self, visit: &mut impl FnMut(ValueId)) {
        match self {
            Arg::Value(id) => visit(*id),
            Arg::List(items) => items.iter().for_each(|item| item.visit(visit)),
            Arg::Literal(_) => {}
        }
    }

    /// The values in it, in order.
    pub fn values(&self) -> Vec<ValueId> {
        let mut all = Vec::new();
        self.visit(&mut |id| all.push(id));
        all
    }

    /// The same with other values.
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
    /// What the schema calls it.
    pub name: String,
    /// What was given.
    pub arg: Arg,
    /// Whether that is what a call has that leaves it out.
    pub is_default: bool,
    /// Whether the operator writes to it.
    pub written: bool,
}

/// One call that was recorded.
#[derive(Clone, Debug)]
pub struct Node {
    /// The operator's name, with its overload.
    pub operator: String,
    /// The arguments, in the order of the schema, defaults included.
    pub args: Vec<Argument>,
    /// What it returned: one item per result that the schema declares. A number or None stands as
    /// it was when the graph was recorded, and wherever it was used later.
    pub results: Vec<Arg>,
    /// Whether the call does more than compute its results: it writes to an argument, returns
    /// nothing or draws random numbers.
    pub effects: bool,
}

impl Node {
    /// The values that it reads.
    pub fn reads(&self) -> Vec<ValueId> {
        self.args.iter().flat_map(|argument| argument.arg.values()).collect()
    }

    /// The values that it makes.
    pub fn makes(&self) -> Vec<ValueId> {
        self.results.iter().flat_map(Arg::values).collect()
    }
}

/// An input of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The value that it is.
    pub id: ValueId,
    /// What the function that was traced calls it; may be empty.
    pub name: String,
}

/// A tensor that the function used and that neither was an input nor followed from one: a weight.
///
/// It is held by reference: what is written to it later shows at the next replay, and an operator
/// that writes to it in place does so at each replay.
#[derive(Clone, Debug)]
pub struct Constant {
    /// The value that it is.
    pub id: ValueId,
    /// The tensor, or the object that stands for one in its own language.
    pub value: Value,
}

impl Constant {
    /// The tensor, or the view of a foreign one.
    ///
    /// # Errors
    /// When the object can't be viewed.
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
/// Every value is made once (static single assignment): by being an input or a constant, or as a
/// result of one node; what an operator did in place is the value that it returned. Values are
/// numbered in that order.
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
    /// What it takes, in order.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// What it holds.
    pub fn constants(&self) -> &[Constant] {
        &self.constants
    }

    /// The calls, in order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// What it gives.
    pub fn outputs(&self) -> &[Arg] {
        &self.outputs
    }

    /// How many values there are.
    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    /// What is known of a value.
    ///
    /// # Panics
    /// For a value of another graph that this one doesn't have.
    pub fn info(&self, id: ValueId) -> &Info {
        &self.values[id.index()]
    }

    /// What is known of every value, in their order.
    pub fn infos(&self) -> &[Info] {
        &self.values
    }

    /// What a binding keeps with the graph and its JSON: how a host language's arguments become
    /// inputs, say. Null at first.
    pub fn extra(&self) -> &serde_json::Value {
        &self.extra
    }

    /// Sets what [`Graph::extra`] gives.
    pub fn set_extra(&mut self, extra: serde_json::Value) {
        self.extra = extra;
    }

    /// As [`Graph::set_extra`], given as JSON text.
    ///
    /// # Errors
    /// [`keyfold_core::ErrorKind::Trace`] for text that is no JSON.
    pub fn set_extra_json(&mut self, text: &str) -> keyfold_core::Result<()> {
        self.extra = serde_json::from_str(text).map_err(|error| {
            let message = format!("what goes with a graph must be JSON: {error}");
            keyfold_core::Error::new(keyfold_core::ErrorKind::Trace, message)
        })?;
        Ok(())
    }

    /// Names the inputs, in order, for people; surplus names are left out.
    pub fn name_inputs<'n>(&mut self, names: impl IntoIterator<Item = &'n str>) {
        for (input, name) in self.inputs.iter_mut().zip(names) {
            name.clone_into(&mut input.name);
        }
    }
}
