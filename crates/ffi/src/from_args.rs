//! Arguments from a foreign caller, converted for an operator. Everything that can be checked is.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use keyfold_core::{DType, Device, Error, ErrorKind, Result};
use keyfold_dispatch::Value as _;
use keyfold_dispatch::schema::Type;
use keyfold_tensor::dlpack::{self, DLTensor};
use keyfold_tensor::{ExternalOps, ExternalOwner, Value, ValueRef};

use crate::abi::{self, Any, Header};
use crate::from_result;
use crate::object;
use crate::runtime::Runtime;

/// A converted argument.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "most are tensors, and a box costs more")]
pub enum ArgValue<'a> {
    /// A value that borrows from the caller.
    Ready(ValueRef<'a>),
    /// A view or a list, owned here.
    Kept(Value),
}

impl ArgValue<'_> {
    /// Borrows the value.
    #[inline]
    pub fn value(&self) -> ValueRef<'_> {
        match self {
            ArgValue::Ready(value) => *value,
            ArgValue::Kept(value) => value.as_ref(),
        }
    }
}

/// Counts the tensors that refer to the caller's borrowed `DLTensor` memory, so that the end of the
/// call finds those that are still alive.
#[derive(Debug, Default)]
pub struct BorrowTracker(Option<Arc<()>>);

static LENT: ExternalOps = ExternalOps { retain, release, adopt: None };

unsafe fn retain(tracker: *mut c_void) {
    // SAFETY: an owner made here holds the address of a live Arc.
    unsafe { Arc::increment_strong_count(tracker.cast_const().cast::<()>()) };
}

unsafe fn release(tracker: *mut c_void) {
    // SAFETY: as above; releases one count.
    unsafe { Arc::decrement_strong_count(tracker.cast_const().cast::<()>()) };
}

impl BorrowTracker {
    fn owner(&mut self) -> ExternalOwner {
        let held = self.0.get_or_insert_with(|| Arc::new(()));
        // SAFETY: an Arc's address isn't null; the owner holds a count of its own.
        unsafe {
            let address = Arc::into_raw(Arc::clone(held)).cast_mut().cast::<c_void>();
            ExternalOwner::owned(NonNull::new_unchecked(address), &LENT)
        }
    }

    /// Returns whether a tensor lies in borrowed memory.
    pub fn contains(&self, tensor: &keyfold_tensor::Tensor) -> bool {
        let owner = tensor.buffer().external_owner();
        match (&self.0, owner) {
            (Some(held), Some(owner)) => {
                std::ptr::eq(Arc::as_ptr(held), owner.object().as_ptr().cast_const().cast())
                    && std::ptr::eq(owner.ops(), &LENT)
            }
            _ => false,
        }
    }

    /// Returns the number of live references to borrowed memory.
    pub fn outstanding(&self) -> usize {
        self.0.as_ref().map_or(0, |held| Arc::strong_count(held) - 1)
    }
}

#[cold]
fn refused(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Binding, what)
}

/// Converts one argument for a schema's type; text is parsed where a dtype or a device is expected.
/// The operator checks all other types.
///
/// # Errors
/// [`ErrorKind::Binding`] for a value that keyfold has no type for, [`ErrorKind::Exchange`],
/// [`ErrorKind::DType`] or [`ErrorKind::Device`] for a tensor that can't be viewed.
///
/// # Safety
/// `any` is a value of the ABI, valid and unchanged for `'a`, whose payload has the type of its
/// type index. Objects are the library's. The caller's memory outlives all tensors made of a
/// `DLTensor*`.
pub unsafe fn from_arg<'a>(
    any: &'a Any,
    ty: &Type,
    runtime: Option<&'static Runtime>,
    tracker: &mut BorrowTracker,
) -> Result<ArgValue<'a>> {
    // SAFETY: the caller's contract.
    unsafe {
        Ok(ArgValue::Ready(match any.type_index {
            abi::NONE => ValueRef::None,
            abi::INT => ValueRef::Int(any.payload as i64),
            abi::BOOL => ValueRef::Bool(any.payload != 0),
            abi::FLOAT => ValueRef::Float(f64::from_bits(any.payload)),
            abi::DTYPE => ValueRef::DType(dlpack::dtype_from_dl(any.as_dtype())?),
            abi::DEVICE => ValueRef::Device(dlpack::device_from_dl(any.as_device())?),
            abi::DL_TENSOR => return view(any.address(), tracker.owner()),
            abi::RAW_STR => read_text(raw_text(any)?, ty)?,
            abi::SMALL_STR => read_text(from_result::small_text(any).map_err(as_argument)?, ty)?,
            _ if any.is_object() => match runtime {
                Some(runtime) => return read_object(any, ty, runtime),
                None => {
                    return Err(refused(format!(
                        "an object of type index {} can't be read without TVM FFI's library",
                        any.type_index
                    )));
                }
            },
            other => return Err(refused(format!("a value of type index {other} isn't supported"))),
        }))
    }
}

fn as_argument(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Return => refused(format!("{} isn't supported", error.message())),
        _ => error,
    }
}

unsafe fn raw_text<'a>(any: &Any) -> Result<&'a str> {
    let text: *mut c_char = any.address();
    if text.is_null() {
        return Err(refused("text whose address is null"));
    }
    // SAFETY: the caller's contract.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| refused("text that isn't UTF-8"))
}

/// Returns text, or the dtype or device that it names.
fn read_text<'a>(text: &'a str, ty: &Type) -> Result<ValueRef<'a>> {
    Ok(match ty.without_optional() {
        Type::ScalarType => ValueRef::DType(text.parse::<DType>()?),
        Type::Device => ValueRef::Device(text.parse::<Device>()?),
        _ => ValueRef::Str(text),
    })
}

unsafe fn view<'a>(dl: *const DLTensor, owner: ExternalOwner) -> Result<ArgValue<'a>> {
    if dl.is_null() {
        return Err(Error::new(ErrorKind::Exchange, "a DLTensor* that is null"));
    }
    if !dl.is_aligned() {
        return Err(Error::new(ErrorKind::Exchange, format!("a DLTensor* at {dl:p}, unaligned")));
    }
    // SAFETY: the caller's contract.
    let tensor = unsafe { dlpack::view_dl_tensor(&*dl, owner, false)? };
    Ok(ArgValue::Kept(Value::Tensor(tensor)))
}

unsafe fn read_object<'a>(
    any: &'a Any,
    ty: &Type,
    runtime: &'static Runtime,
) -> Result<ArgValue<'a>> {
    let object: *const Header = any.address();
    if object.is_null() || !object.is_aligned() {
        return Err(refused(format!("an object at the address {object:p}")));
    }
    // SAFETY: the caller's contract; each reader follows the check of the object's type.
    unsafe {
        let kind = (&raw const (*object).type_index).read();
        if kind != any.type_index {
            return Err(refused(format!(
                "an object of type index {kind} said to be of {}",
                any.type_index
            )));
        }
        match kind {
            abi::TENSOR => {
                let address = NonNull::new_unchecked(object.cast_mut().cast());
                view(abi::cell(object), object::owner(address, true))
            }
            abi::STR => {
                let text = from_result::text_of(object).map_err(as_argument)?;
                Ok(ArgValue::Ready(read_text(text, ty)?))
            }
            abi::SHAPE => Ok(ArgValue::Ready(ValueRef::Ints(from_result::numbers_of(object)))),
            _ => Ok(ArgValue::Kept(from_result::copy(any, runtime).map_err(as_argument)?)),
        }
    }
}
