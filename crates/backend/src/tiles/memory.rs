//! Tensors that are written tile by tile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use keyfold_core::{DType, Device, Error, ErrorKind, Result, Shape, layout};
use keyfold_tensor::Tensor;

use super::Cut;

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
    /// [`ErrorKind::Shape`] for a shape that isn't cut so; those of the allocation.
    pub fn new(shape: Shape, dtype: DType, device: Device, cut: &Arc<Cut>) -> Result<Whole> {
        cut.check(&shape)?;
        let taken = (0..cut.tiles()).map(|_| AtomicBool::new(false)).collect();
        let tensor = Tensor::empty_of(shape, dtype, device)?;
        Ok(Whole { tensor, cut: Arc::clone(cut), taken })
    }

    /// Takes a tile's part, which can be taken once.
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
pub struct Part(pub(super) Tensor);

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
