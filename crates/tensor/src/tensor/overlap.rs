//! Overlap of an output's memory with an input's.

use keyfold_core::{Result, layout};

use super::Tensor;

/// The overlap of an output and an input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overlap {
    /// No common element.
    None,
    /// The same elements in the same order, as for an in-place operation.
    Exact,
    /// Possibly common elements at different indices: the input has to be copied first.
    Partial,
}

/// Returns the positions of two tensors' first elements in bytes: addresses, or offsets in a common
/// buffer without an address. `None` if they can't overlap.
#[inline]
fn starts(a: &Tensor, b: &Tensor) -> Option<(usize, usize)> {
    if a.is_pinned() && b.is_pinned() {
        return Some((a.pinned_ptr().addr(), b.pinned_ptr().addr()));
    }
    match (a.address(), b.address()) {
        (0, 0) => {
            let start = |tensor: &Tensor| tensor.offset * tensor.dtype().size();
            (a.buffer.identity() == b.buffer.identity()).then(|| (start(a), start(b)))
        }
        (0, _) | (_, 0) => None,
        found => Some(found),
    }
}

/// Returns the position of the first byte and the one after the last, given that of the first
/// element; `None` without elements.
#[inline]
fn span(tensor: &Tensor, start: usize) -> Result<Option<(usize, usize)>> {
    if tensor.is_contiguous() {
        return Ok((tensor.numel > 0).then(|| (start, start + tensor.nbytes())));
    }
    let size = tensor.dtype().size();
    Ok(layout::reach(tensor.shape(), tensor.strides())?.map(|(low, high)| {
        let first = start.wrapping_add_signed(low * size as isize);
        (first, start.wrapping_add_signed(high * size as isize) + size)
    }))
}

/// Returns the overlap of an output and a pointwise input. It may return [`Overlap::Partial`] for
/// two interleaved layouts without a common element, never the reverse.
///
/// # Errors
/// [`keyfold_core::ErrorKind::Shape`] for a view that overflows the address space.
pub fn overlap(out: &Tensor, input: &Tensor) -> Result<Overlap> {
    let Some((to, from)) = starts(out, input) else { return Ok(Overlap::None) };
    let (Some(written), Some(read)) = (span(out, to)?, span(input, from)?) else {
        return Ok(Overlap::None);
    };
    if written.0 >= read.1 || read.0 >= written.1 {
        return Ok(Overlap::None);
    }
    let same_place =
        to == from && out.dtype().size() == input.dtype().size() && out.shape() == input.shape();
    let mut dims = out.shape().iter().zip(out.strides().iter().zip(input.strides().iter()));
    if same_place && dims.all(|(size, (a, b))| *size <= 1 || a == b) {
        return Ok(Overlap::Exact);
    }
    Ok(if interleaved(out, input, from.wrapping_sub(to) as isize) {
        Overlap::None
    } else {
        Overlap::Partial
    })
}

/// Returns whether the elements of both lie on one grid of strides at different positions, as real
/// and imaginary parts do, or `x[0::2]` and `x[1::2]`. `b` begins `apart` bytes after `a`.
fn interleaved(a: &Tensor, b: &Tensor, apart: isize) -> bool {
    let bytes = |t: &Tensor| {
        let size = t.dtype().size();
        let dims = t.shape().iter().zip(t.strides().iter());
        dims.filter(|(n, _)| **n > 1)
            .fold(0, |grid, (_, stride)| gcd(grid, stride.unsigned_abs() * size))
    };
    let grid = gcd(bytes(a), bytes(b));
    if grid == 0 {
        return false;
    }
    let after = apart.rem_euclid(grid as isize) as usize;
    after >= a.dtype().size() && after + b.dtype().size() <= grid
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
