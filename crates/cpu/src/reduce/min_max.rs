//! The greatest and the smallest element; NaN if any element is NaN, as in NumPy.

use keyfold_core::Result;
use keyfold_kit::axes::{Body, Bool, FLOATS, HasDtype, INTS, Output};

use super::any_all::AnyAll;
use super::blocks::{Input, Sink};
use super::call::{ReduceCall, ReduceKernel};
use super::convert::{Converted, ReductionTypes, To};
use super::kernels::ReductionKernels;
use super::monoid::{Extreme, Ordered};
use super::{Kernel, Kernels, run};
use crate::element::HasBits;

/// The kernels of min and max.
#[derive(Clone, Copy)]
struct MinMax<const MIN: bool>;

impl<C, const MIN: bool> Body<C, Kernel> for MinMax<MIN>
where
    C: HasDtype<Element: ReductionTypes<Number: Ordered + To<C::Element>> + To<Number<C>>>,
{
    fn instance(&self, _: C) -> Kernel {
        ReduceKernel(launch::<C::Element, Number<C>, MIN>)
    }
}

type Number<C> = <<C as HasDtype>::Element as ReductionTypes>::Number;

pub(crate) fn kernels<const MIN: bool>(name: &str) -> Kernels {
    let table = Kernels::builder(name)
        .cover_same(INTS, MinMax::<MIN>)
        .cover_same(FLOATS, MinMax::<MIN>)
        // The greatest of bools is `any`, the smallest `all`, which stop at the first deciding element.
        .cover((Bool, Output(Bool)), AnyAll::<MIN>);
    table.build().expect("each pair of dtypes is covered once")
}

fn launch<S, T, const MIN: bool>(call: &ReduceCall<'_>) -> Result<()>
where
    S: ReductionTypes + To<T>,
    T: Ordered + HasBits + To<S>,
{
    let ops = ReductionKernels::of::<Converted<S, T>, Extreme<T, MIN>, Extreme<T, MIN>>();
    let (input, sink) =
        (Input::<S>::plain(call.base::<S>()?), Sink::<T>::of::<S>(call.out_base()?));
    run(call, (input, sink), ops, T::LOWEST, None)
}
