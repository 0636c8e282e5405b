//! Fusion: several steps in one loop.
//!
//! A loop over blocks in the L1 cache spends most of its time on loads and stores. Arithmetic whose value
//! has a single use, in more arithmetic, needs neither: two sums or products are one loop of three
//! operands, and three operations or more are a [chain](super::chain), at the levels that have one. The
//! same holds for arithmetic on the argument and on the value of a function, as in
//! `0.5 * x * erfc(-0.7 * x)`. Every step is rounded as it would be alone.

use std::marker::PhantomData;

use keyfold_core::{DType, Scalar};
use keyfold_expr::fuse::Stored;
use keyfold_expr::{Binary, Step, StepId, StepOp, Unary};
use smallvec::{SmallVec, smallvec};

use super::chain::{Combine, Float, Minus, MinusFrom, Op, Plus, Times};
use super::kernel::{Kernel, Map3};
use super::streaming_kernels;
use super::value::Value;
use crate::math::{Real, function as math};

/// `Outer(Inner(a, b), c)`
struct Composed<Inner, Outer>(PhantomData<(Inner, Outer)>);

impl<T: Float, Inner: Combine, Outer: Combine> Map3<T> for Composed<Inner, Outer> {
    #[inline(always)]
    fn apply(a: T, b: T, c: T) -> T {
        // SAFETY: single elements need no level.
        unsafe { Outer::of(Inner::of(a, b), c) }
    }
}

fn outer_kernel<Inner: Combine, T: Float>(outer: Op) -> Option<Kernel> {
    Some(match outer {
        Op::Add => streaming_kernels::ternary_kernel::<_, T>(Composed::<Inner, Plus>(PhantomData)),
        Op::Mul => streaming_kernels::ternary_kernel::<_, T>(Composed::<Inner, Times>(PhantomData)),
        Op::Sub => streaming_kernels::ternary_kernel::<_, T>(Composed::<Inner, Minus>(PhantomData)),
        Op::SubFrom => {
            streaming_kernels::ternary_kernel::<_, T>(Composed::<Inner, MinusFrom>(PhantomData))
        }
        _ => return None,
    })
}

/// Returns the loop of two operations.
fn pair_kernel<T: Float>(inner: Op, outer: Op) -> Option<Kernel> {
    match inner {
        Op::Add => outer_kernel::<Plus, T>(outer),
        Op::Mul => outer_kernel::<Times, T>(outer),
        Op::Sub => outer_kernel::<Minus, T>(outer),
        _ => None,
    }
}

/// Several steps as one instruction.
pub(crate) struct Fused {
    pub(crate) body: Body,
    /// The steps whose values the loop reads.
    pub(crate) operands: SmallVec<[StepId; 3]>,
    /// The steps that the loop computes, so that none of them is computed alone.
    parts: SmallVec<[StepId; 4]>,
}

/// The loop of fused steps.
pub(crate) enum Body {
    /// Arithmetic on the value of a step.
    Chain(Steps),
    /// A kernel, with constants that replace its third operand if it has any.
    Kernel(Kernel, Option<Box<[Value; 4]>>),
}

/// The steps of a chain.
pub(crate) struct Steps {
    pub(crate) first: StepId,
    /// Each operation, with its operand unless it is of one number.
    pub(crate) ops: Vec<(Op, Option<StepId>)>,
    /// The number of operands that are computed, which are kept until the chain begins.
    computed: usize,
}

/// The most computed operands of a chain that further steps are added to.
const MOST_COMPUTED: usize = 4;

/// The state of the fusion pass.
struct Fusion<'a> {
    steps: &'a [Step],
    uses: Vec<u32>,
    /// Whether more than two operations are one loop.
    has_chains: bool,
    /// For each step before the one at hand, and that one, the operation of a chain that it could be.
    operations: Vec<Option<Operation>>,
    /// For each step before.
    fused: Vec<Option<Fused>>,
}

/// An operation of a chain: on the value of a step, with another one.
#[derive(Clone, Copy)]
struct Operation {
    op: Op,
    value: StepId,
    other: Option<StepId>,
}

impl Fusion<'_> {
    /// Returns the step as an operation of a chain. If both operands could be computed in it, the first
    /// one is.
    fn operation(&self, id: StepId) -> Option<Operation> {
        let step = &self.steps[id.index()];
        if !matches!(step.dtype, DType::F32 | DType::F64) || step.uniform {
            return None;
        }
        let of_one = |op: Option<Op>, value| {
            op.filter(|_| self.has_chains).map(|op| Operation { op, value, other: None })
        };
        let of_two = |op, value, other, swapped| {
            let op = Op::binary(op, swapped).filter(|op| self.has_chains || op.has_pairs())?;
            Some(Operation { op, value, other: Some(other) })
        };
        match step.op {
            // The absolute value of a complex number is a float, and float64 is rounded to float32.
            StepOp::Unary(_, value) | StepOp::Round(_, value)
                if self.steps[value.index()].dtype != step.dtype =>
            {
                None
            }
            StepOp::Unary(op, value) => of_one(Op::unary(op), value),
            StepOp::Round(to, value) => of_one(Op::round(to), value),
            StepOp::Binary(Binary::Mul, a, b) if a == b && self.has_chains => {
                of_one(Some(Op::Square), a)
            }
            StepOp::Binary(op, a, b) => {
                let swapped =
                    self.steps[a.index()].uniform || (!self.is_part(a, 1) && self.is_part(b, 1));
                if swapped { of_two(op, b, a, true) } else { of_two(op, a, b, false) }
            }
            _ => None,
        }
    }

    /// Whether a step can be computed in the chain of its only user, which reads it that many times.
    fn is_part(&self, id: StepId, reads: u32) -> bool {
        self.uses[id.index()] == reads
            && match &self.fused[id.index()] {
                Some(Fused { body: Body::Chain(steps), .. }) => {
                    self.has_chains && steps.computed <= MOST_COMPUTED
                }
                Some(_) => false,
                None => self.operations[id.index()].is_some(),
            }
    }

    /// Whether the value of a step is computed.
    fn is_computed(&self, id: StepId) -> bool {
        let step = &self.steps[id.index()];
        !step.uniform
            && !matches!(step.op, StepOp::Input(_) | StepOp::Index | StepOp::Coordinate(_))
    }

    /// Whether a step has a single use and isn't fused yet, or in two operations that could be loops of their
    /// own.
    fn is_free(&self, id: StepId) -> bool {
        self.uses[id.index()] == 1
            && match &self.fused[id.index()] {
                None => true,
                Some(Fused { body: Body::Chain(Steps { ops, .. }), .. }) => {
                    ops.len() == 2 && !ops.iter().all(|(op, _)| op.has_pairs())
                }
                Some(_) => false,
            }
    }

    fn constant(&self, id: StepId) -> Option<Scalar> {
        match self.steps[id.index()].op {
            StepOp::Constant(number) => Some(number),
            _ => None,
        }
    }

    /// Matches a free sum, product or maximum with a constant that isn't NaN.
    fn match_constant(&self, id: StepId, wanted: Binary) -> Option<(StepId, Scalar)> {
        let step = &self.steps[id.index()];
        let StepOp::Binary(op, a, b) = step.op else { return None };
        if op != wanted || step.uniform || !self.is_free(id) {
            return None;
        }
        match (self.constant(a), self.constant(b)) {
            (Some(number), None) => Some((b, number)),
            (None, Some(number)) => Some((a, number)),
            _ => None,
        }
        .filter(|(_, number)| !number.as_f64().is_nan())
    }

    /// Adds a step to the chain of its operand, or begins one with both.
    fn chain(&mut self, id: StepId) -> Option<Fused> {
        let last = self.operations[id.index()]?;
        let inner = last.value;
        if !self.is_part(inner, if last.op == Op::Square { 2 } else { 1 }) {
            return None;
        }
        let (mut steps, mut operands, mut parts) = match self.fused[inner.index()].take() {
            Some(Fused { body: Body::Chain(steps), operands, parts }) => (steps, operands, parts),
            _ => {
                let Operation { op, value: first, other } = self.operations[inner.index()]?;
                let operands: SmallVec<[StepId; 3]> = std::iter::once(first).chain(other).collect();
                let computed = operands.iter().filter(|id| self.is_computed(**id)).count();
                (Steps { first, ops: vec![(op, other)], computed }, operands, smallvec![])
            }
        };
        steps.ops.push((last.op, last.other));
        steps.computed += last.other.iter().filter(|id| self.is_computed(**id)).count();
        operands.extend(last.other);
        parts.push(inner);
        Some(Fused { body: Body::Chain(steps), operands, parts })
    }

    /// Fuses a scaled function as in `gelu`: scaling of the argument, function, addition, product. Only
    /// the function and the last product have to be there.
    fn scaled_function(&self, id: StepId) -> Option<Fused> {
        let step = &self.steps[id.index()];
        match step.op {
            StepOp::Binary(Binary::Mul, a, b)
                if matches!(step.dtype, DType::F32 | DType::F64) && !step.uniform =>
            {
                self.function(id, a, b).or_else(|| self.function(id, b, a))
            }
            _ => None,
        }
    }

    /// As [`Fusion::scaled_function`], for the product `id` of `value`, which contains the function, and
    /// `factor`.
    fn function(&self, id: StepId, value: StepId, factor: StepId) -> Option<Fused> {
        let mut parts = SmallVec::new();
        let dtype = self.steps[id.index()].dtype;
        let mut unwrap_constant =
            |part: StepId, found: Option<(StepId, Scalar)>, without: f64| match found {
                Some((inner, number)) => {
                    parts.push(part);
                    (inner, Value::new(number, dtype))
                }
                None => (part, Value::new(Scalar::Float(without), dtype)),
            };
        // A missing addend is -0, which leaves both 0 and -0 as they are.
        let (function, value_offset) =
            unwrap_constant(value, self.match_constant(value, Binary::Add), -0.0);
        let StepOp::Unary(op, argument) = self.steps[function.index()].op else { return None };
        let uniform = |id: StepId| self.steps[id.index()].uniform;
        // A function of uniform values is computed once per evaluation, not for every element.
        if !self.is_free(function) || uniform(function) || uniform(factor) {
            return None;
        }
        let (argument, argument_scale) =
            unwrap_constant(argument, self.match_constant(argument, Binary::Mul), 1.0);
        let (factor, factor_scale) =
            unwrap_constant(factor, self.match_constant(factor, Binary::Mul), 1.0);
        // A maximum with 0 isn't fused: the sign of a zero result would depend on the order of the
        // operands.
        let bounded = self.match_constant(factor, Binary::Max);
        let bounded = bounded.filter(|(_, least)| least.as_f64() != 0.0);
        let (factor, factor_min) = unwrap_constant(factor, bounded, f64::NEG_INFINITY);
        parts.push(function);
        let kernel = match dtype {
            DType::F32 => scaled_kernel::<f32>(op)?,
            _ => scaled_kernel::<f64>(op)?,
        };
        let constants = Box::new([argument_scale, value_offset, factor_min, factor_scale]);
        let body = Body::Kernel(kernel, Some(constants));
        Some(Fused { body, operands: smallvec![argument, factor], parts })
    }
}

/// Returns the scaled loop of a function, for the functions that expressions scale.
fn scaled_kernel<T: Real>(op: Unary) -> Option<Kernel> {
    Some(match op {
        Unary::Erf => streaming_kernels::scaled_function::<math::Erf, T>(),
        Unary::Erfc => streaming_kernels::scaled_function::<math::Erfc, T>(),
        Unary::Exp => streaming_kernels::scaled_function::<math::Exp, T>(),
        Unary::Sigmoid => streaming_kernels::scaled_function::<math::Sigmoid, T>(),
        Unary::Tanh => streaming_kernels::scaled_function::<math::Tanh, T>(),
        _ => return None,
    })
}

/// Returns the fused loop of each step, and whether each step is part of another's loop. `has_chains`:
/// whether more than two operations may be one loop.
pub(crate) fn fuse(
    steps: &[Step],
    results: &[Stored],
    has_chains: bool,
) -> (Vec<Option<Fused>>, Vec<bool>) {
    let mut uses = vec![0; steps.len()];
    results.iter().for_each(|result| uses[result.step.index()] += 1);
    for step in steps {
        step.op.operands(|id| uses[id.index()] += 1);
    }
    let (operations, fused) = (Vec::with_capacity(steps.len()), Vec::with_capacity(steps.len()));
    let mut fusion = Fusion { steps, uses, has_chains, operations, fused };
    for at in 0..steps.len() {
        let id = StepId(at as u32);
        fusion.operations.push(fusion.operation(id));
        let fused = fusion.scaled_function(id).or_else(|| fusion.chain(id));
        // A part that began a chain doesn't any more.
        for part in fused.iter().flat_map(|fused| &fused.parts) {
            fusion.fused[part.index()] = None;
        }
        fusion.fused.push(fused);
    }
    let mut parts = vec![false; steps.len()];
    for (step, fused) in steps.iter().zip(&mut fusion.fused) {
        *fused = fused.take().and_then(|fused| fused.or_pair(step.dtype));
        for part in fused.iter().flat_map(|fused| &fused.parts) {
            parts[part.index()] = true;
        }
    }
    (fusion.fused, parts)
}

impl Fused {
    /// Returns a chain of two operations as a kernel, for which a chain's lookups would cost too much; `None`
    /// if there is no kernel, so that each has its own loop.
    fn or_pair(mut self, dtype: DType) -> Option<Fused> {
        let Body::Chain(Steps { first, ops, .. }) = &self.body else { return Some(self) };
        let [(inner, one), (outer, other)] = ops[..] else { return Some(self) };
        let mut operands = [*first, one.unwrap_or(*first), other?];
        let inner = match inner {
            Op::SubFrom => {
                operands.swap(0, 1);
                Op::Sub
            }
            Op::Square => Op::Mul,
            inner => inner,
        };
        let kernel = match dtype {
            DType::F32 => pair_kernel::<f32>(inner, outer)?,
            _ => pair_kernel::<f64>(inner, outer)?,
        };
        self.body = Body::Kernel(kernel, None);
        self.operands = operands.into();
        Some(self)
    }
}
