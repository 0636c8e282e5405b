//! What a backend answers when it is asked for a kernel.

use std::borrow::Cow;
use std::fmt;

use keyfold_core::{Error, ErrorKind};

/// How many times slower than a native kernel one is expected to be.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Cost(pub f32);

/// Why there is no kernel: a sentence about the backend, without its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason(pub Cow<'static, str>);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&'static str> for Reason {
    fn from(text: &'static str) -> Self {
        Reason(text.into())
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Reason(text.into())
    }
}

/// A kernel, or why there is none.
#[derive(Clone, Debug)]
pub enum Offer<K> {
    /// The device's own.
    Native(K),
    /// Put together from several of the device's own.
    ViaComposite(K),
    /// A slower way that gives the same result, on the device.
    Fallback(Cost, K),
    /// None.
    No(Reason),
}

/// What an [`Offer`] says, without the kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum Support {
    /// See [`Offer::Native`].
    Native,
    /// See [`Offer::ViaComposite`].
    ViaComposite,
    /// See [`Offer::Fallback`].
    Fallback(Cost),
    /// See [`Offer::No`].
    No(Reason),
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Support::Native => f.write_str("native"),
            Support::ViaComposite => f.write_str("composite"),
            Support::Fallback(Cost(times)) => write!(f, "fallback ({times}x)"),
            Support::No(reason) => write!(f, "no: {reason}"),
        }
    }
}

impl<K> Offer<K> {
    /// What is said about the kernel.
    pub fn support(&self) -> Support {
        match self {
            Offer::Native(_) => Support::Native,
            Offer::ViaComposite(_) => Support::ViaComposite,
            Offer::Fallback(cost, _) => Support::Fallback(*cost),
            Offer::No(reason) => Support::No(reason.clone()),
        }
    }

    /// The kernel.
    ///
    /// # Errors
    /// Why there is none.
    pub fn kernel(self) -> Result<K, Reason> {
        match self {
            Offer::Native(kernel) | Offer::ViaComposite(kernel) | Offer::Fallback(_, kernel) => {
                Ok(kernel)
            }
            Offer::No(reason) => Err(reason),
        }
    }

    /// The same offer of what `f` makes of the kernel.
    pub fn map<T>(self, f: impl FnOnce(K) -> T) -> Offer<T> {
        match self {
            Offer::Native(kernel) => Offer::Native(f(kernel)),
            Offer::ViaComposite(kernel) => Offer::ViaComposite(f(kernel)),
            Offer::Fallback(cost, kernel) => Offer::Fallback(cost, f(kernel)),
            Offer::No(reason) => Offer::No(reason),
        }
    }
}

/// The error of an operation that a backend doesn't offer: [`ErrorKind::NotSupported`], with the
/// operator, the backend, why, and what helps.
#[cold]
pub fn not_supported(op: &str, backend: &str, reason: &Reason, hint: &str) -> Error {
    Error::new(
        ErrorKind::NotSupported,
        format!("{op} isn't supported by backend '{backend}': {reason}; {hint}"),
    )
}
