//! Indexed reads and writes.

mod along_dim;
mod multi_index;
mod positions;

use std::sync::LazyLock;

use keyfold_backend::{Index, IndexOp, IndexParams, Launch, Offer, Positions};
use keyfold_core::{DType, Error, ErrorKind, Result};
use keyfold_kit::axes::{ALL_DTYPES, Body, DispatchTable, Dtype, HasDtype};
use keyfold_tensor::Tensor;

use crate::HostBackend;
use crate::bits::{self, Bits};
use crate::element::{HasBits, HasNumber};
use crate::kernel::{BOOL_AND_INTEGERS, HostKernel, NATIVE_FLOATS, offer};

type Kernel = HostKernel<IndexParams>;
type Kernels = DispatchTable<(Dtype,), Kernel>;

struct Take;
struct Put;
struct PutAdd;
struct Gather;
struct ScatterAdd;

impl<C: HasDtype<Element: HasBits>> Body<C, Kernel> for Take {
    fn instance(&self, _: C) -> Kernel {
        HostKernel::new(multi_index::take::<<C::Element as HasBits>::Bits>)
    }
}

impl<C: HasDtype<Element: HasBits>> Body<C, Kernel> for Put {
    fn instance(&self, _: C) -> Kernel {
        HostKernel::new(multi_index::put::<<C::Element as HasBits>::Bits>)
    }
}

impl<C: HasDtype<Element: HasNumber>> Body<C, Kernel> for PutAdd {
    fn instance(&self, _: C) -> Kernel {
        HostKernel::new(multi_index::put_add::<<C::Element as HasNumber>::Number>)
    }
}

impl<C: HasDtype<Element: HasBits>> Body<C, Kernel> for Gather {
    fn instance(&self, _: C) -> Kernel {
        HostKernel::new(along_dim::gather::<<C::Element as HasBits>::Bits>)
    }
}

impl<C: HasDtype<Element: HasNumber>> Body<C, Kernel> for ScatterAdd {
    fn instance(&self, _: C) -> Kernel {
        HostKernel::new(along_dim::scatter_add::<<C::Element as HasNumber>::Number>)
    }
}

/// The kernels' tables, in the order of [`IndexOp::ALL`].
static KERNELS: LazyLock<[Kernels; 5]> = LazyLock::new(|| {
    let tables = [
        DispatchTable::builder("take").cover((ALL_DTYPES,), Take).build(),
        DispatchTable::builder("put").cover((ALL_DTYPES,), Put).build(),
        DispatchTable::builder("put_add")
            .cover((BOOL_AND_INTEGERS,), PutAdd)
            .cover((NATIVE_FLOATS,), PutAdd)
            .build(),
        DispatchTable::builder("gather").cover((ALL_DTYPES,), Gather).build(),
        DispatchTable::builder("scatter_add")
            .cover((BOOL_AND_INTEGERS,), ScatterAdd)
            .cover((NATIVE_FLOATS,), ScatterAdd)
            .build(),
    ];
    tables.map(|table| table.expect("each dtype is covered once"))
});

/// Calls `f` with the elements of a contiguous output.
///
/// # Errors
/// If the output's memory can't be accessed or written, or isn't contiguous; and the errors of `f`.
fn write<B: Bits>(out: &Tensor, f: impl FnOnce(&mut [B]) -> Result<()>) -> Result<()> {
    if !out.is_contiguous() {
        let message = format!("the output of shape {:?} isn't contiguous", out.shape());
        return Err(Error::new(ErrorKind::Value, message));
    }
    let to = bits::ptr_for_writing::<B>(out)?;
    // SAFETY: the output is contiguous, with elements of that size, and no other code accesses it
    // (`Launch::launch`).
    f(unsafe { std::slice::from_raw_parts_mut(to, out.numel()) })
}

#[cold]
fn out_of_range(position: i64, dim: usize, size: usize) -> Error {
    let message = format!("index {position} is out of range for dimension {dim} of size {size}");
    Error::new(ErrorKind::Index, message)
}

impl Index for HostBackend {
    fn index(&self, op: IndexOp, elements: DType) -> Offer<&dyn Launch<IndexParams>> {
        offer(&KERNELS[op as usize - 1], (elements,))
    }

    fn positions(&self) -> Offer<&dyn Positions> {
        Offer::Native(self)
    }
}
