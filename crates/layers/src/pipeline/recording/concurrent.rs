//! Replays of steps that run concurrently.

use std::cell::OnceCell;

use keyfold_core::Result;
use smallvec::SmallVec;

use super::operand::{Argument, Memories};
use super::{Recording, Step, store};
use crate::pipeline::concurrent::{Computed, Gathered};
use crate::pipeline::fusion::{Concurrent, GroupArgs, Step as Planned};
use crate::pipeline::host::Watch;

impl Recording {
    /// Returns the number of steps that replays compute concurrently with others.
    pub fn concurrent(&self) -> usize {
        let concurrent = self.plan.steps.iter().map(|step| match step {
            Planned::Concurrent(concurrent) if concurrent.threads().is_some() => {
                concurrent.steps.len()
            }
            _ => 0,
        });
        concurrent.sum()
    }

    /// Runs steps concurrently.
    ///
    /// # Errors
    /// That of the first step that fails; an interrupt.
    // Its variables would make the frame of each other step larger.
    #[inline(never)]
    pub(super) fn run_concurrent(
        &self,
        concurrent: &Concurrent,
        step: &Step,
        memories: &mut Memories<'_>,
        watch: &OnceCell<Watch>,
    ) -> Result<()> {
        let (steps, members) = (&concurrent.steps, &step.members);
        let gather = |memories: &Memories<'_>, at: usize| {
            Ok(self.gather(&steps[at], &members[at], memories))
        };
        let finish = |memories: &mut Memories<'_>, at: usize, computed| match (&steps[at], computed)
        {
            (Planned::One(op), Some(Computed::Value(result))) => {
                let operation = &*self.operations[*op];
                store(operation, &members[at], *result, memories)
                    .map_err(|error| self.told_of(operation, error))
            }
            (Planned::Group(_), Some(Computed::Tensors(results))) => {
                memories.set_all(&members[at].results, results);
                Ok(())
            }
            (planned, _) => self.run(planned, &members[at], memories, watch),
        };
        let watch = watch.get_or_init(Watch::new);
        concurrent.run(&self.operations, watch, memories, gather, finish)
    }

    /// Returns a step with its arguments; `None` for one that runs by itself.
    fn gather<'p>(
        &'p self,
        planned: &'p Planned,
        step: &Step,
        memories: &Memories<'_>,
    ) -> Option<Gathered<'p>> {
        match planned {
            Planned::One(at) => {
                let args = step.args.iter().map(|arg: &Argument| arg.value(memories));
                Some(Gathered::Call(&self.operations[*at], args.collect::<Result<_>>().ok()?))
            }
            Planned::Group(group) => {
                let inputs = step.inputs.iter().map(|input| input.tensor(memories));
                let inputs = inputs.collect::<Result<_>>().ok()?;
                let args = GroupArgs { inputs, params: SmallVec::from_slice(&step.params) };
                Some(Gathered::Group(group, Box::new(args)))
            }
            Planned::Tiled(_) | Planned::Concurrent(_) => None,
        }
    }
}
