//! Arguments of the operators that a kernel calls.

use std::ffi::CString;
use std::marker::PhantomData;

use crate::abi::{self, Any, IntSlice};
use crate::error::{Error, Result};
use crate::owned::{OwnedTensor, OwnedValue};
use crate::tensor::TensorView;
use crate::types::{DType, Device};

/// An argument of [`Host::call`](crate::Host::call).
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// No value.
    None,
    /// True or false.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// Text, without a zero byte.
    Str(&'a str),
    /// A dtype.
    DType(DType),
    /// A device.
    Device(Device),
    /// A list of integers.
    Ints(&'a [i64]),
    /// A tensor, or any value that is passed on unchanged.
    Passed(Passed<'a>),
}

/// A borrowed value of the host.
#[derive(Clone, Copy, Debug)]
pub struct Passed<'a> {
    any: Any,
    owner: PhantomData<&'a ()>,
}

impl<'a> Value<'a> {
    /// # Safety
    /// `any` is a value of the host that lives for `'a`.
    pub(crate) unsafe fn from_any(any: Any) -> Self {
        Value::Passed(Passed { any, owner: PhantomData })
    }
}

/// Arguments in the ABI's form and the data they point to.
pub(crate) struct Packed {
    pub(crate) values: Vec<Any>,
    _texts: Vec<CString>,
    _lists: Box<[IntSlice]>,
}

impl Packed {
    /// # Errors
    /// Text with a zero byte in it.
    pub(crate) fn new(args: &[Value<'_>]) -> Result<Packed> {
        let mut texts = Vec::new();
        let lists: Box<[IntSlice]> = args
            .iter()
            .filter_map(|arg| match arg {
                Value::Ints(items) => Some(IntSlice { data: items.as_ptr(), len: items.len() }),
                _ => None,
            })
            .collect();
        let mut next_list = lists.iter();
        let mut values = Vec::with_capacity(args.len());
        for arg in args {
            values.push(match *arg {
                Value::None => Any::new(abi::NONE, 0),
                Value::Bool(flag) => Any::new(abi::BOOL, u64::from(flag)),
                Value::Int(number) => Any::new(abi::INT, number as u64),
                Value::Float(number) => Any::new(abi::FLOAT, number.to_bits()),
                Value::Str(text) => {
                    let text = CString::new(text)
                        .map_err(|_| Error::value("text with a zero byte can't be passed"))?;
                    let any = Any::new(abi::TEXT, text.as_ptr() as u64);
                    texts.push(text);
                    any
                }
                Value::DType(DType(dl)) => {
                    let bits = u64::from(dl.bits) << 8 | u64::from(dl.lanes) << 16;
                    Any::new(abi::DTYPE, u64::from(dl.code) | bits)
                }
                Value::Device(Device(dl)) => {
                    let index = (dl.device_id as u64) << 32;
                    Any::new(abi::DEVICE, u64::from(dl.device_type as u32) | index)
                }
                Value::Ints(_) => {
                    let list = next_list.next().map_or(std::ptr::null(), std::ptr::from_ref);
                    Any::new(abi::INTS, list as u64)
                }
                Value::Passed(passed) => passed.any,
            });
        }
        Ok(Packed { values, _texts: texts, _lists: lists })
    }
}

macro_rules! from {
    // One line per source type.
    ($($type:ty, $given:ident => $made:expr;)*) => {$(
        impl<'a> From<$type> for Value<'a> {
            fn from($given: $type) -> Self {
                $made
            }
        }
    )*};
}

from! {
    bool, flag => Value::Bool(flag);
    i64, number => Value::Int(number);
    f64, number => Value::Float(number);
    &'a str, text => Value::Str(text);
    DType, dtype => Value::DType(dtype);
    Device, device => Value::Device(device);
    &'a [i64], items => Value::Ints(items);
    // SAFETY: the host's tensor, which lives as long as the view.
    TensorView<'a>, view => unsafe {
        Value::from_any(Any::new(abi::TENSOR, std::ptr::from_ref(view.dl()) as u64))
    };
    &'a OwnedTensor, tensor => tensor.pass();
    &'a OwnedValue, value => value.pass();
}
