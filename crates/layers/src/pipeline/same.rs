//! Calls that compute the same as an earlier one, and whose results nobody holds but waiting
//! operations: those read the earlier one's results instead, so that the later one is left out as dead.

use std::sync::{Arc, PoisonError};

use keyfold_core::{Result, Shape, Strides};
use keyfold_dispatch::{DispatchKey, Value as _};
use keyfold_tensor::{PendingBuffer, Tensor, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::operation::{Operation, for_each_tensor, memory_id};
use super::session::State;
use super::waiting::Held;

/// The key of a call, the same for equal calls: all that inference read of the call, the address of its form where
/// that can't be compared, and the memory of the first tensor.
type Key<'o> = (&'o [u64], usize, usize);

/// The calls of one key.
type Alike<'o> = FxHashMap<Key<'o>, SmallVec<[usize; 1]>>;

/// The memory that is read instead of another one, by the address of that.
type Instead = FxHashMap<usize, Arc<PendingBuffer>>;

/// Equal calls that were merged.
#[derive(Default)]
pub(super) struct Merged {
    /// The index of each merged call, and that of the equal one before it whose results are read instead.
    calls: Vec<(usize, usize)>,
    /// The arguments that operations had before, to be dropped without a lock.
    pub(super) old: Vec<Value>,
}

impl State {
    /// Lets waiting operations read the results of the first of several equal calls. Returns the arguments
    /// that they had before, to be dropped without the lock. `held` is of all that wait.
    pub(super) fn merge_equal_calls(&mut self, held: &Held) -> Vec<Value> {
        let waits = |one: &&Arc<Operation>| !self.running.contains(&one.index);
        if !has_alike(self.waiting.iter().filter(waits), self.waiting.len()) {
            return Vec::new();
        }
        let operations: Vec<Arc<Operation>> = self.waiting.iter().filter(waits).cloned().collect();
        let Merged { calls, old } = merge_calls(&operations, self.waiting.iter(), held);
        if !calls.is_empty() {
            // They read other memory than was noted.
            self.readers.clear();
            self.noted = 0;
        }
        self.statistics.merged += calls.len() as u64;
        self.merged.extend(calls);
        old
    }
}

/// Lets operations read the results of the first of several equal calls among them. `all` are those that may write
/// what they use.
pub(super) fn merge_calls<'o>(
    operations: &[Arc<Operation>],
    all: impl Iterator<Item = &'o Arc<Operation>>,
    held: &Held,
) -> Merged {
    let (mut merged, written) = (Merged::default(), written(all));
    let (mut alike, mut instead) = (Alike::default(), Instead::default());
    for (at, operation) in operations.iter().enumerate() {
        replace(operation, &instead, &mut merged.old);
        if !is_candidate(operation) {
            continue;
        }
        let known = alike.entry(key(operation)).or_default();
        let mut earlier = known.iter().map(|at| &operations[*at]);
        let first = earlier.find(|first| are_equal(first, operation));
        let whole = first.and_then(|first| Some((first, merge(first, operation, held, &written)?)));
        match whole {
            Some((first, whole)) => {
                instead.extend(whole);
                merged.calls.push((operation.index, first.index));
            }
            None => known.push(at),
        }
    }
    merged
}

/// Returns whether two of at most `count` operations are of one form, and read one memory first: most flushes
/// have none.
fn has_alike<'a>(operations: impl Iterator<Item = &'a Arc<Operation>>, count: usize) -> bool {
    let mut seen = FxHashSet::default();
    seen.reserve(count);
    let mut operations = operations.filter(|one| is_candidate(one));
    operations.any(|one| !seen.insert(key(one)))
}

/// Returns whether a call has results alone, which depend on its arguments alone, and is computed. The calls
/// of an operator that a user infers by Meta have forms of their own: its kernel may do more than compute.
fn is_candidate(operation: &Operation) -> bool {
    operation.is_pure() && !operation.results.is_empty() && !operation.is_dead()
}

/// Returns the key of a call. A kernel forgets forms, and a recognised program has its own, so equal ones may be of
/// several addresses. Tensors in lists count, too.
fn key(operation: &Operation) -> Key<'_> {
    let args = operation.args.lock().unwrap_or_else(PoisonError::into_inner);
    let first = args.iter().find_map(first_tensor).map(memory_id);
    let form = &operation.form;
    let address = if form.key.is_empty() { Arc::as_ptr(form).addr() } else { 0 };
    (&form.key, address, first.unwrap_or(0))
}

fn first_tensor(arg: &Value) -> Option<&Tensor> {
    match arg {
        Value::Tensor(tensor) => Some(tensor),
        Value::List(items) => items.iter().find_map(first_tensor),
        _ => None,
    }
}

fn each_tensor(operation: &Operation, f: &mut impl FnMut(&Tensor)) {
    let args = operation.args.lock().unwrap_or_else(PoisonError::into_inner);
    args.iter().for_each(|arg| for_each_tensor(arg.as_ref(), &mut |tensor| f(tensor)));
}

/// Returns whether two calls of one form are of the same elements, in the same context.
fn are_equal(a: &Operation, b: &Operation) -> bool {
    let places = |operation: &Operation| {
        let mut places: SmallVec<[(usize, usize); 4]> = SmallVec::new();
        each_tensor(operation, &mut |tensor| places.push((memory_id(tensor), tensor.offset())));
        places
    };
    Arc::ptr_eq(&a.operator, &b.operator)
        && a.keyset == b.keyset
        && a.context.is_same(&b.context)
        && a.stream == b.stream
        && a.versions == b.versions
        && places(a) == places(b)
}

/// Returns the memory that operations write in place.
fn written<'o>(operations: impl Iterator<Item = &'o Arc<Operation>>) -> FxHashSet<usize> {
    let mut written = FxHashSet::default();
    for operation in operations.filter(|one| !one.written.is_empty()) {
        let args = operation.args.lock().unwrap_or_else(PoisonError::into_inner);
        for at in &operation.written {
            if let Some(Value::Tensor(tensor)) = args.get(*at) {
                written.insert(memory_id(tensor));
            }
        }
    }
    written
}

/// Returns the memory that readers of `operation` read instead; `None` if somebody else holds a result,
/// if memory of the two is `written` in place, or if results differ in form, since the operator's kernel for Meta
/// was registered anew between the calls.
fn merge(
    first: &Operation,
    operation: &Operation,
    held: &Held,
    written: &FxHashSet<usize>,
) -> Option<Instead> {
    let mut is_written = false;
    each_tensor(first, &mut |tensor| is_written |= written.contains(&memory_id(tensor)));
    if is_written {
        return None;
    }
    let mut instead = Instead::default();
    for (own, other) in operation.results.iter().zip(&first.results) {
        let (Some(own), Some(other)) = (own, other) else { continue };
        let places = [own, other].map(|slot| slot.memory.as_ptr().addr());
        if held.has(own)
            || own.bytes() == 0
            || (&own.shape, own.dtype) != (&other.shape, other.dtype)
            || places.iter().any(|place| written.contains(place))
        {
            return None;
        }
        instead.insert(places[0], other.memory.upgrade()?);
    }
    Some(instead)
}

/// Replaces the tensors of an operation's arguments that are over other memory now; adds the old
/// arguments to `old`.
fn replace(operation: &Operation, instead: &Instead, old: &mut Vec<Value>) {
    if instead.is_empty() {
        return;
    }
    let mut args = operation.args.lock().unwrap_or_else(PoisonError::into_inner);
    for arg in args.iter_mut() {
        // A view of pending memory, which has no reason to fail, stays as it was if it does.
        if let Ok(Some(replaced)) = replaced(arg, instead) {
            old.push(std::mem::replace(arg, replaced));
        }
    }
}

/// Returns an argument over other memory; `None` if nothing of it is.
fn replaced(arg: &Value, instead: &FxHashMap<usize, Arc<PendingBuffer>>) -> Result<Option<Value>> {
    match arg {
        Value::Tensor(tensor) => {
            let address = tensor.pending_buffer().map(|memory| std::ptr::from_ref(memory).addr());
            let Some(memory) = address.and_then(|address| instead.get(&address)) else {
                return Ok(None);
            };
            let (none, dtype) = ((Shape::default(), Strides::default()), tensor.dtype());
            let whole = Tensor::pending(Arc::clone(memory), &none.0, &none.1, dtype)?;
            let (shape, strides) = (tensor.shape().clone(), tensor.strides().clone());
            let view = Tensor::from_parts(whole.into_buffer(), shape, strides, tensor.offset())?;
            view.insert_key(DispatchKey::Deferred)?;
            let view = if tensor.is_writable() { view } else { view.into_read_only() };
            Ok(Some(Value::Tensor(view)))
        }
        Value::List(items) => {
            let mut changed = false;
            let mut all = Vec::with_capacity(items.len());
            for item in items {
                let item_replaced = replaced(item, instead)?;
                changed |= item_replaced.is_some();
                all.push(item_replaced.unwrap_or_else(|| item.clone()));
            }
            Ok(changed.then_some(Value::List(all)))
        }
        _ => Ok(None),
    }
}
