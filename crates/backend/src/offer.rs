//! A backend's offer of a kernel.

use std::borrow::Cow;
use std::fmt;

use keyfold_core::{Error, ErrorKind};

/// The expected time relative to a native kernel's.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Cost(pub f32);

/// The reason why there is no kernel: a sentence about the backend, without its name.
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

/// A kernel, or the reason why there is none.
#[derive(Clone, Debug)]
pub enum Offer<K> {
    /// A native kernel.
    Native(K),
    /// A composition of native kernels.
    ViaComposite(K),
    /// A slower kernel with the same result, on the device.
    Fallback(Cost, K),
    /// No kernel.
    No(Reason),
}

/// An [`Offer`] without the kernel.
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
    /// Returns the offer without the kernel.
    pub fn support(&self) -> Support {
        match self {
            Offer::Native(_) => Support::Native,
            Offer::ViaComposite(_) => Support::ViaComposite,
            Offer::Fallback(cost, _) => Support::Fallback(*cost),
            Offer::No(reason) => Support::No(reason.clone()),
        }
    }

    /// Returns the kernel.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn kernel(self) -> Result<K, Reason> {
        match self {
            Offer::Native(kernel) | Offer::ViaComposite(kernel) | Offer::Fallback(_, kernel) => {
                Ok(kernel)
            }
            Offer::No(reason) => Err(reason),
        }
    }

    /// Returns the offer with `f` applied to its kernel.
    pub fn map<T>(self, f: impl FnOnce(K) -> T) -> Offer<T> {
        match self {
            Offer::Native(kernel) => Offer::Native(f(kernel)),
            Offer::ViaComposite(kernel) => Offer::ViaComposite(f(kernel)),
            Offer::Fallback(cost, kernel) => Offer::Fallback(cost, f(kernel)),
            Offer::No(reason) => Offer::No(reason),
        }
    }
}

/// Returns the error of an operation that a backend doesn't offer: [`ErrorKind::NotSupported`],
/// with the operator, the backend, the reason, and a hint.
#[cold]
pub fn not_supported(op: &str, backend: &str, reason: &Reason, hint: &str) -> Error {
    Error::new(
        ErrorKind::NotSupported,
        format!("{op} isn't supported by backend '{backend}': {reason}; {hint}"),
    )
}
