//! Which operator a kernel runs for and where, and how operators are registered.

use keyfold_core::{DType, Device, Error, ErrorKind, Result, Shape};
use keyfold_dispatch::schema::Schema;
use keyfold_dispatch::{DispatchKey, Dispatcher, HostLock, Kernel, Override, RegistrationKey};
use keyfold_tensor::{Tensor, Value};

/// From how many elements on a kernel is worth giving up the host language's lock for.
pub(crate) const HOST_LOCK_FROM: usize = 1 << 15;

/// The operator that a kernel belongs to and the device that it makes results on.
///
/// Each kernel is one function for CPU and Meta: it works out dtype and shape, makes the result,
/// and on Meta stops there. So both agree by construction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    /// The name without its overload, as messages have it.
    pub(crate) name: &'static str,
    pub(crate) device: Device,
}

impl Op {
    /// Whether there is nothing to compute.
    pub(crate) fn is_meta(&self) -> bool {
        self.device == Device::META
    }

    /// A fresh result, of arbitrary elements until each is written.
    pub(crate) fn output(&self, shape: &[usize], dtype: DType) -> Result<Tensor> {
        self.at(Tensor::empty(shape, dtype, self.device))
    }

    /// A fresh result of zeros.
    pub(crate) fn zeros(&self, shape: &[usize], dtype: DType) -> Result<Tensor> {
        self.at(Tensor::zeros(shape, dtype, self.device))
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

/// Defines operators in a dispatcher and registers their kernels.
pub(crate) struct Registrar<'d>(pub(crate) &'d Dispatcher<Value>);

impl Registrar<'_> {
    /// An operator that computes, with a kernel for CPU and one for Meta.
    pub(crate) fn op(
        &self,
        schema: &'static str,
        kernel: impl Fn(Op) -> Kernel<Value>,
    ) -> Result<()> {
        let release = HostLock::ReleaseFrom(HOST_LOCK_FROM);
        self.add(name_of(schema), schema, &kernel, &[(DispatchKey::CPU, release), META])
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
        let release = HostLock::ReleaseFrom(HOST_LOCK_FROM);
        let keys = [(DispatchKey::CPU, release), META];
        self.add(name, &schema, &fresh, &keys)?;
        self.add(name, &out, &into, &keys)
    }

    /// An operator that touches no elements: a view, or a factory.
    pub(crate) fn view(
        &self,
        schema: &'static str,
        kernel: impl Fn(Op) -> Kernel<Value>,
    ) -> Result<()> {
        self.add(name_of(schema), schema, &kernel, &[(DispatchKey::CPU, HostLock::Keep), META])
    }

    /// An operator whose result's shape depends on data, so that Meta can't have it.
    pub(crate) fn cpu_only(
        &self,
        schema: &'static str,
        kernel: impl Fn(Op) -> Kernel<Value>,
    ) -> Result<()> {
        let release = HostLock::ReleaseFrom(HOST_LOCK_FROM);
        self.add(name_of(schema), schema, &kernel, &[(DispatchKey::CPU, release)])
    }

    /// An operator written in terms of others, one kernel for all devices and for Autograd.
    pub(crate) fn composite(&self, text: &'static str, kernel: Kernel<Value>) -> Result<()> {
        let schema = Schema::parse(text)?;
        let (full, label) = (schema.name.to_string(), schema.name.name.clone());
        self.0.define_with(schema, Default::default())?;
        let key = RegistrationKey::CompositeImplicitAutograd;
        let kernel = kernel.named(label).with_host_lock(HostLock::ReleaseFrom(HOST_LOCK_FROM));
        self.0.implement(&full, key, kernel, Override::Error)?;
        Ok(())
    }

    fn add(
        &self,
        name: &'static str,
        text: &str,
        kernel: &dyn Fn(Op) -> Kernel<Value>,
        keys: &[(DispatchKey, HostLock)],
    ) -> Result<()> {
        let schema = Schema::parse(text)?;
        let (full, mut label) = (schema.name.to_string(), schema.name.name.clone());
        if !schema.name.overload.is_empty() {
            label = format!("{label}_{}", schema.name.overload.to_lowercase());
        }
        self.0.define_with(schema, Default::default())?;
        for &(key, lock) in keys {
            let (device, suffix) = match key {
                DispatchKey::Meta => (Device::META, "meta"),
                _ => (Device::CPU, "cpu"),
            };
            let kernel =
                kernel(Op { name, device }).named(format!("{label}_{suffix}")).with_host_lock(lock);
            self.0.implement(&full, key, kernel, Override::Error)?;
        }
        Ok(())
    }
}

/// The name that a schema's text begins with, without its overload.
fn name_of(schema: &'static str) -> &'static str {
    schema.find(['.', '(']).map_or(schema, |end| &schema[..end])
}

const META: (DispatchKey, HostLock) = (DispatchKey::Meta, HostLock::Keep);
