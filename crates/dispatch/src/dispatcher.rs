//! The dispatcher: operators by name, fallbacks by key, and all changes of them.
//!
//! One lock orders all changes of a dispatcher. Calls through an operator never take it; a call by
//! name takes it for reading while it looks the name up. Nothing is dropped under the lock: a
//! kernel's destructor may be that of a Python object, which may run code that registers kernels.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use keyfold_core::{Error, ErrorKind, Result};

use crate::errors;
use crate::handle::{Handle, HandleTarget};
use crate::kernel::Kernel;
use crate::key::{DispatchKey, RegistrationKey};
use crate::keyset::DispatchKeySet;
use crate::names;
use crate::operator::Operator;
use crate::registrations::{Override, Registration, Registrations, Replaced};
use crate::schema::{OperatorName, Schema};
use crate::tags::Tags;
use crate::thread;
use crate::value::Value;

/// An operator and its definitions.
struct OperatorEntry<V: Value> {
    operator: Arc<Operator<V>>,
    /// One per `define`; removing the last one removes the operator.
    definitions: Vec<u64>,
}

pub(crate) struct Registry<V: Value> {
    entries: HashMap<String, OperatorEntry<V>>,
    /// Full names of the overloads of each qualified name, in declaration order.
    overloads: HashMap<String, Vec<String>>,
    pub(crate) fallbacks: Registrations<V>,
}

pub(crate) struct Inner<V: Value> {
    registry: RwLock<Registry<V>>,
    next_id: AtomicU64,
    /// Counts definitions and removals, for caches of name look-ups.
    generation: AtomicU64,
    plain_names: bool,
}

/// Operators, their kernels and the fallbacks of the keys. A clone refers to the same dispatcher.
///
/// The facade crate has the process's dispatcher; [`Dispatcher::new`] makes isolated ones. They
/// share only the dispatch keys.
pub struct Dispatcher<V: Value>(Arc<Inner<V>>);

impl<V: Value> Clone for Dispatcher<V> {
    fn clone(&self) -> Self {
        Dispatcher(Arc::clone(&self.0))
    }
}

impl<V: Value> Default for Dispatcher<V> {
    fn default() -> Self {
        Dispatcher::new()
    }
}

/// The options of an operator's definition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefineOptions {
    /// Whether arguments may live on different devices.
    pub mixed_devices: bool,
    /// Whether arguments may be arrays of different libraries, in a host language with several.
    pub mixed_arrays: bool,
    /// Properties that hold for every call.
    pub tags: Tags,
}

impl<V: Value> Dispatcher<V> {
    /// Returns an isolated dispatcher without operators. It allows names without a namespace.
    pub fn new() -> Self {
        Dispatcher::with_names(true)
    }

    /// Returns a dispatcher whose operators must have a namespace, such as the process's.
    pub fn shared() -> Self {
        Dispatcher::with_names(false)
    }

    fn with_names(plain_names: bool) -> Self {
        Dispatcher(Arc::new(Inner {
            registry: RwLock::new(Registry {
                entries: HashMap::new(),
                overloads: HashMap::new(),
                fallbacks: Registrations::default(),
            }),
            next_id: AtomicU64::new(1),
            generation: AtomicU64::new(0),
            plain_names,
        }))
    }

    pub(crate) fn upgrade(weak: &Weak<Inner<V>>) -> Option<Self> {
        weak.upgrade().map(Dispatcher)
    }

    pub(crate) fn downgrade(&self) -> Weak<Inner<V>> {
        Arc::downgrade(&self.0)
    }

    /// Returns whether both are the same dispatcher.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Registry<V>> {
        self.0.registry.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Registry<V>> {
        self.0.registry.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_id(&self) -> u64 {
        self.0.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Defines an operator. Defining the same schema again returns another handle; removing the
    /// last handle removes the operator.
    ///
    /// # Errors
    /// Text that doesn't parse, or a different schema for a defined name.
    pub fn define(&self, schema: &str) -> Result<Handle<V>> {
        self.define_with(Schema::parse(schema)?, DefineOptions::default())
    }

    /// As [`define`](Self::define), from a parsed schema and with options.
    ///
    /// # Errors
    /// A different schema or different options for a defined name; a missing namespace where one is
    /// required.
    pub fn define_with(&self, schema: Schema, options: DefineOptions) -> Result<Handle<V>> {
        if !self.0.plain_names {
            schema.name.require_namespace()?;
        }
        let full = schema.name.to_string();
        let id = self.next_id();
        let mut registry = self.write();
        let registry = &mut *registry;
        if let Some(entry) = registry.entries.get_mut(&full) {
            let known = entry.operator.schema();
            if *known != schema || entry.operator.options() != options {
                return Err(Error::new(
                    ErrorKind::Registration,
                    format!(
                        "{full} is already defined differently:\n  defined: {known}\n  now:     \
                         {schema}"
                    ),
                ));
            }
            entry.definitions.push(id);
            let subject =
                HandleTarget::Definition { operator: Arc::downgrade(&entry.operator), id };
            return Ok(Handle::new(self, full, subject));
        }
        let qualified = schema.name.qualified();
        let operator = Operator::new(
            schema,
            options,
            self.0.plain_names,
            self.downgrade(),
            &registry.fallbacks,
        )?;
        let subject = HandleTarget::Definition { operator: Arc::downgrade(&operator), id };
        registry.overloads.entry(qualified).or_default().push(full.clone());
        registry.entries.insert(full.clone(), OperatorEntry { operator, definitions: vec![id] });
        self.0.generation.fetch_add(1, Ordering::Release);
        Ok(Handle::new(self, full, subject))
    }

    /// Returns whether that definition is in place.
    pub(crate) fn is_defined(&self, operator: &Operator<V>, id: u64) -> bool {
        self.read().entries.get(operator.name()).is_some_and(|entry| {
            std::ptr::eq(Arc::as_ptr(&entry.operator), operator) && entry.definitions.contains(&id)
        })
    }

    pub(crate) fn remove_definition(&self, operator: &Operator<V>, id: u64) -> bool {
        let mut trash = Vec::new();
        let mut registry = self.write();
        let full = operator.name();
        let Some(entry) = registry.entries.get_mut(full) else { return false };
        // An operator defined later under the same name is a different one.
        if !std::ptr::eq(Arc::as_ptr(&entry.operator), operator) {
            return false;
        }
        let before = entry.definitions.len();
        entry.definitions.retain(|known| *known != id);
        let known = entry.definitions.len() < before;
        if known && entry.definitions.is_empty() {
            trash = entry.operator.remove();
            let qualified = operator.schema().name.qualified();
            if let Some(overloads) = registry.overloads.get_mut(&qualified) {
                overloads.retain(|name| name != full);
                if overloads.is_empty() {
                    registry.overloads.remove(&qualified);
                }
            }
            let entry = registry.entries.remove(full);
            self.0.generation.fetch_add(1, Ordering::Release);
            drop(registry);
            drop(entry);
        } else {
            drop(registry);
        }
        drop(trash);
        thread::collect();
        known
    }

    /// Registers a kernel for a defined operator. A plain name without a definition defines an
    /// operator `name(Tensor[] inputs) -> Tensor`.
    ///
    /// # Errors
    /// See [`register_with`](Self::register_with).
    pub fn register(
        &self,
        name: &str,
        key: impl Into<RegistrationKey>,
        kernel: Kernel<V>,
    ) -> Result<Handle<V>> {
        if self.operator(name).is_err() {
            let parsed = OperatorName::parse(name)?;
            self.define(&format!("{parsed}(Tensor[] inputs) -> Tensor"))?;
        }
        self.register_with(&self.operator(name)?, key, kernel, Override::Error)
    }

    /// Registers a kernel for a defined operator.
    ///
    /// # Errors
    /// An undefined operator ("define X before impl X"), and the errors of
    /// [`register_with`](Self::register_with).
    pub fn implement(
        &self,
        name: &str,
        key: impl Into<RegistrationKey>,
        kernel: Kernel<V>,
        mode: Override,
    ) -> Result<Handle<V>> {
        let operator = self.defined(name)?;
        self.register_with(&operator, key, kernel, mode)
    }

    /// Returns the operator to register a kernel for.
    pub(crate) fn defined(&self, name: &str) -> Result<Arc<Operator<V>>> {
        self.operator(name).map_err(|error| {
            Error::new(
                error.kind(),
                format!("define {name} before impl {name}: {}", error.message()),
            )
        })
    }

    /// Registers a kernel for an operator.
    ///
    /// # Errors
    /// A removed operator, a kernel whose signature contradicts the schema, an occupied key (see
    /// [`Override`]), a fallthrough at a key that calls never skip.
    pub fn register_with(
        &self,
        operator: &Arc<Operator<V>>,
        key: impl Into<RegistrationKey>,
        kernel: Kernel<V>,
        mode: Override,
    ) -> Result<Handle<V>> {
        let (handle, replaced) = self.add_kernel(operator, key.into(), kernel, mode, false)?;
        // Dropped outside the locks, since a kernel's destructor may run any code.
        if let Replaced::Taken(kernel) = replaced {
            drop(kernel);
        }
        thread::collect();
        Ok(handle)
    }

    /// As [`register_with`](Self::register_with); see [`Registrations::add`] for `keep`.
    pub(crate) fn add_kernel(
        &self,
        operator: &Arc<Operator<V>>,
        key: RegistrationKey,
        mut kernel: Kernel<V>,
        mode: Override,
        keep: bool,
    ) -> Result<(Handle<V>, Replaced<V>)> {
        check_fallthrough(operator.name(), key, &kernel)?;
        if key == RegistrationKey::CompositeImplicitAutograd {
            kernel.set_composite();
        }
        kernel.check_against(operator.schema())?;
        let id = self.next_id();
        // Declared before the locks, so that a refused kernel is dropped after their release.
        let kernel = Arc::new(kernel);
        let registry = self.read();
        let mut registrations = operator.registrations();
        if operator.is_removed() {
            return Err(errors::removed(operator.name()));
        }
        let new = Registration { id, kernel: Arc::clone(&kernel) };
        let replaced = registrations.add(operator.name(), key, new, mode, keep)?;
        operator.publish(&registrations, &registry.fallbacks);
        self.0.generation.fetch_add(1, Ordering::Release);
        drop(registrations);
        drop(registry);
        let subject = HandleTarget::Kernel { operator: Arc::downgrade(operator), key, id };
        Ok((Handle::new(self, operator.name().to_owned(), subject), replaced))
    }

    pub(crate) fn remove_kernel(
        &self,
        operator: &Operator<V>,
        key: RegistrationKey,
        id: u64,
    ) -> bool {
        let registry = self.read();
        let mut registrations = operator.registrations();
        let removed = registrations.remove(key, id);
        if removed.is_some() && !operator.is_removed() {
            operator.publish(&registrations, &registry.fallbacks);
            self.0.generation.fetch_add(1, Ordering::Release);
        }
        drop(registrations);
        drop(registry);
        let found = removed.is_some();
        drop(removed);
        thread::collect();
        found
    }

    /// Registers a kernel that serves every operator at a key.
    ///
    /// # Errors
    /// A composite alias, an occupied key, a fallthrough at a key that calls never skip.
    pub fn fallback(
        &self,
        key: impl Into<RegistrationKey>,
        kernel: Kernel<V>,
        mode: Override,
    ) -> Result<Handle<V>> {
        let key = key.into();
        if !matches!(key, RegistrationKey::Key(_) | RegistrationKey::Narrow { .. }) {
            return Err(Error::new(
                ErrorKind::UnknownKey,
                format!("a fallback belongs to one key; {key} is an alias for several"),
            ));
        }
        check_fallthrough("a fallback", key, &kernel)?;
        let id = self.next_id();
        // Declared before the lock, so that a refused kernel is dropped after its release.
        let kernel = Arc::new(kernel);
        let new = Registration { id, kernel: Arc::clone(&kernel) };
        let mut registry = self.write();
        let replaced = registry.fallbacks.add("the fallbacks", key, new, mode, false)?;
        self.recompute_all(&registry);
        drop(registry);
        drop(replaced);
        thread::collect();
        Ok(Handle::new(self, format!("fallback at {key}"), HandleTarget::Fallback { key, id }))
    }

    pub(crate) fn remove_fallback(&self, key: RegistrationKey, id: u64) -> bool {
        let mut registry = self.write();
        let removed = registry.fallbacks.remove(key, id);
        if removed.is_some() {
            self.recompute_all(&registry);
        }
        drop(registry);
        let found = removed.is_some();
        drop(removed);
        thread::collect();
        found
    }

    fn recompute_all(&self, registry: &Registry<V>) {
        self.0.generation.fetch_add(1, Ordering::Release);
        for entry in registry.entries.values() {
            let registrations = entry.operator.registrations();
            entry.operator.publish(&registrations, &registry.fallbacks);
        }
    }

    /// Removes every operator, kernel and fallback; handles to them return
    /// [`ErrorKind::OperatorRemoved`]. It breaks the reference cycle of a kernel that owns its own
    /// dispatcher.
    pub fn clear(&self) {
        let mut trash = Vec::new();
        let mut registry = self.write();
        for (_, entry) in registry.entries.drain() {
            trash.extend(entry.operator.remove());
        }
        registry.overloads.clear();
        trash.extend(registry.fallbacks.clear());
        self.0.generation.fetch_add(1, Ordering::Release);
        drop(registry);
        drop(trash);
        thread::collect();
    }

    /// Recomputes one operator's table for keys registered since.
    pub(crate) fn recompute(&self, operator: &Operator<V>) {
        let registry = self.read();
        let registrations = operator.registrations();
        if !operator.is_removed() {
            operator.publish(&registrations, &registry.fallbacks);
        }
        drop(registrations);
        drop(registry);
        thread::collect();
    }

    /// Returns the operator `ns::name` or `ns::name.overload`.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownOperator`], with the nearest names.
    pub fn operator(&self, name: &str) -> Result<Arc<Operator<V>>> {
        let registry = self.read();
        let canonical = name.strip_suffix(".default").unwrap_or(name);
        if let Some(entry) = registry.entries.get(canonical) {
            return Ok(Arc::clone(&entry.operator));
        }
        // The only overload of an operator needs no overload name, nor does the only one without `out`.
        if let Some(several) = registry.overloads.get(canonical) {
            let all = || several.iter().filter_map(|name| registry.entries.get(name));
            let mut fresh = all().filter(|entry| entry.operator.schema().outs().next().is_none());
            let only = match (fresh.next(), fresh.next()) {
                (None, _) if several.len() == 1 => all().next(),
                (only, None) => only,
                _ => None,
            };
            let missing = || errors::no_default(canonical, several);
            return only.map(|entry| Arc::clone(&entry.operator)).ok_or_else(missing);
        }
        if let Some((packet, overload)) = canonical.rsplit_once('.')
            && let Some(known) = registry.overloads.get(packet)
        {
            return Err(errors::unknown_overload(packet, overload, known));
        }
        Err(errors::unknown_operator(name, registry.entries.keys().map(String::as_str)))
    }

    /// Returns the overloads of a qualified name `ns::name`, in the order of definition.
    pub fn overloads(&self, qualified: &str) -> Vec<Arc<Operator<V>>> {
        let registry = self.read();
        let Some(names) = registry.overloads.get(qualified) else { return Vec::new() };
        names
            .iter()
            .filter_map(|name| registry.entries.get(name))
            .map(|entry| Arc::clone(&entry.operator))
            .collect()
    }

    /// Returns every operator, sorted by full name.
    pub fn operators(&self) -> Vec<Arc<Operator<V>>> {
        let mut all: Vec<_> =
            self.read().entries.values().map(|entry| Arc::clone(&entry.operator)).collect();
        all.sort_by(|a, b| a.name().cmp(b.name()));
        all
    }

    /// Calls an operator by name. See [`Operator::call`].
    ///
    /// # Errors
    /// An unknown name, and the call's errors.
    pub fn call(&self, name: &str, args: &[V::Ref<'_>]) -> Result<V> {
        self.operator(name)?.call(args)
    }

    /// Calls an operator by name with this key set, without adding or removing local keys.
    ///
    /// # Errors
    /// An unknown name, and the call's errors.
    pub fn redispatch(&self, name: &str, keyset: DispatchKeySet, args: &[V::Ref<'_>]) -> Result<V> {
        self.operator(name)?.redispatch(keyset, args)
    }

    /// Runs an operator's kernel at one key. See [`Operator::call_direct`].
    ///
    /// # Errors
    /// An unknown name, and the call's errors.
    pub fn call_direct(
        &self,
        name: &str,
        key: impl Into<RegistrationKey>,
        args: &[V::Ref<'_>],
        keyset: Option<DispatchKeySet>,
    ) -> Result<V> {
        self.operator(name)?.call_direct(key, args, keyset)
    }

    /// Returns whether the operator's table has a kernel at this key, fallbacks not counted. False
    /// for an unknown operator.
    pub fn has_kernel(&self, name: &str, key: impl Into<RegistrationKey>) -> bool {
        self.operator(name).is_ok_and(|operator| operator.has_kernel(key.into()))
    }

    /// Returns the number of kernels registered, for operators and as fallbacks, without shadowed
    /// ones.
    pub fn kernel_count(&self) -> usize {
        let registry = self.read();
        let kernels = registry.entries.values().map(|entry| entry.operator.registrations().len());
        kernels.sum::<usize>() + registry.fallbacks.len()
    }

    /// Returns a number that changes whenever an operator is defined or removed, or a kernel is
    /// registered or removed, for caches of names and of recorded calls.
    pub fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }

    /// Returns whether names without a namespace are allowed.
    pub fn takes_plain_names(&self) -> bool {
        self.0.plain_names
    }
}

/// Refuses a fallthrough for a backend or representation, which calls never skip.
fn check_fallthrough<V: Value>(what: &str, key: RegistrationKey, kernel: &Kernel<V>) -> Result<()> {
    let functionality = match key {
        RegistrationKey::Key(key) => Some(key),
        RegistrationKey::Narrow { functionality, .. } => Some(functionality),
        _ => None,
    };
    if !kernel.is_fallthrough() || functionality.is_some_and(|k| names::modes().contains(k)) {
        return Ok(());
    }
    let modes: Vec<_> = names::modes().iter().map(DispatchKey::name).collect();
    Err(Error::new(
        ErrorKind::Registration,
        format!(
            "{what}: a fallthrough at {key} would hand a kernel data that it misreads; calls skip \
             only the keys {}",
            modes.join(", ")
        ),
    ))
}

impl<V: Value> fmt::Debug for Dispatcher<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operators = self.read().entries.len();
        write!(f, "Dispatcher({operators} operators, {} kernels)", self.kernel_count())
    }
}
