//! Devices: allocation of tensors' memory, and copies between memories.
//!
//! Each type of device has one [`Memory`], which allocates, copies, fills, uploads and downloads.
//! [`HostMemory`] and [`MetaMemory`] are built in; backends register others here. Tensors use it to
//! allocate, copy and read: the host reads a device's bytes only by [`Memory::download`], and a
//! result is on its operands' device unless another one is requested.
//!
//! # Examples
//! ```
//! use keyfold_core::{DType, Device, ErrorKind};
//! use keyfold_tensor::Tensor;
//! use keyfold_tensor::device::{self, Content, Memory, Part, StreamId};
//!
//! // The memory of a tensor on the CPU.
//! let memory = device::memory_of(Device::CPU)?;
//! let buffer = memory.allocate(Device::CPU, 16, Content::Zeros)?;
//! let part = Part::new(&*buffer, 4, &[2, 3], &[6, 2], 1)?;
//! // SAFETY: nobody else has the buffer.
//! unsafe { memory.fill(&part, &[7], StreamId::DEFAULT)? };
//! let mut bytes = [0; 16];
//! memory.download(&Part::new(&*buffer, 0, &[16], &[1], 1)?, &mut bytes, StreamId::DEFAULT)?;
//! assert_eq!(bytes, [0, 0, 0, 0, 7, 0, 7, 0, 7, 0, 7, 0, 7, 0, 7, 0]);
//!
//! // A copy to another device happens where that device is named.
//! let x = Tensor::from_slice(&[1.0_f32, 2.0], &[2])?;
//! assert_eq!(x.to_device(Device::META)?.device(), Device::META);
//!
//! // A device that isn't there is an error that lists those that are.
//! let error = Tensor::zeros(&[2], DType::F32, Device::cuda(0)).unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::Device);
//! assert!(error.message().contains("devices with memory are cpu, meta"), "{error}");
//! # Ok::<(), keyfold_core::Error>(())
//! ```

mod copy;
mod event;
mod host;
mod memory;
mod meta;
pub mod random;
mod random_serde;
mod registry;
mod statistics;
mod stream;
mod transfer;

pub use copy::{Share, share_copies};
pub(crate) use copy::{copy_bytes, copy_elements, is_large};
pub use event::Event;
pub use host::HostMemory;
pub use memory::{Content, Memory, Part};
pub use meta::MetaMemory;
pub use registry::{MemoryRef, Refused, Registration, devices, memory, memory_of, register};
pub use statistics::Statistics;
pub use stream::{StreamId, check_stream, current_stream, set_current_stream};
pub use transfer::transfer;
pub(crate) use transfer::{allocate, allocate_in, copy_within};
