//! Tensors from and to other libraries, files and processes: NumPy, DLPack, pickle, copy.

use keyfold_core::{Device, DeviceType, ErrorKind, Shape};
use keyfold_layers::autograd::{has_tangent, requires_grad, set_requires_grad};
use keyfold_tensor::{Tensor, dlpack as dl};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyTuple};

use crate::classes::aten;
use crate::classes::tensor::materialize;
use crate::marshal::argument::{Flag, Text};
use crate::marshal::arrays::numpy_array::{self, numpy_view};
use crate::marshal::arrays::{self, dlpack};
use crate::marshal::describe::describe_object;
use crate::marshal::dtype::{PyDevice, device_from, dtype_from, find_device};
use crate::marshal::errors::{IntoPyResult, error};
use crate::marshal::tensor::{PyTensor, wrap};

type Any<'py> = Bound<'py, PyAny>;

/// A tensor over a NumPy array's memory.
///
/// Nothing is copied: writes through one are seen by the other, the array lives as long as the
/// tensor does, and a read-only array gives a read-only tensor.
///
/// Args:
///     array: a `numpy.ndarray` of any shape and strides, negative ones and zeros included.
///
/// Raises:
///     DTypeError: the dtype isn't supported, or its byte order isn't this machine's.
///     InvalidValue: the elements aren't aligned, or a stride isn't a multiple of their size.
///     BindingError: it is no NumPy array, or a masked one or a matrix.
#[pyfunction]
#[pyo3(signature = (array, /))]
pub(crate) fn from_numpy<'py>(array: &Any<'py>) -> PyResult<Bound<'py, PyTensor>> {
    let py = array.py();
    if !numpy_array::is_array(array) {
        let message = format!(
            "from_numpy() takes a numpy.ndarray, not {}; keyfold.asarray takes lists and numbers",
            describe_object(array)
        );
        return Err(error(py, ErrorKind::Binding, message));
    }
    let view = arrays::look(array).and_then(|_| numpy_array::view(array));
    wrap(py, view.map_err(|error| error.at("from_numpy()")).py(py)?)
}

/// A tensor over the memory of any object with `__dlpack__`, or of a DLPack capsule.
///
/// Nothing is copied unless asked for; the exporter's memory lives as long as the tensor.
///
/// Args:
///     x: the object. A capsule can be taken once.
///     device: where the tensor shall be; where the memory is, by default. On another device it is a
///         copy.
///     copy: True for memory of its own, False for an error where that can't be shared.
///
/// Raises:
///     ExchangeError: a capsule that was used already, or a malformed one.
///     DeviceError: a device that isn't known here, or whose backend was removed; a copy that is needed
///         and not wanted.
///     DTypeError: the dtype isn't supported.
///     BindingError: the object has no `__dlpack__`.
#[pyfunction]
#[pyo3(signature = (x, /, *, device=None, copy=None))]
pub(crate) fn from_dlpack<'py>(
    x: &Any<'py>,
    device: Option<&Any<'py>>,
    copy: Option<Flag>,
) -> PyResult<Any<'py>> {
    let (py, copy) = (x.py(), copy.map(|copy| copy.0));
    let tensor = wrap(py, imported(x)?)?;
    if let Some(device) = device {
        let wanted = device_from(device)?;
        let own = tensor.get().tensor.device();
        if wanted != own {
            if copy == Some(false) || wanted == Device::META {
                let message = format!(
                    "from_dlpack(): the memory is on {own}, and can't be shared on {wanted}; take \
                     the tensor there with to(\"{wanted}\") afterwards"
                );
                return Err(error(py, ErrorKind::Device, message));
            }
            return aten::TO_DEVICE.call(py, (tensor, PyDevice(wanted)));
        }
    }
    match copy {
        Some(true) => aten::CLONE.call(py, (tensor,)),
        _ => Ok(tensor.into_any()),
    }
}

/// An object's memory. Of the libraries that keyfold knows it is read as for an operator, since
/// DLPack hides what JAX's and torch's arrays say of themselves.
fn imported(x: &Any<'_>) -> PyResult<Tensor> {
    let py = x.py();
    if let Ok(own) = x.cast::<PyTensor>()
        && own.get().tensor.moves()
        && !own.get().tensor.requires_grad()
    {
        // The view follows the memory, where a capsule would be of a copy.
        materialize::check(py, &own.get().tensor, "from_dlpack()")?;
        return Ok(own.get().tensor.detach());
    }
    let class = match x.getattr("__dlpack__") {
        Ok(_) => arrays::class_of(x).py(py)?,
        Err(_) => None,
    };
    match class {
        Some(class) if !class.library.is_dlpack() => {
            arrays::view(x).map_err(|error| error.at("from_dlpack()")).py(py)
        }
        _ => dlpack::import(x),
    }
}

/// A tensor out of what pickle kept. Not for calling.
#[pyfunction]
#[pyo3(signature = (data, dtype, shape, requires_grad, device=None, /))]
pub(crate) fn _rebuild_tensor<'py>(
    data: &Any<'py>,
    dtype: &Any<'py>,
    shape: Vec<usize>,
    requires_grad: bool,
    device: Option<&Any<'py>>,
) -> PyResult<Bound<'py, PyTensor>> {
    let py = data.py();
    let dtype = dtype_from(dtype)?;
    let tensor = if data.is_none() {
        Tensor::meta(&shape, dtype).py(py)?
    } else if shape.contains(&0) {
        Tensor::empty(&shape, dtype, Device::CPU).py(py)?
    } else {
        let numpy = py.import("numpy")?;
        let bytes = numpy.call_method1("frombuffer", (data, "uint8"))?;
        let shape = Shape::new(&shape).py(py)?;
        match numpy_array::reinterpret(&bytes, dtype, shape.clone()) {
            // A buffer that came from elsewhere may lie anywhere: a copy is aligned.
            Err(failed) if failed.kind() == ErrorKind::Value => {
                let bytes = bytes.call_method0("copy")?;
                numpy_array::reinterpret(&bytes, dtype, shape).py(py)?
            }
            result => result.py(py)?,
        }
    };
    let tensor = match device {
        Some(device) => {
            // A name that isn't known here, or a device that isn't there.
            let there = find_device(device).and_then(|device| match device {
                Some(device) => py.detach(|| tensor.to_device(device)),
                None => Ok(tensor),
            });
            there.map_err(|error| error.at(&format!("a tensor that was pickled on {device}")))
        }
        None => Ok(tensor),
    };
    let tensor = tensor.py(py)?;
    set_requires_grad(&tensor, requires_grad).py(py)?;
    wrap(py, tensor)
}

#[pymethods]
impl PyTensor {
    /// A NumPy array of the elements: over the same memory unless dtype or copy ask for more. Of
    /// memory that another library may move, as a torch tensor's, it is a read-only copy.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Any<'py>>,
        copy: Option<bool>,
    ) -> PyResult<Any<'py>> {
        let py = slf.py();
        materialize::check(py, &slf.get().tensor, "as a NumPy array")?;
        slf.get().check_shareable(py, "__array__()")?;
        if copy == Some(false) && slf.get().tensor.moves() {
            let message = "another library may move this tensor's memory (as torch's \
                           share_memory_() does), so that a NumPy array can only be a copy: don't \
                           say copy=False, or ask that library for its own array";
            return Err(error(py, ErrorKind::Value, message));
        }
        let view = numpy_view(slf)?;
        if let Some(dtype) = dtype
            && !view.getattr("dtype")?.eq(dtype)?
        {
            if copy == Some(false) {
                let own = slf.get().tensor.dtype();
                let message = format!("{own} elements can't be had as {dtype} without a copy");
                return Err(error(py, ErrorKind::Value, message));
            }
            return view.call_method1("astype", (dtype,));
        }
        match copy {
            Some(true) => view.call_method0("copy"),
            _ => Ok(view),
        }
    }

    /// A DLPack capsule over the tensor's memory (array API standard).
    ///
    /// Args:
    ///     stream: None, but for CUDA.
    ///     max_version: the newest version that the consumer reads; before 1.0 without it.
    ///     dl_device: the device that the consumer wants, as the standard's pair of numbers.
    ///     copy: True for a copy. False and None share the memory, but for memory that another
    ///         library may move, as a torch tensor's: None makes a read-only copy, False is refused.
    ///
    /// On a device of a registered backend the capsule's device is DLPack's extension device, with the
    /// number that `kf.backends()` tells, and its address means something to that backend alone.
    ///
    /// Raises:
    ///     ExchangeError: the tensor is on meta, requires grad, has a tangent (inside `jvp`), or is on
    ///         another device; it is
    ///         read-only, or its memory may move, and the consumer is older than 1.0.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<&Any<'py>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Any<'py>> {
        let py = slf.py();
        materialize::check(py, &slf.get().tensor, "__dlpack__()")?;
        slf.get().check_shareable(py, "__dlpack__()")?;
        let refuse = |message: String| Err(error(py, ErrorKind::Exchange, message));
        let device = slf.get().tensor.device();
        if let Some(stream) = stream.filter(|_| device.kind() != DeviceType::CUDA) {
            let kind = device.kind();
            return refuse(format!(
                "DLPack knows no streams of {kind}: stream must be None, not {stream}"
            ));
        }
        let own = Self::__dlpack_device__(slf)?;
        if let Some(wanted) = dl_device.filter(|wanted| *wanted != own) {
            return refuse(format!(
                "the tensor is on {device}, DLPack's device {own:?}, and can't be exported to \
                 {wanted:?}; move it first, to the CPU with .cpu()"
            ));
        }
        let versioned = max_version.is_some_and(|(major, _)| major >= 1);
        if copy == Some(true) {
            let copied = aten::CLONE.call(py, (slf,))?;
            let copied = copied.cast_into::<PyTensor>()?;
            return dlpack::export(py, &copied.get().tensor, versioned, true);
        }
        let tensor = slf.get().tensor.clone();
        if tensor.moves() && (copy == Some(false) || !versioned) {
            return refuse(
                "another library may move this tensor's memory (as torch's share_memory_() does), \
                 so that a DLPack capsule can only be of a copy: ask for it with copy=True (or take \
                 a read-only one with max_version=(1, 0)), or export that library's own array"
                    .to_owned(),
            );
        }
        if tensor.moves() && !tensor.requires_grad() {
            let copied = tensor.into_lasting().py(py)?.into_read_only();
            return dlpack::export(py, &copied, versioned, true);
        }
        dlpack::export(py, &slf.get().tensor, versioned, false)
    }

    /// The DLPack device type and index; of a registered backend's device the extension device, 12, and
    /// 256 times the number that `kf.backends()` tells, plus the index.
    fn __dlpack_device__(slf: &Bound<'_, Self>) -> PyResult<(i32, i32)> {
        let device = dl::exported_device(slf.get().tensor.device()).py(slf.py())?;
        Ok((device.device_type, device.device_id))
    }

    /// The module with the functions of the array API standard: `keyfold`.
    #[pyo3(signature = (*, api_version=None))]
    fn __array_namespace__<'py>(
        slf: &Bound<'py, Self>,
        api_version: Option<Text>,
    ) -> PyResult<Bound<'py, PyModule>> {
        const KNOWN: [&str; 4] = ["2021.12", "2022.12", "2023.12", "2024.12"];
        if let Some(version) = api_version.filter(|version| !KNOWN.contains(&&**version)) {
            let message = format!(
                "version {:?} of the array API isn't known; known are {}",
                &*version,
                KNOWN.join(", ")
            );
            return Err(error(slf.py(), ErrorKind::Value, message));
        }
        slf.py().import("keyfold")
    }

    /// A copy with memory of its own, as NumPy's arrays do: of a leaf another leaf, of a result one
    /// whose gradient goes back to it.
    fn __copy__<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        if !slf.get().is_a_leaf() || has_tangent(&slf.get().tensor) {
            return aten::CLONE.call(slf.py(), (slf,));
        }
        let detached = wrap(slf.py(), slf.get().tensor.detach())?;
        let copy = aten::CLONE.call(slf.py(), (detached,))?;
        if let Ok(copy) = copy.cast::<PyTensor>() {
            let requires_grad = requires_grad(&slf.get().tensor);
            set_requires_grad(&copy.get().tensor, requires_grad).py(slf.py())?;
        }
        Ok(copy)
    }

    fn __deepcopy__<'py>(slf: &Bound<'py, Self>, _memo: &Any<'py>) -> PyResult<Any<'py>> {
        if !slf.get().is_a_leaf() {
            let message = "a tensor that was computed from others can't be deep-copied: its history \
                           is theirs; take detach(), or clone()";
            return Err(error(slf.py(), ErrorKind::Gradient, message));
        }
        Self::__copy__(slf)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        Self::__reduce_ex__(slf, 4)
    }

    /// The state that pickle keeps. From protocol 5 on the elements can go out of band, without a copy. Those
    /// on a device are downloaded, and go back to that device.
    fn __reduce_ex__<'py>(slf: &Bound<'py, Self>, protocol: i32) -> PyResult<Bound<'py, PyTuple>> {
        let py = slf.py();
        let tensor = &slf.get().tensor;
        materialize::check(py, tensor, "pickling")?;
        let device = tensor.device();
        let data = match device.kind() {
            DeviceType::META => py.None().into_bound(py),
            kind => {
                // Not through the operators: pickling is no computation for a layer to see.
                let plain = match kind {
                    DeviceType::CPU => tensor.contiguous().and_then(Tensor::into_lasting),
                    _ => py.detach(|| tensor.to_device(Device::CPU)),
                };
                let plain = wrap(py, plain.map_err(|error| error.at("pickling")).py(py)?)?;
                let bytes = numpy_array::bytes_of(&plain)?;
                let read_only = !tensor.is_writable();
                if protocol >= 5 {
                    py.import("pickle")?.getattr("PickleBuffer")?.call1((bytes,))?
                } else if read_only {
                    py.get_type::<PyBytes>().call1((bytes,))?
                } else {
                    py.get_type::<PyByteArray>().call1((bytes,))?
                }
            }
        };
        let rebuild = py.import("keyfold._core")?.getattr("_rebuild_tensor")?;
        let shape = PyTuple::new(py, tensor.shape().iter())?;
        let (dtype, requires_grad) = (tensor.dtype().name(), requires_grad(tensor));
        let elsewhere = !matches!(device.kind(), DeviceType::CPU | DeviceType::META);
        if elsewhere {
            return (rebuild, (data, dtype, shape, requires_grad, device.to_string()))
                .into_pyobject(py);
        }
        (rebuild, (data, dtype, shape, requires_grad)).into_pyobject(py)
    }
}
