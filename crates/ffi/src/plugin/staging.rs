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
use super::device::StagedDevice;
use super::kernel::Code;
use super::library::Library;
use super::text::checked;

/// The ABI's registrar.
pub(super) struct Staging {
    library: Arc<Library>,
    dispatcher: Dispatcher<Value>,
    definitions: Stage<Value>,
    operators: Vec<String>,
    kernels: Vec<StagedKernel>,
    devices: Vec<StagedDevice>,
}

/// A kernel; its key may be a staged device's, which isn't registered yet.
struct StagedKernel {
    operator: String,
    key: String,
    name: String,
    kernel: Kernel<Value>,
}

/// The registrations of a plugin.
#[derive(Default)]
pub(super) struct Registered {
    pub(super) handles: Vec<Handle<Value>>,
    pub(super) operators: Vec<String>,
    pub(super) kernels: Vec<PluginKernel>,
    pub(super) devices: Vec<Registration>,
    pub(super) device_types: Vec<DeviceType>,
}

impl Staging {
    pub(super) fn new(dispatcher: &Dispatcher<Value>, library: Arc<Library>) -> Self {
        Staging {
            library,
            dispatcher: dispatcher.clone(),
            definitions: Stage::new(dispatcher),
            operators: Vec::new(),
            kernels: Vec::new(),
            devices: Vec::new(),
        }
    }

    pub(super) fn define(&mut self, schema: &str) -> Result<()> {
        let schema = Schema::parse(schema)?;
        self.operators.push(schema.name.to_string());
        self.definitions.define(schema, DefineOptions::default());
        Ok(())
    }

    /// Stages a kernel. Takes ownership of its data also if it fails.
    ///
    /// # Safety
    /// `spec` is null or points to as many bytes as its size says, and its function and data keep to
    /// the ABI.
    pub(super) unsafe fn kernel(&mut self, spec: *const KernelSpec) -> Result<()> {
        let refused = |reason: &str| Err(Error::new(ErrorKind::Registration, reason));
        if spec.is_null() {
            return refused("a kernel's description is null");
        }
        // SAFETY: the contract; the first field is the size.
        let size = unsafe { (&raw const (*spec).size).read() } as usize;
        let needed = size_of::<KernelSpec>();
        if size < needed {
            let reason = format!("a kernel's description has {size} bytes and must have {needed}");
            return refused(&reason);
        }
        // SAFETY: the contract.
        let spec = unsafe { &*spec };
        // SAFETY: the contract. Its data is dropped if anything fails from here on.
        let code = unsafe { Code::new(spec, Arc::clone(&self.library)) };
        // SAFETY: text that is valid for the call.
        let (operator, key, name) = unsafe {
            let operator = checked(spec.operator, "a kernel's operator")?;
            let key = checked(spec.key, "a kernel's key")?;
            (operator, key, checked(spec.name, "a kernel's name")?)
        };
        let at = |error: Error| error.at(&format!("{operator}: the kernel {name}"));
        let kernel = code.map_err(at)?.kernel(name, self.provenance(name));
        self.add(operator, key, name, kernel)
    }

    pub(super) fn fallthrough(&mut self, operator: &str, key: &str) -> Result<()> {
        let kernel = Kernel::fallthrough().with_provenance(self.provenance("fallthrough"));
        self.add(operator, key, "fallthrough", kernel)
    }

    /// Stages a device, so that kernels can be staged at its key. Takes ownership of its data also if
    /// it fails.
    ///
    /// # Safety
    /// `spec` is null or keeps to the ABI, and so do its slots.
    pub(super) unsafe fn device(&mut self, spec: *const DeviceSpec) -> Result<()> {
        // SAFETY: the caller's contract.
        self.devices.push(unsafe { StagedDevice::new(spec, &self.library) }?);
        Ok(())
    }

    fn add(&mut self, operator: &str, key: &str, name: &str, kernel: Kernel<Value>) -> Result<()> {
        let is_staged = |device: &StagedDevice| key.ends_with(&device.key());
        if let Err(error) = key.parse::<RegistrationKey>()
            && !self.devices.iter().any(is_staged)
        {
            return Err(error);
        }
        let is_same = |other: &StagedKernel| other.operator == operator && other.key == key;
        if let Some(first) = self.kernels.iter().find(|other| is_same(other)) {
            let first = &first.name;
            let message = format!(
                "{operator} already has a kernel at {key} of this plugin, {first}; the second is {name}"
            );
            return Err(Error::new(ErrorKind::Registration, message));
        }
        let [operator, key, name] = [operator, key, name].map(str::to_owned);
        self.kernels.push(StagedKernel { operator, key, name, kernel });
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

    /// Registers everything, or nothing: first what needs no new device, since the name of a device
    /// type is never free again.
    pub(super) fn commit(self) -> Result<Registered> {
        let Staging { library, dispatcher, definitions, operators, kernels, devices } = self;
        let place = format!("the plugin {}", library.path().display());
        let mut done = Registered { operators, ..Registered::default() };
        let is_known = |kernel: &StagedKernel| kernel.key.parse::<RegistrationKey>().is_ok();
        let (now, later) = kernels.into_iter().partition(is_known);
        let register = || {
            done.add_kernels(definitions, now)?;
            for device in devices {
                let (kind, registration) = device.register()?;
                done.device_types.push(kind);
                done.devices.push(registration);
            }
            done.add_kernels(Stage::new(&dispatcher), later)
        };
        match register() {
            Ok(()) => Ok(done),
            Err(error) => {
                done.handles.iter().rev().for_each(|handle| _ = handle.remove());
                done.devices.iter().for_each(|device| _ = device.remove());
                Err(error.at(&place))
            }
        }
    }
}

impl Registered {
    /// Adds kernels to a stage, and commits it.
    fn add_kernels(&mut self, mut stage: Stage<Value>, kernels: Vec<StagedKernel>) -> Result<()> {
        for StagedKernel { operator, key, name, kernel } in kernels {
            let key: RegistrationKey = key.parse()?;
            stage.implement(operator.clone(), key, kernel, Override::Error);
            self.kernels.push(PluginKernel { operator, key, name });
        }
        self.handles.extend(stage.commit()?);
        Ok(())
    }
}
