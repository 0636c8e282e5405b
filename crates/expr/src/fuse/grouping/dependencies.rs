//! Which operation has to wait for which.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{Read, Record};

/// An earlier operation that an operation has to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Dependency {
    pub(super) op: usize,
    /// Whether both can be members of one group: all that the later one needs of the earlier one is an
    /// element of its result, or that an element is read before it is overwritten.
    pub(super) by_element: bool,
}

/// The dependencies of a record.
pub(super) struct Dependencies {
    /// For each operation.
    pub(super) of: Vec<SmallVec<[Dependency; 4]>>,
    /// For each operation and operand, the operation that wrote exactly this value last, if nothing
    /// else wrote to its memory since.
    pub(super) producers: Vec<SmallVec<[Option<usize>; 3]>>,
    /// For each operation, those that read what it wrote.
    pub(super) readers: Vec<Vec<usize>>,
    /// For each operation, whether the first value that it writes is overwritten as a whole later.
    pub(super) overwritten: Vec<bool>,
    /// For each operation, whether it reads elements that it overwrites at another place.
    pub(super) rearranges: Vec<bool>,
}

/// The accesses to a memory that later operations have to respect.
#[derive(Default)]
struct Accesses {
    /// Writes whose elements may still be there, in order.
    writes: SmallVec<[(usize, u32); 2]>,
    /// Reads since the last write.
    reads: Vec<(usize, Read)>,
}

impl Dependencies {
    pub(super) fn new(record: &Record<'_>) -> Dependencies {
        let count = record.ops.len();
        let mut all = Dependencies {
            of: Vec::with_capacity(count),
            producers: Vec::with_capacity(count),
            readers: vec![Vec::new(); count],
            overwritten: vec![false; count],
            rearranges: vec![false; count],
        };
        let mut accesses: FxHashMap<u32, Accesses> = FxHashMap::default();
        for (at, op) in record.ops.iter().enumerate() {
            let mut of = SmallVec::new();
            let mut producers = SmallVec::new();
            for read in &op.reads {
                let memory = accesses.entry(record.memory[read.value as usize]).or_default();
                let last = memory.writes.last().filter(|(_, value)| *value == read.value);
                let producer = last.map(|(writer, _)| *writer);
                producers.push(producer);
                for (writer, _) in &memory.writes {
                    let by_element = producer == Some(*writer) && !read.ranked;
                    add(&mut of, *writer, by_element);
                    if all.readers[*writer].last() != Some(&at) {
                        all.readers[*writer].push(at);
                    }
                }
            }
            // Reads are added after all operands, so that an operation doesn't wait for itself.
            for read in &op.reads {
                let memory = accesses.entry(record.memory[read.value as usize]).or_default();
                memory.reads.push((at, *read));
            }
            for value in &op.writes {
                all.rearranges[at] |= op.reads.iter().any(|read| {
                    record.memory[read.value as usize] == record.memory[*value as usize]
                        && (read.value != *value || read.ranked)
                });
                let memory = accesses.entry(record.memory[*value as usize]).or_default();
                for (reader, read) in memory.reads.drain(..).filter(|(reader, _)| *reader != at) {
                    add(&mut of, reader, read.value == *value && !read.ranked);
                }
                if let Some((writer, written)) = memory.writes.last()
                    && *writer != at
                {
                    add(&mut of, *writer, written == value);
                }
                memory.writes.retain(|(writer, written)| {
                    let whole = written == value;
                    all.overwritten[*writer] |= whole && *writer != at;
                    !whole
                });
                memory.writes.push((at, *value));
            }
            all.of.push(of);
            all.producers.push(producers);
        }
        all
    }
}

/// Adds a dependency, or restricts the one on the same operation.
fn add(to: &mut SmallVec<[Dependency; 4]>, op: usize, by_element: bool) {
    match to.iter_mut().find(|known| known.op == op) {
        Some(known) => known.by_element &= by_element,
        None => to.push(Dependency { op, by_element }),
    }
}
