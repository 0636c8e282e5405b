//! The operator and the target of a kernel: a backend, or Meta.

use std::fmt;
use std::sync::Arc;

use keyfold_backend::{Execute, GpuBackend, Offer, Params, Reason, not_supported};
use keyfold_core::{DType, Device, DeviceType, Error, ErrorKind, Result, Shape};
use keyfold_expr::Specialized;
use keyfold_layers::pipeline::BackendKernel;
use keyfold_tensor::Tensor;
use smallvec::SmallVec;

use crate::convert::identity_expr;
use crate::pointwise::Prepared;

/// The operator that a kernel computes, and its target.
///
/// Each kernel is one function for all backends and for Meta, see [`crate::infer`].
#[derive(Clone, Debug)]
pub(crate) struct Op {
    /// The name without its overload, for messages.
    pub(crate) name: &'static str,
    target: Target,
}

/// The target of a kernel.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// Meta, where no elements are computed.
    Meta,
    Backend(Arc<Runner>),
}

/// A backend, with the state that operators share for it.
pub(crate) struct Runner {
    pub(crate) kind: DeviceType,
    pub(crate) backend: Arc<dyn GpuBackend>,
    /// The identity of the backend's memory.
    pub(crate) memory: usize,
    /// The prepared conversions between dtypes.
    pub(crate) conversions: Specialized<Prepared>,
    /// The payload of the backend's kernels, by which a pipeline knows them.
    pub(crate) computes: Arc<BackendKernel>,
}

impl Runner {
    pub(crate) fn new(kind: DeviceType, backend: Arc<dyn GpuBackend>) -> Runner {
        let memory = backend.memory().identity();
        let computes = Arc::new(BackendKernel(backend.clone()));
        Runner { kind, backend, memory, conversions: Specialized::new(identity_expr()), computes }
    }
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Runner({}, {:?})", self.kind, self.backend)
    }
}

impl Op {
    /// Makes the operator of that name for a target.
    pub(crate) fn new(name: &'static str, target: Target) -> Op {
        Op { name, target }
    }

    /// Returns whether the target is Meta.
    #[inline]
    pub(crate) fn is_meta(&self) -> bool {
        matches!(self.target, Target::Meta)
    }

    /// Returns the backend; `None` on Meta.
    #[inline]
    pub(crate) fn runner(&self) -> Option<&Runner> {
        match &self.target {
            Target::Meta => None,
            Target::Backend(runner) => Some(runner),
        }
    }

    /// Returns the device of a factory's result: the requested one, or the backend's first.
    pub(crate) fn device(&self, requested: Option<Device>) -> Device {
        requested.unwrap_or(match &self.target {
            Target::Meta => Device::META,
            Target::Backend(runner) => Device::new(runner.kind, 0),
        })
    }

    /// Returns the target's device type.
    pub(crate) fn kind(&self) -> DeviceType {
        self.runner().map_or(DeviceType::META, |runner| runner.kind)
    }

    /// Returns the device of a result: the argument's device, or meta.
    #[inline]
    pub(crate) fn device_of(&self, argument: &Tensor) -> Device {
        if self.is_meta() { Device::META } else { argument.device() }
    }

    /// Selects a kernel from a group of the backend.
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
            None => lacks_group(group_name::<G>()),
            Some(group) => match select(group).kernel() {
                Ok(kernel) => return Ok(kernel),
                Err(reason) => reason,
            },
        };
        Err(self.not_supported(&reason))
    }

    /// Selects the kernel of an operation with several inputs and outputs.
    ///
    /// # Errors
    /// As [`Op::kernel`].
    pub(crate) fn group_kernel<P: Params>(
        &self,
        params: &P,
        inputs: &[DType],
        outputs: &[DType],
    ) -> Result<&dyn Execute<P>> {
        let group = self.runner().and_then(|runner| P::group(&runner.backend.groups()));
        let reason = match group {
            None => lacks_group(P::GROUP.name()),
            Some(group) => match group.kernel(params.operation(), inputs, outputs).kernel() {
                Ok(kernel) => return Ok(kernel),
                Err(reason) => reason,
            },
        };
        Err(self.not_supported(&reason))
    }

    /// Runs an operation with several inputs and outputs, whose dtypes select its kernel.
    ///
    /// # Errors
    /// As [`Op::kernel`], and those of the kernel.
    ///
    /// # Safety
    /// As [`Execute::execute`].
    pub(crate) unsafe fn execute<P: Params>(
        &self,
        params: &P,
        inputs: &[&Tensor],
        outputs: &[&Tensor],
    ) -> Result<()> {
        let dtypes = |tensors: &[&Tensor]| -> SmallVec<[DType; 6]> {
            tensors.iter().map(|tensor| tensor.dtype()).collect()
        };
        let kernel = self.group_kernel(params, &dtypes(inputs), &dtypes(outputs))?;
        // SAFETY: the caller's promise.
        self.at(unsafe { kernel.execute(params, inputs, outputs) })
    }

    /// Returns the error of an operator that the backend doesn't offer.
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

    /// Allocates a result with uninitialized elements.
    #[inline]
    pub(crate) fn output(&self, device: Device, shape: &Shape, dtype: DType) -> Result<Tensor> {
        self.at(Tensor::empty_of(shape.clone(), dtype, device))
    }

    /// Prefixes an error with the operator's name.
    pub(crate) fn at<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| match error.kind() {
            // Every operator that writes, writes to `self`.
            ErrorKind::ReadOnly => error.at("argument 'self'").at(self.name),
            _ => error.at(self.name),
        })
    }

    /// As [`Op::at`], with an argument's name, too.
    pub(crate) fn at_argument<T>(&self, name: &str, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.at(&format!("argument '{name}'")).at(self.name))
    }

    /// Makes an error of this operator.
    #[cold]
    pub(crate) fn error(&self, kind: ErrorKind, message: impl AsRef<str>) -> Error {
        Error::new(kind, format!("{}: {}", self.name, message.as_ref()))
    }

    /// Makes the error for a dtype that the operator doesn't support.
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

    /// Makes the error of a call of the overload `out` without its argument.
    #[cold]
    pub(crate) fn lacks_out(&self) -> Error {
        self.error(ErrorKind::Binding, "argument 'out' is missing")
    }

    /// Converts sizes to a shape.
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

/// Returns the name of a group, which is that of its trait.
#[cold]
fn group_name<G: ?Sized>() -> String {
    let name = std::any::type_name::<G>().rsplit("::").next().unwrap_or_default();
    name.to_lowercase()
}

/// Returns the reason for a backend without a group.
#[cold]
fn lacks_group(group: impl fmt::Display) -> Reason {
    format!("it doesn't have the operations of group {group}").into()
}
