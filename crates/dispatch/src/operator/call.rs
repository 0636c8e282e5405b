//! The call paths, from a key set to a kernel.

use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};

use super::Operator;
use crate::context::CallContext;
use crate::errors;
use crate::kernel::Kernel;
use crate::key::{DispatchKey, RegistrationKey};
use crate::keyset::DispatchKeySet;
use crate::table::Table;
use crate::thread::{self, HazardGuard, ThreadState};
use crate::value::{Tag, Value};

impl<V: Value> Operator<V> {
    /// Returns the key set of a call with these argument keys: step 1 of the design.
    #[inline(always)]
    fn computed_set(state: &ThreadState, arguments: DispatchKeySet) -> DispatchKeySet {
        #[cold]
        fn default_device(keys: DispatchKeySet) -> DispatchKeySet {
            keys.insert(DispatchKey::CPU)
        }
        let mut keys = arguments;
        if (keys & DispatchKeySet::BACKENDS).is_empty() {
            // No argument has a backend key: adds the default device's.
            keys = default_device(keys);
        }
        (keys | state.include()) & state.keep()
    }

    /// Returns the key set of a call with these argument keys on this thread now.
    pub fn keyset_of(&self, arguments: DispatchKeySet) -> DispatchKeySet {
        thread::with(|state| Self::computed_set(state, arguments))
    }

    /// Selects the kernel for the set and runs `call` with it.
    ///
    /// Every call takes this path. Rare cases and layers are out of line and return to the caller
    /// directly, so that no register has to be saved for them.
    #[inline(always)]
    fn dispatch<R>(
        &self,
        state: &ThreadState,
        set: DispatchKeySet,
        call: impl FnOnce(&CallContext<'_, V>, &Kernel<V>) -> Result<R>,
    ) -> Result<R> {
        if let Some(frame) = state.enter_fast() {
            let table = frame.protect(&self.table);
            if let Some((kernel, key)) = table.select(set) {
                frame.hold(table, key);
                let context = CallContext::new(self, kernel, set, key);
                if is_in_memory::<R>() {
                    if key.is_backend() {
                        return call(&context, kernel);
                    }
                    return run_layer(state, &context, call);
                }
                let result = match key.is_backend() {
                    true => call(&context, kernel),
                    false => run_layer(state, &context, call),
                };
                return frame.end_with(result);
            }
            // The slow path takes the same slot.
            frame.end_for_successor();
        }
        self.dispatch_slowly(state, set, call)
    }

    /// As `dispatch`, for a thread's first call, near a limit, or if the table has no entry.
    #[cold]
    #[inline(never)]
    fn dispatch_slowly<R>(
        &self,
        state: &ThreadState,
        set: DispatchKeySet,
        call: impl FnOnce(&CallContext<'_, V>, &Kernel<V>) -> Result<R>,
    ) -> Result<R> {
        loop {
            let frame = self.enter(state)?;
            let table = frame.protect(&self.table);
            if let Some((kernel, key)) = table.select(set) {
                frame.hold(table, key);
                let context = CallContext::new(self, kernel, set, key);
                return run_layer(state, &context, call);
            }
            drop(frame);
            self.no_entry(state, set)?;
        }
    }

    fn enter<'t>(&self, state: &'t ThreadState) -> Result<HazardGuard<'t>> {
        match state.enter_fast() {
            Some(frame) => Ok(frame),
            None => state.enter().map_err(|error| errors::recursion(&self.name, error)),
        }
    }

    /// Handles a missing entry: recomputes a table that is older than a key, or returns an error.
    #[cold]
    #[inline(never)]
    fn no_entry(&self, state: &ThreadState, set: DispatchKeySet) -> Result<()> {
        if self.is_removed() {
            return Err(errors::removed(&self.name));
        }
        if self.recompute_if_stale()? {
            return Ok(());
        }
        if set.is_empty() {
            return Err(errors::empty_keyset(&self.name, state.include(), state.exclude()));
        }
        let mask = self.with_table(|table| table.mask(set))?;
        Err(errors::missing_kernel(self, set, (set & mask).highest()))
    }

    /// Recomputes the table if keys were registered since; returns whether it did.
    fn recompute_if_stale(&self) -> Result<bool> {
        if !self.with_table(Table::is_stale)? {
            return Ok(false);
        }
        let dispatcher = self.dispatcher().ok_or_else(|| errors::dispatcher_gone(&self.name))?;
        dispatcher.recompute(self);
        Ok(true)
    }

    /// Returns whether a redispatch with this set would find a kernel. It costs as much as choosing
    /// a kernel and includes fallbacks, unlike [`has_kernel`](Self::has_kernel).
    pub fn serves(&self, keyset: DispatchKeySet) -> bool {
        self.with_fresh_table(|table| table.select(keyset).is_some()).unwrap_or(false)
    }

    /// Runs `look` on the kernel that a redispatch with this set would call; `None` without one.
    pub fn with_kernel<R>(
        &self,
        keyset: DispatchKeySet,
        look: impl FnOnce(&Kernel<V>) -> R,
    ) -> Option<R> {
        let chosen = |table: &Table<V>| table.select(keyset).map(|(kernel, _)| look(kernel));
        self.with_fresh_table(chosen).ok().flatten()
    }

    /// Runs `look` on the table, recomputed if keys were registered since.
    pub(crate) fn with_fresh_table<R>(&self, look: impl FnOnce(&Table<V>) -> R) -> Result<R> {
        self.recompute_if_stale()?;
        self.with_table(look)
    }

    /// Runs `look` on the table without calling a kernel.
    pub(crate) fn with_table<R>(&self, look: impl FnOnce(&Table<V>) -> R) -> Result<R> {
        thread::with(|state| {
            let frame = state.enter()?;
            let seen = look(frame.protect(&self.table));
            frame.end_quietly();
            Ok(seen)
        })
    }

    /// Calls from a host language's binding, which has bound, checked and tagged the arguments:
    /// `call` gets the chosen kernel and runs its boxed or unboxed form.
    ///
    /// # Errors
    /// The errors of the selection and of `call`.
    #[inline(always)]
    pub fn call_with<R>(
        &self,
        keys: DispatchKeySet,
        call: impl FnOnce(&CallContext<'_, V>, &Kernel<V>) -> Result<R>,
    ) -> Result<R> {
        thread::with(|state| self.dispatch(state, Self::computed_set(state, keys), call))
    }

    /// As [`call_with`](Self::call_with), with further local keys of the host language's context.
    /// They apply to the choice of this kernel; for the kernel's own calls, run it inside
    /// [`with_ambient`](crate::with_ambient).
    ///
    /// # Errors
    /// The errors of the selection and of `call`.
    #[inline(always)]
    pub fn call_within<R>(
        &self,
        keys: DispatchKeySet,
        include: DispatchKeySet,
        exclude: DispatchKeySet,
        call: impl FnOnce(&CallContext<'_, V>, &Kernel<V>) -> Result<R>,
    ) -> Result<R> {
        thread::with(|state| {
            let set = (Self::computed_set(state, keys) | (include & state.keep())) - exclude;
            self.dispatch(state, set, call)
        })
    }

    /// As [`call_with`](Self::call_with), with this key set, without adding or removing local keys.
    ///
    /// # Errors
    /// The errors of the selection and of `call`.
    #[inline(always)]
    pub fn redispatch_with<R>(
        &self,
        keyset: DispatchKeySet,
        call: impl FnOnce(&CallContext<'_, V>, &Kernel<V>) -> Result<R>,
    ) -> Result<R> {
        thread::with(|state| self.dispatch(state, keyset, call))
    }

    /// As [`call_with`](Self::call_with), with the kernel at one key, which need not be in
    /// `keyset`. The kernel receives `keyset`.
    ///
    /// # Errors
    /// [`ErrorKind::MissingKernel`] if that key has none; the errors of `call`.
    pub fn call_direct_with<R>(
        &self,
        key: RegistrationKey,
        keyset: DispatchKeySet,
        call: impl FnOnce(&CallContext<'_, V>, &Kernel<V>) -> Result<R>,
    ) -> Result<R> {
        let (chosen, row) = direct_entry(&self.name, key, keyset)?;
        self.recompute_if_stale()?;
        thread::with(|state| {
            let frame = self.enter(state)?;
            let table = frame.protect(&self.table);
            let Some(kernel) = table.entry(chosen, row) else {
                drop(frame);
                return Err(if self.is_removed() {
                    errors::removed(&self.name)
                } else {
                    errors::no_direct_kernel(self, chosen, row)
                });
            };
            frame.hold(table, chosen);
            let context = CallContext::new(self, kernel, keyset, chosen);
            run_layer(state, &context, call)
        })
    }

    /// Runs a given kernel of this operator without using the table: a shadowed one, or one from
    /// `get_kernel`.
    pub(crate) fn run_kernel(
        &self,
        kernel: &Kernel<V>,
        keyset: DispatchKeySet,
        key: DispatchKey,
        args: &[V::Ref<'_>],
    ) -> Result<V> {
        self.run_kernel_with(kernel, keyset, key, |context, kernel| kernel.call(context, args))
    }

    /// As [`call_with`](Self::call_with), with a kernel that the caller holds.
    ///
    /// # Errors
    /// [`ErrorKind::OperatorRemoved`] if the operator or the kernel was removed; the errors of
    /// `call`.
    pub fn run_kernel_with<R>(
        &self,
        kernel: &Kernel<V>,
        keyset: DispatchKeySet,
        key: DispatchKey,
        call: impl FnOnce(&CallContext<'_, V>, &Kernel<V>) -> Result<R>,
    ) -> Result<R> {
        if self.is_removed() {
            return Err(errors::removed(&self.name));
        }
        if kernel.is_removed() {
            return Err(errors::kernel_removed(&self.name, kernel));
        }
        thread::with(|state| {
            let frame = self.enter(state)?;
            // Protected for its label alone; the caller keeps the kernel alive.
            let table = frame.protect(&self.table);
            frame.hold(table, key);
            let context = CallContext::new(self, kernel, keyset, key);
            run_layer(state, &context, call)
        })
    }

    /// Returns the kernel right below this one in its shadow stack.
    pub fn shadowed_by(&self, kernel: &Kernel<V>) -> Option<Arc<Kernel<V>>> {
        self.registrations().below(kernel)
    }

    /// Calls the operator with borrowed values in declaration order. Trailing arguments with
    /// defaults may be left out.
    ///
    /// # Errors
    /// Binding, device and missing-kernel errors, and the kernel's errors.
    pub fn call<'a>(&self, args: &[V::Ref<'a>]) -> Result<V> {
        if args.len() != self.schema.arguments.len() {
            let bound = self.bind(args)?;
            return self.call_bound(&bound);
        }
        self.check_types(args)?;
        self.call_bound(args)
    }

    /// Calls the operator with complete arguments of the right types.
    #[inline]
    pub(crate) fn call_bound(&self, args: &[V::Ref<'_>]) -> Result<V> {
        let tag = args.iter().fold(Tag::NONE, |tag, arg| tag.merge(V::tag(*arg)));
        if tag.is_mixed() {
            self.check_devices(args)?;
        }
        self.call_with(tag.keys(), |context, kernel| self.checked(context, kernel, args))
    }

    #[inline(always)]
    fn checked(
        &self,
        context: &CallContext<'_, V>,
        kernel: &Kernel<V>,
        args: &[V::Ref<'_>],
    ) -> Result<V> {
        // Looked at in place, and moved once: moving a large value costs more than the checks.
        let result = kernel.invoke(context, args);
        let Ok(value) = &result else { return result };
        match value.as_argument() {
            None => self.check_return(kernel, value)?,
            Some(number) => {
                let argument = crate::context::argument(context, args, number)?;
                self.check_return(kernel, &argument)?;
                return Ok(argument);
            }
        }
        result
    }

    /// Calls the operator with this key set, without adding or removing local keys.
    ///
    /// # Errors
    /// As for [`call`](Self::call).
    pub fn redispatch(&self, keyset: DispatchKeySet, args: &[V::Ref<'_>]) -> Result<V> {
        if args.len() != self.schema.arguments.len() {
            let bound = self.bind(args)?;
            return self.redispatch_bound(keyset, &bound);
        }
        self.check_types(args)?;
        self.redispatch_bound(keyset, args)
    }

    #[inline]
    pub(crate) fn redispatch_bound(
        &self,
        keyset: DispatchKeySet,
        args: &[V::Ref<'_>],
    ) -> Result<V> {
        self.redispatch_with(keyset, |context, kernel| self.checked(context, kernel, args))
    }

    /// Runs the kernel at one key, which need not be in the arguments' set. The kernel receives
    /// `keyset`, or the set that a call would compute.
    ///
    /// # Errors
    /// As for [`call`](Self::call).
    pub fn call_direct(
        &self,
        key: impl Into<RegistrationKey>,
        args: &[V::Ref<'_>],
        keyset: Option<DispatchKeySet>,
    ) -> Result<V> {
        let bound = self.bind(args)?;
        let keyset = keyset.unwrap_or_else(|| {
            let tag = bound.iter().fold(Tag::NONE, |tag, arg| tag.merge(V::tag(*arg)));
            self.keyset_of(tag.keys())
        });
        self.call_direct_with(key.into(), keyset, |context, kernel| {
            self.checked(context, kernel, &bound)
        })
    }
}

/// Returns whether results of this type are returned through memory, where they stay while the
/// frame ends.
const fn is_in_memory<R>() -> bool {
    size_of::<R>() > 2 * size_of::<usize>()
}

/// Runs a kernel; a layer's runs with its key excluded on this thread. A composite at an autograd
/// key isn't a layer: its calls are recorded.
#[inline(never)]
fn run_layer<V: Value, R>(
    state: &ThreadState,
    context: &CallContext<'_, V>,
    call: impl FnOnce(&CallContext<'_, V>, &Kernel<V>) -> Result<R>,
) -> Result<R> {
    let key = context.key();
    let is_layer = !key.is_backend() && !context.kernel().is_composite();
    let _excluded = is_layer.then(|| state.run_layer(key));
    call(context, context.kernel())
}

/// Returns the table entry of `call_direct(key)`: the key, and the set whose backend selects the
/// row.
pub(crate) fn direct_entry(
    name: &str,
    key: RegistrationKey,
    keyset: DispatchKeySet,
) -> Result<(DispatchKey, DispatchKeySet)> {
    match key {
        RegistrationKey::Key(key) if key.is_backend() => Ok((key, key.into())),
        RegistrationKey::Key(key) => Ok((key, keyset)),
        RegistrationKey::Narrow { functionality, backend } => Ok((functionality, backend.into())),
        alias => Err(Error::new(
            ErrorKind::UnknownKey,
            format!(
                "{name}: {alias} is an alias and has no entry of its own; name a key such as CPU"
            ),
        )),
    }
}
