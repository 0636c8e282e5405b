//! An operator's parameters as the call path needs them: kinds, interned names, defaults.

use keyfold_core::{Error, Result};
use keyfold_dispatch::schema::{Schema, Type};
use keyfold_dispatch::{Operator, Tag};
use keyfold_tensor::Value;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};

use crate::marshal::arrays::{self, caller::Caller, registered};
use crate::marshal::attach::reattach;
use crate::marshal::describe::describe_object;
use crate::marshal::dtype::{self, PyDType};
use crate::marshal::errors::{self, from_pyerr};
use crate::marshal::values;

/// The way in which the call path reads an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Tensor,
    OptionalTensor,
    /// A list of tensors, of optional ones, or an optional list.
    Tensors,
    /// A device, which brings its backend's key.
    Device,
    /// An int or a Scalar, or an optional one: ints and floats of Python's own are taken as they are.
    Number,
    /// A bool, or an optional one.
    Flag,
    /// Anything else without keys.
    Plain,
}

pub(crate) struct Param {
    pub(crate) name: Py<PyString>,
    /// How errors name it: `demo::scale() argument 'x'`.
    pub(crate) place: String,
    pub(crate) ty: Type,
    pub(crate) kind: Kind,
    /// Whether kernels write it.
    pub(crate) written: bool,
    pub(crate) default: Option<Py<PyAny>>,
}

pub(crate) struct Params {
    pub(crate) all: Vec<Param>,
    /// How many may be given by position.
    pub(crate) positional: usize,
    /// How many arguments a call gives that can be taken as they are: all by position. No call can
    /// where there are keyword-only parameters or such as are in `adapted`.
    pub(crate) as_given: usize,
    /// The places of parameters whose objects may be adapted before kernels see them: a single value for
    /// a list, and anything that names a dtype.
    adapted: Vec<usize>,
    /// The names after those, for calls of Python kernels; none where all are positional.
    pub(crate) keyword_names: Option<Py<PyTuple>>,
}

impl Param {
    /// Whether it is a list that one value stands for, of anything but tensors, or a dtype.
    fn is_adapted(&self) -> bool {
        match self.ty.without_optional() {
            Type::List(_, declared) => declared.is_some() && self.kind != Kind::Tensors,
            ty => *ty == Type::ScalarType,
        }
    }

    /// Whether the object must be adapted before kernels see it, if it fits.
    ///
    /// # Safety
    /// `object` is a live object; the GIL is held.
    unsafe fn adapts(&self, object: *mut ffi::PyObject) -> bool {
        // SAFETY: type checks of a live object.
        unsafe {
            object != ffi::Py_None()
                && match self.ty.without_optional() {
                    Type::ScalarType => !PyDType::is_exact(object),
                    _ => ffi::PyTuple_Check(object) == 0 && ffi::PyList_Check(object) == 0,
                }
        }
    }

    /// The adapted object: a list of the declared length for a single value, a `keyfold.DType` for anything
    /// that names a dtype. `None` where the object doesn't fit, which is refused later.
    fn adapt(&self, given: &Bound<'_, PyAny>) -> PyResult<Option<Py<PyAny>>> {
        let py = given.py();
        let ty = self.ty.without_optional();
        let Type::List(item, Some(size)) = ty else {
            return match values::value_from(given, ty) {
                Ok(Some(Value::DType(dtype))) => {
                    Ok(Some(dtype::object(py, dtype)?.into_any().unbind()))
                }
                _ => Ok(None),
            };
        };
        // SAFETY: a live object, under the GIL.
        let fits = unsafe { values::fits_fast(given.as_ptr(), item) };
        if !fits && !matches!(values::value_from(given, item), Ok(Some(_))) {
            return Ok(None);
        }
        let each = std::iter::repeat_n(given, *size);
        Ok(Some(PyList::new(py, each)?.into_any().unbind()))
    }
}

fn kind_of(ty: &Type) -> Kind {
    match ty {
        Type::Tensor => Kind::Tensor,
        Type::Optional(inner) if **inner == Type::Tensor => Kind::OptionalTensor,
        _ if ty.carries_tensors() => Kind::Tensors,
        _ if *ty.base() == Type::Device => Kind::Device,
        Type::Int | Type::Scalar => Kind::Number,
        Type::Bool => Kind::Flag,
        Type::Optional(inner) if matches!(**inner, Type::Int | Type::Scalar) => Kind::Number,
        Type::Optional(inner) if **inner == Type::Bool => Kind::Flag,
        _ => Kind::Plain,
    }
}

impl Params {
    pub(crate) fn new(py: Python<'_>, schema: &Schema) -> PyResult<Self> {
        let mut all = Vec::new();
        for argument in &schema.arguments {
            let default = argument
                .default_value()
                .map(|literal| values::literal_to_py(py, &literal, &argument.ty))
                .transpose()?;
            all.push(Param {
                name: PyString::intern(py, &argument.name).unbind(),
                place: format!("{}() argument '{}'", schema.name, argument.name),
                ty: argument.ty.clone(),
                kind: kind_of(&argument.ty),
                written: argument.alias.as_ref().is_some_and(|alias| alias.write),
                default,
            });
        }
        let positional = schema.positional_count();
        let names: Vec<_> = all[positional..].iter().map(|p| p.name.clone_ref(py)).collect();
        let keyword_names =
            if names.is_empty() { None } else { Some(PyTuple::new(py, names)?.unbind()) };
        let adapted: Vec<_> = (0..all.len()).filter(|at| all[*at].is_adapted()).collect();
        let as_given = match !adapted.is_empty() || positional < all.len() || all.is_empty() {
            true => usize::MAX,
            false => positional,
        };
        Ok(Params { all, positional, as_given, adapted, keyword_names })
    }

    /// Whether some of the objects must be adapted, see [`Params::adapt`].
    ///
    /// # Safety
    /// `objects` are live objects, one per parameter; the GIL is held.
    #[inline(always)]
    pub(crate) unsafe fn adapts(&self, objects: &[*mut ffi::PyObject]) -> bool {
        // SAFETY: as for the caller.
        self.adapted.iter().any(|at| unsafe { self.all[*at].adapts(objects[*at]) })
    }

    /// Replaces arguments by the objects that kernels take: `int[2]` takes 3 for `[3, 3]`, and `ScalarType`
    /// takes "float32" for `keyfold.float32`. Gives what keeps the new objects alive.
    ///
    /// # Errors
    /// `MemoryError`.
    ///
    /// # Safety
    /// `objects` are live objects, one per parameter; the GIL is held.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn adapt(
        &self,
        objects: &mut [*mut ffi::PyObject],
    ) -> Result<Vec<Py<PyAny>>> {
        reattach(|py| {
            let mut made = Vec::new();
            for at in &self.adapted {
                let (param, object) = (&self.all[*at], &mut objects[*at]);
                // SAFETY: a live object, by the contract.
                let given = unsafe { Bound::from_borrowed_ptr(py, *object) };
                // SAFETY: as above.
                if unsafe { param.adapts(*object) }
                    && let Some(adapted) = param.adapt(&given).map_err(from_pyerr)?
                {
                    *object = adapted.as_ptr();
                    made.push(adapted);
                }
            }
            Ok(made)
        })
    }

    /// Puts positional and keyword arguments and defaults into declaration order.
    ///
    /// # Errors
    /// The message of Python for a function called so, with the operator's name.
    ///
    /// # Safety
    /// `args` are live objects, as many as positional arguments plus `keywords`, a tuple of
    /// strings or null; `slots` are null, one per parameter; the GIL is held.
    pub(crate) unsafe fn bind(
        &self,
        operator: &Operator<Value>,
        args: &[*mut ffi::PyObject],
        keywords: *mut ffi::PyObject,
        slots: &mut [*mut ffi::PyObject],
    ) -> Result<()> {
        // SAFETY: as for the caller.
        let good = unsafe { self.place(args, keywords, slots) };
        if self.fill(slots) && good {
            return Ok(());
        }
        Err(unbindable(operator, args.len(), keywords))
    }

    /// Puts positional and keyword arguments into declaration order. Whether each has a place of its own.
    ///
    /// # Safety
    /// As for [`Params::bind`].
    #[inline(always)]
    pub(crate) unsafe fn place(
        &self,
        args: &[*mut ffi::PyObject],
        keywords: *mut ffi::PyObject,
        slots: &mut [*mut ffi::PyObject],
    ) -> bool {
        let keyword_count = match keywords.is_null() {
            true => 0,
            // SAFETY: a tuple, by the contract.
            false => unsafe { ffi::PyTuple_Size(keywords) as usize },
        };
        let given = args.len() - keyword_count;
        let mut good = given <= self.positional;
        let by_position = given.min(self.positional);
        slots[..by_position].copy_from_slice(&args[..by_position]);
        for (i, value) in args[given..].iter().enumerate() {
            // SAFETY: the caller's tuple has as many names as there are keyword arguments.
            let name = unsafe { ffi::PyTuple_GetItem(keywords, i as ffi::Py_ssize_t) };
            match self.find(name) {
                Some(at) if slots[at].is_null() => slots[at] = *value,
                _ => good = false,
            }
        }
        good
    }

    /// Puts the defaults where nothing was given. Whether nothing is missing.
    #[inline(always)]
    pub(crate) fn fill(&self, slots: &mut [*mut ffi::PyObject]) -> bool {
        let mut good = true;
        for (slot, param) in slots.iter_mut().zip(&self.all) {
            if slot.is_null() {
                match &param.default {
                    Some(default) => *slot = default.as_ptr(),
                    None => good = false,
                }
            }
        }
        good
    }

    /// The parameter of that name: by identity, as most names are interned, then by content.
    fn find(&self, name: *mut ffi::PyObject) -> Option<usize> {
        let by_identity = self.all.iter().position(|param| param.name.as_ptr() == name);
        by_identity.or_else(|| {
            self.all.iter().position(|param| {
                // SAFETY: both are live strings.
                unsafe { ffi::PyUnicode_Compare(param.name.as_ptr(), name) == 0 }
            })
        })
    }

    /// Checks bound arguments against their types and adds up their keys.
    ///
    /// # Errors
    /// The first argument that doesn't fit, by name.
    ///
    /// # Safety
    /// `objects` are live objects, one per parameter; the GIL is held.
    #[inline(always)]
    pub(crate) unsafe fn inspect(
        &self,
        operator: &Operator<Value>,
        objects: &[*mut ffi::PyObject],
    ) -> Result<(Tag, Caller)> {
        let mut tag = Tag::NONE;
        let mut caller = Caller::NONE;
        for (param, object) in self.all.iter().zip(objects) {
            // SAFETY: as for the caller.
            let found = unsafe {
                match param.kind {
                    Kind::Tensor | Kind::OptionalTensor => match arrays::look_fast(*object) {
                        Some(found) => found,
                        None => inspect_slowly(operator, param, *object)?,
                    },
                    Kind::Number | Kind::Flag | Kind::Plain
                        if values::fits_fast(*object, &param.ty) =>
                    {
                        continue;
                    }
                    _ => inspect_slowly(operator, param, *object)?,
                }
            };
            tag = tag.merge(found.0);
            caller = caller.with(found.1);
        }
        Ok((tag, caller))
    }
}

/// Everything that the fast look doesn't know.
#[cold]
#[inline(never)]
unsafe fn inspect_slowly(
    operator: &Operator<Value>,
    param: &Param,
    object: *mut ffi::PyObject,
) -> Result<(Tag, Caller)> {
    reattach(|py| {
        // SAFETY: a live object, by the contract of `inspect`.
        let object = unsafe { Bound::from_borrowed_ptr(py, object) };
        let place = |error: Error| errors::at(py, error, &param.place);
        let wrong = || {
            let name = param.name.bind(py).to_string_lossy().into_owned();
            let mut given = describe_object(&object);
            if matches!(param.kind, Kind::Tensor | Kind::OptionalTensor) {
                let registered: String =
                    registered::names(py).iter().map(|name| format!(", {name}")).collect();
                given.push_str(&format!(
                    " (tensors are keyfold.Tensor, numpy.ndarray{registered}, and whatever has __dlpack__; add a class with \
                     keyfold.register_array_type)"
                ));
            }
            if *param.ty.base() == Type::Any {
                given.push_str(" (Any brings no keys: declare an array as a Tensor)");
            }
            operator.wrong_type(&name, &param.ty, &given)
        };
        match param.kind {
            Kind::OptionalTensor if object.is_none() => Ok((Tag::NONE, Caller::NONE)),
            Kind::Tensor | Kind::OptionalTensor => {
                arrays::look(&object).map_err(place)?.ok_or_else(wrong)
            }
            Kind::Tensors => {
                if object.is_none() && param.ty.is_optional() {
                    return Ok((Tag::NONE, Caller::NONE));
                }
                if !object.is_instance_of::<PyList>() && !object.is_instance_of::<PyTuple>() {
                    return Err(wrong());
                }
                let Type::List(item, size) = param.ty.without_optional() else {
                    return Err(wrong());
                };
                let mut sum = (Tag::NONE, Caller::NONE);
                let mut count = 0;
                for element in object.try_iter().map_err(from_pyerr)? {
                    let element = element.map_err(from_pyerr)?;
                    count += 1;
                    if element.is_none() && item.is_optional() {
                        continue;
                    }
                    let (tag, caller) =
                        arrays::look(&element).map_err(place)?.ok_or_else(|| {
                            let name = param.name.bind(py).to_string_lossy().into_owned();
                            let at = format!("{name}[{}]", count - 1);
                            operator.wrong_type(&at, item, &describe_object(&element))
                        })?;
                    sum = (sum.0.merge(tag), sum.1.with(caller));
                }
                if !Type::takes_length(*size, count) {
                    return Err(wrong());
                }
                Ok(sum)
            }
            Kind::Device => {
                if object.is_none() && param.ty.is_optional() {
                    return Ok((Tag::NONE, Caller::NONE));
                }
                let tag = values::value_from(&object, &param.ty).map_err(place)?;
                if tag.is_none() {
                    return Err(wrong());
                }
                Ok((values::device_tag(&object).map_err(place)?, Caller::NONE))
            }
            Kind::Number | Kind::Flag | Kind::Plain => {
                match values::value_from(&object, &param.ty).map_err(place)? {
                    Some(_) => Ok((Tag::NONE, Caller::NONE)),
                    None => Err(wrong()),
                }
            }
        }
    })
}

/// The error for arguments that don't bind, in Python's own words.
#[cold]
fn unbindable(operator: &Operator<Value>, all: usize, keywords: *mut ffi::PyObject) -> Error {
    reattach(|py| {
        // SAFETY: null or a live tuple, by the contract of `bind`.
        let keywords = unsafe { Bound::from_borrowed_ptr_or_opt(py, keywords) };
        let names: Vec<String> =
            keywords.and_then(|tuple| tuple.extract::<Vec<String>>().ok()).unwrap_or_default();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        match operator.schema().bind(all - names.len(), &names) {
            Err(error) => error,
            Ok(_) => Error::new(
                keyfold_core::ErrorKind::Binding,
                format!("{}() can't be called with these arguments", operator.name()),
            ),
        }
    })
}
