//! A stream: a queue and the thread that works on it, as late as it may.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use keyfold_core::{Error, ErrorKind, Result};

type Job = Box<dyn FnOnce() -> Result<()> + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// How many jobs were ever queued. A job's number is the count with it.
    queued: u64,
    /// The number of the last job that somebody waits for: the thread works up to it.
    wanted: u64,
    done: u64,
    /// What a job failed with. Those behind it don't run, and whoever waits is told.
    failed: Option<(ErrorKind, String)>,
    closed: bool,
}

/// Runs jobs in order, each when somebody first waits for it or for a later one.
pub(crate) struct Stream {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Stream {
    pub(crate) fn start() -> Arc<Stream> {
        let stream = Arc::new(Stream { queue: Mutex::default(), changed: Condvar::new() });
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
            let is_sound = queue.failed.is_none();
            drop(queue);
            let error = job.filter(|_| is_sound).and_then(|job| job().err());
            let mut queue = self.lock();
            queue.done += 1;
            if let Some(error) = error {
                queue.failed = Some((error.kind(), error.message().to_owned()));
            }
            drop(queue);
            self.changed.notify_all();
        }
    }

    /// Queues a job, and returns its number.
    pub(crate) fn push(&self, job: impl FnOnce() -> Result<()> + Send + 'static) -> u64 {
        let mut queue = self.lock();
        queue.jobs.push_back(Box::new(job));
        queue.queued += 1;
        queue.queued
    }

    pub(crate) fn last(&self) -> u64 {
        self.lock().queued
    }

    pub(crate) fn is_done(&self, number: u64) -> bool {
        self.lock().done >= number
    }

    /// Has the jobs up to that one run, and waits for them.
    pub(crate) fn wait(&self, number: u64) -> Result<()> {
        let mut queue = self.lock();
        queue.wanted = queue.wanted.max(number);
        drop(queue);
        self.changed.notify_all();
        let queue = self.until(|queue| queue.done >= number);
        match &queue.failed {
            Some((kind, message)) => Err(Error::new(*kind, message.as_str())),
            None => Ok(()),
        }
    }

    /// Has everything run, and forgets what failed.
    pub(crate) fn drain(&self) -> Result<()> {
        let done = self.wait(self.last());
        self.lock().failed = None;
        done
    }

    /// Ends the thread. Jobs that didn't run are dropped.
    pub(crate) fn close(&self) {
        let mut queue = self.lock();
        queue.closed = true;
        let jobs = std::mem::take(&mut queue.jobs);
        drop(queue);
        self.changed.notify_all();
        drop(jobs);
    }
}
