//! The process's worker threads: started when a job needs them, replaced when the number changes, and
//! dropped in a child of fork.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::forklock::{AtFork, ForkLock};
use smallvec::SmallVec;

use super::job::{Job, JobRef};
use super::job_queue::JobQueue;
use super::mailbox::Mailbox;
use super::wake_policy::AloneSeries;

/// The stack size of workers, in bytes: enough for kernels that call kernels. The system allocates only
/// the pages that are used.
const STACK_BYTES: usize = 8 << 20;

/// The longest and the shortest time that a worker spins. The time doubles when a job came, and halves
/// when none did.
pub(super) const MAX_SPIN_TIME: Duration = Duration::from_micros(200);
const MIN_SPIN_TIME: Duration = Duration::from_micros(30);

/// The number of looks at the mailbox between two looks at the clock and the queue.
const SPINS_PER_CHECK: usize = 32;

/// The workers of a pool.
pub(super) struct Workers {
    threads: usize,
    /// One mailbox per worker.
    mailboxes: Box<[Mailbox<Job>]>,
    /// Jobs that found too few idle workers.
    queue: JobQueue<JobRef>,
    /// Jobs that their callers ran alone.
    alone_series: AloneSeries,
    /// Whether the workers are to end when they are idle.
    retired: AtomicBool,
}

/// The places where a job was offered.
pub(super) struct Offers {
    mailboxes: SmallVec<[u32; 16]>,
    /// The number of further helpers that the job could use.
    pub(super) wanted: usize,
    queued: bool,
}

static CURRENT: ForkLock<Option<Arc<Workers>>> = ForkLock::new(None);
static AT_FORK: AtFork = AtFork::new();
/// The number of forks between this process and the one that loaded the library.
static GENERATION: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn before_fork() {
    CURRENT.acquire();
}

unsafe extern "C" fn after_fork_in_parent() {
    // SAFETY: `before_fork` took the lock, on this thread.
    unsafe { CURRENT.release() };
}

unsafe extern "C" fn after_fork_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // SAFETY: `before_fork` took the lock, on the thread that this one continues. The workers don't
    // exist here, so the parent's record of them is leaked: its own locks may be held.
    unsafe {
        let _leaked = (*CURRENT.value()).take().map(Arc::into_raw);
        CURRENT.release();
    }
}

/// The number of forks; it changes in the child of every fork.
pub(super) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Returns the workers, started if there are none; `None` if the number of threads is 1.
pub(super) fn current() -> Result<Option<Arc<Workers>>> {
    // SAFETY: the functions use only statics, and the child's handler waits for no lock.
    unsafe { AT_FORK.register(before_fork, after_fork_in_parent, after_fork_in_child)? };
    let mut current = CURRENT.lock();
    // Read under the lock, so that the workers kept are of the number that was set last.
    let threads = super::num_threads()?;
    match &*current {
        Some(workers) if workers.threads == threads => return Ok(Some(Arc::clone(workers))),
        _ if threads == 1 => return Ok(None),
        _ => {}
    }
    let workers = Workers::start(threads)?;
    let old = current.replace(Arc::clone(&workers));
    // Outside the lock, since this wakes threads.
    drop(current);
    retire(old);
    Ok(Some(workers))
}

fn retire(workers: Option<Arc<Workers>>) {
    if let Some(workers) = workers {
        workers.retire();
    }
}

/// Retires workers of another number; they end when their jobs are done.
pub(super) fn resize(threads: usize) {
    let old = CURRENT.lock().take_if(|workers| workers.threads != threads);
    // Outside the lock, since this wakes threads.
    retire(old);
}

impl Workers {
    /// The number of threads that work on a job, its caller included.
    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    fn start(threads: usize) -> Result<Arc<Workers>> {
        let workers = Arc::new(Workers {
            threads,
            mailboxes: (1..threads).map(|_| Mailbox::default()).collect(),
            queue: JobQueue::default(),
            alone_series: AloneSeries::default(),
            retired: AtomicBool::new(false),
        });
        for number in 0..threads - 1 {
            let own = Arc::clone(&workers);
            let thread = std::thread::Builder::new()
                .name(format!("keyfold-{number}"))
                .stack_size(STACK_BYTES)
                .spawn(move || own.run_worker(&own.mailboxes[number]));
            if let Err(error) = thread {
                workers.retire();
                return Err(Error::new(
                    ErrorKind::KernelFailed,
                    format!(
                        "can't start {} worker threads: {error}; set_num_threads or \
                         KEYFOLD_NUM_THREADS gives a smaller number",
                        threads - 1
                    ),
                ));
            }
        }
        Ok(workers)
    }

    /// Jobs that their callers ran alone.
    pub(super) fn alone_series(&self) -> &AloneSeries {
        &self.alone_series
    }

    fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
        self.mailboxes.iter().for_each(Mailbox::wake_without_job);
    }

    /// Whether every worker spins.
    pub(super) fn are_all_spinning(&self) -> bool {
        self.mailboxes.iter().all(Mailbox::is_idle)
    }

    /// Offers a job to workers that spin, at most this many.
    pub(super) fn offer(&self, job: &Job, helpers: usize) -> Offers {
        let mut offers = Offers { mailboxes: SmallVec::new(), wanted: helpers, queued: false };
        self.hand_to_workers(job, Mailbox::hand_to_idle, &mut offers);
        offers
    }

    /// Offers a job to sleeping workers, too; for the remaining wanted helpers the job is queued.
    #[cold]
    pub(super) fn offer_to_all(&self, job: &Job, offers: &mut Offers) {
        self.hand_to_workers(job, Mailbox::hand_to_sleeper, offers);
        if offers.wanted > 0 {
            offers.queued = true;
            self.queue.push(JobRef(job), offers.wanted);
            // Workers that became idle before they could see the job in the queue.
            self.hand_to_workers(job, Mailbox::hand_to_idle, offers);
            self.hand_to_workers(job, Mailbox::hand_to_sleeper, offers);
            offers.wanted = 0;
        }
    }

    fn hand_to_workers(
        &self,
        job: &Job,
        hand: impl Fn(&Mailbox<Job>, *const Job) -> bool,
        offers: &mut Offers,
    ) {
        for (number, mailbox) in self.mailboxes.iter().enumerate() {
            if offers.wanted == 0 {
                return;
            }
            job.count_helper();
            if hand(mailbox, job) {
                offers.mailboxes.push(number as u32);
                offers.wanted -= 1;
            } else {
                job.uncount_helper();
            }
        }
    }

    /// Withdraws a job from the mailboxes whose workers haven't taken it.
    pub(super) fn withdraw_job(&self, job: &Job, offers: &Offers) {
        for number in &offers.mailboxes {
            if self.mailboxes[*number as usize].withdraw_job(job) {
                job.uncount_helper();
            }
        }
    }

    /// Removes a job from the queue.
    pub(super) fn remove_from_queue(&self, job: &Job, offers: &Offers) {
        if offers.queued {
            self.queue.remove(JobRef(job));
        }
    }

    /// Runs jobs until the worker is retired.
    fn run_worker(&self, mailbox: &Mailbox<Job>) {
        mailbox.register_thread();
        let mut spin_time = MAX_SPIN_TIME;
        while let Some(job) = self.next(mailbox, &mut spin_time) {
            // SAFETY: `next` counted this worker, so the job exists until `help` ends.
            unsafe { &*job }.help(|| mailbox.free());
        }
    }

    /// Returns the next job for an idle worker; `None` if the worker is to end. The job has counted the
    /// worker, and so exists until the worker leaves it.
    fn next(&self, mailbox: &Mailbox<Job>, spin_time: &mut Duration) -> Option<*const Job> {
        loop {
            if self.queue.wants() && mailbox.close_if_empty() {
                // SAFETY: jobs in the queue exist: their callers remove them before they return.
                let job = self.queue.take(|JobRef(job)| unsafe { &*job }.count_helper());
                if let Some(JobRef(job)) = job {
                    return Some(job);
                }
                mailbox.free();
            }
            if let Some(job) = self.spin(mailbox, *spin_time) {
                *spin_time = MAX_SPIN_TIME.min(*spin_time * 2);
                return Some(job);
            }
            if self.queue.wants() {
                continue;
            }
            if self.retired.load(Ordering::SeqCst) {
                if mailbox.close_if_empty() {
                    return None;
                }
                continue;
            }
            *spin_time = MIN_SPIN_TIME.max(*spin_time / 2);
            mailbox.sleep(|| self.queue.wants() || self.retired.load(Ordering::SeqCst));
        }
    }

    /// Spins for a job in the mailbox, until the time is over or a job is in the queue.
    fn spin(&self, mailbox: &Mailbox<Job>, spin_time: Duration) -> Option<*const Job> {
        let mut start = None;
        loop {
            for _ in 0..SPINS_PER_CHECK {
                if let Some(job) = mailbox.take() {
                    return Some(job);
                }
                std::hint::spin_loop();
            }
            if self.queue.wants() || start.get_or_insert_with(Instant::now).elapsed() >= spin_time {
                return None;
            }
        }
    }
}
