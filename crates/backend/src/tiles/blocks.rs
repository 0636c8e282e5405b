//! Ranges of a tensor's elements in row-major order, as blocks of indices.
//!
//! A range of a contiguous tensor is one run of memory. Of a transposed or a broadcast tensor it is some
//! indices of the last dimension, then whole rows, then some indices again; with more dimensions, some of
//! each before and after.

use std::ops::Range;

use keyfold_core::{Error, ErrorKind, Result, Shape, Strides, layout};
use keyfold_tensor::{Loops, Tensor};
use smallvec::SmallVec;

/// Tensors that are broadcast to one shape, of which dimensions are merged that all tensors step through
/// evenly.
#[derive(Debug)]
pub struct Broadcast {
    shape: Shape,
    tensors: SmallVec<[Tensor; 8]>,
}

impl Broadcast {
    /// Broadcasts tensors.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] for a tensor that doesn't broadcast to the shape.
    pub fn new(shape: &Shape, tensors: &[Tensor]) -> Result<Broadcast> {
        if let Some(tensor) = tensors.iter().find(|tensor| tensor.ndim() > shape.len()) {
            return Err(refused(tensor, shape));
        }
        let mut loops = Loops::new(tensors.len());
        for (dim, size) in shape.iter().enumerate() {
            let steps = tensors.iter().map(|tensor| step_along(tensor, shape, dim));
            loops.push(*size, steps.collect::<Result<SmallVec<[isize; 8]>>>()?);
        }
        loops.merge(|_, _| true);
        let shape = Shape::new(loops.sizes())?;
        let spread = |(number, tensor): (usize, &Tensor)| {
            let steps: SmallVec<[isize; 8]> =
                (0..shape.len()).map(|dim| loops.row(dim)[number]).collect();
            let strides = Strides::new(&steps)?;
            Tensor::from_parts(tensor.buffer().clone(), shape.clone(), strides, tensor.offset())
        };
        let tensors = tensors.iter().enumerate().map(spread).collect::<Result<_>>()?;
        Ok(Broadcast { shape, tensors })
    }

    /// Returns a block of a tensor.
    pub(super) fn block(&self, number: usize, block: &Block) -> Result<Tensor> {
        let Some(tensor) = self.tensors.get(number) else {
            return Err(Error::new(ErrorKind::Index, format!("tensor {number} isn't there")));
        };
        let steps = block.index.iter().zip(&tensor.strides()[..]);
        let by: isize = steps.map(|(at, stride)| *at as isize * stride).sum();
        let (strides, offset) = (tensor.strides().clone(), tensor.offset().wrapping_add_signed(by));
        Tensor::from_parts(tensor.buffer().clone(), block.shape.clone(), strides, offset)
    }

    /// Calls `f` with the fewest blocks that make up a range, in order.
    ///
    /// # Errors
    /// [`ErrorKind::Index`] for a range beyond the last element; the first error of `f`.
    pub(super) fn for_each_block(
        &self,
        range: Range<usize>,
        mut f: impl FnMut(&Block) -> Result<()>,
    ) -> Result<()> {
        if range.end > self.shape.iter().product() {
            let message = format!("elements {range:?} are beyond shape {:?}", self.shape);
            return Err(Error::new(ErrorKind::Index, message));
        }
        let mut at = range.start;
        while at < range.end {
            let (mut index, mut shape) =
                (SmallVec::from_elem(0, self.shape.len()), self.shape.clone());
            let mut rest = at;
            for (index, size) in index.iter_mut().zip(&self.shape[..]).rev() {
                *index = rest % size;
                rest /= size;
            }
            // From the innermost dimension out, as long as whole rows are taken.
            let mut taken = 1;
            for dim in (0..self.shape.len()).rev() {
                let count = ((range.end - at) / taken).min(self.shape[dim] - index[dim]);
                taken *= count;
                shape[dim] = count;
                if count < self.shape[dim] {
                    shape[..dim].fill(1);
                    break;
                }
            }
            f(&Block { index, shape, first: at - range.start })?;
            at += taken;
        }
        Ok(())
    }
}

/// Returns a tensor's stride along a dimension of the shape that it is broadcast to.
fn step_along(tensor: &Tensor, shape: &Shape, dim: usize) -> Result<isize> {
    match (dim + tensor.ndim()).checked_sub(shape.len()) {
        None => Ok(0),
        Some(own) if tensor.shape()[own] == shape[dim] => Ok(tensor.strides()[own]),
        Some(own) if tensor.shape()[own] == 1 => Ok(0),
        Some(_) => Err(refused(tensor, shape)),
    }
}

fn refused(tensor: &Tensor, shape: &Shape) -> Error {
    let message = format!("shape {:?} doesn't broadcast to {shape:?}", tensor.shape());
    Error::new(ErrorKind::Shape, message)
}

/// Indices of each dimension: a part of a range.
#[derive(Debug)]
pub(super) struct Block {
    /// The first index of each dimension.
    index: SmallVec<[usize; 4]>,
    /// The number of indices of each dimension.
    shape: Shape,
    /// The place of the first element in the range.
    first: usize,
}

impl Block {
    /// Returns the block of a contiguous tensor of the range's elements.
    pub(super) fn of_range(&self, tensor: &Tensor) -> Result<Tensor> {
        let strides = layout::contiguous_strides(&self.shape);
        let offset = tensor.offset() + self.first;
        Tensor::from_parts(tensor.buffer().clone(), self.shape.clone(), strides, offset)
    }
}

#[cfg(test)]
mod tests {
    use keyfold_core::{DType, Device};

    use super::*;

    /// Compares the blocks of a range with the range's elements; returns their number.
    fn check(x: &Tensor, range: Range<usize>) -> usize {
        let broadcast = Broadcast::new(x.shape(), std::slice::from_ref(x)).unwrap();
        let whole = Tensor::zeros(&[range.len()], DType::I64, Device::CPU).unwrap();
        let (mut found, mut blocks) = (Vec::new(), 0);
        let add = |block: &Block| {
            assert_eq!(block.of_range(&whole)?.offset(), found.len());
            found.extend(broadcast.block(0, block)?.to_vec::<i64>()?);
            blocks += 1;
            Ok(())
        };
        broadcast.for_each_block(range.clone(), add).unwrap();
        assert_eq!(found, x.to_vec::<i64>().unwrap()[range.clone()], "{:?} {range:?}", x.shape());
        blocks
    }

    #[test]
    fn blocks_are_the_range_in_order_and_as_few_as_can_be() {
        for shape in [&[][..], &[1], &[7], &[3, 4], &[2, 1, 5], &[3, 2, 4], &[2, 3, 2, 3]] {
            let count: usize = shape.iter().product();
            let numbers: Vec<i64> = (0..count as i64).collect();
            let x = Tensor::from_slice(&numbers, shape).unwrap();
            // The same elements in another order of memory.
            let dims: Vec<i64> = (0..shape.len() as i64).rev().collect();
            let turned = x.permute(&dims).unwrap().copy().unwrap().permute(&dims).unwrap();
            for range in (0..=count).flat_map(|end| (0..=end).map(move |start| start..end)) {
                assert_eq!(check(&x, range.clone()), usize::from(!range.is_empty()));
                assert!(check(&turned, range) <= (2 * shape.len()).max(1));
            }
        }
    }

    #[test]
    fn missing_dimensions_are_broadcast_and_others_refused() {
        let row = Tensor::from_slice(&[1_i64, 2, 3], &[3]).unwrap();
        let column = Tensor::from_slice(&[10_i64, 20], &[2, 1]).unwrap();
        let shape = Shape::from([2, 3]);
        let broadcast = Broadcast::new(&shape, &[row.clone(), column]).unwrap();
        let mut found = Vec::new();
        let mut add = |block: &Block| {
            let parts = [broadcast.block(0, block)?, broadcast.block(1, block)?];
            let [a, b] = parts.map(|part| part.to_vec::<i64>());
            found.extend(a?.into_iter().zip(b?));
            Ok(())
        };
        broadcast.for_each_block(2..5, &mut add).unwrap();
        assert_eq!(broadcast.for_each_block(2..7, &mut add).unwrap_err().kind(), ErrorKind::Index);
        assert_eq!(found, [(3, 10), (1, 20), (2, 20)]);
        for shape in [Shape::from([2, 4]), Shape::from([]), Shape::from([3, 2])] {
            let refused = Broadcast::new(&shape, std::slice::from_ref(&row)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Shape);
        }
    }
}
