//! The geometry of a reduction: the reduced and the kept dimensions, in the order that suits memory
//! best.

use std::ops::Range;

use keyfold_backend::ReduceParams;
use keyfold_core::Dims;
use keyfold_tensor::{Loops, Tensor};

/// The dimensions that are reduced.
pub(crate) struct Reduction {
    params: ReduceParams,
    /// The number of elements in each lane.
    pub(crate) len: usize,
}

impl Reduction {
    /// The reduction of an input.
    pub(crate) fn new(params: &ReduceParams, x: &Tensor) -> Self {
        let reduced = x.shape().iter().enumerate().filter(|(d, _)| params.dims >> d & 1 == 1);
        Reduction { params: *params, len: reduced.map(|(_, size)| size).product() }
    }

    /// Plans the traversal of `x` and a result. If `ordered`, a lane's elements stay in row-major order,
    /// since their indices matter.
    pub(crate) fn geometry(&self, x: &Tensor, out: &Tensor, ordered: bool) -> Geometry {
        if self.len == x.numel() && out.numel() == 1 && x.is_contiguous() {
            return Geometry::one_lane(self.len);
        }
        let mut flags = Dims::<bool>::filled(false, x.ndim()).unwrap_or_default();
        let keeps = self.params.keepdim != 0;
        let mut all = Dims::<Dim>::filled(Dim::default(), x.ndim()).unwrap_or_default();
        let mut at = 0;
        for (d, dim) in all.iter_mut().enumerate() {
            *dim = Dim { size: x.shape()[d], x: x.strides()[d], out: 0 };
            flags[d] = self.params.dims >> d & 1 == 1;
            if !flags[d] {
                dim.out = out.strides()[at];
            }
            at += usize::from(keeps || !flags[d]);
        }
        Geometry::new(&all, &flags, ordered)
    }
}

/// One dimension: its size, and the steps of input and result in elements.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub(crate) struct Dim {
    pub(crate) size: usize,
    pub(crate) x: isize,
    pub(crate) out: isize,
}

/// The kept and the reduced dimensions, each outermost first, without dimensions of size 1, with evenly
/// spaced neighbours merged.
#[derive(Debug)]
pub(crate) struct Geometry {
    pub(crate) kept: Dims<Dim>,
    pub(crate) reduced: Dims<Dim>,
    /// The offset of the traversal's first element: not 0 if a dimension with negative steps is
    /// traversed from its end.
    pub(crate) x_base: isize,
    pub(crate) out_base: isize,
}

impl Geometry {
    /// Divides dimensions by a flag for reduced ones.
    pub(crate) fn new(all: &[Dim], flags: &[bool], ordered: bool) -> Self {
        let (mut x_base, mut out_base) = (0, 0);
        let kept = select_dims(all, flags, false, true, (&mut x_base, &mut out_base));
        let reduced = select_dims(all, flags, true, !ordered, (&mut x_base, &mut out_base));
        Geometry { kept, reduced, x_base, out_base }
    }

    /// One lane of all elements of a contiguous input.
    pub(crate) fn one_lane(len: usize) -> Self {
        let dim = Dim { size: len, x: 1, out: 0 };
        let reduced =
            if len == 1 { Dims::default() } else { Dims::filled(dim, 1).unwrap_or_default() };
        Geometry { kept: Dims::default(), reduced, x_base: 0, out_base: 0 }
    }

    /// Lanes of so many elements, one after another, with a contiguous result.
    pub(crate) fn lanes_of(lanes: usize, len: usize) -> Self {
        let mut geometry = Geometry::one_lane(len);
        if lanes != 1 {
            let dim = Dim { size: lanes, x: len as isize, out: 1 };
            geometry.kept = Dims::filled(dim, 1).unwrap_or_default();
        }
        geometry
    }

    pub(crate) fn lanes(&self) -> usize {
        count(&self.kept)
    }

    pub(crate) fn len(&self) -> usize {
        count(&self.reduced)
    }

    /// Whether elements that are nearest in memory belong to the same lane.
    pub(crate) fn along_rows(&self) -> bool {
        let near = |dims: &[Dim]| dims.last().map_or(usize::MAX, |d| distance(d.x));
        !self.reduced.is_empty() && near(&self.reduced) <= near(&self.kept)
    }

    /// Whether there are few, long lanes side by side, so that gathering each lane is faster than
    /// reducing columns.
    pub(crate) fn is_narrow(&self) -> bool {
        const PARTIALS: usize = 8;
        let (inner, _) = steps(&self.kept);
        let (row, _) = steps(&self.reduced);
        inner.size <= PARTIALS && row.size >= 128 && row.x.unsigned_abs() <= PARTIALS
    }
}

pub(crate) fn count(dims: &[Dim]) -> usize {
    dims.iter().map(|d| d.size).product()
}

/// The key for choosing the innermost dimension: the distance of neighbours; repeated elements (step 0)
/// come outermost.
fn distance(step: isize) -> usize {
    if step == 0 { usize::MAX - 1 } else { step.unsigned_abs() }
}

/// Returns the dimensions whose flag is `wanted`, sorted and traversed forwards unless `ordered`.
fn select_dims(
    all: &[Dim],
    flags: &[bool],
    wanted: bool,
    any_order: bool,
    (x_base, out_base): (&mut isize, &mut isize),
) -> Dims<Dim> {
    let mut loops = Loops::new(2);
    for (dim, _) in all.iter().zip(flags).filter(|(_, flag)| **flag == wanted) {
        loops.push(dim.size, [dim.x, dim.out]);
    }
    if loops.sizes().is_empty() {
        return Dims::default();
    }
    if any_order {
        let mut start = [*x_base, *out_base];
        loops.ascend(0, &mut start);
        [*x_base, *out_base] = start;
        loops.sort_by_key(|steps| distance(steps[0]));
    }
    loops.merge(|_, _| true);
    let sizes = loops.sizes().iter().enumerate();
    let dims = sizes.map(|(d, &size)| Dim { size, x: loops.row(d)[0], out: loops.row(d)[1] });
    let mut picked = Dims::<Dim>::filled(Dim::default(), loops.sizes().len()).unwrap_or_default();
    picked.iter_mut().zip(dims).for_each(|(slot, dim)| *slot = dim);
    picked
}

/// Evenly spaced elements: `rows` rows of `len` elements each, with the steps of the two innermost
/// dimensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) x: isize,
    pub(crate) out: isize,
    pub(crate) rows: usize,
    pub(crate) len: usize,
}

/// Returns the innermost dimension and the one around it.
pub(crate) fn steps(dims: &[Dim]) -> (Dim, Dim) {
    let one = Dim { size: 1, x: 0, out: 0 };
    match dims {
        [] => (one, one),
        [only] => (*only, one),
        [.., outer, inner] => (*inner, *outer),
    }
}

/// Calls `f` with the runs that form a range of row-major indices, in order. A run has several whole
/// rows of the innermost dimension, up to about `most` elements.
#[inline]
pub(crate) fn runs(dims: &[Dim], range: Range<usize>, most: usize, mut f: impl FnMut(Run)) {
    let mut left = range.len();
    if left == 0 {
        return;
    }
    let Some((inner, around)) = dims.split_last() else {
        return f(Run { x: 0, out: 0, rows: 1, len: 1 });
    };
    let mut index = Dims::<usize>::filled(0, dims.len()).unwrap_or_default();
    let (mut x, mut out, mut rest) = (0, 0, range.start);
    for (index, dim) in index.iter_mut().zip(dims).rev() {
        *index = rest % dim.size;
        rest /= dim.size;
        x += dim.x * *index as isize;
        out += dim.out * *index as isize;
    }
    let most_rows = (most / inner.size).max(1);
    let last = around.len();
    loop {
        let at = index[last];
        let len = left.min(inner.size - at);
        let mut rows = 1;
        if let Some(outer) = around.last()
            && len == inner.size
        {
            rows = most_rows.min(left / len).min(outer.size - index[last - 1]);
        }
        f(Run { x, out, rows, len });
        left -= rows * len;
        if left == 0 {
            return;
        }
        // Advance to the next row: back to the start of this row, then up by `rows` rows, with carry.
        x -= inner.x * at as isize;
        out -= inner.out * at as isize;
        index[last] = 0;
        let mut step = rows;
        for (d, dim) in around.iter().enumerate().rev() {
            index[d] += step;
            x += dim.x * step as isize;
            out += dim.out * step as isize;
            if index[d] < dim.size {
                break;
            }
            index[d] = 0;
            x -= dim.x * dim.size as isize;
            out -= dim.out * dim.size as isize;
            step = 1;
        }
    }
}
