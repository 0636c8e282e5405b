//! Errors from foreign code, and error kinds for foreign code.

use std::error::Error as StdError;
use std::fmt;
use std::ptr::null_mut;

use keyfold_core::{Error, ErrorKind};

use crate::abi::{self, ErrorCell};
use crate::object::Object;
use crate::runtime::Runtime;

/// An error that foreign code raised; the source of the [`Error`] made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignError {
    /// The kind, a Python exception class if it has one: `ValueError`.
    pub kind: String,
    /// The message.
    pub message: String,
    /// The traceback, innermost frame first, one frame per line.
    pub backtrace: String,
    /// Operator, key path and kernel, for the message.
    pub place: String,
}

impl fmt::Display for ForeignError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

impl StdError for ForeignError {}

impl ForeignError {
    /// Takes the calling thread's pending error from the library.
    pub fn take(runtime: &'static Runtime) -> Option<ForeignError> {
        let mut handle = null_mut();
        // SAFETY: stores a new reference, or null.
        let error = unsafe {
            (runtime.take_raised)(&raw mut handle);
            Object::owned(handle, runtime)
        }?;
        if error.type_index() != abi::ERROR {
            return None;
        }
        // SAFETY: the cell of an error object, whose texts live as long as the object.
        let cell = unsafe { error.cell::<ErrorCell>().read() };
        let text = |array: abi::ByteArray| {
            // SAFETY: made by the library; `error` is alive.
            String::from_utf8_lossy(unsafe { array.bytes() }).into_owned()
        };
        Some(ForeignError {
            kind: text(cell.kind),
            message: text(cell.message),
            backtrace: text(cell.backtrace),
            place: String::new(),
        })
    }

    /// Returns an error of kind [`ErrorKind::KernelFailed`] with place, kind and message.
    pub fn into_error(self, place: &str) -> Error {
        Error::new(ErrorKind::KernelFailed, format!("{place}: {}: {}", self.kind, self.message))
            .with_source(self)
    }
}

/// Returns the Python exception class that foreign code gets for an error.
pub fn kind_for(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::Binding | ErrorKind::Return | ErrorKind::DType => "TypeError",
        ErrorKind::Schema
        | ErrorKind::UnknownKey
        | ErrorKind::EmptyKeySet
        | ErrorKind::Registration
        | ErrorKind::Device
        | ErrorKind::Shape
        | ErrorKind::Value
        | ErrorKind::ReadOnly
        | ErrorKind::Trace => "ValueError",
        ErrorKind::UnknownOperator => "AttributeError",
        ErrorKind::MissingKernel | ErrorKind::NotSupported => "NotImplementedError",
        ErrorKind::Recursion => "RecursionError",
        ErrorKind::Index => "IndexError",
        ErrorKind::Exchange => "BufferError",
        ErrorKind::Memory => "MemoryError",
        ErrorKind::Library => "OSError",
        _ => "RuntimeError",
    }
}
