//! The dispatcher: operators by name, fallbacks by key, and everything that changes them.
//!
//! One lock orders all changes of a dispatcher. Calls through an operator never
//! take it; a call by name takes it for reading while it looks the name up.
//! Nothing is dropped under it: a kernel's destructor may be a Python object's,
//! which may run code that registers kernels.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use keyfold_core::{Error, ErrorKind, Result};

use crate::errors;
use crate::handle::{Handle, Subject};
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

/// An operator and the definitions that keep it.
struct Entry<V: Value> {
    operator: Arc<Operator<V>>,
    /// One per `define`; the operator goes with the last.
    definitions: Vec<u64>,
}

pub(crate) struct Registry<V: Value> {
    entries: HashMap<String, Entry<V>>,
    /// Full names of the overloads of each qualified name, in declaration order.
    overloads: HashMap<String, Vec<String>>,
    pub(crate) fallbacks: Registrations<V>,
}

pub(crate) struct Inner<V: Value> {
    registry: RwLock<Registry<V>>,
    next_id: AtomicU64,
    /// Counts definitions and their removals, for caches of what names mean.
    generation: AtomicU64,
    plain_names: bool,
}

/// Operators, their kernels and the fallbacks of the keys. Cloning shares.
///
/// There is one for the process in the facade crate, and as many isolated ones
/// as are made with [`Dispatcher::new`]; they share the dispatch keys and nothing else.
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

/// How an operator is defined, beyond its schema.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefineOptions {
    /// Whether arguments may live on different devices.
    pub mixed_devices: bool,
    /// Whether arguments may be arrays of different libraries, where a host language has several.
    pub mixed_arrays: bool,
    /// Further facts that hold for every call.
    pub tags: Tags,
}

impl<V: Value> Dispatcher<V> {
    /// An isolated dispatcher without operators. It takes names without a namespace.
    pub fn new() -> Self {
        Dispatcher::with_names(true)
    }

    /// A dispatcher whose operators must have a namespace: what a process shares.
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

    /// Whether both are the same dispatcher.
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

    /// Defines an operator. The same schema again gives another handle; the operator goes when
    /// the last one is removed.
    ///
    /// # Errors
    /// Text that doesn't parse, or another schema for a name that is taken.
    pub fn define(&self, schema: &str) -> Result<Handle<V>> {
        self.define_with(Schema::parse(schema)?, DefineOptions::default())
    }

    /// As [`define`](Self::define), from a parsed schema and with options.
    ///
    /// # Errors
    /// Another schema or other options for a name that is taken; a name without namespace where
    /// one is needed.
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
            let subject = Subject::Definition { operator: Arc::downgrade(&entry.operator), id };
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
        let subject = Subject::Definition { operator: Arc::downgrade(&operator), id };
        registry.overloads.entry(qualified).or_default().push(full.clone());
        registry.entries.insert(full.clone(), Entry { operator, definitions: vec![id] });
        self.0.generation.fetch_add(1, Ordering::Release);
        Ok(Handle::new(self, full, subject))
    }

    /// Whether that definition still keeps the operator.
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
        // A new operator of the same name is another operator.
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

    /// Registers a kernel for an operator that is defined, or, by a plain name that isn't, for a
    /// new operator `name(Tensor[] inputs) -> Tensor`.
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

    /// Registers a kernel at an operator that is defined.
    ///
    /// # Errors
    /// An operator that isn't defined ("define X before impl X"), and those of
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

    /// The operator that a kernel is for.
    pub(crate) fn defined(&self, name: &str) -> Result<Arc<Operator<V>>> {
        self.operator(name).map_err(|error| {
            Error::new(
                error.kind(),
                format!("define {name} before impl {name}: {}", error.message()),
            )
        })
    }

    /// Registers a kernel at an operator.
    ///
    /// # Errors
    /// A removed operator, a kernel whose signature contradicts the schema, a place that is taken
    /// (see [`Override`]), a fallthrough where calls never skip a key.
    pub fn register_with(
        &self,
        operator: &Arc<Operator<V>>,
        key: impl Into<RegistrationKey>,
        kernel: Kernel<V>,
        mode: Override,
    ) -> Result<Handle<V>> {
        let (handle, replaced) = self.add_kernel(operator, key.into(), kernel, mode, false)?;
        // Here, outside the locks: a kernel's destructor may run anything.
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
        // Declared before the locks, so that a refused kernel is dropped after them.
        let kernel = Arc::new(kernel);
        let registry = self.read();
        let mut registrations = operator.registrations();
        if operator.is_removed() {
            return Err(errors::removed(operator.name()));
        }
        let new = Registration { id, kernel: Arc::clone(&kernel) };
        let replaced = registrations.add(operator.name(), key, new, mode, keep)?;
        operator.publish(&registrations, &registry.fallbacks);
        drop(registrations);
        drop(registry);
        let subject = Subject::Kernel { operator: Arc::downgrade(operator), key, id };
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
    /// A composite alias, a place that is taken, a fallthrough where calls never skip a key.
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
        // Declared before the lock, so that a refused kernel is dropped after it.
        let kernel = Arc::new(kernel);
        let new = Registration { id, kernel: Arc::clone(&kernel) };
        let mut registry = self.write();
        let replaced = registry.fallbacks.add("the fallbacks", key, new, mode, false)?;
        Self::recompute_all(&registry);
        drop(registry);
        drop(replaced);
        thread::collect();
        Ok(Handle::new(self, format!("fallback at {key}"), Subject::Fallback { key, id }))
    }

    pub(crate) fn remove_fallback(&self, key: RegistrationKey, id: u64) -> bool {
        let mut registry = self.write();
        let removed = registry.fallbacks.remove(key, id);
        if removed.is_some() {
            Self::recompute_all(&registry);
        }
        drop(registry);
        let found = removed.is_some();
        drop(removed);
        thread::collect();
        found
    }

    fn recompute_all(registry: &Registry<V>) {
        for entry in registry.entries.values() {
            let registrations = entry.operator.registrations();
            entry.operator.publish(&registrations, &registry.fallbacks);
        }
    }

    /// Removes every operator, kernel and fallback: whoever holds one gets
    /// [`ErrorKind::OperatorRemoved`]. A kernel that holds its own dispatcher keeps it alive; this
    /// is how such a circle ends.
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

    /// Computes one operator's table anew, for keys that came after it.
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

    /// The operator of that name, `ns::name` or `ns::name.overload`.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownOperator`], with the nearest names.
    pub fn operator(&self, name: &str) -> Result<Arc<Operator<V>>> {
        let registry = self.read();
        let canonical = name.strip_suffix(".default").unwrap_or(name);
        if let Some(entry) = registry.entries.get(canonical) {
            return Ok(Arc::clone(&entry.operator));
        }
        // An operator with one overload needs no overload name.
        if let Some([only]) = registry.overloads.get(canonical).map(Vec::as_slice)
            && let Some(entry) = registry.entries.get(only)
        {
            return Ok(Arc::clone(&entry.operator));
        }
        if let Some(several) = registry.overloads.get(canonical) {
            return Err(errors::no_default(canonical, several));
        }
        if let Some((packet, overload)) = canonical.rsplit_once('.')
            && let Some(known) = registry.overloads.get(packet)
        {
            return Err(errors::unknown_overload(packet, overload, known));
        }
        Err(errors::unknown_operator(name, registry.entries.keys().map(String::as_str)))
    }

    /// The overloads of a qualified name `ns::name`, in the order of their definition.
    pub fn overloads(&self, qualified: &str) -> Vec<Arc<Operator<V>>> {
        let registry = self.read();
        let Some(names) = registry.overloads.get(qualified) else { return Vec::new() };
        names
            .iter()
            .filter_map(|name| registry.entries.get(name))
            .map(|entry| Arc::clone(&entry.operator))
            .collect()
    }

    /// Every operator, by full name, sorted.
    pub fn operators(&self) -> Vec<Arc<Operator<V>>> {
        let mut all: Vec<_> =
            self.read().entries.values().map(|entry| Arc::clone(&entry.operator)).collect();
        all.sort_by(|a, b| a.name().cmp(b.name()));
        all
    }

    /// Calls an operator by name. See [`Operator::call`].
    ///
    /// # Errors
    /// An unknown name, and those of the call.
    pub fn call(&self, name: &str, args: &[V::Ref<'_>]) -> Result<V> {
        self.operator(name)?.call(args)
    }

    /// Calls an operator by name with this key set, taken as given.
    ///
    /// # Errors
    /// An unknown name, and those of the call.
    pub fn redispatch(&self, name: &str, keyset: DispatchKeySet, args: &[V::Ref<'_>]) -> Result<V> {
        self.operator(name)?.redispatch(keyset, args)
    }

    /// Runs the kernel that an operator has at one key. See [`Operator::call_direct`].
    ///
    /// # Errors
    /// An unknown name, and those of the call.
    pub fn call_direct(
        &self,
        name: &str,
        key: impl Into<RegistrationKey>,
        args: &[V::Ref<'_>],
        keyset: Option<DispatchKeySet>,
    ) -> Result<V> {
        self.operator(name)?.call_direct(key, args, keyset)
    }

    /// Whether a call that chose this key would find a kernel: the computed entry, fallbacks
    /// not counted. False for an unknown operator.
    pub fn has_kernel(&self, name: &str, key: impl Into<RegistrationKey>) -> bool {
        self.operator(name).is_ok_and(|operator| operator.has_kernel(key.into()))
    }

    /// How many kernels are registered, over all operators and fallbacks; shadowed ones not counted.
    pub fn kernel_count(&self) -> usize {
        let registry = self.read();
        let kernels = registry.entries.values().map(|entry| entry.operator.registrations().len());
        kernels.sum::<usize>() + registry.fallbacks.len()
    }

    /// Changes whenever an operator is defined or removed: what a cache of names compares.
    pub fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }

    /// Whether names without a namespace are taken.
    pub fn takes_plain_names(&self) -> bool {
        self.0.plain_names
    }
}

/// Backends and representations are never skipped, so a fallthrough there can't mean anything.
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
