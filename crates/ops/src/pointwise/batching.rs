//! Batching rules of expressions: batch dimensions are at the front, and the examples' shapes broadcast.

use keyfold_core::Result;
use keyfold_expr::{Expr, Node};
use keyfold_layers::vmap::Batch;
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::expression::cached_expression;

/// Returns whether an expression of a batch is the expression of each example. An expression that reads an
/// element's index or a table is run in a loop: the index differs in the batch, and so may the table.
pub(super) fn is_pointwise(expr: &Expr) -> bool {
    let placed = |node: &Node| matches!(node, Node::Index | Node::Coordinate(_) | Node::At { .. });
    !expr.nodes().iter().any(placed)
}

/// The rule of `keyfold::elementwise`.
pub(super) fn elementwise(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let (ValueRef::Str(source), ValueRef::None) = (batch.args[2], batch.args[3]) else {
        return Ok(None);
    };
    if !is_pointwise(cached_expression(source)?.expr()) {
        return Ok(None);
    }
    let operands: Option<Vec<_>> = batch.operands(0)?.into_iter().collect();
    let Some(operands) = operands else { return Ok(None) };
    let rank = operands.iter().map(|operand| operand.rank()).max().unwrap_or(0);
    let tensors: Vec<Tensor> = operands
        .into_iter()
        .map(|operand| Ok(operand.padded(rank)?.tensor))
        .collect::<Result<_>>()?;
    let result =
        batch.call(&[(&tensors[..]).into(), batch.args[1], batch.args[2], ValueRef::None])?;
    batch.wrap(result, 0).map(Some)
}
