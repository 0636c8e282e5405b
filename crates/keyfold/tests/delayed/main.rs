//! Operators and layers on an asynchronous device with hidden memory: results equal the CPU's.

mod layers;
mod mistakes;
mod operators;
mod programs;
mod refusals;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use keyfold::backend::Group;
use keyfold::backend::delayed::{Delayed, DelayedMemory};
use keyfold::backend::{GpuBackend, Registration, register};
use keyfold::cpu::HostBackend;
use keyfold::{DType, Device, DeviceType, Result, Tensor, Value, ValueRef, dispatcher};

/// A bit per device type in use. A process has twelve types, fewer than there are tests.
static USED: Mutex<u8> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

/// A registered device of a type of its own, unregistered on drop.
struct Toy {
    number: u32,
    memory: DelayedMemory,
    registration: Registration,
}

impl Toy {
    /// Two devices with three streams each and all groups of operations.
    fn new() -> Toy {
        Toy::without(None)
    }

    /// As `new`, without one group.
    fn without(group: Option<Group>) -> Toy {
        let used = USED.lock().unwrap_or_else(PoisonError::into_inner);
        let used = FREED.wait_while(used, |used| *used == u8::MAX);
        let mut used = used.unwrap_or_else(PoisonError::into_inner);
        let number = used.trailing_ones();
        *used |= 1 << number;
        drop(used);
        keyfold::init();
        let kind = DeviceType::register(&format!("toy{number}")).unwrap();
        let memory = DelayedMemory::new(kind, 2, 3);
        let all = Delayed::over(Arc::new(HostBackend), memory.clone());
        let backend = group.into_iter().fold(all, Delayed::without);
        let registration = register(kind, Arc::new(backend) as Arc<dyn GpuBackend>).unwrap();
        Toy { number, memory, registration }
    }

    fn device(&self, index: u8) -> Device {
        self.memory.device(index)
    }

    fn kind(&self) -> DeviceType {
        self.device(0).kind()
    }
}

impl Drop for Toy {
    fn drop(&mut self) {
        self.registration.remove();
        *USED.lock().unwrap_or_else(PoisonError::into_inner) &= !(1 << self.number);
        FREED.notify_all();
    }
}

/// Locks the CPU's random numbers until the result is dropped.
fn random_numbers() -> MutexGuard<'static, ()> {
    static DRAWN: Mutex<()> = Mutex::new(());
    DRAWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls an operator by its name.
fn call(name: &str, args: &[ValueRef<'_>]) -> Result<Tensor> {
    dispatcher().call(name, args)?.into_tensor()
}

/// Calls an operator of tensors only.
fn on(name: &str, tensors: &[&Tensor]) -> Result<Tensor> {
    let args: Vec<ValueRef<'_>> = tensors.iter().map(|t| ValueRef::Tensor(t)).collect();
    call(name, &args)
}

/// Returns different numbers of a dtype, row by row, zero and negative ones among them.
fn data(shape: &[usize], dtype: DType, seed: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let item = |i: usize| ((i * 5 + seed * 3 + 7) % 11) as f64 / 2.0 - 2.0;
    let numbers = Tensor::from_vec((0..count).map(item).collect::<Vec<f64>>(), shape).unwrap();
    call("aten::to", &[ValueRef::Tensor(&numbers), ValueRef::DType(dtype)]).unwrap()
}

/// Returns integers from 0 to 2.
fn positions(shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let items = (0..count).map(|i| (i * 2 % 3) as i64).collect::<Vec<_>>();
    Tensor::from_vec(items, shape).unwrap()
}

/// Returns dtype, shape, and the elements as bytes in row-major order, copied to the host.
fn seen(tensor: &Tensor) -> Result<(DType, Vec<usize>, Vec<u8>)> {
    let host = tensor.to_device(Device::CPU)?.copy()?;
    let pointer = host.raw_data_ptr()?;
    let bytes = match host.nbytes() {
        0 => Vec::new(),
        // SAFETY: a new contiguous tensor of the host has `len` bytes, all initialised.
        len => unsafe { std::slice::from_raw_parts(pointer, len) }.to_vec(),
    };
    Ok((host.dtype(), host.shape().to_vec(), bytes))
}

/// Returns a value with its tensors on a device, and its devices replaced by that one.
fn moved(value: &Value, device: Device) -> Result<Value> {
    Ok(match value {
        Value::Tensor(tensor) => Value::Tensor(tensor.to_device(device)?),
        Value::Device(_) => Value::Device(device),
        Value::List(items) => {
            Value::List(items.iter().map(|item| moved(item, device)).collect::<Result<_>>()?)
        }
        other => other.clone(),
    })
}

/// Borrows values as arguments.
fn borrowed(values: &[Value]) -> Vec<ValueRef<'_>> {
    use keyfold::dispatch::Value as _;
    values.iter().map(Value::as_ref).collect()
}
