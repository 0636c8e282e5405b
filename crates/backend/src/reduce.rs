//! Reductions along dimensions.

use keyfold_core::DType;

use crate::{Launch, Offer, Operation};

/// The parameters of a reduction's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReduceParams {
    /// The kernel's operation.
    pub op: &'static Operation,
    /// 1 if the reduced dimensions are kept in the output with size 1, 0 if they are removed.
    pub keepdim: u32,
    /// Bit `d` is set if dimension `d` of the input is reduced.
    pub dims: u64,
}

/// Reductions: one result for the elements along the reduced dimensions.
///
/// | name | result | without elements |
/// | --- | --- | --- |
/// | `sum` | the sum; integers wrap | 0 |
/// | `mean` | the sum divided by the number of elements | NaN |
/// | `max`, `min` | the greatest, the smallest; NaN if there is one | never called |
/// | `argmax`, `argmin` | the int64 position of the first greatest or smallest, or of the first NaN, in row-major order of the reduced dimensions | never called |
/// | `has_inf_nan` | whether any element is infinite or NaN | false |
/// | `all`, `any` | whether all are nonzero, or any is; NaN is nonzero | true, false |
pub trait Reduce: Send + Sync {
    /// Returns the kernel that reduces one input of dtype `input` to an output of dtype `output`,
    /// both of any strides.
    fn reduce(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<ReduceParams>>;
}
