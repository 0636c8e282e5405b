//! The text of a pipeline's pending operations.

use std::fmt;
use std::sync::{Arc, PoisonError};

use keyfold_tensor::{Tensor, Value};
use rustc_hash::{FxHashMap, FxHashSet};

use super::fusion::{self, Concurrent, Step, Tiled};
use super::operation::{Operation, Slot, Structure};
use super::same::merge_calls;
use super::session::{AtOnce, Session, Statistics};
use super::waiting::Held;
use crate::tracer::{Assembly, Graph, Results};

/// An operation that waits.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Its place among all operations of the pipeline.
    pub index: usize,
    /// The operator's name, with its overload.
    pub operator: String,
    /// The call, with the forms of its results and arguments: `%1: float64[3] = aten::exp(%0)`.
    pub call: String,
    /// The line that recorded it, as `file:line`, if the host language knows it.
    pub site: Option<String>,
    /// The operations that run before it.
    pub after: Vec<usize>,
    /// Whether it is left out, since nobody holds a result.
    pub dead: bool,
    /// The bytes that wait with it.
    pub bytes: u64,
}

/// Operations that are computed in one pass, or tile by tile.
#[derive(Clone, Debug)]
pub struct PlannedGroup {
    /// The places of the operations.
    pub operations: Vec<usize>,
    /// Those whose results are stored.
    pub stored: Vec<usize>,
    /// The bytes of the other results: in one pass they are neither written nor read, tile by tile they
    /// stay in the cache.
    pub saved_bytes: u64,
    /// Whether they are computed tile by tile: some rows by all of them, then the next rows.
    pub tiles: bool,
}

/// Steps that don't depend on each other, which threads compute at once.
#[derive(Clone, Debug)]
pub struct PlannedConcurrent {
    /// For each step, the places of its operations: several of one that is a group.
    pub steps: Vec<Vec<usize>>,
}

/// The pending operations of a pipeline, and its history; prints as text.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The operations that wait, in order.
    pub operations: Vec<Planned>,
    /// The operations that are computed together.
    pub groups: Vec<PlannedGroup>,
    /// The steps that are computed concurrently.
    pub concurrent: Vec<PlannedConcurrent>,
    /// The calls that ran at once, by operator and reason.
    pub at_once: Vec<AtOnce>,
    /// The bytes that wait.
    pub bytes: u64,
    /// The pipeline's history.
    pub statistics: Statistics,
    /// The operations as a graph, for drawings: views of pending tensors are shown as the tensors.
    pub graph: Graph,
}

/// The operations that write pending memory, by its address.
type Producers = FxHashMap<usize, usize>;

fn producer(producers: &Producers) -> impl Fn(&Tensor) -> Option<String> + '_ {
    |tensor| {
        let pending = tensor.pending_buffer()?;
        let index = producers.get(&std::ptr::from_ref(pending).addr())?;
        Some(format!("%{index}"))
    }
}

fn producers_of<'o>(operations: impl Iterator<Item = &'o Arc<Operation>>) -> Producers {
    let mut producers = Producers::default();
    for operation in operations {
        for slot in operation.results.iter().flatten() {
            producers.insert(slot.memory.as_ptr().addr(), operation.index);
        }
    }
    producers
}

impl Session {
    /// Describes a call. What it reads is computed by the operations that it runs after: all that wait needn't be
    /// looked at, of which each may fail.
    pub(super) fn describe(&self, operation: &Operation) -> String {
        let producers = {
            let state = self.lock();
            producers_of(operation.after.iter().filter_map(|before| state.waiting.get(*before)))
        };
        operation.describe(&producer(&producers))
    }

    /// Returns what waits and what would become of it, without running anything.
    pub fn explain(&self) -> Explanation {
        // Copies, since another thread may run them meanwhile.
        let (operations, held, at_once, bytes, statistics) = {
            let state = self.lock();
            let held = Held::of(state.waiting.iter());
            let copies = state.waiting.iter().map(|operation| Arc::new(operation.copy()));
            let copies: Vec<_> = copies.collect();
            (copies, held, state.at_once.clone(), state.pending_bytes, state.statistics)
        };
        // A flush does that first.
        drop(merge_calls(&operations, operations.iter(), &held));
        let producers = producers_of(operations.iter());
        // Dead are those whose results nobody holds, and that only dead ones read.
        let mut read = FxHashSet::default();
        let mut dead = vec![false; operations.len()];
        for (operation, dead) in operations.iter().zip(&mut dead).rev() {
            let is_unused =
                |slot: &Slot| !held.has(slot) && !read.contains(&slot.memory.as_ptr().addr());
            *dead = operation.is_pure() && operation.results.iter().flatten().all(is_unused);
            if !*dead {
                operation.each_pending(&mut |address| {
                    read.insert(address);
                });
            }
        }
        let (groups, concurrent) = together_of(&operations, &dead, &held);
        let graph = graph_of(&operations, &held);
        let planned = operations.iter().zip(dead).map(|(operation, dead)| Planned {
            index: operation.index,
            operator: operation.operator.name().to_owned(),
            call: operation.describe(&producer(&producers)),
            site: operation.site.as_ref().and_then(|site| site.resolve()),
            after: operation.after.to_vec(),
            dead,
            bytes: operation.bytes,
        });
        let operations = planned.collect();
        Explanation { operations, groups, concurrent, at_once, bytes, statistics, graph }
    }
}

/// Returns the operations that a flush would compute together, and the steps that it would compute
/// concurrently.
fn together_of(
    operations: &[Arc<Operation>],
    dead: &[bool],
    held: &Held,
) -> (Vec<PlannedGroup>, Vec<PlannedConcurrent>) {
    let alive = operations.iter().zip(dead).filter(|(_, dead)| !**dead);
    let alive: Vec<Arc<Operation>> = alive.map(|(operation, _)| Arc::clone(operation)).collect();
    let (mut groups, mut together) = (Vec::new(), Vec::new());
    let Some(plan) = fusion::plan_of_copies(&alive, held) else { return (groups, together) };
    for step in &plan.steps {
        add_groups(step, &alive, &mut groups);
        if let Step::Concurrent(concurrent) = step
            && concurrent.threads().is_some()
        {
            let indices =
                |step: &Step| step.operations().iter().map(|at| alive[*at].index).collect();
            together
                .push(PlannedConcurrent { steps: concurrent.steps.iter().map(indices).collect() });
        }
    }
    (groups, together)
}

/// Adds the groups that a step computes.
fn add_groups(step: &Step, operations: &[Arc<Operation>], to: &mut Vec<PlannedGroup>) {
    let (stored, tiles) = match step {
        Step::One(_) => return,
        Step::Group(group) => (group.stored.clone(), false),
        Step::Tiled(tiled) if tiled.is_cut(operations) => {
            (tiled.kept_results().map(|(op, _)| op).collect(), true)
        }
        Step::Tiled(Tiled { steps, .. }) | Step::Concurrent(Concurrent { steps, .. }) => {
            return steps.iter().for_each(|step| add_groups(step, operations, to));
        }
    };
    let inner = step.operations().iter().filter(|member| !stored.contains(member));
    let slots = inner.flat_map(|member| operations[*member].results.iter().flatten());
    to.push(PlannedGroup {
        operations: step.operations().iter().map(|member| operations[*member].index).collect(),
        stored: stored.iter().map(|member| operations[*member].index).collect(),
        saved_bytes: slots.map(Slot::bytes).sum(),
        tiles,
    });
}

/// Puts the calls together to a graph whose outputs are the results that somebody holds.
fn graph_of(operations: &[Arc<Operation>], held: &Held) -> Graph {
    let (mut graph, mut known) = (Assembly::default(), FxHashMap::default());
    let mut outputs = Vec::new();
    for operation in operations {
        let args = operation.args.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (forms, is_list) = (operation.forms(), operation.structure == Structure::List);
        let results = Results { forms: &forms, is_list };
        let made = graph.call(&operation.operator, &args, &results, &|tensor: &Tensor| {
            let pending = tensor.pending_buffer()?;
            known.get(&std::ptr::from_ref(pending).addr()).copied()
        });
        for (slot, value) in operation.results.iter().zip(&made) {
            if let (Some(slot), Some(value)) = (slot, value) {
                known.insert(slot.memory.as_ptr().addr(), *value);
                outputs.push((operation, slot, *value));
            }
        }
        if let (Structure::Written(at), Some(Some(value))) = (operation.structure, made.first())
            && let Some(Value::Tensor(tensor)) = args.get(at)
            && let Some(pending) = tensor.pending_buffer()
        {
            known.insert(std::ptr::from_ref(pending).addr(), *value);
        }
    }
    let last = outputs
        .into_iter()
        .filter(|(_, slot, _)| held.has(slot))
        .map(|(_, slot, value)| known.get(&slot.memory.as_ptr().addr()).copied().unwrap_or(value));
    let last: Vec<_> = last.collect();
    graph.finish(last)
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.operations.len();
        let s = if count == 1 { " waits" } else { "s wait" };
        writeln!(f, "{count} operation{s}, {} bytes", self.bytes)?;
        let width = self.operations.iter().map(|one| one.call.chars().count()).max().unwrap_or(0);
        for one in &self.operations {
            let site = one.site.as_deref().unwrap_or("");
            let dead = if one.dead { "  (left out: nobody holds its result)" } else { "" };
            let line = format!("  {:width$}  {site}{dead}", one.call);
            writeln!(f, "{}", line.trim_end())?;
        }
        let list = |all: &[usize]| {
            let all: Vec<String> = all.iter().map(|index| format!("%{index}")).collect();
            all.join(", ")
        };
        for group in &self.groups {
            let (all, stored) = (list(&group.operations), list(&group.stored));
            let (how, rest) = match group.tiles {
                true => ("tile by tile", "stay in the cache"),
                false => ("in one pass", "aren't written"),
            };
            writeln!(f, "{how}: {all}; stored: {stored}; {} bytes {rest}", group.saved_bytes)?;
        }
        for PlannedConcurrent { steps } in &self.concurrent {
            let steps: Vec<String> = steps.iter().map(|step| list(step)).collect();
            writeln!(f, "concurrently: {}", steps.join("; "))?;
        }
        for one in &self.at_once {
            let times =
                if one.count == 1 { String::new() } else { format!(" {} times", one.count) };
            writeln!(f, "{} ran at once{times}: {}", one.operator, one.reason)?;
        }
        Ok(())
    }
}
