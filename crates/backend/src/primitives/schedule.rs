//! Scheduling of the graph: primitives in order, with their temporaries.
//!
//! A temporary is reused after the last read of its value, also by the step that reads it. Steps
//! that depend only on numbers run once, not per element.

use std::collections::HashMap;

use keyfold_core::{DType, Result};
use keyfold_expr::Lowered;
use smallvec::SmallVec;

use super::graph::{CallNumber, ComplexPart, Graph, Node, NodeEntry, NodeId, Spread};
use super::lower::{StepValue, lower};
use super::{Primitive, Used};

/// The location of an operand's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperandSource {
    /// In a temporary.
    Slot(usize),
    /// In an input.
    Input { input: u32, part: ComplexPart },
    /// A ranked input's memory as a row.
    Table { input: u32, part: ComplexPart },
    /// A constant of the expression.
    Constant(usize),
    /// A number of the call.
    Number(usize),
}

/// The target of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Slot(usize),
    /// The output, or a part of it.
    Output(ComplexPart),
}

/// One launch of a primitive.
#[derive(Clone, Debug)]
pub(super) struct LaunchStep {
    pub(super) used: Used,
    /// One per input of `used`, of its dtypes.
    pub(super) operands: SmallVec<[OperandSource; 3]>,
    pub(super) target: Target,
    /// The dimensions along which the elements differ, which determine the shape.
    pub(super) spread: Spread,
    pub(super) fault: u32,
}

/// A temporary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Temporary {
    /// The size of an element in bytes.
    pub(super) size: usize,
    pub(super) spread: Spread,
}

/// An expression as launches of primitives.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) steps: Vec<LaunchStep>,
    pub(super) slots: Vec<Temporary>,
    /// The bits of the expression's constants.
    pub(super) constants: Vec<u64>,
    /// The numbers of a call and the dtypes in which they are read.
    pub(super) numbers: Vec<(CallNumber, DType)>,
}

impl Program {
    /// Returns the program of an expression, with functions of complex64 in float64 if `wide`.
    ///
    /// # Errors
    /// [`ErrorKind::DType`](keyfold_core::ErrorKind) for a step without a formula.
    pub(super) fn new(lowered: &Lowered, wide: bool) -> Result<Program> {
        let graph = Graph::default();
        let result = lower(&graph, lowered, wide)?;
        let roots = stored_values(result);
        let entries = graph.into_entries();
        Ok(Scheduler::new(&entries, &roots).run(&roots))
    }
}

/// Returns the values to be stored, with their parts of the output.
///
/// A complex output's imaginary part comes last and as a copy of a temporary, since writing the
/// real part may overwrite an input that is the output.
fn stored_values(result: StepValue<'_>) -> SmallVec<[(NodeId, ComplexPart); 2]> {
    match result {
        StepValue::Real(value) => [(value.id, ComplexPart::Whole)].into_iter().collect(),
        StepValue::Complex(value) => {
            let re = value.re.copied_as(value.re.dtype);
            // Not an input's imaginary part itself, which the first copy may have overwritten.
            let im = value.im.copied_as(value.im.dtype);
            [(re.id, ComplexPart::Real), (im.copied_as(im.dtype).id, ComplexPart::Imaginary)]
                .into_iter()
                .collect()
        }
    }
}

struct Scheduler<'e> {
    entries: &'e [NodeEntry],
    /// For each node, the number of steps that haven't read it yet.
    readers: Vec<u32>,
    /// For each node with a temporary, its index.
    slots_of: HashMap<NodeId, usize>,
    free: Vec<usize>,
    program: Program,
    known: HashMap<u64, usize>,
}

impl<'e> Scheduler<'e> {
    fn new(entries: &'e [NodeEntry], roots: &[(NodeId, ComplexPart)]) -> Self {
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

    fn run(mut self, roots: &[(NodeId, ComplexPart)]) -> Program {
        for (at, entry) in self.entries.iter().enumerate() {
            let id = NodeId(at as u32);
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

    /// Returns whether a result's node can be written to the output directly: nothing else reads
    /// it, and it is computed for every element of the output.
    fn writes_output(&self, id: NodeId) -> bool {
        let entry = &self.entries[id.index()];
        let is_iota = matches!(entry.node, Node::Apply { primitive: Primitive::Iota, .. });
        self.readers[id.index()] == 1 && (!is_iota || entry.spread == Spread::Full)
    }

    /// Adds the step of a node, if it has one, into a temporary.
    fn step(&mut self, id: NodeId, entry: &NodeEntry) {
        let Some(mut step) = self.computation(entry) else { return };
        let wanted = Temporary { size: entry.dtype.size(), spread: entry.spread };
        // A table isn't read at the positions that are written.
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

    /// Adds the step that stores a part of the result.
    fn store(&mut self, root: NodeId, part: ComplexPart) {
        let entry = &self.entries[root.index()];
        // A value that other steps read is copied from its temporary, a leaf from its source.
        let step = match self.slots_of.contains_key(&root) {
            true => None,
            false => self.computation(entry),
        };
        let mut step = step.unwrap_or_else(|| LaunchStep {
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

    /// Returns the launch of a node; `None` for a leaf.
    fn computation(&mut self, entry: &NodeEntry) -> Option<LaunchStep> {
        let (primitive, operands, fault) = match &entry.node {
            Node::Apply { primitive, operands, fault } => {
                let operands: SmallVec<[_; 3]> = operands
                    .iter()
                    .map(|id| (self.source(*id), self.entries[id.index()].dtype))
                    .collect();
                (*primitive, operands, *fault)
            }
            Node::Gather { input, part, index } => {
                let table = (OperandSource::Table { input: *input, part: *part }, entry.dtype);
                let index = (self.source(*index), DType::I64);
                (Primitive::Gather, [table, index].into_iter().collect(), 0)
            }
            _ => return None,
        };
        let inputs = operands.iter().map(|(_, dtype)| *dtype).collect();
        Some(LaunchStep {
            used: Used { primitive, inputs, output: entry.dtype },
            operands: operands.iter().map(|(source, _)| *source).collect(),
            target: Target::Output(ComplexPart::Whole),
            spread: entry.spread,
            fault,
        })
    }

    /// Frees the temporaries that a node read for the last time.
    fn release(&mut self, entry: &NodeEntry) {
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

    fn source(&mut self, id: NodeId) -> OperandSource {
        let id = memory(self.entries, id);
        let entry = &self.entries[id.index()];
        match &entry.node {
            Node::Input { input, part } => OperandSource::Input { input: *input, part: *part },
            Node::Constant(bits) => {
                let next = self.program.constants.len();
                let at = *self.known.entry(*bits).or_insert(next);
                if at == next {
                    self.program.constants.push(*bits);
                }
                OperandSource::Constant(at)
            }
            Node::Number(number) => {
                let number = (*number, entry.dtype);
                let found = self.program.numbers.iter().position(|known| *known == number);
                OperandSource::Number(found.unwrap_or_else(|| {
                    self.program.numbers.push(number);
                    self.program.numbers.len() - 1
                }))
            }
            _ => OperandSource::Slot(self.slots_of[&id]),
        }
    }
}

/// Returns the node whose memory a value is in.
fn memory(entries: &[NodeEntry], id: NodeId) -> NodeId {
    match entries[id.index()].node {
        Node::Bits(inner) => inner,
        _ => id,
    }
}

/// Calls `f` with each operand of a computation.
fn operands(node: &Node, mut f: impl FnMut(NodeId)) {
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
    fn temporaries_are_reused() {
        let chain = program(&["exp(x)"; 30].join(" + x + "), &[DType::F32]);
        assert!(slots(&chain, Spread::Full) <= 2, "{:?}", chain.slots);
        let gelu = program("gelu(x)", &[DType::F32]);
        assert!(gelu.steps.len() > 60 && slots(&gelu, Spread::Full) <= 11, "{:?}", gelu.slots);
        // The result needs no temporary.
        assert!(program("x + y", &[DType::F32; 2]).slots.is_empty());
    }

    #[test]
    fn numbers_are_computed_once_and_coordinates_along_their_dimension() {
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
                    if let OperandSource::Slot(slot) = source {
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
