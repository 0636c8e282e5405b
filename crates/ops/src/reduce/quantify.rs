//! Whether all elements, or any, are true: not zero. A NaN is true.

use keyfold_core::{Complex, DType, Result, bf16, f16};
use keyfold_tensor::Tensor;

use super::blocks::{Input, Sink};
use super::convert::{Bits, Convert, To, Truth};
use super::geometry::{Geometry, Reduction};
use super::monoid::{All, Any, Ordered};
use super::ops::Ops;
use super::{base, out_base, run};

/// How many of the elements have to be true.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Quantity {
    All,
    Any,
}

/// Writes the answers for the lanes of `x` into a tensor of bools of the reduction's shape that
/// shares no memory with it.
///
/// # Errors
/// When a tensor's memory can't be reached, or the result's not be written.
pub(crate) fn compute_into(
    quantity: Quantity,
    reduction: &Reduction,
    x: &Tensor,
    out: &Tensor,
) -> Result<()> {
    macro_rules! of {
        ($type:ty, $stored:ty) => {{
            let input = Input::plain::<$type>(base::<$stored>(x)?);
            into::<Bits<$type>>(quantity, reduction.geometry(x, out, false), input, out)
        }};
    }
    match x.dtype() {
        DType::Bool | DType::U8 => of!(u8, u8),
        DType::U16 => of!(u16, u16),
        DType::U32 => of!(u32, u32),
        DType::U64 => of!(u64, u64),
        // Of whole numbers the bits are the same.
        DType::I8 => of!(u8, i8),
        DType::I16 => of!(u16, i16),
        DType::I32 => of!(u32, i32),
        DType::I64 => of!(u64, i64),
        DType::F16 => of!(f16, f16),
        DType::BF16 => of!(bf16, bf16),
        DType::F32 => of!(f32, f32),
        DType::F64 => of!(f64, f64),
        DType::C64 => of!(Complex<f32>, Complex<f32>),
        DType::C128 => of!(Complex<f64>, Complex<f64>),
    }
}

fn into<C: Convert>(
    quantity: Quantity,
    geometry: Geometry,
    input: Input<C::From>,
    out: &Tensor,
) -> Result<()>
where
    C::To: Ordered + To<Truth> + To<C::To>,
{
    let (ops, empty) = match quantity {
        Quantity::All => (Ops::of::<C, All<C::To>, All<C::To>>(), C::To::HIGHEST),
        Quantity::Any => (Ops::of::<C, Any<C::To>, Any<C::To>>(), C::To::LOWEST),
    };
    let sink = Sink::of::<Truth>(out_base(out)?);
    run(geometry, input, ops, sink, empty)
}
