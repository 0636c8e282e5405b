//! Devices: the registry, tensors in memory hidden from the host, streams, and faults.

mod dlpack;
mod handles;
mod programs;
mod registry;
mod streams;
mod tensors;

use std::fmt::Debug;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use keyfold_backend::delayed::DelayedMemory;
use keyfold_core::{Device, DeviceType, ErrorKind, Result};
use keyfold_tensor::device::{Registration, register};
use keyfold_tensor::{HostBuffer, Tensor};

/// A bit per device type in use. A process has twelve types, fewer than there are tests.
static USED: Mutex<u8> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

/// A registered device of a type of its own, unregistered on drop.
struct Toy {
    number: u32,
    name: String,
    memory: DelayedMemory,
    registration: Registration,
}

impl Toy {
    /// Two devices with three streams each.
    fn new() -> Toy {
        let used = USED.lock().unwrap_or_else(PoisonError::into_inner);
        let used = FREED.wait_while(used, |used| *used == u8::MAX);
        let mut used = used.unwrap_or_else(PoisonError::into_inner);
        let number = used.trailing_ones();
        *used |= 1 << number;
        drop(used);
        let name = format!("toy{number}");
        let memory = DelayedMemory::new(DeviceType::register(&name).unwrap(), 2, 3);
        let registration = register(memory.device(0).kind(), Arc::new(memory.clone())).unwrap();
        Toy { number, name, memory, registration }
    }

    fn device(&self, index: u8) -> Device {
        self.memory.device(index)
    }

    /// As [`refused`], with this device's name in place of `toy` in the words.
    #[track_caller]
    fn refuses<T: Debug>(&self, result: Result<T>, kind: ErrorKind, words: &[&str]) {
        let words: Vec<_> = words.iter().map(|word| word.replace("toy", &self.name)).collect();
        refused(result, kind, &words);
    }
}

impl Drop for Toy {
    fn drop(&mut self) {
        self.registration.remove();
        *USED.lock().unwrap_or_else(PoisonError::into_inner) &= !(1 << self.number);
        FREED.notify_all();
    }
}

/// Returns a tensor's elements as bytes in row-major order.
fn bytes(tensor: &Tensor) -> Result<Vec<u8>> {
    let host = tensor.to_device(Device::CPU)?.copy()?;
    let len = host.nbytes();
    let buffer = host.into_buffer().into_inner::<HostBuffer>().unwrap();
    Ok(buffer.as_bytes()[..len].to_vec())
}

#[track_caller]
fn refused<T: Debug>(result: Result<T>, kind: ErrorKind, words: &[impl AsRef<str>]) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.message().contains(word.as_ref()), "{:?} isn't in: {error}", word.as_ref());
    }
}
