//! In which order and in what blocks the elements are walked.
//!
//! Dimensions are sorted by the output's steps, those that all views step through evenly are merged,
//! and what is left is cut into tiles of a few kilobytes. Within a tile the rows of a view that lie
//! without gaps are used where they are; those of others are gathered into a block first (results:
//! scattered from one), so that the body's loop always runs over plain rows.

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_tensor::Loops;
use smallvec::smallvec;

use super::operand::Described;
use super::refine::refine;
use crate::evaluate::STREAMED;
use crate::view::{Few, FlatDims, Layout, Strided};

/// The bytes of a view's part of a tile, where some view is gathered: all parts stay in the first
/// cache.
const BLOCK_BYTES: usize = 8 << 10;
/// And where all are used in place: enough to forget what a tile costs.
const DIRECT_BYTES: usize = 32 << 10;
/// Rows shorter than this aren't worth a loop each: several dimensions are gathered into one block.
const SHORT_ROW: usize = 32;
/// The columns of a tile in which some view runs across the rows.
const TRANSPOSED_COLUMNS: usize = 64;

/// One view in the walk.
#[derive(Debug)]
pub(super) struct Stream {
    /// The element that the walk begins with.
    pub(super) base: *mut u8,
    /// Bytes per element.
    pub(super) size: usize,
    /// The step along each dimension in bytes.
    pub(super) steps: Few<isize>,
    /// Whether rows (in a packed plan: tiles) are used where they lie.
    pub(super) direct: bool,
    /// Whether bytes have to become 0 or 1 first.
    pub(super) is_bool: bool,
    /// Whether it is an input with exactly the output's elements.
    in_place: bool,
    /// Finds elements by their linear index, where this view has no dimensions in common with the
    /// others: one multiplication per dimension and element.
    pub(super) by_index: Option<Box<FlatDims>>,
}

/// The walk.
#[derive(Debug)]
pub(super) struct Plan {
    /// The dimensions in the order of walking; at least one.
    pub(super) sizes: Few<usize>,
    /// The size of a tile along each.
    pub(super) chunks: Few<usize>,
    /// A tile has one index along the dimensions before this one.
    pub(super) first: usize,
    /// Whether a tile is one row of several dimensions; else its rows are the last dimension.
    pub(super) packed: bool,
    /// Whether results are written past the caches: large ones, whose memory isn't read too.
    pub(super) streamed: bool,
    /// The output, then the inputs.
    pub(super) streams: Few<Stream>,
    /// For each dimension which axis of the index it moves along, and how far.
    pub(super) index: Few<(usize, isize)>,
    /// The index of the first element of the walk.
    pub(super) origin: Few<usize>,
    /// How many tiles.
    pub(super) tiles: usize,
}

// SAFETY: the pointers are of views that are borrowed for as long as the plan; the engine takes care
// that no two threads write the same element.
unsafe impl Sync for Plan {}

impl Plan {
    /// A plan for views with the same number of elements, which isn't 0.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] for an index of a ranked output beside an input that has no dimensions
    /// in common with it.
    pub(super) fn new(out: &Described, inputs: &[Described], indexed: bool) -> Result<Plan> {
        let count = out.count;
        let index: Few<(usize, isize)> = match &out.sizes {
            Some(sizes) => sizes.iter().map(|&size| (size, 1)).collect(),
            None => smallvec![(count, 1)],
        };
        let views: Few<&Described> = std::iter::once(out).chain(inputs).collect();
        let mut dims: Few<&[(usize, isize)]> = views.iter().map(|v| &v.extent.dims[..]).collect();
        if indexed {
            dims.push(&index);
        }
        let joint = refine(&dims);
        let common = joint.is_some();
        let (sizes, strides, axes) = match joint {
            Some(joint) => (joint.sizes, joint.strides, joint.axes),
            None if indexed && out.sizes.is_some() => {
                let message = "map_indexed: a flat input has no dimensions in common with the ranked \
                               output; give a ranked view of it";
                return Err(Error::new(ErrorKind::Shape, message));
            }
            None => (smallvec![count], smallvec![smallvec![1]; dims.len()], smallvec![0]),
        };
        let mut streams = Few::new();
        for (view, strides) in views.iter().zip(strides.clone()) {
            let size = view.extent.size;
            let (strides, by_index) = match &view.extent.dims[..] {
                _ if common => (strides, None),
                [(_, stride)] => (smallvec![*stride], None),
                dims => {
                    let (shape, strides): (Vec<usize>, Vec<isize>) = dims.iter().copied().unzip();
                    (smallvec![1], Some(Box::new(Strided::flat(&shape, &strides)?)))
                }
            };
            streams.push(Stream {
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
        let (first, chunks) = (0, Few::new());
        let mut plan = Plan {
            sizes,
            chunks,
            first,
            packed: false,
            streamed: false,
            streams,
            index,
            origin,
            tiles: 0,
        };
        if common {
            plan.find_in_place();
            plan.arrange();
        } else {
            for (stream, view) in plan.streams.iter_mut().zip(&views).skip(1) {
                stream.in_place = view.extent.is_same(&out.extent);
            }
        }
        plan.cut(count, indexed);
        Ok(plan)
    }

    /// Whether an input has exactly the output's elements.
    pub(super) fn is_in_place(&self, input: usize) -> bool {
        self.streams[input + 1].in_place
    }

    fn find_in_place(&mut self) {
        let Some((out, inputs)) = self.streams.split_first_mut() else { return };
        for input in inputs {
            input.in_place =
                (input.base, input.size, &input.steps) == (out.base, out.size, &out.steps);
        }
    }

    /// Puts the dimensions in the order that suits memory best: the output is walked upwards, its
    /// smallest steps innermost, and dimensions that all views step through evenly are one.
    fn arrange(&mut self) {
        let count = self.streams.len();
        let mut loops = Loops::new(count + 1);
        for (d, &size) in self.sizes.iter().enumerate() {
            let (axis, step) = self.index[d];
            if self.streams[0].steps[d] < 0
                && let Some(origin) = self.origin.get_mut(axis)
            {
                *origin = origin.wrapping_add_signed((size as isize - 1) * step);
            }
            loops.push(size, self.streams.iter().map(|stream| stream.steps[d]).chain([step]));
        }
        let mut start: Few<isize> = smallvec![0; count + 1];
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
        for (n, stream) in self.streams.iter_mut().enumerate() {
            stream.base = stream.base.wrapping_offset(start[n]);
            stream.steps = dims.clone().map(|d| loops.row(d)[n]).collect();
        }
    }

    /// Goes on with those dimensions, in that order.
    fn take(&mut self, dims: &[usize], sizes: Few<usize>) {
        self.sizes = sizes;
        self.index = dims.iter().map(|&d| self.index[d]).collect();
        for stream in &mut self.streams {
            stream.steps = dims.iter().map(|&d| stream.steps[d]).collect();
        }
    }

    /// Cuts the walk into tiles.
    fn cut(&mut self, count: usize, indexed: bool) {
        if self.sizes.is_empty() {
            self.sizes.push(1);
            self.index.push((0, 0));
            self.streams.iter_mut().for_each(|stream| stream.steps.push(stream.size as isize));
        }
        let last = self.sizes.len() - 1;
        let columns = self.sizes[last];
        let plain = |stream: &Stream, direct: bool| {
            direct && !stream.is_bool && !stream.in_place && stream.by_index.is_none()
        };
        let widest = self.streams.iter().map(|stream| stream.size).max().unwrap_or(1);
        // A small walk has several tiles as well, for bodies that take long.
        let block = |bytes: usize| (bytes / widest).min((count / 16).max(64));

        self.chunks = smallvec![1; self.sizes.len()];
        self.packed = !indexed && last > 0 && columns < SHORT_ROW;
        if self.packed {
            let mut inside = 1;
            let mut first = last + 1;
            while first > 0 && inside * self.sizes[first - 1] <= block(BLOCK_BYTES) {
                first -= 1;
                inside *= self.sizes[first];
                self.chunks[first] = self.sizes[first];
            }
            if first > 0 {
                first -= 1;
                self.chunks[first] = (block(BLOCK_BYTES) / inside).max(1);
            }
            self.first = first;
            for stream in &mut self.streams {
                let mut step = stream.size as isize;
                let dims = self.sizes[first..].iter().zip(&stream.steps[first..]).rev();
                let compact = dims.into_iter().all(|(&size, &actual)| {
                    let fits = actual == step;
                    step = step.wrapping_mul(size as isize);
                    fits
                });
                stream.direct = plain(stream, compact);
            }
        } else {
            for stream in &mut self.streams {
                stream.direct = plain(stream, stream.steps[last] == stream.size as isize);
            }
            let fresh = !self.streams.iter().any(|stream| stream.in_place);
            self.streamed =
                fresh && self.streams[0].direct && count * self.streams[0].size >= STREAMED;
            // The body's loop writes a block, which is then streamed.
            self.streams[0].direct &= !self.streamed;
            let all_direct = self.streams.iter().all(|stream| stream.direct);
            let block = block(if all_direct { DIRECT_BYTES } else { BLOCK_BYTES });
            let across = self.bring_across_rows_near();
            self.first = last.saturating_sub(1);
            self.chunks[last] = columns.min(if across { TRANSPOSED_COLUMNS } else { block });
            if last > 0 {
                self.chunks[last - 1] = (block / self.chunks[last]).clamp(1, self.sizes[last - 1]);
            }
        }
        let per_dim =
            self.sizes.iter().zip(&self.chunks).map(|(size, chunk)| size.div_ceil(*chunk));
        self.tiles = per_dim.product();
    }

    /// Where an input's elements are nearer to each other along another dimension than along the
    /// last one, that one becomes the second to last: a tile then has whole cache lines of it.
    fn bring_across_rows_near(&mut self) -> bool {
        let last = self.sizes.len() - 1;
        let nearest = self.streams[1..].iter().find_map(|stream| {
            let here = stream.steps[last].unsigned_abs();
            let steps = stream.steps[..last].iter().map(|step| step.unsigned_abs()).enumerate();
            let near = steps.filter(|(_, step)| *step != 0 && *step < here);
            near.min_by_key(|(_, step)| *step).map(|(d, _)| d)
        });
        let Some(near) = nearest else { return false };
        let mut order: Few<usize> = (0..=last).filter(|d| *d != near).collect();
        order.insert(last - 1, near);
        let sizes = order.iter().map(|&d| self.sizes[d]).collect();
        self.take(&order, sizes);
        true
    }

    /// The bytes that a gathered view needs for a tile.
    pub(super) fn block_bytes(&self, stream: &Stream) -> usize {
        self.chunks[self.first..].iter().product::<usize>() * stream.size
    }
}
