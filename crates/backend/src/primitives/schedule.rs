//! From the graph to steps: which primitives run, in which order, on which temporaries.
//!
//! A temporary is reused as soon as its value was read for the last time, also by the very step that
//! reads it. Steps that depend on numbers only are computed once, not for each element.

use std::collections::HashMap;

use keyfold_core::{DType, Result};
use keyfold_expr::Lowered;
use smallvec::SmallVec;

use super::graph::{Entry, Graph, Id, Node, Number, Part, Spread};
use super::lower::{Lane, lower};
use super::{Primitive, Used};

/// Where the elements of an operand are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// In a temporary.
    Slot(usize),
    /// In an input.
    Input { input: u32, part: Part },
    /// In a ranked input, all elements of its memory in one row.
    Table { input: u32, part: Part },
    /// One of the numbers of the expression.
    Constant(usize),
    /// One of the numbers of the call.
    Number(usize),
}

/// Where a step writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Slot(usize),
    /// The output, or a part of it.
    Output(Part),
}

/// One launch.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) used: Used,
    /// As many as `used` has inputs, of those dtypes.
    pub(super) operands: SmallVec<[Source; 3]>,
    pub(super) target: Target,
    /// Along which dimensions the elements differ: the shape follows from it.
    pub(super) spread: Spread,
    pub(super) fault: u32,
}

/// A temporary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// The bytes of an element.
    pub(super) size: usize,
    pub(super) spread: Spread,
}

/// An expression as launches of primitives.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) steps: Vec<Step>,
    pub(super) slots: Vec<Slot>,
    /// The bits of the expression's numbers.
    pub(super) constants: Vec<u64>,
    /// The numbers of a call, with the dtypes that they are read as.
    pub(super) numbers: Vec<(Number, DType)>,
}

impl Program {
    /// The steps of an expression; functions of complex64 in float64 if that is `wide`.
    ///
    /// # Errors
    /// [`ErrorKind::DType`](keyfold_core::ErrorKind) for a step that no formula computes.
    pub(super) fn new(lowered: &Lowered, wide: bool) -> Result<Program> {
        let graph = Graph::default();
        let result = lower(&graph, lowered, wide)?;
        let roots = roots(result);
        let entries = graph.into_entries();
        Ok(Scheduler::new(&entries, &roots).run(&roots))
    }
}

/// The values to be stored, with the parts of the output that they are stored in.
///
/// A complex output's imaginary part comes last and as a copy of a temporary: an input that is the output
/// has been read by then.
fn roots(result: Lane<'_>) -> SmallVec<[(Id, Part); 2]> {
    match result {
        Lane::Real(value) => [(value.id, Part::Whole)].into_iter().collect(),
        Lane::Complex(value) => {
            let re = value.re.copied_as(value.re.dtype);
            // Not the imaginary part of an input itself, which the first copy may have replaced.
            let im = value.im.copied_as(value.im.dtype);
            [(re.id, Part::Real), (im.copied_as(im.dtype).id, Part::Imaginary)]
                .into_iter()
                .collect()
        }
    }
}

struct Scheduler<'e> {
    entries: &'e [Entry],
    /// Of each node, how many steps still read it.
    readers: Vec<u32>,
    /// Of each node with a temporary, which.
    slots_of: HashMap<Id, usize>,
    free: Vec<usize>,
    program: Program,
    known: HashMap<u64, usize>,
}

impl<'e> Scheduler<'e> {
    fn new(entries: &'e [Entry], roots: &[(Id, Part)]) -> Self {
        let mut readers = vec![0; entries.len()];
        for (root, _) in roots {
            readers[memory(entries, *root).index()] += 1;
        }
        for at in (0..entries.len()).rev() {
            if readers[at] > 0 {
                operands(&entries[at].node, |id| readers[memory(entries, id).index()] += 1);
            }
        }
        let program = Program {
            steps: Vec::new(),
            slots: Vec::new(),
            constants: Vec::new(),
            numbers: Vec::new(),
        };
        let (slots_of, known) = (HashMap::new(), HashMap::new());
        Scheduler { entries, readers, slots_of, free: Vec::new(), program, known }
    }

    fn run(mut self, roots: &[(Id, Part)]) -> Program {
        for (at, entry) in self.entries.iter().enumerate() {
            let id = Id(at as u32);
            let is_stored = roots.iter().any(|(root, _)| *root == id) && self.writes_output(id);
            if self.readers[at] > 0 && !is_stored {
                self.step(id, entry);
            }
        }
        for (root, part) in roots {
            self.store(*root, *part);
        }
        self.program
    }

    /// Whether the node of a result needs no temporary: nothing else reads it, and computed for every
    /// element of the output it is the same, which places along one dimension aren't.
    fn writes_output(&self, id: Id) -> bool {
        let entry = &self.entries[id.index()];
        let is_iota = matches!(entry.node, Node::Apply { primitive: Primitive::Iota, .. });
        self.readers[id.index()] == 1 && (!is_iota || entry.spread == Spread::Full)
    }

    /// The step of a node, if it has one, to a temporary.
    fn step(&mut self, id: Id, entry: &Entry) {
        let Some(mut step) = self.computation(entry) else { return };
        let wanted = Slot { size: entry.dtype.size(), spread: entry.spread };
        // A table is read at other places than are written.
        let in_place = step.used.primitive != Primitive::Gather;
        if in_place {
            self.release(entry);
        }
        let found = self.free.iter().rposition(|slot| self.program.slots[*slot] == wanted);
        let slot = match found {
            Some(at) => self.free.swap_remove(at),
            None => {
                self.program.slots.push(wanted);
                self.program.slots.len() - 1
            }
        };
        if !in_place {
            self.release(entry);
        }
        step.target = Target::Slot(slot);
        self.slots_of.insert(id, slot);
        self.program.steps.push(step);
    }

    /// The last step of a part of the result.
    fn store(&mut self, root: Id, part: Part) {
        let entry = &self.entries[root.index()];
        // A value that other steps read is copied from its temporary, a leaf from where it is.
        let step = match self.slots_of.contains_key(&root) {
            true => None,
            false => self.computation(entry),
        };
        let mut step = step.unwrap_or_else(|| Step {
            used: Used {
                primitive: Primitive::Cast,
                inputs: [entry.dtype].into_iter().collect(),
                output: entry.dtype,
            },
            operands: [self.source(root)].into_iter().collect(),
            target: Target::Output(part),
            spread: Spread::Full,
            fault: 0,
        });
        step.target = Target::Output(part);
        step.spread = Spread::Full;
        self.program.steps.push(step);
    }

    /// The launch of a node; nothing for a leaf.
    fn computation(&mut self, entry: &Entry) -> Option<Step> {
        let (primitive, operands, fault) = match &entry.node {
            Node::Apply { primitive, operands, fault } => {
                let operands: SmallVec<[_; 3]> = operands
                    .iter()
                    .map(|id| (self.source(*id), self.entries[id.index()].dtype))
                    .collect();
                (*primitive, operands, *fault)
            }
            Node::Gather { input, part, index } => {
                let table = (Source::Table { input: *input, part: *part }, entry.dtype);
                let index = (self.source(*index), DType::I64);
                (Primitive::Gather, [table, index].into_iter().collect(), 0)
            }
            _ => return None,
        };
        let inputs = operands.iter().map(|(_, dtype)| *dtype).collect();
        Some(Step {
            used: Used { primitive, inputs, output: entry.dtype },
            operands: operands.iter().map(|(source, _)| *source).collect(),
            target: Target::Output(Part::Whole),
            spread: entry.spread,
            fault,
        })
    }

    /// Frees the temporaries that a node read for the last time.
    fn release(&mut self, entry: &Entry) {
        let entries = self.entries;
        operands(&entry.node, |id| {
            let id = memory(entries, id);
            self.readers[id.index()] -= 1;
            if self.readers[id.index()] == 0
                && let Some(slot) = self.slots_of.get(&id)
            {
                self.free.push(*slot);
            }
        });
    }

    fn source(&mut self, id: Id) -> Source {
        let id = memory(self.entries, id);
        let entry = &self.entries[id.index()];
        match &entry.node {
            Node::Input { input, part } => Source::Input { input: *input, part: *part },
            Node::Constant(bits) => {
                let next = self.program.constants.len();
                let at = *self.known.entry(*bits).or_insert(next);
                if at == next {
                    self.program.constants.push(*bits);
                }
                Source::Constant(at)
            }
            Node::Number(number) => {
                let number = (*number, entry.dtype);
                let found = self.program.numbers.iter().position(|known| *known == number);
                Source::Number(found.unwrap_or_else(|| {
                    self.program.numbers.push(number);
                    self.program.numbers.len() - 1
                }))
            }
            _ => Source::Slot(self.slots_of[&id]),
        }
    }
}

/// The node whose memory a value is in.
fn memory(entries: &[Entry], id: Id) -> Id {
    match entries[id.index()].node {
        Node::Bits(inner) => inner,
        _ => id,
    }
}

/// Calls `f` with each operand of a computation.
fn operands(node: &Node, mut f: impl FnMut(Id)) {
    match node {
        Node::Apply { operands, .. } => operands.iter().copied().for_each(f),
        Node::Gather { index, .. } => f(*index),
        Node::Constant(_) | Node::Number(_) | Node::Input { .. } | Node::Bits(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use keyfold_expr::Expr;

    use super::*;

    fn program(text: &str, dtypes: &[DType]) -> Program {
        let lowered = Lowered::new(&Expr::parse(text).unwrap(), dtypes, &[], None).unwrap();
        Program::new(&lowered, false).unwrap()
    }

    fn slots(program: &Program, spread: Spread) -> usize {
        program.slots.iter().filter(|slot| slot.spread == spread).count()
    }

    #[test]
    fn temporaries_are_used_again() {
        let chain = program(&["exp(x)"; 30].join(" + x + "), &[DType::F32]);
        assert!(slots(&chain, Spread::Full) <= 2, "{:?}", chain.slots);
        let gelu = program("gelu(x)", &[DType::F32]);
        assert!(gelu.steps.len() > 60 && slots(&gelu, Spread::Full) <= 11, "{:?}", gelu.slots);
        // The result needs none.
        assert!(program("x + y", &[DType::F32; 2]).slots.is_empty());
    }

    #[test]
    fn numbers_are_computed_once_and_places_along_their_dimension() {
        let program = program("x * sqrt(index(1) * 2.0) + cos(float32(3))", &[DType::F32]);
        let spreads: Vec<Spread> = program.steps.iter().map(|step| step.spread).collect();
        let full = spreads.iter().filter(|spread| **spread == Spread::Full).count();
        assert_eq!(full, 2, "{spreads:?}");
        assert!(spreads.contains(&Spread::Along(1)));
    }

    #[test]
    fn temporaries_are_written_before_they_are_read() {
        for (text, dtype) in [("tanh(x) / (x + 1)", DType::F64), ("x ** x", DType::C64)] {
            let program = program(text, &[dtype]);
            let mut written = vec![None; program.slots.len()];
            for (at, step) in program.steps.iter().enumerate() {
                for (source, dtype) in step.operands.iter().zip(&step.used.inputs) {
                    if let Source::Slot(slot) = source {
                        assert!(written[*slot].is_some_and(|by| by < at), "{text}, step {at}");
                        assert_eq!(program.slots[*slot].size, dtype.size());
                    }
                }
                if let Target::Slot(slot) = step.target {
                    written[slot] = Some(at);
                }
            }
            assert!(matches!(program.steps.last().unwrap().target, Target::Output(_)));
        }
    }
}
