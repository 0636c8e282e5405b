//! Thread pools: one interface, two schedules.
//!
//! [`parallel_for`] shares a range of indices out among threads. The calling thread takes part, so
//! `n` threads are the caller and `n - 1` workers; with one thread no worker is ever started. A
//! range that is no longer than its grain runs on the caller at once, without a look at the pool:
//! [`grain_for`] gives a grain for which that is right.
//!
//! How it works. A job is a description in its caller's frame. The caller writes its address into the
//! mailboxes of workers that look out for jobs, and begins to work. A helper that takes the address takes
//! parts until none are left. Once the caller finds no more parts it takes the address back from who
//! hasn't taken it, and waits for those helpers only that are at work. So nobody ever waits for a thread
//! that has yet to start, which is why nested calls can't deadlock, and why a small job costs no more than
//! calling the workers. What must not be is a part that waits for another part of the same job.
//!
//! A worker that has finished looks out for the next job for a while (30 to 200 microseconds, the longer the
//! more jobs have come), and takes it within some 100 nanoseconds. Then it sleeps. Waking it costs its
//! caller microseconds, so sleepers are woken only once what is left to do takes twice as long as a piece
//! should take ([`PIECE_NANOSECONDS`]): in a job of many pieces after its first ones, in a row of short jobs
//! after so many of them; at once for a job of less than 16 pieces per thread. Where workers must be woken, a
//! uniform schedule shares as an adaptive one does.
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
mod mailbox;
mod place;
mod share;
mod threads;
mod wake;
mod workers;

use std::ops::Range;

use keyfold_core::Result;

use workers::Workers;

pub use cost::{PIECE_NANOSECONDS, checked_grain, grain_for};
pub use threads::{MAX_THREADS, THREADS_VARIABLE, num_threads, set_num_threads};

/// How a range is shared out among threads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Schedule {
    /// One contiguous part per thread, all of one size: the least overhead, for even work.
    Uniform,
    /// Threads begin as for [`Schedule::Uniform`], the first at the front of its part, the second at the
    /// back, and so on, and who is done takes half of what another one has left, from the end where that
    /// one isn't: for uneven work, and machines that others use too.
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
