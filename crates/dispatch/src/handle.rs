//! Handles, with which registrations are removed.

use std::fmt;
use std::sync::{Arc, Weak};

use crate::dispatcher::{Dispatcher, Inner};
use crate::kernel::Kernel;
use crate::key::RegistrationKey;
use crate::operator::Operator;
use crate::value::Value;

/// The registration that a handle refers to.
pub(crate) enum HandleTarget<V: Value> {
    Definition { operator: Weak<Operator<V>>, id: u64 },
    Kernel { operator: Weak<Operator<V>>, key: RegistrationKey, id: u64 },
    Fallback { key: RegistrationKey, id: u64 },
}

/// A definition, kernel or fallback that was registered.
///
/// Dropping it changes nothing; only [`remove`](Handle::remove) unregisters.
pub struct Handle<V: Value> {
    dispatcher: Weak<Inner<V>>,
    name: String,
    subject: HandleTarget<V>,
}

impl<V: Value> Handle<V> {
    pub(crate) fn new(dispatcher: &Dispatcher<V>, name: String, subject: HandleTarget<V>) -> Self {
        Handle { dispatcher: dispatcher.downgrade(), name, subject }
    }

    /// Returns the operator's full name, or `fallback at KEY`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the key of a kernel or fallback; `None` for a definition.
    pub fn key(&self) -> Option<RegistrationKey> {
        match self.subject {
            HandleTarget::Definition { .. } => None,
            HandleTarget::Kernel { key, .. } | HandleTarget::Fallback { key, .. } => Some(key),
        }
    }

    /// Returns the operator of a definition or kernel, unless it was dropped.
    pub fn operator(&self) -> Option<Arc<Operator<V>>> {
        match &self.subject {
            HandleTarget::Definition { operator, .. } | HandleTarget::Kernel { operator, .. } => {
                operator.upgrade().filter(|operator| !operator.is_removed())
            }
            HandleTarget::Fallback { .. } => None,
        }
    }

    /// Returns the registered kernel, unless it was removed.
    pub fn kernel(&self) -> Option<Arc<Kernel<V>>> {
        self.find(|stack, at| Some(Arc::clone(&stack.get(at)?.kernel)))
    }

    /// Returns the kernel that this one shadows, if any.
    pub fn shadowed(&self) -> Option<Arc<Kernel<V>>> {
        self.find(|stack, at| Some(Arc::clone(&stack.get(at.checked_sub(1)?)?.kernel)))
    }

    fn find<R>(
        &self,
        look: impl FnOnce(&[crate::registrations::Registration<V>], usize) -> Option<R>,
    ) -> Option<R> {
        let position = |stack: &[crate::registrations::Registration<V>], id| {
            stack.iter().position(|registration| registration.id == id)
        };
        match &self.subject {
            HandleTarget::Definition { .. } => None,
            HandleTarget::Kernel { operator, key, id } => {
                let operator = operator.upgrade()?;
                let registrations = operator.registrations();
                let stack = registrations.stack(*key);
                look(stack, position(stack, *id)?)
            }
            HandleTarget::Fallback { key, id } => {
                let dispatcher = Dispatcher::upgrade(&self.dispatcher)?;
                let registry = dispatcher.read();
                let stack = registry.fallbacks.stack(*key);
                look(stack, position(stack, *id)?)
            }
        }
    }

    /// Removes the registration and restores the kernel that it shadowed. Returns false if it was
    /// removed or replaced before.
    ///
    /// Running calls of the kernel finish. The kernel and its captures are dropped at the end of
    /// the last of them, on its thread: here if none is running, otherwise on any thread that calls
    /// operators.
    pub fn remove(&self) -> bool {
        let Some(dispatcher) = Dispatcher::upgrade(&self.dispatcher) else { return false };
        match &self.subject {
            HandleTarget::Definition { operator, id } => operator
                .upgrade()
                .is_some_and(|operator| dispatcher.remove_definition(&operator, *id)),
            HandleTarget::Kernel { operator, key, id } => operator
                .upgrade()
                .is_some_and(|operator| dispatcher.remove_kernel(&operator, *key, *id)),
            HandleTarget::Fallback { key, id } => dispatcher.remove_fallback(*key, *id),
        }
    }

    /// Returns whether the registration is in place; shadowed ones are.
    pub fn is_active(&self) -> bool {
        match &self.subject {
            HandleTarget::Definition { id, .. } => Dispatcher::upgrade(&self.dispatcher)
                .zip(self.operator())
                .is_some_and(|(dispatcher, operator)| dispatcher.is_defined(&operator, *id)),
            _ => self.kernel().is_some(),
        }
    }
}

impl<V: Value> fmt::Debug for Handle<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_active() { "" } else { ", removed" };
        match &self.subject {
            HandleTarget::Kernel { key, .. } => write!(f, "Handle({} at {key}{state})", self.name),
            HandleTarget::Fallback { .. } => write!(f, "Handle({}{state})", self.name),
            HandleTarget::Definition { .. } => {
                write!(f, "Handle(definition of {}{state})", self.name)
            }
        }
    }
}
