//! What a layer attaches to a tensor: its place in a graph of derivatives, the batch that it stands
//! for.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use keyfold_core::{DType, Device, Result, Shape, Strides, layout};
use keyfold_dispatch::{DispatchKey, DispatchKeySet};

use super::Tensor;
use crate::buffer::{BufferHandle, NullBuffer};

/// A layer's own object, and a number beside it: the place among the results of a node, say.
///
/// A tensor has room for one: the layer whose key it carries owns it.
#[derive(Clone)]
pub struct Attached {
    /// The layer's object.
    pub object: Arc<dyn Any + Send + Sync>,
    /// The number.
    pub place: u32,
}

impl Attached {
    /// The layer's object, if it is a `T`.
    pub fn downcast<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(&self.object).downcast().ok()
    }

    /// The layer's object where it is, if it is a `T`.
    pub fn downcast_ref<T: Any>(&self) -> Option<&T> {
        (&*self.object as &dyn Any).downcast_ref()
    }
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attached(place={})", self.place)
    }
}

/// The place for it, which can be filled through a shared reference: writing in place gives a
/// tensor that a caller holds another history.
pub(super) struct Slot(Mutex<Option<Attached>>);

impl Slot {
    #[inline]
    pub(super) const fn empty() -> Slot {
        Slot(Mutex::new(None))
    }

    /// The slot of a clone. Only a tensor with a functionality key has something in it that counts,
    /// so that most clones don't look.
    #[inline]
    pub(super) fn share(&self, keys: DispatchKeySet) -> Slot {
        if (keys - DispatchKeySet::BACKENDS).is_empty() {
            return Slot::empty();
        }
        Slot(Mutex::new(self.get()))
    }

    #[inline]
    fn get(&self) -> Option<Attached> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Tensor {
    /// What a layer attached.
    #[inline]
    pub fn attached(&self) -> Option<Attached> {
        self.attached.get()
    }

    /// The object that a layer attached, if it is a `T`, and the number beside it.
    #[inline]
    pub fn attached_as<T: Any + Send + Sync>(&self) -> Option<(Arc<T>, u32)> {
        let guard = self.attached.0.lock().unwrap_or_else(PoisonError::into_inner);
        let attached = guard.as_ref()?;
        Some((attached.downcast()?, attached.place))
    }

    /// What a layer attached, or what `make` gives, attached now.
    pub fn attached_or(&self, make: impl FnOnce() -> Attached) -> Attached {
        let mut slot = self.attached.0.lock().unwrap_or_else(PoisonError::into_inner);
        slot.get_or_insert_with(make).clone()
    }

    /// Whether nobody else has a share in the memory.
    pub fn owns_memory(&mut self) -> bool {
        self.buffer.is_sole_owner()
    }

    /// Attaches something, in place of what was. It counts, and is shared by clones, while the
    /// tensor carries a functionality key; views don't have it.
    pub fn attach(&self, attached: Option<Attached>) {
        let old = {
            let mut slot = self.attached.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *slot, attached)
        };
        // Dropped without the lock: it may hold the last share of a long graph.
        drop(old);
    }

    /// A tensor without memory that only stands for others: it has a shape, strides, a dtype, a
    /// device, one functionality key that says what it is, and the object that knows more. Kernels
    /// that read it get an error; the layer of that key sees to it that none is asked to.
    ///
    /// # Errors
    /// As [`Tensor::insert_key`], and [`keyfold_core::ErrorKind::Shape`] when the size overflows.
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
        // A copy of nothing is nothing.
        assert!(t.copy().is_err() || t.copy().unwrap().to_vec::<f64>().is_err());
    }

    #[test]
    fn every_view_of_memory_sees_its_writes() {
        let t = Tensor::from_slice(&[1.0_f64, 2.0], &[2]).unwrap();
        let view = t.slice(0, Some(1), None, 1).unwrap();
        let before = view.version();
        // SAFETY: nobody else uses the memory.
        unsafe { t.copy_from(&Tensor::from_slice(&[5.0_f64], &[1]).unwrap()) }.unwrap();
        assert_ne!(view.version(), before);
        assert_eq!(t.version(), view.version());
        assert_ne!(t.copy().unwrap().version(), t.version());
    }
}
