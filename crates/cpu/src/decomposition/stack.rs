//! Stacks of matrices of either float, as dense float64 matrices, columns first.

use keyfold_core::{DType, Dims, Result};
use keyfold_tensor::Tensor;

use crate::reduce::blocks::{Block, Input, Sink};
use crate::reduce::{base, out_base};

/// A matrix, vector or number of each stack: its leading dimensions are those of the stack.
struct Layout {
    /// The steps of the leading dimensions, and their sizes.
    steps: Dims<isize>,
    sizes: Dims<usize>,
    rows: usize,
    columns: usize,
    row_step: isize,
    column_step: isize,
}

impl Layout {
    /// The layout of a tensor whose last dimensions, so many of them, are one item.
    fn new(x: &Tensor, item: usize) -> Result<Layout> {
        let leading = x.ndim() - item;
        let (mut steps, mut sizes) = (Dims::filled(0, leading)?, Dims::filled(0, leading)?);
        for d in 0..leading {
            (steps[d], sizes[d]) = (x.strides()[d], x.shape()[d]);
        }
        let dim = |at: usize| (x.shape()[leading + at], x.strides()[leading + at]);
        let one = (1, 0);
        let ((rows, row_step), (columns, column_step)) = match item {
            0 => (one, one),
            1 => (dim(0), one),
            _ => (dim(0), dim(1)),
        };
        Ok(Layout { steps, sizes, rows, columns, row_step, column_step })
    }

    /// Returns the offset of an item.
    fn offset(&self, mut number: usize) -> isize {
        let mut offset = 0;
        for (step, size) in self.steps.iter().zip(&self.sizes[..]).rev() {
            offset += (number % size) as isize * step;
            number /= size;
        }
        offset
    }
}

/// The matrices that a kernel reads.
pub(super) struct Source {
    input: Input<f64>,
    layout: Layout,
}

impl Source {
    /// # Errors
    /// If the host can't access the memory.
    pub(super) fn new(x: &Tensor) -> Result<Source> {
        let input = match x.dtype() {
            DType::F32 => Input::converted::<f32>(base::<f32>(x)?),
            _ => Input::plain(base::<f64>(x)?),
        };
        Ok(Source { input, layout: Layout::new(x, 2)? })
    }

    /// Returns the number of matrices, and the shape of each.
    pub(super) fn sizes(&self) -> (usize, [usize; 2]) {
        let Layout { sizes, rows, columns, .. } = &self.layout;
        (sizes.iter().product(), [*rows, *columns])
    }

    /// Copies a matrix.
    pub(super) fn load(&self, number: usize, to: &mut Vec<f64>) {
        let Layout { rows, columns, row_step, column_step, .. } = self.layout;
        to.clear();
        to.reserve(rows * columns);
        let block = Block::along(columns, column_step, rows, row_step);
        // SAFETY: the block is the matrix of that number, and there is room for all of its elements, which
        // are all written.
        unsafe {
            if rows * columns > 0 {
                self.input.fill(self.layout.offset(number), block, to.as_mut_ptr());
            }
            to.set_len(rows * columns);
        }
    }

    /// Returns the indices of a matrix in the stack, for a message.
    pub(super) fn name(&self, number: usize) -> String {
        let (mut rest, mut index) = (number, Vec::new());
        for size in self.layout.sizes.iter().rev() {
            index.insert(0, rest % size);
            rest /= size;
        }
        if index.is_empty() { "the matrix".to_owned() } else { format!("matrix {index:?}") }
    }
}

/// The matrices, vectors or numbers that a kernel writes.
pub(super) struct Target {
    sink: Sink<f64>,
    layout: Layout,
}

impl Target {
    /// A target of matrices, with 1 of vectors, with 0 of numbers.
    ///
    /// # Errors
    /// If the host can't write the memory.
    pub(super) fn new(out: &Tensor, item: usize) -> Result<Target> {
        let to = out_base(out)?;
        let sink = match out.dtype() {
            DType::F32 => Sink::of::<f32>(to),
            DType::I32 => Sink::of::<i32>(to),
            _ => Sink::of::<f64>(to),
        };
        Ok(Target { sink, layout: Layout::new(out, item)? })
    }

    /// Returns the shape of an item.
    pub(super) fn shape(&self) -> [usize; 2] {
        [self.layout.rows, self.layout.columns]
    }

    /// Writes an item of the function of row and column.
    pub(super) fn store_with(
        &self,
        number: usize,
        column: &mut Vec<f64>,
        item: impl Fn(usize, usize) -> f64,
    ) {
        let Layout { rows, columns, row_step, column_step, .. } = self.layout;
        let offset = self.layout.offset(number);
        // Along the dense dimension.
        let by_rows = column_step.unsigned_abs() < row_step.unsigned_abs();
        let (outer, inner, outer_step, step) = match by_rows {
            true => (rows, columns, row_step, column_step),
            false => (columns, rows, column_step, row_step),
        };
        for at in 0..outer {
            column.clear();
            column.extend((0..inner).map(|i| if by_rows { item(at, i) } else { item(i, at) }));
            // SAFETY: the row or column lies inside the item of that number, which no other task has.
            unsafe { self.sink.put(column, offset + at as isize * outer_step, step) };
        }
    }

    /// Writes a matrix that is stored columns first, with so many rows.
    pub(super) fn store(&self, number: usize, column: &mut Vec<f64>, items: &[f64], rows: usize) {
        self.store_with(number, column, |row, at| items[at * rows + row]);
    }

    /// Writes the transpose of a matrix that is stored columns first, with so many rows.
    pub(super) fn store_transposed(
        &self,
        number: usize,
        column: &mut Vec<f64>,
        items: &[f64],
        rows: usize,
    ) {
        self.store_with(number, column, |row, at| items[row * rows + at]);
    }

    /// Writes the same number everywhere.
    pub(super) fn fill(&self, number: usize, column: &mut Vec<f64>, value: f64) {
        self.store_with(number, column, |_, _| value);
    }
}
