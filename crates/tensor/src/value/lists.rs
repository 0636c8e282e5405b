//! Lists in typed kernels.

use std::ops::Deref;

use keyfold_core::{Error, ErrorKind, Result};

use super::{ValueRef, expected};
use crate::tensor::Tensor;

/// The number of integers stored inline.
const INLINE: usize = 6;

/// A list of integers: sizes, axes, strides. It allocates nothing up to six.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntList(Repr);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Repr {
    Inline(u8, [i64; INLINE]),
    Heap(Vec<i64>),
}

impl IntList {
    /// Returns the list as an array of fixed size; a single number is repeated, as for a schema's
    /// `int[2]`.
    ///
    /// # Errors
    /// [`ErrorKind::Binding`] for any other length.
    pub fn sized<const N: usize>(&self) -> Result<[i64; N]> {
        if let [each] = **self {
            return Ok([each; N]);
        }
        <[i64; N]>::try_from(&**self).map_err(|_| {
            Error::new(
                ErrorKind::Binding,
                format!("expected 1 or {N} whole numbers, not {} ({:?})", self.len(), &**self),
            )
        })
    }

    /// Converts a borrowed value; a single number is a list of one.
    pub(super) fn read(value: ValueRef<'_>) -> Result<IntList> {
        match value {
            ValueRef::Ints(items) => Ok(items.into()),
            ValueRef::Int(i) => Ok(IntList::from(&[i][..])),
            list => {
                let len = list.list_len().ok_or_else(|| expected("a list of int", list))?;
                let mut items = IntList::zeros(len);
                for (slot, item) in items.as_mut_slice().iter_mut().zip(list.items()) {
                    let ValueRef::Int(i) = item else {
                        return Err(expected("a list of int", list));
                    };
                    *slot = i;
                }
                Ok(items)
            }
        }
    }

    fn zeros(len: usize) -> IntList {
        IntList(match len {
            0..=INLINE => Repr::Inline(len as u8, [0; INLINE]),
            _ => Repr::Heap(vec![0; len]),
        })
    }

    fn as_mut_slice(&mut self) -> &mut [i64] {
        match &mut self.0 {
            Repr::Inline(len, items) => &mut items[..usize::from(*len)],
            Repr::Heap(items) => items,
        }
    }
}

impl From<&[i64]> for IntList {
    fn from(items: &[i64]) -> Self {
        let mut list = IntList::zeros(items.len());
        list.as_mut_slice().copy_from_slice(items);
        list
    }
}

impl Deref for IntList {
    type Target = [i64];

    #[inline]
    fn deref(&self) -> &[i64] {
        match &self.0 {
            Repr::Inline(len, items) => &items[..usize::from(*len)],
            Repr::Heap(items) => items,
        }
    }
}

/// A borrowed list of tensors, in any of the callers' forms; foreign tensors are viewed when they
/// are read.
#[derive(Clone, Copy, Debug)]
pub struct TensorList<'a>(ValueRef<'a>);

impl<'a> TensorList<'a> {
    /// Converts a borrowed value; a single tensor is a list of one. Items are checked when they are
    /// read.
    pub(super) fn read(value: ValueRef<'a>) -> Result<TensorList<'a>> {
        match value {
            ValueRef::Tensor(one) => Ok(TensorList(ValueRef::Tensors(std::slice::from_ref(one)))),
            list if list.list_len().is_some() => Ok(TensorList(list)),
            other => Err(expected("a list of Tensor", other)),
        }
    }

    pub(super) fn as_value(&self) -> ValueRef<'a> {
        self.0
    }

    /// Returns the number of items, including absent ones.
    pub fn len(&self) -> usize {
        self.0.list_len().unwrap_or(0)
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the tensor at an index.
    ///
    /// # Errors
    /// [`ErrorKind::Index`] for an index out of range, [`ErrorKind::Binding`] if the item isn't a
    /// tensor.
    pub fn get(&self, index: usize) -> Result<&'a Tensor> {
        self.item(index)?.tensor()
    }

    /// Returns the tensor at an index of a `Tensor?[]`, which may be absent.
    ///
    /// # Errors
    /// As [`TensorList::get`].
    pub fn get_optional(&self, index: usize) -> Result<Option<&'a Tensor>> {
        match self.item(index)? {
            ValueRef::None => Ok(None),
            item => item.tensor().map(Some),
        }
    }

    fn item(&self, index: usize) -> Result<ValueRef<'a>> {
        self.0.item(index).ok_or_else(|| {
            let len = self.len();
            Error::new(ErrorKind::Index, format!("a list of {len} tensors has no item {index}"))
        })
    }

    /// Returns the tensors in order, each as [`TensorList::get`].
    pub fn iter(&self) -> impl Iterator<Item = Result<&'a Tensor>> + use<'a> {
        self.0.items().map(ValueRef::tensor)
    }
}

impl<'a> From<&'a [Tensor]> for TensorList<'a> {
    fn from(items: &'a [Tensor]) -> Self {
        TensorList(ValueRef::Tensors(items))
    }
}

impl<'a> From<&'a [ValueRef<'a>]> for TensorList<'a> {
    fn from(items: &'a [ValueRef<'a>]) -> Self {
        TensorList(ValueRef::Refs(items))
    }
}
