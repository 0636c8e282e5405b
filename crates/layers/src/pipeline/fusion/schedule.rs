//! The choice of steps that run concurrently, on several threads.
//!
//! A kernel that is too small for several threads, or that computes on one thread anyway, leaves the others
//! idle. Steps that don't depend on each other are then moved together: the operations are scheduled by
//! levels, in each of which all steps are ready. Only pure steps are moved, by the backend's own kernels on
//! memory of the host: no effect but their results depends on their order or thread. Any other step, such as
//! a write in place, keeps its place, and no step is moved past it.

use std::fmt;
use std::sync::Arc;

use keyfold_backend::{GpuBackend, Tiles, tiles_of};
use keyfold_core::Device;
use keyfold_dispatch::Kernel;
use keyfold_tensor::{Tensor, Value};

use super::BackendKernel;
use super::plan::{Plan, Step};
use super::program::{Member, Program, Same, backend_of};
use crate::pipeline::cost::Cost;
use crate::pipeline::operation::Operation;

/// The most steps that a step is moved ahead: its results wait in memory for their readers.
const WINDOW: usize = 32;

/// The most bytes of the results of a level.
const LEVEL_BYTES: u64 = 1 << 28;

/// Results of fewer bytes count as so many, so that programs of other small sizes have the same plan.
const SMALL_BYTES: u64 = 1 << 20;

/// The least nanoseconds that other threads have to take over. Waking one takes 50,000, and the thread that
/// wakes it 15,000.
const GAIN: u64 = 65_536;

/// An operation that may run on any thread.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Movable {
    /// A backend that computes on the threads that call it.
    backend: Same<dyn GpuBackend>,
    cost: Cost,
    /// The bytes of the results, rounded up to a power of 2.
    bytes: u64,
}

impl Movable {
    /// Returns a pure operation, by a kernel of a backend that computes on several threads of the host, on memory
    /// of the host; `None` for any other one.
    pub(super) fn of(
        operation: &Operation,
        member: Option<&Member>,
        tensors: &[&Tensor],
    ) -> Option<Movable> {
        let is_host = |device: Device| device.kind().is_host();
        let is_movable = operation.is_pure()
            && operation.stream.is_none()
            && is_host(operation.device)
            && tensors.iter().all(|tensor| is_host(tensor.device()));
        if !is_movable {
            return None;
        }
        let backend = match member {
            Some(member) => member.backend.clone(),
            None => backend_of(operation)?,
        };
        if !has_threads(&*backend.0) {
            return None;
        }
        let bytes = operation.bytes.max(SMALL_BYTES);
        let bytes = bytes.checked_next_power_of_two().unwrap_or(u64::MAX);
        Some(Movable { backend, cost: operation.cost, bytes })
    }
}

/// Steps that don't depend on each other.
pub(in crate::pipeline) struct Concurrent {
    backend: Arc<dyn GpuBackend>,
    /// The operations, ascending.
    pub(in crate::pipeline) members: Vec<usize>,
    /// Operations and groups, in the order of one by one.
    pub(in crate::pipeline) steps: Vec<Step>,
}

impl fmt::Debug for Concurrent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Concurrent({:?})", self.steps)
    }
}

impl Concurrent {
    fn new(backend: Arc<dyn GpuBackend>, steps: Vec<Step>) -> Concurrent {
        let mut members: Vec<usize> = steps.iter().flat_map(Step::operations).copied().collect();
        members.sort_unstable();
        Concurrent { backend, members, steps }
    }

    /// Returns the backend's threads, if there are several.
    pub(in crate::pipeline) fn threads(&self) -> Option<&dyn Tiles> {
        tiles_of(&*self.backend).filter(|_| has_threads(&*self.backend))
    }
}

/// Returns whether a backend computes on several threads of the host.
fn has_threads(backend: &dyn GpuBackend) -> bool {
    // A setting that isn't a number is an error of the kernels that ask for it.
    tiles_of(backend).is_some_and(|tiles| tiles.threads().is_ok_and(|threads| threads > 1))
}

/// Returns whether operations are moved, as far as that isn't in their forms: plans differ for one thread and for
/// several.
pub(super) fn moves(operations: &[Arc<Operation>]) -> bool {
    Moves::of(operations).moves
}

/// Whether a program was planned for several threads.
pub(in crate::pipeline) struct Moves {
    /// The backend whose threads matter; `None` if all operations are short.
    backend: Option<Arc<dyn GpuBackend>>,
    moves: bool,
}

impl Moves {
    pub(in crate::pipeline) fn of(operations: &[Arc<Operation>]) -> Moves {
        let long = operations.iter().find(|one| one.cost.nanoseconds().is_some());
        let backend = long.and_then(|one| backend_of(one)).map(|backend| backend.0);
        let moves = backend.as_ref().is_some_and(|backend| has_threads(&**backend));
        Moves { backend, moves }
    }

    /// Returns whether it would be planned alike today.
    pub(in crate::pipeline) fn is_as_planned(&self) -> bool {
        self.backend.as_ref().is_none_or(|backend| has_threads(&**backend) == self.moves)
    }
}

/// Returns whether a kernel may run on any thread: that of a backend which computes on the threads that call
/// it.
pub(in crate::pipeline) fn is_movable(kernel: &Kernel<Value>) -> bool {
    let own = kernel.payload().and_then(|any| any.downcast_ref::<BackendKernel>());
    own.is_some_and(|own| tiles_of(&*own.0).is_some())
}

/// Returns whether some steps may run concurrently: a quick look, which finds none in a chain.
pub(super) fn may_be_concurrent(operations: &[Arc<Operation>]) -> bool {
    let mut long = operations.iter().filter(|one| one.cost.nanoseconds().is_some());
    let Some(mut last) = long.next() else { return false };
    long.any(|one| !one.after.contains(&std::mem::replace(&mut last, one).index))
}

/// Joins steps that run concurrently. `steps` are in an order in which they may run one by one.
pub(super) fn schedule(program: &Program, steps: Vec<Step>) -> Plan {
    let Some(backend) = program.movable.iter().flatten().map(|one| &one.backend).next() else {
        return Plan { steps };
    };
    let weights: Vec<_> = steps.iter().map(|step| weight_of(program, step, backend)).collect();
    let levels = levels(&weights, &needs_of(program, &steps));
    let mut steps: Vec<Option<Step>> = steps.into_iter().map(Some).collect();
    let step = |level: Vec<usize>| {
        let mut own: Vec<Step> = level.iter().filter_map(|at| steps[*at].take()).collect();
        match own.len() {
            1 => own.pop(),
            _ => Some(Step::Concurrent(Concurrent::new(Arc::clone(&backend.0), own))),
        }
    };
    Plan { steps: levels.into_iter().filter_map(step).collect() }
}

/// The weight of a step that may run in another order.
#[derive(Clone, Copy)]
struct Weight {
    /// The nanoseconds of a step that is worth another thread.
    nanoseconds: Option<u64>,
    bytes: u64,
}

/// Returns the weight of a step that may run in another order, `None` for any other one.
fn weight_of(program: &Program, step: &Step, backend: &Same<dyn GpuBackend>) -> Option<Weight> {
    let movable = |op: &usize| program.movable[*op].as_ref().filter(|one| one.backend == *backend);
    let members = step.operations().iter().map(movable).collect::<Option<Vec<&Movable>>>()?;
    let mut costs = members.iter().map(|one| one.cost);
    let cost = match step {
        Step::One(_) => members[0].cost,
        Step::Group(_) => Cost::together(costs),
        // Its tiles are divided among threads.
        Step::Tiled(_) | Step::Concurrent(_) if costs.any(|cost| cost == Cost::Divided) => {
            Cost::Divided
        }
        Step::Tiled(_) | Step::Concurrent(_) => Cost::Short,
    };
    let bytes = members.iter().fold(0, |sum: u64, one| sum.saturating_add(one.bytes));
    // Large results that no step needs yet would wait in memory.
    (cost != Cost::Divided).then_some(Weight { nanoseconds: cost.nanoseconds(), bytes })
}

/// Returns for each step the earlier ones whose results it reads.
fn needs_of(program: &Program, steps: &[Step]) -> Vec<Vec<usize>> {
    let mut writers: Vec<Option<usize>> = vec![None; program.held.len()];
    let mut all = Vec::with_capacity(steps.len());
    for (at, step) in steps.iter().enumerate() {
        let mut needs = Vec::new();
        for op in step.operations().iter().map(|op| &program.ops[*op]) {
            let memory = |value: &u32| program.memory[*value as usize] as usize;
            needs.extend(op.reads.iter().filter_map(|read| writers[memory(&read.value)]));
            op.writes.iter().for_each(|value| writers[memory(value)] = Some(at));
        }
        needs.retain(|before| *before != at);
        all.push(needs);
    }
    all
}

/// Returns the steps of each level, several of which run concurrently.
fn levels(weights: &[Option<Weight>], needs: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut levels = Vec::with_capacity(weights.len());
    let mut at = 0;
    while at < weights.len() {
        let movable = weights[at..].iter().map_while(|weight| *weight).collect::<Vec<Weight>>();
        match movable.is_empty() {
            true => levels.push(vec![at]),
            false => add_levels(at, &movable, needs, &mut levels),
        }
        at += movable.len().max(1);
    }
    levels
}

/// Adds the levels of steps that may run in any order that their needs allow. `start` is the first one.
fn add_levels(
    start: usize,
    weights: &[Weight],
    needs: &[Vec<usize>],
    levels: &mut Vec<Vec<usize>>,
) {
    let (mut own, mut gains) = (Vec::with_capacity(weights.len()), false);
    let mut done = vec![false; weights.len()];
    let mut next = 0;
    while next < weights.len() {
        let window = next..weights.len().min(next + WINDOW);
        let is_done = |before: &usize| *before < start || done[*before - start];
        let is_ready = |at: &usize| !done[*at] && needs[start + *at].iter().all(is_done);
        let (long, short): (Vec<usize>, Vec<usize>) =
            window.clone().filter(is_ready).partition(|at| weights[*at].nanoseconds.is_some());
        let is_needed =
            |at: usize| window.clone().any(|by| needs[start + by].contains(&(start + at)));
        let chosen = match short.is_empty() {
            // Others may need them.
            false => short.into_iter().map(|at| vec![at]).collect(),
            true => next_level(weights, &long, is_needed),
        };
        gains |= chosen.iter().any(|level| level.len() > 1);
        chosen.iter().flatten().for_each(|at| done[*at] = true);
        own.extend(chosen);
        // The first that isn't done is ready, since it needs earlier ones only.
        while done.get(next) == Some(&true) {
            next += 1;
        }
    }
    if !gains {
        own = (0..weights.len()).map(|at| vec![at]).collect();
    }
    let place = |level: Vec<usize>| level.into_iter().map(|at| start + at).collect();
    levels.extend(own.into_iter().map(place));
}

/// Returns the next level among steps that are ready, or steps that run alone before it.
fn next_level(
    weights: &[Weight],
    ready: &[usize],
    is_needed: impl Fn(usize) -> bool,
) -> Vec<Vec<usize>> {
    let nanoseconds = |at: &usize| weights[*at].nanoseconds.unwrap_or(0);
    let longest = ready.iter().map(nanoseconds).max().unwrap_or(0);
    // Longer ones gain most together with those that need shorter ones.
    let is_before = |at: &usize| nanoseconds(at) < longest / 2 && is_needed(*at);
    let before: Vec<usize> = ready.iter().copied().filter(is_before).collect();
    if !before.is_empty() && gain(weights, &before) < GAIN {
        return before.into_iter().map(|at| vec![at]).collect();
    }
    let level = within_bytes(weights, ready);
    match gain(weights, level) >= GAIN {
        true => vec![level.to_vec()],
        false => {
            let shortest = ready.iter().copied().min_by_key(nanoseconds);
            shortest.into_iter().map(|at| vec![at]).collect()
        }
    }
}

/// Returns the first of some steps, as many as have results of [`LEVEL_BYTES`].
fn within_bytes<'s>(weights: &[Weight], steps: &'s [usize]) -> &'s [usize] {
    let mut bytes = 0_u64;
    let fits = |at: &&usize| {
        bytes = bytes.saturating_add(weights[**at].bytes);
        bytes <= LEVEL_BYTES
    };
    &steps[..steps.iter().take_while(fits).count()]
}

/// Returns the nanoseconds that threads save at most: those of all steps but the longest.
fn gain(weights: &[Weight], steps: &[usize]) -> u64 {
    let own = || steps.iter().filter_map(|at| weights[*at].nanoseconds);
    own().fold(0, u64::saturating_add) - own().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Option<Weight> = weight(Some(65_536));
    const SMALL: Option<Weight> = weight(Some(8_192));
    const SHORT: Option<Weight> = weight(None);

    const fn weight(nanoseconds: Option<u64>) -> Option<Weight> {
        Some(Weight { nanoseconds, bytes: SMALL_BYTES })
    }

    fn levels_of(steps: &[(Option<Weight>, &[usize])]) -> Vec<Vec<usize>> {
        let (weights, needs): (Vec<_>, Vec<_>) =
            steps.iter().map(|(weight, needs)| (*weight, needs.to_vec())).unzip();
        levels(&weights, &needs)
    }

    #[test]
    fn independent_steps_share_a_level() {
        assert_eq!(levels_of(&[(LONG, &[]), (LONG, &[]), (LONG, &[0])]), [vec![0, 1], vec![2]]);
        // Two chains, one after the other, with short or longer steps between the long ones.
        for between in [SHORT, SMALL] {
            let chains: [(Option<Weight>, &[usize]); 6] = [
                (LONG, &[]),
                (between, &[0]),
                (LONG, &[1]),
                (LONG, &[]),
                (between, &[3]),
                (LONG, &[4]),
            ];
            assert_eq!(levels_of(&chains), [vec![0, 3], vec![1], vec![4], vec![2, 5]]);
        }
        // Long steps wait for shorter ones that others need, and gain together with others that none needs.
        let mixed: [(Option<Weight>, &[usize]); 5] =
            [(SMALL, &[]), (LONG, &[0]), (LONG, &[]), (SMALL, &[]), (LONG, &[])];
        assert_eq!(levels_of(&mixed), [vec![0], vec![1, 2, 3, 4]]);
    }

    #[test]
    fn steps_without_gain_keep_their_order() {
        assert_eq!(levels_of(&[(SMALL, &[]), (SMALL, &[]), (SHORT, &[])]), [[0], [1], [2]]);
        assert_eq!(levels_of(&[(LONG, &[]), (LONG, &[0]), (SHORT, &[])]), [[0], [1], [2]]);
    }

    #[test]
    fn no_step_passes_one_that_is_not_movable() {
        let steps: [(Option<Weight>, &[usize]); 5] =
            [(LONG, &[]), (None, &[]), (LONG, &[]), (LONG, &[1]), (LONG, &[0])];
        assert_eq!(levels_of(&steps), [vec![0], vec![1], vec![2, 3, 4]]);
    }

    #[test]
    fn steps_are_moved_a_little() {
        let lengths = |steps: &[(Option<Weight>, &[usize])]| -> Vec<usize> {
            levels_of(steps).iter().map(Vec::len).collect()
        };
        assert_eq!(lengths(&vec![(LONG, &[][..]); 2 * WINDOW + 1]), [WINDOW, WINDOW, 1]);
        let large = Some(Weight { nanoseconds: Some(1 << 30), bytes: LEVEL_BYTES / 2 });
        assert_eq!(lengths(&[(large, &[][..]); 5]), [2, 2, 1]);
        let larger = Some(Weight { nanoseconds: Some(1 << 30), bytes: LEVEL_BYTES + 1 });
        assert_eq!(lengths(&[(larger, &[][..]); 3]), [1, 1, 1]);
    }
}
