//! The plans of flushes whose calls all had the forms of an earlier flush, found without describing the
//! program.
//!
//! Calls of one form have equal expressions, numbers, dtypes and shapes. So beside the forms, by their
//! addresses, a plan depends on what the tensors share, on what is held, and on the kernels at hand. A
//! program that has no such entry is described in full, which finds plans for other numbers and sizes.

use std::hash::Hasher;
use std::sync::{Arc, Mutex, PoisonError};

use keyfold_dispatch::Value as _;
use rustc_hash::{FxHashMap, FxHasher};

use super::plan::Plan;
use super::schedule;
use crate::pipeline::known::CallForm;
use crate::pipeline::operation::{Operation, for_each_tensor, memory_id};
use crate::pipeline::waiting::Held;

/// The number of entries. A hash of the outline chooses one.
const ENTRIES: usize = 64;

/// The most operations of a program whose outline is kept.
const MAX_OPERATIONS: usize = 1024;

/// A program in numbers. Programs of one outline have one plan while their forms exist.
pub(super) struct Outline {
    words: Vec<u64>,
    entry: usize,
}

struct Entry {
    words: Vec<u64>,
    /// They keep their addresses from being used again.
    _forms: Vec<Arc<CallForm>>,
    plan: Arc<Plan>,
}

static KNOWN: Mutex<Vec<Option<Entry>>> = Mutex::new(Vec::new());

impl Outline {
    /// Returns the outline of a program; `None` if a form is of one call alone, as those of calls that
    /// write in place.
    pub(super) fn of(operations: &[Arc<Operation>], held: &Held) -> Option<Outline> {
        if operations.len() > MAX_OPERATIONS {
            return None;
        }
        let mut words = Vec::with_capacity(operations.len() * 10 + 1);
        words.push(u64::from(schedule::moves(operations)));
        let mut memories: FxHashMap<usize, u64> = FxHashMap::default();
        memories.reserve(operations.len() * 2);
        let mut last_form = None;
        for operation in operations {
            if Arc::strong_count(&operation.form) == 1 {
                return None;
            }
            let form = Arc::as_ptr(&operation.form).addr();
            words.push(form as u64);
            // A form is of one operator.
            if last_form != Some(form) {
                words.push(operation.operator.dispatcher()?.generation());
            }
            last_form = Some(form);
            words.push(operation.keyset.bits());
            words.push(operation.stream.map_or(0, |(_, stream)| u64::from(stream.number()) + 1));
            let args = operation.args.lock().unwrap_or_else(PoisonError::into_inner);
            for arg in &*args {
                for_each_tensor(arg.as_ref(), &mut |tensor| {
                    let number = memories.len() as u64;
                    let number = *memories.entry(memory_id(tensor)).or_insert(number);
                    words.extend([number, tensor.offset() as u64]);
                });
            }
            for slot in operation.results.iter().flatten() {
                let number = memories.len() as u64;
                let memory = slot.memory.as_ptr().addr();
                memories.entry(memory).or_insert(number);
                words.push(u64::from(held.has(slot)));
            }
        }
        let mut hasher = FxHasher::default();
        words.iter().for_each(|word| hasher.write_u64(*word));
        let entry = hasher.finish() as usize % ENTRIES;
        Some(Outline { words, entry })
    }

    /// Returns the plan of programs with this outline. While another thread looks, none is known.
    pub(super) fn find(&self) -> Option<Arc<Plan>> {
        let known = KNOWN.try_lock().ok()?;
        let entry = known.get(self.entry)?.as_ref()?;
        (entry.words == self.words).then(|| Arc::clone(&entry.plan))
    }

    /// Keeps the plan of a program, in place of that which had the entry.
    pub(super) fn keep(self, operations: &[Arc<Operation>], plan: &Arc<Plan>) {
        let forms = operations.iter().map(|operation| Arc::clone(&operation.form)).collect();
        let plan = Arc::clone(plan);
        let mut entry = Some(Entry { words: self.words, _forms: forms, plan });
        if let Ok(mut known) = KNOWN.try_lock() {
            known.resize_with(ENTRIES, || None);
            std::mem::swap(&mut known[self.entry], &mut entry);
        }
        // The entry that was there is dropped without the lock, since a kernel's destructor may run any code.
    }
}
