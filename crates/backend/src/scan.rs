//! Cumulative operations on the lanes along one dimension.

use keyfold_core::DType;

use crate::{Launch, Offer, Operation};

/// The parameters of a scan's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanParams {
    /// The kernel's operation.
    pub op: &'static Operation,
    /// The dimension of the lanes.
    pub axis: u32,
}

/// Inclusive scans: each result combines the elements of its lane up to its own position, which is
/// included. The first one of a lane is the lane's first element.
///
/// | name | result |
/// | --- | --- |
/// | `sum` | the sum; integers wrap |
/// | `prod` | the product; integers wrap |
///
/// Elements are converted to the output's dtype first, and float16 and bfloat16 accumulate in float32. Sums
/// of floats may be added in any order. Products of floats are multiplied in order, or such that no
/// intermediate product overflows or underflows where those in order don't.
pub trait Scan: Send + Sync {
    /// Returns the kernel for one input of dtype `input` and an output of the same shape and of dtype
    /// `output`, both of any strides.
    fn scan(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<ScanParams>>;
}
