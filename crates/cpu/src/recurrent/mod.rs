//! Cells of recurrent networks: all gates of a part of a row are computed while they are in the cache.

mod gru;
mod lstm;

use std::sync::LazyLock;

use keyfold_backend::{Execute, Kernels, Offer, Operation, RecurrentParams};
use keyfold_core::{DType, Result};
use keyfold_kit::axes::{Body, DispatchTable, Dtype, FLOATS, HasDtype};
use keyfold_kit::math::Real;
use keyfold_kit::pool::{Schedule, grain_for, parallel_for};
use keyfold_tensor::Tensor;

use crate::HostBackend;
use crate::kernel::{SeveralKernel, offer_several};
use crate::reduce::blocks::{Block, Input, Sink};
use crate::reduce::convert::{ReductionTypes, To};
use crate::reduce::{base, out_base};

type Kernel = SeveralKernel<RecurrentParams>;
type Table = DispatchTable<(Dtype,), Kernel>;

impl Kernels<RecurrentParams> for HostBackend {
    fn kernel(
        &self,
        op: &'static Operation,
        inputs: &[DType],
        outputs: &[DType],
    ) -> Offer<&dyn Execute<RecurrentParams>> {
        static KERNELS: LazyLock<Vec<(Operation, Table)>> = LazyLock::new(|| {
            CELLS.map(|(name, which)| (Operation::new(name), table(name, which))).into()
        });
        let Some((_, table)) = KERNELS.iter().find(|(known, _)| known == op) else {
            return Offer::No(format!("it has no operation named '{}'", op.name()).into());
        };
        let Some(&dtype) = inputs.first() else {
            return Offer::No("a cell has inputs".into());
        };
        if let Some(other) = inputs.iter().chain(outputs).find(|other| **other != dtype) {
            return Offer::No(format!("its cells of {dtype} take no {other}").into());
        }
        offer_several(table, (dtype,))
    }
}

/// An operation of the group.
#[derive(Clone, Copy)]
enum Cell {
    Gru,
    GruBackward,
    Lstm,
    LstmBackward,
}

const CELLS: [(&str, Cell); 4] = [
    ("gru_cell", Cell::Gru),
    ("gru_cell_backward", Cell::GruBackward),
    ("lstm_cell", Cell::Lstm),
    ("lstm_cell_backward", Cell::LstmBackward),
];

fn table(name: &str, which: Cell) -> Table {
    let table = Table::builder(name).cover((FLOATS,), which);
    table.build().expect("each dtype is covered once")
}

impl<C> Body<C, Kernel> for Cell
where
    C: HasDtype<Element: ReductionTypes>,
    <C::Element as ReductionTypes>::Stored: To<<C::Element as ReductionTypes>::Sum> + Copy,
    <C::Element as ReductionTypes>::Sum: Real + To<C::Element>,
{
    fn instance(&self, _: C) -> Kernel {
        SeveralKernel::new(match self {
            Cell::Gru => |params, inputs, outputs| {
                with_views::<C::Element>(inputs, outputs, |x, to| gru::forward(params, x, to))
            },
            Cell::GruBackward => {
                |_, inputs, outputs| with_views::<C::Element>(inputs, outputs, gru::backward)
            }
            Cell::Lstm => |params, inputs, outputs| {
                with_views::<C::Element>(inputs, outputs, |x, to| lstm::forward(params, x, to))
            },
            Cell::LstmBackward => |params, inputs, outputs| {
                with_views::<C::Element>(inputs, outputs, |x, to| lstm::backward(params, x, to))
            },
        })
    }
}

/// Calls `f` with the tensors as matrices of the type that the cells compute in.
fn with_views<D>(
    inputs: &[&Tensor],
    outputs: &[&Tensor],
    f: impl FnOnce(&[Source<D::Sum>], &[Target<D::Sum>]) -> Result<()>,
) -> Result<()>
where
    D: ReductionTypes<Sum: To<D>>,
{
    let source = |x: &&Tensor| -> Result<Source<D::Sum>> {
        let input = Input::converted::<D>(base::<D>(x)?);
        let (row_step, step, shape) = steps(x);
        Ok(Source { input, shape, row_step, step })
    };
    let target = |out: &&Tensor| -> Result<Target<D::Sum>> {
        let (row_step, step, _) = steps(out);
        Ok(Target { sink: Sink::of::<D>(out_base(out)?), row_step, step })
    };
    let sources = inputs.iter().map(source).collect::<Result<Vec<_>>>()?;
    let targets = outputs.iter().map(target).collect::<Result<Vec<_>>>()?;
    f(&sources, &targets)
}

/// Returns the steps from row to row and within a row, and the sizes of a matrix; a vector is the row of each.
fn steps(x: &Tensor) -> (isize, isize, [usize; 2]) {
    match (&**x.shape(), &**x.strides()) {
        ([rows, columns], [row_step, step]) => (*row_step, *step, [*rows, *columns]),
        ([columns], [step]) => (0, *step, [1, *columns]),
        _ => (0, 0, [0, 0]),
    }
}

/// A matrix that is read.
struct Source<T> {
    input: Input<T>,
    shape: [usize; 2],
    row_step: isize,
    step: isize,
}

/// A matrix that is written.
struct Target<T> {
    sink: Sink<T>,
    row_step: isize,
    step: isize,
}

/// Elements of a gate that are computed at a time.
const PART: usize = 256;

/// The elements of one gate, or of a state, in the cache.
type Values<T> = [T; PART];

/// A part of a row of a state: the row, its columns, and the state's width.
#[derive(Clone, Copy)]
struct Part {
    row: usize,
    start: usize,
    len: usize,
    width: usize,
}

impl<T: Copy + 'static> Source<T> {
    /// Loads a gate of this part.
    fn load(&self, part: Part, gate: usize, to: &mut Values<T>) {
        let Part { row, start, len, width } = part;
        assert!(len <= PART && (gate * width + start + len) <= self.shape[1]);
        let offset = row as isize * self.row_step + (gate * width + start) as isize * self.step;
        // SAFETY: `part` and the gate lie inside the matrix, and `to` has room for as many elements.
        unsafe { self.input.fill(offset, Block::along(1, 0, len, self.step), to.as_mut_ptr()) };
    }
}

impl<T: Real> Source<T> {
    /// Adds a gate of this part.
    fn add(&self, part: Part, gate: usize, to: &mut Values<T>) {
        let mut values = [T::ZERO; PART];
        self.load(part, gate, &mut values);
        each(part, to, |i, to| *to = *to + values[i]);
    }
}

impl<T> Target<T> {
    /// Stores a gate of this part.
    fn store(&self, part: Part, gate: usize, values: &mut Values<T>) {
        let Part { row, start, len, width } = part;
        let offset = row as isize * self.row_step + (gate * width + start) as isize * self.step;
        // SAFETY: the gate's part lies inside the matrix, and no other task has the same part.
        unsafe { self.sink.put(&mut values[..len], offset, self.step) };
    }
}

/// Calls `f` for each element of a part.
#[inline(always)]
fn each<T>(part: Part, values: &mut Values<T>, mut f: impl FnMut(usize, &mut T)) {
    for (i, value) in values[..part.len].iter_mut().enumerate() {
        f(i, value);
    }
}

/// The time of a cell per element of the state, in nanoseconds: about that of three gates' functions.
const NANOSECONDS: f64 = 3.0;

/// Calls `f` for all parts of a state of `rows` rows, on several threads if that pays.
fn for_parts(rows: usize, width: usize, f: impl Fn(Part) + Sync) -> Result<()> {
    let per_row = width.div_ceil(PART);
    let grain = grain_for(NANOSECONDS * width.clamp(1, PART) as f64);
    parallel_for(Schedule::Adaptive, 0..rows * per_row, grain, |parts| {
        for at in parts {
            let start = at % per_row * PART;
            f(Part { row: at / per_row, start, len: PART.min(width - start), width });
        }
        Ok(())
    })
}
