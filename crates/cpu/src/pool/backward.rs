//! The gradients of pooling: each result's gradient goes to the elements of its window, plane by plane.

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_kit::isa::{self, Isa, Work};
use keyfold_kit::math::Real;

use super::axis::{Ranges, parts};
use super::planes::Planes;
use crate::reduce::blocks::{Input, Sink};

/// Elements that are cleared together, at least those of a plane.
const CLEARED: usize = 1 << 12;

/// Adds up the gradients of the elements of planes, by a function that adds those of a plane's results, with
/// memory for them, and with memory of its own.
fn by_planes<T: Real, M>(
    from: &Planes<Input<T>>,
    to: &Planes<Sink<T>>,
    memory: impl Fn() -> M + Sync,
    add: impl Fn(usize, &[T], &mut [T], &mut M) -> Result<()> + Sync,
) -> Result<()> {
    let elements = to.elements() + from.elements();
    let staged = |in_place: bool, len: usize| if in_place { 0 } else { len };
    parts(to.count, elements, |part| {
        let mut sums = vec![T::ZERO; staged(to.in_place, to.elements())];
        let mut grads = vec![T::ZERO; staged(from.in_place, from.elements())];
        let mut memory = memory();
        // Small planes are cleared together.
        let (adjoin, together) = (to.adjoin(), (CLEARED / to.elements().max(1)).max(1));
        for first in part.clone().step_by(together) {
            let some = first..part.end.min(first + together);
            if adjoin {
                // SAFETY: the planes are inside, and no other thread has them.
                unsafe { to.adjoining(some.clone()).fill(T::ZERO) };
            }
            for plane in some {
                // SAFETY: as above.
                unsafe {
                    let grads = from.plane(plane, &mut grads);
                    to.write_plane(plane, &mut sums, |sums| {
                        if !adjoin {
                            sums.fill(T::ZERO);
                        }
                        add(plane, grads, sums, &mut memory)
                    })?;
                }
            }
        }
        Ok(())
    })
}

/// The gradient of max pooling: that of a result goes to the element at its index.
pub(super) struct MaxBackward<T> {
    pub(super) from: Planes<Input<T>>,
    pub(super) indices: Planes<Input<i64>>,
    pub(super) to: Planes<Sink<T>>,
}

impl<T: Real> MaxBackward<T> {
    pub(super) fn run(&self) -> Result<()> {
        let staged = if self.indices.in_place { 0 } else { self.indices.elements() };
        let memory = || vec![0; staged];
        by_planes(&self.from, &self.to, memory, |plane, grads, sums, stage| {
            // SAFETY: the plane is inside.
            let indices = unsafe { self.indices.plane(plane, stage) };
            for (grad, index) in grads.iter().zip(indices) {
                let at = usize::try_from(*index).ok().and_then(|index| sums.get_mut(index));
                let Some(sum) = at else { return Err(out_of_range(*index, self.to.sizes)) };
                *sum = *sum + *grad;
            }
            Ok(())
        })
    }
}

#[cold]
fn out_of_range(index: i64, sizes: [usize; 3]) -> Error {
    let count: usize = sizes.iter().product();
    let message = format!(
        "argument 'indices': index {index} is out of range for a plane of {count} elements; give \
         the indices that the pooling returned"
    );
    Error::new(ErrorKind::Index, message)
}

/// The gradient of average pooling: each element of a window gets an equal share.
pub(super) struct AverageBackward<T> {
    pub(super) from: Planes<Input<T>>,
    pub(super) to: Planes<Sink<T>>,
    pub(super) ranges: [Ranges<T>; 3],
    pub(super) divisor: Option<T>,
}

impl<T: Real> AverageBackward<T> {
    pub(super) fn run(&self) -> Result<()> {
        let memory = || vec![T::ZERO; self.to.width()];
        by_planes(&self.from, &self.to, memory, |_, grads, sums, shares| {
            isa::dispatch(SpreadPlane { job: self, grads, sums, shares });
            Ok(())
        })
    }
}

/// Adds the gradients of a plane's results to those of its elements.
struct SpreadPlane<'a, T> {
    job: &'a AverageBackward<T>,
    grads: &'a [T],
    sums: &'a mut [T],
    shares: &'a mut [T],
}

impl<T: Real> Work for SpreadPlane<'_, T> {
    type Output = ();
    const AVX512: bool = false;

    #[inline(always)]
    fn run<I: Isa>(self) {
        let SpreadPlane { job, grads, sums, shares } = self;
        let [depth, height, width] = &job.ranges;
        for (row, grads) in grads.chunks_exact(job.from.width().max(1)).enumerate() {
            let (d, h) = (row / job.from.sizes[1], row % job.from.sizes[1]);
            let share = job.divisor.unwrap_or(depth.counts[d] * height.counts[h]);
            spread(grads, width, (share, job.divisor.is_none()), shares);
            for i in depth.of(d) {
                let first = (i * job.to.sizes[1] + height.of(h).start) * shares.len();
                let rows = &mut sums[first..][..height.of(h).len() * shares.len()];
                add_to_rows(rows, shares);
            }
        }
    }
}

/// Divides the gradients of a row of results among the columns of their windows, by the divisor, times the number
/// of columns if it `counts`.
#[inline(always)]
fn spread<T: Real>(grads: &[T], ranges: &Ranges<T>, (share, counts): (T, bool), shares: &mut [T]) {
    shares.fill(T::ZERO);
    for (o, grad) in grads.iter().enumerate() {
        let columns = if counts { ranges.counts[o] } else { T::ONE };
        let grad = *grad / (share * columns);
        for share in &mut shares[ranges.of(o)] {
            *share = *share + grad;
        }
    }
}

/// Adds a row to each of several.
#[inline(always)]
fn add_to_rows<T: Real>(rows: &mut [T], shares: &[T]) {
    for row in rows.chunks_exact_mut(shares.len()) {
        for (sum, share) in row.iter_mut().zip(shares) {
            *sum = *sum + *share;
        }
    }
}
