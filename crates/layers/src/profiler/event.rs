//! What was recorded, as data.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keyfold_core::DType;

use super::log::Raw;
use super::session::Options;
use super::table::{Table, TableOptions};
use super::trace;

/// What an event is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventKind {
    /// A call of an operator.
    Call,
    /// A range that the user named.
    Range,
}

/// What events of one operator over one key path have in common.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) kind: EventKind,
    pub(super) name: Arc<str>,
    pub(super) keys: Arc<str>,
}

/// An event out of the log, before it is put in order.
pub(super) struct Recorded {
    pub(super) raw: Raw,
    pub(super) label: Arc<Label>,
    pub(super) args: Box<[TensorInfo]>,
}

/// A tensor argument of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its dtype; `None` where it couldn't be viewed, and then the shape is empty.
    pub dtype: Option<DType>,
    /// Its shape.
    pub shape: Box<[usize]>,
}

impl TensorInfo {
    /// The size of all its elements in bytes; 0 where it couldn't be viewed.
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
    /// The keys that the call went through below the profiler, if each layer handed it on:
    /// `Autograd > CPU`. Empty for a range.
    pub keys: Arc<str>,
    /// The tensors among the arguments, those in lists included, in order.
    pub args: Box<[TensorInfo]>,
    /// Size of the tensor arguments.
    pub bytes_in: u64,
    /// Size of the tensors returned; 0 for a call that failed.
    pub bytes_out: u64,
    /// When it began, counted from when the session was made.
    pub start: u64,
    /// How long it took.
    pub duration: u64,
    /// How long it took without its children on the same thread.
    pub self_time: u64,
    /// How long the device worked on it, for calls on a device that works late.
    pub device_time: Option<u64>,
    /// The number of its thread in this process.
    pub thread: u32,
    /// How many events were open around it.
    pub depth: u32,
    /// The event around it, by its place in [`Profile::events`].
    pub parent: Option<usize>,
    /// Host memory that the thread allocated meanwhile.
    pub allocated: u64,
    /// The same without its children's.
    pub self_allocated: u64,
    /// Host memory in use at the end, less what was in use when the session opened.
    pub live: i64,
    /// Whether it ended in an error.
    pub failed: bool,
}

impl Event {
    /// When it ended.
    pub fn end(&self) -> u64 {
        self.start + self.duration
    }
}

/// What a session recorded up to one moment.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The events that had ended, in the order in which they began.
    pub events: Vec<Event>,
    /// Threads by number, with their names.
    pub threads: BTreeMap<u32, String>,
    /// How long the session was open.
    pub total: Duration,
    /// Whether it still was.
    pub is_open: bool,
    /// Whether the profiler's key was excluded where it was opened last, so that no call made there
    /// was recorded.
    pub excluded: bool,
    /// What it recorded.
    pub options: Options,
}

/// Adds a time to a sum, if there is one.
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
        // Of what began in the same nanosecond on one thread, the first has the lower number.
        recorded.sort_unstable_by_key(|event| (event.raw.start, event.raw.id));
        let places: HashMap<u64, usize> =
            recorded.iter().enumerate().map(|(at, event)| (event.raw.id, at)).collect();
        let mut events: Vec<Event> = Vec::with_capacity(recorded.len());
        for Recorded { raw, label, args } in recorded {
            // A parent that is still open isn't there.
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
            // A parent on the same thread began earlier, so it is in the list.
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

    /// The events summed up by operator and key path.
    pub fn table(&self, options: &TableOptions) -> Table {
        Table::new(self, options)
    }

    /// The events as a Chrome trace: JSON that Perfetto and `chrome://tracing` open.
    pub fn chrome_trace(&self) -> String {
        trace::chrome(self)
    }

    /// How long devices that work late worked on the calls; `None` where there was no such call. What a
    /// call makes others do is a part of its own time.
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

    /// The names of the events around an event and its own, outermost first.
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
