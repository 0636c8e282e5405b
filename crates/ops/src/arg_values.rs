//! Arguments as plain values, for the batching rules of all families.

use keyfold_core::layout;
use keyfold_tensor::ValueRef;

/// The whole number that an argument is.
pub(crate) fn int(value: ValueRef<'_>) -> Option<i64> {
    if let ValueRef::Int(n) = value { Some(n) } else { None }
}

pub(crate) fn is_true(value: ValueRef<'_>) -> bool {
    matches!(value, ValueRef::Bool(true))
}

/// The whole numbers of a list; a lone one is a list of one.
pub(crate) fn ints(value: ValueRef<'_>) -> Option<Vec<i64>> {
    match value {
        ValueRef::Ints(items) => Some(items.to_vec()),
        ValueRef::Int(n) => Some(vec![n]),
        list => {
            list.list_len()?;
            list.items().map(int).collect()
        }
    }
}

/// A dimension of an example of that rank, where the batch stands before it.
pub(crate) fn batched_dim(dim: i64, rank: usize) -> Option<i64> {
    Some(layout::normalize_axis(dim, rank).ok()? as i64 + 1)
}
