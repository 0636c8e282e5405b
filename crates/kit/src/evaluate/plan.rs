//! How operands of one shape are walked together.

use keyfold_core::layout;
use keyfold_tensor::{Loops, Tensor};
use smallvec::SmallVec;

use crate::eval::memory::Access;
use crate::eval::{Counted, Program};

/// What is in a slot: an input, something counted, or the output.
#[derive(Clone, Copy)]
pub(super) struct Operand<'a> {
    /// The address of the first element; for what is counted, the first number.
    pub(super) base: isize,
    /// Bytes of an element in memory; 1 for what is counted, whose "addresses" are numbers.
    pub(super) size: isize,
    /// How elements are brought into a register; `None` for what is counted.
    pub(super) access: Option<&'a Access>,
    /// Whether it takes part: ranked and unused inputs don't.
    pub(super) walked: bool,
}

/// How elements are put together to blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// A block is part of a row, the innermost dimension.
    Rows,
    /// Rows are short: a block is several of them.
    Spans,
    /// An input is contiguous along the dimension before the innermost: squares of both are read
    /// together, so that every line of the cache is used whole.
    Tiles,
}

/// Dimensions, outermost first, merged where all operands step evenly, and sorted by the output's
/// strides.
pub(super) struct Plan<'a> {
    pub(super) operands: SmallVec<[Operand<'a>; 4]>,
    /// Steps are in bytes.
    loops: Loops,
    pub(super) total: usize,
    pub(super) way: Way,
}

/// Rows that are shorter are put together to blocks.
const SHORT: usize = 64;

impl<'a> Plan<'a> {
    /// The plan for operands that broadcast to the output's shape (which has been checked).
    pub(super) fn new(program: &'a Program, inputs: &[&Tensor], out: &Tensor) -> Plan<'a> {
        let mut plan = Plan::operands(program, inputs, out);
        for (dim, &size) in out.shape().iter().enumerate() {
            if size != 1 {
                plan.loops.push(size, steps(program, inputs, out, dim));
            }
        }
        if plan.dims().is_empty() {
            // One element.
            plan.loops.push_one(plan.operands.iter().map(|operand| operand.size));
            return plan;
        }
        let lead = plan.operands.len() - 1;
        let mut bases: SmallVec<[isize; 8]> =
            plan.operands.iter().map(|operand| operand.base).collect();
        plan.loops.ascend(lead, &mut bases);
        for (operand, base) in plan.operands.iter_mut().zip(bases) {
            operand.base = base;
        }
        plan.loops.sort_by_key(|steps| steps[lead].unsigned_abs());
        plan.loops.merge(|_, _| true);
        plan.way = match plan.inner() {
            _ if plan.dims().len() == 1 => Way::Rows,
            long if long > program.block() / 2 => plan.long_rows(program),
            // Loading them is little work; or nothing, or one row, or one element of each.
            short if short < SHORT || plan.has_whole_rows() => Way::Spans,
            _ => plan.long_rows(program),
        };
        plan
    }

    fn operands(program: &'a Program, inputs: &[&Tensor], out: &Tensor) -> Plan<'a> {
        let memory = |tensor: &Tensor, access: &'a Access, walked: bool| Operand {
            base: tensor.pinned_ptr().expose_provenance() as isize,
            size: access.size as isize,
            access: Some(access),
            walked,
        };
        let counted = Operand { base: 0, size: 1, access: None, walked: true };
        let accesses = program.accesses();
        let mut operands = SmallVec::new();
        for (slot, (input, access)) in inputs.iter().zip(accesses).enumerate() {
            operands.push(memory(input, access, program.reads(slot)));
        }
        operands.extend(program.counted().iter().map(|_| counted));
        operands.push(memory(out, &accesses[inputs.len()], true));
        let loops = Loops::new(operands.len());
        Plan { operands, loops, total: out.numel(), way: Way::Rows }
    }

    fn long_rows(&mut self, program: &Program) -> Way {
        if self.find_tiles(program) { Way::Tiles } else { Way::Rows }
    }

    /// Moves the dimension along which an input is contiguous, that isn't along the innermost, next
    /// to it. Returns whether there is one.
    fn find_tiles(&mut self, program: &Program) -> bool {
        let inner = self.dims().len() - 1;
        for slot in 0..program.inputs().len() {
            let size = self.operands[slot].size;
            if !self.operands[slot].walked || self.row(inner)[slot].abs() <= size {
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

    /// Whether all operands are dense, or the same in every row, or all along a row.
    fn has_whole_rows(&self) -> bool {
        (0..self.operands.len()).all(|slot| {
            !self.operands[slot].walked
                || self.is_dense(slot)
                || self.is_the_same_in_rows(slot)
                || (self.row(self.dims().len() - 1)[slot] == 0
                    && self.operands[slot].access.is_some())
        })
    }

    /// Whether an operand is the same in every row.
    pub(super) fn is_the_same_in_rows(&self, slot: usize) -> bool {
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

    /// Whether elements of an operand lie one after another over all dimensions.
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
    out: &'i Tensor,
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
    let of_counted = move |counted: &Counted| match counted {
        Counted::Index => layout::contiguous_strides(out.shape())[dim],
        Counted::Coordinate(end) => isize::from(*end as usize + 1 == from_end),
    };
    let of_out = out.strides()[dim] * out.dtype().size() as isize;
    let all = inputs.iter().zip(program.ranks()).map(of_input);
    all.chain(program.counted().iter().map(of_counted)).chain([of_out])
}

/// A place in the outer dimensions, with the address of each operand there.
pub(super) struct Cursor {
    pub(super) index: SmallVec<[usize; 6]>,
    /// Addresses as numbers.
    pub(super) at: SmallVec<[isize; 8]>,
}

impl Cursor {
    /// The place of row number `row`, where rows run along all but the last `inner` dimensions.
    pub(super) fn new(plan: &Plan<'_>, inner: usize, mut row: usize) -> Cursor {
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

    /// Goes on to the next row: like an odometer. Behind the last one comes the first.
    #[inline]
    pub(super) fn next(&mut self, plan: &Plan<'_>) {
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
