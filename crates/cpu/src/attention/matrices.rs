//! The matrices of a batch, and memory for the tiles that they are read into.

use keyfold_core::{Result, Shape, layout};
use keyfold_kit::math::Real;
use keyfold_tensor::{Tensor, for_each_offset};

use crate::reduce::blocks::{Block, Input, Sink};

/// One matrix for each index of the leading dimensions of a tensor.
pub(super) struct Matrices<A> {
    /// The offset of each matrix.
    pub(super) starts: Vec<isize>,
    /// The steps from row to row and along a row.
    pub(super) steps: (isize, isize),
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Where elements are read or written.
    pub(super) memory: A,
}

impl<A> Matrices<A> {
    /// Returns the matrices in the last two dimensions of a tensor, whose other dimensions broadcast to
    /// `batch`.
    pub(super) fn new(x: &Tensor, batch: &[usize], memory: A) -> Result<Self> {
        let mut shape = Shape::new(batch)?;
        for size in &x.shape()[x.ndim() - 2..] {
            shape.insert(shape.len(), *size)?;
        }
        Matrices::broadcast(x, &shape, memory)
    }

    /// Returns the matrices in the last two dimensions of a tensor that is broadcast to a shape.
    pub(super) fn broadcast(x: &Tensor, shape: &[usize], memory: A) -> Result<Self> {
        let strides = layout::broadcast_strides(x.shape(), x.strides(), shape)?;
        let outer = shape.len() - 2;
        let mut starts = Vec::with_capacity(shape[..outer].iter().product());
        for_each_offset(&shape[..outer], [&strides[..outer]], |[at]| starts.push(at))?;
        let (rows, columns) = (shape[outer], shape[outer + 1]);
        Ok(Matrices { starts, steps: (strides[outer], strides[outer + 1]), rows, columns, memory })
    }

    fn offset(&self, batch: usize, row: usize) -> isize {
        self.starts[batch] + row as isize * self.steps.0
    }
}

/// Rows in memory: the first one, and the step from one to the next. Their elements are dense.
#[derive(Clone, Copy)]
pub(super) struct Rows<T> {
    pub(super) first: *const T,
    pub(super) step: isize,
}

impl<T: Real> Matrices<Input<T>> {
    /// Returns `count` rows from `first` on, of at least `width` readable elements; those behind a row's own
    /// are 0. Rows that aren't such in place are copied to the stage, which has room for `count * width`
    /// elements.
    ///
    /// # Safety
    /// The rows are inside, and the tensor's memory can be read.
    pub(super) unsafe fn rows(
        &self,
        batch: usize,
        first: usize,
        count: usize,
        width: usize,
        stage: &mut Lines<T>,
    ) -> Rows<T> {
        let offset = self.offset(batch, first);
        let dense = self.steps.1 == 1 || self.columns <= 1;
        if self.memory.direct() && dense && width <= self.columns {
            return Rows { first: self.memory.at(offset).cast(), step: self.steps.0 };
        }
        let width = width.max(self.columns);
        // SAFETY: the caller's promise; the stage was checked to have room.
        unsafe { self.copy(offset, count, width, stage.room(count * width).as_mut_ptr()) };
        Rows { first: stage.start(), step: width as isize }
    }

    /// Copies rows to memory, each followed by zeros up to `width` elements.
    ///
    /// # Safety
    /// The rows can be read, and the destination has room for them.
    unsafe fn copy(&self, offset: isize, count: usize, width: usize, to: *mut T) {
        let (row, column) = self.steps;
        if width == self.columns {
            let block = Block::along(count, row, width, column);
            // SAFETY: the caller's promise.
            unsafe { self.memory.fill(offset, block, to) };
            return;
        }
        for i in 0..count {
            let block = Block::along(1, 0, self.columns, column);
            // SAFETY: as above.
            unsafe {
                let to = to.add(i * width);
                self.memory.fill(offset + i as isize * row, block, to);
                for k in self.columns..width {
                    to.add(k).write(T::ZERO);
                }
            }
        }
    }
}

impl<T: Real> Matrices<Sink<T>> {
    /// Writes rows, of `width` elements each in `from`, of which the matrix has the first ones.
    ///
    /// # Safety
    /// The rows are inside, and no other thread accesses them.
    pub(super) unsafe fn put(&self, batch: usize, first: usize, width: usize, from: &mut [T]) {
        for (i, row) in from.chunks_exact_mut(width.max(1)).enumerate() {
            let offset = self.offset(batch, first + i);
            // SAFETY: the caller's promise.
            unsafe { self.memory.put(&mut row[..self.columns], offset, self.steps.1) };
        }
    }
}

/// Memory for tiles, aligned to the lines of the cache so that no register is loaded from two of them.
pub(super) struct Lines<T> {
    memory: Vec<Line>,
    len: usize,
    of: std::marker::PhantomData<T>,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u64; 8]);

impl<T: Real> Lines<T> {
    /// Makes room for that many elements, all 0.
    pub(super) fn new(len: usize) -> Self {
        let lines = (len * size_of::<T>()).div_ceil(size_of::<Line>());
        Lines { memory: vec![Line([0; 8]); lines], len, of: std::marker::PhantomData }
    }

    /// Returns the address of the first element.
    pub(super) fn start(&self) -> *const T {
        self.memory.as_ptr().cast()
    }

    /// Returns the first elements; grows where there are too few.
    pub(super) fn room(&mut self, len: usize) -> &mut [T] {
        if len > self.len {
            *self = Lines::new(len);
        }
        // SAFETY: the lines hold as many elements; floats are 0 or what was written as such.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().cast(), len) }
    }
}
