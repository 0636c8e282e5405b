//! The log of events: one list per group of threads.
//!
//! An event is a row of plain numbers. Its operator and key path are an index into a table that
//! grows with the first call of each; the arguments' shapes are in separate lists, in the order of
//! the events. So an event takes one rarely contended lock, and no allocation besides the lists'
//! growth.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use keyfold_core::DType;
use keyfold_dispatch::{CallContext, DispatchKey, Operator};
use keyfold_tensor::{Tensor, Value, ValueRef};
use smallvec::SmallVec;

use super::device_time::DeviceTime;
use super::event::{EventKind, Label, Profile, Recorded, TensorInfo};
use super::record::EventSubject;

/// The number of groups of threads; threads of one group share a lock.
const GROUPS: usize = 8;

/// The tensors among a call's arguments; `None` for one that can't be viewed.
type Tensors<'a> = SmallVec<[Option<&'a Tensor>; 8]>;

/// One event.
#[derive(Clone, Copy)]
pub(super) struct RawEvent {
    pub(super) id: u64,
    /// 0 for none.
    pub(super) parent: u64,
    pub(super) start: Instant,
    pub(super) end: Instant,
    pub(super) bytes_out: u64,
    pub(super) allocated: u64,
    pub(super) live: i64,
    /// The index of its label in the group.
    pub(super) label: u32,
    /// The number of the group's tensors that are this event's arguments.
    pub(super) tensors: u32,
    pub(super) thread: u32,
    pub(super) depth: u32,
    pub(super) failed: bool,
}

/// A tensor argument: its dtype, and the number of the group's sizes that are its shape.
#[derive(Clone, Copy)]
struct Shaped {
    /// `None` if it can't be viewed, as a foreign array of an unsupported dtype.
    dtype: Option<DType>,
    rank: u8,
}

#[derive(Default)]
pub(super) struct Log {
    groups: [Mutex<ThreadGroup>; GROUPS],
    names: Mutex<BTreeMap<u32, String>>,
    device_times: Mutex<Vec<Arc<DeviceTime>>>,
}

// Aligned to cache lines, since different threads write to different groups.
#[repr(align(128))]
#[derive(Default)]
struct ThreadGroup {
    raw: Vec<RawEvent>,
    tensors: Vec<Shaped>,
    sizes: Vec<usize>,
    labels: Vec<Arc<Label>>,
    calls: HashMap<(usize, u64), u32, BuildHasherDefault<PairHasher>>,
    ranges: HashMap<Arc<str>, u32>,
    /// The operators whose addresses are keys in `calls`, kept alive so that no address is reused.
    operators: Vec<Arc<Operator<Value>>>,
    threads: Vec<(u32, Option<String>)>,
}

/// Hashes the two words of a key, an address and a key set. Adversarial keys aren't a concern.
#[derive(Default)]
struct PairHasher(u64);

impl Hasher for PairHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        // The high half of a product depends on all bits of the factors.
        let product = u128::from(self.0 ^ word) * 0x9E37_79B9_7F4A_7C15_u128;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    #[inline]
    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Changes of a group never panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    /// Appends an event that ends on this thread; `event` gets its label, the number of tensor
    /// arguments, and the size of its results in bytes.
    #[inline(always)]
    pub(super) fn push(
        &self,
        here: u32,
        what: EventSubject<'_>,
        event: impl FnOnce(u32, u32, u64) -> RawEvent,
    ) {
        // Views are made before the lock, since that may run code of the arrays' library.
        let mut viewed = Tensors::new();
        let mut plain: &[ValueRef<'_>] = &[];
        let mut bytes_out = 0;
        if let EventSubject::Call { args, result, .. } = what {
            if args.iter().any(|arg| is_foreign_or_list(*arg)) {
                for arg in args {
                    each_tensor(*arg, &mut |tensor| viewed.push(tensor));
                }
            } else {
                plain = args;
            }
            bytes_out = result.map_or(0, value_bytes);
        }
        let mut group = lock(&self.groups[here as usize % GROUPS]);
        let group = &mut *group;
        if !group.threads.iter().any(|(thread, _)| *thread == here) {
            group.new_thread(here);
        }
        let label = match what {
            EventSubject::Call { context, .. } => group.call_label(context),
            EventSubject::Range(name) => group.range_label(name),
        };
        let before = group.tensors.len();
        for arg in plain {
            if let ValueRef::Tensor(tensor) = arg {
                group.note(Some(tensor));
            }
        }
        for tensor in &viewed {
            group.note(*tensor);
        }
        let tensors = (group.tensors.len() - before) as u32;
        group.raw.push(event(label, tensors, bytes_out));
    }

    /// Adds the device time of a call.
    pub(super) fn add_device_time(&self, time: DeviceTime) {
        lock(&self.device_times).push(Arc::new(time));
    }

    /// Names a thread, in place of its name at creation.
    pub(super) fn name_thread(&self, thread: u32, name: &str) {
        lock(&self.names).insert(thread, name.to_owned());
    }

    /// Releases the operators; later calls are looked up again.
    pub(super) fn forget_operators(&self) {
        for group in &self.groups {
            let operators = {
                let mut group = lock(group);
                group.calls.clear();
                std::mem::take(&mut group.operators)
            };
            // Without the lock: the last reference to an operator may own objects of the host
            // language.
            drop(operators);
        }
    }

    /// Returns the number of events.
    pub(super) fn len(&self) -> usize {
        self.groups.iter().map(|group| lock(group).raw.len()).sum()
    }

    /// Returns everything recorded so far, in the order of starts.
    pub(super) fn collect(&self, origin: Instant, live_before: i64) -> Profile {
        let mut recorded = Vec::new();
        let mut threads = BTreeMap::new();
        for group in &self.groups {
            let group = lock(group);
            group.read(live_before, &mut recorded);
            for (thread, name) in &group.threads {
                let name = name.clone().unwrap_or_else(|| format!("thread {thread}"));
                threads.insert(*thread, name);
            }
        }
        for (thread, name) in lock(&self.names).iter() {
            if let Some(known) = threads.get_mut(thread) {
                known.clone_from(name);
            }
        }
        // Reading waits for devices, so it doesn't hold a lock that calls take.
        let times = lock(&self.device_times).clone();
        let times = times.iter().filter_map(|time| time.read()).collect();
        Profile::new(origin, recorded, threads, &times)
    }
}

impl ThreadGroup {
    #[cold]
    #[inline(never)]
    fn new_thread(&mut self, thread: u32) {
        let name = std::thread::current().name().map(str::to_owned);
        self.threads.push((thread, name));
    }

    #[inline]
    fn call_label(&mut self, context: &CallContext<'_, Value>) -> u32 {
        let operator = context.operator();
        let key = (std::ptr::from_ref(operator).addr(), context.keyset().bits());
        if let Some(label) = self.calls.get(&key) {
            return *label;
        }
        self.new_call_label(context, key)
    }

    #[cold]
    #[inline(never)]
    fn new_call_label(&mut self, context: &CallContext<'_, Value>, key: (usize, u64)) -> u32 {
        let operator = context.operator();
        let below = context.keyset().remove(context.key());
        let path: Vec<String> =
            operator.key_path(below).into_iter().map(DispatchKey::name).collect();
        let label = Label {
            kind: EventKind::Call,
            name: operator.name().into(),
            keys: path.join(" > ").into(),
        };
        let number = self.add(label);
        self.operators.push(operator.share());
        self.calls.insert(key, number);
        number
    }

    fn range_label(&mut self, name: &Arc<str>) -> u32 {
        if let Some(label) = self.ranges.get(name) {
            return *label;
        }
        let (kind, keys) = (EventKind::Range, "".into());
        let number = self.add(Label { kind, name: Arc::clone(name), keys });
        self.ranges.insert(Arc::clone(name), number);
        number
    }

    /// Returns the index of a label, adding it if necessary.
    fn add(&mut self, label: Label) -> u32 {
        let found = self.labels.iter().position(|known| **known == label);
        let place = found.unwrap_or_else(|| {
            self.labels.push(Arc::new(label));
            self.labels.len() - 1
        });
        place as u32
    }

    /// Appends a tensor argument.
    #[inline]
    fn note(&mut self, tensor: Option<&Tensor>) {
        let Some(tensor) = tensor else {
            self.tensors.push(Shaped { dtype: None, rank: 0 });
            return;
        };
        let shape: &[usize] = tensor.shape();
        self.tensors.push(Shaped { dtype: Some(tensor.dtype()), rank: shape.len() as u8 });
        // Item by item, since a bulk copy's set-up costs more than a few words.
        self.sizes.reserve(shape.len());
        for size in shape {
            self.sizes.push(*size);
        }
    }

    fn read(&self, live_before: i64, into: &mut Vec<Recorded>) {
        let (mut tensors, mut sizes) = (&self.tensors[..], &self.sizes[..]);
        for raw in &self.raw {
            let own;
            (own, tensors) = tensors.split_at(raw.tensors as usize);
            let args = own.iter().map(|tensor| {
                let shape;
                (shape, sizes) = sizes.split_at(usize::from(tensor.rank));
                TensorInfo { dtype: tensor.dtype, shape: shape.into() }
            });
            let args = args.collect();
            let label = Arc::clone(&self.labels[raw.label as usize]);
            let raw = RawEvent { live: raw.live - live_before, ..*raw };
            into.push(Recorded { raw, label, args });
        }
    }
}

/// Returns whether a value is neither a native tensor nor a plain value.
#[inline]
fn is_foreign_or_list(value: ValueRef<'_>) -> bool {
    matches!(
        value,
        ValueRef::Foreign(_) | ValueRef::List(_) | ValueRef::Refs(_) | ValueRef::Tensors(_)
    )
}

/// Calls `see` with the tensors in a value, including those in lists; `None` for one that can't be
/// viewed.
#[inline]
fn each_tensor<'a>(value: ValueRef<'a>, see: &mut dyn FnMut(Option<&'a Tensor>)) {
    match value {
        ValueRef::Tensor(tensor) => see(Some(tensor)),
        ValueRef::Foreign(object) if object.is_tensor() => see(object.tensor().ok()),
        ValueRef::List(_) | ValueRef::Refs(_) | ValueRef::Tensors(_) => {
            for item in value.items() {
                each_tensor(item, see);
            }
        }
        _ => {}
    }
}

/// Returns the size of the tensors in a result, in bytes.
#[inline]
fn value_bytes(value: &Value) -> u64 {
    if let Value::Tensor(tensor) = value {
        return tensor.nbytes() as u64;
    }
    let mut sum = 0;
    each_tensor(keyfold_dispatch::Value::as_ref(value), &mut |tensor| {
        sum += tensor.map_or(0, |tensor| tensor.nbytes() as u64);
    });
    sum
}
