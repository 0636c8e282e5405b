//! Registering several definitions and kernels together: all of them, or none.

use std::fmt;
use std::sync::Arc;

use keyfold_core::Result;

use crate::dispatcher::{DefineOptions, Dispatcher};
use crate::handle::Handle;
use crate::kernel::Kernel;
use crate::key::RegistrationKey;
use crate::operator::Operator;
use crate::registrations::{Override, Replaced};
use crate::schema::Schema;
use crate::value::Value;

struct Implementation<V: Value> {
    name: String,
    key: RegistrationKey,
    kernel: Kernel<V>,
    mode: Override,
}

/// Definitions and kernels to be registered together.
///
/// Kernels may be staged before their schemas: [`commit`](Stage::commit) defines first, then
/// registers, and undoes everything if one step fails.
pub struct Stage<V: Value> {
    dispatcher: Dispatcher<V>,
    definitions: Vec<(Schema, DefineOptions)>,
    implementations: Vec<Implementation<V>>,
}

impl<V: Value> Stage<V> {
    /// Returns an empty stage for a dispatcher.
    pub fn new(dispatcher: &Dispatcher<V>) -> Self {
        Stage {
            dispatcher: dispatcher.clone(),
            definitions: Vec::new(),
            implementations: Vec::new(),
        }
    }

    /// Stages a definition.
    pub fn define(&mut self, schema: Schema, options: DefineOptions) -> &mut Self {
        self.definitions.push((schema, options));
        self
    }

    /// Stages a kernel.
    pub fn implement(
        &mut self,
        name: impl Into<String>,
        key: impl Into<RegistrationKey>,
        kernel: Kernel<V>,
        mode: Override,
    ) -> &mut Self {
        let (name, key) = (name.into(), key.into());
        self.implementations.push(Implementation { name, key, kernel, mode });
        self
    }

    /// Registers everything staged. Handles are in the order: definitions, then kernels, each as
    /// staged.
    ///
    /// # Errors
    /// The first failure; earlier registrations are undone, and the kernels that they replaced
    /// restored.
    pub fn commit(self) -> Result<Vec<Handle<V>>> {
        let dispatcher = self.dispatcher.clone();
        let mut done = Committed { handles: Vec::new(), replaced: Vec::new() };
        match self.apply(&mut done) {
            Ok(()) => {
                // Until here, replaced kernels are only shadowed.
                for (operator, key, id) in done.replaced {
                    dispatcher.remove_kernel(&operator, key, id);
                }
                Ok(done.handles)
            }
            Err(error) => {
                for handle in done.handles.iter().rev() {
                    handle.remove();
                }
                Err(error)
            }
        }
    }

    fn apply(self, done: &mut Committed<V>) -> Result<()> {
        for (schema, options) in self.definitions {
            done.handles.push(self.dispatcher.define_with(schema, options)?);
        }
        for Implementation { name, key, kernel, mode } in self.implementations {
            let operator = self.dispatcher.defined(&name)?;
            let (handle, replaced) =
                self.dispatcher.add_kernel(&operator, key, kernel, mode, true)?;
            done.handles.push(handle);
            if let Replaced::Kept(id) = replaced {
                done.replaced.push((operator, key, id));
            }
        }
        Ok(())
    }
}

/// The completed steps of a commit.
struct Committed<V: Value> {
    handles: Vec<Handle<V>>,
    /// Replaced kernels, to be removed once all steps have succeeded.
    replaced: Vec<(Arc<Operator<V>>, RegistrationKey, u64)>,
}

impl<V: Value> fmt::Debug for Stage<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (schemas, kernels) = (self.definitions.len(), self.implementations.len());
        write!(f, "Stage({schemas} definitions, {kernels} kernels)")
    }
}
