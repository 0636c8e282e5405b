//! Saved tensors: the tensors of a recorded call with the write count of their memory, or only their shape,
//! dtype and device.

use std::sync::{Arc, OnceLock};

use keyfold_core::{Error, ErrorKind, Result, Scalar};
use keyfold_dispatch::Value as _;
use keyfold_dispatch::schema::Type;
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::checkpoint::{self, Segment};
use super::dual::{SavedTangents, dual_of, tangent_at};
use super::forward::tensor_of;
use super::level::Level;
use super::node::{Edge, TensorMeta, attach, edge_of};
use crate::tracer;

/// A saved argument or result of a recorded call. The type is small, since most arguments are numbers or
/// tensors of which only shape, dtype and device are saved.
pub enum Saved {
    /// A tensor that the derivative reads.
    Tensor(Box<SavedTensor>),
    /// A tensor whose elements the derivative doesn't read. Shape, dtype and device are in the node at its
    /// edge.
    MetaOfEdge,
    /// A tensor whose elements the derivative doesn't read, and that requires no gradient.
    Meta(Box<TensorMeta>),
    /// A tensor of a checkpoint, which is recomputed (see the module `checkpoint`): its segment and
    /// its number there.
    Recompute(Box<(Arc<Segment>, usize, TensorMeta)>),
    /// An absent optional tensor.
    NoTensor,
    /// A list of tensors.
    List(Vec<Saved>),
    /// A number.
    Number(Scalar),
    /// An argument of another type.
    Value(Box<Value>),
}

/// A saved tensor. Its edge is in the node that saves it.
pub struct SavedTensor {
    tensor: Tensor,
    version: u32,
    /// The tensor's edge, if it is neither an argument nor a result of the node's call.
    edge: Option<Edge>,
    /// The tensor's tangents, if it has any.
    tangents: OnceLock<Arc<SavedTangents>>,
}

impl SavedTensor {
    /// Saves a tensor with the present write count of its memory.
    pub(crate) fn new(tensor: &Tensor) -> Self {
        // A clone would share the attachment: a node that saves its own result would own itself, and the
        // cycle would never be freed.
        let tensor = tensor.detach();
        tracer::note_saved(&tensor);
        let (version, tangents) = (tensor.version(), OnceLock::new());
        SavedTensor { version, tensor, edge: None, tangents }
    }

    /// Saves a tensor that is neither an argument nor a result, with its edge and tangents.
    ///
    /// # Errors
    /// As [`edge_of`].
    pub fn keep(tensor: &Tensor) -> Result<Self> {
        let saved = SavedTensor { edge: edge_of(tensor)?, ..SavedTensor::new(tensor) };
        for (level, tangent) in dual_of(tensor).iter().flat_map(|dual| dual.open_tangents()) {
            saved.add_tangent(&tangent, &level);
        }
        Ok(saved)
    }

    fn add_tangent(&self, tangent: &Tensor, level: &Arc<Level>) {
        self.tangents.get_or_init(Arc::default).add(level, tangent.clone());
    }

    /// Returns the tensor that was saved by [`keep`](Self::keep).
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`] when its memory was written since.
    pub fn restore(&self, operator: &str) -> Result<Tensor> {
        self.unpack(operator, "a saved tensor", self.edge.as_ref())
    }

    /// Returns the tensor, attached to its edge.
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`] when its memory was written since.
    pub(crate) fn unpack(&self, operator: &str, what: &str, edge: Option<&Edge>) -> Result<Tensor> {
        let now = self.tensor.version();
        if now != self.version {
            return Err(Error::new(
                ErrorKind::Gradient,
                format!(
                    "{operator}: {what}, a tensor of shape {:?} that its gradient needs, was changed \
                     in place since (its memory is at version {now}; {} was saved): change a copy, \
                     or change it before it is used",
                    self.tensor.shape(),
                    self.version
                ),
            ));
        }
        let tensor = self.tensor.clone();
        if let Some(edge) = edge {
            attach(&tensor, edge)?;
        }
        if let Some(tangents) = self.tangents.get() {
            tangents.restore(&tensor)?;
        }
        Ok(tensor)
    }
}

impl Saved {
    /// Saves a tensor: its elements if the derivative reads them (`read`), else only shape, dtype and device,
    /// which the node at its edge knows if it has one (`linked`).
    pub(crate) fn tensor(tensor: &Tensor, read: bool, linked: bool) -> Saved {
        if !read {
            return if linked {
                Saved::MetaOfEdge
            } else {
                Saved::Meta(Box::new(TensorMeta::of(tensor)))
            };
        }
        match checkpoint::defer(tensor) {
            Some((segment, index)) => {
                Saved::Recompute(Box::new((segment, index, TensorMeta::of(tensor))))
            }
            None => Saved::Tensor(Box::new(SavedTensor::new(tensor))),
        }
    }

    /// Saves an argument and removes the edges of its slots from the front of `edges`.
    ///
    /// # Errors
    /// When a foreign object can't be viewed as a tensor or saved.
    pub(crate) fn argument(
        value: ValueRef<'_>,
        ty: &Type,
        read: bool,
        edges: &mut &[Option<Edge>],
    ) -> Result<Saved> {
        let mut linked = || {
            let edge = edges.split_off_first();
            edge.is_some_and(Option::is_some)
        };
        Ok(match value {
            ValueRef::Tensor(tensor) => Saved::tensor(tensor, read, linked()),
            ValueRef::Foreign(object) if object.is_tensor() => {
                if !read && object.tensor().is_err() {
                    linked();
                    return Ok(Saved::NoTensor);
                }
                // A view keeps the foreign memory alive.
                let tensor = Value::from_ref(value)?.into_tensor()?;
                Saved::tensor(&tensor, read, linked())
            }
            ValueRef::None if is_tensor(ty) => {
                linked();
                Saved::NoTensor
            }
            list if is_tensor_list(ty) => {
                let items = list.items();
                let items = items.map(|item| Saved::argument(item, element(ty), read, edges));
                Saved::List(items.collect::<Result<_>>()?)
            }
            other => match other.scalar() {
                Some(number) => Saved::Number(number),
                None => Saved::Value(Box::new(Value::from_ref(other)?)),
            },
        })
    }

    /// Adds the tangents that the argument has at a level, if its elements are saved.
    pub(super) fn add_tangents(&self, argument: ValueRef<'_>, level: &Arc<Level>) {
        match (self, argument) {
            (Saved::List(items), list) => {
                items.iter().zip(list.items()).for_each(|(saved, item)| {
                    saved.add_tangents(item, level);
                });
            }
            (_, one) => {
                if let Some(tangent) = tensor_of(one).and_then(|tensor| tangent_at(tensor, level)) {
                    self.add_tangent(&tangent, level);
                }
            }
        }
    }

    /// Adds the tangent of a level, if the elements are saved.
    pub(super) fn add_tangent(&self, tangent: &Tensor, level: &Arc<Level>) {
        if let Saved::Tensor(saved) = self {
            saved.add_tangent(tangent, level);
        }
    }

    /// Returns the number of slots for gradients.
    pub(crate) fn slots(&self) -> usize {
        match self {
            Saved::Value(_) | Saved::Number(_) => 0,
            Saved::List(items) => items.len(),
            _ => 1,
        }
    }

    /// Returns the shape, dtype and device of the tensor, if it is one.
    pub(crate) fn meta(&self, edge: Option<&Edge>) -> Option<TensorMeta> {
        match self {
            Saved::Tensor(saved) => Some(TensorMeta::of(&saved.tensor)),
            Saved::Meta(meta) => Some((**meta).clone()),
            Saved::Recompute(again) => Some(again.2.clone()),
            Saved::MetaOfEdge => edge.map(|edge| edge.node.outputs()[edge.output as usize].clone()),
            _ => None,
        }
    }

    /// Returns the tensor, attached to its edge.
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`] when it was written since, or wasn't saved.
    pub(crate) fn unpack(&self, operator: &str, what: &str, edge: Option<&Edge>) -> Result<Tensor> {
        match self {
            Saved::Tensor(saved) => saved.unpack(operator, what, edge),
            Saved::Recompute(again) => {
                let (segment, index, _) = &**again;
                let tensor = segment.tensor(*index).map_err(|error| error.at(operator))?;
                if let Some(edge) = edge {
                    attach(&tensor, edge)?;
                }
                Ok(tensor)
            }
            _ => Err(Error::new(
                ErrorKind::Gradient,
                format!(
                    "{operator}: the derivative reads {what}, which isn't among the tensors that it saves"
                ),
            )),
        }
    }
}

fn is_tensor(ty: &Type) -> bool {
    *ty.without_optional() == Type::Tensor
}

fn is_tensor_list(ty: &Type) -> bool {
    matches!(ty.without_optional(), Type::List(inner, _) if is_tensor(inner))
}

fn element(ty: &Type) -> &Type {
    match ty.without_optional() {
        Type::List(inner, _) => inner,
        other => other,
    }
}
