//! What the classes of other libraries' arrays are, remembered by the address of their type object.
//!
//! A class is looked at once. The entry goes when the class does: a weak reference's callback runs
//! before the memory of the type object is free to be used again. So the address alone stands for
//! the class, which costs a load and a comparison on the call path.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::Tag;
use keyfold_tensor::dlpack::{EXCHANGE_API_NAME, ExchangeApi};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyType};

use crate::arrays::library::Caller;
use crate::arrays::{jax, protocol, torch, tvm};
use crate::errors::from_pyerr;

/// How the arrays of a class are read.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// `torch.Tensor` and its subclasses.
    Torch,
    /// `tvm_ffi.Tensor`.
    Tvm,
    /// `jax.Array`.
    Jax,
    /// A class with DLPack's C exchange API.
    Exchange(&'static ExchangeApi),
    /// A class with `__dlpack__` and `__dlpack_device__`.
    Protocol,
}

/// A class of arrays.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    pub(crate) library: Caller,
    pub(crate) way: Way,
}

const SLOTS: usize = 16;

/// A class, and the weak reference that watches it.
type Entry = (Known, Py<PyAny>);

/// Entries that the call path looks at, and all of them by address.
struct Cache {
    slots: [Cell<(usize, Option<Known>)>; SLOTS],
    all: RefCell<Option<HashMap<usize, Entry>>>,
}

// SAFETY: used only by threads that hold the GIL (the module asks for it, see `gil_used`), and no
// borrow of the map lasts while Python runs.
unsafe impl Sync for Cache {}

static CACHE: Cache =
    Cache { slots: [const { Cell::new((0, None)) }; SLOTS], all: RefCell::new(None) };

#[inline(always)]
fn slot(class: usize) -> &'static Cell<(usize, Option<Known>)> {
    // Type objects are large: the low bits of their addresses say little.
    &CACHE.slots[(class >> 4 ^ class >> 9) % SLOTS]
}

/// The class of an object, if it is known already.
///
/// # Safety
/// `object` is a live object, and the GIL is held.
#[inline]
pub(crate) unsafe fn find(object: *mut ffi::PyObject) -> Option<Known> {
    // SAFETY: as for the caller.
    let class = unsafe { ffi::Py_TYPE(object) } as usize;
    let (known, found) = slot(class).get();
    if known == class { found } else { find_all(class) }
}

#[cold]
#[inline(never)]
fn find_all(class: usize) -> Option<Known> {
    let known = CACHE.all.borrow().as_ref()?.get(&class)?.0;
    slot(class).set((class, Some(known)));
    Some(known)
}

/// Tag and library of an object of a known class, where that takes no call into Python.
///
/// # Safety
/// As [`find`].
#[inline(never)]
pub(crate) unsafe fn look_fast(object: *mut ffi::PyObject) -> Option<(Tag, Caller)> {
    // SAFETY: as for the caller; the class says that it is torch's.
    unsafe {
        let known = find(object)?;
        match known.way {
            Way::Torch => Some((torch::look_fast(object)?, known.library)),
            Way::Tvm => Some((tvm::look_fast(object)?, known.library)),
            _ => None,
        }
    }
}

/// The class of an object, looked at now if need be; `None` if its objects are no arrays.
///
/// # Errors
/// A class whose objects can't be taken, with the reason.
pub(crate) fn known(object: &Bound<'_, PyAny>) -> Result<Option<Known>> {
    // SAFETY: a bound object is alive and the GIL held.
    if let Some(known) = unsafe { find(object.as_ptr()) } {
        return Ok(Some(known));
    }
    let class = object.get_type();
    let Some(known) = classify(&class)? else { return Ok(None) };
    remember(&class, known).map_err(from_pyerr)?;
    Ok(Some(known))
}

/// Tag and library of an object of a class that nobody registered; `None` if it is no array.
///
/// # Errors
/// As [`known`], and what looking at the object raises.
pub(crate) fn look(object: &Bound<'_, PyAny>) -> Result<Option<(Tag, Caller)>> {
    let Some(known) = known(object)? else { return Ok(None) };
    let tag = match known.way {
        Way::Torch => torch::look(object)?,
        Way::Tvm => tvm::look(object)?,
        Way::Jax => jax::look(object)?,
        Way::Exchange(api) => protocol::look_exchange(object, api)?,
        Way::Protocol => protocol::look(object)?,
    };
    Ok(Some((tag, known.library)))
}

/// Forgets all classes: what they count as may have changed.
pub(crate) fn forget_all() {
    for slot in &CACHE.slots {
        slot.set((0, None));
    }
    let old = CACHE.all.borrow_mut().take();
    // Outside the borrow: dropping weak references may run anything.
    drop(old);
}

fn forget(class: usize) {
    let place = slot(class);
    if place.get().0 == class {
        place.set((0, None));
    }
    let old = CACHE.all.borrow_mut().as_mut().and_then(|all| all.remove(&class));
    drop(old);
}

fn remember(class: &Bound<'_, PyType>, known: Known) -> PyResult<()> {
    let py = class.py();
    let address = class.as_ptr() as usize;
    let gone = PyCFunction::new_closure(py, None, None, move |_, _| forget(address))?;
    // SAFETY: live objects; types take weak references.
    let watch = unsafe {
        let watch = ffi::PyWeakref_NewRef(class.as_ptr(), gone.as_ptr());
        Bound::from_owned_ptr_or_err(py, watch)?
    };
    let entry = (known, watch.unbind());
    let old = CACHE.all.borrow_mut().get_or_insert_default().insert(address, entry);
    drop(old);
    Ok(())
}

/// What a class is: a library's own class or one derived from it, or one that says how it is read.
fn classify(class: &Bound<'_, PyType>) -> Result<Option<Known>> {
    let library = library_of(class)?;
    Ok(way_in(class, library).map(|way| Known { library, way }))
}

/// How the objects of a class are read that somebody registered.
///
/// # Errors
/// As [`known`].
pub(crate) fn way_of(class: &Bound<'_, PyType>) -> Result<Option<Way>> {
    let library = library_of(class)?;
    Ok(way_in(class, library).or_else(|| has(class, "__dlpack__").then_some(Way::Protocol)))
}

fn way_in(class: &Bound<'_, PyType>, library: Caller) -> Option<Way> {
    match library {
        Caller::JAX => Some(Way::Jax),
        Caller::TVM => Some(Way::Tvm),
        Caller::TORCH => Some(Way::Torch),
        _ => match exchange_api(class) {
            Some(api) => Some(Way::Exchange(api)),
            None => (has(class, "__dlpack__") && has(class, "__dlpack_device__"))
                .then_some(Way::Protocol),
        },
    }
}

/// Whose class it is. A name alone proves nothing: objects of torch's and TVM FFI's are read where
/// they lie, so the class must be the very one that the loaded library has under that name.
fn library_of(class: &Bound<'_, PyType>) -> Result<Caller> {
    for base in class.mro().iter() {
        let Ok(base) = base.cast_into::<PyType>() else { continue };
        let (Ok(module), Ok(name)) = (base.module(), base.qualname()) else { continue };
        let (module, name) = (module.to_string_lossy(), name.to_string_lossy());
        let root = module.split('.').next().unwrap_or("");
        match (root, &*name) {
            ("torch", "Tensor") if is_at(&base, "torch") => return Ok(Caller::TORCH),
            ("tvm_ffi", "Tensor") if is_at(&base, "tvm_ffi.core") => return Ok(Caller::TVM),
            ("jaxlib" | "jax", "ArrayImpl") => return Ok(Caller::JAX),
            ("cupy", "ndarray") => return Ok(Caller::CUPY),
            ("jax", "Tracer") => return Err(tracer(class)),
            _ => {}
        }
    }
    Ok(Caller::DLPACK)
}

/// Whether a loaded module has exactly this class under its name, and the class is an extension's
/// or derived from one: a plain Python class has none of the fields that would be read.
fn is_at(class: &Bound<'_, PyType>, module: &str) -> bool {
    let there = || -> PyResult<bool> {
        let modules = class.py().import("sys")?.getattr("modules")?;
        let found = modules.get_item(module)?.getattr(class.qualname()?)?;
        let plain = class.py().get_type::<PyAny>().getattr("__basicsize__")?.extract::<usize>()?;
        let size = class.getattr("__basicsize__")?.extract::<usize>()?;
        Ok(found.is(class) && size >= plain + size_of::<usize>())
    };
    there().unwrap_or(false)
}

fn has(class: &Bound<'_, PyType>, name: &str) -> bool {
    class.hasattr(name).unwrap_or(false)
}

/// The class's table of DLPack's C exchange API.
pub(crate) fn exchange_api(class: &Bound<'_, PyType>) -> Option<&'static ExchangeApi> {
    let capsule = class.getattr("__dlpack_c_exchange_api__").ok()?;
    // SAFETY: a live object; the capsule's name says what it holds, and tables live as long as
    // the process.
    unsafe {
        let name = EXCHANGE_API_NAME.as_ptr();
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), name) == 0 {
            return None;
        }
        ExchangeApi::find(ffi::PyCapsule_GetPointer(capsule.as_ptr(), name))
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
