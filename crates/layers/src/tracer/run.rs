//! Replaying a graph on other inputs.

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{DispatchKey, Dispatcher, Value as _, inside_layers};
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::ir::{Arg, Graph, Info, Node, ValueId, WRAP_NODE};
use super::print::ValueNames;

/// The function by which a host language wraps a tensor in an object like a given one (see
/// [`note_wrapped`](super::note_wrapped)).
pub type Wrap<'w> = &'w dyn Fn(&Value, Tensor) -> Result<Value>;

/// A replay in progress, with its live values.
struct Interpreter<'w> {
    names: ValueNames,
    wrap: Wrap<'w>,
    values: Vec<Option<Value>>,
}

impl Graph {
    /// Replays the graph on inputs like the recorded ones: calls each operator by name through the
    /// dispatcher, so that the active layers apply. Random operators draw again; an in-place
    /// operator writes to inputs and constants again.
    ///
    /// # Errors
    /// [`ErrorKind::Trace`] for a wrong number of inputs, and, naming the input, for another rank
    /// or shape; [`ErrorKind::DType`] and [`ErrorKind::Device`] likewise; unknown operators; the
    /// calls' errors.
    pub fn run(&self, dispatcher: &Dispatcher<Value>, inputs: &[&Tensor]) -> Result<Vec<Value>> {
        self.run_values(dispatcher, owned(inputs), false, &no_objects)
    }

    /// As [`Graph::run`], with inputs of other sizes and the same number of dimensions. Sizes that
    /// were arguments of a call (of `aten::reshape`, for example) stay those of the recording.
    ///
    /// # Errors
    /// As [`Graph::run`].
    pub fn run_any_shape(
        &self,
        dispatcher: &Dispatcher<Value>,
        inputs: &[&Tensor],
    ) -> Result<Vec<Value>> {
        self.run_values(dispatcher, owned(inputs), true, &no_objects)
    }

    /// As [`Graph::run`] or, with `any_shape`, [`Graph::run_any_shape`]. Inputs may be objects of a
    /// host language, where they were in the recording. `wrap` makes an object like a given one
    /// from a tensor.
    ///
    /// # Errors
    /// As [`Graph::run`].
    pub fn run_values(
        &self,
        dispatcher: &Dispatcher<Value>,
        inputs: Vec<Value>,
        any_shape: bool,
        wrap: Wrap<'_>,
    ) -> Result<Vec<Value>> {
        // Excluded from an outer trace: a class may read its elements while its shape is read.
        inside_layers(DispatchKey::Tracer.into(), || self.check_inputs(&inputs, any_shape))?;
        self.replay(dispatcher, inputs, wrap)
    }

    fn check_inputs(&self, inputs: &[Value], any_shape: bool) -> Result<()> {
        if inputs.len() != self.inputs.len() {
            let (wanted, given) = (self.inputs.len(), inputs.len());
            let s = if wanted == 1 { "" } else { "s" };
            return Err(Error::new(
                ErrorKind::Trace,
                format!("the graph takes {wanted} input{s}, and {given} were given"),
            ));
        }
        for (at, (input, given)) in self.inputs.iter().zip(inputs).enumerate() {
            let wanted = self.info(input.id);
            let given = given.as_ref().tensor().map_or_else(|_| Info::opaque(), Info::of);
            let Some(kind) = mismatch(wanted, &given, any_shape) else { continue };
            let name = match input.name.as_str() {
                "" => format!("input %{at}"),
                name => format!("input %{at} ({name})"),
            };
            let mut message =
                format!("{name} was {wanted} when the graph was recorded, not {given}");
            if kind == ErrorKind::Trace && wanted.shape.len() == given.shape.len() {
                message += "; trace the function for this shape, or replay with any_shape if no \
                            size is fixed in the graph";
            }
            return Err(Error::new(kind, message));
        }
        Ok(())
    }

    fn replay(
        &self,
        dispatcher: &Dispatcher<Value>,
        inputs: Vec<Value>,
        wrap: Wrap<'_>,
    ) -> Result<Vec<Value>> {
        let values = vec![None; self.values.len()];
        let mut running = Interpreter { names: ValueNames::of(self), wrap, values };
        for (input, given) in self.inputs.iter().zip(inputs) {
            running.values[input.id.index()] = Some(given);
        }
        for constant in &self.constants {
            running.values[constant.id.index()] = Some(constant.value.clone());
        }
        let last = self.last_uses();
        for (at, node) in self.nodes.iter().enumerate() {
            running.call(dispatcher, node)?;
            // A value is dropped after its last use, as in the function.
            for id in node.reads().into_iter().chain(node.makes()) {
                if last[id.index()] == Some(at) {
                    running.values[id.index()] = None;
                }
            }
        }
        self.outputs.iter().map(|output| running.owned(output)).collect()
    }

    /// Returns the last call that uses each value; `None` for outputs.
    fn last_uses(&self) -> Vec<Option<usize>> {
        let mut last = vec![None; self.values.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            for id in node.reads().into_iter().chain(node.makes()) {
                last[id.index()] = Some(at);
            }
        }
        for id in self.outputs.iter().flat_map(Arg::values) {
            last[id.index()] = None;
        }
        last
    }
}

fn no_objects(_: &Value, _: Tensor) -> Result<Value> {
    Err(Error::new(ErrorKind::Trace, "only the host language that recorded it makes its objects"))
}

fn owned(inputs: &[&Tensor]) -> Vec<Value> {
    inputs.iter().map(|tensor| Value::Tensor((*tensor).clone())).collect()
}

/// Returns the kind of an input's mismatch, if there is one.
fn mismatch(wanted: &Info, given: &Info, any_shape: bool) -> Option<ErrorKind> {
    if wanted.dtype != given.dtype {
        return Some(ErrorKind::DType);
    }
    if wanted.device != given.device {
        return Some(ErrorKind::Device);
    }
    let fits = match any_shape {
        true => wanted.shape.len() == given.shape.len(),
        false => wanted.shape == given.shape,
    };
    (!fits).then_some(ErrorKind::Trace)
}

impl Interpreter<'_> {
    fn call(&mut self, dispatcher: &Dispatcher<Value>, node: &Node) -> Result<()> {
        if node.operator == WRAP_NODE {
            return self.wrap_object(node);
        }
        let place = || format!("graph node {}", self.title(node));
        let operator = dispatcher.operator(&node.operator).map_err(|error| error.at(&place()))?;
        let args = node.args.iter().map(|argument| self.owned(&argument.arg));
        let args = args.collect::<Result<Vec<Value>>>()?;
        let args: Vec<ValueRef<'_>> = args.iter().map(Value::as_ref).collect();
        let result = operator.call(&args).map_err(|error| error.at(&place()))?;
        let fits = match (result, &node.results[..]) {
            (Value::Tuple(items), many) => {
                items.len() == many.len()
                    && items
                        .into_iter()
                        .zip(many)
                        .all(|(item, known)| self.store_result(item, known))
            }
            (_, []) => true,
            (one, [known]) => self.store_result(one, known),
            _ => false,
        };
        if fits {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Trace,
            format!(
                "graph node {}: its results are not those of the recording: a list has another \
                 length, or None stands where a tensor was",
                self.title(node)
            ),
        ))
    }

    /// Wraps a tensor in an object, in the class of another one.
    fn wrap_object(&mut self, node: &Node) -> Result<()> {
        let args = node.args.iter().map(|argument| self.owned(&argument.arg));
        let args = args.collect::<Result<Vec<Value>>>()?;
        let place = format!("graph node {}", self.title(node));
        let wrong = |what: &str| Error::new(ErrorKind::Trace, format!("{place}: {what}"));
        let ([x, like], [known]) = (&args[..], &node.results[..]) else {
            return Err(wrong("it takes x and like, and has one result"));
        };
        let made = (self.wrap)(like, x.clone().into_tensor()?).map_err(|error| error.at(&place))?;
        if self.store_result(made, known) { Ok(()) } else { Err(wrong("its result is no object")) }
    }

    fn title(&self, node: &Node) -> String {
        match node.results.is_empty() {
            true => node.operator.clone(),
            false => format!("{} = {}", self.names.results(&node.results), node.operator),
        }
    }

    /// Stores the tensors of a result as values; returns whether its structure is the recorded one.
    fn store_result(&mut self, value: Value, known: &Arg) -> bool {
        match (known, value) {
            (Arg::Value(id), value @ (Value::Tensor(_) | Value::Foreign(_))) => {
                self.values[id.index()] = Some(value);
                true
            }
            (Arg::List(known), Value::List(items)) => {
                items.len() == known.len()
                    && items
                        .into_iter()
                        .zip(known)
                        .all(|(item, known)| self.store_result(item, known))
            }
            (Arg::Literal(_), Value::Tensor(_) | Value::Foreign(_)) => false,
            (Arg::Literal(_), _) => true,
            _ => false,
        }
    }

    /// Returns an argument with the values filled in.
    fn owned(&self, arg: &Arg) -> Result<Value> {
        Ok(match arg {
            Arg::Value(id) => self.value(*id)?.clone(),
            Arg::Literal(value) => (**value).clone(),
            Arg::List(items) => {
                Value::List(items.iter().map(|item| self.owned(item)).collect::<Result<_>>()?)
            }
        })
    }

    fn value(&self, id: ValueId) -> Result<&Value> {
        self.values[id.index()].as_ref().ok_or_else(|| {
            let name = self.names.get(id);
            Error::new(ErrorKind::Trace, format!("the graph uses {name} before it makes it"))
        })
    }
}
