//! The libraries of arrays, and what their classes are, remembered by the address of the type object.
//!
//! A class is looked at once. The entry goes when the class does: a weak reference's callback runs
//! before the memory of the type object is free to be used again. So the address alone stands for
//! the class, which costs a load and a comparison on the call path.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use keyfold_core::Result;
use keyfold_dispatch::Tag;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyType};

use crate::marshal::arrays::caller::Caller;
use crate::marshal::arrays::library::{Api, ArrayLibrary};
use crate::marshal::arrays::protocol::{CUPY, DLPACK, exchange_api};
use crate::marshal::arrays::{jax::Jax, torch::Torch, tvm::Tvm};
use crate::marshal::errors::from_pyerr;

/// Every library of arrays. The first one is for classes of libraries that aren't listed by name.
static LIBRARIES: &[&dyn ArrayLibrary] = &[&DLPACK, &Torch, &Jax, &CUPY, &Tvm];

/// A class of arrays.
#[derive(Clone, Copy)]
pub(crate) struct ArrayClass {
    pub(crate) library: &'static dyn ArrayLibrary,
    pub(crate) caller: Caller,
    pub(crate) api: Api,
}

/// The library that a call's arrays are all of, if it is one of [`LIBRARIES`].
#[inline(always)]
pub(crate) fn library(caller: Caller) -> Option<&'static dyn ArrayLibrary> {
    LIBRARIES.get(caller.place()?).copied()
}

const SLOTS: usize = 16;

/// A class, and the weak reference that watches it.
type Entry = (ArrayClass, Py<PyAny>);

/// Entries that the call path looks at, and all of them by address.
struct Cache {
    slots: [Cell<(usize, Option<ArrayClass>)>; SLOTS],
    all: RefCell<Option<HashMap<usize, Entry>>>,
}

// SAFETY: used only by threads that hold the GIL (the module asks for it, see `gil_used`), and no
// borrow of the map lasts while Python runs.
unsafe impl Sync for Cache {}

static CACHE: Cache =
    Cache { slots: [const { Cell::new((0, None)) }; SLOTS], all: RefCell::new(None) };

#[inline(always)]
fn slot(class: usize) -> &'static Cell<(usize, Option<ArrayClass>)> {
    // Type objects are large: the low bits of their addresses say little.
    &CACHE.slots[(class >> 4 ^ class >> 9) % SLOTS]
}

/// The class of an object, if it is known already.
///
/// # Safety
/// `object` is a live object, and the GIL is held.
#[inline]
pub(crate) unsafe fn find(object: *mut ffi::PyObject) -> Option<ArrayClass> {
    // SAFETY: as for the caller.
    let class = unsafe { ffi::Py_TYPE(object) } as usize;
    let (known, found) = slot(class).get();
    if known == class { found } else { find_all(class) }
}

#[cold]
#[inline(never)]
fn find_all(class: usize) -> Option<ArrayClass> {
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
    // SAFETY: as for the caller; the class says whose it is.
    unsafe {
        let class = find(object)?;
        Some((class.library.look_fast(object)?, class.caller))
    }
}

/// The class of an object, looked at now if need be; `None` if its objects are no arrays.
///
/// # Errors
/// A class whose objects can't be taken, with the reason.
pub(crate) fn known(object: &Bound<'_, PyAny>) -> Result<Option<ArrayClass>> {
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
    let Some(class) = known(object)? else { return Ok(None) };
    Ok(Some((class.library.look(object, class.api)?, class.caller)))
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

fn remember(class: &Bound<'_, PyType>, known: ArrayClass) -> PyResult<()> {
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

/// Classifies a class: a library's own or one derived from it, or one with a protocol for reading it.
fn classify(class: &Bound<'_, PyType>) -> Result<Option<ArrayClass>> {
    let found = of_registered(class)?;
    let says_where = |class: &ArrayClass| !class.library.is_dlpack() || class.api.is_some();
    Ok(found.filter(|found| says_where(found) || has(class, "__dlpack_device__")))
}

/// How the objects of a class are read that somebody registered.
///
/// # Errors
/// As [`known`].
pub(crate) fn of_registered(class: &Bound<'_, PyType>) -> Result<Option<ArrayClass>> {
    let (place, api) = (place_of(class)?, exchange_api(class));
    let library = LIBRARIES[place];
    let is_read = !library.is_dlpack() || api.is_some() || has(class, "__dlpack__");
    Ok(is_read.then_some(ArrayClass { library, caller: Caller::listed(place), api }))
}

/// The library whose class it is.
fn place_of(class: &Bound<'_, PyType>) -> Result<usize> {
    for base in class.mro().iter() {
        let Ok(base) = base.cast_into::<PyType>() else { continue };
        let (Ok(module), Ok(name)) = (base.module(), base.qualname()) else { continue };
        let (module, name) = (module.to_string_lossy(), name.to_string_lossy());
        let module = module.split('.').next().unwrap_or("");
        for (place, library) in LIBRARIES.iter().enumerate() {
            if library.owns(&base, module, &name)? {
                return Ok(place);
            }
        }
    }
    Ok(0)
}

fn has(class: &Bound<'_, PyType>, name: &str) -> bool {
    class.hasattr(name).unwrap_or(false)
}
