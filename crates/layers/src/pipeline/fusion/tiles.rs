//! The choice of steps that are computed tile by tile.
//!
//! Softmax in primitives is a maximum of each row, a group, a sum of each row, and a quotient. Each step
//! reads what the one before it wrote, but of a row only the same row. So all of them are run for some
//! rows, a tile, before the next tile is begun: what they hand on stays in the cache.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::program::{Program, Rows};
use super::tiled::{Source, Stage, StageKernel, Tiled};
use super::{Group, Step};

/// A step of a plan, and the group that it is as a part of tiles, if it isn't one already.
pub(super) struct Candidate {
    pub(super) step: Step,
    pub(super) alone: Option<Group>,
}

/// The most steps that are joined: each has scratch memory of its own, which the cache has to hold.
const STAGES: usize = 16;

/// Joins steps that follow each other and hand on rows.
pub(super) fn join(program: &Program, candidates: Vec<Candidate>) -> Vec<Step> {
    let users = users(program);
    let (mut steps, mut tiles) = (Vec::new(), Tiles::default());
    for candidate in candidates {
        let rows = rows_of(program, candidate.step.operations());
        if rows.is_none() || rows != tiles.rows.as_ref() || !tiles.add(program, &candidate) {
            std::mem::take(&mut tiles).finish(program, &users, &mut steps);
            tiles.rows = rows.cloned();
            if rows.is_some() && !tiles.add(program, &candidate) {
                tiles.rows = None;
            }
        }
        tiles.steps.push(candidate.step);
    }
    tiles.finish(program, &users, &mut steps);
    steps
}

/// Returns the operations that read or write each memory.
fn users(program: &Program) -> Vec<Vec<usize>> {
    let mut users = vec![Vec::new(); program.held.len()];
    for (at, op) in program.ops.iter().enumerate() {
        let reads = op.reads.iter().map(|read| read.value);
        for value in reads.chain(op.writes.iter().copied()) {
            users[program.memory[value as usize] as usize].push(at);
        }
    }
    users
}

/// Returns the rows that all operations of a step compute one by one.
fn rows_of<'p>(program: &'p Program, operations: &[usize]) -> Option<&'p Rows> {
    let rows = program.rows[operations[0]].as_ref()?;
    let has_them = |op: &usize| {
        // Elements at computed indices may be those of other rows.
        program.rows[*op].as_ref() == Some(rows)
            && program.ops[*op].reads.iter().all(|read| !read.ranked)
    };
    operations.iter().all(has_them).then_some(rows)
}

/// Steps that compute the same rows, under construction.
#[derive(Default)]
struct Tiles {
    /// `None` for steps that can't be tiles.
    rows: Option<Rows>,
    steps: Vec<Step>,
    stages: Vec<Stage>,
    /// The tensors that no stage computes: an operation, and the position among its tensors.
    inputs: Vec<(usize, usize)>,
    /// The results of stages: an operation, and the position among its results.
    results: Vec<(usize, usize)>,
    /// The numbers of inputs, and of results, by value.
    input_of: FxHashMap<u32, usize>,
    result_of: FxHashMap<u32, usize>,
    hands_on: bool,
}

impl Tiles {
    /// Adds a step as a stage; false if it can't be one of these.
    fn add(&mut self, program: &Program, candidate: &Candidate) -> bool {
        if self.stages.len() == STAGES {
            return false;
        }
        let group = match &candidate.step {
            Step::Group(group) => Some(group),
            _ => candidate.alone.as_ref(),
        };
        let op = candidate.step.operations()[0];
        let call = ([(op, 0)], [op]);
        let (reads, stored, kernel) = match group {
            Some(group) => {
                let kernel = StageKernel::Group(group.kernel().clone(), group.members.clone());
                (&group.inputs[..], &group.stored[..], kernel)
            }
            None if program.members[op].is_some() => return false,
            None => (&call.0[..], &call.1[..], StageKernel::Call(op)),
        };
        let reads: Vec<_> = reads.iter().map(|read| (*read, value_at(program, *read))).collect();
        let is_stage = reads.iter().all(|(_, value)| match self.result_of.get(value) {
            // Rows of fewer dimensions would be read along another one.
            Some(result) => {
                group.is_none() || program.ndim[self.results[*result].0] == program.ndim[op]
            }
            // Another view of a result may have its rows elsewhere.
            None => {
                let memory = |value: &u32| program.memory[*value as usize];
                self.result_of.keys().all(|result| memory(result) != memory(value))
            }
        });
        if !is_stage {
            return false;
        }
        let source = |(read, value): &((usize, usize), u32)| {
            if let Some(result) = self.result_of.get(value) {
                self.hands_on = true;
                return Source::Result(*result);
            }
            let next = self.inputs.len();
            let input = *self.input_of.entry(*value).or_insert(next);
            if input == next {
                self.inputs.push(*read);
            }
            Source::Input(input)
        };
        let sources = reads.iter().map(source).collect();
        let first = self.results.len();
        for op in stored {
            for (at, value) in program.ops[*op].writes.iter().enumerate() {
                self.result_of.insert(*value, self.results.len());
                self.results.push((*op, at));
            }
        }
        self.stages.push(Stage { kernel, sources, results: first..self.results.len() });
        true
    }

    /// Adds the steps to a plan: as tiles, if they hand on rows.
    fn finish(self, program: &Program, users: &[Vec<usize>], to: &mut Vec<Step>) {
        let Some(rows) = self.rows.as_ref().filter(|_| self.hands_on) else {
            return to.extend(self.steps);
        };
        let backend = Arc::clone(&rows.backend.0);
        let mut members: Vec<usize> =
            self.steps.iter().flat_map(Step::operations).copied().collect();
        members.sort_unstable();
        let mut kept = vec![false; self.results.len()];
        for (value, result) in &self.result_of {
            let memory = program.memory[*value as usize] as usize;
            let is_other = |op: &usize| members.binary_search(op).is_err();
            kept[*result] = program.held[memory] || users[memory].iter().any(is_other);
        }
        let Tiles { steps, stages, inputs, results, .. } = self;
        to.push(Step::Tiled(Tiled { backend, members, steps, stages, inputs, results, kept }));
    }
}

/// Returns the value of a tensor: an operation, and the position among its tensors.
fn value_at(program: &Program, (op, at): (usize, usize)) -> u32 {
    let read = match &program.members[op] {
        Some(member) => member.inputs.iter().position(|input| *input as usize == at).unwrap_or(at),
        None => at,
    };
    program.ops[op].reads[read].value
}
