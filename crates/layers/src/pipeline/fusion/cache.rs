//! The plans of programs that were flushed before, in all pipelines of the process.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use rustc_hash::FxHashMap;

use super::plan::Plan;
use super::program::Program;

/// The most plans. A full cache is emptied.
const CAPACITY: usize = 256;

/// The most operations of a program whose plan is kept.
const MAX_OPERATIONS: usize = 4096;

/// How often the lock is tried; it is held for a look-up or an insertion.
const TRIES: usize = 10_000;

type Plans = FxHashMap<Program, Arc<Plan>>;

static PLANS: Mutex<Option<Plans>> = Mutex::new(None);

/// Returns the lock; `None` where the thread that has it doesn't exist, as in a child of fork. Programs
/// are planned anew then.
fn lock() -> Option<MutexGuard<'static, Option<Plans>>> {
    for _ in 0..TRIES {
        match PLANS.try_lock() {
            Ok(plans) => return Some(plans),
            Err(TryLockError::Poisoned(plans)) => return Some(plans.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

fn known(program: &Program) -> Option<Arc<Plan>> {
    lock()?.as_ref()?.get(program).cloned()
}

/// Returns the plan of a program, which is compared in full with those that are known, and whether it is
/// new.
pub(super) fn plan(program: Program) -> (Arc<Plan>, bool) {
    if let Some(known) = known(&program) {
        return (known, false);
    }
    // Without the lock: a device may compile for a while.
    let plan = Arc::new(Plan::of(&program));
    if program.ops.len() <= MAX_OPERATIONS {
        // Dropped without the lock, since a kernel's destructor may run any code.
        drop(insert(program, Arc::clone(&plan)));
    }
    (plan, true)
}

/// Adds a plan; returns those that were dropped for it.
fn insert(program: Program, plan: Arc<Plan>) -> Option<Plans> {
    let mut plans = lock()?;
    let plans = plans.get_or_insert_default();
    let old = (plans.len() >= CAPACITY).then(|| std::mem::take(plans));
    plans.insert(program, plan);
    old
}
