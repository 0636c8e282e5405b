//! Tiles: some rows of several tensors, which kernels compute one after the other while they are in the
//! cache.
//!
//! A [`Cut`] divides rows into tiles. Results that are read later are [`Whole`] tensors, of which each
//! tile writes its [`Part`]; those that only the tile's own kernels read are parts of their own.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use keyfold_core::{DType, Device, Error, ErrorKind, Result, Scalar, Shape, layout};
use keyfold_tensor::Tensor;
use smallvec::SmallVec;

use crate::{GpuBackend, GroupKernel, Pointwise};

/// A backend's computation tile by tile.
pub trait Tiles: Send + Sync {
    /// Returns the most elements of a tile's largest tensor, a few of which a core's cache holds.
    fn elements(&self) -> usize;

    /// Calls `f` with ranges that make up `0..tiles`, on several threads. What `f` launches has run when
    /// it returns.
    ///
    /// # Errors
    /// The first error of `f`; those of the threads.
    fn for_each(&self, tiles: usize, f: &(dyn Fn(Range<usize>) -> Result<()> + Sync))
    -> Result<()>;
}

/// Returns a backend's computation tile by tile, if it gains from it.
pub fn tiles_of(backend: &dyn GpuBackend) -> Option<&dyn Tiles> {
    match backend.pointwise() {
        Some(Pointwise::Expressions(expressions)) => expressions.tiles(),
        _ => None,
    }
}

/// How rows are cut into tiles: by the first dimensions, of which indices are taken one by one in all but
/// the last one, and some at a time in that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cut {
    /// The sizes of those dimensions.
    lead: Shape,
    /// The rows of a tile, along the last one.
    rows: usize,
}

impl Cut {
    /// Returns the cut of tensors of these shapes, within their first `most` dimensions: as few of them as
    /// make tiles of that many elements. `None` if there would be one tile, if the shapes differ in those
    /// dimensions, or if rows are much longer than a tile.
    pub fn new(shapes: &[&Shape], most: usize, elements: usize) -> Option<Cut> {
        /// A row that is that much longer still makes a tile.
        const LONGER: usize = 4;
        let most = shapes.iter().map(|shape| shape.len()).min()?.min(most);
        let mut found = None;
        for dims in 1..=most {
            let lead = &shapes[0][..dims];
            if shapes.iter().any(|shape| shape[..dims] != *lead) {
                break;
            }
            let row: usize = shapes.iter().map(|shape| shape[dims..].iter().product()).max()?;
            found = Some((lead, row));
            if row <= elements {
                break;
            }
        }
        let (lead, row) = found.filter(|(_, row)| (1..=LONGER * elements).contains(row))?;
        let cut = Cut { lead: Shape::new(lead).ok()?, rows: (elements / row).max(1) };
        (cut.tiles() > 1).then_some(cut)
    }

    /// Returns the number of tiles.
    pub fn tiles(&self) -> usize {
        self.lead[..self.last()].iter().product::<usize>() * self.in_last()
    }

    /// Returns the number of dimensions that are cut.
    pub fn dims(&self) -> usize {
        self.lead.len()
    }

    /// Returns whether a tensor of this shape has the rows that are cut.
    pub fn has_rows(&self, shape: &[usize]) -> bool {
        shape.len() >= self.dims() && shape[..self.dims()] == self.lead[..]
    }

    /// Returns the shape of a tile of a tensor of this shape, which has the rows.
    pub fn shape(&self, shape: &Shape, tile: usize) -> Shape {
        let mut shape = shape.clone();
        shape[..self.last()].fill(1);
        shape[self.last()] = self.place(tile).1;
        shape
    }

    /// Returns a tile of a tensor, which has the rows.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] for a tensor without the rows, [`ErrorKind::Index`] for a tile that isn't there.
    pub fn tile(&self, tensor: &Tensor, tile: usize) -> Result<Tensor> {
        if !self.has_rows(tensor.shape()) {
            let message = format!("shape {:?} hasn't the rows {:?}", tensor.shape(), self.lead);
            return Err(Error::new(ErrorKind::Shape, message));
        }
        if tile >= self.tiles() {
            let message = format!("tile {tile} of {} isn't there", self.tiles());
            return Err(Error::new(ErrorKind::Index, message));
        }
        let (index, _) = self.place(tile);
        let steps = index.iter().zip(&tensor.strides()[..]);
        let offset: isize = steps.map(|(at, stride)| *at as isize * stride).sum();
        let (shape, strides) = (self.shape(tensor.shape(), tile), tensor.strides().clone());
        let offset = tensor.offset().wrapping_add_signed(offset);
        Tensor::from_parts(tensor.buffer().clone(), shape, strides, offset)
    }

    fn last(&self) -> usize {
        self.lead.len() - 1
    }

    /// Returns the tiles along the last of the dimensions.
    fn in_last(&self) -> usize {
        self.lead[self.last()].div_ceil(self.rows)
    }

    /// Returns the first index of a tile in each of the dimensions, and its rows.
    fn place(&self, tile: usize) -> (SmallVec<[usize; 4]>, usize) {
        let (mut outer, row) = (tile / self.in_last(), tile % self.in_last() * self.rows);
        let mut index: SmallVec<[usize; 4]> = SmallVec::from_elem(row, self.dims());
        for dim in (0..self.last()).rev() {
            index[dim] = outer % self.lead[dim];
            outer /= self.lead[dim];
        }
        (index, self.rows.min(self.lead[self.last()] - row))
    }
}

/// A new tensor that is written tile by tile.
#[derive(Debug)]
pub struct Whole {
    tensor: Tensor,
    cut: Arc<Cut>,
    /// For each tile, whether its part was taken.
    taken: Vec<AtomicBool>,
}

impl Whole {
    /// Allocates a tensor. Its elements are arbitrary until their tiles are written.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] for another shape's rows; those of the allocation.
    pub fn new(shape: Shape, dtype: DType, device: Device, cut: &Arc<Cut>) -> Result<Whole> {
        if !cut.has_rows(&shape) {
            let message = format!("shape {shape:?} hasn't the rows {:?}", cut.lead);
            return Err(Error::new(ErrorKind::Shape, message));
        }
        let taken = (0..cut.tiles()).map(|_| AtomicBool::new(false)).collect();
        let tensor = Tensor::empty_of(shape, dtype, device)?;
        Ok(Whole { tensor, cut: Arc::clone(cut), taken })
    }

    /// Takes a tile's part, for whom asks first.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for a part that was taken, or isn't there.
    pub fn part(&self, tile: usize) -> Result<Part> {
        match self.taken.get(tile) {
            Some(taken) if !taken.swap(true, Ordering::Relaxed) => {
                self.cut.tile(&self.tensor, tile).map(Part)
            }
            _ => Err(Error::new(ErrorKind::Value, format!("tile {tile} isn't free"))),
        }
    }

    /// Returns the tensor, when all of its parts were written.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] if a part wasn't taken, or something still refers to the memory, as a part does.
    pub fn into_tensor(self) -> Result<Tensor> {
        let all = self.taken.iter().all(|taken| taken.load(Ordering::Relaxed));
        if !all || self.tensor.buffer().shares() != 1 {
            return Err(Error::new(ErrorKind::Value, "not all tiles of a tensor were written"));
        }
        Ok(self.tensor)
    }
}

/// Memory that is written next, and that nothing else refers to.
#[derive(Debug)]
pub struct Part(Tensor);

impl Part {
    /// Makes a part of the memory of a tensor, if nothing else refers to it: as a contiguous tensor of this
    /// shape.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for memory that something else refers to, [`ErrorKind::Shape`] for too little.
    pub fn reused(tensor: Tensor, shape: Shape) -> Result<Part> {
        let buffer = tensor.into_buffer();
        if buffer.shares() != 1 || buffer.is_lent() || buffer.pending().is_some() {
            return Err(Error::new(ErrorKind::Value, "memory of a tile is used elsewhere"));
        }
        let strides = layout::contiguous_strides(&shape);
        Tensor::from_parts(buffer, shape, strides, 0).map(Part)
    }

    /// Writes a tensor's elements.
    ///
    /// # Errors
    /// As [`Tensor::copy_from`].
    pub fn copy_from(self, source: &Tensor) -> Result<()> {
        // SAFETY: nothing else refers to the part's memory.
        unsafe { self.0.copy_from(source) }
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
