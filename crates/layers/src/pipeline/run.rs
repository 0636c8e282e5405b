//! Running what waits: in order, failures kept to what depends on them.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use keyfold_core::{Error, ErrorKind, Result, SharedError};
use keyfold_dispatch::Value as _;
use keyfold_tensor::{PendingBuffer, Tensor, Value};
use smallvec::SmallVec;

use super::check::Expected;
use super::failure::Failure;
use super::fusion::{self, Plan, Step};
use super::host::{self, Watch};
use super::operation::{Operation, Slot, Stopped, for_each_tensor, memory_id};
use super::plan;
use super::recording;
use super::sequence::{Matched, Observed};
use super::session::{Session, State};
use super::waiting::Held;
use crate::profiler::range_with;

impl Session {
    /// Runs all operations that wait.
    ///
    /// # Errors
    /// The first failure that nobody was told yet, of this run or an earlier one; an interrupt,
    /// after which the rest still waits.
    pub fn flush(&self) -> Result<()> {
        if self.is_run_here() {
            // A kernel that flushes: the flush around it goes on, and tells.
            return Ok(());
        }
        self.run_all()?;
        let told = std::mem::take(&mut self.lock_as_is().unreported);
        let first = told.iter().min_by_key(|failure| failure.index);
        first.map_or(Ok(()), |failure| Err(failure.error.again()))
    }

    /// Returns the error of the first operation that failed, of those that nobody was told of.
    fn first_failure(&self) -> Option<SharedError> {
        let state = self.lock_as_is();
        let first = state.unreported.iter().min_by_key(|failure| failure.index);
        first.map(|failure| failure.error.clone())
    }

    /// Runs all operations that wait, and keeps failures for later.
    ///
    /// # Errors
    /// An interrupt.
    pub(super) fn run_all(&self) -> Result<()> {
        if self.lock_as_is().is_idle() {
            return Ok(());
        }
        host::without_lock(|| {
            let replayed = self.replay_sequence();
            replayed.unwrap_or_else(|| self.run(|state| plan::everything(&state.waiting)))
        })
    }

    /// Runs what a reader of a pending buffer waits for: everything that was recorded, or inside an
    /// operation that runs, what the buffer needs.
    pub(super) fn run_reading(&self, buffer: &PendingBuffer) -> Result<()> {
        host::without_lock(|| {
            let replayed = self.replay_sequence();
            let choose = |state: &mut State| match (state.turns, buffer.writer()) {
                (1, _) => plan::everything(&state.waiting),
                (_, writer) => plan::before(state, writer.as_slice()),
            };
            replayed.unwrap_or_else(|| self.run(choose))
        })
    }

    /// Runs what uses the memory of these tensors.
    ///
    /// # Errors
    /// An interrupt.
    pub(super) fn settle_memories(&self, tensors: &[&Tensor]) -> Result<()> {
        if tensors.is_empty() || !self.may_use(tensors) {
            return Ok(());
        }
        host::without_lock(|| self.run(|state| plan::using(self, state, tensors)))
    }

    /// Returns whether a call that waits or runs may use the memory of these tensors. Where none does, there is
    /// nothing to wait for: another thread's operation may run for long, and wait for this one.
    fn may_use(&self, tensors: &[&Tensor]) -> bool {
        let mut state = self.lock_as_is();
        if state.is_idle() {
            return false;
        }
        let uses = |matched: &Matched| tensors.iter().any(|tensor| matched.uses(self, tensor));
        state.matched.as_ref().is_some_and(uses)
            || state.replayed.as_deref().is_some_and(uses)
            || !plan::using(self, &mut state, tensors).is_empty()
    }

    /// Runs the recorded operations that draw random numbers, with what they need.
    ///
    /// # Errors
    /// An interrupt.
    pub(super) fn settle_random(&self) -> Result<()> {
        let waits =
            |state: &State| state.last_random.filter(|last| state.waiting.get(*last).is_some());
        {
            let state = self.lock_as_is();
            // A kernel that draws is itself a recorded operation, in its order.
            if state.is_run_here() || waits(&state).is_none() {
                return Ok(());
            }
        }
        host::without_lock(|| {
            self.run(|state| waits(state).map_or(Vec::new(), |last| plan::before(state, &[last])))
        })
    }

    /// Runs what waits, if its oldest operation was recorded longer ago than the limit.
    pub(super) fn flush_overdue(&self, now: Instant) {
        let is_due = {
            let state = self.lock_as_is();
            let limit = self.options.max_wait.unwrap_or(Duration::MAX);
            let is_due = |oldest: Instant| now.saturating_duration_since(oldest) >= limit;
            if let Some(oldest) = state.oldest.filter(|oldest| !is_due(*oldest)) {
                // The operations that it was watched for have run; these were recorded since.
                self.watch(oldest + limit);
            }
            state.oldest.is_some_and(is_due)
        };
        if is_due {
            // Failures are kept for the next flush; this thread isn't interrupted.
            let _ = self.run_all();
        }
    }

    /// Runs the operations that `choose` names, in order.
    fn run(&self, choose: impl FnOnce(&mut State) -> Vec<usize>) -> Result<()> {
        if self.only_records() {
            self.run_instead(recording::READS)?;
        }
        let _turn = self.take_turn()?;
        let (chosen, held, old, outdated, observed, before, is_in_order) = {
            let mut state = self.lock();
            let refused = state.program.refused.as_mut();
            let is_in_order = refused.is_some_and(|refused| std::mem::take(&mut refused.is_due));
            let chosen = choose(&mut state);
            let held = Held::of(chosen.iter().filter_map(|index| state.waiting.get(*index)));
            let before = state.statistics;
            // A few operations that a call needs aren't worth a look at all that waits.
            let is_all = chosen.len() == state.waiting.len();
            state.is_part |= !is_all;
            let is_plain = is_all && self.options.check.is_none() && !is_in_order;
            let observed = if is_plain { Observed::of(&mut state, &held) } else { None };
            let merges = is_all && !is_in_order;
            let old = if merges { state.merge_equal_calls(&held) } else { Vec::new() };
            if !chosen.is_empty() {
                state.statistics.flushes += 1;
            }
            let outdated = std::mem::take(&mut state.outdated);
            (chosen, held, old, outdated, observed, before, is_in_order)
        };
        // Without the lock: one of them may be the last reference to a large graph.
        drop((old, outdated));
        let kept = if is_in_order { self.that_may_fail(&chosen) } else { Vec::new() };
        let operations = self.without_dead(&chosen, &kept);
        let watch = Watch::new();
        let expected = self.expected(&operations, &watch)?;
        let planned = if is_in_order { None } else { fusion::plan(&operations, &held) };
        self.lock().statistics.planned +=
            planned.as_ref().map_or(0, |(_, is_new)| (*is_new).into());
        let plan =
            planned.map_or_else(|| Arc::new(Plan::one_by_one(operations.len())), |own| own.0);
        let sequence = observed.and_then(|observed| observed.record(&operations, &plan));
        for step in &plan.steps {
            self.run_step(step, &operations, &expected, &watch)?;
            // Where the calls are those of a function that isn't recorded, none comes after one that fails.
            if is_in_order && let Some(error) = self.first_failure() {
                self.give_up_after(&error);
                break;
            }
        }
        if let Some(sequence) = sequence {
            let added = self.lock().statistics.combine(before, u64::wrapping_sub);
            sequence.keep(added);
        }
        Ok(())
    }

    /// Runs a step.
    pub(super) fn run_step(
        &self,
        step: &Step,
        operations: &[Arc<Operation>],
        expected: &Expected,
        watch: &Watch,
    ) -> Result<()> {
        watch.look()?;
        let _range = range_with(|| step.name(operations));
        let numbers = step.operations();
        match step {
            Step::One(at) => self.run_one(operations[*at].index, expected),
            Step::Group(group) => {
                let compute = || group.compute(operations).map(|()| true);
                match self.run_together(numbers, operations, (expected, watch), compute)? {
                    true => Ok(()),
                    false => self.run_members(numbers, operations, expected, watch),
                }
            }
            Step::Tiled(tiled) => {
                let compute = || tiled.run(operations, watch);
                match self.run_together(numbers, operations, (expected, watch), compute)? {
                    true => Ok(()),
                    false => {
                        let mut steps = tiled.steps.iter();
                        steps.try_for_each(|step| self.run_step(step, operations, expected, watch))
                    }
                }
            }
            Step::Concurrent(concurrent) => {
                self.run_concurrent(concurrent, operations, expected, watch)
            }
        }
    }

    /// Runs the operations of a group one by one.
    pub(super) fn run_members(
        &self,
        numbers: &[usize],
        operations: &[Arc<Operation>],
        expected: &Expected,
        watch: &Watch,
    ) -> Result<()> {
        numbers.iter().try_for_each(|at| {
            watch.look()?;
            self.run_one(operations[*at].index, expected)
        })
    }

    /// Returns the last recorded operation that writes to pending memory.
    pub(super) fn writer(&self, memory: &PendingBuffer) -> Option<usize> {
        memory.writer().filter(|_| memory.is_of(self) && memory.is_pending())
    }

    /// Returns the operations that may fail for some elements, or do anything since their kernels are users' own: a
    /// function that isn't recorded would run those whose results nobody reads, too.
    pub(super) fn that_may_fail(&self, chosen: &[usize]) -> Vec<usize> {
        let all: Vec<Arc<Operation>> = {
            let state = self.lock();
            // A merged call fails as the one that is read instead.
            let other = chosen.iter().filter(|index| !state.merged.contains_key(*index));
            other.filter_map(|index| state.waiting.get(*index).cloned()).collect()
        };
        // Without the lock: a look at kernels may drop others.
        let may_fail = |one: &&Arc<Operation>| one.may_fail() || !fusion::is_own(one);
        all.iter().filter(may_fail).map(|one| one.index).collect()
    }

    /// Removes operations without an effect but those to keep, and returns the others in order.
    pub(super) fn without_dead(&self, chosen: &[usize], kept: &[usize]) -> Vec<Arc<Operation>> {
        let is_kept = |index: &usize| kept.binary_search(index).is_ok();
        let mut left = Vec::with_capacity(chosen.len());
        // From the last one, whose arguments may have been all that held others' results.
        let mut rest = chosen.iter().rev();
        loop {
            let mut state = self.lock();
            let dead = rest.find(|index| match state.waiting.get(**index) {
                Some(one) if !one.is_dead() || is_kept(index) || state.running.contains(index) => {
                    left.push(Arc::clone(one));
                    false
                }
                found => found.is_some(),
            });
            let Some(dead) = dead.and_then(|index| state.remove(*index)) else { break };
            state.statistics.dead += 1;
            drop(state);
            // Without the lock: an argument may be the last reference to a large graph.
            drop(dead.take_args());
        }
        left.reverse();
        left
    }

    /// Computes operations together. Returns false if that can't be done, or if some of them ran meanwhile:
    /// an error of one of them is found, and told, by running it alone.
    fn run_together(
        &self,
        numbers: &[usize],
        operations: &[Arc<Operation>],
        (expected, watch): (&Expected, &Watch),
        compute: impl FnOnce() -> Result<bool, Stopped>,
    ) -> Result<bool> {
        let members = || numbers.iter().map(|at| &operations[*at]);
        let waits = {
            let mut state = self.lock();
            let waits = |one: &Arc<Operation>| {
                state.waiting.get(one.index).is_some() && !state.running.contains(&one.index)
            };
            let all = members().all(waits);
            let depth = state.running.len();
            if all {
                state.running.extend(members().map(|one| one.index));
            }
            all.then_some(depth)
        };
        let outcome = waits.map(|depth| {
            let outcome = compute();
            // Runs inside the computation have taken theirs away.
            self.lock().running.truncate(depth);
            outcome
        });
        if let Some(error) = watch.take_stop() {
            return Err(error);
        }
        match outcome {
            Some(Ok(true)) => {}
            Some(Err(Stopped::Itself(error))) if host::is_interrupt(&error) => return Err(error),
            _ => return Ok(false),
        }
        self.finish_together(numbers, operations, expected);
        Ok(true)
    }

    /// Notes that operations were computed together, whose results are staged.
    pub(super) fn finish_together(
        &self,
        numbers: &[usize],
        operations: &[Arc<Operation>],
        expected: &Expected,
    ) {
        let members = || numbers.iter().map(|at| &operations[*at]);
        let indices: Vec<usize> = members().map(|one| one.index).collect();
        let outcomes: Vec<Result<bool, SharedError>> = members()
            .map(|one| expected.compare(one, &indices).map_err(|error| self.fail(one, error)))
            .collect();
        {
            let mut state = self.lock();
            state.statistics.groups += 1;
            for (member, outcome) in members().zip(&outcomes) {
                state.statistics.ran += 1;
                state.statistics.fused += 1;
                state.statistics.checked += u64::from(outcome.as_ref().is_ok_and(|done| *done));
                state.settle(member, outcome.as_ref().err());
                state.remove(member.index);
            }
        }
        // Without the lock: an argument may be the last reference to a large graph.
        members().for_each(|member| drop(member.take_args()));
    }

    /// Runs one operation, unless it ran meanwhile.
    fn run_one(&self, index: usize, expected: &Expected) -> Result<()> {
        let operation = {
            let state = self.lock();
            let Some(operation) = state.waiting.get(index).cloned() else { return Ok(()) };
            if state.running.contains(&index) {
                return Err(Error::new(
                    ErrorKind::Pipeline,
                    format!(
                        "{}: the kernel reads a tensor that is computed from its own result, or a signal \
                         handler reads what is being computed",
                        operation.operator.name()
                    ),
                ));
            }
            operation
        };
        self.note_running(&operation);
        let compared = || expected.compare(&operation, &[]).map_err(Stopped::Itself);
        self.finish_one(&operation, operation.run().and_then(|()| compared()))
    }

    /// Notes that an operation begins to run by itself.
    pub(super) fn note_running(&self, operation: &Operation) {
        // Without the lock: a look at kernels may drop others.
        let is_own = fusion::is_own(operation);
        let mut state = self.lock();
        state.running.push(operation.index);
        if !is_own {
            state.lending.push(operation.index);
        }
    }

    /// Notes how an operation ended, whose results are staged; whether they were compared if it succeeded.
    pub(super) fn finish_one(
        &self,
        operation: &Operation,
        outcome: Result<bool, Stopped>,
    ) -> Result<()> {
        // Without the state's lock: Python may be asked, and a thread that has the GIL may wait for that lock.
        let interrupt = |stopped: &Stopped| matches!(stopped, Stopped::Itself(error) if host::is_interrupt(error));
        let is_interrupt = outcome.as_ref().err().is_some_and(interrupt);
        let mut state = self.lock();
        state.note_stopped(operation.index);
        let outcome = match outcome {
            Err(Stopped::Itself(error)) if is_interrupt => return Err(error),
            outcome => outcome,
        };
        let failed = match outcome {
            Ok(compared) => {
                state.statistics.ran += 1;
                state.statistics.checked += u64::from(compared);
                None
            }
            Err(Stopped::Before(error)) => {
                state.statistics.skipped += 1;
                Some(error)
            }
            Err(Stopped::Itself(error)) => {
                drop(state);
                let error = self.fail(operation, error);
                state = self.lock();
                state.statistics.ran += 1;
                Some(error)
            }
        };
        state.settle(operation, failed.as_ref());
        state.remove(operation.index);
        drop(state);
        // Without the lock: an argument may be the last reference to a large graph.
        drop(operation.take_args());
        Ok(())
    }

    /// Notes that an operation failed; returns the error for what depends on it.
    fn fail(&self, operation: &Operation, error: Error) -> SharedError {
        // Without the lock, since the place may be the host language's to resolve.
        let call = self.describe(operation);
        let failure = Arc::new(Failure::new(operation, call, error));
        let error = failure.error.clone();
        let index = operation.index;
        let mut state = self.lock();
        state.statistics.failed += 1;
        let is_first = state.unreported.is_empty();
        state.unreported.push(Arc::clone(&failure));
        // Concurrent steps may run before others that were recorded earlier.
        let is_last = |last: &Arc<Failure>| is_first || last.index < index;
        let old = match state.last_failure.as_ref().is_none_or(is_last) {
            true => state.last_failure.replace(failure),
            false => None,
        };
        drop(state);
        // Without the lock, since it keeps its operations' arguments.
        drop(old);
        error
    }
}

impl State {
    /// Removes an operation that is done.
    pub(super) fn remove(&mut self, index: usize) -> Option<Arc<Operation>> {
        let operation = self.waiting.remove(index)?;
        self.pending_bytes = self.pending_bytes.saturating_sub(operation.bytes);
        self.note_ran();
        Some(operation)
    }

    /// Notes that an operation doesn't run any more.
    pub(super) fn note_stopped(&mut self, index: usize) {
        self.running.retain(|running| *running != index);
        self.lending.retain(|running| *running != index);
    }

    /// Notes that less waits than before.
    pub(super) fn note_ran(&mut self) {
        (self.spared_bytes, self.counted) = (0, 0);
        if self.waiting.len() == 0 {
            self.readers.clear();
            self.merged.clear();
            self.oldest = None;
        }
    }

    /// Fills or fails the memory that an operation writes, if no operation after it does.
    fn settle(&mut self, operation: &Operation, failed: Option<&SharedError>) {
        for memory in operation.results.iter().flatten().filter_map(Slot::held) {
            self.conclude(operation.index, &memory, failed);
        }
        if operation.written.is_empty() {
            return;
        }
        let args = operation.args.lock().unwrap_or_else(PoisonError::into_inner);
        for at in &operation.written {
            if let Some(Value::Tensor(tensor)) = args.get(*at)
                && let Some(memory) = tensor.pending_buffer()
            {
                self.conclude(operation.index, memory, failed);
            }
        }
    }

    /// As [`State::settle`], for one memory.
    pub(super) fn conclude(
        &mut self,
        index: usize,
        memory: &PendingBuffer,
        failed: Option<&SharedError>,
    ) {
        if let Some(error) = failed {
            memory.fail(error.clone());
            return;
        }
        let Some(staged) = memory.staged() else { return };
        if memory.writer().is_some_and(|last| last != index) {
            return;
        }
        memory.fill();
        // From now on tensors are of this memory, for which others may still wait to read it.
        if let Some(readers) = self.readers.remove(&std::ptr::from_ref(memory).addr()) {
            self.readers.insert(Arc::as_ptr(staged).cast::<()>().addr(), readers);
        }
    }

    /// Notes what the operations read that were recorded since the last time.
    pub(super) fn note_readers(&mut self) {
        let noted = std::mem::replace(&mut self.noted, self.waiting.next());
        for operation in self.waiting.since(noted) {
            let args = operation.args.lock().unwrap_or_else(PoisonError::into_inner);
            for (at, arg) in args.iter().enumerate() {
                if !operation.written.contains(&at) {
                    for_each_tensor(arg.as_ref(), &mut |tensor| {
                        self.readers.entry(memory_id(tensor)).or_default().push(operation.index);
                    });
                }
            }
        }
    }

    /// Returns the operations that read a tensor's memory, which one that is recorded now writes.
    pub(super) fn take_readers(&mut self, tensor: &Tensor) -> SmallVec<[usize; 2]> {
        self.readers.remove(&memory_id(tensor)).unwrap_or_default()
    }
}
