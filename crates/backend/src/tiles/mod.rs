//! Tiles: some elements of several tensors, which kernels compute one after the other while they are in the
//! cache.
//!
//! A [`Cut`] divides tensors into tiles: some rows each, or a part of a long lane that is reduced. Results
//! that are read later are [`Whole`] tensors, of which each tile writes its [`Part`]; those that only the
//! tile's own kernels read are parts of their own.

mod blocks;
mod cut;
mod memory;

use std::ops::Range;

use keyfold_core::{DType, Device, Error, ErrorKind, Result, Scalar, Shape};
use keyfold_tensor::Tensor;
use smallvec::SmallVec;

use crate::{GpuBackend, GroupKernel, Operation, Pointwise, ReduceParams};

pub use blocks::Broadcast;
pub use cut::{Cut, PartCut, RowBytes, RowCut};
pub use memory::{Part, Whole};

/// A backend's computation tile by tile.
pub trait Tiles: Send + Sync {
    /// Returns the sizes by which rows are cut.
    fn row_bytes(&self) -> RowBytes;

    /// Returns the number of threads that compute at once.
    ///
    /// # Errors
    /// A setting of their number that isn't one.
    fn threads(&self) -> Result<usize>;

    /// Calls `f` with ranges that make up `0..tiles`, on several threads, of which the calling one is
    /// one. What `f` launches has run when it returns.
    ///
    /// # Errors
    /// The first error of `f`; those of the threads.
    fn for_each(&self, tiles: usize, f: &(dyn Fn(Range<usize>) -> Result<()> + Sync))
    -> Result<()>;

    /// Returns a reduction part by part, with the bits of its kernel in [`Reduce`](crate::Reduce); `None`
    /// if that doesn't reduce long lanes so.
    fn reduce_parts(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Option<&dyn ReduceParts>;
}

/// A reduction that divides long lanes into parts, which it reduces each by itself, and whose results it
/// joins in order. Lanes are contiguous, in row-major order of the reduced dimensions.
pub trait ReduceParts: Send + Sync {
    /// Returns the number of elements of a part. A lane of more elements is divided at its multiples.
    fn part(&self) -> usize;

    /// Reduces a part: a contiguous tensor.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] for another tensor; the device's errors.
    fn reduce(&self, params: &ReduceParams, part: &Tensor) -> Result<Partial>;

    /// Joins the results of [`ReduceParts::reduce`] of all parts of lanes of `len` elements each: those of
    /// the first lane, then those of the next one. The contiguous output has an element for each lane, of the
    /// dtype that [`Tiles::reduce_parts`] was given.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] for another number of them; the device's errors.
    ///
    /// # Safety
    /// Until it has run, nothing else accesses the memory of `out`, which is of that dtype.
    unsafe fn join(
        &self,
        params: &ReduceParams,
        len: usize,
        partials: &[Partial],
        out: &Tensor,
    ) -> Result<()>;
}

/// The result of a part, in the bits of the type that the kernel computes in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Partial(pub u128);

/// Returns a backend's computation tile by tile, if it gains from it.
pub fn tiles_of(backend: &dyn GpuBackend) -> Option<&dyn Tiles> {
    match backend.pointwise() {
        Some(Pointwise::Expressions(expressions)) => expressions.tiles(),
        _ => None,
    }
}

/// Computes a group's results into parts, and returns them as tensors.
///
/// # Errors
/// As [`GroupKernel::run`].
pub fn compute_parts(
    kernel: &dyn GroupKernel,
    inputs: &[&Tensor],
    params: &[Scalar],
    parts: SmallVec<[Part; 4]>,
) -> Result<SmallVec<[Tensor; 4]>> {
    let outs: SmallVec<[Tensor; 4]> = parts.into_iter().map(|part| part.0).collect();
    let refs: SmallVec<[&Tensor; 4]> = outs.iter().collect();
    // SAFETY: nothing else refers to the parts' memory, so no input does.
    unsafe { kernel.run(inputs, params, &refs) }?;
    drop(refs);
    Ok(outs)
}

/// A group's input where it computes a range of elements.
#[derive(Clone, Copy, Debug)]
pub enum RangeInput<'a> {
    /// The tensor of this number among those that were broadcast.
    Broadcast(usize),
    /// A contiguous tensor of the range's elements.
    Range(&'a Tensor),
}

/// Computes a range of the elements of a group's results, in row-major order, into parts of so many
/// elements, and returns them as tensors.
///
/// # Errors
/// As [`GroupKernel::run`]; [`ErrorKind::Shape`] for a tensor of another number of elements.
pub fn compute_range(
    kernel: &dyn GroupKernel,
    (broadcast, range): (&Broadcast, Range<usize>),
    inputs: &[RangeInput<'_>],
    params: &[Scalar],
    parts: SmallVec<[Part; 4]>,
) -> Result<SmallVec<[Tensor; 4]>> {
    let outs: SmallVec<[Tensor; 4]> = parts.into_iter().map(|part| part.0).collect();
    let ranges = inputs.iter().filter_map(|input| match input {
        RangeInput::Range(tensor) => Some(*tensor),
        RangeInput::Broadcast(_) => None,
    });
    for tensor in ranges.chain(&outs) {
        if !tensor.is_contiguous() || tensor.numel() != range.len() {
            let (shape, len) = (tensor.shape(), range.len());
            let message = format!("shape {shape:?} isn't a range of {len} elements");
            return Err(Error::new(ErrorKind::Shape, message));
        }
    }
    broadcast.for_each_block(range, |block| {
        let input = |input: &RangeInput<'_>| match input {
            RangeInput::Broadcast(number) => broadcast.block(*number, block),
            RangeInput::Range(tensor) => block.of_range(tensor),
        };
        let inputs = inputs.iter().map(input).collect::<Result<SmallVec<[Tensor; 8]>>>()?;
        let outs = outs.iter().map(|out| block.of_range(out));
        let outs = outs.collect::<Result<SmallVec<[Tensor; 4]>>>()?;
        let inputs: SmallVec<[&Tensor; 8]> = inputs.iter().collect();
        let outs: SmallVec<[&Tensor; 4]> = outs.iter().collect();
        // SAFETY: nothing else refers to the parts' memory, so no input does, and blocks are inside of them.
        unsafe { kernel.run(&inputs, params, &outs) }
    })?;
    Ok(outs)
}

/// Joins the results of all parts of lanes of `len` elements each, of the dtype `input`, into a new tensor of
/// this form, an element for each lane.
///
/// # Errors
/// [`ErrorKind::NotSupported`] if the backend doesn't reduce them part by part; those of the allocation, and as
/// [`ReduceParts::join`].
pub fn join_parts(
    tiles: &dyn Tiles,
    (params, input): (&ReduceParams, DType),
    (len, partials): (usize, &[Partial]),
    (device, shape, dtype): (Device, &Shape, DType),
) -> Result<Tensor> {
    let Some(kernel) = tiles.reduce_parts(params.op, input, dtype) else {
        let message =
            format!("{}: no parts of {input} lanes are joined to {dtype}", params.op.name());
        return Err(Error::new(ErrorKind::NotSupported, message));
    };
    let out = Tensor::empty_of(shape.clone(), dtype, device)?;
    // SAFETY: the output was allocated here, of the kernel's dtype, and nothing else refers to it.
    unsafe { kernel.join(params, len, partials, &out) }?;
    Ok(out)
}
