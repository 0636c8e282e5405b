//! Scans: cumulative sums and products along a dimension.

mod derivatives;

use keyfold_backend::{GpuBackend, Operation, ScanParams};
use keyfold_core::{DType, Result, layout};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::Saves;
use keyfold_tensor::Tensor;

use crate::infer::{AnyStrides, Call, CallPlan, Run};
use crate::jvp::{LINEAR, pushforward};
use crate::naming::Naming;
use crate::op::Op;
use crate::reduce::{A_SUM, check_sum_dtype, sum_dtype};
use crate::row::{Batching, Gradient, Layers, Row, Rule, Tangent};
use crate::shape::batching::one_dim;
use crate::vjp::{READS_NOTHING, formula};

/// Cumulative sums or products: of the same shape, in the dtype of sums.
#[inline(always)]
fn cumulative(
    call: Call<'_, &'static Operation>,
    (x, dim, dtype): (&Tensor, i64, Option<DType>),
) -> Result<CallPlan<impl Run>> {
    let axis = call.at(layout::normalize_axis(dim, x.ndim()))?;
    let dtype = dtype.unwrap_or(sum_dtype(x.dtype()));
    let what = if call.state.name() == "sum" { A_SUM } else { A_PRODUCT };
    check_sum_dtype(&call, x.dtype(), dtype, dtype != DType::Bool, what)?;
    let params = ScanParams { op: call.state, axis: axis as u32 };
    let run = AnyStrides(move |op: &Op, out: &Tensor| {
        let kernel =
            op.kernel(GpuBackend::scan, |group| group.scan(params.op, x.dtype(), dtype))?;
        // SAFETY: what computes a result is called with an output that is its own (`Run::run`).
        op.at(unsafe { kernel.launch(&params, &[x], out) })
    });
    Ok(CallPlan::new(call.device_of(x), x.shape().clone(), dtype, run))
}

const A_PRODUCT: &str = "a product; choose a dtype of numbers";

/// Returns the rows of scans.
pub(crate) fn rows() -> Result<Vec<Row>> {
    const READS_BOTH: &[Saves] = &[Saves::arguments(&[0]).and_results()];
    let row = |name, which, derivatives: (Rule<Gradient>, Rule<Tangent>), function| {
        let (derivative, tangent) = derivatives;
        let batching = Rule::Given(Batching::Rule(one_dim));
        let layers = Layers { derivative, tangent, batching, autocast: Category::FullPrecision };
        Row::computes::<(&Tensor, i64, Option<DType>), _, _>(
            (name, ""),
            "Tensor self, int dim, *, ScalarType? dtype=None",
            move |_| which,
            cumulative,
            layers,
            Naming::PartOf(function),
        )
    };
    Ok(vec![
        row(
            "aten::cumsum",
            &const { Operation::new("sum") },
            (formula(READS_NOTHING, derivatives::cumsum), LINEAR),
            "cumulative_sum",
        )?,
        row(
            "aten::cumprod",
            &const { Operation::new("prod") },
            (formula(READS_BOTH, derivatives::cumprod), pushforward(derivatives::cumprod_tangent)),
            "cumulative_prod",
        )?,
    ])
}
