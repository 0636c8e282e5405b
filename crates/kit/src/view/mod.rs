//! Typed views of memory, for kernels' bodies.
//!
//! A *flat* view has any rank and one linear index (row-major order); a *ranked* view has a rank known
//! at compile time and one index per dimension. Either is for reading ([`FlatView`], [`RankedView`]) or
//! for writing ([`FlatViewMut`], [`RankedViewMut`]), and either [`Contiguous`] or [`Strided`]:
//! transposed, sliced, flipped and broadcast memory is supported, and rank 0, too.
//!
//! All are `Copy` and `repr(C)`; `include/keyfold_views.h` declares the same structs for CUDA C and C++.
//! Every element that a view can access is checked to be inside its memory when the view is made, in
//! release builds as well.
//!
//! ```
//! use keyfold_kit::for_each::map;
//! use keyfold_kit::view::{FlatViewMut, RankedView, Strided};
//!
//! // A 2 by 3 matrix viewed as its transpose: sizes, strides and the offset of the first element.
//! let data = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0];
//! let transposed: RankedView<'_, f32, 2, Strided> =
//!     RankedView::from_slice(&data, [3, 2], [1, 3], 0)?;
//! assert_eq!(transposed.at([2, 0]), 3.0);
//! assert_eq!(transposed.get([3, 0]), None);
//!
//! let mut copy = [0.0_f32; 6];
//! map((), FlatViewMut::new(&mut copy), transposed.flat()?, |x| x)?;
//! assert_eq!(copy, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
//!
//! // A view that would access memory outside the slice is refused.
//! assert!(RankedView::<f32, 2, Strided>::from_slice(&data, [3, 3], [1, 3], 0).is_err());
//! # Ok::<(), keyfold_core::Error>(())
//! ```
//!
//! # Writing
//! A view borrows the memory that it was made of. Since copies of a writing view alias, its elements are
//! written by the engine ([`map`](crate::for_each::map) and its relatives), which passes every element
//! to one call of the body alone, and refuses views that overlap. A writing view stays on the thread
//! that made it. Writing at an arbitrary index is unsafe ([`Writer`]).

mod bounds;
mod element;
mod flat;
mod layout;
mod overlap;
mod ranked;
#[cfg(test)]
mod tests;

pub use crate::axes::{Contiguous, Strided};
pub use flat::{FlatView, FlatViewMut, Writer};
pub use layout::{Dim, FLAT_DIMS, FlatDims, HasLayout, Layout, NoStrides};
pub use ranked::{RankedView, RankedViewMut};

pub(crate) use overlap::Extent;

/// A list that is usually short, and then needs no allocation.
pub(crate) type ShortVec<T> = smallvec::SmallVec<[T; 4]>;
