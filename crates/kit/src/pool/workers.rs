//! The process's workers: started when a job needs them, replaced when the number changes, and
//! forgotten in a child of fork.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::forklock::{AtFork, ForkLock};
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::job::Job;
use super::job_queue::{JobQueue, Ticket};
use super::place;

/// Room for kernels that call kernels; the system gives memory only to what is used of it.
const STACK: usize = 8 << 20;

/// Workers for jobs of so many threads.
pub(super) struct Workers {
    threads: usize,
    pool: ThreadPool,
    queue: Arc<JobQueue<Arc<Job>>>,
}

static CURRENT: ForkLock<Option<Arc<Workers>>> = ForkLock::new(None);
static AT_FORK: AtFork = AtFork::new();
/// Forks between this process and the one that loaded the library.
static GENERATION: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn before_fork() {
    CURRENT.acquire();
}

unsafe extern "C" fn after_fork_in_parent() {
    // SAFETY: `before_fork` took it, on this thread.
    unsafe { CURRENT.release() };
}

unsafe extern "C" fn after_fork_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // SAFETY: `before_fork` took the lock, on the thread that this one continues. The workers don't
    // exist here: what the parent knows of them is leaked, as its own locks may be taken.
    unsafe {
        let _leaked = (*CURRENT.value()).take().map(Arc::into_raw);
        CURRENT.release();
    }
}

/// Changes with every fork, in the child.
pub(super) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// The workers, started if need be; none where one thread does everything.
pub(super) fn current() -> Result<Option<Arc<Workers>>> {
    // SAFETY: the functions use nothing but statics, and the child's waits for nobody.
    unsafe { AT_FORK.register(before_fork, after_fork_in_parent, after_fork_in_child)? };
    let mut current = CURRENT.lock();
    // Under the lock, so that what is kept is of the number that was set last.
    let threads = super::num_threads()?;
    match &*current {
        Some(workers) if workers.threads == threads => return Ok(Some(Arc::clone(workers))),
        _ if threads == 1 => return Ok(None),
        _ => {}
    }
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads - 1)
        .thread_name(|at| format!("keyfold-{at}"))
        .stack_size(STACK)
        .build();
    let pool = pool.map_err(|error| {
        Error::new(
            ErrorKind::KernelFailed,
            format!(
                "can't start {} worker threads: {error}; set_num_threads or KEYFOLD_NUM_THREADS \
                 gives a smaller number",
                threads - 1
            ),
        )
    })?;
    let workers = Arc::new(Workers { threads, pool, queue: Arc::default() });
    let old = current.replace(Arc::clone(&workers));
    // Not under the lock: this wakes threads.
    drop(current);
    drop(old);
    Ok(Some(workers))
}

/// Gives up workers of another number; they end when their jobs are done.
pub(super) fn resize(threads: usize) {
    let old = CURRENT.lock().take_if(|workers| workers.threads != threads);
    // Not under the lock: this wakes threads.
    drop(old);
}

impl Workers {
    /// How many threads work on a job, its caller included.
    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// Offers a job to so many workers, until it is taken back.
    pub(super) fn invite(&self, job: &Arc<Job>, helpers: usize) -> Ticket {
        let (ticket, woken) = self.queue.push(job, helpers, self.threads - 1);
        // A worker that finds no job may have woken on the processor where its caller is busy.
        let busy = if woken > 0 { place::processor() } else { None };
        for _ in 0..woken {
            let queue = Arc::clone(&self.queue);
            self.pool.spawn(move || queue.serve(|job| job.help(), || place::leave(busy)));
        }
        ticket
    }

    /// Withdraws a job: no more workers take it.
    pub(super) fn take_back(&self, ticket: Ticket) {
        self.queue.remove(ticket);
    }
}
