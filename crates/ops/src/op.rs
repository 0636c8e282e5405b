//! Which operator a kernel runs for and where, and how operators are registered.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use keyfold_backend::{GpuBackend, Offer, Reason, not_supported};
use keyfold_core::{DType, Device, DeviceType, Error, ErrorKind, Result, Shape};
use keyfold_dispatch::schema::Schema;
use keyfold_dispatch::{
    DefineOptions, DispatchKey, Dispatcher, Handle, HostLock, Kernel, Override, RegistrationKey,
};
use keyfold_expr::Specialized;
use keyfold_tensor::{Tensor, Value};

use crate::elementwise::{Definition, Prepared};
use crate::map::itself;
use crate::on_device::on_device;

/// From how many elements on a kernel is worth giving up the host language's lock for.
pub(crate) const HOST_LOCK_FROM: usize = 1 << 15;

/// The operator that a kernel belongs to, and what runs it.
///
/// Each kernel is one function for all backends and for Meta: it works out dtype and shape, makes the
/// result, and on Meta stops there. So they agree by construction.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    /// The name without its overload, as messages have it.
    pub(crate) name: &'static str,
    target: Target,
}

/// What runs a kernel.
#[derive(Clone, Debug)]
enum Target {
    /// Nothing: there are no elements.
    Meta,
    Backend(Arc<Runner>),
}

/// A backend, with what operators keep for it.
pub(crate) struct Runner {
    pub(crate) kind: DeviceType,
    pub(crate) backend: Arc<dyn GpuBackend>,
    /// The identity of the backend's memory.
    pub(crate) memory: usize,
    /// Conversions between dtypes.
    pub(crate) conversions: Specialized<Prepared>,
}

impl Runner {
    pub(crate) fn new(kind: DeviceType, backend: Arc<dyn GpuBackend>) -> Runner {
        let memory = backend.memory().identity();
        Runner { kind, backend, memory, conversions: Specialized::new(itself()) }
    }
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Runner({}, {:?})", self.kind, self.backend)
    }
}

impl Op {
    /// The operator on Meta.
    pub(crate) fn on_meta(name: &'static str) -> Op {
        Op { name, target: Target::Meta }
    }

    /// The operator on a backend.
    pub(crate) fn on(name: &'static str, runner: Arc<Runner>) -> Op {
        Op { name, target: Target::Backend(runner) }
    }

    /// Whether there is nothing to compute.
    #[inline]
    pub(crate) fn is_meta(&self) -> bool {
        matches!(self.target, Target::Meta)
    }

    /// What runs it; none on Meta.
    #[inline]
    pub(crate) fn runner(&self) -> Option<&Runner> {
        match &self.target {
            Target::Meta => None,
            Target::Backend(runner) => Some(runner),
        }
    }

    /// The device of a result that no argument is on: the one that was asked for, or the first of the
    /// backend's.
    pub(crate) fn device(&self, asked: Option<Device>) -> Device {
        asked.unwrap_or(match &self.target {
            Target::Meta => Device::META,
            Target::Backend(runner) => Device::new(runner.kind, 0),
        })
    }

    /// The type of device that it runs on.
    pub(crate) fn kind(&self) -> DeviceType {
        self.runner().map_or(DeviceType::META, |runner| runner.kind)
    }

    /// The device of a result that goes with an argument.
    #[inline]
    pub(crate) fn device_of(&self, argument: &Tensor) -> Device {
        if self.is_meta() { Device::META } else { argument.device() }
    }

    /// The kernel that a backend's group offers.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`], where the backend has no such group, or no such kernel.
    #[inline]
    pub(crate) fn kernel<'a, G: ?Sized + 'a, K>(
        &'a self,
        group: impl FnOnce(&'a dyn GpuBackend) -> Option<&'a G>,
        select: impl FnOnce(&'a G) -> Offer<K>,
    ) -> Result<K> {
        let reason = match self.runner().and_then(|runner| group(&*runner.backend)) {
            None => lacks_group::<G>(),
            Some(group) => match select(group).kernel() {
                Ok(kernel) => return Ok(kernel),
                Err(reason) => reason,
            },
        };
        Err(self.not_supported(&reason))
    }

    /// The error of an operator that the backend doesn't offer.
    #[cold]
    pub(crate) fn not_supported(&self, reason: &Reason) -> Error {
        let backend = self.runner().map_or("meta", |runner| runner.backend.name());
        let hint = match self.kind().is_host() {
            true => "convert the arguments with aten::to, or compute it in parts",
            false => {
                "copy the arguments to another device with .to(), or allow that once and for all \
                 with kf.allow_fallback()"
            }
        };
        not_supported(self.name, backend, reason, hint)
    }

    /// A fresh result on a device, of arbitrary elements until each is written.
    #[inline]
    pub(crate) fn output(&self, device: Device, shape: &[usize], dtype: DType) -> Result<Tensor> {
        self.at(Tensor::empty(shape, dtype, device))
    }

    /// A fresh result of zeros on a device.
    pub(crate) fn zeros(&self, device: Device, shape: &[usize], dtype: DType) -> Result<Tensor> {
        self.at(Tensor::zeros(shape, dtype, device))
    }

    /// The result, its error prefixed with the operator's name.
    pub(crate) fn at<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| match error.kind() {
            // What is written to is `self`, in every operator that writes.
            ErrorKind::ReadOnly => error.at("argument 'self'").at(self.name),
            _ => error.at(self.name),
        })
    }

    /// As [`Op::at`], where what is written to is argument `out`.
    pub(crate) fn at_out<T>(&self, result: Result<T>) -> Result<T> {
        self.at_argument("out", result)
    }

    /// As [`Op::at`], where it is about an argument.
    pub(crate) fn at_argument<T>(&self, name: &str, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.at(&format!("argument '{name}'")).at(self.name))
    }

    /// An error of this operator.
    #[cold]
    pub(crate) fn error(&self, kind: ErrorKind, message: impl AsRef<str>) -> Error {
        Error::new(kind, format!("{}: {}", self.name, message.as_ref()))
    }

    /// The error for a dtype that the operator doesn't take.
    #[cold]
    pub(crate) fn unsupported(&self, argument: &str, dtype: DType, supported: &[DType]) -> Error {
        let names: Vec<_> = supported.iter().map(|d| d.name()).collect();
        let known = names.join(", ");
        let advice = match argument {
            "dtype" => format!("give one of {known}, and convert the result with aten::to"),
            _ => format!("convert to one of {known} with aten::to"),
        };
        self.error(
            ErrorKind::DType,
            format!("argument '{argument}': dtype {dtype} isn't supported here; {advice}"),
        )
    }

    /// Sizes as a shape.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] for a negative size or too many.
    pub(crate) fn shape(&self, sizes: &[i64]) -> Result<Shape> {
        let mut shape = self.at(Shape::filled(0, sizes.len()))?;
        for (slot, &size) in shape.iter_mut().zip(sizes) {
            *slot = usize::try_from(size).map_err(|_| {
                self.error(ErrorKind::Shape, format!("size {size} in {sizes:?} is negative"))
            })?;
        }
        Ok(shape)
    }
}

/// Defines operators in a dispatcher, with their kernels for Meta; or registers their kernels for a
/// backend.
pub(crate) struct Registrar<'d> {
    dispatcher: &'d Dispatcher<Value>,
    /// The backend, and what was registered for it.
    runner: Option<Arc<Runner>>,
    handles: RefCell<Vec<Handle<Value>>>,
}

impl<'d> Registrar<'d> {
    /// To define operators.
    pub(crate) fn define(dispatcher: &'d Dispatcher<Value>) -> Self {
        Registrar { dispatcher, runner: None, handles: RefCell::default() }
    }

    /// To register kernels for a backend.
    pub(crate) fn install(
        dispatcher: &'d Dispatcher<Value>,
        kind: DeviceType,
        backend: Arc<dyn GpuBackend>,
    ) -> Self {
        let runner = Some(Arc::new(Runner::new(kind, backend)));
        Registrar { dispatcher, runner, handles: RefCell::default() }
    }

    /// Registers, for the backend, the kernels of those operators in the dispatcher that users made of
    /// an expression.
    pub(crate) fn definitions(&self) -> Result<()> {
        let Some(runner) = &self.runner else { return Ok(()) };
        let key = DispatchKey::from_device_type(runner.kind);
        for operator in self.dispatcher.operators() {
            let Some(meta) = operator.kernel_at(DispatchKey::Meta.into()) else { continue };
            let definition = meta.payload().cloned().and_then(|any| any.downcast().ok());
            let Some(definition) = definition else { continue };
            if operator.has_kernel(key.into()) {
                continue;
            }
            let kernel = Definition::kernel(&definition, runner.clone());
            let handle = self.dispatcher.register_with(&operator, key, kernel, Override::Error)?;
            self.handles.borrow_mut().push(handle);
        }
        Ok(())
    }

    /// The registrations that were made for the backend.
    pub(crate) fn into_handles(self) -> Vec<Handle<Value>> {
        self.handles.into_inner()
    }

    /// An operator that computes.
    pub(crate) fn op(
        &self,
        schema: &'static str,
        kernel: impl Fn(Op) -> Kernel<Value>,
    ) -> Result<()> {
        self.add(name_of(schema), schema, &kernel, Form::default())
    }

    /// An operator that computes, whose arguments may be on several devices.
    pub(crate) fn across_devices(
        &self,
        schema: &'static str,
        kernel: impl Fn(Op) -> Kernel<Value>,
    ) -> Result<()> {
        let form = Form {
            options: DefineOptions { mixed_devices: true, ..Default::default() },
            ..Form::default()
        };
        self.add(name_of(schema), schema, &kernel, form)
    }

    /// An operator that computes, and its overload that writes into a tensor of the caller's.
    ///
    /// `args` is what the schema has between the parentheses; the overload is called `out`, or
    /// `Scalar_out` if the operator's own is `Scalar`.
    pub(crate) fn with_out(
        &self,
        (name, overload): (&'static str, &str),
        args: &str,
        fresh: impl Fn(Op) -> Kernel<Value>,
        into: impl Fn(Op) -> Kernel<Value>,
    ) -> Result<()> {
        let (dot, underscore, star) = (
            if overload.is_empty() { "" } else { "." },
            if overload.is_empty() { "" } else { "_" },
            if args.contains('*') { "" } else { "*, " },
        );
        let schema = format!("{name}{dot}{overload}({args}) -> Tensor");
        let out =
            format!("{name}.{overload}{underscore}out({args}, {star}Tensor(a!) out) -> Tensor(a!)");
        self.add(name, &schema, &fresh, Form::default())?;
        self.add(name, &out, &into, Form::default())
    }

    /// An operator that touches no elements: a view, or a factory.
    pub(crate) fn view(
        &self,
        schema: &'static str,
        kernel: impl Fn(Op) -> Kernel<Value>,
    ) -> Result<()> {
        let form = Form { lock: HostLock::Keep, ..Form::default() };
        self.add(name_of(schema), schema, &kernel, form)
    }

    /// An operator that draws random numbers: they are its device's own, and never another's.
    pub(crate) fn random(
        &self,
        schema: &'static str,
        kernel: impl Fn(Op) -> Kernel<Value>,
    ) -> Result<()> {
        let form = Form { lock: HostLock::Keep, falls_back: false, ..Form::default() };
        self.add(name_of(schema), schema, &kernel, form)
    }

    /// An operator whose result's shape depends on data, so that Meta can't have it.
    pub(crate) fn data_dependent(
        &self,
        schema: &'static str,
        kernel: impl Fn(Op) -> Kernel<Value>,
    ) -> Result<()> {
        let form = Form { has_meta: false, ..Form::default() };
        self.add(name_of(schema), schema, &kernel, form)
    }

    /// An operator written in terms of others, one kernel for all devices and for Autograd.
    pub(crate) fn composite(&self, text: &'static str, kernel: Kernel<Value>) -> Result<()> {
        if self.runner.is_some() {
            return Ok(());
        }
        let schema = Schema::parse(text)?;
        let (full, label) = (schema.name.to_string(), schema.name.name.clone());
        self.dispatcher.define_with(schema, Default::default())?;
        let key = RegistrationKey::CompositeImplicitAutograd;
        let kernel = kernel.named(label).with_host_lock(COMPUTES);
        self.dispatcher.implement(&full, key, kernel, Override::Error)?;
        Ok(())
    }

    fn add(
        &self,
        name: &'static str,
        text: &str,
        kernel: &dyn Fn(Op) -> Kernel<Value>,
        form: Form,
    ) -> Result<()> {
        let schema = Schema::parse(text)?;
        let (full, mut label) = (schema.name.to_string(), schema.name.name.clone());
        if !schema.name.overload.is_empty() {
            label = format!("{label}_{}", schema.name.overload.to_lowercase());
        }
        if let Some(runner) = &self.runner {
            let kind = runner.kind;
            let own = kernel(Op::on(name, runner.clone()));
            let own = own.named(format!("{label}_{kind}")).with_host_lock(form.lock);
            let key = DispatchKey::from_device_type(kind);
            if self.dispatcher.has_kernel(&full, key) {
                return Ok(());
            }
            let own = if kind.is_host() { own } else { on_device(own, runner, form.falls_back) };
            let handle = self.dispatcher.implement(&full, key, own, Override::Error)?;
            self.handles.borrow_mut().push(handle);
            return Ok(());
        }
        self.dispatcher.define_with(schema, form.options)?;
        if form.has_meta {
            let meta = kernel(Op::on_meta(name)).named(format!("{label}_meta"));
            self.dispatcher.implement(&full, DispatchKey::Meta, meta, Override::Error)?;
        }
        Ok(())
    }
}

/// The reason of a backend without a group of operations, which is named as its trait is.
#[cold]
fn lacks_group<G: ?Sized>() -> Reason {
    let group = std::any::type_name::<G>().rsplit("::").next().unwrap_or_default();
    format!("it doesn't have the operations of group {}", group.to_lowercase()).into()
}

/// How an operator's kernels are registered.
struct Form {
    lock: HostLock,
    has_meta: bool,
    options: DefineOptions,
    /// Whether it may run on another device where the backend doesn't offer it.
    falls_back: bool,
}

impl Default for Form {
    /// It computes, on one device.
    fn default() -> Self {
        Form { lock: COMPUTES, has_meta: true, options: DefineOptions::default(), falls_back: true }
    }
}

/// The name that a schema's text begins with, without its overload.
fn name_of(schema: &'static str) -> &'static str {
    schema.find(['.', '(']).map_or(schema, |end| &schema[..end])
}

/// For a kernel that computes.
const COMPUTES: HostLock = HostLock::ReleaseFrom(HOST_LOCK_FROM);
