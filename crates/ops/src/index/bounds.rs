//! Index operations that write to a tensor of the caller's look at all positions before.

use keyfold_core::{ErrorKind, Result};
use keyfold_tensor::{Tensor, for_each_offset};

use super::Selection;
use crate::infer::Run;
use crate::op::Op;

/// The computation of an index operation on a selection.
///
/// Kernels find positions out of range while they write, which nobody sees in a result of the call's own.
pub(super) struct Indexed<'a, F> {
    pub(super) picked: Selection<'a>,
    pub(super) run: F,
}

impl<'a, F: FnOnce(&Selection<'a>, &Op, &Tensor) -> Result<()>> Run for Indexed<'a, F> {
    #[inline(always)]
    unsafe fn run(self, op: &Op, out: &Tensor) -> Result<()> {
        (self.run)(&self.picked, op, out)
    }

    fn check_elements(&self, op: &Op) -> Result<()> {
        self.picked.check(op)
    }
}

impl Selection<'_> {
    /// Refuses positions in the host's memory that are out of range. Other devices check theirs in their own time.
    ///
    /// # Errors
    /// [`ErrorKind::Index`] with the first such position and its place.
    pub(super) fn check(&self, op: &Op) -> Result<()> {
        if !op.kind().is_host() {
            return Ok(());
        }
        let dims = (0..self.shape.len()).filter(|d| self.params.dims >> d & 1 == 1);
        for (dim, positions) in dims.zip(&self.positions) {
            check(op, positions, dim, self.shape[dim] as i64)?;
        }
        Ok(())
    }
}

fn check(op: &Op, positions: &Tensor, dim: usize, size: i64) -> Result<()> {
    let (data, origin) = op.at(positions.as_strided_slice::<i64>())?;
    let (mut number, mut found) = (0, None);
    op.at(for_each_offset(positions.shape(), [positions.strides()], |[at]| {
        let position = data[origin.wrapping_add_signed(at)];
        if !(-size..size).contains(&position) && found.is_none() {
            found = Some((number, position));
        }
        number += 1;
    }))?;
    let Some((mut rest, position)) = found else { return Ok(()) };
    let mut at = vec![0; positions.ndim()];
    for (at, size) in at.iter_mut().zip(positions.shape().iter()).rev() {
        (*at, rest) = (rest % size, rest / size);
    }
    let message = format!(
        "index {position} is out of range for dimension {dim} of size {size}; it is at {at:?} of the indices"
    );
    Err(op.error(ErrorKind::Index, message))
}
