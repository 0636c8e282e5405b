//! Sums and means.
//!
//! Floats are added pairwise; see [`super::cascade`].

use keyfold_backend::Operation;
use keyfold_core::Result;
use keyfold_kit::axes::{
    BF16, Body, Bool, C64, C128, COMPLEX, F16, F32, F64, FLOATS, HasDtype, HasOutput, I8, I16, I32,
    I64, ORDERED, Output, U8, U16, U32, U64, one_of,
};

use super::blocks::{Divide, Input, Sink};
use super::call::{ReduceCall, ReduceKernel};
use super::convert::{Converted, ReductionTypes, To};
use super::kernels::ReductionKernels;
use super::monoid::{Addend, Sum};
use super::{Kernel, Kernels, run};
use crate::element::HasBits;

const MEAN: &Operation = &Operation::new("mean");

/// The kernels of sums, or means; the result's dtype can hold the input's.
pub(crate) fn kernels(name: &str) -> Kernels {
    let whole = one_of((Bool, U8, U16, U32, U64, I8, I16, I32, I64));
    let narrow = Output(one_of((U8, U16, U32, I8, I16, I32)));
    let wide = Output(one_of((U64, I64, F16, BF16, F32, F64, C64, C128)));
    let table = Kernels::builder(name)
        .cover((ORDERED, wide), ByBlocks)
        .cover((COMPLEX, Output(COMPLEX)), ByBlocks)
        .cover((whole, narrow), ByBlocks)
        .cover((FLOATS, narrow), SaturatingFloats)
        .cover((F16, Output(one_of((F16, F32)))), InRegisters)
        .cover((BF16, Output(one_of((BF16, F32)))), InRegisters)
        .cover((one_of((Bool, I8, I16, I32)), Output(I64)), InRegisters)
        .cover((one_of((U8, U16, U32)), Output(U64)), InRegisters);
    table.build().expect("each pair of dtypes is covered once")
}

type Elem<C> = <C as HasDtype>::Element;
type Stored<C> = <Elem<C> as ReductionTypes>::Stored;
type Part<C> = <Elem<C> as ReductionTypes>::Part;
type Out<C> = <C as HasOutput>::Output;
type SumType<C> = <Out<C> as ReductionTypes>::Sum;

/// Kernels that convert elements in registers. Integers of 16 bits or less are summed in 32 bits within
/// a part of a lane, which can't overflow.
#[derive(Clone, Copy)]
struct InRegisters;

impl<C> Body<C, Kernel> for InRegisters
where
    C: HasDtype<Element: ReductionTypes> + HasOutput<Output: ReductionTypes>,
    Stored<C>: To<Part<C>>,
    Part<C>: Addend + To<SumType<C>>,
    SumType<C>: Addend + To<Out<C>>,
{
    fn instance(&self, _: C) -> Kernel {
        ReduceKernel(|call| {
            let input = Input::plain(call.base::<Elem<C>>()?);
            let ops = ReductionKernels::of::<
                Converted<Stored<C>, Part<C>>,
                Sum<Part<C>>,
                Sum<SumType<C>>,
            >();
            launch::<_, Out<C>>(call, input, ops)
        })
    }
}

/// Kernels whose elements have the computed type, or are converted block by block.
#[derive(Clone, Copy)]
struct ByBlocks;

impl<C> Body<C, Kernel> for ByBlocks
where
    C: HasDtype<Element: ReductionTypes> + HasOutput<Output: ReductionTypes>,
    SumType<C>: Addend + To<Out<C>>,
{
    fn instance(&self, _: C) -> Kernel {
        ReduceKernel(|call| {
            let input = Input::converted::<Elem<C>>(call.base::<Elem<C>>()?);
            by_blocks::<Out<C>>(call, input)
        })
    }
}

/// Kernels of floats by way of a narrower type, which saturates where it can't hold them.
#[derive(Clone, Copy)]
struct SaturatingFloats;

impl<C> Body<C, Kernel> for SaturatingFloats
where
    C: HasDtype<Element: ReductionTypes> + HasOutput<Output: ReductionTypes>,
    SumType<C>: Addend + To<Out<C>>,
{
    fn instance(&self, _: C) -> Kernel {
        ReduceKernel(|call| {
            let input = Input::saturated::<Elem<C>, Out<C>>(call.base::<Elem<C>>()?);
            by_blocks::<Out<C>>(call, input)
        })
    }
}

/// Compiled once for all element types that are summed in one type.
#[inline(never)]
fn by_blocks<D>(call: &ReduceCall<'_>, input: Input<D::Sum>) -> Result<()>
where
    D: ReductionTypes<Sum: Addend + To<D>>,
{
    let ops = ReductionKernels::of::<Converted<D::Sum, D::Sum>, Sum<D::Sum>, Sum<D::Sum>>();
    launch::<D::Sum, D>(call, input, ops)
}

fn launch<S, D>(
    call: &ReduceCall<'_>,
    input: Input<S>,
    ops: ReductionKernels<S, D::Sum>,
) -> Result<()>
where
    S: HasBits,
    D: ReductionTypes<Sum: Addend + To<D>>,
{
    // The mean of no elements is 0 / 0, which is NaN, as in NumPy.
    let divide: Option<Divide<_>> = (call.params.op == MEAN).then_some(D::Sum::divide);
    let sink = Sink::of::<D>(call.out_base()?);
    run(call, (input, sink), ops, D::Sum::ZERO, divide)
}
