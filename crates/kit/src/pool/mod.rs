//! The thread pool: one interface, two schedules.
//!
//! [`parallel_for`] divides a range of indices among threads. The calling thread takes part, so `n`
//! threads are the caller and `n - 1` workers; with one thread no worker is ever started. A range that
//! is no longer than its grain runs on the caller at once, without access to the pool; [`grain_for`]
//! computes a grain for which that pays.
//!
//! A job is a description in its caller's stack frame. The caller writes its address into the mailboxes
//! of idle workers, and begins to work. A helper that takes the address takes parts until none are left.
//! When the caller finds no more parts it withdraws the address from workers that haven't taken it, and
//! waits only for helpers that have. So no thread waits for a thread that has yet to start: nested calls
//! can't deadlock, and a small job costs no more than notifying the workers. A part must not wait for
//! another part of the same job.
//!
//! A worker that has finished spins for the next job for a while (30 to 200 microseconds, longer after
//! more jobs), and takes one within some 100 nanoseconds. Then it sleeps. Waking it costs the caller
//! microseconds, so sleepers are woken only when the remaining work takes twice as long as a piece
//! should take ([`PIECE_NANOSECONDS`]): a job of many pieces wakes them after its first pieces, a series
//! of short jobs after some of the jobs, and a job of less than 16 pieces per thread at once. If workers
//! must be woken, the uniform schedule is replaced by the adaptive one.
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
//! The number of threads is set by [`set_num_threads`], else by the environment variable
//! `KEYFOLD_NUM_THREADS`, else by the process's affinity and control group.
//!
//! A child of fork has none of its parent's workers: it drops the pool, and starts its own when it needs
//! one.

mod affinity;
mod cost;
mod job;
mod job_queue;
mod mailbox;
mod num_threads;
mod wake_policy;
mod work_stealing;
mod workers;

use std::ops::Range;

use keyfold_core::Result;

use workers::Workers;

pub use cost::{PIECE_NANOSECONDS, checked_grain, grain_for};
pub use num_threads::{MAX_THREADS, THREADS_VARIABLE, num_threads, set_num_threads};

/// How a range is divided among threads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Schedule {
    /// One contiguous part per thread, all of one size: the least overhead, for even work.
    Uniform,
    /// Work stealing: threads begin with contiguous parts as for [`Schedule::Uniform`], the first at the
    /// front of its part, the second at the back, and so on. A thread that is done takes half of another
    /// thread's remaining part, from the end where that thread isn't working. For uneven work, and for
    /// machines that other processes use too.
    #[default]
    Adaptive,
}

/// Calls `f` with parts of `range`, at most `grain` long, each index exactly once.
///
/// `f` runs on this thread and on workers, with this thread's local keys. Calls may be nested. After the
/// first error or panic, parts that haven't begun are skipped. A panic is resumed in the caller with its
/// own payload once the other threads have finished, as if `f` had panicked there (so that the boundary
/// to Python or C turns it into its typed error), and the workers stay usable.
///
/// # Errors
/// [`ErrorKind::Value`](keyfold_core::ErrorKind::Value) for grain 0, and for a malformed
/// `KEYFOLD_NUM_THREADS`; the first error of `f`; an error if workers can't be started.
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
    divide(schedule, range, grain, &f)
}

/// As [`parallel_for`], of several parts: compiled once, not for each caller, of whose function a copy in
/// here would be the third one.
fn divide(
    schedule: Schedule,
    range: Range<usize>,
    grain: usize,
    f: &(dyn Fn(Range<usize>) -> Result<()> + Sync),
) -> Result<()> {
    cost::check(grain)?;
    if num_threads()? == 1 {
        return job::pieces(range, grain, f);
    }
    job::run(schedule, range, grain, f)
}
