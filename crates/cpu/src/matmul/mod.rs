//! Matrix products, on all threads: the batch, and rows and columns of each result, are the parts that threads
//! take (`parts`), and each part is a product on one thread (`product`). Halves are computed in float32,
//! block by block (`halves`), bfloat16 by the processor's own instructions where it has them (`bf16`). `fused` adds to a product, and activates it, while it is in the cache.

mod bf16;
mod fused;
mod halves;
mod matrix;
mod parts;
mod product;

use std::sync::LazyLock;

use keyfold_backend::{Launch, Linalg, Offer};
use keyfold_core::{DType, Result};
use keyfold_kit::axes::{Body, DispatchTable, Dtype, HALVES, HasDtype};
use keyfold_tensor::Tensor;

use crate::HostBackend;
use crate::bits::{self, Bits};
use crate::element::HasNumber;
use crate::kernel::{BOOL_AND_INTEGERS, HostKernel, NATIVE_FLOATS, offer};
use halves::Factor;
use matrix::{Operands, Sizes};
use parts::{Costs, PART, Part, Place};
use product::{Product, Rows};

/// The epilogue of a part of a result, applied when its product is there.
type Finish<'f, S> = dyn Fn(Place, Sizes, Rows<S>) + Sync + 'f;

/// Computes one product for each index of the batch.
#[inline]
fn multiply<T: Product>(
    a: &Tensor,
    b: &Tensor,
    out: &Tensor,
    finish: Option<&Finish<'_, T::Stored>>,
) -> Result<()> {
    let costs = Costs { nanoseconds: T::NANOSECONDS, part: PART, side: usize::MAX };
    let run = |part: Part<'_, T::Stored>, rows| {
        // SAFETY: the output is contiguous, with elements of that size, and no other code accesses it
        // (`Launch::launch`); parts have no element in common.
        unsafe { T::product(part.sizes, &part.a, &part.b, rows) };
        if let Some(finish) = finish {
            finish(part.place, part.sizes, rows);
        }
    };
    if let Some(part) = Part::single(a, b, &costs)? {
        let (to, step) = (bits::ptr_for_writing(out)?, part.sizes.n);
        run(part, Rows { to, step });
        return Ok(());
    }
    let operands = Operands::<T::Stored>::new(a, b)?;
    let to = Results::new(out, operands.sizes)?;
    operands.for_parts(&costs, |part| {
        let rows = to.rows(part.place);
        run(part, rows);
    })
}

/// The results of a batch of products, one after another.
struct Results<S> {
    to: *mut S,
    /// The rows and columns of one.
    rows: usize,
    columns: usize,
}

// SAFETY: parts that threads write to have no element in common.
unsafe impl<S: Send> Sync for Results<S> {}

impl<S: Bits> Results<S> {
    /// Returns where the results of these operands go.
    ///
    /// # Errors
    /// As [`bits::ptr_for_writing`].
    fn new(out: &Tensor, sizes: Sizes) -> Result<Self> {
        let to = bits::ptr_for_writing(out)?;
        Ok(Results { to, rows: sizes.m, columns: sizes.n })
    }

    /// Returns where a part goes.
    fn rows(&self, place: Place) -> Rows<S> {
        let all = Rows { to: self.to, step: self.columns };
        Rows { to: all.at(place.batch * self.rows + place.row, place.column), ..all }
    }
}

/// Products computed in the dtype itself.
struct Exact;

impl<C: HasDtype<Element: HasNumber<Number: Product>>> Body<C, HostKernel<()>> for Exact {
    fn instance(&self, _: C) -> HostKernel<()> {
        HostKernel::new(|(), inputs, out| {
            multiply::<<C::Element as HasNumber>::Number>(inputs[0], inputs[1], out, None)
        })
    }
}

/// Products of halves, computed in float32 and rounded once, or not rounded for an output of float32.
struct InFloat32;

impl<C: HasDtype<Element: Factor>> Body<C, HostKernel<()>> for InFloat32 {
    fn instance(&self, _: C) -> HostKernel<()> {
        HostKernel::new(|(), inputs, out| {
            halves::multiply::<C::Element>(inputs[0], inputs[1], out, None)
        })
    }
}

static KERNELS: LazyLock<DispatchTable<(Dtype,), HostKernel<()>>> = LazyLock::new(|| {
    DispatchTable::builder("matmul")
        .cover((BOOL_AND_INTEGERS,), Exact)
        .cover((NATIVE_FLOATS,), Exact)
        .cover((HALVES,), InFloat32)
        .build()
        .expect("each dtype is covered once")
});

impl Linalg for HostBackend {
    fn matmul(&self, input: DType, output: DType) -> Offer<&dyn Launch<()>> {
        let widens = matches!(input, DType::F16 | DType::BF16) && output == DType::F32;
        if input != output && !widens {
            return Offer::No(format!("its products of {input} are {input}, not {output}").into());
        }
        offer(&KERNELS, (input,))
    }
}
