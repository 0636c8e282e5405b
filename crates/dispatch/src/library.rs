//! Registering several things together: all of them, or none.

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
    /// The first failure; what was registered before it is taken back, and what that replaced is
    /// there again.
    pub fn commit(self) -> Result<Vec<Handle<V>>> {
        let dispatcher = self.dispatcher.clone();
        let mut done = Done { handles: Vec::new(), replaced: Vec::new() };
        match self.apply(&mut done) {
            Ok(()) => {
                // Replaced kernels were only covered so far.
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

    fn apply(self, done: &mut Done<V>) -> Result<()> {
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

/// What a commit did so far.
struct Done<V: Value> {
    handles: Vec<Handle<V>>,
    /// Kernels that are to go once all is well.
    replaced: Vec<(Arc<Operator<V>>, RegistrationKey, u64)>,
}

impl<V: Value> fmt::Debug for Stage<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (schemas, kernels) = (self.definitions.len(), self.implementations.len());
        write!(f, "Stage({schemas} definitions, {kernels} kernels)")
    }
}
