//! A plugin's shared library and its descriptor.

use std::path::{Path, PathBuf};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_plugin::abi::{Descriptor, MAGIC, REQUIREMENTS_SYMBOL, Register, Requirements, SYMBOL};

use super::elf;
use super::text;
use super::versions::HOST;
use crate::runtime::why;

/// A loaded library and its checked descriptor. Dropping it unloads the library.
pub(super) struct Library {
    path: PathBuf,
    name: String,
    version: String,
    abi_minor: u32,
    register: Register,
    _library: libloading::Library,
}

impl Library {
    /// Loads a library and checks that it is a plugin of this ABI.
    pub(super) fn open(path: &Path) -> Result<Library> {
        // Absolute, since the loader looks for a plain name in its own directories.
        let path = path.canonicalize().map_err(|error| wrong(path, &error.to_string()))?;
        if let Some(reason) = elf::refusal(&path) {
            return Err(wrong(&path, &reason));
        }
        let library = open(&path).map_err(|error| wrong(&path, &why(&error)))?;
        // SAFETY: the symbol is only used as an address.
        let symbol = unsafe { library.get::<*const Descriptor>(SYMBOL) };
        let Ok(symbol) = symbol else {
            let reason = "it is not a keyfold plugin: it exports no symbol keyfold_plugin, which \
                          keyfold_plugin::plugin!(...) makes";
            return Err(wrong(&path, reason));
        };
        let descriptor: *const Descriptor = *symbol;
        // SAFETY: a symbol of that name; magic and version are its first fields in every version,
        // and nothing else is read before they are checked.
        let (magic, major, minor) = unsafe {
            let magic = (&raw const (*descriptor).magic).read_unaligned();
            let major = (&raw const (*descriptor).abi_major).read_unaligned();
            (magic, major, (&raw const (*descriptor).abi_minor).read_unaligned())
        };
        if magic != MAGIC {
            let reason = "it is not a keyfold plugin: its symbol keyfold_plugin is something else";
            return Err(wrong(&path, reason));
        }
        // SAFETY: the symbol is only used as an address of `Requirements`, whose first field is the
        // size in every version.
        let requirements = unsafe {
            let found = library.get::<*const Requirements>(REQUIREMENTS_SYMBOL).ok();
            found.map(|requirements| read_requirements(*requirements))
        };
        let agreed = HOST.agree((major, minor), requirements);
        let abi_minor = agreed.map_err(|reason| wrong(&path, &reason))?;
        // SAFETY: a descriptor of this version.
        let descriptor = unsafe { &*descriptor };
        let text = |text, what| {
            // SAFETY: the text is constant while the library is loaded.
            let checked = unsafe { text::checked(text, what) };
            checked.map(str::to_owned).map_err(|error| wrong(&path, error.message()))
        };
        let name = text(descriptor.name, "the name in its descriptor")?;
        let version = text(descriptor.version, "the version in its descriptor")?;
        let Some(register) = descriptor.register else {
            return Err(wrong(&path, "the register function in its descriptor is null"));
        };
        Ok(Library { path, name, version, abi_minor, register, _library: library })
    }

    /// Returns the minor version of the ABI that plugin and host use.
    pub(super) fn abi_minor(&self) -> u32 {
        self.abi_minor
    }

    /// Returns the register function, for as long as the library is loaded.
    pub(super) fn register(&self) -> Register {
        self.register
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Returns an error that names the file.
    pub(super) fn error(&self, reason: &str) -> Error {
        wrong(&self.path, reason)
    }
}

/// Reads a plugin's requirements; only their size if they are too short.
///
/// # Safety
/// They have as many bytes as their first field says, and at least that field.
unsafe fn read_requirements(at: *const Requirements) -> Requirements {
    // SAFETY: the contract.
    unsafe {
        let size = (&raw const (*at).size).read_unaligned();
        if size as usize >= size_of::<Requirements>() {
            return at.read_unaligned();
        }
        Requirements { size, ..Requirements::new(0, 0) }
    }
}

/// Loads the library and resolves every symbol at once, so that a missing one is an error here, not
/// at its first call.
fn open(path: &Path) -> Result<libloading::Library, libloading::Error> {
    #[cfg(unix)]
    {
        use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
        // SAFETY: loading runs the library's initialisers, as the user requested.
        unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map(Into::into)
    }
    #[cfg(not(unix))]
    {
        // SAFETY: as above.
        unsafe { libloading::Library::new(path) }
    }
}

fn wrong(path: &Path, reason: &str) -> Error {
    Error::new(ErrorKind::Library, format!("can't load the plugin {}: {reason}", path.display()))
}
