//! Values of the host that the plugin owns: results of calls, and new tensors.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::abi::{self, Any, DLTensor, HostTable, HostValue};
use crate::args::{device_from, dtype_from, kind_of};
use crate::error::{Error, Result};
use crate::tensor::{Peers, TensorMut, TensorView};
use crate::types::{DType, Device};
use crate::value::Value;

/// An owned value of the host, released on drop.
pub struct OwnedValue {
    table: &'static HostTable,
    value: *mut HostValue,
}

// SAFETY: the ABI lets any thread read and release a value, which is immutable.
unsafe impl Send for OwnedValue {}
// SAFETY: as above.
unsafe impl Sync for OwnedValue {}

impl OwnedValue {
    /// # Safety
    /// `value` is of this table and owned by the caller.
    pub(crate) unsafe fn new(table: &'static HostTable, value: *mut HostValue) -> Self {
        OwnedValue { table, value }
    }

    /// Returns the pointer, for the host to take ownership of.
    pub(crate) fn into_raw(self) -> *mut HostValue {
        ManuallyDrop::new(self).value
    }

    fn any(&self) -> Any {
        // SAFETY: a live value of this table.
        unsafe { (self.table.value_get)(self.value) }
    }

    /// Borrows the value, to pass it to a call.
    pub fn pass(&self) -> Value<'_> {
        // SAFETY: borrowed from a value that lives as long as `self`.
        unsafe { Value::from_any(self.any()) }
    }

    fn wrong(&self, expected: &str) -> Error {
        Error::binding(format!("the call gave {}, not {expected}", kind_of(self.any())))
    }

    /// Returns whether the value is None.
    pub fn is_none(&self) -> bool {
        self.any().type_index == abi::NONE
    }

    /// Returns the integer.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn int(&self) -> Result<i64> {
        let any = self.any();
        if any.type_index == abi::INT { Ok(any.payload as i64) } else { Err(self.wrong("an int")) }
    }

    /// Returns the float; an integer is converted.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn float(&self) -> Result<f64> {
        let any = self.any();
        match any.type_index {
            abi::FLOAT => Ok(f64::from_bits(any.payload)),
            abi::INT => Ok(any.payload as i64 as f64),
            _ => Err(self.wrong("a float")),
        }
    }

    /// Returns the bool.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn bool(&self) -> Result<bool> {
        let any = self.any();
        if any.type_index == abi::BOOL { Ok(any.payload != 0) } else { Err(self.wrong("a bool")) }
    }

    /// Returns the dtype.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn dtype(&self) -> Result<DType> {
        let any = self.any();
        match any.type_index {
            abi::DTYPE => Ok(dtype_from(any.payload)),
            _ => Err(self.wrong("a dtype")),
        }
    }

    /// Returns the device.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn device(&self) -> Result<Device> {
        let any = self.any();
        match any.type_index {
            abi::DEVICE => Ok(device_from(any.payload)),
            _ => Err(self.wrong("a device")),
        }
    }

    /// Returns the tensor.
    ///
    /// # Errors
    /// Another kind of value.
    pub fn tensor(self) -> Result<OwnedTensor> {
        if self.any().type_index != abi::TENSOR {
            return Err(self.wrong("a tensor"));
        }
        Ok(OwnedTensor { value: self, fresh: AtomicBool::new(false) })
    }

    /// Returns the results of a call, or the items of a list.
    ///
    /// # Errors
    /// A value that is neither.
    pub fn items(&self) -> Result<Vec<OwnedValue>> {
        // SAFETY: a live value of this table.
        let len = unsafe { (self.table.value_len)(self.value) };
        if len < 0 {
            return Err(self.wrong("several"));
        }
        // SAFETY: as above; each item is a separate value, owned here.
        let item = |at| unsafe { (self.table.value_item)(self.value, at) };
        Ok((0..len)
            .map(item)
            .take_while(|item| !item.is_null())
            .map(|value| OwnedValue { table: self.table, value })
            .collect())
    }
}

impl Drop for OwnedValue {
    fn drop(&mut self) {
        // SAFETY: owned here and not used any more.
        unsafe { (self.table.value_release)(self.value) }
    }
}

impl fmt::Debug for OwnedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedValue({})", kind_of(self.any()))
    }
}

/// An owned tensor of the host, released on drop.
pub struct OwnedTensor {
    value: OwnedValue,
    /// Whether [`Host::empty`](crate::Host::empty) made it and it was neither viewed nor passed to
    /// a call since.
    fresh: AtomicBool,
}

impl OwnedTensor {
    pub(crate) fn fresh(value: OwnedValue) -> Self {
        OwnedTensor { value, fresh: AtomicBool::new(true) }
    }

    fn dl(&self) -> &DLTensor {
        // SAFETY: it is a tensor, as checked, which lives as long as the value.
        unsafe { &*(self.value.any().payload as *const DLTensor) }
    }

    /// Returns a view to read. The tensor can't be written afterwards, since the view may have been
    /// passed on.
    pub fn view(&self) -> TensorView<'_> {
        self.fresh.store(false, Ordering::Relaxed);
        TensorView::new(self.dl(), 0, Peers::NONE)
    }

    /// Returns a new tensor to write, which nothing else refers to.
    ///
    /// # Errors
    /// A result of a call, or a tensor that was viewed or passed to a call: others may share its
    /// memory.
    pub fn view_mut(&mut self) -> Result<TensorMut<'_>> {
        if !*self.fresh.get_mut() {
            let message = "only a tensor made by Host::empty can be written, and only before it is \
                           viewed or passed to a call";
            return Err(Error::value(message));
        }
        Ok(TensorMut::new(self.dl(), 0, Peers::NONE))
    }

    /// Borrows the tensor, to pass it to a call.
    pub fn pass(&self) -> Value<'_> {
        self.fresh.store(false, Ordering::Relaxed);
        self.value.pass()
    }

    /// Returns the tensor as any value.
    pub fn into_value(self) -> OwnedValue {
        self.value
    }
}

impl fmt::Debug for OwnedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedTensor({:?})", TensorView::new(self.dl(), 0, Peers::NONE))
    }
}
