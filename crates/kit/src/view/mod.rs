//! Typed views of memory, for the bodies of kernels.
//!
//! A *flat* view has any rank and one linear index (row-major order); a *ranked* view has a rank
//! known at compile time and one index per dimension. Either is for reading ([`FlatView`],
//! [`RankedView`]) or for writing ([`FlatViewMut`], [`RankedViewMut`]), and either [`Contiguous`] or
//! [`Strided`]: transposed, sliced, flipped and broadcast memory all work, and rank 0 too.
//!
//! All are `Copy` and `repr(C)`; `include/keyfold_views.h` declares the same structs for CUDA C and
//! C++. Everything that a view can reach is checked when it is made, in release builds as well.
//!
//! # Who may write
//! A view borrows the memory that it was made of. Since copies of a writing view alias, its elements
//! are written by the engine ([`map`](crate::for_each::map) and its relatives), which gives every
//! element to one call of the body alone, and refuses views that overlap. A writing view stays on
//! the thread that made it. Writing at an index of one's own choice is unsafe ([`Writer`]).

mod check;
mod element;
mod flat;
#[cfg(test)]
mod header_tests;
mod layout;
mod overlap;
mod ranked;

pub use crate::axes::{Contiguous, Strided};
pub use flat::{FlatView, FlatViewMut, Writer};
pub use layout::{Dim, FLAT_DIMS, FlatDims, HasLayout, Layout, NoStrides};
pub use ranked::{RankedView, RankedViewMut};

pub(crate) use overlap::Extent;

/// A list that is short mostly, and then without an allocation.
pub(crate) type Few<T> = smallvec::SmallVec<[T; 4]>;
