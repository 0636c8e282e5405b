//! Dual tensors: tensors with tangents.
//!
//! A tensor's attachment holds its tangents, one per level, and its edge in the gradient graph. The
//! tangent of a level may itself have tangents of outer levels.

use std::sync::{Arc, Mutex, PoisonError};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_tensor::{Attached, Tensor};
use smallvec::SmallVec;

use super::level::{Level, any_level_opened};
use super::node::{Edge, TensorMeta, edge_of};
use crate::vmap;

/// A tangent with its level.
pub(super) type Tagged = (Arc<Level>, Tensor);

/// The attachment of a tensor that has tangents.
pub(super) struct Dual {
    /// The tensor's edge in the gradient graph.
    pub(super) edge: Option<Edge>,
    /// The tangents, ordered by level; the innermost level is the last.
    tangents: SmallVec<[Tagged; 1]>,
    /// The write count of the memory when the tangents were computed.
    version: u32,
}

impl Dual {
    /// Returns the innermost level of the tangents.
    pub(super) fn innermost(&self) -> Option<&Arc<Level>> {
        self.tangents.last().map(|(level, _)| level)
    }

    /// Returns the tangents of open levels.
    pub(super) fn open_tangents(&self) -> Vec<Tagged> {
        self.tangents.iter().filter(|(level, _)| !level.has_ended()).cloned().collect()
    }

    /// Checks that the levels are open and that the memory wasn't written since the tangents were computed.
    pub(super) fn check(&self, tensor: &Tensor) -> Result<()> {
        if self.tangents.iter().any(|(level, _)| level.has_ended()) {
            return Err(Error::new(
                ErrorKind::Gradient,
                format!(
                    "a tensor of {} has a tangent of a jvp that has ended; return it from the \
                     function that jvp differentiates, or take detach() of it",
                    TensorMeta::of(tensor)
                ),
            ));
        }
        if self.version != tensor.version() {
            return Err(Error::new(
                ErrorKind::Gradient,
                format!(
                    "a tensor of {} was changed in place after its tangent was computed (its memory \
                     is at version {}; the tangent belongs to {}), by a view of it or under no_grad: \
                     change a copy (clone()), or take views after the change",
                    TensorMeta::of(tensor),
                    tensor.version(),
                    self.version
                ),
            ));
        }
        Ok(())
    }
}

/// Returns the attachment of a tensor with tangents; `None` for other tensors.
#[inline]
pub(super) fn dual_of(tensor: &Tensor) -> Option<Arc<Dual>> {
    if !any_level_opened() || !tensor.requires_grad() {
        return None;
    }
    Some(tensor.attached_as::<Dual>()?.0)
}

/// Returns whether the tensor, or the batch that it is an example of, has a tangent of an open level.
pub fn has_tangent(tensor: &Tensor) -> bool {
    if let Some((physical, ..)) = vmap::physical(tensor) {
        return has_tangent(&physical);
    }
    dual_of(tensor).is_some_and(|dual| dual.tangents.iter().any(|(level, _)| !level.has_ended()))
}

/// Attaches an edge, tangents, both or neither.
fn attach_all(tensor: &Tensor, edge: Option<Edge>, tangents: SmallVec<[Tagged; 1]>) -> Result<()> {
    let attached = match (edge, tangents.is_empty()) {
        (None, true) => {
            tensor.attach(None);
            return tensor.set_requires_grad(false);
        }
        (Some(Edge { node, output }), true) => Attached { object: node as _, place: output },
        (edge, false) => {
            let dual = Dual { edge, tangents, version: tensor.version() };
            Attached { object: Arc::new(dual), place: 0 }
        }
    };
    tensor.attach(Some(attached));
    tensor.set_requires_grad(true)
}

/// Returns the attached edge and tangents.
///
/// # Errors
/// As [`edge_of`].
fn parts(tensor: &Tensor) -> Result<(Option<Edge>, SmallVec<[Tagged; 1]>)> {
    match dual_of(tensor) {
        Some(dual) => Ok((dual.edge.clone(), dual.tangents.clone())),
        None => Ok((edge_of(tensor)?, SmallVec::new())),
    }
}

/// Returns the tensor with only the tangents of levels outside `level`.
pub(super) fn without_level(tensor: &Tensor, level: &Level) -> Result<Tensor> {
    let (edge, mut tangents) = parts(tensor)?;
    tangents.retain(|(other, _)| other.number() < level.number());
    let lower = tensor.clone().with_token(0);
    attach_all(&lower, edge, tangents)?;
    Ok(lower)
}

/// Returns the tangent of a tensor at a level.
pub(super) fn tangent_at(tensor: &Tensor, level: &Level) -> Option<Tensor> {
    let dual = dual_of(tensor)?;
    let mut found = dual.tangents.iter().filter(|(other, _)| other.number() == level.number());
    found.next().map(|(_, tangent)| tangent.clone())
}

/// Adds the tangent of a level that is inside the levels of the tensor's tangents.
pub(super) fn add_tangent(tensor: &Tensor, level: &Arc<Level>, tangent: Tensor) -> Result<()> {
    let (edge, mut tangents) = parts(tensor)?;
    tangents.push((Arc::clone(level), tangent));
    attach_all(tensor, edge, tangents)
}

/// Copies the edge and tangents of another tensor of the same memory, after a write in place.
pub(super) fn copy_attachment(tensor: &Tensor, from: &Tensor) -> Result<()> {
    let (edge, tangents) = parts(from)?;
    attach_all(tensor, edge, tangents)
}

/// Replaces the edge of a tensor with tangents.
pub(super) fn set_edge(tensor: &Tensor, edge: Option<Edge>) -> Result<()> {
    let (_, tangents) = parts(tensor)?;
    attach_all(tensor, edge, tangents)
}

/// Returns the same elements and tangents without an edge, and the tangents without edges, too.
pub fn without_graph(tensor: &Tensor) -> Result<Tensor> {
    let Some(dual) = dual_of(tensor) else { return Ok(tensor.detach()) };
    let detached = tensor.detach();
    let detach_tangent = |(level, tangent): Tagged| Ok((level, without_graph(&tangent)?));
    let tangents = dual.open_tangents().into_iter().map(detach_tangent).collect::<Result<_>>()?;
    attach_all(&detached, None, tangents)?;
    Ok(detached)
}

/// The tangents of a saved tensor.
#[derive(Default)]
pub(super) struct SavedTangents(Mutex<Vec<Tagged>>);

impl SavedTangents {
    /// Adds the tangent of a level that is inside the levels added before.
    pub(super) fn add(self: &Arc<Self>, level: &Arc<Level>, tangent: Tensor) {
        level.register_saved(self);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((Arc::clone(level), tangent));
    }

    /// Drops the tangents of levels that have ended.
    pub(super) fn forget_ended(&self) {
        let old: Vec<Tagged> = {
            let mut tangents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            tangents.extract_if(.., |(level, _)| level.has_ended()).collect()
        };
        // Dropped after the lock is released: a tangent may own the last reference to a long graph.
        drop(old);
    }

    /// Adds the tangents of open levels to a tensor.
    pub(super) fn restore(&self, tensor: &Tensor) -> Result<()> {
        let tangents = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (level, tangent) in tangents.into_iter().filter(|(level, _)| !level.has_ended()) {
            add_tangent(tensor, &level, tangent)?;
        }
        Ok(())
    }
}
