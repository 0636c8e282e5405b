//! Autograd in Python: `Tensor.grad`, `backward` and hooks, `grad`, checkpoints.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{DispatchKey, DispatchKeySet, outside_layers};
use keyfold_layers::autograd::{self, Edge, Node, Options};
use keyfold_tensor::Tensor;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::call::context;
use crate::call::panics::panic_error;
use crate::classes::aten;
use crate::classes::guards::PyGuard;
use crate::marshal::arrays;
use crate::marshal::attach::attach;
use crate::marshal::describe::describe_object;
use crate::marshal::errors::{IntoPyResult, error, from_pyerr, to_pyerr};
use crate::marshal::tensor::{PyTensor, wrap};

/// How often a long backward asks whether somebody pressed Ctrl-C.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// Runs native code that computes gradients: with Python's context applied, without the GIL, and
/// stopping soon after Ctrl-C.
fn run<R: Send>(
    py: Python<'_>,
    f: impl FnOnce(autograd::Interrupt<'_>) -> Result<R> + Send,
) -> PyResult<R> {
    let asked = Instant::now();
    let result = context::in_context(py, || {
        py.detach(|| {
            let (last, nodes) = (Cell::new(asked), Cell::new(0_u32));
            let computed = catch_unwind(AssertUnwindSafe(|| {
                f(&|| {
                    nodes.set(nodes.get().wrapping_add(1));
                    if nodes.get() % 16 != 0 || last.get().elapsed() < ASK_EVERY {
                        return Ok(());
                    }
                    last.set(Instant::now());
                    attach(|py| py.check_signals().map_err(from_pyerr))
                })
            }));
            computed.unwrap_or_else(|panic| Err(panic_error("backward", &*panic)))
        })
    })?;
    result.py(py)
}

/// A tensor that an argument is or views; `None` for Python's None.
pub(crate) fn optional_tensor(object: &Bound<'_, PyAny>) -> PyResult<Option<Tensor>> {
    if object.is_none() {
        return Ok(None);
    }
    view(object).map(Some)
}

fn view(object: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let known = arrays::look(object).py(object.py())?.is_some();
    if !known {
        let message =
            format!("a tensor or an array is needed here, not {}", describe_object(object));
        return Err(error(object.py(), ErrorKind::Binding, message));
    }
    arrays::view(object).py(object.py())
}

fn tensors(objects: &[Bound<'_, PyAny>]) -> PyResult<Vec<Tensor>> {
    objects.iter().map(view).collect()
}

fn optional_tensors(objects: &[Bound<'_, PyAny>]) -> PyResult<Vec<Option<Tensor>>> {
    objects.iter().map(optional_tensor).collect()
}

fn wrap_optional(py: Python<'_>, tensor: Option<Tensor>) -> PyResult<Option<Bound<'_, PyTensor>>> {
    tensor.map(|tensor| wrap(py, tensor)).transpose()
}

/// A node of the graph of derivatives: a recorded call, or a leaf.
#[pyclass(name = "GradNode", module = "keyfold", frozen)]
pub(crate) struct PyNode {
    node: Arc<Node>,
}

impl PyNode {
    fn of(edge: &Edge) -> PyNode {
        PyNode { node: Arc::clone(&edge.node) }
    }
}

#[pymethods]
impl PyNode {
    /// The operator's name; `leaf` for a leaf.
    #[getter]
    fn name(&self) -> &str {
        self.node.name()
    }

    /// Whether it stands for a tensor that requires grad by itself.
    #[getter]
    fn is_leaf(&self) -> bool {
        self.node.is_leaf()
    }

    /// Where the gradients of the operands go; None for operands that need none.
    #[getter]
    fn next(&self) -> Vec<Option<PyNode>> {
        self.node.edges().iter().map(|edge| edge.as_ref().map(PyNode::of)).collect()
    }

    fn __eq__(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.node, &other.node)
    }

    fn __hash__(&self) -> u64 {
        self.node.sequence()
    }

    fn __repr__(&self) -> String {
        format!("<GradNode {}>", self.node.name())
    }
}

/// A hook on a tensor's gradient; `remove()` takes it away.
#[pyclass(name = "HookHandle", module = "keyfold", frozen)]
pub(crate) struct PyHookHandle {
    node: Arc<Node>,
    id: u64,
}

#[pymethods]
impl PyHookHandle {
    /// Takes the hook away.
    ///
    /// Returns:
    ///     Whether it was there.
    fn remove(&self) -> bool {
        self.node.remove_hook(self.id)
    }
}

impl PyTensor {
    /// Whether it isn't computed from tensors that require grad.
    pub(crate) fn is_a_leaf(&self) -> bool {
        let node = autograd::node_of(&self.tensor);
        !self.tensor.requires_grad() || node.is_none_or(|(node, _)| node.is_leaf())
    }
}

#[pymethods]
impl PyTensor {
    /// The gradient that backward gathered here; None before, and for tensors that aren't leaves
    /// (unless `retain_grad()` was called). Set it to None to begin anew.
    #[getter]
    fn grad<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTensor>>> {
        wrap_optional(py, autograd::grad_of(&self.tensor))
    }

    #[setter]
    fn set_grad(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        autograd::set_grad(&self.tensor, optional_tensor(value)?).py(value.py())
    }

    /// Whether it isn't computed from tensors that require grad.
    #[getter]
    fn is_leaf(&self) -> bool {
        self.is_a_leaf()
    }

    /// The node that computed it; None for a leaf.
    #[getter]
    fn grad_fn(&self) -> Option<PyNode> {
        let (node, _) = autograd::node_of(&self.tensor)?;
        (self.tensor.requires_grad() && !node.is_leaf()).then_some(PyNode { node })
    }

    /// Has the gradient kept in `grad`, though the tensor isn't a leaf.
    ///
    /// Raises:
    ///     GradientError: the tensor doesn't require grad.
    fn retain_grad(&self, py: Python<'_>) -> PyResult<()> {
        autograd::retain_grad(&self.tensor).py(py)
    }

    /// Adds the gradients of this tensor with respect to every leaf to the leaves' `grad`.
    ///
    /// Args:
    ///     gradient: the gradient to begin with, of this tensor's shape; 1 for a single number.
    ///     retain_graph: keep what the graph saved, to go through it again; as `create_graph` by
    ///         default.
    ///     create_graph: record the derivatives, too, for gradients of gradients.
    ///
    /// Raises:
    ///     GradientError: it doesn't require grad; it has more than one element and no gradient is
    ///         given; an operator has no derivative; the graph was used up; a tensor that a
    ///         derivative needs was changed in place.
    #[pyo3(signature = (gradient=None, *, retain_graph=None, create_graph=false))]
    fn backward(
        &self,
        py: Python<'_>,
        gradient: Option<&Bound<'_, PyAny>>,
        retain_graph: Option<bool>,
        create_graph: bool,
    ) -> PyResult<()> {
        let gradient = gradient.map(optional_tensor).transpose()?.flatten();
        let options = Options { retain_graph: retain_graph.unwrap_or(create_graph), create_graph };
        let output = self.tensor.clone();
        if keyfold_layers::vmap::physical(&output).is_some() {
            let message = "backward() on an example of a kf.vmap batch would add up the gradients of \
                           all examples at the leaves; take keyfold.grad(f) inside vmap, which gives \
                           each example its own";
            return Err(error(py, ErrorKind::Gradient, message));
        }
        run(py, move |interrupt| autograd::backward(&[output], &[gradient], options, interrupt))
    }

    /// Runs `hook(grad)` whenever the gradient of this tensor is computed; a tensor that it returns
    /// takes the gradient's place.
    ///
    /// Returns:
    ///     A handle, whose `remove()` takes the hook away.
    ///
    /// Raises:
    ///     GradientError: the tensor doesn't require grad.
    fn register_hook(&self, hook: &Bound<'_, PyAny>) -> PyResult<PyHookHandle> {
        let py = hook.py();
        let edge = autograd::edge_of(&self.tensor).py(py)?;
        let Some(Edge { node, output }) = edge else {
            let message = "a hook needs a tensor that requires grad; this one doesn't";
            return Err(error(py, ErrorKind::Gradient, message));
        };
        if !hook.is_callable() {
            let message = format!("a hook is a function, not {}", describe_object(hook));
            return Err(error(py, ErrorKind::Binding, message));
        }
        let function = hook.clone().unbind();
        let hook = move |grad: &Tensor| {
            attach(|py| {
                let call = || -> PyResult<Option<Tensor>> {
                    optional_tensor(&function.bind(py).call1((wrap(py, grad.clone())?,))?)
                };
                call().map_err(from_pyerr)
            })
        };
        let id = node.add_hook(output, Arc::new(hook));
        Ok(PyHookHandle { node, id })
    }

    /// The same memory as a tensor that isn't computed from anything: gradients end there.
    fn detach<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        aten::DETACH.call(slf.py(), (slf,))
    }

    /// Sets `requires_grad`, for this tensor and not for its views, and gives the tensor back.
    ///
    /// Raises:
    ///     DTypeError: the dtype is neither floating nor complex.
    ///     GradientError: switched off for a tensor that was computed from others.
    #[pyo3(signature = (requires_grad=true))]
    fn requires_grad_<'py>(
        slf: &Bound<'py, Self>,
        requires_grad: bool,
    ) -> PyResult<Bound<'py, Self>> {
        autograd::set_requires_grad(&slf.get().tensor, requires_grad).py(slf.py())?;
        Ok(slf.clone())
    }
}

/// Gradients of tensors with respect to tensors; see `keyfold.grad`.
#[pyfunction]
#[pyo3(signature = (outputs, inputs, grad_outputs, retain_graph, create_graph, allow_unused))]
pub(crate) fn _grad<'py>(
    py: Python<'py>,
    outputs: Vec<Bound<'py, PyAny>>,
    inputs: Vec<Bound<'py, PyAny>>,
    grad_outputs: Vec<Bound<'py, PyAny>>,
    retain_graph: bool,
    create_graph: bool,
    allow_unused: bool,
) -> PyResult<Vec<Option<Bound<'py, PyTensor>>>> {
    let (outputs, inputs) = (tensors(&outputs)?, tensors(&inputs)?);
    let grad_outputs = optional_tensors(&grad_outputs)?;
    let options = Options { retain_graph, create_graph };
    let grads = run(py, move |interrupt| {
        let grads =
            autograd::per_example::grad(&outputs, &inputs, &grad_outputs, options, interrupt)?;
        match grads.iter().position(Option::is_none) {
            Some(i) if !allow_unused => Err(Error::new(
                ErrorKind::Gradient,
                format!(
                    "no output depends on input {i}, or only through detach() or no_grad(); \
                     allow_unused=True gives None for such inputs"
                ),
            )),
            _ => Ok(grads),
        }
    })?;
    grads.into_iter().map(|grad| wrap_optional(py, grad)).collect()
}

/// A tensor to differentiate with respect to: the same elements, with a place of its own in the
/// graph, behind `x`'s own if it has one. Inside vmap, every example has its own.
#[pyfunction]
pub(crate) fn _grad_variable<'py>(x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTensor>> {
    let py = x.py();
    let tensor = arrays::view(x).py(py)?;
    let variable = context::in_context(py, || {
        let _recording = autograd::recording(true);
        outside_layers(DispatchKey::Autograd.into(), || autograd::per_example::variable(&tensor))
    })?;
    wrap(py, variable.py(py)?)
}

/// A block in which calls are recorded, whatever blocks around it exclude.
#[pyfunction]
pub(crate) fn _enable_grad() -> PyGuard {
    PyGuard::restoring(DispatchKey::Autograd.into())
}

/// A block in which nothing is recorded; see `keyfold.no_grad`.
#[pyclass(name = "_NoGrad", module = "keyfold._core", frozen, subclass, extends = PyGuard)]
pub(crate) struct PyNoGrad;

#[pymethods]
impl PyNoGrad {
    #[new]
    fn new() -> PyClassInitializer<Self> {
        let guard = PyGuard::excluding(DispatchKey::Autograd.into());
        PyClassInitializer::from(guard.named("no_grad()")).add_subclass(PyNoGrad)
    }
}

/// The data of the guard around a function that `grad` differentiates.
struct Differentiated;

/// Calls a function that `grad` differentiates as if no operator were being differentiated around it:
/// inside a kernel, a derivative, or a hook, what it calls is recorded.
#[pyfunction]
#[pyo3(signature = (function, args, kwargs))]
pub(crate) fn _call_recorded<'py>(
    function: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = function.py();
    let guard = PyGuard::layer(DispatchKeySet::EMPTY, Arc::new(Differentiated));
    let guard = guard.named("grad()");
    guard.enter(py)?;
    let recording = autograd::recording(true);
    let result = outside_layers(DispatchKey::Autograd.into(), || function.call(args, kwargs));
    drop(recording);
    let closed = guard.exit(py);
    let result = result?;
    closed.py(py).map(|()| result)
}

/// Whether a function that `grad` differentiates is running here: another `grad` inside it must be
/// differentiable itself.
#[pyfunction]
pub(crate) fn _is_differentiated(py: Python<'_>) -> PyResult<bool> {
    Ok(context::ambient(py)?.is_some_and(|context| context.carries::<Differentiated>()))
}

/// Whether the graph of a tensor leads to leaves other than through these variables.
#[pyfunction]
pub(crate) fn _leads_outside(
    output: &Bound<'_, PyTensor>,
    variables: Vec<Bound<'_, PyTensor>>,
) -> PyResult<bool> {
    let variables: Vec<Tensor> = variables.iter().map(|v| v.get().tensor.clone()).collect();
    autograd::per_example::leads_outside(&output.get().tensor, &variables).py(output.py())
}

/// Whether calls are recorded here and now.
#[pyfunction]
pub(crate) fn is_grad_enabled(py: Python<'_>) -> PyResult<bool> {
    context::in_context(py, autograd::is_enabled)
}

/// Calls `function`; the nodes that this records keep no tensors, but call it again for them.
#[pyfunction]
pub(crate) fn _checkpoint<'py>(
    function: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = function.py();
    // Guards that are open now are open in the second run, whenever that is.
    let context = py.import("contextvars")?.call_method0("copy_context")?;
    let again = {
        let (context, function) = (context.unbind(), function.clone().unbind());
        let (args, kwargs) = (args.clone().unbind(), kwargs.map(|kwargs| kwargs.clone().unbind()));
        move || {
            attach(|py| {
                let call = || -> PyResult<()> {
                    // A copy: a context can be entered once at a time.
                    let context = context.bind(py).call_method0("copy")?;
                    let mut all = vec![function.bind(py).clone()];
                    all.extend(args.bind(py).iter());
                    let kwargs = kwargs.as_ref().map(|kwargs| kwargs.bind(py));
                    context.call_method("run", PyTuple::new(py, all)?, kwargs).map(drop)
                };
                call().map_err(from_pyerr)
            })
        }
    };
    let first = || function.call(args, kwargs).map_err(from_pyerr);
    let watched: Vec<Tensor> = args
        .iter()
        .filter_map(|arg| arg.cast::<PyTensor>().ok().map(|t| t.get().tensor.clone()))
        .collect();
    let result = context::in_context(py, || autograd::checkpoint(first, again, &watched))?;
    result.map_err(|error| to_pyerr(py, error))
}
