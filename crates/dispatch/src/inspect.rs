//! Inspection of an operator's registrations and table.

use std::sync::Arc;

use crate::kernel::Kernel;
use crate::key::{DispatchKey, RegistrationKey};
use crate::keyset::DispatchKeySet;
use crate::operator::Operator;
use crate::registrations::Registrations;
use crate::table::{Candidate, Rule, RuntimeKey, Table, candidates};
use crate::value::Value;

/// One entry of an operator's computed table.
pub struct TableEntry<V: Value> {
    /// The runtime key's name: `CPU`, `AutogradCUDA`.
    pub runtime_key: String,
    /// The functionality; `None` for the plain backend's entry.
    pub functionality: Option<DispatchKey>,
    /// The backend.
    pub backend: DispatchKey,
    /// The kernel, which may be a fallthrough.
    pub kernel: Arc<Kernel<V>>,
    /// Where the kernel was registered.
    pub registered_at: RegistrationKey,
    /// The rule by which it won.
    pub rule: Rule,
    /// The kernels that lost: key, rule and kernel of each.
    pub losers: Vec<(RegistrationKey, Rule, Arc<Kernel<V>>)>,
}

impl<V: Value> Operator<V> {
    /// Returns the entries of the computed table: of this operator's kernels, and with `fallbacks`
    /// also of the keys' fallbacks. Runtime keys without a kernel are left out. Backends come
    /// highest first, each with its functionalities, highest first.
    pub fn entries(&self, fallbacks: bool) -> Vec<TableEntry<V>> {
        self.look(|own, shared| {
            RuntimeKey::all()
                .into_iter()
                .filter_map(|runtime| entry(own, shared, runtime))
                .filter(|entry| fallbacks || entry.rule != Rule::Fallback)
                .collect()
        })
    }

    /// Returns the entry for a key over `backend`, fallbacks included.
    pub(crate) fn entry_of(&self, key: DispatchKey, backend: DispatchKey) -> Option<TableEntry<V>> {
        let functionality = (!key.is_backend()).then_some(key);
        let backend = if key.is_backend() { key } else { backend };
        self.look(|own, shared| entry(own, shared, RuntimeKey { functionality, backend }))
    }

    /// Returns whether a call with this set selects a composite at the key, so that the key's layer
    /// runs in the calls that the composite makes.
    pub fn is_composite_at(&self, key: DispatchKey, keyset: DispatchKeySet) -> bool {
        let look = |table: &Table<V>| table.entry(key, keyset).is_some_and(Kernel::is_composite);
        self.with_fresh_table(look).unwrap_or(false)
    }

    /// Returns whether the table has a kernel of the operator at this key: for a functionality
    /// without a backend, on any backend; for an alias, whether a kernel is registered at it.
    pub fn has_kernel(&self, key: RegistrationKey) -> bool {
        self.kernel_at(key).is_some()
    }

    /// Returns the kernel that [`has_kernel`](Self::has_kernel) found.
    pub fn kernel_at(&self, key: RegistrationKey) -> Option<Arc<Kernel<V>>> {
        match key {
            RegistrationKey::CompositeExplicitAutograd
            | RegistrationKey::CompositeImplicitAutograd => self.registrations().top(key).cloned(),
            RegistrationKey::Key(key) => self.own_entry(|entry| match entry.functionality {
                Some(functionality) => functionality == key,
                None => entry.backend == key,
            }),
            RegistrationKey::Narrow { functionality, backend } => self.own_entry(|entry| {
                entry.functionality == Some(functionality) && entry.backend == backend
            }),
        }
    }

    fn own_entry(&self, is_it: impl Fn(&TableEntry<V>) -> bool) -> Option<Arc<Kernel<V>>> {
        // From the lowest backend, so that a functionality's kernel is the CPU's if backends
        // differ.
        let found = self.entries(false).into_iter().rev().find(is_it)?;
        (!found.kernel.is_fallthrough()).then_some(found.kernel)
    }

    /// Returns the active kernels with the keys they are registered at.
    pub fn kernels(&self) -> Vec<(RegistrationKey, Arc<Kernel<V>>)> {
        let registrations = self.registrations();
        registrations
            .iter()
            .filter_map(|(key, stack)| Some((key, Arc::clone(&stack.last()?.kernel))))
            .collect()
    }

    /// Returns every kernel registered at a key, the active one first, then those that it shadows.
    pub fn shadow_stack(&self, key: RegistrationKey) -> Vec<Arc<Kernel<V>>> {
        let registrations = self.registrations();
        registrations.stack(key).iter().rev().map(|r| Arc::clone(&r.kernel)).collect()
    }

    /// Returns the number of active kernels.
    pub fn kernel_count(&self) -> usize {
        self.registrations().len()
    }

    fn look<R>(&self, look: impl FnOnce(&Registrations<V>, &Registrations<V>) -> R) -> R {
        match self.dispatcher() {
            Some(dispatcher) => {
                let registry = dispatcher.read();
                look(&self.registrations(), &registry.fallbacks)
            }
            None => look(&self.registrations(), &Registrations::default()),
        }
    }
}

fn entry<V: Value>(
    own: &Registrations<V>,
    shared: &Registrations<V>,
    runtime: RuntimeKey,
) -> Option<TableEntry<V>> {
    let mut found = candidates(own, shared, runtime).into_iter();
    let Candidate { kernel, registered_at, rule } = found.next()?;
    Some(TableEntry {
        runtime_key: runtime.name(),
        functionality: runtime.functionality,
        backend: runtime.backend,
        kernel: Arc::clone(kernel),
        registered_at,
        rule,
        losers: found.map(|c| (c.registered_at, c.rule, Arc::clone(c.kernel))).collect(),
    })
}
