//! Objects of another language inside the dispatcher.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;

use keyfold_core::Result;
use keyfold_dispatch::Tag;

use super::Value;
use crate::dlpack::DLTensor;
use crate::tensor::Tensor;

/// An object of another language that travels through the dispatcher as it is.
///
/// A layer that doesn't look at it passes it on, so that a kernel in the object's own language gets
/// the very object that the caller gave. Only a native kernel asks for the tensor view.
pub trait ForeignObject: Any + Send + Sync {
    /// The keys and the device that it brings to a call; [`Tag::NONE`] if it isn't a tensor.
    fn tag(&self) -> Tag;

    /// Whether it can stand where a schema says Tensor.
    fn is_tensor(&self) -> bool;

    /// A view of its elements, made when first asked for.
    ///
    /// # Errors
    /// When it isn't a tensor, or one that can't be viewed (an unsupported dtype, say).
    fn tensor(&self) -> Result<&Tensor>;

    /// Its memory in DLPack's terms, where that is at hand without making a view: for a foreign
    /// function, which takes nothing else. Good while the object is borrowed and unchanged; `None`
    /// where a view has to be made, as it is for any object that says nothing else.
    fn lend(&self) -> Option<DLTensor> {
        None
    }

    /// Whether [`ForeignObject::lend`] gives something.
    fn lends(&self) -> bool {
        self.lend().is_some()
    }

    /// Whether only the object itself can stand for it, and no view of its elements: kernels are
    /// chosen by its class, which a user registered.
    fn is_of_registered_class(&self) -> bool {
        false
    }

    /// What it is, for error messages: `numpy.ndarray float64[2, 3]`.
    fn describe(&self) -> String;

    /// A value that keeps the object alive, for a layer that keeps an argument beyond the call.
    ///
    /// # Errors
    /// When the object can't be kept.
    fn to_owned_value(&self) -> Result<Value>;

    /// The object's address.
    fn original(&self) -> *mut c_void;
}

impl dyn ForeignObject {
    /// The implementation's own type, if it is a `T`.
    pub fn downcast_ref<T: ForeignObject>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}

impl fmt::Debug for dyn ForeignObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Foreign({})", self.describe())
    }
}
