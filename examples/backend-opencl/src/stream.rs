//! Queues, and the errors of what they run late.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, MutexGuard, PoisonError};

use keyfold_plugin::{Error, ErrorKind, Result};

use crate::api::{self, Api, Handle};
use crate::loader::check;

/// The calls whose kernels may have found a fault before the host has to look.
const RECORDS: usize = 64;
/// The bytes of a record: whether it is one, the dimension, and the position.
const RECORD: usize = 16;

/// A call whose kernel may find a position out of range.
struct Pending {
    record: usize,
    operation: &'static str,
    operator: String,
}

#[derive(Default)]
struct State {
    /// The record of the next such call.
    next: usize,
    pending: Vec<Pending>,
    /// Faults that no call has returned yet.
    found: VecDeque<Error>,
    /// The operator of the last call.
    last: String,
}

/// An in-order queue. A kernel that finds a position out of range writes it to its call's record.
pub struct Stream {
    api: &'static Api,
    pub queue: Handle,
    pub records: Handle,
    state: Mutex<State>,
    /// The streams whose work it has waited for, as bits, itself among them.
    pub after: AtomicU32,
}

/// The record of a call, until its kernel is queued.
pub struct Expected<'a> {
    pub record: i32,
    _state: MutexGuard<'a, State>,
}

// SAFETY: OpenCL's functions on queues and buffers may be called from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Makes the queue of a number.
    ///
    /// # Errors
    /// The device's.
    pub fn new(
        api: &'static Api,
        (context, device): (Handle, Handle),
        number: usize,
    ) -> Result<Stream> {
        let (mut made, mut allocated) = (0, 0);
        // SAFETY: a device of the context.
        let (queue, records) = unsafe {
            (
                (api.clCreateCommandQueue)(context, device, api::QUEUE_PROFILING, &raw mut made),
                (api.clCreateBuffer)(
                    context,
                    api::MEM_READ_WRITE,
                    RECORDS * RECORD,
                    std::ptr::null_mut(),
                    &raw mut allocated,
                ),
            )
        };
        check(made, "making a queue")?;
        check(allocated, "allocating the records of faults")?;
        let (state, after) = (Mutex::default(), AtomicU32::new(1 << number));
        let stream = Stream { api, queue, records, state, after };
        check(stream.blocking_write(&[0; RECORDS * RECORD], records, 0), "clearing its records")?;
        Ok(stream)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies host bytes to a buffer and waits.
    ///
    /// # Errors
    /// The device's.
    pub fn write(&self, bytes: &[u8], to: Handle, at: usize) -> Result<()> {
        let status = self.blocking_write(bytes, to, at);
        self.waited(status, "uploading")
    }

    fn blocking_write(&self, bytes: &[u8], to: Handle, at: usize) -> api::Status {
        // SAFETY: the caller's buffer has that many bytes there.
        unsafe {
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
        }
    }

    /// Copies bytes of a buffer to the host, after everything queued before.
    ///
    /// # Errors
    /// The device's.
    pub fn read(&self, from: Handle, at: usize, bytes: &mut [u8]) -> Result<()> {
        let status = self.blocking_read(from, at, bytes);
        self.waited(status, "downloading")
    }

    fn blocking_read(&self, from: Handle, at: usize, bytes: &mut [u8]) -> api::Status {
        // SAFETY: as above.
        unsafe {
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
        }
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

    /// Notes a call whose kernel may find a position out of range. The kernel is to be queued before
    /// the returned guard is dropped, so that nobody looks at the record earlier.
    ///
    /// # Errors
    /// The device's, if it has to look at all records first.
    pub fn expect(&self, operation: &'static str, operator: &str) -> Result<Expected<'_>> {
        let mut state = self.state();
        if state.pending.len() == RECORDS {
            self.look(&mut state)?;
        }
        let record = state.next;
        state.next = (record + 1) % RECORDS;
        state.pending.push(Pending { record, operation, operator: operator.to_owned() });
        Ok(Expected { record: record as i32, _state: state })
    }

    /// Reads the records of all pending calls, whose kernels have run then.
    fn look(&self, state: &mut State) -> Result<()> {
        if state.pending.is_empty() {
            return Ok(());
        }
        let mut bytes = [0; RECORDS * RECORD];
        check(self.blocking_read(self.records, 0, &mut bytes), "reading the records of faults")?;
        for Pending { record, operation, operator } in state.pending.drain(..) {
            let at = record * RECORD;
            let number = |from: usize| i32::from_ne_bytes([0, 1, 2, 3].map(|k| bytes[from + k]));
            if number(at) == 0 {
                continue;
            }
            let status = self.blocking_write(&[0; RECORD], self.records, at);
            check(status, "clearing a record of a fault")?;
            let (dim, low, high) = (number(at + 4), number(at + 8), number(at + 12));
            let position = i64::from(high) << 32 | i64::from(low.cast_unsigned());
            let operator = if operator.is_empty() { operation } else { &operator };
            let text = format!(
                "position {position} is out of range for dimension {dim} of the tensor that is \
                 indexed"
            );
            state.found.push_back(Error::new(ErrorKind::Index, text).late(operator));
        }
        Ok(())
    }

    /// Returns the first fault of a kernel that no call has returned yet, after everything queued
    /// before.
    ///
    /// # Errors
    /// That one, or the device's.
    pub fn faults(&self) -> Result<()> {
        let mut state = self.state();
        self.look(&mut state)?;
        state.found.pop_front().map_or(Ok(()), Err)
    }

    /// Waits for everything queued.
    ///
    /// # Errors
    /// The device's.
    pub fn finish(&self) -> Result<()> {
        // SAFETY: a live queue.
        let status = unsafe { (self.api.clFinish)(self.queue) };
        self.waited(status, "waiting")
    }
}
