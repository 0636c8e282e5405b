//! A stream: a queue with a thread that runs its operations as late as possible.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use keyfold_core::{Error, ErrorKind, Result};

/// The error of an operation, which may be reported repeatedly.
#[derive(Clone)]
pub(super) struct OperationFailure(ErrorKind, String);

impl From<&Error> for OperationFailure {
    fn from(error: &Error) -> OperationFailure {
        OperationFailure(error.kind(), error.message().to_owned())
    }
}

impl From<&OperationFailure> for Error {
    fn from(OperationFailure(kind, message): &OperationFailure) -> Error {
        Error::new(*kind, message.as_str()).late()
    }
}

#[cold]
fn panicked() -> Error {
    Error::new(ErrorKind::KernelFailed, "an operation panicked")
}

type Job = Box<dyn FnOnce() -> Result<()> + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// The number of jobs queued so far. A job's number is the count that includes it.
    queued: u64,
    /// The number of the last job that a thread waits for; the stream runs up to it.
    wanted: u64,
    done: u64,
    /// The error of the first failed job, until a waiting thread takes it.
    failed: Option<OperationFailure>,
    closed: bool,
}

/// Runs jobs in order, each when a thread first waits for it or for a later one.
pub(super) struct Stream {
    /// The device's time in nanoseconds, computed from the operations run: the same in every run.
    pub(super) clock: Arc<AtomicU64>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Stream {
    pub(super) fn start() -> Arc<Stream> {
        let (clock, queue, changed) = (Arc::default(), Mutex::default(), Condvar::new());
        let stream = Arc::new(Stream { clock, queue, changed });
        let worker = Arc::clone(&stream);
        std::thread::spawn(move || worker.work());
        stream
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn until(&self, mut reached: impl FnMut(&Queue) -> bool) -> MutexGuard<'_, Queue> {
        let waiting =
            self.changed.wait_while(self.lock(), |queue| !queue.closed && !reached(queue));
        waiting.unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        loop {
            let mut queue = self.until(|queue| queue.done < queue.wanted);
            if queue.closed {
                return;
            }
            let job = queue.jobs.pop_front();
            drop(queue);
            // A job drops its blocks before waiting threads are notified.
            let ran = job.map(|job| catch_unwind(AssertUnwindSafe(job)));
            let error = ran.and_then(|ran| ran.unwrap_or_else(|_| Err(panicked())).err());
            let mut queue = self.lock();
            queue.done += 1;
            if let Some(error) = error {
                queue.failed.get_or_insert((&error).into());
            }
            drop(queue);
            self.changed.notify_all();
        }
    }

    /// Queues a job, and returns its number.
    pub(super) fn push(&self, job: impl FnOnce() -> Result<()> + Send + 'static) -> u64 {
        let mut queue = self.lock();
        queue.jobs.push_back(Box::new(job));
        queue.queued += 1;
        queue.queued
    }

    pub(super) fn last(&self) -> u64 {
        self.lock().queued
    }

    pub(super) fn is_done(&self, number: u64) -> bool {
        self.lock().done >= number
    }

    /// Runs the jobs up to `number` and waits for them.
    pub(super) fn run_until(&self, number: u64) {
        let mut queue = self.lock();
        queue.wanted = queue.wanted.max(number);
        drop(queue);
        self.changed.notify_all();
        drop(self.until(|queue| queue.done >= number));
    }

    /// Runs all queued jobs and waits for them.
    ///
    /// # Errors
    /// The error of the first one that failed since the last call.
    pub(super) fn finish(&self) -> Result<()> {
        self.run_until(self.last());
        self.lock().failed.take().map_or(Ok(()), |failure| Err(Error::from(&failure)))
    }

    /// Ends the thread and drops the remaining jobs.
    pub(super) fn close(&self) {
        let mut queue = self.lock();
        queue.closed = true;
        let jobs = std::mem::take(&mut queue.jobs);
        drop(queue);
        self.changed.notify_all();
        drop(jobs);
    }
}
