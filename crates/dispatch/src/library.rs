//! Registering several things together: all of them, or none.

use std::fmt;

use keyfold_core::Result;

use crate::dispatcher::{DefineOptions, Dispatcher};
use crate::handle::Handle;
use crate::kernel::Kernel;
use crate::key::RegistrationKey;
use crate::registrations::Override;
use crate::schema::Schema;
use crate::value::Value;

struct Implementation<V: Value> {
    name: String,
    key: RegistrationKey,
    kernel: Kernel<V>,
    mode: Override,
}

/// Definitions and kernels that wait to be registered together.
///
/// Kernels may come before the schemas they belong to: [`commit`](Stage::commit)
/// defines first, then registers, and takes everything back if one step fails.
pub struct Stage<V: Value> {
    dispatcher: Dispatcher<V>,
    definitions: Vec<(Schema, DefineOptions)>,
    implementations: Vec<Implementation<V>>,
}

impl<V: Value> Stage<V> {
    /// An empty stage for a dispatcher.
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

    /// Registers what was staged. Handles come in the order: definitions, then kernels, each as
    /// staged.
    ///
    /// # Errors
    /// The first failure; what was registered before it is taken back.
    pub fn commit(self) -> Result<Vec<Handle<V>>> {
        let mut done = Vec::new();
        match self.apply(&mut done) {
            Ok(()) => Ok(done),
            Err(error) => {
                for handle in done.iter().rev() {
                    handle.remove();
                }
                Err(error)
            }
        }
    }

    fn apply(self, done: &mut Vec<Handle<V>>) -> Result<()> {
        for (schema, options) in self.definitions {
            done.push(self.dispatcher.define_with(schema, options)?);
        }
        for Implementation { name, key, kernel, mode } in self.implementations {
            done.push(self.dispatcher.implement(&name, key, kernel, mode)?);
        }
        Ok(())
    }
}

impl<V: Value> fmt::Debug for Stage<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (schemas, kernels) = (self.definitions.len(), self.implementations.len());
        write!(f, "Stage({schemas} definitions, {kernels} kernels)")
    }
}
