//! Checkpointing: memory for time. What nodes would keep of a part of the program isn't kept; when
//! a derivative asks for it, that part runs again.
//!
//! The second run records a graph of its own that nobody uses: only what its nodes would keep is
//! gathered, in order, which is the order of the first run. Method: Chen et al., "Training deep nets
//! with sublinear memory cost" (2016); per saved tensor as in PyTorch's non-reentrant checkpoint.

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
use super::node::TensorMeta;
use super::saved::SavedTensor;

/// A part of the program that can run again.
pub struct Segment {
    /// Runs it; results are thrown away.
    again: Box<dyn Fn() -> Result<()> + Send + Sync>,
    /// Local keys and their data, and the random state of the CPU and of the arguments' devices, as
    /// they were.
    context: LocalContext,
    random: Vec<random::State>,
    kept: AtomicUsize,
    /// Whether the first run is over.
    over: AtomicBool,
    /// While the first run goes on: all that it would keep, for gradients that it computes itself.
    /// Later: what the last run gathered and nobody has taken.
    gathered: Mutex<Vec<Option<SavedTensor>>>,
    /// Memory that the first run read, and that must be as it was for the second.
    watched: Mutex<Vec<Watch>>,
}

/// What a thread does with tensors that nodes keep.
enum Mode {
    /// Puts them off: the first run.
    Defer(Arc<Segment>),
    /// Gathers them: the second run.
    Gather(Vec<(SavedTensor, TensorMeta)>),
}

thread_local! {
    /// Without a destructor, so that those of other thread-locals may call operators; the last
    /// mode to end frees it.
    static MODES: RefCell<ManuallyDrop<Vec<Mode>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// Ends a mode, also when what ran in it failed.
struct Leave;

impl Leave {
    fn enter(mode: Mode) -> Leave {
        MODES.with_borrow_mut(|modes| modes.push(mode));
        Leave
    }
}

impl Drop for Leave {
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

/// Where a node finds a tensor later that it would keep now; `None`: it keeps it.
pub(super) fn defer(tensor: &Tensor) -> Option<(Arc<Segment>, usize)> {
    // Kept at once inside a jvp, in both runs: the second one would know no tangents.
    if level::is_open() {
        return None;
    }
    MODES.with_borrow_mut(|modes| match modes.last_mut()? {
        Mode::Defer(segment) => {
            segment.locked().push(Some(SavedTensor::new(tensor)));
            segment.watch(tensor);
            Some((Arc::clone(segment), segment.kept.fetch_add(1, Ordering::Relaxed)))
        }
        Mode::Gather(items) => {
            items.push((SavedTensor::new(tensor), TensorMeta::of(tensor)));
            None
        }
    })
}

/// Runs `first` and gives its result; the nodes that it records keep no tensors. `again` must make
/// the same calls once more. `arguments` are tensors that both read: changed in place in between,
/// they are an error.
///
/// # Errors
/// Those of `first`. At backward [`ErrorKind::Gradient`], when it was inside a `vmap` that has ended.
pub fn checkpoint<R>(
    first: impl FnOnce() -> Result<R>,
    again: impl Fn() -> Result<()> + Send + Sync + 'static,
    arguments: &[Tensor],
) -> Result<R> {
    // Inside a vmap it can run again as long as the vmap does: vmap(grad(f)).
    let frame = crate::vmap::innermost();
    let again = move || match &frame {
        Some(frame) if frame.has_ended() => Err(inside_vmap()),
        _ => again(),
    };
    let segment = Arc::new(Segment {
        again: Box::new(again),
        context: LocalContext::current(),
        random: random::states(arguments.iter().map(Tensor::device))?,
        kept: AtomicUsize::new(0),
        over: AtomicBool::new(false),
        gathered: Mutex::default(),
        watched: Mutex::default(),
    });
    arguments.iter().for_each(|argument| segment.watch(argument));
    let result = {
        let _mode = Leave::enter(Mode::Defer(Arc::clone(&segment)));
        first()
    };
    segment.over.store(true, Ordering::Relaxed);
    let kept = std::mem::take(&mut *segment.locked());
    drop(kept);
    result
}

/// The second run comes with backward, when the `vmap` has ended and its examples with it.
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

    /// A tensor that the part keeps, by its number.
    ///
    /// # Errors
    /// Those of the second run, and [`ErrorKind::Gradient`] when it isn't the first run's equal.
    pub(super) fn tensor(&self, index: usize) -> Result<Tensor> {
        const WHAT: &str = "a tensor of a checkpoint";
        if !self.over.load(Ordering::Relaxed) {
            // A gradient inside the first run itself.
            if let Some(Some(saved)) = self.locked().get(index) {
                return saved.unpack(WHAT, "saved by its first run", None);
            }
        }
        let take = || self.locked().get_mut(index).and_then(Option::take);
        let saved = match take() {
            Some(saved) => Some(saved),
            None => {
                self.run_again()?;
                take()
            }
        };
        match saved {
            Some(saved) => saved.unpack(WHAT, "gathered by its second run", None),
            None => Err(self.differs(0)),
        }
    }

    fn run_again(&self) -> Result<()> {
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
        // As the first run was: with its guards, and recording.
        let autograd = DispatchKeySet::from([DispatchKey::Autograd]);
        let _mode = Leave::enter(Mode::Gather(Vec::new()));
        let result = self.context.replace(|| outside_layers(autograd, || (self.again)()));
        let items = MODES.with_borrow_mut(|modes| match modes.last_mut() {
            Some(Mode::Gather(items)) => std::mem::take(items),
            _ => Vec::new(),
        });
        now.into_iter().try_for_each(random::set_state)?;
        result.map_err(|error| error.at("the second run of a checkpoint"))?;
        if items.len() != self.kept.load(Ordering::Relaxed) {
            return Err(self.differs(items.len()));
        }
        let items = items.into_iter().map(|(saved, _)| Some(saved)).collect();
        *self.locked() = items;
        Ok(())
    }

    #[cold]
    fn differs(&self, count: usize) -> Error {
        Error::new(
            ErrorKind::Gradient,
            format!(
                "a checkpoint's second run kept {count} tensors and its first {}: the function must \
                 make the same calls each time it is given the same arguments",
                self.kept.load(Ordering::Relaxed)
            ),
        )
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({} tensors)", self.kept.load(Ordering::Relaxed))
    }
}
