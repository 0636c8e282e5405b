//! Handles: what a registration returns, to take it back.

use std::fmt;
use std::sync::{Arc, Weak};

use crate::dispatcher::{Dispatcher, Inner};
use crate::kernel::Kernel;
use crate::key::RegistrationKey;
use crate::operator::Operator;
use crate::value::Value;

/// What a handle stands for.
pub(crate) enum Subject<V: Value> {
    Definition { operator: Weak<Operator<V>>, id: u64 },
    Kernel { operator: Weak<Operator<V>>, key: RegistrationKey, id: u64 },
    Fallback { key: RegistrationKey, id: u64 },
}

/// A definition, kernel or fallback that was registered.
///
/// Dropping it changes nothing: only [`remove`](Handle::remove) unregisters, never garbage collection.
pub struct Handle<V: Value> {
    dispatcher: Weak<Inner<V>>,
    name: String,
    subject: Subject<V>,
}

impl<V: Value> Handle<V> {
    pub(crate) fn new(dispatcher: &Dispatcher<V>, name: String, subject: Subject<V>) -> Self {
        Handle { dispatcher: dispatcher.downgrade(), name, subject }
    }

    /// The operator's full name, or `fallback at KEY`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key that a kernel or fallback is registered at; `None` for a definition.
    pub fn key(&self) -> Option<RegistrationKey> {
        match self.subject {
            Subject::Definition { .. } => None,
            Subject::Kernel { key, .. } | Subject::Fallback { key, .. } => Some(key),
        }
    }

    /// The operator of a definition or kernel, while it lives.
    pub fn operator(&self) -> Option<Arc<Operator<V>>> {
        match &self.subject {
            Subject::Definition { operator, .. } | Subject::Kernel { operator, .. } => {
                operator.upgrade().filter(|operator| !operator.is_removed())
            }
            Subject::Fallback { .. } => None,
        }
    }

    /// The registered kernel, while it is.
    pub fn kernel(&self) -> Option<Arc<Kernel<V>>> {
        self.find(|stack, at| Some(Arc::clone(&stack.get(at)?.kernel)))
    }

    /// The kernel that this one shadows, if any.
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
            Subject::Definition { .. } => None,
            Subject::Kernel { operator, key, id } => {
                let operator = operator.upgrade()?;
                let registrations = operator.registrations();
                let stack = registrations.stack(*key);
                look(stack, position(stack, *id)?)
            }
            Subject::Fallback { key, id } => {
                let dispatcher = Dispatcher::upgrade(&self.dispatcher)?;
                let registry = dispatcher.read();
                let stack = registry.fallbacks.stack(*key);
                look(stack, position(stack, *id)?)
            }
        }
    }

    /// Takes the registration back and restores what it shadowed. Says whether there was
    /// something to take back: not if it was removed or replaced before.
    ///
    /// Calls that run the kernel go on. It is dropped, with all that it captured, when the last of them
    /// ends, on that call's thread: here where none runs, else on any thread that calls operators.
    pub fn remove(&self) -> bool {
        let Some(dispatcher) = Dispatcher::upgrade(&self.dispatcher) else { return false };
        match &self.subject {
            Subject::Definition { operator, id } => operator
                .upgrade()
                .is_some_and(|operator| dispatcher.remove_definition(&operator, *id)),
            Subject::Kernel { operator, key, id } => operator
                .upgrade()
                .is_some_and(|operator| dispatcher.remove_kernel(&operator, *key, *id)),
            Subject::Fallback { key, id } => dispatcher.remove_fallback(*key, *id),
        }
    }

    /// Whether the registration is still there (shadowed ones are).
    pub fn is_active(&self) -> bool {
        match &self.subject {
            Subject::Definition { id, .. } => Dispatcher::upgrade(&self.dispatcher)
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
            Subject::Kernel { key, .. } => write!(f, "Handle({} at {key}{state})", self.name),
            Subject::Fallback { .. } => write!(f, "Handle({}{state})", self.name),
            Subject::Definition { .. } => {
                write!(f, "Handle(definition of {}{state})", self.name)
            }
        }
    }
}
