//! Matrix products.

use keyfold_core::DType;

use crate::{Launch, Offer};

/// Linear algebra.
pub trait Linalg: Send + Sync {
    /// The kernel that multiplies matrices: the inputs are `[..., m, k]` and `[..., k, n]`, both of
    /// dtype `input`, the output `[..., m, n]` of dtype `output`; the dimensions in front are the same
    /// in all three (those of an input may have stride 0). Inputs have any strides, the output is
    /// contiguous. No size is 0.
    fn matmul(&self, input: DType, output: DType) -> Offer<&dyn Launch<()>>;
}
