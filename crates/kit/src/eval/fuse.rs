//! Several steps in one loop.
//!
//! A loop over blocks in the first-level cache spends most of its time on loads and stores: of a sum
//! or a product that is used once, and by another one, neither is needed. Likewise for what is done to
//! the argument and to the value of a function, as in `0.5 * x * erfc(-0.7 * x)`. Each step is
//! rounded as it would be alone.

use std::marker::PhantomData;

use keyfold_core::{DType, Scalar};
use keyfold_expr::{Binary, Step, StepId, StepOp, Unary};
use smallvec::{SmallVec, smallvec};

use super::binary::Arithmetic;
use super::chunks;
use super::kernel::{Kernel, Map3};
use super::value::Value;
use crate::math::{Real, function as math};

/// Arithmetic as a type.
trait Op: 'static {
    fn of<T: Arithmetic>(a: T, b: T) -> T;
}

struct Plus;
struct Minus;
struct From;
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
impl Op for From {
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
struct Both<Inner, Outer>(PhantomData<(Inner, Outer)>);

impl<T: Arithmetic, Inner: Op, Outer: Op> Map3<T> for Both<Inner, Outer> {
    #[inline(always)]
    fn apply(a: T, b: T, c: T) -> T {
        Outer::of(Inner::of(a, b), c)
    }
}

fn with<Inner: Op, T: Arithmetic + Copy + 'static>(outer: Binary, swapped: bool) -> Kernel {
    match (outer, swapped) {
        (Binary::Add, _) => chunks::three::<_, T>(Both::<Inner, Plus>(PhantomData)),
        (Binary::Mul, _) => chunks::three::<_, T>(Both::<Inner, Times>(PhantomData)),
        (_, false) => chunks::three::<_, T>(Both::<Inner, Minus>(PhantomData)),
        (_, true) => chunks::three::<_, T>(Both::<Inner, From>(PhantomData)),
    }
}

fn of<T: Arithmetic + Copy + 'static>(inner: Binary, outer: Binary, swapped: bool) -> Kernel {
    match inner {
        Binary::Add => with::<Plus, T>(outer, swapped),
        Binary::Mul => with::<Times, T>(outer, swapped),
        _ => with::<Minus, T>(outer, swapped),
    }
}

/// Several steps as one.
pub(crate) struct Fused {
    pub(crate) kernel: Kernel,
    pub(crate) operands: SmallVec<[StepId; 3]>,
    /// What the kernel takes as its third operand.
    pub(crate) constants: Option<Box<[Value; 4]>>,
    /// The steps that aren't computed alone.
    parts: SmallVec<[StepId; 4]>,
}

/// The steps, and what is known of them so far.
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

    /// Whether a step is needed in one place only and isn't part of anything yet.
    fn is_free(&self, id: StepId) -> bool {
        self.uses[id.index()] == 1 && self.fused[id.index()].is_none()
    }

    fn constant(&self, id: StepId) -> Option<Scalar> {
        match self.steps[id.index()].op {
            StepOp::Constant(number) => Some(number),
            _ => None,
        }
    }

    /// A free sum, product or maximum with a constant, which isn't NaN.
    fn with_constant(&self, id: StepId, wanted: Binary) -> Option<(StepId, Scalar)> {
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

    /// Two steps of arithmetic.
    fn pair(&self, id: StepId) -> Option<Fused> {
        let (outer, a, b) = self.arithmetic(id)?;
        let inside = |id| self.arithmetic(id).filter(|_| self.is_free(id));
        let (inner, (op, x, y), other, swapped) = match (inside(a), inside(b)) {
            (Some(found), _) => (a, found, b, false),
            (None, Some(found)) => (b, found, a, true),
            _ => return None,
        };
        let kernel = match self.steps[id.index()].dtype {
            DType::F32 => of::<f32>(op, outer, swapped),
            _ => of::<f64>(op, outer, swapped),
        };
        let (operands, parts) = (smallvec![x, y, other], smallvec![inner]);
        Some(Fused { kernel, operands, constants: None, parts })
    }

    /// A function of a product, plus something, times something, as in `gelu`; of these, only the last
    /// product has to be there.
    fn wrapped(&self, id: StepId) -> Option<Fused> {
        let (op, a, b) = self.arithmetic(id)?;
        if op != Binary::Mul {
            return None;
        }
        self.function(id, a, b).or_else(|| self.function(id, b, a))
    }

    /// As [`Fusion::wrapped`]: `id` is the product of `value`, in which the function is, and `factor`.
    fn function(&self, id: StepId, value: StepId, factor: StepId) -> Option<Fused> {
        let mut parts = SmallVec::new();
        let dtype = self.steps[id.index()].dtype;
        let mut take = |part: StepId, found: Option<(StepId, Scalar)>, without: f64| match found {
            Some((inner, number)) => {
                parts.push(part);
                (inner, Value::new(number, dtype))
            }
            None => (part, Value::new(Scalar::Float(without), dtype)),
        };
        // Without a number to add: -0, which leaves 0 and -0 as they are.
        let (function, behind) = take(value, self.with_constant(value, Binary::Add), -0.0);
        let StepOp::Unary(op, argument) = self.steps[function.index()].op else { return None };
        let uniform = |id: StepId| self.steps[id.index()].uniform;
        // A function of numbers is computed once, and not for every element.
        if !self.is_free(function) || uniform(function) || uniform(factor) {
            return None;
        }
        let (argument, before) = take(argument, self.with_constant(argument, Binary::Mul), 1.0);
        let (factor, times) = take(factor, self.with_constant(factor, Binary::Mul), 1.0);
        // Which of two zeros is taken would depend on the order of a maximum's operands.
        let bounded = self.with_constant(factor, Binary::Max);
        let bounded = bounded.filter(|(_, least)| least.as_f64() != 0.0);
        let (factor, least) = take(factor, bounded, f64::NEG_INFINITY);
        parts.push(function);
        let kernel = match dtype {
            DType::F32 => around::<f32>(op)?,
            _ => around::<f64>(op)?,
        };
        let constants = Some(Box::new([before, behind, least, times]));
        Some(Fused { kernel, operands: smallvec![argument, factor], constants, parts })
    }
}

/// The loop around a function, of those that are used like this.
fn around<T: Real>(op: Unary) -> Option<Kernel> {
    Some(match op {
        Unary::Erf => chunks::wrapped::<math::Erf, T>(),
        Unary::Erfc => chunks::wrapped::<math::Erfc, T>(),
        Unary::Exp => chunks::wrapped::<math::Exp, T>(),
        Unary::Sigmoid => chunks::wrapped::<math::Sigmoid, T>(),
        Unary::Tanh => chunks::wrapped::<math::Tanh, T>(),
        _ => return None,
    })
}

/// What becomes of each step: fused with others before it, and which are part of another.
pub(crate) fn fuse(steps: &[Step]) -> (Vec<Option<Fused>>, Vec<bool>) {
    let mut uses = vec![0; steps.len()];
    for step in steps {
        step.op.operands(|id| uses[id.index()] += 1);
    }
    let mut parts = vec![false; steps.len()];
    let mut fusion = Fusion { steps, uses, fused: Vec::with_capacity(steps.len()) };
    for at in 0..steps.len() {
        let id = StepId(at as u32);
        let fused = fusion.wrapped(id).or_else(|| fusion.pair(id));
        for part in fused.iter().flat_map(|fused| &fused.parts) {
            parts[part.index()] = true;
        }
        fusion.fused.push(fused);
    }
    (fusion.fused, parts)
}
