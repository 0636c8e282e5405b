//! A call with batched arguments: its level, the size of the batch, and calls on the unwrapped
//! arguments below.

use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{CallContext, DispatchKey, DispatchKeySet, LocalKeys, Operator, Value as _};
use keyfold_tensor::{Tensor, Value, ValueRef};
use smallvec::SmallVec;

use super::batched::{Batched, batch_of, batch_of_value, wrap};
use super::enter::{move_dim, repeat};
use crate::aten;

/// A call to serve, and its batch: the one of the highest level among its arguments.
pub struct Batch<'c, 'a> {
    /// The call.
    pub context: &'c CallContext<'c, Value>,
    /// Its arguments, with examples in place of batches.
    pub args: &'c [ValueRef<'a>],
    /// The level of its `vmap`, from 1 for the outermost.
    pub level: usize,
    /// The number of examples.
    pub size: usize,
    /// Keys of the call that no argument has: modes.
    modes: DispatchKeySet,
    /// Keys that an argument has, and that were removed from the call above.
    taken: DispatchKeySet,
}

/// An argument of a batching rule: a tensor and its batch dimension.
#[derive(Clone)]
pub struct BatchedOperand {
    /// All examples, or the tensor that all examples share.
    pub tensor: Tensor,
    /// The batch dimension; `None` if all examples share the tensor.
    pub dim: Option<usize>,
}

impl BatchedOperand {
    /// Returns the operand of an argument.
    fn of(tensor: &Tensor, level: usize) -> BatchedOperand {
        match batch_of(tensor) {
            Some(batched) if batched.level == level => {
                BatchedOperand { tensor: batched.physical.clone(), dim: Some(batched.dim) }
            }
            _ => BatchedOperand { tensor: tensor.clone(), dim: None },
        }
    }

    /// Returns the number of dimensions of an example.
    pub fn rank(&self) -> usize {
        self.tensor.ndim() - usize::from(self.dim.is_some())
    }

    /// Returns the size of an example's dimension.
    pub fn size_at(&self, dim: usize) -> usize {
        let shift = self.dim.is_some_and(|batch| dim >= batch);
        self.tensor.shape()[dim + usize::from(shift)]
    }

    /// Moves the batch dimension to the front, if there is one.
    pub fn in_front(self) -> Result<BatchedOperand> {
        match self.dim {
            None | Some(0) => Ok(self),
            Some(dim) => {
                Ok(BatchedOperand { tensor: move_dim(&self.tensor, dim, 0)?, dim: Some(0) })
            }
        }
    }

    /// Returns the tensor with the batch dimension in front, expanded if it has none.
    pub fn batched(self, size: usize) -> Result<Tensor> {
        match self.dim {
            None => repeat(&self.tensor, size),
            Some(_) => Ok(self.in_front()?.tensor),
        }
    }

    /// Moves the batch dimension to the front and inserts dimensions of size 1 after it, so that an
    /// example has `rank` dimensions. Without a batch, broadcasting does that.
    pub fn padded(self, rank: usize) -> Result<BatchedOperand> {
        let operand = self.in_front()?;
        let missing = rank.saturating_sub(operand.rank());
        if operand.dim.is_none() || missing == 0 {
            return Ok(operand);
        }
        let shape = operand.tensor.shape();
        let mut sizes = vec![1; rank + 1];
        sizes[0] = shape[0] as i64;
        for (size, own) in sizes[1 + missing..].iter_mut().zip(&shape[1..]) {
            *size = *own as i64;
        }
        Ok(BatchedOperand { tensor: aten::reshape(&operand.tensor, &sizes)?, dim: Some(0) })
    }
}

/// A batched tensor among the arguments: index of the argument, index in a list, batch.
type Found = (usize, Option<usize>, Arc<Batched>);

/// Calls `f` with every tensor of the arguments, including those in lists, and the index of its
/// argument.
fn each_tensor<'a>(
    args: &[ValueRef<'a>],
    mut visit: impl FnMut(usize, Option<usize>, ValueRef<'a>),
) {
    for (place, arg) in args.iter().enumerate() {
        match arg {
            ValueRef::Tensor(_) | ValueRef::Foreign(_) => visit(place, None, *arg),
            ValueRef::List(_) | ValueRef::Refs(_) | ValueRef::Tensors(_) => {
                arg.items().enumerate().for_each(|(i, item)| visit(place, Some(i), item));
            }
            _ => {}
        }
    }
}

impl<'c, 'a> Batch<'c, 'a> {
    /// Returns the batch of a call; `None` if no argument is batched.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if batches of one level differ in size, [`ErrorKind::Value`] if an
    /// example outlived its `vmap`, and if all examples would write to one argument.
    pub fn of(
        context: &'c CallContext<'c, Value>,
        args: &'c [ValueRef<'a>],
    ) -> Result<Option<Self>> {
        let mut found: SmallVec<[Found; 4]> = SmallVec::new();
        each_tensor(args, |place, item, value| {
            found.extend(batch_of_value(value).map(|batched| (place, item, batched)));
        });
        let Some(level) = found.iter().map(|(_, _, batched)| batched.level).max() else {
            return Ok(None);
        };
        found.retain(|(_, _, batched)| batched.level == level);
        let name = |place: usize, item: Option<usize>| {
            let name = &context.operator().schema().arguments[place].name;
            item.map_or_else(|| format!("'{name}'"), |i| format!("'{name}[{i}]'"))
        };
        let size = found[0].2.size();
        for (place, item, batched) in &found {
            batched.check_open().map_err(|error| {
                error.at(&format!("argument {}", name(*place, *item))).at(context.operator().name())
            })?;
            if batched.size() != size {
                return Err(Error::new(
                    ErrorKind::Shape,
                    format!(
                        "{}: argument {} is of a batch of {size} examples, argument {} of one of \
                         {}; a vmap has one size",
                        context.operator().name(),
                        name(found[0].0, found[0].1),
                        name(*place, *item),
                        batched.size()
                    ),
                ));
            }
        }
        for (place, argument) in context.operator().schema().arguments.iter().enumerate() {
            let written = argument.alias.as_ref().is_some_and(|alias| alias.write);
            let absent = matches!(args.get(place), None | Some(ValueRef::None));
            if written && !absent && !found.iter().any(|(at, _, _)| *at == place) {
                return Err(Error::new(
                    ErrorKind::Value,
                    format!(
                        "{}: writes to argument '{}', which is one tensor for all {size} examples \
                         of the batch, and argument {} differs from example to example: each would \
                         write over the others'; map over '{}' too, or use an operator that \
                         returns a new tensor",
                        context.operator().name(),
                        argument.name,
                        name(found[0].0, found[0].1),
                        argument.name
                    ),
                ));
            }
        }
        let brought = tags(args);
        let keyset = context.keyset();
        let modes = keyset - brought - DispatchKey::Vmap.into();
        Ok(Some(Batch { context, args, level, size, modes, taken: brought - keyset }))
    }

    /// Returns the operator.
    pub fn operator(&self) -> &Operator<Value> {
        self.context.operator()
    }

    /// Returns the key set of a call with other arguments: this call's modes and the arguments'
    /// keys, without those that layers above removed. It includes the tracer if that leaves
    /// recording to the calls below.
    fn keys(&self, args: &[ValueRef<'_>]) -> DispatchKeySet {
        let local = LocalKeys::current();
        let tracer = local.included() & DispatchKey::Tracer.into();
        (self.modes | (tags(args) - self.taken) | tracer) - local.excluded()
    }

    /// Calls the operator with unwrapped arguments.
    pub fn call(&self, args: &[ValueRef<'_>]) -> Result<Value> {
        self.context.redispatch(self.keys(args), args)
    }

    /// Calls another operator with unwrapped arguments; trailing ones with defaults may be left
    /// out.
    pub fn call_other(&self, operator: &Operator<Value>, args: &[ValueRef<'_>]) -> Result<Value> {
        operator.redispatch(self.keys(args), args)
    }

    /// Returns whether the operator writes to an argument.
    pub fn writes(&self) -> bool {
        let arguments = &self.operator().schema().arguments;
        arguments.iter().any(|argument| argument.alias.as_ref().is_some_and(|alias| alias.write))
    }

    /// Returns a tensor argument.
    pub fn operand(&self, place: usize) -> Result<BatchedOperand> {
        Ok(BatchedOperand::of(self.args[place].tensor()?, self.level))
    }

    /// Returns the tensors of a list; `None` for absent ones.
    pub fn operands(&self, place: usize) -> Result<Vec<Option<BatchedOperand>>> {
        let items = self.args[place].items();
        items
            .map(|item| match item {
                ValueRef::None => Ok(None),
                item => Ok(Some(BatchedOperand::of(item.tensor()?, self.level))),
            })
            .collect()
    }

    /// Returns the batch of an argument that is written in place: the write changes the physical
    /// tensor's node in the gradient graph, which the batch must share. `None` without a batch.
    pub fn target(&self, place: usize) -> Result<Option<Arc<Batched>>> {
        let batched = batch_of(self.args[place].tensor()?);
        Ok(batched.filter(|batched| batched.level == self.level))
    }

    /// Returns the result of an operator that wrote to the [`target`](Self::target) of that
    /// argument: the argument, which requires grad from now on if the target does.
    pub fn written(&self, place: usize, target: &Batched) -> Result<Option<Value>> {
        if target.physical.requires_grad() {
            self.args[place].tensor()?.set_requires_grad(true)?;
        }
        Ok(Some(Value::Argument(place)))
    }

    /// Refuses an operator that writes to an argument, if the call is recorded for gradients. Calls
    /// on views or copies of the physical tensors can't update their nodes in the gradient graph.
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`] if it writes.
    pub fn check_unwritten(&self) -> Result<()> {
        let (keyset, brought) = (self.context.keyset(), tags(self.args));
        // Under no_grad nothing is recorded, so nothing is lost.
        if !(keyset & brought).contains(DispatchKey::Autograd) {
            return Ok(());
        }
        let arguments = &self.operator().schema().arguments;
        let written = arguments.iter().zip(self.args).find(|(argument, arg)| {
            let writes = argument.alias.as_ref().is_some_and(|alias| alias.write);
            writes && !matches!(arg, ValueRef::None)
        });
        let Some((written, _)) = written else { return Ok(()) };
        let requires_grad =
            |arg: &ValueRef<'_>| Value::tag(*arg).keys().contains(DispatchKey::Autograd);
        let source = arguments.iter().zip(self.args).find(|(_, arg)| requires_grad(arg));
        let source = match source {
            Some((source, _)) if source.name == written.name => "it".to_owned(),
            Some((source, _)) => format!("argument '{}'", source.name),
            None => "an argument".to_owned(),
        };
        Err(Error::new(
            ErrorKind::Gradient,
            format!(
                "{}: writes to argument '{}', which is one example of a vmap batch of {}, and \
                 {source} requires grad; such a write isn't recorded, and gradients would be wrong. \
                 Compute a new tensor and assign it (y[...] = new), or write under no_grad()",
                self.operator().name(),
                written.name,
                self.size
            ),
        ))
    }

    /// Wraps a result, whose batch dimension is `dim`.
    pub fn wrap(&self, result: Value, dim: usize) -> Result<Value> {
        wrap(result.into_tensor()?, dim, self.level).map(Value::Tensor)
    }
}

/// Returns the arguments' keys.
fn tags(args: &[ValueRef<'_>]) -> DispatchKeySet {
    args.iter().fold(DispatchKeySet::EMPTY, |keys, arg| keys | Value::tag(*arg).keys())
}
