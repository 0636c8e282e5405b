//! torch's tensors as arguments and results.
//!
//! DLPack loses what a tensor says about itself: its conjugate and negative bits (the memory then
//! holds other numbers than the tensor), and that it requires grad (gradients would not follow). So
//! that is looked at first, and resolved or refused.

mod ask;
mod layout;
mod memory;

use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use keyfold_core::{DType, Device, DeviceType, Error, ErrorKind, Result};
use keyfold_dispatch::{DispatchKey, DispatchKeySet, Tag};
use keyfold_tensor::dlpack::{DL_CPU, DLDevice, DLTensor, ExchangeApi, dtype_to_dl};
use keyfold_tensor::{ExternalOps, Tensor};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

use self::ask::{lent, undisturbed};
use self::layout::{Dense, layout};
use crate::marshal::arrays::library::{Api, ArrayLibrary, is_loaded};
use crate::marshal::arrays::{dlpack, owners, protocol};
use crate::marshal::attach::is_attached;
use crate::marshal::describe::describe_object;
use crate::marshal::errors::{IntoPyResult, from_pyerr};
use crate::marshal::tensor::wrap;

/// The table of `torch.Tensor` itself: what results are made with.
static API: OnceLock<Option<&'static ExchangeApi>> = OnceLock::new();

const CPU: DispatchKeySet = DispatchKeySet::EMPTY.insert(DispatchKey::CPU);

/// How tensors hold memory of torch's tensors, which can be taken away from them (`set_`, `resize_`) and
/// moved (`share_memory_`): what outlives the call asks their storage.
static OPS: ExternalOps = owners::object_ops(Some(memory::adopt));

/// `torch.Tensor` and its subclasses.
pub(crate) struct Torch;

impl ArrayLibrary for Torch {
    fn owns(&self, class: &Bound<'_, PyType>, module: &str, name: &str) -> Result<bool> {
        Ok((module, name) == ("torch", "Tensor") && is_loaded(class, "torch"))
    }

    /// The device's key, and Sparse, Nested or Quantized where it is that.
    fn look(&self, object: &Bound<'_, PyAny>, _api: Api) -> Result<Tag> {
        layout::calibrate(object.py());
        undisturbed(object.py(), || look_undisturbed(object))
    }

    /// A conjugated or negated tensor is resolved, by a copy.
    fn view(&self, object: &Bound<'_, PyAny>, _api: Api, written: bool) -> Result<Tensor> {
        undisturbed(object.py(), || view_undisturbed(object, written))
    }

    fn give<'py>(
        &self,
        py: Python<'py>,
        mut tensor: Tensor,
        _like: &dyn Fn() -> Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if tensor.device().kind() == DeviceType::META {
            return give_meta(py, &tensor);
        }
        // From here on torch's storage holds the tensor that owns the memory.
        tensor.track();
        // torch has no negative strides, and no memory that mustn't be written, but for elements that
        // share memory, which it doesn't write itself.
        let writable = tensor.is_writable() || tensor.may_overlap_itself();
        let shared = writable && tensor.strides().iter().all(|stride| *stride >= 0);
        let tensor = if shared { tensor } else { tensor.copy().py(py)? };
        if let Some(view) = memory::view_of(py, &tensor)? {
            return Ok(view);
        }
        let api = API.get_or_init(|| {
            let class = py.import("torch").ok()?.getattr("Tensor").ok()?;
            protocol::exchange_api(class.cast::<PyType>().ok()?)
        });
        if let Some(api) = api {
            return protocol::import_into(py, &tensor, api);
        }
        let from_dlpack = py.import("torch.utils.dlpack")?.getattr("from_dlpack")?;
        from_dlpack.call1((wrap(py, tensor)?,))
    }

    fn has_meta(&self) -> bool {
        true
    }

    unsafe fn look_fast(&self, object: *mut ffi::PyObject) -> Option<Tag> {
        // SAFETY: as for the caller.
        let (_, ndim) = unsafe { layout()?.plain(object)? };
        Some(Tag::new(CPU, Device::CPU, ndim == 0))
    }

    unsafe fn numel(&self, object: *mut ffi::PyObject) -> usize {
        // SAFETY: as for the caller.
        unsafe { layout().and_then(|layout| layout.numel(object)).unwrap_or(0) }
    }

    unsafe fn write_fast(
        &self,
        slot: &mut MaybeUninit<Tensor>,
        object: *mut ffi::PyObject,
    ) -> Option<Result<()>> {
        // SAFETY: as for the caller.
        unsafe {
            let dense = layout()?.dense(object)?;
            (!dense.has_autograd).then(|| write_dense(slot, object, &dense))
        }
    }

    unsafe fn write_view(
        &self,
        slot: &mut MaybeUninit<Tensor>,
        object: &Bound<'_, PyAny>,
        _api: Api,
        written: bool,
    ) -> Result<()> {
        // Views of tensors are common, and torch keeps a place for them where gradients have theirs.
        if !written && is_free(object).map_err(from_pyerr)? {
            let dense = layout().and_then(|layout| {
                // SAFETY: as for the caller; torch was asked before the object is read.
                unsafe { layout.dense(object.as_ptr()) }
            });
            if let Some(dense) = dense {
                // SAFETY: as for the caller.
                return unsafe { write_dense(slot, object.as_ptr(), &dense) };
            }
        }
        undisturbed(object.py(), || {
            // SAFETY: as for the caller. The object's fields are read after torch was asked.
            unsafe {
                let plain = layout().is_some_and(|layout| layout.dense(object.as_ptr()).is_some());
                if plain
                    && !written
                    && !requires_grad(object.as_ptr())?
                    && !has_tangent(object).map_err(from_pyerr)?
                    && let Some(dense) = layout().and_then(|layout| layout.dense(object.as_ptr()))
                {
                    return write_dense(slot, object.as_ptr(), &dense);
                }
            }
            slot.write(view_undisturbed(object, written)?);
            Ok(())
        })
    }

    /// The memory as torch has it, as torch's own kernels read their tensors. `free` remembers that torch
    /// was asked, with the GIL, about one that may have a place in its graph.
    unsafe fn lend(&self, object: *mut ffi::PyObject, free: &AtomicBool) -> Option<DLTensor> {
        // SAFETY: as for the caller.
        let mut dense = unsafe { layout()?.dense(object)? };
        if dense.has_autograd && !free.load(Ordering::Relaxed) {
            if !is_attached() {
                return None;
            }
            // SAFETY: attached, and alive; the object is read again after torch was asked.
            dense = unsafe {
                let object = Bound::from_borrowed_ptr(Python::assume_attached(), object);
                // A failure is repeated, and reported, where a view is made.
                is_free(&object).ok().filter(|free| *free)?;
                layout()?.dense(object.as_ptr())?
            };
            free.store(true, Ordering::Relaxed);
        }
        let empty = dense.sizes.contains(&0);
        Some(DLTensor {
            // The standard wants null where there are no elements.
            data: if empty { std::ptr::null_mut() } else { dense.data.cast() },
            device: DLDevice { device_type: DL_CPU, device_id: 0 },
            ndim: dense.sizes.len() as i32,
            dtype: dtype_to_dl(dense.dtype),
            shape: dense.sizes.as_ptr().cast_mut(),
            strides: dense.strides.as_ptr().cast_mut(),
            byte_offset: 0,
        })
    }
}

fn look_undisturbed(object: &Bound<'_, PyAny>) -> Result<Tag> {
    let device = device_of(object)?;
    let mut keys = DispatchKeySet::from(DispatchKey::from_device_type(device.kind()));
    let text = |name: &str| -> Result<String> {
        let value = object.getattr(name).and_then(|value| value.str()).map_err(from_pyerr)?;
        Ok(value.to_string())
    };
    let flag = |name: &str| -> Result<bool> {
        object.getattr(name).and_then(|value| value.extract()).map_err(from_pyerr)
    };
    let layout = text("layout")?;
    if flag("is_nested")? {
        keys = keys.insert(DispatchKey::Nested);
    } else if layout.contains("sparse") {
        keys = keys.insert(DispatchKey::Sparse);
    } else if layout != "torch.strided" {
        let message = format!(
            "a torch tensor of layout {layout} isn't supported; convert it with x.to_dense()"
        );
        return Err(Error::new(ErrorKind::NotSupported, message));
    }
    if flag("is_quantized")? {
        keys = keys.insert(DispatchKey::Quantized);
    } else {
        dtype_of(object)?;
    }
    let zero_dim =
        keys.len() == 1 && object.call_method0("dim").is_ok_and(|n| n.eq(0).unwrap_or(false));
    Ok(Tag::new(keys, device, zero_dim))
}

fn dtype_of(object: &Bound<'_, PyAny>) -> Result<DType> {
    let name = object.getattr("dtype").and_then(|dtype| dtype.str()).map_err(from_pyerr)?;
    let name = name.to_string();
    name.trim_start_matches("torch.").parse().map_err(|_| {
        let message = format!(
            "a torch tensor of dtype {name} isn't supported; convert it to one of bool, int8 to int64, \
             uint8 to uint64, float16 to float64, bfloat16, complex64, complex128"
        );
        Error::new(ErrorKind::DType, message)
    })
}

fn device_of(object: &Bound<'_, PyAny>) -> Result<Device> {
    let given = object.getattr("device").map_err(from_pyerr)?;
    let kind: String = given.getattr("type").and_then(|t| t.extract()).map_err(from_pyerr)?;
    let index: Option<u8> = given.getattr("index").and_then(|i| i.extract()).map_err(from_pyerr)?;
    match kind.as_str() {
        "cpu" => Ok(Device::CPU),
        "meta" => Ok(Device::new(DeviceType::META, 0)),
        "cuda" => Ok(Device::cuda(index.unwrap_or(0))),
        _ => Err(Error::new(
            ErrorKind::Device,
            format!("a torch tensor on {kind} isn't supported; move it to cpu or cuda"),
        )),
    }
}

/// # Safety
/// As [`ArrayLibrary::write_fast`]; `dense` is what was read of the object.
#[inline(always)]
unsafe fn write_dense(
    slot: &mut MaybeUninit<Tensor>,
    object: *mut ffi::PyObject,
    dense: &Dense<'_>,
) -> Result<()> {
    // SAFETY: as for the caller; the memory is the tensor's, initialised as torch has it.
    unsafe {
        let owner = owners::borrowed(object, &OPS);
        let (sizes, strides) = (words(dense.sizes), words(dense.strides));
        let (dtype, cpu) = (dense.dtype, Device::CPU);
        Tensor::write_external(slot, owner, dense.data, sizes, strides, dtype, cpu, false)
    }
}

/// Numbers of 64 bits as words of the machine. The layout is used on machines of such words alone.
fn words(numbers: &[i64]) -> &[isize] {
    if size_of::<isize>() != size_of::<i64>() {
        return &[];
    }
    // SAFETY: the same size and alignment, as just seen, and every pattern of bits is a number.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), numbers.len()) }
}

/// # Safety
/// `object` is a live torch tensor, and the GIL is held.
unsafe fn requires_grad(object: *mut ffi::PyObject) -> Result<bool> {
    // SAFETY: as for the caller.
    unsafe {
        let py = Python::assume_attached();
        let object = Borrowed::from_ptr(py, object);
        let flag = object.getattr(intern!(py, "requires_grad")).map_err(from_pyerr)?;
        Ok(flag.is(py.None()) || flag.is_truthy().unwrap_or(true))
    }
}

/// Whether a tensor neither requires grad nor can have a tangent, where asking runs nobody's code:
/// one that is exactly torch's own class. `false` also where that has to be found out otherwise.
fn is_free(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    static OWN: PyOnceLock<(Py<PyAny>, Py<PyAny>)> = PyOnceLock::new();
    let py = object.py();
    let (class, forward) = OWN.get_or_try_init(py, || {
        let class = py.import("torch")?.getattr("Tensor")?.unbind();
        let forward = py.import("torch.autograd.forward_ad")?.into_any().unbind();
        Ok::<_, PyErr>((class, forward))
    })?;
    if !object.get_type().is(class) {
        return Ok(false);
    }
    let level = forward.bind(py).getattr(intern!(py, "_current_level"))?;
    // SAFETY: a bound object, alive, under the GIL.
    let grad = unsafe { requires_grad(object.as_ptr()) }.py(py)?;
    Ok(!grad && level.extract::<i64>()? < 0)
}

fn view_undisturbed(object: &Bound<'_, PyAny>, written: bool) -> Result<Tensor> {
    let py = object.py();
    // SAFETY: a bound object, alive.
    if unsafe { requires_grad(object.as_ptr()) }? && records(py)? {
        let message = "a torch tensor that requires grad can't be viewed by a native kernel, since \
                       gradients wouldn't follow: pass x.detach(), call under torch.no_grad(), or \
                       call the operator that keyfold.torch.export makes, which records";
        return Err(Error::new(ErrorKind::Gradient, message));
    }
    if has_tangent(object).map_err(from_pyerr)? {
        let message = "a torch tensor with a tangent (forward-mode AD) can't be viewed by a native \
                       kernel, since the tangent wouldn't follow: pass the primal alone";
        return Err(Error::new(ErrorKind::Gradient, message));
    }
    let device = device_of(object)?;
    if device.kind() == DeviceType::META {
        return meta_view(object);
    }
    let is = |name: &str| -> Result<bool> {
        object.call_method0(name).and_then(|flag| flag.extract()).map_err(from_pyerr)
    };
    let (conj, neg) = (is("is_conj")?, is("is_neg")?);
    if !conj && !neg {
        return shared(object).map_err(|error| plainly(object, error));
    }
    let bit = if conj { "conjugate" } else { "negative" };
    if written {
        let message = format!(
            "a torch tensor whose {bit} bit is set can't be written: its memory holds other numbers; \
             pass x.resolve_conj().resolve_neg()"
        );
        return Err(Error::new(ErrorKind::NotSupported, message));
    }
    let resolved = object
        .call_method0("resolve_conj")
        .and_then(|object| object.call_method0("resolve_neg"))
        .map_err(from_pyerr)?;
    shared(&resolved)
}

/// Whether a tensor carries a tangent of an open level of forward-mode AD.
fn has_tangent(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = object.py();
    let modules = py.import("sys")?.getattr("modules")?;
    let Ok(forward) = modules.get_item("torch.autograd.forward_ad") else { return Ok(false) };
    if forward.getattr("_current_level")?.extract::<i64>()? < 0 {
        return Ok(false);
    }
    Ok(!forward.call_method1("unpack_dual", (object,))?.getattr("tangent")?.is_none())
}

/// torch's error for memory that isn't there, in words for the caller.
fn plainly(object: &Bound<'_, PyAny>, error: Error) -> Error {
    let source = std::error::Error::source(&error).and_then(|s| s.downcast_ref::<PyErr>());
    let said = match source {
        Some(raised) => raised.value(object.py()).str().map(|text| text.to_string()),
        // No memory where there are elements: a fake tensor's.
        None if error.message().contains("null") => Ok("its data pointer is null".to_owned()),
        None => return error,
    };
    let said = said.unwrap_or_default();
    let said = said.lines().next().unwrap_or_default();
    Error::new(
        ErrorKind::Exchange,
        format!(
            "this {} has no strided memory that a native kernel could view ({said}); sparse, nested, \
             quantized and fake tensors and those inside torch.func transforms need a Python kernel",
            describe_object(object)
        ),
    )
}

fn shared(object: &Bound<'_, PyAny>) -> Result<Tensor> {
    let alias = lent(object).map_err(from_pyerr)?;
    let view = match protocol::exchange_api(&object.get_type()) {
        Some(api) => protocol::view_exchange(&alias, api, object)?,
        None => dlpack::import(&alias).map_err(from_pyerr)?,
    };
    memory::movable(object, alias, &view)
}

fn meta_view(object: &Bound<'_, PyAny>) -> Result<Tensor> {
    let shape: Vec<usize> =
        object.getattr("shape").and_then(|s| s.extract()).map_err(from_pyerr)?;
    let strides = object.call_method0("stride").and_then(|s| s.extract::<Vec<isize>>());
    Tensor::meta_strided(&shape, &strides.map_err(from_pyerr)?, dtype_of(object)?)
}

fn records(py: Python<'_>) -> Result<bool> {
    let enabled = || py.import("torch")?.call_method0("is_grad_enabled")?.extract();
    enabled().map_err(from_pyerr)
}

fn give_meta<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let torch = py.import("torch")?;
    let options = PyDict::new(py);
    options.set_item("dtype", torch.getattr(tensor.dtype().name())?)?;
    options.set_item("device", "meta")?;
    let (shape, strides) = (PyTuple::new(py, tensor.shape())?, PyTuple::new(py, tensor.strides())?);
    torch.call_method("empty_strided", (shape, strides), Some(&options))
}
