//! Indexed reads and writes.

mod along_dim;
mod elements;
mod multi_index;
mod picks;
mod positions;
mod ranges;
mod targets;

use std::sync::LazyLock;

use keyfold_backend::{Index, IndexParams, Launch, Offer, Operation, Positions};
use keyfold_core::{DType, Error, ErrorKind, Result};
use keyfold_kit::axes::{ALL_DTYPES, Body, Dtype, HasDtype, TableBuilder};
use keyfold_tensor::Tensor;

use crate::HostBackend;
use crate::bits::{self, Bits};
use crate::element::{HasBits, HasNumber};
use crate::kernel::{BOOL_AND_INTEGERS, Group, HostKernel, NATIVE_FLOATS, Table};

type Kernel = HostKernel<IndexParams>;
type Kernels = Table<(Dtype,), IndexParams>;

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

static KERNELS: LazyLock<Group<(Dtype,), Kernel>> = LazyLock::new(|| {
    Group::new([
        ("take", |name| built(Kernels::builder(name).cover((ALL_DTYPES,), Take))),
        ("put", |name| built(Kernels::builder(name).cover((ALL_DTYPES,), Put))),
        ("put_add", |name| {
            let table = Kernels::builder(name).cover((BOOL_AND_INTEGERS,), PutAdd);
            built(table.cover((NATIVE_FLOATS,), PutAdd))
        }),
        ("gather", |name| built(Kernels::builder(name).cover((ALL_DTYPES,), Gather))),
        ("scatter_add", |name| {
            let table = Kernels::builder(name).cover((BOOL_AND_INTEGERS,), ScatterAdd);
            built(table.cover((NATIVE_FLOATS,), ScatterAdd))
        }),
    ])
});

fn built(table: TableBuilder<(Dtype,), Kernel>) -> Kernels {
    table.build().expect("each dtype is covered once")
}

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

impl Index for HostBackend {
    fn index(&self, op: &'static Operation, elements: DType) -> Offer<&dyn Launch<IndexParams>> {
        KERNELS.offer(op, (elements,))
    }

    fn positions(&self) -> Offer<&dyn Positions> {
        Offer::Native(self)
    }
}
