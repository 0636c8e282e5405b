//! Matrices in strided memory, and batches of them.

use keyfold_core::{Result, Shape, Strides, layout};
use keyfold_tensor::Tensor;

use crate::bits::{self, Bits};

/// The sizes of a product: `m x k` times `k x n`.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) m: usize,
    pub(super) k: usize,
    pub(super) n: usize,
}

/// A matrix within a strided slice; every element that its size and strides address is inside.
pub(super) struct Matrix<'a, S> {
    data: &'a [S],
    start: usize,
    pub(super) row_step: isize,
    pub(super) column_step: isize,
}

impl<S> Clone for Matrix<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Matrix<'_, S> {}

impl<'a, S: Copy> Matrix<'a, S> {
    /// Returns the matrix of a dense slice of rows.
    pub(super) fn of_rows(data: &'a [S], columns: usize) -> Self {
        Matrix { data, start: 0, row_step: columns as isize, column_step: 1 }
    }

    #[inline]
    fn place(&self, row: usize, column: usize) -> usize {
        let offset = row as isize * self.row_step + column as isize * self.column_step;
        self.start.wrapping_add_signed(offset)
    }

    #[inline]
    pub(super) fn get(&self, row: usize, column: usize) -> S {
        self.data[self.place(row, column)]
    }

    /// Returns the elements of a row from a column on, of a matrix whose rows are dense.
    #[inline]
    pub(super) fn row(&self, row: usize, column: usize, len: usize) -> &'a [S] {
        &self.data[self.place(row, column)..][..len]
    }

    /// Returns the matrix from a row and a column on.
    #[inline]
    pub(super) fn from(&self, row: usize, column: usize) -> Self {
        Matrix { start: self.place(row, column), ..*self }
    }

    /// Returns the matrix with rows for columns.
    pub(super) fn transposed(&self) -> Self {
        Matrix { row_step: self.column_step, column_step: self.row_step, ..*self }
    }

    /// Returns the address of the first element.
    #[inline]
    pub(super) fn ptr(&self) -> *const S {
        self.data[self.start..].as_ptr()
    }
}

impl<'a, S: Bits> Matrix<'a, S> {
    /// Reads a tensor of two dimensions.
    ///
    /// # Errors
    /// If the host can't access the memory.
    #[inline]
    pub(super) fn new(t: &'a Tensor) -> Result<Self> {
        let (data, start) = bits::strided_slice::<S>(t)?;
        let (row_step, column_step) = (t.strides()[0], t.strides()[1]);
        Ok(Matrix { data, start, row_step, column_step })
    }
}

/// A matrix for each index of a batch.
pub(super) struct Batched<'a, S> {
    first: Matrix<'a, S>,
    pub(super) steps: Strides,
}

impl<'a, S: Bits> Batched<'a, S> {
    /// Reads a tensor as a batch of matrices; its leading dimensions broadcast to the batch.
    ///
    /// # Errors
    /// If the host can't access the memory, or the shapes don't broadcast.
    pub(super) fn new(t: &'a Tensor, batch: &[usize]) -> Result<Self> {
        let outer = t.ndim() - 2;
        let steps = layout::broadcast_strides(&t.shape()[..outer], &t.strides()[..outer], batch)?;
        let (data, start) = bits::strided_slice::<S>(t)?;
        let (row_step, column_step) = (t.strides()[outer], t.strides()[outer + 1]);
        Ok(Batched { first: Matrix { data, start, row_step, column_step }, steps })
    }

    /// Reads a tensor that broadcasts to a batch of matrices of one size.
    ///
    /// # Errors
    /// As [`Batched::new`].
    pub(super) fn broadcast(t: &'a Tensor, shape: &[usize]) -> Result<Self> {
        let steps = layout::broadcast_strides(t.shape(), t.strides(), shape)?;
        let (data, start) = bits::strided_slice::<S>(t)?;
        let (batch, matrix) = steps.split_at(shape.len() - 2);
        let first = Matrix { data, start, row_step: matrix[0], column_step: matrix[1] };
        Ok(Batched { first, steps: Strides::new(batch)? })
    }

    /// Returns the matrix that is that many elements behind the first.
    #[inline]
    pub(super) fn at(&self, offset: isize) -> Matrix<'a, S> {
        Matrix { start: self.first.start.wrapping_add_signed(offset), ..self.first }
    }

    /// Returns the matrix of an index of the batch, counted in logical order.
    pub(super) fn nth(&self, index: usize, batch: &[usize]) -> Matrix<'a, S> {
        let (mut rest, mut offset) = (index, 0);
        for (size, step) in batch.iter().zip(self.steps.iter()).rev() {
            offset += (rest % size) as isize * step;
            rest /= size;
        }
        self.at(offset)
    }
}

/// The operands of a batch of products.
pub(super) struct Operands<'a, S> {
    pub(super) sizes: Sizes,
    pub(super) batch: Shape,
    pub(super) a: Batched<'a, S>,
    pub(super) b: Batched<'a, S>,
}

impl<'a, S: Bits> Operands<'a, S> {
    /// Reads tensors `[..., m, k]` and `[..., k, n]`, whose leading dimensions broadcast.
    ///
    /// # Errors
    /// As [`Batched::new`].
    pub(super) fn new(a: &'a Tensor, b: &'a Tensor) -> Result<Self> {
        let (outer_a, outer_b) = (a.ndim() - 2, b.ndim() - 2);
        let sizes =
            Sizes { m: a.shape()[outer_a], k: a.shape()[outer_a + 1], n: b.shape()[outer_b + 1] };
        let batch = layout::broadcast_shapes(&a.shape()[..outer_a], &b.shape()[..outer_b])?;
        let (a, b) = (Batched::new(a, &batch)?, Batched::new(b, &batch)?);
        Ok(Operands { sizes, batch, a, b })
    }
}
