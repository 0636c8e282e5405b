//! Group norm, with its gradient: the channels of each group of each example.

use std::sync::Arc;

use keyfold_backend::{NormParams, Operation};
use keyfold_core::{DType, Device, ErrorKind, Result, Shape};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::{Backward, Forward, Gradients, Pushforward, Saves};
use keyfold_tensor::{Tensor, ValueRef};

use super::batching;
use super::lanes::Lanes;
use super::many::Many;
use super::rules::{
    BackwardPlaces, ForwardPlaces, backward_gradients, backward_tangents, forward_gradients,
    forward_tangents, in_slots, several,
};
use super::{
    affine_bits, call_several, check_eps, check_floating, check_grad, check_lanes, check_optional,
    check_statistics, layers_of, optional, optional_inputs, statistics_dtype, wanted, wanted_bits,
};
use crate::arg_values::int;
use crate::aten::Aten;
use crate::infer::{Call, RunSeveral, SeveralPlan};
use crate::naming::Naming;
use crate::op::Op;
use crate::row::Row;

/// The sizes of a call: examples, channels, elements of a channel, and groups.
#[derive(Clone, Copy)]
struct Sizes {
    examples: usize,
    channels: usize,
    groups: usize,
}

impl Sizes {
    /// Checks the sizes, which are those of the input.
    fn new(op: &Op, x: &Tensor, [n, c, len, groups]: [i64; 4]) -> Result<Sizes> {
        check_floating(op, "input", x)?;
        let shape = x.shape();
        let own_len: usize = shape.iter().skip(2).product();
        let fits =
            shape.len() >= 2 && [shape[0] as i64, shape[1] as i64, own_len as i64] == [n, c, len];
        if !fits {
            let message = format!(
                "argument 'input' has shape {shape:?}, but 'N', 'C' and 'HxW' are {n}, {c} and \
                 {len}; give the sizes of its first two dimensions and of all others together"
            );
            return Err(op.error(ErrorKind::Shape, message));
        }
        let divides = |groups: &usize| *groups > 0 && shape[1].is_multiple_of(*groups);
        let Some(groups) = usize::try_from(groups).ok().filter(divides) else {
            let message = format!(
                "argument 'group' is {groups}, which doesn't divide the {c} channels of argument \
                 'input'; give a divisor of {c}"
            );
            return Err(op.error(ErrorKind::Value, message));
        };
        check_lanes(op, x, shape[0] * groups, shape[1] / groups * own_len)?;
        Ok(Sizes { examples: shape[0], channels: shape[1], groups })
    }

    fn check_affine(self, op: &Op, name: &str, tensor: Option<&Tensor>, x: DType) -> Result<()> {
        let needed: (&[usize], &str) = (&[self.channels], "the channels are");
        check_optional(op, (name, tensor), x, needed)
    }
}

type Form = (Device, Shape, DType);

/// The arguments of `native_group_norm`.
type Arguments<'t> = (&'t Tensor, Option<&'t Tensor>, Option<&'t Tensor>, i64, i64, i64, i64, f64);

/// The arguments of `native_group_norm_backward`: the tensors, and what follows them.
type GradientTensors<'t> = (&'t Tensor, &'t Tensor, &'t Tensor, &'t Tensor, Option<&'t Tensor>);
type GradientSizes<'t> = (i64, i64, i64, i64, ValueRef<'t>);

/// `native_group_norm`
fn group_norm<'t>(
    call: Call<'_, ()>,
    (x, weight, bias, n, c, len, group, eps): Arguments<'t>,
) -> Result<SeveralPlan<impl RunSeveral>> {
    let sizes = Sizes::new(&call, x, [n, c, len, group])?;
    check_eps(&call, eps)?;
    sizes.check_affine(&call, "weight", weight, x.dtype())?;
    sizes.check_affine(&call, "bias", bias, x.dtype())?;
    let (device, wide) = (call.device_of(x), statistics_dtype(x.dtype()));
    let params = NormParams {
        eps,
        groups: sizes.groups as u32,
        tensors: affine_bits(weight, bias),
        ..NormParams::new(&const { Operation::new("group_norm") })
    };
    let statistics = Shape::new(&[sizes.examples, sizes.groups])?;
    let forms: [Form; 3] = [
        (device, x.shape().clone(), x.dtype()),
        (device, statistics.clone(), wide),
        (device, statistics, wide),
    ];
    let run = move |op: &Op, outs: &[&Tensor]| {
        let inputs = optional_inputs([Some(x), weight, bias]);
        // SAFETY: nothing else uses the results' memory (`RunSeveral`).
        unsafe { op.execute(&params, &inputs, outs) }
    };
    Ok(SeveralPlan::new(forms, run))
}

/// `native_group_norm_backward`
fn group_norm_backward<'t>(
    call: Call<'_, ()>,
    ((grad, x, mean, rstd, weight), (n, c, len, group, mask)): (
        GradientTensors<'t>,
        GradientSizes<'t>,
    ),
) -> Result<SeveralPlan<impl RunSeveral>> {
    let sizes = Sizes::new(&call, x, [n, c, len, group])?;
    check_grad(&call, grad, x)?;
    let lanes = sizes.examples * sizes.groups;
    check_statistics(&call, ("mean", mean), x.dtype(), lanes)?;
    check_statistics(&call, ("rstd", rstd), x.dtype(), lanes)?;
    sizes.check_affine(&call, "weight", weight, x.dtype())?;
    let [dx, dw, db] = wanted::<3>(&call, mask)?;
    let params = NormParams {
        groups: sizes.groups as u32,
        tensors: affine_bits(weight, None) | wanted_bits(dx, dw, db),
        ..NormParams::new(&const { Operation::new("group_norm_backward") })
    };
    let (device, channels) = (call.device_of(x), Shape::new(&[sizes.channels])?);
    let of_weight = weight.map_or(x.dtype(), Tensor::dtype);
    let forms: [Option<Form>; 3] = [
        dx.then(|| (device, x.shape().clone(), x.dtype())),
        dw.then(|| (device, channels.clone(), of_weight)),
        db.then(|| (device, channels.clone(), of_weight)),
    ];
    let run = move |op: &Op, outs: &[&Tensor]| {
        let inputs = optional_inputs([Some(grad), Some(x), Some(mean), Some(rstd), weight]);
        // SAFETY: nothing else uses the results' memory (`RunSeveral`).
        unsafe { op.execute(&params, &inputs, outs) }
    };
    Ok(SeveralPlan::of_wanted(forms, run))
}

const FORWARD: ForwardPlaces = ForwardPlaces { weight: 1, bias: Some(2), mean: Some(1), rstd: 2 };
const BACKWARD: BackwardPlaces = BackwardPlaces { mean: Some(2), rstd: 3, weight: 4, mask: 9 };

/// The lanes: the last two dimensions of examples, groups, channels of a group, and their elements.
fn lanes(shape: &[usize], groups: i64) -> Lanes {
    let (n, c) = (shape[0] as i64, shape[1] as i64);
    let len = shape[2..].iter().product::<usize>() as i64;
    Lanes {
        view: vec![n, groups, c / groups, len],
        dims: vec![2, 3],
        weights: vec![1, groups, c / groups, 1],
        centered: true,
        constant: false,
    }
}

fn gradients(call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
    static OPERATOR: Aten = Aten::new("aten::native_group_norm_backward");
    let sizes = [3, 4, 5, 6].map(|at| call.value(at));
    let lanes = lanes(&call.shape(0), call.int(6).unwrap_or(1));
    let found = forward_gradients(call, grads, &lanes, FORWARD, |given| {
        let (mean, weight) = (optional(given.mean), optional(given.weight));
        let (grad, x, rstd) = (given.grad.into(), given.x.into(), given.rstd.into());
        let ([n, c, len, group], mask) = (sizes, ValueRef::Refs(given.mask));
        call_several(&OPERATOR, &[grad, x, mean, rstd, weight, n, c, len, group, mask])
    })?;
    Ok(found.into())
}

fn backward_gradients_of(call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
    let lanes = lanes(&call.shape(1), call.int(8).unwrap_or(1));
    let found = backward_gradients(call, grads, &lanes, BACKWARD)?;
    Ok(in_slots(call, BACKWARD, found))
}

/// The lanes of a call in forward mode.
fn lanes_of(call: &Forward<'_, '_>, input: usize, group: usize) -> Result<Lanes> {
    Ok(lanes(call.tensor(input)?.shape(), int(call.args()[group]).unwrap_or(1)))
}

fn tangents() -> Arc<dyn Pushforward> {
    several(|call| forward_tangents(call, &lanes_of(call, 0, 6)?, FORWARD))
}

fn tangents_of_gradients() -> Arc<dyn Pushforward> {
    several(|call| backward_tangents(call, &lanes_of(call, 1, 8)?, BACKWARD))
}

/// Returns the rows.
pub(super) fn rows() -> Result<Vec<Row>> {
    const READS: &[Saves] = &[Saves::arguments(&[0, 1, 2]).and_results()];
    const BACKWARD_READS: &[Saves] = &[Saves::arguments(&[0, 1, 2, 3, 4])];
    type Gradient = Many<5, GradientTensors<'static>, GradientSizes<'static>>;
    let full = Category::FullPrecision;
    Ok(vec![
        Row::computes_several::<Arguments<'static>, _, _>(
            "aten::native_group_norm(Tensor input, Tensor? weight, Tensor? bias, int N, int C, int \
             HxW, int group, float eps) -> (Tensor, Tensor, Tensor)",
            |_| (),
            group_norm,
            layers_of(READS, gradients, tangents, batching::group, full),
            Naming::PartOf("group_norm"),
        )?,
        Row::computes_several::<Gradient, _, _>(
            "aten::native_group_norm_backward(Tensor grad_out, Tensor input, Tensor mean, Tensor \
             rstd, Tensor? weight, int N, int C, int HxW, int group, bool[3] output_mask) -> \
             (Tensor?, Tensor?, Tensor?)",
            |_| (),
            group_norm_backward,
            layers_of(
                BACKWARD_READS,
                backward_gradients_of,
                tangents_of_gradients,
                batching::group_backward,
                Category::Leave,
            ),
            Naming::Unnamed("the derivative of `keyfold.group_norm` calls it"),
        )?,
    ])
}
