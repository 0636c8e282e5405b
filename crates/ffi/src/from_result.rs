//! Results of foreign functions, converted to values.

use std::ptr::NonNull;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_tensor::dlpack::{self, DLTensor};
use keyfold_tensor::{Tensor, Value};

use crate::abi::{self, Any, ByteArray, Header, SeqCell, ShapeCell};
use crate::object::{self, Object};
use crate::runtime::Runtime;

/// The deepest nesting of lists; a list may contain itself.
const DEPTH: usize = 8;

/// Returns the error for a value that keyfold has no type for. Its kind is [`ErrorKind::Return`].
#[cold]
fn unsupported(any: &Any) -> Error {
    Error::new(ErrorKind::Return, format!("a value of type index {}", any.type_index))
}

#[cold]
fn malformed(what: &str) -> Error {
    Error::new(ErrorKind::Return, what.to_owned())
}

/// Converts a result and takes ownership of its reference. Without the library, object results are
/// refused unread, since nothing confirms their layout.
///
/// # Errors
/// [`ErrorKind::Return`] for a value that keyfold has no type for, with its name;
/// [`ErrorKind::DType`], [`ErrorKind::Device`] or [`ErrorKind::Exchange`] for a tensor object that
/// can't be viewed.
///
/// # Safety
/// A function of the ABI stored `any` and returned 0. With a `runtime`, objects are that library's,
/// and the caller gives up the reference.
pub unsafe fn from_result(any: Any, runtime: Option<&'static Runtime>) -> Result<Value> {
    if !any.is_object() {
        return in_place(&any);
    }
    let Some(runtime) = runtime else { return Err(unsupported(&any)) };
    // SAFETY: the caller's contract.
    let Some(held) = (unsafe { Object::owned(any.address(), runtime) }) else {
        return Err(malformed("an object whose address is null"));
    };
    // SAFETY: as above; `held` keeps the object alive.
    unsafe { borrowed_at(&any, &held, 0) }
}

/// Converts a borrowed value. Objects that the result refers to are retained.
///
/// # Errors
/// As [`from_result`].
///
/// # Safety
/// `any` is a value of the ABI, valid for the call; its objects are the library's.
pub unsafe fn copy(any: &Any, runtime: &'static Runtime) -> Result<Value> {
    // SAFETY: the caller's contract.
    unsafe { copy_at(any, runtime, 0) }
}

unsafe fn copy_at(any: &Any, runtime: &'static Runtime, depth: usize) -> Result<Value> {
    if !any.is_object() {
        return in_place(any);
    }
    // SAFETY: the caller's contract.
    let Some(held) = (unsafe { Object::shared(any.address(), runtime) }) else {
        return Err(malformed("an object whose address is null"));
    };
    // SAFETY: the caller's contract; `held` keeps the object alive.
    unsafe { borrowed_at(any, &held, depth) }
}

/// Converts a value that isn't an object.
fn in_place(any: &Any) -> Result<Value> {
    Ok(match any.type_index {
        abi::NONE => Value::None,
        abi::INT => Value::Int(any.payload as i64),
        abi::BOOL => Value::Bool(any.payload != 0),
        abi::FLOAT => Value::Float(f64::from_bits(any.payload)),
        abi::DTYPE => {
            Value::DType(dlpack::dtype_from_dl(any.as_dtype()).map_err(|_| unsupported(any))?)
        }
        abi::DEVICE => {
            Value::Device(dlpack::device_from_dl(any.as_device()).map_err(|_| unsupported(any))?)
        }
        abi::SMALL_STR => Value::from(small_text(any)?),
        _ => return Err(unsupported(any)),
    })
}

/// Returns text stored inline.
pub(crate) fn small_text(any: &Any) -> Result<&str> {
    let length = any.small_len as usize;
    if length > 7 {
        return Err(malformed(&format!("a small text of {length} bytes, where 7 is the most")));
    }
    let bytes: *const u8 = (&raw const any.payload).cast();
    // SAFETY: the payload has eight bytes, and `length` is below that.
    text(unsafe { std::slice::from_raw_parts(bytes, length) })
}

fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| malformed("text that isn't UTF-8"))
}

/// Returns the text of a string object.
///
/// # Safety
/// `object` is a live string object of the library, for `'a`.
pub(crate) unsafe fn text_of<'a>(object: *const Header) -> Result<&'a str> {
    // SAFETY: a string object has this cell.
    unsafe { text(abi::cell::<ByteArray>(object).read().bytes()) }
}

/// Returns the numbers of a shape object.
///
/// # Safety
/// `object` is a live shape object of the library, for `'a`.
pub(crate) unsafe fn numbers_of<'a>(object: *const Header) -> &'a [i64] {
    // SAFETY: a shape object has this cell.
    unsafe {
        let cell = abi::cell::<ShapeCell>(object).read();
        match cell.data.is_null() || cell.size == 0 {
            true => &[],
            false => std::slice::from_raw_parts(cell.data, cell.size),
        }
    }
}

/// Returns the items of a list object.
///
/// # Safety
/// `object` is a live list object of the library that isn't changed for `'a`.
pub(crate) unsafe fn items_of<'a>(object: *const Header) -> Result<&'a [Any]> {
    // SAFETY: a list object has this cell.
    unsafe {
        let cell = abi::cell::<SeqCell>(object).read();
        match usize::try_from(cell.size) {
            Ok(0) => Ok(&[]),
            Ok(size) if !cell.data.is_null() => Ok(std::slice::from_raw_parts(cell.data, size)),
            _ => Err(malformed(&format!("a list object of {} items", cell.size))),
        }
    }
}

/// Converts an object that `held` keeps alive.
///
/// # Safety
/// As for [`copy`].
unsafe fn borrowed_at(any: &Any, held: &Object, depth: usize) -> Result<Value> {
    let object: *const Header = any.address();
    if held.type_index() != any.type_index {
        return Err(malformed(&format!(
            "an object of type index {} said to be of {}",
            held.type_index(),
            any.type_index
        )));
    }
    // SAFETY: each reader follows the check of the object's type.
    unsafe {
        match any.type_index {
            abi::TENSOR => tensor_of(held.clone(), false).map(Value::Tensor),
            abi::STR => text_of(object).map(Value::from),
            abi::SHAPE => {
                Ok(Value::List(numbers_of(object).iter().map(|n| Value::Int(*n)).collect()))
            }
            abi::ARRAY | abi::LIST if depth < DEPTH => {
                let items = items_of(object)?.iter();
                let runtime = held.runtime();
                let items = items.map(|item| copy_at(item, runtime, depth + 1));
                items.collect::<Result<_>>().map(Value::List)
            }
            abi::ARRAY | abi::LIST => Err(malformed(&format!("lists in lists beyond {DEPTH}"))),
            _ => Err(unsupported(any)),
        }
    }
}

/// Returns a tensor on a tensor object's memory, without a copy. The tensor owns the reference.
///
/// # Errors
/// As [`dlpack::from_dlpack_versioned`], for the object's description of itself.
///
/// # Safety
/// `object` is a tensor object of the library.
unsafe fn tensor_of(object: Object, read_only: bool) -> Result<Tensor> {
    let dl = object.cell::<DLTensor>();
    let handle = object.handle();
    let _moved = std::mem::ManuallyDrop::new(object);
    // SAFETY: the object isn't null; its reference moves to the owner, which keeps the cell and its
    // memory alive.
    unsafe {
        let owner = object::owner(NonNull::new_unchecked(handle), false);
        dlpack::view_dl_tensor(&*dl, owner, read_only)
    }
}
