//! A kernel's arguments.

use std::cell::Cell;
use std::ffi::CStr;

use crate::abi::{self, Any, CallFrame, DLDataType, DLDevice, DLTensor, IntSlice};
use crate::error::{Error, Result};
use crate::tensor::{Peers, TensorMut, TensorView};
use crate::types::{DType, Device};
use crate::value::Value;

/// The arguments of one call: the schema's in their order, defaults filled in, then the outputs.
pub struct Args<'a> {
    peers: Peers<'a>,
    /// Which outputs were taken, up to 64 of them.
    taken: Cell<u64>,
}

/// Outputs and written arguments that one kernel can have.
const WRITTEN: usize = 64;

impl<'a> Args<'a> {
    /// # Safety
    /// A host's frame and the values of its call, alive for `'a`.
    pub(crate) unsafe fn new(frame: &'a CallFrame, values: *const Any, count: i32) -> Self {
        let (values, flags): (&[Any], &[u8]) = if count <= 0 {
            (&[], &[])
        } else {
            // SAFETY: by the contract.
            unsafe {
                (
                    std::slice::from_raw_parts(values, count as usize),
                    std::slice::from_raw_parts(frame.flags, count as usize),
                )
            }
        };
        let inputs = frame.inputs as usize;
        Args { peers: Peers { values, flags, inputs }, taken: Cell::new(0) }
    }

    /// How many arguments the schema has; outputs aren't counted.
    pub fn len(&self) -> usize {
        self.peers.inputs
    }

    /// Whether the schema has no arguments.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many tensors the kernel is given to fill.
    pub fn outputs(&self) -> usize {
        self.peers.values.len() - self.len()
    }

    fn get(&self, at: usize) -> Result<Any> {
        self.peers.values[..self.len()]
            .get(at)
            .copied()
            .ok_or_else(|| Error::binding(format!("argument {at} of {} was asked for", self.len())))
    }

    /// Whether an optional argument has no value.
    ///
    /// # Errors
    /// No such argument.
    pub fn is_none(&self, at: usize) -> Result<bool> {
        Ok(self.get(at)?.type_index == abi::NONE)
    }

    fn optional<T>(&self, at: usize, read: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        if self.is_none(at)? { Ok(None) } else { read().map(Some) }
    }

    /// A tensor.
    ///
    /// # Errors
    /// Another kind of value; an argument that the kernel writes, which [`written`](Self::written)
    /// gives.
    pub fn tensor(&self, at: usize) -> Result<TensorView<'a>> {
        let any = self.get(at)?;
        if any.type_index != abi::TENSOR {
            return Err(wrong(at, any, "a tensor"));
        }
        if self.peers.is_written(at) {
            return Err(Error::binding(format!(
                "argument {at} is one that the kernel writes: take it with written()"
            )));
        }
        // SAFETY: a tensor of the call.
        Ok(TensorView::new(unsafe { &*(any.payload as *const DLTensor) }, at, self.peers))
    }

    /// A tensor that may be absent.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor).
    pub fn optional_tensor(&self, at: usize) -> Result<Option<TensorView<'a>>> {
        self.optional(at, || self.tensor(at))
    }

    /// A tensor that the schema marks as written, `Tensor(a!)`. Given once.
    ///
    /// # Errors
    /// Another kind of value, an argument without the mark, one that was taken before.
    pub fn written(&self, at: usize) -> Result<TensorMut<'a>> {
        let any = self.get(at)?;
        if any.type_index != abi::TENSOR {
            return Err(wrong(at, any, "a tensor"));
        }
        if !self.peers.is_written(at) {
            return Err(Error::binding(format!(
                "argument {at} isn't one that the kernel may write: the schema has to mark it, \
                 Tensor(a!)"
            )));
        }
        self.take(at)
    }

    /// An output to fill, counted from 0: allocated by the host, row-major and uninitialised. Given
    /// once.
    ///
    /// # Errors
    /// No such output (an operator that doesn't return tensors has none), one taken before.
    pub fn output(&self, number: usize) -> Result<TensorMut<'a>> {
        if number >= self.outputs() {
            return Err(Error::binding(format!(
                "output {number} of {} was asked for",
                self.outputs()
            )));
        }
        self.take(self.len() + number)
    }

    fn take(&self, at: usize) -> Result<TensorMut<'a>> {
        let bit = 1_u64.checked_shl(at as u32).filter(|_| at < WRITTEN);
        let Some(bit) = bit.filter(|bit| self.taken.get() & bit == 0) else {
            return Err(Error::binding(format!("value {at} was taken to be written before")));
        };
        self.taken.set(self.taken.get() | bit);
        let any = self.peers.values[at];
        // SAFETY: a tensor of the call; outputs are always tensors.
        Ok(TensorMut::new(unsafe { &*(any.payload as *const DLTensor) }, at, self.peers))
    }

    /// A whole number.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn int(&self, at: usize) -> Result<i64> {
        let any = self.get(at)?;
        match any.type_index {
            abi::INT => Ok(any.payload as i64),
            _ => Err(wrong(at, any, "an int")),
        }
    }

    /// A whole number that may be absent.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn optional_int(&self, at: usize) -> Result<Option<i64>> {
        self.optional(at, || self.int(at))
    }

    /// A float; a whole number is one.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn float(&self, at: usize) -> Result<f64> {
        let any = self.get(at)?;
        match any.type_index {
            abi::FLOAT => Ok(f64::from_bits(any.payload)),
            abi::INT => Ok(any.payload as i64 as f64),
            _ => Err(wrong(at, any, "a float")),
        }
    }

    /// A float that may be absent.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn optional_float(&self, at: usize) -> Result<Option<f64>> {
        self.optional(at, || self.float(at))
    }

    /// True or false.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn bool(&self, at: usize) -> Result<bool> {
        let any = self.get(at)?;
        match any.type_index {
            abi::BOOL => Ok(any.payload != 0),
            _ => Err(wrong(at, any, "a bool")),
        }
    }

    /// True or false, or absent.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn optional_bool(&self, at: usize) -> Result<Option<bool>> {
        self.optional(at, || self.bool(at))
    }

    /// Text.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn str(&self, at: usize) -> Result<&'a str> {
        let any = self.get(at)?;
        if any.type_index != abi::TEXT {
            return Err(wrong(at, any, "a str"));
        }
        // SAFETY: text of the call, ended by a zero byte.
        let text = unsafe { CStr::from_ptr(any.payload as *const _) };
        text.to_str().map_err(|_| Error::binding(format!("argument {at} isn't UTF-8")))
    }

    /// Text that may be absent.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn optional_str(&self, at: usize) -> Result<Option<&'a str>> {
        self.optional(at, || self.str(at))
    }

    /// A dtype.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn dtype(&self, at: usize) -> Result<DType> {
        let any = self.get(at)?;
        match any.type_index {
            abi::DTYPE => Ok(dtype_from(any.payload)),
            _ => Err(wrong(at, any, "a dtype")),
        }
    }

    /// A device.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn device(&self, at: usize) -> Result<Device> {
        let any = self.get(at)?;
        match any.type_index {
            abi::DEVICE => Ok(device_from(any.payload)),
            _ => Err(wrong(at, any, "a device")),
        }
    }

    /// A list of whole numbers.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn ints(&self, at: usize) -> Result<&'a [i64]> {
        let any = self.get(at)?;
        if any.type_index != abi::INTS {
            return Err(wrong(at, any, "a list of ints"));
        }
        // SAFETY: a list of the call.
        let list = unsafe { &*(any.payload as *const IntSlice) };
        if list.len == 0 {
            return Ok(&[]);
        }
        // SAFETY: as above.
        Ok(unsafe { std::slice::from_raw_parts(list.data, list.len) })
    }

    /// An argument as it is, to pass it on: also one of a kind that can't be read here.
    ///
    /// # Errors
    /// No such argument.
    pub fn value(&self, at: usize) -> Result<Value<'a>> {
        // SAFETY: a value of the call.
        Ok(unsafe { Value::from_any(self.get(at)?) })
    }
}

pub(crate) fn dtype_from(payload: u64) -> DType {
    let (code, bits, lanes) = (payload as u8, (payload >> 8) as u8, (payload >> 16) as u16);
    DType(DLDataType { code, bits, lanes })
}

pub(crate) fn device_from(payload: u64) -> Device {
    Device(DLDevice { device_type: payload as i32, device_id: (payload >> 32) as i32 })
}

/// What kind of value that is, for a message.
pub(crate) fn kind_of(any: Any) -> &'static str {
    match any.type_index {
        abi::NONE => "None",
        abi::INT => "an int",
        abi::BOOL => "a bool",
        abi::FLOAT => "a float",
        abi::DTYPE => "a dtype",
        abi::DEVICE => "a device",
        abi::TENSOR => "a tensor",
        abi::TEXT => "a str",
        abi::INTS => "a list of ints",
        _ => "a value that can only be passed on",
    }
}

#[cold]
fn wrong(at: usize, any: Any, expected: &str) -> Error {
    Error::binding(format!("argument {at} is {}, not {expected}", kind_of(any)))
}

impl std::fmt::Debug for Args<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Args({} and {} outputs)", self.len(), self.outputs())
    }
}
