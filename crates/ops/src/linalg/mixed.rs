//! Products in mixed precision: factors of 16 bits, sums and result of 32.

use keyfold_core::{DType, ErrorKind, Result};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::{Backward, Gradients};
use keyfold_layers::vmap::Batch;
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::{batching, gradients, plan, product_work};
use crate::aten;
use crate::infer::{Call, CallPlan, Run};
use crate::naming::named;
use crate::row::{Batching, Layers, Row, Rule, Tangent};
use crate::vjp::{READS_OTHER, formula};

const FACTORS: [DType; 2] = [DType::F16, DType::BF16];

fn matmul_mixed<'t>(
    call: Call<'_, ()>,
    (a, b, dtype): (&'t Tensor, &'t Tensor, DType),
) -> Result<CallPlan<impl Run + use<'t>>> {
    if !FACTORS.contains(&dtype) {
        return Err(call.unsupported("dtype", dtype, &FACTORS));
    }
    for (name, x) in [("self", a), ("other", b)] {
        if ![DType::F16, DType::BF16, DType::F32].contains(&x.dtype()) {
            let message = format!(
                "argument '{name}': dtype {} isn't supported here; convert to float32, which the \
                 result is of, with aten::to",
                x.dtype()
            );
            return Err(call.error(ErrorKind::DType, message));
        }
    }
    plan(&call, a, b, dtype, DType::F32)
}

/// The gradient of the product of the rounded factors, in float32: rounding counts as the identity.
fn vjp(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let ValueRef::DType(dtype) = call.value(2) else {
        unreachable!("the kernel took the argument as a dtype");
    };
    let rounded = |at: usize| aten::to(&aten::to(&call.tensor(at)?, dtype)?, DType::F32);
    gradients::of_product(call, grad, rounded)
}

fn batched(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let dtype = batch.args[2];
    batching::products(batch, &|a, b| batch.call(&[a.into(), b.into(), dtype])?.into_tensor())
}

/// Returns the row of `matmul_mixed`.
pub(super) fn row() -> Result<Row> {
    Row::computes::<(&Tensor, &Tensor, DType), _, _>(
        ("keyfold::matmul_mixed", ""),
        "Tensor self, Tensor other, ScalarType dtype",
        |_| (),
        matmul_mixed,
        Layers {
            derivative: formula(READS_OTHER, vjp),
            tangent: Rule::Given(Tangent::Multilinear),
            batching: Rule::Given(Batching::Rule(batched)),
            autocast: Category::Leave,
        },
        named(
            "matmul_mixed",
            "Tensor x1, Tensor x2, ScalarType dtype",
            "Return the matrix product in mixed precision, of float32.\n\nThe factors are rounded to \
             `dtype`, float16 or bfloat16, and their products are added up in\nfloat32. Past 65504 a \
             factor of float16 is infinite; NaN goes through. Shapes are those of\n`matmul`. \
             Gradients are computed in float32 from the rounded factors. Not in the \
             standard.\n\nRaises:\n    DTypeError: an array isn't of float32, float16 or bfloat16, or \
             `dtype` is another one.\n    ShapeError: the shapes don't multiply.",
        ),
    )
    .map(|row| row.estimated(|args, shape| product_work(args, 0, shape)))
}
