//! Batch norm, with its gradient: the channels of all examples.

use keyfold_backend::{NormParams, Operation};
use keyfold_core::{DType, Device, ErrorKind, Result, Shape};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::Saves;
use keyfold_layers::vmap;
use keyfold_tensor::{Tensor, ValueRef};

use super::batch_gradients as gradients;
use super::batching;
use super::many::Many;
use super::{
    affine_bits, check_eps, check_floating, check_grad, check_lanes, check_optional,
    check_statistics, layers_of, optional_inputs, statistics_dtype, wanted, wanted_bits,
};
use crate::infer::{Call, RunSeveral, SeveralPlan};
use crate::naming::Naming;
use crate::op::Op;
use crate::row::Row;

/// The channels of a tensor.
struct Sizes {
    channels: usize,
    /// The elements of a channel in all examples.
    len: usize,
}

impl Sizes {
    fn new(op: &Op, x: &Tensor) -> Result<Sizes> {
        check_floating(op, "input", x)?;
        let shape = x.shape();
        if shape.len() < 2 {
            let message = format!(
                "argument 'input' has shape {shape:?}, without a dimension of channels; give one of \
                 shape [examples, channels, ...]"
            );
            return Err(op.error(ErrorKind::Shape, message));
        }
        let len = shape[0] * shape[2..].iter().product::<usize>();
        Ok(Sizes { channels: shape[1], len })
    }

    fn check(&self, op: &Op, name: &str, tensor: Option<&Tensor>, x: DType) -> Result<()> {
        let needed: (&[usize], &str) = (&[self.channels], "the channels are");
        check_optional(op, (name, tensor), x, needed)
    }

    /// Checks what statistics need: elements, and for an unbiased variance more than one.
    fn check_elements(&self, op: &Op, x: &Tensor, running: bool) -> Result<()> {
        check_lanes(op, x, self.channels, self.len)?;
        if running && self.len == 1 && self.channels > 0 {
            let message = format!(
                "argument 'input' has shape {:?}, and one element has no unbiased variance; give \
                 more examples, or call it without training",
                x.shape()
            );
            return Err(op.error(ErrorKind::Value, message));
        }
        Ok(())
    }
}

fn check_momentum(op: &Op, momentum: f64) -> Result<()> {
    if (0.0..=1.0).contains(&momentum) {
        return Ok(());
    }
    let message =
        format!("argument 'momentum' is {momentum}; give the new statistics' share, from 0 to 1");
    Err(op.error(ErrorKind::Value, message))
}

type Form = (Device, Shape, DType);
type Affine<'t> = Option<&'t Tensor>;

/// The arguments of `_native_batch_norm_legit_functional`.
type WithRunning<'t> = (&'t Tensor, Affine<'t>, Affine<'t>, &'t Tensor, &'t Tensor, bool, f64, f64);

/// The first and the last arguments of `native_batch_norm_backward`.
type GradientTensors<'t> = (&'t Tensor, &'t Tensor, Affine<'t>, Affine<'t>, Affine<'t>);
type GradientRest<'t> = (Affine<'t>, Affine<'t>, bool, f64, ValueRef<'t>);

/// Plans the normalization by the statistics of the input. With running statistics their new values are
/// results, too.
fn plan<'t>(
    op: &Op,
    x: &'t Tensor,
    (weight, bias): (Affine<'t>, Affine<'t>),
    running: Option<(&'t Tensor, &'t Tensor, f64)>,
    eps: f64,
) -> Result<SeveralPlan<impl RunSeveral + use<'t>>> {
    let sizes = Sizes::new(op, x)?;
    check_eps(op, eps)?;
    sizes.check(op, "weight", weight, x.dtype())?;
    sizes.check(op, "bias", bias, x.dtype())?;
    if let Some((mean, variance, momentum)) = running {
        sizes.check(op, "running_mean", Some(mean), x.dtype())?;
        sizes.check(op, "running_var", Some(variance), x.dtype())?;
        check_momentum(op, momentum)?;
    }
    sizes.check_elements(op, x, running.is_some())?;
    let has_running = if running.is_some() { NormParams::RUNNING } else { 0 };
    let params = NormParams {
        eps,
        momentum: running.map_or(0.0, |(.., momentum)| momentum),
        tensors: affine_bits(weight, bias) | has_running,
        ..NormParams::new(&const { Operation::new("batch_norm") })
    };
    let (device, wide) = (op.device_of(x), statistics_dtype(x.dtype()));
    let channels = Shape::new(&[sizes.channels])?;
    let mut forms: Vec<Form> = vec![
        (device, x.shape().clone(), x.dtype()),
        (device, channels.clone(), wide),
        (device, channels.clone(), wide),
    ];
    if let Some((mean, variance, _)) = running {
        forms.push((device, channels.clone(), mean.dtype()));
        forms.push((device, channels, variance.dtype()));
    }
    let run = move |op: &Op, outs: &[&Tensor]| {
        let (mean, variance) = running.map(|(mean, variance, _)| (mean, variance)).unzip();
        let inputs = optional_inputs([Some(x), weight, bias, mean, variance]);
        // SAFETY: nothing else uses the results' memory (`RunSeveral`).
        unsafe { op.execute(&params, &inputs, outs) }
    };
    Ok(SeveralPlan::new(forms, run))
}

/// `_native_batch_norm_legit.no_stats`
fn without_running<'t>(
    call: Call<'_, ()>,
    (x, weight, bias, training, _, eps): (&'t Tensor, Affine<'t>, Affine<'t>, bool, f64, f64),
) -> Result<SeveralPlan<impl RunSeveral>> {
    if !training {
        let message = "argument 'training' is False, and there are no running statistics to \
                       normalize by; give them to aten::_native_batch_norm_legit_no_training";
        return Err(call.error(ErrorKind::Value, message));
    }
    plan(&call, x, (weight, bias), None, eps)
}

/// `_native_batch_norm_legit_functional`
fn with_running<'t>(
    call: Call<'_, ()>,
    (x, weight, bias, mean, variance, training, momentum, eps): WithRunning<'t>,
) -> Result<SeveralPlan<impl RunSeveral>> {
    if !training {
        let message = "argument 'training' is False, and so running statistics don't change; call \
                       aten::_native_batch_norm_legit_no_training";
        return Err(call.error(ErrorKind::Value, message));
    }
    plan(&call, x, (weight, bias), Some((mean, variance, momentum)), eps)
}

/// `_native_batch_norm_legit_no_training`
fn inference<'t>(
    call: Call<'_, ()>,
    (x, weight, bias, mean, variance, momentum, eps): (
        &'t Tensor,
        Affine<'t>,
        Affine<'t>,
        &'t Tensor,
        &'t Tensor,
        f64,
        f64,
    ),
) -> Result<SeveralPlan<impl RunSeveral>> {
    let sizes = Sizes::new(&call, x)?;
    check_eps(&call, eps)?;
    check_momentum(&call, momentum)?;
    sizes.check(&call, "weight", weight, x.dtype())?;
    sizes.check(&call, "bias", bias, x.dtype())?;
    sizes.check(&call, "running_mean", Some(mean), x.dtype())?;
    sizes.check(&call, "running_var", Some(variance), x.dtype())?;
    let params = NormParams {
        eps,
        tensors: affine_bits(weight, bias),
        ..NormParams::new(&const { Operation::new("batch_norm_inference") })
    };
    let (device, wide) = (call.device_of(x), statistics_dtype(x.dtype()));
    // As in PyTorch: nothing is computed that a gradient would read.
    let none = Shape::new(&[0_usize])?;
    let forms: [Form; 3] = [
        (device, x.shape().clone(), x.dtype()),
        (device, none.clone(), wide),
        (device, none, wide),
    ];
    let run = move |op: &Op, outs: &[&Tensor]| {
        let inputs = optional_inputs([Some(x), Some(mean), Some(variance), weight, bias]);
        // SAFETY: nothing else uses the results' memory (`RunSeveral`).
        unsafe { op.execute(&params, &inputs, &outs[..1]) }
    };
    Ok(SeveralPlan::new(forms, run))
}

/// `native_batch_norm_backward`
fn backward<'t>(
    call: Call<'_, ()>,
    ((grad, x, weight, running_mean, running_var), (save_mean, save_invstd, train, eps, mask)): (
        GradientTensors<'t>,
        GradientRest<'t>,
    ),
) -> Result<SeveralPlan<impl RunSeveral>> {
    let sizes = Sizes::new(&call, x)?;
    check_grad(&call, grad, x)?;
    sizes.check(&call, "weight", weight, x.dtype())?;
    let statistic = |name: &str, tensor: Affine<'t>| match tensor {
        Some(tensor) => {
            check_statistics(&call, (name, tensor), x.dtype(), sizes.channels)?;
            Ok(tensor)
        }
        None => {
            let message = format!(
                "argument '{name}' is None, but 'train' is {}; give the statistics that the input \
                 was normalized by",
                if train { "True" } else { "False" }
            );
            Err(call.error(ErrorKind::Value, message))
        }
    };
    let (first, second) = match train {
        true => (statistic("save_mean", save_mean)?, statistic("save_invstd", save_invstd)?),
        false => (statistic("running_mean", running_mean)?, statistic("running_var", running_var)?),
    };
    check_eps(&call, eps)?;
    let [dx, dw, db] = wanted::<3>(&call, mask)?;
    let op: &'static Operation = match train {
        true => &const { Operation::new("batch_norm_backward") },
        false => &const { Operation::new("batch_norm_inference_backward") },
    };
    let tensors = affine_bits(weight, None) | wanted_bits(dx, dw, db);
    let params = NormParams { eps, tensors, ..NormParams::new(op) };
    let (device, channels) = (call.device_of(x), Shape::new(&[sizes.channels])?);
    let of_weight = weight.map_or(x.dtype(), Tensor::dtype);
    let forms: [Option<Form>; 3] = [
        dx.then(|| (device, x.shape().clone(), x.dtype())),
        dw.then(|| (device, channels.clone(), of_weight)),
        db.then(|| (device, channels.clone(), of_weight)),
    ];
    let run = move |op: &Op, outs: &[&Tensor]| {
        let inputs = optional_inputs([Some(grad), Some(x), Some(first), Some(second), weight]);
        // SAFETY: nothing else uses the results' memory (`RunSeveral`).
        unsafe { op.execute(&params, &inputs, outs) }
    };
    Ok(SeveralPlan::of_wanted(forms, run))
}

/// Returns the rows.
pub(super) fn rows() -> Result<Vec<Row>> {
    const READS: &[Saves] = &[Saves::arguments(&[0, 1, 2]).and_results()];
    const READS_RUNNING: &[Saves] = &[Saves::arguments(&[0, 1, 2, 3, 4])];
    const READS_ALL: &[Saves] = &[Saves::arguments(&[0, 1, 2, 3, 4, 5, 6])];
    type T = &'static Tensor;
    type Maybe = Option<&'static Tensor>;
    type Gradient = Many<5, GradientTensors<'static>, GradientRest<'static>>;
    let part = Naming::PartOf("batch_norm");
    let forward: vmap::Rule = batching::batch_norm;
    let rules =
        |reads, vjp, tangent, batching| layers_of(reads, vjp, tangent, batching, Category::Leave);
    Ok(vec![
        Row::computes_several::<(T, Maybe, Maybe, bool, f64, f64), _, _>(
            "aten::_native_batch_norm_legit.no_stats(Tensor input, Tensor? weight, Tensor? bias, \
             bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
            |_| (),
            without_running,
            rules(READS, gradients::training, gradients::training_tangents, forward),
            part,
        )?
        .out_named("no_stats_out", &["out", "save_mean", "save_invstd"]),
        Row::computes_several::<WithRunning<'static>, _, _>(
            "aten::_native_batch_norm_legit_functional(Tensor input, Tensor? weight, Tensor? bias, \
             Tensor running_mean, Tensor running_var, bool training, float momentum, float eps) -> \
             (Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)",
            |_| (),
            with_running,
            rules(READS, gradients::running, gradients::running_tangents, forward),
            part,
        )?,
        Row::computes_several::<(T, Maybe, Maybe, T, T, f64, f64), _, _>(
            "aten::_native_batch_norm_legit_no_training(Tensor input, Tensor? weight, Tensor? bias, \
             Tensor running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, \
             Tensor, Tensor)",
            |_| (),
            inference,
            rules(READS_RUNNING, gradients::inference, gradients::inference_tangents, forward),
            part,
        )?,
        Row::computes_several::<Gradient, _, _>(
            "aten::native_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight, \
             Tensor? running_mean, Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, \
             bool train, float eps, bool[3] output_mask) -> (Tensor?, Tensor?, Tensor?)",
            |_| (),
            backward,
            rules(
                READS_ALL,
                gradients::backward,
                gradients::backward_tangents_of,
                batching::batch_norm_backward,
            ),
            Naming::Unnamed("the derivative of `keyfold.batch_norm` calls it"),
        )?,
    ])
}
