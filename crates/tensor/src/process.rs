//! The process's dispatcher.

use std::sync::OnceLock;

use keyfold_dispatch::Dispatcher;

use crate::Value;

/// Returns the process's dispatcher. It starts without operators: `keyfold::init()` registers the
/// built-in ones, their kernels, and the layers.
pub fn dispatcher() -> &'static Dispatcher<Value> {
    static SHARED: OnceLock<Dispatcher<Value>> = OnceLock::new();
    SHARED.get_or_init(Dispatcher::shared)
}
