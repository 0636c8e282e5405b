//! The plan of a traversal: how operands of one shape are walked together.

use keyfold_core::layout;
use keyfold_tensor::{Loops, Tensor};
use smallvec::SmallVec;

use crate::interpreter::access::Access;
use crate::interpreter::{Iota, Program};

/// An operand of a traversal: an input, a iota operand, or an output.
#[derive(Clone, Copy)]
pub(super) struct SlotOperand<'a> {
    /// The address of the first element; for a iota operand, the first number.
    pub(super) base: isize,
    /// Bytes of an element in memory; 1 for iota operands, whose "addresses" are the numbers
    /// themselves.
    pub(super) size: isize,
    /// How elements are loaded into a register; `None` for iota operands.
    pub(super) access: Option<&'a Access>,
    /// Whether the traversal advances it: ranked and unused inputs aren't walked.
    pub(super) advances: bool,
}

/// How blocks are formed from elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Traversal {
    /// A block is a part of one row, the innermost dimension.
    Rows,
    /// A block is several whole rows, since rows are short.
    ShortRows,
    /// Blocks are rows of tiles, since an input is contiguous along the dimension before the innermost:
    /// reading it tile by tile uses every cache line whole.
    Tiles,
}

/// Dimensions, outermost first, sorted by the output's strides; neighbouring ones are merged if all
/// operands step evenly across them.
pub(super) struct TraversalPlan<'a> {
    pub(super) operands: SmallVec<[SlotOperand<'a>; 4]>,
    /// Steps in bytes.
    loops: Loops,
    pub(super) total: usize,
    pub(super) traversal: Traversal,
}

/// Rows shorter than this are traversed several at a time.
const SHORT_ROW: usize = 64;

impl<'a> TraversalPlan<'a> {
    /// The plan for operands that broadcast to the outputs' shape (which has been checked). The
    /// dimensions are sorted for the first output.
    pub(super) fn new(
        program: &'a Program,
        inputs: &[&Tensor],
        (out, more): (&Tensor, &[&Tensor]),
    ) -> TraversalPlan<'a> {
        let mut plan = TraversalPlan::operands(program, inputs, (out, more));
        for (dim, &size) in out.shape().iter().enumerate() {
            if size != 1 {
                plan.loops.push(size, steps(program, inputs, (out, more), dim));
            }
        }
        if plan.dims().is_empty() {
            // The output has one element.
            plan.loops.push_one(plan.operands.iter().map(|operand| operand.size));
            return plan;
        }
        let output = program.output();
        let mut bases: SmallVec<[isize; 8]> =
            plan.operands.iter().map(|operand| operand.base).collect();
        plan.loops.ascend(output, &mut bases);
        for (operand, base) in plan.operands.iter_mut().zip(bases) {
            operand.base = base;
        }
        plan.loops.sort_by_key(|steps| steps[output].unsigned_abs());
        plan.loops.merge(|_, _| true);
        plan.traversal = match plan.inner() {
            _ if plan.dims().len() == 1 => Traversal::Rows,
            long if long > program.block() / 2 => plan.long_rows(program),
            // Loading short rows one by one would cost more than computing them; and where every operand
            // is dense, repeated or constant, several rows load at no extra cost.
            short if short < SHORT_ROW || plan.has_whole_rows() => Traversal::ShortRows,
            _ => plan.long_rows(program),
        };
        plan
    }

    fn operands(
        program: &'a Program,
        inputs: &[&Tensor],
        (out, more): (&Tensor, &[&Tensor]),
    ) -> TraversalPlan<'a> {
        let memory = |tensor: &Tensor, access: &'a Access, advances: bool| SlotOperand {
            base: tensor.pinned_ptr().expose_provenance() as isize,
            size: access.size as isize,
            access: Some(access),
            advances,
        };
        let iota = SlotOperand { base: 0, size: 1, access: None, advances: true };
        let accesses = program.accesses();
        let mut operands = SmallVec::new();
        for (slot, (input, access)) in inputs.iter().zip(accesses).enumerate() {
            operands.push(memory(input, access, program.reads(slot)));
        }
        operands.extend(program.iotas().iter().map(|_| iota));
        let outs = std::iter::once(&out).chain(more).zip(&accesses[inputs.len()..]);
        operands.extend(outs.map(|(out, access)| memory(out, access, true)));
        let loops = Loops::new(operands.len());
        TraversalPlan { operands, loops, total: out.numel(), traversal: Traversal::Rows }
    }

    fn long_rows(&mut self, program: &Program) -> Traversal {
        if self.find_tiles(program) { Traversal::Tiles } else { Traversal::Rows }
    }

    /// Looks for an input that is contiguous along an outer dimension and not along the innermost, and
    /// moves that dimension next to the innermost. Returns whether there is such an input.
    fn find_tiles(&mut self, program: &Program) -> bool {
        let inner = self.dims().len() - 1;
        for slot in 0..program.inputs().len() {
            let size = self.operands[slot].size;
            if !self.operands[slot].advances || self.row(inner)[slot].abs() <= size {
                continue;
            }
            let along =
                (0..inner).find(|&dim| self.row(dim)[slot] == size && self.dims()[dim] >= 8);
            if let Some(dim) = along {
                let mut order: SmallVec<[usize; 8]> = (0..=inner).collect();
                order[dim..inner].rotate_left(1);
                self.loops.take(&order);
                return true;
            }
        }
        false
    }

    /// The sizes of the dimensions.
    #[inline]
    pub(super) fn dims(&self) -> &[usize] {
        self.loops.sizes()
    }

    /// Whether each operand is dense, or the same in every row, or constant along a row.
    fn has_whole_rows(&self) -> bool {
        (0..self.operands.len()).all(|slot| {
            !self.operands[slot].advances
                || self.is_dense(slot)
                || self.is_equal_in_rows(slot)
                || (self.row(self.dims().len() - 1)[slot] == 0
                    && self.operands[slot].access.is_some())
        })
    }

    /// Whether an operand is the same in every row.
    pub(super) fn is_equal_in_rows(&self, slot: usize) -> bool {
        (0..self.dims().len() - 1).all(|dim| self.row(dim)[slot] == 0)
    }

    /// The strides of all operands along a dimension.
    #[inline]
    pub(super) fn row(&self, dim: usize) -> &[isize] {
        self.loops.row(dim)
    }

    /// The innermost dimension's size.
    #[inline]
    pub(super) fn inner(&self) -> usize {
        self.dims()[self.dims().len() - 1]
    }

    /// Whether an operand's elements are contiguous over all dimensions.
    pub(super) fn is_dense(&self, operand: usize) -> bool {
        let mut step = self.operands[operand].size;
        (0..self.dims().len()).rev().all(|dim| {
            let dense = self.row(dim)[operand] == step;
            step = step.wrapping_mul(self.dims()[dim] as isize);
            dense
        })
    }
}

/// The steps of all operands along a dimension of the output, in bytes.
fn steps<'i>(
    program: &'i Program,
    inputs: &'i [&Tensor],
    (out, more): (&'i Tensor, &'i [&Tensor]),
    dim: usize,
) -> impl Iterator<Item = isize> + 'i {
    let from_end = out.ndim() - dim;
    let of_input = move |(input, rank): (&&Tensor, &Option<u32>)| {
        let size = input.dtype().size() as isize;
        match input.ndim().checked_sub(from_end) {
            Some(own) if rank.is_none() && input.shape()[own] != 1 => input.strides()[own] * size,
            _ => 0,
        }
    };
    let of_iota = move |iota: &Iota| match iota {
        Iota::Index => layout::contiguous_strides(out.shape())[dim],
        Iota::Coordinate(end) => isize::from(*end as usize + 1 == from_end),
    };
    let of_out = move |out: &Tensor| out.strides()[dim] * out.dtype().size() as isize;
    let all = inputs.iter().zip(program.ranks()).map(of_input);
    all.chain(program.iotas().iter().map(of_iota))
        .chain([of_out(out)])
        .chain(more.iter().map(move |out| of_out(out)))
}

/// A position in the outer dimensions, with the address of each operand there.
pub(super) struct Cursor {
    pub(super) index: SmallVec<[usize; 6]>,
    /// Addresses as numbers.
    pub(super) at: SmallVec<[isize; 8]>,
}

impl Cursor {
    /// The position of row number `row`, where rows run along the last `inner` dimensions.
    pub(super) fn new(plan: &TraversalPlan<'_>, inner: usize, mut row: usize) -> Cursor {
        let outer = plan.dims().len() - inner;
        let mut cursor = Cursor {
            index: SmallVec::from_elem(0, outer),
            at: plan.operands.iter().map(|operand| operand.base).collect(),
        };
        for dim in (0..outer).rev() {
            let size = plan.dims()[dim];
            cursor.index[dim] = row % size;
            row /= size;
            for (at, stride) in cursor.at.iter_mut().zip(plan.row(dim)) {
                *at += stride * cursor.index[dim] as isize;
            }
        }
        cursor
    }

    /// Advances to the next row; after the last row comes the first.
    #[inline]
    pub(super) fn next(&mut self, plan: &TraversalPlan<'_>) {
        for dim in (0..self.index.len()).rev() {
            self.index[dim] += 1;
            let row = plan.row(dim);
            if self.index[dim] < plan.dims()[dim] {
                for (at, stride) in self.at.iter_mut().zip(row) {
                    *at += stride;
                }
                return;
            }
            self.index[dim] = 0;
            for (at, stride) in self.at.iter_mut().zip(row) {
                *at -= stride * (plan.dims()[dim] as isize - 1);
            }
        }
    }
}
