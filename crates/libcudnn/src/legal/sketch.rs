//! A graph that is being rewritten.

use std::collections::HashMap;
use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_cudnn::{
    DataType, GraphSpec, Layout, Number, OpSpec, Operation, Pointwise, PointwiseMode, Port,
    Reduction, ReductionMode, TensorSpec, Uid, ValidGraph,
};

use super::split::{self, Cut};
use super::{Alias, Part, Program, view};

/// The tensors that the legaliser adds have numbers from here on, behind every graph's and before lowering's.
const ADDED: Uid = 1 << 32;

/// Where a tensor lies: so many elements behind the first of another one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) of: Uid,
    pub(super) offset: i64,
}

#[derive(Clone, Debug)]
pub(super) struct Sketch {
    pub(super) name: String,
    pub(super) tensors: HashMap<Uid, TensorSpec>,
    pub(super) operations: Vec<OpSpec>,
    /// The tensors that lie in another one's memory.
    pub(super) places: HashMap<Uid, Place>,
    /// The tensors with memory that the caller has.
    given: Vec<Uid>,
    next: Uid,
    pub(super) steps: Vec<String>,
}

impl Sketch {
    pub(super) fn new(graph: &ValidGraph) -> Sketch {
        let spec = graph.spec();
        let tensors = spec.tensors.iter().map(|tensor| (tensor.uid, tensor.clone())).collect();
        let given =
            spec.tensors.iter().filter(|tensor| !tensor.is_virtual).map(|tensor| tensor.uid);
        Sketch {
            name: spec.name.clone(),
            tensors,
            operations: graph.operations().cloned().collect(),
            places: HashMap::new(),
            given: given.collect(),
            next: ADDED,
            steps: Vec::new(),
        }
    }

    pub(super) fn note(&mut self, step: impl Into<String>) {
        let step = step.into();
        if !self.steps.contains(&step) {
            self.steps.push(step);
        }
    }

    pub(super) fn tensor(&self, uid: Uid) -> &TensorSpec {
        &self.tensors[&uid]
    }

    pub(super) fn dims(&self, uid: Uid) -> &[i64] {
        &self.tensors[&uid].dims
    }

    /// Returns whether a tensor has memory: the caller's, or a place in it.
    pub(super) fn has_memory(&self, uid: Uid) -> bool {
        !self.tensor(uid).is_virtual
    }

    /// Adds a tensor under a number of its own.
    pub(super) fn add(&mut self, mut tensor: TensorSpec) -> Uid {
        let uid = self.next;
        self.next += 1;
        tensor.uid = uid;
        self.tensors.insert(uid, tensor);
        uid
    }

    /// Adds a packed tensor without memory.
    pub(super) fn passing(&mut self, dtype: DataType, dims: &[i64]) -> Result<Uid> {
        let tensor = TensorSpec::new(1, dtype, dims, Layout::Packed)?.virtualized();
        Ok(self.add(tensor))
    }

    /// Adds a tensor without memory that has the dimensions and the order of strides of another one.
    pub(super) fn passing_like(&mut self, dtype: DataType, uid: Uid) -> Uid {
        let like = self.tensor(uid).clone();
        let name = String::new();
        self.add(TensorSpec {
            dtype: Some(dtype),
            is_virtual: true,
            by_value: false,
            scalar: None,
            name,
            ..like
        })
    }

    /// Adds a number by value of as many dimensions.
    pub(super) fn number(&mut self, rank: usize, value: f64) -> Uid {
        self.add(TensorSpec::number(1, DataType::F32, rank, Number::Float(value)))
    }

    /// Adds a view of a tensor with memory.
    pub(super) fn view(&mut self, of: Uid, dims: Vec<i64>, strides: Vec<i64>, offset: i64) -> Uid {
        let like = self.tensor(of).clone();
        let place = self.place(of);
        let uid = self.add(TensorSpec { dims, strides, name: String::new(), ..like });
        self.places.insert(uid, Place { of: place.of, offset: place.offset + offset });
        uid
    }

    /// Returns the tensor whose memory a tensor lies in, itself where it has its own.
    pub(super) fn place(&self, uid: Uid) -> Place {
        self.places.get(&uid).copied().unwrap_or(Place { of: uid, offset: 0 })
    }

    /// Appends a pointwise operation in float32, which writes `y`.
    pub(super) fn pointwise(&self, mode: PointwiseMode, inputs: &[Uid], y: Uid) -> OpSpec {
        let ports = [Port::X, Port::B, Port::T];
        let inputs: Vec<(Port, Uid)> = ports.into_iter().zip(inputs.iter().copied()).collect();
        OpSpec::new(Operation::Pointwise(Pointwise::new(mode)), &inputs, &[(Port::Y, y)])
    }

    pub(super) fn reduction(&self, mode: ReductionMode, x: Uid, y: Uid) -> OpSpec {
        OpSpec::new(Operation::Reduction(Reduction { mode }), &[(Port::X, x)], &[(Port::Y, y)])
    }

    /// Replaces each operation by those that a function returns for it; `None` keeps it.
    pub(super) fn replace(
        &mut self,
        mut by: impl FnMut(&mut Sketch, &OpSpec) -> Result<Option<Vec<OpSpec>>>,
    ) -> Result<()> {
        let before = std::mem::take(&mut self.operations);
        let mut after = Vec::with_capacity(before.len());
        for op in before {
            // Replacements compute in float32.
            let in_f32 = op.compute.is_none_or(|compute| compute == DataType::F32);
            match if in_f32 { by(self, &op)? } else { None } {
                Some(new) => after.extend(new.into_iter().map(|mut new| {
                    if new.name.is_empty() && !op.name.is_empty() {
                        new.name = format!("{} ({})", op.name, new.operation.name());
                    }
                    new
                })),
                None => after.push(op),
            }
        }
        self.operations = after;
        Ok(())
    }

    /// Returns the programs that cuts make of it, without those that aren't valid graphs.
    pub(super) fn finish(&self, cuts: &[Cut], viewed: bool) -> Vec<Program> {
        let made = cuts.iter().filter_map(|cut| self.program(*cut, viewed).ok().flatten());
        made.collect()
    }

    fn program(&self, cut: Cut, viewed: bool) -> Result<Option<Program>> {
        let groups = split::cut(&self.operations, cut, &|uid| self.place(uid).of);
        // A finer cut that cuts nothing more is the same program.
        if cut != Cut::Whole && groups.len() < 2 {
            return Ok(None);
        }
        let mut sketch = self.clone();
        let passed = sketch.pass_between(&groups);
        let mut parts = Vec::new();
        for operations in &groups {
            match viewed {
                true => parts.extend(view::parts(&mut sketch, operations)?),
                false => parts.push(sketch.part(operations.clone())?),
            }
        }
        if parts.len() > 1 {
            let names: Vec<String> = groups
                .iter()
                .map(|group| group.iter().map(|op| op.label()).collect::<Vec<_>>().join(", "))
                .collect();
            let (count, names) = (parts.len(), names.join(" | "));
            sketch.note(format!("split into {count} plans: {names}"));
        }
        let memory = passed.iter().map(|uid| {
            let tensor = sketch.tensor(*uid);
            let extent: i64 = tensor
                .dims
                .iter()
                .zip(&tensor.strides)
                .map(|(size, stride)| (size - 1) * stride)
                .sum();
            (*uid, tensor.dtype.unwrap_or(DataType::F32), extent as u64 + 1)
        });
        let mut passed: Vec<(Uid, DataType, u64)> = memory.collect();
        passed.sort_by_key(|entry| entry.0);
        Ok(Some(Program { parts, passed, steps: sketch.steps }))
    }

    /// Gives memory to the tensors without it that one part writes and another reads, and returns all of those that
    /// have memory of nobody's.
    fn pass_between(&mut self, groups: &[Vec<OpSpec>]) -> Vec<Uid> {
        let uses = |group: &[OpSpec], uid: Uid| {
            group.iter().any(|op| op.inputs.iter().chain(&op.outputs).any(|port| port.1 == uid))
        };
        let crossing: Vec<Uid> = self
            .tensors
            .values()
            .filter(|tensor| tensor.is_virtual)
            .map(|tensor| tensor.uid)
            .filter(|&uid| groups.iter().filter(|group| uses(group, uid)).count() > 1)
            .collect();
        for uid in crossing {
            if let Some(tensor) = self.tensors.get_mut(&uid) {
                tensor.is_virtual = false;
            }
        }
        let used = groups.iter().flatten().flat_map(|op| op.inputs.iter().chain(&op.outputs));
        let mut passed: Vec<Uid> = Vec::new();
        for (_, uid) in used {
            let root = self.place(*uid).of;
            let own = self.has_memory(root) && self.tensor(root).scalar.is_none();
            if own && !self.given.contains(&root) && !passed.contains(&root) {
                passed.push(root);
            }
        }
        passed
    }

    /// Makes a part of operations whose tensors are as they are.
    pub(super) fn part(&self, operations: Vec<OpSpec>) -> Result<Part> {
        let mut used: Vec<Uid> = Vec::new();
        for (_, uid) in operations.iter().flat_map(|op| op.inputs.iter().chain(&op.outputs)) {
            if !used.contains(uid) {
                used.push(*uid);
            }
        }
        used.sort_unstable();
        let is_shifted = |uid: &&Uid| {
            self.tensor(**uid).dtype == Some(DataType::Bool)
                && self.places.get(uid).is_some_and(|place| place.offset != 0)
        };
        if used.iter().any(|uid| is_shifted(&uid)) {
            let message = "booleans are bits of bytes, which have no address of their own";
            return Err(Error::new(ErrorKind::NotSupported, message));
        }
        let aliases = used.iter().filter_map(|uid| {
            let place = self.places.get(uid)?;
            let size = self.tensor(*uid).dtype.map_or(1, DataType::size) as i64;
            Some(Alias { uid: *uid, of: place.of, offset: (place.offset * size) as u64 })
        });
        let aliases: Vec<Alias> = aliases.collect();
        let mut tensors: Vec<TensorSpec> =
            used.iter().map(|uid| self.tensor(*uid).clone()).collect();
        for tensor in &mut tensors {
            let alias = aliases.iter().find(|alias| alias.uid == tensor.uid);
            if let Some(alias) = alias.filter(|alias| alias.offset > 0) {
                // An address in the middle is aligned as far as its distance is.
                tensor.alignment = tensor.alignment.min(1 << alias.offset.trailing_zeros());
            }
        }
        let graph =
            GraphSpec { name: self.name.clone(), tensors, operations, ..GraphSpec::default() };
        Ok(Part { graph: Arc::new(graph.validate()?), aliases })
    }
}
