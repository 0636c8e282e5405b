//! The plan of a loop: the order and the tiles in which elements are traversed.
//!
//! Dimensions are sorted by the output's steps, dimensions that all views step through evenly are
//! merged, and the result is cut into tiles of a few kilobytes. Within a tile, contiguous rows of a view
//! are used in place; strided rows are gathered into a block first (results are scattered from one), so
//! that the body's loop always runs over contiguous rows.

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_tensor::Loops;
use smallvec::smallvec;

use super::any_view::ViewDescription;
use super::common_dims::common_dims;
use crate::evaluate::NON_TEMPORAL_BYTES;
use crate::view::{FlatDims, Layout, ShortVec, Strided};

/// The bytes of a view's part of a tile if some view is gathered: the parts of all views stay in the L1
/// cache.
const GATHERED_TILE_BYTES: usize = 8 << 10;
/// The bytes of a view's part of a tile if all views are used in place: enough to make the cost of a
/// tile negligible.
const DIRECT_TILE_BYTES: usize = 32 << 10;
/// Rows shorter than this are packed: several dimensions are gathered into one block, since a loop per
/// row would cost too much.
const SHORT_ROW: usize = 32;
/// The columns of a tile in which some view is transposed.
const TRANSPOSED_COLUMNS: usize = 64;

/// A view in the plan.
#[derive(Debug)]
pub(super) struct PlannedView {
    /// The address of the plan's first element.
    pub(super) base: *mut u8,
    /// Bytes per element.
    pub(super) size: usize,
    /// The step along each dimension in bytes.
    pub(super) steps: ShortVec<isize>,
    /// Whether rows (in a packed plan: tiles) are used in place.
    pub(super) direct: bool,
    /// Whether bytes must be normalized to 0 or 1 first.
    pub(super) is_bool: bool,
    /// Whether the view is an input with exactly the output's elements.
    in_place: bool,
    /// The view's dimensions, for finding elements by their linear index if the view has no dimensions
    /// in common with the others: one multiplication per dimension and element.
    pub(super) by_index: Option<Box<FlatDims>>,
}

/// The plan of a loop over several views.
#[derive(Debug)]
pub(super) struct LoopPlan {
    /// The sizes of the dimensions, outermost first; at least one.
    pub(super) sizes: ShortVec<usize>,
    /// The size of a tile along each dimension.
    pub(super) tile_sizes: ShortVec<usize>,
    /// The first dimension of a tile; along the dimensions before it a tile has one index.
    pub(super) first: usize,
    /// Whether a tile is one row of several dimensions; otherwise its rows run along the last dimension.
    pub(super) packed: bool,
    /// Whether results are written by non-temporal stores: large results whose memory isn't read as
    /// well.
    pub(super) non_temporal: bool,
    /// The output, then the inputs.
    pub(super) views: ShortVec<PlannedView>,
    /// For each dimension, the axis of the index that it runs along, and the index's step.
    pub(super) index: ShortVec<(usize, isize)>,
    /// The index of the plan's first element.
    pub(super) origin: ShortVec<usize>,
    /// The number of tiles.
    pub(super) tiles: usize,
}

// SAFETY: the pointers are of views that are borrowed for as long as the plan; the engine makes sure
// that no two threads write the same element.
unsafe impl Sync for LoopPlan {}

impl LoopPlan {
    /// A plan for views with the same number of elements, which isn't 0.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] for a body with an index, if the output is ranked and an input has no
    /// dimensions in common with it.
    pub(super) fn new(
        out: &ViewDescription,
        inputs: &[ViewDescription],
        indexed: bool,
    ) -> Result<LoopPlan> {
        let count = out.count;
        let index: ShortVec<(usize, isize)> = match &out.sizes {
            Some(sizes) => sizes.iter().map(|&size| (size, 1)).collect(),
            None => smallvec![(count, 1)],
        };
        let described: ShortVec<&ViewDescription> = std::iter::once(out).chain(inputs).collect();
        let mut dims: ShortVec<&[(usize, isize)]> =
            described.iter().map(|view| &view.extent.dims[..]).collect();
        if indexed {
            dims.push(&index);
        }
        let common = common_dims(&dims);
        let has_common = common.is_some();
        let (sizes, strides, axes) = match common {
            Some(common) => (common.sizes, common.strides, common.axes),
            None if indexed && out.sizes.is_some() => {
                let message = "map_indexed: a flat input has no dimensions in common with the ranked \
                               output; give a ranked view of it";
                return Err(Error::new(ErrorKind::Shape, message));
            }
            None => (smallvec![count], smallvec![smallvec![1]; dims.len()], smallvec![0]),
        };
        let mut views = ShortVec::new();
        for (view, strides) in described.iter().zip(strides.clone()) {
            let size = view.extent.size;
            let (strides, by_index) = match &view.extent.dims[..] {
                _ if has_common => (strides, None),
                [(_, stride)] => (smallvec![*stride], None),
                dims => {
                    let (shape, strides): (Vec<usize>, Vec<isize>) = dims.iter().copied().unzip();
                    (smallvec![1], Some(Box::new(Strided::flat(&shape, &strides)?)))
                }
            };
            views.push(PlannedView {
                base: view.data,
                size,
                steps: strides.iter().map(|stride| stride * size as isize).collect(),
                direct: false,
                is_bool: view.is_bool,
                in_place: false,
                by_index,
            });
        }
        let index = match indexed {
            true => axes.into_iter().zip(strides[views.len()].iter().copied()).collect(),
            false => smallvec![(0, 0); sizes.len()],
        };
        let origin = smallvec![0; out.sizes.as_ref().map_or(1, |sizes| sizes.len())];
        let (first, tile_sizes) = (0, ShortVec::new());
        let mut plan = LoopPlan {
            sizes,
            tile_sizes,
            first,
            packed: false,
            non_temporal: false,
            views,
            index,
            origin,
            tiles: 0,
        };
        if has_common {
            plan.find_in_place();
            plan.order_dims();
        } else {
            for (view, described) in plan.views.iter_mut().zip(&described).skip(1) {
                view.in_place = described.extent.is_same(&out.extent);
            }
        }
        plan.cut_into_tiles(count, indexed);
        Ok(plan)
    }

    /// Whether an input has exactly the output's elements.
    pub(super) fn is_in_place(&self, input: usize) -> bool {
        self.views[input + 1].in_place
    }

    fn find_in_place(&mut self) {
        let Some((out, inputs)) = self.views.split_first_mut() else { return };
        for input in inputs {
            input.in_place =
                (input.base, input.size, &input.steps) == (out.base, out.size, &out.steps);
        }
    }

    /// Sorts and merges the dimensions: the output's steps become ascending, its smallest ones
    /// innermost, and dimensions that all views step through evenly become one.
    fn order_dims(&mut self) {
        let count = self.views.len();
        let mut loops = Loops::new(count + 1);
        for (d, &size) in self.sizes.iter().enumerate() {
            let (axis, step) = self.index[d];
            if self.views[0].steps[d] < 0
                && let Some(origin) = self.origin.get_mut(axis)
            {
                *origin = origin.wrapping_add_signed((size as isize - 1) * step);
            }
            loops.push(size, self.views.iter().map(|view| view.steps[d]).chain([step]));
        }
        let mut start: ShortVec<isize> = smallvec![0; count + 1];
        loops.ascend(0, &mut start);
        loops.sort_by_key(|steps| {
            let inputs = steps[1..count].iter().map(|step| step.unsigned_abs());
            (steps[0].unsigned_abs(), inputs.fold(0_usize, usize::saturating_add))
        });
        loops.merge(|outer, inner| self.index[outer].0 == self.index[inner].0);
        let dims = 0..loops.sizes().len();
        self.sizes = loops.sizes().into();
        self.index =
            dims.clone().map(|d| (self.index[loops.number(d)].0, loops.row(d)[count])).collect();
        for (n, view) in self.views.iter_mut().enumerate() {
            view.base = view.base.wrapping_offset(start[n]);
            view.steps = dims.clone().map(|d| loops.row(d)[n]).collect();
        }
    }

    /// Selects and reorders the dimensions.
    fn take(&mut self, dims: &[usize], sizes: ShortVec<usize>) {
        self.sizes = sizes;
        self.index = dims.iter().map(|&d| self.index[d]).collect();
        for view in &mut self.views {
            view.steps = dims.iter().map(|&d| view.steps[d]).collect();
        }
    }

    /// Cuts the walk into tiles.
    fn cut_into_tiles(&mut self, count: usize, indexed: bool) {
        if self.sizes.is_empty() {
            self.sizes.push(1);
            self.index.push((0, 0));
            self.views.iter_mut().for_each(|view| view.steps.push(view.size as isize));
        }
        let last = self.sizes.len() - 1;
        let columns = self.sizes[last];
        let plain = |view: &PlannedView, direct: bool| {
            direct && !view.is_bool && !view.in_place && view.by_index.is_none()
        };
        let widest = self.views.iter().map(|view| view.size).max().unwrap_or(1);
        // A small loop has several tiles as well, so that expensive bodies are shared among threads.
        let block = |bytes: usize| (bytes / widest).min((count / 16).max(64));

        self.tile_sizes = smallvec![1; self.sizes.len()];
        self.packed = !indexed && last > 0 && columns < SHORT_ROW;
        if self.packed {
            let mut inside = 1;
            let mut first = last + 1;
            while first > 0 && inside * self.sizes[first - 1] <= block(GATHERED_TILE_BYTES) {
                first -= 1;
                inside *= self.sizes[first];
                self.tile_sizes[first] = self.sizes[first];
            }
            if first > 0 {
                first -= 1;
                self.tile_sizes[first] = (block(GATHERED_TILE_BYTES) / inside).max(1);
            }
            self.first = first;
            for view in &mut self.views {
                let mut step = view.size as isize;
                let dims = self.sizes[first..].iter().zip(&view.steps[first..]).rev();
                let contiguous = dims.into_iter().all(|(&size, &actual)| {
                    let fits = actual == step;
                    step = step.wrapping_mul(size as isize);
                    fits
                });
                view.direct = plain(view, contiguous);
            }
        } else {
            for view in &mut self.views {
                view.direct = plain(view, view.steps[last] == view.size as isize);
            }
            let fresh = !self.views.iter().any(|view| view.in_place);
            self.non_temporal =
                fresh && self.views[0].direct && count * self.views[0].size >= NON_TEMPORAL_BYTES;
            // The body's loop writes a block, which non-temporal stores copy to the output.
            self.views[0].direct &= !self.non_temporal;
            let all_direct = self.views.iter().all(|view| view.direct);
            let block = block(if all_direct { DIRECT_TILE_BYTES } else { GATHERED_TILE_BYTES });
            let across = self.move_transposed_dim();
            self.first = last.saturating_sub(1);
            self.tile_sizes[last] = columns.min(if across { TRANSPOSED_COLUMNS } else { block });
            if last > 0 {
                self.tile_sizes[last - 1] =
                    (block / self.tile_sizes[last]).clamp(1, self.sizes[last - 1]);
            }
        }
        let per_dim =
            self.sizes.iter().zip(&self.tile_sizes).map(|(size, chunk)| size.div_ceil(*chunk));
        self.tiles = per_dim.product();
    }

    /// If an input's elements are nearer to each other along another dimension than along the last one,
    /// moves that dimension next to the last: a tile then has whole cache lines of the input. Returns
    /// whether there is one.
    fn move_transposed_dim(&mut self) -> bool {
        let last = self.sizes.len() - 1;
        let nearest = self.views[1..].iter().find_map(|view| {
            let here = view.steps[last].unsigned_abs();
            let steps = view.steps[..last].iter().map(|step| step.unsigned_abs()).enumerate();
            let near = steps.filter(|(_, step)| *step != 0 && *step < here);
            near.min_by_key(|(_, step)| *step).map(|(d, _)| d)
        });
        let Some(near) = nearest else { return false };
        let mut order: ShortVec<usize> = (0..=last).filter(|d| *d != near).collect();
        order.insert(last - 1, near);
        let sizes = order.iter().map(|&d| self.sizes[d]).collect();
        self.take(&order, sizes);
        true
    }

    /// The bytes that a gathered view needs for a tile.
    pub(super) fn block_bytes(&self, view: &PlannedView) -> usize {
        self.tile_sizes[self.first..].iter().product::<usize>() * view.size
    }
}
