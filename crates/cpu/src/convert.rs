//! Conversions of whole tensors between dtypes, inside kernels.

use std::borrow::Cow;
use std::sync::LazyLock;

use keyfold_core::{DType, Result};
use keyfold_expr::{Expr, Graph, Input, Node};
use keyfold_kit::evaluate::{Compiled, evaluate};
use keyfold_tensor::Tensor;

/// The identity as an expression: a conversion is its program for the two dtypes.
static IDENTITY_EXPRESSION: LazyLock<Compiled> = LazyLock::new(|| {
    let mut graph = Graph::default();
    let root = graph.add(Node::Input(0));
    let input = Input { name: "x".to_owned(), rank: None };
    Compiled::new(Expr::new(&graph, root, vec![input], Vec::new()))
});

/// Writes the elements of `x`, converted, into `out`, which has the same shape and shares no memory with
/// `x`.
///
/// # Errors
/// If the host can't access a tensor's memory.
pub(crate) fn convert(x: &Tensor, out: &Tensor) -> Result<()> {
    let program = IDENTITY_EXPRESSION.program(&[x.dtype()], &[], Some(out.dtype()))?;
    // SAFETY: kernels write to results that no other code accesses (`Launch::launch`), or that they
    // made.
    unsafe { evaluate(&program, &[x], &[], out) }
}

/// Converts a tensor; borrows it if it has the dtype already.
///
/// # Errors
/// As [`convert`], and if there is no memory.
pub(crate) fn converted(x: &Tensor, dtype: DType) -> Result<Cow<'_, Tensor>> {
    if x.dtype() == dtype {
        return Ok(Cow::Borrowed(x));
    }
    let out = Tensor::empty(x.shape(), dtype, x.device())?;
    convert(x, &out)?;
    Ok(Cow::Owned(out))
}
