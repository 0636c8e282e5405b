//! Derivatives written in Python: `register_autograd`.

use std::any::Any;
use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::schema::{Schema, Type};
use keyfold_layers::autograd::{self, Backward, Derivative, Edge, Extra, Gradients, Saves};
use keyfold_tensor::{Tensor, ValueRef};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::call::results;
use crate::call::signature::provenance_of;
use crate::classes::autograd::optional_tensor;
use crate::classes::dispatcher::PyDispatcher;
use crate::classes::handle::PyHandle;
use crate::marshal::attach::{attach, reattach};
use crate::marshal::describe::describe_object;
use crate::marshal::errors::{IntoPyResult, error, from_pyerr};
use crate::marshal::tensor::wrap;

/// A Python function as a derivative: `backward(ctx, *grads)`, with `setup(ctx, inputs, output)`
/// before it, which says what to keep.
struct PyDerivative {
    name: String,
    schema: Schema,
    backward: Py<PyAny>,
    setup: Option<Py<PyAny>>,
    /// `keyfold._autograd.Context`.
    context_class: Py<PyAny>,
}

/// A tensor that `ctx.save_for_backward` was given.
#[derive(Clone, Copy)]
enum Kept {
    /// An argument, or an item of a list.
    Argument(usize, Option<usize>),
    /// A result.
    Result(usize),
    /// None.
    Nothing,
    /// Another, at this place among the others.
    Other(usize),
}

/// The data of a node.
struct Memory {
    context: Py<PyAny>,
    kept: Vec<Kept>,
    others: Vec<autograd::SavedTensor>,
}

impl PyDerivative {
    fn error(&self, message: String) -> PyErr {
        let text = format!("the derivative of {} {message}", self.name);
        from_gradient(text)
    }

    /// Runs the setup function and finds out what it keeps.
    fn set_up(
        &self,
        py: Python<'_>,
        args: &[ValueRef<'_>],
        outputs: &[&Tensor],
        edges: &[Option<Edge>],
    ) -> PyResult<(Memory, Saves)> {
        let inputs: Vec<_> =
            args.iter().map(|arg| results::ref_to_py(py, *arg)).collect::<PyResult<_>>()?;
        let context = self.context_class.bind(py).call1((self.per_argument(args, edges),))?;
        let mut keeps = Saves::NONE;
        let (mut kept, mut others) = (Vec::new(), Vec::new());
        let Some(setup) = &self.setup else {
            return Ok((Memory { context: context.unbind(), kept, others }, keeps));
        };
        let results: Vec<Bound<'_, PyAny>> = outputs
            .iter()
            .map(|tensor| Ok(wrap(py, tensor.detach().into_whole())?.into_any()))
            .collect::<PyResult<_>>()?;
        let output = match &results[..] {
            [one]
                if self.schema.returns.len() == 1 && self.schema.returns[0].ty == Type::Tensor =>
            {
                one.clone()
            }
            many => PyTuple::new(py, many)?.into_any(),
        };
        let off = keyfold_dispatch::DispatchKeySet::from([keyfold_dispatch::DispatchKey::Autograd]);
        keyfold_dispatch::inside_layers(off, || {
            setup.bind(py).call1((&context, PyTuple::new(py, &inputs)?, output))
        })?;
        for saved in context.getattr("_to_save")?.cast::<PyTuple>()?.iter() {
            let place = place_among(&saved, &inputs)?;
            kept.push(if saved.is_none() {
                Kept::Nothing
            } else if let Some((argument, item)) = place {
                keeps.arguments |= 1 << argument;
                Kept::Argument(argument, item)
            } else if let Some(at) = results.iter().position(|result| result.is(&saved)) {
                keeps.results = true;
                Kept::Result(at)
            } else {
                match optional_tensor(&saved)? {
                    Some(tensor) => others.push(autograd::SavedTensor::keep(&tensor).py(py)?),
                    None => unreachable!("None was handled above"),
                }
                Kept::Other(others.len() - 1)
            });
        }
        context.setattr("_to_save", PyTuple::empty(py))?;
        Ok((Memory { context: context.unbind(), kept, others }, keeps))
    }

    /// For each argument of the schema whether its gradient is needed; a list's are one.
    fn per_argument(&self, args: &[ValueRef<'_>], edges: &[Option<Edge>]) -> Vec<bool> {
        let mut place = 0;
        let mut take = |count: usize| {
            let any = edges[place..place + count].iter().any(Option::is_some);
            place += count;
            any
        };
        self.schema
            .arguments
            .iter()
            .zip(args)
            .map(|(argument, arg)| take(places(&argument.ty, *arg)))
            .collect()
    }

    fn saved_tensors<'py>(
        &self,
        py: Python<'py>,
        call: &Backward<'_>,
        memory: &Memory,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let mut items = Vec::with_capacity(memory.kept.len());
        for kept in &memory.kept {
            let tensor = match *kept {
                Kept::Nothing => {
                    items.push(py.None().into_bound(py));
                    continue;
                }
                Kept::Argument(argument, None) => call.tensor(argument),
                Kept::Argument(argument, Some(item)) => {
                    call.tensors(argument).and_then(|mut list| {
                        list.swap_remove(item).ok_or_else(|| {
                            Error::new(ErrorKind::Gradient, "an absent tensor was saved".to_owned())
                        })
                    })
                }
                Kept::Result(at) => call.result(at),
                Kept::Other(at) => memory.others[at].restore(&self.name),
            };
            items.push(wrap(py, tensor.py(py)?)?.into_any());
        }
        PyTuple::new(py, items)
    }

    fn run(
        &self,
        py: Python<'_>,
        call: &Backward<'_>,
        grads: &[Option<Tensor>],
    ) -> PyResult<Gradients> {
        let memory = call.extra().and_then(|extra| extra.downcast_ref::<Memory>());
        let Some(memory) = memory else {
            return Err(self.error("lost what it kept".to_owned()));
        };
        let context = memory.context.bind(py);
        context.setattr("saved_tensors", self.saved_tensors(py, call, memory)?)?;
        let mut args = vec![context.clone()];
        for (i, grad) in grads.iter().enumerate() {
            let grad = match grad {
                Some(grad) => grad.clone(),
                // A whole number has no gradient.
                None if !call.is_differentiable(i) => {
                    args.push(py.None().into_bound(py));
                    continue;
                }
                // A result that nothing depends on.
                None => call.zeros(i).py(py)?,
            };
            args.push(wrap(py, grad)?.into_any());
        }
        let returned = self.backward.bind(py).call1(PyTuple::new(py, args)?);
        context.setattr("saved_tensors", PyTuple::empty(py))?;
        self.gradients(call, &returned?)
    }

    /// The gradients that the function returned, one per tensor operand.
    fn gradients(&self, call: &Backward<'_>, returned: &Bound<'_, PyAny>) -> PyResult<Gradients> {
        let arguments = &self.schema.arguments;
        let items: Vec<Bound<'_, PyAny>> = match returned.cast::<PyTuple>() {
            Ok(tuple) => tuple.iter().collect(),
            Err(_) => vec![returned.clone()],
        };
        if items.len() != arguments.len() {
            return Err(self.error(format!(
                "returned {} gradients; it has {} arguments and each needs one (None for those that \
                 have none): {}",
                items.len(),
                arguments.len(),
                self.schema
            )));
        }
        let mut gradients = Gradients::with_capacity(call.slots());
        for (i, (argument, item)) in arguments.iter().zip(&items).enumerate() {
            let wrong = |object: &Bound<'_, PyAny>| {
                self.error(format!(
                    "returned {} for argument '{}'; it must be a tensor of the argument's form, or \
                     None",
                    describe_object(object),
                    argument.name
                ))
            };
            let count = call.slot_count(i);
            let is_list = matches!(argument.ty.without_optional(), Type::List(..));
            if item.is_none() {
                gradients.extend(std::iter::repeat_n(None, count));
            } else if count == 0 {
                return Err(self.error(format!(
                    "returned {} for argument '{}', which is a {} and has no gradient: return None",
                    describe_object(item),
                    argument.name,
                    argument.ty
                )));
            } else if is_list {
                let list: Vec<Bound<'_, PyAny>> = match item.cast::<PyList>() {
                    Ok(list) => list.iter().collect(),
                    Err(_) => item.cast::<PyTuple>().map_err(|_| wrong(item))?.iter().collect(),
                };
                if list.len() != count {
                    return Err(self.error(format!(
                        "returned {} gradients for the {count} tensors of argument '{}'",
                        list.len(),
                        argument.name
                    )));
                }
                for one in &list {
                    gradients.push(optional_tensor(one).map_err(|_| wrong(one))?);
                }
            } else {
                gradients.push(optional_tensor(item).map_err(|_| wrong(item))?);
            }
        }
        Ok(gradients)
    }
}

fn from_gradient(text: String) -> PyErr {
    reattach(|py| error(py, ErrorKind::Gradient, text))
}

/// How many gradients an argument has: one for a tensor, one per item of a list of tensors.
fn places(ty: &Type, arg: ValueRef<'_>) -> usize {
    match ty.without_optional() {
        Type::Tensor => 1,
        Type::List(inner, _) if *inner.without_optional() == Type::Tensor => {
            arg.list_len().unwrap_or(0)
        }
        _ => 0,
    }
}

/// Which argument an object is, or which item of a list.
fn place_among(
    object: &Bound<'_, PyAny>,
    inputs: &[Bound<'_, PyAny>],
) -> PyResult<Option<(usize, Option<usize>)>> {
    for (i, input) in inputs.iter().enumerate().take(64) {
        if input.is(object) {
            return Ok(Some((i, None)));
        }
        if let Ok(list) = input.cast::<PyList>()
            && let Some(at) = list.iter().position(|item| item.is(object))
        {
            return Ok(Some((i, Some(at))));
        }
    }
    Ok(None)
}

impl Derivative for PyDerivative {
    fn name(&self) -> &str {
        &self.name
    }

    fn saves(&self) -> Saves {
        Saves::NONE
    }

    fn record(
        &self,
        args: &[ValueRef<'_>],
        results: &[&Tensor],
        edges: &[Option<Edge>],
    ) -> Result<(Option<Extra>, Saves)> {
        attach(|py| {
            let (memory, keeps) = self.set_up(py, args, results, edges).map_err(from_pyerr)?;
            let memory: Arc<dyn Any + Send + Sync> = Arc::new(memory);
            Ok((Some(memory), keeps))
        })
    }

    fn apply(&self, call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        attach(|py| self.run(py, call, grads).map_err(from_pyerr))
    }
}

/// Registers a derivative in a dispatcher; see `keyfold.register_autograd`.
#[pyfunction]
#[pyo3(signature = (dispatcher, op, backward, setup_context, context_class, r#override))]
pub(crate) fn _register_autograd(
    py: Python<'_>,
    dispatcher: &Bound<'_, PyDispatcher>,
    op: &Bound<'_, PyAny>,
    backward: &Bound<'_, PyAny>,
    setup_context: Option<&Bound<'_, PyAny>>,
    context_class: &Bound<'_, PyAny>,
    r#override: &str,
) -> PyResult<PyHandle> {
    let dispatcher = dispatcher.get();
    let operator = dispatcher.find(op)?;
    let operator = operator.get().operator.clone();
    for function in std::iter::once(backward).chain(setup_context) {
        if !function.is_callable() {
            let message = format!("a derivative is a function, not {}", describe_object(function));
            return Err(crate::marshal::errors::error(py, ErrorKind::Binding, message));
        }
    }
    let derivative = Arc::new(PyDerivative {
        name: operator.name().to_string(),
        schema: operator.schema().clone(),
        backward: backward.clone().unbind(),
        setup: setup_context.map(|setup| setup.clone().unbind()),
        context_class: context_class.clone().unbind(),
    });
    let kernel = autograd::kernel(derivative).with_provenance(provenance_of(backward));
    let mode = r#override.parse().py(py)?;
    let key = keyfold_dispatch::DispatchKey::Autograd;
    let handle = dispatcher.dispatcher.register_with(&operator, key, kernel, mode).py(py)?;
    Ok(dispatcher.handle(py, handle))
}
