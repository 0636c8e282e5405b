//! The device's memory: bytes that only the device sees.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyfold_plugin::{DeviceTensor, Error, ErrorKind, Layout, Number, Result};

/// A buffer. An operation has clones of those that it works on.
pub type Buffer = Arc<Mutex<Vec<u8>>>;

pub fn allocate(bytes: usize) -> Result<Buffer> {
    let mut memory = Vec::new();
    let made = memory.try_reserve_exact(bytes);
    made.map_err(|_| Error::new(ErrorKind::Memory, format!("there are no {bytes} bytes left")))?;
    memory.resize(bytes, 0);
    Ok(Arc::new(Mutex::new(memory)))
}

/// A tensor: a buffer, and where in it the elements are.
pub struct View {
    buffer: Buffer,
    pub layout: Layout,
}

impl View {
    pub fn new(tensor: &DeviceTensor<'_, Buffer>) -> View {
        View { buffer: Arc::clone(tensor.buffer()), layout: tensor.layout() }
    }

    fn memory(&self) -> MutexGuard<'_, Vec<u8>> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the elements' bytes in row-major order.
    pub fn bytes(&self) -> Vec<u8> {
        let (memory, size) = (self.memory(), self.layout.dtype().size());
        self.layout.offsets().flat_map(|at| memory[at..at + size].to_vec()).collect()
    }

    /// Writes the elements' bytes in row-major order.
    pub fn set_bytes(&self, bytes: &[u8]) {
        let (mut memory, size) = (self.memory(), self.layout.dtype().size());
        for (at, element) in self.layout.offsets().zip(bytes.chunks_exact(size)) {
            memory[at..at + size].copy_from_slice(element);
        }
    }

    fn read(&self, offsets: impl Iterator<Item = usize>) -> Vec<Number> {
        let memory = self.memory();
        offsets.map(|at| Number::read(self.layout.dtype(), &memory[at..])).collect()
    }

    fn write(
        &self,
        offsets: impl Iterator<Item = usize>,
        numbers: impl IntoIterator<Item = Number>,
    ) {
        let mut memory = self.memory();
        for (at, number) in offsets.zip(numbers) {
            number.write(self.layout.dtype(), &mut memory[at..]);
        }
    }

    /// Returns the elements in row-major order.
    pub fn numbers(&self) -> Vec<Number> {
        self.read(self.layout.offsets())
    }

    /// Writes the elements in row-major order.
    pub fn set(&self, numbers: impl IntoIterator<Item = Number>) {
        self.write(self.layout.offsets(), numbers);
    }

    /// Returns the elements along some dimensions, for each index of the others.
    pub fn lanes(&self, dims: u64) -> Vec<Vec<Number>> {
        self.layout.lanes(dims).map(|lane| self.read(lane)).collect()
    }

    /// Writes the elements along some dimensions, for each index of the others.
    pub fn set_lanes(&self, dims: u64, numbers: impl IntoIterator<Item = Number>) {
        self.write(self.layout.lanes(dims).flatten(), numbers);
    }

    /// Returns a number converted to the elements' dtype.
    pub fn converted(&self, number: Number) -> Number {
        let mut bytes = [0; 16];
        number.write(self.layout.dtype(), &mut bytes);
        Number::read(self.layout.dtype(), &bytes)
    }

    /// Returns the tensor repeated to another shape.
    pub fn broadcast_to(&self, shape: &[usize]) -> View {
        View { buffer: Arc::clone(&self.buffer), layout: self.layout.broadcast_to(shape) }
    }

    /// Returns the element at an index.
    pub fn get(&self, index: &[usize]) -> Number {
        Number::read(self.layout.dtype(), &self.memory()[self.layout.offset_of(index)..])
    }

    /// Writes the element at an index.
    pub fn put(&self, index: &[usize], number: Number) {
        number.write(self.layout.dtype(), &mut self.memory()[self.layout.offset_of(index)..]);
    }
}
