//! Values converted for foreign code, which owns them: results of exported operators, items of
//! lists.

use keyfold_core::Result;
use keyfold_tensor::ValueRef;
use smallvec::SmallVec;

use crate::abi::{self, Any, ByteArray, FunctionCell};
use crate::arg_frame::inline_value;
use crate::guard;
use crate::object::Object;
use crate::runtime::Runtime;

/// A value of the ABI that owns its reference, if it is an object.
#[derive(Debug)]
pub enum OwnedAny {
    /// A value that isn't an object.
    InPlace(Any),
    /// An object.
    Object(Object),
}

impl OwnedAny {
    /// Returns the value, borrowed.
    pub fn any(&self) -> Any {
        match self {
            OwnedAny::InPlace(any) => *any,
            OwnedAny::Object(object) => object.any(),
        }
    }

    /// Returns the value and gives up its reference.
    pub fn into_any(self) -> Any {
        match self {
            OwnedAny::InPlace(any) => any,
            OwnedAny::Object(object) => object.into_any(),
        }
    }
}

/// Converts a value: tensors become tensor objects that share their memory, lists arrays, text
/// strings.
///
/// # Errors
/// For values that the ABI can't represent: complex numbers, integers beyond 64 bits, meta tensors.
pub fn to_any(value: ValueRef<'_>, runtime: &'static Runtime) -> Result<OwnedAny> {
    match value {
        ValueRef::Tensor(_) | ValueRef::Foreign(_) => {
            Object::of_tensor(value.tensor()?, runtime).map(OwnedAny::Object)
        }
        ValueRef::Str(text) => string(text, runtime),
        list if list.list_len().is_some() => {
            let items = list.items().map(|item| to_any(item, runtime));
            array(items, runtime).map(OwnedAny::Object)
        }
        plain => inline_value(plain, false).map(OwnedAny::InPlace),
    }
}

fn string(text: &str, runtime: &'static Runtime) -> Result<OwnedAny> {
    let mut any = Any::NONE;
    // SAFETY: the text is alive; the library stores a value that is owned here.
    runtime.check(unsafe { (runtime.string)(&ByteArray::of(text), &raw mut any) })?;
    // SAFETY: as above.
    Ok(match any.is_object().then(|| unsafe { Object::owned(any.address(), runtime) }).flatten() {
        Some(object) => OwnedAny::Object(object),
        None => OwnedAny::InPlace(any),
    })
}

/// Returns a list object of these items.
///
/// # Errors
/// An error of an item, or of the library.
pub(crate) fn array(
    items: impl Iterator<Item = Result<OwnedAny>>,
    runtime: &'static Runtime,
) -> Result<Object> {
    let items: SmallVec<[OwnedAny; 8]> = items.collect::<Result<_>>()?;
    let views: SmallVec<[Any; 8]> = items.iter().map(OwnedAny::any).collect();
    let made = call(runtime.array()?, &views)?;
    match made {
        OwnedAny::Object(list) if list.type_index() == abi::ARRAY => Ok(list),
        other => Err(keyfold_core::Error::new(
            keyfold_core::ErrorKind::Library,
            format!("TVM FFI's ffi.Array made a value of type index {}", other.any().type_index),
        )),
    }
}

/// Calls a function object of the library.
///
/// # Errors
/// The errors that the function raises.
fn call(function: &Object, args: &[Any]) -> Result<OwnedAny> {
    let runtime = function.runtime();
    // SAFETY: a function object has this cell.
    let cell = unsafe { function.cell::<FunctionCell>().read() };
    let Some(safe_call) = cell.safe_call else {
        return Err(keyfold_core::Error::new(
            keyfold_core::ErrorKind::Library,
            "a function object of TVM FFI has no function",
        ));
    };
    let mut result = Any::NONE;
    // SAFETY: the library's own function, with values that the caller keeps alive.
    let code = unsafe { guard::call(safe_call, function.handle(), args, &mut result) };
    match code {
        Ok(code) => runtime.check(code)?,
        Err(text) => {
            return Err(keyfold_core::Error::new(keyfold_core::ErrorKind::KernelFailed, text));
        }
    }
    // SAFETY: the caller owns a result.
    let object = result.is_object().then(|| unsafe { Object::owned(result.address(), runtime) });
    Ok(match object.flatten() {
        Some(object) => OwnedAny::Object(object),
        None => OwnedAny::InPlace(result),
    })
}
