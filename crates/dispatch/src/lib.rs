//! Multi-dispatch over ordered key sets.
//!
//! Every value carries a set of [`DispatchKey`]s. A call of an [`Operator`] computes the union over
//! its arguments, adds and removes the thread's local keys, and runs the kernel of the highest
//! remaining key; that kernel may redispatch below itself. Kernels are registered per (operator,
//! key) in a [`Dispatcher`], also while other threads call.
//!
//! The engine is generic over a [`Value`] type and has no notion of tensors.
//!
//! # How it is laid out
//! - keys: [`DispatchKey`], [`DispatchKeySet`], [`register_key`], [`register_backend`]
//! - [`schema`]: the text `ns::name(Tensor x) -> Tensor`, parsed, printed and bound
//! - registration: [`Dispatcher`], [`Kernel`], [`Handle`], [`Stage`], [`Override`]
//! - the call: [`Operator`], [`Packet`] (overloads), [`TypedOperator`], [`CallContext`],
//!   [`LocalKeys`]
//! - inspection: [`Explanation`], [`TableEntry`], [`Rule`], [`Provenance`]

mod barrier;
mod context;
mod dispatcher;
mod errors;
mod explain;
pub mod forklock;
mod handle;
mod inspect;
mod kernel;
mod key;
mod keyset;
mod library;
mod local;
mod names;
mod operator;
mod packet;
mod provenance;
mod reclaim;
mod registrations;
pub mod schema;
mod sync;
mod table;
mod tags;
mod thread;
mod typed;
mod value;

pub use context::{CallContext, call_path, describe_path};
pub use dispatcher::{DefineOptions, Dispatcher};
pub use errors::endless_call;
pub use explain::{ArgumentKeys, Choice, Explanation};
pub use handle::Handle;
pub use inspect::TableEntry;
pub use kernel::{BoxedFn, HostLock, Kernel, SignatureCheck};
pub use key::{DispatchKey, RegistrationKey};
pub use keyfold_core::{did_you_mean, nearest};
pub use keyset::{DispatchKeySet, Iter};
pub use library::Stage;
pub use local::{
    LocalContext, LocalData, LocalGuard, LocalKeys, exclude_keys, include_keys, include_keys_with,
    inside_layers, local_data, outside_layers, with_ambient, with_local_data, without_layers,
};
pub use names::{
    backend_was_removed, check_backend_name, note_removed_backend, register_backend, register_key,
};
pub use operator::Operator;
pub use packet::{Packet, first_that_takes};
pub use provenance::Provenance;
pub use registrations::Override;
pub use table::Rule;
pub use tags::Tags;
pub use typed::{Args, ContextKernel, Misfit, TypedKernel, TypedOperator};
pub use value::{Arg, Ret, Tag, Value};
