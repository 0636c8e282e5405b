//! Arguments of batching rules as integers, bools and dimensions.

use keyfold_core::layout;
use keyfold_tensor::ValueRef;

/// Returns the value of an `int` argument.
pub(crate) fn int(value: ValueRef<'_>) -> Option<i64> {
    if let ValueRef::Int(n) = value { Some(n) } else { None }
}

pub(crate) fn is_true(value: ValueRef<'_>) -> bool {
    matches!(value, ValueRef::Bool(true))
}

/// Returns the values of an `int[]` argument; an `int` is a list of one.
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

/// Normalizes a dimension of an example of that rank and shifts it by one, past the batch dimension at the
/// front.
pub(crate) fn batched_dim(dim: i64, rank: usize) -> Option<i64> {
    Some(layout::normalize_axis(dim, rank).ok()? as i64 + 1)
}
