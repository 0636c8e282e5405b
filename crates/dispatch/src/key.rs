//! Dispatch keys: names for the bits of a key set, ordered by priority.
//!
//! A key is a bit number from 0 to 63, which is also its priority: the highest bit of a set wins.
//! Backends have the low bits (CPU lowest, Meta highest, twelve user backends between CUDA and
//! Meta), functionality keys the high ones, each with four reserved bits above it for user keys
//! (Deferred, right above the backends, with three):
//!
//! ```text
//! bit   0    1     2..13    14    15        16..18  19      20..23  24         ...  59      60..63
//! key   CPU  CUDA  (user)   Meta  Deferred  (user)  Sparse  (user)  Quantized  ...  Tracer  (user)
//! ```
//!
//! Names and numbers are process-wide and never reused, so a key set is a plain `u64` with one
//! meaning in all dispatchers and threads.

use std::fmt;
use std::str::FromStr;

use keyfold_core::{DeviceType, Error, ErrorKind, Result};

use crate::keyset::DispatchKeySet;
use crate::names;

/// The first bit of functionalities, above those of backends.
pub(crate) const FIRST_FUNCTIONALITY: u8 = 15;
/// The bits of backends, including unused ones.
pub(crate) const BACKEND_BITS: u64 = (1 << FIRST_FUNCTIONALITY) - 1;

/// One dispatch key: a backend, or a functionality layered over the backends.
///
/// Keys are ordered by priority. [`DispatchKey::ALL`] lists the built-in ones;
/// [`register_key`](crate::register_key) and [`register_backend`](crate::register_backend) add user
/// keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DispatchKey(u8);

/// The built-in keys by name, lowest priority first.
pub(crate) const BUILTIN: [(DispatchKey, &str); 13] = [
    (DispatchKey::CPU, "CPU"),
    (DispatchKey::CUDA, "CUDA"),
    (DispatchKey::Meta, "Meta"),
    (DispatchKey::Deferred, "Deferred"),
    (DispatchKey::Sparse, "Sparse"),
    (DispatchKey::Quantized, "Quantized"),
    (DispatchKey::Nested, "Nested"),
    (DispatchKey::Autocast, "Autocast"),
    (DispatchKey::Autograd, "Autograd"),
    (DispatchKey::Vmap, "Vmap"),
    (DispatchKey::Pipeline, "Pipeline"),
    (DispatchKey::Profiler, "Profiler"),
    (DispatchKey::Tracer, "Tracer"),
];

// In the field's spelling: `DispatchKey::Autograd`, `DispatchKey::CPU`.
#[allow(non_upper_case_globals)]
impl DispatchKey {
    /// Kernels on host memory.
    pub const CPU: DispatchKey = DispatchKey(DeviceType::CPU.index());
    /// Kernels on an NVIDIA GPU.
    pub const CUDA: DispatchKey = DispatchKey(DeviceType::CUDA.index());
    /// Shape, stride and dtype rules without data (fake tensors).
    pub const Meta: DispatchKey = DispatchKey(DeviceType::META.index());
    /// Memory that a pipeline fills later; a representation.
    pub const Deferred: DispatchKey = DispatchKey(15);
    /// Sparse storage; a representation.
    pub const Sparse: DispatchKey = DispatchKey(19);
    /// Quantised values; a representation.
    pub const Quantized: DispatchKey = DispatchKey(24);
    /// Nested (ragged) tensors; a representation.
    pub const Nested: DispatchKey = DispatchKey(29);
    /// Casts of the inputs by the operator's category; a mode.
    pub const Autocast: DispatchKey = DispatchKey(34);
    /// Recording for reverse-mode differentiation; a mode.
    pub const Autograd: DispatchKey = DispatchKey(39);
    /// Vectorisation over a batch axis; a representation.
    pub const Vmap: DispatchKey = DispatchKey(44);
    /// Deferred execution; a mode.
    pub const Pipeline: DispatchKey = DispatchKey(49);
    /// Timing of calls; a mode.
    pub const Profiler: DispatchKey = DispatchKey(54);
    /// Recording of calls into a graph; a mode.
    pub const Tracer: DispatchKey = DispatchKey(59);

    /// The built-in keys, lowest priority first, each once.
    pub const ALL: [DispatchKey; 13] = {
        let mut all = [DispatchKey::CPU; 13];
        let mut i = 0;
        while i < 13 {
            all[i] = BUILTIN[i].0;
            i += 1;
        }
        all
    };
}

impl DispatchKey {
    pub(crate) const fn from_bit(bit: u8) -> DispatchKey {
        DispatchKey(bit)
    }

    pub(crate) const fn bit(self) -> u8 {
        self.0
    }

    /// Returns the key's rank among all keys of this process; higher wins.
    ///
    /// The number isn't stable: user keys may be registered in any order, and later versions may
    /// add built-in ones.
    pub const fn priority(self) -> u8 {
        self.0
    }

    /// Returns whether the key is a backend, not a functionality over backends.
    pub const fn is_backend(self) -> bool {
        self.0 < FIRST_FUNCTIONALITY
    }

    /// Returns whether calls skip this key if it has no kernel (a mode). Without a kernel for a
    /// representation or a backend, calls fail, since the data would be misread.
    pub fn is_skippable(self) -> bool {
        names::modes().contains(self)
    }

    /// Returns the device type of a backend key.
    pub fn device_type(self) -> Option<DeviceType> {
        if self.is_backend() { DeviceType::from_index(self.0) } else { None }
    }

    /// Returns the backend key of a device type.
    pub const fn from_device_type(kind: DeviceType) -> DispatchKey {
        DispatchKey(kind.index())
    }

    /// Returns every key of this process, including user keys, lowest priority first.
    pub fn registered() -> Vec<DispatchKey> {
        let mut keys: Vec<_> = DispatchKeySet::all().iter().collect();
        keys.reverse();
        keys
    }

    /// Returns the key's name: `CPU`, `Autograd`, or a user key's.
    pub fn name(self) -> String {
        names::name_of(self)
    }
}

impl fmt::Display for DispatchKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name())
    }
}

impl fmt::Debug for DispatchKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for DispatchKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        names::find(text).ok_or_else(|| names::unknown(text))
    }
}

/// A target of a registration: a key, one functionality on one backend, or an alias for several
/// keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RegistrationKey {
    /// A backend key, or a functionality key on all backends (for Autograd: the alias).
    Key(DispatchKey),
    /// One functionality on one backend: `AutogradCUDA`.
    Narrow {
        /// The functionality key.
        functionality: DispatchKey,
        /// The backend key.
        backend: DispatchKey,
    },
    /// Every backend key.
    CompositeExplicitAutograd,
    /// Every backend key and its autograd key: an operator written in terms of others.
    CompositeImplicitAutograd,
}

impl RegistrationKey {
    /// Returns the keys of this one in a key set: `{Autograd, CUDA}` for `AutogradCUDA`.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownKey`] for the composite aliases, which have no bits.
    pub fn keyset(self) -> Result<DispatchKeySet> {
        match self {
            RegistrationKey::Key(key) => Ok(key.into()),
            RegistrationKey::Narrow { functionality, backend } => {
                Ok([functionality, backend].into())
            }
            alias => Err(Error::new(
                ErrorKind::UnknownKey,
                format!(
                    "{alias} is an alias for registering kernels and can't stand in a key set; \
                     use a backend or functionality key such as CPU or Autograd"
                ),
            )),
        }
    }
}

impl RegistrationKey {
    /// Returns the keys to remove from a set to remove this one. For `AutogradCUDA` that is
    /// Autograd alone, since the backend key says where the data is and other keys need it.
    ///
    /// # Errors
    /// As [`keyset`](Self::keyset).
    pub fn removed_keys(self) -> Result<DispatchKeySet> {
        match self {
            RegistrationKey::Narrow { functionality, .. } => Ok(functionality.into()),
            other => other.keyset(),
        }
    }
}

impl From<DispatchKey> for RegistrationKey {
    fn from(key: DispatchKey) -> Self {
        RegistrationKey::Key(key)
    }
}

impl fmt::Display for RegistrationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegistrationKey::Key(key) => write!(f, "{key}"),
            RegistrationKey::Narrow { functionality, backend } => {
                write!(f, "{functionality}{backend}")
            }
            RegistrationKey::CompositeExplicitAutograd => f.write_str("CompositeExplicitAutograd"),
            RegistrationKey::CompositeImplicitAutograd => f.write_str("CompositeImplicitAutograd"),
        }
    }
}

impl fmt::Debug for RegistrationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for RegistrationKey {
    type Err = Error;

    /// Parses `CPU`, `Autograd`, `AutogradCUDA`, `CompositeImplicitAutograd`.
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "CompositeExplicitAutograd" => Ok(RegistrationKey::CompositeExplicitAutograd),
            "CompositeImplicitAutograd" => Ok(RegistrationKey::CompositeImplicitAutograd),
            _ => match names::find(text) {
                Some(key) => Ok(key.into()),
                None => names::find_narrow(text).ok_or_else(|| names::unknown_place(text)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dispatch_key_priority_ordering() {
        let order = [
            DispatchKey::Tracer,
            DispatchKey::Profiler,
            DispatchKey::Pipeline,
            DispatchKey::Vmap,
            DispatchKey::Autograd,
            DispatchKey::Autocast,
            DispatchKey::Nested,
            DispatchKey::Quantized,
            DispatchKey::Sparse,
            DispatchKey::Deferred,
            DispatchKey::Meta,
            DispatchKey::CUDA,
            DispatchKey::CPU,
        ];
        for pair in order.windows(2) {
            assert!(pair[0] > pair[1], "{} must win over {}", pair[0], pair[1]);
            assert!(pair[0].priority() > pair[1].priority());
        }
    }

    #[test]
    fn dispatch_key_all_contains_every_key() {
        assert_eq!(DispatchKey::ALL.len(), 13);
        assert!(DispatchKey::ALL.windows(2).all(|pair| pair[0] < pair[1]));
        for (key, name) in BUILTIN {
            assert!(DispatchKey::ALL.contains(&key));
            assert_eq!(name.parse::<DispatchKey>().unwrap(), key);
            assert_eq!(key.to_string(), name);
        }
    }

    #[test]
    fn modes_are_skippable_and_representations_are_not() {
        let skippable: Vec<_> = DispatchKey::ALL.into_iter().filter(|k| k.is_skippable()).collect();
        let modes = ["Autocast", "Autograd", "Pipeline", "Profiler", "Tracer"];
        assert_eq!(skippable.iter().map(ToString::to_string).collect::<Vec<_>>(), modes);
    }

    #[test]
    fn registration_keys_round_trip() {
        for text in ["CPU", "Autograd", "AutogradCUDA", "SparseCPU", "CompositeExplicitAutograd"] {
            assert_eq!(text.parse::<RegistrationKey>().unwrap().to_string(), text);
        }
        let narrow: RegistrationKey = "AutogradCUDA".parse().unwrap();
        let expected = DispatchKeySet::from([DispatchKey::Autograd, DispatchKey::CUDA]);
        assert_eq!(narrow.keyset().unwrap(), expected);
    }

    #[test]
    fn unknown_names_are_errors_that_offer_the_nearest() {
        let error = "Autogard".parse::<RegistrationKey>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownKey);
        assert!(error.to_string().contains("Autograd"), "{error}");
        assert!(RegistrationKey::CompositeImplicitAutograd.keyset().is_err());
        for text in ["", "cpu", "CPUCPU", "CPUAutograd", "AutogradAutograd", "💥"] {
            assert_eq!(text.parse::<RegistrationKey>().unwrap_err().kind(), ErrorKind::UnknownKey);
        }
    }
}
