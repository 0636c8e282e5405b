//! One call, or range, from its beginning to the event in the log.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use keyfold_core::Result;
use keyfold_dispatch::{CallContext, DispatchKey, outside_layers};
use keyfold_tensor::{Value, ValueRef, memory};

use super::device_time::{DEVICES, Timer};
use super::log::Raw;
use super::session::{Scope, Session};

/// Events are numbered by thread: its number above these bits, its own count below. So a number costs
/// nothing that other threads could notice, and of two on one thread the later one's is higher.
const COUNT_BITS: u32 = 40;

/// Whether two events began on the same thread.
fn same_thread(a: u64, b: u64) -> bool {
    a >> COUNT_BITS == b >> COUNT_BITS
}

/// The innermost call in progress that is recorded.
#[derive(Clone, Copy)]
struct Running {
    session: u64,
    event: u64,
    depth: u32,
}

thread_local! {
    static RUNNING: Cell<Running> = const { Cell::new(Running { session: 0, event: 0, depth: 0 }) };
    static THREAD: Cell<u32> = const { Cell::new(0) };
    static EVENTS: Cell<u64> = const { Cell::new(0) };
}

/// The calling thread's number in this process: from 1 on, by first use.
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

/// What an event is of.
#[derive(Clone, Copy)]
pub(super) enum What<'a> {
    Call {
        context: &'a CallContext<'a, Value>,
        args: &'a [ValueRef<'a>],
        result: Option<&'a Value>,
    },
    Range(&'a Arc<str>),
}

/// An event that has begun.
pub(super) struct Begun {
    id: u64,
    /// 0 for none.
    parent: u64,
    depth: u32,
    thread: u32,
    allocated: u64,
    start: Instant,
}

impl Begun {
    /// Begins an event as the child of the innermost call or range here.
    #[inline(always)]
    pub(super) fn now(session: &Session, scope: Option<&Scope>) -> Begun {
        let running = RUNNING.get();
        let (mut parent, mut depth) = (0, 0);
        if running.session == session.number() {
            (parent, depth) = (running.event, running.depth + 1);
        }
        // Of two that are open around this, the inner one began later. A range that another thread
        // opened is around what runs here.
        if let Some(range) = scope.and_then(|scope| scope.range.as_ref())
            && (parent == 0 || (same_thread(range.event, parent) && range.event > parent))
        {
            (parent, depth) = (range.event, range.depth + 1);
        }
        let allocated = if session.options().memory { memory::allocated_here() } else { 0 };
        let (thread, count) = (thread_number(), EVENTS.get() + 1);
        EVENTS.set(count);
        let id = (u64::from(thread) << COUNT_BITS) | count;
        Begun { id, parent, depth, thread, allocated, start: Instant::now() }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Ends it and writes it down.
    #[inline]
    pub(super) fn end(&self, session: &Session, what: What<'_>, failed: bool) {
        let end = Instant::now();
        let memory = session.options().memory;
        let here = thread_number();
        // A range may end on another thread than it began on, whose count says nothing about it.
        let counts = memory && here == self.thread;
        let allocated =
            if counts { memory::allocated_here().wrapping_sub(self.allocated) } else { 0 };
        let live = if memory { memory::live() } else { 0 };
        let begun = self;
        session.log().push(here, what, |label, tensors, bytes_out| Raw {
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

/// Records a call while it runs; a panic on its way through is recorded as a failure.
struct Call<'a> {
    // In place from the start: what is moved right after it was written, the processor waits for.
    begun: Begun,
    session: &'a Session,
    context: &'a CallContext<'a, Value>,
    args: &'a [ValueRef<'a>],
    outer: Running,
    ended: bool,
}

impl Call<'_> {
    #[inline]
    fn end(&mut self, result: Option<&Value>) {
        self.ended = true;
        RUNNING.set(self.outer);
        let what = What::Call { context: self.context, args: self.args, result };
        self.begun.end(self.session, what, result.is_none());
    }
}

impl Drop for Call<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.ended {
            self.end(None);
        }
    }
}

/// Runs what is below the profiler and records it.
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

/// As [`call`], with the device's time.
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

/// The number of the call's event, and its result.
#[inline(always)]
fn recorded(
    scope: &Scope,
    context: &CallContext<'_, Value>,
    args: &[ValueRef<'_>],
) -> (u64, Result<Value>) {
    let session = &scope.session;
    let outer = RUNNING.get();
    let begun = Begun::now(session, Some(scope));
    let mut call = Call { begun, session, context, args, outer, ended: false };
    let (event, depth) = (call.begun.id, call.begun.depth);
    RUNNING.set(Running { session: session.number(), event, depth });
    let result = if session.options().nested {
        outside_layers(DispatchKey::Profiler.into(), || context.call_below(args))
    } else {
        context.call_below(args)
    };
    call.end(result.as_ref().ok());
    (event, result)
}
