//! Reductions along dimensions, and softmax.
//!
//! Every layout is read in place. Halves and narrow integers are converted in registers; elements that
//! aren't dense are gathered block by block, and other conversions are done block by block, too.
//!
//! No result depends on the number of threads or on their timing: the division of the work depends only
//! on sizes and layout, and the parts' results are combined in order. Nor does a result depend on the
//! instruction level, except through `exp`.

mod accumulate_rows;
mod accumulators;
mod any_all;
mod arg_min_max;
pub(crate) mod blocks;
mod call;
mod cascade;
mod columns;
pub(crate) mod convert;
mod gather;
pub(crate) mod geometry;
pub(crate) mod group;
mod has_inf_nan;
mod kernels;
mod lanes;
mod min_max;
pub(crate) mod monoid;
pub(crate) mod parallel;
mod rows;
mod softmax;
pub(crate) mod sum;

use std::sync::LazyLock;

use keyfold_backend::{
    Launch, Offer, Operation, Reduce, ReduceParams, ReduceParts, RowParams, Rows,
};
use keyfold_core::{DType, Element, Result};
use keyfold_kit::axes::{DispatchTable, Dtype, Output};
use keyfold_tensor::Tensor;

use self::blocks::{Divide, Input, Sink};
use self::call::{ReduceCall, ReduceKernel, Step, from_partial, to_partial};
use self::columns::Columns;
use self::geometry::{Geometry, Reduction};
use self::kernels::{Erased, ReductionKernels, erase};
use crate::HostBackend;
use crate::bits::Bits;
use crate::kernel::{Group, HostKernel};

/// The address of a tensor's first element.
///
/// # Errors
/// If the host can't access it.
pub(crate) fn base<T: Element>(x: &Tensor) -> Result<*const u8> {
    Ok(x.data_ptr::<T>()?.cast())
}

/// The address of a result's first element.
///
/// # Errors
/// If the host can't access it, or it is read-only.
pub(crate) fn out_base(out: &Tensor) -> Result<*mut u8> {
    out.check_writable()?;
    out.note_write();
    out.raw_data_ptr()
}

type Kernel = ReduceKernel;
type RowKernel = HostKernel<RowParams>;
type Kernels = DispatchTable<(Dtype, Output<Dtype>), Kernel>;

static KERNELS: LazyLock<Group<(Dtype, Output<Dtype>), Kernel>> = LazyLock::new(|| {
    Group::new([
        ("sum", sum::kernels),
        ("mean", sum::kernels),
        ("max", min_max::kernels::<false>),
        ("min", min_max::kernels::<true>),
        ("argmax", arg_min_max::kernels::<false>),
        ("argmin", arg_min_max::kernels::<true>),
        ("all", any_all::kernels::<true>),
        ("any", any_all::kernels::<false>),
        ("has_inf_nan", has_inf_nan::kernels),
    ])
});

impl Reduce for HostBackend {
    fn reduce(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<ReduceParams>> {
        KERNELS.select(op, (input, Output(output))).map(|kernel| kernel as _)
    }
}

/// Returns the kernel of a reduction that is computed part by part, too.
pub(crate) fn parts_of(
    op: &Operation,
    input: DType,
    output: DType,
) -> Option<&'static dyn ReduceParts> {
    // Positions are counted from the lane's first element, which a part doesn't know.
    if ["argmax", "argmin"].contains(&op.name()) {
        return None;
    }
    KERNELS.select(op, (input, Output(output))).kernel().ok().map(|kernel| kernel as _)
}

impl Rows for HostBackend {
    fn rows(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<RowParams>> {
        static KERNELS: LazyLock<Group<(Dtype, Output<Dtype>), RowKernel>> = LazyLock::new(|| {
            Group::new([("softmax", softmax::kernels), ("log_softmax", softmax::kernels)])
        });
        KERNELS.offer(op, (input, Output(output)))
    }
}

/// Reduces lanes of elements of type `S`. `empty` is the result of a lane without elements, and `divide`
/// divides results by the number of elements.
fn run<S: Erased, R: Erased<Bits: Bits>>(
    call: &ReduceCall<'_>,
    (input, sink): (Input<S>, Sink<R>),
    ops: ReductionKernels<S, R>,
    empty: R,
    divide: Option<Divide<R>>,
) -> Result<()> {
    // SAFETY: the types differ by `Erased` behind pointers.
    let divide = divide.map(|divide| unsafe { erase(divide) });
    run_erased(call, (input.erased(), sink.erased()), ops.erased(), empty.bits(), divide)
}

/// As [`run`], compiled once for all element and result types of the same sizes.
#[inline(never)]
fn run_erased<S, R>(
    call: &ReduceCall<'_>,
    (mut input, mut sink): (Input<S>, Sink<R>),
    ops: ReductionKernels<S, R>,
    empty: R,
    divide: Option<Divide<R>>,
) -> Result<()>
where
    S: Copy + 'static,
    R: Bits,
{
    let loops = &ops.loops;
    let (x, out) = match call.step {
        Step::Whole { x, out } => (x, out),
        Step::Part { x, to } => {
            let geometry = &Geometry::one_lane(x.numel());
            to.set(Some(to_partial(rows::Rows { geometry, input, loops, sink }.one_part())));
            return Ok(());
        }
        Step::Join { len, partials, out } => {
            let geometry = &Geometry::lanes_of(out.numel(), len);
            sink.divide = divide.map(|divide| (divide, len as f64));
            let partials: Vec<R> = partials.iter().map(|partial| from_partial(*partial)).collect();
            rows::Rows { geometry, input, loops, sink }.join(&partials);
            return Ok(());
        }
    };
    let reduction = Reduction::new(call.params, x);
    let geometry = reduction.geometry(x, out, false);
    sink.divide = divide.map(|divide| (divide, reduction.len as f64));
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
                // SAFETY: the traversal of the result stays inside it.
                unsafe { sink.put(&mut [empty], run.out + i * step, 1) };
            }
        });
        return Ok(());
    }
    let geometry = &geometry;
    if geometry.along_rows() {
        rows::Rows { geometry, input, loops, sink }.reduce()
    } else {
        columns::reduce_columns(&Columns { geometry, input, ops, sink })
    }
}
