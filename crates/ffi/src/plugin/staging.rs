//! A plugin's registrations, collected until its register function returns.

use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::schema::Schema;
use keyfold_dispatch::{
    DefineOptions, Dispatcher, Handle, Kernel, Override, Provenance, RegistrationKey, Stage,
};
use keyfold_plugin::abi::KernelSpec;
use keyfold_tensor::Value;

use super::PluginKernel;
use super::kernel::Code;
use super::library::Library;

/// The ABI's registrar.
pub(super) struct Staging {
    library: Arc<Library>,
    stage: Stage<Value>,
    operators: Vec<String>,
    kernels: Vec<PluginKernel>,
}

/// Handles, operators and kernels of a plugin.
type Registered = (Vec<Handle<Value>>, Vec<String>, Vec<PluginKernel>);

impl Staging {
    pub(super) fn new(dispatcher: &Dispatcher<Value>, library: Arc<Library>) -> Self {
        let stage = Stage::new(dispatcher);
        Staging { library, stage, operators: Vec::new(), kernels: Vec::new() }
    }

    pub(super) fn define(&mut self, schema: &str) -> Result<()> {
        let schema = Schema::parse(schema)?;
        self.operators.push(schema.name.to_string());
        self.stage.define(schema, DefineOptions::default());
        Ok(())
    }

    /// Stages a kernel. Takes ownership of its data also if it fails.
    ///
    /// # Safety
    /// `spec` keeps to the ABI, and so do its function and data.
    pub(super) unsafe fn kernel(&mut self, spec: &KernelSpec) -> Result<()> {
        // SAFETY: the caller's contract.
        let code = unsafe { Code::new(spec, Arc::clone(&self.library)) };
        if (spec.size as usize) < size_of::<KernelSpec>() {
            let (given, needed) = (spec.size, size_of::<KernelSpec>());
            return Err(Error::new(
                ErrorKind::Registration,
                format!("a kernel's description has {given} bytes and must have {needed}"),
            ));
        }
        // SAFETY: text that is valid for the call.
        let (operator, key, name) =
            unsafe { (spec.operator.get(), spec.key.get(), spec.name.get()) };
        let kernel = code?.kernel(name, self.provenance(name));
        self.add(operator, key, name, kernel)
    }

    pub(super) fn fallthrough(&mut self, operator: &str, key: &str) -> Result<()> {
        let kernel = Kernel::fallthrough().with_provenance(self.provenance("fallthrough"));
        self.add(operator, key, "fallthrough", kernel)
    }

    fn add(&mut self, operator: &str, key: &str, name: &str, kernel: Kernel<Value>) -> Result<()> {
        let key: RegistrationKey = key.parse()?;
        let (operator, name) = (operator.to_owned(), name.to_owned());
        self.stage.implement(operator.clone(), key, kernel, Override::Error);
        self.kernels.push(PluginKernel { operator, key, name });
        Ok(())
    }

    fn provenance(&self, name: &str) -> Provenance {
        Provenance {
            language: "Rust",
            name: name.to_owned(),
            module: Some(self.library.name().to_owned()),
            file: self.library.path().display().to_string(),
            line: 0,
            // Loading a plugin twice is an error, not a reload: the first one's owner has to close
            // it.
            named: false,
            instance: None,
        }
    }

    /// Registers everything, or nothing.
    pub(super) fn commit(self) -> Result<Registered> {
        let Staging { library, stage, operators, kernels } = self;
        let place = format!("the plugin {}", library.path().display());
        let handles = stage.commit().map_err(|error| error.at(&place))?;
        Ok((handles, operators, kernels))
    }
}
