//! The host's functions for a running kernel.

use std::ptr::null_mut;

use crate::abi::{CallFrame, HostTable, HostTable1, HostValue, Text};
use crate::error::{Error, Result};
use crate::keyset::KeySet;
use crate::owned::{OwnedTensor, OwnedValue};
use crate::types::{DType, Device};
use crate::value::{Packed, Value};

/// The running call and the host's functions.
///
/// Calls go through the process's dispatcher with the thread's local keys: kernels registered since
/// and guards around the call apply.
pub struct Host<'a> {
    frame: &'a CallFrame,
    table: &'static HostTable,
}

impl<'a> Host<'a> {
    /// # Safety
    /// `frame` is the host's, alive for `'a`.
    pub(crate) unsafe fn new(frame: &'a CallFrame) -> Self {
        // SAFETY: the table lives as long as the process.
        Host { frame, table: unsafe { &*frame.host } }
    }

    /// Returns the operator's full name.
    pub fn operator(&self) -> &'a str {
        // SAFETY: text of the call.
        unsafe { self.frame.operator.get() }
    }

    /// Returns the key set of the call, which includes the chosen key.
    pub fn keyset(&self) -> KeySet {
        KeySet::from_bits(self.frame.keyset)
    }

    /// Returns the chosen key.
    pub fn key(&self) -> KeySet {
        KeySet::from_bits(self.frame.key)
    }

    /// Returns the keys of a name: `"CPU"`, `"Pipeline"`, `"AutogradCPU"` (two keys).
    ///
    /// # Errors
    /// An unknown name.
    pub fn keys(&self, name: &str) -> Result<KeySet> {
        let mut bits = 0;
        // SAFETY: the table's function, with text that is valid for the call.
        unsafe {
            let error = (self.table.keys)(Text::new(name), &raw mut bits);
            Error::from_host(self.table, error)?;
        }
        Ok(KeySet::from_bits(bits))
    }

    /// Returns the value or the error of a function of the table.
    fn value(
        &self,
        ask: impl FnOnce(*mut *mut HostValue) -> *mut crate::abi::HostError,
    ) -> Result<OwnedValue> {
        let mut value = null_mut();
        let error = ask(&raw mut value);
        // SAFETY: the table's error or value, owned here from now on.
        unsafe {
            Error::from_host(self.table, error)?;
            Ok(OwnedValue::new(self.table, value))
        }
    }

    /// Calls an operator by name, `ns::name` or `ns::name.overload`. Trailing arguments may be left
    /// out where they have defaults.
    ///
    /// # Errors
    /// The call's errors; an exception of a Python kernel passes through unchanged.
    pub fn call(&self, operator: &str, args: &[Value<'_>]) -> Result<OwnedValue> {
        let args = Packed::new(args)?;
        let (name, count) = (Text::new(operator), args.values.len() as i32);
        // SAFETY: the frame's call is running; text and values are valid for the call.
        self.value(|value| unsafe {
            (self.table.call)(self.frame, name, args.values.as_ptr(), count, value)
        })
    }

    /// Calls this operator again with its own arguments and an explicit key set: layers pass
    /// `host.keyset().without(host.key())`.
    ///
    /// # Errors
    /// The call's errors.
    pub fn redispatch(&self, keyset: KeySet) -> Result<OwnedValue> {
        // SAFETY: the frame's call is running; null arguments mean its own.
        self.value(|value| unsafe {
            let own = std::ptr::null();
            (self.table.redispatch)(self.frame, Text::new(""), keyset.bits(), own, 0, value)
        })
    }

    /// Calls an operator with an explicit key set.
    ///
    /// # Errors
    /// The call's errors.
    pub fn redispatch_with(
        &self,
        operator: &str,
        keyset: KeySet,
        args: &[Value<'_>],
    ) -> Result<OwnedValue> {
        let args = Packed::new(args)?;
        let (name, count) = (Text::new(operator), args.values.len() as i32);
        // SAFETY: as in `call`.
        self.value(|value| unsafe {
            let values = args.values.as_ptr();
            (self.table.redispatch)(self.frame, name, keyset.bits(), values, count, value)
        })
    }

    /// Returns a new row-major tensor, uninitialised.
    ///
    /// # Errors
    /// A negative size, an unknown dtype or device, or memory that can't be allocated.
    pub fn empty(&self, shape: &[i64], dtype: DType, device: Device) -> Result<OwnedTensor> {
        let (data, len) = (shape.as_ptr(), shape.len() as i32);
        // SAFETY: the table's function, with a shape that is valid for the call.
        let value =
            self.value(|value| unsafe { (self.table.empty)(data, len, dtype.0, device.0, value) })?;
        Ok(OwnedTensor::fresh(value))
    }

    /// Returns the number of the thread's current stream on a device, for kernels registered at the
    /// key of a plugin's device: they queue their work there. 0 on hosts without devices.
    pub fn stream(&self, device: Device) -> u32 {
        // SAFETY: the host's table, and its function.
        unsafe { HostTable1::of(self.frame.host).map_or(0, |host| (host.stream)(device.0)) }
    }

    pub(crate) fn give(&self, value: OwnedValue) {
        // SAFETY: the frame's call is running; the host takes ownership of the value.
        unsafe { (self.table.give)(self.frame, value.into_raw()) }
    }

    pub(crate) fn fail(&self, error: Error) {
        // SAFETY: as above.
        unsafe { (self.table.fail)(self.frame, error.into_host(self.table)) }
    }
}

impl std::fmt::Debug for Host<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Host({})", self.operator())
    }
}
