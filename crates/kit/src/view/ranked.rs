//! Ranked views: a rank known at compile time and one index per dimension.

use std::marker::PhantomData;

use keyfold_core::{Element, Error, ErrorKind, Result, layout};
use keyfold_tensor::Tensor;

use super::element::load;
use super::layout::Layout;
use super::{Extent, FlatView, FlatViewMut, Strided, bounds};

/// A view for reading by one index per dimension.
#[derive(Debug)]
#[repr(C)]
pub struct RankedView<'a, T, const R: usize, L: Layout = Strided> {
    pub(super) data: *const T,
    pub(super) sizes: [usize; R],
    pub(super) strides: L::Ranked<R>,
    borrowed: PhantomData<&'a [T]>,
}

impl<T, const R: usize, L: Layout> Clone for RankedView<'_, T, R, L> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, const R: usize, L: Layout> Copy for RankedView<'_, T, R, L> {}

// SAFETY: it reads memory that is borrowed for its lifetime, as a shared slice does.
unsafe impl<T: Sync, const R: usize, L: Layout> Send for RankedView<'_, T, R, L> {}
// SAFETY: as above.
unsafe impl<T: Sync, const R: usize, L: Layout> Sync for RankedView<'_, T, R, L> {}

/// The sizes and strides of a tensor, which must have rank `R`.
fn ranked<const R: usize>(what: &str, tensor: &Tensor) -> Result<([usize; R], [isize; R])> {
    match (tensor.shape()[..].try_into(), tensor.strides()[..].try_into()) {
        (Ok(sizes), Ok(strides)) => Ok((sizes, strides)),
        _ => Err(Error::new(
            ErrorKind::Shape,
            format!(
                "{what}: shape {:?} has {} dimensions, and not {R}",
                tensor.shape(),
                tensor.ndim()
            ),
        )),
    }
}

impl<'a, T: Element, const R: usize, L: Layout> RankedView<'a, T, R, L> {
    /// A view of part of a slice: element `[i, j, ..]` is
    /// `data[offset + i * strides[0] + j * strides[1] + ..]`.
    ///
    /// # Errors
    /// As [`FlatView::from_slice`].
    pub fn from_slice(
        data: &'a [T],
        sizes: [usize; R],
        strides: [isize; R],
        offset: usize,
    ) -> Result<Self> {
        bounds::inside::<T>("RankedView", data.len(), &sizes, &strides, offset)?;
        RankedView::assume_inside(data[offset..].as_ptr(), sizes, strides)
    }

    /// A view of a tensor of rank `R`.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] for another rank, and as [`FlatView::from_tensor`].
    pub fn from_tensor(tensor: &'a Tensor) -> Result<Self> {
        let (sizes, strides) = ranked("RankedView", tensor)?;
        RankedView::assume_inside(tensor.data_ptr::<T>()?, sizes, strides)
    }

    /// A view whose bounds have been checked.
    fn assume_inside(data: *const T, sizes: [usize; R], strides: [isize; R]) -> Result<Self> {
        if L::CONTIGUOUS {
            bounds::contiguous("RankedView", &sizes, &strides)?;
        }
        Ok(RankedView { data, sizes, strides: L::ranked(strides), borrowed: PhantomData })
    }

    /// The size of each dimension.
    #[inline(always)]
    pub fn sizes(&self) -> [usize; R] {
        self.sizes
    }

    /// The step along each dimension, in elements.
    #[inline(always)]
    pub fn strides(&self) -> [isize; R] {
        L::strides(&self.sizes, &self.strides)
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.sizes.contains(&0)
    }

    /// The element at an index.
    ///
    /// # Panics
    /// If the index is out of range. In the body of a `for_each` the panic is an error to its caller.
    #[inline(always)]
    #[track_caller]
    pub fn at(&self, index: [usize; R]) -> T {
        assert!(
            self.has(index),
            "index {index:?} is out of range for a view of sizes {:?}",
            self.sizes
        );
        // SAFETY: every index below the sizes is inside, checked at construction.
        unsafe { load(self.data.offset(L::offset(&self.sizes, &self.strides, index))) }
    }

    /// The element at an index, or `None` if the index is out of range.
    #[inline(always)]
    pub fn get(&self, index: [usize; R]) -> Option<T> {
        self.has(index).then(|| self.at(index))
    }

    #[inline(always)]
    fn has(&self, index: [usize; R]) -> bool {
        index.iter().zip(&self.sizes).fold(true, |inside, (i, size)| inside & (i < size))
    }

    /// A view of the same elements by one linear index.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if more than [`FLAT_DIMS`](super::FLAT_DIMS) dimensions are left.
    pub fn flat(&self) -> Result<FlatView<'a, T, L>> {
        let dims = L::flat(&self.sizes, &self.strides())?;
        Ok(FlatView::from_raw(self.data, self.len(), dims))
    }

    /// A view broadcast to other sizes: dimensions of size 1, and leading dimensions that the view
    /// lacks, are repeated.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if the sizes don't broadcast to these, or their product overflows.
    pub fn broadcast_to<const Q: usize>(
        &self,
        sizes: [usize; Q],
    ) -> Result<RankedView<'a, T, Q, Strided>> {
        layout::numel(&sizes, size_of::<T>())?;
        let wide = layout::broadcast_strides(&self.sizes, &self.strides(), &sizes)?;
        let mut strides = [0; Q];
        strides.copy_from_slice(&wide);
        RankedView::assume_inside(self.data, sizes, strides)
    }

    pub(crate) fn extent(&self) -> Extent {
        let strides = self.strides();
        let dims = self.sizes.iter().copied().zip(strides).collect();
        Extent { base: self.data as usize, size: size_of::<T>(), dims }
    }

    pub(crate) fn data(&self) -> *const T {
        self.data
    }
}

/// A view through which the engine writes; see [`FlatViewMut`].
#[derive(Debug)]
#[repr(C)]
pub struct RankedViewMut<'a, T, const R: usize, L: Layout = Strided> {
    view: RankedView<'a, T, R, L>,
    /// Copies alias, so the view must not be sent to another thread.
    not_send: PhantomData<*mut T>,
}

impl<T, const R: usize, L: Layout> Clone for RankedViewMut<'_, T, R, L> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, const R: usize, L: Layout> Copy for RankedViewMut<'_, T, R, L> {}

impl<'a, T: Element, const R: usize, L: Layout> RankedViewMut<'a, T, R, L> {
    /// As [`RankedView::from_slice`], for writing.
    ///
    /// # Errors
    /// As there, and [`ErrorKind::Value`] if two indices may be the same element.
    pub fn from_slice(
        data: &'a mut [T],
        sizes: [usize; R],
        strides: [isize; R],
        offset: usize,
    ) -> Result<Self> {
        bounds::inside::<T>("RankedViewMut", data.len(), &sizes, &strides, offset)?;
        RankedViewMut::checked(data[offset..].as_mut_ptr(), sizes, strides)
    }

    /// A view of a tensor of rank `R` that is the only owner of its memory, such as a result.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] for another rank, and as [`FlatViewMut::from_tensor`].
    pub fn from_tensor(tensor: &'a mut Tensor) -> Result<Self> {
        tensor.check_exclusive()?;
        // SAFETY: the memory has no other owner, and this handle is borrowed mutably for the view's
        // lifetime.
        unsafe { RankedViewMut::from_shared(tensor) }
    }

    /// As [`FlatViewMut::from_shared`].
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As [`RankedViewMut::from_tensor`], except for other owners.
    pub unsafe fn from_shared(tensor: &'a Tensor) -> Result<Self> {
        let (sizes, strides) = ranked("RankedViewMut", tensor)?;
        RankedViewMut::checked(tensor.data_mut_ptr::<T>()?, sizes, strides)
    }

    fn checked(data: *mut T, sizes: [usize; R], strides: [isize; R]) -> Result<Self> {
        bounds::no_overlap("RankedViewMut", &sizes, &strides)?;
        let view = RankedView::assume_inside(data, sizes, strides)?;
        Ok(RankedViewMut { view, not_send: PhantomData })
    }

    /// The size of each dimension.
    pub fn sizes(&self) -> [usize; R] {
        self.view.sizes
    }

    /// The step along each dimension, in elements.
    pub fn strides(&self) -> [isize; R] {
        self.view.strides()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.view.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }

    /// A view of the same elements by one linear index.
    ///
    /// # Errors
    /// As [`RankedView::flat`].
    pub fn flat(&self) -> Result<FlatViewMut<'a, T, L>> {
        self.view.flat().map(FlatViewMut::from_view)
    }

    pub(crate) fn view(&self) -> &RankedView<'a, T, R, L> {
        &self.view
    }
}
