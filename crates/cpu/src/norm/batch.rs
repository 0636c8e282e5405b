//! Batch norm: the channels of all examples.

use keyfold_backend::NormParams;
use keyfold_core::Result;
use keyfold_tensor::Tensor;

use super::backward::Backward;
use super::columns::{self, Matrix};
use super::forward::Forward;
use super::layout::Layout;
use super::loops::{Factors, Moments};
use super::{
    Computed, Optional, affine, dense, dense_as, vector, write_vector, write_weight_gradients,
};

/// The shortest channel of an example that is computed by itself. Shorter ones are columns of a matrix.
const LONG: usize = 32;

/// The sizes of a tensor of shape `[examples, channels, ...]`.
#[derive(Clone, Copy)]
struct Sizes {
    examples: usize,
    channels: usize,
    /// Elements of an example's channel.
    len: usize,
}

impl Sizes {
    fn new(x: &Tensor) -> Sizes {
        let (examples, channels) = (x.shape()[0], x.shape()[1]);
        Sizes { examples, channels, len: x.shape()[2..].iter().product() }
    }

    fn elements(self) -> usize {
        self.examples * self.channels * self.len
    }

    fn layout(self) -> Layout {
        Layout::channels(self.examples, self.channels, self.len)
    }

    fn matrix<A: Computed>(self, x: &Tensor) -> Result<Matrix<A>> {
        let (rows, columns) = (self.examples, self.channels * self.len);
        Ok(Matrix { source: A::source(x)?, rows, columns })
    }

    /// Makes a number for each column of that of its channel.
    fn for_columns<A>(self, of_channel: impl Fn(usize) -> A) -> Vec<A> {
        (0..self.channels * self.len).map(|column| of_channel(column / self.len)).collect()
    }
}

/// Writes the results of short channels, with the statistics and the affine function of each.
fn write_columns<A: Computed>(
    sizes: Sizes,
    x: &Tensor,
    y: &Tensor,
    statistics: &[(A, A)],
    affine: Option<(&[A], &[A])>,
) -> Result<()> {
    let means = sizes.for_columns(|channel| statistics[channel].0);
    let by = sizes.for_columns(|channel| match affine {
        Some((w, _)) => statistics[channel].1 * w[channel],
        None => statistics[channel].1,
    });
    let constants = sizes.for_columns(|channel| affine.map_or(A::ZERO, |(_, b)| b[channel]));
    columns::results(sizes.matrix::<A>(x)?, None, [&means, &by, &constants], A::target(y)?)
}

/// `batch_norm`
pub(super) fn forward<A: Computed>(
    params: &NormParams,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
) -> Result<()> {
    let x = dense(inputs[0])?;
    let sizes = Sizes::new(&x);
    if sizes.elements() == 0 {
        return Ok(());
    }
    let mut optional = Optional(&inputs[1..]);
    let weight = optional.next(params.has(NormParams::WEIGHT));
    let affine = affine::<A>(weight, optional.next(params.has(NormParams::BIAS)))?;
    let affine = affine.as_ref().map(|(w, b)| (&w[..], &b[..]));
    let running = [(); 2].map(|()| optional.next(params.has(NormParams::RUNNING)));
    let moments: Vec<Moments> = if sizes.len < LONG {
        let columns = columns::moments(sizes.matrix::<A>(&x)?)?;
        let join = |all: &[Moments]| all.iter().fold(Moments::default(), |a, b| a.join(*b));
        let moments: Vec<Moments> = columns.chunks_exact(sizes.len).map(join).collect();
        let statistic = |own: &Moments| {
            let rstd = own.reciprocal_deviation(params.eps);
            (A::from_f64(own.mean), A::from_f64(rstd))
        };
        let statistics: Vec<(A, A)> = moments.iter().map(statistic).collect();
        write_columns(sizes, &x, outputs[0], &statistics, affine)?;
        moments
    } else {
        let (layout, eps) = (sizes.layout(), params.eps);
        let (x, y) = (A::source(&x)?, A::target(outputs[0])?);
        Forward { layout, x, y, affine, eps, centered: true }.run()?
    };
    write_vector::<A>(moments.iter().map(|own| own.mean), outputs[1])?;
    let deviations = moments.iter().map(|own| own.reciprocal_deviation(params.eps));
    write_vector::<A>(deviations, outputs[2])?;
    if let [Some(mean), Some(variance)] = running {
        let share = params.momentum;
        let moved = |old: &A, new: f64| old.to_f64() * (1.0 - share) + new * share;
        let (means, variances) = (vector::<A>(mean)?, vector::<A>(variance)?);
        let means = means.iter().zip(&moments).map(|(old, own)| moved(old, own.mean));
        let unbiased = |own: &Moments| own.squares / (own.count - 1.0);
        let variances = variances.iter().zip(&moments).map(|(old, own)| moved(old, unbiased(own)));
        write_vector::<A>(means, outputs[3])?;
        write_vector::<A>(variances, outputs[4])?;
    }
    Ok(())
}

/// The means, and the reciprocal deviations of variances.
fn given_statistics<A: Computed>(
    params: &NormParams,
    mean: &Tensor,
    variance: &Tensor,
) -> Result<Vec<(A, A)>> {
    let deviation = |variance: A| A::from_f64(1.0 / (variance.to_f64() + params.eps).sqrt());
    let deviations = vector::<A>(variance)?.into_iter().map(deviation);
    Ok(vector::<A>(mean)?.into_iter().zip(deviations).collect())
}

/// `batch_norm_inference`
pub(super) fn inference<A: Computed>(
    params: &NormParams,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
) -> Result<()> {
    let x = dense(inputs[0])?;
    let sizes = Sizes::new(&x);
    if sizes.elements() == 0 {
        return Ok(());
    }
    let statistics = given_statistics::<A>(params, inputs[1], inputs[2])?;
    let mut optional = Optional(&inputs[3..]);
    let weight = optional.next(params.has(NormParams::WEIGHT));
    let affine = affine::<A>(weight, optional.next(params.has(NormParams::BIAS)))?;
    let affine = affine.as_ref().map(|(w, b)| (&w[..], &b[..]));
    if sizes.len < LONG {
        return write_columns(sizes, &x, outputs[0], &statistics, affine);
    }
    let (layout, eps) = (sizes.layout(), params.eps);
    let (x, y) = (A::source(&x)?, A::target(outputs[0])?);
    Forward { layout, x, y, affine, eps, centered: true }.run_with(&statistics)
}

/// The gradients of short channels: writes those of the elements, and returns those of weights and biases.
fn columns_gradients<A: Computed>(
    sizes: Sizes,
    [grad, x]: [&Tensor; 2],
    dx: Option<&Tensor>,
    (statistics, constant): (&[(A, A)], bool),
    weight: Option<&[A]>,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let (grad, x) = (sizes.matrix::<A>(grad)?, sizes.matrix::<A>(x)?);
    let means = sizes.for_columns(|channel| statistics[channel].0);
    let sums = columns::gradient_sums(grad, x, &means)?;
    let join = |all: &[(f64, f64)]| all.iter().fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
    let sums: Vec<(f64, f64)> = sums.chunks_exact(sizes.len).map(join).collect();
    if let Some(dx) = dx {
        let count = (sizes.examples * sizes.len) as f64;
        let factors = |channel: usize| {
            let (w, rstd) = (weight.map_or(A::ONE, |w| w[channel]), statistics[channel].1.to_f64());
            let (sum, product) = sums[channel];
            let factors = match constant {
                true => Factors::<A>::of_constants(rstd),
                false => {
                    let sums = (sum * w.to_f64(), product * w.to_f64());
                    Factors::new(rstd, count, sums, true)
                }
            };
            Factors { of_grad: factors.of_grad * w, ..factors }
        };
        let factors: Vec<Factors<A>> = (0..sizes.channels).map(factors).collect();
        let plus = sizes.for_columns(|channel| factors[channel].of_grad);
        if constant {
            let zeros = vec![A::ZERO; plus.len()];
            columns::results(grad, None, [&zeros, &plus, &zeros], A::target(dx)?)?;
        } else {
            let by = sizes.for_columns(|channel| factors[channel].of_distance);
            let constants = sizes.for_columns(|channel| factors[channel].constant);
            let dx = A::target(dx)?;
            columns::results(x, Some((grad, &plus)), [&means, &by, &constants], dx)?;
        }
    }
    let product = |(channel, sums): (usize, &(f64, f64))| sums.1 * statistics[channel].1.to_f64();
    let dw = sums.iter().enumerate().map(product).collect();
    Ok((dw, sums.iter().map(|sums| sums.0).collect()))
}

/// Computes the wanted gradients.
fn gradients<A: Computed>(
    params: &NormParams,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
    statistics: &[(A, A)],
    constant: bool,
) -> Result<()> {
    let x = dense(inputs[1])?;
    let grad = dense_as::<A>(inputs[0], &x)?;
    let sizes = Sizes::new(&x);
    let wanted = params.has(NormParams::GRAD_WEIGHT) || params.has(NormParams::GRAD_BIAS);
    let weight = Optional(&inputs[4..]).next(params.has(NormParams::WEIGHT));
    let weight = weight.map(vector::<A>).transpose()?;
    let mut outputs = Optional(outputs);
    let dx = outputs.next(params.has(NormParams::GRAD_INPUT));
    let gradients = if sizes.elements() == 0 {
        (vec![0.0; sizes.channels], vec![0.0; sizes.channels])
    } else if sizes.len < LONG {
        columns_gradients(sizes, [&grad, &x], dx, (statistics, constant), weight.as_deref())?
    } else {
        let backward = Backward {
            layout: sizes.layout(),
            grad: A::source(&grad)?,
            x: A::source(&x)?,
            dx: dx.map(A::target).transpose()?,
            weight: weight.as_deref(),
            statistics,
            centered: true,
            constant,
        };
        backward.run(wanted)?
    };
    write_weight_gradients::<A>(params, outputs, gradients)
}

/// `batch_norm_backward`
pub(super) fn backward<A: Computed>(
    params: &NormParams,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
) -> Result<()> {
    let (means, deviations) = (vector::<A>(inputs[2])?, vector::<A>(inputs[3])?);
    let statistics: Vec<(A, A)> = means.into_iter().zip(deviations).collect();
    gradients(params, inputs, outputs, &statistics, false)
}

/// `batch_norm_inference_backward`
pub(super) fn inference_backward<A: Computed>(
    params: &NormParams,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
) -> Result<()> {
    let statistics = given_statistics::<A>(params, inputs[2], inputs[3])?;
    gradients(params, inputs, outputs, &statistics, true)
}
