//! Flat views: one linear index for any rank.

use std::marker::PhantomData;

use keyfold_core::{Element, Error, ErrorKind, Result, layout};
use keyfold_tensor::Tensor;

use super::element::load;
use super::layout::{Layout, NoStrides};
use super::{Contiguous, Extent, Strided, bounds};

/// A view for reading by one linear index, which enumerates elements in row-major order.
#[derive(Debug)]
#[repr(C)]
pub struct FlatView<'a, T, L: Layout = Strided> {
    pub(super) data: *const T,
    pub(super) count: usize,
    pub(super) dims: L::Flat,
    borrowed: PhantomData<&'a [T]>,
}

impl<T, L: Layout> Clone for FlatView<'_, T, L> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, L: Layout> Copy for FlatView<'_, T, L> {}

// SAFETY: it reads memory that is borrowed for its lifetime, as a shared slice does.
unsafe impl<T: Sync, L: Layout> Send for FlatView<'_, T, L> {}
// SAFETY: as above.
unsafe impl<T: Sync, L: Layout> Sync for FlatView<'_, T, L> {}

impl<'a, T: Element> FlatView<'a, T, Contiguous> {
    /// A view of a whole slice.
    pub fn new(data: &'a [T]) -> Self {
        let dims = NoStrides::default();
        FlatView { data: data.as_ptr(), count: data.len(), dims, borrowed: PhantomData }
    }
}

impl<'a, T: Element, L: Layout> FlatView<'a, T, L> {
    /// A view of part of a slice: element `[i, j, ..]` is `data[offset + i * strides[0] + j * strides[1]
    /// + ..]`, and the last index varies fastest.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if an element would lie outside the slice, if an index overflows, if the
    /// numbers of sizes and strides differ, or if there are more dimensions than
    /// [`keyfold_core::MAX_DIMS`]; [`ErrorKind::Value`] for a [`Contiguous`] view of strides that aren't
    /// contiguous.
    pub fn from_slice(
        data: &'a [T],
        shape: &[usize],
        strides: &[isize],
        offset: usize,
    ) -> Result<Self> {
        let count = bounds::inside::<T>("FlatView", data.len(), shape, strides, offset)?;
        FlatView::assume_inside(data[offset..].as_ptr(), count, shape, strides)
    }

    /// A view of a tensor.
    ///
    /// # Errors
    /// [`ErrorKind::DType`] if `T` isn't the dtype's type, [`ErrorKind::Device`] or
    /// [`ErrorKind::NotSupported`] if the host can't access the memory, [`ErrorKind::Value`] for a
    /// [`Contiguous`] view of a tensor that isn't contiguous.
    pub fn from_tensor(tensor: &'a Tensor) -> Result<Self> {
        let data = tensor.data_ptr::<T>()?;
        FlatView::assume_inside(data, tensor.numel(), tensor.shape(), tensor.strides())
    }

    /// A view whose bounds have been checked.
    fn assume_inside(
        data: *const T,
        count: usize,
        shape: &[usize],
        strides: &[isize],
    ) -> Result<Self> {
        if L::CONTIGUOUS {
            bounds::contiguous("FlatView", shape, strides)?;
        }
        Ok(FlatView { data, count, dims: L::flat(shape, strides)?, borrowed: PhantomData })
    }

    pub(super) fn from_raw(data: *const T, count: usize, dims: L::Flat) -> Self {
        FlatView { data, count, dims, borrowed: PhantomData }
    }

    /// The number of elements.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The element at a linear index.
    ///
    /// A strided view computes the element's address by one multiplication per dimension (see
    /// [`Dim`](super::Dim)), without divisions; [`map`](crate::for_each::map) needs neither.
    ///
    /// # Panics
    /// If the index is out of range. In the body of a `for_each` the panic is an error to its caller.
    #[inline(always)]
    #[track_caller]
    pub fn at(&self, index: usize) -> T {
        assert!(
            index < self.count,
            "index {index} is out of range for a view of {} elements",
            self.count
        );
        // SAFETY: every linear index below the count is inside, checked at construction.
        unsafe { load(self.data.offset(L::flat_offset(&self.dims, index))) }
    }

    /// The element at a linear index, or `None` if the index is out of range.
    #[inline(always)]
    pub fn get(&self, index: usize) -> Option<T> {
        (index < self.count).then(|| self.at(index))
    }

    pub(crate) fn extent(&self) -> Extent {
        let dims = L::flat_dims(&self.dims, self.count).0;
        Extent { base: self.data as usize, size: size_of::<T>(), dims }
    }

    pub(crate) fn data(&self) -> *const T {
        self.data
    }
}

impl<'a, T: Element> FlatView<'a, T, Strided> {
    /// A view of a tensor broadcast to another shape: dimensions of size 1, and leading dimensions that
    /// the tensor lacks, are repeated.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if the tensor's shape doesn't broadcast to this one, and as
    /// [`FlatView::from_tensor`].
    pub fn broadcast(tensor: &'a Tensor, shape: &[usize]) -> Result<Self> {
        let count = layout::numel(shape, size_of::<T>())?;
        let strides = layout::broadcast_strides(tensor.shape(), tensor.strides(), shape)?;
        FlatView::assume_inside(tensor.data_ptr::<T>()?, count, shape, &strides)
    }
}

/// A view through which the engine writes, element by element in row-major order.
///
/// It is `Copy`, and stays on its thread: [`map`](crate::for_each::map) writes through it, and also
/// reads through it if the view is among the inputs (in place).
#[derive(Debug)]
#[repr(C)]
pub struct FlatViewMut<'a, T, L: Layout = Strided> {
    view: FlatView<'a, T, L>,
    /// Copies alias, so the view must not be sent to another thread.
    not_send: PhantomData<*mut T>,
}

impl<T, L: Layout> Clone for FlatViewMut<'_, T, L> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, L: Layout> Copy for FlatViewMut<'_, T, L> {}

impl<'a, T: Element> FlatViewMut<'a, T, Contiguous> {
    /// A view of a whole slice.
    pub fn new(data: &'a mut [T]) -> Self {
        let (count, data) = (data.len(), data.as_mut_ptr());
        FlatViewMut::wrap(FlatView::from_raw(data, count, NoStrides::default()))
    }
}

impl<'a, T: Element, L: Layout> FlatViewMut<'a, T, L> {
    fn wrap(view: FlatView<'a, T, L>) -> Self {
        FlatViewMut { view, not_send: PhantomData }
    }

    /// As [`FlatView::from_slice`], for writing.
    ///
    /// # Errors
    /// As there, and [`ErrorKind::Value`] if two indices may be the same element.
    pub fn from_slice(
        data: &'a mut [T],
        shape: &[usize],
        strides: &[isize],
        offset: usize,
    ) -> Result<Self> {
        let count = bounds::inside::<T>("FlatViewMut", data.len(), shape, strides, offset)?;
        bounds::no_overlap("FlatViewMut", shape, strides)?;
        let data = data[offset..].as_mut_ptr();
        FlatView::assume_inside(data, count, shape, strides).map(FlatViewMut::wrap)
    }

    /// A view of a tensor that is the only owner of its memory, such as a result.
    ///
    /// # Errors
    /// As [`FlatView::from_tensor`]; [`ErrorKind::ReadOnly`] if the memory is read-only or has another
    /// owner; [`ErrorKind::Value`] if two indices may be the same element.
    pub fn from_tensor(tensor: &'a mut Tensor) -> Result<Self> {
        tensor.check_exclusive()?;
        // SAFETY: the memory has no other owner, and this handle is borrowed mutably for the view's
        // lifetime.
        unsafe { FlatViewMut::from_shared(tensor) }
    }

    /// A view of a tensor whose memory may have other owners, such as an argument that the operator's
    /// schema declares as written.
    ///
    /// # Safety
    /// While the view or a copy of it lives, no other code reads or writes the memory, except through
    /// views that are passed to the same call of the engine, which checks how they overlap.
    ///
    /// # Errors
    /// As [`FlatViewMut::from_tensor`], except for other owners.
    pub unsafe fn from_shared(tensor: &'a Tensor) -> Result<Self> {
        let data = tensor.data_mut_ptr::<T>()?;
        bounds::no_overlap("FlatViewMut", tensor.shape(), tensor.strides())?;
        FlatView::assume_inside(data, tensor.numel(), tensor.shape(), tensor.strides())
            .map(FlatViewMut::wrap)
    }

    pub(super) fn from_view(view: FlatView<'a, T, L>) -> Self {
        FlatViewMut::wrap(view)
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.view.count
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.view.count == 0
    }

    /// A writer of the same elements, which may be sent to other threads.
    pub fn writer(self) -> Writer<'a, T, L> {
        Writer { view: self.view }
    }

    pub(crate) fn view(&self) -> &FlatView<'a, T, L> {
        &self.view
    }
}

/// Writes at any index, from any thread, without checks for races: for bodies that scatter.
#[derive(Debug)]
#[repr(C)]
pub struct Writer<'a, T, L: Layout = Strided> {
    view: FlatView<'a, T, L>,
}

impl<T, L: Layout> Clone for Writer<'_, T, L> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, L: Layout> Copy for Writer<'_, T, L> {}

impl<T: Element, L: Layout> Writer<'_, T, L> {
    /// Writes one element.
    ///
    /// # Safety
    /// No other thread reads or writes this element at the same time.
    ///
    /// # Errors
    /// [`ErrorKind::Index`] if the index is out of range.
    #[inline(always)]
    pub unsafe fn write(&self, index: usize, value: T) -> Result<()> {
        if index >= self.view.count {
            let count = self.view.count;
            let message = format!("index {index} is out of range for a view of {count} elements");
            return Err(Error::new(ErrorKind::Index, message));
        }
        let place = L::flat_offset(&self.view.dims, index);
        // SAFETY: the index is inside; the caller promises that no other thread accesses the element.
        unsafe { self.view.data.cast_mut().offset(place).write(value) };
        Ok(())
    }
}
