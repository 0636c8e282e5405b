//! Whether any element is infinite or NaN: whether the bits of any exponent are all ones. The reduction is that
//! of `any`, whose first true number ends it.

use std::marker::PhantomData;

use keyfold_core::{Complex, Element, Result, bf16, f16};
use keyfold_kit::axes::{Body, Bool, COMPLEX, FLOATS, HasDtype, Output, plain};

use super::blocks::{Input, Sink};
use super::call::{ReduceCall, ReduceKernel, Step, to_partial};
use super::convert::{BoolByte, Convert, ReductionTypes, To};
use super::kernels::ReductionKernels;
use super::monoid::{AllOrAny, Monoid, Ordered};
use super::{Kernel, Kernels, run};
use crate::element::HasBits;
use crate::kernel::BOOL_AND_INTEGERS;

/// The kernels for each dtype. Integers are finite, so the result for them is a constant.
pub(super) fn kernels(name: &str) -> Kernels {
    let table = Kernels::builder(name)
        .cover((FLOATS, Output(Bool)), AnyNotFinite)
        .cover((COMPLEX, Output(Bool)), AnyNotFinite)
        .cover((BOOL_AND_INTEGERS, Output(Bool)), plain("no", ReduceKernel(none)));
    table.build().expect("each dtype is covered once")
}

/// The kernels of floats and of complex numbers.
#[derive(Clone, Copy)]
struct AnyNotFinite;

type Stored<C> = <<C as HasDtype>::Element as ReductionTypes>::Stored;

impl<C> Body<C, Kernel> for AnyNotFinite
where
    C: HasDtype<Element: ReductionTypes<Stored: NotFinite<Flag: Ordered + To<BoolByte>>>>,
{
    fn instance(&self, _: C) -> Kernel {
        ReduceKernel(launch::<C::Element, Stored<C>>)
    }
}

fn launch<E, S>(call: &ReduceCall<'_>) -> Result<()>
where
    E: Element,
    S: NotFinite<Flag: Ordered + To<BoolByte>>,
{
    let input = Input::plain(call.base::<E>()?);
    let ops =
        ReductionKernels::of::<Flags<S>, AllOrAny<S::Flag, false>, AllOrAny<S::Flag, false>>();
    let empty = AllOrAny::<S::Flag, false>::IDENTITY;
    run(call, (input, Sink::of::<BoolByte>(call.out_base()?)), ops, empty, None)
}

fn none(call: &ReduceCall<'_>) -> Result<()> {
    match call.step {
        Step::Part { to, .. } => to.set(Some(to_partial(0_u8))),
        // SAFETY: the result is one bool, as all dimensions are reduced, or a contiguous tensor of them, and no
        // other code accesses it (`Launch::launch`, `ReduceParts::join`).
        Step::Whole { out, .. } | Step::Join { out, .. } => unsafe {
            call.out_base()?.write_bytes(0, out.numel());
        },
    }
    Ok(())
}

/// Floats and complex numbers.
trait NotFinite: HasBits {
    /// An integer of the size of a real part.
    type Flag: HasBits;
    /// 1 for an infinity or NaN, else 0.
    fn flag(self) -> Self::Flag;
}

macro_rules! not_finite {
    // One comparison per type, of the bits without the sign; no trait offers the bits of all floats.
    ($($type:ty, $flag:ty, $x:ident => $bits:expr, $exponent:expr;)*) => {$(
        impl NotFinite for $type {
            type Flag = $flag;
            #[inline(always)]
            fn flag(self) -> $flag {
                let $x = self;
                <$flag>::from($bits & $exponent == $exponent)
            }
        }
    )*};
}

not_finite! {
    f16, u16, x => x.to_bits(), 0x7c00;
    bf16, u16, x => x.to_bits(), 0x7f80;
    f32, u32, x => x.to_bits(), 0x7f80_0000;
    f64, u64, x => x.to_bits(), 0x7ff0_0000_0000_0000;
}

impl<F> NotFinite for Complex<F>
where
    F: NotFinite<Flag: std::ops::BitOr<Output = F::Flag>>,
    Complex<F>: HasBits,
{
    type Flag = F::Flag;
    #[inline(always)]
    fn flag(self) -> F::Flag {
        self.re.flag() | self.im.flag()
    }
}

/// The flags of elements.
struct Flags<S>(PhantomData<S>);

impl<S: NotFinite> Convert for Flags<S> {
    type From = S;
    type To = S::Flag;
    #[inline(always)]
    fn one(from: S) -> S::Flag {
        from.flag()
    }
}
