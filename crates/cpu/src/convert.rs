//! Conversions between dtypes, inside kernels.

use std::borrow::Cow;
use std::sync::LazyLock;

use keyfold_core::{DType, Result};
use keyfold_expr::{Expr, Graph, Input, Node};
use keyfold_kit::evaluate::{Compiled, evaluate};
use keyfold_tensor::Tensor;

/// The element as it is: for each dtype of the input and of the result a program.
static ITSELF: LazyLock<Compiled> = LazyLock::new(|| {
    let mut graph = Graph::default();
    let root = graph.add(Node::Input(0));
    let input = Input { name: "x".to_owned(), rank: None };
    Compiled::new(Expr::new(&graph, root, vec![input], Vec::new()))
});

/// Writes the elements of `x`, converted, into `out`, which has its shape and shares no memory with it.
///
/// # Errors
/// When a tensor's memory can't be reached.
pub(crate) fn convert(x: &Tensor, out: &Tensor) -> Result<()> {
    let program = ITSELF.program(&[x.dtype()], &[], Some(out.dtype()))?;
    // SAFETY: kernels write to results that nobody else uses (`Launch::launch`), or that they made.
    unsafe { evaluate(&program, &[x], &[], out) }
}

/// The tensor with its elements converted, itself where there is nothing to convert.
///
/// # Errors
/// As [`convert`], and when there is no memory.
pub(crate) fn converted(x: &Tensor, dtype: DType) -> Result<Cow<'_, Tensor>> {
    if x.dtype() == dtype {
        return Ok(Cow::Borrowed(x));
    }
    let out = Tensor::empty(x.shape(), dtype, x.device())?;
    convert(x, &out)?;
    Ok(Cow::Owned(out))
}
