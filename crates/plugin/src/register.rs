//! Registration: a plugin's Rust functions wrapped as C functions for the host.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use crate::abi::{
    self, Any, CallFrame, FEATURE_CUDA_C, FEATURE_DEVICES, FEATURE_GROUPS, FEATURE_OPENCL_C,
    HostRegistrar, HostTable, HostTable1, KernelSpec, Text,
};
use crate::args::Args;
use crate::backend::{self, Backend, Compiler, Language};
use crate::error::{Error, ErrorKind, Result, drop_boxed};
use crate::host::Host;
use crate::owned::{OwnedTensor, OwnedValue};

/// A return type of kernels.
pub trait Return {
    /// The ABI's constant for it.
    #[doc(hidden)]
    const CODE: i32;
    #[doc(hidden)]
    fn give(self, host: &Host<'_>, result: &mut Any);
}

/// The kernel fills the outputs, or the operator returns nothing.
impl Return for () {
    const CODE: i32 = abi::RETURNS_NOTHING;
    fn give(self, _: &Host<'_>, _: &mut Any) {}
}

impl Return for i64 {
    const CODE: i32 = abi::RETURNS_INT;
    fn give(self, _: &Host<'_>, result: &mut Any) {
        *result = Any::new(abi::INT, self as u64);
    }
}

impl Return for bool {
    const CODE: i32 = abi::RETURNS_BOOL;
    fn give(self, _: &Host<'_>, result: &mut Any) {
        *result = Any::new(abi::BOOL, u64::from(self));
    }
}

impl Return for f64 {
    const CODE: i32 = abi::RETURNS_FLOAT;
    fn give(self, _: &Host<'_>, result: &mut Any) {
        *result = Any::new(abi::FLOAT, self.to_bits());
    }
}

/// The results of another call, unchanged.
impl Return for OwnedValue {
    const CODE: i32 = abi::RETURNS_VALUES;
    fn give(self, host: &Host<'_>, _: &mut Any) {
        host.give(self);
    }
}

impl Return for OwnedTensor {
    const CODE: i32 = abi::RETURNS_VALUES;
    fn give(self, host: &Host<'_>, _: &mut Any) {
        host.give(self.into_value());
    }
}

/// Several tensors, for a schema that returns as many.
impl<const N: usize> Return for [OwnedTensor; N] {
    const CODE: i32 = abi::RETURNS_VALUES;
    fn give(self, host: &Host<'_>, _: &mut Any) {
        for tensor in self {
            host.give(tensor.into_value());
        }
    }
}

/// Collects a plugin's definitions, kernels and devices. They are registered together once the plugin's
/// function has returned `Ok`, and not at all if one of them is refused.
pub struct Registrar<'a> {
    table: &'static HostTable,
    /// The table of a host of 1.1.
    table1: Option<&'static HostTable1>,
    registrar: *mut HostRegistrar,
    life: PhantomData<&'a mut HostRegistrar>,
}

impl Registrar<'_> {
    /// Defines an operator: `ns::name(Tensor x, float k=2.0) -> Tensor`.
    ///
    /// # Errors
    /// A schema that doesn't parse.
    pub fn define(&mut self, schema: &str) -> Result<()> {
        // SAFETY: the table's function, with text that is valid for the call.
        unsafe {
            let error = (self.table.define)(self.registrar, Text::new(schema));
            Error::from_host(self.table, error)
        }
    }

    /// Registers a kernel at an operator's key. Explanations show the function's name.
    ///
    /// It may be called from several threads at a time. The return type selects how results are
    /// returned: `()` for a kernel that fills [outputs](Args::output), which the host allocates
    /// with the shapes of the operator's Meta kernel (or that returns nothing); a number; an
    /// [`OwnedTensor`] or [`OwnedValue`].
    ///
    /// # Errors
    /// An unknown key.
    pub fn kernel<F, R>(&mut self, operator: &str, key: &str, function: F) -> Result<()>
    where
        F: Fn(&Args<'_>, &Host<'_>) -> Result<R> + Send + Sync + 'static,
        R: Return,
    {
        let name = short_name(std::any::type_name::<F>());
        let spec = KernelSpec {
            size: size_of::<KernelSpec>() as u32,
            returns: R::CODE,
            operator: Text::new(operator),
            key: Text::new(key),
            name: Text::new(&name),
            function: Some(run::<F, R>),
            data: Box::into_raw(Box::new(function)).cast(),
            drop: Some(drop_data::<F>),
        };
        // SAFETY: the table's function; the host takes ownership of the data in any case.
        unsafe {
            let error = (self.table.kernel)(self.registrar, &raw const spec);
            Error::from_host(self.table, error)
        }
    }

    /// Registers a fallthrough: calls of the operator skip this mode's key.
    ///
    /// # Errors
    /// An unknown key.
    pub fn fallthrough(&mut self, operator: &str, key: &str) -> Result<()> {
        // SAFETY: the table's function, with text that is valid for the call.
        unsafe {
            let (operator, key) = (Text::new(operator), Text::new(key));
            let error = (self.table.fallthrough)(self.registrar, operator, key);
            Error::from_host(self.table, error)
        }
    }

    /// Registers a device type with its memory and operations. The name is an identifier, such as
    /// `npu`; operators' kernels for its devices can be registered afterwards, at the key `NPU`.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] if the host has no devices (`plugin!(register, needs = devices)`
    /// refuses such hosts before anything runs); a name that is taken or no identifier; numbers of
    /// devices or streams out of range.
    pub fn device<B: Backend>(&mut self, name: &str, backend: B) -> Result<()> {
        let (feature, called) = match backend.groups().have_fields() {
            true => (FEATURE_GROUPS, "groups with several outputs"),
            false => (0, "devices"),
        };
        let host = self.host_with(name, FEATURE_DEVICES | feature, called)?;
        // SAFETY: the host's registrar.
        unsafe { backend::register(host, self.registrar, name, backend) }
    }

    /// As [`device`](Registrar::device), for a backend that compiles whole expressions.
    ///
    /// # Errors
    /// As [`device`](Registrar::device), and [`ErrorKind::NotSupported`] if the host has no
    /// expressions in that language.
    pub fn compiler<B: Compiler>(&mut self, name: &str, backend: B) -> Result<()> {
        let (feature, called) = match backend.language() {
            Language::CudaC => (FEATURE_CUDA_C, "expressions as CUDA C"),
            Language::OpenClC => (FEATURE_OPENCL_C, "expressions as OpenCL C"),
        };
        let host = self.host_with(name, FEATURE_DEVICES | feature, called)?;
        if backend.groups().have_fields() {
            self.host_with(name, FEATURE_GROUPS, "groups with several outputs")?;
        }
        // SAFETY: the host's registrar.
        unsafe { backend::register_compiler(host, self.registrar, name, backend) }
    }

    /// Returns the table of a host that has these features.
    fn host_with(&self, device: &str, features: u64, called: &str) -> Result<&'static HostTable1> {
        self.table1.filter(|host| host.features & features == features).ok_or_else(|| {
            let (major, minor) = (self.table.abi_major, self.table.abi_minor);
            let since = if features & FEATURE_GROUPS == 0 { 1 } else { 2 };
            Error::not_supported(format!(
                "the device {device} needs a host with the feature {called} of plugin ABI 1.{since}; \
                 this host has {major}.{minor} without it"
            ))
        })
    }
}

impl std::fmt::Debug for Registrar<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registrar")
    }
}

/// Returns a function's name without the path of its type.
pub(crate) fn short_name(full: &str) -> String {
    let full = full.split('<').next().unwrap_or(full);
    let mut parts = full.rsplit("::");
    match parts.next() {
        Some(last) if !last.starts_with('{') => last.to_owned(),
        _ => {
            let outer = parts.find(|part| !part.starts_with('{'));
            format!("closure in {}", outer.unwrap_or("?"))
        }
    }
}

/// The C function of a kernel.
///
/// # Safety
/// The ABI's contract: a frame whose data is an `F`, and the values of its call.
unsafe extern "C" fn run<F, R>(
    handle: *mut c_void,
    values: *const Any,
    count: i32,
    result: *mut Any,
) -> c_int
where
    F: Fn(&Args<'_>, &Host<'_>) -> Result<R>,
    R: Return,
{
    // SAFETY: the contract; frame, values and result live until this returns.
    let (frame, function, result) = unsafe {
        let frame = &*handle.cast::<CallFrame>();
        (frame, &*frame.data.cast::<F>(), &mut *result)
    };
    // SAFETY: as above.
    let (host, args) = unsafe { (Host::new(frame), Args::new(frame, values, count)) };
    let call = || function(&args, &host).map(|value| value.give(&host, result));
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => {
            host.fail(error);
            -1
        }
        Err(panic) => {
            host.fail(Error::panicked(panic));
            -1
        }
    }
}

/// # Safety
/// `data` came from a box of an `F` and isn't used any more.
unsafe extern "C" fn drop_data<F>(data: *mut c_void) {
    // SAFETY: the contract.
    unsafe { drop_boxed::<F>(data) }
}

/// Runs the plugin's register function; called by the macro.
///
/// # Safety
/// The host's table and registrar.
#[doc(hidden)]
pub unsafe fn enter(
    at: *const HostTable,
    registrar: *mut HostRegistrar,
    register: fn(&mut Registrar<'_>) -> Result<()>,
) -> *mut abi::HostError {
    // SAFETY: the table lives as long as the process.
    let table: &'static HostTable = unsafe { &*at };
    // SAFETY: as above.
    let table1 = unsafe { HostTable1::of(at) };
    let mut registrar = Registrar { table, table1, registrar, life: PhantomData };
    let outcome = if (table.size as usize) < size_of::<HostTable>() {
        let (given, needed) = (table.size, size_of::<HostTable>());
        let message = format!("the host's table has {given} bytes, the plugin needs {needed}");
        Err(Error::new(ErrorKind::Registration, message))
    } else {
        catch_unwind(AssertUnwindSafe(|| register(&mut registrar)))
            .unwrap_or_else(|panic| Err(Error::panicked(panic)))
    };
    match outcome {
        Ok(()) => null_mut(),
        Err(error) => error.into_host(table),
    }
}
