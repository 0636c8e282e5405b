//! Values of a call, as a foreign function gets them.

use std::marker::PhantomData;

use keyfold_core::{Device, Error, ErrorKind, Result};
use keyfold_dispatch::Value as _;
use keyfold_dispatch::schema::Type;
use keyfold_tensor::dlpack::{self, DLDevice, DLTensor};
use keyfold_tensor::{Tensor, Value, ValueRef};
use smallvec::SmallVec;

use crate::abi::{self, Any};
use crate::give;
use crate::object::Object;
use crate::runtime::Runtime;

/// The arguments of one call, and what they point to. Up to six tensors and eight values lie in it,
/// so that a call allocates nothing.
#[derive(Debug, Default)]
pub struct Frame<'a> {
    values: SmallVec<[Any; 8]>,
    tensors: SmallVec<[DLTensor; 6]>,
    /// Texts one after the other, each ended by a zero byte.
    text: SmallVec<[u8; 64]>,
    /// Objects made for the call.
    objects: SmallVec<[Object; 2]>,
    /// Where shapes, strides and elements lie.
    arguments: PhantomData<&'a Tensor>,
}

impl<'a> Frame<'a> {
    /// No arguments yet.
    #[inline]
    pub fn new() -> Self {
        Frame::default()
    }

    /// Adds a tensor as a borrowed `DLTensor*`: the tensor's own memory, shape and strides.
    ///
    /// # Errors
    /// For a device without a number in DLPack.
    #[inline]
    pub fn push_view(&mut self, tensor: &'a Tensor) -> Result<()> {
        self.tensors.push(DLTensor {
            // The standard wants null where there are no elements.
            data: tensor.exchange_ptr()?.cast(),
            device: match tensor.device() {
                Device::CPU => DLDevice { device_type: dlpack::DL_CPU, device_id: 0 },
                other => dlpack::device_to_dl(other)?,
            },
            ndim: tensor.ndim() as i32,
            dtype: dlpack::dtype_to_dl(tensor.dtype()),
            // `usize` and `isize` are as wide as `i64` (asserted in `abi`), and sizes and strides
            // fit both. A kernel must not write to them.
            shape: tensor.shape().as_ptr().cast_mut().cast(),
            strides: tensor.strides().as_ptr().cast_mut().cast(),
            byte_offset: 0,
        });
        // The address follows when nothing moves any more.
        self.values.push(Any::new(abi::DL_TENSOR, 0));
        Ok(())
    }

    /// Adds an array that is described already, and lives as long as the arguments.
    #[inline]
    pub fn push_lent(&mut self, described: DLTensor) {
        self.tensors.push(described);
        self.values.push(Any::new(abi::DL_TENSOR, 0));
    }

    /// Adds a tensor as an object that shares its memory.
    ///
    /// # Errors
    /// As [`Object::of_tensor`].
    pub fn push_object(&mut self, tensor: &Tensor, runtime: &'static Runtime) -> Result<()> {
        self.push_owned(Object::of_tensor(tensor, runtime)?);
        Ok(())
    }

    fn push_owned(&mut self, object: Object) {
        self.values.push(object.any());
        self.objects.push(object);
    }

    /// Adds a value for an argument of that type. Tensors become views, or objects where
    /// `as_objects`; lists need the library.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for text with a zero byte, [`ErrorKind::Binding`] for what can't be
    /// passed, and as the other functions here.
    #[inline]
    pub fn push(
        &mut self,
        value: ValueRef<'a>,
        ty: &Type,
        runtime: Option<&'static Runtime>,
        as_objects: bool,
    ) -> Result<()> {
        let any = match value {
            ValueRef::Tensor(_) | ValueRef::Foreign(_) => {
                let tensor = value.tensor()?;
                return match runtime {
                    Some(runtime) if as_objects => self.push_object(tensor, runtime),
                    _ => self.push_view(tensor),
                };
            }
            ValueRef::Str(text) => return self.push_text(text),
            list if list.list_len().is_some() => return self.push_list(list, ty, runtime),
            plain => plain_value(plain, *ty.base() == Type::Float)?,
        };
        self.values.push(any);
        Ok(())
    }

    fn push_text(&mut self, text: &str) -> Result<()> {
        if text.contains('\0') {
            let message = "text with a zero byte in it can't be passed to C";
            return Err(Error::new(ErrorKind::Value, message));
        }
        self.text.extend_from_slice(text.as_bytes());
        self.text.push(0);
        self.values.push(Any::new(abi::RAW_STR, 0));
        Ok(())
    }

    fn push_list(
        &mut self,
        list: ValueRef<'_>,
        ty: &Type,
        runtime: Option<&'static Runtime>,
    ) -> Result<()> {
        let runtime = runtime.ok_or_else(|| {
            Error::new(
                ErrorKind::Binding,
                format!("{} can't be passed without TVM FFI's library", Value::describe(list)),
            )
        })?;
        let items = list.items().map(|item| item_for(item, ty, runtime));
        self.push_owned(give::array(items, runtime)?);
        Ok(())
    }

    /// The values, ready to be passed: good while the frame is borrowed.
    #[inline]
    pub fn ready(&mut self) -> &[Any] {
        let mut tensor = self.tensors.as_mut_ptr();
        let mut text = self.text.as_ptr();
        for any in &mut self.values {
            match any.type_index {
                abi::DL_TENSOR => {
                    *any = Any::pointer(abi::DL_TENSOR, tensor);
                    // Each such value has its tensor, in order.
                    tensor = tensor.wrapping_add(1);
                }
                abi::RAW_STR => {
                    *any = Any::pointer(abi::RAW_STR, text);
                    // SAFETY: each such value has its text, in order, ended by a zero byte.
                    let length = unsafe { libc::strlen(text.cast()) };
                    text = text.wrapping_add(length + 1);
                }
                _ => {}
            }
        }
        &self.values
    }

    /// The number of the argument that is this very object, if one is.
    pub fn argument_of(&self, object: *mut std::ffi::c_void) -> Option<usize> {
        self.values
            .iter()
            .position(|any| any.type_index == abi::TENSOR && std::ptr::eq(any.address(), object))
    }
}

/// An item of a list, owned.
fn item_for(item: ValueRef<'_>, ty: &Type, runtime: &'static Runtime) -> Result<give::Given> {
    match item {
        // `float[]` may be given whole numbers.
        ValueRef::Int(_) | ValueRef::UInt(_) if *ty.base() == Type::Float => {
            plain_value(item, true).map(give::Given::Plain)
        }
        other => give::give(other, runtime),
    }
}

/// A value that is held in place.
///
/// # Errors
/// [`ErrorKind::Binding`] for anything else.
pub(crate) fn plain_value(value: ValueRef<'_>, wants_float: bool) -> Result<Any> {
    Ok(match value {
        ValueRef::None => Any::NONE,
        ValueRef::Bool(flag) => Any::bool(flag),
        ValueRef::Int(number) if wants_float => Any::float(number as f64),
        ValueRef::Int(number) => Any::int(number),
        ValueRef::UInt(number) if wants_float => Any::float(number as f64),
        ValueRef::Float(number) => Any::float(number),
        ValueRef::DType(dtype) => Any::dtype(dtype),
        ValueRef::Device(device) => Any::device(device)?,
        other => {
            return Err(Error::new(
                ErrorKind::Binding,
                format!("{} can't be passed to C", Value::describe(other)),
            ));
        }
    })
}
