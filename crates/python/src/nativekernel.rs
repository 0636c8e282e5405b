//! C kernels from shared libraries, by TVM FFI's stable calling convention.
//!
//! `int fn(void* handle, const TVMFFIAny* args, int32_t n, TVMFFIAny* result)`; a
//! `TVMFFIAny` is 16 bytes, tensors are `DLTensor*`. See docs/native-kernels.md.
//! Nothing of TVM FFI's own library is needed or used.

use std::ffi::{CString, c_int, c_void};
use std::sync::Arc;

use keyfold_core::{Device, Error, ErrorKind, Result};
use keyfold_dispatch::schema::{Argument, Schema, Type};
use keyfold_dispatch::{CallContext, DispatchKey, HostLock, Kernel, Provenance, Value as _};
use keyfold_tensor::{Tensor, Value, ValueRef, dlpack};
use libloading::Library;
use pyo3::prelude::*;

use crate::errors::to_pyerr;

/// One argument or result: an index of its kind, and eight bytes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Any {
    kind: i32,
    zero: u32,
    payload: u64,
}

const NONE: i32 = 0;
const INT: i32 = 1;
const BOOL: i32 = 2;
const FLOAT: i32 = 3;
const DTYPE: i32 = 5;
const DEVICE: i32 = 6;
const TENSOR: i32 = 7;
const TEXT: i32 = 8;

impl Any {
    fn new(kind: i32, payload: u64) -> Self {
        Any { kind, zero: 0, payload }
    }
}

type Function = unsafe extern "C" fn(*mut c_void, *const Any, i32, *mut Any) -> c_int;

/// A kernel compiled to native code.
///
/// Registered like a Python function: `keyfold.impl(op, "CPU", kernel)`.
#[pyclass(name = "NativeKernel", module = "keyfold", frozen)]
pub(crate) struct PyNativeKernel {
    function: Function,
    library: Arc<Library>,
    path: String,
    symbol: String,
    release_gil: bool,
}

#[pymethods]
impl PyNativeKernel {
    /// A function of a shared library, by its symbol.
    ///
    /// Args:
    ///     path: the library's file.
    ///     symbol: the exported name.
    ///     release_gil: whether the kernel runs without the GIL.
    ///
    /// Raises:
    ///     keyfold.LibraryLoadError: the library or the symbol can't be loaded.
    #[staticmethod]
    #[pyo3(signature = (path, symbol, *, release_gil=true))]
    fn from_library(
        py: Python<'_>,
        path: std::path::PathBuf,
        symbol: String,
        release_gil: bool,
    ) -> PyResult<Self> {
        let shown = path.display().to_string();
        let refuse = |message: String| to_pyerr(py, Error::new(ErrorKind::Library, message));
        let name = CString::new(symbol.as_str())
            .map_err(|_| refuse(format!("the symbol {symbol:?} contains a zero byte")))?;
        // SAFETY: loading a library runs its initialisers; that is what the user asks for.
        let library = unsafe { Library::new(&path) }
            .map_err(|error| refuse(format!("can't load the library {shown}: {}", why(&error))))?;
        // SAFETY: the user says that the symbol is a function of the documented convention.
        let function = unsafe { library.get::<Function>(name.as_bytes_with_nul()) }
            .map(|function| *function)
            .map_err(|error| {
                refuse(format!("{shown} has no symbol {symbol:?}: {}", why(&error)))
            })?;
        Ok(PyNativeKernel {
            function,
            library: Arc::new(library),
            path: shown,
            symbol,
            release_gil,
        })
    }

    /// The library's file.
    #[getter]
    fn path(&self) -> &str {
        &self.path
    }

    /// The exported name.
    #[getter]
    fn symbol(&self) -> &str {
        &self.symbol
    }

    fn __repr__(&self) -> String {
        format!("<NativeKernel {} of {}>", self.symbol, self.path)
    }
}

/// What the loader says, which libloading keeps as the cause of its own error.
fn why(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    }
}

impl PyNativeKernel {
    /// The kernel that runs the function.
    pub(crate) fn kernel(slf: &Bound<'_, Self>) -> PyResult<Kernel<Value>> {
        let this = slf.get();
        let (function, library) = (this.function, Arc::clone(&this.library));
        let provenance = Provenance {
            language: "C",
            name: this.symbol.clone(),
            module: None,
            file: this.path.clone(),
            line: 0,
            named: true,
            instance: None,
        };
        let symbol = this.symbol.clone();
        let lock = if this.release_gil { HostLock::ReleaseFrom(0) } else { HostLock::Keep };
        let payload: Py<PyAny> = slf.clone().into_any().unbind();
        Ok(Kernel::boxed(move |context, args| {
            // The library stays loaded as long as a kernel of it is registered.
            let _loaded = &library;
            run(function, context, args)
        })
        .with_provenance(provenance)
        .with_host_lock(lock)
        .with_payload(Arc::new(payload))
        .with_check(move |schema| check(schema, &symbol)))
    }
}

/// Refuses a schema with types that the convention can't pass.
fn check(schema: &Schema, symbol: &str) -> Result<()> {
    let refuse = |what: String| {
        Err(Error::new(
            ErrorKind::Registration,
            format!("{}: the C kernel {symbol} can't serve it: {what}", schema.name),
        ))
    };
    let scalar = |ty: &Type| {
        !matches!(ty, Type::List(..) | Type::Generator | Type::Complex | Type::Optional(_))
    };
    for argument in &schema.arguments {
        if !scalar(argument.ty.without_optional()) {
            return refuse(format!(
                "argument '{}' is {}, which the C convention can't pass",
                argument.name, argument.ty
            ));
        }
    }
    let tensors = schema.returns.iter().filter(|r| r.ty == Type::Tensor).count();
    let returns = &schema.returns;
    if tensors == returns.len() {
        return Ok(());
    }
    if returns.len() > 1 {
        return refuse("it can fill several tensors or return one value, not both".to_owned());
    }
    match returns[0].ty {
        Type::Int | Type::Float | Type::Bool | Type::Scalar | Type::ScalarType | Type::Device => {
            Ok(())
        }
        ref ty => refuse(format!("a return of type {ty} can't be handed over")),
    }
}

/// Memory that the passed values point to, until the kernel returns.
#[derive(Default)]
struct Passed<'a> {
    values: Vec<Any>,
    /// Boxes, which keep their address while the vector grows: the second points into the first.
    tensors: Vec<(Box<dlpack::Described<'a>>, Box<dlpack::DLTensor>)>,
    texts: Vec<CString>,
}

impl<'a> Passed<'a> {
    fn tensor(&mut self, tensor: &'a Tensor) -> Result<()> {
        let mut described = Box::new(dlpack::Described::new(tensor)?);
        let dl = Box::new(described.dl_tensor());
        self.values.push(Any::new(TENSOR, std::ptr::from_ref(&*dl) as u64));
        self.tensors.push((described, dl));
        Ok(())
    }

    fn push(&mut self, argument: &Argument, value: ValueRef<'a>) -> Result<()> {
        let wants_float = *argument.ty.base() == Type::Float;
        let any = match value {
            ValueRef::None => Any::new(NONE, 0),
            ValueRef::Bool(flag) => Any::new(BOOL, u64::from(flag)),
            ValueRef::Int(number) if wants_float => Any::new(FLOAT, (number as f64).to_bits()),
            ValueRef::Int(number) => Any::new(INT, number as u64),
            ValueRef::UInt(number) if wants_float => Any::new(FLOAT, (number as f64).to_bits()),
            ValueRef::Float(number) => Any::new(FLOAT, number.to_bits()),
            ValueRef::DType(dtype) => {
                let dl = dlpack::dtype_to_dl(dtype);
                let code = u64::from(dl.code) | u64::from(dl.bits) << 8 | u64::from(dl.lanes) << 16;
                Any::new(DTYPE, code)
            }
            ValueRef::Device(device) => {
                let dl = dlpack::device_to_dl(device)?;
                Any::new(DEVICE, u64::from(dl.device_type as u32) | (dl.device_id as u64) << 32)
            }
            ValueRef::Str(text) => {
                let text = CString::new(text).map_err(|_| {
                    let message = "text with a zero byte in it can't be passed to C";
                    Error::new(ErrorKind::Value, message)
                })?;
                let address = text.as_ptr() as u64;
                self.texts.push(text);
                Any::new(TEXT, address)
            }
            ValueRef::Tensor(_) | ValueRef::Foreign(_) => {
                let tensor = value.tensor()?;
                if argument.alias.as_ref().is_some_and(|alias| alias.write) {
                    tensor.check_writable()?;
                    tensor.note_write();
                }
                return self.tensor(tensor);
            }
            other => {
                return Err(Error::new(
                    ErrorKind::Binding,
                    format!("{other:?} can't be passed to C"),
                ));
            }
        };
        self.values.push(any);
        Ok(())
    }
}

/// The argument whose memory a return shares and the kernel writes: an output given by the caller.
fn written_argument(schema: &Schema, at: usize) -> Option<usize> {
    let sets = &schema.returns[at].alias.as_ref()?.sets;
    schema.arguments.iter().position(|argument| {
        argument.alias.as_ref().is_some_and(|alias| alias.write && alias.sets == *sets)
    })
}

fn run(
    function: Function,
    context: &CallContext<'_, Value>,
    args: &[ValueRef<'_>],
) -> Result<Value> {
    let schema = context.operator().schema();
    let fills = schema.returns.iter().all(|r| r.ty == Type::Tensor) && !schema.returns.is_empty();
    let outputs = if fills { outputs(context, args)? } else { Vec::new() };
    let mut passed = Passed::default();
    for (at, (argument, value)) in schema.arguments.iter().zip(args).enumerate() {
        let made = outputs.iter().find(|output| output.argument == Some(at));
        match made {
            Some(output) if matches!(value, ValueRef::None) => passed.tensor(&output.tensor)?,
            _ => passed.push(argument, *value).map_err(|error| {
                let operator = context.operator().name();
                error.at(&format!("{operator}() argument '{}'", argument.name))
            })?,
        }
    }
    for output in outputs.iter().filter(|output| output.argument.is_none()) {
        passed.tensor(&output.tensor)?;
    }
    let mut result = Any::new(NONE, 0);
    // SAFETY: the library's author vouches for the convention; what the values point to lives in
    // `passed`, `outputs` and the caller's arguments until after the call.
    let code = unsafe {
        let (values, count) = (passed.values.as_ptr(), passed.values.len() as i32);
        function(std::ptr::null_mut(), values, count, &raw mut result)
    };
    let (operator, kernel) = (context.operator(), context.kernel());
    if code != 0 {
        return Err(Error::new(
            ErrorKind::KernelFailed,
            format!(
                "{}: the kernel {} failed with code {code}",
                operator.name(),
                kernel.provenance()
            ),
        ));
    }
    if fills {
        let mut tensors = outputs.into_iter().map(|output| Value::Tensor(output.tensor));
        return Ok(match schema.returns.len() {
            1 => tensors.next().unwrap_or(Value::None),
            _ => Value::Tuple(tensors.collect()),
        });
    }
    taken(result).ok_or_else(|| {
        operator.wrong_return(kernel, &format!("a value of type index {}", result.kind))
    })
}

/// A result that holds its value in place.
fn taken(result: Any) -> Option<Value> {
    Some(match result.kind {
        NONE => Value::None,
        INT => Value::Int(result.payload as i64),
        BOOL => Value::Bool(result.payload != 0),
        FLOAT => Value::Float(f64::from_bits(result.payload)),
        DTYPE => {
            let dl = dlpack::DLDataType {
                code: result.payload as u8,
                bits: (result.payload >> 8) as u8,
                lanes: (result.payload >> 16) as u16,
            };
            Value::DType(dlpack::dtype_from_dl(dl).ok()?)
        }
        DEVICE => {
            let dl = dlpack::DLDevice {
                device_type: result.payload as i32,
                device_id: (result.payload >> 32) as i32,
            };
            Value::Device(dlpack::device_from_dl(dl).ok()?)
        }
        _ => return None,
    })
}

/// A tensor that the kernel fills, and the argument that it stands in, if any.
struct Output {
    tensor: Tensor,
    argument: Option<usize>,
}

/// The outputs: those that the caller gave, and new ones as the Meta kernel says.
fn outputs(context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> Result<Vec<Output>> {
    let schema = context.operator().schema();
    let given = |at: usize| {
        let argument = written_argument(schema, at)?;
        (!matches!(args[argument], ValueRef::None)).then_some(argument)
    };
    let count = schema.returns.len();
    // Asked for also where every output is given: C code writes what Meta promises, wherever.
    let operator = context.operator();
    let all_given = (0..count).all(|at| given(at).is_some());
    let known = operator.has_kernel(DispatchKey::Meta.into());
    let shapes = if all_given && !known { Vec::new() } else { meta_outputs(context, args)? };
    let device = first_device(args);
    (0..count)
        .map(|at| match given(at) {
            Some(argument) => {
                let tensor = args[argument].tensor()?.clone();
                if let Some(promised) = shapes.get(at) {
                    let name = &schema.arguments[argument].name;
                    fits(operator.name(), name, &tensor, promised)?;
                }
                Ok(Output { tensor, argument: Some(argument) })
            }
            None => {
                let like = &shapes[at];
                let tensor = Tensor::empty(like.shape(), like.dtype(), device)?;
                Ok(Output { tensor, argument: written_argument(schema, at) })
            }
        })
        .collect()
}

/// Whether a given output is what the Meta kernel promises.
fn fits(operator: &str, name: &str, given: &Tensor, promised: &Tensor) -> Result<()> {
    let (kind, what, given, promised) = if given.shape() != promised.shape() {
        let shapes = (format!("{:?}", given.shape()), format!("{:?}", promised.shape()));
        (ErrorKind::Shape, "shape", shapes.0, shapes.1)
    } else if given.dtype() != promised.dtype() {
        let dtypes = (given.dtype().to_string(), promised.dtype().to_string());
        (ErrorKind::DType, "dtype", dtypes.0, dtypes.1)
    } else {
        return Ok(());
    };
    Err(Error::new(
        kind,
        format!("{operator}() argument '{name}': its {what} is {given}, and must be {promised}"),
    ))
}

fn first_device(args: &[ValueRef<'_>]) -> Device {
    args.iter().find_map(|arg| Value::tag(*arg).device()).unwrap_or(Device::CPU)
}

/// What the operator's Meta kernel says of the outputs.
fn meta_outputs(context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> Result<Vec<Tensor>> {
    let operator = context.operator();
    let mut tensors = Vec::new();
    for arg in args {
        tensors.push(match arg {
            ValueRef::Tensor(_) | ValueRef::Foreign(_) => {
                let tensor = arg.tensor()?;
                Some(Tensor::meta(tensor.shape(), tensor.dtype())?)
            }
            _ => None,
        });
    }
    let meta: Vec<ValueRef<'_>> = args
        .iter()
        .zip(&tensors)
        .map(|(arg, tensor)| tensor.as_ref().map_or(*arg, ValueRef::Tensor))
        .collect();
    let keyset = DispatchKey::Meta.into();
    let result = operator.redispatch(keyset, &meta).map_err(|error| match error.kind() {
        ErrorKind::MissingKernel => Error::new(
            ErrorKind::MissingKernel,
            format!(
                "{}: its outputs can't be allocated: a C kernel that fills tensors needs a Meta \
                 kernel, which says their shape and dtype; register one at \"Meta\"",
                operator.name()
            ),
        ),
        _ => error,
    })?;
    match result {
        Value::Tuple(items) => items.into_iter().map(Value::into_tensor).collect(),
        one => Ok(vec![one.into_tensor()?]),
    }
}
