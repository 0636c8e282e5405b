//! What sharing work costs, and the number of indices that make a part worth sharing.

use keyfold_core::{Error, ErrorKind, Result};

/// How long a part should take, in nanoseconds: many times what sharing costs, and short enough
/// for an even end.
///
/// Measured by `cargo bench -p keyfold-kit --bench pools` on a shared two-core virtual machine, the
/// table of short jobs: while jobs follow each other closely, two threads break even at jobs of 2
/// microseconds, gain 1.5 times at 6 and 1.7 times at 10; after a pause the worker must be woken,
/// which takes 50 microseconds and costs the caller 15, and two threads break even at 50. So jobs of
/// less than one part, which the caller does alone, would gain nothing or too little to wake anybody
/// for.
pub const PIECE_NANOSECONDS: f64 = 20_000.0;

/// The grain at which a part takes about [`PIECE_NANOSECONDS`], for work of so many nanoseconds per
/// index. Jobs shorter than that are thereby done by their caller alone: the serial cut-off.
pub fn grain_for(nanoseconds_per_index: f64) -> usize {
    // The cast saturates; NaN gives 0, and so the smallest grain.
    ((PIECE_NANOSECONDS / nanoseconds_per_index) as usize).max(1)
}

/// A grain from a table, a file or another language.
///
/// # Errors
/// [`ErrorKind::Value`] if it is 0 or negative.
pub fn checked_grain(grain: i64) -> Result<usize> {
    usize::try_from(grain).ok().filter(|grain| *grain > 0).ok_or_else(|| refused(grain))
}

#[cold]
fn refused(grain: i64) -> Error {
    let message = format!("parallel_for: argument 'grain' is {grain}; a part has at least 1 index");
    Error::new(ErrorKind::Value, message)
}

pub(super) fn check(grain: usize) -> Result<()> {
    if grain == 0 { Err(refused(0)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grain_of_0_or_less_is_an_error_that_names_it() {
        for grain in [0, -1, i64::MIN] {
            let error = checked_grain(grain).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Value);
            assert!(error.message().contains(&format!("'grain' is {grain};")), "{error}");
        }
        assert_eq!(checked_grain(7).unwrap(), 7);
    }

    #[test]
    fn costly_indices_make_small_grains_but_never_0() {
        assert_eq!(grain_for(1.0), PIECE_NANOSECONDS as usize);
        assert_eq!(grain_for(1e12), 1);
        assert_eq!(grain_for(f64::NAN), 1);
        assert_eq!(grain_for(0.0), usize::MAX);
    }
}
