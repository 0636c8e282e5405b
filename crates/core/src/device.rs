//! Devices: a type (CPU, CUDA, Meta, or one that the user registered) and an index.
//!
//! A device type's number is the bit of its backend key in a dispatch key set, so conversion is
//! free. This crate knows nothing else of dispatch keys.

use std::fmt;
use std::str::FromStr;
use std::sync::RwLock;

use crate::error::{Error, ErrorKind, Result};
use crate::nearest;

/// Device types that the user may add; the numbers between CUDA's and Meta's.
pub const USER_DEVICE_TYPES: std::ops::Range<u8> = 2..14;

/// A type of device. `CPU`, `CUDA` and `META` are built in; `register_backend` adds others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceType(u8);

/// Names of the user's device types, in slot order.
static USER_NAMES: RwLock<Vec<String>> = RwLock::new(Vec::new());

impl DeviceType {
    /// Host memory.
    pub const CPU: DeviceType = DeviceType(0);
    /// An NVIDIA GPU.
    pub const CUDA: DeviceType = DeviceType(1);
    /// No memory at all: shape, strides and dtype only.
    pub const META: DeviceType = DeviceType(14);

    /// Returns whether the elements of its tensors are in the host's memory.
    pub const fn is_host(self) -> bool {
        self.0 == Self::CPU.0
    }

    /// Returns the number of this type, which is also its backend key's bit.
    pub const fn index(self) -> u8 {
        self.0
    }

    /// Returns the type with that number, if it is built in or registered.
    pub fn from_index(index: u8) -> Option<DeviceType> {
        let known = match index {
            0 | 1 | 14 => true,
            i if USER_DEVICE_TYPES.contains(&i) => {
                usize::from(i - USER_DEVICE_TYPES.start) < names().len()
            }
            _ => false,
        };
        known.then_some(DeviceType(index))
    }

    /// Adds a device type, or finds the one of this name. Names are stored in lower case; the
    /// look-up ignores case.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownKey`] when all twelve slots for user device types are taken.
    pub fn register(name: &str) -> Result<DeviceType> {
        if let Ok(found) = name.parse() {
            return Ok(found);
        }
        let name = name.to_ascii_lowercase();
        let mut names = USER_NAMES.write().unwrap_or_else(|e| e.into_inner());
        // Another thread may have added the name before this one took the lock.
        let slot = match names.iter().position(|n| *n == name) {
            Some(slot) => slot,
            None if names.len() < USER_DEVICE_TYPES.len() => {
                names.push(name);
                names.len() - 1
            }
            None => {
                return Err(Error::new(
                    ErrorKind::UnknownKey,
                    format!(
                        "no place left for the device type {name:?}: all {} of a process are taken \
                         ({}); a name keeps its place when its backend is removed, since tensors, \
                         devices and kernels may still refer to it",
                        USER_DEVICE_TYPES.len(),
                        names.join(", ")
                    ),
                ));
            }
        };
        Ok(DeviceType(USER_DEVICE_TYPES.start + slot as u8))
    }

    /// Returns the name as users write it: `cpu`, `cuda`, `meta`, `npu`.
    pub fn name(self) -> String {
        match self {
            DeviceType::CPU => "cpu".to_owned(),
            DeviceType::CUDA => "cuda".to_owned(),
            DeviceType::META => "meta".to_owned(),
            DeviceType(i) => names()
                .get(usize::from(i - USER_DEVICE_TYPES.start))
                .cloned()
                .unwrap_or_else(|| format!("device{i}")),
        }
    }

    /// Returns every known type's name, built-in ones first.
    pub fn all_names() -> Vec<String> {
        let mut all = vec!["cpu".to_owned(), "cuda".to_owned(), "meta".to_owned()];
        all.extend(names().iter().cloned());
        all
    }

    /// Returns the device name here for another library's name of it.
    pub fn translated(text: &str) -> Option<&'static str> {
        text.eq_ignore_ascii_case("gpu").then_some("cuda")
    }
}

fn names() -> std::sync::RwLockReadGuard<'static, Vec<String>> {
    // A poisoned lock still holds a valid vector, since the only change is a push.
    USER_NAMES.read().unwrap_or_else(|e| e.into_inner())
}

#[cold]
fn unknown(text: &str) -> Error {
    let known = DeviceType::all_names();
    let close = match DeviceType::translated(text) {
        Some(name) => vec![name],
        None => nearest(text, known.iter().map(String::as_str)),
    };
    let hint = match close.first() {
        Some(name) => format!("did you mean \"{name}\"? "),
        None => String::new(),
    };
    Error::new(
        ErrorKind::Device,
        format!("unknown device type {text:?}; {hint}known are {}", known.join(", ")),
    )
}

impl FromStr for DeviceType {
    type Err = Error;

    /// Parses a name in upper or lower case.
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "cpu" => Ok(DeviceType::CPU),
            "cuda" => Ok(DeviceType::CUDA),
            "meta" => Ok(DeviceType::META),
            _ => {
                let slot = names().iter().position(|n| n.eq_ignore_ascii_case(text));
                if let Some(slot) = slot {
                    return Ok(DeviceType(USER_DEVICE_TYPES.start + slot as u8));
                }
                let built_in = [DeviceType::CPU, DeviceType::CUDA, DeviceType::META];
                let found = built_in.into_iter().find(|t| t.name().eq_ignore_ascii_case(text));
                found.ok_or_else(|| unknown(text))
            }
        }
    }
}

impl fmt::Display for DeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl fmt::Debug for DeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceType({self})")
    }
}

/// One device: its type and its ordinal among the devices of that type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device {
    kind: DeviceType,
    index: u8,
}

impl Device {
    /// The host.
    pub const CPU: Device = Device::new(DeviceType::CPU, 0);
    /// The device without memory.
    pub const META: Device = Device::new(DeviceType::META, 0);

    /// Returns the device of that type with that ordinal.
    pub const fn new(kind: DeviceType, index: u8) -> Device {
        Device { kind, index }
    }

    /// Returns the CUDA device with that ordinal.
    pub const fn cuda(index: u8) -> Device {
        Device::new(DeviceType::CUDA, index)
    }

    /// Returns the type of device.
    pub const fn kind(self) -> DeviceType {
        self.kind
    }

    /// Returns the ordinal among devices of its type.
    pub const fn index(self) -> u8 {
        self.index
    }
}

impl Default for Device {
    fn default() -> Self {
        Device::CPU
    }
}

impl FromStr for Device {
    type Err = Error;

    /// Parses `cpu`, `cuda`, `cuda:1`, `npu:0`, in upper or lower case.
    fn from_str(text: &str) -> Result<Self> {
        let (kind, index) = match text.split_once(':') {
            None => (text, 0),
            Some((kind, digits)) => {
                let index = digits.parse::<u8>().map_err(|_| {
                    Error::new(
                        ErrorKind::Device,
                        format!("device {text:?}: the index after the colon must be 0 to 255"),
                    )
                })?;
                (kind, index)
            }
        };
        Ok(Device::new(kind.parse()?, index))
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            DeviceType::CPU | DeviceType::META if self.index == 0 => write!(f, "{}", self.kind),
            _ => write!(f, "{}:{}", self.kind, self.index),
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints() {
        for text in ["cpu", "meta", "cuda:0", "cuda:3"] {
            assert_eq!(text.parse::<Device>().unwrap().to_string(), text);
        }
        assert_eq!("cuda".parse::<Device>().unwrap(), Device::cuda(0));
        assert_eq!("CUDA:1".parse::<Device>().unwrap(), Device::cuda(1));
        assert_eq!("Meta".parse::<Device>().unwrap(), Device::META);
    }

    #[test]
    fn bad_text_is_a_device_error() {
        for text in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:256", "cpu:0:0"] {
            let error = text.parse::<Device>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Device, "{text:?} gave {error}");
        }
    }

    #[test]
    fn register_is_idempotent() {
        let first = DeviceType::register("core_test_device").unwrap();
        assert_eq!(DeviceType::register("core_test_device").unwrap(), first);
        assert_eq!(DeviceType::register("CORE_test_device").unwrap(), first);
        assert_eq!("Core_Test_Device".parse::<DeviceType>().unwrap(), first);
        assert_eq!(first.name(), "core_test_device");
        assert_eq!(DeviceType::from_index(first.index()), Some(first));
        assert_eq!(DeviceType::register("cuda").unwrap(), DeviceType::CUDA);
    }
}
