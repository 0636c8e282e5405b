//! A tensor that is borrowed from the caller, or was made for the call.

use std::ops::Deref;

use keyfold_tensor::Tensor;

/// As `Cow<Tensor>`, in two words: a tensor is large, and lists of these are moved about.
#[derive(Clone)]
pub(crate) enum TensorCow<'a> {
    Borrowed(&'a Tensor),
    Owned(Box<Tensor>),
}

impl From<Tensor> for TensorCow<'_> {
    fn from(tensor: Tensor) -> Self {
        TensorCow::Owned(Box::new(tensor))
    }
}

impl Deref for TensorCow<'_> {
    type Target = Tensor;

    #[inline]
    fn deref(&self) -> &Tensor {
        match self {
            TensorCow::Borrowed(tensor) => tensor,
            TensorCow::Owned(tensor) => tensor,
        }
    }
}
