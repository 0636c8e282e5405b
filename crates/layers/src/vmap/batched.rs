//! Batched tensors: an example that represents a whole batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{DispatchKey, DispatchKeySet};
use keyfold_tensor::{Attached, Tensor, ValueRef};

use super::frame::{self, VmapFrame};
use crate::aten;

/// The batch that a wrapper represents: the physical tensor and its batch dimension.
#[derive(Debug)]
pub struct Batched {
    /// The level of its `vmap`, from 1 for the outermost.
    pub level: usize,
    /// The batch dimension of `physical`.
    pub dim: usize,
    /// All examples; it may itself be an example of a batch of a lower level.
    pub physical: Tensor,
    frame: Option<Arc<VmapFrame>>,
    /// Whether the batch was returned from its `vmap` already.
    left: AtomicBool,
}

impl Batched {
    /// Returns the number of examples.
    pub fn size(&self) -> usize {
        self.physical.shape()[self.dim]
    }

    /// Returns all examples as a result of the `vmap`. A second result is a copy, since a write to
    /// one result changes its node in the gradient graph, and the other wouldn't see it.
    pub(crate) fn leave(&self) -> Result<Tensor> {
        match self.left.swap(true, Ordering::Relaxed) && self.physical.requires_grad() {
            true => aten::clone(&self.physical),
            false => Ok(self.physical.clone()),
        }
    }

    /// Returns an error if the `vmap` has returned.
    pub(crate) fn check_open(&self) -> Result<()> {
        match &self.frame {
            Some(frame) if frame.has_ended() => Err(Error::new(
                ErrorKind::Value,
                format!(
                    "the tensor is one example of a batch of {} whose vmap (level {}) has ended; \
                     return it from the function that vmap maps, and use what vmap returns",
                    self.size(),
                    self.level
                ),
            )),
            _ => Ok(()),
        }
    }
}

const OWN: DispatchKeySet =
    DispatchKeySet::EMPTY.insert(DispatchKey::Vmap).insert(DispatchKey::Autograd);

/// Returns a wrapper that represents each example of `physical` along its dimension `dim`. It has
/// an example's shape, the key Vmap, and the functionality keys of `physical`.
///
/// # Errors
/// [`ErrorKind::Index`] if `physical` has no such dimension.
pub fn wrap(physical: Tensor, dim: usize, level: usize) -> Result<Tensor> {
    let mut shape = physical.shape().clone();
    if dim >= shape.len() {
        return Err(Error::new(
            ErrorKind::Index,
            format!("there is no dimension {dim} to map over in a tensor of shape {shape:?}"),
        ));
    }
    shape.remove(dim);
    let (dtype, device, keys) = (physical.dtype(), physical.device(), physical.keys());
    let requires_grad = physical.requires_grad();
    // It outlives the call, so it isn't a view of the caller's object any more.
    let physical = physical.with_token(0);
    let frame = frame::at(level);
    let object = Arc::new(Batched { level, dim, physical, frame, left: AtomicBool::new(false) });
    let attached = Attached { object, place: level as u32 };
    let stand_in = Tensor::stand_in(shape, dtype, device, DispatchKey::Vmap, attached)?;
    for key in keys - DispatchKeySet::BACKENDS - OWN {
        stand_in.insert_key(key)?;
    }
    if requires_grad {
        stand_in.set_requires_grad(true)?;
    }
    Ok(stand_in)
}

/// Returns the batch that a tensor represents, if any.
#[inline]
pub fn batch_of(tensor: &Tensor) -> Option<Arc<Batched>> {
    if !tensor.keys().contains(DispatchKey::Vmap) {
        return None;
    }
    Some(tensor.attached_as::<Batched>()?.0)
}

/// As [`batch_of`], for an argument.
#[inline]
pub(crate) fn batch_of_value(value: ValueRef<'_>) -> Option<Arc<Batched>> {
    match value {
        ValueRef::Tensor(tensor) => batch_of(tensor),
        ValueRef::Foreign(object) if object.is_tensor() => {
            if !object.tag().keys().contains(DispatchKey::Vmap) {
                return None;
            }
            batch_of(object.tensor().ok()?)
        }
        _ => None,
    }
}

/// Returns the physical tensor of a wrapper, its level, and its batch dimension.
pub fn physical(tensor: &Tensor) -> Option<(Tensor, usize, usize)> {
    let batched = batch_of(tensor)?;
    Some((batched.physical.clone(), batched.level, batched.dim))
}
