//! Recorded events as data.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keyfold_core::DType;

use super::log::RawEvent;
use super::session::Options;
use super::table::{Table, TableOptions};
use super::trace;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventKind {
    /// A call of an operator.
    Call,
    /// A named range of the user.
    Range,
}

/// The fields that events of one operator and key path share.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) kind: EventKind,
    pub(super) name: Arc<str>,
    pub(super) keys: Arc<str>,
}

/// An event from the log, before sorting.
pub(super) struct Recorded {
    pub(super) raw: RawEvent,
    pub(super) label: Arc<Label>,
    pub(super) args: Box<[TensorInfo]>,
}

/// A tensor argument of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its dtype; `None` if it couldn't be viewed, and then the shape is empty.
    pub dtype: Option<DType>,
    /// Its shape.
    pub shape: Box<[usize]>,
}

impl TensorInfo {
    /// Returns the size of its elements in bytes; 0 if it couldn't be viewed.
    pub fn nbytes(&self) -> u64 {
        let size = self.dtype.map_or(0, DType::size);
        self.shape.iter().product::<usize>() as u64 * size as u64
    }
}

impl fmt::Display for TensorInfo {
    /// `float32[2, 3]`, or `?`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dtype {
            Some(dtype) => write!(f, "{dtype}{:?}", self.shape),
            None => f.write_str("?"),
        }
    }
}

/// One call or range. Times are in nanoseconds, sizes in bytes.
#[derive(Clone, Debug)]
pub struct Event {
    /// A call or a range.
    pub kind: EventKind,
    /// The operator's full name, or the range's.
    pub name: Arc<str>,
    /// The keys of the call below the profiler, if each layer redispatched: `Autograd > CPU`. Empty
    /// for a range.
    pub keys: Arc<str>,
    /// The tensor arguments in order, including those in lists.
    pub args: Box<[TensorInfo]>,
    /// The size of the tensor arguments.
    pub bytes_in: u64,
    /// The size of the returned tensors; 0 for a failed call.
    pub bytes_out: u64,
    /// The start, relative to the session's creation.
    pub start: u64,
    /// The duration.
    pub duration: u64,
    /// The duration without its children on the same thread.
    pub self_time: u64,
    /// The device time of calls on an asynchronous device.
    pub device_time: Option<u64>,
    /// The number of its thread in this process.
    pub thread: u32,
    /// The nesting depth of the event.
    pub depth: u32,
    /// The index of the enclosing event in [`Profile::events`].
    pub parent: Option<usize>,
    /// The host memory that the thread allocated meanwhile.
    pub allocated: u64,
    /// The host memory allocated, without its children's.
    pub self_allocated: u64,
    /// The host memory in use at the end, relative to the opening of the session.
    pub live: i64,
    /// Whether it returned an error or panicked.
    pub failed: bool,
}

impl Event {
    /// Returns the end.
    pub fn end(&self) -> u64 {
        self.start + self.duration
    }
}

/// A session's recording up to one moment.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The completed events, in the order of their starts.
    pub events: Vec<Event>,
    /// Threads by number, with their names.
    pub threads: BTreeMap<u32, String>,
    /// The time for which the session was open.
    pub total: Duration,
    /// Whether it was still open.
    pub is_open: bool,
    /// Whether the profiler's key was excluded at the last opening, so that no call made there was
    /// recorded.
    pub excluded: bool,
    /// The session's options.
    pub options: Options,
}

/// Adds an optional time to a sum.
pub(super) fn add(sum: &mut Option<u64>, time: Option<u64>) {
    if let Some(time) = time {
        *sum = Some(sum.unwrap_or(0) + time);
    }
}

impl Profile {
    pub(super) fn new(
        origin: Instant,
        mut recorded: Vec<Recorded>,
        threads: BTreeMap<u32, String>,
        device_times: &HashMap<u64, u64>,
    ) -> Profile {
        let since = |time: Instant| time.saturating_duration_since(origin).as_nanos() as u64;
        // Of events on one thread that start in the same nanosecond, the first has the lower
        // number.
        recorded.sort_unstable_by_key(|event| (event.raw.start, event.raw.id));
        let places: HashMap<u64, usize> =
            recorded.iter().enumerate().map(|(at, event)| (event.raw.id, at)).collect();
        let mut events: Vec<Event> = Vec::with_capacity(recorded.len());
        for Recorded { raw, label, args } in recorded {
            // A parent that is still open isn't in the list.
            let parent = places.get(&raw.parent).copied();
            let (start, duration) = (since(raw.start), since(raw.end) - since(raw.start));
            let event = Event {
                kind: label.kind,
                name: Arc::clone(&label.name),
                keys: Arc::clone(&label.keys),
                bytes_in: args.iter().map(TensorInfo::nbytes).sum(),
                bytes_out: raw.bytes_out,
                args,
                start,
                duration,
                self_time: duration,
                device_time: device_times.get(&raw.id).copied(),
                thread: raw.thread,
                depth: raw.depth,
                parent,
                allocated: raw.allocated,
                self_allocated: raw.allocated,
                live: raw.live,
                failed: raw.failed,
            };
            // A parent on the same thread started earlier, so it is in the list.
            if let Some(parent) = parent.and_then(|at| events.get_mut(at))
                && parent.thread == event.thread
            {
                let within = event.end().min(parent.end()).saturating_sub(event.start);
                parent.self_time = parent.self_time.saturating_sub(within);
                parent.self_allocated = parent.self_allocated.saturating_sub(event.allocated);
            }
            events.push(event);
        }
        let options = Options::default();
        let (total, is_open, excluded) = (Duration::ZERO, false, false);
        Profile { events, threads, total, is_open, excluded, options }
    }

    /// Returns the events aggregated by operator and key path.
    pub fn table(&self, options: &TableOptions) -> Table {
        Table::new(self, options)
    }

    /// Returns the events as a Chrome trace: JSON that Perfetto and `chrome://tracing` open.
    pub fn chrome_trace(&self) -> String {
        trace::chrome(self)
    }

    /// Returns the total device time of calls on asynchronous devices; `None` without such calls. A
    /// call's time includes its children's.
    pub fn device_time(&self) -> Option<u64> {
        let mut sum = None;
        for event in &self.events {
            let mut around = event.parent.map(|at| &self.events[at]);
            while let Some(outer) = around.filter(|outer| outer.device_time.is_none()) {
                around = outer.parent.map(|at| &self.events[at]);
            }
            if around.is_none() {
                add(&mut sum, event.device_time);
            }
        }
        sum
    }

    /// Returns the names of the enclosing events and of the event itself, outermost first.
    pub fn call_path(&self, event: usize) -> Vec<&str> {
        let mut path = Vec::new();
        let mut at = Some(event);
        while let Some(event) = at.and_then(|at| self.events.get(at)) {
            path.push(&*event.name);
            at = event.parent;
        }
        path.reverse();
        path
    }
}
