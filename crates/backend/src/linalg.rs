//! Matrix products.

use keyfold_core::DType;

use crate::{Launch, Offer};

/// Linear algebra.
pub trait Linalg: Send + Sync {
    /// Returns the kernel of the matrix product. The inputs are `[..., m, k]` and `[..., k, n]`,
    /// both of dtype `input` and any strides; leading dimensions broadcast. The output, of dtype
    /// `output`, is contiguous and stores the products one after another, for any shape. All sizes
    /// are positive.
    fn matmul(&self, input: DType, output: DType) -> Offer<&dyn Launch<()>>;
}
