//! Objects of another language in the dispatcher.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;

use keyfold_core::Result;
use keyfold_dispatch::Tag;

use super::Value;
use crate::dlpack::DLTensor;
use crate::tensor::Tensor;

/// An object of another language that the dispatcher passes unchanged.
///
/// Layers that don't inspect it pass it on, so that a kernel in the object's own language gets the
/// caller's object. Only native kernels request the tensor view.
pub trait ForeignObject: Any + Send + Sync {
    /// Returns the keys and the device of the object; [`Tag::NONE`] if it isn't a tensor.
    fn tag(&self) -> Tag;

    /// Returns whether it is accepted for a schema's Tensor.
    fn is_tensor(&self) -> bool;

    /// Returns a view of its elements, made at the first call.
    ///
    /// # Errors
    /// If it isn't a tensor, or can't be viewed (an unsupported dtype, for example).
    fn tensor(&self) -> Result<&Tensor>;

    /// Returns its memory as a `DLTensor`, if that needs no view, for a foreign function. Valid
    /// while the object is borrowed and unchanged; `None`, the default, if a view is necessary.
    fn lend(&self) -> Option<DLTensor> {
        None
    }

    /// Returns whether [`ForeignObject::lend`] returns a `DLTensor`.
    fn lends(&self) -> bool {
        self.lend().is_some()
    }

    /// Returns whether only the object itself can represent it, and not a view of its elements:
    /// kernels are selected by its class, which a user registered.
    fn is_of_registered_class(&self) -> bool {
        false
    }

    /// Describes the object for error messages: `numpy.ndarray float64[2, 3]`.
    fn describe(&self) -> String;

    /// Returns a value that keeps the object alive, for a layer that keeps an argument beyond the
    /// call.
    ///
    /// # Errors
    /// If the object can't be kept.
    fn to_owned_value(&self) -> Result<Value>;

    /// Returns the object's address.
    fn original(&self) -> *mut c_void;
}

impl dyn ForeignObject {
    /// Returns the implementation's own type, if it is a `T`.
    pub fn downcast_ref<T: ForeignObject>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}

impl fmt::Debug for dyn ForeignObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Foreign({})", self.describe())
    }
}
