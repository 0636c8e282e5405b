//! Queues, and the errors of what they run late.

use std::sync::{Mutex, MutexGuard, PoisonError};

use keyfold_plugin::{Error, ErrorKind, Result};

use crate::api::{self, Api, Handle};
use crate::loader::check;

struct Pending {
    tag: i32,
    operation: &'static str,
    operator: String,
}

#[derive(Default)]
struct State {
    next: i32,
    /// Calls since the last look at the fault word whose kernels may write it.
    pending: Vec<Pending>,
    /// The operator of the last call.
    last: String,
}

/// An in-order queue. Kernels write the first fault to its fault word: the call's tag, the
/// dimension, and the position.
pub struct Stream {
    api: &'static Api,
    pub queue: Handle,
    pub word: Handle,
    state: Mutex<State>,
}

// SAFETY: OpenCL's functions on queues and buffers may be called from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Makes a queue.
    ///
    /// # Errors
    /// The device's.
    pub fn new(api: &'static Api, context: Handle, device: Handle) -> Result<Stream> {
        let (mut made, mut allocated) = (0, 0);
        // SAFETY: a device of the context.
        let (queue, word) = unsafe {
            (
                (api.clCreateCommandQueue)(context, device, api::QUEUE_PROFILING, &raw mut made),
                (api.clCreateBuffer)(
                    context,
                    api::MEM_READ_WRITE,
                    16,
                    std::ptr::null_mut(),
                    &raw mut allocated,
                ),
            )
        };
        check(made, "making a queue")?;
        check(allocated, "allocating the fault word")?;
        let stream = Stream { api, queue, word, state: Mutex::default() };
        stream.reset()?;
        Ok(stream)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reset(&self) -> Result<()> {
        self.write(&[0; 16], self.word, 0)
    }

    /// Copies host bytes to a buffer and waits.
    ///
    /// # Errors
    /// The device's.
    pub fn write(&self, bytes: &[u8], to: Handle, at: usize) -> Result<()> {
        // SAFETY: the caller's buffer has that many bytes there.
        let status = unsafe {
            (self.api.clEnqueueWriteBuffer)(
                self.queue,
                to,
                api::BLOCKING,
                at,
                bytes.len(),
                bytes.as_ptr().cast(),
                0,
                std::ptr::null(),
                std::ptr::null_mut(),
            )
        };
        self.waited(status, "uploading")
    }

    /// Copies bytes of a buffer to the host, after everything queued before.
    ///
    /// # Errors
    /// The device's.
    pub fn read(&self, from: Handle, at: usize, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: as above.
        let status = unsafe {
            (self.api.clEnqueueReadBuffer)(
                self.queue,
                from,
                api::BLOCKING,
                at,
                bytes.len(),
                bytes.as_mut_ptr().cast(),
                0,
                std::ptr::null(),
                std::ptr::null_mut(),
            )
        };
        self.waited(status, "downloading")
    }

    /// Returns the error of a status that waiting for the queue gave.
    fn waited(&self, status: i32, what: &str) -> Result<()> {
        let last = std::mem::take(&mut self.state().last);
        check(status, what).map_err(|error| match last.is_empty() {
            true => error,
            false => {
                let kind = match error.kind_name().as_str() {
                    "Memory" => ErrorKind::Memory,
                    _ => ErrorKind::KernelFailed,
                };
                Error::new(kind, format!("it or an operation before it: {}", error.message()))
                    .late(&last)
            }
        })
    }

    /// Notes a call.
    pub fn note(&self, operator: &str) {
        let last = &mut self.state().last;
        last.clear();
        last.push_str(operator);
    }

    /// Notes a call whose kernel may find a position out of range, and returns its tag.
    pub fn expect(&self, operation: &'static str, operator: &str) -> i32 {
        let mut state = self.state();
        state.next = state.next.checked_add(1).unwrap_or(1);
        let tag = state.next;
        state.pending.push(Pending { tag, operation, operator: operator.to_owned() });
        tag
    }

    /// Returns the fault that kernels found since the last look, after everything queued before.
    ///
    /// # Errors
    /// That one, or the device's.
    pub fn faults(&self) -> Result<()> {
        let pending = std::mem::take(&mut self.state().pending);
        let Some(latest) = pending.last().map(|pending| pending.tag) else {
            return Ok(());
        };
        let mut word = [0; 16];
        self.read(self.word, 0, &mut word)?;
        let number = |at: usize| i32::from_ne_bytes([0, 1, 2, 3].map(|i| word[at + i]));
        let (tag, dim) = (number(0), number(4));
        if tag == 0 {
            return Ok(());
        }
        self.reset()?;
        let position = i64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| word[8 + i]));
        let found = pending.into_iter().find(|pending| pending.tag == tag);
        let Some(Pending { operation, operator, .. }) = found else {
            return Err(Error::new(
                ErrorKind::KernelFailed,
                format!("a kernel of a call after number {latest} is at fault"),
            )
            .late("opencl"));
        };
        let operator = if operator.is_empty() { operation } else { &operator };
        Err(Error::new(
            ErrorKind::Index,
            format!(
                "position {position} is out of range for dimension {dim} of the tensor that is \
                 indexed"
            ),
        )
        .late(operator))
    }

    /// Waits for everything queued.
    ///
    /// # Errors
    /// The device's, and faults.
    pub fn finish(&self) -> Result<()> {
        // SAFETY: a live queue.
        let status = unsafe { (self.api.clFinish)(self.queue) };
        self.waited(status, "waiting")?;
        self.faults()
    }
}
