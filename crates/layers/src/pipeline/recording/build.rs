//! A recording, made of the operations that a session recorded.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{Dispatcher, Operator, Value as _};
use keyfold_tensor::{PendingBuffer, Tensor, Value};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::held::HeldMemory;
use super::operand::{Argument, Operand};
use super::{Constant, Recording, Step};
use crate::pipeline::fusion::{self, Plan, Step as Planned, Tiled};
use crate::pipeline::operation::{Operation, for_each_tensor, is_one};
use crate::pipeline::plan;
use crate::pipeline::session::Session;
use crate::pipeline::waiting::Held;

/// The memories of placeholders and results, by the address of their pending memory.
#[derive(Default)]
struct Known {
    /// The number of the memory, and the tensor that is all of it.
    memories: FxHashMap<usize, (usize, Tensor)>,
    count: usize,
    /// The inputs that aren't placeholders: theirs are the first memories.
    inputs: Vec<Tensor>,
    /// Tensors that aren't inputs, with the number of references that the recording has to their memory.
    constants: Vec<(Tensor, usize)>,
}

impl Known {
    fn add(&mut self, address: usize, whole: Tensor) -> usize {
        let number = self.count;
        self.memories.insert(address, (number, whole));
        self.count += 1;
        number
    }

    /// Returns a recorded tensor as an operand.
    fn operand(&mut self, tensor: &Tensor) -> Result<Operand> {
        let known = tensor
            .pending_buffer()
            .and_then(|pending| self.memories.get(&std::ptr::from_ref(pending).addr()));
        if let Some((memory, whole)) = known {
            let (shape, strides) = (tensor.shape(), tensor.strides());
            let writable = tensor.is_writable();
            let is_whole = writable == whole.is_writable()
                && shape == whole.shape()
                && strides == whole.strides()
                && tensor.offset() == whole.offset()
                && tensor.dtype() == whole.dtype();
            if is_whole {
                return Ok(Operand::Whole(*memory));
            }
            let Some(offset) = tensor.offset().checked_sub(whole.offset()) else {
                let message = "a view begins before the input that it is of";
                return Err(Error::new(ErrorKind::Pipeline, message));
            };
            let (shape, strides) = (shape.clone(), strides.clone());
            return Ok(Operand::View { memory: *memory, shape, strides, offset, writable });
        }
        if let Some(input) = self.inputs.iter().position(|input| is_one(input, tensor)) {
            return Ok(Operand::Whole(input));
        }
        let constant = match tensor.completed()? {
            Some(done) => done,
            None => tensor.clone(),
        };
        let known = |(one, _): &&mut (Tensor, usize)| one.buffer().shares_with(constant.buffer());
        match self.constants.iter_mut().find(known) {
            Some((_, references)) => *references += 1,
            None => self.constants.push((constant.clone(), 2)),
        }
        Ok(Operand::Constant(constant))
    }

    fn argument(&mut self, arg: &Value) -> Result<Argument> {
        Ok(match arg {
            Value::Tensor(tensor) => Argument::Tensor(self.operand(tensor)?),
            Value::List(items) => {
                Argument::List(items.iter().map(|item| self.argument(item)).collect::<Result<_>>()?)
            }
            other => Argument::Value(other.clone()),
        })
    }
}

impl Session {
    /// Ends a recording: `inputs` are its placeholders, `outputs` the tensors that the program returned.
    ///
    /// # Errors
    /// [`ErrorKind::Pipeline`] if the program was [refused](Session::refused).
    pub fn finish(&self, inputs: &[Tensor], outputs: &[Tensor]) -> Result<Recording> {
        if let Some(reason) = self.refused() {
            let message = format!("a fused function can't be recorded: {reason}");
            return Err(Error::new(ErrorKind::Pipeline, message));
        }
        self.read_arrays();
        let (chosen, held, old, called) = {
            let mut state = self.lock();
            state.program.placeholders.clear();
            let called = std::mem::take(&mut state.program.called);
            let held = Held::of(state.waiting.iter());
            let old = state.merge_equal_calls(&held);
            (plan::everything(&state.waiting), held, old, called)
        };
        drop(old);
        let operations = self.without_dead(&chosen, &self.that_may_fail(&chosen));
        let planned = fusion::plan(&operations, &held).map(|planned| planned.0);
        // A group computes no results that nobody reads, so none of those that may fail is a member.
        let has_unread = operations.iter().any(|one| one.evaluates.is_some() && one.is_dead());
        let planned =
            planned.filter(|plan| !has_unread && !may_fail_before_an_effect(plan, &operations));
        let plan = planned.unwrap_or_else(|| Arc::new(Plan::one_by_one(operations.len())));
        let recording = Recording::of(operations, plan, inputs, outputs);
        // Their arguments are the recording's now.
        let rest: Vec<Arc<Operation>> = {
            self.open.store(false, Ordering::Relaxed);
            let mut state = self.lock();
            let all = plan::everything(&state.waiting);
            all.into_iter().filter_map(|index| state.remove(index)).collect()
        };
        rest.iter().for_each(|operation| drop(operation.take_args()));
        let mut recording = Recording { dispatchers: called, ..recording? };
        for constant in &mut recording.constants {
            constant.held.note_others(&constant.tensor);
        }
        Ok(recording)
    }
}

impl Recording {
    /// Records operations of placeholders.
    fn of(
        operations: Vec<Arc<Operation>>,
        plan: Arc<Plan>,
        inputs: &[Tensor],
        outputs: &[Tensor],
    ) -> Result<Recording> {
        let mut known = Known::default();
        for input in inputs {
            let Some(pending) = input.pending_buffer() else {
                return Err(Error::new(ErrorKind::Pipeline, "an input isn't a placeholder"));
            };
            known.add(std::ptr::from_ref(pending).addr(), input.clone());
        }
        let written = written_inputs(&operations, inputs);
        let recording = Recording::with(known, operations, plan, |known| {
            outputs.iter().map(|output| known.operand(output)).collect()
        })?;
        Ok(Recording { inputs: inputs.to_vec(), written, ..recording })
    }

    /// Records operations of tensors, each of which is an input, that write to none of them. The outputs are all
    /// of these memories.
    ///
    /// # Errors
    /// [`ErrorKind::Pipeline`] for an output that no operation makes.
    pub(in crate::pipeline) fn of_calls(
        operations: &[Arc<Operation>],
        plan: &Arc<Plan>,
        inputs: &[Tensor],
        outputs: &[Arc<PendingBuffer>],
    ) -> Result<Recording> {
        let known = Known { count: inputs.len(), inputs: inputs.to_vec(), ..Known::default() };
        let recording = Recording::with(known, operations.to_vec(), Arc::clone(plan), |known| {
            let output = |memory: &Arc<PendingBuffer>| {
                let made = known.memories.get(&Arc::as_ptr(memory).addr());
                let made = made.map(|(number, _)| Operand::Whole(*number));
                made.ok_or_else(|| Error::new(ErrorKind::Pipeline, "no operation makes an output"))
            };
            outputs.iter().map(output).collect()
        })?;
        debug_assert!(recording.constants.is_empty(), "tensors are inputs or results");
        Ok(recording)
    }

    /// Records operations with what is known of their memories.
    fn with(
        mut known: Known,
        operations: Vec<Arc<Operation>>,
        plan: Arc<Plan>,
        outputs: impl FnOnce(&mut Known) -> Result<Vec<Operand>>,
    ) -> Result<Recording> {
        let results = results_of(&operations, &mut known)?;
        let steps = plan.steps.iter().enumerate();
        let steps = steps.map(|(at, step)| step_of(at, step, &operations, &results, &mut known));
        let mut steps = steps.collect::<Result<Vec<Step>>>()?;
        let mut outputs: Vec<_> =
            outputs(&mut known)?.into_iter().map(|output| (output, true)).collect();
        note_last_uses(&mut steps, &mut outputs, known.count);
        let dispatchers = dispatchers_of(operations.iter().map(|one| &*one.operator))?;
        let Known { constants, count: memories, .. } = known;
        let constant =
            |(tensor, references)| Constant { held: HeldMemory::new(&tensor, references), tensor };
        let constants = constants.into_iter().map(constant).collect();
        let (inputs, written, tiled) = (Vec::new(), Vec::new(), AtomicUsize::new(0));
        Ok(Recording {
            inputs,
            operations,
            plan,
            steps,
            outputs,
            constants,
            written,
            memories,
            dispatchers,
            tiled,
        })
    }
}

/// Numbers the results of all operations that somebody can read.
fn results_of(
    operations: &[Arc<Operation>],
    known: &mut Known,
) -> Result<Vec<SmallVec<[Option<usize>; 1]>>> {
    let mut all = Vec::with_capacity(operations.len());
    for operation in operations {
        let mut own = SmallVec::new();
        for slot in &operation.results {
            let Some((slot, memory)) = slot.as_ref().and_then(|slot| Some((slot, slot.held()?)))
            else {
                own.push(None);
                continue;
            };
            let address = slot.memory.as_ptr().addr();
            let strides = keyfold_core::layout::contiguous_strides(&slot.shape);
            let whole = Tensor::pending(memory, &slot.shape, &strides, slot.dtype)?;
            own.push(Some(known.add(address, whole)));
        }
        all.push(own);
    }
    Ok(all)
}

fn step_of(
    planned: usize,
    step: &Planned,
    operations: &[Arc<Operation>],
    results: &[SmallVec<[Option<usize>; 1]>],
    known: &mut Known,
) -> Result<Step> {
    let (group, mut params) = match step {
        Planned::One(at) => {
            return Ok(Step { planned, ..alone(*at, operations, results, known)? });
        }
        Planned::Tiled(tiled) => return tiles_of(planned, tiled, operations, results, known),
        Planned::Concurrent(concurrent) => {
            let members = steps_in(&concurrent.steps, operations, results, known)?;
            return Ok(Step { planned, members, ..Step::default() });
        }
        Planned::Group(group) => (group, SmallVec::new()),
    };
    for member in &group.members {
        let numbers = operations[*member].evaluates.iter();
        params.extend(numbers.flat_map(|own| own.params.iter().copied()));
    }
    let inputs = group.inputs.iter().map(|(op, at)| tensor_at(&operations[*op], *at, known));
    let inputs = inputs.collect::<Result<_>>()?;
    let members = group.members.iter().map(|member| alone(*member, operations, results, known));
    let members = members.collect::<Result<_>>()?;
    let results = group.stored.iter().map(|op| results[*op][0]).collect();
    Ok(Step { planned, inputs, params, results, members, ..Step::default() })
}

/// Returns the steps inside of one. One that is an operation has the operation's number.
fn steps_in(
    steps: &[Planned],
    operations: &[Arc<Operation>],
    results: &[SmallVec<[Option<usize>; 1]>],
    known: &mut Known,
) -> Result<Vec<Step>> {
    let inner = |step: &Planned| match step {
        Planned::One(op) => alone(*op, operations, results, known),
        // No operation has this number.
        other => step_of(usize::MAX, other, operations, results, known),
    };
    steps.iter().map(inner).collect()
}

/// Returns the step of tiles.
fn tiles_of(
    planned: usize,
    tiled: &Tiled,
    operations: &[Arc<Operation>],
    results: &[SmallVec<[Option<usize>; 1]>],
    known: &mut Known,
) -> Result<Step> {
    let inputs = tiled.inputs.iter().map(|(op, at)| tensor_at(&operations[*op], *at, known));
    let inputs = inputs.collect::<Result<_>>()?;
    let members = steps_in(&tiled.steps, operations, results, known)?;
    let kept = tiled.kept_results();
    let kept = kept.map(|(op, at)| results[op][operations[op].wanted(at)?.0]);
    Ok(Step { planned, inputs, results: kept.collect(), members, ..Step::default() })
}

/// Returns the step of one operation.
fn alone(
    at: usize,
    operations: &[Arc<Operation>],
    results: &[SmallVec<[Option<usize>; 1]>],
    known: &mut Known,
) -> Result<Step> {
    let args = operations[at].args.lock().unwrap_or_else(PoisonError::into_inner);
    let args = args.iter().map(|arg| known.argument(arg)).collect::<Result<_>>()?;
    Ok(Step { planned: at, args, results: results[at].clone(), ..Step::default() })
}

/// Returns the tensor at a position among an operation's tensors.
fn tensor_at(operation: &Operation, at: usize, known: &mut Known) -> Result<Operand> {
    let args = operation.args.lock().unwrap_or_else(PoisonError::into_inner);
    let mut tensors: SmallVec<[&Tensor; 4]> = SmallVec::new();
    args.iter().for_each(|arg| for_each_tensor(arg.as_ref(), &mut |tensor| tensors.push(tensor)));
    known.operand(tensors[at])
}

/// Notes for each output whether it is the last one of its memory, and for each step the memories that nothing
/// behind it reads.
fn note_last_uses(steps: &mut [Step], outputs: &mut [(Operand, bool)], memories: usize) {
    let mut read = vec![false; memories];
    for (output, is_last) in outputs.iter_mut().rev() {
        if let Some(memory) = output.memory() {
            *is_last = !std::mem::replace(&mut read[memory], true);
        }
    }
    steps.iter_mut().rev().for_each(|step| note_last(step, &mut read));
}

/// Notes the memories that are read neither behind a step, as `read` says, nor by the members behind one.
fn note_last(step: &mut Step, read: &mut [bool]) {
    let mut last: SmallVec<[usize; 2]> = SmallVec::new();
    for member in step.members.iter_mut().rev() {
        note_last(member, read);
        last.extend(member.last.iter().copied());
    }
    let mut note = |memory: usize| {
        if !std::mem::replace(&mut read[memory], true) {
            last.push(memory);
        }
    };
    step.results.iter().flatten().for_each(|memory| note(*memory));
    let mut note = |operand: &Operand| operand.memory().into_iter().for_each(&mut note);
    step.args.iter().for_each(|arg| arg.each(&mut note));
    step.inputs.iter().for_each(note);
    step.last = last;
}

/// Returns whether a group computes, before a write or a draw of random numbers, an operation that was called after it
/// and may fail: a replay ends at its first failure, and the write or draw would be lost.
fn may_fail_before_an_effect(plan: &Plan, operations: &[Arc<Operation>]) -> bool {
    let has_effect = |at: &usize| operations[*at].is_random || !operations[*at].written.is_empty();
    let mut effects: Vec<usize> = (0..operations.len()).filter(has_effect).collect();
    let mut moved = |members: &[usize]| {
        let is_moved = |member: &&usize| effects.first().is_some_and(|effect| effect < *member);
        let found = members.iter().filter(is_moved).any(|member| operations[*member].may_fail());
        effects.retain(|effect| !members.contains(effect));
        found
    };
    plan.steps.iter().any(|step| match step {
        Planned::One(at) => moved(&[*at]),
        Planned::Group(group) => moved(&group.members),
        // Their operations fail as a group's do, and none has an effect.
        Planned::Tiled(tiled) => tiled.steps.iter().any(|step| match step {
            Planned::Group(group) => moved(&group.members),
            _ => false,
        }),
        // None is moved past an effect.
        Planned::Concurrent(_) => false,
    })
}

/// Returns the inputs that an operation writes to.
fn written_inputs(operations: &[Arc<Operation>], inputs: &[Tensor]) -> Vec<usize> {
    let mut written = Vec::new();
    for operation in operations {
        let args = operation.args.lock().unwrap_or_else(PoisonError::into_inner);
        for at in &operation.written {
            if let Some(Value::Tensor(tensor)) = args.get(*at) {
                let is_it = |input: &Tensor| input.buffer().shares_with(tensor.buffer());
                written.extend(inputs.iter().position(is_it));
            }
        }
    }
    written.sort_unstable();
    written.dedup();
    written
}

/// Returns the dispatchers of operators, each with the state of its registrations.
pub(in crate::pipeline) fn dispatchers_of<'o>(
    operators: impl Iterator<Item = &'o Operator<Value>>,
) -> Result<Vec<(Dispatcher<Value>, u64)>> {
    let mut all: Vec<(Dispatcher<Value>, u64)> = Vec::new();
    for operator in operators {
        let Some(dispatcher) = operator.dispatcher() else {
            let message = format!("{} was removed while it was recorded", operator.name());
            return Err(Error::new(ErrorKind::OperatorRemoved, message));
        };
        if !all.iter().any(|(known, _)| known.is_same(&dispatcher)) {
            let generation = dispatcher.generation();
            all.push((dispatcher, generation));
        }
    }
    Ok(all)
}
