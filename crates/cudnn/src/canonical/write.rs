//! The bytes of tensors and operations in keys.
//!
//! Every struct is taken apart with all of its fields, so that a new one doesn't compile until its
//! place in the key is decided. Lists begin with their length, so that no two sequences of values
//! have the same bytes.

use crate::{
    Attention, Concatenate, Convolution, DataType, DiagonalBandMask, Float, Fraction, Norm, Number,
    OpSpec, Operation, Pointwise, Policy, Port, Reduction, Resample, Slice, TensorSpec, Transpose,
};

/// The greatest alignment that plans distinguish, in bytes.
const ALIGNMENT: i64 = 16;

/// The bytes of a key, so far.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(super) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(super) fn word(&mut self, word: u32) {
        self.0.extend_from_slice(&word.to_le_bytes());
    }

    fn int(&mut self, int: i64) {
        self.0.extend_from_slice(&int.to_le_bytes());
    }

    /// Writes the length of a list. No list in memory has 2^32 entries.
    pub(super) fn count(&mut self, count: usize) {
        self.word(count as u32);
    }

    fn ints(&mut self, ints: &[i64]) {
        self.count(ints.len());
        for &int in ints {
            self.int(int);
        }
    }

    fn float(&mut self, float: Float) {
        self.0.extend_from_slice(&float.bits().to_le_bytes());
    }

    fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Writer, T)) {
        self.byte(value.is_some().into());
        if let Some(value) = value {
            write(self, value);
        }
    }

    fn fractions(&mut self, fractions: &[Fraction]) {
        self.count(fractions.len());
        for Fraction { numerator, denominator } in fractions {
            self.int(*numerator);
            self.int(*denominator);
        }
    }

    fn dtype(&mut self, dtype: Option<DataType>) {
        self.byte(dtype.map_or(0, |dtype| dtype as u8 + 1));
    }

    /// Writes a tensor without its number and name.
    pub(super) fn tensor(&mut self, spec: &TensorSpec) {
        let TensorSpec {
            uid,
            name: _,
            dtype,
            dims,
            strides,
            alignment,
            is_virtual,
            by_value,
            scalar,
        } = spec;
        // A uid of 0 makes a graph invalid: its key differs from that of the valid graph, whose
        // plan would hide it.
        let flags = [*uid == 0, *is_virtual, *by_value, scalar.is_some()];
        self.byte(flags.iter().fold(0, |byte, &flag| byte << 1 | u8::from(flag)));
        self.dtype(*dtype);
        // Alignments that aren't powers of 2 and strides below 1, which the validator may refuse,
        // are written as they are.
        let capped = *alignment > ALIGNMENT && alignment.count_ones() == 1;
        self.int(if capped { ALIGNMENT } else { *alignment });
        self.ints(dims);
        self.count(strides.len());
        let fit = dims.len() == strides.len();
        for (axis, &stride) in strides.iter().enumerate() {
            self.int(if fit && dims[axis] == 1 && stride > 0 { 1 } else { stride });
        }
        if let Some(number) = scalar {
            self.number(*number);
        }
    }

    fn number(&mut self, number: Number) {
        let (is_float, bits) = number.bits();
        self.byte(is_float.into());
        self.0.extend_from_slice(&bits.to_le_bytes());
    }

    /// Writes an operation without its name and its tensors, whose ports are given in order.
    pub(super) fn operation(
        &mut self,
        spec: &OpSpec,
        inputs: impl ExactSizeIterator<Item = Port>,
        outputs: impl ExactSizeIterator<Item = Port>,
    ) {
        let OpSpec { name: _, operation, compute, inputs: _, outputs: _ } = spec;
        self.attributes(operation);
        self.dtype(*compute);
        self.count(inputs.len());
        self.0.extend(inputs.map(|port| port as u8));
        self.count(outputs.len());
        self.0.extend(outputs.map(|port| port as u8));
    }

    fn attributes(&mut self, operation: &Operation) {
        match operation {
            Operation::ConvFprop(convolution) => self.convolution(0, convolution),
            Operation::ConvDgrad(convolution) => self.convolution(1, convolution),
            Operation::ConvWgrad(convolution) => self.convolution(2, convolution),
            Operation::Pointwise(pointwise) => self.pointwise(pointwise),
            Operation::Resample(resample) => self.resample(4, resample),
            Operation::ResampleBackward(resample) => self.resample(5, resample),
            Operation::Norm(norm) => self.norm(6, norm),
            Operation::NormBackward(norm) => self.norm(7, norm),
            Operation::Matmul => self.byte(8),
            Operation::Reduction(Reduction { mode }) => self.0.extend([9, *mode as u8]),
            Operation::Reshape => self.byte(10),
            Operation::Transpose(Transpose { permutation }) => {
                self.byte(11);
                self.ints(permutation);
            }
            Operation::Slice(Slice { start, limit, stride }) => {
                self.byte(12);
                self.ints(start);
                self.ints(limit);
                self.ints(stride);
            }
            Operation::Concatenate(Concatenate { axis, in_place_index }) => {
                self.byte(13);
                self.int(*axis);
                self.optional(*in_place_index, Writer::int);
            }
            Operation::Softmax => self.byte(14),
            Operation::DiagonalBandMask(DiagonalBandMask { comparison }) => {
                self.0.extend([15, *comparison as u8]);
            }
            Operation::Sdpa(attention) => self.attention(16, attention),
            Operation::SdpaBackward(attention) => self.attention(17, attention),
            Operation::GenStats => self.byte(18),
            Operation::GroupedMatmul => self.byte(19),
        }
    }

    fn convolution(&mut self, tag: u8, convolution: &Convolution) {
        let Convolution { pre_padding, post_padding, stride, dilation, mode, alpha, beta } =
            convolution;
        self.byte(tag);
        self.ints(pre_padding);
        self.ints(post_padding);
        self.ints(stride);
        self.ints(dilation);
        self.byte(*mode as u8);
        self.float(*alpha);
        self.float(*beta);
    }

    fn pointwise(&mut self, pointwise: &Pointwise) {
        let Pointwise {
            mode,
            alpha1,
            alpha2,
            relu_lower_clip,
            relu_upper_clip,
            relu_lower_clip_slope,
            elu_alpha,
            softplus_beta,
            swish_beta,
            axis,
        } = pointwise;
        self.0.extend([3, *mode as u8]);
        let clips = [relu_lower_clip, relu_upper_clip, relu_lower_clip_slope];
        let factors = [alpha1, alpha2, elu_alpha, softplus_beta, swish_beta];
        for float in clips.into_iter().chain(factors) {
            self.float(*float);
        }
        self.optional(*axis, Writer::int);
    }

    fn resample(&mut self, tag: u8, resample: &Resample) {
        let Resample { mode, padding_mode, window, stride, pre_padding, post_padding } = resample;
        self.0.extend([tag, *mode as u8, *padding_mode as u8]);
        self.ints(window);
        self.fractions(stride);
        self.fractions(pre_padding);
        self.fractions(post_padding);
    }

    fn norm(&mut self, tag: u8, norm: &Norm) {
        let Norm { mode, phase, groups } = norm;
        self.0.extend([tag, *mode as u8, *phase as u8]);
        self.optional(*groups, Writer::int);
    }

    fn attention(&mut self, tag: u8, attention: &Attention) {
        let Attention { right_bound, left_bound, alignment, dropout } = attention;
        self.0.extend([tag, *alignment as u8]);
        self.optional(*right_bound, Writer::int);
        self.optional(*left_bound, Writer::int);
        self.optional(*dropout, Writer::float);
    }

    /// Writes the policy and the device profile, on which a plan depends beside the graph.
    pub(crate) fn circumstances(&mut self, profile: &str, policy: &Policy) {
        let Policy { choice, workspace_limit, tf32, rewrite } = policy;
        self.0.extend([*choice as u8, u8::from(*tf32), *rewrite as u8]);
        self.optional(*workspace_limit, |writer, limit| {
            writer.0.extend_from_slice(&limit.to_le_bytes());
        });
        self.0.extend_from_slice(profile.as_bytes());
    }
}
