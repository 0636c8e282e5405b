//! Uniform and normal numbers.

use keyfold_backend::{GpuBackend, RandomOp, RandomParams};
use keyfold_core::{DType, Device, Result};
use keyfold_dispatch::{Kernel, Tags};
use keyfold_layers::autocast::Category;
use keyfold_tensor::device::random::take;
use keyfold_tensor::{IntList, Tensor, Value};

use crate::gradient::TAKES_NO_TENSOR;
use crate::op::Op;
use crate::row::{Batching, Layers, Row, Rule};

/// The floats, which random numbers are.
const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// Numbers of the next part of the stream.
fn random(
    op: &Op,
    size: &[i64],
    dtype: Option<DType>,
    device: Option<Device>,
    numbers: RandomOp,
) -> Result<Tensor> {
    let dtype = dtype.unwrap_or(DType::DEFAULT_FLOAT);
    if !FLOATS.contains(&dtype) {
        return Err(op.unsupported("dtype", dtype, &FLOATS));
    }
    let out = op.output(op.device(device), &op.shape(size)?, dtype)?;
    if op.is_meta() {
        return Ok(out);
    }
    let kernel = op.kernel(GpuBackend::random, |random| random.random(numbers, dtype))?;
    // A block has four numbers, or two of float64.
    let per_block = if dtype == DType::F64 { 2 } else { 4 };
    let begin = op.at(take(out.device(), out.numel().div_ceil(per_block) as u64))?;
    let params = RandomParams { op: numbers, reserved: 0, seed: begin.seed, offset: begin.offset };
    // SAFETY: the result was made here and nobody else has it.
    op.at(unsafe { kernel.launch(&params, &[], &out) })?;
    Ok(out)
}

/// The rows of uniform and normal numbers.
pub(super) fn rows() -> Result<Vec<Row>> {
    let kernel = |numbers| {
        move |op: Op| -> Kernel<Value> {
            Kernel::typed(move |size: IntList, dtype: Option<DType>, device: Option<Device>| {
                random(&op, &size, dtype, device, numbers)
            })
        }
    };
    let layers = Layers {
        derivative: TAKES_NO_TENSOR,
        batching: Rule::Given(Batching::Draw),
        autocast: Category::Leave,
    };
    let uniform = Row::light(
        "aten::rand(int[] size, *, ScalarType? dtype=None, Device? device=None) -> Tensor",
        kernel(RandomOp::Uniform),
        layers,
    )?;
    let normal = Row::light(
        "aten::randn(int[] size, *, ScalarType? dtype=None, Device? device=None) -> Tensor",
        kernel(RandomOp::Normal),
        layers,
    )?;
    Ok([uniform, normal].map(|row| row.tagged(Tags::NONDETERMINISTIC_SEEDED)).into())
}
