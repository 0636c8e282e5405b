//! The end of a matched sequence: its calls are replayed, or made operations.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

use keyfold_core::{Error, ErrorKind, Result, SharedError};
use keyfold_dispatch::DispatchKey;
use keyfold_tensor::{PendingBuffer, Tensor, Value};
use smallvec::SmallVec;

use super::{Argument, Call, Input, Matched, Sequence, Source, View, table};
use crate::pipeline::copies::bytes_of;
use crate::pipeline::host::{self, Watch};
use crate::pipeline::known::CallForm;
use crate::pipeline::operation::{Operation, Slot, make_own, memory_id};
use crate::pipeline::session::{Outdated, Session, State};
use crate::pipeline::waiting::Waiting;
use crate::profiler;

/// The most bytes of inputs that only the record keeps: operations give each back as soon as it was read, and a
/// replay doesn't, in case that it fails.
const MOST_KEPT: u64 = 1 << 24;

impl Session {
    /// Computes the calls of a sequence, if a program has made all of them, and nothing else. `None` if what waits
    /// has to run as operations.
    ///
    /// # Errors
    /// An interrupt, after which they wait as operations.
    pub(in crate::pipeline) fn replay_sequence(&self) -> Option<Result<()>> {
        if !self.matches.load(Ordering::Relaxed) || profiler::is_open() {
            return None;
        }
        let (matched, turn) = {
            let mut state = self.lock_as_is();
            let state = &mut *state;
            if state.runner.is_some() || !state.matched.as_mut().is_some_and(Matched::is_complete) {
                return None;
            }
            let matched = Arc::new(state.matched.take()?);
            self.matches.store(false, Ordering::Relaxed);
            // Calls of other threads have later indices, if these become operations yet.
            state.waiting.first = matched.first + matched.len();
            state.replayed = Some(Arc::clone(&matched));
            (matched, self.begin_turn(state))
        };
        let computed = matched.compute();
        // Without the state's lock: Python may be asked, and a thread that has the GIL may wait for that lock.
        let is_interrupt = computed.as_ref().err().is_some_and(host::is_interrupt);
        let mut state = self.lock_as_is();
        // A signal handler that looked at what waits has made the calls operations.
        let is_whole = state.replayed.take().is_some();
        let outcome = match computed {
            Ok(computed) if is_whole => {
                matched.finish(&mut state, computed);
                Some(Ok(()))
            }
            Ok(_) => None,
            Err(error) => {
                if is_whole {
                    self.wait_again(&matched, &mut state);
                }
                // An error of an operation is found, and told, by running it as one.
                is_interrupt.then_some(Err(error))
            }
        };
        drop(state);
        if matches!(outcome, Some(Ok(()))) {
            table::note_replay(&matched.sequence);
        }
        // Without the lock, since large memory is given back.
        drop(matched);
        drop(turn);
        outcome
    }

    /// Makes the calls that a program had in common with a sequence operations that wait: those that were made so
    /// far, or, on the thread that replays them, all.
    pub(in crate::pipeline) fn leave_sequence(&self, state: &mut State) {
        self.matches.store(false, Ordering::Relaxed);
        if let Some(matched) = state.matched.take() {
            matched.sequence.mismatches.fetch_add(1, Ordering::Relaxed);
            matched.become_operations(self, state);
        }
        if state.replayed.is_some()
            && state.is_run_here()
            && let Some(matched) = state.replayed.take()
        {
            self.wait_again(&matched, state);
        }
    }

    /// Makes the calls of a replay operations, before what was recorded meanwhile.
    fn wait_again(&self, matched: &Matched, state: &mut State) {
        let later = std::mem::replace(&mut state.waiting, Waiting::from(matched.first));
        matched.sequence.mismatches.fetch_add(1, Ordering::Relaxed);
        matched.become_operations(self, state);
        state.waiting.append(later);
    }
}

impl State {
    /// Drops a sequence of which no call was made.
    pub(super) fn forget_matched(&mut self) {
        if let Some(Matched { sequence, replaced, .. }) = self.matched.take() {
            self.outdated.extend(replaced.into_iter().chain([sequence]).map(|one| one as Outdated));
        }
    }
}

impl Matched {
    /// Returns the indices of the calls whose results a call reads: those are pure, and so all that it needs.
    fn needed(&self, call: &Call) -> SmallVec<[usize; 4]> {
        let writers = call.tensors.iter().filter_map(|source| match source {
            Source::Input(_) => None,
            Source::Result { number, .. } => Some(self.first + self.sequence.results[*number].0),
        });
        let mut needed: SmallVec<[usize; 4]> = writers.collect();
        needed.sort_unstable();
        needed.dedup();
        needed
    }

    /// Returns whether calls so far read a tensor's memory, or fill it.
    pub(in crate::pipeline) fn uses(&self, session: &Session, tensor: &Tensor) -> bool {
        let fills = |memory| session.writer(memory).is_some_and(|at| self.indices().contains(&at));
        self.inputs.iter().any(|input| input.memory == memory_id(tensor))
            || tensor.pending_buffer().is_some_and(fills)
    }

    /// Returns the indices of the calls.
    pub(in crate::pipeline) fn indices(&self) -> Range<usize> {
        self.first..self.first + self.len()
    }

    /// Returns whether the program is the sequence's, or that of another one that agrees, which takes its place:
    /// the calls, what is held of the results, and the inputs as they were.
    fn is_complete(&mut self) -> bool {
        let is_as_long = |sequence: &Sequence| sequence.calls.len() == self.len();
        let fits = |sequence: &Sequence| {
            is_as_long(sequence)
                && !sequence.is_outdated()
                && sequence.moves.is_as_planned()
                && self.are_held(&sequence.held)
        };
        if !fits(&self.sequence) {
            let so_far = (&self.sequence, self.len());
            let Some(other) = table::instead_of(so_far, is_as_long, fits) else {
                return false;
            };
            self.change(other);
        }
        let is_kept = |input: &&Input| input.tensor.buffer().shares() == 1;
        let kept: u64 = self.inputs.iter().filter(is_kept).map(|one| bytes_of(&one.tensor)).sum();
        kept <= MOST_KEPT && self.inputs.iter().all(|input| input.tensor.version() == input.version)
    }

    /// Computes the results that are held.
    fn compute(&self) -> Result<Vec<Tensor>> {
        let inputs: Vec<Tensor> = self.inputs.iter().map(|input| input.tensor.clone()).collect();
        let mut computed = self.sequence.recording.replay_watched(&inputs, Watch::new())?;
        computed.iter_mut().try_for_each(make_own)?;
        Ok(computed)
    }

    /// Fills the memory of the results, and counts.
    fn finish(&self, state: &mut State, computed: Vec<Tensor>) {
        let Matched { sequence, first, results, bytes, .. } = self;
        let held = results.iter().zip(&sequence.held).enumerate().filter(|(_, (_, held))| **held);
        for ((number, (memory, _)), computed) in held.zip(computed) {
            let Some(memory) = memory.as_ref().and_then(Weak::upgrade) else { continue };
            match stage(&memory, computed) {
                // A write that another thread recorded meanwhile fills it.
                Ok(()) => state.conclude(first + sequence.results[number].0, &memory, None),
                Err(error) => memory.fail(SharedError::new(error)),
            }
        }
        state.statistics = state.statistics.combine(sequence.statistics, u64::wrapping_add);
        state.statistics.recognised += 1;
        state.pending_bytes = state.pending_bytes.saturating_sub(*bytes);
        state.note_ran();
    }

    /// Adds an operation for each call.
    fn become_operations(&self, session: &Session, state: &mut State) {
        let Matched { sequence, first, inputs, results, sites, replaced, copied, .. } = self;
        // A write looks at their arguments again.
        state.noted = state.noted.min(*first);
        let mut memories: Vec<Option<Arc<PendingBuffer>>> = Vec::with_capacity(results.len());
        for (at, (call, site)) in sequence.calls.iter().zip(sites).enumerate() {
            let (index, form) = (first + at, &call.form);
            let remade = Remade { sequence, inputs, memories: &memories };
            let args: Vec<Value> = call.args.iter().map(|arg| remade.argument(arg)).collect();
            let versions = call.tensors.iter().filter_map(|source| match source {
                Source::Input(number) => Some(inputs[*number].version),
                Source::Result { .. } => None,
            });
            let versions = versions.collect();
            let copied = copied.iter().find(|(call, _)| *call == at);
            let mut bytes = copied.map_or(0, |(_, bytes)| *bytes);
            let mut slots: SmallVec<[Option<Slot>; 1]> = SmallVec::new();
            for form in &form.forms {
                let memory = results[memories.len()].as_ref().zip(form.as_ref());
                let memory = memory.map(|(memory, form)| {
                    let size = form.shape.iter().product::<usize>() * form.dtype.size();
                    bytes += size as u64;
                    // Only calls read a result that nobody holds.
                    let memory = memory.upgrade().unwrap_or_else(|| {
                        let device = call.form.device;
                        let new = PendingBuffer::new(device, size, session.as_source());
                        new.set_writer(index);
                        Arc::new(new)
                    });
                    slots.push(Some(Slot::new(Arc::downgrade(&memory), form)));
                    memory
                });
                if memory.is_none() {
                    slots.push(None);
                }
                memories.push(memory);
            }
            let operation = Operation {
                index,
                operator: Arc::clone(&call.operator),
                keyset: call.keyset,
                context: Arc::clone(&call.context),
                site: site.clone(),
                stream: None,
                after: self.needed(call),
                form: Arc::clone(form),
                args: Mutex::new(args),
                versions,
                results: slots,
                bytes,
            };
            state.waiting.push(Arc::new(operation));
        }
        let last = self.len().checked_sub(1).and_then(|last| sequence.calls.get(last));
        state.set_context(last.map(|last| Arc::clone(&last.context)));
        let left = replaced.iter().chain([sequence]);
        state.outdated.extend(left.map(|left| Arc::clone(left) as Outdated));
    }
}

/// Stores a result as the memory of a pending tensor.
fn stage(memory: &PendingBuffer, result: Tensor) -> Result<()> {
    match result.into_buffer().into_shared() {
        Some(computed) => memory.stage(computed),
        None => Err(Error::new(ErrorKind::Return, "a result is memory of another library")),
    }
}

/// The tensors of calls that become operations.
struct Remade<'m> {
    sequence: &'m Sequence,
    inputs: &'m [Input],
    memories: &'m [Option<Arc<PendingBuffer>>],
}

impl Remade<'_> {
    fn argument(&self, arg: &Argument) -> Value {
        match arg {
            Argument::Tensor(Source::Input(number), _) => {
                Value::Tensor(self.inputs[*number].tensor.clone())
            }
            Argument::Tensor(Source::Result { number, offset }, view) => {
                Value::Tensor(self.result(*number, *offset, view.as_deref()))
            }
            Argument::List(items) => {
                Value::List(items.iter().map(|item| self.argument(item)).collect())
            }
            Argument::Value(value) => (**value).clone(),
        }
    }

    fn result(&self, number: usize, offset: usize, view: Option<&View>) -> Tensor {
        let (call, place) = self.sequence.results[number];
        let form: &CallForm = &self.sequence.calls[call].form;
        let made = form.forms[place].as_ref().zip(self.memories[number].clone());
        let made = made.map(|(form, memory)| {
            let whole = Tensor::pending(memory, &form.shape, &form.strides, form.dtype)?;
            let Some(View { shape, strides, is_writable }) = view else { return Ok(whole) };
            let buffer = whole.into_buffer();
            let view = Tensor::from_parts(buffer, shape.clone(), strides.clone(), offset)?;
            view.insert_key(DispatchKey::Deferred)?;
            Ok::<Tensor, Error>(if *is_writable { view } else { view.into_read_only() })
        });
        match made {
            Some(Ok(tensor)) => tensor,
            _ => unreachable!("calls had this tensor before"),
        }
    }
}
