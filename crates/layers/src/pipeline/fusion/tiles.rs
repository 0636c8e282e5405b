//! The choice of steps that are computed tile by tile.
//!
//! Softmax in primitives is a maximum of each row, a group, a sum of each row, and a quotient. Each step
//! reads what the one before it wrote, but of a row only the same row. So all of them are run for some
//! rows, a tile, before the next tile is begun: what they hand on stays in the cache.
//!
//! A mean square is a group, and a mean of everything, or of a few rows that are longer than a tile. The
//! mean's kernel divides such a lane into parts, so the group is computed for the elements of a part, which
//! is reduced before the next one is begun.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::program::{Program, Tiling};
use super::tiled::{Source, Stage, StageKernel, Tiled};
use super::{Group, Step};

/// A step of a plan, and the group that it is as a part of tiles, if it isn't one already.
pub(super) struct Candidate {
    pub(super) step: Step,
    pub(super) alone: Option<Group>,
}

/// The most steps that are joined: each has scratch memory of its own, which the cache has to hold.
const STAGES: usize = 16;

/// The division of tensors into tiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    /// Some rows.
    Rows,
    /// A part of a lane, which ends in reductions.
    Parts,
}

/// Joins steps that follow each other and hand on rows, or elements that are reduced.
pub(super) fn join(program: &Program, candidates: Vec<Candidate>) -> Vec<Step> {
    let users = users(program);
    let candidates = join_by(By::Rows, program, &users, candidates);
    steps_of(join_by(By::Parts, program, &users, candidates))
}

fn join_by(
    by: By,
    program: &Program,
    users: &[Vec<usize>],
    candidates: Vec<Candidate>,
) -> Vec<Candidate> {
    let (mut joined, mut tiles) = (Vec::new(), Tiles::new(by, None));
    for candidate in candidates {
        let tiling = tiling_of(by, program, &candidate.step);
        if tiling.is_none() || tiling != tiles.tiling || !tiles.add(program, &candidate) {
            let next = Tiles::new(by, tiling);
            std::mem::replace(&mut tiles, next).finish(program, users, &mut joined);
            if tiles.tiling.is_some() && !tiles.add(program, &candidate) {
                tiles.tiling = None;
            }
        }
        tiles.candidates.push(candidate);
    }
    tiles.finish(program, users, &mut joined);
    joined
}

fn steps_of(candidates: Vec<Candidate>) -> Vec<Step> {
    candidates.into_iter().map(|candidate| candidate.step).collect()
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

/// Returns the rows, or the elements, that all operations of a step have.
fn tiling_of(by: By, program: &Program, step: &Step) -> Option<Tiling> {
    let all = match by {
        By::Rows => &program.rows,
        By::Parts => &program.elements,
    };
    let operations = match step {
        Step::Tiled(_) => return None,
        step => step.operations(),
    };
    let tiling = all[operations[0]].as_ref()?;
    let has_it = |op: &usize| {
        // Elements at computed indices may be those of other rows.
        all[*op].as_ref() == Some(tiling) && program.ops[*op].reads.iter().all(|read| !read.ranked)
    };
    operations.iter().all(has_it).then(|| tiling.clone())
}

/// Steps that compute the same rows or elements, under construction.
struct Tiles {
    by: By,
    /// `None` for steps that can't be tiles.
    tiling: Option<Tiling>,
    candidates: Vec<Candidate>,
    stages: Vec<Stage>,
    /// The leading dimensions that reductions keep.
    kept_dims: Option<u32>,
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
    fn new(by: By, tiling: Option<Tiling>) -> Tiles {
        Tiles {
            by,
            tiling,
            candidates: Vec::new(),
            stages: Vec::new(),
            kept_dims: None,
            inputs: Vec::new(),
            results: Vec::new(),
            input_of: FxHashMap::default(),
            result_of: FxHashMap::default(),
            hands_on: false,
        }
    }

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
        let kept_dims = self.kept_dims.or(program.kept_dims[op]);
        if self.by == By::Parts && group.is_none() && program.kept_dims[op] != kept_dims {
            return false;
        }
        let reads: Vec<_> = reads.iter().map(|read| (*read, value_at(program, *read))).collect();
        let is_stage = reads.iter().all(|(_, value)| match self.result_of.get(value) {
            Some(result) => {
                let from = self.results[*result].0;
                match self.by {
                    // Rows of fewer dimensions would be read along another one.
                    By::Rows => group.is_none() || program.ndim[from] == program.ndim[op],
                    // The result of a reduction is there when all parts are.
                    By::Parts => program.members[from].is_some(),
                }
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
        let is_end = self.by == By::Rows || group.is_none();
        let source = |(read, value): &((usize, usize), u32)| {
            if let Some(result) = self.result_of.get(value) {
                self.hands_on |= is_end;
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
        self.kept_dims = kept_dims;
        true
    }

    /// Adds the steps to a plan: as tiles, if they hand on rows, or elements to a reduction.
    fn finish(self, program: &Program, users: &[Vec<usize>], to: &mut Vec<Candidate>) {
        let Some(tiling) = self.tiling.as_ref().filter(|_| self.hands_on) else {
            return to.extend(self.candidates);
        };
        let backend = Arc::clone(&tiling.backend.0);
        let operations = self.candidates.iter().flat_map(|one| one.step.operations());
        let mut members: Vec<usize> = operations.copied().collect();
        members.sort_unstable();
        let mut kept = vec![false; self.results.len()];
        for (value, result) in &self.result_of {
            let memory = program.memory[*value as usize] as usize;
            let is_other = |op: &usize| members.binary_search(op).is_err();
            kept[*result] = program.held[memory] || users[memory].iter().any(is_other);
        }
        let Tiles { by, candidates, stages, inputs, results, .. } = self;
        // For tensors that aren't cut into rows.
        let candidates = match by {
            By::Rows => join_by(By::Parts, program, users, candidates),
            By::Parts => candidates,
        };
        let steps = steps_of(candidates);
        let tiled = Tiled { by, backend, members, steps, stages, inputs, results, kept };
        to.push(Candidate { step: Step::Tiled(tiled), alone: None });
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
