//! Computing the steps of a plan that run [concurrently](super::fusion).
//!
//! The thread that flushes, or replays, gathers the arguments of all steps before, and stores all results
//! afterwards, in the order of one by one. The threads of the pool only call kernels, so they access neither
//! the record nor a replay's memories. A step that can't be computed like that, or whose kernel isn't the
//! backend's own any more, runs by itself afterwards, and an error is raised by that run.

use std::sync::{Arc, OnceLock};

use keyfold_backend::Tiles;
use keyfold_core::Result;
use keyfold_tensor::{Tensor, Value};

use super::check::Expected;
use super::fusion::{Concurrent, Group, GroupArgs, Step};
use super::host::{self, Watch};
use super::operation::{Operation, Stopped};
use super::session::Session;
use crate::profiler::range_with;

/// A step with its arguments.
pub(super) enum Gathered<'p> {
    Call(&'p Operation, Vec<Value>),
    Group(&'p Group, Box<GroupArgs>),
}

/// The results of a step.
pub(super) enum Computed {
    /// The result of a call.
    Value(Box<Value>),
    /// The stored results of a group.
    Tensors(Vec<Tensor>),
}

impl Gathered<'_> {
    /// Computes the step; `None` if it has to run by itself.
    fn compute(&self, operations: &[Arc<Operation>]) -> Option<Result<Computed>> {
        match self {
            Gathered::Call(operation, args) => {
                let result = operation.call_if_movable(args)?;
                Some(result.map(|value| Computed::Value(Box::new(value))))
            }
            Gathered::Group(group, args) => {
                Some(group.compute_of(operations, args).map(Computed::Tensors))
            }
        }
    }
}

impl Concurrent {
    /// Runs the steps: concurrently, or one by one where there is one thread. `gather` returns a step's
    /// arguments, or `None` if it has to run by itself. `finish` stores what it computed, or runs it by itself.
    /// Both are called in the order of the steps.
    ///
    /// # Errors
    /// Those of `gather` and `finish`; an interrupt, after the steps that were computed are stored.
    pub(super) fn run<'p, S>(
        &'p self,
        operations: &[Arc<Operation>],
        watch: &Watch,
        state: &mut S,
        gather: impl Fn(&S, usize) -> Result<Option<Gathered<'p>>>,
        mut finish: impl FnMut(&mut S, usize, Option<Computed>) -> Result<()>,
    ) -> Result<()> {
        let mut all = 0..self.steps.len();
        let stopped = |error| watch.take_stop().unwrap_or(error);
        let Some(tiles) = self.threads() else {
            return all.try_for_each(|at| {
                watch.look_inside().map_err(stopped)?;
                finish(state, at, None)
            });
        };
        let gathered = all.map(|at| gather(state, at)).collect::<Result<Vec<_>>>()?;
        let outcomes = self.compute(tiles, operations, &gathered, watch);
        // An argument may be what keeps the memory of a result shared.
        drop(gathered);
        let stop = watch.take_stop();
        for (at, outcome) in outcomes.into_iter().enumerate() {
            let finished = match outcome.into_inner() {
                Some(Ok(computed)) => finish(state, at, Some(computed)),
                _ if stop.is_some() => Ok(()),
                _ => finish(state, at, None),
            };
            if let Err(error) = finished {
                return Err(stop.unwrap_or(error));
            }
        }
        stop.map_or(Ok(()), Err)
    }

    /// Computes steps on several threads, without an effect. A step that wasn't computed has no outcome.
    fn compute(
        &self,
        tiles: &dyn Tiles,
        operations: &[Arc<Operation>],
        gathered: &[Option<Gathered<'_>>],
        watch: &Watch,
    ) -> Vec<OnceLock<Result<Computed>>> {
        let outcomes: Vec<_> = gathered.iter().map(|_| OnceLock::new()).collect();
        let compute = |at: usize| -> Result<()> {
            watch.look_inside()?;
            let Some(step) = &gathered[at] else { return Ok(()) };
            let _range = range_with(|| self.steps[at].name(operations));
            if let Some(outcome) = step.compute(operations) {
                // Each step is computed once.
                let _ = outcomes[at].set(outcome);
            }
            Ok(())
        };
        // Without the lock, since a kernel may count references to memory of the host language on a thread
        // that this one waits for. An interrupt is kept by `watch`; steps that an error of the threads leaves
        // run by themselves.
        let _ = host::without_lock(|| {
            tiles.for_each(gathered.len(), &|mut steps| steps.try_for_each(&compute))
        });
        outcomes
    }
}

impl Session {
    /// Runs steps concurrently.
    // Its variables would make the frame of each other step larger.
    #[inline(never)]
    pub(super) fn run_concurrent(
        &self,
        concurrent: &Concurrent,
        operations: &[Arc<Operation>],
        expected: &Expected,
        watch: &Watch,
    ) -> Result<()> {
        let steps = &concurrent.steps;
        let gather = |_: &(), at: usize| match self.all_wait(&steps[at], operations) {
            true => gather(&steps[at], operations),
            false => Ok(None),
        };
        concurrent.run(operations, watch, &mut (), gather, |(), at, computed| match computed {
            // A signal's handler that reads a tensor may have run it meanwhile.
            Some(computed) if self.all_wait(&steps[at], operations) => {
                self.store(&steps[at], computed, operations, (expected, watch))
            }
            _ => self.run_step(&steps[at], operations, expected, watch),
        })
    }

    /// Returns whether all operations of a step wait, and none of them runs.
    fn all_wait(&self, step: &Step, operations: &[Arc<Operation>]) -> bool {
        let state = self.lock();
        let mut indices = step.operations().iter().map(|at| operations[*at].index);
        indices.all(|index| state.waiting.get(index).is_some() && !state.running.contains(&index))
    }

    /// Stores the results of a step.
    fn store(
        &self,
        step: &Step,
        computed: Computed,
        operations: &[Arc<Operation>],
        (expected, watch): (&Expected, &Watch),
    ) -> Result<()> {
        let numbers = step.operations();
        self.lock().statistics.concurrent += numbers.len() as u64;
        match (step, computed) {
            (Step::One(at), Computed::Value(value)) => {
                let operation = &operations[*at];
                let delivered = operation.deliver(*value).map_err(Stopped::Itself);
                let compare = |()| expected.compare(operation, &[]).map_err(Stopped::Itself);
                self.finish_one(operation, delivered.and_then(compare))
            }
            (Step::Group(group), Computed::Tensors(results)) => {
                match group.stage(operations, results) {
                    Ok(()) => {
                        self.finish_together(numbers, operations, expected);
                        Ok(())
                    }
                    Err(_) => self.run_members(numbers, operations, expected, watch),
                }
            }
            // No step computes the other one's results.
            (step, _) => self.run_step(step, operations, expected, watch),
        }
    }
}

/// Gathers the arguments of a step; `None` for one that runs by itself.
///
/// # Errors
/// An interrupt.
fn gather<'p>(step: &'p Step, operations: &'p [Arc<Operation>]) -> Result<Option<Gathered<'p>>> {
    let gathered = match step {
        Step::One(at) => {
            let operation = &operations[*at];
            operation.ready_args().map(|args| Gathered::Call(operation, args))
        }
        Step::Group(group) => {
            group.gather(operations).map(|args| Gathered::Group(group, Box::new(args)))
        }
        Step::Tiled(_) | Step::Concurrent(_) => return Ok(None),
    };
    match gathered {
        Ok(gathered) => Ok(Some(gathered)),
        Err(Stopped::Itself(error)) if host::is_interrupt(&error) => Err(error),
        Err(_) => Ok(None),
    }
}
