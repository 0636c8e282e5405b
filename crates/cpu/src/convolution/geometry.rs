//! The sizes of a convolution, and the windows of its directions.

use super::window::{Tap, Three, Window};

/// The sizes of a convolution of inputs `[images, groups * channels, input]` with weights
/// `[groups * rows, channels, kernel]` to outputs `[images, groups * rows, output]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    pub(super) images: usize,
    pub(super) groups: usize,
    /// Channels of a group of the input.
    pub(super) channels: usize,
    /// Channels of a group of the output.
    pub(super) rows: usize,
    pub(super) input: Three<usize>,
    pub(super) output: Three<usize>,
    pub(super) kernel: Three<usize>,
    pub(super) stride: Three<usize>,
    /// Zeros before the input.
    pub(super) padding: Three<isize>,
    pub(super) dilation: Three<usize>,
}

impl Geometry {
    /// Numbers of a channel of the weight.
    pub(super) fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Pixels of a channel of the output.
    pub(super) fn pixels(&self) -> usize {
        self.output.iter().product()
    }

    /// Pixels of a channel of the input.
    pub(super) fn input_pixels(&self) -> usize {
        self.input.iter().product()
    }

    /// How the output sees the input.
    pub(super) fn forward(&self) -> Window {
        let taps = self.places().map(|(at, weight)| Tap {
            offset: [0, 1, 2].map(|d| (at[d] * self.dilation[d]) as isize - self.padding[d]),
            weight,
        });
        Window { source: self.input, grid: self.output, step: self.stride, taps: taps.collect() }
    }

    /// How the places of the input whose remainder by the stride is this one see the output's gradient: the
    /// gradient at `o` is that of the input at `o * stride - padding + k * dilation`.
    pub(super) fn backward(&self, remainder: Three<usize>) -> Window {
        let taps = self.places().filter_map(|(at, weight)| {
            let mut offset = [0; 3];
            for d in 0..3 {
                let distance =
                    remainder[d] as isize + self.padding[d] - (at[d] * self.dilation[d]) as isize;
                let stride = self.stride[d] as isize;
                if distance.rem_euclid(stride) != 0 {
                    return None;
                }
                offset[d] = distance.div_euclid(stride);
            }
            Some(Tap { offset, weight })
        });
        let size = |d: usize| (self.input[d].saturating_sub(remainder[d])).div_ceil(self.stride[d]);
        Window {
            source: self.output,
            grid: [0, 1, 2].map(size),
            step: [1; 3],
            taps: taps.collect(),
        }
    }

    /// The places of a kernel, in order.
    fn places(&self) -> impl Iterator<Item = (Three<usize>, usize)> {
        let [_, height, width] = self.kernel;
        (0..self.taps()).map(move |i| ([i / width / height, i / width % height, i % width], i))
    }
}
