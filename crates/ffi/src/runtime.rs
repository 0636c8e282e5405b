//! TVM FFI's own library, if the process has loaded it.
//!
//! Importing the `tvm_ffi` package loads it, and so does a kernel library linked to it. keyfold
//! looks for it among the loaded libraries and works without it; it never loads it by itself.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::OnceLock;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_tensor::dlpack::DLManagedTensorVersioned;
use libloading::os::unix::Library;

use crate::abi::{Any, ByteArray, SafeCall};
use crate::alloc::{GetAllocator, SetAllocator};
use crate::object::Object;

/// The library's name among the loaded libraries.
const SONAME: &str = "libtvm_ffi.so";

/// The hint for loading the library, in error messages.
pub(crate) const LOAD_HINT: &str = "import tvm_ffi first (pip install apache-tvm-ffi)";

type Handle = *mut c_void;

/// The functions of the library used here.
pub struct Runtime {
    pub(crate) retain: unsafe extern "C" fn(Handle) -> c_int,
    pub(crate) release: unsafe extern "C" fn(Handle) -> c_int,
    pub(crate) function_create: unsafe extern "C" fn(
        Handle,
        SafeCall,
        Option<unsafe extern "C" fn(Handle)>,
        *mut Handle,
    ) -> c_int,
    pub(crate) get_global: unsafe extern "C" fn(*const ByteArray, *mut Handle) -> c_int,
    pub(crate) set_global: unsafe extern "C" fn(*const ByteArray, Handle, c_int) -> c_int,
    pub(crate) take_raised: unsafe extern "C" fn(*mut Handle),
    pub(crate) set_raised: unsafe extern "C" fn(*const c_char, *const c_char),
    pub(crate) tensor_from_dlpack:
        unsafe extern "C" fn(*mut DLManagedTensorVersioned, i32, i32, *mut Handle) -> c_int,
    pub(crate) string: unsafe extern "C" fn(*const ByteArray, *mut Any) -> c_int,
    /// `None` in older versions of the library.
    pub(crate) allocator: Option<(GetAllocator, SetAllocator)>,
    version: (u32, u32, u32),
    array: OnceLock<Object>,
    _library: Library,
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (major, minor, patch) = self.version;
        write!(f, "Runtime(TVM FFI {major}.{minor}.{patch})")
    }
}

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

/// Returns the library's functions, if the process has loaded it. The result is cached.
pub fn loaded() -> Option<&'static Runtime> {
    required().ok()
}

/// Returns the library's functions.
///
/// # Errors
/// [`ErrorKind::Library`] with a hint if it isn't loaded, or if it lacks one of the functions.
pub fn required() -> Result<&'static Runtime> {
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    // SAFETY: `RTLD_NOLOAD` loads nothing, so no initialiser runs.
    let library = unsafe { Library::open(Some(SONAME), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    let library = library.map_err(|_| {
        Error::new(ErrorKind::Library, format!("TVM FFI's library isn't loaded; {LOAD_HINT}"))
    })?;
    adopt(library)
}

/// Loads the library from a file, unless one is loaded, and returns its functions. A process uses
/// one library only, since another one's objects are unknown to it.
///
/// # Errors
/// [`ErrorKind::Library`] if it can't be loaded or lacks one of the functions.
///
/// # Safety
/// The file is TVM FFI's library, or one that keeps to its ABI.
pub unsafe fn load(path: &Path) -> Result<&'static Runtime> {
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    // SAFETY: the caller's contract; its initialisers should run.
    let library = unsafe { Library::open(Some(path), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    let library = library.map_err(|error| {
        let message = format!("can't load {}: {}", path.display(), why(&error));
        Error::new(ErrorKind::Library, message)
    })?;
    adopt(library)
}

fn adopt(library: Library) -> Result<&'static Runtime> {
    let found = look_up(library)?;
    Ok(RUNTIME.get_or_init(|| found))
}

/// Returns the loader's message, which libloading keeps as its error's source.
pub fn why(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    }
}

/// Looks up the functions.
fn look_up(library: Library) -> Result<Runtime> {
    /// # Safety
    /// `F` is the type of the function `name`.
    unsafe fn symbol<F: Copy>(library: &Library, name: &str) -> Result<F> {
        // SAFETY: the caller's contract.
        unsafe { library.get::<F>(name) }.map(|found| *found).map_err(|error| {
            let message = format!("TVM FFI's library has no {name}: {}", why(&error));
            Error::new(ErrorKind::Library, message)
        })
    }
    let mut version = [0_u32; 3];
    // SAFETY: the types are those of the library's header, and the version is three numbers.
    unsafe {
        let tell: unsafe extern "C" fn(*mut u32) = symbol(&library, "TVMFFIGetVersion")?;
        tell(version.as_mut_ptr());
        let get = symbol(&library, "TVMFFIEnvGetDLPackManagedTensorAllocator");
        let set = symbol(&library, "TVMFFIEnvSetDLPackManagedTensorAllocator");
        Ok(Runtime {
            allocator: get.ok().zip(set.ok()),
            retain: symbol(&library, "TVMFFIObjectIncRef")?,
            release: symbol(&library, "TVMFFIObjectDecRef")?,
            function_create: symbol(&library, "TVMFFIFunctionCreate")?,
            get_global: symbol(&library, "TVMFFIFunctionGetGlobal")?,
            set_global: symbol(&library, "TVMFFIFunctionSetGlobal")?,
            take_raised: symbol(&library, "TVMFFIErrorMoveFromRaised")?,
            set_raised: symbol(&library, "TVMFFIErrorSetRaisedFromCStr")?,
            tensor_from_dlpack: symbol(&library, "TVMFFITensorFromDLPackVersioned")?,
            string: symbol(&library, "TVMFFIStringFromByteArray")?,
            version: (version[0], version[1], version[2]),
            array: OnceLock::new(),
            _library: library,
        })
    }
}

impl Runtime {
    /// Returns the library's version.
    pub fn version(&self) -> (u32, u32, u32) {
        self.version
    }

    /// Returns the global function of that name.
    ///
    /// # Errors
    /// The errors that the library raises.
    pub fn global(&'static self, name: &str) -> Result<Option<Object>> {
        let mut handle = null_mut();
        // SAFETY: the text is alive; the library stores a new reference, or null.
        self.check(unsafe { (self.get_global)(&ByteArray::of(name), &raw mut handle) })?;
        // SAFETY: a new reference, owned here.
        Ok(unsafe { Object::owned(handle, self) })
    }

    /// Registers a function under a global name.
    ///
    /// # Errors
    /// The errors that the library raises: the name is taken and `replace` isn't set.
    pub fn set_global(&'static self, name: &str, function: &Object, replace: bool) -> Result<()> {
        // SAFETY: text and object are alive; the library takes a reference of its own.
        self.check(unsafe {
            (self.set_global)(&ByteArray::of(name), function.handle(), c_int::from(replace))
        })
    }

    /// Returns the library's constructor of lists.
    pub(crate) fn array(&'static self) -> Result<&'static Object> {
        if let Some(array) = self.array.get() {
            return Ok(array);
        }
        let found = self.global("ffi.Array")?.ok_or_else(|| {
            let message = "TVM FFI's library has no global function ffi.Array";
            Error::new(ErrorKind::Library, message)
        })?;
        Ok(self.array.get_or_init(|| found))
    }

    /// Returns the pending error if the code of a library function isn't 0.
    pub(crate) fn check(&'static self, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        Err(match crate::error::ForeignError::take(self) {
            Some(raised) => raised.into_error("TVM FFI"),
            None => {
                let message = format!("TVM FFI failed with code {code}");
                Error::new(ErrorKind::KernelFailed, message)
            }
        })
    }

    /// Sets the calling thread's pending error, as a function of the ABI does before it returns -1.
    pub fn raise(&self, kind: &str, message: &str) {
        let text = |text: &str| CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
        let (kind, message) = (text(kind), text(message));
        // SAFETY: the library copies both.
        unsafe { (self.set_raised)(kind.as_ptr(), message.as_ptr()) };
    }
}
