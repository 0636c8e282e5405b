//! Results of foreign functions, as values.

use std::ptr::NonNull;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_tensor::dlpack::{self, DLTensor};
use keyfold_tensor::{Tensor, Value};

use crate::abi::{self, Any, ByteArray, Header, SeqCell, ShapeCell};
use crate::object::{self, Object};
use crate::runtime::Runtime;

/// How deep lists may lie in lists: a list may hold itself.
const DEPTH: usize = 8;

/// The error for a value that isn't one of keyfold's: its kind is [`ErrorKind::Return`], and its
/// message names the value alone.
#[cold]
fn no_value(any: &Any) -> Error {
    Error::new(ErrorKind::Return, format!("a value of type index {}", any.type_index))
}

#[cold]
fn broken(what: &str) -> Error {
    Error::new(ErrorKind::Return, what.to_owned())
}

/// Takes a result over, with the reference that it holds. Without the library, objects aren't
/// touched: nothing says then that what looks like one is one.
///
/// # Errors
/// [`ErrorKind::Return`] for what is no value of keyfold's, with a message that names it;
/// [`ErrorKind::DType`], [`ErrorKind::Device`] or [`ErrorKind::Exchange`] for a tensor object that
/// can't be viewed.
///
/// # Safety
/// A function of the ABI stored `any` and returned 0; with a `runtime`, objects are that library's,
/// and the caller gives up the reference.
pub unsafe fn take(any: Any, runtime: Option<&'static Runtime>) -> Result<Value> {
    if !any.is_object() {
        return in_place(&any);
    }
    let Some(runtime) = runtime else { return Err(no_value(&any)) };
    // SAFETY: the caller's promise.
    let Some(held) = (unsafe { Object::owned(any.address(), runtime) }) else {
        return Err(broken("an object whose address is null"));
    };
    // SAFETY: as above; `held` keeps it meanwhile.
    unsafe { borrowed_at(&any, &held, 0) }
}

/// The value of what somebody else keeps for the time of this call: objects that the result needs
/// get a reference more.
///
/// # Errors
/// As [`take`].
///
/// # Safety
/// `any` is a value of the ABI that is good meanwhile; its objects are the library's.
pub unsafe fn copy(any: &Any, runtime: &'static Runtime) -> Result<Value> {
    // SAFETY: as for the caller.
    unsafe { copy_at(any, runtime, 0) }
}

unsafe fn copy_at(any: &Any, runtime: &'static Runtime, depth: usize) -> Result<Value> {
    if !any.is_object() {
        return in_place(any);
    }
    // SAFETY: as for the caller.
    let Some(held) = (unsafe { Object::shared(any.address(), runtime) }) else {
        return Err(broken("an object whose address is null"));
    };
    // SAFETY: as for the caller; `held` keeps it meanwhile.
    unsafe { borrowed_at(any, &held, depth) }
}

/// A value that is held in place.
fn in_place(any: &Any) -> Result<Value> {
    Ok(match any.type_index {
        abi::NONE => Value::None,
        abi::INT => Value::Int(any.payload as i64),
        abi::BOOL => Value::Bool(any.payload != 0),
        abi::FLOAT => Value::Float(f64::from_bits(any.payload)),
        abi::DTYPE => {
            Value::DType(dlpack::dtype_from_dl(any.as_dtype()).map_err(|_| no_value(any))?)
        }
        abi::DEVICE => {
            Value::Device(dlpack::device_from_dl(any.as_device()).map_err(|_| no_value(any))?)
        }
        abi::SMALL_STR => Value::from(small_text(any)?),
        _ => return Err(no_value(any)),
    })
}

/// The text that lies in a value.
pub(crate) fn small_text(any: &Any) -> Result<&str> {
    let length = any.small_len as usize;
    if length > 7 {
        return Err(broken(&format!("a small text of {length} bytes, where 7 is the most")));
    }
    let bytes: *const u8 = (&raw const any.payload).cast();
    // SAFETY: eight bytes, of which these are the first.
    text(unsafe { std::slice::from_raw_parts(bytes, length) })
}

fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| broken("text that isn't UTF-8"))
}

/// The text of a text object.
///
/// # Safety
/// `object` is a live text object of the library, for `'a`.
pub(crate) unsafe fn text_of<'a>(object: *const Header) -> Result<&'a str> {
    // SAFETY: such an object has this cell.
    unsafe { text(abi::cell::<ByteArray>(object).read().bytes()) }
}

/// The numbers of a shape object.
///
/// # Safety
/// `object` is a live shape object of the library, for `'a`.
pub(crate) unsafe fn numbers_of<'a>(object: *const Header) -> &'a [i64] {
    // SAFETY: such an object has this cell.
    unsafe {
        let cell = abi::cell::<ShapeCell>(object).read();
        match cell.data.is_null() || cell.size == 0 {
            true => &[],
            false => std::slice::from_raw_parts(cell.data, cell.size),
        }
    }
}

/// The items of a list object.
///
/// # Safety
/// `object` is a live list object of the library, which nobody changes for `'a`.
pub(crate) unsafe fn items_of<'a>(object: *const Header) -> Result<&'a [Any]> {
    // SAFETY: such an object has this cell.
    unsafe {
        let cell = abi::cell::<SeqCell>(object).read();
        match usize::try_from(cell.size) {
            Ok(0) => Ok(&[]),
            Ok(size) if !cell.data.is_null() => Ok(std::slice::from_raw_parts(cell.data, size)),
            _ => Err(broken(&format!("a list object of {} items", cell.size))),
        }
    }
}

/// The value of an object that `held` keeps.
///
/// # Safety
/// As for [`copy`].
unsafe fn borrowed_at(any: &Any, held: &Object, depth: usize) -> Result<Value> {
    let object: *const Header = any.address();
    if held.type_index() != any.type_index {
        return Err(broken(&format!(
            "an object of type index {} said to be of {}",
            held.type_index(),
            any.type_index
        )));
    }
    // SAFETY: each reader follows the check of what the object is.
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
            abi::ARRAY | abi::LIST => Err(broken(&format!("lists in lists beyond {DEPTH}"))),
            _ => Err(no_value(any)),
        }
    }
}

/// A tensor on a tensor object's memory, which holds the reference; without a copy.
///
/// # Errors
/// As [`dlpack::from_dlpack_versioned`], for what the object says of itself.
///
/// # Safety
/// `object` is a tensor object of the library.
unsafe fn tensor_of(object: Object, read_only: bool) -> Result<Tensor> {
    let dl = object.cell::<DLTensor>();
    let handle = object.handle();
    let _moved = std::mem::ManuallyDrop::new(object);
    // SAFETY: the object isn't null, and its reference goes to the owner, which keeps the cell and
    // what it describes.
    unsafe {
        let owner = object::owner(NonNull::new_unchecked(handle), false);
        dlpack::view_dl_tensor(&*dl, owner, read_only)
    }
}
