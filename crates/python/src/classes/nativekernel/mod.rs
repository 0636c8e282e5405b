//! Native functions of TVM FFI's calling convention as kernels: from a library, an address, a
//! capsule, a `tvm_ffi.Function`.
//!
//! See docs/native-kernels.md for the convention, and the crate `keyfold-ffi` for the calls.

mod address;
mod options;
mod source;

use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;

use keyfold_core::ErrorKind;
use keyfold_dispatch::{HostLock, Kernel, Provenance};
use keyfold_ffi::abi::{self, FunctionCell, Header};
use keyfold_ffi::{NativeFunction, Object, SafeCall, runtime};
use keyfold_tensor::Value;
use libloading::Library;
use pyo3::ffi;
use pyo3::prelude::*;

use self::address::{address_of, function_at};
use self::options::Options;
use self::source::{Source, is_instance};
use crate::call::signature::provenance_of;
use crate::marshal::argument::{Count, FilePath, Text, wrong_type};
use crate::marshal::describe::describe_object;
use crate::marshal::errors::{IntoPyResult, error};

/// A kernel compiled to native code.
///
/// Registered like a Python function: `keyfold.impl(op, "CPU", kernel)`. Called with an object, it
/// takes the constructor that is right for it: `from_tvm_ffi` for a `tvm_ffi.Function`,
/// `from_capsule` for a PyCapsule, `from_address` for an address, a numba `cfunc` or a function
/// pointer of ctypes.
#[pyclass(name = "NativeKernel", module = "keyfold", frozen)]
pub(crate) struct PyNativeKernel {
    function: SafeCall,
    handle: usize,
    /// The object that must live as long as a kernel of it.
    keep: Arc<Kept>,
    provenance: Provenance,
    /// Library and symbol, where it is from one.
    place: Option<(String, String)>,
    options: Options,
}

/// The owner of the code.
#[expect(dead_code, reason = "held, not read")]
enum Kept {
    Library(Library),
    ForEver(&'static Library),
    Function(Object),
    Python(Option<Py<PyAny>>),
}

#[pymethods]
impl PyNativeKernel {
    #[new]
    #[pyo3(
        signature = (source, *, release_gil=true, objects=None, tensors=Text::new("view"), outputs=Text::new("filled")),
        text_signature = "(source, *, release_gil=True, objects=None, tensors=\"view\", outputs=\"filled\")"
    )]
    fn new(
        source: &Bound<'_, PyAny>,
        release_gil: bool,
        objects: Option<bool>,
        tensors: Text,
        outputs: Text,
    ) -> PyResult<Self> {
        match Source::of(source)? {
            Some(found) => {
                let native = matches!(found, Source::TvmFfi);
                let options =
                    Options::read(source.py(), release_gil, objects, &tensors, &outputs, native)?;
                Self::of_source(source, found, options)
            }
            None => Err(wrong_type(format!(
                "a NativeKernel is made of a tvm_ffi.Function, a PyCapsule, an address, a numba \
                 cfunc or a function pointer of ctypes (and of a library's function by \
                 NativeKernel.from_library), not of {}",
                describe_object(source)
            ))),
        }
    }

    /// A function of a shared library, by its symbol.
    ///
    /// Args:
    ///     path: the library's file.
    ///     symbol: the exported name.
    ///     release_gil: whether the kernel runs without the GIL.
    ///     objects: whether the function knows objects of TVM FFI's library: lists and long text.
    ///         By default, whether its library is linked with TVM FFI's.
    ///     tensors: `"view"`: it takes tensors as borrowed `DLTensor*`; `"object"`: as objects.
    ///     outputs: `"filled"`: it fills the Tensors that the schema returns; `"returned"`: it
    ///         returns them as objects.
    ///
    /// Raises:
    ///     keyfold.LibraryLoadError: the library or the symbol can't be loaded.
    #[staticmethod]
    #[pyo3(
        signature = (path, symbol, *, release_gil=true, objects=None, tensors=Text::new("view"), outputs=Text::new("filled")),
        text_signature = "(path, symbol, *, release_gil=True, objects=None, tensors=\"view\", outputs=\"filled\")"
    )]
    fn from_library(
        py: Python<'_>,
        path: FilePath,
        symbol: Text,
        release_gil: bool,
        objects: Option<bool>,
        tensors: Text,
        outputs: Text,
    ) -> PyResult<Self> {
        let shown = path.0.display().to_string();
        let refuse = |message: String| error(py, ErrorKind::Library, message);
        let name = CString::new(&*symbol)
            .map_err(|_| refuse(format!("the symbol {:?} contains a zero byte", &*symbol)))?;
        // SAFETY: loading a library runs its initialisers; that is what the user asks for.
        let library = unsafe { Library::new(&path.0) }.map_err(|error| {
            refuse(format!("can't load the library {shown}: {}", runtime::why(&error)))
        })?;
        // SAFETY: the user says that the symbol is a function of the documented convention. The
        // second one is only looked for, in the library and those that it is linked with.
        let (function, linked) = unsafe {
            let function = library.get::<SafeCall>(name.as_bytes_with_nul()).map(|found| *found);
            (function, library.get::<*const c_void>("TVMFFIObjectDecRef").is_ok())
        };
        let function = function.map_err(|error| {
            refuse(format!("{shown} has no symbol {:?}: {}", &*symbol, runtime::why(&error)))
        })?;
        let options = Options::read(py, release_gil, objects, &tensors, &outputs, linked)?;
        let keep = match options.objects {
            // The code that frees its objects is in it, and they may outlive every kernel.
            Some(_) => Kept::ForEver(Box::leak(Box::new(library))),
            None => Kept::Library(library),
        };
        Ok(PyNativeKernel {
            function,
            handle: 0,
            keep: Arc::new(keep),
            provenance: provenance(symbol.to_string(), shown.clone()),
            place: Some((shown, symbol.to_string())),
            options,
        })
    }

    /// A function in memory, by its address.
    ///
    /// Args:
    ///     address: a whole number, an object with such an `address` (a numba `cfunc`), or a function
    ///         pointer of ctypes.
    ///     name: what explanations and errors call it.
    ///     handle: what the function gets as its first argument.
    ///     keep_alive: what must live as long as a kernel of it, beside `address` itself.
    ///     release_gil: whether the kernel runs without the GIL.
    ///     objects: whether the function knows objects of TVM FFI's library: lists and long text.
    ///     tensors: as for `from_library`.
    ///     outputs: as for `from_library`.
    ///
    /// Raises:
    ///     keyfold.InvalidValue: the address is null.
    #[staticmethod]
    #[pyo3(
        signature = (address, *, name=None, handle=Count(0), keep_alive=None, release_gil=true, objects=None, tensors=Text::new("view"), outputs=Text::new("filled")),
        text_signature = "(address, *, name=None, handle=0, keep_alive=None, release_gil=True, objects=None, tensors=\"view\", outputs=\"filled\")"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords of a Python function")]
    fn from_address(
        address: &Bound<'_, PyAny>,
        name: Option<Text>,
        handle: Count,
        keep_alive: Option<Bound<'_, PyAny>>,
        release_gil: bool,
        objects: Option<bool>,
        tensors: Text,
        outputs: Text,
    ) -> PyResult<Self> {
        let options = Options::read(address.py(), release_gil, objects, &tensors, &outputs, false)?;
        Self::at_address(address, name.map(Into::into), handle.0, keep_alive, options)
    }

    /// The function whose address a PyCapsule holds. The capsule is kept alive.
    ///
    /// Args:
    ///     capsule: the capsule, of any name.
    ///     release_gil: whether the kernel runs without the GIL.
    ///     objects: as for `from_address`.
    ///     tensors: as for `from_library`.
    ///     outputs: as for `from_library`.
    ///
    /// Raises:
    ///     keyfold.InvalidValue: the capsule holds nothing, or an array (DLPack's capsules).
    #[staticmethod]
    #[pyo3(
        signature = (capsule, *, release_gil=true, objects=None, tensors=Text::new("view"), outputs=Text::new("filled")),
        text_signature = "(capsule, *, release_gil=True, objects=None, tensors=\"view\", outputs=\"filled\")"
    )]
    fn from_capsule(
        capsule: &Bound<'_, PyAny>,
        release_gil: bool,
        objects: Option<bool>,
        tensors: Text,
        outputs: Text,
    ) -> PyResult<Self> {
        let options = Options::read(capsule.py(), release_gil, objects, &tensors, &outputs, false)?;
        Self::in_capsule(capsule, options)
    }

    /// A `tvm_ffi.Function`: what `tvm_ffi.get_global_func` and modules of compiled kernels give.
    ///
    /// The kernel holds a reference to the function object.
    ///
    /// Args:
    ///     function: the function.
    ///     release_gil: whether the kernel runs without the GIL.
    ///     tensors: `"view"`: it takes tensors as borrowed `DLTensor*`; `"object"`: as objects, for
    ///         functions that keep or return them.
    ///     outputs: as for `from_library`.
    ///     name: what explanations and errors call it.
    ///
    /// Raises:
    ///     TypeError: it is something else.
    #[staticmethod]
    #[pyo3(
        signature = (function, *, release_gil=true, tensors=Text::new("view"), outputs=Text::new("filled"), name=None),
        text_signature = "(function, *, release_gil=True, tensors=\"view\", outputs=\"filled\", name=None)"
    )]
    fn from_tvm_ffi(
        function: &Bound<'_, PyAny>,
        release_gil: bool,
        tensors: Text,
        outputs: Text,
        name: Option<Text>,
    ) -> PyResult<Self> {
        let options =
            Options::read(function.py(), release_gil, Some(true), &tensors, &outputs, true)?;
        Self::of_tvm_ffi(function, name.map(Into::into), options)
    }

    /// The library's file; `None` for a function that isn't from one.
    #[getter]
    fn path(&self) -> Option<&str> {
        self.place.as_ref().map(|place| &*place.0)
    }

    /// The exported name; `None` for a function that isn't from a library.
    #[getter]
    fn symbol(&self) -> Option<&str> {
        self.place.as_ref().map(|place| &*place.1)
    }

    /// Its name in explanations and errors.
    #[getter]
    fn name(&self) -> &str {
        &self.provenance.name
    }

    fn __repr__(&self) -> String {
        match &self.place {
            Some((path, symbol)) => format!("<NativeKernel {symbol} of {path}>"),
            None => format!("<NativeKernel {}>", self.provenance),
        }
    }
}

fn provenance(name: String, file: String) -> Provenance {
    Provenance { language: "C", name, module: None, file, line: 0, named: true, instance: None }
}

impl PyNativeKernel {
    fn of_source(object: &Bound<'_, PyAny>, source: Source, options: Options) -> PyResult<Self> {
        match source {
            Source::TvmFfi => Self::of_tvm_ffi(object, None, options),
            Source::Capsule => Self::in_capsule(object, options),
            Source::Numba | Source::Address => Self::at_address(object, None, 0, None, options),
        }
    }

    fn at_address(
        object: &Bound<'_, PyAny>,
        name: Option<String>,
        handle: usize,
        keep_alive: Option<Bound<'_, PyAny>>,
        options: Options,
    ) -> PyResult<Self> {
        let py = object.py();
        let address = address_of(object)?;
        let function = function_at(py, address, "the address")?;
        let mut origin = match object.getattr_opt("__wrapped__")? {
            // A numba cfunc: where the Python function is from.
            Some(wrapped) => Provenance { language: "C", ..provenance_of(&wrapped) },
            None => provenance(format!("{address:#x}"), format!("address {address:#x}")),
        };
        if let Some(name) = name {
            origin.name = name;
        }
        // The object itself too: a cfunc owns its code.
        let kept = match keep_alive {
            Some(other) => (object.clone(), other).into_pyobject(py)?.into_any(),
            None => object.clone(),
        };
        Ok(PyNativeKernel {
            function,
            handle,
            keep: Arc::new(Kept::Python(Some(kept.unbind()))),
            provenance: origin,
            place: None,
            options,
        })
    }

    fn in_capsule(capsule: &Bound<'_, PyAny>, options: Options) -> PyResult<Self> {
        let py = capsule.py();
        // SAFETY: a live object.
        if unsafe { ffi::PyCapsule_CheckExact(capsule.as_ptr()) } == 0 {
            return Err(wrong_type(format!(
                "from_capsule() takes a PyCapsule, not {}",
                describe_object(capsule)
            )));
        }
        // SAFETY: a live capsule, under its own name, which it keeps.
        let (name, pointer) = unsafe {
            let name = ffi::PyCapsule_GetName(capsule.as_ptr());
            let pointer = ffi::PyCapsule_GetPointer(capsule.as_ptr(), name);
            (if name.is_null() { None } else { Some(CStr::from_ptr(name)) }, pointer)
        };
        let shown = name.map_or_else(
            || "without a name".to_owned(),
            |name| format!("{:?}", name.to_string_lossy()),
        );
        let refuse = |message: String| Err(error(py, ErrorKind::Value, message));
        if pointer.is_null() {
            let error = PyErr::take(py).map_or_else(String::new, |error| format!(" ({error})"));
            return refuse(format!("the capsule {shown} holds no function{error}"));
        }
        let text = name.map_or(&[][..], CStr::to_bytes);
        if text.starts_with(b"used_") || text.starts_with(b"dltensor") {
            return refuse(format!(
                "the capsule {shown} holds an array of DLPack's, or did; a capsule with a function's \
                 address is wanted"
            ));
        }
        let address = pointer.expose_provenance();
        let function = function_at(py, address, &format!("the address in the capsule {shown}"))?;
        let name =
            name.map_or_else(|| format!("{address:#x}"), |n| n.to_string_lossy().into_owned());
        Ok(PyNativeKernel {
            function,
            handle: 0,
            keep: Arc::new(Kept::Python(Some(capsule.clone().unbind()))),
            provenance: provenance(name, format!("capsule, address {address:#x}")),
            place: None,
            options,
        })
    }

    fn of_tvm_ffi(
        function: &Bound<'_, PyAny>,
        name: Option<String>,
        options: Options,
    ) -> PyResult<Self> {
        let py = function.py();
        if !is_instance(function, "tvm_ffi", "Function")? {
            return Err(wrong_type(format!(
                "from_tvm_ffi() takes a tvm_ffi.Function, not {}",
                describe_object(function)
            )));
        }
        let refuse = |message: &str| error(py, ErrorKind::Value, message);
        let handle: usize = function.call_method0("__chandle__")?.extract()?;
        let runtime = runtime::required().py(py)?;
        // SAFETY: the handle of a live tvm_ffi.Function is null or an object of the library that
        // the package has loaded. A function object has a function's cell.
        let (object, safe_call) = unsafe {
            let header: *mut Header = std::ptr::with_exposed_provenance_mut(handle);
            let object = Object::shared(header.cast(), runtime)
                .filter(|object| object.type_index() == abi::FUNCTION)
                .ok_or_else(|| refuse("the tvm_ffi.Function holds no function"))?;
            (object, abi::cell::<FunctionCell>(header).read().safe_call)
        };
        let safe_call =
            safe_call.ok_or_else(|| refuse("the tvm_ffi.Function holds no function"))?;
        let name = name.unwrap_or_else(|| "tvm_ffi.Function".to_owned());
        Ok(PyNativeKernel {
            function: safe_call,
            handle,
            keep: Arc::new(Kept::Function(object)),
            provenance: provenance(name, format!("TVM FFI, object {handle:#x}")),
            place: None,
            options,
        })
    }

    /// The kernel that runs the function. `object` is what the user registered.
    fn kernel(&self, object: &Bound<'_, PyAny>) -> Kernel<Value> {
        let options = self.options;
        let lock = match options.release_gil {
            true => HostLock::ReleaseFrom(0),
            false => HostLock::Keep,
        };
        // SAFETY: the user vouches for the convention; `keep` holds the code and the handle.
        let function = unsafe {
            NativeFunction::new(self.function, self.provenance.clone())
                .with_handle(std::ptr::with_exposed_provenance_mut(self.handle))
        };
        let function = match options.objects {
            Some(runtime) => function.with_objects(runtime, options.tensors),
            None => function,
        };
        let payload: Py<PyAny> = object.clone().unbind();
        function
            .with_owner(Arc::clone(&self.keep) as Arc<dyn std::any::Any + Send + Sync>)
            .with_outputs(options.outputs)
            .with_host_lock(lock)
            .kernel()
            .with_payload(Arc::new(payload))
    }
}

/// The kernel of an object that is a native function: a `NativeKernel`, a `tvm_ffi.Function`, a
/// PyCapsule, a numba cfunc. `None` for anything else.
pub(crate) fn native_from(object: &Bound<'_, PyAny>) -> PyResult<Option<Kernel<Value>>> {
    if let Ok(native) = object.cast::<PyNativeKernel>() {
        return Ok(Some(native.get().kernel(object)));
    }
    let Some(source) = Source::registered(object)? else { return Ok(None) };
    let native = matches!(source, Source::TvmFfi);
    let options = Options::read(object.py(), true, None, "view", "filled", native)?;
    Ok(Some(PyNativeKernel::of_source(object, source, options)?.kernel(object)))
}
