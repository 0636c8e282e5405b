//! Methods of the builder: softmax, masks, attention.

use keyfold_core::Result;

use super::{Graph, find};
use crate::{Attention, DiagonalBandMask, Operation, PointwiseMode, Port, Uid};

/// The tensors that attention reads beside `q`, `k` and `v`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttentionInputs {
    /// The factor of the scores: one number; 1 without it.
    pub scale: Option<Uid>,
    /// What is added to the scores: their sizes, `[B, H, Sq, Skv]`, or 1.
    pub bias: Option<Uid>,
    /// The lengths of the examples' queries and of their keys, `[B, 1, 1, 1]` each, integers.
    pub lengths: Option<(Uid, Uid)>,
    /// The seed and the offset of dropout's random numbers: one integer each.
    pub random: Option<(Uid, Uid)>,
}

impl AttentionInputs {
    fn extend(self, inputs: &mut Vec<(Port, Uid)>) {
        let (seq_len_q, seq_len_kv) = self.lengths.unzip();
        let (seed, offset) = self.random.unzip();
        let all = [
            (Port::AttnScale, self.scale),
            (Port::Bias, self.bias),
            (Port::SeqLenQ, seq_len_q),
            (Port::SeqLenKv, seq_len_kv),
            (Port::Seed, seed),
            (Port::Offset, offset),
        ];
        inputs.extend(all.into_iter().filter_map(|(port, uid)| Some((port, uid?))));
    }
}

/// The factors of attention of 8-bit floats: tensors of one number each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionScales {
    /// The factors of `q`, `k` and `v`.
    pub descale_qkv: [Uid; 3],
    /// The factor of the weights before they are rounded to 8 bits, and the one when they are read.
    pub scale_s: Uid,
    /// See `scale_s`.
    pub descale_s: Uid,
    /// The factor of the result, where that is of 8-bit floats.
    pub scale_o: Option<Uid>,
}

/// The tensors that attention of 8-bit floats writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaledAttention {
    /// The result.
    pub o: Uid,
    /// The logarithms of the sums of exponentials, where they are wanted.
    pub stats: Option<Uid>,
    /// The greatest magnitude of the weights.
    pub amax_s: Uid,
    /// The greatest magnitude of the result before it is scaled.
    pub amax_o: Uid,
}

/// The gradients that attention's backward writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionGradients {
    /// That of the queries.
    pub dq: Uid,
    /// That of the keys.
    pub dk: Uid,
    /// That of the values.
    pub dv: Uid,
    /// That of the bias, where there is one.
    pub dbias: Option<Uid>,
}

impl Graph {
    /// Adds softmax along the last dimension, with the dimensions of `x`.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn softmax(&mut self, x: Uid) -> Result<Uid> {
        self.one(Operation::Softmax, &[(Port::X, x)])
    }

    /// Adds `x` where a comparison of row and column index (of the last two dimensions) holds, and `b`, one
    /// number, elsewhere; `cmp_ge` is causal.
    ///
    /// # Errors
    /// Those of [`Graph::add`]; the mode must be a comparison.
    pub fn diagonal_band_mask(&mut self, x: Uid, b: Uid, comparison: PointwiseMode) -> Result<Uid> {
        let mask = DiagonalBandMask { comparison };
        self.one(Operation::DiagonalBandMask(mask), &[(Port::X, x), (Port::B, b)])
    }

    /// Adds scaled-dot-product attention of `q` `[B, H, Sq, D]`, `k` `[B, Hk, Skv, D]` and `v`
    /// `[B, Hv, Skv, Dv]`: `[B, H, Sq, Dv]`, where H is a multiple of Hk and of Hv. With `stats`, it returns
    /// the logarithms of the sums of exponentials too, `[B, H, Sq, 1]`, which the backward reads.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn sdpa(
        &mut self,
        attention: Attention,
        (q, k, v): (Uid, Uid, Uid),
        others: AttentionInputs,
        stats: bool,
    ) -> Result<(Uid, Option<Uid>)> {
        let mut inputs = vec![(Port::Q, q), (Port::K, k), (Port::V, v)];
        others.extend(&mut inputs);
        let wanted: &[Port] = if stats { &[Port::Stats] } else { &[] };
        let outputs = self.add(Operation::Sdpa(attention), &inputs, wanted)?;
        Ok((outputs[0].1, find(&outputs, Port::Stats)))
    }

    /// Adds attention of 8-bit floats, as [`Graph::sdpa`] with a factor for each tensor.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn sdpa_fp8(
        &mut self,
        attention: Attention,
        (q, k, v): (Uid, Uid, Uid),
        scales: AttentionScales,
        others: AttentionInputs,
        stats: bool,
    ) -> Result<ScaledAttention> {
        let AttentionScales { descale_qkv: [dq, dk, dv], scale_s, descale_s, scale_o } = scales;
        let mut inputs = vec![(Port::Q, q), (Port::K, k), (Port::V, v)];
        others.extend(&mut inputs);
        inputs.extend([(Port::DescaleQ, dq), (Port::DescaleK, dk), (Port::DescaleV, dv)]);
        inputs.extend([(Port::DescaleS, descale_s), (Port::ScaleS, scale_s)]);
        inputs.extend(scale_o.map(|scale| (Port::ScaleO, scale)));
        let mut wanted = vec![Port::AmaxS, Port::AmaxO];
        wanted.extend(stats.then_some(Port::Stats));
        let outputs = self.add(Operation::Sdpa(attention), &inputs, &wanted)?;
        let at = |port| find(&outputs, port).expect("a wanted output is written");
        let stats = find(&outputs, Port::Stats);
        let (amax_s, amax_o) = (at(Port::AmaxS), at(Port::AmaxO));
        Ok(ScaledAttention { o: at(Port::O), stats, amax_s, amax_o })
    }

    /// Adds the gradients of attention, from the gradient `d_o` of its result and the forward's inputs, result
    /// and statistics. The gradient of a bias is added where there is one.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn sdpa_backward(
        &mut self,
        attention: Attention,
        (q, k, v): (Uid, Uid, Uid),
        (o, d_o, stats): (Uid, Uid, Uid),
        others: AttentionInputs,
    ) -> Result<AttentionGradients> {
        let mut inputs = vec![
            (Port::Q, q),
            (Port::K, k),
            (Port::V, v),
            (Port::O, o),
            (Port::Do, d_o),
            (Port::Stats, stats),
        ];
        others.extend(&mut inputs);
        let wanted: &[Port] = if others.bias.is_some() { &[Port::Dbias] } else { &[] };
        let outputs = self.add(Operation::SdpaBackward(attention), &inputs, wanted)?;
        let dbias = find(&outputs, Port::Dbias);
        Ok(AttentionGradients { dq: outputs[0].1, dk: outputs[1].1, dv: outputs[2].1, dbias })
    }
}
