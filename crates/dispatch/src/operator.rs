//! One operator: its schema, its registrations, its table, and the call itself.

use std::any::Any;
use std::fmt;
use std::sync::atomic::AtomicBool as StdAtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use keyfold_core::{Error, ErrorKind, Result};

use crate::context::CallContext;
use crate::dispatcher::{Dispatcher, Inner};
use crate::errors;
use crate::kernel::Kernel;
use crate::key::{DispatchKey, RegistrationKey};
use crate::keyset::DispatchKeySet;
use crate::registrations::Registrations;
use crate::schema::{Schema, Type};
use crate::sync::{AtomicPtr, Ordering};
use crate::table::Table;
use crate::thread::{self, DOMAIN, Frame, ThreadState};
use crate::value::{Tag, Value};

/// An operator (one overload) of a dispatcher.
#[repr(C)]
pub struct Operator<V: Value> {
    // First, since the call path reads it and nothing else of the operator.
    table: AtomicPtr<Table<V>>,
    name: Arc<str>,
    schema: Schema,
    /// The schema's defaults as values, one place per argument.
    defaults: Vec<Option<V>>,
    /// Whether arguments may live on different devices.
    mixed_devices: bool,
    isolated: bool,
    removed: StdAtomicBool,
    registrations: Mutex<Registrations<V>>,
    dispatcher: Weak<Inner<V>>,
    /// Itself, to be shared by a kernel that knows it by reference.
    this: Weak<Operator<V>>,
    /// What a host language keeps with it: its own object for the operator, say.
    host: Mutex<Option<Box<dyn Any + Send + Sync>>>,
}

impl<V: Value> Operator<V> {
    /// # Errors
    /// When a default of the schema has no meaning as a value of `V`.
    pub(crate) fn new(
        schema: Schema,
        mixed_devices: bool,
        isolated: bool,
        dispatcher: Weak<Inner<V>>,
        fallbacks: &Registrations<V>,
    ) -> Result<Arc<Self>> {
        let name: Arc<str> = schema.name.to_string().into();
        let mut defaults = Vec::with_capacity(schema.arguments.len());
        for argument in &schema.arguments {
            let Some(literal) = argument.default_value() else {
                defaults.push(None);
                continue;
            };
            let value = V::from_literal(&literal, &argument.ty).ok_or_else(|| {
                Error::new(
                    ErrorKind::Schema,
                    format!(
                        "{name}: the default of argument '{}', {literal}, is no value of type {}",
                        argument.name, argument.ty
                    ),
                )
            })?;
            defaults.push(Some(value));
        }
        let registrations = Registrations::default();
        let table = Table::compute(name.clone(), &registrations, fallbacks);
        Ok(Arc::new_cyclic(|this| Operator {
            table: AtomicPtr::new(Box::into_raw(Box::new(table))),
            name,
            schema,
            defaults,
            mixed_devices,
            isolated,
            removed: StdAtomicBool::new(false),
            registrations: Mutex::new(registrations),
            dispatcher,
            this: Weak::clone(this),
            host: Mutex::new(None),
        }))
    }

    /// The full name, `ns::name` or `ns::name.overload`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The schema.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The value that an argument has when a call leaves it out.
    pub fn default_value(&self, argument: usize) -> Option<&V> {
        self.defaults.get(argument)?.as_ref()
    }

    /// Whether the operator takes arguments on different devices.
    pub fn allows_mixed_devices(&self) -> bool {
        self.mixed_devices
    }

    /// The operator, shared: for a kernel that knows it by reference.
    pub fn share(&self) -> Arc<Operator<V>> {
        self.this.upgrade().unwrap_or_else(|| unreachable!("operators live in an Arc"))
    }

    /// Looks at what a host language keeps with the operator.
    pub fn host<R>(&self, look: impl FnOnce(Option<&(dyn Any + Send + Sync)>) -> R) -> R {
        look(self.host.lock().unwrap_or_else(PoisonError::into_inner).as_deref())
    }

    /// Keeps something of a host language with the operator, in place of what was there.
    pub fn set_host(&self, object: Box<dyn Any + Send + Sync>) {
        let old = self.host.lock().unwrap_or_else(PoisonError::into_inner).replace(object);
        // Outside the lock: it may be the last reference to an object with a destructor.
        drop(old);
    }

    /// Whether it belongs to an isolated dispatcher, made with [`Dispatcher::new`].
    #[inline]
    pub fn is_isolated(&self) -> bool {
        self.isolated
    }

    /// Whether it was removed: calls then give [`ErrorKind::OperatorRemoved`].
    pub fn is_removed(&self) -> bool {
        self.removed.load(std::sync::atomic::Ordering::Acquire)
    }

    /// The dispatcher it belongs to, unless that is gone.
    pub fn dispatcher(&self) -> Option<Dispatcher<V>> {
        Dispatcher::upgrade(&self.dispatcher)
    }

    pub(crate) fn registrations(&self) -> MutexGuard<'_, Registrations<V>> {
        // Each change under the lock is one push, take or replace: whole at any panic.
        self.registrations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the table that follows from the registrations. The caller holds their lock,
    /// and collects afterwards.
    pub(crate) fn publish(&self, registrations: &Registrations<V>, fallbacks: &Registrations<V>) {
        let table = Table::compute(self.name.clone(), registrations, fallbacks);
        self.swap_table(table);
    }

    /// Ends the operator: no kernels, and an error for whoever still holds it. Returns what was
    /// registered, to be dropped outside of any lock.
    pub(crate) fn remove(&self) -> Vec<Arc<Kernel<V>>> {
        let mut registrations = self.registrations();
        self.removed.store(true, std::sync::atomic::Ordering::Release);
        self.swap_table(Table::empty(self.name.clone()));
        registrations.clear()
    }

    fn swap_table(&self, table: Table<V>) {
        let old = self.table.swap(Box::into_raw(Box::new(table)), Ordering::AcqRel);
        // SAFETY: the pointer was made by `Box::into_raw`, here or in `new`, and the swap
        // unlinked it: nobody else can retire it.
        DOMAIN.retire(unsafe { Box::from_raw(old) });
    }

    /// The set that a call with these argument keys starts from: steps 1 of the design.
    #[inline(always)]
    fn computed_set(state: &ThreadState, arguments: DispatchKeySet) -> DispatchKeySet {
        #[cold]
        fn default_device(keys: DispatchKeySet) -> DispatchKeySet {
            keys.insert(DispatchKey::CPU)
        }
        let mut keys = arguments;
        if (keys & DispatchKeySet::BACKENDS).is_empty() {
            // No argument brings a backend: the default device's.
            keys = default_device(keys);
        }
        (keys | state.include()) - state.exclude()
    }

    /// The set that a call with these argument keys would start from on this thread now.
    pub fn keyset_of(&self, arguments: DispatchKeySet) -> DispatchKeySet {
        thread::with(|state| Self::computed_set(state, arguments))
    }

    /// Selects the kernel for the set and runs `call` with it.
    ///
    /// This is the path that every call takes. What is rare, and what runs a layer, is out of
    /// line, and nothing comes back here from there: so nothing has to be saved for it.
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
                if key.is_backend() {
                    return call(&context, kernel);
                }
                return run_layer(state, &context, call);
            }
        }
        self.dispatch_slowly(state, set, call)
    }

    /// As `dispatch`, where the thread calls for the first time, a limit is near, or the table
    /// has nothing.
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

    fn enter<'t>(&self, state: &'t ThreadState) -> Result<Frame<'t>> {
        match state.enter_fast() {
            Some(frame) => Ok(frame),
            None => state.enter().map_err(|error| errors::recursion(&self.name, error)),
        }
    }

    /// Nothing to call: either the table predates a key, and is computed anew, or it's an error.
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

    /// Computes the table anew if keys were registered since; says whether it did.
    fn recompute_if_stale(&self) -> Result<bool> {
        if !self.with_table(Table::is_stale)? {
            return Ok(false);
        }
        let dispatcher = self.dispatcher().ok_or_else(|| errors::dispatcher_gone(&self.name))?;
        dispatcher.recompute(self);
        Ok(true)
    }

    /// Looks at the table, computed anew if keys were registered since.
    pub(crate) fn with_fresh_table<R>(&self, look: impl FnOnce(&Table<V>) -> R) -> Result<R> {
        self.recompute_if_stale()?;
        self.with_table(look)
    }

    /// Looks at the table without calling anything.
    pub(crate) fn with_table<R>(&self, look: impl FnOnce(&Table<V>) -> R) -> Result<R> {
        thread::with(|state| {
            let frame = state.enter()?;
            Ok(look(frame.protect(&self.table)))
        })
    }

    /// A call by a host language's binding, which has bound, checked and tagged the arguments:
    /// `call` gets the chosen kernel and takes its boxed or unboxed form.
    ///
    /// # Errors
    /// Those of the selection, and what `call` returns.
    #[inline(always)]
    pub fn call_with<R>(
        &self,
        keys: DispatchKeySet,
        call: impl FnOnce(&CallContext<'_, V>, &Kernel<V>) -> Result<R>,
    ) -> Result<R> {
        thread::with(|state| self.dispatch(state, Self::computed_set(state, keys), call))
    }

    /// As [`call_with`](Self::call_with), with the set taken as given.
    ///
    /// # Errors
    /// Those of the selection, and what `call` returns.
    #[inline(always)]
    pub fn redispatch_with<R>(
        &self,
        keyset: DispatchKeySet,
        call: impl FnOnce(&CallContext<'_, V>, &Kernel<V>) -> Result<R>,
    ) -> Result<R> {
        thread::with(|state| self.dispatch(state, keyset, call))
    }

    /// As [`call_with`](Self::call_with), with the kernel at one key and no other. The key need
    /// not be in `keyset`, which the kernel receives.
    ///
    /// # Errors
    /// [`ErrorKind::MissingKernel`] where that key has none; what `call` returns.
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

    /// Runs one kernel of this operator, whatever the table says: what it shadows, or one that
    /// `get_kernel` gave.
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
    /// [`ErrorKind::OperatorRemoved`] if the operator or the kernel was; what `call` returns.
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
            // Held for its label alone: the caller keeps the kernel alive.
            let table = frame.protect(&self.table);
            frame.hold(table, key);
            let context = CallContext::new(self, kernel, keyset, key);
            run_layer(state, &context, call)
        })
    }

    /// The kernel right below this one in its shadow stack.
    pub fn shadowed_by(&self, kernel: &Kernel<V>) -> Option<Arc<Kernel<V>>> {
        self.registrations().below(kernel)
    }

    /// Checks that the arguments live on one device, or as the operator's policy allows.
    ///
    /// # Errors
    /// [`ErrorKind::Device`], naming both arguments and their devices.
    #[cold]
    #[inline(never)]
    pub fn check_devices(&self, args: &[V::Ref<'_>]) -> Result<()> {
        if self.mixed_devices {
            return Ok(());
        }
        let mut first: Option<(String, Tag)> = None;
        let mut clash = None;
        for (position, arg) in args.iter().enumerate() {
            V::visit_tags(*arg, &mut |place, tag| {
                let Some(device) = tag.device().filter(|_| !tag.is_cpu_scalar()) else { return };
                let name = self.schema.arguments.get(position).map_or("?", |a| &a.name);
                let here = format!("'{name}{place}'");
                match &first {
                    None => first = Some((here, tag)),
                    Some((there, other)) if other.device() != Some(device) && clash.is_none() => {
                        let other = other.device().unwrap_or_default();
                        clash = Some((there.clone(), other, here, device));
                    }
                    Some(_) => {}
                }
            });
        }
        let Some((there, other, here, device)) = clash else { return Ok(()) };
        Err(Error::new(
            ErrorKind::Device,
            format!(
                "{}: arguments on different devices: {there} is on {other}, {here} is on {device}; \
                 move one of them (only a 0-dim CPU tensor may stand beside another device's)",
                self.name
            ),
        ))
    }

    /// Fills in defaults after `args` and checks each against its type.
    fn bind<'s, 'a: 's>(&'s self, args: &[V::Ref<'a>]) -> Result<Vec<V::Ref<'s>>> {
        let mut bound = Vec::with_capacity(self.schema.arguments.len());
        if args.len() > self.schema.arguments.len() {
            self.schema.bind(args.len(), &[])?;
        }
        for (position, argument) in self.schema.arguments.iter().enumerate() {
            match (args.get(position), self.default_value(position)) {
                (Some(given), _) => bound.push(V::shorten(*given)),
                (None, Some(default)) => bound.push(default.as_ref()),
                (None, None) => {
                    // The Rust side passes keyword-only arguments by position too.
                    self.schema.bind(args.len(), &[])?;
                    return Err(Error::new(
                        ErrorKind::Binding,
                        format!("{}() missing argument '{}'", self.name, argument.name),
                    ));
                }
            }
        }
        self.check_types(&bound)?;
        Ok(bound)
    }

    /// Checks bound arguments against the schema's types.
    ///
    /// # Errors
    /// [`ErrorKind::Binding`], naming the argument, what was given and what is wanted.
    #[inline]
    pub fn check_types(&self, args: &[V::Ref<'_>]) -> Result<()> {
        for (position, (argument, value)) in self.schema.arguments.iter().zip(args).enumerate() {
            if !V::conforms(*value, &argument.ty) {
                return Err(self.nonconforming(position, *value));
            }
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn nonconforming(&self, position: usize, value: V::Ref<'_>) -> Error {
        let argument = &self.schema.arguments[position];
        self.wrong_type(&argument.name, &argument.ty, &V::describe(value))
    }

    /// The error for an argument of the wrong type.
    #[cold]
    pub fn wrong_type(&self, argument: &str, wanted: &Type, given: &str) -> Error {
        Error::new(
            ErrorKind::Binding,
            format!("{}() argument '{argument}' must be {wanted}, not {given}", self.name),
        )
    }

    /// Checks what a kernel returned against the schema.
    ///
    /// # Errors
    /// [`ErrorKind::Return`], naming the kernel, what it returned and what the schema promises.
    #[inline]
    pub fn check_return(&self, kernel: &Kernel<V>, value: &V) -> Result<()> {
        let fits = match &self.schema.returns[..] {
            [] => V::is_none(value.as_ref()),
            [one] => V::conforms(value.as_ref(), &one.ty),
            many => value.as_tuple().is_some_and(|items| {
                items.len() == many.len()
                    && items.iter().zip(many).all(|(v, r)| V::conforms(v.as_ref(), &r.ty))
            }),
        };
        if fits { Ok(()) } else { Err(self.nonconforming_return(kernel, value)) }
    }

    #[cold]
    #[inline(never)]
    fn nonconforming_return(&self, kernel: &Kernel<V>, value: &V) -> Error {
        let given = match value.as_tuple() {
            Some(items) => {
                let items: Vec<_> = items.iter().map(|v| V::describe(v.as_ref())).collect();
                format!("{} values ({})", items.len(), items.join(", "))
            }
            None => V::describe(value.as_ref()),
        };
        self.wrong_return(kernel, &given)
    }

    /// The error for a return value of the wrong number or kind.
    #[cold]
    pub fn wrong_return(&self, kernel: &Kernel<V>, given: &str) -> Error {
        Error::new(
            ErrorKind::Return,
            format!(
                "{}: the kernel {} returned {given}, where the schema promises {}",
                self.name,
                kernel.provenance(),
                self.schema.returns_text()
            ),
        )
    }

    /// Calls the operator with borrowed values in declaration order; trailing ones may be left
    /// out where they have defaults.
    ///
    /// # Errors
    /// Binding, device and missing-kernel errors, and what the kernel returns.
    pub fn call<'a>(&self, args: &[V::Ref<'a>]) -> Result<V> {
        if args.len() != self.schema.arguments.len() {
            let bound = self.bind(args)?;
            return self.call_bound(&bound);
        }
        self.check_types(args)?;
        self.call_bound(args)
    }

    /// Calls the operator with arguments that are complete and of the right types.
    #[inline]
    fn call_bound(&self, args: &[V::Ref<'_>]) -> Result<V> {
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
        // Looked at where it is: moving a value of four words costs more than checking it.
        let result = kernel.call(context, args);
        if let Ok(value) = &result {
            self.check_return(kernel, value)?;
        }
        result
    }

    /// Calls the operator with this key set, taken as given.
    ///
    /// # Errors
    /// As for [`call`](Self::call).
    pub fn redispatch(&self, keyset: DispatchKeySet, args: &[V::Ref<'_>]) -> Result<V> {
        let bound = self.bind(args)?;
        self.redispatch_bound(keyset, &bound)
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

/// Runs a kernel with its key excluded on this thread, if it is a layer's.
#[inline(never)]
fn run_layer<V: Value, R>(
    state: &ThreadState,
    context: &CallContext<'_, V>,
    call: impl FnOnce(&CallContext<'_, V>, &Kernel<V>) -> Result<R>,
) -> Result<R> {
    let key = context.key();
    let _excluded = (!key.is_backend()).then(|| state.run_layer(key));
    call(context, context.kernel())
}

/// The entry that `call_direct(key)` means: the key, and the set whose backend gives the row.
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

impl<V: Value> Drop for Operator<V> {
    fn drop(&mut self) {
        // SAFETY: the pointer was made by `Box::into_raw`. A reader reaches the table through a
        // reference to the operator, and there is none left.
        drop(unsafe { Box::from_raw(self.table.load(Ordering::Acquire)) });
    }
}

impl<V: Value> fmt::Debug for Operator<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_removed() { ", removed" } else { "" };
        write!(f, "Operator({}, {} kernels{state})", self.schema, self.registrations().len())
    }
}
