//! What a node keeps of its call: tensors with the version of their memory, or only their form.

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

/// One argument, or one result, of a recorded call. Small: most are numbers, or tensors of which
/// only the form counts.
pub enum Saved {
    /// A tensor that the derivative reads.
    Tensor(Box<SavedTensor>),
    /// A tensor whose elements it doesn't need, and whose form the node knows where its gradient
    /// goes.
    Linked,
    /// A tensor whose elements it doesn't need, and that needs no gradient.
    Form(Box<TensorMeta>),
    /// A tensor that can be computed again (see [`checkpoint`](mod@super::checkpoint)).
    Again(Box<(Arc<Segment>, usize, TensorMeta)>),
    /// An optional tensor that wasn't given.
    NoTensor,
    /// A list of tensors.
    List(Vec<Saved>),
    /// A number.
    Number(Scalar),
    /// Anything else.
    Value(Box<Value>),
}

/// A tensor, without its place in the graph: the node that keeps it knows that.
pub struct SavedTensor {
    tensor: Tensor,
    version: u32,
    /// Where it is in the graph, if the node doesn't know that by itself.
    edge: Option<Edge>,
    /// Its tangents, where it has any.
    tangents: OnceLock<Arc<SavedTangents>>,
}

impl SavedTensor {
    /// Keeps a tensor as it is now.
    pub(crate) fn new(tensor: &Tensor) -> Self {
        // Not a clone: that would share what is attached, and so keep the graph alive in a circle
        // where a node keeps its own result.
        let tensor = tensor.detach();
        tracer::note_kept(&tensor);
        let (version, tangents) = (tensor.version(), OnceLock::new());
        SavedTensor { version, tensor, edge: None, tangents }
    }

    /// Keeps a tensor that is neither an argument nor a result.
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

    /// The tensor that [`keep`](Self::keep) was given.
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`] when its memory was written since.
    pub fn restore(&self, operator: &str) -> Result<Tensor> {
        self.unpack(operator, "a saved tensor", self.edge.as_ref())
    }

    /// The tensor, attached to the graph where it was.
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
    /// Keeps a tensor: its elements if the derivative reads them, else its form.
    pub(crate) fn tensor(tensor: &Tensor, read: bool, linked: bool) -> Saved {
        if !read {
            return if linked {
                Saved::Linked
            } else {
                Saved::Form(Box::new(TensorMeta::of(tensor)))
            };
        }
        match checkpoint::defer(tensor) {
            Some((segment, index)) => {
                Saved::Again(Box::new((segment, index, TensorMeta::of(tensor))))
            }
            None => Saved::Tensor(Box::new(SavedTensor::new(tensor))),
        }
    }

    /// Keeps an argument; `edges` begin with the places of its gradients, which are taken off.
    ///
    /// # Errors
    /// When a foreign object can't be viewed or kept.
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
                // The caller's own memory: a view that keeps it alive.
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

    /// Adds the tangents of a level that the argument had, if its elements are kept.
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

    /// Adds the tangent of a level, if the elements are kept.
    pub(super) fn add_tangent(&self, tangent: &Tensor, level: &Arc<Level>) {
        if let Saved::Tensor(saved) = self {
            saved.add_tangent(tangent, level);
        }
    }

    /// How many places for gradients the argument has.
    pub(crate) fn slots(&self) -> usize {
        match self {
            Saved::Value(_) | Saved::Number(_) => 0,
            Saved::List(items) => items.len(),
            _ => 1,
        }
    }

    /// The form of the tensor, where there is one.
    pub(crate) fn form(&self, edge: Option<&Edge>) -> Option<TensorMeta> {
        match self {
            Saved::Tensor(saved) => Some(TensorMeta::of(&saved.tensor)),
            Saved::Form(meta) => Some((**meta).clone()),
            Saved::Again(again) => Some(again.2.clone()),
            Saved::Linked => edge.map(|edge| edge.node.outputs()[edge.place as usize].clone()),
            _ => None,
        }
    }

    /// The tensor, attached to the graph where it was.
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`] when it was changed since, or wasn't kept.
    pub(crate) fn unpack(&self, operator: &str, what: &str, edge: Option<&Edge>) -> Result<Tensor> {
        match self {
            Saved::Tensor(saved) => saved.unpack(operator, what, edge),
            Saved::Again(again) => {
                let (segment, index, _) = &**again;
                let tensor = segment.tensor(*index).map_err(|error| error.at(operator))?;
                if let Some(edge) = edge {
                    attach(&tensor, edge)?;
                }
                Ok(tensor)
            }
            _ => Err(Error::new(
                ErrorKind::Gradient,
                format!("{operator}: the derivative reads {what}, which it doesn't say it keeps"),
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
