//! Operators that draw random numbers from the stream of their device, see
//! [`keyfold_tensor::device::random`].

mod dropout;
mod native_dropout;
mod uniform_normal;

use keyfold_core::Result;

use crate::row::Row;

/// Returns the rows of the random operators.
pub(crate) fn rows() -> Result<Vec<Row>> {
    let mut rows = uniform_normal::rows()?;
    rows.push(dropout::row()?);
    rows.extend(native_dropout::rows()?);
    Ok(rows)
}
