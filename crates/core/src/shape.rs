//! Shapes and strides, stored inline up to six dimensions.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};

use crate::error::{Error, ErrorKind, Result};

/// The most dimensions a tensor can have; NumPy's limit.
pub const MAX_DIMS: usize = 64;

/// The number of dimensions stored inline; more are stored on the heap.
const INLINE: usize = 6;

/// One number per dimension.
///
/// It derefs to a slice of at most [`MAX_DIMS`] items. Cloning up to six dimensions copies a few
/// words, so that a view of a tensor allocates nothing.
#[derive(Clone)]
pub struct Dims<T> {
    // A `usize` rather than an enum's tag: these values are moved right after they are built, and
    // loading a word that was just stored as bytes stalls store forwarding.
    len: usize,
    items: [T; INLINE],
    /// All items, if they don't fit in `items`.
    heap: Option<Box<[T; MAX_DIMS]>>,
}

/// The size of each dimension.
pub type Shape = Dims<usize>;

/// The step between neighbours along each dimension, in elements; it may be negative or 0.
pub type Strides = Dims<isize>;

#[cold]
fn too_many(len: usize) -> Error {
    Error::new(
        ErrorKind::Shape,
        format!("{len} dimensions are too many; a tensor has at most {MAX_DIMS}"),
    )
}

impl<T: Copy + Default> Dims<T> {
    /// Returns no dimensions, the shape of a single number.
    #[inline]
    pub fn empty() -> Self {
        Dims { len: 0, items: [T::default(); INLINE], heap: None }
    }

    /// Copies a slice.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] when there are more than [`MAX_DIMS`].
    #[inline]
    pub fn new(items: &[T]) -> Result<Self> {
        let mut dims = Dims::filled(T::default(), items.len())?;
        dims.copy_from_slice(items);
        Ok(dims)
    }

    /// Returns `len` copies of one number.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] when `len` is above [`MAX_DIMS`].
    #[inline]
    pub fn filled(value: T, len: usize) -> Result<Self> {
        let mut dims = Dims { len, items: [value; INLINE], heap: None };
        if len > INLINE {
            if len > MAX_DIMS {
                return Err(too_many(len));
            }
            dims.heap = Some(Box::new([value; MAX_DIMS]));
        }
        Ok(dims)
    }

    /// Inserts a dimension at `index`, which is at most the length.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] when there are [`MAX_DIMS`] already.
    pub fn insert(&mut self, index: usize, value: T) -> Result<()> {
        let mut wider = Dims::filled(value, self.len() + 1)?;
        wider[..index].copy_from_slice(&self[..index]);
        wider[index + 1..].copy_from_slice(&self[index..]);
        *self = wider;
        Ok(())
    }

    /// Removes the dimension at `index`, which is below the length, and returns it.
    pub fn remove(&mut self, index: usize) -> T {
        let removed = self[index];
        self.copy_within(index + 1.., index);
        self.len -= 1;
        if self.len <= INLINE
            && let Some(heap) = self.heap.take()
        {
            self.items.copy_from_slice(&heap[..INLINE]);
        }
        removed
    }
}

impl<T> Deref for Dims<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match &self.heap {
            None => &self.items[..self.len],
            Some(heap) => &heap[..self.len],
        }
    }
}

impl<T> DerefMut for Dims<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.heap {
            None => &mut self.items[..self.len],
            Some(heap) => &mut heap[..self.len],
        }
    }
}

impl<T: Copy + Default> Default for Dims<T> {
    fn default() -> Self {
        Dims::empty()
    }
}

impl<T: Copy + Default, const N: usize> From<[T; N]> for Dims<T> {
    fn from(items: [T; N]) -> Self {
        const { assert!(N <= MAX_DIMS) };
        let mut dims = Dims::empty();
        dims.len = N;
        if N > INLINE {
            dims.heap = Some(Box::new([T::default(); MAX_DIMS]));
        }
        dims.copy_from_slice(&items);
        dims
    }
}

impl<T: Copy + Default> TryFrom<&[T]> for Dims<T> {
    type Error = Error;

    fn try_from(items: &[T]) -> Result<Self> {
        Dims::new(items)
    }
}

impl<T: Copy + Default> TryFrom<Vec<T>> for Dims<T> {
    type Error = Error;

    fn try_from(items: Vec<T>) -> Result<Self> {
        Dims::new(&items)
    }
}

impl<T: PartialEq> PartialEq for Dims<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for Dims<T> {}

impl<T: PartialEq> PartialEq<[T]> for Dims<T> {
    fn eq(&self, other: &[T]) -> bool {
        **self == *other
    }
}

impl<T: PartialEq, const N: usize> PartialEq<[T; N]> for Dims<T> {
    fn eq(&self, other: &[T; N]) -> bool {
        **self == *other
    }
}

impl<T: Hash> Hash for Dims<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<T: fmt::Debug> fmt::Debug for Dims<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // On one line, also in the alternate format.
        f.write_str("[")?;
        for (i, item) in self.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{item:?}")?;
        }
        f.write_str("]")
    }
}

impl<'a, T> IntoIterator for &'a Dims<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_up_to_the_limit_round_trips() {
        for len in 0..=MAX_DIMS {
            let items: Vec<usize> = (0..len).collect();
            let dims = Shape::new(&items).unwrap();
            assert_eq!(*dims, *items);
            assert_eq!(dims.clone(), dims);
            assert_eq!(dims.heap.is_none(), len <= 6);
        }
        let error = Shape::filled(1, MAX_DIMS + 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape);
        assert!(error.message().contains("65") && error.message().contains("64"), "{error}");
        assert!(Shape::new(&[1; 100]).is_err());
    }

    #[test]
    fn insert_and_remove_cross_the_inline_limit() {
        let mut dims = Shape::empty();
        for i in 0..MAX_DIMS {
            dims.insert(i / 2, i).unwrap();
        }
        assert_eq!(dims.insert(0, 1).unwrap_err().kind(), ErrorKind::Shape);
        let mut model: Vec<usize> = Vec::new();
        for i in 0..MAX_DIMS {
            model.insert(i / 2, i);
        }
        assert_eq!(*dims, *model);
        while !model.is_empty() {
            let at = model.len() / 2;
            assert_eq!(dims.remove(at), model.remove(at));
            assert_eq!(*dims, *model);
            assert_eq!(dims.heap.is_none(), dims.len() <= 6);
        }
    }

    #[test]
    fn equality_hash_and_debug_ignore_where_it_is_kept() {
        let mut shrunk = Shape::from([1, 2, 3, 4, 5, 6, 7]);
        shrunk.remove(6);
        assert_eq!(shrunk, Shape::from([1, 2, 3, 4, 5, 6]));
        assert_eq!(shrunk, [1, 2, 3, 4, 5, 6]);
        assert_eq!(format!("{:#?}", Strides::from([2, -1, 0])), "[2, -1, 0]");
        assert_eq!(format!("{:?}", Shape::empty()), "[]");
        let set: std::collections::HashSet<_> = [shrunk, Shape::from([1, 2, 3, 4, 5, 6])].into();
        assert_eq!(set.len(), 1);
    }
}
