//! `keyfold.Tensor`: what it is, and its data as Python's and NumPy's.

pub(crate) mod arithmetic;
pub(crate) mod exchange;
pub(crate) mod indexing;
pub(crate) mod materialize;
pub(crate) mod method;
mod methods;
mod text;
mod to;

use keyfold_core::{DType, ErrorKind, Scalar};
use keyfold_layers::autograd;
use pyo3::prelude::*;
use pyo3::types::{PyComplex, PyDict, PyTuple};

use crate::classes::autograd::is_grad_enabled;
use crate::marshal::arrays::numpy_array::numpy_view;
use crate::marshal::attach::reattach;
use crate::marshal::dtype::{self, PyDType, PyDevice};
use crate::marshal::errors::{IntoPyResult, error};
use crate::marshal::keys::{PyKeySet, keyset_object};
use crate::marshal::tensor::{PyTensor, scalar_to_py};

impl PyTensor {
    /// The only element, for a conversion (`how`) to the Python type that `wanted` names.
    fn only(&self, py: Python<'_>, how: &str, wanted: &str) -> PyResult<Scalar> {
        materialize::check(py, &self.tensor, how)?;
        let count = self.tensor.numel();
        if count != 1 {
            let shape = self.tensor.shape();
            let message = format!(
                "only a tensor with one element can become {wanted}; this one has {count}, in shape \
                 {shape:?}"
            );
            return Err(error(py, ErrorKind::Value, message));
        }
        self.tensor.item().py(py)
    }

    /// A tensor whose memory may be handed out: one that requires grad may not, since gradients
    /// would not follow.
    pub(crate) fn check_shareable(&self, py: Python<'_>, how: &str) -> PyResult<()> {
        // Where nothing is recorded (in a kernel, under no_grad) nothing is lost either.
        if self.tensor.requires_grad() && is_grad_enabled(py)? {
            let what = match autograd::requires_grad(&self.tensor) {
                true => "that requires grad can't be shared by {how}, since gradients",
                false => "with a tangent (inside jvp) can't be shared by {how}, since tangents",
            };
            let what = what.replace("{how}", how);
            let message = format!("a tensor {what} wouldn't follow; take tensor.detach() first");
            return Err(error(py, ErrorKind::Exchange, message));
        }
        Ok(())
    }
}

#[pymethods]
impl PyTensor {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let message = "keyfold.Tensor isn't called; make a tensor with keyfold.asarray(data), \
                       keyfold.zeros(shape), keyfold.from_numpy(array) or keyfold.from_dlpack(x)";
        Err(error(_args.py(), ErrorKind::Binding, message))
    }

    /// Refuses subclasses: kernels see the exact class, and results would lose a subclass.
    #[classmethod]
    #[pyo3(signature = (**_kwargs))]
    fn __init_subclass__(
        cls: &Bound<'_, pyo3::types::PyType>,
        _kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let name = cls.name()?;
        let message = format!(
            "{name} can't inherit from keyfold.Tensor; hold a tensor in a class of its own and \
             announce that with keyfold.register_array_type({name}, keys)"
        );
        Err(error(cls.py(), ErrorKind::Binding, message))
    }

    /// The number of elements along each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor.shape().iter())
    }

    /// How far apart neighbours along each dimension are in memory, counted in elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor.strides().iter())
    }

    /// The number of dimensions.
    #[getter]
    fn ndim(&self) -> usize {
        self.tensor.ndim()
    }

    /// The number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.tensor.numel()
    }

    /// The number of elements, as `size`.
    fn numel(&self) -> usize {
        self.tensor.numel()
    }

    /// The type of the elements.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDType>> {
        dtype::object(py, self.tensor.dtype())
    }

    /// Where the memory is.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice(self.tensor.device())
    }

    /// Where the first element is in the underlying memory, counted in elements.
    #[getter]
    fn offset(&self, py: Python<'_>) -> PyResult<usize> {
        materialize::note_asked(py, &self.tensor, "it asks for an offset")?;
        Ok(self.tensor.offset())
    }

    /// The bytes that the elements take: `size * itemsize`.
    #[getter]
    fn nbytes(&self) -> usize {
        self.tensor.nbytes()
    }

    /// Bytes per element.
    #[getter]
    fn itemsize(&self) -> usize {
        self.tensor.dtype().size()
    }

    /// The address of the first element in its device's own address space; 0 without memory.
    fn data_ptr(&self, py: Python<'_>) -> PyResult<usize> {
        let address = self.tensor.raw_data_ptr().py(py)?.addr();
        self.tensor.lend().py(py)?;
        Ok(address)
    }

    /// The keys that the tensor brings to a call.
    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyKeySet>> {
        keyset_object(py, materialize::keys(py, &self.tensor)?)
    }

    /// Whether the elements aren't computed yet, since a pipeline is open. Reading them computes them.
    #[getter]
    fn is_pending(&self, py: Python<'_>) -> PyResult<bool> {
        materialize::note_asked(py, &self.tensor, "it asks whether a tensor is pending")?;
        Ok(self.tensor.is_pending())
    }

    /// As `is_pending`.
    #[getter]
    fn _pending(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_pending(py)
    }

    /// Whether the memory must not be written.
    #[getter]
    fn readonly(&self) -> bool {
        !self.tensor.is_writable()
    }

    /// Whether gradients go back to the tensor.
    #[getter]
    fn requires_grad(&self) -> bool {
        autograd::requires_grad(&self.tensor)
    }

    /// Whether the elements lie in row-major order without gaps.
    fn is_contiguous(&self) -> bool {
        self.tensor.is_contiguous()
    }

    /// A NumPy array over the same memory: nothing is copied, and read-only stays read-only. Only
    /// memory that another library may move, as a torch tensor's, is copied: into a read-only array.
    ///
    /// Raises:
    ///     DeviceError: the tensor isn't on the CPU.
    ///     DTypeError: NumPy has no such dtype (bfloat16).
    ///     ExchangeError: the tensor requires grad.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        materialize::check(slf.py(), &slf.get().tensor, "numpy()")?;
        slf.get().check_shareable(slf.py(), "numpy()")?;
        numpy_view(slf)
    }

    /// The only element as a Python number.
    ///
    /// Raises:
    ///     InvalidValue: there isn't exactly one element.
    fn item<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        scalar_to_py(py, self.only(py, "item()", "a Python number")?)
    }

    /// The elements as nested lists of Python numbers; a number for a tensor without dimensions.
    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        materialize::check(py, &self.tensor, "tolist()")?;
        text::host_values(py, &self.tensor)?.call_method0("tolist")
    }

    fn __float__(&self, py: Python<'_>) -> PyResult<f64> {
        match self.only(py, "float()", "a Python float")? {
            Scalar::Complex(c) => {
                let message =
                    format!("the complex number {} can't become a float", Scalar::from(c));
                Err(error(py, ErrorKind::DType, message))
            }
            number => Ok(number.as_f64()),
        }
    }

    fn __int__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let number = self.only(py, "int()", "a Python int")?;
        if let Scalar::Complex(_) = number {
            let message = format!("the complex number {number} can't become an int");
            return Err(error(py, ErrorKind::DType, message));
        }
        // Python truncates floats, of any size, and words the errors for infinities and NaN.
        py.get_type::<pyo3::types::PyInt>().call1((scalar_to_py(py, number)?,))
    }

    fn __complex__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyComplex>> {
        let number = self.only(py, "complex()", "a Python complex")?.as_complex();
        Ok(PyComplex::from_doubles(py, number.re, number.im))
    }

    fn __index__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let dtype = self.tensor.dtype();
        if !dtype.is_integral() || dtype == DType::Bool || self.tensor.ndim() != 0 {
            let message = format!(
                "only a 0-dim tensor of whole numbers can be used as an index, not {dtype}{:?}",
                self.tensor.shape()
            );
            return Err(error(py, ErrorKind::DType, message));
        }
        scalar_to_py(py, self.only(py, "use as an index", "an index")?)
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        materialize::check(py, &self.tensor, "bool()")?;
        let count = self.tensor.numel();
        if count != 1 {
            let message = format!(
                "a tensor with {count} elements (shape {:?}) is neither true nor false; use \
                 x.any() or x.all()",
                self.tensor.shape()
            );
            return Err(error(py, ErrorKind::Value, message));
        }
        Ok(self.tensor.item().py(py)?.is_nonzero())
    }

    fn __len__(&self) -> PyResult<usize> {
        match self.tensor.shape().first() {
            Some(length) => Ok(*length),
            None => Err(reattach(|py| {
                error(py, ErrorKind::Binding, "a tensor without dimensions has no len()")
            })),
        }
    }

    fn __hash__(slf: &Bound<'_, Self>) -> usize {
        // The low bits of an address are always zero.
        slf.as_ptr().addr().rotate_right(4)
    }

    /// As a number's, for a tensor with one element.
    fn __format__<'py>(slf: &Bound<'py, Self>, spec: &str) -> PyResult<Bound<'py, PyAny>> {
        if spec.is_empty() {
            return Ok(slf.str()?.into_any());
        }
        slf.call_method0("item")?.call_method1("__format__", (spec,))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        materialize::note_shown(py)?;
        text::repr(py, &self.tensor)
    }
}
