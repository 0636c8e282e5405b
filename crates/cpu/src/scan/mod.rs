//! Cumulative sums and products along one dimension.
//!
//! Every layout is read and written in place; elements that aren't dense or have another dtype are converted
//! block by block, by the loads and stores of reductions. A result depends on its lane, the lane's layout and
//! the number of lanes, and not on the number of threads.

mod columns;
mod combine;
mod lanes;

use std::any::TypeId;
use std::mem::MaybeUninit;
use std::sync::LazyLock;

use keyfold_backend::{Launch, Offer, Operation, Scan, ScanParams};
use keyfold_core::{DType, Dims, Result};
use keyfold_kit::axes::{
    Body, Bool, COMPLEX, Dtype, FLOATS, HasDtype, HasOutput, I8, I16, I32, I64, ORDERED, Output,
    U8, U16, U32, U64, one_of,
};
use keyfold_tensor::Tensor;

use self::combine::{Combine, Factor, Products, Sums};
use crate::HostBackend;
use crate::kernel::{Group, HostKernel, Table};
use crate::reduce::blocks::{Input, Sink};
use crate::reduce::convert::{ReductionTypes, To};
use crate::reduce::geometry::{Dim, Geometry};
use crate::reduce::monoid::Addend;
use crate::reduce::{base, out_base};

impl Scan for HostBackend {
    fn scan(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<ScanParams>> {
        static KERNELS: LazyLock<Group<(Dtype, Output<Dtype>), Kernel>> =
            LazyLock::new(|| Group::new([("sum", kernels), (PROD.name(), kernels)]));
        KERNELS.offer(op, (input, Output(output)))
    }
}

const PROD: &Operation = &Operation::new("prod");

type Kernel = HostKernel<ScanParams>;
type Kernels = Table<(Dtype, Output<Dtype>), ScanParams>;

/// The kernels of sums, or of products; the result's dtype can hold the input's.
fn kernels(name: &str) -> Kernels {
    let whole = one_of((Bool, U8, U16, U32, U64, I8, I16, I32, I64));
    let numbers = Output(one_of((U8, U16, U32, U64, I8, I16, I32, I64)));
    let table = Kernels::builder(name)
        .cover((ORDERED, Output(FLOATS)), Converting)
        .cover((ORDERED, Output(COMPLEX)), Converting)
        .cover((COMPLEX, Output(COMPLEX)), Converting)
        .cover((whole, numbers), Converting)
        .cover((FLOATS, numbers), SaturatingFloats);
    table.build().expect("each pair of dtypes is covered once")
}

type Elem<C> = <C as HasDtype>::Element;
type Out<C> = <C as HasOutput>::Output;
type SumType<C> = <Out<C> as ReductionTypes>::Sum;

/// Kernels whose elements have the computed type, or are converted to it.
#[derive(Clone, Copy)]
struct Converting;

impl<C> Body<C, Kernel> for Converting
where
    C: HasDtype<Element: ReductionTypes> + HasOutput<Output: ReductionTypes>,
    SumType<C>: Addend + Factor + To<Out<C>>,
{
    fn instance(&self, _: C) -> Kernel {
        HostKernel::new(|params, inputs, out| {
            let input = Input::converted::<Elem<C>>(base::<Elem<C>>(inputs[0])?);
            scan::<Out<C>>(params, (inputs[0], input), out)
        })
    }
}

/// Kernels of floats by way of the result's type, which saturates where it can't hold them.
#[derive(Clone, Copy)]
struct SaturatingFloats;

impl<C> Body<C, Kernel> for SaturatingFloats
where
    C: HasDtype<Element: ReductionTypes> + HasOutput<Output: ReductionTypes>,
    SumType<C>: Addend + Factor + To<Out<C>>,
{
    fn instance(&self, _: C) -> Kernel {
        HostKernel::new(|params, inputs, out| {
            let input = Input::saturated::<Elem<C>, Out<C>>(base::<Elem<C>>(inputs[0])?);
            scan::<Out<C>>(params, (inputs[0], input), out)
        })
    }
}

/// Compiled once for all element types that accumulate in one type.
#[inline(never)]
fn scan<D>(params: &ScanParams, x: (&Tensor, Input<D::Sum>), out: &Tensor) -> Result<()>
where
    D: ReductionTypes<Sum: Addend + Factor + To<D>>,
{
    let to = Results {
        sink: Sink::of::<D>(out_base(out)?),
        direct: TypeId::of::<D>() == TypeId::of::<D::Sum>(),
    };
    match params.op == PROD {
        true => run::<Products<D::Sum>>(params, x, (out, to)),
        false => run::<Sums<D::Sum>>(params, x, (out, to)),
    }
}

/// Where results go.
#[derive(Clone, Copy)]
struct Results<A> {
    sink: Sink<A>,
    /// Whether they are stored as type `A`, so that they can be written in place.
    direct: bool,
}

#[inline(never)]
fn run<M: Combine>(
    params: &ScanParams,
    (x, mut input): (&Tensor, Input<M::Number>),
    (out, mut to): (&Tensor, Results<M::Number>),
) -> Result<()> {
    if x.numel() == 0 {
        return Ok(());
    }
    let mut all = Dims::<Dim>::filled(Dim::default(), x.ndim())?;
    let mut flags = Dims::<bool>::filled(false, x.ndim())?;
    flags[params.axis as usize] = true;
    for (d, dim) in all.iter_mut().enumerate() {
        *dim = Dim { size: x.shape()[d], x: x.strides()[d], out: out.strides()[d] };
    }
    let geometry = Geometry::new(&all, &flags, true);
    input.base = input.at(geometry.x_base);
    to.sink.base = to.sink.at(geometry.out_base);
    let job = Job { geometry: &geometry, input, to };
    if geometry.along_rows() || geometry.kept.is_empty() || geometry.is_narrow() {
        lanes::scan_lanes::<M>(&job)
    } else {
        columns::scan_columns::<M>(&job)
    }
}

/// A scan with its tensors.
struct Job<'a, A> {
    geometry: &'a Geometry,
    input: Input<A>,
    to: Results<A>,
}

/// Elements per task of one thread, approximately.
const TASK: usize = 1 << 14;

/// Staging memory for elements that are gathered, or results that are scattered.
type Stage<A> = Vec<MaybeUninit<A>>;

fn new_stage<A: Copy>(len: usize) -> Stage<A> {
    vec![MaybeUninit::uninit(); len]
}
