//! Steps of optimizers, in place.

use crate::{Group, Groups, Kernels, Operation, Params};

/// One step of an optimizer, which changes the parameters and the optimizer's state in place.
///
/// All tensors have one shape, and strides of any kind. Steps of float64 are computed in float64, all
/// others in float32.
///
/// | name | inputs | outputs, which are read too | result |
/// | --- | --- | --- | --- |
/// | `adam` | gradient | parameters, first moment, second moment, with `amsgrad` the greatest second moment | see below |
/// | `sgd` | gradient | parameters, with `momentum` its buffer | see below |
///
/// The gradient has the parameters' dtype. The state is of one dtype: the parameters', or float32 beside
/// halves. With `g` the gradient, negative for `maximize`, plus `weight_decay * p` unless that is
/// `decoupled` or 0, `adam` computes
///
/// ```text
/// p = p * (1 - lr * weight_decay)                                         if decoupled
/// m = beta1 * m + (1 - beta1) * g
/// v = beta2 * v + (1 - beta2) * g * g
/// s = v, or with amsgrad the greatest v of all steps
/// p = p - lr / (1 - beta1^step) * m / (sqrt(s / (1 - beta2^step)) + eps)
/// ```
///
/// and `sgd`, whose buffer isn't read in step 1,
///
/// ```text
/// b = g in step 1, then momentum * b + (1 - dampening) * g
/// p = p - lr * g without momentum, p - lr * b, or with nesterov p - lr * (g + momentum * b)
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct OptimParams {
    /// The kernel's operation.
    pub op: &'static Operation,
    /// The number of this step, from 1 on.
    pub step: u64,
    /// The learning rate.
    pub lr: f64,
    /// The factor of the first moment of `adam`, in [0, 1).
    pub beta1: f64,
    /// The factor of the second moment of `adam`, in [0, 1).
    pub beta2: f64,
    /// The number added to the root of the second moment.
    pub eps: f64,
    /// The weight decay.
    pub weight_decay: f64,
    /// The factor of the buffer of `sgd`, which there is if this isn't 0.
    pub momentum: f64,
    /// The part of the gradient that the buffer leaves out.
    pub dampening: f64,
    /// Whether the weight decay shrinks the parameters instead of adding to the gradient.
    pub decoupled: bool,
    /// Whether `adam` divides by the greatest second moment of all steps.
    pub amsgrad: bool,
    /// Whether `sgd` looks ahead by Nesterov's rule.
    pub nesterov: bool,
    /// Whether the step ascends.
    pub maximize: bool,
}

impl Params for OptimParams {
    const GROUP: Group = Group::Optim;

    fn group<'a>(groups: &Groups<'a>) -> Option<&'a dyn Kernels<Self>> {
        groups.optim
    }

    fn operation(&self) -> &'static Operation {
        self.op
    }

    fn fields(&self) -> Vec<(&'static str, crate::Field)> {
        vec![
            ("step", (self.step as i64).into()),
            ("lr", self.lr.into()),
            ("beta1", self.beta1.into()),
            ("beta2", self.beta2.into()),
            ("eps", self.eps.into()),
            ("weight_decay", self.weight_decay.into()),
            ("momentum", self.momentum.into()),
            ("dampening", self.dampening.into()),
            ("decoupled", self.decoupled.into()),
            ("amsgrad", self.amsgrad.into()),
            ("nesterov", self.nesterov.into()),
            ("maximize", self.maximize.into()),
        ]
    }
}
