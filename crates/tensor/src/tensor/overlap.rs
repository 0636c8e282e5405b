//! Whether memory that is written is also read.

use keyfold_core::{Result, layout};

use super::Tensor;

/// How the memory of an output and that of an input meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overlap {
    /// No element is in both.
    None,
    /// They are the same elements in the same order: computing in place.
    Exact,
    /// They may share elements that aren't at the same index: the input has to be copied first.
    Partial,
}

/// Where the first elements of two tensors are, on a scale that they have in common: addresses, or bytes
/// from the start of one buffer that has no address. `None` where they can't meet.
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

/// The first byte and the one behind the last, by the place of the first element; `None` without elements.
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

/// How an output and an elementwise input meet. It may call two interleaved layouts
/// [`Overlap::Partial`] that have no element in common, never the reverse.
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

/// Whether all elements of both lie on one grid of strides, at different places of it: as the real
/// and the imaginary parts do, or `x[0::2]` and `x[1::2]`. `b` begins `apart` bytes behind `a`.
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
