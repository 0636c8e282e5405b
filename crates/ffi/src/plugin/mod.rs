//! Plugins: kernels from Rust crates of their own, loaded at run time.
//!
//! A plugin is a shared library with a descriptor (crate `keyfold-plugin`, [`abi`]). It is checked
//! before anything of it runs; what it registers is applied all together or not at all. Its calls
//! come back through a table of functions, so it has no registry and no thread-locals of its own.
//! The library stays loaded while a kernel of it is registered or runs.
//!
//! - `image`, `library`: the file, and its descriptor
//! - `staging`: what the plugin registers
//! - `kernel`: a call of a plugin's kernel; `values`: what passes between
//! - `table`: the functions that it calls

mod image;
mod kernel;
mod library;
mod staging;
mod table;
mod values;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{Dispatcher, Handle, RegistrationKey};
use keyfold_plugin::abi;
use keyfold_tensor::Value;

use library::Library;
use staging::Staging;

/// A kernel that a plugin registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginKernel {
    /// The operator's full name.
    pub operator: String,
    /// The key.
    pub key: RegistrationKey,
    /// The function's name in the plugin; `fallthrough` for the mark.
    pub name: String,
}

/// A plugin that was loaded, with its registrations.
///
/// Dropping it changes nothing, as with a [`Handle`]: [`close`](Plugin::close) unregisters.
pub struct Plugin {
    name: String,
    version: String,
    path: PathBuf,
    operators: Vec<String>,
    kernels: Vec<PluginKernel>,
    handles: Mutex<Vec<Handle<Value>>>,
}

/// Loads a plugin and registers what it has in a dispatcher: all of it or nothing.
///
/// # Errors
/// [`ErrorKind::Library`], which names the file: it isn't there, no shared library or one for
/// another machine, not a plugin, built for another version of the ABI, or its register function
/// failed or panicked. [`ErrorKind::Registration`] and other kinds, as they are, for what it
/// registers: a place that is taken, say.
pub fn load(path: &Path, dispatcher: &Dispatcher<Value>) -> Result<Plugin> {
    let library = Arc::new(Library::open(path)?);
    let mut staging = Staging::new(dispatcher, Arc::clone(&library));
    // SAFETY: the descriptor was checked, so this is a register function of our version; table and
    // registrar are what it expects.
    let error = unsafe {
        let registrar = (&raw mut staging).cast::<abi::HostRegistrar>();
        table::take_error((library.descriptor().register)(&raw const table::TABLE, registrar))
    };
    if let Some(error) = error {
        return Err(failed(&library, error));
    }
    let (handles, operators, kernels) = staging.commit()?;
    Ok(Plugin {
        name: library.name().to_owned(),
        version: library.version().to_owned(),
        path: library.path().to_owned(),
        operators,
        kernels,
        handles: Mutex::new(handles),
    })
}

/// The error of a plugin whose register function failed.
fn failed(library: &Library, error: Error) -> Error {
    let what = match (error.kind(), error.message().strip_prefix(table::PANICKED)) {
        (ErrorKind::KernelPanic, Some(text)) => format!("its register function panicked: {text}"),
        _ => format!("its register function failed: {}", error.message()),
    };
    library.error(&what)
}

impl Plugin {
    /// The crate's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The crate's version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The library's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The operators that it defined, by full name.
    pub fn operators(&self) -> &[String] {
        &self.operators
    }

    /// The kernels that it registered.
    pub fn kernels(&self) -> &[PluginKernel] {
        &self.kernels
    }

    /// Whether its registrations haven't been taken back.
    pub fn is_open(&self) -> bool {
        !self.handles.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Gives the handles of its registrations, the last first, for somebody else to remove.
    pub fn take_handles(&self) -> Vec<Handle<Value>> {
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = std::mem::take(&mut *handles);
        taken.reverse();
        taken
    }

    /// Takes its registrations back. Says whether there was something to take back. Calls that run
    /// end as they would; the library is unloaded after the last of them.
    pub fn close(&self) -> bool {
        self.take_handles().iter().filter(|handle| handle.remove()).count() > 0
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (operators, kernels) = (self.operators.len(), self.kernels.len());
        let state = if self.is_open() { "" } else { ", closed" };
        let (name, version) = (&self.name, &self.version);
        write!(f, "Plugin({name} {version}: {operators} operators, {kernels} kernels{state})")
    }
}
