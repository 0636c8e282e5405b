//! Normalizations, their gradients, and those of softmax.

use keyfold_core::DType;
use keyfold_tensor::Value;

use super::{Expected, Given, accumulator, sum_error};
use crate::array::Array;
use crate::number::{Number, unit};

/// The lanes of a tensor: for each element its lane and its weight.
struct Lanes {
    lane: Vec<usize>,
    weight: Vec<usize>,
    /// The shapes of statistics and of weights.
    statistics: Vec<usize>,
    weights: Vec<usize>,
    /// Whether the mean is subtracted.
    centered: bool,
    /// Whether the statistics are constants.
    constant: bool,
}

impl Lanes {
    /// The lanes along the last dimensions.
    fn last(x: &Array, normalized: &[usize], centered: bool) -> Lanes {
        let len: usize = normalized.iter().product();
        let mut statistics = x.shape.clone();
        let outer = x.shape.len() - normalized.len();
        statistics[outer..].fill(1);
        let count = x.items.len();
        Lanes {
            lane: (0..count).map(|i| i / len).collect(),
            weight: (0..count).map(|i| i % len).collect(),
            statistics,
            weights: normalized.to_vec(),
            centered,
            constant: false,
        }
    }

    /// The channels of each group of each example, or of all examples where `batch` holds.
    fn channels(x: &Array, groups: usize, batch: bool) -> Lanes {
        let (n, c) = (x.shape[0], x.shape[1]);
        let len: usize = x.shape[2..].iter().product();
        let channel = |i: usize| i / len % c;
        let lane = |i: usize| match batch {
            true => channel(i),
            false => i / (c * len) * groups + channel(i) / (c / groups),
        };
        let count = x.items.len();
        Lanes {
            lane: (0..count).map(lane).collect(),
            weight: (0..count).map(channel).collect(),
            statistics: if batch { vec![c] } else { vec![n, groups] },
            weights: vec![c],
            centered: true,
            constant: false,
        }
    }

    fn count(&self) -> usize {
        self.statistics.iter().product()
    }

    /// Adds up for each lane, or for each weight, a number of each element.
    fn sums(&self, of: &[usize], count: usize, item: impl Fn(usize) -> f64) -> Vec<f64> {
        let mut sums = vec![0.0; count];
        of.iter().enumerate().for_each(|(i, at)| sums[*at] += item(i));
        sums
    }
}

/// The statistics of lanes, with their greatest errors.
struct Statistics {
    means: Vec<(f64, f64)>,
    variances: Vec<f64>,
    deviations: Vec<(f64, f64)>,
    /// The elements of a lane.
    len: f64,
}

fn statistics(x: &Array, lanes: &Lanes, eps: f64) -> Statistics {
    let (count, u) = (lanes.count(), unit(accumulator(x.dtype)));
    let len = (x.items.len().checked_div(count).unwrap_or(0)) as f64;
    let error = sum_error(len as usize, x.dtype) + 8.0 * u;
    let at = |i: usize| x.items[i].float();
    let mut means = vec![(0.0, 0.0); count];
    if lanes.centered {
        let sums = lanes.sums(&lanes.lane, count, at);
        let sizes = lanes.sums(&lanes.lane, count, |i| at(i).abs());
        means = sums.iter().zip(sizes).map(|(sum, size)| (sum / len, error * size / len)).collect();
    }
    let distance = |i: usize| at(i) - means[lanes.lane[i]].0;
    let squares = lanes.sums(&lanes.lane, count, |i| distance(i) * distance(i));
    let variances: Vec<f64> = squares.iter().map(|sum| sum / len).collect();
    let deviation = |(variance, (_, moved)): (&f64, &(f64, f64))| {
        let r = 1.0 / (variance + eps).sqrt();
        let relative = (error * variance + moved * moved) / (variance + eps) + 8.0 * u;
        (r, r * relative)
    };
    let deviations = variances.iter().zip(&means).map(deviation).collect();
    Statistics { means, variances, deviations, len }
}

/// A number and its greatest error.
type WithError = (f64, f64);

/// The normalized elements.
fn normalized(
    x: &Array,
    lanes: &Lanes,
    (means, deviations): (&[WithError], &[WithError]),
    (weight, bias): (Option<&Array>, Option<&Array>),
) -> Expected {
    let u = unit(accumulator(x.dtype));
    let mut expected = Expected::empty(x.dtype, &x.shape);
    for (i, item) in x.items.iter().enumerate() {
        let (lane, at) = (lanes.lane[i], lanes.weight[i]);
        let ((mean, moved), (r, stretched)) = (means[lane], deviations[lane]);
        let w = weight.map_or(1.0, |weight| weight.items[at].float());
        let b = bias.map_or(0.0, |bias| bias.items[at].float());
        let distance = item.float() - mean;
        let y = distance * r * w + b;
        let error = w.abs() * (r * (moved + 4.0 * u * distance.abs()) + distance.abs() * stretched)
            + 4.0 * u * (y.abs() + b.abs());
        expected.push(Number::Float(y), error);
    }
    expected
}

fn vector(dtype: DType, shape: &[usize], items: impl Iterator<Item = (f64, f64)>) -> Expected {
    let mut expected = Expected::empty(dtype, shape);
    items.for_each(|(item, error)| expected.push(Number::Float(item), error));
    expected
}

/// The normalized elements, the means if there are any, and the reciprocal deviations.
fn forward(
    x: &Array,
    lanes: &Lanes,
    affine: (Option<&Array>, Option<&Array>),
    eps: f64,
) -> (Vec<Expected>, Statistics) {
    let own = statistics(x, lanes, eps);
    let wide = accumulator(x.dtype);
    let y = normalized(x, lanes, (&own.means, &own.deviations), affine);
    let mut results = vec![y];
    if lanes.centered {
        results.push(vector(wide, &lanes.statistics, own.means.iter().copied()));
    }
    results.push(vector(wide, &lanes.statistics, own.deviations.iter().copied()));
    (results, own)
}

/// The wanted gradients of elements, weights and biases.
fn backward(
    (grad, x): (&Array, &Array),
    lanes: &Lanes,
    (means, deviations): (&[f64], &[f64]),
    weight: Option<&Array>,
    mask: &[bool],
) -> Vec<Expected> {
    let (count, u) = (lanes.count(), unit(accumulator(x.dtype)));
    let len = (x.items.len().checked_div(count).unwrap_or(0)) as f64;
    let distance = |i: usize| x.items[i].float() - means[lanes.lane[i]];
    let weighted = |i: usize| {
        let w = weight.map_or(1.0, |weight| weight.items[lanes.weight[i]].float());
        grad.items[i].float() * w
    };
    let all = |item: &dyn Fn(usize) -> f64| lanes.sums(&lanes.lane, count, item);
    let (sums, sizes) = (all(&weighted), all(&|i| weighted(i).abs()));
    let products = all(&|i| weighted(i) * distance(i));
    let product_sizes = all(&|i| (weighted(i) * distance(i)).abs());
    let error = sum_error(len as usize, x.dtype) + 16.0 * u;
    let element = |i: usize| {
        let lane = lanes.lane[i];
        let r = deviations[lane];
        let (own, d) = (r * weighted(i), distance(i));
        if lanes.constant {
            return (own, 8.0 * u * own.abs());
        }
        let cube = r * r * r / len;
        let constant = if lanes.centered { r * sums[lane] / len } else { 0.0 };
        let value = own - cube * products[lane] * d - constant;
        let of_constant = if lanes.centered { (r / len).abs() * sizes[lane] } else { 0.0 };
        let bound = error * ((cube * d).abs() * product_sizes[lane] + of_constant);
        (value, bound + 8.0 * u * (own.abs() + value.abs()))
    };
    let of_weight = weight.map_or(x.dtype, |weight| weight.dtype);
    let weights: usize = lanes.weights.iter().product();
    let per_weight = x.items.len().checked_div(weights).unwrap_or(0);
    let error = sum_error(per_weight, x.dtype) + 16.0 * u;
    let small = |item: &dyn Fn(usize) -> f64| {
        let sums = lanes.sums(&lanes.weight, weights, item);
        let sizes = lanes.sums(&lanes.weight, weights, |i| item(i).abs());
        let bound = sums.into_iter().zip(sizes).map(|(sum, size)| (sum, error * size));
        vector(of_weight, &lanes.weights, bound)
    };
    let dx = || vector(x.dtype, &x.shape, (0..x.items.len()).map(element));
    let dw = || small(&|i| grad.items[i].float() * distance(i) * deviations[lanes.lane[i]]);
    let db = || small(&|i| grad.items[i].float());
    let makers: [&dyn Fn() -> Expected; 3] = [&dx, &dw, &db];
    let wanted = mask.iter().zip(makers);
    wanted.map(|(wanted, make)| if *wanted { make() } else { Expected::absent() }).collect()
}

fn floats(array: &Array) -> Vec<f64> {
    array.items.iter().map(|item| item.float()).collect()
}

fn mask(given: &Given<'_>, at: usize) -> Vec<bool> {
    let Value::List(items) = given.value(at) else { return Vec::new() };
    items.iter().map(|item| matches!(item, Value::Bool(true))).collect()
}

/// The number that RMS norm adds by default.
fn rms_eps(given: &Given<'_>, at: usize, dtype: DType) -> f64 {
    match (given.value(at), accumulator(dtype)) {
        (Value::None, DType::F64) => f64::EPSILON,
        (Value::None, _) => f64::from(f32::EPSILON),
        _ => given.float(at),
    }
}

/// The reciprocal deviations of variances.
fn deviations(variance: &Array, eps: f64) -> Vec<f64> {
    floats(variance).iter().map(|variance| 1.0 / (variance + eps).sqrt()).collect()
}

/// The normalized elements by running statistics, the arguments at that place and behind it.
fn inference(given: &Given<'_>, eps: usize) -> Expected {
    let x = given.array(0);
    let lanes = Lanes::channels(x, 1, true);
    let u = unit(accumulator(x.dtype));
    let exact = |number: f64| (number, 8.0 * u * number.abs());
    let means: Vec<_> = floats(given.array(3)).into_iter().map(|mean| (mean, 0.0)).collect();
    let deviations: Vec<_> =
        deviations(given.array(4), given.float(eps)).into_iter().map(exact).collect();
    let affine = (given.optional(1), given.optional(2));
    normalized(x, &lanes, (&means, &deviations), affine)
}

/// Batch norm by the elements' statistics, with the new running ones if there are old ones.
fn training(given: &Given<'_>, running: bool, eps: usize) -> Vec<Expected> {
    let x = given.array(0);
    let lanes = Lanes::channels(x, 1, true);
    let affine = (given.optional(1), given.optional(2));
    let (mut results, own) = forward(x, &lanes, affine, given.float(eps));
    if running {
        let (share, u) = (given.float(6), unit(accumulator(x.dtype)));
        let error = sum_error(own.len as usize, x.dtype) + 16.0 * u;
        let moved = |old: &Array, new: Vec<(f64, f64)>| {
            let items = old.items.iter().zip(new).map(|(old, (new, error))| {
                let item = old.float() * (1.0 - share) + new * share;
                (item, error + 4.0 * u * (old.float().abs() + new.abs()))
            });
            vector(old.dtype, &lanes.weights, items)
        };
        let variance = |(variance, (_, moved)): (&f64, &(f64, f64))| {
            let unbiased = variance * own.len / (own.len - 1.0);
            (unbiased, 2.0 * (error * unbiased + moved * moved))
        };
        let variances = own.variances.iter().zip(&own.means).map(variance).collect();
        results.push(moved(given.array(3), own.means.clone()));
        results.push(moved(given.array(4), variances));
    }
    results
}

fn batch_backward(given: &Given<'_>) -> Vec<Expected> {
    let (grad, x) = (given.array(0), given.array(1));
    let mut lanes = Lanes::channels(x, 1, true);
    let (means, deviations) = match given.flag(7) {
        true => (floats(given.array(5)), floats(given.array(6))),
        false => (floats(given.array(3)), deviations(given.array(4), given.float(8))),
    };
    lanes.constant = !given.flag(7);
    let statistics = (&means[..], &deviations[..]);
    backward((grad, x), &lanes, statistics, given.optional(2), &mask(given, 9))
}

/// The gradients of softmax or of its logarithm.
fn softmax_backward(given: &Given<'_>, log: bool) -> Expected {
    let (grad, output) = (given.array(0), given.array(1));
    let dim = given.dim(2, output.shape.len());
    let size = output.shape.get(dim).copied().unwrap_or(1);
    let inner: usize = output.shape.iter().skip(dim + 1).product();
    let u = unit(accumulator(output.dtype));
    let error = sum_error(size, output.dtype) + 16.0 * u;
    let lane = |i: usize| i / (size * inner).max(1) * inner + i % inner.max(1);
    let count = output.items.len();
    let (mut sums, mut sizes) = (vec![0.0; count], vec![0.0; count]);
    for i in 0..count {
        let by = if log { 1.0 } else { output.items[i].float() };
        sums[lane(i)] += grad.items[i].float() * by;
        sizes[lane(i)] += (grad.items[i].float() * by).abs();
    }
    let items = (0..count).map(|i| {
        let (g, s) = (grad.items[i].float(), output.items[i].float());
        let (sum, bound) = (sums[lane(i)], error * sizes[lane(i)]);
        match log {
            true => {
                let e = s.exp();
                let of_exp = e * sum.abs() * (u * (16.0 + 2.0 * s.abs()));
                (g - e * sum, e * bound + of_exp + 4.0 * u * (g.abs() + (e * sum).abs()))
            }
            false => {
                let value = s * (g - sum);
                (value, s.abs() * (bound + 4.0 * u * (g.abs() + sum.abs())))
            }
        }
    });
    vector(given.dtype(3).unwrap_or(output.dtype), &output.shape, items)
}

pub(super) fn expected(name: &str, given: &Given<'_>) -> Option<Expected> {
    Some(match name {
        "aten::layer_norm" => {
            let x = given.array(0);
            let lanes = Lanes::last(x, &given.sizes(1), true);
            let affine = (given.optional(2), given.optional(3));
            forward(x, &lanes, affine, given.float(4)).0.swap_remove(0)
        }
        "aten::rms_norm" => {
            let x = given.array(0);
            let lanes = Lanes::last(x, &given.sizes(1), false);
            let eps = rms_eps(given, 3, x.dtype);
            forward(x, &lanes, (given.optional(2), None), eps).0.swap_remove(0)
        }
        "aten::group_norm" => {
            let x = given.array(0);
            let lanes = Lanes::channels(x, given.int(1)? as usize, false);
            let affine = (given.optional(2), given.optional(3));
            forward(x, &lanes, affine, given.float(4)).0.swap_remove(0)
        }
        "aten::batch_norm" if given.flag(5) => training(given, false, 7).swap_remove(0),
        "aten::instance_norm" if given.flag(5) => {
            let x = given.array(0);
            let lanes = Lanes::channels(x, x.shape[1], false);
            let affine = (given.optional(1), given.optional(2));
            forward(x, &lanes, affine, given.float(7)).0.swap_remove(0)
        }
        "aten::batch_norm" | "aten::instance_norm" => inference(given, 7),
        "aten::_softmax_backward_data" => softmax_backward(given, false),
        "aten::_log_softmax_backward_data" => softmax_backward(given, true),
        _ => return None,
    })
}

pub(super) fn several(name: &str, given: &Given<'_>) -> Option<Vec<Expected>> {
    let none = |x: &Array| vector(accumulator(x.dtype), &[0], std::iter::empty());
    let by_running = |eps: usize| {
        let x = given.array(0);
        vec![inference(given, eps), none(x), none(x)]
    };
    Some(match name {
        "aten::native_layer_norm" => {
            let x = given.array(0);
            let lanes = Lanes::last(x, &given.sizes(1), true);
            forward(x, &lanes, (given.optional(2), given.optional(3)), given.float(4)).0
        }
        "aten::_fused_rms_norm" => {
            let x = given.array(0);
            let lanes = Lanes::last(x, &given.sizes(1), false);
            forward(x, &lanes, (given.optional(2), None), rms_eps(given, 3, x.dtype)).0
        }
        "aten::native_group_norm" => {
            let x = given.array(0);
            let lanes = Lanes::channels(x, given.int(6)? as usize, false);
            forward(x, &lanes, (given.optional(1), given.optional(2)), given.float(7)).0
        }
        "aten::_native_batch_norm_legit.no_stats" => training(given, false, 5),
        "aten::_native_batch_norm_legit_functional" => training(given, true, 7),
        "aten::_native_batch_norm_legit_no_training" => by_running(6),
        "aten::native_batch_norm" if given.flag(5) => training(given, false, 7),
        "aten::native_batch_norm" => by_running(7),
        "aten::native_layer_norm_backward" | "aten::_fused_rms_norm_backward" => {
            let centered = name == "aten::native_layer_norm_backward";
            let (grad, x) = (given.array(0), given.array(1));
            let lanes = Lanes::last(x, &given.sizes(2), centered);
            let rest = if centered { 4 } else { 3 };
            let means = if centered { floats(given.array(3)) } else { vec![0.0; lanes.count()] };
            let deviations = floats(given.array(rest));
            let mask = mask(given, if centered { 7 } else { 5 });
            let weight = given.optional(rest + 1);
            backward((grad, x), &lanes, (&means, &deviations), weight, &mask)
        }
        "aten::native_group_norm_backward" => {
            let (grad, x) = (given.array(0), given.array(1));
            let lanes = Lanes::channels(x, given.int(8)? as usize, false);
            let (means, deviations) = (floats(given.array(2)), floats(given.array(3)));
            let statistics = (&means[..], &deviations[..]);
            backward((grad, x), &lanes, statistics, given.optional(4), &mask(given, 9))
        }
        "aten::native_batch_norm_backward" => batch_backward(given),
        _ => return None,
    })
}
