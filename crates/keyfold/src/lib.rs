//! keyfold: a multi-dispatch engine for tensor kernels.
//!
//! Every tensor carries a set of dispatch keys. A call processes that set from the highest key to
//! the lowest: each layer does its part and redispatches below itself, until a backend computes the
//! result. Operators and kernels, per (operator, key), can be registered by anyone.
//!
//! This crate gathers the API for Rust users: dtypes, shapes and errors, the dispatch engine,
//! tensors, and the built-in operators in namespace `aten`. [`dispatcher`] returns the process's
//! dispatcher; [`Dispatcher::new`] makes an isolated one.
//!
//! # An operator of one's own
//! ```
//! use keyfold::{DispatchKey, DispatchKeySet, Kernel, Tensor, Value, ValueRef};
//!
//! let keyfold = keyfold::dispatcher();
//! keyfold.define("demo::scale(Tensor x, float factor=2.0) -> Tensor")?;
//!
//! // The kernel for CPU tensors: a closure with a typed signature, checked against the schema.
//! let scale_cpu = Kernel::typed(|x: &Tensor, factor: f64| {
//!     let scaled = x.to_vec::<f64>()?.into_iter().map(|x| x * factor).collect();
//!     Tensor::from_vec(scaled, x.shape())
//! });
//! keyfold.register("demo::scale", DispatchKey::CPU, scale_cpu)?;
//!
//! // Called typed: the signature is checked once, here, and nothing is boxed on the way.
//! let x = Tensor::from_slice(&[1.0, 2.0], &[2])?;
//! let scale = keyfold.typed::<(&Tensor, f64), Tensor>("demo::scale")?;
//! assert_eq!(scale.call(&x, 10.0)?.to_vec::<f64>()?, [10.0, 20.0]);
//!
//! // Called by name, boxed: defaults are filled in.
//! let y = keyfold.call("demo::scale", &[ValueRef::Tensor(&x)])?;
//! assert_eq!(y.into_tensor()?.to_vec::<f64>()?, [2.0, 4.0]);
//!
//! // A layer over it, for calls that go through the key Tracer. It sees every argument, does its
//! // part, and redispatches to whatever is below.
//! let tracer = Kernel::boxed(|context, args| {
//!     let result = context.call_below(args)?.into_tensor()?;
//!     Tensor::from_vec(result.to_vec::<f64>()?.iter().map(|x| -x).collect(), result.shape())
//!         .map(Value::Tensor)
//! });
//! let handle = keyfold.register("demo::scale", DispatchKey::Tracer, tracer)?;
//! let traced = keyfold::include_keys(DispatchKeySet::from([DispatchKey::Tracer]));
//! assert_eq!(scale.call(&x, 10.0)?.to_vec::<f64>()?, [-10.0, -20.0]);
//! drop(traced);
//! handle.remove();
//! # Ok::<(), keyfold::Error>(())
//! ```
//!
//! # The built-in operators
//! ```
//! use keyfold::Tensor;
//!
//! let matmul = keyfold::dispatcher().typed::<(&Tensor, &Tensor), Tensor>("aten::matmul")?;
//! let a = Tensor::from_slice(&[1.0, 2.0, 3.0, 4.0], &[2, 2])?;
//! assert_eq!(matmul.call(&a, &a)?.to_vec::<f64>()?, [7.0, 10.0, 15.0, 22.0]);
//! # Ok::<(), keyfold::Error>(())
//! ```
//!
//! # Overloads, and `x[...]`
//! A [`Packet`] calls the first overload that takes the arguments, by position or by name; [`index`] plans
//! what an index means.
//! ```
//! use keyfold::index::{Entry, Pick, plan};
//! use keyfold::{Tensor, Value, ValueRef};
//!
//! let add = keyfold::dispatcher().packet("aten::add")?;
//! let x = Tensor::from_slice(&[1_i64, 2, 3, 4, 5, 6], &[2, 3])?;
//! let sum = add.call(&[ValueRef::Tensor(&x)], &[("other", ValueRef::Int(10))])?.into_tensor()?;
//! assert_eq!(sum.to_vec::<i64>()?, [11, 12, 13, 14, 15, 16]);
//!
//! // sum[1:, [2, 0]]: a view of the last row, out of which two positions are picked.
//! let columns = Tensor::from_slice(&[2_i64, 0], &[2])?;
//! let planned = plan(sum.shape(), vec![Entry::from(1..), Entry::from_tensor(&columns)?])?;
//! let view = planned.view(&sum)?;
//! let picks = planned.picks.into_iter().flatten().map(|pick| match pick {
//!     Pick::Array(positions, _) => Value::Tensor(positions),
//!     _ => Value::None,
//! });
//! let picks = Value::List(picks.collect());
//! let args = [ValueRef::Tensor(&view), keyfold::dispatch::Value::as_ref(&picks)];
//! let picked = keyfold::dispatcher().call("aten::index.Tensor", &args)?.into_tensor()?;
//! assert_eq!(picked.shape()[..], [1, 2]);
//! assert_eq!(picked.to_vec::<i64>()?, [16, 14]);
//! # Ok::<(), keyfold::Error>(())
//! ```
#![forbid(unsafe_code)]

pub use keyfold_core::*;
pub use keyfold_dispatch::{
    ArgumentKeys, Choice, DefineOptions, DispatchKey, DispatchKeySet, Explanation, HostLock,
    LocalContext, LocalData, LocalGuard, LocalKeys, Override, Provenance, RegistrationKey, Rule,
    Tag, call_path, describe_path, exclude_keys, include_keys, include_keys_with, inside_layers,
    local_data, outside_layers, register_backend, register_key, schema, with_ambient,
    without_layers,
};
pub use keyfold_tensor::*;

/// The dispatch engine itself, generic over the value type.
pub mod dispatch {
    pub use keyfold_dispatch::*;
}

/// The devices' implementations of the operators: the trait, its groups of functions, and the
/// registry of backends.
#[cfg(feature = "ops")]
pub mod backend {
    pub use keyfold_backend::*;
}

/// The conformance kit: proves a backend.
#[cfg(feature = "conformance")]
pub mod conformance {
    pub use keyfold_conformance::*;
}

/// The CPU's implementation.
#[cfg(feature = "cpu")]
pub mod cpu {
    pub use keyfold_cpu::*;
}

/// Graphs of cuDNN: specification, builder, validator, executor, plan cache.
#[cfg(feature = "cudnn")]
pub mod cudnn {
    pub use keyfold_cudnn::*;
}

/// The real libcudnn for graphs of cuDNN: lowering, plans for cards that are here and that aren't.
#[cfg(feature = "libcudnn")]
pub mod libcudnn {
    pub use keyfold_libcudnn::*;
}

/// Scalar expressions: parser, derivatives, emitters.
#[cfg(feature = "expr")]
pub mod expr {
    pub use keyfold_expr::*;
}

/// Foreign functions as kernels, operators as foreign functions, and the host of plugins.
#[cfg(feature = "ffi")]
pub mod ffi {
    pub use keyfold_ffi::*;
}

/// The toolkit for CPU kernels.
#[cfg(feature = "kit")]
pub mod kit {
    pub use keyfold_kit::*;
}

/// The SDK for plugins.
#[cfg(feature = "plugin")]
pub mod plugin {
    pub use keyfold_plugin::*;
}

/// The built-in operators; [`register`](ops::register) adds them to a dispatcher.
#[cfg(feature = "ops")]
pub mod ops {
    pub use keyfold_ops::*;
}

/// The documentation page on layers, whose Rust examples are tested here.
#[cfg(all(doctest, feature = "layers"))]
#[doc = include_str!("../../../docs/layers.md")]
pub struct LayersPage;

/// A dispatcher of tensor operators.
pub type Dispatcher = keyfold_dispatch::Dispatcher<Value>;
/// A tensor operator.
pub type Operator = keyfold_dispatch::Operator<Value>;
/// All overloads of a name of tensor operators.
pub type Packet = keyfold_dispatch::Packet<Value>;
/// A typed handle of a tensor operator.
pub type TypedOperator<A, R> = keyfold_dispatch::TypedOperator<Value, A, R>;
/// A kernel of a tensor operator.
pub type Kernel = keyfold_dispatch::Kernel<Value>;
/// A registration, with which it is removed.
pub type Handle = keyfold_dispatch::Handle<Value>;
/// Registrations that are applied together.
pub type Stage = keyfold_dispatch::Stage<Value>;
/// A kernel's view of its call.
pub type CallContext<'c> = keyfold_dispatch::CallContext<'c, Value>;

/// The layers above the backends, one module per dispatch key.
#[cfg(feature = "layers")]
pub mod layers {
    pub use keyfold_layers::*;
}

/// Registers, in the process's dispatcher, all that this crate's features include: the built-in
/// operators, their kernels for every backend, present or future, the layers, and the CPU's
/// backend. Runs once; [`dispatcher`] calls it.
///
/// # Panics
/// If a built-in operator contradicts itself, which the tests rule out.
pub fn init() {
    static READY: std::sync::Once = std::sync::Once::new();
    READY.call_once(register_all);
}

fn register_all() {
    #[cfg(feature = "ops")]
    {
        use std::any::Any;
        use std::sync::Arc;

        let shared = keyfold_tensor::dispatcher();
        keyfold_ops::register(shared).expect("the built-in operators don't contradict themselves");
        let kernels: backend::Observer = Arc::new(|kind, backend| {
            let installed = keyfold_ops::install(keyfold_tensor::dispatcher(), kind, backend)?;
            Ok(Box::new(installed) as Box<dyn Any + Send>)
        });
        backend::observe(kernels).expect("the built-in operators are registered");
    }
    #[cfg(feature = "layers")]
    keyfold_layers::register(keyfold_tensor::dispatcher())
        .expect("the layers don't contradict themselves");
    // A backend and a pool that were registered before stay in place.
    #[cfg(feature = "cpu")]
    {
        let _ = backend::register(DeviceType::CPU, std::sync::Arc::new(keyfold_cpu::HostBackend));
        keyfold_cpu::HostBackend::share_copies();
    }
}

/// Returns the process's dispatcher, after [`init`].
pub fn dispatcher() -> &'static Dispatcher {
    init();
    keyfold_tensor::dispatcher()
}

#[cfg(all(test, feature = "cpu"))]
mod tests {
    use super::*;

    #[test]
    fn the_shared_dispatcher_is_one_and_has_the_built_in_operators() {
        assert!(dispatcher().is_same(dispatcher()));
        assert!(dispatcher().has_kernel("aten::add", DispatchKey::CPU));
        assert!(dispatcher().has_kernel("aten::add", DispatchKey::Meta));
        assert!(!dispatcher().has_kernel("aten::add", DispatchKey::CUDA));
        // `init` registered the pool for large copies.
        assert!(!keyfold_tensor::device::share_copies(|_, _| Ok(())));
        assert!(!dispatcher().takes_plain_names());
        assert!(!Dispatcher::new().has_kernel("aten::add", DispatchKey::CPU));
    }
}
