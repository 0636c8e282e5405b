//! Values passed to a plugin and received from it.

use std::ffi::{CStr, CString};
use std::ptr::null_mut;

use keyfold_core::{DType, Device, DeviceType, Dims, Error, ErrorKind, Result};
use keyfold_dispatch::{Arg, Value as _};
use keyfold_plugin::abi::{
    self, Any, DEVICE_EXTENDED, DLDataType, DLDevice, DLTensor, HostValue, IntSlice,
};
use keyfold_tensor::{IntList, Tensor, Value, ValueRef, dlpack};
use smallvec::SmallVec;

pub(super) fn dtype_to(dtype: DType) -> DLDataType {
    let dl = dlpack::dtype_to_dl(dtype);
    DLDataType { code: dl.code, bits: dl.bits, lanes: dl.lanes }
}

pub(super) fn dtype_from(dl: DLDataType) -> Result<DType> {
    dlpack::dtype_from_dl(dlpack::DLDataType { code: dl.code, bits: dl.bits, lanes: dl.lanes })
}

pub(super) fn from_standard(dl: dlpack::DLDevice) -> DLDevice {
    DLDevice { device_type: dl.device_type, device_id: dl.device_id }
}

/// Returns the code of a device. Devices that DLPack has no number for have one above its own.
pub(super) fn device_to(device: Device) -> DLDevice {
    dlpack::exported_device(device).map(from_standard).unwrap_or_else(|_| {
        let device_type = DEVICE_EXTENDED + i32::from(device.kind().index());
        DLDevice { device_type, device_id: device.index().into() }
    })
}

pub(super) fn device_from(dl: DLDevice) -> Result<Device> {
    let DLDevice { device_type, device_id } = dl;
    let kind = match device_type {
        dlpack::DL_CPU | dlpack::DL_CUDA | dlpack::DL_EXT_DEV => {
            return dlpack::device_from_dl(dlpack::DLDevice { device_type, device_id });
        }
        other => other
            .checked_sub(DEVICE_EXTENDED)
            .and_then(|index| DeviceType::from_index(u8::try_from(index).ok()?)),
    };
    match (kind, u8::try_from(dl.device_id)) {
        (Some(kind), Ok(index)) => Ok(Device::new(kind, index)),
        _ => Err(Error::new(
            ErrorKind::Device,
            format!("there is no device of type {} and index {}", dl.device_type, dl.device_id),
        )),
    }
}

/// A value behind a pointer that a plugin gets: a tensor with its `DLTensor`, or an opaque value
/// that it can only pass on. Plugins access only the first field.
#[repr(C)]
pub(super) struct PassedValue<'a> {
    dl: DLTensor,
    shape: Dims<i64>,
    strides: Dims<i64>,
    value: ValueRef<'a>,
}

const NO_TENSOR: DLTensor = DLTensor {
    data: null_mut(),
    device: DLDevice { device_type: dlpack::DL_CPU, device_id: 0 },
    ndim: 0,
    dtype: DLDataType { code: dlpack::DL_UINT, bits: 8, lanes: 1 },
    shape: null_mut(),
    strides: null_mut(),
    byte_offset: 0,
};

impl<'a> PassedValue<'a> {
    fn opaque(value: ValueRef<'a>) -> Self {
        PassedValue { dl: NO_TENSOR, shape: Dims::empty(), strides: Dims::empty(), value }
    }

    fn tensor(tensor: &Tensor, value: ValueRef<'a>) -> Result<Self> {
        let mut shape = Dims::filled(0_i64, tensor.ndim())?;
        let mut strides = shape.clone();
        for (at, (&size, &stride)) in tensor.shape().iter().zip(tensor.strides()).enumerate() {
            (shape[at], strides[at]) = (size as i64, stride as i64);
        }
        let (data, byte_offset, device) = match tensor.device() {
            device @ (Device::CPU | Device::META) => {
                (tensor.exchange_ptr()?.cast(), 0, device_to(device))
            }
            _ => {
                let (data, byte_offset, device) = dlpack::foreign_address(tensor)?;
                (data, byte_offset, from_standard(device))
            }
        };
        let (ndim, dtype) = (tensor.ndim() as i32, dtype_to(tensor.dtype()));
        let dl = DLTensor { data, device, ndim, dtype, byte_offset, ..NO_TENSOR };
        Ok(PassedValue { dl, shape, strides, value })
    }

    /// Sets the `DLTensor`'s pointers and returns the address for the plugin; the value must not
    /// move afterwards.
    fn set_pointers(&mut self) -> u64 {
        self.dl.shape = self.shape.as_mut_ptr();
        self.dl.strides = self.strides.as_mut_ptr();
        std::ptr::from_mut(self) as u64
    }
}

/// Returns a value that needs no memory outside its [`Any`].
fn inline_value(value: ValueRef<'_>) -> Option<Any> {
    Some(match value {
        ValueRef::None => Any::new(abi::NONE, 0),
        ValueRef::Bool(flag) => Any::new(abi::BOOL, u64::from(flag)),
        ValueRef::Int(number) => Any::new(abi::INT, number as u64),
        ValueRef::Float(number) => Any::new(abi::FLOAT, number.to_bits()),
        ValueRef::DType(dtype) => {
            let dl = dtype_to(dtype);
            let code = u64::from(dl.code) | u64::from(dl.bits) << 8 | u64::from(dl.lanes) << 16;
            Any::new(abi::DTYPE, code)
        }
        ValueRef::Device(device) => {
            let dl = device_to(device);
            let index = (dl.device_id as u64) << 32;
            Any::new(abi::DEVICE, u64::from(dl.device_type as u32) | index)
        }
        _ => return None,
    })
}

/// Returns the integers of a list; `None` for a list of other types.
fn ints(value: ValueRef<'_>) -> Option<IntList> {
    value.list_len()?;
    <IntList as Arg<Value>>::unbox(value).ok()
}

/// The values of one call and the data they point to.
#[derive(Default)]
pub(super) struct PassedArgs<'a> {
    values: SmallVec<[Any; 8]>,
    flags: SmallVec<[u8; 8]>,
    /// Each with the index of its value.
    pointees: SmallVec<[(usize, PassedValue<'a>); 4]>,
    texts: Vec<CString>,
    lists: Vec<(usize, IntList, IntSlice)>,
}

impl<'a> PassedArgs<'a> {
    /// Adds a value. `set_pointers` sets its pointer.
    pub(super) fn push(&mut self, value: ValueRef<'a>, flags: u8) -> Result<()> {
        let at = self.values.len();
        let any = match (inline_value(value), value) {
            (Some(any), _) => any,
            (None, ValueRef::Tensor(_) | ValueRef::Foreign(_)) => {
                self.pointees.push((at, PassedValue::tensor(value.tensor()?, value)?));
                Any::new(abi::TENSOR, 0)
            }
            (None, ValueRef::Str(text)) => match CString::new(text) {
                Ok(text) => {
                    let any = Any::new(abi::TEXT, text.as_ptr() as u64);
                    self.texts.push(text);
                    any
                }
                // Text with a zero byte inside can only be passed on.
                Err(_) => self.opaque(at, value),
            },
            (None, value) => match ints(value) {
                Some(list) => {
                    let slice = IntSlice { data: std::ptr::null(), len: 0 };
                    self.lists.push((at, list, slice));
                    Any::new(abi::INTS, 0)
                }
                None => self.opaque(at, value),
            },
        };
        self.values.push(any);
        self.flags.push(flags);
        Ok(())
    }

    fn opaque(&mut self, at: usize, value: ValueRef<'a>) -> Any {
        self.pointees.push((at, PassedValue::opaque(value)));
        Any::new(abi::OPAQUE, 0)
    }

    /// Sets the pointers and returns values and flags. The pointers are valid until `self` moves or
    /// changes.
    pub(super) fn set_pointers(&mut self) -> (&[Any], &[u8]) {
        for (at, pointees) in &mut self.pointees {
            self.values[*at].payload = pointees.set_pointers();
        }
        for (at, list, slice) in &mut self.lists {
            *slice = IntSlice { data: list.as_ptr(), len: list.len() };
            self.values[*at].payload = std::ptr::from_ref(slice) as u64;
        }
        (&self.values, &self.flags)
    }
}

/// Converts the values that a plugin passes.
///
/// # Safety
/// `count` values of the ABI, whose pointers are the host's, or text and numbers of the plugin,
/// alive for `'a`.
pub(super) unsafe fn read<'a>(
    values: *const Any,
    count: i32,
) -> Result<SmallVec<[ValueRef<'a>; 8]>> {
    if count <= 0 {
        return Ok(SmallVec::new());
    }
    // SAFETY: the caller's contract.
    let values = unsafe { std::slice::from_raw_parts(values, count as usize) };
    // SAFETY: the caller's contract.
    values.iter().enumerate().map(|(at, any)| unsafe { read_one(at, *any) }).collect()
}

/// # Safety
/// As for [`read`].
unsafe fn read_one<'a>(at: usize, any: Any) -> Result<ValueRef<'a>> {
    let number = any.payload;
    Ok(match any.type_index {
        abi::NONE => ValueRef::None,
        abi::BOOL => ValueRef::Bool(number != 0),
        abi::INT => ValueRef::Int(number as i64),
        abi::FLOAT => ValueRef::Float(f64::from_bits(number)),
        abi::DTYPE => {
            let (code, bits, lanes) = (number as u8, (number >> 8) as u8, (number >> 16) as u16);
            ValueRef::DType(dtype_from(DLDataType { code, bits, lanes })?)
        }
        abi::DEVICE => {
            let (device_type, device_id) = (number as i32, (number >> 32) as i32);
            ValueRef::Device(device_from(DLDevice { device_type, device_id })?)
        }
        // SAFETY: these pointers are to a live `PassedValue`.
        abi::TENSOR | abi::OPAQUE => unsafe { (*(number as *const PassedValue<'a>)).value },
        abi::TEXT => {
            // SAFETY: zero-terminated text of the plugin.
            let text = unsafe { CStr::from_ptr(number as *const _) };
            ValueRef::Str(text.to_str().map_err(|_| {
                Error::new(ErrorKind::Binding, format!("argument {at} is text that isn't UTF-8"))
            })?)
        }
        abi::INTS => {
            // SAFETY: a slice of the plugin.
            let list = unsafe { &*(number as *const IntSlice) };
            ValueRef::Ints(match list.len {
                0 => &[],
                // SAFETY: as above.
                len => unsafe { std::slice::from_raw_parts(list.data, len) },
            })
        }
        other => {
            return Err(Error::new(
                ErrorKind::Binding,
                format!("argument {at} is of a kind that the host doesn't know: {other}"),
            ));
        }
    })
}

/// A value that a plugin owns.
pub(super) struct Owned {
    any: Any,
    /// The data that `any` points to, which borrows from `value`. Dropped first.
    passed: PassedArgs<'static>,
    value: Value,
}

impl Owned {
    /// Returns a value as a pointer that the plugin owns.
    pub(super) fn into_raw(value: Value) -> *mut HostValue {
        let blank = Any::new(abi::NONE, 0);
        let owned = Box::new(Owned { any: blank, passed: PassedArgs::default(), value });
        let raw = Box::into_raw(owned);
        // SAFETY: the box is owned here until the return; `value` neither moves nor changes as long
        // as `passed`, which borrows from it and is dropped first.
        unsafe {
            let value: ValueRef<'static> = (*raw).value.as_ref();
            let passed = &mut (*raw).passed;
            if passed.push(value, 0).is_err() {
                // An object that can't be viewed can still be passed on.
                let any = passed.opaque(0, value);
                passed.values.push(any);
            }
            (*raw).any = passed.set_pointers().0[0];
        }
        raw.cast()
    }

    /// # Safety
    /// `value` is a live value of [`into_raw`](Self::into_raw).
    pub(super) unsafe fn borrow<'a>(value: *const HostValue) -> &'a Owned {
        // SAFETY: the contract.
        unsafe { &*value.cast::<Owned>() }
    }

    /// Takes a value back from a plugin.
    ///
    /// # Safety
    /// As for [`borrow`](Self::borrow), and the value isn't used any more.
    pub(super) unsafe fn from_raw(value: *mut HostValue) -> Value {
        // SAFETY: the contract.
        let mut owned = unsafe { Box::from_raw(value.cast::<Owned>()) };
        // Drops the data that borrows from the value first.
        owned.passed = PassedArgs::default();
        owned.value
    }

    pub(super) fn any(&self) -> Any {
        self.any
    }

    /// Returns the results or items in it.
    pub(super) fn items(&self) -> Option<&[Value]> {
        match &self.value {
            Value::Tuple(items) | Value::List(items) => Some(items),
            _ => None,
        }
    }
}
