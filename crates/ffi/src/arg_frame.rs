//! Arguments of a call, converted for a foreign function.

use std::marker::PhantomData;

use keyfold_core::{Device, Error, ErrorKind, Result};
use keyfold_dispatch::Value as _;
use keyfold_dispatch::schema::Type;
use keyfold_tensor::dlpack::{self, DLDevice, DLTensor};
use keyfold_tensor::{Tensor, Value, ValueRef};
use smallvec::SmallVec;

use crate::abi::{self, Any};
use crate::object::Object;
use crate::runtime::Runtime;
use crate::to_any::{self, to_any};

/// The arguments of one call and the data they point to. Up to eight values and six tensors are
/// stored inline, so that a call allocates nothing.
#[derive(Debug, Default)]
pub struct ArgFrame<'a> {
    values: SmallVec<[Any; 8]>,
    tensors: SmallVec<[DLTensor; 6]>,
    /// Zero-terminated texts, one after another.
    text: SmallVec<[u8; 64]>,
    /// Objects created for the call.
    objects: SmallVec<[Object; 2]>,
    /// Borrows the tensors' shapes, strides and elements.
    arguments: PhantomData<&'a Tensor>,
}

impl<'a> ArgFrame<'a> {
    /// Returns a frame without arguments.
    #[inline]
    pub fn new() -> Self {
        ArgFrame::default()
    }

    /// Adds a tensor as a borrowed `DLTensor*`: the tensor's own memory, shape and strides.
    ///
    /// # Errors
    /// As [`dlpack::foreign_address`].
    #[inline]
    pub fn push_view(&mut self, tensor: &'a Tensor) -> Result<()> {
        let (data, byte_offset, device) = match tensor.device() {
            Device::CPU => {
                let cpu = DLDevice { device_type: dlpack::DL_CPU, device_id: 0 };
                (tensor.exchange_ptr()?.cast(), 0, cpu)
            }
            _ => dlpack::foreign_address(tensor)?,
        };
        self.tensors.push(DLTensor {
            // DLPack requires null for a tensor without elements.
            data,
            device,
            ndim: tensor.ndim() as i32,
            dtype: dlpack::dtype_to_dl(tensor.dtype()),
            // `usize` and `isize` have the width of `i64` (asserted in `abi`), and sizes and
            // strides fit both. Kernels must not write to them.
            shape: tensor.shape().as_ptr().cast_mut().cast(),
            strides: tensor.strides().as_ptr().cast_mut().cast(),
            byte_offset,
        });
        // `set_pointers` sets the address, once the vectors no longer grow.
        self.values.push(Any::new(abi::DL_TENSOR, 0));
        Ok(())
    }

    /// Adds a tensor by its `DLTensor`, whose memory outlives the arguments.
    #[inline]
    pub fn push_described(&mut self, described: DLTensor) {
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

    /// Adds a value for an argument of type `ty`. Tensors become views, or objects if `as_objects`;
    /// lists need the library.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for text with a zero byte, [`ErrorKind::Binding`] for a value that
    /// can't be passed, and the errors of [`push_view`](Self::push_view) and
    /// [`push_object`](Self::push_object).
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
            plain => inline_value(plain, *ty.base() == Type::Float)?,
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
        self.push_owned(to_any::array(items, runtime)?);
        Ok(())
    }

    /// Sets the pointers and returns the values, valid while the frame is borrowed.
    #[inline]
    pub fn set_pointers(&mut self) -> &[Any] {
        let mut tensor = self.tensors.as_mut_ptr();
        let mut text = self.text.as_ptr();
        for any in &mut self.values {
            match any.type_index {
                abi::DL_TENSOR => {
                    *any = Any::pointer(abi::DL_TENSOR, tensor);
                    // Tensors are in the order of their values.
                    tensor = tensor.wrapping_add(1);
                }
                abi::RAW_STR => {
                    *any = Any::pointer(abi::RAW_STR, text);
                    // SAFETY: texts are in the order of their values, each zero-terminated.
                    let length = unsafe { libc::strlen(text.cast()) };
                    text = text.wrapping_add(length + 1);
                }
                _ => {}
            }
        }
        &self.values
    }

    /// Returns the index of the argument that is this object, if one is.
    pub fn argument_of(&self, object: *mut std::ffi::c_void) -> Option<usize> {
        self.values
            .iter()
            .position(|any| any.type_index == abi::TENSOR && std::ptr::eq(any.address(), object))
    }
}

/// Converts an item of a list to an owned value.
fn item_for(item: ValueRef<'_>, ty: &Type, runtime: &'static Runtime) -> Result<to_any::OwnedAny> {
    match item {
        // `float[]` accepts integers.
        ValueRef::Int(_) | ValueRef::UInt(_) if *ty.base() == Type::Float => {
            inline_value(item, true).map(to_any::OwnedAny::InPlace)
        }
        other => to_any(other, runtime),
    }
}

/// Returns a value that needs no memory outside its [`Any`].
///
/// # Errors
/// [`ErrorKind::Binding`] for anything else.
pub(crate) fn inline_value(value: ValueRef<'_>, wants_float: bool) -> Result<Any> {
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
