//! Pooling, window by window.

use keyfold_core::DType;
use keyfold_tensor::Value;

use super::{Expected, Given, accumulator, sum_error};
use crate::array::Array;
use crate::number::{Number, unit};

/// The windows along a dimension.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    pub(crate) size: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) padding: usize,
    pub(crate) dilation: usize,
    pub(crate) ceil_mode: bool,
}

impl Windows {
    /// The number of windows.
    pub(crate) fn count(&self) -> usize {
        let reach = (self.kernel - 1) * self.dilation + 1;
        let rest = self.size + 2 * self.padding - reach;
        let count = rest / self.stride + 1;
        let begins_inside = count * self.stride < self.size + self.padding;
        let one_more = self.ceil_mode && !rest.is_multiple_of(self.stride) && begins_inside;
        count + usize::from(one_more)
    }

    /// The places of a window that are inside.
    fn places(&self, window: usize) -> Vec<usize> {
        let taps = (0..self.kernel).map(|k| window * self.stride + k * self.dilation);
        let inside = taps.filter(|at| (self.padding..self.padding + self.size).contains(at));
        inside.map(|at| at - self.padding).collect()
    }

    /// The elements of a window with padding, without those behind it.
    fn padded(&self, window: usize) -> usize {
        let taps = (0..self.kernel).map(|k| window * self.stride + k);
        taps.filter(|at| *at < self.size + 2 * self.padding).count()
    }
}

/// A pooling: for each window of a plane the places inside, and the divisor of averages.
struct Plan {
    dims: usize,
    outs: Vec<usize>,
    windows: Vec<(Vec<usize>, f64)>,
}

/// The number of pooled dimensions, by the operator's name; `None` for other operators.
pub(crate) fn dims_of(name: &str) -> Option<usize> {
    let rest = name.split_once("_pool")?.1;
    rest.starts_with(['1', '2', '3']).then(|| rest[..1].parse().ok()).flatten()
}

/// Returns one number for each dimension.
fn each(given: Option<Vec<i64>>, dims: usize, otherwise: &[usize]) -> Vec<usize> {
    match given.as_deref() {
        None | Some([]) => otherwise.to_vec(),
        Some([one]) => vec![*one as usize; dims],
        Some(all) => all.iter().map(|item| *item as usize).collect(),
    }
}

/// The windows along each dimension, of arguments from the kernel's sizes on.
pub(crate) fn windows_of(
    sizes: &[usize],
    [kernel, stride, padding, dilation]: [Option<Vec<i64>>; 4],
    ceil_mode: bool,
) -> Vec<Windows> {
    let dims = sizes.len();
    let kernel = each(kernel, dims, &vec![1; dims]);
    let stride = each(stride, dims, &kernel);
    let padding = each(padding, dims, &vec![0; dims]);
    let dilation = each(dilation, dims, &vec![1; dims]);
    let along = |d: usize| Windows {
        size: sizes[d],
        kernel: kernel[d],
        stride: stride[d],
        padding: padding[d],
        dilation: dilation[d],
        ceil_mode,
    };
    (0..dims).map(along).collect()
}

/// Lists for each window of a plane the places in the plane, in order.
fn products(sizes: &[usize], along: &[Vec<(Vec<usize>, f64)>]) -> Vec<(Vec<usize>, f64)> {
    let mut all = vec![(vec![0], 1.0)];
    for (size, windows) in sizes.iter().zip(along) {
        let joined = all.iter().flat_map(|(before, share): &(Vec<usize>, f64)| {
            windows.iter().map(move |(own, count)| {
                let places =
                    before.iter().flat_map(|at| own.iter().map(move |own| at * size + own));
                (places.collect(), share * count)
            })
        });
        all = joined.collect();
    }
    all
}

impl Plan {
    fn new(name: &str, given: &Given<'_>, sizes: &[usize], at: usize) -> Plan {
        let dims = sizes.len();
        let along: Vec<Vec<(Vec<usize>, f64)>> = if name.contains("adaptive") {
            let outs = match name.contains("backward") {
                true => given.array(0).shape[given.array(0).shape.len() - dims..].to_vec(),
                false => each(given.ints(1), dims, &[]),
            };
            let even = |(size, out): (&usize, &usize)| {
                let window = |o: usize| {
                    let places = o * size / out..((o + 1) * size).div_ceil(*out);
                    (places.clone().collect::<Vec<_>>(), places.len() as f64)
                };
                (0..*out).map(window).collect()
            };
            sizes.iter().zip(&outs).map(even).collect()
        } else {
            let max = name.contains("max");
            let list = |i: usize| given.ints(at + i);
            let dilation = if max { list(3) } else { None };
            let ceil_mode = given.flag(at + if max { 4 } else { 3 });
            let windows = windows_of(sizes, [list(0), list(1), list(2), dilation], ceil_mode);
            let counts_padding = !max && given.flag(at + 4);
            let of = |along: &Windows| {
                let window = |o: usize| {
                    let places = along.places(o);
                    let count = if counts_padding { along.padded(o) } else { places.len() };
                    (places, count as f64)
                };
                (0..along.count()).map(window).collect()
            };
            windows.iter().map(of).collect()
        };
        let outs = along.iter().map(Vec::len).collect();
        let mut windows = products(sizes, &along);
        let divides =
            name.contains("avg_pool") && !name.contains("adaptive") && !name.contains("1d");
        if divides && let Value::Int(divisor) = given.value(at + 5) {
            windows.iter_mut().for_each(|(_, count)| *count = *divisor as f64);
        }
        Plan { dims, outs, windows }
    }

    fn shape(&self, planes: &[usize]) -> Vec<usize> {
        [planes, &self.outs].concat()
    }
}

pub(super) fn one(name: &str, given: &Given<'_>) -> Option<Expected> {
    let name = name.strip_prefix("aten::")?;
    let dims = dims_of(name)?;
    if name.ends_with("with_indices") {
        return None;
    }
    let backward = name.ends_with("backward");
    let x = given.array(usize::from(backward));
    let (planes, sizes) = x.shape.split_at(x.shape.len() - dims);
    let plan = Plan::new(name, given, sizes, 1 + usize::from(backward));
    Some(match (name.contains("max"), backward) {
        (true, false) => greatest(&plan, x, planes).swap_remove(0),
        (true, true) => max_backward(&plan, x, given.array(0), given.array(7)),
        (false, false) => average(&plan, x, planes),
        (false, true) => average_backward(&plan, x, given.array(0)),
    })
}

pub(super) fn several(name: &str, given: &Given<'_>) -> Option<Vec<Expected>> {
    let name = name.strip_prefix("aten::")?.strip_suffix("_with_indices")?;
    let dims = dims_of(name)?;
    let x = given.array(0);
    let (planes, sizes) = x.shape.split_at(x.shape.len() - dims);
    Some(greatest(&Plan::new(name, given, sizes, 1), x, planes))
}

/// Whether a number beats another one: it is greater, or the first NaN.
fn beats(a: Number, b: Number) -> bool {
    match (a, b) {
        (Number::Whole(a), Number::Whole(b)) => a > b,
        _ => a.float() > b.float() || a.is_nan() && !b.is_nan(),
    }
}

fn greatest(plan: &Plan, x: &Array, planes: &[usize]) -> Vec<Expected> {
    let size: usize = x.shape[x.shape.len() - plan.dims..].iter().product();
    let shape = plan.shape(planes);
    let (mut values, mut indices) = (Vec::new(), Vec::new());
    for plane in 0..planes.iter().product() {
        for (places, _) in &plan.windows {
            let item = |at: usize| x.items[plane * size + at];
            let best = places
                .iter()
                .copied()
                .reduce(|best, at| if beats(item(at), item(best)) { at } else { best });
            let best = best.expect("each window of a sample has an element");
            values.push(item(best));
            indices.push(Number::Whole(best as i128));
        }
    }
    let values = Array { dtype: x.dtype, shape: shape.clone(), items: values };
    let indices = Array { dtype: DType::I64, shape, items: indices };
    vec![Expected::copied(values), Expected::copied(indices)]
}

fn average(plan: &Plan, x: &Array, planes: &[usize]) -> Expected {
    let size: usize = x.shape[x.shape.len() - plan.dims..].iter().product();
    let mut expected = Expected::empty(x.dtype, &plan.shape(planes));
    for plane in 0..planes.iter().product() {
        for (places, count) in &plan.windows {
            let items = places.iter().map(|at| x.items[plane * size + at].float());
            let (sum, sizes) =
                items.fold((0.0, 0.0), |(sum, sizes), x| (sum + x, sizes + f64::abs(x)));
            let relative = sum_error(places.len(), x.dtype) + 3.0 * unit(accumulator(x.dtype));
            expected.push(Number::Float(sum / count), relative * sizes / count.abs());
        }
    }
    expected
}

/// Adds shares of gradients to elements of planes.
fn scattered(x: &Array, grad: &Array, shares: impl Fn(usize) -> Vec<(usize, f64)>) -> Expected {
    let mut sums = vec![(0.0, 0.0, 0); x.items.len()];
    for window in 0..grad.items.len() {
        for (at, share) in shares(window) {
            let (sum, sizes, count) = sums[at];
            sums[at] = (sum + share, sizes + f64::abs(share), count + 1);
        }
    }
    let mut expected = Expected::empty(grad.dtype, &x.shape);
    for (sum, sizes, count) in sums {
        let relative = sum_error(count, grad.dtype) + 3.0 * unit(accumulator(grad.dtype));
        expected.push(Number::Float(sum), relative * sizes);
    }
    expected
}

fn max_backward(plan: &Plan, x: &Array, grad: &Array, indices: &Array) -> Expected {
    let size: usize = x.shape[x.shape.len() - plan.dims..].iter().product();
    let each: usize = plan.outs.iter().product();
    scattered(x, grad, |window| {
        let at = indices.items[window].whole() as usize;
        vec![(window / each * size + at, grad.items[window].float())]
    })
}

fn average_backward(plan: &Plan, x: &Array, grad: &Array) -> Expected {
    let size: usize = x.shape[x.shape.len() - plan.dims..].iter().product();
    let each: usize = plan.outs.iter().product();
    scattered(x, grad, |window| {
        let (places, count) = &plan.windows[window % each];
        let share = grad.items[window].float() / count;
        places.iter().map(|at| (window / each * size + at, share)).collect()
    })
}
