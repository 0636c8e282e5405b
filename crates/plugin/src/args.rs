//! A kernel's arguments.

use std::cell::Cell;
use std::ffi::CStr;

use crate::abi::{self, Any, CallFrame, DLDataType, DLDevice, DLTensor, IntSlice};
use crate::error::{Error, Result};
use crate::tensor::{Peers, TensorMut, TensorView};
use crate::types::{DType, Device};
use crate::value::Value;

/// The arguments of one call: the schema's in order, with defaults, then the outputs.
pub struct Args<'a> {
    peers: Peers<'a>,
    /// A bit for each output or written argument that was taken, 64 at most.
    taken: Cell<u64>,
}

/// The most outputs and written arguments of a kernel.
const WRITTEN: usize = 64;

impl<'a> Args<'a> {
    /// # Safety
    /// `frame` is the host's, and the values are its call's, alive for `'a`.
    pub(crate) unsafe fn new(frame: &'a CallFrame, values: *const Any, count: i32) -> Self {
        let (values, flags): (&[Any], &[u8]) = if count <= 0 {
            (&[], &[])
        } else {
            // SAFETY: the contract.
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

    /// Returns the number of the schema's arguments, without outputs.
    pub fn len(&self) -> usize {
        self.peers.inputs
    }

    /// Returns whether the schema has no arguments.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of tensors to fill.
    pub fn outputs(&self) -> usize {
        self.peers.values.len() - self.len()
    }

    fn get(&self, at: usize) -> Result<Any> {
        self.peers.values[..self.len()]
            .get(at)
            .copied()
            .ok_or_else(|| Error::binding(format!("argument {at} of {} was asked for", self.len())))
    }

    /// Returns whether an optional argument has no value.
    ///
    /// # Errors
    /// An index out of range.
    pub fn is_none(&self, at: usize) -> Result<bool> {
        Ok(self.get(at)?.type_index == abi::NONE)
    }

    fn optional<T>(&self, at: usize, read: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        if self.is_none(at)? { Ok(None) } else { read().map(Some) }
    }

    /// Returns a tensor.
    ///
    /// # Errors
    /// Another kind of value, or an argument that the kernel writes, for which there is
    /// [`written`](Self::written).
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

    /// Returns a tensor that may be absent.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor).
    pub fn optional_tensor(&self, at: usize) -> Result<Option<TensorView<'a>>> {
        self.optional(at, || self.tensor(at))
    }

    /// Returns a tensor that the schema marks as written, `Tensor(a!)`. Each can be taken once.
    ///
    /// # Errors
    /// Another kind of value, an argument without the mark, or one that was taken.
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

    /// Returns an output to fill, counted from 0: allocated by the host, row-major and
    /// uninitialised. Each can be taken once.
    ///
    /// # Errors
    /// No output of that number (operators that don't return tensors have none), or one that was
    /// taken.
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

    /// Returns an integer.
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

    /// Returns an integer that may be absent.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn optional_int(&self, at: usize) -> Result<Option<i64>> {
        self.optional(at, || self.int(at))
    }

    /// Returns a float; integers are converted.
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

    /// Returns a float that may be absent.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn optional_float(&self, at: usize) -> Result<Option<f64>> {
        self.optional(at, || self.float(at))
    }

    /// Returns a bool.
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

    /// Returns a bool that may be absent.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn optional_bool(&self, at: usize) -> Result<Option<bool>> {
        self.optional(at, || self.bool(at))
    }

    /// Returns text.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn str(&self, at: usize) -> Result<&'a str> {
        let any = self.get(at)?;
        if any.type_index != abi::TEXT {
            return Err(wrong(at, any, "a str"));
        }
        // SAFETY: zero-terminated text of the call.
        let text = unsafe { CStr::from_ptr(any.payload as *const _) };
        text.to_str().map_err(|_| Error::binding(format!("argument {at} isn't UTF-8")))
    }

    /// Returns text that may be absent.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn optional_str(&self, at: usize) -> Result<Option<&'a str>> {
        self.optional(at, || self.str(at))
    }

    /// Returns a dtype.
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

    /// Returns a device.
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

    /// Returns a list of integers.
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

    /// Returns an argument of any kind, to pass it to a call.
    ///
    /// # Errors
    /// An index out of range.
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

/// Returns the name of a value's kind, for messages.
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
