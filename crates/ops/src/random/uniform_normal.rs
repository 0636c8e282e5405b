//! `rand` and `randn`: uniform and normal random numbers.

use keyfold_backend::{GpuBackend, Operation, RandomParams};
use keyfold_core::{DType, Device, Error, Result};
use keyfold_dispatch::{HostLock, Tags};
use keyfold_layers::autocast::Category;
use keyfold_tensor::device::random::take;
use keyfold_tensor::{IntList, Tensor};

use crate::infer::{Call, CallPlan, Run};
use crate::naming::Naming;
use crate::op::Op;
use crate::row::{Batching, Layers, Row, Rule};
use crate::vjp::NO_TENSOR_ARGUMENT;

/// The dtypes of random numbers.
const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// The size, and the requested dtype and device.
type Arguments = (IntList, Option<DType>, Option<Device>);

/// Plans random numbers from the next part of the device's stream.
#[inline(always)]
fn random(
    call: Call<'_, &'static Operation>,
    (size, dtype, device): Arguments,
) -> Result<CallPlan<impl Run>> {
    let (dtype, device) = call.factory_options(dtype, device, DType::DEFAULT_FLOAT)?;
    if !FLOATS.contains(&dtype) {
        return Err(call.unsupported("dtype", dtype, &FLOATS));
    }
    let numbers = *call.state;
    let run = move |op: &Op, out: &Tensor| {
        let kernel = op.kernel(GpuBackend::random, |random| random.random(numbers, dtype))?;
        // A Philox block has four numbers, or two float64 numbers.
        let per_block = if dtype == DType::F64 { 2 } else { 4 };
        let begin = op.at(take(out.device(), out.numel().div_ceil(per_block) as u64))?;
        let (seed, offset) = (begin.seed, begin.offset);
        let params = RandomParams { op: numbers, seed, offset };
        // SAFETY: what computes a result is called with an output that is its own (`Run::run`).
        op.at(unsafe { kernel.launch(&params, &[], out) })
    };
    Ok(CallPlan::new(device, call.shape(&size)?, dtype, run))
}

/// Returns the rows of `rand` and `randn`. They have no overload `out`, which inside vmap would draw the same
/// numbers for all examples.
pub(super) fn rows() -> Result<Vec<Row>> {
    let row = |name, function, numbers| {
        let args = "int[] size, *, ScalarType? dtype=None, Device? device=None";
        let layers = Layers {
            derivative: NO_TENSOR_ARGUMENT,
            tangent: Rule::Refused("no argument is a tensor"),
            batching: Rule::Given(Batching::Draw),
            autocast: Category::Leave,
        };
        let row = Row::computes::<Arguments, _, _>(
            (name, ""),
            args,
            move |_| numbers,
            random,
            layers,
            Naming::PartOf(function),
        )?;
        let row = row.without_out().with_host_lock(HostLock::Keep);
        Ok::<_, Error>(row.tagged(Tags::NONDETERMINISTIC_SEEDED))
    };
    Ok(vec![
        row("aten::rand", "rand", &const { Operation::new("uniform") })?,
        row("aten::randn", "randn", &const { Operation::new("normal") })?,
    ])
}
