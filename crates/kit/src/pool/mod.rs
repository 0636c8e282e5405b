//! Thread pools: one interface, two schedules.
//!
//! [`parallel_for`] shares a range of indices out among threads. The calling thread takes part, so
//! `n` threads are the caller and `n - 1` workers; with one thread no worker is ever started. A
//! range that is no longer than its grain runs on the caller at once, without a look at the pool:
//! [`grain_for`] gives a grain for which that is right.
//!
//! How it works. A job is a description on the heap. Its caller puts it up where workers (threads of
//! a pool of rayon's, our own) find it, calls those that it could use and that sleep, and begins to
//! work. A helper that arrives takes parts until none are left. Once the caller finds no more parts
//! it takes the job down, closes it, and waits for those helpers only that are at work in it. So
//! nobody ever waits for a thread that has yet to start, which is why nested calls can't deadlock,
//! and why a small job costs no more than calling the workers.
//!
//! ```
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! use keyfold_kit::pool::{Schedule, grain_for, parallel_for};
//!
//! let numbers: Vec<u64> = (0..100_000).collect();
//! let sum = AtomicU64::new(0);
//! // An addition takes about half a nanosecond.
//! parallel_for(Schedule::Adaptive, 0..numbers.len(), grain_for(0.5), |part| {
//!     sum.fetch_add(numbers[part].iter().sum(), Ordering::Relaxed);
//!     Ok(())
//! })?;
//! assert_eq!(sum.into_inner(), 4_999_950_000);
//! # Ok::<(), keyfold_core::Error>(())
//! ```
//!
//! The number of threads is, in this order: [`set_num_threads`], the environment variable
//! `KEYFOLD_NUM_THREADS`, and what the process's affinity and control group allow.
//!
//! A child of fork has none of its parent's workers: it forgets the pool, and starts its own when
//! it needs one.

mod cost;
mod job;
mod job_queue;
mod place;
mod share;
mod threads;
mod workers;

use std::ops::Range;

use keyfold_core::Result;

pub use cost::{PIECE_NANOSECONDS, checked_grain, grain_for};
pub use threads::{MAX_THREADS, THREADS_VARIABLE, num_threads, set_num_threads};

/// How a range is shared out among threads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Schedule {
    /// One contiguous part per thread, all of one size: the least overhead, for even work.
    Uniform,
    /// Threads begin as for [`Schedule::Uniform`], and who is done takes half of what another one
    /// has left: for uneven work, and machines that others use too.
    #[default]
    Adaptive,
}

/// Calls `f` with parts of `range`, at most `grain` long, each index exactly once.
///
/// `f` runs on this thread and on workers, with this thread's local keys. Calls may be nested. After
/// the first error or panic, parts that nobody began are left out; a panic goes on in the caller
/// with its own payload once the others have finished, as if `f` had panicked there (so that the
/// boundary to Python or C makes its typed error of it), and the workers stay usable.
///
/// # Errors
/// [`ErrorKind::Value`](keyfold_core::ErrorKind::Value) for grain 0, and for a malformed
/// `KEYFOLD_NUM_THREADS`; the first error of `f`; an error where workers can't be started.
#[inline]
pub fn parallel_for(
    schedule: Schedule,
    range: Range<usize>,
    grain: usize,
    f: impl Fn(Range<usize>) -> Result<()> + Sync,
) -> Result<()> {
    if range.len() <= grain && grain != 0 {
        return if range.is_empty() { Ok(()) } else { f(range) };
    }
    cost::check(grain)?;
    if num_threads()? == 1 {
        return job::pieces(range, grain, &f);
    }
    job::run(schedule, range, grain, &f)
}
