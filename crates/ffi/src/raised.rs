//! Errors that foreign code raises, and errors that it gets.

use std::error::Error as StdError;
use std::fmt;
use std::ptr::null_mut;

use keyfold_core::{Error, ErrorKind};

use crate::abi::{self, ErrorCell};
use crate::object::Object;
use crate::runtime::Runtime;

/// An error that foreign code raised: the source of the [`Error`] that it becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raised {
    /// Its kind, in Python's terms where it has any: `ValueError`.
    pub kind: String,
    /// What it says.
    pub message: String,
    /// Where it was raised, innermost first, one place to a line.
    pub backtrace: String,
    /// Operator, key path and kernel, for a person.
    pub place: String,
}

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

impl StdError for Raised {}

impl Raised {
    /// Takes the calling thread's raised error over from the library.
    pub fn take(runtime: &'static Runtime) -> Option<Raised> {
        let mut handle = null_mut();
        // SAFETY: stores a reference of ours, or null.
        let error = unsafe {
            (runtime.take_raised)(&raw mut handle);
            Object::owned(handle, runtime)
        }?;
        if error.type_index() != abi::ERROR {
            return None;
        }
        // SAFETY: an error object has this cell, whose texts live as long as it.
        let cell = unsafe { error.cell::<ErrorCell>().read() };
        let text = |array: abi::ByteArray| {
            // SAFETY: made by the library; `error` is alive.
            String::from_utf8_lossy(unsafe { array.bytes() }).into_owned()
        };
        Some(Raised {
            kind: text(cell.kind),
            message: text(cell.message),
            backtrace: text(cell.backtrace),
            place: String::new(),
        })
    }

    /// The error of kind [`ErrorKind::KernelFailed`] that says where, kind and message.
    pub fn into_error(self, place: &str) -> Error {
        Error::new(ErrorKind::KernelFailed, format!("{place}: {}: {}", self.kind, self.message))
            .with_source(self)
    }
}

/// The kind, in Python's terms, under which foreign code gets an error.
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
