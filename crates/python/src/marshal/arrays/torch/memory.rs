//! torch's memory beyond the call that borrowed it.
//!
//! `share_memory_()` gives a tensor's storage other memory and frees the old, and so does a write to a
//! storage that was lazily cloned: an address that was read before is stale. What outlives a call
//! therefore keeps another tensor over the same storage, asks the storage for its address and size at
//! every access, and counts writes where torch does.

use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use keyfold_core::{Device, Error, ErrorKind, Result};
use keyfold_tensor::{BufferHandle, DeviceBuffer, ExternalOwner, Lent, Tensor};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::ask::{self, note_write, undisturbed};
use super::layout::{Storage, layout};
use crate::marshal::arrays::owners::{self, Loan};
use crate::marshal::attach::try_attach;
use crate::marshal::errors::{IntoPyResult, from_pyerr};

/// A part of a torch storage.
pub(super) struct Memory {
    /// Keeps the tensor that it came from, and the alias.
    owner: ExternalOwner,
    /// A detached tensor over the same storage, which nobody else has.
    alias: NonNull<pyo3::ffi::PyObject>,
    /// The alias's storage, where it can be read without asking torch.
    storage: Option<Storage>,
    /// From the storage's first byte to the lowest of the part; `None` where the tensor was given
    /// other memory during the call that borrowed it.
    place: Option<usize>,
    bytes: usize,
    device: Device,
    count: Count,
}

/// The count of writes.
enum Count {
    /// torch's own, which belongs to the alias.
    Shared(NonNull<AtomicU32>),
    /// Ours, where torch's can't be reached: torch is told of each write.
    Own(AtomicU32),
}

// SAFETY: the alias is used with the GIL; storage and count are kept by it, and are read on any thread.
unsafe impl Send for Memory {}
// SAFETY: as above; a shared reference gives no mutable access.
unsafe impl Sync for Memory {}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "torch::Memory({} bytes)", self.bytes)
    }
}

impl Memory {
    /// The bytes from `low` on of the storage that `alias` shares with `source`.
    fn new(source: &Bound<'_, PyAny>, alias: Bound<'_, PyAny>, lent: Lent) -> Result<Memory> {
        let object = alias.as_ptr();
        // SAFETY: a live torch tensor, under the GIL.
        let (storage, shared) = unsafe {
            match layout() {
                Some(layout) => (layout.storage(object), layout.version(object)),
                None => (None, None),
            }
        };
        let kept = Loan::Object(ManuallyDrop::new(alias.clone().unbind()));
        let mut memory = Memory {
            owner: owners::held(source.clone().unbind(), kept),
            // SAFETY: a bound object isn't null.
            alias: unsafe { NonNull::new_unchecked(object) },
            storage,
            place: Some(0),
            bytes: lent.bytes,
            device: lent.device,
            count: shared.map_or_else(|| Count::Own(AtomicU32::new(0)), Count::Shared),
        };
        if lent.bytes > 0 {
            let (first, bytes) = memory.extent()?;
            let place = lent.ptr.addr().get().checked_sub(first.addr());
            memory.place = place.filter(|place| memory.ends_inside(*place, bytes));
        }
        Ok(memory)
    }

    fn ends_inside(&self, place: usize, bytes: usize) -> bool {
        place.checked_add(self.bytes).is_some_and(|end| end <= bytes)
    }

    /// The storage's present address and size.
    fn extent(&self) -> Result<(*mut u8, usize)> {
        // SAFETY: the alias keeps the storage.
        match self.storage.and_then(|storage| unsafe { storage.extent() }) {
            Some(extent) => Ok(extent),
            None => self.ask(|alias| {
                let storage = alias.call_method0("untyped_storage")?;
                let first: usize = storage.call_method0("data_ptr")?.extract()?;
                let bytes: usize = storage.call_method0("nbytes")?.extract()?;
                Ok((std::ptr::with_exposed_provenance_mut(first), bytes))
            }),
        }
    }

    /// Asks torch about the alias.
    fn ask<R>(&self, question: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<R>) -> Result<R> {
        let answer = try_attach(|py| {
            // SAFETY: the owner keeps the alias.
            let alias = unsafe { Bound::from_borrowed_ptr(py, self.alias.as_ptr()) };
            undisturbed(py, || question(&alias).map_err(from_pyerr))
        });
        answer.unwrap_or_else(|| {
            Err(Error::new(
                ErrorKind::Exchange,
                "torch can't be asked for its memory any more: the interpreter is shutting down",
            ))
        })
    }

    fn find(&self) -> Result<NonNull<u8>> {
        if self.bytes == 0 {
            // Nothing will be read; any aligned address will do.
            return Ok(NonNull::<u128>::dangling().cast());
        }
        let (first, bytes) = self.extent()?;
        let place = self.place.filter(|place| self.ends_inside(*place, bytes));
        match (place, first.is_null()) {
            // SAFETY: inside the storage, as was just checked, so not null.
            (Some(place), false) => Ok(unsafe { NonNull::new_unchecked(first.add(place)) }),
            (None, _) if self.place.is_none() => Err(Error::new(
                ErrorKind::Exchange,
                "the torch tensor was given other memory while the call that keeps a view of it ran; \
                 change the tensor before or after the call",
            )),
            _ => Err(Error::new(
                ErrorKind::Exchange,
                format!(
                    "the torch tensor's storage has {bytes} bytes, fewer than the view of it reaches: \
                     it was resized; make the view anew, or copy it before"
                ),
            )),
        }
    }
}

// SAFETY: the value has no lasting address. `locate` reads the present one of the storage that the
// alias keeps, and checks that the part is inside.
unsafe impl DeviceBuffer for Memory {
    fn device(&self) -> Device {
        self.device
    }

    fn byte_len(&self) -> usize {
        self.bytes
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        None
    }

    fn locate(&self) -> Result<*mut u8> {
        self.find().map(NonNull::as_ptr)
    }

    fn moves(&self) -> bool {
        true
    }

    fn version(&self) -> Option<&AtomicU32> {
        Some(match &self.count {
            // SAFETY: the alias keeps the counter, which torch uses as an atomic, too.
            Count::Shared(count) => unsafe { count.as_ref() },
            Count::Own(count) => count,
        })
    }

    fn note_write(&self) {
        use std::sync::atomic::Ordering::Relaxed;
        if let Some(count) = self.version() {
            count.fetch_add(1, Relaxed);
        }
        if matches!(self.count, Count::Own(_)) {
            // torch not being there any more, nobody looks at its count.
            let _ = self.ask(|alias| note_write(alias).py(alias.py()));
        }
    }

    fn external_owner(&self) -> Option<&ExternalOwner> {
        Some(&self.owner)
    }
}

/// Memory whose tensor can't be asked about it.
#[derive(Debug)]
struct Lost {
    device: Device,
    bytes: usize,
    why: Error,
}

impl Lost {
    fn error(&self) -> Error {
        Error::new(self.why.kind(), self.why.message().to_owned())
    }
}

// SAFETY: there is no pointer to be wrong about.
unsafe impl DeviceBuffer for Lost {
    fn device(&self) -> Device {
        self.device
    }

    fn byte_len(&self) -> usize {
        self.bytes
    }

    fn host_ptr(&self) -> Option<NonNull<u8>> {
        None
    }

    fn locate(&self) -> Result<*mut u8> {
        Err(self.error())
    }

    fn moves(&self) -> bool {
        true
    }
}

/// The owner that holds a borrowed view's memory beyond the call.
///
/// # Safety
/// `object` is a live torch tensor, and `lent` the memory of a view of it that was made in this call.
pub(super) unsafe fn adopt(object: *mut c_void, lent: Lent) -> Option<Arc<dyn DeviceBuffer>> {
    let made = try_attach(|py| {
        // SAFETY: as for the caller.
        let object = unsafe { Bound::from_borrowed_ptr(py, object.cast()) };
        undisturbed(py, || {
            let alias = ask::lent(&object).map_err(from_pyerr)?;
            // SAFETY: alive, under the GIL.
            let now = layout().and_then(|layout| unsafe { layout.dense(object.as_ptr()) });
            // The memory may have moved since the call began. The same layout is the same view.
            let ptr = match now.filter(|now| now.span() == Some(lent.bytes)) {
                Some(now) => NonNull::new(now.data).unwrap_or(lent.ptr),
                None => lent.ptr,
            };
            Memory::new(&object, alias, Lent { ptr, ..lent })
        })
    });
    let why = match made {
        Some(Ok(memory)) => return Some(Arc::new(memory)),
        Some(Err(error)) => error,
        None => Error::new(ErrorKind::Exchange, "the interpreter is shutting down"),
    };
    Some(Arc::new(Lost { device: lent.device, bytes: lent.bytes, why }))
}

/// The view of a torch tensor as one that outlives the call. `alias` is over the same storage.
///
/// # Errors
/// The exception of torch; a storage that is smaller than the view.
pub(super) fn movable(
    source: &Bound<'_, PyAny>,
    alias: Bound<'_, PyAny>,
    view: &Tensor,
) -> Result<Tensor> {
    let (buffer, dtype) = (view.buffer(), view.dtype());
    let Some(ptr) = NonNull::new(buffer.locate()?) else { return Ok(view.clone()) };
    let bytes = if view.numel() == 0 { 0 } else { buffer.len() * dtype.size() };
    let lent = Lent { ptr, bytes, device: view.device(), read_only: !view.is_writable() };
    let memory = Memory::new(source, alias, lent)?;
    if memory.place.is_none() {
        let message = format!(
            "this torch tensor's storage has {} bytes, fewer than its shape {:?} reaches: it was \
             resized",
            memory.extent()?.1,
            view.shape()
        );
        return Err(Error::new(ErrorKind::Exchange, message));
    }
    let mut handle = BufferHandle::new(Arc::new(memory), dtype)?;
    if lent.read_only {
        handle = handle.into_read_only();
    }
    let offset = if bytes == 0 { 0 } else { view.offset() };
    Tensor::from_parts(handle, view.shape().clone(), view.strides().clone(), offset)
}

/// A torch tensor that shares the storage of the torch tensor that a view is of, so that it follows
/// where the memory goes; `None` where the memory isn't torch's.
///
/// # Errors
/// The exception of torch; memory that is gone.
pub(super) fn view_of<'py>(
    py: Python<'py>,
    tensor: &Tensor,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(memory) = tensor.buffer().downcast_ref::<Memory>() else { return Ok(None) };
    memory.find().py(py)?;
    let (size, place) = (tensor.dtype().size(), memory.place.unwrap_or(0));
    if memory.bytes == 0 || !place.is_multiple_of(size) {
        return Ok(None);
    }
    let shape = PyTuple::new(py, tensor.shape())?;
    let strides = PyTuple::new(py, tensor.strides())?;
    let offset = place / size + tensor.offset();
    undisturbed(py, || {
        let view = || {
            // SAFETY: the owner keeps the alias.
            let alias = unsafe { Bound::from_borrowed_ptr(py, memory.alias.as_ptr()) };
            // A view's `_base` is in the user's hands, and the alias must stay on its storage.
            let base = alias.call_method0("detach")?;
            let dtype = py.import("torch")?.getattr(tensor.dtype().name())?;
            if base.getattr("dtype")?.is(&dtype) {
                return base.call_method1("as_strided", (shape, strides, offset));
            }
            let storage = base.call_method0("untyped_storage")?;
            let empty = base.call_method1("new_empty", ((0,),))?.call_method1("to", (dtype,))?;
            empty.call_method1("set_", (storage, offset, shape, strides))
        };
        view().map(Some).map_err(from_pyerr)
    })
    .py(py)
}
