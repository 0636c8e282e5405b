//! Operations as others that engines take.

use keyfold_core::Result;

use super::sketch::Sketch;
use super::{movement, norm, reduction};

/// Replaces the operations that no engine takes alone by those that compute the same.
pub(super) fn expand(sketch: &mut Sketch) -> Result<()> {
    norm::expand(sketch)?;
    reduction::expand(sketch)?;
    movement::expand(sketch)?;
    // Of what those made.
    reduction::in_stages(sketch)
}
