//! Scaled-dot-product attention.

mod backward;
mod forward;
mod matrices;
mod product;
mod tile;

use std::sync::LazyLock;

use keyfold_backend::{AttentionParams, Execute, Kernels, Offer, Operation};
use keyfold_core::{DType, Result, Shape};
use keyfold_kit::axes::{Body, DispatchTable, Dtype, FLOATS, HasDtype};
use keyfold_kit::math::Real;
use keyfold_tensor::Tensor;

use self::backward::Backward;
use self::forward::{Forward, Operands};
use self::matrices::Matrices;
use self::tile::Mask;
use crate::HostBackend;
use crate::kernel::{SeveralKernel, offer_several};
use crate::reduce::blocks::{Input, Sink};
use crate::reduce::convert::{ReductionTypes, To};
use crate::reduce::{base, out_base};

const FORWARD: &Operation = &Operation::new("forward");
const BACKWARD: &Operation = &Operation::new("backward");

type Kernel = SeveralKernel<AttentionParams>;

static KERNELS: LazyLock<DispatchTable<(Dtype,), Kernel>> = LazyLock::new(|| {
    let table = DispatchTable::builder("attention").cover((FLOATS,), ByTiles);
    table.build().expect("each dtype is covered once")
});

impl Kernels<AttentionParams> for HostBackend {
    fn kernel(
        &self,
        op: &'static Operation,
        inputs: &[DType],
        _: &[DType],
    ) -> Offer<&dyn Execute<AttentionParams>> {
        if op != FORWARD && op != BACKWARD {
            return Offer::No(format!("it has no operation named '{}'", op.name()).into());
        }
        match inputs.first() {
            Some(dtype) => offer_several(&KERNELS, (*dtype,)),
            None => Offer::No("attention has inputs".into()),
        }
    }
}

type Elem<C> = <C as HasDtype>::Element;
/// The type that a dtype is computed in.
type Computed<C> = <Elem<C> as ReductionTypes>::Sum;

/// The kernels of one dtype. The computation is compiled once for each type that dtypes are computed in.
#[derive(Clone, Copy)]
struct ByTiles;

impl<C> Body<C, Kernel> for ByTiles
where
    C: HasDtype<Element: ReductionTypes>,
    Computed<C>: Real + To<Elem<C>> + To<Computed<C>> + ReductionTypes<Stored = Computed<C>>,
{
    fn instance(&self, _: C) -> Kernel {
        SeveralKernel::new(|params, inputs, outputs| {
            let memory = Memory {
                input: |x| Ok(Input::converted::<Elem<C>>(base::<Elem<C>>(x)?)),
                output: |x| Ok(Sink::of::<Elem<C>>(out_base(x)?)),
                logarithms: |x| Ok(Input::plain(base::<Computed<C>>(x)?)),
                logarithms_out: |x| Ok(Sink::of::<Computed<C>>(out_base(x)?)),
                bools: |x| Ok(Input::converted::<bool>(base::<bool>(x)?)),
            };
            run::<Computed<C>>(params, inputs, outputs, &memory)
        })
    }
}

/// How the memory of tensors is read as numbers of one type, and written.
struct Memory<T> {
    input: fn(&Tensor) -> Result<Input<T>>,
    output: fn(&Tensor) -> Result<Sink<T>>,
    logarithms: fn(&Tensor) -> Result<Input<T>>,
    logarithms_out: fn(&Tensor) -> Result<Sink<T>>,
    bools: fn(&Tensor) -> Result<Input<T>>,
}

#[inline(never)]
fn run<T: Real>(
    params: &AttentionParams,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
    memory: &Memory<T>,
) -> Result<()> {
    if params.op == FORWARD {
        let (query, key, value) = (inputs[0], inputs[1], inputs[2]);
        let (out, logarithms) = (outputs[0], outputs[1]);
        let batch = leading(out);
        let mask = (params.has_mask != 0).then(|| inputs[3]);
        let column = logarithms.unsqueeze(-1)?;
        let forward = Forward {
            from: operands(params, (query, key, value, mask), batch, memory)?,
            out: Matrices::new(out, batch, (memory.output)(out)?)?,
            logsumexp: Matrices::new(&column, batch, (memory.logarithms_out)(&column)?)?,
        };
        return forward.run();
    }
    let (grad, query, key, value) = (inputs[0], inputs[1], inputs[2], inputs[3]);
    let mask = (params.has_mask != 0).then(|| inputs[4]);
    let [out, logarithms] = [inputs[inputs.len() - 2], inputs[inputs.len() - 1]];
    let batch = leading(outputs[0]);
    let input = |x: &Tensor| Matrices::new(x, batch, (memory.input)(x)?);
    let output = |x: &Tensor| Matrices::new(x, batch, (memory.output)(x)?);
    let column = logarithms.unsqueeze(-1)?;
    let backward = Backward {
        from: operands(params, (query, key, value, mask), batch, memory)?,
        grad: input(grad)?,
        out: input(out)?,
        logsumexp: Matrices::new(&column, batch, (memory.logarithms)(&column)?)?,
        query: output(outputs[0])?,
        key: output(outputs[1])?,
        value: output(outputs[2])?,
    };
    backward.run()
}

/// The sizes of the dimensions before the last two.
fn leading(x: &Tensor) -> &[usize] {
    &x.shape()[..x.ndim() - 2]
}

fn operands<T: Real>(
    params: &AttentionParams,
    (query, key, value, mask): (&Tensor, &Tensor, &Tensor, Option<&Tensor>),
    batch: &[usize],
    memory: &Memory<T>,
) -> Result<Operands<T>> {
    let input = |x: &Tensor| Matrices::new(x, batch, (memory.input)(x)?);
    let mask = mask.map(|mask| -> Result<_> {
        let chooses = mask.dtype() == DType::Bool;
        let from = if chooses { (memory.bools)(mask)? } else { (memory.input)(mask)? };
        let mut shape = Shape::new(batch)?;
        shape.insert(batch.len(), query.shape()[query.ndim() - 2])?;
        shape.insert(batch.len() + 1, key.shape()[key.ndim() - 2])?;
        Ok(Mask { of: Matrices::broadcast(mask, &shape, from)?, chooses })
    });
    Ok(Operands {
        query: input(query)?,
        key: input(key)?,
        value: input(value)?,
        mask: mask.transpose()?,
        causal: params.is_causal != 0,
        scale: T::from_f64(params.scale),
    })
}
