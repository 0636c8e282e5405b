//! Vmap: maps a function of one example over a batch.
//!
//! [`enter`] replaces a tensor by a wrapper with the shape of one example and the key Vmap, which
//! holds the *physical* tensor with all examples. Operators reach the layer through the key. It
//! unwraps the highest level of the arguments and calls the operator below, either once per example
//! (the loop, for every operator) or once for all of them (a batching rule). [`exit`] returns the
//! batch. Physical tensors may be wrappers of lower levels, and may require grad: the layer is
//! above Autograd. Random numbers are in `random`.
//!
//! ```
//! use keyfold::ops::aten;
//! use keyfold_layers::vmap;
//! use keyfold_tensor::Tensor;
//! keyfold::init();
//!
//! let x = Tensor::from_vec(vec![1.0, 2.0, 3.0, 4.0], &[2, 2])?;
//! let norms = vmap::vmap(|x| Ok(vec![aten::sum_all(&aten::mul(&x[0], &x[0])?)?]), &[Some(0)], &[Some(0)], &[x])?;
//! assert_eq!(norms[0].to_vec::<f64>()?, [5.0, 25.0]);
//! # Ok::<(), keyfold_core::Error>(())
//! ```

mod batch;
mod batched;
mod collect;
mod custom;
mod enter;
mod fallback;
mod frame;
mod pointwise;
mod random;
mod rule;

pub use batched::{Batched, batch_of, physical, wrap};
pub use custom::{
    BatchDim, BatchInfo, Unwrapped, register_rule, rule_kernel, with_unwrapped, wrap_result,
};
pub use enter::{enter, exit, move_dim};
pub use frame::{Randomness, VmapFrame, current_level, innermost};
pub(crate) use random::traced;
pub use random::{composite, draw};

use std::sync::LazyLock;

use keyfold_core::{Error, ErrorKind, Result, layout};
use keyfold_dispatch::{
    DispatchKey, DispatchKeySet, Dispatcher, HostLock, Kernel, Operator, Override, Value as _,
    outside_layers,
};
use keyfold_tensor::{Tensor, Value, ValueRef};

pub use batch::{Batch, BatchedOperand};
pub use pointwise::{several, single, with_first};
pub use rule::{Rule, kernel};

use enter::repeat;
use frame::OpenFrame;

/// Wraps a tensor at that level: returns itself if it is batched there, else a wrapper of a
/// repeated view.
///
/// # Errors
/// [`ErrorKind::Value`] if no `vmap` of that level is running here.
pub fn batched_at(tensor: &Tensor, level: usize) -> Result<Tensor> {
    match batch_of(tensor) {
        Some(batched) if batched.level == level => Ok(tensor.clone()),
        // The batch of the inner level stays the outermost wrapper.
        Some(batched) if batched.level > level => {
            wrap(batched_at(&batched.physical, level)?, batched.dim, batched.level)
        }
        _ => {
            let frame = frame::at(level).ok_or_else(|| {
                Error::new(
                    ErrorKind::Value,
                    format!("no vmap of level {level} runs here; there are {}", current_level()),
                )
            })?;
            let all = outside_layers(DispatchKey::Vmap.into(), || repeat(tensor, frame.size()))?;
            wrap(all, 0, level)
        }
    }
}

/// Returns whether the tensor depends on the batch of that level.
pub fn is_batched_at(tensor: &Tensor, level: usize) -> bool {
    let mut batched = batch_of(tensor);
    while let Some(here) = batched {
        if here.level == level {
            return true;
        }
        batched = batch_of(&here.physical);
    }
    false
}

/// Returns the common batch size of inputs mapped over those axes.
///
/// # Errors
/// [`ErrorKind::Value`] if no input is mapped or the numbers of axes and inputs differ,
/// [`ErrorKind::Index`] for an axis out of range, [`ErrorKind::Shape`] if sizes differ.
pub fn batch_size(in_dims: &[Option<i64>], inputs: &[Tensor]) -> Result<usize> {
    if in_dims.len() != inputs.len() {
        return Err(Error::new(
            ErrorKind::Value,
            format!("vmap: {} axes for {} inputs; give one each", in_dims.len(), inputs.len()),
        ));
    }
    let mut first: Option<(usize, i64, usize)> = None;
    for (place, (input, dim)) in inputs.iter().zip(in_dims).enumerate() {
        let Some(dim) = *dim else { continue };
        let axis = layout::normalize_axis(dim, input.ndim()).map_err(|_| {
            Error::new(
                ErrorKind::Index,
                format!(
                    "vmap: input {place} has shape {:?}, which has no axis {dim} to map over",
                    input.shape()
                ),
            )
        })?;
        let size = input.shape()[axis];
        match first {
            None => first = Some((place, dim, size)),
            Some((other, axis, wanted)) if wanted != size => {
                return Err(Error::new(
                    ErrorKind::Shape,
                    format!(
                        "vmap: the sizes to map over don't agree: axis {axis} of input {other} has \
                         size {wanted}, axis {dim} of input {place} has size {size}"
                    ),
                ));
            }
            Some(_) => {}
        }
    }
    let nothing = || {
        Error::new(
            ErrorKind::Value,
            "vmap: no input is mapped over; give at least one an axis".to_owned(),
        )
    };
    first.map(|(_, _, size)| size).ok_or_else(nothing)
}

/// Maps `f` over one axis of each input. `f` is called with one example, and its results have the
/// batch at `out_dims` (one for all results, or one each; `None` for a result that doesn't depend
/// on the batch and is returned unchanged). Inputs with `None` are shared by all examples.
///
/// # Errors
/// The errors of [`batch_size`] and of `f`; [`ErrorKind::Value`] for `None` if a result depends on
/// the batch.
pub fn vmap(
    f: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
    in_dims: &[Option<i64>],
    out_dims: &[Option<i64>],
    inputs: &[Tensor],
) -> Result<Vec<Tensor>> {
    vmap_with(Randomness::Error, f, in_dims, out_dims, inputs)
}

/// As [`vmap`], for functions that draw random numbers.
///
/// # Errors
/// As [`vmap`].
pub fn vmap_with(
    randomness: Randomness,
    f: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
    in_dims: &[Option<i64>],
    out_dims: &[Option<i64>],
    inputs: &[Tensor],
) -> Result<Vec<Tensor>> {
    let size = batch_size(in_dims, inputs)?;
    let open = OpenFrame::new(size, randomness);
    let level = open.frame.level();
    let entered: Vec<Tensor> = inputs
        .iter()
        .zip(in_dims)
        .map(|(input, dim)| dim.map_or_else(|| Ok(input.clone()), |dim| enter(input, dim, level)))
        .collect::<Result<_>>()?;
    let results = f(&entered)?;
    if out_dims.len() != 1 && out_dims.len() != results.len() {
        return Err(Error::new(
            ErrorKind::Value,
            format!(
                "vmap: {} output axes for {} results; give one for all, or one each",
                out_dims.len(),
                results.len()
            ),
        ));
    }
    let dims = out_dims.iter().cycle();
    results
        .iter()
        .zip(dims)
        .enumerate()
        .map(|(place, (result, dim))| leave(result, level, *dim, size, &format!("result {place}")))
        .collect()
}

/// Returns a result of the mapped function as `vmap` returns it.
///
/// # Errors
/// As [`exit`]; [`ErrorKind::Value`] for `None` if the result depends on the batch.
pub fn leave(
    result: &Tensor,
    level: usize,
    dim: Option<i64>,
    size: usize,
    name: &str,
) -> Result<Tensor> {
    match dim {
        Some(dim) => {
            exit(result, level, dim, size).map_err(|error| error.at(&format!("vmap: {name}")))
        }
        None if is_batched_at(result, level) => Err(Error::new(
            ErrorKind::Value,
            format!(
                "vmap: {name} has no output axis (None), but differs from example to example; \
                 give it an axis"
            ),
        )),
        None => Ok(result.clone()),
    }
}

pub(crate) fn register(dispatcher: &Dispatcher<Value>) -> Result<()> {
    enter::register(dispatcher)?;
    let looped = loop_kernel();
    dispatcher.fallback(DispatchKey::Vmap, looped, Override::Error).map(drop)
}

/// Returns the kernel of the loop.
fn loop_kernel() -> Kernel<Value> {
    Kernel::boxed(|context, args| {
        let Some(batch) = Batch::of(context, args)? else { return context.call_below(args) };
        outside_layers(DispatchKey::Vmap.into(), || fallback::loop_over_examples(&batch))
    })
    .named("one call per example")
    .with_host_lock(HostLock::ReleaseFrom(crate::HOST_LOCK_FROM))
}

/// Calls an operator once per example even if it has a rule, to compare the rule with.
///
/// # Errors
/// The call's errors.
pub fn call_by_loop(operator: &Operator<Value>, args: &[ValueRef<'_>]) -> Result<Value> {
    static LOOP: LazyLock<Kernel<Value>> = LazyLock::new(loop_kernel);
    operator.check_types(args)?;
    let keys = args.iter().fold(DispatchKeySet::EMPTY, |keys, arg| keys | Value::tag(*arg).keys());
    let keyset = operator.keyset_of(keys);
    operator.run_kernel_with(&LOOP, keyset, DispatchKey::Vmap, |context, kernel| {
        let result = kernel.invoke(context, args)?;
        match result {
            Value::Argument(place) => Value::from_ref(args[place]),
            other => Ok(other),
        }
    })
}
