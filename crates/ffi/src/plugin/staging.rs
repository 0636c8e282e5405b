//! A plugin's registrations, collected until its register function returns.

use std::sync::Arc;

use keyfold_backend::Registration;
use keyfold_core::{DeviceType, Error, ErrorKind, Result};
use keyfold_dispatch::schema::Schema;
use keyfold_dispatch::{
    DefineOptions, Dispatcher, Handle, Kernel, Override, Provenance, RegistrationKey, Stage,
};
use keyfold_plugin::abi::KernelSpec;
use keyfold_plugin::abi::device::DeviceSpec;
use keyfold_tensor::Value;

use super::PluginKernel;
use super::device::PluginDevice;
use super::kernel::Code;
use super::library::Library;

/// The ABI's registrar.
pub(super) struct Staging {
    library: Arc<Library>,
    stage: Stage<Value>,
    operators: Vec<String>,
    kernels: Vec<PluginKernel>,
    devices: Vec<PluginDevice>,
}

/// The registrations of a plugin.
pub(super) struct Registered {
    pub(super) handles: Vec<Handle<Value>>,
    pub(super) operators: Vec<String>,
    pub(super) kernels: Vec<PluginKernel>,
    pub(super) devices: Vec<Registration>,
    pub(super) device_types: Vec<DeviceType>,
}

impl Staging {
    pub(super) fn new(dispatcher: &Dispatcher<Value>, library: Arc<Library>) -> Self {
        let stage = Stage::new(dispatcher);
        let (operators, kernels, devices) = (Vec::new(), Vec::new(), Vec::new());
        Staging { library, stage, operators, kernels, devices }
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

    /// Stages a device and registers its key, so that kernels can be staged at it. Takes ownership
    /// of its data also if it fails.
    ///
    /// # Safety
    /// `spec` is null or keeps to the ABI, and so do its slots.
    pub(super) unsafe fn device(&mut self, spec: *const DeviceSpec) -> Result<()> {
        // SAFETY: the caller's contract.
        self.devices.push(unsafe { PluginDevice::new(spec, &self.library) }?);
        Ok(())
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
        let Staging { library, stage, operators, kernels, devices } = self;
        let place = format!("the plugin {}", library.path().display());
        let device_types = devices.iter().map(PluginDevice::device_type).collect();
        let mut registered = Vec::new();
        let mut done = Ok(());
        for device in devices {
            done = done.and_then(|()| device.register().map(|device| registered.push(device)));
        }
        match done.and_then(|()| stage.commit()) {
            Ok(handles) => {
                Ok(Registered { handles, operators, kernels, devices: registered, device_types })
            }
            Err(error) => {
                registered.iter().for_each(|device| drop(device.remove()));
                Err(error.at(&place))
            }
        }
    }
}
