//! A device's stream: a thread that runs operations in order, after their calls have returned.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use keyfold_plugin::{Error, ErrorKind, Result};

/// An operation, which returns the error that is reported later.
type Job = Box<dyn FnOnce() -> Result<()> + Send>;

/// A point in the order of a stream's operations, and when it was reached.
#[derive(Default)]
pub(crate) struct Event {
    reached: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl Event {
    pub(crate) fn is_reached(&self) -> bool {
        self.reached.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Waits until the event is reached, and returns when that was.
    pub(crate) fn wait(&self) -> Instant {
        let reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        let reached = self.changed.wait_while(reached, |reached| reached.is_none());
        reached.unwrap_or_else(PoisonError::into_inner).unwrap_or_else(Instant::now)
    }

    fn reach(&self) {
        *self.reached.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.changed.notify_all();
    }
}

/// A stream.
pub(crate) struct Queue {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// The errors of operations that failed, each until a call that waits takes it.
    failed: Arc<Mutex<VecDeque<Error>>>,
}

impl Queue {
    pub(crate) fn start() -> Queue {
        let (jobs, queued) = channel::<Job>();
        let failed = Arc::new(Mutex::new(VecDeque::new()));
        let failures = Arc::clone(&failed);
        let work = move || {
            for job in queued {
                let done = catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|_| {
                    Err(Error::new(ErrorKind::KernelFailed, "an operation panicked").late(""))
                });
                if let Err(error) = done {
                    let mut failed = failures.lock().unwrap_or_else(PoisonError::into_inner);
                    failed.push_back(error);
                }
            }
        };
        Queue { jobs: Some(jobs), thread: Some(std::thread::spawn(work)), failed }
    }

    /// Queues an operation.
    pub(crate) fn push(&self, job: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        let sent = self.jobs.as_ref().and_then(|jobs| jobs.send(Box::new(job)).ok());
        sent.ok_or_else(|| Error::new(ErrorKind::Device, "the device's thread has ended"))
    }

    /// Queues an event.
    pub(crate) fn record(&self) -> Result<Arc<Event>> {
        let event = Arc::new(Event::default());
        let reached = Arc::clone(&event);
        self.push(move || {
            reached.reach();
            Ok(())
        })?;
        Ok(event)
    }

    /// Waits for all operations, and returns the first error that no call has returned yet.
    pub(crate) fn finish(&self) -> Result<()> {
        self.record()?.wait();
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        failed.map_or(Ok(()), Err)
    }
}

impl Drop for Queue {
    /// Ends the thread, whose code is unloaded with the library.
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
