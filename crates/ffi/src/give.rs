//! Values that foreign code gets to keep: results of exported operators, items of lists.

use keyfold_core::Result;
use keyfold_tensor::ValueRef;
use smallvec::SmallVec;

use crate::abi::{self, Any, ByteArray, FunctionCell};
use crate::guard;
use crate::object::Object;
use crate::pass::plain_value;
use crate::runtime::Runtime;

/// A value with the reference that it holds, if it is an object.
#[derive(Debug)]
pub enum Given {
    /// A value in place.
    Plain(Any),
    /// An object.
    Object(Object),
}

impl Given {
    /// The value, borrowed.
    pub fn any(&self) -> Any {
        match self {
            Given::Plain(any) => *any,
            Given::Object(object) => object.any(),
        }
    }

    /// The value with its reference.
    pub fn into_any(self) -> Any {
        match self {
            Given::Plain(any) => any,
            Given::Object(object) => object.into_any(),
        }
    }
}

/// A value for foreign code to keep: tensors become tensor objects that share their memory, lists
/// arrays, text strings.
///
/// # Errors
/// For what the ABI can't hold: complex numbers, whole numbers beyond 64 bits, meta tensors.
pub fn give(value: ValueRef<'_>, runtime: &'static Runtime) -> Result<Given> {
    match value {
        ValueRef::Tensor(_) | ValueRef::Foreign(_) => {
            Object::of_tensor(value.tensor()?, runtime).map(Given::Object)
        }
        ValueRef::Str(text) => string(text, runtime),
        list if list.list_len().is_some() => {
            let items = list.items().map(|item| give(item, runtime));
            array(items, runtime).map(Given::Object)
        }
        plain => plain_value(plain, false).map(Given::Plain),
    }
}

fn string(text: &str, runtime: &'static Runtime) -> Result<Given> {
    let mut any = Any::NONE;
    // SAFETY: the text lives meanwhile; the library stores a value that is ours.
    runtime.done(unsafe { (runtime.string)(&ByteArray::of(text), &raw mut any) })?;
    // SAFETY: as above.
    Ok(match any.is_object().then(|| unsafe { Object::owned(any.address(), runtime) }).flatten() {
        Some(object) => Given::Object(object),
        None => Given::Plain(any),
    })
}

/// A list object of these items.
///
/// # Errors
/// The first item's, and what the library raises.
pub(crate) fn array(
    items: impl Iterator<Item = Result<Given>>,
    runtime: &'static Runtime,
) -> Result<Object> {
    let items: SmallVec<[Given; 8]> = items.collect::<Result<_>>()?;
    let views: SmallVec<[Any; 8]> = items.iter().map(Given::any).collect();
    let made = call(runtime.array()?, &views)?;
    match made {
        Given::Object(list) if list.type_index() == abi::ARRAY => Ok(list),
        other => Err(keyfold_core::Error::new(
            keyfold_core::ErrorKind::Library,
            format!("TVM FFI's ffi.Array made a value of type index {}", other.any().type_index),
        )),
    }
}

/// Calls a function object of the library.
///
/// # Errors
/// What it raises.
fn call(function: &Object, args: &[Any]) -> Result<Given> {
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
    // SAFETY: the library's own function, with values that the caller holds.
    let code = unsafe { guard::call(safe_call, function.handle(), args, &mut result) };
    match code {
        Ok(code) => runtime.done(code)?,
        Err(text) => {
            return Err(keyfold_core::Error::new(keyfold_core::ErrorKind::KernelFailed, text));
        }
    }
    // SAFETY: a result is the caller's.
    let object = result.is_object().then(|| unsafe { Object::owned(result.address(), runtime) });
    Ok(match object.flatten() {
        Some(object) => Given::Object(object),
        None => Given::Plain(result),
    })
}
