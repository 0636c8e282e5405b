//! Whether all elements, or any, are nonzero. NaN is nonzero.

use keyfold_core::{Element, Result};
use keyfold_kit::axes::{Body, Bool, HasDtype, Output};

use super::blocks::{Input, Sink};
use super::call::{ReduceCall, ReduceKernel};
use super::convert::{BoolByte, NonZero, ReductionTypes, To};
use super::kernels::ReductionKernels;
use super::monoid::{AllOrAny, Monoid, Ordered};
use super::{Kernel, Kernels, run};

/// The kernels of `all` and `any`.
#[derive(Clone, Copy)]
pub(crate) struct AnyAll<const ALL: bool>;

impl<C, const ALL: bool> Body<C, Kernel> for AnyAll<ALL>
where
    C: HasDtype<Element: ReductionTypes<Tested: NonZero<Magnitude: Ordered + To<BoolByte>>>>,
{
    fn instance(&self, _: C) -> Kernel {
        ReduceKernel(launch::<C::Element, Of<C>, ALL>)
    }
}

type Of<C> = <<C as HasDtype>::Element as ReductionTypes>::Tested;

pub(crate) fn kernels<const ALL: bool>(name: &str) -> Kernels {
    let table = Kernels::builder(name).cover((Output(Bool),), AnyAll::<ALL>);
    table.build().expect("each dtype is covered once")
}

fn launch<E, S, const ALL: bool>(call: &ReduceCall<'_>) -> Result<()>
where
    E: Element,
    S: NonZero<Magnitude: Ordered + To<BoolByte>>,
{
    decide::<S, ALL>(call, Input::plain(call.base::<E>()?))
}

/// Compiled once for all element types with these bits.
#[inline(never)]
fn decide<S, const ALL: bool>(call: &ReduceCall<'_>, input: Input<S>) -> Result<()>
where
    S: NonZero<Magnitude: Ordered + To<BoolByte>>,
{
    let ops =
        ReductionKernels::of::<S::Loop, AllOrAny<S::Magnitude, ALL>, AllOrAny<S::Magnitude, ALL>>();
    let empty = AllOrAny::<S::Magnitude, ALL>::IDENTITY;
    run(call, (input, Sink::of::<BoolByte>(call.out_base()?)), ops, empty, None)
}
