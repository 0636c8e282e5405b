//! Checkpointing trades time for memory: nodes of a part of the program save no tensors, and backward runs
//! the part again to recompute them.
//!
//! The second run records its own graph, which is discarded. It collects the tensors that its nodes save;
//! their order is that of the first run. Method: Chen et al., "Training deep nets with sublinear memory
//! cost" (2016); per saved tensor as in PyTorch's non-reentrant checkpoint.

use std::cell::RefCell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{DispatchKey, DispatchKeySet, LocalContext, outside_layers};
use keyfold_tensor::device::random;
use keyfold_tensor::{Tensor, Watch};

use super::level;
use super::saved::SavedTensor;

/// A checkpointed part of the program, which can run again.
pub struct Segment {
    /// Runs the part again and discards its results.
    rerun: Box<dyn Fn() -> Result<()> + Send + Sync>,
    /// The local keys with their data, and the random state of the CPU and of the arguments' devices, at the
    /// first run.
    context: LocalContext,
    random: Vec<random::State>,
    /// The number of tensors that the first run's nodes save.
    count: AtomicUsize,
    /// Whether the first run has ended.
    over: AtomicBool,
    /// During the first run the tensors that its nodes save, for gradients that the part computes itself.
    /// Afterwards the tensors that the last run collected, without those that were read.
    gathered: Mutex<Vec<Option<SavedTensor>>>,
    /// The buffers that the first run read, which mustn't be written before the second run.
    watched: Mutex<Vec<Watch>>,
}

/// How a thread treats tensors that nodes save.
enum Mode {
    /// The first run: nodes save a reference to the segment instead.
    Defer(Arc<Segment>),
    /// The second run: the tensors are collected.
    Gather(Vec<SavedTensor>),
}

thread_local! {
    /// The list has no destructor, so that destructors of other thread-locals may still call operators. The
    /// last mode to end frees it.
    static MODES: RefCell<ManuallyDrop<Vec<Mode>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// Ends a mode on drop, also after an error or a panic.
struct ModeGuard;

impl ModeGuard {
    fn enter(mode: Mode) -> ModeGuard {
        MODES.with_borrow_mut(|modes| modes.push(mode));
        ModeGuard
    }
}

impl Drop for ModeGuard {
    fn drop(&mut self) {
        let mode = MODES.with_borrow_mut(|modes| {
            let mode = modes.pop();
            if modes.is_empty() {
                drop(std::mem::take(&mut **modes));
            }
            mode
        });
        drop(mode);
    }
}

/// Returns the segment, and the number in it, from which a node gets a tensor at backward; `None` where the
/// node saves the tensor itself.
pub(super) fn defer(tensor: &Tensor) -> Option<(Arc<Segment>, usize)> {
    // Inside a jvp nodes save tensors in both runs, since the second run has no tangents.
    if level::inside_jvp() {
        return None;
    }
    MODES.with_borrow_mut(|modes| match modes.last_mut()? {
        Mode::Defer(segment) => {
            segment.locked().push(Some(SavedTensor::new(tensor)));
            segment.watch(tensor);
            Some((Arc::clone(segment), segment.count.fetch_add(1, Ordering::Relaxed)))
        }
        Mode::Gather(items) => {
            items.push(SavedTensor::new(tensor));
            None
        }
    })
}

/// Runs `first` and returns its result; the nodes that it records save no tensors. `rerun` must make the
/// same calls again. `arguments` are tensors that both read; a write to one between the two runs is an
/// error of backward.
///
/// # Errors
/// Those of `first`. At backward [`ErrorKind::Gradient`], if the call was inside a `vmap` that has ended.
pub fn checkpoint<R>(
    first: impl FnOnce() -> Result<R>,
    rerun: impl Fn() -> Result<()> + Send + Sync + 'static,
    arguments: &[Tensor],
) -> Result<R> {
    // Inside a vmap the part can run again until the vmap returns, as in vmap(grad(f)).
    let frame = crate::vmap::innermost();
    let rerun = move || match &frame {
        Some(frame) if frame.has_ended() => Err(inside_vmap()),
        _ => rerun(),
    };
    let segment = Arc::new(Segment {
        rerun: Box::new(rerun),
        context: LocalContext::current(),
        random: random::states(arguments.iter().map(Tensor::device))?,
        count: AtomicUsize::new(0),
        over: AtomicBool::new(false),
        gathered: Mutex::default(),
        watched: Mutex::default(),
    });
    arguments.iter().for_each(|argument| segment.watch(argument));
    let result = {
        let _mode = ModeGuard::enter(Mode::Defer(Arc::clone(&segment)));
        first()
    };
    segment.over.store(true, Ordering::Relaxed);
    let gathered = std::mem::take(&mut *segment.locked());
    drop(gathered);
    result
}

/// The error of a second run after the `vmap` of the first run has returned, when its examples are gone.
#[cold]
fn inside_vmap() -> Error {
    Error::new(
        ErrorKind::Gradient,
        "checkpoint: the function can't run again at backward, since the vmap that it was called in \
         has ended; call checkpoint outside, with vmap inside it: checkpoint(vmap(f), x) in place \
         of vmap of a function that calls checkpoint",
    )
}

impl Segment {
    fn locked(&self) -> MutexGuard<'_, Vec<Option<SavedTensor>>> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, tensor: &Tensor) {
        if let Some(watch) = tensor.buffer().watch() {
            self.watched.lock().unwrap_or_else(PoisonError::into_inner).push(watch);
        }
    }

    /// Returns a saved tensor by its number.
    ///
    /// # Errors
    /// Those of the second run, and [`ErrorKind::Gradient`] when that saves another number of tensors than the
    /// first.
    pub(super) fn tensor(&self, index: usize) -> Result<Tensor> {
        const WHAT: &str = "a tensor of a checkpoint";
        if !self.over.load(Ordering::Relaxed) {
            // The part itself computes a gradient during the first run.
            if let Some(Some(saved)) = self.locked().get(index) {
                return saved.unpack(WHAT, "saved by its first run", None);
            }
        }
        let take = || self.locked().get_mut(index).and_then(Option::take);
        let saved = match take() {
            Some(saved) => Some(saved),
            None => {
                self.rerun()?;
                take()
            }
        };
        match saved {
            Some(saved) => saved.unpack(WHAT, "gathered by its second run", None),
            None => Err(self.differs(0)),
        }
    }

    fn rerun(&self) -> Result<()> {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if watched.iter().any(Watch::is_changed) {
            return Err(Error::new(
                ErrorKind::Gradient,
                "a tensor that a checkpoint read was changed in place since, so its second run would \
                 compute something else; change a copy, or change it before the checkpoint",
            ));
        }
        let now = random::states(self.random.iter().map(|state| state.device))?;
        self.random.iter().try_for_each(|state| random::set_state(*state))?;
        // The second run has the local keys of the first, and records.
        let autograd = DispatchKeySet::from([DispatchKey::Autograd]);
        let _mode = ModeGuard::enter(Mode::Gather(Vec::new()));
        let result = self.context.replace(|| outside_layers(autograd, || (self.rerun)()));
        let items = MODES.with_borrow_mut(|modes| match modes.last_mut() {
            Some(Mode::Gather(items)) => std::mem::take(items),
            _ => Vec::new(),
        });
        now.into_iter().try_for_each(random::set_state)?;
        result.map_err(|error| error.at("the second run of a checkpoint"))?;
        if items.len() != self.count.load(Ordering::Relaxed) {
            return Err(self.differs(items.len()));
        }
        let items = items.into_iter().map(Some).collect();
        *self.locked() = items;
        Ok(())
    }

    #[cold]
    fn differs(&self, count: usize) -> Error {
        Error::new(
            ErrorKind::Gradient,
            format!(
                "a checkpoint's second run saved {count} tensors and its first {}: the function must \
                 make the same calls each time it is given the same arguments",
                self.count.load(Ordering::Relaxed)
            ),
        )
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({} tensors)", self.count.load(Ordering::Relaxed))
    }
}
