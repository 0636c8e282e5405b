//! The order of a graph's tensors that its structure alone decides.
//!
//! Tensors and operations are the two kinds of nodes of a graph whose edges are ports. Each node
//! has a colour, a digest of what is known about it: at first its own attributes. A sweep mixes the
//! colours of neighbours into each colour, along the operations in the direction of the data and
//! back, until no sweep tells more tensors apart. Tensors in the order of their colours are then in
//! an order that is the same for each description of the graph, if all colours differ. If some
//! don't, one tensor of the first class of equal ones is marked, and sweeps go on. Where any of
//! them may be taken for any other (two inputs that are treated the same), it doesn't matter which
//! one is marked. Elsewhere the order is ambiguous. Colours decide the order of a key's parts,
//! never what they say, so a collision can't make keys of different graphs equal.

use std::ops::Range;

use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

use super::KEY_FORMAT;
use super::write::Writer;
use crate::{GraphSpec, Port, Uid};

/// The most visits of edges that are spent on ties.
const MOST_VISITS: usize = 1 << 20;

/// What is mixed into the colour of a tensor that is marked.
const MARK: u64 = 0x9e37_79b9_7f4a_7c15;

/// Most graphs have at most as many nodes of a kind; larger ones are allocated.
type List<T> = SmallVec<[T; 12]>;

/// A graph as nodes with bytes, and edges.
pub(super) struct Structure {
    /// The number of each tensor, ascending: a tensor's node is its place here. A number that only
    /// operations name is here, too.
    pub(super) uids: List<Uid>,
    /// What tensors and operations say of themselves.
    bytes: Vec<u8>,
    tensors: List<Range<usize>>,
    operations: List<Node>,
    /// The tensors at the ports of all operations.
    edges: List<usize>,
}

/// An operation.
struct Node {
    bytes: Range<usize>,
    /// Its edges, in the order of its ports: first what it reads, then what it writes.
    edges: Range<usize>,
    /// Where its outputs begin in them.
    outputs: usize,
}

fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0xa076_1d64_78bd_642f) * u128::from(b ^ 0xe703_7ed1_a0b4_28db);
    (product >> 64) as u64 ^ product as u64
}

/// Returns tensors in the order of their ports; those of one port stay in theirs.
fn sorted(list: &[(Port, Uid)]) -> SmallVec<[(Port, Uid); 8]> {
    let mut ports: SmallVec<[(Port, Uid); 8]> = SmallVec::from_slice(list);
    ports.sort_by_key(|entry| entry.0);
    ports
}

impl Structure {
    pub(super) fn of(graph: &GraphSpec) -> Structure {
        let GraphSpec { name: _, defaults: _, tensors: specs, operations: op_specs } = graph;
        // Each number with the place of its tensor, which is the last place of all where it has
        // none.
        let mut named: List<(Uid, usize)> =
            specs.iter().enumerate().map(|(place, spec)| (spec.uid, place)).collect();
        for op in op_specs {
            named.extend(op.inputs.iter().chain(&op.outputs).map(|port| (port.1, specs.len())));
        }
        named.sort_unstable();

        let mut writer = Writer(Vec::with_capacity(96 * specs.len() + 128 * op_specs.len()));
        let (mut uids, mut tensors) = (List::new(), List::new());
        for group in named.chunk_by(|a, b| a.0 == b.0) {
            let begin = writer.0.len();
            // Several tensors of one number are a mistake, and say so in the key.
            let of_group = group.iter().filter_map(|entry| specs.get(entry.1));
            writer.count(of_group.clone().count());
            of_group.for_each(|spec| writer.tensor(spec));
            uids.push(group[0].0);
            tensors.push(begin..writer.0.len());
        }

        let (mut operations, mut edges) = (List::new(), List::new());
        for op in op_specs {
            let (inputs, outputs) = (sorted(&op.inputs), sorted(&op.outputs));
            let begin = (writer.0.len(), edges.len());
            let ports =
                |list: &[(Port, Uid)]| list.iter().map(|entry| entry.0).collect::<List<_>>();
            writer.operation(op, ports(&inputs).into_iter(), ports(&outputs).into_iter());
            edges.extend(inputs.iter().chain(&outputs).map(|entry| {
                uids.binary_search(&entry.1).expect("all numbers were collected above")
            }));
            operations.push(Node {
                bytes: begin.0..writer.0.len(),
                edges: begin.1..edges.len(),
                outputs: begin.1 + inputs.len(),
            });
        }
        Structure { uids, bytes: writer.0, tensors, operations, edges }
    }

    fn edges(&self, op: usize) -> &[usize] {
        &self.edges[self.operations[op].edges.clone()]
    }

    /// Returns the tensors' nodes in canonical order.
    pub(super) fn order(&self) -> Vec<usize> {
        let mut colours: List<u64> =
            self.tensors.iter().map(|range| xxh3_64(&self.bytes[range.clone()])).collect();
        // Those that no operation names come last, and are exchanged freely where they are alike.
        let mut named = self.edges.clone();
        named.sort_unstable();
        named.dedup();
        let mut order: List<usize> = named.clone();
        let mut classes = sort(&mut order, &colours);
        if classes < named.len() {
            let sweeps = Sweeps::of(self);
            let mut op_colours: List<u64> =
                self.operations.iter().map(|op| xxh3_64(&self.bytes[op.bytes.clone()])).collect();
            let mut visits = 0;
            while classes < named.len() && visits < MOST_VISITS {
                sweeps.sweep(self, &mut colours, &mut op_colours);
                visits += 2 * self.edges.len();
                let now = sort(&mut order, &colours);
                if now <= classes {
                    let tie = order.windows(2).find(|pair| colours[pair[0]] == colours[pair[1]]);
                    let Some(&[first, _]) = tie else { break };
                    colours[first] = mix(colours[first], MARK);
                }
                classes = now.max(classes);
            }
        }
        let is_named = |node: &usize| named.binary_search(node).is_ok();
        let mut others: List<usize> = (0..self.uids.len()).filter(|node| !is_named(node)).collect();
        sort(&mut others, &colours);
        order.into_iter().chain(others).collect()
    }

    /// Returns the key's bytes, with the tensors in an order.
    pub(super) fn write(&self, order: &[usize]) -> Vec<u8> {
        let mut writer = Writer(Vec::with_capacity(self.bytes.len() + 4 * self.edges.len() + 12));
        writer.word(KEY_FORMAT);
        writer.count(order.len());
        let mut places: List<u32> = SmallVec::from_elem(0, order.len());
        for (place, &node) in order.iter().enumerate() {
            places[node] = place as u32;
            writer.0.extend_from_slice(&self.bytes[self.tensors[node].clone()]);
        }
        writer.count(self.operations.len());
        let at: List<u32> = self.edges.iter().map(|&node| places[node]).collect();
        let mut ops: List<&Node> = self.operations.iter().collect();
        // Operations with equal bytes and tensors are equal: no order is ambiguous here.
        ops.sort_by_key(|op| (&self.bytes[op.bytes.clone()], &at[op.edges.clone()]));
        for op in ops {
            writer.0.extend_from_slice(&self.bytes[op.bytes.clone()]);
            at[op.edges.clone()].iter().for_each(|&place| writer.word(place));
        }
        writer.0
    }
}

/// Sorts nodes by colour, then number, and returns how many colours there are.
fn sort(nodes: &mut [usize], colours: &[u64]) -> usize {
    nodes.sort_unstable_by_key(|&node| (colours[node], node));
    nodes.chunk_by(|&a, &b| colours[a] == colours[b]).count()
}

/// The order in which a sweep visits operations.
struct Sweeps {
    /// Operations in levels: each is behind all that write what it reads. Those on cycles, and
    /// behind them, are the last level. Within a level, none sees another's new colour.
    ops: List<usize>,
    levels: List<Range<usize>>,
}

impl Sweeps {
    fn of(graph: &Structure) -> Sweeps {
        // For each tensor, who reads it, and how many writers are still to come.
        let mut reads: List<(usize, usize)> = List::new();
        let mut writers: List<usize> = SmallVec::from_elem(0, graph.uids.len());
        let mut waits: List<usize> = SmallVec::from_elem(0, graph.operations.len());
        for (index, op) in graph.operations.iter().enumerate() {
            reads.extend(graph.edges[op.edges.start..op.outputs].iter().map(|&node| (node, index)));
            for &node in &graph.edges[op.outputs..op.edges.end] {
                writers[node] += 1;
            }
        }
        reads.sort_unstable();
        for &(node, op) in &reads {
            waits[op] += usize::from(writers[node] > 0);
        }
        let mut ops: List<usize> =
            (0..graph.operations.len()).filter(|&op| waits[op] == 0).collect();
        let mut levels: List<Range<usize>> = List::new();
        let mut begin = 0;
        while begin < ops.len() {
            let level = begin..ops.len();
            for place in level.clone() {
                let op = &graph.operations[ops[place]];
                for &node in &graph.edges[op.outputs..op.edges.end] {
                    writers[node] -= 1;
                    if writers[node] > 0 {
                        continue;
                    }
                    let first = reads.partition_point(|read| read.0 < node);
                    for &(_, reader) in reads[first..].iter().take_while(|read| read.0 == node) {
                        waits[reader] -= 1;
                        if waits[reader] == 0 {
                            ops.push(reader);
                        }
                    }
                }
            }
            begin = level.end;
            levels.push(level);
        }
        ops.extend((0..graph.operations.len()).filter(|&op| waits[op] > 0));
        levels.push(begin..ops.len());
        Sweeps { ops, levels }
    }

    fn sweep(&self, graph: &Structure, colours: &mut [u64], op_colours: &mut [u64]) {
        let mut sums: List<u64> = SmallVec::from_elem(0, colours.len());
        for level in self.levels.iter().chain(self.levels.iter().rev()) {
            let ops = &self.ops[level.clone()];
            for &op in ops {
                let seen = graph.edges(op).iter().map(|&node| colours[node]);
                op_colours[op] = seen.fold(op_colours[op], mix);
            }
            // A sum, since the operations at a tensor have no order.
            for &op in ops {
                for (place, &node) in graph.edges(op).iter().enumerate() {
                    sums[node] = sums[node].wrapping_add(mix(op_colours[op], place as u64));
                }
            }
            for &op in ops {
                for &node in graph.edges(op) {
                    let sum = std::mem::take(&mut sums[node]);
                    if sum != 0 {
                        colours[node] = mix(colours[node], sum);
                    }
                }
            }
        }
    }
}
