//! Dual numbers: tensors with tangents.
//!
//! A tensor's attachment holds its tangents, one per level, and its place in the graph of derivatives.
//! The tangent of a level may itself have tangents of lower levels.

use std::sync::{Arc, Mutex, PoisonError};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_tensor::{Attached, Tensor};
use smallvec::SmallVec;

use super::level::{Level, were_opened};
use super::node::{Edge, TensorMeta, edge_of};
use crate::vmap;

/// A tangent, and the level that it belongs to.
pub(super) type Tagged = (Arc<Level>, Tensor);

/// The attachment of a tensor that has tangents.
pub(super) struct Dual {
    /// The tensor's place in the graph of derivatives.
    pub(super) edge: Option<Edge>,
    /// By level, the innermost last.
    tangents: SmallVec<[Tagged; 1]>,
    /// The version of the memory that the tangents belong to.
    version: u32,
}

impl Dual {
    /// The innermost level that has a tangent here.
    pub(super) fn innermost(&self) -> Option<&Arc<Level>> {
        self.tangents.last().map(|(level, _)| level)
    }

    /// The tangents of levels that haven't ended.
    pub(super) fn open_tangents(&self) -> Vec<Tagged> {
        self.tangents.iter().filter(|(level, _)| !level.has_ended()).cloned().collect()
    }

    /// An error where the tangents don't say how the elements change.
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

/// Returns the attachment of a tensor with tangents; `None` for all others.
#[inline]
pub(super) fn dual_of(tensor: &Tensor) -> Option<Arc<Dual>> {
    if !were_opened() || !tensor.requires_grad() {
        return None;
    }
    Some(tensor.attached_as::<Dual>()?.0)
}

/// Whether the tensor has a tangent of a `jvp` that runs, or the batch that it is an example of.
pub fn has_tangent(tensor: &Tensor) -> bool {
    if let Some((physical, ..)) = vmap::physical(tensor) {
        return has_tangent(&physical);
    }
    dual_of(tensor).is_some_and(|dual| dual.tangents.iter().any(|(level, _)| !level.has_ended()))
}

/// Attaches a place in the graph and tangents, or what of both there is.
fn attach_all(tensor: &Tensor, edge: Option<Edge>, tangents: SmallVec<[Tagged; 1]>) -> Result<()> {
    let attached = match (edge, tangents.is_empty()) {
        (None, true) => {
            tensor.attach(None);
            return tensor.set_requires_grad(false);
        }
        (Some(Edge { node, place }), true) => Attached { object: node as _, place },
        (edge, false) => {
            let dual = Dual { edge, tangents, version: tensor.version() };
            Attached { object: Arc::new(dual), place: 0 }
        }
    };
    tensor.attach(Some(attached));
    tensor.set_requires_grad(true)
}

/// The place in the graph that is attached, and the tangents.
///
/// # Errors
/// As [`edge_of`].
fn parts(tensor: &Tensor) -> Result<(Option<Edge>, SmallVec<[Tagged; 1]>)> {
    match dual_of(tensor) {
        Some(dual) => Ok((dual.edge.clone(), dual.tangents.clone())),
        None => Ok((edge_of(tensor)?, SmallVec::new())),
    }
}

/// The same elements with other tangents: those of levels below `level`.
pub(super) fn without(tensor: &Tensor, level: &Level) -> Result<Tensor> {
    let (edge, mut tangents) = parts(tensor)?;
    tangents.retain(|(other, _)| other.number() < level.number());
    let lower = tensor.clone().with_token(0);
    attach_all(&lower, edge, tangents)?;
    Ok(lower)
}

/// The tangent of a tensor at a level.
pub(super) fn tangent_at(tensor: &Tensor, level: &Level) -> Option<Tensor> {
    let dual = dual_of(tensor)?;
    let mut found = dual.tangents.iter().filter(|(other, _)| other.number() == level.number());
    found.next().map(|(_, tangent)| tangent.clone())
}

/// Gives a tensor a tangent at a level that is inside all that it has tangents of.
pub(super) fn add_tangent(tensor: &Tensor, level: &Arc<Level>, tangent: Tensor) -> Result<()> {
    let (edge, mut tangents) = parts(tensor)?;
    tangents.push((Arc::clone(level), tangent));
    attach_all(tensor, edge, tangents)
}

/// Gives a tensor the attachment of another over the same memory, for a tensor written in place.
pub(super) fn take_over(tensor: &Tensor, from: &Tensor) -> Result<()> {
    let (edge, tangents) = parts(from)?;
    attach_all(tensor, edge, tangents)
}

/// Gives a tensor with tangents another place in the graph.
pub(super) fn set_edge(tensor: &Tensor, edge: Option<Edge>) -> Result<()> {
    let (_, tangents) = parts(tensor)?;
    attach_all(tensor, edge, tangents)
}

/// The same elements and tangents, without a place in the graph.
pub fn without_graph(tensor: &Tensor) -> Result<Tensor> {
    let Some(dual) = dual_of(tensor) else { return Ok(tensor.detach()) };
    let cut = tensor.detach();
    let cut_tangent = |(level, tangent): Tagged| Ok((level, without_graph(&tangent)?));
    let tangents = dual.open_tangents().into_iter().map(cut_tangent).collect::<Result<_>>()?;
    attach_all(&cut, None, tangents)?;
    Ok(cut)
}

/// The tangents of a tensor that a node keeps.
#[derive(Default)]
pub(super) struct SavedTangents(Mutex<Vec<Tagged>>);

impl SavedTangents {
    /// Adds the tangent of a level that is inside those added before.
    pub(super) fn add(self: &Arc<Self>, level: &Arc<Level>, tangent: Tensor) {
        level.note_kept(self);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((Arc::clone(level), tangent));
    }

    /// Drops the tangents of levels that have ended.
    pub(super) fn forget_ended(&self) {
        let old: Vec<Tagged> = {
            let mut tangents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            tangents.extract_if(.., |(level, _)| level.has_ended()).collect()
        };
        // Dropped without the lock: it may hold the last share of a long graph.
        drop(old);
    }

    /// Gives a tensor these tangents, as far as their levels haven't ended.
    pub(super) fn restore(&self, tensor: &Tensor) -> Result<()> {
        let tangents = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (level, tangent) in tangents.into_iter().filter(|(level, _)| !level.has_ended()) {
            add_tangent(tensor, &level, tangent)?;
        }
        Ok(())
    }
}
