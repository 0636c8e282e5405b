//! keyfold's tensor: a typed, strided view of shared memory.
//!
//! [`Tensor`] is a plain struct: a [`BufferHandle`], a shape, strides, an offset and the dispatch
//! keys. Making a view of an array allocates nothing. The dispatcher passes [`Value`] and
//! [`ValueRef`]; [`dlpack`] exchanges tensors with other libraries without a copy; [`index`] plans
//! indexing as `x[...]` does; [`device`] has the memories of the host and of other devices.
//!
//! # Who may write
//! Tensors share memory. Reading is safe. Writing to shared memory takes an unsafe function or a
//! raw pointer, whose caller guarantees that nothing else accesses the memory meanwhile. The same
//! holds for other libraries' memory: writing to a NumPy array while a kernel reads it is a data
//! race.

mod buffer;
pub mod device;
pub mod dlpack;
pub mod index;
mod process;
mod strided;
mod tensor;
mod value;

pub use buffer::{
    Adopt, BufferHandle, DeviceBuffer, ExternalOps, ExternalOwner, HostBuffer, Lent, NullBuffer,
    PendingBuffer, PendingSource, TrackedBuffer, Watch, cache, memory,
};
pub use process::dispatcher;
pub use strided::{Loops, Walk, for_each_offset};
pub use tensor::{Attached, Overlap, Tensor, before_lending, overlap};
pub use value::{ForeignObject, IntList, SameAs, TensorList, Value, ValueRef};
