//! libcudnn itself: its functions, loaded at run time, and its errors.
//!
//! The functions are declared here and not taken from cudarc: cudnnStatus_t and the other enums that come back
//! are integers, since a later version may have others.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};

use crate::status;

type Descriptor = *mut c_void;

/// The functions that are used, each checked to be there when the library is loaded.
struct Functions {
    create: unsafe extern "C" fn(c_int, *mut Descriptor) -> c_int,
    destroy: unsafe extern "C" fn(Descriptor) -> c_int,
    set: unsafe extern "C" fn(Descriptor, c_int, c_int, i64, *const c_void) -> c_int,
    get: unsafe extern "C" fn(Descriptor, c_int, c_int, i64, *mut i64, *mut c_void) -> c_int,
    finalize: unsafe extern "C" fn(Descriptor) -> c_int,
    execute: unsafe extern "C" fn(*mut c_void, Descriptor, Descriptor) -> c_int,
    last_error: unsafe extern "C" fn(*mut c_char, usize),
    create_handle: unsafe extern "C" fn(*mut *mut c_void) -> c_int,
    destroy_handle: unsafe extern "C" fn(*mut c_void) -> c_int,
    set_stream: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
}

/// Returns a function of a library, or `None` where it has none of that name.
///
/// # Safety
/// `T` is the function's type.
unsafe fn symbol<T: Copy>(library: &libloading::Library, name: &str) -> Option<T> {
    // SAFETY: the caller's contract.
    unsafe { library.get::<T>(name) }.ok().map(|found| *found)
}

impl Functions {
    /// Finds them, or returns the name of the first that isn't there.
    ///
    /// # Safety
    /// The library is libcudnn 9.
    unsafe fn of(library: &libloading::Library) -> Result<Functions, &'static str> {
        // SAFETY: the declared types are those of the headers.
        unsafe fn find<T: Copy>(
            library: &libloading::Library,
            name: &'static str,
        ) -> Result<T, &'static str> {
            // SAFETY: as the callers below.
            unsafe { symbol(library, name) }.ok_or(name)
        }
        // SAFETY: each is found by its own name, and declared above as in cudnn_graph.h and cudnn_ops.h.
        unsafe {
            Ok(Functions {
                create: find(library, "cudnnBackendCreateDescriptor")?,
                destroy: find(library, "cudnnBackendDestroyDescriptor")?,
                set: find(library, "cudnnBackendSetAttribute")?,
                get: find(library, "cudnnBackendGetAttribute")?,
                finalize: find(library, "cudnnBackendFinalize")?,
                execute: find(library, "cudnnBackendExecute")?,
                last_error: find(library, "cudnnGetLastErrorString")?,
                create_handle: find(library, "cudnnCreate")?,
                destroy_handle: find(library, "cudnnDestroy")?,
                set_stream: find(library, "cudnnSetStream")?,
            })
        }
    }
}

/// Returns what the loader says of a file, which libloading has as its error's source.
pub(crate) fn loader_says(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), ToString::to_string)
}

/// A loaded libcudnn.
pub struct Library {
    functions: Functions,
    path: PathBuf,
    version: Version,
    cudart_version: usize,
    /// Unloading it would leave threads of its own without code: it stays until the process ends.
    _library: std::mem::ManuallyDrop<libloading::Library>,
}

/// A version of cuDNN, 9 or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(usize);

impl Version {
    /// Returns the version of what `cudnnGetVersion` returned.
    pub(crate) fn of(number: usize) -> Version {
        Version(number)
    }

    /// Returns the major number.
    pub fn major(self) -> usize {
        // Before 9 it was counted in thousands.
        if self.0 < 10_000 { self.0 / 1000 } else { self.0 / 10_000 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (minor, patch) = match self.0 < 10_000 {
            true => (self.0 / 100 % 10, self.0 % 100),
            false => (self.0 / 100 % 100, self.0 % 100),
        };
        write!(f, "{}.{minor}.{patch}", self.major())
    }
}

/// The versions whose descriptors are known.
const MAJOR: usize = 9;

impl Library {
    /// Loads what [`find`](crate::find) found, behind the libraries that no loader's path leads to.
    ///
    /// # Errors
    /// Those of [`Library::load`].
    pub fn load_found(found: &crate::find::Candidate) -> Result<Arc<Library>> {
        for path in crate::find::companions(&found.folders) {
            // SAFETY: NVIDIA's libraries have no requirements for being loaded. Where one can't be, libcudnn says what
            // it lacks.
            let library = unsafe { libloading::Library::new(&path) };
            // It stays for libcudnn, which finds it by its name.
            let _stays = library.map(std::mem::ManuallyDrop::new);
        }
        Library::load(&found.path)
    }

    /// Loads a file, or what the loader finds by a name, and everything that it uses.
    ///
    /// # Errors
    /// [`ErrorKind::Library`] for a file that isn't there or can't be loaded, that lacks a function, and for
    /// a major version other than 9.
    pub fn load(path: &Path) -> Result<Arc<Library>> {
        let wrong = |what: String| {
            Error::new(ErrorKind::Library, format!("cuDNN's library {}: {what}", path.display()))
        };
        // SAFETY: the initialisers of NVIDIA's library have no requirements. A file that isn't that library
        // runs its own, as in any dlopen of a path that the user names.
        let library = unsafe { libloading::Library::new(path) }
            .map_err(|error| wrong(format!("can't be loaded: {}", loader_says(&error))))?;
        let missing = |name: &str| {
            wrong(format!("has no function {name}: it isn't cuDNN 9, or a part of it is missing"))
        };
        // SAFETY: the types are those of cudnn_graph.h and cudnn_ops.h, with enums as C's int.
        let (functions, version, cudart_version) = unsafe {
            let version: unsafe extern "C" fn() -> usize =
                symbol(&library, "cudnnGetVersion").ok_or_else(|| missing("cudnnGetVersion"))?;
            let version = Version::of(version());
            if version.major() != MAJOR {
                return Err(wrong(format!("is version {version}, and {MAJOR} is needed")));
            }
            let cudart: unsafe extern "C" fn() -> usize = symbol(&library, "cudnnGetCudartVersion")
                .ok_or_else(|| missing("cudnnGetCudartVersion"))?;
            (Functions::of(&library).map_err(missing)?, version, cudart())
        };
        Ok(Arc::new(Library {
            functions,
            path: path.to_path_buf(),
            version,
            cudart_version,
            _library: std::mem::ManuallyDrop::new(library),
        }))
    }

    /// Returns the file, or the name that the loader found it by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the version of the CUDA runtime that it was built with: 13040 for 13.4.
    pub fn cudart_version(&self) -> usize {
        self.cudart_version
    }

    /// Makes an error of a call's status, with the library's own message.
    fn error(&self, call: &str, code: c_int) -> CudnnError {
        let mut text = [0 as c_char; 8192];
        // SAFETY: the function writes a text that ends with 0 into so many bytes.
        unsafe { (self.functions.last_error)(text.as_mut_ptr(), text.len()) };
        text[text.len() - 1] = 0;
        // SAFETY: it ends with 0, as ensured above.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy();
        CudnnError { version: self.version, call: call.to_string(), code, text: text.into_owned() }
    }

    fn check(&self, code: c_int, call: impl FnOnce() -> String) -> Result<(), CudnnError> {
        if code == 0 { Ok(()) } else { Err(self.error(&call(), code)) }
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuDNN {} ({})", self.version, self.path.display())
    }
}

/// A call of libcudnn's that failed.
#[derive(Clone, Debug)]
pub struct CudnnError {
    version: Version,
    /// The call.
    pub call: String,
    /// Its status.
    pub code: i32,
    /// The text of `cudnnGetLastErrorString`.
    pub text: String,
}

impl CudnnError {
    /// Returns the reasons in the library's message, each once, or its first line.
    pub fn reasons(&self) -> Vec<String> {
        let mut reasons: Vec<String> = Vec::new();
        for line in self.text.lines() {
            let Some((before, reason)) = line.split_once("Reason: ") else { continue };
            let status =
                before.rsplit(['"', ' ', ';']).find(|word| word.starts_with("CUDNN_STATUS_"));
            let status = status.map_or("", |word| word.trim_start_matches("CUDNN_STATUS_"));
            let reason = reason.trim().trim_end_matches(['"', '}', ',']);
            let reason =
                if status.is_empty() { reason.to_string() } else { format!("{status}: {reason}") };
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
        if reasons.is_empty() {
            reasons.extend(
                self.text.lines().map(str::trim).find(|line| !line.is_empty()).map(String::from),
            );
        }
        reasons
    }
}

impl fmt::Display for CudnnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cuDNN {}: {} gave {} {}",
            self.version,
            self.call,
            self.code,
            status::name(self.code)
        )?;
        let reasons = self.reasons();
        if reasons.is_empty() { Ok(()) } else { write!(f, " ({})", reasons.join("; ")) }
    }
}

impl From<CudnnError> for Error {
    fn from(error: CudnnError) -> Error {
        let kind = match error.code / 1000 {
            2 => ErrorKind::Value,
            3 => ErrorKind::NotSupported,
            _ if matches!(error.code, 4003 | 4004) => ErrorKind::Memory,
            // A kernel that can't be compiled: the graph has no plan.
            _ if error.code == 4001 => ErrorKind::NotSupported,
            1 => ErrorKind::Library,
            _ => ErrorKind::Device,
        };
        Error::new(kind, error.to_string())
    }
}

/// A descriptor, destroyed when dropped.
#[derive(Debug)]
pub(crate) struct Raw {
    library: Arc<Library>,
    pointer: Descriptor,
    name: &'static str,
}

// SAFETY: a descriptor belongs to no thread: libcudnn keeps its state in it alone, and it is used by one thread at a
// time while it is changed (`&mut`). Reading a finalized one from several threads is allowed.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl Raw {
    /// Creates a descriptor of a kind.
    pub(crate) fn new(
        library: &Arc<Library>,
        code: i32,
        name: &'static str,
    ) -> Result<Raw, CudnnError> {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: it writes one pointer; an unknown kind is refused.
        let status = unsafe { (library.functions.create)(code, &mut pointer) };
        library.check(status, || format!("Create({name})"))?;
        Ok(Raw { library: library.clone(), pointer, name })
    }

    pub(crate) fn library(&self) -> &Arc<Library> {
        &self.library
    }

    /// Returns the address that other descriptors name it by, alive as long as `self`.
    pub(crate) fn pointer(&self) -> *mut c_void {
        self.pointer
    }

    /// Sets an attribute to elements of a type.
    ///
    /// # Safety
    /// `elements` are `count` values of the attribute's type, and descriptors among them are alive and, where
    /// libcudnn reads them, finalized.
    pub(crate) unsafe fn set(
        &mut self,
        (attribute, name): (i32, &'static str),
        kind: i32,
        count: usize,
        elements: *const c_void,
    ) -> Result<(), CudnnError> {
        // SAFETY: the caller's contract; the descriptor is alive until it is dropped.
        let status = unsafe {
            (self.library.functions.set)(self.pointer, attribute, kind, count as i64, elements)
        };
        self.library.check(status, || format!("SetAttribute({name})"))
    }

    /// Reads at most `count` elements, and returns how many there are.
    ///
    /// # Safety
    /// `elements` has room for `count` values of the type.
    pub(crate) unsafe fn get(
        &self,
        (attribute, name): (i32, &'static str),
        kind: i32,
        count: usize,
        elements: *mut c_void,
    ) -> Result<usize, CudnnError> {
        let mut found = 0_i64;
        // SAFETY: the caller's contract; the descriptor is alive until it is dropped.
        let status = unsafe {
            (self.library.functions.get)(
                self.pointer,
                attribute,
                kind,
                count as i64,
                &mut found,
                elements,
            )
        };
        self.library.check(status, || format!("GetAttribute({name})"))?;
        Ok(usize::try_from(found).unwrap_or(0))
    }

    /// Finalizes it.
    pub(crate) fn finalize(&mut self) -> Result<(), CudnnError> {
        // SAFETY: the descriptor is alive, and `descriptor.rs` lets nobody finalize one that lacks what crashes.
        let status = unsafe { (self.library.functions.finalize)(self.pointer) };
        self.library.check(status, || format!("Finalize({})", self.name))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: it was created, and is destroyed once. Descriptors that were made of it keep what they need.
        unsafe { (self.library.functions.destroy)(self.pointer) };
    }
}

/// cuDNN's state for one thread at a time on the CUDA context that was current when it was made.
#[derive(Debug)]
pub(crate) struct Handle {
    library: Arc<Library>,
    pointer: *mut c_void,
}

// SAFETY: a handle may be used by any thread, one at a time: it isn't `Sync`.
unsafe impl Send for Handle {}

impl Handle {
    /// Makes a handle on the current context.
    pub(crate) fn new(library: &Arc<Library>) -> Result<Handle, CudnnError> {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: it writes one pointer.
        let status = unsafe { (library.functions.create_handle)(&mut pointer) };
        library.check(status, || "cudnnCreate".to_string())?;
        Ok(Handle { library: library.clone(), pointer })
    }

    pub(crate) fn pointer(&self) -> *mut c_void {
        self.pointer
    }

    /// Queues a plan on a stream.
    ///
    /// # Safety
    /// The stream is one of the handle's context, or null for its default stream. Plan and variant pack are
    /// finalized, and the pack's pointers are memory of that context for each tensor of the plan, as large as it
    /// says, until the stream has done the work; host memory for tensors by value.
    pub(crate) unsafe fn execute(
        &self,
        stream: *mut c_void,
        plan: &Raw,
        pack: &Raw,
    ) -> Result<(), CudnnError> {
        // SAFETY: the caller's contract.
        unsafe {
            let status = (self.library.functions.set_stream)(self.pointer, stream);
            self.library.check(status, || "cudnnSetStream".to_string())?;
            let status = (self.library.functions.execute)(self.pointer, plan.pointer, pack.pointer);
            self.library.check(status, || "cudnnBackendExecute".to_string())
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: it was created, and is destroyed once.
        unsafe { (self.library.functions.destroy_handle)(self.pointer) };
    }
}
