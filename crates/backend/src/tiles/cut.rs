//! The division of tensors into tiles.

use std::ops::Range;

use keyfold_core::{Error, ErrorKind, Result, Shape, Strides};
use keyfold_tensor::Tensor;
use smallvec::SmallVec;

/// How tensors are cut into tiles.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cut {
    /// Some rows each.
    Rows(RowCut),
    /// A part of a lane each.
    Parts(PartCut),
}

impl Cut {
    /// Returns the number of tiles.
    pub fn tiles(&self) -> usize {
        match self {
            Cut::Rows(cut) => cut.tiles(),
            Cut::Parts(cut) => cut.tiles(),
        }
    }

    /// Returns the shape of a tile of a tensor of this shape, which is cut so.
    pub fn shape(&self, shape: &Shape, tile: usize) -> Shape {
        match self {
            Cut::Rows(cut) => cut.shape(shape, tile),
            Cut::Parts(cut) => Shape::from([cut.range(tile).len()]),
        }
    }

    /// Returns a tile of a tensor: rows, or a contiguous tensor's elements of a range.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] for a tensor that isn't cut so, [`ErrorKind::Index`] for a tile that isn't
    /// there.
    pub fn tile(&self, tensor: &Tensor, tile: usize) -> Result<Tensor> {
        self.check(tensor.shape())?;
        if tile >= self.tiles() {
            let message = format!("tile {tile} of {} isn't there", self.tiles());
            return Err(Error::new(ErrorKind::Index, message));
        }
        match self {
            Cut::Rows(cut) => cut.tile(tensor, tile),
            Cut::Parts(cut) => cut.tile(tensor, tile),
        }
    }

    /// Refuses a shape that isn't cut so.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`].
    pub(super) fn check(&self, shape: &[usize]) -> Result<()> {
        let message = match self {
            Cut::Rows(cut) if cut.has_rows(shape) => return Ok(()),
            Cut::Rows(cut) => format!("shape {shape:?} hasn't the rows {:?}", cut.lead),
            Cut::Parts(cut) if shape.iter().product::<usize>() == cut.elements() => return Ok(()),
            Cut::Parts(cut) => format!("shape {shape:?} hasn't {} elements", cut.elements()),
        };
        Err(Error::new(ErrorKind::Shape, message))
    }
}

/// The sizes that decide how rows are cut: bytes that they touch of results, and of inputs that have the rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowBytes {
    /// Those of a tile: as many as the cache holds beside other threads' tiles.
    pub tile: usize,
    /// The most of a row: a longer one than a tile makes a tile of its own, and one that is longer than this none.
    pub longest: usize,
    /// Those of all rows that stay in the cache from one operation to the next: they aren't cut.
    pub cached: usize,
}

/// Rows that are cut into tiles: by the first dimensions, of which indices are taken one by one in all but
/// the last one, and some at a time in that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RowCut {
    /// The sizes of those dimensions.
    lead: Shape,
    /// The rows of a tile, along the last one.
    rows: usize,
}

impl RowCut {
    /// Returns the cut of tensors, given as shapes and bytes of an element, within the first `most`
    /// dimensions of results: as few of them as make tiles of so many bytes. `None` if there would be one tile, if
    /// all rows stay in the cache, if results differ in those dimensions, or if rows are too long.
    pub fn new(
        results: &[(&Shape, usize)],
        inputs: &[(&Shape, usize)],
        most: usize,
        bytes: RowBytes,
    ) -> Option<RowCut> {
        let (first, _) = results.first()?;
        let most = results.iter().map(|(shape, _)| shape.len()).min()?.min(most);
        let mut found = None;
        for dims in 1..=most {
            let lead = &first[..dims];
            let has_rows = |shape: &Shape| shape.len() >= dims && shape[..dims] == *lead;
            if !results.iter().all(|(shape, _)| has_rows(shape)) {
                break;
            }
            let touched = results.iter().chain(inputs).filter(|(shape, _)| has_rows(shape));
            let row_bytes = |(shape, size): &(&Shape, usize)| {
                shape[dims..].iter().product::<usize>().saturating_mul(*size)
            };
            let row = touched.map(row_bytes).fold(0, usize::saturating_add);
            found = Some((lead, row));
            if row <= bytes.tile {
                break;
            }
        }
        let (lead, row) = found.filter(|(_, row)| (1..=bytes.longest).contains(row))?;
        let cut = RowCut { lead: Shape::new(lead).ok()?, rows: (bytes.tile / row).max(1) };
        let all = lead.iter().product::<usize>().saturating_mul(row);
        (cut.tiles() > 1 && all > bytes.cached).then_some(cut)
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

    fn shape(&self, shape: &Shape, tile: usize) -> Shape {
        let mut shape = shape.clone();
        shape[..self.last()].fill(1);
        shape[self.last()] = self.place(tile).1;
        shape
    }

    fn tile(&self, tensor: &Tensor, tile: usize) -> Result<Tensor> {
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

/// Lanes of adjoining elements, one after another, each of which is cut into parts of so many elements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartCut {
    lanes: usize,
    len: usize,
    part: usize,
}

impl PartCut {
    /// Returns the cut of lanes of `len` elements each. `None` if a lane would be one part.
    pub fn new(lanes: usize, len: usize, part: usize) -> Option<PartCut> {
        let cut = PartCut { lanes, len, part };
        (lanes > 0 && part > 0 && len > part).then_some(cut)
    }

    /// Returns the number of parts of all lanes: those of the first one, then those of the next one.
    pub fn tiles(&self) -> usize {
        self.lanes * self.in_lane()
    }

    /// Returns the elements of a part, counted from the first element of the first lane.
    pub fn range(&self, tile: usize) -> Range<usize> {
        let (lane, start) = (tile / self.in_lane(), tile % self.in_lane() * self.part);
        let first = lane * self.len + start;
        first..first + self.part.min(self.len - start)
    }

    /// Returns the number of elements of a lane.
    pub fn lane(&self) -> usize {
        self.len
    }

    fn elements(&self) -> usize {
        self.lanes * self.len
    }

    fn in_lane(&self) -> usize {
        self.len.div_ceil(self.part)
    }

    fn tile(&self, tensor: &Tensor, tile: usize) -> Result<Tensor> {
        if !tensor.is_contiguous() {
            let strides = tensor.strides();
            let message =
                format!("a tensor with strides {strides:?} isn't lanes of adjoining elements");
            return Err(Error::new(ErrorKind::Shape, message));
        }
        let range = self.range(tile);
        let (shape, offset) = (Shape::from([range.len()]), tensor.offset() + range.start);
        Tensor::from_parts(tensor.buffer().clone(), shape, Strides::from([1]), offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: RowBytes = RowBytes { tile: 100, longest: 400, cached: 1000 };

    /// Returns the tiles of results and inputs of one byte an element.
    fn tiles(results: &[&[usize]], inputs: &[&[usize]], most: usize) -> Option<usize> {
        let shapes = |of: &[&[usize]]| of.iter().map(|one| Shape::new(one).unwrap()).collect();
        let (results, inputs): (Vec<Shape>, Vec<Shape>) = (shapes(results), shapes(inputs));
        let results: Vec<_> = results.iter().map(|shape| (shape, 1)).collect();
        let inputs: Vec<_> = inputs.iter().map(|shape| (shape, 1)).collect();
        RowCut::new(&results, &inputs, most, BYTES).map(|cut| cut.tiles())
    }

    #[test]
    fn rows_are_cut_where_they_take_more_than_the_cache() {
        // 20 bytes a row: 5 rows a tile.
        assert_eq!(tiles(&[&[50, 10]], &[&[50, 10], &[10]], 2), None);
        assert_eq!(tiles(&[&[51, 10]], &[&[51, 10], &[10]], 2), Some(11));
        // The other dimensions of the result aren't the input's rows.
        assert_eq!(tiles(&[&[60, 10]], &[&[1, 10]], 2), None);
        assert_eq!(tiles(&[&[60, 10], &[60, 9]], &[], 1), Some(12));
    }

    #[test]
    fn a_long_row_is_a_tile_and_a_longer_one_none() {
        assert_eq!(tiles(&[&[3, 400]], &[], 1), Some(3));
        assert_eq!(tiles(&[&[3, 401]], &[], 1), None);
        // Rows of rows, where operations allow it.
        assert_eq!(tiles(&[&[3, 4, 101]], &[], 1), None);
        assert_eq!(tiles(&[&[3, 4, 101]], &[], 2), Some(12));
        assert_eq!(tiles(&[&[1, 2000]], &[], 1), None);
    }
}
