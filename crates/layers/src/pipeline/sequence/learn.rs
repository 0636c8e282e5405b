//! Making a sequence of the calls that a flush runs.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, PoisonError, Weak};

use keyfold_dispatch::Value as _;
use keyfold_tensor::{PendingBuffer, Tensor, Value};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::table::{self, Signature};
use super::{Argument, Call, Sequence, Source, View};
use crate::pipeline::decide::Form;
use crate::pipeline::fusion::{self, Moves, Plan};
use crate::pipeline::operation::{Operation, for_each_tensor, is_one};
use crate::pipeline::recording::{Recording, dispatchers_of};
use crate::pipeline::session::{Outdated, State, Statistics};
use crate::pipeline::waiting::Held;

/// The most calls of a sequence.
const MOST_CALLS: usize = 4096;

/// The calls of a flush, before it changes and runs them.
#[derive(Default)]
pub(in crate::pipeline) struct Observed {
    signature: Signature,
    calls: Vec<Call>,
    inputs: Vec<Tensor>,
    results: Vec<(usize, usize)>,
    held: Vec<bool>,
    /// The memory of each result, and the number of the result by its address.
    memories: Vec<Option<Weak<PendingBuffer>>>,
    numbers: FxHashMap<usize, usize>,
}

impl Observed {
    /// Looks at all operations that wait; `None` if they can't be recognised later, or if none of the last flushes
    /// that began as they do was like this one.
    pub(in crate::pipeline) fn of(state: &mut State, held: &Held) -> Option<Observed> {
        let (mut waiting, len) = (state.waiting.iter(), state.waiting.len());
        let first = waiting.next()?;
        let last = waiting.next_back().unwrap_or(first);
        let signature = Signature::new(&first.form, &last.form, len);
        let (is_again, old) = table::note_flush(signature);
        state.outdated.extend(old.into_iter().map(|old| old as Outdated));
        if len > MOST_CALLS || !state.running.is_empty() || !is_again {
            return None;
        }
        let mut observed = Observed { signature, ..Observed::default() };
        let all = state.waiting.iter().try_for_each(|operation| observed.add(operation, held));
        if all.is_none() {
            table::note_unlearned(signature);
        }
        all.map(|()| observed)
    }

    /// Adds a call; `None` if it isn't a pure one on memory of the host. A context with objects, such as a profile,
    /// would be kept alive, and is another one each time.
    fn add(&mut self, operation: &Operation, held: &Held) -> Option<()> {
        let is_plain = operation.is_pure()
            && !operation.key.is_empty()
            && operation.stream.is_none()
            && operation.device.kind().is_host()
            && !operation.context.has_objects();
        if !is_plain {
            return None;
        }
        let args = operation.args.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tensors = SmallVec::new();
        for arg in &*args {
            let mut all = Some(());
            for_each_tensor(arg.as_ref(), &mut |tensor| match self.source(tensor) {
                Some(source) => tensors.push(source),
                None => all = None,
            });
            all?;
        }
        let args = args.iter().map(|arg| self.argument(arg)).collect::<Option<_>>()?;
        let call = self.calls.len();
        for (place, slot) in operation.results.iter().enumerate() {
            let memory = slot.as_ref().map(|slot| Weak::clone(&slot.memory));
            if let Some(memory) = &memory {
                self.numbers.insert(memory.as_ptr().addr(), self.results.len());
            }
            self.results.push((call, place));
            self.held.push(slot.as_ref().is_some_and(|slot| held.has(slot)));
            self.memories.push(memory);
        }
        self.calls.push(Call {
            operator: Arc::clone(&operation.operator),
            keyset: operation.keyset,
            context: Arc::clone(&operation.context),
            form: Arc::clone(&operation.form),
            args,
            tensors,
        });
        Some(())
    }

    /// Returns where a tensor is from; one that no call made is an input. `None` for one that other operations
    /// compute.
    fn source(&mut self, tensor: &Tensor) -> Option<Source> {
        if !tensor.device().kind().is_host() {
            return None;
        }
        if let Some(pending) = tensor.pending_buffer() {
            let number = self.numbers.get(&std::ptr::from_ref(pending).addr());
            return number
                .map(|number| Source::Result { number: *number, offset: tensor.offset() });
        }
        let known = self.inputs.iter().position(|input| is_one(input, tensor));
        Some(Source::Input(known.unwrap_or_else(|| {
            self.inputs.push(tensor.clone());
            self.inputs.len() - 1
        })))
    }

    fn argument(&mut self, arg: &Value) -> Option<Argument> {
        Some(match arg {
            Value::Tensor(tensor) => {
                let source = self.source(tensor)?;
                if let Source::Result { number, .. } = source
                    && self.form(number).is_none_or(|form| form.dtype != tensor.dtype())
                {
                    return None;
                }
                let view = match source {
                    Source::Result { number, offset } if !self.is_whole(number, offset, tensor) => {
                        let (shape, strides) = (tensor.shape().clone(), tensor.strides().clone());
                        let is_writable = tensor.is_writable();
                        Some(Box::new(View { shape, strides, is_writable }))
                    }
                    _ => None,
                };
                Argument::Tensor(source, view)
            }
            Value::List(items) => {
                let items = items.iter().map(|item| self.argument(item));
                Argument::List(items.collect::<Option<_>>()?)
            }
            other => Argument::Value(Box::new(other.clone())),
        })
    }

    /// Returns the form of a result.
    fn form(&self, number: usize) -> Option<&Form> {
        let (call, place) = self.results[number];
        self.calls[call].form.forms[place].as_ref()
    }

    /// Returns whether a tensor is all of a result, as the call returned it.
    fn is_whole(&self, number: usize, offset: usize, tensor: &Tensor) -> bool {
        self.form(number).is_some_and(|form| {
            offset == 0
                && tensor.is_writable()
                && tensor.dtype() == form.dtype
                && *tensor.shape() == form.shape
                && *tensor.strides() == form.strides
        })
    }

    /// Records the plan of these operations, those of the calls whose results are read; `None` if a kernel isn't
    /// keyfold's own. Without the state's lock, since a look at kernels may drop others.
    pub(in crate::pipeline) fn record(
        self,
        operations: &[Arc<Operation>],
        plan: &Arc<Plan>,
    ) -> Option<NewSequence> {
        let is_own = |call: &Call| call.operator.with_kernel(call.keyset, fusion::is_movable);
        if !self.calls.iter().all(|call| is_own(call) == Some(true)) {
            table::note_unlearned(self.signature);
            return None;
        }
        let mut outputs = Vec::new();
        for (memory, is_held) in self.memories.iter().zip(&self.held) {
            if *is_held {
                outputs.push(memory.as_ref()?.upgrade()?);
            }
        }
        let recording = Recording::of_calls(operations, plan, &self.inputs, &outputs).ok()?;
        let Observed { calls, results, held, .. } = self;
        let dispatchers = dispatchers_of(calls.iter().map(|call| &*call.operator)).ok()?;
        let (moves, statistics) = (Moves::of(operations), Statistics::default());
        let mismatches = AtomicU32::new(0);
        let sequence = Sequence {
            calls,
            results,
            held,
            recording,
            dispatchers,
            moves,
            statistics,
            mismatches,
        };
        Some(NewSequence(sequence))
    }
}

/// A sequence whose flush hasn't succeeded yet.
pub(in crate::pipeline) struct NewSequence(Sequence);

impl NewSequence {
    /// Keeps the sequence for later programs. `statistics` is what its flush added to the counters.
    pub(in crate::pipeline) fn keep(mut self, statistics: Statistics) {
        // A handler of a signal may have run something else meanwhile.
        if statistics.failed == 0 && statistics.skipped == 0 && statistics.flushes == 1 {
            // Calls that others recorded meanwhile aren't the flush's, and the plan is known from now on.
            self.0.statistics = Statistics { recorded: 0, at_once: 0, planned: 0, ..statistics };
            table::keep(self.0);
        }
    }
}
