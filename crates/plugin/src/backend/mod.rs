//! Devices of a plugin: the trait [`Backend`], and the views of tensors and parameters that its
//! methods get.
//!
//! ```
//! use std::sync::{Arc, Mutex};
//!
//! use keyfold_plugin::{
//!     Backend, Content, DType, DeviceTensor, Error, Execution, Groups, Operation, Result,
//! };
//!
//! /// A device with one operation: the sum of two float32 numbers.
//! struct Adder;
//!
//! type Bytes = Arc<Mutex<Vec<u8>>>;
//!
//! /// Returns a tensor's bytes, element by element in row-major order.
//! fn read(tensor: &DeviceTensor<'_, Bytes>) -> Vec<u8> {
//!     let (bytes, size) = (tensor.buffer().lock().unwrap(), tensor.element_size());
//!     tensor.byte_offsets().flat_map(|at| bytes[at..at + size].to_vec()).collect()
//! }
//!
//! fn write(tensor: &DeviceTensor<'_, Bytes>, elements: &[u8]) {
//!     let (mut bytes, size) = (tensor.buffer().lock().unwrap(), tensor.element_size());
//!     for (at, element) in tensor.byte_offsets().zip(elements.chunks(size)) {
//!         bytes[at..at + size].copy_from_slice(element);
//!     }
//! }
//!
//! impl Backend for Adder {
//!     type Buffer = Bytes;
//!     type Event = ();
//!
//!     fn groups(&self) -> Groups {
//!         Groups::POINTWISE
//!     }
//!     fn allocate(&self, _device: u32, bytes: usize, _content: Content) -> Result<Bytes> {
//!         Ok(Arc::new(Mutex::new(vec![0; bytes])))
//!     }
//!     fn upload(&self, bytes: &[u8], to: &DeviceTensor<'_, Bytes>, _stream: u32) -> Result<()> {
//!         write(to, bytes);
//!         Ok(())
//!     }
//!     fn download(
//!         &self,
//!         from: &DeviceTensor<'_, Bytes>,
//!         bytes: &mut [u8],
//!         _stream: u32,
//!     ) -> Result<()> {
//!         bytes.copy_from_slice(&read(from));
//!         Ok(())
//!     }
//!     fn copy(
//!         &self,
//!         from: &DeviceTensor<'_, Bytes>,
//!         to: &DeviceTensor<'_, Bytes>,
//!         _stream: u32,
//!     ) -> Result<()> {
//!         let elements = read(from);
//!         write(to, &elements);
//!         Ok(())
//!     }
//!     fn fill(&self, to: &DeviceTensor<'_, Bytes>, element: &[u8], _stream: u32) -> Result<()> {
//!         write(to, &element.repeat(to.numel()));
//!         Ok(())
//!     }
//!     fn synchronize(&self, _device: u32) -> Result<()> {
//!         Ok(())
//!     }
//!     fn support(&self, operation: &Operation<'_>) -> Result<()> {
//!         match (operation.name(), operation.output()) {
//!             ("add", DType::F32) => Ok(()),
//!             _ => Err(Error::not_supported("it only adds float32")),
//!         }
//!     }
//!     fn execute(&self, call: &Execution<'_, Bytes>) -> Result<()> {
//!         let [a, b] = [read(&call.input(0)?), read(&call.input(1)?)];
//!         let number = |bytes: &[u8]| f32::from_ne_bytes(bytes.try_into().unwrap());
//!         let sums = a.chunks(4).zip(b.chunks(4)).map(|(a, b)| number(a) + number(b));
//!         write(&call.output(0)?, &sums.flat_map(f32::to_ne_bytes).collect::<Vec<_>>());
//!         Ok(())
//!     }
//! }
//!
//! fn register(host: &mut keyfold_plugin::Registrar<'_>) -> Result<()> {
//!     host.device("adder", Adder)
//! }
//!
//! keyfold_plugin::plugin!(register, needs = devices);
//! # fn main() {}
//! ```

mod execution;
mod fields;
mod layout;
mod program;
mod slots;
mod tensor;
#[cfg(test)]
mod tests;

pub use execution::{Execution, Operation, Params, dims};
pub use fields::{Field, Fields};
pub use layout::{ByteOffsets, Layout};
pub use program::{Argument, Compiler, Language, Launch, Source};
pub use tensor::DeviceTensor;

pub(crate) use slots::{register, register_compiler};

use crate::abi::device as abi;
use crate::error::{Error, Result};

/// The required content of new memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Any initialised bytes.
    Arbitrary,
    /// Zeros.
    Zeros,
}

/// A set of groups of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups(pub(crate) u64);

impl Groups {
    /// No operations: the device only has memory.
    pub const NONE: Groups = Groups(0);
    /// `pointwise`: the primitives that every expression is composed of.
    pub const POINTWISE: Groups = Groups(abi::GROUP_POINTWISE);
    /// `reduce`: reductions along dimensions.
    pub const REDUCE: Groups = Groups(abi::GROUP_REDUCE);
    /// `rows`: operations on lanes that keep the shape.
    pub const ROWS: Groups = Groups(abi::GROUP_ROWS);
    /// `linalg`: matrix products.
    pub const LINALG: Groups = Groups(abi::GROUP_LINALG);
    /// `index`: indexing.
    pub const INDEX: Groups = Groups(abi::GROUP_INDEX);
    /// `random`: random numbers.
    pub const RANDOM: Groups = Groups(abi::GROUP_RANDOM);
    /// Cumulative sums and products.
    pub const SCAN: Groups = Groups(abi::GROUP_SCAN);
    /// `norm`: normalizations. It and those below need a host of plugin ABI 1.2, and get
    /// [`Fields`].
    pub const NORM: Groups = Groups(abi::GROUP_NORM);
    /// `linear`: matrix products with an epilogue.
    pub const LINEAR: Groups = Groups(abi::GROUP_LINEAR);
    /// `convolution`: convolutions.
    pub const CONVOLUTION: Groups = Groups(abi::GROUP_CONVOLUTION);
    /// `pool`: pooling over windows.
    pub const POOL: Groups = Groups(abi::GROUP_POOL);
    /// `attention`: scaled-dot-product attention.
    pub const ATTENTION: Groups = Groups(abi::GROUP_ATTENTION);
    /// `recurrent`: cells of recurrent networks.
    pub const RECURRENT: Groups = Groups(abi::GROUP_RECURRENT);
    /// `optim`: steps of optimizers, in place.
    pub const OPTIM: Groups = Groups(abi::GROUP_OPTIM);
    /// `decomposition`: decompositions of matrices, and linear systems.
    pub const DECOMPOSITION: Groups = Groups(abi::GROUP_DECOMPOSITION);
    /// `dropout`: dropout.
    pub const DROPOUT: Groups = Groups(abi::GROUP_DROPOUT);

    /// Returns whether some of these groups need a host of plugin ABI 1.2.
    pub(crate) fn have_fields(self) -> bool {
        self.0 & abi::GROUPS_OF_FIELDS != 0
    }
}

impl std::ops::BitOr for Groups {
    type Output = Groups;

    fn bitor(self, other: Groups) -> Groups {
        Groups(self.0 | other.0)
    }
}

/// Statistics of a device's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes used by buffers.
    pub in_use: u64,
    /// Free bytes kept for later allocations.
    pub cached: u64,
    /// The peak of `in_use` plus `cached`.
    pub peak: u64,
    /// The number of allocations.
    pub allocations: u64,
    /// The limit of `cached`.
    pub limit: u64,
}

#[cold]
fn missing(method: &str) -> Error {
    Error::not_supported(format!("the backend doesn't implement {method}"))
}

/// A device type that a plugin implements, for [`Registrar::device`](crate::Registrar::device).
///
/// Methods are called from any thread, several at a time. Numbers of devices and streams are in
/// range, and tensors are this backend's. Operations on one stream of a device run in the order of
/// the calls; operations on different streams in any order, unless [`Backend::wait`] orders them. A
/// method that fails queues no operation. A panic is an error of the call.
///
/// A backend whose operations run after its methods have returned is
/// [asynchronous](Backend::is_asynchronous). It keeps the memory that a queued operation uses:
/// [`Backend::Buffer`] is dropped with the last tensor that uses it, so the buffer can be an `Arc`
/// of which the operation has a clone. The error of a queued operation is returned by the next
/// [`download`](Backend::download) or [`synchronize`](Backend::synchronize) that waits for it, as a
/// [late](Error::late) one.
pub trait Backend: Send + Sync + 'static {
    /// The memory of one buffer. The host holds it and never looks inside. Its drop releases it.
    type Buffer: Send + Sync + 'static;
    /// A recorded event; `()` for a backend that isn't asynchronous and has one stream.
    type Event: Send + Sync + 'static;

    /// Returns the number of devices, from 1 to 256. Read once, at registration, as the next three.
    fn device_count(&self) -> u32 {
        1
    }

    /// Returns the number of each device's streams, at least 1.
    fn stream_count(&self) -> u32 {
        1
    }

    /// Returns whether operations may run after their methods have returned.
    fn is_asynchronous(&self) -> bool {
        false
    }

    /// Returns the groups of which the backend has operations.
    fn groups(&self) -> Groups;

    /// Allocates memory on a device, usable at once on any stream. `bytes` is at least 1.
    ///
    /// # Errors
    /// [`ErrorKind::Memory`](crate::ErrorKind::Memory) if there is none left.
    fn allocate(&self, device: u32, bytes: usize, content: Content) -> Result<Self::Buffer>;

    /// Copies host bytes to a contiguous part of a buffer.
    ///
    /// # Errors
    /// The device's errors.
    fn upload(
        &self,
        bytes: &[u8],
        target: &DeviceTensor<'_, Self::Buffer>,
        stream: u32,
    ) -> Result<()>;

    /// As [`upload`](Backend::upload), through pinned memory if the device has it.
    ///
    /// # Errors
    /// The device's errors.
    fn upload_pinned(
        &self,
        bytes: &[u8],
        target: &DeviceTensor<'_, Self::Buffer>,
        stream: u32,
    ) -> Result<()> {
        self.upload(bytes, target, stream)
    }

    /// Copies a contiguous part to host bytes. Waits for the stream's earlier operations.
    ///
    /// # Errors
    /// The device's errors, also of earlier operations.
    fn download(
        &self,
        source: &DeviceTensor<'_, Self::Buffer>,
        bytes: &mut [u8],
        stream: u32,
    ) -> Result<()>;

    /// Copies between two parts of equal shape and element size that share no bytes. They may be on
    /// two devices; the stream is the target's.
    ///
    /// # Errors
    /// The device's errors.
    fn copy(
        &self,
        source: &DeviceTensor<'_, Self::Buffer>,
        target: &DeviceTensor<'_, Self::Buffer>,
        stream: u32,
    ) -> Result<()>;

    /// Fills a part with one element.
    ///
    /// # Errors
    /// The device's errors.
    fn fill(
        &self,
        target: &DeviceTensor<'_, Self::Buffer>,
        element: &[u8],
        stream: u32,
    ) -> Result<()>;

    /// Waits for all operations on a device.
    ///
    /// # Errors
    /// The device's errors, also of those operations.
    fn synchronize(&self, device: u32) -> Result<()>;

    /// Records an event, which completes after the stream's earlier operations. Not called for a
    /// backend that isn't asynchronous and has one stream, as the next three.
    ///
    /// # Errors
    /// The device's errors.
    fn record(&self, _device: u32, _stream: u32) -> Result<Self::Event> {
        Err(missing("record"))
    }

    /// Makes later operations on a stream wait for an event, possibly another device's. The host
    /// doesn't wait.
    ///
    /// # Errors
    /// The device's errors.
    fn wait(&self, _device: u32, _stream: u32, _event: &Self::Event) -> Result<()> {
        Err(missing("wait"))
    }

    /// Returns whether an event has completed.
    ///
    /// # Errors
    /// The device's errors.
    fn is_done(&self, _event: &Self::Event) -> Result<bool> {
        Err(missing("is_done"))
    }

    /// Waits for two events and returns the nanoseconds from the first to the second.
    ///
    /// # Errors
    /// The device's errors.
    fn elapsed(&self, _start: &Self::Event, _end: &Self::Event) -> Result<i64> {
        Err(missing("elapsed"))
    }

    /// Returns statistics of a device's memory. `counted` has the host's own counts, without free
    /// memory that the backend keeps.
    ///
    /// # Errors
    /// The device's errors.
    fn statistics(&self, _device: u32, counted: Statistics) -> Result<Statistics> {
        Ok(counted)
    }

    /// Sets the limit in bytes of a device's free memory kept for later allocations, and frees the
    /// excess; `None` for the default. The default implementation is for a backend that keeps none
    /// and so is within every limit; `counted` of [`statistics`](Backend::statistics) has the limit.
    ///
    /// # Errors
    /// The device's errors.
    fn set_limit(&self, _device: u32, _limit: Option<u64>) -> Result<()> {
        Ok(())
    }

    /// Returns `Ok` if [`execute`](Backend::execute) runs an operation, else the reason why it
    /// doesn't. The answer depends on the operation only; one with an unknown name must be refused.
    ///
    /// # Errors
    /// The reason.
    fn support(&self, _operation: &Operation<'_>) -> Result<()> {
        Err(missing("support"))
    }

    /// Runs an operation, or queues it on the call's stream.
    ///
    /// # Errors
    /// The device's errors; [`Error::fault`] for a false element of the primitive `check`.
    fn execute(&self, _call: &Execution<'_, Self::Buffer>) -> Result<()> {
        Err(missing("execute"))
    }

    /// Counts the true elements of a bool tensor, for `positions` of the group `index`. Waits for
    /// the stream's earlier operations.
    ///
    /// # Errors
    /// The device's errors, also of earlier operations.
    fn count_true(&self, _mask: &DeviceTensor<'_, Self::Buffer>, _stream: u32) -> Result<u64> {
        Err(missing("count_true"))
    }
}
