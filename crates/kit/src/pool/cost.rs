//! The cost of dividing work among threads, and the smallest part worth a thread.

use keyfold_core::{Error, ErrorKind, Result};

/// The target time of a part, in nanoseconds: many times the cost of handing it to a thread, and short
/// enough that all threads finish at nearly the same time.
///
/// Measured by `cargo bench -p keyfold-kit --bench pools` on a shared two-core virtual machine, the
/// table of short jobs. While jobs follow each other closely, two threads break even at jobs of 2
/// microseconds, gain 1.5 times at 6 and 1.7 times at 10. After a pause the worker must be woken, which
/// takes 50 microseconds and costs the caller 15, and two threads break even at 50. So sharing a job of
/// less than one part would gain nothing, or too little to wake a worker for; the caller runs it alone.
pub const PIECE_NANOSECONDS: f64 = 20_000.0;

/// Returns the grain at which a part takes about [`PIECE_NANOSECONDS`], from the nanoseconds per index.
/// The caller runs shorter jobs alone: this is the serial cut-off.
pub fn grain_for(nanoseconds_per_index: f64) -> usize {
    // The cast saturates; NaN becomes 0 and thus the smallest grain.
    ((PIECE_NANOSECONDS / nanoseconds_per_index) as usize).max(1)
}

/// Checks a grain that comes from a table, a file or another language.
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
