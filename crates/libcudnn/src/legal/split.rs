//! Cuts: which operations one plan computes.

use keyfold_cudnn::{OpSpec, Operation, Uid};

/// How finely a graph is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// Not at all.
    Whole,
    /// Behind each reduction, and so that no plan has two operations other than pointwise ones. Pointwise operations
    /// stay before a product or a reduction, and behind a product.
    Epilogues,
    /// Operations other than pointwise ones are alone.
    Anchors,
    /// All operations are alone.
    Each,
}

/// The role of an operation in a cut.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Pointwise,
    /// A product, around which engines compute pointwise operations.
    Product,
    /// A reduction, before which they do.
    Reduction,
    Other,
}

fn role(op: &OpSpec) -> Role {
    match op.operation {
        Operation::Pointwise(_) => Role::Pointwise,
        Operation::Matmul => Role::Product,
        Operation::Reduction(_) => Role::Reduction,
        _ => Role::Other,
    }
}

/// A plan's operations while they are gathered.
#[derive(Default)]
struct Group {
    operations: Vec<OpSpec>,
}

impl Group {
    fn has(&self, wanted: Role) -> bool {
        self.operations.iter().any(|op| role(op) == wanted)
    }

    fn writes(&self, uid: Uid) -> bool {
        self.operations.iter().any(|op| op.outputs.iter().any(|output| output.1 == uid))
    }

    /// Returns whether an operation and the group have the same memory under different numbers, and one of them writes
    /// it: engines see no order between them.
    fn collides(&self, op: &OpSpec, root: &dyn Fn(Uid) -> Uid) -> bool {
        let meets = |writes: &OpSpec, reads: &OpSpec| {
            let all = || reads.inputs.iter().chain(&reads.outputs);
            writes.outputs.iter().any(|(_, written)| {
                all().any(|(_, other)| other != written && root(*other) == root(*written))
            })
        };
        // Parts of one result that several operations write are no collision: nobody reads them in the group.
        let only_written = |a: &OpSpec, b: &OpSpec| {
            a.outputs.iter().any(|(_, x)| b.outputs.iter().any(|(_, y)| root(*x) == root(*y)))
                && !b
                    .inputs
                    .iter()
                    .any(|(_, y)| a.outputs.iter().any(|(_, x)| root(*x) == root(*y)))
        };
        self.operations.iter().any(|before| {
            (meets(before, op) && !only_written(before, op))
                || (meets(op, before) && !only_written(op, before))
        })
    }

    fn takes(&self, op: &OpSpec, cut: Cut, root: &dyn Fn(Uid) -> Uid) -> bool {
        if self.operations.is_empty() {
            return true;
        }
        if self.collides(op, root) {
            return false;
        }
        if cut == Cut::Whole {
            return true;
        }
        if cut == Cut::Each || self.has(Role::Reduction) || self.has(Role::Other) {
            return false;
        }
        let reads = op.inputs.iter().any(|input| self.writes(input.1));
        match (role(op), cut) {
            (Role::Other, _) => false,
            (Role::Pointwise, Cut::Epilogues) => reads || !self.has(Role::Product),
            (Role::Pointwise, _) => !self.has(Role::Product),
            (Role::Product | Role::Reduction, Cut::Epilogues) => reads && !self.has(Role::Product),
            (Role::Product | Role::Reduction, _) => false,
        }
    }
}

/// Cuts operations, each of which is behind those whose results it reads.
///
/// `root` is the tensor whose memory a tensor lies in.
pub(super) fn cut(operations: &[OpSpec], cut: Cut, root: &dyn Fn(Uid) -> Uid) -> Vec<Vec<OpSpec>> {
    let mut groups: Vec<Group> = Vec::new();
    for op in operations {
        match groups.last_mut().filter(|group| group.takes(op, cut, root)) {
            Some(group) => group.operations.push(op.clone()),
            None => groups.push(Group { operations: vec![op.clone()] }),
        }
    }
    groups.into_iter().map(|group| group.operations).collect()
}
