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

/// What an operation is to a cut.
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

    fn takes(&self, op: &OpSpec, cut: Cut) -> bool {
        if self.operations.is_empty() || cut == Cut::Whole {
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
pub(super) fn cut(operations: &[OpSpec], cut: Cut) -> Vec<Vec<OpSpec>> {
    let mut groups: Vec<Group> = Vec::new();
    for op in operations {
        match groups.last_mut().filter(|group| group.takes(op, cut)) {
            Some(group) => group.operations.push(op.clone()),
            None => groups.push(Group { operations: vec![op.clone()] }),
        }
    }
    groups.into_iter().map(|group| group.operations).collect()
}
