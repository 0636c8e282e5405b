//! The error type of the workspace.
//!
//! An error has a kind (callers match on it, and it selects the Python exception class) and a
//! message. Messages name the operator, the argument, the given value and the correct one. The type
//! is one pointer wide, so that `Result<i64, Error>` is returned in two registers on the call path.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// The kind of an error.
///
/// [`ErrorKind::ALL`] lists every kind; a test raises each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The text of a schema, or of a name, doesn't parse.
    Schema,
    /// Arguments don't bind: arity, keyword, type, a missing tensor. Python: `TypeError`.
    Binding,
    /// A kernel returned the wrong number or kind of values. Python: `TypeError`.
    Return,
    /// No operator (or overload) of that name. Python: `AttributeError`.
    UnknownOperator,
    /// No dispatch key of that name, or no slot left for a new one. Python: `ValueError`.
    UnknownKey,
    /// A call or redispatch with no key at all. Python: `ValueError`.
    EmptyKeySet,
    /// No kernel for the chosen key. Python: `NotImplementedError`.
    MissingKernel,
    /// A registration that contradicts another one or its schema. Python: `ValueError`.
    Registration,
    /// The operator, overload, handle or kernel was removed. Python: `OperatorRemoved`.
    OperatorRemoved,
    /// Endless redispatch, stopped before the stack ends. Python: `RecursionError`.
    Recursion,
    /// A native kernel panicked; the panic was contained. Python: `RuntimeError`.
    KernelPanic,
    /// A native kernel reported a failure of its own. Python: `RuntimeError`.
    KernelFailed,
    /// Local key guards closed out of order or on another thread. Python: `RuntimeError`.
    Guard,
    /// Arguments on different devices, or a device that isn't there. Python: `ValueError`.
    Device,
    /// A dtype that isn't supported there. Python: `TypeError`.
    DType,
    /// Shapes that don't fit, or whose element count overflows. Python: `ValueError`.
    Shape,
    /// Any other value out of its range. Python: `ValueError`.
    Value,
    /// An index or axis out of range. Python: `IndexError`.
    Index,
    /// A write to read-only memory. Python: `ValueError`.
    ReadOnly,
    /// The text of an expression doesn't parse. Python: `ValueError`.
    Expression,
    /// A malformed or already consumed DLPack exchange. Python: `BufferError`.
    Exchange,
    /// Memory for a buffer can't be had. Python: `MemoryError`.
    Memory,
    /// A shared library or a symbol in it can't be loaded. Python: `OSError`.
    Library,
    /// A backend lacks the operation; the message carries a hint. Python: `NotImplementedError`.
    NotSupported,
    /// A gradient that can't be computed: no derivative, no graph, a saved tensor changed since.
    /// Python: `RuntimeError`.
    Gradient,
    /// A trace that can't be recorded, or a graph that can't be read or replayed. Python:
    /// `ValueError`.
    Trace,
    /// Deferred work that can't be recorded or that was given up. Python: `RuntimeError`.
    Pipeline,
    /// An exception from a kernel written in another language, carried as the source.
    Foreign,
}

impl ErrorKind {
    /// Every kind, in declaration order.
    pub const ALL: [ErrorKind; 28] = [
        ErrorKind::Schema,
        ErrorKind::Binding,
        ErrorKind::Return,
        ErrorKind::UnknownOperator,
        ErrorKind::UnknownKey,
        ErrorKind::EmptyKeySet,
        ErrorKind::MissingKernel,
        ErrorKind::Registration,
        ErrorKind::OperatorRemoved,
        ErrorKind::Recursion,
        ErrorKind::KernelPanic,
        ErrorKind::KernelFailed,
        ErrorKind::Guard,
        ErrorKind::Device,
        ErrorKind::DType,
        ErrorKind::Shape,
        ErrorKind::Value,
        ErrorKind::Index,
        ErrorKind::ReadOnly,
        ErrorKind::Expression,
        ErrorKind::Exchange,
        ErrorKind::Memory,
        ErrorKind::Library,
        ErrorKind::NotSupported,
        ErrorKind::Gradient,
        ErrorKind::Trace,
        ErrorKind::Pipeline,
        ErrorKind::Foreign,
    ];

    /// Returns the variant's name, as Python and the documentation spell it.
    pub fn name(self) -> String {
        format!("{self:?}")
    }
}

struct Repr {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
    late: bool,
}

/// An error of keyfold: a [`ErrorKind`], a message, and the foreign error it wraps, if any.
pub struct Error(Box<Repr>);

/// `Result` with keyfold's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns an error of `kind` that says `message`.
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Box::new(Repr { kind, message: message.into(), source: None, late: false }))
    }

    /// Returns an error that wraps another language's exception, to be raised again unchanged.
    #[cold]
    pub fn foreign(source: impl StdError + Send + Sync + 'static) -> Self {
        let message = source.to_string();
        let source = Some(Box::new(source) as Box<dyn StdError + Send + Sync>);
        Error(Box::new(Repr { kind: ErrorKind::Foreign, message, source, late: false }))
    }

    /// Returns the same error with a cause attached.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Box::new(source));
        self
    }

    /// Returns the same error with its message prefixed by the place (`"demo::scale: ..."`). A
    /// foreign error stays unchanged, since its text is its author's. A [`late`](Self::late) error
    /// stays unchanged too, since it names its own operation.
    #[must_use]
    pub fn at(mut self, place: &str) -> Self {
        let named = self.0.late || self.0.kind == ErrorKind::Foreign;
        if !named && !self.0.message.starts_with(place) {
            self.0.message = format!("{place}: {}", self.0.message);
        }
        self
    }

    /// Returns the same error with a remark after its message, in parentheses. A foreign error stays
    /// unchanged, since its text is its author's.
    #[must_use]
    pub fn noted(mut self, note: &str) -> Self {
        if self.0.kind != ErrorKind::Foreign {
            self.0.message = format!("{} ({note})", self.0.message);
        }
        self
    }

    /// Marks the error of an asynchronous operation, which is reported by a later call, such as a
    /// copy to the host that waits for it. [`at`](Self::at) leaves the message unchanged.
    #[must_use]
    pub fn late(mut self) -> Self {
        self.0.late = true;
        self
    }

    /// Returns the kind, to match on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the message, without the source's.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the wrapped foreign error, if there is one.
    pub fn into_source(self) -> Option<Box<dyn StdError + Send + Sync>> {
        self.0.source
    }
}

/// An error that several readers get: those of everything that a failed operation was for.
#[derive(Clone, Debug)]
pub struct SharedError(Arc<Error>);

impl SharedError {
    /// Makes an error that can be returned any number of times.
    #[cold]
    pub fn new(error: Error) -> Self {
        SharedError(Arc::new(error))
    }

    /// Returns the error itself.
    pub fn error(&self) -> &Error {
        &self.0
    }

    /// Returns an error of the same kind and message, whose source is this one. It names its own
    /// operation already, so [`Error::at`] leaves the message unchanged.
    #[cold]
    pub fn again(&self) -> Error {
        Error::new(self.0.kind(), self.0.message()).with_source(self.clone()).late()
    }

    /// Returns whether both are the same error, and not only alike.
    pub fn is(&self, other: &SharedError) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Display for SharedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&*self.0, f)
    }
}

impl StdError for SharedError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.0.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|s| &**s as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_one_pointer() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
        assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
    }

    #[test]
    fn at_prefixes_once() {
        let e = Error::new(ErrorKind::Shape, "bad").at("demo::f").at("demo::f");
        assert_eq!(e.to_string(), "demo::f: bad");
    }

    #[test]
    fn a_shared_error_is_the_same_each_time() {
        let shared = SharedError::new(Error::new(ErrorKind::Shape, "bad"));
        let (a, b) = (shared.again().at("demo::f"), shared.again());
        assert_eq!((a.kind(), a.message()), (ErrorKind::Shape, "bad"));
        let source = |error: Error| error.into_source().unwrap().downcast::<SharedError>().unwrap();
        assert!(source(a).is(&source(b)));
        assert_eq!(
            SharedError::new(Error::foreign(std::fmt::Error)).again().kind(),
            ErrorKind::Foreign
        );
    }

    #[test]
    fn foreign_keeps_its_text_and_source() {
        let e = Error::foreign(std::fmt::Error).at("demo::f");
        assert_eq!(e.to_string(), std::fmt::Error.to_string());
        assert!(e.into_source().unwrap().downcast::<std::fmt::Error>().is_ok());
    }
}
