//! The library that a call's results go to, and which libraries may stand beside each other in a call.

use keyfold_core::{Error, ErrorKind, Result};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::call::operator::PyOperator;
use crate::marshal::arrays::{self, caller::Caller};
use crate::marshal::attach::reattach;

/// The first array of a library among arguments, inside lists too.
pub(crate) fn first_of<'py>(
    py: Python<'py>,
    objects: &[*mut pyo3::ffi::PyObject],
    wanted: impl Fn(Caller) -> bool + Copy,
) -> Option<Bound<'py, PyAny>> {
    objects.iter().find_map(|object| {
        // SAFETY: the objects of running calls are alive.
        first_in(&unsafe { Bound::from_borrowed_ptr(py, *object) }, wanted)
    })
}

fn first_in<'py>(
    object: &Bound<'py, PyAny>,
    wanted: impl Fn(Caller) -> bool + Copy,
) -> Option<Bound<'py, PyAny>> {
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        return object.try_iter().ok()?.flatten().find_map(|item| first_in(&item, wanted));
    }
    // NumPy's scalars are numbers beside another library's arrays.
    if arrays::is_numpy_scalar(object) {
        return None;
    }
    match arrays::look(object) {
        Ok(Some((_, library))) if wanted(library) => Some(object.clone()),
        _ => None,
    }
}

/// The one library that a call's results go to.
pub(crate) fn home(py: Python<'_>, objects: &[*mut pyo3::ffi::PyObject], caller: Caller) -> Caller {
    if caller.is_one() {
        return caller;
    }
    if caller.has(Caller::OTHER) || caller.is_plain() {
        return Caller::TENSOR;
    }
    // An operator that takes mixed arrays: the first one decides.
    let first = first_of(py, objects, |library| library != Caller::NONE);
    let library = first.and_then(|first| arrays::look(&first).ok().flatten());
    library.map_or(Caller::TENSOR, |(_, library)| library)
}

/// Refuses arrays of several libraries, unless the operator takes them.
///
/// # Errors
/// [`ErrorKind::Binding`], naming both arguments and both classes.
#[cold]
#[inline(never)]
pub(crate) fn check(
    operator: &PyOperator,
    objects: &[*mut pyo3::ffi::PyObject],
    caller: Caller,
) -> Result<()> {
    if operator.operator.options().mixed_arrays || (caller.is_uniform() && caller != Caller::DLPACK)
    {
        return Ok(());
    }
    reattach(|py| {
        let mut seen: Option<(String, Bound<'_, PyAny>)> = None;
        for (param, object) in operator.params.all.iter().zip(objects) {
            let name = param.name.bind(py).to_string_lossy();
            // SAFETY: the objects of a call are alive.
            let object = unsafe { Bound::from_borrowed_ptr(py, *object) };
            let mut clash = None;
            visit(&object, format!("'{name}'"), &mut |place, item| match &seen {
                None => seen = Some((place, item.clone())),
                Some((there, first)) if clash.is_none() && differ(first, item) => {
                    clash = Some((there.clone(), first.clone(), place, item.clone()));
                }
                Some(_) => {}
            });
            if let Some((there, first, here, second)) = clash {
                return Err(refusal(operator.operator.name(), (there, first), (here, second)));
            }
        }
        Ok(())
    })
}

/// Calls `f` with every array in an argument that counts here, and its place.
fn visit<'py>(
    object: &Bound<'py, PyAny>,
    place: String,
    f: &mut impl FnMut(String, &Bound<'py, PyAny>),
) {
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        let Ok(items) = object.try_iter() else { return };
        for (at, item) in items.flatten().enumerate() {
            visit(&item, format!("{}[{at}]'", place.trim_end_matches('\'')), f);
        }
        return;
    }
    if arrays::is_numpy_scalar(object) {
        return;
    }
    match arrays::look(object) {
        Ok(Some((_, library))) if !library.has(Caller::OTHER) => f(place, object),
        _ => {}
    }
}

/// Whether two arrays are of different libraries; NumPy beside keyfold's own is agreed on.
fn differ(a: &Bound<'_, PyAny>, b: &Bound<'_, PyAny>) -> bool {
    let library = |x: &Bound<'_, PyAny>| arrays::look(x).ok().flatten().map(|(_, library)| library);
    match (library(a), library(b)) {
        (Some(Caller::DLPACK), Some(Caller::DLPACK)) => {
            arrays::library_name(a) != arrays::library_name(b)
        }
        (Some(a), Some(b)) => !a.with(b).is_uniform(),
        _ => false,
    }
}

fn refusal(
    operator: &str,
    (there, first): (String, Bound<'_, PyAny>),
    (here, second): (String, Bound<'_, PyAny>),
) -> Error {
    let name = |x: &Bound<'_, PyAny>| match x.get_type().fully_qualified_name() {
        Ok(name) => name.to_string(),
        Err(_) => "?".to_owned(),
    };
    Error::new(
        ErrorKind::Binding,
        format!(
            "{operator}() got arrays of different libraries: {there} is a {} and {here} a {}; convert \
             one of them (keyfold.asarray takes either, without a copy), or define the operator with \
             mixed_arrays=True",
            name(&first),
            name(&second)
        ),
    )
}
