//! Reductions along dimensions, and softmax.
//!
//! Every layout is read where it lies. Halves and narrow whole numbers are converted in registers; elements that aren't
//! dense are copied together block by block, and what else has another type than the reduction works
//! in is converted so.
//!
//! No result depends on the number of threads, or on which of them did what: the work is cut by size
//! and layout alone, and the parts' results are combined in their order. Nor does it depend on the
//! instructions in use, except through `exp`.

mod accumulate;
mod any_all;
mod arg;
mod blocks;
mod cascade;
mod columns;
mod convert;
mod geometry;
mod lanes;
mod min_max;
mod monoid;
mod ops;
mod rows;
mod share;
mod softmax;
mod strided;
mod sum;

use std::fmt;
use std::sync::LazyLock;

use keyfold_backend::{Launch, Offer, Reduce, ReduceOp, ReduceParams, RowOp, RowParams, Rows};
use keyfold_core::{DType, Element, Result};
use keyfold_tensor::Tensor;

use self::blocks::{Input, Sink};
use self::columns::Columns;
use self::geometry::Geometry;
use self::min_max::MinMax;
use self::ops::Ops;
use crate::HostBackend;
use crate::kernel::HostKernel;

/// The address of a tensor's first element.
///
/// # Errors
/// When the host can't reach it.
fn base<T: Element>(x: &Tensor) -> Result<*const u8> {
    Ok(x.data_ptr::<T>()?.cast())
}

/// The address of a result's first element.
///
/// # Errors
/// When the host can't reach it, or it must not be written.
fn out_base(out: &Tensor) -> Result<*mut u8> {
    out.check_writable()?;
    out.note_write();
    out.raw_data_ptr()
}

type Kernel = HostKernel<ReduceParams>;

/// How many dtypes there are.
const DTYPES: usize = DType::ALL.len();

/// The kernel of a reduction, if there is one.
fn choose(op: ReduceOp, input: DType, output: DType) -> Option<Kernel> {
    let wants = |dtype| output == dtype;
    match op {
        ReduceOp::Sum => sum::kernel(false, input, output),
        ReduceOp::Mean => sum::kernel(true, input, output),
        ReduceOp::Max if wants(input) => min_max::kernel(MinMax::Max, input),
        ReduceOp::Min if wants(input) => min_max::kernel(MinMax::Min, input),
        ReduceOp::ArgMax if wants(DType::I64) => arg::kernel(MinMax::Max, input),
        ReduceOp::ArgMin if wants(DType::I64) => arg::kernel(MinMax::Min, input),
        ReduceOp::All if wants(DType::Bool) => Some(any_all::kernel(true, input)),
        ReduceOp::Any if wants(DType::Bool) => Some(any_all::kernel(false, input)),
        _ => None,
    }
}

impl Reduce for HostBackend {
    fn reduce(
        &self,
        op: ReduceOp,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<ReduceParams>> {
        /// By operation, input and output.
        static KERNELS: LazyLock<Vec<Option<Kernel>>> = LazyLock::new(|| {
            let pairs = || DType::ALL.into_iter().flat_map(|a| DType::ALL.map(|b| (a, b)));
            let all = ReduceOp::ALL.into_iter().flat_map(|op| pairs().map(move |pair| (op, pair)));
            all.map(|(op, (input, output))| choose(op, input, output)).collect()
        });
        let at = ((op as usize - 1) * DTYPES + input as usize) * DTYPES + output as usize;
        match &KERNELS[at] {
            Some(kernel) => Offer::Native(kernel),
            None => lacks(op, input, output),
        }
    }
}

impl Rows for HostBackend {
    fn rows(&self, op: RowOp, input: DType, output: DType) -> Offer<&dyn Launch<RowParams>> {
        static KERNELS: LazyLock<Vec<Option<HostKernel<RowParams>>>> = LazyLock::new(|| {
            let pairs = || DType::ALL.into_iter().flat_map(|a| DType::ALL.map(|b| (a, b)));
            let all = RowOp::ALL.into_iter().flat_map(|op| pairs().map(move |pair| (op, pair)));
            all.map(|(op, (a, b))| softmax::kernel(op == RowOp::LogSoftmax, a, b)).collect()
        });
        let at = ((op as usize - 1) * DTYPES + input as usize) * DTYPES + output as usize;
        match &KERNELS[at] {
            Some(kernel) => Offer::Native(kernel),
            None => lacks(op, input, output),
        }
    }
}

#[cold]
fn lacks<K>(op: impl fmt::Debug, input: DType, output: DType) -> Offer<K> {
    Offer::No(format!("it has no {op:?} of {input} elements as {output}").into())
}

/// Reduces lanes of elements of type `S`; `empty` is what those without elements give.
fn run<S, R>(
    geometry: Geometry,
    mut input: Input<S>,
    ops: Ops<S, R>,
    mut sink: Sink<R>,
    empty: R,
) -> Result<()>
where
    S: Copy + 'static,
    R: Copy + Send + Sync + 'static,
{
    let lanes = geometry.lanes();
    if lanes == 0 {
        return Ok(());
    }
    input.base = input.at(geometry.x_base);
    sink.base = sink.base.wrapping_offset(geometry.out_base * sink.size as isize);
    if geometry.len() == 0 {
        geometry::runs(&geometry.kept, 0..lanes, 1, |run| {
            let step = geometry::steps(&geometry.kept).0.out;
            for i in 0..run.len as isize {
                // SAFETY: the walk over the result stays inside it.
                unsafe { sink.put(&mut [empty], run.out + i * step, 1) };
            }
        });
        return Ok(());
    }
    let geometry = &geometry;
    if geometry.along_rows() {
        rows::Rows { geometry, input, loops: &ops.loops, sink }.reduce()
    } else {
        columns::reduce_columns(&Columns { geometry, input, ops, sink })
    }
}
