//! Derivatives of attention: by the backend's kernel, or by operators where the derivative is differentiated
//! again, or a mask or the logarithms take part.

use std::sync::Arc;

use keyfold_core::{DType, Result};
use keyfold_layers::autograd::{self, Backward, Forward, Gradients, Pushforward};
use keyfold_tensor::{Tensor, Value, ValueRef};

use crate::aten::{self, Aten};
use crate::vjp::{fit_operand, if_needed};

/// An attention in the dtype of its logarithms, with the matrix of all probabilities.
struct Weights {
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: f64,
    probabilities: Tensor,
}

fn transposed(x: &Tensor) -> Result<Tensor> {
    aten::transpose(x, -1, -2)
}

fn to(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if x.dtype() == dtype { Ok(x.clone()) } else { aten::to(x, dtype) }
}

impl Weights {
    /// Computes the probabilities from the scores and the logarithms of their sums.
    fn new(
        [query, key, value]: [&Tensor; 3],
        mask: Option<&Tensor>,
        is_causal: bool,
        scale: Option<f64>,
        logarithms: &Tensor,
    ) -> Result<Weights> {
        let dtype = logarithms.dtype();
        let (query, key, value) = (to(query, dtype)?, to(key, dtype)?, to(value, dtype)?);
        let depth = query.shape()[query.ndim() - 1].max(1) as f64;
        let scale = scale.unwrap_or(1.0 / depth.sqrt());
        let mut scores = aten::mul_scalar(&aten::matmul(&query, &transposed(&key)?)?, scale)?;
        match mask {
            Some(mask) if mask.dtype() == DType::Bool => {
                scores = aten::where_scalar_other(mask, &scores, f64::NEG_INFINITY)?;
            }
            Some(mask) => scores = aten::add(&scores, &to(mask, dtype)?)?,
            None => {}
        }
        if is_causal {
            let rank = scores.ndim();
            let [queries, keys] = [scores.shape()[rank - 2], scores.shape()[rank - 1]];
            let row = aten::arange(queries as i64, scores.device())?;
            let column = aten::arange(keys as i64, scores.device())?;
            let counts = aten::ge(&aten::unsqueeze(&row, 1)?, &column)?;
            scores = aten::where_scalar_other(&counts, &scores, f64::NEG_INFINITY)?;
        }
        // A query for which no key counts has no probabilities.
        let counts = aten::gt_scalar(logarithms, f64::NEG_INFINITY)?;
        let nan = aten::ne(logarithms, logarithms)?;
        let kept = aten::maximum(&counts, &nan)?;
        let logarithms = aten::where_scalar_other(&kept, logarithms, f64::INFINITY)?;
        let shifted = aten::sub(&scores, &aten::unsqueeze(&logarithms, -1)?)?;
        Ok(Weights { query, key, value, scale, probabilities: aten::exp(&shifted)? })
    }
}

/// Returns an optional number among the arguments.
fn number(value: ValueRef<'_>) -> Option<f64> {
    value.scalar().map(|number| number.as_f64())
}

pub(super) fn attention(call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
    let [query, key, value] = [call.tensor(0)?, call.tensor(1)?, call.tensor(2)?];
    let mask = call.optional(3)?;
    let (is_causal, scale) = (call.flag(4), number(call.value(5)));
    let (out, logarithms) = (call.result(0)?, call.result(1)?);
    let needs_mask = mask.is_some() && call.needs(3);
    let plain = grads[0].as_ref().filter(|_| grads[1].is_none() && !needs_mask);
    let mut all = vec![None; call.slots()];
    if let Some(grad) = plain.filter(|_| !autograd::is_enabled()) {
        // Autocast may have rounded the operands below.
        let dtype = out.dtype();
        let (query, key, value) = (to(&query, dtype)?, to(&key, dtype)?, to(&value, dtype)?);
        let mask = match mask {
            Some(mask) if mask.dtype() != DType::Bool => Some(to(&mask, dtype)?),
            mask => mask,
        };
        let grad = to(grad, dtype)?;
        let [of_query, of_key, of_value] = attention_backward(
            &grad,
            [&query, &key, &value],
            mask.as_ref(),
            &[out, logarithms],
            is_causal,
            scale,
        )?;
        for (at, grad) in [of_query, of_key, of_value].into_iter().enumerate() {
            all[at] = if call.needs(at) { fit_operand(call, at, &grad)? } else { None };
        }
        return Ok(all);
    }
    let weights =
        Weights::new([&query, &key, &value], mask.as_ref(), is_causal, scale, &logarithms)?;
    let (p, dtype) = (&weights.probabilities, logarithms.dtype());
    let mut of_scores = None;
    if let Some(grad) = &grads[0] {
        let grad = to(grad, dtype)?;
        let of_weights = aten::matmul(&grad, &transposed(&weights.value)?)?;
        let dot = aten::sum(&aten::mul(&grad, &to(&out, dtype)?)?, &[-1], true)?;
        of_scores = Some(aten::mul(p, &aten::sub(&of_weights, &dot)?)?);
        all[2] = if_needed(call, 2, || aten::matmul(&transposed(p)?, &grad))?;
    }
    if let Some(grad) = &grads[1] {
        let part = aten::mul(p, &aten::unsqueeze(grad, -1)?)?;
        of_scores = autograd_added(of_scores, part)?;
    }
    let Some(of_scores) = of_scores else { return Ok(all) };
    if needs_mask {
        all[3] = fit_operand(call, 3, &of_scores)?;
    }
    let of_scores = aten::mul_scalar(&of_scores, weights.scale)?;
    all[0] = if_needed(call, 0, || aten::matmul(&of_scores, &weights.key))?;
    all[1] = if_needed(call, 1, || aten::matmul(&transposed(&of_scores)?, &weights.query))?;
    Ok(all)
}

fn autograd_added(sum: Option<Tensor>, part: Tensor) -> Result<Option<Tensor>> {
    match sum {
        Some(sum) => aten::add(&sum, &part).map(Some),
        None => Ok(Some(part)),
    }
}

/// Calls `keyfold::attention_backward`.
fn attention_backward(
    grad: &Tensor,
    [query, key, value]: [&Tensor; 3],
    mask: Option<&Tensor>,
    results: &[Tensor],
    is_causal: bool,
    scale: Option<f64>,
) -> Result<[Tensor; 3]> {
    static OP: Aten = Aten::new("keyfold::attention_backward");
    let found = OP.operator()?.call(&[
        grad.into(),
        query.into(),
        key.into(),
        value.into(),
        mask.map_or(ValueRef::None, ValueRef::Tensor),
        results.into(),
        is_causal.into(),
        scale.map_or(ValueRef::None, ValueRef::Float),
    ])?;
    let (Value::Tuple(items) | Value::List(items)) = found else { unreachable!("three results") };
    let tensors = items.into_iter().map(Value::into_tensor).collect::<Result<Vec<_>>>()?;
    Ok(tensors.try_into().unwrap_or_else(|_| unreachable!("three results")))
}

/// The tangents of the result and of the logarithms.
struct AttentionTangent;

pub(super) fn tangent() -> Arc<dyn Pushforward> {
    Arc::new(AttentionTangent)
}

impl Pushforward for AttentionTangent {
    /// With the tangent `t` of the scores and the probabilities `p`: that of the logarithms is `sum(p t)`, and
    /// that of the result `(p (t - sum(p t))) value + p value'`.
    fn apply(&self, call: &Forward<'_, '_>) -> Result<Vec<Option<Tensor>>> {
        let operands = [call.tensor(0)?, call.tensor(1)?, call.tensor(2)?];
        let mask = match call.args()[3] {
            ValueRef::None => None,
            mask => Some(mask.tensor()?),
        };
        let is_causal = matches!(call.args()[4], ValueRef::Bool(true));
        let (out, logarithms) = (&call.results()[0], &call.results()[1]);
        let dtype = logarithms.dtype();
        let weights = Weights::new(operands, mask, is_causal, number(call.args()[5]), logarithms)?;
        let p = &weights.probabilities;
        let mut of_scores = None;
        if let Some(tangent) = call.tangent(0) {
            let part = aten::matmul(&to(tangent, dtype)?, &transposed(&weights.key)?)?;
            of_scores = Some(aten::mul_scalar(&part, weights.scale)?);
        }
        if let Some(tangent) = call.tangent(1) {
            let part = aten::matmul(&weights.query, &transposed(&to(tangent, dtype)?)?)?;
            of_scores = autograd_added(of_scores, aten::mul_scalar(&part, weights.scale)?)?;
        }
        if let Some(tangent) = call.tangent(3) {
            of_scores = autograd_added(of_scores, to(tangent, dtype)?)?;
        }
        let (mut of_out, mut of_logarithms) = (None, None);
        if let Some(of_scores) = of_scores {
            let both = aten::mul(p, &of_scores)?;
            let total = aten::sum(&both, &[-1], true)?;
            let of_weights = aten::sub(&both, &aten::mul(p, &total)?)?;
            of_out = Some(aten::matmul(&of_weights, &weights.value)?);
            of_logarithms = Some(aten::squeeze(&total, -1)?);
        }
        if let Some(tangent) = call.tangent(2) {
            of_out = autograd_added(of_out, aten::matmul(p, &to(tangent, dtype)?)?)?;
        }
        let of_out = of_out.map(|tangent| to(&tangent, out.dtype())).transpose()?;
        Ok(vec![of_out, of_logarithms])
    }
}
