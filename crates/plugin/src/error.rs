//! Errors: the plugin's own, and the host's on their way through.

use std::any::Any;
use std::fmt;

use crate::abi::{self, HostTable, Text};

/// What went wrong, and so which exception Python users catch.
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
    /// Something that isn't offered. Python: `NotImplementedError`.
    NotSupported,
    /// Memory that can't be had. Python: `MemoryError`.
    Memory,
    /// A contradiction while registering. Python: `ValueError`.
    Registration,
    /// The kernel failed otherwise. Python: `RuntimeError`.
    KernelFailed,
    /// The kernel panicked. Python: `RuntimeError`.
    KernelPanic,
}

/// An error: a kind and a message for a person. One that came from the host (from an operator that
/// the kernel called) goes back as it was, a Python exception as that exception.
pub struct Error(Repr);

enum Repr {
    Own { kind: ErrorKind, message: String },
    Host(OwnedError),
}

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of that kind.
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Repr::Own { kind, message: message.into() })
    }

    /// A value out of its range.
    pub fn value(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Value, message)
    }

    /// A dtype that the kernel doesn't take.
    pub fn dtype(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::DType, message)
    }

    /// Shapes that don't fit.
    pub fn shape(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Shape, message)
    }

    /// Something that the kernel doesn't offer.
    pub fn not_supported(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::NotSupported, message)
    }

    pub(crate) fn binding(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Binding, message)
    }

    /// The error of a caught panic. The host knows it by how it begins, and says what panicked.
    pub(crate) fn panicked(panic: Box<dyn Any + Send>) -> Self {
        let text = match panic.downcast_ref::<&str>() {
            Some(text) => (*text).to_owned(),
            None => match panic.downcast::<String>() {
                Ok(text) => *text,
                Err(other) => {
                    // Its destructor is unknown code, which may panic in turn: left alone.
                    let _ = std::mem::ManuallyDrop::new(other);
                    "no message".to_owned()
                }
            },
        };
        Error::new(ErrorKind::KernelPanic, format!("panicked: {text}"))
    }

    /// The name of the kind; the host has more kinds than [`ErrorKind`].
    pub fn kind_name(&self) -> String {
        match &self.0 {
            Repr::Own { kind, .. } => format!("{kind:?}"),
            Repr::Host(error) => error.kind().to_owned(),
        }
    }

    /// The message.
    pub fn message(&self) -> &str {
        match &self.0 {
            Repr::Own { message, .. } => message,
            Repr::Host(error) => error.message(),
        }
    }

    /// Takes an error of the host's over; `None` for null, which is success.
    ///
    /// # Safety
    /// `error` is null or the caller's to release through this table.
    pub(crate) unsafe fn from_host(
        table: &'static HostTable,
        error: *mut abi::HostError,
    ) -> Result<()> {
        if error.is_null() {
            return Ok(());
        }
        Err(Error(Repr::Host(OwnedError { table, error })))
    }

    /// The error as the host's, for it to take over.
    pub(crate) fn into_host(self, table: &'static HostTable) -> *mut abi::HostError {
        let own = match self.0 {
            Repr::Own { kind, message } => (format!("{kind:?}"), message),
            Repr::Host(error) if std::ptr::eq(error.table, table) => {
                return std::mem::ManuallyDrop::new(error).error;
            }
            Repr::Host(error) => (error.kind().to_owned(), error.message().to_owned()),
        };
        // SAFETY: the table's function, with text that lives through the call.
        unsafe { (table.error_new)(Text::new(&own.0), Text::new(&own.1)) }
    }
}

/// An error of the host's that is ours to release.
struct OwnedError {
    table: &'static HostTable,
    error: *mut abi::HostError,
}

// SAFETY: the ABI lets any thread look at and release an error; it never changes.
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
        // SAFETY: ours, and not used any more.
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
