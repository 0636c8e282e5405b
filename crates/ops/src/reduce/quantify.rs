//! Whether all elements, or any, are true: not zero. A NaN is true.

use keyfold_core::{Complex, DType, Result, bf16, f16};
use keyfold_tensor::Tensor;

use super::blocks::{Input, Sink};
use super::convert::{To, Truth};
use super::geometry::Reduction;
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
        ($type:ty, $stored:ty, $direct:expr) => {
            into(quantity, reduction, x, out, Input::bits::<$type>(base::<$stored>(x)?, $direct))
        };
    }
    match x.dtype() {
        DType::Bool => of!(Truth, u8, true),
        DType::U8 => of!(u8, u8, true),
        DType::U16 => of!(u16, u16, true),
        DType::U32 => of!(u32, u32, true),
        DType::U64 => of!(u64, u64, true),
        DType::I8 => of!(i8, i8, true),
        DType::I16 => of!(i16, i16, true),
        DType::I32 => of!(i32, i32, true),
        DType::I64 => of!(i64, i64, true),
        DType::F16 => of!(f16, f16, false),
        DType::BF16 => of!(bf16, bf16, false),
        DType::F32 => of!(f32, f32, false),
        DType::F64 => of!(f64, f64, false),
        DType::C64 => of!(Complex<f32>, Complex<f32>, false),
        DType::C128 => of!(Complex<f64>, Complex<f64>, false),
    }
}

fn into<T: Ordered + To<Truth>>(
    quantity: Quantity,
    reduction: &Reduction,
    x: &Tensor,
    out: &Tensor,
    input: Input<T>,
) -> Result<()> {
    let (ops, empty) = match quantity {
        Quantity::All => (Ops::of::<All<T>>(), T::HIGHEST),
        Quantity::Any => (Ops::of::<Any<T>>(), T::LOWEST),
    };
    let sink = Sink::of::<Truth>(out_base(out)?);
    run(reduction.geometry(x, out, false), input, ops, sink, empty)
}
