//! Python objects as values of a schema's types, and values as Python objects.

use keyfold_core::{Complex, Error, ErrorKind, Result};
use keyfold_dispatch::DispatchKey;
use keyfold_dispatch::Tag;
use keyfold_dispatch::schema::{Literal, Type};
use keyfold_tensor::Value;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::marshal::arrays;
use crate::marshal::dtype::{PyDType, dtype_from, find_device};
use crate::marshal::errors::from_pyerr;
use crate::marshal::py_value::PyValue;

/// Whether an object that is no tensor fits a type, without converting it.
///
/// # Safety
/// `object` is a live object, and the GIL is held.
#[inline]
pub(crate) unsafe fn fits_fast(object: *mut ffi::PyObject, ty: &Type) -> bool {
    // SAFETY: type checks of a live object.
    unsafe {
        match ty {
            Type::Float => {
                ffi::PyFloat_CheckExact(object) != 0 || ffi::PyLong_CheckExact(object) != 0
            }
            Type::Int => {
                ffi::PyLong_CheckExact(object) != 0 && {
                    let mut overflow = 0;
                    ffi::PyLong_AsLongLongAndOverflow(object, &raw mut overflow);
                    overflow == 0
                }
            }
            Type::Scalar => {
                ffi::PyFloat_CheckExact(object) != 0
                    || ffi::PyLong_CheckExact(object) != 0
                    || ffi::PyBool_Check(object) != 0
            }
            Type::Bool => ffi::PyBool_Check(object) != 0,
            Type::Str => ffi::PyUnicode_CheckExact(object) != 0,
            Type::Optional(inner) => object == ffi::Py_None() || fits_fast(object, inner),
            Type::List(item, declared) => list_fits_fast(object, item, *declared),
            _ => false,
        }
    }
}

/// [`fits_fast`] of a list or a tuple.
///
/// # Safety
/// As of [`fits_fast`].
unsafe fn list_fits_fast(object: *mut ffi::PyObject, item: &Type, declared: Option<usize>) -> bool {
    // SAFETY: each reader follows its type check; its item is borrowed while nothing else runs.
    unsafe {
        let (len, get): (_, unsafe extern "C" fn(_, _) -> _) =
            if ffi::PyTuple_CheckExact(object) != 0 {
                (ffi::PyTuple_Size(object), ffi::PyTuple_GetItem)
            } else if ffi::PyList_CheckExact(object) != 0 {
                (ffi::PyList_Size(object), ffi::PyList_GetItem)
            } else {
                return false;
            };
        Type::takes_length(declared, len as usize)
            && (0..len).all(|at| fits_fast(get(object, at), item))
    }
}

/// An object that is no tensor as a value of a type. `Ok(None)` where it doesn't fit.
///
/// # Errors
/// The error of a conversion: an unknown device name, a number out of range.
pub(crate) fn value_from(object: &Bound<'_, PyAny>, ty: &Type) -> Result<Option<Value>> {
    Ok(match ty {
        Type::Optional(_) if object.is_none() => Some(Value::None),
        Type::Optional(inner) => value_from(object, inner)?,
        Type::List(item, size) => return list_from(object, item, *size),
        Type::Tensor => arrays::look(object)?.map(|(tag, _)| {
            // SAFETY: a bound object is alive.
            unsafe { PyValue::value(object.as_ptr(), tag) }
        }),
        Type::Scalar => scalar_from(object)?,
        Type::Bool => bool_from(object),
        Type::Int => match int_from(object)? {
            None => index_from(object)?,
            Some(Value::UInt(number)) => return Err(beyond_int64(number)),
            number => number,
        },
        Type::Float => float_from(object)?,
        Type::Complex => complex_from(object)?,
        Type::Str | Type::Layout | Type::MemoryFormat => {
            object.cast::<PyString>().ok().map(|text| Value::from(&*text.to_string_lossy()))
        }
        Type::Device => find_device(object)?.map(Value::Device),
        // A name that is no dtype says so; another kind of object just doesn't fit.
        Type::ScalarType => match object.cast::<PyString>() {
            Ok(name) => Some(Value::DType(name.to_string_lossy().parse()?)),
            Err(_) => dtype_from(object).ok().map(Value::DType),
        },
        // SAFETY: a bound object is alive.
        Type::Generator => Some(unsafe { PyValue::value(object.as_ptr(), Tag::NONE) }),
        Type::Any => any_from(object)?,
    })
}

/// Plain values as native kernels know them; everything else, lists too, is an object to them. An
/// array doesn't fit: its keys would be lost on the layers.
fn any_from(object: &Bound<'_, PyAny>) -> Result<Option<Value>> {
    if object.is_none() {
        return Ok(Some(Value::None));
    }
    if let Ok(text) = object.cast_exact::<PyString>()
        && let Ok(text) = text.to_str()
    {
        return Ok(Some(text.into()));
    }
    // Other classes' numbers stay the objects that they are, under every layer.
    let is_number = object.is_exact_instance_of::<PyBool>()
        || object.is_exact_instance_of::<PyInt>()
        || object.is_exact_instance_of::<PyFloat>()
        || object.is_exact_instance_of::<PyComplex>();
    if is_number && let Some(number) = scalar_from(object).unwrap_or(None) {
        return Ok(Some(number));
    }
    // SAFETY: a bound object is alive.
    let opaque = || unsafe { PyValue::value(object.as_ptr(), Tag::NONE) };
    Ok(arrays::look(object)?.is_none().then(opaque))
}

fn bool_from(object: &Bound<'_, PyAny>) -> Option<Value> {
    if let Ok(flag) = object.cast::<PyBool>() {
        return Some(Value::Bool(flag.is_true()));
    }
    numpy_scalar(object, "bool").and_then(|flag| flag.is_truthy().ok()).map(Value::Bool)
}

fn int_from(object: &Bound<'_, PyAny>) -> Result<Option<Value>> {
    if object.is_instance_of::<PyBool>() || object.is_instance_of::<PyFloat>() {
        return Ok(None);
    }
    if !object.is_instance_of::<PyInt>() && numpy_scalar(object, "integer").is_none() {
        return Ok(None);
    }
    match object.extract::<i64>() {
        Ok(number) => Ok(Some(Value::Int(number))),
        Err(_) => match object.extract::<u64>() {
            Ok(number) => Ok(Some(Value::UInt(number))),
            Err(_) => Err(Error::new(
                ErrorKind::Value,
                format!("the integer {object} doesn't fit into 64 bits"),
            )),
        },
    }
}

/// An array of whole numbers without dimensions as the number, as Python's own indices take it.
fn index_from(object: &Bound<'_, PyAny>) -> Result<Option<Value>> {
    if !is_whole_array(object, 0)? {
        return Ok(None);
    }
    // SAFETY: a live object, under the GIL; a new reference, or null with an exception set.
    let index =
        unsafe { Bound::from_owned_ptr_or_err(object.py(), ffi::PyNumber_Index(object.as_ptr())) };
    int_from(&index.map_err(from_pyerr)?)
}

/// Whether an object is an array of whole numbers with so many dimensions.
fn is_whole_array(object: &Bound<'_, PyAny>, ndim: usize) -> Result<bool> {
    if arrays::look(object)?.is_none() || arrays::is_registered(object)? {
        return Ok(false);
    }
    let view = arrays::view(object)?;
    Ok(view.ndim() == ndim && view.dtype().is_integral())
}

fn float_from(object: &Bound<'_, PyAny>) -> Result<Option<Value>> {
    if let Ok(number) = object.cast::<PyFloat>() {
        return Ok(Some(Value::Float(number.value())));
    }
    if object.is_instance_of::<PyInt>() && !object.is_instance_of::<PyBool>() {
        // Of any size: a float holds more than 64 bits' worth, if not exactly.
        return object.extract::<f64>().map(|number| Some(Value::Float(number))).map_err(|_| {
            Error::new(ErrorKind::Value, format!("the integer {object} is too large for a float"))
        });
    }
    match int_from(object)? {
        Some(Value::Int(number)) => Ok(Some(Value::Float(number as f64))),
        Some(Value::UInt(number)) => Ok(Some(Value::Float(number as f64))),
        _ => Ok(numpy_scalar(object, "floating")
            .and_then(|number| number.extract::<f64>().ok())
            .map(Value::Float)),
    }
}

fn complex_from(object: &Bound<'_, PyAny>) -> Result<Option<Value>> {
    if let Ok(number) = object.cast::<PyComplex>() {
        return Ok(Some(Value::Complex(Complex::new(number.real(), number.imag()))));
    }
    Ok(match float_from(object)? {
        Some(Value::Float(number)) => Some(Value::Complex(Complex::new(number, 0.0))),
        _ => None,
    })
}

fn scalar_from(object: &Bound<'_, PyAny>) -> Result<Option<Value>> {
    if let Some(flag) = bool_from(object) {
        return Ok(Some(flag));
    }
    if let Some(number) = int_from(object)? {
        return Ok(Some(number));
    }
    if let Some(number) = float_from(object)? {
        return Ok(Some(number));
    }
    complex_from(object)
}

/// The object, if it is a NumPy scalar of that branch of NumPy's scalar types.
fn numpy_scalar<'a, 'py>(
    object: &'a Bound<'py, PyAny>,
    branch: &str,
) -> Option<&'a Bound<'py, PyAny>> {
    if !arrays::is_numpy_scalar(object) {
        return None;
    }
    let class = object.py().import("numpy").and_then(|numpy| numpy.getattr(branch)).ok()?;
    object.is_instance(&class).ok()?.then_some(object)
}

fn list_from(object: &Bound<'_, PyAny>, item: &Type, size: Option<usize>) -> Result<Option<Value>> {
    let items = if let Ok(list) = object.cast_exact::<PyList>() {
        items_from(list.iter(), item)?
    } else if let Ok(tuple) = object.cast_exact::<PyTuple>() {
        items_from(tuple.iter(), item)?
    } else if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        // A class of one's own may say itself what it iterates over.
        let iterator = object.try_iter().map_err(from_pyerr)?;
        let items = iterator.map(|item| item.map_err(from_pyerr)).collect::<Result<Vec<_>>>()?;
        items_from(items.into_iter(), item)?
    } else if *item == Type::Int && is_whole_array(object, 1)? {
        let list = object.call_method0("tolist").map_err(from_pyerr)?;
        return list_from(&list, item, size);
    } else {
        // One value stands for each element of a list of fixed size.
        let Some(size) = size else { return Ok(None) };
        return Ok(value_from(object, item)?.map(|each| Value::List(vec![each; size])));
    };
    Ok(items.filter(|items| Type::takes_length(size, items.len())).map(Value::List))
}

/// The error for an int that only uint64 holds.
fn beyond_int64(number: u64) -> Error {
    Error::new(ErrorKind::Value, format!("the integer {number} doesn't fit into int64"))
}

/// The values of a list's elements.
fn items_from<'py>(
    elements: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
    item: &Type,
) -> Result<Option<Vec<Value>>> {
    let mut items = Vec::with_capacity(elements.len());
    for element in elements {
        match value_from(&element, item)? {
            Some(value) => items.push(value),
            None => return Ok(None),
        }
    }
    Ok(Some(items))
}

/// A schema's default as the object that a Python kernel gets.
pub(crate) fn literal_to_py(py: Python<'_>, literal: &Literal, ty: &Type) -> PyResult<Py<PyAny>> {
    let as_dtype = matches!(ty.without_optional(), Type::ScalarType);
    Ok(match literal {
        Literal::None => py.None(),
        Literal::Bool(flag) => flag.into_pyobject(py)?.to_owned().into_any().unbind(),
        Literal::Int(number) => number.into_pyobject(py)?.into_any().unbind(),
        Literal::Float(number) => number.into_pyobject(py)?.into_any().unbind(),
        Literal::Str(text) => text.into_pyobject(py)?.into_any().unbind(),
        Literal::Ident(name) if as_dtype => {
            let name = name.into_pyobject(py)?;
            Bound::new(py, PyDType(dtype_from(&name)?))?.into_any().unbind()
        }
        Literal::Ident(name) => match literal.as_int() {
            Some(number) if matches!(ty.without_optional(), Type::Int) => {
                number.into_pyobject(py)?.into_any().unbind()
            }
            _ => name.into_pyobject(py)?.into_any().unbind(),
        },
        Literal::List(items) => {
            let item = match ty.without_optional() {
                Type::List(item, _) => item,
                other => other,
            };
            let items: PyResult<Vec<_>> =
                items.iter().map(|literal| literal_to_py(py, literal, item)).collect();
            PyList::new(py, items?)?.into_any().unbind()
        }
    })
}

/// The backend key that a `Device?` argument brings.
pub(crate) fn device_tag(object: &Bound<'_, PyAny>) -> Result<Tag> {
    Ok(match find_device(object)? {
        Some(device) => Tag::keys_only(DispatchKey::from_device_type(device.kind()).into()),
        None => Tag::NONE,
    })
}
