//! The arguments of a call of a function, in the order of its parameters, and the errors where they don't fit.

use std::slice::from_raw_parts;

use keyfold::ops::Signature;
use keyfold_core::ErrorKind;
use keyfold_dispatch::schema::Type;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBool;
use smallvec::SmallVec;

use crate::call::params::{Param, Params};
use crate::marshal::argument::flag;
use crate::marshal::errors::error;

pub(super) type Objects = SmallVec<[*mut ffi::PyObject; 8]>;

/// The parameters of a function.
pub(super) struct Parameters {
    /// The function's name in errors: `keyfold.sum`, or `Tensor.sum` for the method.
    pub(super) title: String,
    pub(super) signature: Signature,
    /// Those of the signature's schema.
    params: Params,
    /// The places of the bools.
    flags: Vec<usize>,
}

impl Parameters {
    pub(super) fn new(py: Python<'_>, title: String, signature: Signature) -> PyResult<Self> {
        let params = Params::new(py, &signature.schema)?;
        let is_flag = |at: &usize| *params.all[*at].ty.without_optional() == Type::Bool;
        // Without the other names of parameters, which are the last.
        let own = params.all.len() - signature.aliases.len();
        let flags = (0..own).filter(is_flag).collect();
        Ok(Parameters { title, signature, params, flags })
    }

    pub(super) fn all(&self) -> &[Param] {
        &self.params.all
    }

    /// An error of a call, which begins with the function's name.
    pub(super) fn error(&self, py: Python<'_>, message: &str) -> PyErr {
        error(py, ErrorKind::Binding, format!("{}() {message}", self.title))
    }

    /// The arguments in the order of the function's parameters, defaults filled in.
    ///
    /// # Safety
    /// As for `invoke::call`.
    pub(super) unsafe fn bind(
        &self,
        py: Python<'_>,
        args: *const *mut ffi::PyObject,
        nargs: usize,
        keywords: *mut ffi::PyObject,
    ) -> PyResult<Objects> {
        let all = &self.params.all;
        let mut slots: Objects = SmallVec::from_elem(std::ptr::null_mut(), all.len());
        // SAFETY: as many live objects as that, by the contract: those by position, and one for each name.
        let is_placed = unsafe {
            let names = if keywords.is_null() { 0 } else { ffi::PyTuple_Size(keywords) as usize };
            let given = if nargs + names == 0 { &[] } else { from_raw_parts(args, nargs + names) };
            self.params.place(given, keywords, &mut slots)
        };
        if !is_placed || nargs < self.signature.by_position {
            return Err(self.unbindable(py, nargs, keywords)?);
        }
        // Other names are given by keyword only.
        let aliases = if keywords.is_null() { &[][..] } else { &self.signature.aliases };
        for (at, alias) in aliases {
            let (ours, theirs) = (slots[*at], slots[*alias]);
            if theirs.is_null() || is_none(theirs) {
                continue;
            }
            if ours.is_null() || is_none(ours) {
                slots[*at] = theirs;
                slots[*alias] = std::ptr::null_mut();
            } else {
                let (ours, theirs) = (all[*at].name.bind(py), all[*alias].name.bind(py));
                let message = format!("got both '{ours}' and '{theirs}', which mean the same");
                return Err(self.error(py, &message));
            }
        }
        if !self.params.fill(&mut slots) {
            return Err(self.unbindable(py, nargs, keywords)?);
        }
        for at in &self.flags {
            // SAFETY: a live object.
            let given = unsafe { Borrowed::from_ptr(py, slots[*at]) };
            if given.is_exact_instance_of::<PyBool>() {
                continue;
            }
            let is_missing = given.is_none() && all[*at].ty.is_optional();
            if let Some(value) = if is_missing { Some(false) } else { flag(&given) } {
                slots[*at] = PyBool::new(py, value).as_ptr();
            }
        }
        Ok(slots)
    }

    /// The error for arguments without a place and parameters without an argument, in Python's own words.
    #[cold]
    fn unbindable(
        &self,
        py: Python<'_>,
        given: usize,
        keywords: *mut ffi::PyObject,
    ) -> PyResult<PyErr> {
        let schema = &self.signature.schema;
        // SAFETY: null or a live tuple of strings, by the contract of `bind`.
        let names = unsafe { Bound::from_borrowed_ptr_or_opt(py, keywords) };
        let names: Vec<String> = names.map_or(Ok(Vec::new()), |names| names.extract())?;
        for name in &names {
            match schema.argument_index(name) {
                None => {
                    let known = schema.arguments.iter().skip(self.signature.by_position);
                    let known: Vec<&str> = known.map(|argument| &*argument.name).collect();
                    return Ok(unexpected(py, &self.title, &known, name));
                }
                Some(at) if at < self.signature.by_position => {
                    let message = format!("takes argument '{name}' by position only");
                    return Ok(self.error(py, &message));
                }
                _ => {}
            }
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Ok(match schema.bind(given, &names) {
            Err(refused) => {
                let text = refused.message().replacen(&schema.name.qualified(), &self.title, 1);
                error(py, ErrorKind::Binding, text)
            }
            Ok(_) => self.error(py, "can't be called with these arguments"),
        })
    }
}

/// The error for a keyword that a function or a method doesn't take, with the one that was meant.
pub(crate) fn unexpected(py: Python<'_>, title: &str, known: &[&str], keyword: &str) -> PyErr {
    let found = py
        .import("keyfold._messages")
        .and_then(|messages| messages.call_method1("unexpected_in", (title, known, keyword)));
    found.map_or_else(|failed| failed, PyErr::from_value)
}

pub(super) fn is_none(object: *mut ffi::PyObject) -> bool {
    // SAFETY: the address of a constant.
    object == unsafe { ffi::Py_None() }
}
