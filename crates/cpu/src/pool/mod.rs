//! Pooling over windows of one to three dimensions, and its gradients.

mod average;
mod axis;
mod backward;
mod max;
mod planes;

use std::any::TypeId;
use std::sync::LazyLock;

use keyfold_backend::{Execute, Kernels, Offer, Operation, PoolParams};
use keyfold_core::{DType, Element, Result};
use keyfold_kit::axes::{
    BF16, Body, DispatchTable, Dtype, F16, F32, F64, FLOATS, HasDtype, I8, I16, I32, I64, U8, U16,
    U32, U64, one_of,
};
use keyfold_kit::math::Real;
use keyfold_tensor::Tensor;

use self::average::{Average, Regular};
use self::axis::{Axis, Ranges};
use self::backward::{AverageBackward, MaxBackward};
use self::max::{Max, Ordered};
use self::planes::Planes;
use crate::HostBackend;
use crate::kernel::{SeveralKernel, offer_several};
use crate::reduce::blocks::{Input, Sink};
use crate::reduce::convert::{ReductionTypes, To};
use crate::reduce::{base, out_base};

const MAX: &Operation = &Operation::new("max");
const MAX_BACKWARD: &Operation = &Operation::new("max_backward");
const AVERAGE: &Operation = &Operation::new("average");
const AVERAGE_BACKWARD: &Operation = &Operation::new("average_backward");
const ADAPTIVE: &Operation = &Operation::new("adaptive_average");
const ADAPTIVE_BACKWARD: &Operation = &Operation::new("adaptive_average_backward");

type Kernel = SeveralKernel<PoolParams>;
type Table = DispatchTable<(Dtype,), Kernel>;

static GREATEST: LazyLock<Table> = LazyLock::new(|| {
    let numbers = one_of((U8, U16, U32, U64, I8, I16, I32, I64, F16, BF16, F32, F64));
    let table = Table::builder("max pooling").cover((numbers,), Greatest);
    table.build().expect("each dtype is covered once")
});

static OF_FLOATS: LazyLock<Table> = LazyLock::new(|| {
    let table = Table::builder("pooling of floats").cover((FLOATS,), OfFloats);
    table.build().expect("each dtype is covered once")
});

impl Kernels<PoolParams> for HostBackend {
    fn kernel(
        &self,
        op: &'static Operation,
        inputs: &[DType],
        _: &[DType],
    ) -> Offer<&dyn Execute<PoolParams>> {
        const OF_FLOATS_ONLY: [&Operation; 5] =
            [MAX_BACKWARD, AVERAGE, AVERAGE_BACKWARD, ADAPTIVE, ADAPTIVE_BACKWARD];
        match inputs.first() {
            Some(dtype) if op == MAX => offer_several(&GREATEST, (*dtype,)),
            Some(dtype) if OF_FLOATS_ONLY.contains(&op) => offer_several(&OF_FLOATS, (*dtype,)),
            _ => Offer::No(format!("it has no operation named '{}'", op.name()).into()),
        }
    }
}

/// The three dimensions, where those that are missing in front have size 1.
fn axes(params: &PoolParams, sizes: [usize; 3], outs: [usize; 3]) -> [Axis; 3] {
    let missing = 3 - params.dims as usize;
    std::array::from_fn(|d| {
        let of = |values: &[i64; 3], otherwise: usize| {
            d.checked_sub(missing).map_or(otherwise, |at| values[at] as usize)
        };
        Axis {
            size: sizes[d],
            out: outs[d],
            kernel: of(&params.kernel, 1),
            stride: of(&params.stride, 1),
            padding: of(&params.padding, 0),
            dilation: of(&params.dilation, 1),
        }
    })
}

type Elem<C> = <C as HasDtype>::Element;
/// The type that a dtype is computed in.
type Computed<C> = <Elem<C> as ReductionTypes>::Sum;

/// How the memory of tensors is read as numbers of one type, and written.
struct Memory<T> {
    input: fn(&Tensor) -> Result<Input<T>>,
    output: fn(&Tensor) -> Result<Sink<T>>,
    /// Whether elements are stored as numbers of that type.
    direct: bool,
}

impl<T> Memory<T> {
    fn of<E>() -> Self
    where
        E: ReductionTypes,
        T: Element + To<E>,
    {
        Memory {
            input: |x| Ok(Input::converted::<E>(base::<E>(x)?)),
            output: |x| Ok(Sink::of::<E>(out_base(x)?)),
            direct: TypeId::of::<E>() == TypeId::of::<T>(),
        }
    }
}

/// The kernels of max pooling; the computation is compiled once for each type that dtypes are computed in.
#[derive(Clone, Copy)]
struct Greatest;

impl<C> Body<C, Kernel> for Greatest
where
    C: HasDtype<Element: ReductionTypes>,
    Computed<C>: Ordered + To<Elem<C>>,
{
    fn instance(&self, _: C) -> Kernel {
        SeveralKernel::new(|params, inputs, outputs| {
            greatest(
                params,
                inputs[0],
                (outputs[0], outputs[1]),
                &Memory::<Computed<C>>::of::<Elem<C>>(),
            )
        })
    }
}

#[inline(never)]
fn greatest<T: Ordered>(
    params: &PoolParams,
    x: &Tensor,
    (values, indices): (&Tensor, &Tensor),
    memory: &Memory<T>,
) -> Result<()> {
    if values.numel() == 0 {
        return Ok(());
    }
    let dims = params.dims as usize;
    let from = Planes::new(x, dims, (memory.input)(x)?, memory.direct)?;
    let to = Planes::new(values, dims, (memory.output)(values)?, memory.direct)?;
    let axes = axes(params, from.sizes, to.sizes);
    let indices = Planes::new(indices, dims, Sink::of::<i64>(out_base(indices)?), true)?;
    Max { from, to, indices, axes }.run()
}

/// The other kernels.
#[derive(Clone, Copy)]
struct OfFloats;

impl<C> Body<C, Kernel> for OfFloats
where
    C: HasDtype<Element: ReductionTypes>,
    Computed<C>: Real + To<Elem<C>>,
{
    fn instance(&self, _: C) -> Kernel {
        SeveralKernel::new(|params, inputs, outputs| {
            of_floats(params, inputs, outputs[0], &Memory::<Computed<C>>::of::<Elem<C>>())
        })
    }
}

#[inline(never)]
fn of_floats<T: Real>(
    params: &PoolParams,
    inputs: &[&Tensor],
    out: &Tensor,
    memory: &Memory<T>,
) -> Result<()> {
    // Without planes their sizes may be any.
    if out.numel() == 0 {
        return Ok(());
    }
    let dims = params.dims as usize;
    let from = Planes::new(inputs[0], dims, (memory.input)(inputs[0])?, memory.direct)?;
    let to = Planes::new(out, dims, (memory.output)(out)?, memory.direct)?;
    if params.op == MAX_BACKWARD {
        let indices = Input::plain(base::<i64>(inputs[1])?);
        let indices = Planes::new(inputs[1], dims, indices, true)?;
        return MaxBackward { from, indices, to }.run();
    }
    let is_backward = params.op == AVERAGE_BACKWARD || params.op == ADAPTIVE_BACKWARD;
    let (sizes, outs) = if is_backward { (to.sizes, from.sizes) } else { (from.sizes, to.sizes) };
    let mut regular = None;
    let ranges = match params.op == ADAPTIVE || params.op == ADAPTIVE_BACKWARD {
        true => std::array::from_fn(|d| Ranges::even(sizes[d], outs[d])),
        false => {
            let axes = axes(params, sizes, outs);
            regular = Regular::new(&axes[2]);
            axes.map(|axis| axis.ranges(params.count_include_pad != 0))
        }
    };
    let divisor = (params.divisor != 0).then(|| T::from_f64(params.divisor as f64));
    match is_backward {
        true => AverageBackward { from, to, ranges, divisor }.run(),
        false => Average { from, to, ranges, regular, divisor }.run(),
    }
}
