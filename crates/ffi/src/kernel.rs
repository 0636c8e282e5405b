//! Foreign functions as kernels.

use std::any::Any as StdAny;
use std::ffi::c_void;
use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::schema::{Schema, Type};
use keyfold_dispatch::{CallContext, HostLock, Kernel, Provenance, Value as _, describe_path};
use keyfold_tensor::{Tensor, Value, ValueRef};

use crate::abi::{self, Any, SafeCall};
use crate::alloc;
use crate::arg_frame::ArgFrame;
use crate::check::check;
use crate::error::ForeignError;
use crate::from_result::{self, from_result};
use crate::guard;
use crate::object::Object;
use crate::outputs::outputs;
use crate::runtime::{self, Runtime};

/// The form in which a function takes tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tensors {
    /// Borrowed `DLTensor*`, which every function of the ABI accepts, at no cost.
    #[default]
    Views,
    /// TVM FFI's tensor objects, for functions that keep or return their arguments.
    Objects,
}

/// The form in which a function returns the tensors of its schema.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outputs {
    /// It fills tensors that keyfold allocates and passes after the schema's arguments (destination
    /// passing).
    #[default]
    Filled,
    /// It returns tensor objects: one, or a list of several.
    Returned,
}

/// A function of TVM FFI's ABI, with its options, before it becomes a kernel.
pub struct NativeFunction {
    function: SafeCall,
    handle: usize,
    provenance: Provenance,
    owner: Option<Arc<dyn StdAny + Send + Sync>>,
    objects: Option<&'static Runtime>,
    tensors: Tensors,
    outputs: Outputs,
    host_lock: HostLock,
}

impl NativeFunction {
    /// Returns a function that gets a null handle, takes no objects, and runs without the host
    /// language's lock.
    ///
    /// # Safety
    /// The function keeps to the ABI, may be called from any thread, and accesses only the memory
    /// that its arguments describe. It stays loaded while this value or its kernel lives.
    pub unsafe fn new(function: SafeCall, provenance: Provenance) -> Self {
        NativeFunction {
            function,
            handle: 0,
            provenance,
            owner: None,
            objects: None,
            tensors: Tensors::Views,
            outputs: Outputs::Filled,
            host_lock: HostLock::ReleaseFrom(0),
        }
    }

    /// Sets the handle, the function's first argument.
    ///
    /// # Safety
    /// The handle is valid for the function on any thread, as long as the kernel lives.
    #[must_use]
    pub unsafe fn with_handle(mut self, handle: *mut c_void) -> Self {
        self.handle = handle.expose_provenance();
        self
    }

    /// Keeps `owner`, such as the function's library or object, alive as long as the kernel.
    #[must_use]
    pub fn with_owner(mut self, owner: Arc<dyn StdAny + Send + Sync>) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Lets the function take and return the library's objects: lists, long text, and tensors in
    /// the form `tensors`.
    #[must_use]
    pub fn with_objects(mut self, runtime: &'static Runtime, tensors: Tensors) -> Self {
        (self.objects, self.tensors) = (Some(runtime), tensors);
        self
    }

    /// Sets the form in which the function returns tensors.
    #[must_use]
    pub fn with_outputs(mut self, outputs: Outputs) -> Self {
        self.outputs = outputs;
        self
    }

    /// Sets the rule for the host language's lock.
    #[must_use]
    pub fn with_host_lock(mut self, host_lock: HostLock) -> Self {
        self.host_lock = host_lock;
        self
    }

    /// Returns the kernel. Registration refuses a schema that the ABI can't serve.
    pub fn kernel(self) -> Kernel<Value> {
        let (objects, outputs) = (self.objects.is_some(), self.outputs);
        let (name, provenance) = (self.provenance.name.clone(), self.provenance.clone());
        let host_lock = self.host_lock;
        Kernel::boxed(move |context, args| self.run(context, args))
            .with_provenance(provenance)
            .with_host_lock(host_lock)
            .with_check(move |schema| check(schema, &name, objects, outputs))
    }

    fn run(&self, context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> Result<Value> {
        let schema = context.operator().schema();
        if self.outputs == Outputs::Filled && fills_returns(schema) {
            return self.run_filling(context, args);
        }
        let mut frame = ArgFrame::new();
        let views = self.tensors == Tensors::Views;
        for (at, (argument, value)) in schema.arguments.iter().zip(args).enumerate() {
            // The common types, without a look-up of the schema.
            match value {
                ValueRef::Tensor(tensor) if views && argument.alias.is_none() => {
                    frame.push_view(tensor)?;
                }
                ValueRef::Foreign(object) if views && argument.alias.is_none() => {
                    match object.lend() {
                        Some(described) => frame.push_described(described),
                        None => frame.push_view(object.tensor()?)?,
                    }
                }
                _ if argument.alias.is_none() => {
                    self.push(&mut frame, context, at, *value)?;
                }
                _ => return self.run_sharing(&mut frame, context, args, at),
            }
        }
        self.finish(&mut frame, context, args)
    }

    /// As [`run`](Self::run), from the first argument whose memory is written or returned.
    #[cold]
    fn run_sharing<'a>(
        &self,
        frame: &mut ArgFrame<'a>,
        context: &CallContext<'_, Value>,
        args: &'a [ValueRef<'a>],
        from: usize,
    ) -> Result<Value> {
        let mut writes = false;
        for (at, value) in args.iter().enumerate().skip(from) {
            writes |= self.push(frame, context, at, *value)?;
        }
        if writes {
            note_writes(context.operator().schema(), args)?;
        }
        self.finish(frame, context, args)
    }

    /// Calls the function with the converted arguments.
    #[inline(always)]
    fn finish(
        &self,
        frame: &mut ArgFrame<'_>,
        context: &CallContext<'_, Value>,
        args: &[ValueRef<'_>],
    ) -> Result<Value> {
        let result = self.call(context, frame)?;
        // The common case, without moving a large value.
        if result.type_index == abi::NONE {
            return Ok(Value::None);
        }
        self.convert_result(context, frame, result, args)
    }

    /// Runs with destination passing: the tensors of the schema's returns are arguments.
    fn run_filling(
        &self,
        context: &CallContext<'_, Value>,
        args: &[ValueRef<'_>],
    ) -> Result<Value> {
        let outputs = outputs(context, args)?;
        let (mut frame, mut writes) = (ArgFrame::new(), false);
        for (at, value) in args.iter().enumerate() {
            let made = outputs.iter().find(|output| output.argument == Some(at));
            let value = match (made, value) {
                (Some(output), ValueRef::None) => ValueRef::Tensor(&output.tensor),
                _ => *value,
            };
            writes |= self.push(&mut frame, context, at, value)?;
        }
        for output in outputs.iter().filter(|output| output.argument.is_none()) {
            let tensor = ValueRef::Tensor(&output.tensor);
            frame.push(tensor, &Type::Tensor, self.objects, self.tensors == Tensors::Objects)?;
        }
        if writes {
            note_writes(context.operator().schema(), args)?;
        }
        let result = self.call(context, &mut frame)?;
        if let Some(runtime) = self.objects.filter(|_| result.is_object()) {
            // SAFETY: the function's result, whose reference is released; the outputs take its
            // place.
            drop(unsafe { Object::owned(result.address(), runtime) });
        }
        drop(frame);
        let mut tensors = outputs.into_iter().map(|output| Value::Tensor(output.tensor));
        Ok(match context.operator().schema().returns.len() {
            1 => tensors.next().unwrap_or(Value::None),
            _ => Value::Tuple(tensors.collect()),
        })
    }

    /// Adds an argument to the frame. Returns whether the function writes to it.
    #[inline]
    fn push<'a>(
        &self,
        frame: &mut ArgFrame<'a>,
        context: &CallContext<'_, Value>,
        at: usize,
        value: ValueRef<'a>,
    ) -> Result<bool> {
        let argument = &context.operator().schema().arguments[at];
        let as_objects = self.tensors == Tensors::Objects;
        let mut pushed = match &argument.alias {
            Some(alias) => {
                check_aliased(value, alias.write, as_objects || value.list_len().is_some())
            }
            None => Ok(()),
        };
        if pushed.is_ok() {
            pushed = frame.push(value, &argument.ty, self.objects, as_objects);
        }
        pushed.map_err(|error| {
            error.at(&format!("{}() argument '{}'", context.operator().name(), argument.name))
        })?;
        Ok(argument.alias.as_ref().is_some_and(|alias| alias.write))
    }

    /// Calls the function and converts its error.
    #[inline]
    fn call(&self, context: &CallContext<'_, Value>, frame: &mut ArgFrame<'_>) -> Result<Any> {
        let handle = std::ptr::with_exposed_provenance_mut(self.handle);
        if let Some(runtime) = self.objects {
            alloc::install(runtime);
        }
        let mut result = Any::NONE;
        // SAFETY: the contract of `new`; the frame, the outputs and the caller's arguments keep all
        // pointees alive until after the call.
        let code = unsafe { guard::call(self.function, handle, frame.set_pointers(), &mut result) };
        match code {
            Ok(0) => Ok(result),
            Ok(code) => Err(kernel_error(context, code)),
            Err(text) => Err(exception_error(context, &text)),
        }
    }

    /// Converts the result; an argument's own object becomes that argument.
    fn convert_result(
        &self,
        context: &CallContext<'_, Value>,
        frame: &ArgFrame<'_>,
        result: Any,
        args: &[ValueRef<'_>],
    ) -> Result<Value> {
        let several = context.operator().schema().returns.len() > 1;
        let taken = match self.objects {
            Some(runtime) if result.type_index == abi::TENSOR => {
                match frame.argument_of(result.address()) {
                    Some(number) => {
                        // SAFETY: the result's reference, which is released.
                        drop(unsafe { Object::owned(result.address(), runtime) });
                        Ok(Value::Argument(number))
                    }
                    // SAFETY: a result of the function, whose objects are the library's.
                    None => unsafe { from_result(result, Some(runtime)) },
                }
            }
            Some(runtime) if several && result.is_object() => {
                // SAFETY: as above.
                unsafe { self.convert_results(frame, result, runtime, args) }
            }
            // SAFETY: as above; without the library, objects aren't accessed.
            objects => unsafe { from_result(result, objects) },
        };
        taken.map_err(|error| {
            let (operator, kernel) = (context.operator(), context.kernel());
            match error.kind() {
                ErrorKind::Return => operator.wrong_return(kernel, error.message()),
                _ => {
                    let name = operator.name();
                    error.at(&format!("{name}: the result of the kernel {}", kernel.provenance()))
                }
            }
        })
    }

    /// Converts a list to the several results of one call.
    ///
    /// # Safety
    /// `result` is the function's result, an object of the library.
    unsafe fn convert_results(
        &self,
        frame: &ArgFrame<'_>,
        result: Any,
        runtime: &'static Runtime,
        args: &[ValueRef<'_>],
    ) -> Result<Value> {
        // SAFETY: the caller's contract. `held` keeps the list's items alive.
        unsafe {
            if result.type_index != abi::ARRAY && result.type_index != abi::LIST {
                return from_result(result, Some(runtime));
            }
            let Some(held) = Object::owned(result.address(), runtime) else {
                return Err(Error::new(ErrorKind::Return, "an object whose address is null"));
            };
            let items = from_result::items_of(result.address())?.iter().map(|item| {
                let argument = match item.type_index {
                    abi::TENSOR => frame.argument_of(item.address()),
                    _ => None,
                };
                match argument {
                    Some(number) => Value::from_ref(args[number]),
                    None => from_result::copy(item, runtime),
                }
            });
            let items = items.collect::<Result<_>>().map(Value::Tuple);
            drop(held);
            items
        }
    }
}

/// Returns whether all returns are Tensors, which a function with destination passing fills.
fn fills_returns(schema: &Schema) -> bool {
    !schema.returns.is_empty() && schema.returns.iter().all(|r| r.ty == Type::Tensor)
}

/// Checks an argument whose memory the function writes or returns. `as_objects`: it is passed as
/// tensor objects.
fn check_aliased(value: ValueRef<'_>, written: bool, as_objects: bool) -> Result<()> {
    if as_objects {
        check_shared(value)?;
    }
    if written { each_tensor(value, &mut Tensor::check_write) } else { Ok(()) }
}

/// Refuses tensors that the function would get as copies, if it writes them or returns their
/// memory.
fn check_shared(value: ValueRef<'_>) -> Result<()> {
    match value {
        // The clone holds the memory; `moves` is known only of memory that is held.
        ValueRef::Tensor(_) | ValueRef::Foreign(_) if value.tensor()?.clone().moves() => {
            Err(Error::new(
                ErrorKind::Exchange,
                "the kernel takes tensor objects, which it may keep, and another library may move \
                 this tensor's memory (as torch's share_memory_() does), so that the kernel gets a \
                 copy, which can't be written for the caller: pass a tensor of keyfold's own, or \
                 register the kernel with tensors=\"view\"",
            ))
        }
        list => list.items().try_for_each(check_shared),
    }
}

/// Bumps the versions of written tensors, once all arguments are converted, so that a refused call
/// counts as no write.
#[cold]
pub(crate) fn note_writes(schema: &Schema, args: &[ValueRef<'_>]) -> Result<()> {
    for (argument, value) in schema.arguments.iter().zip(args) {
        if argument.alias.as_ref().is_some_and(|alias| alias.write) {
            each_tensor(*value, &mut |tensor| {
                tensor.note_write();
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// Calls `f` with each tensor of an argument.
pub(crate) fn each_tensor(
    value: ValueRef<'_>,
    f: &mut impl FnMut(&Tensor) -> Result<()>,
) -> Result<()> {
    match value {
        ValueRef::Tensor(_) | ValueRef::Foreign(_) => f(value.tensor()?),
        list => {
            for item in list.items() {
                each_tensor(item, f)?;
            }
            Ok(())
        }
    }
}

/// Returns the error for a nonzero code. For -1, the library holds the error raised.
#[cold]
fn kernel_error(context: &CallContext<'_, Value>, code: i32) -> Error {
    let kernel = context.kernel().provenance();
    let place = format!("{}: the kernel {kernel} failed", context.operator().name());
    let raised = runtime::loaded().filter(|_| code == -1).and_then(ForeignError::take);
    match raised {
        Some(mut raised) => {
            raised.place = format!("{}, by the kernel {kernel}", describe_path());
            raised.into_error(&place)
        }
        None => Error::new(ErrorKind::KernelFailed, format!("{place} with code {code}")),
    }
}

/// Returns the error for a C++ exception.
#[cold]
fn exception_error(context: &CallContext<'_, Value>, text: &str) -> Error {
    Error::new(
        ErrorKind::KernelFailed,
        format!(
            "{}: the kernel {} let a C++ exception out, which the C convention forbids: {text}",
            context.operator().name(),
            context.kernel().provenance()
        ),
    )
}
