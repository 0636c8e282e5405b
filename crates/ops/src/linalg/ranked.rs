//! PyTorch's products of operands of fixed ranks: `matmul` with stricter checks.

use keyfold_core::{ErrorKind, Result};
use keyfold_layers::autocast::Category;
use keyfold_tensor::Tensor;

use super::{batching, gradients, plan, product_work};
use crate::infer::{Call, CallPlan, Run};
use crate::naming::Naming;
use crate::row::{Batching, Layers, Row, Rule, Tangent};
use crate::vjp::{READS_OTHER, formula};

/// The operands' names and ranks.
#[derive(Clone, Copy)]
struct Operands {
    names: [&'static str; 2],
    ranks: [usize; 2],
}

fn ranked<'t>(
    call: Call<'_, Operands>,
    (a, b): (&'t Tensor, &'t Tensor),
) -> Result<CallPlan<impl Run + use<'t>>> {
    let Operands { names, ranks } = *call.state;
    for ((name, rank), x) in names.into_iter().zip(ranks).zip([a, b]) {
        if x.ndim() != rank {
            let message = format!(
                "argument '{name}' has shape {:?}, but it must have {rank} dimension{}; \
                 aten::matmul takes any number of them",
                x.shape(),
                if rank == 1 { "" } else { "s" },
            );
            return Err(call.error(ErrorKind::Shape, message));
        }
    }
    if ranks == [3, 3] && a.shape()[0] != b.shape()[0] {
        let message = format!(
            "shapes {:?} and {:?} are batches of different sizes, {} and {}; aten::matmul broadcasts \
             batches",
            a.shape(),
            b.shape(),
            a.shape()[0],
            b.shape()[0]
        );
        return Err(call.error(ErrorKind::Shape, message));
    }
    let dtype = a.dtype().promote(b.dtype());
    plan(&call, a, b, dtype, dtype)
}

/// Returns the rows of `mm`, `bmm`, `mv` and `dot`.
pub(super) fn rows() -> Result<Vec<Row>> {
    const REASON: &str = "`keyfold.matmul` multiplies operands of all ranks";
    let row = |name, args: &str, operands: Operands| {
        Row::computes::<(&Tensor, &Tensor), _, _>(
            (name, ""),
            args,
            move |_| operands,
            ranked,
            Layers {
                derivative: formula(READS_OTHER, gradients::matmul),
                tangent: Rule::Given(Tangent::Multilinear),
                batching: Rule::Given(Batching::Rule(batching::ranked)),
                autocast: Category::LowerPrecision,
            },
            Naming::Unnamed(REASON),
        )
        .map(|row| row.estimated(|args, shape| product_work(args, 0, shape)))
    };
    let operands = |other, ranks| Operands { names: ["self", other], ranks };
    Ok(vec![
        row("aten::mm", "Tensor self, Tensor mat2", operands("mat2", [2, 2]))?,
        row("aten::bmm", "Tensor self, Tensor mat2", operands("mat2", [3, 3]))?,
        row("aten::mv", "Tensor self, Tensor vec", operands("vec", [2, 1]))?,
        row("aten::dot", "Tensor self, Tensor tensor", operands("tensor", [1, 1]))?,
    ])
}
