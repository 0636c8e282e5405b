//! Arguments that a foreign caller passes to an operator: read for the time of the call, and nothing
//! in them believed that can be checked.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use keyfold_core::{DType, Device, Error, ErrorKind, Result};
use keyfold_dispatch::Value as _;
use keyfold_dispatch::schema::Type;
use keyfold_tensor::dlpack::{self, DLTensor};
use keyfold_tensor::{ExternalOps, ExternalOwner, Value, ValueRef};

use crate::abi::{self, Any, Header};
use crate::object;
use crate::runtime::Runtime;
use crate::take;

/// An argument that was read.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "most are tensors, and a box costs more")]
pub enum Read<'a> {
    /// A value that needs no keeping.
    Ready(ValueRef<'a>),
    /// A view or a list, kept here.
    Kept(Value),
}

impl Read<'_> {
    /// The value.
    #[inline]
    pub fn value(&self) -> ValueRef<'_> {
        match self {
            Read::Ready(value) => *value,
            Read::Kept(value) => value.as_ref(),
        }
    }
}

/// Lends the memory of borrowed `DLTensor`s, which is the caller's again when the call ends: it
/// counts who still holds on to it then.
#[derive(Debug, Default)]
pub struct Lender(Option<Arc<()>>);

static LENT: ExternalOps = ExternalOps { retain, release, adopt: None };

unsafe fn retain(lender: *mut c_void) {
    // SAFETY: an owner of ours has the address of a live Arc.
    unsafe { Arc::increment_strong_count(lender.cast_const().cast::<()>()) };
}

unsafe fn release(lender: *mut c_void) {
    // SAFETY: as above; the count goes back by one.
    unsafe { Arc::decrement_strong_count(lender.cast_const().cast::<()>()) };
}

impl Lender {
    fn owner(&mut self) -> ExternalOwner {
        let held = self.0.get_or_insert_with(|| Arc::new(()));
        // SAFETY: an Arc's address isn't null; the share that the owner holds is one of its own.
        unsafe {
            let address = Arc::into_raw(Arc::clone(held)).cast_mut().cast::<c_void>();
            ExternalOwner::owned(NonNull::new_unchecked(address), &LENT)
        }
    }

    /// Whether a tensor lies in memory that was lent.
    pub fn lent(&self, tensor: &keyfold_tensor::Tensor) -> bool {
        let owner = tensor.buffer().external_owner();
        match (&self.0, owner) {
            (Some(held), Some(owner)) => {
                std::ptr::eq(Arc::as_ptr(held), owner.object().as_ptr().cast_const().cast())
                    && std::ptr::eq(owner.ops(), &LENT)
            }
            _ => false,
        }
    }

    /// How many still hold on to what was lent.
    pub fn outstanding(&self) -> usize {
        self.0.as_ref().map_or(0, |held| Arc::strong_count(held) - 1)
    }
}

#[cold]
fn refused(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Binding, what)
}

/// Reads one argument, for a schema's type: text stands for a dtype or a device where those are
/// wanted. Whether the value fits the type otherwise is the operator's to check.
///
/// # Errors
/// [`ErrorKind::Binding`] for what is no value of keyfold's, [`ErrorKind::Exchange`],
/// [`ErrorKind::DType`] or [`ErrorKind::Device`] for a tensor that can't be viewed.
///
/// # Safety
/// `any` is a value of the ABI that is good for `'a`: what it points to is what its type index says,
/// and stays. Objects are the library's. Tensors read from a `DLTensor*` are dropped before the
/// caller's memory goes.
pub unsafe fn read<'a>(
    any: &'a Any,
    ty: &Type,
    runtime: Option<&'static Runtime>,
    lender: &mut Lender,
) -> Result<Read<'a>> {
    // SAFETY: as for the caller.
    unsafe {
        Ok(Read::Ready(match any.type_index {
            abi::NONE => ValueRef::None,
            abi::INT => ValueRef::Int(any.payload as i64),
            abi::BOOL => ValueRef::Bool(any.payload != 0),
            abi::FLOAT => ValueRef::Float(f64::from_bits(any.payload)),
            abi::DTYPE => ValueRef::DType(dlpack::dtype_from_dl(any.as_dtype())?),
            abi::DEVICE => ValueRef::Device(dlpack::device_from_dl(any.as_device())?),
            abi::DL_TENSOR => return view(any.address(), lender.owner()),
            abi::RAW_STR => read_text(raw_text(any)?, ty)?,
            abi::SMALL_STR => read_text(take::small_text(any).map_err(as_argument)?, ty)?,
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
    // SAFETY: as for the caller.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| refused("text that isn't UTF-8"))
}

/// Text, or what it names.
fn read_text<'a>(text: &'a str, ty: &Type) -> Result<ValueRef<'a>> {
    Ok(match ty.without_optional() {
        Type::ScalarType => ValueRef::DType(text.parse::<DType>()?),
        Type::Device => ValueRef::Device(text.parse::<Device>()?),
        _ => ValueRef::Str(text),
    })
}

unsafe fn view<'a>(dl: *const DLTensor, owner: ExternalOwner) -> Result<Read<'a>> {
    if dl.is_null() {
        return Err(Error::new(ErrorKind::Exchange, "a DLTensor* that is null"));
    }
    if !dl.is_aligned() {
        return Err(Error::new(ErrorKind::Exchange, format!("a DLTensor* at {dl:p}, unaligned")));
    }
    // SAFETY: as for the caller.
    let tensor = unsafe { dlpack::view_dl_tensor(&*dl, owner, false)? };
    Ok(Read::Kept(Value::Tensor(tensor)))
}

unsafe fn read_object<'a>(any: &'a Any, ty: &Type, runtime: &'static Runtime) -> Result<Read<'a>> {
    let object: *const Header = any.address();
    if object.is_null() || !object.is_aligned() {
        return Err(refused(format!("an object at the address {object:p}")));
    }
    // SAFETY: as for the caller; each reader follows the check of what the object is.
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
                let text = take::text_of(object).map_err(as_argument)?;
                Ok(Read::Ready(read_text(text, ty)?))
            }
            abi::SHAPE => Ok(Read::Ready(ValueRef::Ints(take::numbers_of(object)))),
            _ => Ok(Read::Kept(take::copy(any, runtime).map_err(as_argument)?)),
        }
    }
}
