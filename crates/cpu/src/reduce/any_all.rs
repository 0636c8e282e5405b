//! Whether all elements, or any, are nonzero. NaN is nonzero.

use keyfold_backend::ReduceParams;
use keyfold_core::{Element, Result};
use keyfold_kit::axes::{Body, Bool, HasDtype, Output};
use keyfold_tensor::Tensor;

use super::blocks::{Input, Sink};
use super::convert::{Bits, BoolByte, NonZero, ReductionTypes, To};
use super::kernels::ReductionKernels;
use super::monoid::{AllOrAny, Monoid, Ordered};
use super::{Kernel, Kernels, base, out_base, run};
use crate::kernel::HostKernel;

/// The kernels of `all` and `any`.
#[derive(Clone, Copy)]
pub(crate) struct AnyAll<const ALL: bool>;

impl<C, const ALL: bool> Body<C, Kernel> for AnyAll<ALL>
where
    C: HasDtype<Element: ReductionTypes<Bits: NonZero<Bits: Ordered + To<BoolByte>> + To<Of<C>>>>,
{
    fn instance(&self, _: C) -> Kernel {
        HostKernel::new(launch::<C::Element, Of<C>, ALL>)
    }
}

type Of<C> = <<C as HasDtype>::Element as ReductionTypes>::Bits;

pub(crate) fn kernels<const ALL: bool>(name: &str) -> Kernels {
    let table = Kernels::builder(name).cover((Output(Bool),), AnyAll::<ALL>);
    table.build().expect("each dtype is covered once")
}

fn launch<E, S, const ALL: bool>(
    params: &ReduceParams,
    inputs: &[&Tensor],
    out: &Tensor,
) -> Result<()>
where
    E: Element,
    S: NonZero<Bits: Ordered + To<BoolByte>> + To<S> + Copy + 'static,
{
    decide::<S, ALL>(params, (inputs[0], Input::plain::<S>(base::<E>(inputs[0])?)), out)
}

/// Compiled once for all element types with these bits.
#[inline(never)]
fn decide<S, const ALL: bool>(
    params: &ReduceParams,
    x: (&Tensor, Input<S>),
    out: &Tensor,
) -> Result<()>
where
    S: NonZero<Bits: Ordered + To<BoolByte>> + Copy + 'static,
{
    let ops = ReductionKernels::of::<Bits<S>, AllOrAny<S::Bits, ALL>, AllOrAny<S::Bits, ALL>>();
    let empty = AllOrAny::<S::Bits, ALL>::IDENTITY;
    run(params, x, (out, Sink::of::<BoolByte>(out_base(out)?)), ops, empty, None)
}
