//! Random numbers: the operators that draw from the stream of their device, see
//! [`keyfold_tensor::device::random`].

mod dropout;
mod uniform_normal;

use keyfold_core::Result;

use crate::row::Row;

/// The rows of random numbers.
pub(crate) fn rows() -> Result<Vec<Row>> {
    let mut rows = uniform_normal::rows()?;
    rows.push(dropout::row()?);
    Ok(rows)
}
