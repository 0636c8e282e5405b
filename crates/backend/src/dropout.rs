//! Dropout by counter-based random numbers.

use crate::{Group, Groups, Kernels, Operation, Params};

/// Dropout by words of a Philox4x32-10 stream; every device drops the same elements by the same words.
///
/// | name | inputs | outputs | result |
/// | --- | --- | --- | --- |
/// | `dropout` | a tensor of floats, of any strides | the result, of its shape and dtype; the mask, of bool: both contiguous | where an element's word is at least `threshold`, the element times `scale` and true; else 0 and false |
///
/// Block `offset + i` of the seed's stream, four words of 32 bits, is for the elements `4 i` to `4 i + 3` in
/// row-major order, for all dtypes. Halves are multiplied in float32 and rounded once.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct DropoutParams {
    /// The kernel's operation.
    pub op: &'static Operation,
    /// The least word that keeps an element, at most 2^32, which drops all.
    pub threshold: u64,
    /// The factor of elements that are kept.
    pub scale: f64,
    /// The seed, which selects the stream.
    pub seed: u64,
    /// The first block.
    pub offset: u64,
}

impl Params for DropoutParams {
    const GROUP: Group = Group::Dropout;

    fn group<'a>(groups: &Groups<'a>) -> Option<&'a dyn Kernels<Self>> {
        groups.dropout
    }

    fn operation(&self) -> &'static Operation {
        self.op
    }

    fn fields(&self) -> Vec<(&'static str, crate::Field)> {
        vec![
            ("threshold", (self.threshold as i64).into()),
            ("scale", self.scale.into()),
            ("seed", self.seed.into()),
            ("offset", self.offset.into()),
        ]
    }
}
