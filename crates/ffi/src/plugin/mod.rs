//! Plugins: kernels and devices from Rust crates of their own, loaded at run time.
//!
//! A plugin is a shared library with a descriptor (crate `keyfold-plugin`, [`abi`]), which is
//! checked before any code of the plugin runs. Its registrations are applied all together or not at
//! all. A plugin calls the host through a table of functions; it has no registry and no
//! thread-locals of its own. The library stays loaded while a kernel of it is registered or runs,
//! and while a tensor's memory or an event is its.
//!
//! - `elf`, `library`: the file and its descriptor; `versions`: the version that both sides use
//! - `staging`: the plugin's registrations
//! - `kernel`: a call of a plugin's kernel; `values`: its arguments and results
//! - `device`: its devices
//! - `table`: the host's functions; `text`: a plugin's texts, checked

mod device;
mod elf;
mod kernel;
mod library;
mod staging;
mod table;
mod text;
mod values;
mod versions;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use keyfold_backend::Registration;
use keyfold_core::{DeviceType, Error, ErrorKind, Result};
use keyfold_dispatch::{Dispatcher, Handle, RegistrationKey};
use keyfold_plugin::abi;
use keyfold_tensor::Value;

use library::Library;
use staging::{Registered, Staging};

/// A kernel that a plugin registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginKernel {
    /// The operator's full name.
    pub operator: String,
    /// The key of the registration.
    pub key: RegistrationKey,
    /// The function's name in the plugin; `fallthrough` for a fallthrough.
    pub name: String,
}

/// A plugin that was loaded, with its registrations.
///
/// Dropping it changes nothing, as with a [`Handle`]; [`close`](Plugin::close) unregisters.
pub struct Plugin {
    name: String,
    version: String,
    path: PathBuf,
    operators: Vec<String>,
    kernels: Vec<PluginKernel>,
    abi: (u32, u32),
    device_types: Vec<DeviceType>,
    handles: Mutex<Vec<Handle<Value>>>,
    devices: Mutex<Vec<Registration>>,
}

/// Loads a plugin and registers all its definitions and kernels in a dispatcher, and its devices in
/// the process, or none of them. Of the twelve names of device types that a process has, a load that
/// fails takes none, unless a kernel at the new device's own key is refused.
///
/// # Errors
/// [`ErrorKind::Library`], with the file's name, if the file is missing, isn't a shared library or
/// is one for another machine, isn't a plugin, needs another version or feature of the ABI, or if
/// its register function fails or panics. [`ErrorKind::Registration`] and other kinds if a registration
/// is refused, as for an occupied key.
pub fn load(path: &Path, dispatcher: &Dispatcher<Value>) -> Result<Plugin> {
    let library = Arc::new(Library::open(path)?);
    let mut staging = Staging::new(dispatcher, Arc::clone(&library));
    let registrar = (&raw mut staging).cast::<abi::HostRegistrar>();
    // SAFETY: the descriptor was checked, so this is a register function of this version; table and
    // registrar have the types that it expects.
    let error = unsafe { table::take_held(library.register()(table::address(), registrar)) };
    if let Some(held) = error {
        return Err(failed(&library, held.error));
    }
    let Registered { handles, operators, kernels, devices, device_types } = staging.commit()?;
    Ok(Plugin {
        name: library.name().to_owned(),
        version: library.version().to_owned(),
        path: library.path().to_owned(),
        abi: (abi::ABI_MAJOR, library.abi_minor()),
        operators,
        kernels,
        device_types,
        handles: Mutex::new(handles),
        devices: Mutex::new(devices),
    })
}

/// Returns the error of a plugin whose register function failed.
fn failed(library: &Library, error: Error) -> Error {
    let what = match (error.kind(), error.message().strip_prefix(table::PANICKED)) {
        (ErrorKind::KernelPanic, Some(text)) => format!("its register function panicked: {text}"),
        _ => format!("its register function failed: {}", error.message()),
    };
    library.error(&what)
}

impl Plugin {
    /// Returns the crate's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the crate's version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the library's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the full names of the operators that it defined.
    pub fn operators(&self) -> &[String] {
        &self.operators
    }

    /// Returns the kernels that it registered.
    pub fn kernels(&self) -> &[PluginKernel] {
        &self.kernels
    }

    /// Returns the types of its devices.
    pub fn device_types(&self) -> &[DeviceType] {
        &self.device_types
    }

    /// Returns the version of the plugin ABI that it and the host use: major, minor.
    pub fn abi_version(&self) -> (u32, u32) {
        self.abi
    }

    /// Returns whether its registrations are in place.
    pub fn is_open(&self) -> bool {
        let handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        let devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        !handles.is_empty() || !devices.is_empty()
    }

    /// Returns the handles of its registrations, the last first, and leaves removal to the caller.
    pub fn take_handles(&self) -> Vec<Handle<Value>> {
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = std::mem::take(&mut *handles);
        taken.reverse();
        taken
    }

    /// Removes its devices, the last first. Returns whether there were any. Their tensors stay
    /// valid and can be copied to another device, and keep the library loaded.
    pub fn remove_devices(&self) -> bool {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = std::mem::take(&mut *devices);
        drop(devices);
        taken.iter().rev().filter(|device| device.remove().is_some()).count() > 0
    }

    /// Removes its registrations. Returns whether there were any. Running calls finish; the library
    /// is unloaded after the last of them, and after the last of its devices' tensors.
    pub fn close(&self) -> bool {
        let removed = self.take_handles().iter().filter(|handle| handle.remove()).count();
        self.remove_devices() || removed > 0
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (operators, kernels) = (self.operators.len(), self.kernels.len());
        let state = if self.is_open() { "" } else { ", closed" };
        let (name, version) = (&self.name, &self.version);
        let devices: Vec<String> = self.device_types.iter().map(|kind| kind.name()).collect();
        let devices = match devices.is_empty() {
            true => String::new(),
            false => format!(", device {}", devices.join(", ")),
        };
        write!(
            f,
            "Plugin({name} {version}: {operators} operators, {kernels} kernels{devices}{state})"
        )
    }
}
