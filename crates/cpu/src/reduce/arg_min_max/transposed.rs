//! Searches in which the outermost searched dimension is contiguous in memory, as in a transposed matrix
//! searched as a whole. First the best along the other dimensions is found for each index of it, as
//! columns; then the best of those.

use keyfold_core::{Dims, Result};

use super::{Best, Search, search_dims};
use crate::reduce::blocks::{Input, Sink};
use crate::reduce::convert::To;
use crate::reduce::geometry::{Dim, Geometry, count, runs, steps};

/// The fewest columns, and the fewest elements in each, for which this is faster than searching the
/// elements in order.
const MIN_SIZES: (usize, usize) = (16, 64);

/// Whether a geometry is searched like this.
pub(super) fn is_transposed(geometry: &Geometry) -> bool {
    let [first, .., last] = &*geometry.reduced else { return false };
    let nearer = |than: &Dim| first.x.unsigned_abs() < than.x.unsigned_abs();
    let enough = first.size >= MIN_SIZES.0 && geometry.len() / first.size >= MIN_SIZES.1;
    enough && first.x != 0 && nearer(last) && geometry.kept.iter().all(nearer)
}

impl<T> To<Best<T>> for Best<T> {
    #[inline(always)]
    fn convert(self) -> Best<T> {
        self
    }
}

/// Writes the indices for a geometry that [`is_transposed`].
///
/// # Errors
/// Those of [`for_parts`](crate::reduce::parallel::for_parts).
pub(super) fn search<S, T>(
    search: &Search<S, T>,
    geometry: &Geometry,
    input: Input<S>,
    sink: Sink<Best<T>>,
) -> Result<()>
where
    S: Copy + 'static,
    T: Copy + Send + Sync + 'static,
{
    let outer = geometry.reduced[0];
    let mut kept = Dims::<Dim>::filled(Dim { out: 1, ..outer }, geometry.kept.len() + 1)?;
    let mut step = outer.size as isize;
    for (to, dim) in kept.iter_mut().zip(&*geometry.kept).rev() {
        *to = Dim { out: step, ..*dim };
        step *= dim.size as isize;
    }
    let reduced = Dims::new(&geometry.reduced[1..])?;
    let each = count(&reduced) as i64;
    let mut found = vec![search.loops.empty; count(&kept)];
    let first = Geometry { kept, reduced, x_base: 0, out_base: 0 };
    search_dims(search, &first, input, Sink::of::<Best<T>>(found.as_mut_ptr().cast()))?;
    let mut lanes = found.chunks_exact(outer.size);
    runs(&geometry.kept, 0..geometry.lanes(), 1, |run| {
        let step = steps(&geometry.kept).0.out;
        for (i, lane) in (0..run.len as isize).zip(&mut lanes) {
            let mut all = search.loops.empty;
            for (best, at) in lane.iter().zip(0..) {
                (search.loops.join)(&mut all, &Best { index: best.index + at * each, ..*best });
            }
            // SAFETY: the traversal of the result stays inside it.
            unsafe { sink.put(&mut [all], run.out + i * step, 1) };
        }
    });
    Ok(())
}
