//! The dispatcher that a process shares.

use std::sync::OnceLock;

use keyfold_dispatch::Dispatcher;

use crate::Value;

/// The process's dispatcher. It has no operators until somebody registers some: `keyfold::init()`
/// registers the built-in ones, their kernels, and the layers.
pub fn dispatcher() -> &'static Dispatcher<Value> {
    static SHARED: OnceLock<Dispatcher<Value>> = OnceLock::new();
    SHARED.get_or_init(Dispatcher::shared)
}
