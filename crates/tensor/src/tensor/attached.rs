//! A layer's object attached to a tensor: its node in a graph of derivatives, or its batch.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use keyfold_core::{DType, Device, Result, Shape, Strides, layout};
use keyfold_dispatch::{DispatchKey, DispatchKeySet};

use super::Tensor;
use crate::buffer::{BufferHandle, NullBuffer};

/// A layer's object and a number beside it, such as the index among a node's results.
///
/// A tensor has one; the layer whose key the tensor has owns it.
#[derive(Clone)]
pub struct Attached {
    /// The layer's object.
    pub object: Arc<dyn Any + Send + Sync>,
    /// The number.
    pub place: u32,
}

impl Attached {
    /// Returns the layer's object, if it is a `T`.
    pub fn downcast<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(&self.object).downcast().ok()
    }

    /// Borrows the layer's object, if it is a `T`.
    pub fn downcast_ref<T: Any>(&self) -> Option<&T> {
        (&*self.object as &dyn Any).downcast_ref()
    }
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attached(place={})", self.place)
    }
}

/// Settable through a shared reference: an in-place write changes the history of a tensor that a
/// caller holds.
pub(super) struct AttachmentSlot(Mutex<Option<Attached>>);

impl AttachmentSlot {
    #[inline]
    pub(super) const fn empty() -> AttachmentSlot {
        AttachmentSlot(Mutex::new(None))
    }

    /// Returns the slot of a clone. Most clones don't read it, since only a tensor with a
    /// functionality key has a valid attachment.
    #[inline]
    pub(super) fn share(&self, keys: DispatchKeySet) -> AttachmentSlot {
        // Nothing is attached for memory that is pending.
        const PLAIN: DispatchKeySet = DispatchKeySet::BACKENDS.insert(DispatchKey::Deferred);
        if (keys - PLAIN).is_empty() {
            return AttachmentSlot::empty();
        }
        AttachmentSlot(Mutex::new(self.get()))
    }

    #[inline]
    fn get(&self) -> Option<Attached> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Tensor {
    /// Returns the layer's attachment.
    #[inline]
    pub fn attached(&self) -> Option<Attached> {
        self.attached.get()
    }

    /// Returns the object that a layer attached, if it is a `T`, and the number beside it.
    #[inline]
    pub fn attached_as<T: Any + Send + Sync>(&self) -> Option<(Arc<T>, u32)> {
        let guard = self.attached.0.lock().unwrap_or_else(PoisonError::into_inner);
        let attached = guard.as_ref()?;
        Some((attached.downcast()?, attached.place))
    }

    /// Returns the layer's attachment; attaches the result of `make` if there is none.
    pub fn attached_or(&self, make: impl FnOnce() -> Attached) -> Attached {
        let mut slot = self.attached.0.lock().unwrap_or_else(PoisonError::into_inner);
        slot.get_or_insert_with(make).clone()
    }

    /// Returns whether nothing else refers to the memory, or will to memory that is computed later: of that,
    /// pipelines have weak references.
    pub fn owns_memory(&mut self) -> bool {
        self.buffer.is_sole_owner() || self.is_pending() && self.buffer.shares() == 1
    }

    /// Replaces the attachment. It is valid, and shared by clones, while the tensor has a
    /// functionality key; views don't have it.
    pub fn attach(&self, attached: Option<Attached>) {
        let old = {
            let mut slot = self.attached.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *slot, attached)
        };
        // Dropped without the lock, since it may be the last reference to a large graph.
        drop(old);
    }

    /// Returns a tensor without memory that represents another: it has a shape, strides, a dtype, a
    /// device, one functionality key, and that layer's object. Kernels that read it return an
    /// error; the layer of the key prevents such calls.
    ///
    /// # Errors
    /// As [`Tensor::insert_key`], and [`keyfold_core::ErrorKind::Shape`] if the size overflows.
    pub fn stand_in(
        shape: Shape,
        dtype: DType,
        device: Device,
        key: DispatchKey,
        attached: Attached,
    ) -> Result<Tensor> {
        let numel = layout::numel(&shape, dtype.size())?;
        let strides: Strides = layout::contiguous_strides(&shape);
        let memory = Arc::new(NullBuffer::on(device, numel * dtype.size()));
        let buffer = BufferHandle::new(memory, dtype)?;
        let tensor = Tensor::from_parts(buffer, shape, strides, 0)?;
        tensor.insert_key(key)?;
        tensor.attach(Some(attached));
        Ok(tensor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_what_is_attached_and_views_start_over() {
        let t = Tensor::from_slice(&[1.0_f64, 2.0], &[2]).unwrap();
        t.set_requires_grad(true).unwrap();
        t.attach(Some(Attached { object: Arc::new(7_i32), place: 3 }));
        let clone = t.clone();
        assert_eq!(clone.attached_as::<i32>().map(|(n, place)| (*n, place)), Some((7, 3)));
        assert!(clone.attached_as::<u8>().is_none());
        let view = t.detach();
        assert!(view.attached().is_none() && view.is_view() && !clone.is_view());
        t.attach(None);
        assert!(t.attached().is_none() && clone.attached().is_some());
    }

    #[test]
    fn a_stand_in_has_a_shape_and_nothing_to_read() {
        let shape = Shape::new(&[2, 3]).unwrap();
        let attached = Attached { object: Arc::new(()), place: 0 };
        let t = Tensor::stand_in(shape, DType::F64, Device::CPU, DispatchKey::Vmap, attached);
        let t = t.unwrap();
        assert_eq!((t.ndim(), t.device(), t.numel()), (2, Device::CPU, 6));
        assert!(t.keys().contains(DispatchKey::Vmap));
        assert!(t.to_vec::<f64>().is_err() && t.item().is_err());
        // Copying a tensor without memory fails, or the copy can't be read.
        assert!(t.copy().is_err() || t.copy().unwrap().to_vec::<f64>().is_err());
    }

    #[test]
    fn every_view_of_memory_sees_its_writes() {
        let t = Tensor::from_slice(&[1.0_f64, 2.0], &[2]).unwrap();
        let view = t.slice(0, Some(1), None, 1).unwrap();
        let before = view.version();
        // SAFETY: nothing else accesses the memory.
        unsafe { t.copy_from(&Tensor::from_slice(&[5.0_f64], &[1]).unwrap()) }.unwrap();
        assert_ne!(view.version(), before);
        assert_eq!(t.version(), view.version());
        assert_ne!(t.copy().unwrap().version(), t.version());
    }
}
