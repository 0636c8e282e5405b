//! The plugin's errors, and the host's errors passed through.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abi::{self, HostTable, HostTable1, Text};

/// The kind of an error, which selects the Python exception class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// An argument's type. Python: `TypeError`.
    Binding,
    /// A dtype that the kernel doesn't take. Python: `TypeError`.
    DType,
    /// Shapes that don't fit. Python: `ValueError`.
    Shape,
    /// A device that the kernel doesn't serve. Python: `ValueError`.
    Device,
    /// Any other value out of its range. Python: `ValueError`.
    Value,
    /// An index out of range. Python: `IndexError`.
    Index,
    /// An unsupported feature. Python: `NotImplementedError`.
    NotSupported,
    /// Memory that can't be allocated. Python: `MemoryError`.
    Memory,
    /// A contradictory registration. Python: `ValueError`.
    Registration,
    /// Any other failure of the kernel. Python: `RuntimeError`.
    KernelFailed,
    /// The kernel panicked. Python: `RuntimeError`.
    KernelPanic,
}

/// An error with a kind and a message. An error of an operator that the kernel called passes
/// through unchanged, a Python exception as that exception.
pub struct Error {
    repr: Repr,
    /// The operator whose queued operation failed.
    late: Option<String>,
}

enum Repr {
    Own {
        kind: ErrorKind,
        message: String,
    },
    Host(OwnedError),
    /// A false element of the primitive `check`. The host knows the message.
    Fault(u32),
}

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns an error of that kind.
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { repr: Repr::Own { kind, message: message.into() }, late: None }
    }

    /// Returns the error of a false element of the primitive `check` of a
    /// [`Backend`](crate::Backend), with the call's fault code
    /// ([`Params::Pointwise`](crate::Params::Pointwise)). The host has the message.
    pub fn fault(code: u32) -> Self {
        Error { repr: Repr::Fault(code), late: None }
    }

    /// Marks the error of an operation that an earlier call of a [`Backend`](crate::Backend)
    /// queued, with that call's [operator](crate::Execution::operator), which begins the message.
    #[must_use]
    pub fn late(mut self, operator: &str) -> Self {
        if let Repr::Own { message, .. } = &mut self.repr
            && !operator.is_empty()
        {
            *message = format!("{operator}: {message}");
        }
        self.late = Some(operator.to_owned());
        self
    }

    /// Returns an error of kind [`Value`](ErrorKind::Value).
    pub fn value(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Value, message)
    }

    /// Returns an error of kind [`DType`](ErrorKind::DType).
    pub fn dtype(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::DType, message)
    }

    /// Returns an error of kind [`Shape`](ErrorKind::Shape).
    pub fn shape(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Shape, message)
    }

    /// Returns an error of kind [`NotSupported`](ErrorKind::NotSupported).
    pub fn not_supported(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::NotSupported, message)
    }

    pub(crate) fn binding(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Binding, message)
    }

    /// Returns the error of a caught panic. The host recognises it by its prefix and adds the
    /// kernel's name.
    pub(crate) fn panicked(panic: Box<dyn Any + Send>) -> Self {
        let text = match panic.downcast_ref::<&str>() {
            Some(text) => (*text).to_owned(),
            None => match panic.downcast::<String>() {
                Ok(text) => *text,
                Err(other) => {
                    // Leaked, since its destructor is unknown code that may panic.
                    let _ = std::mem::ManuallyDrop::new(other);
                    "no message".to_owned()
                }
            },
        };
        Error::new(ErrorKind::KernelPanic, format!("panicked: {text}"))
    }

    /// Returns the name of the kind. The host has more kinds than [`ErrorKind`].
    pub fn kind_name(&self) -> String {
        match &self.repr {
            Repr::Own { kind, .. } => format!("{kind:?}"),
            Repr::Host(error) => error.kind().to_owned(),
            Repr::Fault(_) => "Value".to_owned(),
        }
    }

    /// Returns the message.
    pub fn message(&self) -> &str {
        match &self.repr {
            Repr::Own { message, .. } => message,
            Repr::Host(error) => error.message(),
            Repr::Fault(_) => "an element of an expression is at fault",
        }
    }

    /// Takes ownership of the host's error; `None` for null, which means success.
    ///
    /// # Safety
    /// `error` is null, or owned by the caller and of this table.
    pub(crate) unsafe fn from_host(
        table: &'static HostTable,
        error: *mut abi::HostError,
    ) -> Result<()> {
        if error.is_null() {
            return Ok(());
        }
        Err(Error { repr: Repr::Host(OwnedError { table, error }), late: None })
    }

    /// Converts to an error of the host, which takes ownership.
    pub(crate) fn into_host(self, table: &'static HostTable) -> *mut abi::HostError {
        let own = match self.repr {
            Repr::Host(error) if std::ptr::eq(error.table, table) => {
                return std::mem::ManuallyDrop::new(error).error;
            }
            _ => (self.kind_name(), self.message()),
        };
        // SAFETY: the table's function, with text that is valid for the call.
        unsafe { (table.error_new)(Text::new(&own.0), Text::new(own.1)) }
    }

    /// As [`into_host`](Self::into_host), for a host that knows faults and late errors.
    pub(crate) fn into_host1(self, table: &'static HostTable1) -> *mut abi::HostError {
        let (is_late, operator) = (self.late.is_some(), self.late.clone().unwrap_or_default());
        let error = match self.repr {
            // SAFETY: the table's function, with text that is valid for the call.
            Repr::Fault(code) => unsafe { (table.fault)(code, Text::new(&operator)) },
            _ => self.into_host(&table.base),
        };
        // SAFETY: the table's function; the host takes ownership of the error and returns it.
        if is_late { unsafe { (table.late)(error) } } else { error }
    }
}

/// Drops a value of the plugin that the host releases. Nothing can report a panic of it, whose
/// payload is leaked as in [`Error::panicked`].
///
/// # Safety
/// `pointer` came from a box of a `T` and isn't used any more.
pub(crate) unsafe fn drop_boxed<T>(pointer: *mut c_void) {
    // SAFETY: the contract.
    let value = unsafe { Box::from_raw(pointer.cast::<T>()) };
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        let _ = std::mem::ManuallyDrop::new(payload);
    }
}

/// An owned error of the host.
struct OwnedError {
    table: &'static HostTable,
    error: *mut abi::HostError,
}

// SAFETY: the ABI lets any thread read and release an error, which is immutable.
unsafe impl Send for OwnedError {}
// SAFETY: as above.
unsafe impl Sync for OwnedError {}

impl OwnedError {
    fn kind(&self) -> &str {
        // SAFETY: a live error of this table; the text lives as long as it does.
        unsafe { (self.table.error_kind)(self.error).get() }
    }

    fn message(&self) -> &str {
        // SAFETY: as above.
        unsafe { (self.table.error_message)(self.error).get() }
    }
}

impl Drop for OwnedError {
    fn drop(&mut self) {
        // SAFETY: owned here and not used any more.
        unsafe { (self.table.error_release)(self.error) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind_name(), self.message())
    }
}

impl std::error::Error for Error {}
