//! keyfold's CPU backend: every group of operations, on host memory.
//!
//! Its kernels are written with `keyfold-kit`, and their instances are selected through the kit's
//! tables.
//!
//! ```
//! use keyfold_backend::{GpuBackend, Support};
//! use keyfold_core::DType;
//! use keyfold_cpu::HostBackend;
//! use keyfold_tensor::Tensor;
//!
//! let linalg = HostBackend.linalg().expect("the CPU has every group");
//! assert_eq!(linalg.matmul(DType::F32, DType::F32).support(), Support::Native);
//!
//! let a = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], &[2, 2])?;
//! let out = Tensor::from_slice(&[0.0_f32; 4], &[2, 2])?;
//! let kernel = linalg.matmul(DType::F32, DType::F32).kernel().expect("it is native");
//! // SAFETY: no other code accesses the output.
//! unsafe { kernel.launch(&(), &[&a, &a], &out)? };
//! assert_eq!(out.to_vec::<f32>()?, [7.0, 10.0, 15.0, 22.0]);
//! # Ok::<(), keyfold_core::Error>(())
//! ```

mod attention;
mod bits;
mod convert;
mod convolution;
mod decomposition;
mod dropout;
mod element;
mod epilogue;
mod index;
mod kernel;
mod matmul;
mod norm;
mod optim;
mod pointwise;
mod pool;
mod random;
mod recurrent;
mod reduce;
mod scan;

use std::any::Any;
use std::sync::Arc;

use keyfold_backend::{GpuBackend, Groups, Index, Linalg, Pointwise, Random, Reduce, Rows, Scan};
use keyfold_kit::pool::{Schedule, parallel_for};
use keyfold_tensor::device::{HostMemory, Memory, share_copies};

/// The CPU: every group of operations, and the reference for other backends. Kernels run on the calling
/// thread and on the kit's thread pool, and are complete when the call returns.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostBackend;

impl HostBackend {
    /// Makes large copies on the host use the kit's thread pool from now on ([`share_copies`]). Returns
    /// whether they do.
    pub fn share_copies() -> bool {
        share_copies(|parts, copy| {
            parallel_for(Schedule::Adaptive, 0..parts, 1, |parts| {
                parts.for_each(copy);
                Ok(())
            })
        })
    }
}

impl GpuBackend for HostBackend {
    fn name(&self) -> &str {
        "host"
    }

    fn memory(&self) -> Arc<dyn Memory> {
        Arc::new(HostMemory)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn pointwise(&self) -> Option<Pointwise<'_>> {
        Some(Pointwise::Expressions(self))
    }

    fn reduce(&self) -> Option<&dyn Reduce> {
        Some(self)
    }

    fn rows(&self) -> Option<&dyn Rows> {
        Some(self)
    }

    fn scan(&self) -> Option<&dyn Scan> {
        Some(self)
    }

    fn linalg(&self) -> Option<&dyn Linalg> {
        Some(self)
    }

    fn index(&self) -> Option<&dyn Index> {
        Some(self)
    }

    fn random(&self) -> Option<&dyn Random> {
        Some(self)
    }

    fn groups(&self) -> Groups<'_> {
        Groups {
            norm: Some(self),
            linear: Some(self),
            dropout: Some(self),
            optim: Some(self),
            recurrent: Some(self),
            attention: Some(self),
            convolution: Some(self),
            decomposition: Some(self),
            pool: Some(self),
        }
    }
}
