//! Errors for tensors that a replay of the graph couldn't make.

use keyfold_core::{Error, ErrorKind};

use super::ir::Info;

#[cold]
pub(super) fn hidden_view(info: &Info) -> Error {
    Error::new(
        ErrorKind::Trace,
        format!(
            "{info} shares memory with a traced tensor without being made of it by an operator, so \
             the graph doesn't know where it comes from; make views with operators or Tensor's own \
             methods, and give the function an array that shares memory with another as a copy"
        ),
    )
}

#[cold]
pub(super) fn hidden_object(object: &str) -> Error {
    Error::new(
        ErrorKind::Trace,
        format!(
            "{object} is of a class registered by register_array_type and shares memory with a traced \
             tensor without being made of it by an operator, so a replay couldn't make it again; let \
             a kernel return it, or give a tensor: keyfold.asarray(x)"
        ),
    )
}

#[cold]
pub(super) fn hidden_value(info: &Info) -> Error {
    Error::new(
        ErrorKind::Trace,
        format!(
            "{info} was computed inside an operator and kept for its gradient, so the graph doesn't \
             know where it comes from; register a derivative for that operator, or let a layer of \
             your own call operators instead of redispatching with a key set without Tracer"
        ),
    )
}

#[cold]
pub(super) fn unseen_result(operator: &str, info: &Info) -> Error {
    Error::new(
        ErrorKind::Trace,
        format!(
            "{}: under vmap, its result ({info}) was computed without operators, so the graph of \
             its gradient can't be recorded; write the batching rule with operators",
            operator
        ),
    )
}
