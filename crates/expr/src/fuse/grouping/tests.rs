//! Random records: executing the units gives what executing the operations in order gives.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use proptest::prelude::*;

use super::*;

/// The cells of each memory.
const CELLS: usize = 4;

/// The views of a memory, by the cells that they show.
const VIEWS: [&[usize]; 6] = [&[0, 1, 2, 3], &[3, 2, 1, 0], &[0, 1], &[1, 2], &[2, 3], &[1]];

/// The values of a record: each view of each memory.
fn view(value: u32) -> (usize, &'static [usize]) {
    (value as usize / VIEWS.len(), VIEWS[value as usize % VIEWS.len()])
}

type Memory = Vec<[u64; CELLS]>;

fn hash(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

fn cells(memory: &Memory, value: u32) -> Vec<u64> {
    let (at, cells) = view(value);
    cells.iter().map(|cell| memory[at][*cell]).collect()
}

/// An element of an operand, which broadcasts.
fn element(memory: &Memory, read: Read, at: usize) -> u64 {
    let all = cells(memory, read.value);
    if read.ranked { hash(&all) } else { all[if all.len() == 1 { 0 } else { at }] }
}

fn store(memory: &mut Memory, value: u32, at: usize, element: u64) {
    let (number, cells) = view(value);
    memory[number][cells[at]] = element;
}

/// Executes one operation; what it reads is read before anything is written.
fn execute(memory: &mut Memory, number: usize, op: &Op) {
    let before = memory.clone();
    for value in &op.writes {
        for at in 0..view(*value).1.len() {
            let result = match op.pointwise {
                Some(_) => {
                    let of = |read: &Read| element(&before, *read, at);
                    hash(&(number, op.reads.iter().map(of).collect::<Vec<_>>()))
                }
                None => {
                    let of = |read: &Read| cells(&before, read.value);
                    hash(&(number, at, op.reads.iter().map(of).collect::<Vec<_>>()))
                }
            };
            store(memory, *value, at, result);
        }
    }
}

/// Executes a group element by element: what has been written is lost to later elements.
fn execute_group(memory: &mut Memory, ops: &[Op], unit: &Unit, wiring: &Wiring) {
    let Some(op) = unit.ops.first() else { return };
    for at in 0..view(ops[*op].writes[0]).1.len() {
        let mut results: Vec<u64> = Vec::new();
        for (op, sources) in unit.ops.iter().zip(&wiring.sources) {
            let of = |source: &Source| match source {
                Source::Input(input) => element(memory, wiring.inputs[*input as usize], at),
                Source::Member(member) => results[*member as usize],
            };
            let operands: Vec<u64> = sources.iter().map(of).collect();
            results.push(hash(&(*op, operands)));
        }
        for member in &wiring.results {
            let value = ops[unit.ops[*member as usize]].writes[0];
            store(memory, value, at, results[*member as usize]);
        }
    }
}

const MEMORIES: usize = 8;

fn op() -> impl Strategy<Value = Op> {
    let read = (0..MEMORIES, 0..12_usize, prop::bool::weighted(0.1));
    let write = (0..MEMORIES, prop::bool::weighted(0.2), 0..VIEWS.len());
    let reads = prop::collection::vec(read, 1..=3);
    (reads, write, prop::bool::weighted(0.85), 1_u32..4, 0_u32..2).prop_map(
        |(reads, (memory, odd, odd_view), is_pointwise, nodes, params)| {
            let number = |memory: usize, view: usize| (memory * VIEWS.len() + view) as u32;
            let written = if odd { odd_view } else { 0 };
            let size = VIEWS[written].len();
            let reads = reads.into_iter().map(|(memory, at, ranked)| {
                // Mostly the whole memory; always a view that broadcasts.
                let at = if at < VIEWS.len() { at } else { written };
                let fits = ranked || [size, 1].contains(&VIEWS[at].len());
                Read { value: number(memory, if fits { at } else { written }), ranked }
            });
            let own = Pointwise { shape: size as u32, device: 0, nodes, params };
            Op {
                pointwise: is_pointwise.then_some(own),
                reads: reads.collect(),
                writes: [number(memory, written)].into_iter().collect(),
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn units_compute_what_the_operations_in_order_compute(
        ops in prop::collection::vec(op(), 1..24),
        held in prop::array::uniform8(prop::bool::weighted(0.4)),
        inputs in 1_usize..8,
        results in 1_usize..4,
        steps in 3_usize..40,
        order in any::<u64>(),
    ) {
        let memory: Vec<u32> =
            (0..MEMORIES as u32 * VIEWS.len() as u32).map(|value| view(value).0 as u32).collect();
        let limits = Limits { steps, inputs, params: 5, results, ..Limits::default() };
        let units = units(&Record { ops: &ops, memory: &memory, held: &held }, &limits);

        let mut all: Vec<usize> = units.iter().flat_map(|unit| unit.ops.clone()).collect();
        all.sort_unstable();
        prop_assert_eq!(all, (0..ops.len()).collect::<Vec<_>>());
        for (at, unit) in units.iter().enumerate() {
            prop_assert!(unit.after.iter().all(|before| *before < at), "{:?}", units);
            let Some(wiring) = unit.group.as_ref().filter(|_| unit.ops.len() > 1) else { continue };
            let members: Vec<Pointwise> =
                unit.ops.iter().filter_map(|op| ops[*op].pointwise).collect();
            prop_assert_eq!(members.len(), unit.ops.len());
            prop_assert!(wiring.inputs.len() <= inputs && wiring.results.len() <= results);
            prop_assert!(members.iter().map(|op| op.nodes as usize).sum::<usize>() <= steps);
            prop_assert!(members.iter().map(|op| op.params as usize).sum::<usize>() <= 5);
        }

        let start: Memory =
            (0..MEMORIES).map(|at| std::array::from_fn(|cell| hash(&(at, cell)))).collect();
        let mut expected = start.clone();
        ops.iter().enumerate().for_each(|(number, op)| execute(&mut expected, number, op));
        // In any order that respects `after`.
        let (mut got, mut done, mut order) = (start, vec![false; units.len()], order);
        for _ in 0..units.len() {
            let ready: Vec<usize> = (0..units.len())
                .filter(|at| !done[*at] && units[*at].after.iter().all(|before| done[*before]))
                .collect();
            order = hash(&order);
            let next = ready[order as usize % ready.len()];
            done[next] = true;
            match &units[next].group {
                Some(wiring) if units[next].ops.len() > 1 => {
                    execute_group(&mut got, &ops, &units[next], wiring);
                }
                Some(wiring) if wiring.results.is_empty() => {}
                _ => execute(&mut got, units[next].ops[0], &ops[units[next].ops[0]]),
            }
        }
        for at in (0..MEMORIES).filter(|at| held[*at]) {
            prop_assert_eq!(got[at], expected[at], "memory {}: {:#?}", at, units);
        }
    }
}

/// A pointwise operation that reads and writes whole memories.
fn pointwise(reads: &[u32], write: u32) -> Op {
    let whole = |memory: &u32| Read { value: memory * VIEWS.len() as u32, ranked: false };
    Op {
        pointwise: Some(Pointwise { shape: 4, device: 0, nodes: 2, params: 0 }),
        reads: reads.iter().map(whole).collect(),
        writes: [write * VIEWS.len() as u32].into_iter().collect(),
    }
}

fn groups_of(ops: &[Op], held: &[u32], limits: &Limits) -> Vec<(Vec<usize>, Vec<u32>)> {
    let memory: Vec<u32> = (0..256).map(|value| value / VIEWS.len() as u32).collect();
    let is_held: Vec<bool> = (0..64).map(|memory| held.contains(&memory)).collect();
    let units = units(&Record { ops, memory: &memory, held: &is_held }, limits);
    units
        .into_iter()
        .map(|unit| {
            let wiring = unit.group.unwrap_or_default();
            (unit.ops, wiring.results)
        })
        .collect()
}

#[test]
fn a_chain_is_one_group() {
    let ops: Vec<Op> = (0..32).map(|at| pointwise(&[at, 40], at + 1)).collect();
    let groups = groups_of(&ops, &[32], &Limits::default());
    assert_eq!(groups, [((0..32).collect(), vec![31])]);
}

#[test]
fn a_value_with_readers_on_two_sides_joins_both_where_one_result_is_allowed() {
    // a = f(x); b = g(a); c = h(b, a): a is read twice, and only inside.
    let ops = [pointwise(&[0], 1), pointwise(&[1], 2), pointwise(&[2, 1], 3)];
    let one = Limits { results: 1, ..Limits::default() };
    assert_eq!(groups_of(&ops, &[3], &one), [(vec![0, 1, 2], vec![2])]);
    // If a is held, it can't be in a group that has c as its result.
    assert_eq!(groups_of(&ops, &[1, 3], &one), [(vec![0], vec![0]), (vec![1, 2], vec![1])]);
    assert_eq!(groups_of(&ops, &[1, 3], &Limits::default()), [(vec![0, 1, 2], vec![0, 2])]);
}

#[test]
fn other_devices_shapes_and_operations_are_apart() {
    let mut ops = [pointwise(&[0], 1), pointwise(&[1], 2)];
    ops[1].pointwise = ops[1].pointwise.map(|own| Pointwise { device: 1, ..own });
    assert_eq!(groups_of(&ops, &[2], &Limits::default()).len(), 2);
    ops[1].pointwise = ops[0].pointwise.map(|own| Pointwise { shape: 5, ..own });
    assert_eq!(groups_of(&ops, &[2], &Limits::default()).len(), 2);
    ops[1].pointwise = None;
    assert_eq!(groups_of(&ops, &[2], &Limits::default()).len(), 2);
}

#[test]
fn what_is_overwritten_is_no_result() {
    // x += a; x += b; y = f(x): x is changed in place twice.
    let ops = [pointwise(&[0, 1], 0), pointwise(&[0, 2], 0), pointwise(&[0], 3)];
    let groups = groups_of(&ops, &[0, 1, 2, 3], &Limits::default());
    assert_eq!(groups, [(vec![0, 1, 2], vec![1, 2])]);
}

#[test]
fn nothing_needs_a_dead_group() {
    let ops = [pointwise(&[0], 1), pointwise(&[1], 2)];
    assert_eq!(groups_of(&ops, &[0], &Limits::default()), [(vec![0, 1], vec![])]);
}
