//! Scaled-dot-product attention and its gradients.

use crate::{Group, Groups, Kernels, Operation, Params};

/// The parameters of the group `attention`.
///
/// All tensors but a mask of bools, and the logarithms of halves, have one floating dtype. Inputs have any
/// strides; outputs are contiguous. The leading dimensions of inputs broadcast to those of the outputs, `B`.
///
/// | name | inputs | outputs |
/// | --- | --- | --- |
/// | `forward` | query `[B, L, E]`, key `[B, S, E]`, value `[B, S, V]`, mask | result `[B, L, V]`, logsumexp `[B, L]` |
/// | `backward` | gradient `[B, L, V]`, query, key, value, mask, result, logsumexp | gradients of query `[B, L, E]`, key `[B, S, E]` and value `[B, S, V]` |
///
/// The scores are `query key^T scale`. A mask broadcasts to `[B, L, S]`: a score counts where a mask of bools
/// is true, and any other mask is added. The result is `softmax(scores) value`, and logsumexp the logarithm of
/// the sum of the exponentials of a query's scores, in float32 for the halves, which accumulate in
/// float32. A query for which no score counts has the result 0, the logarithm -inf, and the gradient 0.
///
/// `backward` reads what `forward` returned for the same arguments. Its results aren't summed over dimensions
/// that an input was broadcast along.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct AttentionParams {
    /// The kernel's operation.
    pub op: &'static Operation,
    /// The factor of the scores.
    pub scale: f64,
    /// 1 if the inputs have a mask, else 0.
    pub has_mask: u32,
    /// 1 if a query's score counts only for keys up to its own position, else 0.
    pub is_causal: u32,
}

impl Params for AttentionParams {
    const GROUP: Group = Group::Attention;

    fn group<'a>(groups: &Groups<'a>) -> Option<&'a dyn Kernels<Self>> {
        groups.attention
    }

    fn operation(&self) -> &'static Operation {
        self.op
    }

    fn fields(&self) -> Vec<(&'static str, crate::Field)> {
        vec![
            ("scale", self.scale.into()),
            ("has_mask", self.has_mask.into()),
            ("is_causal", self.is_causal.into()),
        ]
    }
}
