//! The number of indices per part, measured on the first indices.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use keyfold_core::{Error, ErrorKind, Result};

use crate::pool::{Schedule, grain_for, num_threads, parallel_for};

/// A first part that takes less time than this tells little about the others, so a larger one is run
/// next.
const MIN_SAMPLE_NANOSECONDS: u128 = 2_000;

/// Runs `0..count` in parts, on as many threads as the work is worth.
///
/// The caller runs parts of 1, 4, 16, .. indices until one takes long enough to estimate the time per
/// index. If the remaining indices take little time (see [`grain_for`]) the caller runs them too, and no
/// thread is woken; otherwise they are divided into parts of that grain.
///
/// # Errors
/// [`ErrorKind::KernelPanic`] when `f` panics, and as [`parallel_for`].
pub(super) fn run_with_measured_grain(
    operator: &str,
    schedule: Schedule,
    count: usize,
    f: impl Fn(Range<usize>) + Sync,
) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let threads = num_threads()?;
    let done = catch_unwind(AssertUnwindSafe(|| {
        if threads == 1 || count == 1 {
            f(0..count);
            return Ok(());
        }
        let (mut start, mut part) = (0, 1);
        loop {
            let end = count.min(start + part);
            let begin = Instant::now();
            f(start..end);
            let nanoseconds = begin.elapsed().as_nanos();
            if end == count {
                return Ok(());
            }
            if nanoseconds >= MIN_SAMPLE_NANOSECONDS {
                let grain = grain_for(nanoseconds as f64 / (end - start) as f64);
                return parallel_for(schedule, end..count, grain, |range| {
                    f(range);
                    Ok(())
                });
            }
            start = end;
            part *= 4;
        }
    }));
    done.unwrap_or_else(|panic| Err(panic_error(operator, &*panic)))
}

#[cold]
fn panic_error(operator: &str, panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    Error::new(ErrorKind::KernelPanic, format!("{operator}: the body panicked: {text}"))
}
