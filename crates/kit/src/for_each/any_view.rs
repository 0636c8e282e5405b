//! The operands of `map`: views, one or several.

use keyfold_core::{DType, Element};
use smallvec::smallvec;

use crate::view::{Extent, FlatView, FlatViewMut, Layout, RankedView, RankedViewMut, ShortVec};

/// A view without its type, as the engine uses it.
#[derive(Clone, Debug)]
pub struct ViewDescription {
    pub(super) data: *mut u8,
    pub(super) extent: Extent,
    pub(super) count: usize,
    /// The sizes, if the view is ranked.
    pub(super) sizes: Option<ShortVec<usize>>,
    /// Whether the elements are bools, whose bytes may be other than 0 and 1.
    pub(super) is_bool: bool,
    /// Whether the view is for writing.
    pub(super) is_writing: bool,
}

mod sealed {
    pub trait Sealed {}
}

/// A view: flat or ranked, for reading or writing, contiguous or strided. Closed.
pub trait AnyView: sealed::Sealed + Copy {
    /// The elements' type.
    type Element: Element;

    /// Returns the view's description for the engine.
    #[doc(hidden)]
    fn describe(&self) -> ViewDescription;
}

/// A view for writing.
pub trait Output: AnyView {
    /// The type of its indices: `usize` for a flat view, `[usize; R]` for a ranked one.
    type Index: Index;
}

/// An index of a view. Sealed.
pub trait Index: Copy + sealed::Sealed {
    /// Returns the index `k` steps along one axis from a start.
    #[doc(hidden)]
    fn step(start: &[usize], axis: usize, step: isize, k: usize) -> Self;
}

impl sealed::Sealed for usize {}
impl Index for usize {
    #[inline(always)]
    fn step(start: &[usize], _: usize, step: isize, k: usize) -> Self {
        start[0].wrapping_add_signed(step * k as isize)
    }
}

impl<const R: usize> sealed::Sealed for [usize; R] {}
impl<const R: usize> Index for [usize; R] {
    #[inline(always)]
    fn step(start: &[usize], axis: usize, step: isize, k: usize) -> Self {
        let mut index = [0; R];
        for d in 0..R {
            let moved = start[d].wrapping_add_signed(step * k as isize);
            index[d] = if d == axis { moved } else { start[d] };
        }
        index
    }
}

impl<T: Element, L: Layout> sealed::Sealed for FlatView<'_, T, L> {}
impl<T: Element, L: Layout> AnyView for FlatView<'_, T, L> {
    type Element = T;

    fn describe(&self) -> ViewDescription {
        ViewDescription {
            data: self.data().cast_mut().cast(),
            extent: self.extent(),
            count: self.len(),
            sizes: None,
            is_bool: T::DTYPE == DType::Bool,
            is_writing: false,
        }
    }
}

impl<T: Element, L: Layout> sealed::Sealed for FlatViewMut<'_, T, L> {}
impl<T: Element, L: Layout> AnyView for FlatViewMut<'_, T, L> {
    type Element = T;

    fn describe(&self) -> ViewDescription {
        ViewDescription { is_writing: true, ..AnyView::describe(self.view()) }
    }
}
impl<T: Element, L: Layout> Output for FlatViewMut<'_, T, L> {
    type Index = usize;
}

impl<T: Element, const R: usize, L: Layout> sealed::Sealed for RankedView<'_, T, R, L> {}
impl<T: Element, const R: usize, L: Layout> AnyView for RankedView<'_, T, R, L> {
    type Element = T;

    fn describe(&self) -> ViewDescription {
        ViewDescription {
            data: self.data().cast_mut().cast(),
            extent: self.extent(),
            count: self.len(),
            sizes: Some(ShortVec::from_slice(&self.sizes())),
            is_bool: T::DTYPE == DType::Bool,
            is_writing: false,
        }
    }
}

impl<T: Element, const R: usize, L: Layout> sealed::Sealed for RankedViewMut<'_, T, R, L> {}
impl<T: Element, const R: usize, L: Layout> AnyView for RankedViewMut<'_, T, R, L> {
    type Element = T;

    fn describe(&self) -> ViewDescription {
        ViewDescription { is_writing: true, ..AnyView::describe(self.view()) }
    }
}
impl<T: Element, const R: usize, L: Layout> Output for RankedViewMut<'_, T, R, L> {
    type Index = [usize; R];
}

/// The inputs of `map`: none (`()`), one view, or a tuple of up to six.
pub trait Inputs: Copy {
    /// The body's argument: nothing, one value, or a tuple of values.
    type Values;
    /// The pointers to rows of contiguous elements, one for each input.
    #[doc(hidden)]
    type Rows: Copy;

    #[doc(hidden)]
    fn describe(&self) -> ShortVec<ViewDescription>;

    #[doc(hidden)]
    fn rows(rows: &[*const u8]) -> Self::Rows;

    /// # Safety
    /// Each row is valid for reading the element at `k`, which has a valid value of its type.
    #[doc(hidden)]
    unsafe fn values(rows: Self::Rows, k: usize) -> Self::Values;
}

impl<V: AnyView> Inputs for V {
    type Values = V::Element;
    type Rows = *const V::Element;

    fn describe(&self) -> ShortVec<ViewDescription> {
        smallvec![AnyView::describe(self)]
    }

    #[inline(always)]
    fn rows(rows: &[*const u8]) -> Self::Rows {
        rows[0].cast()
    }

    #[inline(always)]
    unsafe fn values(row: Self::Rows, k: usize) -> Self::Values {
        // SAFETY: the caller's promise.
        unsafe { row.add(k).read() }
    }
}

impl Inputs for () {
    type Values = ();
    type Rows = ();

    fn describe(&self) -> ShortVec<ViewDescription> {
        smallvec![]
    }

    #[inline(always)]
    fn rows(_: &[*const u8]) {}

    #[inline(always)]
    unsafe fn values((): (), _: usize) {}
}

// A macro, since there are no generics over the length of a tuple.
macro_rules! tuple {
    ($($name:ident $at:tt),*) => {
        impl<$($name: AnyView),*> Inputs for ($($name,)*) {
            type Values = ($($name::Element,)*);
            type Rows = ($(*const $name::Element,)*);

            fn describe(&self) -> ShortVec<ViewDescription> {
                smallvec![$(AnyView::describe(&self.$at)),*]
            }

            #[inline(always)]
            fn rows(rows: &[*const u8]) -> Self::Rows {
                ($(rows[$at].cast::<$name::Element>(),)*)
            }

            #[inline(always)]
            unsafe fn values(rows: Self::Rows, k: usize) -> Self::Values {
                // SAFETY: the caller's promise.
                unsafe { ($(rows.$at.add(k).read(),)*) }
            }
        }
    };
}

tuple!(A 0);
tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);
tuple!(A 0, B 1, C 2, D 3, E 4);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5);
