//! Views (other shapes and strides of the same memory) and copies.
//!
//! A view has the backend key alone: it doesn't require grad and isn't a view of a caller's object.

use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result, Shape, Strides, layout};

use super::Tensor;
use crate::buffer::{BufferHandle, HostBuffer};
use crate::device::copy_elements;

impl Tensor {
    /// Returns a view of a subset of this one's elements, which is therefore inside the buffer.
    #[inline]
    fn subview(&self, shape: Shape, strides: Strides, offset: usize) -> Tensor {
        let numel = shape.iter().product();
        // A view without elements reads nothing; its offset stays inside the buffer.
        let offset = if numel == 0 { self.offset } else { offset };
        debug_assert!(
            layout::bounds(&shape, &strides, offset)
                .is_ok_and(|b| b.is_none_or(|(_, last)| last < self.buffer.len()))
        );
        let mut view = Tensor::assume_inside(self.buffer.clone(), shape, strides, offset, numel);
        view.alias = true;
        view
    }

    /// Returns the offset after so many steps along a dimension. It is exact for existing elements;
    /// without elements, strides are arbitrary and the sum may wrap.
    fn moved(&self, axis: usize, steps: isize) -> usize {
        self.offset.wrapping_add_signed(self.strides[axis].wrapping_mul(steps))
    }

    /// Returns a view without Autograd and other functionality keys.
    #[must_use]
    pub fn detach(&self) -> Tensor {
        self.subview(self.shape.clone(), self.strides.clone(), self.offset)
    }

    /// Returns a view of another shape with the same elements in the same order; `None` if that
    /// takes a copy.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if the element counts differ.
    pub fn reshape_view(&self, shape: &Shape) -> Result<Option<Tensor>> {
        let numel = layout::numel(shape, self.dtype().size())?;
        if numel != self.numel {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "can't reshape a tensor of shape {:?} ({} elements) to {shape:?} ({numel})",
                    self.shape, self.numel
                ),
            ));
        }
        let strides = layout::reshape_strides(&self.shape, &self.strides, shape);
        Ok(strides.map(|strides| self.subview(shape.clone(), strides, self.offset)))
    }

    /// Returns the same elements in the same order under another shape, a view if possible, else a
    /// copy. One size can be -1.
    ///
    /// ```
    /// use keyfold_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1, 2, 3, 4, 5, 6_i64], &[6])?;
    /// assert_eq!(&x.reshape(&[2, -1])?.shape()[..], &[2, 3]);
    /// # Ok::<(), keyfold_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] as [`layout::infer_shape`], and as [`Tensor::copy`].
    pub fn reshape(&self, sizes: &[i64]) -> Result<Tensor> {
        let shape = layout::infer_shape(sizes, self.numel)?;
        if let Some(view) = self.reshape_view(&shape)? {
            return Ok(view);
        }
        let copy = self.copy()?;
        let strides = layout::contiguous_strides(&shape);
        Ok(Tensor { alias: false, ..copy.subview(shape, strides, 0) })
    }

    /// Returns a view with the dimensions in another order.
    ///
    /// # Errors
    /// [`ErrorKind::Index`] for an axis out of range, [`ErrorKind::Value`] if the axes aren't a
    /// permutation.
    pub fn permute(&self, axes: &[i64]) -> Result<Tensor> {
        let (mut shape, mut strides) = (self.shape.clone(), self.strides.clone());
        let mut seen = 0_u64;
        for (i, &axis) in axes.iter().enumerate() {
            let axis = layout::normalize_axis(axis, self.ndim())?;
            seen |= 1 << axis;
            if i < self.ndim() {
                (shape[i], strides[i]) = (self.shape[axis], self.strides[axis]);
            }
        }
        if axes.len() != self.ndim() || seen.count_ones() as usize != self.ndim() {
            return Err(Error::new(
                ErrorKind::Value,
                format!(
                    "axes {axes:?} must name each of the tensor's {} dimensions once",
                    self.ndim()
                ),
            ));
        }
        Ok(self.subview(shape, strides, self.offset))
    }

    /// Returns a view with two dimensions exchanged.
    ///
    /// # Errors
    /// [`ErrorKind::Index`] for an axis out of range.
    pub fn transpose(&self, a: i64, b: i64) -> Result<Tensor> {
        let a = layout::normalize_axis(a, self.ndim())?;
        let b = layout::normalize_axis(b, self.ndim())?;
        let (mut shape, mut strides) = (self.shape.clone(), self.strides.clone());
        shape.swap(a, b);
        strides.swap(a, b);
        Ok(self.subview(shape, strides, self.offset))
    }

    /// Returns a view of a part of a dimension, as Python's `start:stop:step`: negative positions
    /// count from the end, positions out of range are clamped, and the step may be negative.
    ///
    /// ```
    /// use keyfold_tensor::Tensor;
    /// let x = Tensor::from_slice(&[0, 1, 2, 3, 4, 5_i64], &[6])?;
    /// assert_eq!(x.slice(0, Some(1), None, 2)?.to_vec::<i64>()?, [1, 3, 5]);
    /// assert_eq!(x.slice(0, None, None, -1)?.to_vec::<i64>()?, [5, 4, 3, 2, 1, 0]);
    /// # Ok::<(), keyfold_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Index`] for an axis out of range, [`ErrorKind::Value`] for a step of 0.
    pub fn slice(
        &self,
        axis: i64,
        start: Option<i64>,
        stop: Option<i64>,
        step: i64,
    ) -> Result<Tensor> {
        let axis = layout::normalize_axis(axis, self.ndim())?;
        if step == 0 {
            return Err(Error::new(ErrorKind::Value, "slice step must not be 0".to_owned()));
        }
        let size = self.shape[axis] as i64;
        // The range of positions: 0 to size forwards, -1 to size - 1 backwards.
        let (low, high) = if step > 0 { (0, size) } else { (-1, size - 1) };
        let place = |position: i64| {
            let position = if position < 0 { position.saturating_add(size) } else { position };
            position.clamp(low, high)
        };
        let start = start.map_or(if step > 0 { low } else { high }, place);
        let stop = stop.map_or(if step > 0 { high } else { low }, place);
        let span = if step > 0 { stop - start } else { start - stop };
        let count = match span {
            ..=0 => 0,
            _ => (span as u64).div_ceil(step.unsigned_abs()) as usize,
        };
        let (mut shape, mut strides) = (self.shape.clone(), self.strides.clone());
        shape[axis] = count;
        if count > 1 {
            strides[axis] = strides[axis].wrapping_mul(step as isize);
        }
        Ok(self.subview(shape, strides, self.moved(axis, start as isize)))
    }

    /// Returns a view at one index of a dimension, which is removed; a negative index counts from
    /// the end.
    ///
    /// # Errors
    /// [`ErrorKind::Index`] for an axis or an index out of range.
    pub fn select(&self, axis: i64, index: i64) -> Result<Tensor> {
        let axis = layout::normalize_axis(axis, self.ndim())?;
        let size = self.shape[axis] as i64;
        if !(-size..size).contains(&index) {
            let right = match size {
                0 => "it is empty".to_owned(),
                _ => format!("use {} to {}", -size, size - 1),
            };
            return Err(Error::new(
                ErrorKind::Index,
                format!("index {index} is out of range for axis {axis} of size {size}; {right}"),
            ));
        }
        let index = if index < 0 { index + size } else { index };
        let (mut shape, mut strides) = (self.shape.clone(), self.strides.clone());
        shape.remove(axis);
        strides.remove(axis);
        Ok(self.subview(shape, strides, self.moved(axis, index as isize)))
    }

    /// Returns a view broadcast to a larger shape, with strides of 0 along repeated dimensions.
    ///
    /// ```
    /// use keyfold_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1.0_f64, 2.0], &[2])?;
    /// assert_eq!(x.broadcast_to(&[2, 2])?.to_vec::<f64>()?, [1.0, 2.0, 1.0, 2.0]);
    /// # Ok::<(), keyfold_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if the shape doesn't broadcast to `shape`.
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<Tensor> {
        layout::numel(shape, self.dtype().size())?;
        let strides = layout::broadcast_strides(&self.shape, &self.strides, shape)?;
        Ok(self.subview(Shape::new(shape)?, strides, self.offset))
    }

    /// Returns a view with a dimension of size 1 inserted at `axis` (counted in the result).
    ///
    /// # Errors
    /// [`ErrorKind::Index`] if the result has no such axis, [`ErrorKind::Shape`] if it has too many
    /// dimensions.
    pub fn unsqueeze(&self, axis: i64) -> Result<Tensor> {
        let axis = layout::normalize_axis(axis, self.ndim() + 1)?;
        let (mut shape, mut strides) = (self.shape.clone(), self.strides.clone());
        let stride = match (shape.get(axis), strides.get(axis)) {
            (Some(&size), Some(&stride)) => stride.saturating_mul(size.max(1) as isize),
            _ => 1,
        };
        shape.insert(axis, 1)?;
        strides.insert(axis, stride)?;
        Ok(self.subview(shape, strides, self.offset))
    }

    /// Returns a view without that dimension, whose size must be 1.
    ///
    /// # Errors
    /// [`ErrorKind::Index`] for an axis out of range, [`ErrorKind::Value`] if its size isn't 1.
    pub fn squeeze(&self, axis: i64) -> Result<Tensor> {
        let axis = layout::normalize_axis(axis, self.ndim())?;
        if self.shape[axis] != 1 {
            return Err(Error::new(
                ErrorKind::Value,
                format!("axis {axis} has size {} and can't be squeezed out", self.shape[axis]),
            ));
        }
        let (mut shape, mut strides) = (self.shape.clone(), self.strides.clone());
        shape.remove(axis);
        strides.remove(axis);
        Ok(self.subview(shape, strides, self.offset))
    }

    /// Returns a view reversed along those dimensions.
    ///
    /// # Errors
    /// [`ErrorKind::Index`] for an axis out of range, [`ErrorKind::Value`] for a repeated one.
    pub fn flip(&self, axes: &[i64]) -> Result<Tensor> {
        let mut strides = self.strides.clone();
        let mut offset = self.offset;
        let mut seen = 0_u64;
        for &axis in axes {
            let axis = layout::normalize_axis(axis, self.ndim())?;
            if seen & (1 << axis) != 0 {
                return Err(Error::new(ErrorKind::Value, format!("axis {axis} is named twice")));
            }
            seen |= 1 << axis;
            if self.shape[axis] > 1 {
                let far = strides[axis].wrapping_mul((self.shape[axis] - 1) as isize);
                offset = offset.wrapping_add_signed(far);
                strides[axis] = strides[axis].wrapping_neg();
            }
        }
        Ok(self.subview(self.shape.clone(), strides, offset))
    }

    /// Returns the tensor itself if it is contiguous, else a contiguous copy.
    ///
    /// # Errors
    /// As [`Tensor::copy`].
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.copy() }
    }

    /// Returns a contiguous copy on the same device.
    ///
    /// # Errors
    /// [`ErrorKind::Memory`] if there is none left, [`ErrorKind::NotSupported`] for another
    /// library's memory on a device without a registered memory; the device's errors.
    pub fn copy(&self) -> Result<Tensor> {
        if !self.is_pinned() {
            return self.copy_unpinned();
        }
        if self.is_contiguous() {
            // SAFETY: contiguous elements on the host, which the buffer keeps readable.
            let bytes = unsafe { std::slice::from_raw_parts(self.pinned_ptr(), self.nbytes()) };
            let memory = Arc::new(HostBuffer::copy_of(bytes)?);
            return Ok(Tensor::whole(memory, self.shape.clone(), self.numel, self.dtype()));
        }
        let mut memory = HostBuffer::recycled(self.nbytes())?;
        let target = memory.as_bytes_mut().as_mut_ptr();
        let strides = layout::contiguous_strides(&self.shape);
        // SAFETY: the target is new, with room for every element, and row-major.
        unsafe { self.copy_elements_to(target, &strides)? };
        Ok(Tensor::whole(Arc::new(memory), self.shape.clone(), self.numel, self.dtype()))
    }

    /// Returns a copy of a view on the host whose strides are [of the same kind](layout::compact_strides), so
    /// that kernels compute the same digits. It is contiguous where these take more than four times the memory.
    ///
    /// # Errors
    /// As [`Tensor::copy`].
    pub fn copy_compact(&self) -> Result<Tensor> {
        let strides = layout::compact_strides(&self.shape, &self.strides);
        let Some(strides) = strides.filter(|_| self.is_pinned()) else { return self.copy() };
        let Some((low, high)) = layout::reach(&self.shape, &strides)? else { return self.copy() };
        let (first, size) = (low.unsigned_abs(), self.dtype().size());
        let elements = layout::numel(&[first + high as usize + 1], size)?;
        if elements / 4 > self.numel {
            return self.copy();
        }
        let mut memory = HostBuffer::zeroed(elements * size)?;
        // The first element isn't the one with the lowest address where a stride is negative.
        let start = memory.as_bytes_mut().as_mut_ptr();
        // SAFETY: the target is new, with room for every element that shape and strides reach from the first one.
        unsafe { self.copy_elements_to(start.add(first * size), &strides)? };
        let buffer = BufferHandle::aligned(Arc::new(memory), self.dtype());
        Tensor::from_parts(buffer, self.shape.clone(), strides, first)
    }

    /// Writes the elements of `source`, broadcast to this shape, into this tensor's memory.
    ///
    /// # Errors
    /// [`ErrorKind::DType`] if the dtypes differ, [`ErrorKind::Device`] if the devices do,
    /// [`ErrorKind::Shape`] if the shape doesn't broadcast, [`ErrorKind::ReadOnly`],
    /// [`ErrorKind::Value`] if indices of this tensor overlap; and as [`Tensor::copy`].
    ///
    /// # Safety
    /// Until it returns, nothing else accesses this tensor's memory, and no slice of it is alive.
    /// On a device, the same holds until the copy has run, except for later operations on the same
    /// stream.
    pub unsafe fn copy_from(&self, source: &Tensor) -> Result<()> {
        if source.dtype() != self.dtype() {
            return Err(Error::new(
                ErrorKind::DType,
                format!("can't copy {} elements into a {} tensor", source.dtype(), self.dtype()),
            ));
        }
        self.check_writable()?;
        if self.may_overlap_itself() {
            return Err(self.overlaps_itself());
        }
        if let Some(target) = self.pinned()? {
            // SAFETY: the caller's contract, for the same memory.
            return unsafe { target.copy_from(source) };
        }
        let source = source.broadcast_to(&self.shape)?;
        let source = source.pinned()?.unwrap_or(source);
        if self.base.is_null() || source.base.is_null() {
            // SAFETY: the caller's contract.
            return unsafe { self.copy_from_unpinned(&source) };
        }
        // Read the whole source first if a write could change unread elements.
        let source = if source.touches(self) { source.copy()? } else { source };
        self.note_write();
        // SAFETY: the view is inside its buffer, nothing else accesses it, and the source doesn't
        // overlap.
        unsafe { source.copy_elements_to(self.pinned_ptr(), &self.strides) }
    }

    /// Copies the elements of a pinned tensor to `target`, which has the same shape and those
    /// strides.
    ///
    /// # Safety
    /// Every element that shape and strides reach from `target` is valid for writes, and none is an
    /// element of this tensor.
    #[inline]
    unsafe fn copy_elements_to(&self, target: *mut u8, strides: &[isize]) -> Result<()> {
        let from = (self.pinned_ptr().cast_const(), &self.strides[..]);
        let elements = (self.numel, self.dtype().size());
        // SAFETY: the view's elements are in its buffer; the rest is the caller's contract.
        unsafe { copy_elements(from, (target, strides), &self.shape, elements) }
    }

    /// Returns whether the spans of the two views have common bytes.
    pub fn touches(&self, other: &Tensor) -> bool {
        let (address, other_address) = (self.address(), other.address());
        if address == 0 || other_address == 0 {
            return self.touches_unlocated(other);
        }
        let span = |t: &Tensor, address: usize| {
            let (first, last) = layout::bounds(&t.shape, &t.strides, t.offset).ok()??;
            let base = address.wrapping_sub(t.offset * t.dtype().size());
            Some((base + first * t.dtype().size(), base + (last + 1) * t.dtype().size()))
        };
        match (span(self, address), span(other, other_address)) {
            (Some(a), Some(b)) => self.device() == other.device() && a.0 < b.1 && b.0 < a.1,
            _ => false,
        }
    }
}
