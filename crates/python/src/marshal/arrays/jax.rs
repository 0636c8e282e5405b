//! JAX's arrays as arguments and results.
//!
//! They are immutable, and have no C exchange API. On the CPU their memory is had through Python's
//! buffer protocol (PEP 3118), which costs a fifth of `__dlpack__`.

use std::mem::MaybeUninit;
use std::sync::OnceLock;

use keyfold_core::{DType, Device, Error, ErrorKind, Result, Shape, Strides};
use keyfold_dispatch::Tag;
use keyfold_tensor::Tensor;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::marshal::arrays::dlpack;
use crate::marshal::arrays::library::{Api, ArrayLibrary};
use crate::marshal::arrays::owners::{self, Loan};
use crate::marshal::arrays::protocol::tag_on;
use crate::marshal::errors::{IntoPyResult, from_pyerr};
use crate::marshal::tensor::wrap;

/// `jax.Array`.
pub(crate) struct Jax;

impl ArrayLibrary for Jax {
    fn owns(&self, class: &Bound<'_, PyType>, module: &str, name: &str) -> Result<bool> {
        match (module, name) {
            ("jax", "Tracer") => Err(tracer(class)),
            _ => Ok(matches!((module, name), ("jaxlib" | "jax", "ArrayImpl"))),
        }
    }

    fn look(&self, object: &Bound<'_, PyAny>, _api: Api) -> Result<Tag> {
        let py = object.py();
        check_dtype(object)?;
        let device = if only_cpu(py) { Device::CPU } else { device_of(object)? };
        // Not asked for its dimensions: that matters only beside arrays of other devices.
        let zero_dim = device == Device::CPU && !only_cpu(py) && is_zero_dim(object);
        Ok(tag_on(device, zero_dim))
    }

    fn view(&self, object: &Bound<'_, PyAny>, _api: Api, _written: bool) -> Result<Tensor> {
        view(object)
    }

    fn give<'py>(
        &self,
        py: Python<'py>,
        tensor: Tensor,
        _like: &dyn Fn() -> Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // JAX has row-major arrays only, and asks for memory in the form that can't say "read only".
        let shared = tensor.is_contiguous() && tensor.is_writable();
        let tensor = if shared { tensor } else { tensor.copy().py(py)? };
        let wrapped = wrap(py, tensor.into_lasting().py(py)?)?;
        py.import("jax.dlpack")?.call_method1("from_dlpack", (wrapped,))
    }
}

fn tracer(class: &Bound<'_, PyType>) -> Error {
    let name = class.qualname().map(|name| name.to_string()).unwrap_or_default();
    Error::new(
        ErrorKind::Binding,
        format!(
            "a JAX tracer ({name}) has no elements yet: inside jit, grad and vmap call the operator \
             through jax.pure_callback, or outside of them"
        ),
    )
}

/// Whether JAX knows no device but the CPU, which is settled when the first array exists.
static ONLY_CPU: OnceLock<bool> = OnceLock::new();

fn only_cpu(py: Python<'_>) -> bool {
    *ONLY_CPU.get_or_init(|| {
        let platforms = || -> PyResult<Vec<String>> {
            let backends = py.import("jax.extend.backend")?.call_method0("backends")?;
            backends.try_iter()?.map(|name| name?.extract()).collect()
        };
        platforms().is_ok_and(|names| names.iter().all(|name| name == "cpu"))
    })
}

fn is_zero_dim(object: &Bound<'_, PyAny>) -> bool {
    object.getattr("ndim").is_ok_and(|n| n.eq(0).unwrap_or(false))
}

fn device_of(object: &Bound<'_, PyAny>) -> Result<Device> {
    let platform = || -> PyResult<(String, u8)> {
        let devices = object.call_method0("devices")?;
        let first = devices.try_iter()?.next().ok_or_else(|| {
            pyo3::exceptions::PyValueError::new_err("the array is on no device")
        })??;
        Ok((first.getattr("platform")?.extract()?, first.getattr("id")?.extract()?))
    };
    match platform().map_err(from_pyerr)? {
        (name, _) if name == "cpu" => Ok(Device::CPU),
        (name, id) if name == "gpu" || name == "cuda" => Ok(Device::cuda(id)),
        (name, _) => Err(Error::new(
            ErrorKind::Device,
            format!(
                "a JAX array on {name} isn't supported; move it with jax.device_put to the cpu"
            ),
        )),
    }
}

/// The dtype objects that were found to be supported: there are few, and they live for ever.
static DTYPES: [std::sync::atomic::AtomicUsize; 16] =
    [const { std::sync::atomic::AtomicUsize::new(0) }; 16];

fn check_dtype(object: &Bound<'_, PyAny>) -> Result<()> {
    use std::sync::atomic::Ordering::Relaxed;
    let py = object.py();
    let dtype = object.getattr(intern!(py, "dtype")).map_err(from_pyerr)?;
    let address = dtype.as_ptr() as usize;
    if DTYPES.iter().any(|known| known.load(Relaxed) == address) {
        return Ok(());
    }
    let name = dtype.str().map_err(from_pyerr)?;
    if name.to_string_lossy().parse::<DType>().is_err() {
        let message = format!(
            "a JAX array of dtype {name} isn't supported; convert it with x.astype, to float32 say"
        );
        return Err(Error::new(ErrorKind::DType, message));
    }
    if let Some(place) = DTYPES.iter().find(|known| known.load(Relaxed) == 0) {
        // Kept, so that the address stays this dtype's.
        let _ = dtype.into_ptr();
        place.store(address, Relaxed);
    }
    Ok(())
}

/// A view of an array, read only, which holds its memory.
///
/// # Errors
/// An array that was deleted or lies on several devices; what JAX raises.
fn view(object: &Bound<'_, PyAny>) -> Result<Tensor> {
    let mut buffer = Box::new(MaybeUninit::<ffi::Py_buffer>::zeroed());
    let flags = ffi::PyBUF_STRIDED_RO | ffi::PyBUF_FORMAT;
    // SAFETY: a live object under the GIL, and memory for the struct.
    if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), buffer.as_mut_ptr(), flags) } != 0 {
        let py = object.py();
        let refused = PyErr::fetch(py);
        // Dtypes that the buffer protocol has no letter for (bfloat16), and devices without memory
        // that the host reaches.
        return match refused.is_instance_of::<pyo3::exceptions::PyBufferError>(py) {
            true => dlpack::import(object).map_err(from_pyerr).and_then(read_only),
            false => Err(from_pyerr(refused)),
        };
    }
    // SAFETY: filled, as the call succeeded; the box stays where it is.
    let buffer: Box<ffi::Py_buffer> =
        unsafe { Box::from_raw(Box::into_raw(buffer).cast::<ffi::Py_buffer>()) };
    let (first, ndim) = (buffer.buf.cast::<u8>(), usize::try_from(buffer.ndim).unwrap_or(0));
    // SAFETY: the exporter gives that many sizes and strides, and a format that ends with a zero
    // byte; all are good while the buffer is held, which the loan sees to.
    let (sizes, strides, format) = unsafe {
        let list = |first: *mut ffi::Py_ssize_t| match ndim {
            0 => &[][..],
            _ => std::slice::from_raw_parts(first, ndim),
        };
        let format = match buffer.format.is_null() {
            true => c"B",
            false => std::ffi::CStr::from_ptr(buffer.format),
        };
        (list(buffer.shape), list(buffer.strides), format.to_bytes())
    };
    let dtype = dtype_of_format(format, buffer.itemsize);
    // Given back by the owner, also where the dtype is refused.
    let owner = owners::held(object.clone().unbind(), Loan::Buffer(buffer));
    let dtype = dtype?;
    // SAFETY: the exporter vouches for the memory while the buffer is held.
    unsafe { Tensor::from_external_bytes(owner, first, sizes, strides, dtype, Device::CPU, true) }
}

fn read_only(tensor: Tensor) -> Result<Tensor> {
    let (shape, strides) = (Shape::new(tensor.shape())?, Strides::new(tensor.strides())?);
    Tensor::from_parts(tensor.buffer().clone().into_read_only(), shape, strides, tensor.offset())
}

/// The dtype of a letter of the `struct` module, by its kind and size.
fn dtype_of_format(format: &[u8], size: isize) -> Result<DType> {
    let letters = format.strip_prefix(b"=").or_else(|| format.strip_prefix(b"<")).unwrap_or(format);
    let kind = match letters {
        b"?" => 'b',
        b"b" | b"h" | b"i" | b"l" | b"q" => 'i',
        b"B" | b"H" | b"I" | b"L" | b"Q" => 'u',
        b"e" | b"f" | b"d" => 'f',
        b"Zf" | b"Zd" => 'c',
        _ => '?',
    };
    Ok(match (kind, size) {
        ('b', 1) => DType::Bool,
        ('i', 1) => DType::I8,
        ('i', 2) => DType::I16,
        ('i', 4) => DType::I32,
        ('i', 8) => DType::I64,
        ('u', 1) => DType::U8,
        ('u', 2) => DType::U16,
        ('u', 4) => DType::U32,
        ('u', 8) => DType::U64,
        ('f', 2) => DType::F16,
        ('f', 4) => DType::F32,
        ('f', 8) => DType::F64,
        ('c', 8) => DType::C64,
        ('c', 16) => DType::C128,
        _ => {
            let format = String::from_utf8_lossy(format);
            let message = format!("elements of format {format:?} aren't supported");
            return Err(Error::new(ErrorKind::DType, message));
        }
    })
}
