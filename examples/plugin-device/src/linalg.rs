//! Products of matrices.

use keyfold_plugin::{Error, Result};

use crate::memory::View;
use crate::reduce::sum;

pub fn has(name: &str) -> bool {
    name == "matmul"
}

/// Multiplies stacks of matrices, `[..., m, k]` by `[..., k, n]`. The stacks broadcast, and the
/// output has any shape.
pub fn matmul(a: &View, b: &View, out: &View) -> Result<()> {
    let (Some((stack_a, [m, k])), Some((stack_b, [_, n]))) =
        (a.layout.shape().split_last_chunk(), b.layout.shape().split_last_chunk())
    else {
        return Err(Error::shape("matmul needs matrices"));
    };
    let stack = broadcast(stack_a, stack_b);
    let rows = a.broadcast_to(&[&stack[..], &[*m, *k]].concat()).lanes(1 << (stack.len() + 1));
    let columns = b.broadcast_to(&[&stack[..], &[*k, *n]].concat()).lanes(1 << stack.len());
    out.set((0..out.layout.numel()).map(|at| {
        let (row, column) = (&rows[at / n], &columns[at / (m * n) * n + at % n]);
        sum(row.iter().zip(column).map(|(a, b)| *a * *b))
    }));
    Ok(())
}

/// Returns the shape that both shapes broadcast to.
fn broadcast(a: &[usize], b: &[usize]) -> Vec<usize> {
    let rank = a.len().max(b.len());
    let size = |shape: &[usize], dim: usize| {
        (dim + shape.len()).checked_sub(rank).map_or(1, |dim| shape[dim])
    };
    (0..rank).map(|dim| size(a, dim).max(size(b, dim))).collect()
}
