//! Which dimensions are reduced, and in which order memory is walked best.

use std::ops::Range;

use keyfold_backend::ReduceParams;
use keyfold_core::Dims;
use keyfold_tensor::{Loops, Tensor};

/// Which dimensions are reduced.
pub(crate) struct Reduction {
    params: ReduceParams,
    /// How many elements each lane has.
    pub(crate) len: usize,
}

impl Reduction {
    /// Of an input.
    pub(crate) fn new(params: &ReduceParams, x: &Tensor) -> Self {
        let reduced = x.shape().iter().enumerate().filter(|(d, _)| params.dims >> d & 1 == 1);
        Reduction { params: *params, len: reduced.map(|(_, size)| size).product() }
    }

    /// How to walk `x` and a result. `ordered` keeps the row-major order of a lane's elements, for
    /// those whose places count.
    pub(crate) fn geometry(&self, x: &Tensor, out: &Tensor, ordered: bool) -> Geometry {
        if self.len == x.numel() && out.numel() == 1 && x.is_contiguous() {
            return Geometry::of_all(self.len);
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

/// One dimension: its size and the steps, in elements, of input and result.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub(crate) struct Dim {
    pub(crate) size: usize,
    pub(crate) x: isize,
    pub(crate) out: isize,
}

/// The dimensions that stay and those that are reduced, each with the outermost first, without
/// those of size 1, and merged where one steps over exactly the next.
#[derive(Debug)]
pub(crate) struct Geometry {
    pub(crate) kept: Dims<Dim>,
    pub(crate) reduced: Dims<Dim>,
    /// Where the walk begins, in elements from the first: elsewhere where a dimension is walked
    /// from its end, since its steps were negative.
    pub(crate) x_base: isize,
    pub(crate) out_base: isize,
}

impl Geometry {
    /// Of dimensions, by flag those that are reduced.
    pub(crate) fn new(all: &[Dim], flags: &[bool], ordered: bool) -> Self {
        let (mut x_base, mut out_base) = (0, 0);
        let kept = pick(all, flags, false, true, (&mut x_base, &mut out_base));
        let reduced = pick(all, flags, true, !ordered, (&mut x_base, &mut out_base));
        Geometry { kept, reduced, x_base, out_base }
    }

    /// One lane of all the elements of a contiguous input.
    fn of_all(len: usize) -> Self {
        let dim = Dim { size: len, x: 1, out: 0 };
        let reduced =
            if len == 1 { Dims::default() } else { Dims::filled(dim, 1).unwrap_or_default() };
        Geometry { kept: Dims::default(), reduced, x_base: 0, out_base: 0 }
    }

    pub(crate) fn lanes(&self) -> usize {
        count(&self.kept)
    }

    pub(crate) fn len(&self) -> usize {
        count(&self.reduced)
    }

    /// Whether the elements that are nearest in memory belong to one lane.
    pub(crate) fn along_rows(&self) -> bool {
        let near = |dims: &[Dim]| dims.last().map_or(usize::MAX, |d| distance(d.x));
        !self.reduced.is_empty() && near(&self.reduced) <= near(&self.kept)
    }

    /// Whether lanes side by side are long and so few that each is better done on its own, its
    /// elements copied together.
    pub(crate) fn is_narrow(&self) -> bool {
        const FEW: usize = 8;
        let (inner, _) = steps(&self.kept);
        let (row, _) = steps(&self.reduced);
        inner.size <= FEW && row.size >= 128 && row.x.unsigned_abs() <= FEW
    }
}

pub(crate) fn count(dims: &[Dim]) -> usize {
    dims.iter().map(|d| d.size).product()
}

/// How far apart neighbours are, for choosing the innermost dimension: repeated elements are best
/// left to the outside.
fn distance(step: isize) -> usize {
    if step == 0 { usize::MAX - 1 } else { step.unsigned_abs() }
}

/// The dimensions whose flag is `wanted`; sorted, and walked forwards, if they may be.
fn pick(
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

/// Evenly spaced elements: `rows` of `len` each, by the steps of the two innermost dimensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) x: isize,
    pub(crate) out: isize,
    pub(crate) rows: usize,
    pub(crate) len: usize,
}

/// Steps of the innermost dimension, and of the one around it.
pub(crate) fn steps(dims: &[Dim]) -> (Dim, Dim) {
    let one = Dim { size: 1, x: 0, out: 0 };
    match dims {
        [] => (one, one),
        [only] => (*only, one),
        [.., outer, inner] => (*inner, *outer),
    }
}

/// Calls `f` with the runs that make up a range of the row-major indices, in order; several whole
/// rows of the innermost dimension in one, up to about `most` elements.
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
        // To the next row: back to the start of this one, then up by `rows` rows, with carry.
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
