//! The normalizations that Python names: composites of those that return their statistics, too.

use keyfold_core::{DType, Error, ErrorKind, Result, Shape};
use keyfold_dispatch::{CallContext, Kernel, RegistrationKey, Value as _};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd;
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::{FLOATS, statistics_dtype};
use crate::arg_values::{int, is_true};
use crate::aten;
use crate::inferred::Inferred;
use crate::naming::{Naming, named};
use crate::row::{Layers, Row, Rule};

type Context<'c> = CallContext<'c, Value>;

const fn layers(autocast: Category) -> Layers {
    Layers { derivative: Rule::Derived, tangent: Rule::Derived, batching: Rule::Derived, autocast }
}

fn error(name: &str, kind: ErrorKind, message: impl AsRef<str>) -> Error {
    Error::new(kind, format!("{name}: {}", message.as_ref()))
}

/// Calls an operator with several results.
fn several(context: &Context<'_>, name: &str, args: &[ValueRef<'_>]) -> Result<Vec<Value>> {
    match context.dispatcher()?.call(name, args)? {
        Value::List(items) | Value::Tuple(items) => Ok(items),
        one => Ok(vec![one]),
    }
}

/// Calls an operator with several results, and returns the first.
fn first(context: &Context<'_>, name: &str, args: &[ValueRef<'_>]) -> Result<Value> {
    let results = several(context, name, args)?;
    results.into_iter().next().ok_or_else(|| error(name, ErrorKind::Return, "has no result"))
}

fn layer_norm(context: &Context<'_>, args: &[ValueRef<'_>]) -> Result<Value> {
    first(context, "aten::native_layer_norm", &args[..5])
}

fn rms_norm(context: &Context<'_>, args: &[ValueRef<'_>]) -> Result<Value> {
    first(context, "aten::_fused_rms_norm", &args[..4])
}

/// The sizes that `native_group_norm` is called with: examples, channels, and elements of a channel.
fn sizes(name: &str, x: &Tensor) -> Result<[ValueRef<'static>; 3]> {
    let shape = x.shape();
    if shape.len() < 2 {
        let message = format!(
            "argument 'input' has shape {shape:?}, without a dimension of channels; give one of shape \
             [examples, channels, ...]"
        );
        return Err(error(name, ErrorKind::Shape, message));
    }
    let len: usize = shape[2..].iter().product();
    Ok([shape[0], shape[1], len].map(|size| ValueRef::Int(size as i64)))
}

fn group_norm(context: &Context<'_>, args: &[ValueRef<'_>]) -> Result<Value> {
    let x = args[0].tensor()?;
    let [n, c, len] = sizes("aten::group_norm", x)?;
    let groups = int(args[1]).unwrap_or(0);
    if groups <= 0 || x.shape()[1] as i64 % groups != 0 {
        let message = format!(
            "argument 'num_groups' is {groups}, which doesn't divide the {} channels of argument \
             'input'; give a divisor",
            x.shape()[1]
        );
        return Err(error("aten::group_norm", ErrorKind::Value, message));
    }
    let all = [args[0], args[2], args[3], n, c, len, args[1], args[4]];
    first(context, "aten::native_group_norm", &all)
}

/// The arguments of batch norm and of instance norm.
struct BatchNorm<'c, 'a> {
    context: &'c Context<'c>,
    name: &'static str,
    input: ValueRef<'a>,
    weight: ValueRef<'a>,
    bias: ValueRef<'a>,
    running: Option<(&'a Tensor, &'a Tensor)>,
    momentum: ValueRef<'a>,
    eps: ValueRef<'a>,
}

impl<'c, 'a> BatchNorm<'c, 'a> {
    /// Reads the arguments: input, weight, bias, running statistics, whether it trains, momentum, eps.
    ///
    /// # Errors
    /// For one running statistic without the other, and for one that can't be updated.
    fn new(
        context: &'c Context<'c>,
        name: &'static str,
        args: &[ValueRef<'a>],
    ) -> Result<BatchNorm<'c, 'a>> {
        let running = match (args[3], args[4]) {
            (ValueRef::None, ValueRef::None) => None,
            (ValueRef::None, _) | (_, ValueRef::None) => {
                let message = "of arguments 'running_mean' and 'running_var' one is None; give both, \
                               or none";
                return Err(error(name, ErrorKind::Value, message));
            }
            (mean, variance) => Some((mean.tensor()?, variance.tensor()?)),
        };
        if let (Some((mean, variance)), true) = (running, is_true(args[5])) {
            for (argument, tensor) in [("running_mean", mean), ("running_var", variance)] {
                let checked = tensor.check_writable();
                checked.map_err(|e| e.at(&format!("argument '{argument}'")).at(name))?;
                // Before either is written.
                if autograd::is_enabled() && autograd::requires_grad(tensor) {
                    let message = format!(
                        "argument '{argument}' requires grad, and running statistics are updated in \
                         place; give a tensor that doesn't, or call it under no_grad()"
                    );
                    return Err(error(name, ErrorKind::Gradient, message));
                }
            }
        }
        let [input, weight, bias] = [args[0], args[1], args[2]];
        let (momentum, eps) = (args[6], args[7]);
        Ok(BatchNorm { context, name, input, weight, bias, running, momentum, eps })
    }

    /// Normalizes by the statistics of the input, and updates running ones.
    fn training(&self) -> Result<Vec<Value>> {
        let BatchNorm { context, input, weight, bias, momentum, eps, .. } = *self;
        let train = ValueRef::Bool(true);
        let Some((mean, variance)) = self.running else {
            let args = [input, weight, bias, train, momentum, eps];
            return several(context, "aten::_native_batch_norm_legit.no_stats", &args);
        };
        let args = [input, weight, bias, mean.into(), variance.into(), train, momentum, eps];
        let name = "aten::_native_batch_norm_legit_functional";
        let mut results = several(context, name, &args)?;
        for (old, new) in [mean, variance].into_iter().zip(results.drain(3..)) {
            aten::copy_(old, &aten::detach(&new.into_tensor()?)?)?;
        }
        Ok(results)
    }

    /// Normalizes by the running statistics.
    fn inference(&self) -> Result<Vec<Value>> {
        let BatchNorm { context, input, weight, bias, momentum, eps, .. } = *self;
        let Some((mean, variance)) = self.running else {
            let message = "arguments 'running_mean' and 'running_var' are None; give the statistics \
                           to normalize by, or call it with training";
            return Err(error(self.name, ErrorKind::Value, message));
        };
        let args = [input, weight, bias, mean.into(), variance.into(), momentum, eps];
        several(context, "aten::_native_batch_norm_legit_no_training", &args)
    }
}

fn native_batch_norm(context: &Context<'_>, args: &[ValueRef<'_>]) -> Result<Value> {
    let call = BatchNorm::new(context, "aten::native_batch_norm", args)?;
    let results = if is_true(args[5]) { call.training()? } else { call.inference()? };
    Ok(Value::Tuple(results))
}

fn batch_norm(context: &Context<'_>, args: &[ValueRef<'_>]) -> Result<Value> {
    let call = BatchNorm::new(context, "aten::batch_norm", args)?;
    let mut results = if is_true(args[5]) { call.training()? } else { call.inference()? };
    Ok(results.swap_remove(0))
}

/// Normalizes each channel of each example: group norm whose groups are channels. With running statistics it is
/// batch norm of one example with the channels of all, whose statistics' means are the new ones.
fn instance_norm(context: &Context<'_>, args: &[ValueRef<'_>]) -> Result<Value> {
    const NAME: &str = "aten::instance_norm";
    let call = BatchNorm::new(context, NAME, args)?;
    if !is_true(args[5]) {
        return Ok(call.inference()?.swap_remove(0));
    }
    let x = args[0].tensor()?;
    let [n, c, len] = sizes(NAME, x)?;
    let Some((mean, variance)) = call.running else {
        let all = [args[0], args[1], args[2], n, c, len, c, args[7]];
        return first(context, "aten::native_group_norm", &all);
    };
    let (examples, channels) = (x.shape()[0], x.shape()[1]);
    let repeated = |tensor: &Tensor| -> Result<Tensor> {
        let (n, c) = (examples as i64, channels as i64);
        aten::reshape(&aten::expand(tensor, &[n, c])?, &[n * c])
    };
    let optional = |arg: ValueRef<'_>| match arg {
        ValueRef::None => Ok(None),
        arg => repeated(arg.tensor()?).map(Some),
    };
    let (weight, bias) = (optional(args[1])?, optional(args[2])?);
    let (old_mean, old_variance) = (repeated(mean)?, repeated(variance)?);
    let mut shape = aten::sizes(x.shape());
    (shape[0], shape[1]) = (1, (examples * channels) as i64);
    let merged = aten::reshape(x, &shape)?;
    let beside = |tensor: &Option<Tensor>| tensor.clone().map_or(Value::None, Value::Tensor);
    let (weight, bias) = (beside(&weight), beside(&bias));
    let all = [
        (&merged).into(),
        weight.as_ref(),
        bias.as_ref(),
        (&old_mean).into(),
        (&old_variance).into(),
        ValueRef::Bool(true),
        args[6],
        args[7],
    ];
    let mut results = several(context, "aten::_native_batch_norm_legit_functional", &all)?;
    for (old, new) in [mean, variance].into_iter().zip(results.drain(3..)) {
        let sizes = [examples as i64, channels as i64];
        let new = aten::reshape(&aten::detach(&new.into_tensor()?)?, &sizes)?;
        let mean = aten::div_scalar(&aten::sum(&new, &[0], false)?, examples as i64)?;
        aten::copy_(old, &mean)?;
    }
    let y = results.swap_remove(0).into_tensor()?;
    aten::reshape(&y, &aten::sizes(x.shape())).map(Value::Tensor)
}

/// The result has the input's shape and dtype, which is floating.
fn like_input(args: &[ValueRef<'_>]) -> Result<Inferred> {
    let x = args[0].tensor()?;
    if !x.dtype().is_floating() {
        let message = format!(
            "argument 'input': dtype {} isn't supported here; convert to one of {} with aten::to",
            x.dtype(),
            FLOATS.map(DType::name).join(", ")
        );
        return Err(Error::new(ErrorKind::DType, message));
    }
    Ok(Inferred::fresh(x.shape().clone(), x.dtype()))
}

/// The results of `native_batch_norm`, with statistics only if it trains.
fn with_statistics(args: &[ValueRef<'_>]) -> Result<Vec<Option<Inferred>>> {
    let x = args[0].tensor()?;
    let channels = if is_true(args[5]) { x.shape().get(1).copied().unwrap_or(0) } else { 0 };
    let statistic = || -> Result<Option<Inferred>> {
        let dtype: DType = statistics_dtype(x.dtype());
        Ok(Some(Inferred::fresh(Shape::new(&[channels])?, dtype)))
    };
    Ok(vec![Some(like_input(args)?), statistic()?, statistic()?])
}

/// Returns the rows.
pub(super) fn rows() -> Result<Vec<Row>> {
    const KEY: RegistrationKey = RegistrationKey::CompositeImplicitAutograd;
    Ok(vec![
        Row::composite(
            "aten::layer_norm(Tensor input, int[] normalized_shape, Tensor? weight=None, Tensor? \
             bias=None, float eps=1e-05, bool cudnn_enable=True) -> Tensor",
            KEY,
            || Kernel::boxed(layer_norm),
            like_input,
            layers(Category::FullPrecision),
            named(
                "layer_norm",
                "Tensor x, int[] normalized_shape, Tensor? weight=None, Tensor? bias=None, *, \
                 float eps=1e-05",
                "Return the array normalized along its last axes. Not in the standard.\n\nEach element \
                 less the mean, divided by the deviation. The mean and the variance are those of each lane of \
                 shape `normalized_shape`; `weight` and `bias`,\nof that shape, follow. J. Ba and \
                 others, \"Layer normalization\", 2016.\n\nRaises:\n    ShapeError: the last axes \
                 don't have these sizes.",
            ),
        )?,
        Row::composite(
            "aten::rms_norm(Tensor input, int[] normalized_shape, Tensor? weight=None, float? \
             eps=None) -> Tensor",
            KEY,
            || Kernel::boxed(rms_norm),
            like_input,
            layers(Category::FullPrecision),
            named(
                "rms_norm",
                "Tensor x, int[] normalized_shape, Tensor? weight=None, *, float? eps=None",
                "Return the array over its root mean square along the last axes. Not in the \
                 standard.\n\n`eps` is added to the mean square; None is the least \
                 number that counts beside 1. B. Zhang and\nR. Sennrich, \"Root mean square layer \
                 normalization\", 2019.\n\nRaises:\n    ShapeError: the last axes don't have these \
                 sizes.",
            ),
        )?,
        Row::composite(
            "aten::group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, \
             float eps=1e-05, bool cudnn_enabled=True) -> Tensor",
            KEY,
            || Kernel::boxed(group_norm),
            like_input,
            layers(Category::FullPrecision),
            named(
                "group_norm",
                "Tensor x, int num_groups, Tensor? weight=None, Tensor? bias=None, *, float eps=1e-05",
                "Return the array normalized by groups of channels. Not in the standard.\n\nThe array is of shape `[examples, \
                 channels, ...]`; `weight` and `bias` have one element for each\nchannel. Y. Wu and K. \
                 He, \"Group normalization\", 2018.\n\nRaises:\n    InvalidValue: the groups don't \
                 divide the channels.",
            ),
        )?,
        Row::composite_of_several(
            "aten::native_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? \
             running_mean, Tensor? running_var, bool training, float momentum, float eps) -> \
             (Tensor, Tensor, Tensor)",
            KEY,
            || Kernel::boxed(native_batch_norm),
            with_statistics,
            layers(Category::Leave),
            Naming::PartOf("batch_norm"),
        )?
        .out_named("out", &["out", "save_mean", "save_invstd"]),
        Row::composite(
            "aten::batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, \
             Tensor? running_var, bool training, float momentum, float eps, bool \
             cudnn_enabled=True) -> Tensor",
            KEY,
            || Kernel::boxed(batch_norm),
            like_input,
            layers(Category::Leave),
            named(
                "batch_norm",
                "Tensor x, Tensor? running_mean=None, Tensor? running_var=None, Tensor? weight=None, \
                 Tensor? bias=None, bool training=False, float momentum=0.1, float eps=1e-05",
                "Return the array normalized by channels. Not in the standard.\n\nThe array is of shape `[examples, channels, ...]`, the others \
                 have one element for each channel. With\n`training` mean and variance are those of the \
                 array, and the running ones are updated in place: they\nbecome `old + momentum (new - \
                 old)`, of the unbiased variance. Without it they are the running ones.\nS. Ioffe and \
                 C. Szegedy, \"Batch normalization\", 2015.\n\nRaises:\n    InvalidValue: there are no \
                 statistics to normalize by.",
            ),
        )?,
        Row::composite(
            "aten::instance_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, \
             Tensor? running_var, bool use_input_stats, float momentum, float eps, bool \
             cudnn_enabled=True) -> Tensor",
            KEY,
            || Kernel::boxed(instance_norm),
            like_input,
            layers(Category::FullPrecision),
            named(
                "instance_norm",
                "Tensor x, Tensor? running_mean=None, Tensor? running_var=None, Tensor? weight=None, \
                 Tensor? bias=None, bool use_input_stats=True, float momentum=0.1, float eps=1e-05",
                "Return the array normalized by channels of each example. Not in the \
                 standard.\n\nAs `batch_norm`, with the statistics of each \
                 example. D. Ulyanov and others, \"Instance\nnormalization\", 2016.\n\nRaises:\n    \
                 InvalidValue: there are no statistics to normalize by.",
            ),
        )?,
    ])
}
