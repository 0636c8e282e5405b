//! Convolutions and their gradients. Outside of the input are zeros, which are multiplied as any others: the
//! product with an infinite weight is NaN.

use keyfold_tensor::Value;

use super::linalg::activated;
use super::{Expected, Given, accumulator, sum_error};
use crate::array::{Array, for_each_index};
use crate::number::{Number, unit};

/// The settings of a convolution.
struct Settings {
    /// Dimensions of space.
    rank: usize,
    stride: Vec<i64>,
    before: Vec<i64>,
    after: Vec<i64>,
    dilation: Vec<i64>,
    transposed: bool,
    output_padding: Vec<i64>,
    groups: usize,
}

/// The positions of settings among the arguments; `None` for one that an operator lacks.
struct Places {
    stride: usize,
    padding: usize,
    dilation: usize,
    transposed: Option<usize>,
    output_padding: Option<usize>,
    groups: usize,
}

impl Settings {
    fn read(given: &Given<'_>, weight: &Array, places: &Places, transposed: bool) -> Settings {
        let rank = weight.shape.len() - 2;
        let list = |at: usize| -> Vec<i64> {
            let numbers = given.ints(at).unwrap_or_else(|| vec![given.int(at).unwrap_or(0)]);
            if numbers.len() == 1 { vec![numbers[0]; rank] } else { numbers }
        };
        let dilation = list(places.dilation);
        let (before, after) = match given.value(places.padding) {
            Value::Str(text) => {
                let total = |d: usize| match &**text {
                    "same" => (weight.shape[2 + d] as i64 - 1) * dilation[d],
                    _ => 0,
                };
                (0..rank).map(|d| (total(d) / 2, total(d) - total(d) / 2)).unzip()
            }
            _ => {
                let padding = list(places.padding);
                match padding.len() == rank {
                    true => (padding.clone(), padding),
                    false => padding.chunks(2).map(|pair| (pair[0], pair[1])).unzip(),
                }
            }
        };
        Settings {
            rank,
            stride: list(places.stride),
            before,
            after,
            dilation,
            transposed: places.transposed.map_or(transposed, |at| given.flag(at)),
            output_padding: places.output_padding.map_or(vec![0; rank], list),
            groups: given.int(places.groups).unwrap_or(1) as usize,
        }
    }

    /// The size of the result along a dimension of space.
    fn size(&self, d: usize, input: usize, kernel: usize) -> usize {
        let padding = self.before[d] + self.after[d];
        let reach = (kernel as i64 - 1) * self.dilation[d] + 1;
        let size = match self.transposed {
            false => (input as i64 + padding - reach) / self.stride[d] + 1,
            true => (input as i64 - 1) * self.stride[d] - padding + reach + self.output_padding[d],
        };
        size as usize
    }
}

/// A tensor of images, of which there may be one without a dimension for it.
fn element(x: &Array, rank: usize, image: usize, channel: usize, at: &[i64]) -> f64 {
    let mut index = if x.shape.len() == rank + 2 { vec![image, channel] } else { vec![channel] };
    for (d, at) in at.iter().enumerate() {
        let size = x.shape[x.shape.len() - rank + d] as i64;
        if *at < 0 || *at >= size {
            return 0.0;
        }
        index.push(*at as usize);
    }
    x.at(&index).float()
}

/// Returns the images, channels and places of an index of images.
fn parts(index: &[usize], rank: usize) -> (usize, usize, Vec<i64>) {
    let (front, space) = index.split_at(index.len() - rank);
    let image = if front.len() == 2 { front[0] } else { 0 };
    (image, front[front.len() - 1], space.iter().map(|i| *i as i64).collect())
}

/// A sum, and the sum of the magnitudes.
#[derive(Default)]
struct Sum {
    sum: f64,
    size: f64,
    count: usize,
}

impl Sum {
    fn add(&mut self, x: f64) {
        self.sum += x;
        self.size += x.abs();
        self.count += 1;
    }

    fn with_error(&self, x: &Array) -> (Number, f64) {
        let error = sum_error(self.count + 1, x.dtype) * self.size;
        (Number::Float(self.sum), error)
    }
}

/// The convolution, or the transposed one, of `x`, to a result of that shape.
fn convolve(
    (x, weight, bias): (&Array, &Array, Option<&Array>),
    settings: &Settings,
    transposed: bool,
    shape: &[usize],
) -> Expected {
    let rank = settings.rank;
    let channels = x.shape[x.shape.len() - rank - 1];
    let in_group = channels / settings.groups;
    let results = shape[shape.len() - rank - 1] / settings.groups;
    let kernel = &weight.shape[2..];
    Expected::from_fn(x.dtype, shape, |index| {
        let (image, channel, at) = parts(index, rank);
        let (group, row) = (channel / results.max(1), channel % results.max(1));
        let mut sum = Sum::default();
        for c in 0..in_group {
            for_each_index(kernel, |k| {
                let mut seen = Vec::with_capacity(rank);
                for d in 0..rank {
                    let by = k[d] as i64 * settings.dilation[d];
                    let (stride, before) = (settings.stride[d], settings.before[d]);
                    match transposed {
                        false => seen.push(at[d] * stride - before + by),
                        true if (at[d] + before - by).rem_euclid(stride) == 0 => {
                            seen.push((at[d] + before - by).div_euclid(stride));
                        }
                        true => return,
                    }
                }
                let from = group * in_group + c;
                let place = match transposed {
                    false => [channel, c],
                    true => [from, row],
                };
                let factor = weight.at(&[&place[..], k].concat()).float();
                sum.add(factor * element(x, rank, image, from, &seen));
            });
        }
        if let Some(bias) = bias {
            sum.add(bias.at(&[channel]).float());
        }
        sum.with_error(x)
    })
}

/// The gradient of a convolution's weight, of that shape.
fn weight_gradient(
    (x, gradient): (&Array, &Array),
    settings: &Settings,
    shape: &[usize],
) -> Expected {
    let rank = settings.rank;
    let (in_group, results) = (shape[1], shape[0] / settings.groups);
    let images = if x.shape.len() == rank + 2 { x.shape[0] } else { 1 };
    let pixels = &gradient.shape[gradient.shape.len() - rank..];
    Expected::from_fn(x.dtype, shape, |index| {
        let (row, c, k) = (index[0], index[1], &index[2..]);
        let from = row / results.max(1) * in_group + c;
        let mut sum = Sum::default();
        for image in 0..images {
            for_each_index(pixels, |pixel| {
                let at: Vec<i64> = pixel.iter().map(|i| *i as i64).collect();
                let seen: Vec<i64> = (0..rank)
                    .map(|d| {
                        at[d] * settings.stride[d] - settings.before[d]
                            + k[d] as i64 * settings.dilation[d]
                    })
                    .collect();
                sum.add(
                    element(x, rank, image, from, &seen) * element(gradient, rank, image, row, &at),
                );
            });
        }
        sum.with_error(x)
    })
}

/// The sums of each channel.
fn bias_gradient(gradient: &Array, rank: usize) -> Expected {
    let channels = gradient.shape[gradient.shape.len() - rank - 1];
    let mut sums: Vec<Sum> = (0..channels).map(|_| Sum::default()).collect();
    for_each_index(&gradient.shape, |index| {
        sums[parts(index, rank).1].add(gradient.at(index).float());
    });
    Expected::from_fn(gradient.dtype, &[channels], |index| sums[index[0]].with_error(gradient))
}

/// The results of `convolution` and of those that are written with it.
pub(super) fn expected(name: &str, given: &Given<'_>) -> Option<Expected> {
    let named = Places {
        stride: 3,
        padding: 4,
        dilation: 5,
        transposed: None,
        output_padding: None,
        groups: 6,
    };
    let places = match name {
        "aten::convolution" => {
            Places { transposed: Some(6), output_padding: Some(7), groups: 8, ..named }
        }
        "aten::conv1d"
        | "aten::conv2d"
        | "aten::conv3d"
        | "aten::conv1d.padding"
        | "aten::conv2d.padding"
        | "aten::conv3d.padding"
        | "keyfold::convolution_activation" => named,
        "aten::conv_transpose1d"
        | "aten::conv_transpose2d.input"
        | "aten::conv_transpose3d.input" => {
            Places { output_padding: Some(5), dilation: 7, ..named }
        }
        _ => return None,
    };
    let (x, weight, bias) = (given.array(0), given.array(1), given.optional(2));
    let settings = Settings::read(given, weight, &places, name.contains("transpose"));
    let space = x.shape.len() - settings.rank;
    let channels = match settings.transposed {
        true => weight.shape[1] * settings.groups,
        false => weight.shape[0],
    };
    let mut shape = x.shape[..space - 1].to_vec();
    shape.push(channels);
    let size = |d: usize| settings.size(d, x.shape[space + d], weight.shape[2 + d]);
    shape.extend((0..settings.rank).map(size));
    let mut sums = convolve((x, weight, bias), &settings, settings.transposed, &shape);
    if let ("keyfold::convolution_activation", Value::Str(activation)) =
        (name, given.args.last().map_or(&Value::None, |_| given.value(given.args.len() - 1)))
        && &**activation != "none"
    {
        let unit = unit(accumulator(x.dtype));
        for (item, error) in sums.array.items.iter_mut().zip(&mut sums.errors) {
            let result = activated(activation, item.float());
            // No slope is above 1.13, and each function has an error of a few units.
            *error = 1.2 * *error + 16.0 * unit * result.abs();
            *item = Number::Float(result);
        }
    }
    Some(sums)
}

/// The results of `convolution_backward`.
pub(super) fn backward(name: &str, given: &Given<'_>) -> Option<Vec<Expected>> {
    if name != "aten::convolution_backward" {
        return None;
    }
    let (gradient, x, weight) = (given.array(0), given.array(1), given.array(2));
    let places = Places {
        stride: 4,
        padding: 5,
        dilation: 6,
        transposed: Some(7),
        output_padding: Some(8),
        groups: 9,
    };
    let settings = Settings::read(given, weight, &places, false);
    let Value::List(mask) = given.value(10) else { return None };
    let wanted = |at: usize| matches!(mask[at], Value::Bool(true));
    let (seen, sees) = if settings.transposed { (gradient, x) } else { (x, gradient) };
    let all: [&dyn Fn() -> Expected; 3] = [
        &|| convolve((gradient, weight, None), &settings, !settings.transposed, &x.shape),
        &|| weight_gradient((seen, sees), &settings, &weight.shape),
        &|| bias_gradient(gradient, settings.rank),
    ];
    let each = all.iter().enumerate();
    Some(each.map(|(at, of)| if wanted(at) { of() } else { Expected::absent() }).collect())
}
