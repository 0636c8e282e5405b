//! The greatest and the smallest element. A NaN is both, as in NumPy.

use keyfold_backend::ReduceParams;
use keyfold_core::{DType, Element, Result, bf16, f16};
use keyfold_tensor::Tensor;

use super::any_all;
use super::blocks::{Input, Sink};
use super::convert::{Plain, To};
use super::geometry::Reduction;
use super::monoid::{Extreme, Greatest, Ordered, Smallest};
use super::ops::Ops;
use super::{Kernel, base, out_base, run};
use crate::kernel::HostKernel;

/// Which of the elements is kept.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum MinMax {
    Max,
    Min,
}

/// The kernel for elements of a dtype; none for complex numbers, which have no order.
pub(crate) fn kernel(end: MinMax, dtype: DType) -> Option<Kernel> {
    macro_rules! of {
        // The element, and the number that stands for it.
        ($type:ty as $number:ty) => {
            match end {
                MinMax::Max => HostKernel::new(|params, inputs, out| {
                    launch::<$type, $number>(MinMax::Max, params, inputs[0], out)
                }),
                MinMax::Min => HostKernel::new(|params, inputs, out| {
                    launch::<$type, $number>(MinMax::Min, params, inputs[0], out)
                }),
            }
        };
    }
    Some(match dtype {
        // Of bools the greatest is "any", the smallest "all", which are often decided early.
        DType::Bool => any_all::kernel(end == MinMax::Min, DType::Bool),
        DType::F16 => of!(f16 as f32),
        DType::BF16 => of!(bf16 as f32),
        DType::U8 => of!(u8 as u8),
        DType::U16 => of!(u16 as u16),
        DType::U32 => of!(u32 as u32),
        DType::U64 => of!(u64 as u64),
        DType::I8 => of!(i8 as i8),
        DType::I16 => of!(i16 as i16),
        DType::I32 => of!(i32 as i32),
        DType::I64 => of!(i64 as i64),
        DType::F32 => of!(f32 as f32),
        DType::F64 => of!(f64 as f64),
        DType::C64 | DType::C128 => return None,
    })
}

fn launch<S, T>(end: MinMax, params: &ReduceParams, x: &Tensor, out: &Tensor) -> Result<()>
where
    S: Element + To<T> + To<S>,
    T: Ordered + To<T> + To<S>,
{
    let geometry = Reduction::new(params, x).geometry(x, out, false);
    let ops = match end {
        MinMax::Max => Ops::of::<Plain<S, T>, Extreme<Greatest, T>, Extreme<Greatest, T>>(),
        MinMax::Min => Ops::of::<Plain<S, T>, Extreme<Smallest, T>, Extreme<Smallest, T>>(),
    };
    let (input, sink) = (Input::<S>::plain::<S>(base::<S>(x)?), Sink::<T>::of::<S>(out_base(out)?));
    run(geometry, input, ops, sink, T::LOWEST)
}
