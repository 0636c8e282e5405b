//! The plans of programs that were flushed before, in all pipelines of the process.

use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;

use super::plan::Plan;
use super::program::Program;

/// The most plans. A full cache is emptied.
const CAPACITY: usize = 256;

/// The most operations of a program whose plan is kept.
const MAX_OPERATIONS: usize = 4096;

static PLANS: Mutex<Option<FxHashMap<Program, Arc<Plan>>>> = Mutex::new(None);

/// Returns the plan of a program, which is compared in full with those that are known, and whether it is
/// new.
pub(super) fn plan(program: Program) -> (Arc<Plan>, bool) {
    let lock = || PLANS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = lock().as_ref().and_then(|plans| plans.get(&program)) {
        return (Arc::clone(known), false);
    }
    // Without the lock: a device may compile for a while.
    let plan = Arc::new(Plan::of(&program));
    if program.ops.len() <= MAX_OPERATIONS {
        let mut plans = lock();
        let plans = plans.get_or_insert_default();
        let old = (plans.len() >= CAPACITY).then(|| std::mem::take(plans));
        plans.insert(program, Arc::clone(&plan));
        drop(old);
    }
    (plan, true)
}
