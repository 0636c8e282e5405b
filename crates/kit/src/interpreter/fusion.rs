//! Fusion: several steps in one loop.
//!
//! A loop over blocks in the L1 cache spends most of its time on loads and stores. A sum or product that
//! has a single use, in another sum or product, needs neither. The same holds for arithmetic on the
//! argument and on the value of a function, as in `0.5 * x * erfc(-0.7 * x)`. Every step is rounded as
//! it would be alone.

use std::marker::PhantomData;

use keyfold_core::{DType, Scalar};
use keyfold_expr::fuse::Stored;
use keyfold_expr::{Binary, Step, StepId, StepOp, Unary};
use smallvec::{SmallVec, smallvec};

use super::binary::Arithmetic;
use super::kernel::{Kernel, Map3};
use super::streaming_kernels;
use super::value::Value;
use crate::math::{Real, function as math};

/// An arithmetic operation as a type.
trait Op: 'static {
    fn of<T: Arithmetic>(a: T, b: T) -> T;
}

struct Plus;
struct Minus;
struct ReverseMinus;
struct Times;

impl Op for Plus {
    #[inline(always)]
    fn of<T: Arithmetic>(a: T, b: T) -> T {
        a.plus(b)
    }
}
impl Op for Minus {
    #[inline(always)]
    fn of<T: Arithmetic>(a: T, b: T) -> T {
        a.minus(b)
    }
}
impl Op for ReverseMinus {
    #[inline(always)]
    fn of<T: Arithmetic>(a: T, b: T) -> T {
        b.minus(a)
    }
}
impl Op for Times {
    #[inline(always)]
    fn of<T: Arithmetic>(a: T, b: T) -> T {
        a.times(b)
    }
}

/// `Outer(Inner(a, b), c)`
struct Composed<Inner, Outer>(PhantomData<(Inner, Outer)>);

impl<T: Arithmetic, Inner: Op, Outer: Op> Map3<T> for Composed<Inner, Outer> {
    #[inline(always)]
    fn apply(a: T, b: T, c: T) -> T {
        Outer::of(Inner::of(a, b), c)
    }
}

fn outer_kernel<Inner: Op, T: Arithmetic + Copy + 'static>(outer: Binary, swapped: bool) -> Kernel {
    match (outer, swapped) {
        (Binary::Add, _) => {
            streaming_kernels::ternary_kernel::<_, T>(Composed::<Inner, Plus>(PhantomData))
        }
        (Binary::Mul, _) => {
            streaming_kernels::ternary_kernel::<_, T>(Composed::<Inner, Times>(PhantomData))
        }
        (_, false) => {
            streaming_kernels::ternary_kernel::<_, T>(Composed::<Inner, Minus>(PhantomData))
        }
        (_, true) => {
            streaming_kernels::ternary_kernel::<_, T>(Composed::<Inner, ReverseMinus>(PhantomData))
        }
    }
}

fn pair_kernel<T: Arithmetic + Copy + 'static>(
    inner: Binary,
    outer: Binary,
    swapped: bool,
) -> Kernel {
    match inner {
        Binary::Add => outer_kernel::<Plus, T>(outer, swapped),
        Binary::Mul => outer_kernel::<Times, T>(outer, swapped),
        _ => outer_kernel::<Minus, T>(outer, swapped),
    }
}

/// A fused kernel.
pub(crate) struct Fused {
    pub(crate) kernel: Kernel,
    pub(crate) operands: SmallVec<[StepId; 3]>,
    /// Constants that replace the third operand.
    pub(crate) constants: Option<Box<[Value; 4]>>,
    /// The steps that the kernel computes, so that none of them is computed alone.
    parts: SmallVec<[StepId; 4]>,
}

/// The state of the fusion pass.
struct Fusion<'a> {
    steps: &'a [Step],
    uses: Vec<u32>,
    fused: Vec<Option<Fused>>,
}

impl Fusion<'_> {
    fn arithmetic(&self, id: StepId) -> Option<(Binary, StepId, StepId)> {
        let step = &self.steps[id.index()];
        match step.op {
            StepOp::Binary(op @ (Binary::Add | Binary::Sub | Binary::Mul), a, b)
                if matches!(step.dtype, DType::F32 | DType::F64) && !step.uniform =>
            {
                Some((op, a, b))
            }
            _ => None,
        }
    }

    /// Whether a step has a single use and isn't fused yet.
    fn is_free(&self, id: StepId) -> bool {
        self.uses[id.index()] == 1 && self.fused[id.index()].is_none()
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

    /// Fuses two steps of arithmetic.
    fn pair(&self, id: StepId) -> Option<Fused> {
        let (outer, a, b) = self.arithmetic(id)?;
        let inside = |id| self.arithmetic(id).filter(|_| self.is_free(id));
        let (inner, (op, x, y), other, swapped) = match (inside(a), inside(b)) {
            (Some(found), _) => (a, found, b, false),
            (None, Some(found)) => (b, found, a, true),
            _ => return None,
        };
        let kernel = match self.steps[id.index()].dtype {
            DType::F32 => pair_kernel::<f32>(op, outer, swapped),
            _ => pair_kernel::<f64>(op, outer, swapped),
        };
        let (operands, parts) = (smallvec![x, y, other], smallvec![inner]);
        Some(Fused { kernel, operands, constants: None, parts })
    }

    /// Fuses a scaled function as in `gelu`: scaling of the argument, function, addition, product. Only
    /// the function and the last product have to be there.
    fn scaled_function(&self, id: StepId) -> Option<Fused> {
        let (op, a, b) = self.arithmetic(id)?;
        if op != Binary::Mul {
            return None;
        }
        self.function(id, a, b).or_else(|| self.function(id, b, a))
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
        let constants = Some(Box::new([argument_scale, value_offset, factor_min, factor_scale]));
        Some(Fused { kernel, operands: smallvec![argument, factor], constants, parts })
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

/// Returns the fused kernel of each step, and whether each step is part of another's kernel.
pub(crate) fn fuse(steps: &[Step], results: &[Stored]) -> (Vec<Option<Fused>>, Vec<bool>) {
    let mut uses = vec![0; steps.len()];
    results.iter().for_each(|result| uses[result.step.index()] += 1);
    for step in steps {
        step.op.operands(|id| uses[id.index()] += 1);
    }
    let mut parts = vec![false; steps.len()];
    let mut fusion = Fusion { steps, uses, fused: Vec::with_capacity(steps.len()) };
    for at in 0..steps.len() {
        let id = StepId(at as u32);
        let fused = fusion.scaled_function(id).or_else(|| fusion.pair(id));
        for part in fused.iter().flat_map(|fused| &fused.parts) {
            parts[part.index()] = true;
        }
        fusion.fused.push(fused);
    }
    (fusion.fused, parts)
}
