//! Softmax and its logarithm along one dimension; for stability the maximum of each lane is subtracted
//! first.
//!
//! `log_softmax` is `x - max - ln(sum)`, not the logarithm of softmax, which may have underflowed to 0.

mod columns;
mod columns_loops;
mod exponentials;
mod float;
mod lanes;
mod rows;
mod short_lanes;

use keyfold_backend::{Operation, RowParams};
use keyfold_core::{Dims, Element, Result};
use keyfold_kit::axes::{Body, Dtype, FLOATS, HALVES, HasDtype, HasOutput, ORDERED, Output};
use keyfold_tensor::Tensor;

use self::float::Float;
use super::blocks::{Input, Sink};
use super::convert::{ReductionTypes, To};
use super::geometry::{Dim, Geometry};
use super::{base, out_base};
use crate::kernel::{HostKernel, Table};

const LOG_SOFTMAX: &Operation = &Operation::new("log_softmax");

/// The kernels of softmax, or of its logarithm. There are none for complex numbers, which have no order,
/// and none for results that aren't floats.
pub(crate) fn kernels(name: &str) -> Kernels {
    let table = Kernels::builder(name)
        .cover((ORDERED, Output(FLOATS)), ByBlocks)
        .cover_same(HALVES, InRegisters);
    table.build().expect("each pair of dtypes is covered once")
}

type Kernels = Table<(Dtype, Output<Dtype>), RowParams>;

type Stored<C> = <<C as HasDtype>::Element as ReductionTypes>::Stored;
type Computed<C> = <<C as HasOutput>::Output as ReductionTypes>::Sum;

/// Kernels that convert elements in registers.
#[derive(Clone, Copy)]
struct InRegisters;

impl<C> Body<C, HostKernel<RowParams>> for InRegisters
where
    C: HasDtype<Element: ReductionTypes> + HasOutput<Output: ReductionTypes + To<C::Output>>,
    Stored<C>: Element + To<Computed<C>>,
    Computed<C>: Float + To<C::Output>,
{
    fn instance(&self, _: C) -> HostKernel<RowParams> {
        HostKernel::new(launch::<C::Element, Stored<C>, C::Output>)
    }
}

/// Kernels whose elements have the computed type, or are converted block by block.
#[derive(Clone, Copy)]
struct ByBlocks;

impl<C> Body<C, HostKernel<RowParams>> for ByBlocks
where
    C: HasDtype + HasOutput<Output: ReductionTypes + To<C::Output>>,
    Computed<C>: Float + To<C::Output>,
{
    fn instance(&self, _: C) -> HostKernel<RowParams> {
        HostKernel::new(launch::<C::Element, Computed<C>, C::Output>)
    }
}

/// Launches the kernel for elements that are read as type `S`.
fn launch<E, S, D>(params: &RowParams, inputs: &[&Tensor], out: &Tensor) -> Result<()>
where
    E: Element,
    S: Element + To<D::Sum>,
    D: ReductionTypes<Sum: Float + To<D>> + To<D>,
{
    let input = Input::<S>::converted::<E>(base::<E>(inputs[0])?);
    launch_as::<S, D::Sum, D>(params, (inputs[0], input), out)
}

/// Compiled once for all element types that are read as `S`.
#[inline(never)]
fn launch_as<S, A, D>(
    params: &RowParams,
    (x, mut input): (&Tensor, Input<S>),
    out: &Tensor,
) -> Result<()>
where
    S: To<A> + Copy + 'static,
    A: Float + To<D>,
    D: To<D> + Copy + 'static,
{
    let mut sink = Sink::of::<D>(out_base(out)?);
    if x.numel() == 0 {
        return Ok(());
    }
    let mut all = Dims::<Dim>::filled(Dim::default(), x.ndim())?;
    let mut flags = Dims::<bool>::filled(false, x.ndim())?;
    flags[params.axis as usize] = true;
    for (d, dim) in all.iter_mut().enumerate() {
        *dim = Dim { size: x.shape()[d], x: x.strides()[d], out: out.strides()[d] };
    }
    let geometry = Geometry::new(&all, &flags, false);
    input.base = input.at(geometry.x_base);
    sink.base = sink.base.wrapping_offset(geometry.out_base * sink.size as isize);
    let job = Job { geometry: &geometry, input, sink, log: params.op == LOG_SOFTMAX };
    if geometry.along_rows() || geometry.kept.is_empty() || geometry.is_narrow() {
        rows::softmax_rows::<S, A, D>(&job)
    } else {
        columns::softmax_columns::<S, A, D>(&job)
    }
}

/// A softmax with its tensors.
struct Job<'a, S, D> {
    geometry: &'a Geometry,
    input: Input<S>,
    sink: Sink<D>,
    log: bool,
}
