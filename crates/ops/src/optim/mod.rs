//! Steps of optimizers, which change the parameters and the optimizer's state in place, in one pass.

mod arguments;

use keyfold_backend::{Operation, OptimParams};
use keyfold_core::{DType, Result};
use keyfold_layers::autocast::Category;
use keyfold_layers::vmap::Batch;
use keyfold_tensor::{Tensor, Value, ValueRef};
use smallvec::SmallVec;

use self::arguments::{Numbers, Written};
use crate::naming::Naming;
use crate::op::Op;
use crate::row::{Batching, Layers, Row, Rule};

const ADAM: &Operation = &const { Operation::new("adam") };
const SGD: &Operation = &const { Operation::new("sgd") };

/// The dtypes of parameters.
const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// A step without numbers of its own.
const fn plain(op: &'static Operation) -> OptimParams {
    OptimParams {
        op,
        step: 1,
        lr: 0.0,
        beta1: 0.0,
        beta2: 0.0,
        eps: 0.0,
        weight_decay: 0.0,
        momentum: 0.0,
        dampening: 0.0,
        decoupled: false,
        amsgrad: false,
        nesterov: false,
        maximize: false,
    }
}

/// Runs a step over checked tensors; on Meta nothing is computed.
fn run(op: &Op, params: &OptimParams, grad: &Tensor, written: &Written<'_>) -> Result<()> {
    if op.is_meta() {
        return Ok(());
    }
    let outputs = written.tensors();
    // SAFETY: the schema says that the operator writes to these arguments, so the caller, in whichever
    // language, gave their memory up for the time of the call; none overlaps another tensor of the call.
    unsafe { op.execute(params, &[grad], &outputs) }
}

fn adam(op: &Op, args: &[ValueRef<'_>]) -> Result<()> {
    let mut written = Written::new(op, ("self", args[0]), &FLOATS)?;
    let grad = args[1].tensor()?;
    written.add_state(op, "exp_avg", args[2])?;
    written.add_state(op, "exp_avg_sq", args[3])?;
    let amsgrad = written.add_state(op, "max_exp_avg_sq", args[4])?;
    written.check(op, ("grad", grad))?;
    let numbers = Numbers { op, args };
    let params = OptimParams {
        step: numbers.step(5)?,
        lr: numbers.at_least_0("lr", 6)?,
        beta1: numbers.below_1("beta1", 7)?,
        beta2: numbers.below_1("beta2", 8)?,
        eps: numbers.at_least_0("eps", 9)?,
        weight_decay: numbers.at_least_0("weight_decay", 10)?,
        decoupled: numbers.flag(11),
        amsgrad,
        maximize: numbers.flag(12),
        ..plain(ADAM)
    };
    run(op, &params, grad, &written)
}

fn sgd(op: &Op, args: &[ValueRef<'_>]) -> Result<()> {
    let mut written = Written::new(op, ("self", args[0]), &FLOATS)?;
    let grad = args[1].tensor()?;
    let has_buffer = written.add_state(op, "momentum_buffer", args[2])?;
    written.check(op, ("grad", grad))?;
    let numbers = Numbers { op, args };
    let params = OptimParams {
        step: numbers.step(3)?,
        lr: numbers.at_least_0("lr", 4)?,
        momentum: numbers.at_least_0("momentum", 5)?,
        dampening: numbers.finite("dampening", 6)?,
        weight_decay: numbers.at_least_0("weight_decay", 7)?,
        nesterov: numbers.flag(8),
        maximize: numbers.flag(9),
        ..plain(SGD)
    };
    numbers.check_momentum(&params, has_buffer)?;
    run(op, &params, grad, &written)
}

/// Runs one step over whole batches, which is each example's own since elements don't meet. `TENSORS` is
/// the number of tensors among the arguments, which come first.
fn batched<const TENSORS: usize>(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let Some(target) = batch.target(0)? else { return Ok(None) };
    let mut physical: SmallVec<[Option<Tensor>; 5]> = SmallVec::new();
    for place in 0..TENSORS {
        if matches!(batch.args[place], ValueRef::None) {
            physical.push(None);
            continue;
        }
        let operand = batch.operand(place)?;
        let same_shape = operand.tensor.shape() == target.physical.shape();
        if operand.dim != Some(target.dim) || !same_shape {
            return Ok(None);
        }
        physical.push(Some(operand.tensor));
    }
    let mut args: SmallVec<[ValueRef<'_>; 13]> = batch.args.into();
    for (arg, tensor) in args.iter_mut().zip(&physical) {
        *arg = tensor.as_ref().map_or(ValueRef::None, ValueRef::Tensor);
    }
    batch.call(&args)?;
    batch.written(0, &target)
}

/// Returns the rows of the steps.
pub(crate) fn rows() -> Result<Vec<Row>> {
    let layers = |rule| Layers {
        derivative: Rule::Refused("it writes to its state, too, which no graph records"),
        tangent: Rule::Refused("it writes to its state, too"),
        batching: Rule::Given(Batching::Rule(rule)),
        autocast: Category::Leave,
    };
    let adam = Row::writes_several(
        "keyfold::adam_step_(Tensor(a!) self, Tensor grad, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, \
         Tensor(d!)? max_exp_avg_sq=None, *, int step, float lr=0.001, float beta1=0.9, \
         float beta2=0.999, float eps=1e-08, float weight_decay=0.0, bool decoupled=False, \
         bool maximize=False) -> Tensor(a!)",
        adam,
        layers(batched::<5>),
        Naming::Unnamed("`keyfold.optim.Adam` calls it"),
    )?;
    let sgd = Row::writes_several(
        "keyfold::sgd_step_(Tensor(a!) self, Tensor grad, Tensor(b!)? momentum_buffer=None, *, \
         int step, float lr=0.001, float momentum=0.0, float dampening=0.0, \
         float weight_decay=0.0, bool nesterov=False, bool maximize=False) -> Tensor(a!)",
        sgd,
        layers(batched::<3>),
        Naming::Unnamed("`keyfold.optim.SGD` calls it"),
    )?;
    Ok(vec![adam, sgd])
}
