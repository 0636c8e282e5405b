//! Loops over tensors of one shape, with as few dimensions as possible.

use keyfold_plugin::{DeviceTensor, Error, Result};

use crate::device::{Buffer, Device};

/// The most dimensions of a kernel's loop. Its parameters have to fit the 1024 bytes that every
/// device has for them.
pub const MAX_RANK: usize = 12;

/// A loop over `K` tensors: the size of each dimension, and each tensor's step along it in
/// elements.
#[derive(Clone, Debug)]
pub struct Loop<const K: usize> {
    pub rank: usize,
    pub shape: [i64; MAX_RANK],
    pub steps: [[i64; MAX_RANK]; K],
}

impl<const K: usize> Loop<K> {
    /// Returns a loop without dimensions: one element.
    pub fn new() -> Self {
        Loop { rank: 0, shape: [1; MAX_RANK], steps: [[0; MAX_RANK]; K] }
    }

    /// Returns the loop over all dimensions of a shape. Neighbours in row-major order are joined
    /// where every tensor's steps allow it.
    ///
    /// # Errors
    /// More than [`MAX_RANK`] dimensions are left.
    pub fn over(shape: &[i64], steps: [&[i64]; K]) -> Result<Self> {
        let mut all = Loop::new();
        for (dim, size) in shape.iter().enumerate() {
            all.push(*size, steps.map(|steps| steps[dim]))?;
        }
        Ok(all)
    }

    /// Adds an innermost dimension.
    ///
    /// # Errors
    /// As [`Loop::over`].
    pub fn push(&mut self, size: i64, steps: [i64; K]) -> Result<()> {
        if size == 1 {
            return Ok(());
        }
        if let Some(last) = self.rank.checked_sub(1)
            && (0..K).all(|k| self.steps[k][last] == steps[k] * size)
        {
            self.shape[last] *= size;
            (0..K).for_each(|k| self.steps[k][last] = steps[k]);
            return Ok(());
        }
        if self.rank == MAX_RANK {
            return Err(Error::not_supported(format!(
                "the tensors' strides need a loop over more than {MAX_RANK} dimensions"
            )));
        }
        self.shape[self.rank] = size;
        (0..K).for_each(|k| self.steps[k][self.rank] = steps[k]);
        self.rank += 1;
        Ok(())
    }

    /// Returns the number of elements.
    pub fn numel(&self) -> u64 {
        self.shape[..self.rank].iter().product::<i64>().cast_unsigned()
    }

    /// Returns the number of dimensions in a kernel's parameter, at least 1.
    pub fn kernel_rank(&self) -> usize {
        self.rank.max(1)
    }

    /// Appends a kernel's parameter: the shape, then the steps of the first tensors.
    pub fn write_first(&self, tensors: usize, bytes: &mut Vec<u8>) {
        let rank = self.kernel_rank();
        for list in [&self.shape].into_iter().chain(&self.steps[..tensors]) {
            list[..rank].iter().for_each(|number| bytes.extend(number.to_ne_bytes()));
        }
    }

    /// Returns a kernel's parameter with all dimensions: the shape, then the steps.
    pub fn bytes(&self) -> Vec<u8> {
        let lists = [&self.shape].into_iter().chain(&self.steps);
        lists.flatten().flat_map(|number| number.to_ne_bytes()).collect()
    }

    /// Returns the same after the number of dimensions that a kernel loops over.
    pub fn ranked_bytes(&self) -> Vec<u8> {
        [(self.kernel_rank() as i64).to_ne_bytes().as_slice(), &self.bytes()].concat()
    }

    /// Returns the innermost dimension's size, and a tensor's step along it.
    pub fn innermost(&self, k: usize) -> (i64, i64) {
        let last = self.kernel_rank() - 1;
        (self.shape[last], self.steps[k][last])
    }

    /// Returns whether all tensors' elements lie one after another.
    pub fn is_contiguous(&self) -> bool {
        match self.rank {
            0 => true,
            1 => self.steps.iter().all(|steps| steps[0] == 1),
            _ => false,
        }
    }
}

/// How lanes are cut into units of work: each is one stretch of one lane, or, "across", of
/// neighbouring lanes.
pub struct Cut {
    /// The units, of all lanes.
    pub units: u64,
    /// Those of a lane.
    pub stretches: u64,
    pub across: bool,
    /// The size of the innermost dimension, of neighbouring lanes if they are taken across.
    pub inner: u64,
}

/// The vectors of neighbouring lanes that a unit takes; `ACROSS` in the kernels' sources.
const ACROSS: u64 = 4;

impl Cut {
    /// Cuts the lanes of a loop over the input and the output, of `count` elements with a step
    /// from each to the next.
    pub fn new(device: &Device, kept: &Loop<2>, (count, step): (u64, i64)) -> Cut {
        let (inner, between) = kept.innermost(0);
        let (inner, width) = (inner.cast_unsigned(), device.width as u64);
        let items = device.items as u64;
        let across = items == 1 && between == 1 && step != 1 && 2 * inner >= width;
        // A unit has 64 vectors or more for each work-item.
        let (unit, vectors) = match across {
            true => (kept.numel() / inner * inner.div_ceil(ACROSS * width), count.div_ceil(64)),
            false => (kept.numel(), count.div_ceil(64 * width * items)),
        };
        let stretches = device.units.div_ceil(unit.max(1)).clamp(1, vectors.max(1));
        Cut { units: unit * stretches, stretches, across, inner }
    }
}

/// Returns the loop over the lanes of an input and an output along a dimension, and a lane's size and
/// steps.
///
/// # Errors
/// As [`Loop::over`].
pub fn lanes_of(
    input: &DeviceTensor<'_, Buffer>,
    output: &DeviceTensor<'_, Buffer>,
    axis: usize,
) -> Result<(Loop<2>, (i64, i64, i64))> {
    let (mut kept, mut lane) = (Loop::new(), (1, 0, 0));
    for (dim, size) in input.shape().iter().enumerate() {
        let steps = [input.strides()[dim], output.strides()[dim]];
        match dim == axis {
            true => lane = (*size, steps[0], steps[1]),
            false => kept.push(*size, steps)?,
        }
    }
    Ok((kept, lane))
}
