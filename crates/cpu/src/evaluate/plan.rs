//! How operands of one shape are walked together.

use keyfold_core::layout;
use keyfold_expr::computed;
use keyfold_expr::eval::memory::{Load, is_direct, loader};
use keyfold_expr::eval::{Counted, Program};
use keyfold_tensor::Tensor;
use smallvec::SmallVec;

/// What is in a slot: an input, something counted, or the output.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    /// The address of the first element; for what is counted, the first number.
    pub(super) base: isize,
    /// Bytes of an element in memory; 1 for what is counted, whose "addresses" are numbers.
    pub(super) size: isize,
    /// Bytes of an element in a register.
    pub(super) computed: usize,
    /// How elements are brought into a register; `None` for what is counted.
    pub(super) load: Option<Load>,
    /// Whether elements are computed as they lie in memory.
    pub(super) direct: bool,
    /// Whether it takes part: ranked inputs don't.
    pub(super) walked: bool,
}

/// Dimensions, outermost first, merged where all operands step evenly, and sorted by the output's
/// strides.
pub(super) struct Plan {
    pub(super) operands: SmallVec<[Operand; 6]>,
    pub(super) dims: SmallVec<[usize; 6]>,
    /// In bytes: those of all operands for the first dimension, then for the second, ...
    pub(super) strides: SmallVec<[isize; 24]>,
    pub(super) total: usize,
}

impl Plan {
    /// The plan for operands that broadcast to the output's shape (which has been checked).
    pub(super) fn new(program: &Program, inputs: &[&Tensor], out: &Tensor) -> Plan {
        let mut plan = Plan::operands(program, inputs, out);
        if plan.is_flat(program, inputs, out) {
            plan.dims.push(plan.total);
            plan.strides.extend(plan.operands.iter().map(|operand| operand.size));
            return plan;
        }
        let shape = out.shape();
        let mut order: SmallVec<[usize; 8]> =
            (0..shape.len()).filter(|&dim| shape[dim] != 1).collect();
        order.sort_by_key(|&dim| std::cmp::Reverse(out.strides()[dim].unsigned_abs()));
        let count = plan.operands.len();
        for dim in order {
            let size = shape[dim];
            let row = plan.strides.len();
            plan.push_strides(program, inputs, out, dim);
            if out.strides()[dim] < 0 {
                // Backwards for the output: walk it the other way.
                let strides = &mut plan.strides[row..];
                for (operand, stride) in plan.operands.iter_mut().zip(strides) {
                    operand.base += *stride * (size as isize - 1);
                    *stride = -*stride;
                }
            }
            let (before, now) = plan.strides.split_at(row);
            let merged = row > 0
                && before[row - count..]
                    .iter()
                    .zip(now)
                    .all(|(outer, inner)| inner.checked_mul(size as isize) == Some(*outer));
            if merged {
                plan.strides.copy_within(row.., row - count);
                plan.strides.truncate(row);
                let last = plan.dims.len() - 1;
                plan.dims[last] *= size;
            } else {
                plan.dims.push(size);
            }
        }
        if plan.dims.is_empty() {
            plan.dims.push(1);
            plan.strides.extend(plan.operands.iter().map(|operand| operand.size));
        }
        plan
    }

    fn operands(program: &Program, inputs: &[&Tensor], out: &Tensor) -> Plan {
        let memory = |tensor: &Tensor, walked: bool| Operand {
            base: tensor.raw_data_ptr().expose_provenance() as isize,
            size: tensor.dtype().size() as isize,
            computed: computed(tensor.dtype()).size(),
            load: Some(loader(tensor.dtype())),
            direct: is_direct(tensor.dtype()),
            walked,
        };
        let counted =
            Operand { base: 0, size: 1, computed: 8, load: None, direct: false, walked: true };
        let ranks = program.ranks();
        let mut operands = SmallVec::new();
        operands
            .extend(inputs.iter().zip(ranks).map(|(input, rank)| memory(input, rank.is_none())));
        operands.extend(program.counted().iter().map(|_| counted));
        operands.push(memory(out, true));
        let (dims, strides) = (SmallVec::new(), SmallVec::new());
        Plan { operands, dims, strides, total: out.numel() }
    }

    /// Whether everything is contiguous and of one shape: the usual case, which needs no search.
    fn is_flat(&self, program: &Program, inputs: &[&Tensor], out: &Tensor) -> bool {
        program.counted().iter().all(|counted| *counted == Counted::Index)
            && out.is_contiguous()
            && inputs.iter().zip(program.ranks()).all(|(input, rank)| {
                rank.is_some() || (input.shape() == out.shape() && input.is_contiguous())
            })
    }

    /// The strides of all operands along a dimension of the output.
    fn push_strides(&mut self, program: &Program, inputs: &[&Tensor], out: &Tensor, dim: usize) {
        let from_end = out.ndim() - dim;
        for (input, rank) in inputs.iter().zip(program.ranks()) {
            let size = input.dtype().size() as isize;
            self.strides.push(match input.ndim().checked_sub(from_end) {
                Some(own) if rank.is_none() && input.shape()[own] != 1 => {
                    input.strides()[own] * size
                }
                _ => 0,
            });
        }
        for counted in program.counted() {
            self.strides.push(match counted {
                Counted::Index => layout::contiguous_strides(out.shape())[dim],
                Counted::Coordinate(end) => isize::from(*end as usize + 1 == from_end),
            });
        }
        self.strides.push(out.strides()[dim] * out.dtype().size() as isize);
    }

    /// The strides of all operands along a dimension.
    #[inline]
    pub(super) fn row(&self, dim: usize) -> &[isize] {
        let count = self.operands.len();
        &self.strides[dim * count..(dim + 1) * count]
    }

    /// The innermost dimension's size.
    #[inline]
    pub(super) fn inner(&self) -> usize {
        self.dims[self.dims.len() - 1]
    }

    /// Whether elements of an operand lie one after another over all dimensions.
    pub(super) fn is_dense(&self, operand: usize) -> bool {
        let mut step = self.operands[operand].size;
        (0..self.dims.len()).rev().all(|dim| {
            let dense = self.row(dim)[operand] == step;
            step = step.wrapping_mul(self.dims[dim] as isize);
            dense
        })
    }
}

/// A place in the outer dimensions, with the address of each operand there.
#[derive(Clone)]
pub(super) struct Cursor {
    index: SmallVec<[usize; 6]>,
    /// Addresses as numbers.
    pub(super) at: SmallVec<[isize; 8]>,
}

impl Cursor {
    /// The place of row number `row`, where rows run along all but the last `inner` dimensions.
    pub(super) fn new(plan: &Plan, inner: usize, mut row: usize) -> Cursor {
        let outer = plan.dims.len() - inner;
        let mut cursor = Cursor {
            index: SmallVec::from_elem(0, outer),
            at: plan.operands.iter().map(|operand| operand.base).collect(),
        };
        for dim in (0..outer).rev() {
            let size = plan.dims[dim];
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
    pub(super) fn next(&mut self, plan: &Plan) {
        for dim in (0..self.index.len()).rev() {
            self.index[dim] += 1;
            let row = plan.row(dim);
            if self.index[dim] < plan.dims[dim] {
                for (at, stride) in self.at.iter_mut().zip(row) {
                    *at += stride;
                }
                return;
            }
            self.index[dim] = 0;
            for (at, stride) in self.at.iter_mut().zip(row) {
                *at -= stride * (plan.dims[dim] as isize - 1);
            }
        }
    }
}
