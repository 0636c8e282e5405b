//! Layer norm and RMS norm, with their gradients: lanes of the last dimensions.

use keyfold_backend::{NormParams, Operation};
use keyfold_core::{DType, Device, ErrorKind, Result, Shape};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::Saves;
use keyfold_tensor::{IntList, Tensor, ValueRef};

use super::batching;
use super::layer_gradients as gradients;
use super::{
    affine_bits, check_eps, check_floating, check_grad, check_lanes, check_optional,
    check_statistics, layers_of, optional_inputs, statistics_dtype, wanted, wanted_bits,
};
use crate::infer::{Call, RunSeveral, SeveralPlan};
use crate::naming::Naming;
use crate::op::Op;
use crate::row::Row;

/// The lanes of a tensor.
pub(super) struct Sizes {
    /// The number of normalized dimensions.
    dims: u32,
    /// The number of lanes.
    lanes: usize,
    /// The shape of weights.
    pub(super) normalized: Shape,
    /// The shape of statistics: that of the tensor, with 1 for each normalized dimension.
    pub(super) statistics: Shape,
}

impl Sizes {
    /// Checks that the last dimensions are the normalized shape.
    pub(super) fn new(op: &Op, x: &Tensor, normalized: &[i64]) -> Result<Sizes> {
        check_floating(op, "input", x)?;
        let shape = x.shape();
        let outer = shape.len().checked_sub(normalized.len());
        let fits = |outer: &usize| {
            shape[*outer..].iter().zip(normalized).all(|(own, given)| *own as i64 == *given)
        };
        let Some(outer) = outer.filter(fits).filter(|_| !normalized.is_empty()) else {
            let message = format!(
                "argument 'normalized_shape' is {normalized:?}, but argument 'input' has shape \
                 {shape:?}; give the sizes of its last dimensions"
            );
            return Err(op.error(ErrorKind::Shape, message));
        };
        let mut statistics = shape.clone();
        statistics[outer..].fill(1);
        let lanes = shape[..outer].iter().product();
        check_lanes(op, x, lanes, shape[outer..].iter().product())?;
        let normalized = Shape::new(&shape[outer..])?;
        Ok(Sizes { dims: (shape.len() - outer) as u32, lanes, normalized, statistics })
    }

    fn check_affine(&self, op: &Op, name: &str, tensor: Option<&Tensor>, x: DType) -> Result<()> {
        let needed = (&self.normalized[..], "argument 'normalized_shape' is");
        check_optional(op, (name, tensor), x, needed)
    }
}

type Form = (Device, Shape, DType);

/// The arguments of `native_layer_norm_backward`.
type LayerGradient<'t> = (
    &'t Tensor,
    &'t Tensor,
    IntList,
    &'t Tensor,
    &'t Tensor,
    Option<&'t Tensor>,
    Option<&'t Tensor>,
    ValueRef<'t>,
);

/// The arguments of `_fused_rms_norm_backward`.
type RmsGradient<'t> =
    (&'t Tensor, &'t Tensor, IntList, &'t Tensor, Option<&'t Tensor>, ValueRef<'t>);

/// `native_layer_norm`
fn layer_norm<'t>(
    call: Call<'_, ()>,
    (x, normalized, weight, bias, eps): (
        &'t Tensor,
        IntList,
        Option<&'t Tensor>,
        Option<&'t Tensor>,
        f64,
    ),
) -> Result<SeveralPlan<impl RunSeveral>> {
    let sizes = Sizes::new(&call, x, &normalized)?;
    check_eps(&call, eps)?;
    sizes.check_affine(&call, "weight", weight, x.dtype())?;
    sizes.check_affine(&call, "bias", bias, x.dtype())?;
    let (device, wide) = (call.device_of(x), statistics_dtype(x.dtype()));
    let params = NormParams {
        eps,
        dims: sizes.dims,
        tensors: affine_bits(weight, bias),
        ..NormParams::new(&const { Operation::new("layer_norm") })
    };
    let forms: [Form; 3] = [
        (device, x.shape().clone(), x.dtype()),
        (device, sizes.statistics.clone(), wide),
        (device, sizes.statistics, wide),
    ];
    let run = move |op: &Op, outs: &[&Tensor]| {
        let inputs = optional_inputs([Some(x), weight, bias]);
        // SAFETY: nothing else uses the results' memory (`RunSeveral`).
        unsafe { op.execute(&params, &inputs, outs) }
    };
    Ok(SeveralPlan::new(forms, run))
}

/// `native_layer_norm_backward`
fn layer_norm_backward<'t>(
    call: Call<'_, ()>,
    (grad, x, normalized, mean, rstd, weight, bias, mask): LayerGradient<'t>,
) -> Result<SeveralPlan<impl RunSeveral>> {
    let sizes = Sizes::new(&call, x, &normalized)?;
    check_grad(&call, grad, x)?;
    check_statistics(&call, ("mean", mean), x.dtype(), sizes.lanes)?;
    check_statistics(&call, ("rstd", rstd), x.dtype(), sizes.lanes)?;
    sizes.check_affine(&call, "weight", weight, x.dtype())?;
    sizes.check_affine(&call, "bias", bias, x.dtype())?;
    let [dx, dw, db] = wanted::<3>(&call, mask)?;
    let params = NormParams {
        dims: sizes.dims,
        tensors: affine_bits(weight, None) | wanted_bits(dx, dw, db),
        ..NormParams::new(&const { Operation::new("layer_norm_backward") })
    };
    let device = call.device_of(x);
    let of = |tensor: Option<&Tensor>| tensor.map_or(x.dtype(), Tensor::dtype);
    let forms: [Option<Form>; 3] = [
        dx.then(|| (device, x.shape().clone(), x.dtype())),
        dw.then(|| (device, sizes.normalized.clone(), of(weight))),
        db.then(|| (device, sizes.normalized.clone(), of(bias.or(weight)))),
    ];
    let run = move |op: &Op, outs: &[&Tensor]| {
        let inputs = optional_inputs([Some(grad), Some(x), Some(mean), Some(rstd), weight]);
        // SAFETY: nothing else uses the results' memory (`RunSeveral`).
        unsafe { op.execute(&params, &inputs, outs) }
    };
    Ok(SeveralPlan::of_wanted(forms, run))
}

/// Returns the number that is added to mean squares: by default the least that counts beside 1.
fn rms_eps(op: &Op, eps: Option<f64>, dtype: DType) -> Result<f64> {
    let Some(eps) = eps else {
        return Ok(match statistics_dtype(dtype) {
            DType::F64 => f64::EPSILON,
            _ => f64::from(f32::EPSILON),
        });
    };
    check_eps(op, eps)?;
    Ok(eps)
}

/// `_fused_rms_norm`
fn rms_norm<'t>(
    call: Call<'_, ()>,
    (x, normalized, weight, eps): (&'t Tensor, IntList, Option<&'t Tensor>, Option<f64>),
) -> Result<SeveralPlan<impl RunSeveral>> {
    let sizes = Sizes::new(&call, x, &normalized)?;
    let eps = rms_eps(&call, eps, x.dtype())?;
    sizes.check_affine(&call, "weight", weight, x.dtype())?;
    let params = NormParams {
        eps,
        dims: sizes.dims,
        tensors: affine_bits(weight, None),
        ..NormParams::new(&const { Operation::new("rms_norm") })
    };
    let device = call.device_of(x);
    let forms: [Form; 2] = [
        (device, x.shape().clone(), x.dtype()),
        (device, sizes.statistics, statistics_dtype(x.dtype())),
    ];
    let run = move |op: &Op, outs: &[&Tensor]| {
        // SAFETY: nothing else uses the results' memory (`RunSeveral`).
        unsafe { op.execute(&params, &optional_inputs([Some(x), weight]), outs) }
    };
    Ok(SeveralPlan::new(forms, run))
}

/// `_fused_rms_norm_backward`
fn rms_norm_backward<'t>(
    call: Call<'_, ()>,
    (grad, x, normalized, rstd, weight, mask): RmsGradient<'t>,
) -> Result<SeveralPlan<impl RunSeveral>> {
    let sizes = Sizes::new(&call, x, &normalized)?;
    check_grad(&call, grad, x)?;
    check_statistics(&call, ("rstd", rstd), x.dtype(), sizes.lanes)?;
    sizes.check_affine(&call, "weight", weight, x.dtype())?;
    let [dx, dw] = wanted::<2>(&call, mask)?;
    let params = NormParams {
        dims: sizes.dims,
        tensors: affine_bits(weight, None) | wanted_bits(dx, dw, false),
        ..NormParams::new(&const { Operation::new("rms_norm_backward") })
    };
    let device = call.device_of(x);
    let of_weight = weight.map_or(x.dtype(), Tensor::dtype);
    let forms: [Option<Form>; 2] = [
        dx.then(|| (device, x.shape().clone(), x.dtype())),
        dw.then(|| (device, sizes.normalized.clone(), of_weight)),
    ];
    let run = move |op: &Op, outs: &[&Tensor]| {
        let inputs = optional_inputs([Some(grad), Some(x), Some(rstd), weight]);
        // SAFETY: nothing else uses the results' memory (`RunSeveral`).
        unsafe { op.execute(&params, &inputs, outs) }
    };
    Ok(SeveralPlan::of_wanted(forms, run))
}

/// Returns the rows.
pub(super) fn rows() -> Result<Vec<Row>> {
    const FORWARD: &[Saves] = &[Saves::arguments(&[0, 2, 3]).and_results()];
    const RMS_FORWARD: &[Saves] = &[Saves::arguments(&[0, 2]).and_results()];
    const BACKWARD: &[Saves] = &[Saves::arguments(&[0, 1, 3, 4, 5])];
    const RMS_BACKWARD: &[Saves] = &[Saves::arguments(&[0, 1, 3, 4])];
    Ok(vec![
        Row::computes_several::<(&Tensor, IntList, Option<&Tensor>, Option<&Tensor>, f64), _, _>(
            "aten::native_layer_norm(Tensor input, int[] normalized_shape, Tensor? weight, \
             Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)",
            |_| (),
            layer_norm,
            layers_of(
                FORWARD,
                gradients::layer_norm,
                gradients::layer_norm_tangents,
                batching::layer,
                Category::FullPrecision,
            ),
            Naming::PartOf("layer_norm"),
        )?,
        Row::computes_several::<LayerGradient<'static>, _, _>(
            "aten::native_layer_norm_backward(Tensor grad_out, Tensor input, int[] \
             normalized_shape, Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, bool[3] \
             output_mask) -> (Tensor?, Tensor?, Tensor?)",
            |_| (),
            layer_norm_backward,
            layers_of(
                BACKWARD,
                gradients::layer_norm_backward,
                gradients::layer_norm_backward_tangents,
                batching::layer_backward,
                Category::Leave,
            ),
            Naming::Unnamed("the derivative of `keyfold.layer_norm` calls it"),
        )?,
        Row::computes_several::<(&Tensor, IntList, Option<&Tensor>, Option<f64>), _, _>(
            "aten::_fused_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float? \
             eps) -> (Tensor, Tensor)",
            |_| (),
            rms_norm,
            layers_of(
                RMS_FORWARD,
                gradients::rms_norm,
                gradients::rms_norm_tangents,
                batching::rms,
                Category::FullPrecision,
            ),
            Naming::PartOf("rms_norm"),
        )?,
        Row::computes_several::<RmsGradient<'static>, _, _>(
            "aten::_fused_rms_norm_backward(Tensor grad_out, Tensor input, int[] \
             normalized_shape, Tensor rstd, Tensor? weight, bool[2] output_mask) -> (Tensor?, \
             Tensor?)",
            |_| (),
            rms_norm_backward,
            layers_of(
                RMS_BACKWARD,
                gradients::rms_norm_backward,
                gradients::rms_norm_backward_tangents,
                batching::rms_backward,
                Category::Leave,
            ),
            Naming::Unnamed("the derivative of `keyfold.rms_norm` calls it"),
        )?,
    ])
}
