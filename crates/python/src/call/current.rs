//! The dispatcher in which names are looked up: that of the innermost running Python kernel.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};

use keyfold_dispatch::{Dispatcher, Operator};
use keyfold_tensor::Value;

/// Whether an isolated dispatcher was ever made: before that, names mean the process's own.
static ISOLATED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The dispatcher of the innermost running Python kernel, if it is an isolated one.
    /// Without a destructor: kernels that run while a thread ends put back what was there before
    /// them, which is none.
    static CURRENT: RefCell<ManuallyDrop<Option<Dispatcher<Value>>>> =
        const { RefCell::new(ManuallyDrop::new(None)) };
}

/// Names mean another dispatcher's operators until this is dropped.
pub(crate) struct DispatcherGuard(Option<Dispatcher<Value>>);

impl Drop for DispatcherGuard {
    fn drop(&mut self) {
        drop(set_current(self.0.take()));
    }
}

/// Whether there may be isolated dispatchers.
#[inline(always)]
pub(crate) fn has_isolated() -> bool {
    ISOLATED.load(Ordering::Relaxed)
}

/// Makes names mean the operators of this operator's dispatcher until the guard is dropped.
pub(crate) fn enter_dispatcher(operator: &Operator<Value>) -> DispatcherGuard {
    let now = if operator.is_isolated() { operator.dispatcher() } else { None };
    DispatcherGuard(set_current(now))
}

/// Makes an isolated dispatcher.
pub(crate) fn new_isolated() -> Dispatcher<Value> {
    ISOLATED.store(true, Ordering::Relaxed);
    Dispatcher::new()
}

fn set_current(now: Option<Dispatcher<Value>>) -> Option<Dispatcher<Value>> {
    CURRENT.with_borrow_mut(|current| std::mem::replace(&mut **current, now))
}

/// The isolated dispatcher whose kernel is running, if there is one.
#[inline]
pub(crate) fn isolated() -> Option<Dispatcher<Value>> {
    match ISOLATED.load(Ordering::Relaxed) {
        true => CURRENT.with_borrow(|current| Option::clone(current)),
        false => None,
    }
}

/// The dispatcher in which a name is looked up.
pub(crate) fn dispatcher_of_names() -> Dispatcher<Value> {
    isolated().unwrap_or_else(|| keyfold::dispatcher().clone())
}
