//! Fusion: pointwise operations that a flush computes together, in one pass over memory.
//!
//! Before a flush runs operations one by one, it looks at them as a [`Program`](program): plain data,
//! of which [`grouping::units`](keyfold_expr::fuse::grouping::units) chooses groups. Each group that
//! the backend compiles is a step of the [`Plan`](plan), and so is each other operation. Plans are
//! [cached](cache), by the whole program.
//!
//! Steps that hand on rows, as a group does to a sum of each row, are joined to [tiles], and so are groups
//! and the reductions of everything that they end in. Steps that don't depend on each other are
//! [scheduled](schedule) to run concurrently, where threads would be idle.
//!
//! An operation takes part if it evaluates an expression, by the backend's own kernel: a user's kernel
//! for the operator is called as ever. If a group can't be computed, as for an element at fault, its
//! members run one by one, so that errors are those of the operations.

mod cache;
mod group;
mod outline;
mod parts;
mod plan;
mod program;
mod schedule;
mod tiled;
mod tiles;

use std::sync::Arc;

use keyfold_backend::GpuBackend;

use super::operation::Operation;
use super::waiting::Held;
pub(super) use group::{Group, GroupArgs};
use outline::Outline;
pub(super) use plan::{Plan, Step};
use program::Program;
pub(super) use schedule::{Concurrent, Moves, is_movable};
pub(super) use tiled::{CallArgs, Tiled};

/// The payload of a backend's own kernels. A pipeline may compute the expression that such a kernel
/// evaluates together with others.
#[derive(Debug)]
pub struct BackendKernel(pub Arc<dyn GpuBackend>);

/// Returns whether a call reaches a backend's own kernel.
pub(super) fn is_own(operation: &Operation) -> bool {
    program::backend_of(operation).is_some()
}

/// Returns whether some operations may be computed together: a quick look.
fn may_have_groups(operations: &[Arc<Operation>]) -> bool {
    let may_join = |one: &&Arc<Operation>| {
        one.evaluates.is_some() || one.rows() > 0 || one.reduces().is_some()
    };
    operations.iter().filter(may_join).count() >= 2 || schedule::may_be_concurrent(operations)
}

/// Returns the steps of copies of operations, which another thread may run meanwhile. A pending tensor's memory has
/// another identity once it is filled, so an outline of them may not be that of the program, and none is kept.
pub(super) fn plan_of_copies(operations: &[Arc<Operation>], held: &Held) -> Option<Arc<Plan>> {
    let plan = may_have_groups(operations).then(|| cache::plan(Program::of(operations, held)).0);
    plan.filter(|plan| plan.has_groups())
}

/// Returns the steps that compute operations; `None` if all run one by one. The flag tells whether the program was
/// planned anew.
pub(super) fn plan(operations: &[Arc<Operation>], held: &Held) -> Option<(Arc<Plan>, bool)> {
    if !may_have_groups(operations) {
        return None;
    }
    let outline = Outline::of(operations, held);
    let found = outline.as_ref().and_then(Outline::find);
    let (plan, is_new) = match found {
        Some(plan) => (plan, false),
        None => {
            let (plan, is_new) = cache::plan(Program::of(operations, held));
            if let Some(outline) = outline {
                outline.keep(operations, &plan);
            }
            (plan, is_new)
        }
    };
    plan.has_groups().then_some((plan, is_new))
}
