//! Two steps of arithmetic in one loop.
//!
//! A loop over blocks in the first-level cache spends most of its time on loads and stores: of a sum
//! or a product that is used once, and by another one, neither is needed. Each of the two is rounded
//! as it would be alone.

use std::marker::PhantomData;

use keyfold_core::DType;

use super::beside;
use super::binary::Arithmetic;
use super::kernel::{Kernel, Map3};
use crate::graph::Binary;
use crate::lower::{Step, StepId, StepOp};

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
        (Binary::Add, _) => beside::three::<_, T>(Both::<Inner, Plus>(PhantomData)),
        (Binary::Mul, _) => beside::three::<_, T>(Both::<Inner, Times>(PhantomData)),
        (_, false) => beside::three::<_, T>(Both::<Inner, Minus>(PhantomData)),
        (_, true) => beside::three::<_, T>(Both::<Inner, From>(PhantomData)),
    }
}

fn of<T: Arithmetic + Copy + 'static>(inner: Binary, outer: Binary, swapped: bool) -> Kernel {
    match inner {
        Binary::Add => with::<Plus, T>(outer, swapped),
        Binary::Mul => with::<Times, T>(outer, swapped),
        _ => with::<Minus, T>(outer, swapped),
    }
}

/// Two steps as one.
pub(crate) struct Fused {
    pub(crate) kernel: Kernel,
    pub(crate) operands: [StepId; 3],
    /// The step that isn't computed alone.
    pub(crate) inner: StepId,
}

fn arithmetic(step: &Step) -> Option<(Binary, StepId, StepId)> {
    match step.op {
        StepOp::Binary(op @ (Binary::Add | Binary::Sub | Binary::Mul), a, b)
            if matches!(step.dtype, DType::F32 | DType::F64) && !step.uniform =>
        {
            Some((op, a, b))
        }
        _ => None,
    }
}

/// What becomes of each step: fused with one before it, and which are part of another.
pub(crate) fn fuse(steps: &[Step]) -> (Vec<Option<Fused>>, Vec<bool>) {
    let mut uses = vec![0_u32; steps.len()];
    for step in steps {
        step.op.operands(|id| uses[id.index()] += 1);
    }
    let mut parts = vec![false; steps.len()];
    let mut all: Vec<Option<Fused>> = Vec::with_capacity(steps.len());
    for step in steps {
        let fused = arithmetic(step).and_then(|(outer, a, b)| {
            let inside = |id: StepId, all: &[Option<Fused>]| {
                let alone = uses[id.index()] == 1 && all[id.index()].is_none();
                alone.then(|| arithmetic(&steps[id.index()])).flatten()
            };
            let (inner, found, other, swapped) = match (inside(a, &all), inside(b, &all)) {
                (Some(found), _) => (a, found, b, false),
                (None, Some(found)) => (b, found, a, true),
                _ => return None,
            };
            let (op, x, y) = found;
            let kernel = match step.dtype {
                DType::F32 => of::<f32>(op, outer, swapped),
                _ => of::<f64>(op, outer, swapped),
            };
            Some(Fused { kernel, operands: [x, y, other], inner })
        });
        if let Some(fused) = &fused {
            parts[fused.inner.index()] = true;
        }
        all.push(fused);
    }
    (all, parts)
}
