//! One operator: its schema, its registrations and its table.
//!
//! Calls are in `call`, checks of arguments and results in `check`.

mod call;
mod check;

use std::any::Any;
use std::fmt;
use std::sync::atomic::AtomicBool as StdAtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use keyfold_core::{Error, ErrorKind, Result};

use crate::dispatcher::{DefineOptions, Dispatcher, Inner};
use crate::kernel::Kernel;
use crate::registrations::Registrations;
use crate::schema::Schema;
use crate::sync::{AtomicPtr, Ordering};
use crate::table::Table;
use crate::tags::Tags;
use crate::thread::DOMAIN;
use crate::value::Value;

/// An operator (one overload) of a dispatcher.
#[repr(C)]
pub struct Operator<V: Value> {
    // The first field, since the call path reads no other.
    table: AtomicPtr<Table<V>>,
    name: Arc<str>,
    schema: Schema,
    /// The schema's defaults as values, one per argument.
    defaults: Vec<Option<V>>,
    options: DefineOptions,
    isolated: bool,
    removed: StdAtomicBool,
    registrations: Mutex<Registrations<V>>,
    dispatcher: Weak<Inner<V>>,
    /// A weak reference to itself, for [`share`](Self::share).
    this: Weak<Operator<V>>,
    /// An object of the host language, such as its own operator object.
    host: Mutex<Option<Box<dyn Any + Send + Sync>>>,
}

impl<V: Value> Operator<V> {
    /// # Errors
    /// If a default of the schema isn't a value of `V`.
    pub(crate) fn new(
        schema: Schema,
        options: DefineOptions,
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
                let text = literal.to_string();
                let shown: String = text.chars().take(60).collect();
                let more = if shown.len() < text.len() { "..." } else { "" };
                Error::new(
                    ErrorKind::Schema,
                    format!(
                        "{name}: the default of argument '{}', {shown}{more}, is no value of type {}",
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
            options,
            isolated,
            removed: StdAtomicBool::new(false),
            registrations: Mutex::new(registrations),
            dispatcher,
            this: Weak::clone(this),
            host: Mutex::new(None),
        }))
    }

    /// Returns the full name, `ns::name` or `ns::name.overload`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the schema.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Returns the default value of an argument, if it has one.
    pub fn default_value(&self, argument: usize) -> Option<&V> {
        self.defaults.get(argument)?.as_ref()
    }

    /// Returns whether the operator takes arguments on different devices.
    pub fn allows_mixed_devices(&self) -> bool {
        self.options.mixed_devices
    }

    /// Returns the tags: properties beyond the schema that hold for every call.
    pub fn tags(&self) -> Tags {
        self.options.tags
    }

    /// Returns the options of the definition.
    pub fn options(&self) -> DefineOptions {
        self.options
    }

    /// Returns a counted reference, for a kernel that only borrows the operator.
    pub fn share(&self) -> Arc<Operator<V>> {
        self.this.upgrade().unwrap_or_else(|| unreachable!("operators live in an Arc"))
    }

    /// Runs `look` on the host language's object.
    pub fn host<R>(&self, look: impl FnOnce(Option<&(dyn Any + Send + Sync)>) -> R) -> R {
        look(self.host.lock().unwrap_or_else(PoisonError::into_inner).as_deref())
    }

    /// Stores an object of the host language, in place of the previous one.
    pub fn set_host(&self, object: Box<dyn Any + Send + Sync>) {
        let old = self.host.lock().unwrap_or_else(PoisonError::into_inner).replace(object);
        // Dropped outside the lock: it may be the last reference to an object with a destructor.
        drop(old);
    }

    /// Returns whether it belongs to an isolated dispatcher, made with [`Dispatcher::new`].
    #[inline]
    pub fn is_isolated(&self) -> bool {
        self.isolated
    }

    /// Returns whether it was removed; calls then return [`ErrorKind::OperatorRemoved`].
    pub fn is_removed(&self) -> bool {
        self.removed.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Returns its dispatcher, unless that was dropped.
    pub fn dispatcher(&self) -> Option<Dispatcher<V>> {
        Dispatcher::upgrade(&self.dispatcher)
    }

    pub(crate) fn registrations(&self) -> MutexGuard<'_, Registrations<V>> {
        // Each change under the lock is one push, pop or replacement, so the state is consistent
        // after any panic.
        self.registrations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Computes and publishes the table. The caller holds the registrations' lock, and collects
    /// afterwards.
    pub(crate) fn publish(&self, registrations: &Registrations<V>, fallbacks: &Registrations<V>) {
        let table = Table::compute(self.name.clone(), registrations, fallbacks);
        self.swap_table(table);
    }

    /// Removes the operator: it has no kernels, and calls return an error. Returns the registered
    /// kernels, to be dropped outside of any lock.
    pub(crate) fn remove(&self) -> Vec<Arc<Kernel<V>>> {
        let mut registrations = self.registrations();
        self.removed.store(true, std::sync::atomic::Ordering::Release);
        self.swap_table(Table::empty(self.name.clone()));
        registrations.clear()
    }

    fn swap_table(&self, table: Table<V>) {
        let old = self.table.swap(Box::into_raw(Box::new(table)), Ordering::AcqRel);
        // SAFETY: the pointer was made by `Box::into_raw`, here or in `new`, and the swap unlinked
        // it, so it is retired once.
        DOMAIN.retire(unsafe { Box::from_raw(old) });
    }
}

impl<V: Value> Drop for Operator<V> {
    fn drop(&mut self) {
        // SAFETY: the pointer was made by `Box::into_raw`. Readers reach the table only through a
        // reference to the operator, of which none is left.
        drop(unsafe { Box::from_raw(self.table.load(Ordering::Acquire)) });
    }
}

impl<V: Value> fmt::Debug for Operator<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_removed() { ", removed" } else { "" };
        write!(f, "Operator({}, {} kernels{state})", self.schema, self.registrations().len())
    }
}
