//! The process's workers: started when a job needs them, replaced when the number changes, and
//! forgotten in a child of fork.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::forklock::{AtFork, ForkLock};
use smallvec::SmallVec;

use super::job::{Job, JobRef};
use super::job_queue::JobQueue;
use super::mailbox::Mailbox;
use super::wake::Row;

/// Room for kernels that call kernels; the system gives memory only to what is used of it.
const STACK: usize = 8 << 20;

/// The longest and the shortest time that a worker spins. It spins longer the next time if a job came, and
/// shorter if none did.
pub(super) const LONGEST: Duration = Duration::from_micros(200);
const SHORTEST: Duration = Duration::from_micros(30);

/// How often a worker looks at its mailbox before it looks at the clock and the queue.
const LOOKS: usize = 32;

/// Workers for jobs of so many threads.
pub(super) struct Workers {
    threads: usize,
    /// One per worker.
    mailboxes: Box<[Mailbox<Job>]>,
    /// Jobs that found too few workers free.
    queue: JobQueue<JobRef>,
    /// Jobs that woke nobody.
    row: Row,
    /// They end when they have nothing to do.
    retired: AtomicBool,
}

/// Where a job was offered.
pub(super) struct Offers {
    mailboxes: SmallVec<[u32; 16]>,
    /// How many more workers the job could use.
    pub(super) wanted: usize,
    queued: bool,
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
    let workers = Workers::start(threads)?;
    let old = current.replace(Arc::clone(&workers));
    // Not under the lock: this wakes threads.
    drop(current);
    retire(old);
    Ok(Some(workers))
}

fn retire(workers: Option<Arc<Workers>>) {
    if let Some(workers) = workers {
        workers.retire();
    }
}

/// Gives up workers of another number; they end when their jobs are done.
pub(super) fn resize(threads: usize) {
    let old = CURRENT.lock().take_if(|workers| workers.threads != threads);
    // Not under the lock: this wakes threads.
    retire(old);
}

impl Workers {
    /// How many threads work on a job, its caller included.
    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    fn start(threads: usize) -> Result<Arc<Workers>> {
        let workers = Arc::new(Workers {
            threads,
            mailboxes: (1..threads).map(|_| Mailbox::default()).collect(),
            queue: JobQueue::default(),
            row: Row::default(),
            retired: AtomicBool::new(false),
        });
        for number in 0..threads - 1 {
            let own = Arc::clone(&workers);
            let thread = std::thread::Builder::new()
                .name(format!("keyfold-{number}"))
                .stack_size(STACK)
                .spawn(move || own.serve(&own.mailboxes[number]));
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

    /// Jobs that woke nobody.
    pub(super) fn row(&self) -> &Row {
        &self.row
    }

    fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
        self.mailboxes.iter().for_each(Mailbox::rouse);
    }

    /// Whether no worker sleeps, or is at work.
    pub(super) fn are_all_spinning(&self) -> bool {
        self.mailboxes.iter().all(Mailbox::is_idle)
    }

    /// Offers a job to workers that spin, at most so many.
    pub(super) fn offer(&self, job: &Job, helpers: usize) -> Offers {
        let mut offers = Offers { mailboxes: SmallVec::new(), wanted: helpers, queued: false };
        self.hand_out(job, Mailbox::hand_to_idle, &mut offers);
        offers
    }

    /// Offers a job to workers that sleep, too. What is wanted then waits for those that are at work.
    #[cold]
    pub(super) fn offer_to_all(&self, job: &Job, offers: &mut Offers) {
        self.hand_out(job, Mailbox::hand_to_sleeper, offers);
        if offers.wanted > 0 {
            offers.queued = true;
            self.queue.push(JobRef(job), offers.wanted);
            // Those that became free before they could see the job there.
            self.hand_out(job, Mailbox::hand_to_idle, offers);
            self.hand_out(job, Mailbox::hand_to_sleeper, offers);
            offers.wanted = 0;
        }
    }

    fn hand_out(
        &self,
        job: &Job,
        hand: impl Fn(&Mailbox<Job>, *const Job) -> bool,
        offers: &mut Offers,
    ) {
        for (number, mailbox) in self.mailboxes.iter().enumerate() {
            if offers.wanted == 0 {
                return;
            }
            job.enter();
            if hand(mailbox, job) {
                offers.mailboxes.push(number as u32);
                offers.wanted -= 1;
            } else {
                job.withdraw();
            }
        }
    }

    /// Withdraws a job from the mailboxes whose workers haven't taken it.
    pub(super) fn take_back(&self, job: &Job, offers: &Offers) {
        for number in &offers.mailboxes {
            if self.mailboxes[*number as usize].take_back(job) {
                job.withdraw();
            }
        }
    }

    /// Withdraws a job from the queue.
    pub(super) fn leave_queue(&self, job: &Job, offers: &Offers) {
        if offers.queued {
            self.queue.remove(JobRef(job));
        }
    }

    /// A worker's life.
    fn serve(&self, mailbox: &Mailbox<Job>) {
        mailbox.move_in();
        let mut spin_time = LONGEST;
        while let Some(job) = self.next(mailbox, &mut spin_time) {
            // SAFETY: `next` says so.
            unsafe { &*job }.help(|| mailbox.free());
        }
    }

    /// The next job for a worker that is free; `None` if it is to end. The job counts the worker, and so is
    /// there until the worker leaves it.
    fn next(&self, mailbox: &Mailbox<Job>, spin_time: &mut Duration) -> Option<*const Job> {
        loop {
            if self.queue.wants() && mailbox.close() {
                // SAFETY: jobs in the queue are there: their callers remove them before they go on.
                let job = self.queue.take(|JobRef(job)| unsafe { &*job }.enter());
                if let Some(JobRef(job)) = job {
                    return Some(job);
                }
                mailbox.free();
            }
            if let Some(job) = self.spin(mailbox, *spin_time) {
                *spin_time = LONGEST.min(*spin_time * 2);
                return Some(job);
            }
            if self.queue.wants() {
                continue;
            }
            if self.retired.load(Ordering::SeqCst) {
                if mailbox.close() {
                    return None;
                }
                continue;
            }
            *spin_time = SHORTEST.max(*spin_time / 2);
            mailbox.sleep(|| self.queue.wants() || self.retired.load(Ordering::SeqCst));
        }
    }

    /// Waits for a job in the mailbox, for so long, or until one is in the queue.
    fn spin(&self, mailbox: &Mailbox<Job>, spin_time: Duration) -> Option<*const Job> {
        let mut start = None;
        loop {
            for _ in 0..LOOKS {
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
