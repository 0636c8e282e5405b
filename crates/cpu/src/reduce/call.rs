//! Calls of a reduction's kernel: for a whole tensor, for a part of a long lane, or for the join of the
//! parts' results.
//!
//! All of them are calls of one function, so a lane that is reduced part by part has the bits of one that
//! is reduced at once: [`super::rows`] divides it at the same places, and joins in the same order.

use std::cell::Cell;

use keyfold_backend::{Launch, Partial, ReduceParams, ReduceParts};
use keyfold_core::{Element, Error, ErrorKind, Result};
use keyfold_tensor::Tensor;

use super::rows::PART;
use super::{base, out_base};
use crate::bits::Bits;

/// A call of a reduction's kernel.
pub(crate) struct ReduceCall<'a> {
    pub(crate) params: &'a ReduceParams,
    pub(crate) step: Step<'a>,
}

/// The computation that a call asks for.
#[derive(Clone, Copy)]
pub(crate) enum Step<'a> {
    /// Reduces a tensor.
    Whole { x: &'a Tensor, out: &'a Tensor },
    /// Reduces a part of a lane, a contiguous tensor of 1 to [`PART`] elements.
    Part { x: &'a Tensor, to: &'a Cell<Option<Partial>> },
    /// Joins the results of all parts of lanes of `len` elements each, lane after lane.
    Join { len: usize, partials: &'a [Partial], out: &'a Tensor },
}

impl ReduceCall<'_> {
    /// The address of the input's first element; null for a join, which reads none.
    ///
    /// # Errors
    /// If the host can't access it.
    pub(crate) fn base<E: Element>(&self) -> Result<*const u8> {
        match self.step {
            Step::Whole { x, .. } | Step::Part { x, .. } => base::<E>(x),
            Step::Join { .. } => Ok(std::ptr::null()),
        }
    }

    /// The address of the result's first element; null for a part, which writes none.
    ///
    /// # Errors
    /// If the host can't access it, or it is read-only.
    pub(crate) fn out_base(&self) -> Result<*mut u8> {
        match self.step {
            Step::Whole { out, .. } | Step::Join { out, .. } => out_base(out),
            Step::Part { .. } => Ok(std::ptr::null_mut()),
        }
    }
}

/// A kernel of a reduction.
#[derive(Clone)]
pub(crate) struct ReduceKernel(pub(crate) fn(&ReduceCall<'_>) -> Result<()>);

impl Launch<ReduceParams> for ReduceKernel {
    unsafe fn launch(&self, params: &ReduceParams, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
        (self.0)(&ReduceCall { params, step: Step::Whole { x: inputs[0], out } })
    }
}

impl ReduceParts for ReduceKernel {
    fn part(&self) -> usize {
        PART
    }

    fn reduce(&self, params: &ReduceParams, part: &Tensor) -> Result<Partial> {
        if !part.is_contiguous() || !(1..=PART).contains(&part.numel()) {
            let (shape, strides) = (part.shape(), part.strides());
            let message = format!(
                "a part of a lane has from 1 to {PART} adjoining elements, not shape {shape:?} with strides \
                 {strides:?}"
            );
            return Err(Error::new(ErrorKind::Shape, message));
        }
        let to = Cell::new(None);
        (self.0)(&ReduceCall { params, step: Step::Part { x: part, to: &to } })?;
        let none = || Error::new(ErrorKind::NotSupported, "the kernel reduces no parts");
        to.take().ok_or_else(none)
    }

    unsafe fn join(
        &self,
        params: &ReduceParams,
        len: usize,
        partials: &[Partial],
        out: &Tensor,
    ) -> Result<()> {
        let expected = out.numel() * len.div_ceil(PART);
        if !out.is_contiguous() || len == 0 || partials.len() != expected {
            let (count, shape) = (partials.len(), out.shape());
            let message = format!(
                "{count} partial results can't be joined to shape {shape:?}: for lanes of {len} elements they \
                 are {expected}, and the output is contiguous"
            );
            return Err(Error::new(ErrorKind::Shape, message));
        }
        (self.0)(&ReduceCall { params, step: Step::Join { len, partials, out } })
    }
}

/// Returns a number's bits as a partial result.
pub(super) fn to_partial<B: Bits>(bits: B) -> Partial {
    const { assert!(size_of::<B>() <= size_of::<Partial>()) };
    let mut all = 0_u128;
    // SAFETY: the number fits, and is aligned no more than all of them.
    unsafe { (&raw mut all).cast::<B>().write(bits) };
    Partial(all)
}

/// Returns the bits that [`to_partial`] was given.
pub(super) fn from_partial<B: Bits>(Partial(all): Partial) -> B {
    const { assert!(size_of::<B>() <= size_of::<Partial>()) };
    // SAFETY: the number is inside, and aligned no more than all of them; every bit pattern is a value.
    unsafe { (&raw const all).cast::<B>().read() }
}
