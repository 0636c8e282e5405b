//! Matrix products.

use keyfold_core::DType;

use crate::{Launch, Offer};

/// Linear algebra.
pub trait Linalg: Send + Sync {
    /// The kernel that multiplies matrices: the inputs are `[..., m, k]` and `[..., k, n]`, both of
    /// dtype `input` and of any strides; the dimensions in front broadcast. The output, of dtype
    /// `output`, is contiguous and holds the products one after another, whatever its shape. No size
    /// is 0.
    fn matmul(&self, input: DType, output: DType) -> Offer<&dyn Launch<()>>;
}
