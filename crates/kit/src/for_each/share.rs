//! How many indices make a part: found out by doing the first ones.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use keyfold_core::{Error, ErrorKind, Result};

use crate::pool::{Schedule, grain_for, num_threads, parallel_for};

/// A first part shorter than this says little about the others, so a larger one is done next.
const TELLING_NANOSECONDS: u128 = 2_000;

/// Does `0..count` in parts, with as many threads as the work is worth.
///
/// The caller does parts of 1, 4, 16, .. indices until one took long enough to tell what an index
/// costs. If the rest is short (see [`grain_for`]) it does that too, and no thread is woken; else
/// the rest is shared out in parts of such a length.
///
/// # Errors
/// [`ErrorKind::KernelPanic`] when `f` panics, and as [`parallel_for`].
pub(super) fn share(
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
            if nanoseconds >= TELLING_NANOSECONDS {
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
    done.unwrap_or_else(|panic| Err(panicked(operator, &*panic)))
}

#[cold]
fn panicked(operator: &str, panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    Error::new(ErrorKind::KernelPanic, format!("{operator}: the body panicked: {text}"))
}
