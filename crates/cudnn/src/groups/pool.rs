//! Pooling as graphs.

use keyfold_backend::{Operation, PoolParams};
use keyfold_core::{DType, Result};

use super::draft::{Draft, Operand, Sketch, product, refused};
use super::key::Key;
use super::{GraphGroup, all_floats};
use crate::{
    DataType, Fraction, Operation as Node, PaddingMode, Pointwise, PointwiseMode, Port, Resample,
    ResampleMode, Uid,
};

impl GraphGroup for PoolParams {
    fn write(&self, key: &mut Key) {
        let &PoolParams {
            op: _,
            dims,
            count_include_pad,
            kernel,
            stride,
            padding,
            dilation,
            divisor,
        } = self;
        key.words([u64::from(dims), u64::from(count_include_pad), divisor as u64]);
        let lists = [kernel, stride, padding, dilation].into_iter().flatten();
        key.words(lists.map(|number| number as u64));
    }

    fn refusal(op: &Operation, inputs: &[DType], outputs: &[DType]) -> Option<String> {
        let takes = |dtype: &DType| {
            dtype.is_floating() || matches!(dtype, DType::I8 | DType::U8 | DType::I32)
        };
        match op.name() {
            "max" => {
                let other = inputs.iter().find(|dtype| !takes(dtype));
                other.map(|other| format!("cuDNN's graphs have no maxima of {other}"))
            }
            "max_backward" => Some(
                "cuDNN's gradient of max pooling takes the index within each window, as int8, and \
                 not the index in the plane, which may be that of an element of no window"
                    .to_string(),
            ),
            "average" | "average_backward" | "adaptive_average" | "adaptive_average_backward" => {
                all_floats(inputs.iter().chain(outputs))
            }
            other => Some(format!("it has no operation named '{other}'")),
        }
    }

    fn draft(&self, draft: &mut Draft<'_>) -> Result<()> {
        if draft.has_empty_input() {
            // Nothing depends on the elements of a gradient.
            draft.fill(0, 0.0);
            return Ok(());
        }
        match self.op.name() {
            "max" => max(self, draft),
            "average" | "adaptive_average" => average(self, draft),
            _ => average_backward(self, draft),
        }
    }
}

/// The windows of a pooling along two or three dimensions.
#[derive(Debug)]
pub(super) struct Windows {
    kernel: Vec<i64>,
    stride: Vec<i64>,
    pre: Vec<i64>,
    post: Vec<i64>,
    /// Whether all windows lie in the elements and as much padding behind them as before.
    within_padding: bool,
    /// Dimensions of the elements and of the results.
    from: Vec<i64>,
    to: Vec<i64>,
}

impl Windows {
    /// Returns the windows of elements of these sizes, with results of those.
    pub(super) fn new(params: &PoolParams, elements: &[i64], results: &[i64]) -> Result<Windows> {
        let rank = params.dims as usize;
        let (from, to) = (image(elements, rank), image(results, rank));
        let space = from.len() - 2;
        let mut windows = Windows {
            kernel: vec![1; space],
            stride: vec![1; space],
            pre: vec![0; space],
            post: vec![0; space],
            within_padding: true,
            from,
            to,
        };
        for (axis, at) in (space - rank..space).enumerate() {
            windows.settle(params, axis, at)?;
        }
        Ok(windows)
    }

    fn settle(&mut self, params: &PoolParams, axis: usize, at: usize) -> Result<()> {
        let (size, count) = (self.from[at + 2], self.to[at + 2]);
        if size < 1 || count < 1 {
            return Err(refused(format!(
                "pooling of {size} elements to {count} has no windows, and cuDNN's graphs have one or more"
            )));
        }
        if params.op.name().starts_with("adaptive") {
            if size % count != 0 {
                return Err(refused(format!(
                    "{count} windows of {size} elements aren't equal, and cuDNN's windows are"
                )));
            }
            (self.kernel[at], self.stride[at]) = (size / count, size / count);
            return Ok(());
        }
        let (kernel, stride) = (params.kernel[axis], params.stride[axis]);
        let pre = params.padding[axis];
        if params.dilation[axis] != 1 && kernel != 1 {
            return Err(refused("cuDNN's windows of pooling have no dilation"));
        }
        // Behind the elements there is as much padding as before them where that gives as many
        // windows.
        let needed = (count - 1) * stride + kernel - size - pre;
        let counted = size + 2 * pre - kernel;
        let same = counted >= 0 && counted / stride + 1 == count;
        self.within_padding &= needed <= pre;
        (self.kernel[at], self.stride[at]) = (kernel, stride);
        (self.pre[at], self.post[at]) = (pre, if same { pre } else { needed.max(0) });
        Ok(())
    }

    /// Returns the number of elements of a window, at most [`i64::MAX`].
    fn elements(&self) -> i64 {
        self.kernel.iter().fold(1, |product: i64, &size| product.saturating_mul(size))
    }

    fn resample(&self, mode: ResampleMode) -> Resample {
        let fractions = |list: &[i64]| list.iter().map(|&number| Fraction::from(number)).collect();
        Resample {
            mode,
            padding_mode: match mode {
                ResampleMode::Maxpool => PaddingMode::NegInf,
                _ => PaddingMode::Zero,
            },
            window: self.kernel.clone(),
            stride: fractions(&self.stride),
            pre_padding: fractions(&self.pre),
            post_padding: fractions(&self.post),
        }
    }
}

/// Returns the sizes of images with at least two dimensions of space; planes are the first two
/// dimensions.
fn image(sizes: &[i64], rank: usize) -> Vec<i64> {
    let (planes, space) = sizes.split_at(sizes.len() - rank);
    let front = match *planes {
        [n, c] => [n, c],
        _ => [1, product(planes)],
    };
    let missing = 2_usize.saturating_sub(rank);
    [&front, &[1, 1][..missing], space].concat()
}

fn max(params: &PoolParams, draft: &mut Draft<'_>) -> Result<()> {
    let windows = Windows::new(params, &draft.sizes(0), &draft.sizes_of_output(0))?;
    let (x, y) = (draft.input(0, &windows.from)?, draft.output(0, &windows.to)?);
    if x.dtype == DataType::I32 {
        // Float32 doesn't have all its values.
        draft.compute = DataType::F64;
    }
    let index = match windows.elements() {
        ..=128 => DataType::I8,
        129..=0x8000_0000 => DataType::I32,
        _ => DataType::I64,
    };
    let index = draft.scratch(index, &windows.to)?;
    let mut sketch = draft.sketch("max pooling");
    let x = sketch.bind("x", &x);
    let outputs = [(Port::Y, sketch.bind("y", &y)), (Port::Index, sketch.bind("index", &index))];
    let resample = windows.resample(ResampleMode::Maxpool);
    sketch.operation(Node::Resample(resample), &[(Port::X, x)], &outputs);
    draft.add(sketch);
    index_in_plane(&windows, draft, &index)
}

/// Adds the step that makes the index in the plane of the index in the window.
///
/// Along each dimension the place is `o stride + k - padding`, where `o` is the window and `k` the
/// place in it. A place below 0 is one in the padding, which is the greatest element where all
/// others are -inf, too: the first of them is at 0.
fn index_in_plane(windows: &Windows, draft: &mut Draft<'_>, index: &Operand) -> Result<()> {
    let space = &windows.from[2..];
    // The integers that are computed: indices in the window and in the plane, and places along a
    // dimension, which begin in the padding.
    let places = (0..space.len()).map(|at| space[at].saturating_add(windows.kernel[at]));
    let most = places.chain([windows.elements(), product(space)]).max().unwrap_or(0);
    draft.compute = match most {
        // Float32 has all integers up to 2^24, float64 up to 2^53.
        ..=0x100_0000 => DataType::F32,
        0x100_0001..=0x20_0000_0000_0000 => DataType::F64,
        _ => {
            return Err(refused(format!(
                "the index of a maximum among {most} elements isn't exact in float64, which cuDNN's graphs \
                 compute in"
            )));
        }
    };
    let result = draft.output(1, &windows.to)?;
    let mut sketch = draft.sketch("index in the plane");
    let rank = windows.to.len();
    let (index, y) = (sketch.bind("index", index), sketch.bind("y", &result));
    let (mut rest, mut terms) = (index, Vec::new());
    for at in 0..space.len() {
        let inner = product(&windows.kernel[at + 1..]) as f64;
        let k = match windows.kernel[at] {
            1 => None,
            // The last dimension's place is what is left.
            _ if inner == 1.0 => Some(rest),
            _ => {
                let k = quotient(&mut sketch, rest, inner, rank);
                let left = sketch.between(y);
                sketch.pointwise(add(-inner), &[rest, k], left);
                rest = left;
                Some(k)
            }
        };
        let o = (windows.to[at + 2] > 1).then(|| {
            let (axis, o) = (Some(at as i64 + 2), sketch.between(y));
            let gen_index = Pointwise { axis, ..Pointwise::new(PointwiseMode::GenIndex) };
            sketch.pointwise(gen_index, &[index], o);
            o
        });
        let stride = windows.stride[at] as f64;
        let (mut place, unit) = match (k, o) {
            (Some(k), Some(o)) => {
                let place = sketch.between(y);
                sketch.pointwise(add(stride), &[k, o], place);
                (place, 1.0)
            }
            (Some(k), None) => (k, 1.0),
            (None, Some(o)) => (o, stride),
            (None, None) => continue,
        };
        if windows.pre[at] > 0 {
            let (padding, zero) =
                (sketch.number(windows.pre[at] as f64, rank), sketch.number(0.0, rank));
            let inside = sketch.between(y);
            let max = Pointwise::new(PointwiseMode::Max);
            sketch.chain(place, vec![(add(-1.0), Some(padding)), (max, Some(zero))], inside);
            place = inside;
        }
        terms.push((place, unit * product(&space[at + 1..]) as f64));
    }
    // Without terms each window is the first element alone, whose index is 0.
    let (first, unit) = terms.first().copied().unwrap_or((index, 1.0));
    let unit = sketch.number(unit, rank);
    let mut chain = vec![(Pointwise::new(PointwiseMode::Mul), Some(unit))];
    chain.extend(terms.iter().skip(1).map(|&(place, unit)| (add(unit), Some(place))));
    sketch.chain(first, chain, y);
    draft.add(sketch);
    Ok(())
}

/// `x + factor b`
fn add(factor: f64) -> Pointwise {
    Pointwise { alpha2: factor.into(), ..Pointwise::new(PointwiseMode::Add) }
}

/// `floor(x / divisor)`
fn quotient(sketch: &mut Sketch, x: Uid, divisor: f64, rank: usize) -> Uid {
    let divisor = sketch.number(divisor, rank);
    let (div, floor) = (PointwiseMode::Div, PointwiseMode::Floor);
    let whole = sketch.between(x);
    let chain = vec![(Pointwise::new(div), Some(divisor)), (Pointwise::new(floor), None)];
    sketch.chain(x, chain, whole);
    whole
}

/// Returns the mode of an average, and a factor of its results where it isn't 1.
fn counting(params: &PoolParams, windows: &Windows) -> Result<(ResampleMode, Option<f64>)> {
    // Elements behind the padding count in no window. Without padding these are all that aren't
    // elements of the input, so that the means are those without padding.
    let padded = windows.pre.iter().any(|&padding| padding > 0);
    let (including, excluding) =
        (ResampleMode::AvgpoolIncludePadding, ResampleMode::AvgpoolExcludePadding);
    if params.divisor != 0 {
        let elements = windows.elements() as f64;
        return Ok((including, Some(elements / params.divisor as f64)));
    }
    match params.count_include_pad == 1 && padded {
        false => Ok((excluding, None)),
        true if windows.within_padding => Ok((including, None)),
        true => Err(refused(
            "a window reaches behind the padding, where elements don't count, and cuDNN counts \
             padding in all windows or in none",
        )),
    }
}

fn average(params: &PoolParams, draft: &mut Draft<'_>) -> Result<()> {
    let windows = Windows::new(params, &draft.sizes(0), &draft.sizes_of_output(0))?;
    let (mode, factor) = counting(params, &windows)?;
    let (x, y) = (draft.input(0, &windows.from)?, draft.output(0, &windows.to)?);
    let mut sketch = draft.sketch("average pooling");
    let (x, y) = (sketch.bind("x", &x), sketch.bind("y", &y));
    let factor = factor.map(|factor| sketch.number(factor, windows.to.len()));
    let mean = if factor.is_some() { sketch.between(y) } else { y };
    let node = Node::Resample(windows.resample(mode));
    sketch.operation(node, &[(Port::X, x)], &[(Port::Y, mean)]);
    sketch.chain(mean, times(factor), y);
    draft.add(sketch);
    Ok(())
}

fn average_backward(params: &PoolParams, draft: &mut Draft<'_>) -> Result<()> {
    let windows = Windows::new(params, &draft.sizes_of_output(0), &draft.sizes(0))?;
    let (mode, factor) = counting(params, &windows)?;
    let (dy, dx) = (draft.input(0, &windows.to)?, draft.output(0, &windows.from)?);
    let mut sketch = draft.sketch("gradient of average pooling");
    let (dy, dx) = (sketch.bind("dy", &dy), sketch.bind("dx", &dx));
    let factor = factor.map(|factor| sketch.number(factor, windows.to.len()));
    let share = if factor.is_some() { sketch.between(dy) } else { dy };
    sketch.chain(dy, times(factor), share);
    let node = Node::ResampleBackward(windows.resample(mode));
    sketch.operation(node, &[(Port::Dy, share)], &[(Port::Dx, dx)]);
    draft.add(sketch);
    Ok(())
}

/// The multiplication by a factor, where there is one.
fn times(factor: Option<Uid>) -> Vec<(Pointwise, Option<Uid>)> {
    let mul = Pointwise::new(PointwiseMode::Mul);
    factor.map(|factor| (mul, Some(factor))).into_iter().collect()
}
