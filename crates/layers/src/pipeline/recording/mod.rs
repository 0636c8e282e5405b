//! A program that was recorded once and is computed again for other inputs, without its calls.
//!
//! [`Session::recorder`] records calls with placeholders for the inputs: pending tensors that
//! stand for their memory. [`Session::finish`] turns the record into a [`Recording`]: the steps of its
//! [plan](super::fusion), whose tensors are inputs, constants, or results of earlier steps.
//!
//! ```
//! use keyfold::ops::aten;
//! use keyfold_layers::pipeline::Session;
//! # use keyfold_tensor::Tensor;
//! keyfold::init();
//! let x = Tensor::from_slice(&[1.0_f64, 2.0], &[2])?;
//! let session = Session::recorder();
//! let placeholder = session.placeholder(&x)?;
//! let guard = session.enter();
//! let y = aten::exp(&aten::mul(&placeholder, &placeholder)?)?;
//! guard.close()?;
//! let recording = session.finish(&[placeholder], &[y])?;
//! let y = recording.replay(&[x])?;
//! assert_eq!(y[0].to_vec::<f64>()?, [1.0_f64.exp(), 4.0_f64.exp()]);
//! # Ok::<(), keyfold_core::Error>(())
//! ```

mod arrays;
mod build;
mod concurrent;
mod held;
mod operand;
mod program;

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use keyfold_core::{Error, ErrorKind, Result, Scalar};
use keyfold_dispatch::{Dispatcher, Operator, Value as _};
use keyfold_tensor::{DeviceBuffer, Overlap, Tensor, Value, ValueRef, overlap};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::fusion::{CallArgs, Group, Plan, Step as Planned};
use super::host::{Watch, is_interrupt};
use super::operation::{Operation, guarded};
use super::session::{Manner, Options, Session};
pub(super) use build::dispatchers_of;
use held::HeldMemory;
pub(crate) use held::note_requires_grad;
pub(super) use held::{lock_memories, shares_held_by_recordings};
pub(super) type HeldMemories = held::Memories;
use operand::{Argument, Memories, Operand};
pub(super) use program::Program;
use program::{Placeholder, Refused};

/// The recorders that exist.
static RECORDERS: AtomicUsize = AtomicUsize::new(0);

/// Returns whether a function is being recorded, on any thread.
#[inline]
pub fn is_recording() -> bool {
    RECORDERS.load(Ordering::Relaxed) > 0
}

/// Returns whether a function is being recorded here.
pub fn is_recording_here() -> bool {
    Session::current().is_some_and(|session| session.is_recorder())
}

/// Has a function that is being recorded here run from now on, as [`Session::run_instead`] does, since it asks for
/// something that differs from call to call.
///
/// # Errors
/// An interrupt, while what was recorded runs.
pub fn note_unrecordable(reason: &str) -> Result<()> {
    match Session::current().filter(|session| session.only_records()) {
        Some(session) => session.run_instead(reason),
        None => Ok(()),
    }
}

/// The reason of programs that depend on elements.
pub const READS: &str = "it reads elements, or asks for a computation, while it is recorded";

/// A step of a recording.
#[derive(Default)]
struct Step {
    /// The step of the plan; of a member of a group, the operation.
    planned: usize,
    /// The arguments of an operation; empty for a group.
    args: Vec<Argument>,
    /// The inputs of a group.
    inputs: Vec<Operand>,
    /// The numbers that a group is computed with.
    params: SmallVec<[Scalar; 4]>,
    /// For each result, the memory that it is.
    results: SmallVec<[Option<usize>; 1]>,
    /// The memories that no later step and no output reads.
    last: SmallVec<[usize; 2]>,
    /// The operations of a group, for the case that it can't be computed in one pass, the steps of tiles,
    /// or concurrent ones.
    members: Vec<Step>,
}

impl Step {
    /// Returns the arguments of an operation that is a step of these tiles, `None` for its tensor.
    fn others_of(&self, operation: usize) -> CallArgs {
        let step = self.find(operation);
        step.iter().flat_map(|step| &step.args).map(Argument::other).collect()
    }

    /// Returns the step of an operation among the members, and theirs.
    fn find(&self, operation: usize) -> Option<&Step> {
        self.members.iter().find_map(|step| match step.planned == operation {
            true => Some(step),
            false => step.find(operation),
        })
    }
}

/// A tensor that the program uses and that isn't an input. A replay reads what is there then.
struct Constant {
    /// The recording's references to its memory. Dropped before the memory is.
    held: HeldMemory,
    tensor: Tensor,
}

/// A recorded program.
pub struct Recording {
    /// Placeholders, which have the forms of the inputs.
    inputs: Vec<Tensor>,
    operations: Vec<Arc<Operation>>,
    plan: Arc<Plan>,
    steps: Vec<Step>,
    /// Each output, and whether no later one is of its memory.
    outputs: Vec<(Operand, bool)>,
    constants: Vec<Constant>,
    /// The inputs that operations write to.
    written: Vec<usize>,
    /// The number of memories: those of inputs first.
    memories: usize,
    /// The dispatchers of its operators, with the state of their registrations.
    dispatchers: Vec<(Dispatcher<Value>, u64)>,
    /// How often steps were computed tile by tile.
    tiled: AtomicUsize,
}

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recording({} operations, {} steps)", self.operations.len(), self.steps.len())
    }
}

impl Session {
    /// Makes an open session that only records. A program that asks for elements, or for what can't be recorded,
    /// runs from there on, each call at once: [`Session::refused`] says why.
    pub fn recorder() -> Arc<Session> {
        let limits =
            Options { max_ops: usize::MAX, max_pending_bytes: u64::MAX, ..Options::default() };
        let session = Session::of(limits, Manner::Recorded);
        RECORDERS.fetch_add(1, Ordering::Relaxed);
        session.open();
        session
    }

    /// Makes a tensor that stands for an input while the session records, and is of its memory if the program runs.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] for a tensor with a negative stride.
    pub fn placeholder(&self, input: &Tensor) -> Result<Tensor> {
        if input.strides().iter().any(|stride| *stride < 0) {
            let message = "an input with a negative stride isn't recorded";
            return Err(Error::new(ErrorKind::NotSupported, message));
        }
        let (placeholder, pending, memory) = Tensor::placeholder(input, self.as_source())?;
        let (input, version) = (input.clone(), input.version());
        self.lock().program.placeholders.push(Placeholder { pending, input, memory, version });
        Ok(placeholder)
    }

    /// Has the placeholders be of the inputs' memory from now on. Returns them.
    pub(super) fn fill_placeholders(&self) -> Vec<Placeholder> {
        let placeholders = std::mem::take(&mut self.lock_as_is().program.placeholders);
        for one in &placeholders {
            one.pending.stand_for(Arc::clone(&one.memory));
        }
        placeholders
    }

    /// Returns the inputs that placeholders stand for.
    pub fn inputs(&self) -> Vec<Tensor> {
        self.lock().program.placeholders.iter().map(|one| one.input.clone()).collect()
    }

    /// Returns the reason why the program can't be recorded, if there is one.
    pub fn refused(&self) -> Option<String> {
        self.lock().program.refused.as_ref().map(|refused| refused.reason.clone())
    }

    /// Returns whether a call that writes was recorded, or ran at once.
    pub fn has_written(&self) -> bool {
        self.lock().program.has_written
    }

    /// Runs what was recorded, for this reason, one by one since placeholders may be of one memory; calls from then on
    /// run at once. Without effect after the first time.
    ///
    /// # Errors
    /// The first failure, after which the rest is given up, as if it had ended the program; an interrupt.
    pub fn run_instead(&self, reason: &str) -> Result<()> {
        let copies = {
            let mut state = self.lock();
            if !self.begin_to_run() {
                return Ok(());
            }
            state.program.refused = Some(Refused { reason: reason.to_owned(), is_due: true });
            // Their calls read them.
            std::mem::take(&mut state.program.copies)
        };
        drop(copies);
        let writes: Vec<(Arc<dyn DeviceBuffer>, u32)> = {
            let state = self.lock();
            let writes = |one: &Placeholder| (Arc::clone(&one.memory), one.writes());
            let all = state.program.placeholders.iter().map(writes);
            all.filter(|(_, writes)| *writes > 0).collect()
        };
        let before: Vec<u32> = writes.iter().map(|(memory, _)| version_of(&**memory)).collect();
        let _placeholders = self.fill_placeholders();
        let ran = self.flush();
        // Kernels have counted writes again, which were counted when they were recorded.
        for ((memory, _), before) in writes.iter().zip(before) {
            let is_same = |(other, _): &&(Arc<dyn DeviceBuffer>, u32)| Arc::ptr_eq(other, memory);
            let all: u32 = writes.iter().filter(is_same).map(|(_, writes)| *writes).sum();
            if let Some(version) = memory.version() {
                version.store(before.wrapping_add(all), Ordering::Relaxed);
            }
        }
        ran
    }

    /// Returns whether a call writes to an input that shares its memory with another one, or with a tensor that isn't an
    /// input: another recording than for inputs that don't.
    pub fn mixes(&self) -> bool {
        let state = self.lock();
        let mut constants = Vec::new();
        for operation in state.waiting.iter() {
            operation.each_tensor(&mut |tensor| {
                if tensor.pending_buffer().is_none() {
                    constants.push(tensor.clone());
                }
            });
        }
        constants.extend(state.program.copies.iter().map(|(_, array)| array.clone()));
        let all = &state.program.placeholders;
        let mut written = all.iter().enumerate().filter(|(_, one)| one.writes() > 0);
        written.any(|(at, one)| {
            let inputs = all.iter().enumerate().filter(|(other, _)| *other != at);
            let mut others = inputs.map(|(_, other)| &other.input).chain(&constants);
            others.any(|other| meets(&one.input, other))
        })
    }

    /// Notes the dispatcher of an operator that the program calls.
    pub(super) fn note_dispatcher(&self, operator: &Operator<Value>) {
        let Some(dispatcher) = operator.dispatcher() else { return };
        let mut state = self.lock();
        if !state.program.called.iter().any(|(known, _)| known.is_same(&dispatcher)) {
            let generation = dispatcher.generation();
            state.program.called.push((dispatcher, generation));
        }
    }

    /// Returns whether somebody holds a tensor that was made while the program was recorded, besides its operations
    /// and these.
    pub fn escapes(&self, own: &[&Tensor]) -> bool {
        let state = self.lock();
        let mut references: FxHashMap<usize, usize> = FxHashMap::default();
        let mut count = |address: usize| *references.entry(address).or_default() += 1;
        state.waiting.iter().for_each(|operation| operation.each_pending(&mut count));
        let addresses = own.iter().filter_map(|tensor| tensor.pending_buffer());
        addresses.for_each(|pending| count(std::ptr::from_ref(pending).addr()));
        let is_more = |address: usize, held: usize| {
            held > references.get(&address).copied().unwrap_or_default()
        };
        let slots = state.waiting.iter().flat_map(|one| one.results.iter().flatten());
        let mut results =
            slots.map(|slot| (slot.memory.as_ptr().addr(), slot.memory.strong_count()));
        // One of the references to a placeholder's memory is the session's.
        let given = |one: &Placeholder| {
            (Arc::as_ptr(&one.pending).addr(), Arc::strong_count(&one.pending) - 1)
        };
        let mut placeholders = state.program.placeholders.iter().map(given);
        results.any(|(address, held)| is_more(address, held))
            || placeholders.any(|(address, held)| is_more(address, held))
    }
}

/// Returns whether tensors share a buffer, or elements.
fn meets(a: &Tensor, b: &Tensor) -> bool {
    a.buffer().shares_with(b.buffer()) || overlap(a, b).is_ok_and(|meets| meets != Overlap::None)
}

fn version_of(memory: &dyn DeviceBuffer) -> u32 {
    memory.version().map_or(0, |version| version.load(Ordering::Relaxed))
}

/// Notes that a recorder is dropped.
pub(super) fn note_dropped() {
    RECORDERS.fetch_sub(1, Ordering::Relaxed);
}

impl Recording {
    /// Returns whether inputs have the recorded forms: shapes, strides, dtypes and devices, and whether they may be
    /// written to.
    pub fn fits(&self, inputs: &[Tensor]) -> bool {
        let same = |(own, given): (&Tensor, &Tensor)| {
            own.dtype() == given.dtype()
                && own.shape() == given.shape()
                && own.strides() == given.strides()
                && own.device() == given.device()
                && own.is_writable() == given.is_writable()
        };
        self.inputs.len() == inputs.len() && self.inputs.iter().zip(inputs).all(same)
    }

    /// Returns whether the program would be recorded alike today: no kernel of its operators' dispatchers
    /// was registered or removed, and no constant is held by recordings alone that somebody else held
    /// before, who has another one now, or was made to require gradients since.
    pub fn is_current(&self) -> bool {
        let registered =
            |(dispatcher, known): &(Dispatcher<Value>, u64)| dispatcher.generation() == *known;
        let same = |constant: &Constant| constant.held.is_current(&constant.tensor);
        self.dispatchers.iter().all(registered) && self.constants.iter().all(same)
    }

    /// Returns the number of operations that are computed, and of the steps that do.
    pub fn counts(&self) -> (usize, usize) {
        (self.operations.len(), self.plan.steps.iter().map(Planned::count).sum())
    }

    /// Returns how often replays have computed steps tile by tile.
    pub fn tiled(&self) -> usize {
        self.tiled.load(Ordering::Relaxed)
    }

    /// Returns whether inputs share memory with each other or with constants in a way that a write of the
    /// program would be seen through another one, which isn't recorded.
    pub fn mixes(&self, inputs: &[Tensor]) -> bool {
        self.written.iter().any(|written| {
            let others = inputs.iter().enumerate().filter(|(at, _)| at != written);
            let constants = self.constants.iter().map(|constant| &constant.tensor);
            let mut others = others.map(|(_, input)| input).chain(constants);
            others.any(|other| meets(&inputs[*written], other))
        })
    }

    /// Computes the outputs for these inputs, which [fit](Recording::fits).
    ///
    /// # Errors
    /// That of the first operation that fails in the plan's order, with its place and the line that recorded it;
    /// an interrupt.
    pub fn replay(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.replay_by(inputs, &OnceCell::new())
    }

    /// As [`Recording::replay`], with a look for interrupts between all steps.
    pub(super) fn replay_watched(&self, inputs: &[Tensor], watch: Watch) -> Result<Vec<Tensor>> {
        self.replay_by(inputs, &OnceCell::from(watch))
    }

    /// Looks for interrupts between steps by a watch that has begun.
    fn replay_by(&self, inputs: &[Tensor], watch: &OnceCell<Watch>) -> Result<Vec<Tensor>> {
        let mut memories = Memories::new(inputs, self.memories);
        let looks = watch.get().is_some();
        for step in &self.steps {
            if looks && let Some(watch) = watch.get() {
                watch.look()?;
            }
            self.run(&self.plan.steps[step.planned], step, &mut memories, watch)?;
        }
        let mut outputs = Vec::with_capacity(self.outputs.len());
        for (output, is_last) in &self.outputs {
            let taken = is_last.then(|| memories.take(output)).flatten();
            outputs.push(match taken {
                Some(result) => result,
                None => output.tensor(&memories)?,
            });
        }
        Ok(outputs)
    }

    /// Computes a step, and drops what nothing behind it reads. Tiles and concurrent steps look for an interrupt
    /// by `watch`, which begins with the first of them.
    fn run(
        &self,
        planned: &Planned,
        step: &Step,
        memories: &mut Memories<'_>,
        watch: &OnceCell<Watch>,
    ) -> Result<()> {
        let results = match planned {
            Planned::One(at) => {
                self.run_one(&self.operations[*at], step, memories)?;
                step.last.iter().for_each(|memory| memories.clear(*memory));
                return Ok(());
            }
            Planned::Group(group) => self.compute(group, step, memories).map(Some),
            Planned::Tiled(tiled) => {
                let inputs = step.inputs.iter().map(|input| input.tensor(memories));
                let inputs = inputs.collect::<Result<Vec<_>>>()?;
                let (others, watch) = (|op| step.others_of(op), watch.get_or_init(Watch::new));
                let computed = tiled.compute(&self.operations, &inputs, others, watch);
                if let Some(error) = watch.take_stop() {
                    return Err(error);
                }
                self.tiled.fetch_add(matches!(computed, Ok(Some(_))).into(), Ordering::Relaxed);
                computed
            }
            Planned::Concurrent(concurrent) => {
                self.run_concurrent(concurrent, step, memories, watch)?;
                // Several of the steps may have read a memory that no later one reads.
                step.last.iter().for_each(|memory| memories.clear(*memory));
                return Ok(());
            }
        };
        match results {
            Ok(Some(results)) => memories.set_all(&step.results, results),
            Err(error) if is_interrupt(&error) => return Err(error),
            _ => self.run_members(planned, step, memories, watch)?,
        }
        step.last.iter().for_each(|memory| memories.clear(*memory));
        Ok(())
    }

    /// Computes a group. Inputs are used where they are, since copying a tensor costs more than the
    /// rest of a small group.
    fn compute(&self, group: &Group, step: &Step, memories: &Memories<'_>) -> Result<Vec<Tensor>> {
        let mut views = Vec::new();
        for input in &step.inputs {
            if input.known(memories)?.is_none() {
                views.push(input.tensor(memories)?);
            }
        }
        let (mut views, mut inputs) = (views.iter(), SmallVec::<[&Tensor; 8]>::new());
        for input in &step.inputs {
            inputs.extend(input.known(memories)?.or_else(|| views.next()));
        }
        group.results(&self.operations, &inputs, &step.params)
    }

    fn run_one(
        &self,
        operation: &Operation,
        step: &Step,
        memories: &mut Memories<'_>,
    ) -> Result<()> {
        // Both in one, since a result is large: it is moved once, to its memory.
        let computed = guarded(|| {
            let result = call(operation, step, memories)?;
            store(operation, step, result, memories)
        });
        computed.map_err(|error| self.told_of(operation, error))
    }

    /// Runs the steps of tiles, or the operations of a group one by one: an error is that of one of them.
    fn run_members(
        &self,
        planned: &Planned,
        step: &Step,
        memories: &mut Memories<'_>,
        watch: &OnceCell<Watch>,
    ) -> Result<()> {
        for (at, member) in step.members.iter().enumerate() {
            match planned {
                Planned::Tiled(tiled) => self.run(&tiled.steps[at], member, memories, watch)?,
                _ => {
                    self.run_one(&self.operations[member.planned], member, memories)?;
                    member.last.iter().for_each(|memory| memories.clear(*memory));
                }
            }
        }
        Ok(())
    }

    /// Adds an operation's place in the program to its error.
    #[cold]
    fn told_of(&self, operation: &Operation, error: Error) -> Error {
        let site = operation.site.as_ref().and_then(super::host::Site::resolve);
        let recorded = site.map_or(String::new(), |site| format!(", recorded at {site}"));
        let name = operation.operator.name();
        error.noted(&format!(
            "operation {} of a fused function, {name}{recorded}, failed",
            operation.index
        ))
    }
}

/// Calls an operation's operator. Arguments are used where they are, as in [`Recording::compute`].
#[inline]
fn call(operation: &Operation, step: &Step, memories: &Memories<'_>) -> Result<Value> {
    let mut made = Vec::new();
    let mut args = SmallVec::<[ValueRef<'_>; 8]>::new();
    for arg in &step.args {
        match arg.lent(memories)? {
            Some(lent) => args.push(lent),
            None => {
                // Its place, until all are made.
                args.push(ValueRef::None);
                made.push((args.len() - 1, arg.value(memories)?));
            }
        }
    }
    made.iter().for_each(|(at, value)| args[*at] = value.as_ref());
    let result = operation.call_lent(&args);
    if result.is_ok() {
        for at in &operation.written {
            if let Some(ValueRef::Tensor(written)) = args.get(*at) {
                written.note_write();
            }
        }
    }
    result
}

/// Stores the results of an operation.
#[inline]
fn store(
    operation: &Operation,
    step: &Step,
    result: Value,
    memories: &mut Memories<'_>,
) -> Result<()> {
    operation.for_each_result(result, |at, item| {
        let (Some(memory), Some(slot)) = (step.results[at], &operation.results[at]) else {
            return Ok(());
        };
        operation.make_own(slot, memories.set(memory, item.into_tensor()?))
    })
}
