//! The merge of the members' steps into one list.

use keyfold_core::{DType, DTypeKind, Element, Result, Scalar, bf16, f16};
use smallvec::SmallVec;

use super::{Exceeded, Fused, Fusion, Group, Limits, Member, Source, Stored};
use crate::graph::{Binary, Unary};
use crate::lower::{Lowered, Signature, Step, StepId, StepOp, StepTable, computed, needed_of};

/// A member's result: the step that is stored, and the step that other members read.
#[derive(Clone, Copy)]
struct MemberResult {
    /// Storing it rounds.
    stored: StepId,
    /// The value after it was stored and read.
    read: StepId,
    dtype: DType,
}

/// The dtypes that are computed as float32, in the order of [`Merge::rounded`].
const HALVES: [DType; 2] = [DType::F16, DType::BF16];

/// The steps of a group under construction.
struct Merge<'a> {
    group: &'a Group,
    table: StepTable,
    /// For each step, whether it is a float16 or a bfloat16, so that rounding it has no effect.
    rounded: Vec<[bool; 2]>,
    results: Vec<MemberResult>,
    /// The number of steps up to the end of each member.
    ends: Vec<usize>,
    /// The inputs' names in the members' expressions.
    names: Vec<Option<&'a str>>,
    used_params: Vec<bool>,
}

pub(super) fn merge(group: &Group, limits: &Limits) -> Result<Fusion> {
    let mut merge = Merge {
        group,
        table: StepTable::default(),
        rounded: Vec::new(),
        results: Vec::with_capacity(group.members.len()),
        ends: Vec::with_capacity(group.members.len()),
        names: vec![None; group.inputs.len()],
        used_params: vec![false; group.params.len()],
    };
    for (members, member) in group.members.iter().enumerate() {
        merge.add(member)?;
        if let Some(exceeded) = merge.exceeded(limits) {
            return Ok(Fusion::Cut { members, exceeded });
        }
    }
    if let Some(step) = merge.first_beyond(limits.live) {
        let members = merge.ends.partition_point(|end| *end <= step);
        return Ok(Fusion::Cut { members, exceeded: Exceeded::Live });
    }
    Ok(Fusion::Program(merge.finish()))
}

impl<'a> Merge<'a> {
    /// Adds the steps of the next member.
    fn add(&mut self, member: &'a Member) -> Result<()> {
        for (source, input) in member.sources.iter().zip(member.expr.inputs()) {
            if let Source::Input(at) = *source {
                self.names[at as usize].get_or_insert(&input.name);
            }
        }
        for param in &member.params {
            self.used_params[*param as usize] = true;
        }
        let dtypes: SmallVec<[DType; 4]> = member
            .sources
            .iter()
            .map(|source| match *source {
                Source::Input(input) => self.group.inputs[input as usize].dtype,
                Source::Member(earlier) => self.results[earlier as usize].dtype,
            })
            .collect();
        let kinds: SmallVec<[DTypeKind; 4]> =
            member.params.iter().map(|param| self.group.params[*param as usize]).collect();
        let lowered = Lowered::new(&member.expr, &dtypes, &kinds, member.out)?;
        let mut places: Vec<StepId> = Vec::with_capacity(lowered.steps().len());
        for step in lowered.steps() {
            let place = self.step(member, step, &places);
            places.push(place);
        }
        let (stored, dtype) = (places[places.len() - 1], lowered.result());
        let read = match computed(dtype) == dtype || self.is_rounded(stored, dtype) {
            true => stored,
            false => self.push(StepOp::Round(dtype, stored), computed(dtype)),
        };
        self.results.push(MemberResult { stored, read, dtype });
        self.ends.push(self.table.steps().len());
        Ok(())
    }

    /// Adds a step of a member, whose earlier steps are at `places`.
    fn step(&mut self, member: &Member, step: &Step, places: &[StepId]) -> StepId {
        let mut op = step.op.clone();
        match &mut op {
            StepOp::Input(input) | StepOp::At { input, .. } => {
                match member.sources[*input as usize] {
                    Source::Input(own) => *input = own,
                    Source::Member(earlier) => return self.results[earlier as usize].read,
                }
            }
            StepOp::Param { index, .. } => *index = member.params[*index as usize],
            _ => {}
        }
        op.map_operands(|id| places[id.index()]);
        self.push(op, step.dtype)
    }

    fn push(&mut self, op: StepOp, dtype: DType) -> StepId {
        let id = self.table.add(op, dtype);
        if id.index() == self.rounded.len() {
            self.rounded.push(HALVES.map(|half| self.is_half(id, half)));
        }
        id
    }

    /// Whether a new step's value is a half of that dtype, given those of earlier steps.
    fn is_half(&self, id: StepId, half: DType) -> bool {
        let step = &self.table.steps()[id.index()];
        let of = |id: StepId| self.is_rounded(id, half);
        step.dtype == DType::F32
            && match step.op {
                StepOp::Round(to, _) | StepOp::Param { to, .. } => to == half,
                StepOp::Input(input) | StepOp::At { input, .. } => {
                    self.group.inputs[input as usize].dtype == half
                }
                StepOp::Unary(Unary::Neg | Unary::Abs, a) => of(a),
                StepOp::Binary(Binary::Min | Binary::Max, a, b) | StepOp::Where(_, a, b) => {
                    of(a) && of(b)
                }
                StepOp::Constant(number) => number == rounded_number(number, half),
                _ => false,
            }
    }

    fn is_rounded(&self, id: StepId, half: DType) -> bool {
        let halves = HALVES.iter().zip(self.rounded[id.index()]);
        halves.into_iter().any(|(dtype, rounded)| *dtype == half && rounded)
    }

    fn exceeded(&self, limits: &Limits) -> Option<Exceeded> {
        let inputs = self.names.iter().filter(|name| name.is_some()).count();
        let params = self.used_params.iter().filter(|used| **used).count();
        [
            (self.table.steps().len() > limits.steps, Exceeded::Steps),
            (inputs > limits.inputs, Exceeded::Inputs),
            (params > limits.params, Exceeded::Params),
        ]
        .into_iter()
        .find_map(|(beyond, exceeded)| beyond.then_some(exceeded))
    }

    /// Returns the first step after which more than `most` values are alive.
    fn first_beyond(&self, most: usize) -> Option<usize> {
        let steps = self.table.steps();
        let mut last_use: Vec<usize> = (0..steps.len()).collect();
        for (at, step) in steps.iter().enumerate() {
            step.op.operands(|id| last_use[id.index()] = at);
        }
        let mut ending = vec![0; steps.len()];
        let mut live = 0;
        for (at, step) in steps.iter().enumerate() {
            if !step.uniform && !matches!(step.op, StepOp::Input(_)) {
                live += 1;
                ending[last_use[at]] += 1;
                if live > most {
                    return Some(at);
                }
            }
            live -= ending[at];
        }
        None
    }

    fn finish(self) -> Fused {
        let mut uses = vec![0; self.table.steps().len()];
        for step in self.table.steps() {
            step.op.operands(|id| uses[id.index()] += 1);
        }
        // The step before the rounding is stored if nothing else needs the rounded one.
        let stored = self.group.results.iter().map(|member| {
            let result = self.results[*member as usize];
            if uses[result.read.index()] == 0 { result.stored } else { result.read }
        });
        let mut ids: SmallVec<[StepId; 4]> = stored.collect();
        let steps = needed_of(self.table.steps(), &mut ids);
        let results: Vec<Stored> = ids
            .iter()
            .zip(&self.group.results)
            .map(|(step, member)| Stored {
                step: *step,
                dtype: self.results[*member as usize].dtype,
            })
            .collect();
        let names = self.names.iter().enumerate();
        let names = names.map(|(at, name)| name.map_or_else(|| format!("x{at}"), str::to_owned));
        let signature = Signature {
            inputs: self.group.inputs.iter().map(|input| input.dtype).collect(),
            ranks: self.group.inputs.iter().map(|input| input.rank).collect(),
            names: names.collect(),
            params: Signature::params_of(&steps),
            result: results[0].dtype,
        };
        Fused { steps, signature, results }
    }
}

fn rounded_number(number: Scalar, half: DType) -> Scalar {
    match half {
        DType::F16 => number.to::<f16>().to_scalar(),
        _ => number.to::<bf16>().to_scalar(),
    }
}
