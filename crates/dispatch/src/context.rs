//! The call that a kernel serves, as the kernel sees it.

use keyfold_core::Result;

use crate::dispatcher::Dispatcher;
use crate::errors;
use crate::kernel::Kernel;
use crate::key::DispatchKey;
use crate::keyset::DispatchKeySet;
use crate::operator::Operator;
use crate::thread::{self, ThreadState};
use crate::value::Value;

/// The call in progress: its operator, key set and chosen key.
///
/// It borrows the table, so it can't outlive the kernel's run.
pub struct CallContext<'c, V: Value> {
    operator: &'c Operator<V>,
    kernel: &'c Kernel<V>,
    keyset: DispatchKeySet,
    key: DispatchKey,
}

impl<'c, V: Value> CallContext<'c, V> {
    #[inline(always)]
    pub(crate) fn new(
        operator: &'c Operator<V>,
        kernel: &'c Kernel<V>,
        keyset: DispatchKeySet,
        key: DispatchKey,
    ) -> Self {
        CallContext { operator, kernel, keyset, key }
    }

    /// Returns the operator that was called.
    pub fn operator(&self) -> &'c Operator<V> {
        self.operator
    }

    /// Returns the running kernel.
    pub fn kernel(&self) -> &'c Kernel<V> {
        self.kernel
    }

    /// Returns the key set of the call, which includes the chosen key; nothing is masked.
    pub fn keyset(&self) -> DispatchKeySet {
        self.keyset
    }

    /// Returns the chosen key.
    pub fn key(&self) -> DispatchKey {
        self.key
    }

    /// Returns the keys that calls on this thread lose now: those of the running layers, including
    /// this one.
    pub fn excluded(&self) -> DispatchKeySet {
        thread::with(ThreadState::exclude)
    }

    /// Returns the dispatcher of the call, which may be an isolated one.
    ///
    /// # Errors
    /// [`OperatorRemoved`](keyfold_core::ErrorKind::OperatorRemoved) if it was dropped.
    pub fn dispatcher(&self) -> Result<Dispatcher<V>> {
        self.operator.dispatcher().ok_or_else(|| errors::dispatcher_gone(self.operator.name()))
    }

    /// Calls the same operator with this key set, without adding or removing local keys.
    ///
    /// # Errors
    /// The call's errors.
    pub fn redispatch(&self, keyset: DispatchKeySet, args: &[V::Ref<'_>]) -> Result<V> {
        self.operator.redispatch_bound(keyset, args)
    }

    /// Calls the same operator below this kernel's key, as most layers do.
    ///
    /// # Errors
    /// The call's errors.
    pub fn call_below(&self, args: &[V::Ref<'_>]) -> Result<V> {
        self.redispatch(self.keyset.remove(self.key), args)
    }

    /// Calls the kernel that this one shadows.
    ///
    /// # Errors
    /// [`MissingKernel`](keyfold_core::ErrorKind::MissingKernel) if it shadows none.
    pub fn call_shadowed(&self, args: &[V::Ref<'_>]) -> Result<V> {
        let Some(below) = self.operator.shadowed_by(self.kernel) else {
            return Err(errors::nothing_shadowed(self.operator.name(), self.key, self.kernel));
        };
        self.operator.run_kernel(&below, self.keyset, self.key, args)
    }

    /// Returns the calls in progress on this thread, outermost first: operator name and chosen key.
    pub fn path(&self) -> Vec<(String, DispatchKey)> {
        call_path()
    }
}

/// Returns the argument that a kernel returned by its index.
#[cold]
pub(crate) fn argument<V: Value>(
    context: &CallContext<'_, V>,
    args: &[V::Ref<'_>],
    number: usize,
) -> Result<V> {
    match args.get(number) {
        Some(argument) => V::from_ref(*argument),
        None => Err(context
            .operator()
            .wrong_return(context.kernel(), &format!("argument {number} of {}", args.len()))),
    }
}

/// Returns the calls in progress on this thread, outermost first: operator name and chosen key.
pub fn call_path() -> Vec<(String, DispatchKey)> {
    let calls = thread::with(ThreadState::calls);
    calls
        .into_iter()
        .map(|(table, key)| {
            // SAFETY: the address comes from a slot of this thread, which keeps the table alive
            // until its frame ends. Frames of this thread can't end while this runs.
            let label = unsafe { crate::table::label_at(table) };
            (label.to_string(), key)
        })
        .collect()
}

/// The number of nested calls from which an operator and key count as endless recursion. A kernel
/// that splits its work and calls its operator for the parts stays below.
const ENDLESS_DEPTH: usize = 10;

/// Returns one period of the repeating calls in progress on this thread, outermost first, and the
/// number of repetitions of the innermost.
pub(crate) fn repeated_calls() -> Option<(Vec<(String, DispatchKey)>, usize)> {
    let calls = thread::with(ThreadState::calls);
    let (last, outer) = calls.split_last()?;
    let times = 1 + outer.iter().filter(|call| *call == last).count();
    let before = outer.iter().rposition(|call| call == last)?;
    let round = calls.len() - (before + 1);
    (times >= ENDLESS_DEPTH).then(|| (call_path().split_off(calls.len() - round), times))
}

/// Returns the path of the calls in progress as text: `demo::f: Autograd > CPU, demo::g: CPU`. A
/// repeated call appears once, with its count.
pub fn describe_path() -> String {
    let mut text = String::new();
    let mut last: Option<&str> = None;
    let path = call_path();
    let mut rest = &path[..];
    while let Some((operator, key)) = rest.first() {
        let run = rest.iter().take_while(|call| call.0 == *operator && call.1 == *key).count();
        let times = if run > 1 { format!(" x {run}") } else { String::new() };
        if last == Some(operator) {
            text.push_str(&format!(" > {key}{times}"));
        } else {
            let comma = if text.is_empty() { "" } else { ", " };
            text.push_str(&format!("{comma}{operator}: {key}{times}"));
        }
        last = Some(operator);
        rest = &rest[run..];
    }
    text
}
