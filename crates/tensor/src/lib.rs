//! keyfold's tensor: typed, strided views of memory that somebody owns.
//!
//! [`Tensor`] is a plain struct: a [`BufferHandle`], a shape, strides, an offset and the dispatch
//! keys. Making a view of an array costs no allocation. [`Value`] and [`ValueRef`] are what travels
//! through the dispatcher, and [`dlpack`] exchanges tensors with other libraries without a copy.
//! [`index`] plans what `x[...]` means. [`device`] has the memories that tensors are made in, the host's and others.
//!
//! # Who may write
//! Tensors share memory. Everything here that reads is safe; whoever writes to shared memory uses
//! an unsafe function or a raw pointer and thereby promises that nobody uses the memory at that
//! time. Memory that other libraries own is subject to the same promise on their side: writing to a
//! NumPy array while a kernel reads it is a data race, here as anywhere.

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
    TrackedBuffer, Watch, cache, memory,
};
pub use process::dispatcher;
pub use strided::{Loops, Walk, for_each_offset};
pub use tensor::{Attached, Overlap, Tensor, overlap};
pub use value::{ForeignObject, IntList, SameAs, TensorList, Value, ValueRef};
