//! The profiler: one event per outer call, with its time, key path, arguments and memory.
//!
//! ```
//! use keyfold::ops::aten;
//! use keyfold_layers::profiler;
//! # use keyfold_tensor::Tensor;
//! keyfold::init();
//! let x = Tensor::from_slice(&[1.0_f64, 2.0], &[2])?;
//! let session = profiler::Session::new(profiler::Options::default());
//! let recording = session.start()?;
//! {
//!     let _step = profiler::range("step");
//!     aten::exp(&x)?;
//! }
//! recording.stop()?;
//! let profile = session.profile();
//! assert_eq!(profile.events.len(), 2);
//! assert_eq!((&*profile.events[1].name, &*profile.events[1].keys), ("aten::exp", "CPU"));
//! println!("{}", profile.table(&profiler::TableOptions::default()));
//! # Ok::<(), keyfold_core::Error>(())
//! ```
//!
//! # How it is laid out
//! - [`Session`] records while it is open; a `Scope` is its local data: the
//!   session and the innermost open range
//! - `record` is the kernel: it times the redispatched call and appends one event
//! - `device_time` times calls on asynchronous devices, by events on their streams
//! - `log` stores events by thread, without an allocation for each
//! - [`Profile`] is the recording as data; [`Table`] aggregates it, `trace` writes it as a Chrome
//!   trace
//!
//! While no session is open, the key isn't in any set, and the profiler costs nothing.

mod device_time;
mod event;
mod log;
mod range;
mod record;
mod session;
mod table;
mod text;
mod trace;

#[cfg(test)]
mod tests;

use keyfold_core::Result;
use keyfold_dispatch::{CallContext, DispatchKey, Dispatcher, HostLock, Kernel, Override};
use keyfold_tensor::{Value, ValueRef};

pub use event::{Event, EventKind, Profile, TensorInfo};
pub use range::{OpenRange, RangeGuard, range};
pub(crate) use range::{is_open, range_with};
pub use session::{Attachment, Options, Recording, Session};
pub use table::{Row, SortBy, Table, TableOptions};

use crate::HOST_LOCK_FROM;

pub(crate) fn register(dispatcher: &Dispatcher<Value>) -> Result<()> {
    let kernel = Kernel::boxed(fallback)
        .named("record in the profile")
        .with_host_lock(HostLock::ReleaseFrom(HOST_LOCK_FROM));
    dispatcher.fallback(DispatchKey::Profiler, kernel, Override::Error)?;
    Ok(())
}

/// Redispatches the call, and records it if a session is open here.
fn fallback(context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> Result<Value> {
    match session::Scope::current() {
        Some(scope) => record::call(&scope, context, args),
        None => context.call_below(args),
    }
}
