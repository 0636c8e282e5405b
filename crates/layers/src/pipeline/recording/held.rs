//! The memory that recordings hold besides their inputs, counted for all recordings together: whether somebody else
//! holds it, no recording can tell by its own references.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use keyfold_tensor::Tensor;
use rustc_hash::{FxBuildHasher, FxHashMap};

/// A memory that recordings hold.
#[derive(Default)]
pub(in crate::pipeline) struct Memory {
    /// The references that recordings have.
    references: AtomicUsize,
    /// How often a tensor of it was made to require gradients, or not to.
    switches: AtomicUsize,
}

/// The memories, by their identity.
pub(in crate::pipeline) type Memories = FxHashMap<usize, Weak<Memory>>;

static MEMORIES: Mutex<Memories> = Mutex::new(FxHashMap::with_hasher(FxBuildHasher));

pub(in crate::pipeline) fn lock_memories() -> MutexGuard<'static, Memories> {
    MEMORIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the references that recordings have to a tensor's memory.
pub(in crate::pipeline) fn shares_held_by_recordings(tensor: &Tensor) -> usize {
    let found = lock_memories().get(&tensor.buffer().memory_identity()).and_then(Weak::upgrade);
    found.map_or(0, |memory| memory.references.load(Ordering::Relaxed))
}

/// Notes that a tensor was made to require gradients, or not to: recordings that read its memory were made for
/// tensors of the other kind.
pub(crate) fn note_requires_grad(tensor: &Tensor) {
    if tensor.buffer().shares() > 1
        && let Some(memory) =
            lock_memories().get(&tensor.buffer().memory_identity()).and_then(Weak::upgrade)
    {
        memory.switches.fetch_add(1, Ordering::Relaxed);
    }
}

/// The references of one recording to a memory.
pub(super) struct HeldMemory {
    memory: Arc<Memory>,
    identity: usize,
    references: usize,
    switches: usize,
    /// Whether somebody else had a reference when it was recorded.
    by_others: bool,
}

impl HeldMemory {
    /// Notes the references of a recording to a tensor's memory.
    pub(super) fn new(tensor: &Tensor, references: usize) -> HeldMemory {
        let identity = tensor.buffer().memory_identity();
        let mut memories = lock_memories();
        let known = memories.get(&identity).and_then(Weak::upgrade);
        let memory = known.unwrap_or_else(|| {
            let new = Arc::new(Memory::default());
            memories.insert(identity, Arc::downgrade(&new));
            new
        });
        // Under the lock, as the last reference is taken away: an entry has references.
        memory.references.fetch_add(references, Ordering::Relaxed);
        drop(memories);
        let switches = memory.switches.load(Ordering::Relaxed);
        HeldMemory { memory, identity, references, switches, by_others: false }
    }

    /// Notes whether somebody else has a reference, when the recorder has none any more.
    pub(super) fn note_others(&mut self, tensor: &Tensor) {
        self.by_others = self.is_by_others(tensor);
    }

    /// Returns whether the memory is as it was recorded: nobody has switched gradients on or off, and somebody besides
    /// recordings still holds it, if somebody did.
    pub(super) fn is_current(&self, tensor: &Tensor) -> bool {
        self.memory.switches.load(Ordering::Relaxed) == self.switches
            && (!self.by_others || self.is_by_others(tensor))
    }

    fn is_by_others(&self, tensor: &Tensor) -> bool {
        tensor.buffer().shares() > self.memory.references.load(Ordering::Relaxed)
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        let mut memories = lock_memories();
        let before = self.memory.references.fetch_sub(self.references, Ordering::Relaxed);
        // The recording still has the tensor, so the identity isn't another memory's.
        if before == self.references {
            memories.remove(&self.identity);
        }
    }
}
