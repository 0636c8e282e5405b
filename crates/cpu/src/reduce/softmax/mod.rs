//! Softmax and its logarithm along one dimension, stable: the greatest element of each lane is
//! subtracted first.
//!
//! `log_softmax` is `x - max - ln(sum)`, and not the logarithm of the share, which may have
//! underflowed to 0.

mod columns;
mod columns_loops;
mod lanes;
mod rows;

use keyfold_backend::RowParams;
use keyfold_core::{DType, Dims, Element, Result, bf16, f16};
use keyfold_tensor::Tensor;

use self::lanes::Float;
use super::blocks::{Input, Sink};
use super::convert::To;
use super::geometry::{Dim, Geometry};
use super::sum::Computed;
use super::{base, out_base};
use crate::kernel::HostKernel;

/// The kernel of softmax, or of its logarithm, for elements of a dtype and results of another; none for
/// complex numbers, which have no order, and results that aren't floats.
pub(crate) fn kernel(log: bool, from: DType, to: DType) -> Option<HostKernel<RowParams>> {
    macro_rules! of {
        // Elements as they are read, what is computed in, and what the results are stored as.
        ($input:expr; $float:ty => $result:ty) => {
            match log {
                true => HostKernel::new(|params, inputs, out| {
                    let (x, sink) = (inputs[0], Sink::of::<$result>(out_base(out)?));
                    into::<_, $float, $result>(true, params.axis, (x, $input(x)?), (out, sink))
                }),
                false => HostKernel::new(|params, inputs, out| {
                    let (x, sink) = (inputs[0], Sink::of::<$result>(out_base(out)?));
                    into::<_, $float, $result>(false, params.axis, (x, $input(x)?), (out, sink))
                }),
            }
        };
    }
    fn plain<T: Element + To<T>>(x: &Tensor) -> Result<Input<T>> {
        Ok(Input::plain::<T>(base::<T>(x)?))
    }
    if from.is_complex() {
        return None;
    }
    Some(match (from, to) {
        (DType::F16, DType::F16) => of!(plain::<f16>; f32 => f16),
        (DType::BF16, DType::BF16) => of!(plain::<bf16>; f32 => bf16),
        (_, DType::F16) => of!(f32::input; f32 => f16),
        (_, DType::BF16) => of!(f32::input; f32 => bf16),
        (_, DType::F32) => of!(f32::input; f32 => f32),
        (_, DType::F64) => of!(f64::input; f64 => f64),
        _ => return None,
    })
}

fn into<S, A, D>(
    log: bool,
    axis: u32,
    (x, mut input): (&Tensor, Input<S>),
    (out, mut sink): (&Tensor, Sink<D>),
) -> Result<()>
where
    S: To<A> + Copy + 'static,
    A: Float + To<D>,
    D: Copy + 'static,
{
    if x.numel() == 0 {
        return Ok(());
    }
    let mut all = Dims::<Dim>::filled(Dim::default(), x.ndim())?;
    let mut flags = Dims::<bool>::filled(false, x.ndim())?;
    flags[axis as usize] = true;
    for (d, dim) in all.iter_mut().enumerate() {
        *dim = Dim { size: x.shape()[d], x: x.strides()[d], out: out.strides()[d] };
    }
    let geometry = Geometry::new(&all, &flags, false);
    input.base = input.at(geometry.x_base);
    sink.base = sink.base.wrapping_offset(geometry.out_base * sink.size as isize);
    let job = Job { geometry: &geometry, input, sink, log };
    if geometry.along_rows() || geometry.kept.is_empty() || geometry.is_narrow() {
        rows::softmax_rows::<S, A, D>(&job)
    } else {
        columns::softmax_columns::<S, A, D>(&job)
    }
}

/// What there is to do.
struct Job<'a, S, D> {
    geometry: &'a Geometry,
    input: Input<S>,
    sink: Sink<D>,
    log: bool,
}
