//! Recording of one call or range, from its start to the event in the log.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use keyfold_core::Result;
use keyfold_dispatch::{CallContext, DispatchKey, outside_layers};
use keyfold_tensor::{Value, ValueRef, memory};

use super::device_time::{DEVICES, Timer};
use super::log::RawEvent;
use super::session::{Scope, Session};

/// Event numbers have the thread's number above these bits and its own count below. So assigning
/// one needs no synchronisation, and numbers of one thread are ordered by time.
const COUNT_BITS: u32 = 40;

/// Returns whether two events started on the same thread.
fn same_thread(a: u64, b: u64) -> bool {
    a >> COUNT_BITS == b >> COUNT_BITS
}

/// The innermost recorded call in progress.
#[derive(Clone, Copy)]
struct InnermostCall {
    session: u64,
    event: u64,
    depth: u32,
}

thread_local! {
    static RUNNING: Cell<InnermostCall> = const { Cell::new(InnermostCall { session: 0, event: 0, depth: 0 }) };
    static THREAD: Cell<u32> = const { Cell::new(0) };
    static EVENTS: Cell<u64> = const { Cell::new(0) };
}

/// Returns the calling thread's number in this process: from 1 on, by first use.
#[inline]
pub(super) fn thread_number() -> u32 {
    #[cold]
    fn first() -> u32 {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        THREAD.set(number);
        number
    }
    match THREAD.get() {
        0 => first(),
        number => number,
    }
}

/// The subject of an event.
#[derive(Clone, Copy)]
pub(super) enum EventSubject<'a> {
    Call {
        context: &'a CallContext<'a, Value>,
        args: &'a [ValueRef<'a>],
        result: Option<&'a Value>,
    },
    Range(&'a Arc<str>),
}

/// A started event.
pub(super) struct StartedEvent {
    id: u64,
    /// 0 for none.
    parent: u64,
    depth: u32,
    thread: u32,
    allocated: u64,
    start: Instant,
}

impl StartedEvent {
    /// Starts an event as the child of the innermost call or range here.
    #[inline(always)]
    pub(super) fn now(session: &Session, scope: Option<&Scope>) -> StartedEvent {
        let running = RUNNING.get();
        let (mut parent, mut depth) = (0, 0);
        if running.session == session.number() {
            (parent, depth) = (running.event, running.depth + 1);
        }
        // Of two enclosing events of this thread, the inner one started later. A range that another
        // thread opened encloses the calls here.
        if let Some(range) = scope.and_then(|scope| scope.range.as_ref())
            && (parent == 0 || (same_thread(range.event, parent) && range.event > parent))
        {
            (parent, depth) = (range.event, range.depth + 1);
        }
        let allocated = if session.options().memory { memory::allocated_here() } else { 0 };
        let (thread, count) = (thread_number(), EVENTS.get() + 1);
        EVENTS.set(count);
        let id = (u64::from(thread) << COUNT_BITS) | count;
        StartedEvent { id, parent, depth, thread, allocated, start: Instant::now() }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Ends it and appends it to the log.
    #[inline]
    pub(super) fn end(&self, session: &Session, what: EventSubject<'_>, failed: bool) {
        let end = Instant::now();
        let memory = session.options().memory;
        let here = thread_number();
        // A range may end on another thread than it started on, whose counters are unrelated.
        let counts = memory && here == self.thread;
        let allocated =
            if counts { memory::allocated_here().wrapping_sub(self.allocated) } else { 0 };
        let live = if memory { memory::live() } else { 0 };
        let begun = self;
        session.log().push(here, what, |label, tensors, bytes_out| RawEvent {
            id: begun.id,
            parent: begun.parent,
            start: begun.start,
            end,
            bytes_out,
            allocated,
            live,
            label,
            tensors,
            thread: begun.thread,
            depth: begun.depth,
            failed,
        });
    }
}

/// A call while it runs; a panic is recorded as a failure.
struct RecordedCall<'a> {
    // Constructed in place, since moving a value right after writing it stalls the processor.
    begun: StartedEvent,
    session: &'a Session,
    context: &'a CallContext<'a, Value>,
    args: &'a [ValueRef<'a>],
    outer: InnermostCall,
    ended: bool,
}

impl RecordedCall<'_> {
    #[inline]
    fn end(&mut self, result: Option<&Value>) {
        self.ended = true;
        RUNNING.set(self.outer);
        let what = EventSubject::Call { context: self.context, args: self.args, result };
        self.begun.end(self.session, what, result.is_none());
    }
}

impl Drop for RecordedCall<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.ended {
            self.end(None);
        }
    }
}

/// Runs the redispatched call and records it.
#[inline]
pub(super) fn call(
    scope: &Scope,
    context: &CallContext<'_, Value>,
    args: &[ValueRef<'_>],
) -> Result<Value> {
    if !context.keyset().intersection(DEVICES).is_empty() {
        return call_on_device(scope, context, args);
    }
    recorded(scope, context, args).1
}

/// As [`call`], with the device time.
#[cold]
#[inline(never)]
fn call_on_device(
    scope: &Scope,
    context: &CallContext<'_, Value>,
    args: &[ValueRef<'_>],
) -> Result<Value> {
    let timer = Timer::start(args);
    let (event, result) = recorded(scope, context, args);
    if result.is_ok()
        && let Some(time) = timer.and_then(|timer| timer.stop(event))
    {
        scope.session.log().add_device_time(time);
    }
    result
}

/// Returns the number of the call's event, and its result.
#[inline(always)]
fn recorded(
    scope: &Scope,
    context: &CallContext<'_, Value>,
    args: &[ValueRef<'_>],
) -> (u64, Result<Value>) {
    let session = &scope.session;
    let outer = RUNNING.get();
    let begun = StartedEvent::now(session, Some(scope));
    let mut call = RecordedCall { begun, session, context, args, outer, ended: false };
    let (event, depth) = (call.begun.id, call.begun.depth);
    RUNNING.set(InnermostCall { session: session.number(), event, depth });
    let result = if session.options().nested {
        outside_layers(DispatchKey::Profiler.into(), || context.call_below(args))
    } else {
        context.call_below(args)
    };
    call.end(result.as_ref().ok());
    (event, result)
}
