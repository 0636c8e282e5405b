//! The steps that compute a program.

use std::sync::Arc;

use keyfold_backend::{fusion_limits, prepare_group};
use keyfold_expr::fuse::grouping::{Record, Unit, Wiring, units};
use keyfold_expr::fuse::{self, Fusion, GroupInput, Limits, Source};

use super::group::Group;
use super::program::{Member, Program};
use super::schedule::{self, Concurrent};
use super::tiled::Tiled;
use super::tiles::{self, Candidate};
use crate::pipeline::operation::Operation;

/// A step of a plan.
#[derive(Debug)]
pub(in crate::pipeline) enum Step {
    /// The operation of this number.
    One(usize),
    /// Operations in one pass.
    Group(Group),
    /// Steps that are computed tile by tile.
    Tiled(Tiled),
    /// Steps that are computed concurrently.
    Concurrent(Concurrent),
}

impl Step {
    /// Returns the numbers of its operations, ascending.
    pub(in crate::pipeline) fn operations(&self) -> &[usize] {
        match self {
            Step::One(op) => std::slice::from_ref(op),
            Step::Group(group) => &group.members,
            Step::Tiled(tiled) => &tiled.members,
            Step::Concurrent(concurrent) => &concurrent.members,
        }
    }

    /// Returns the number of steps that it is: those of concurrent ones count each.
    pub(in crate::pipeline) fn count(&self) -> usize {
        match self {
            Step::Concurrent(concurrent) => concurrent.steps.len(),
            _ => 1,
        }
    }

    /// Returns its name in a profile: `pipeline: aten::mul, aten::exp in one pass`.
    pub(in crate::pipeline) fn name(&self, all: &[Arc<Operation>]) -> String {
        /// The most operators that are named.
        const NAMED: usize = 5;
        let count = self.operations().len();
        let operators = self.operations().iter().map(|op| all[*op].operator.name());
        let how = match self {
            Step::One(_) => "",
            Step::Group(_) => " in one pass",
            Step::Tiled(tiled) if tiled.is_cut(all) => " tile by tile",
            Step::Tiled(_) => " step by step",
            Step::Concurrent(concurrent) if concurrent.threads().is_some() => " concurrently",
            Step::Concurrent(_) => " one by one",
        };
        let rest = match count.saturating_sub(NAMED) {
            0 => String::new(),
            rest => format!(" and {rest} more"),
        };
        format!("pipeline: {}{rest}{how}", operators.take(NAMED).collect::<Vec<_>>().join(", "))
    }
}

/// Steps that compute all operations of a program, each after those that it needs.
#[derive(Debug)]
pub(in crate::pipeline) struct Plan {
    pub(in crate::pipeline) steps: Vec<Step>,
}

/// The outcome of compiling a unit.
enum Compiled {
    Group(Group),
    /// It is larger than the backend's limits.
    TooLarge,
    /// The backend doesn't compute it in one pass.
    No,
}

impl Plan {
    /// Returns the plan that computes that many operations one by one.
    pub(in crate::pipeline) fn one_by_one(count: usize) -> Plan {
        Plan { steps: (0..count).map(Step::One).collect() }
    }

    pub(in crate::pipeline) fn has_groups(&self) -> bool {
        self.steps.iter().any(|step| !matches!(step, Step::One(_)))
    }

    /// Chooses and compiles the groups of a program.
    pub(super) fn of(program: &Program) -> Plan {
        let mut limits = limits_of(program);
        loop {
            match Plan::within(program, &limits) {
                Some(plan) => return plan,
                // Steps that members add when they are lowered aren't known before.
                None => limits.steps /= 2,
            }
        }
    }

    /// As [`Plan::of`], with groups within these limits; `None` if one turned out to be larger.
    fn within(program: &Program, limits: &Limits) -> Option<Plan> {
        let Program { ops, memory, held, .. } = program;
        let mut steps = Vec::new();
        for unit in units(&Record { ops, memory, held }, limits) {
            let one = |op: usize| Candidate { step: Step::One(op), alone: None };
            match compile(program, &unit, limits) {
                Compiled::Group(group) if group.members.len() > 1 => {
                    steps.push(Candidate { step: Step::Group(group), alone: None });
                }
                Compiled::Group(alone) => {
                    steps.push(Candidate { alone: Some(alone), ..one(unit.ops[0]) });
                }
                Compiled::TooLarge if limits.steps > 1 && unit.ops.len() > 1 => return None,
                Compiled::TooLarge | Compiled::No => steps.extend(unit.ops.into_iter().map(one)),
            }
        }
        Some(schedule::schedule(program, tiles::join(program, steps)))
    }
}

/// Returns the limits that all backends of a program have.
fn limits_of(program: &Program) -> Limits {
    let mut limits: Option<Limits> = None;
    let mut last = None;
    for member in program.members.iter().flatten() {
        if last == Some(&member.backend) {
            continue;
        }
        last = Some(&member.backend);
        let own = fusion_limits(&*member.backend.0);
        limits = Some(limits.map_or(own, |known| Limits {
            steps: known.steps.min(own.steps),
            inputs: known.inputs.min(own.inputs),
            params: known.params.min(own.params),
            live: known.live.min(own.live),
            results: known.results.min(own.results),
        }));
    }
    limits.unwrap_or_default()
}

/// Compiles the operations of a unit as one kernel.
fn compile(program: &Program, unit: &Unit, limits: &Limits) -> Compiled {
    let Some(wiring) = unit.group.as_ref().filter(|wiring| !wiring.results.is_empty()) else {
        return Compiled::No;
    };
    let members: Option<Vec<&Member>> =
        unit.ops.iter().map(|op| program.members[*op].as_ref()).collect();
    let Some(members) = members else { return Compiled::No };
    // By itself it is a part of tiles at most.
    if members.len() == 1 && program.rows[unit.ops[0]].is_none() {
        return Compiled::No;
    }
    let (group, places) = group_of(unit, wiring, &members);
    let fused = match group.fuse(limits) {
        Ok(Fusion::Program(fused)) => fused,
        Ok(Fusion::Cut { .. }) => return Compiled::TooLarge,
        Err(_) => return Compiled::No,
    };
    let mut results = wiring.results.iter().zip(fused.results());
    if !results.all(|(member, stored)| members[*member as usize].result == stored.dtype) {
        return Compiled::No;
    }
    let Ok(kernel) = prepare_group(&members[0].backend.0, &fused).kernel() else {
        return Compiled::No;
    };
    let stored = wiring.results.iter().map(|member| unit.ops[*member as usize]).collect();
    let backend = Arc::clone(&members[0].backend.0);
    Compiled::Group(Group::new(backend, kernel, unit.ops.clone(), places, stored))
}

/// Returns the group of a unit, and for each input an operation and the position among its tensors.
fn group_of(
    unit: &Unit,
    wiring: &Wiring,
    members: &[&Member],
) -> (fuse::Group, Vec<(usize, usize)>) {
    let mut inputs: Vec<Option<GroupInput>> = vec![None; wiring.inputs.len()];
    let mut places = vec![(0, 0); wiring.inputs.len()];
    let mut group = fuse::Group { results: wiring.results.clone(), ..fuse::Group::default() };
    for ((op, member), sources) in unit.ops.iter().zip(members).zip(&wiring.sources) {
        for (at, source) in sources.iter().enumerate() {
            if let Source::Input(input) = *source
                && inputs[input as usize].is_none()
            {
                let rank = member.expr.0.inputs()[at].rank;
                inputs[input as usize] = Some(GroupInput { dtype: member.dtypes[at], rank });
                places[input as usize] = (*op, member.inputs[at] as usize);
            }
        }
        let first = group.params.len() as u32;
        group.params.extend(&member.params);
        group.members.push(fuse::Member {
            expr: Arc::clone(&member.expr.0),
            sources: sources.clone(),
            params: (first..group.params.len() as u32).collect(),
            out: member.out,
        });
    }
    group.inputs = inputs.into_iter().flatten().collect();
    (group, places)
}
