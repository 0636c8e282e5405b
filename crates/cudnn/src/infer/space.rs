//! Outputs of convolutions and pooling: dimensions of space.

use keyfold_core::Result;

use super::{
    Inferred, Inputs, check_dims, check_list, check_rank, like, shape_error, show, typed,
    value_error,
};
use crate::{
    Convolution, DataType, Fraction, PaddingMode, Port, Resample, ResampleMode, TensorSpec,
};

/// Numbers of one dimension of space, wide enough for products of any two attributes.
struct Line {
    pre: i128,
    post: i128,
    stride: i128,
    dilation: i128,
}

impl Line {
    /// Returns what a filter covers of its input.
    fn reach(&self, filter: i64) -> i128 {
        (i128::from(filter) - 1) * self.dilation + 1
    }
}

/// Returns the attributes of each dimension of space, proven for a tensor at a port.
fn lines(conv: &Convolution, port: Port, tensor: &TensorSpec) -> Result<Vec<Line>> {
    check_rank(port, tensor, 3..=5)?;
    let space = tensor.rank() - 2;
    let lists: [(&str, &[i64], i64); 4] = [
        ("pre_padding", &conv.pre_padding, 0),
        ("post_padding", &conv.post_padding, 0),
        ("stride", &conv.stride, 1),
        ("dilation", &conv.dilation, 1),
    ];
    for (name, list, least) in lists {
        check_list(name, list.len(), space, &format!("dimension of space of {port}"))?;
        if let Some(number) = list.iter().find(|&&number| number < least) {
            return Err(value_error(format!(
                "{name} {list:?} has {number}: it must be {least} or more"
            )));
        }
    }
    let line = |axis: usize| Line {
        pre: conv.pre_padding[axis].into(),
        post: conv.post_padding[axis].into(),
        stride: conv.stride[axis].into(),
        dilation: conv.dilation[axis].into(),
    };
    Ok((0..space).map(line).collect())
}

/// Returns a size that was computed wide, or the error of an overflow.
fn narrow(size: i128, axis: usize) -> Result<i64> {
    i64::try_from(size).map_err(|_| {
        shape_error(format!("the size {size} of the output's dimension {axis} overflows 64 bits"))
    })
}

/// Proves that two tensors of a convolution have as many dimensions.
fn check_ranks(left: (Port, &TensorSpec), right: (Port, &TensorSpec)) -> Result<()> {
    if left.1.rank() == right.1.rank() {
        return Ok(());
    }
    Err(shape_error(format!(
        "{} and {} need as many dimensions as each other",
        show(left.0, left.1),
        show(right.0, right.1)
    )))
}

/// Returns the dimensions of the convolution of `x` with `w`.
fn forward(
    conv: &Convolution,
    (x_port, x): (Port, &TensorSpec),
    (w_port, w): (Port, &TensorSpec),
) -> Result<Vec<i64>> {
    let lines = lines(conv, x_port, x)?;
    check_ranks((x_port, x), (w_port, w))?;
    let pair = || format!("{} and {}", show(x_port, x), show(w_port, w));
    let (channels, filters, each) = (x.dims[1], w.dims[0], w.dims[1]);
    if channels % each != 0 {
        return Err(shape_error(format!(
            "{} don't fit: the {channels} channels of {x_port} must be {each}, or a multiple of it for \
             groups",
            pair()
        )));
    }
    let groups = channels / each;
    if filters % groups != 0 {
        return Err(shape_error(format!(
            "{} don't fit: with {channels} / {each} = {groups} groups the {filters} filters of {w_port} \
             must be a multiple of {groups}",
            pair()
        )));
    }
    let mut dims = vec![x.dims[0], filters];
    for (axis, line) in lines.iter().enumerate() {
        let (size, filter) = (x.dims[axis + 2], w.dims[axis + 2]);
        let padded = i128::from(size) + line.pre + line.post;
        let reach = line.reach(filter);
        if reach > padded {
            return Err(shape_error(format!(
                "{} don't fit: in dimension {} the filter covers {reach} elements ({filter} at dilation \
                 {}), and the padded input has {padded} ({size} + {} + {})",
                pair(),
                axis + 2,
                line.dilation,
                line.pre,
                line.post
            )));
        }
        dims.push(narrow((padded - reach) / line.stride + 1, axis + 2)?);
    }
    Ok(dims)
}

pub(super) fn conv_fprop(conv: &Convolution, inputs: Inputs<'_>) -> Result<Vec<(Port, Inferred)>> {
    let (x, w) = (inputs.get(Port::X)?, inputs.get(Port::W)?);
    let dims = forward(conv, (Port::X, x), (Port::W, w))?;
    Ok(vec![(Port::Y, like(&dims, x)?)])
}

/// The gradient of the input is proposed with one group and the least sizes that give `dy`.
pub(super) fn conv_dgrad(conv: &Convolution, inputs: Inputs<'_>) -> Result<Vec<(Port, Inferred)>> {
    let (dy, w) = (inputs.get(Port::Dy)?, inputs.get(Port::W)?);
    let lines = lines(conv, Port::Dy, dy)?;
    check_ranks((Port::Dy, dy), (Port::W, w))?;
    check_filters(dy, (Port::W, w))?;
    let mut dims = vec![dy.dims[0], w.dims[1]];
    for (axis, line) in lines.iter().enumerate() {
        let windows = (i128::from(dy.dims[axis + 2]) - 1) * line.stride;
        let size = windows + line.reach(w.dims[axis + 2]) - line.pre - line.post;
        dims.push(narrow(size.max(1), axis + 2)?);
    }
    Ok(vec![(Port::Dx, like(&dims, dy)?)])
}

/// The gradient of the filter is proposed with one group and the greatest sizes that give `dy`.
pub(super) fn conv_wgrad(conv: &Convolution, inputs: Inputs<'_>) -> Result<Vec<(Port, Inferred)>> {
    let (x, dy) = (inputs.get(Port::X)?, inputs.get(Port::Dy)?);
    let lines = lines(conv, Port::X, x)?;
    check_ranks((Port::X, x), (Port::Dy, dy))?;
    if x.dims[0] != dy.dims[0] {
        return Err(shape_error(format!(
            "{} and {} don't fit: they must have as many images",
            show(Port::X, x),
            show(Port::Dy, dy)
        )));
    }
    let mut dims = vec![dy.dims[1], x.dims[1]];
    for (axis, line) in lines.iter().enumerate() {
        let padded = i128::from(x.dims[axis + 2]) + line.pre + line.post;
        let last = (i128::from(dy.dims[axis + 2]) - 1) * line.stride;
        if last >= padded {
            return Err(shape_error(format!(
                "{} and {} don't fit: in dimension {} the last window begins at {last}, and the padded \
                 input has {padded} elements",
                show(Port::X, x),
                show(Port::Dy, dy),
                axis + 2
            )));
        }
        dims.push(narrow((padded - last - 1) / line.dilation + 1, axis + 2)?);
    }
    Ok(vec![(Port::Dw, like(&dims, x)?)])
}

fn check_filters(dy: &TensorSpec, (w_port, w): (Port, &TensorSpec)) -> Result<()> {
    let (channels, filters) = (dy.dims[1], w.dims[0]);
    if channels == filters {
        return Ok(());
    }
    Err(shape_error(format!(
        "{} and {} don't fit: dy has {channels} channels and {w_port} has {filters} filters, which must \
         be as many",
        show(Port::Dy, dy),
        show(w_port, w)
    )))
}

pub(super) fn accepts_dgrad(conv: &Convolution, inputs: Inputs<'_>, dx: &TensorSpec) -> Result<()> {
    let dims = forward(conv, (Port::Dx, dx), (Port::W, inputs.get(Port::W)?))?;
    check_dims(Port::Dy, inputs.get(Port::Dy)?, &dims, "the convolution of dx with w")
}

pub(super) fn accepts_wgrad(conv: &Convolution, inputs: Inputs<'_>, dw: &TensorSpec) -> Result<()> {
    let dims = forward(conv, (Port::X, inputs.get(Port::X)?), (Port::Dw, dw))?;
    check_dims(Port::Dy, inputs.get(Port::Dy)?, &dims, "the convolution of x with dw")
}

/// A fraction whose parts are few enough that products of four of them fit.
fn parts(name: &str, fraction: Fraction, least: i64) -> Result<(i128, i128)> {
    let Fraction { numerator, denominator } = fraction;
    if !(1..=1 << 16).contains(&denominator) || numerator < least {
        return Err(value_error(format!(
            "{name} {numerator}/{denominator} must be {least} or more, over 1 to 65536"
        )));
    }
    Ok((numerator.into(), denominator.into()))
}

/// Returns the dimensions that pooling makes of those of a tensor.
fn pool(resample: &Resample, port: Port, x: &TensorSpec) -> Result<Vec<i64>> {
    check_rank(port, x, 3..=5)?;
    check_attributes(resample, x.rank() - 2, port)?;
    let mut dims = x.dims[..2].to_vec();
    for (axis, &size) in x.dims[2..].iter().enumerate() {
        let window = resample.window[axis];
        let (stride, stride_of) = parts("stride", resample.stride[axis], 1)?;
        let (pre, pre_of) = parts("pre_padding", resample.pre_padding[axis], 0)?;
        let (post, post_of) = parts("post_padding", resample.post_padding[axis], 0)?;
        // All over one denominator.
        let of = pre_of * post_of;
        let pad = pre * post_of + post * pre_of;
        let room = (i128::from(size) - i128::from(window)) * of + pad;
        let place = || format!("dimension {} of {}", axis + 2, show(port, x));
        if room < 0 {
            return Err(shape_error(format!(
                "{} is too small: the window has {window} elements, and the padded input has {size} + \
                 {} + {}",
                place(),
                resample.pre_padding[axis],
                resample.post_padding[axis]
            )));
        }
        let steps = room.checked_mul(stride_of).map(|room| room / (of * stride));
        let steps =
            steps.ok_or_else(|| shape_error(format!("the output of {} overflows", place())))?;
        if is_pool(resample.mode) {
            // Whole numbers, which `check_attributes` has proven. The last window begins at `steps * stride`.
            if pre >= i128::from(window) || steps * stride - pre >= i128::from(size) {
                return Err(value_error(format!(
                    "a window of {window} in {} has padding alone: padding {} before and {} behind must \
                     leave an element in each",
                    place(),
                    resample.pre_padding[axis],
                    resample.post_padding[axis]
                )));
            }
        } else {
            check_positions(resample, axis, steps).map_err(|error| error.at(&place()))?;
        }
        dims.push(narrow(steps + 1, axis + 2)?);
    }
    Ok(dims)
}

/// Proves that the position that each output of an interpolation reads is counted in 64 bits: twice
/// `(o a - b) + d` for the last output `o`, where `a / d` is the stride and `b / d` the padding
/// over one denominator.
fn check_positions(resample: &Resample, axis: usize, last: i128) -> Result<()> {
    let (stride, pre) = (resample.stride[axis], resample.pre_padding[axis]);
    let wide = |a: i64, b: i64| i128::from(a) * i128::from(b);
    let a = wide(stride.numerator, pre.denominator);
    let (b, d) =
        (wide(pre.numerator, stride.denominator), wide(stride.denominator, pre.denominator));
    // The greatest numbers that are computed; the difference of two of them lies between these.
    let counted = last.max(1).checked_mul(a).and_then(|place| (place + d).checked_mul(2));
    if counted.is_some_and(|place| place <= i64::MAX.into()) && 2 * (b + d) <= i64::MAX.into() {
        return Ok(());
    }
    Err(value_error(format!(
        "stride {stride} and pre_padding {pre} overflow 64 bits: positions are counted in steps of 1/{d}, \
         up to output {last}"
    )))
}

fn is_pool(mode: ResampleMode) -> bool {
    !matches!(mode, ResampleMode::Bilinear | ResampleMode::Nearest)
}

/// Proves lists and modes, which don't depend on sizes.
fn check_attributes(resample: &Resample, space: usize, port: Port) -> Result<()> {
    let window = &resample.window;
    if window.is_empty() {
        return Err(value_error(format!(
            "window is unset: it needs {space} numbers, one for each dimension of space of {port}"
        )));
    }
    let fractions = [
        ("stride", &resample.stride),
        ("pre_padding", &resample.pre_padding),
        ("post_padding", &resample.post_padding),
    ];
    let lengths = fractions.iter().map(|(name, list)| (*name, list.len()));
    for (name, length) in lengths.chain([("window", window.len())]) {
        check_list(name, length, space, &format!("dimension of space of {port}"))?;
    }
    if let Some(size) = window.iter().find(|&&size| size < 1) {
        return Err(value_error(format!("window {window:?} has {size}: it must be 1 or more")));
    }
    let mode = resample.mode;
    if is_pool(mode) {
        for (name, list) in fractions {
            if let Some(fraction) = list.iter().find(|fraction| fraction.denominator != 1) {
                return Err(value_error(format!(
                    "{name} {fraction} of pooling must be a whole number: bilinear and nearest \
                     resampling take fractions"
                )));
            }
        }
    }
    let (fits, want) = match mode {
        ResampleMode::Maxpool => (resample.padding_mode == PaddingMode::NegInf, "neg_inf"),
        ResampleMode::AvgpoolIncludePadding | ResampleMode::AvgpoolExcludePadding => {
            (resample.padding_mode == PaddingMode::Zero, "zero")
        }
        ResampleMode::Bilinear | ResampleMode::Nearest => {
            (resample.padding_mode != PaddingMode::NegInf, "edge_value or zero")
        }
    };
    if fits {
        return Ok(());
    }
    let given = resample.padding_mode;
    Err(value_error(format!(
        "padding_mode {given:?} isn't for the mode {mode:?}: it must be {want}"
    )))
}

pub(super) fn resample(resample: &Resample, inputs: Inputs<'_>) -> Result<Vec<(Port, Inferred)>> {
    let x = inputs.get(Port::X)?;
    let dims = pool(resample, Port::X, x)?;
    let mut outputs = vec![(Port::Y, like(&dims, x)?)];
    if resample.mode == ResampleMode::Maxpool {
        outputs.push((Port::Index, typed(&dims, x, DataType::I8)?));
    }
    Ok(outputs)
}

/// The gradient of pooling has the dimensions of `x` where that is read; else the least ones that give
/// `dy` are proposed.
pub(super) fn resample_backward(
    resample: &Resample,
    inputs: Inputs<'_>,
) -> Result<Vec<(Port, Inferred)>> {
    let dy = inputs.get(Port::Dy)?;
    check_rank(Port::Dy, dy, 3..=5)?;
    check_attributes(resample, dy.rank() - 2, Port::Dy)?;
    if resample.mode == ResampleMode::Maxpool && inputs.find(Port::Index).is_none() {
        for port in [Port::X, Port::Y] {
            if inputs.find(port).is_none() {
                return Err(value_error(format!(
                    "max pooling reads neither index nor {port}: give the forward's index, or both its x \
                     and its y"
                )));
            }
        }
    }
    for port in [Port::Index, Port::Y] {
        if let Some(tensor) = inputs.find(port) {
            check_dims(port, tensor, &dy.dims, "the dimensions of dy")?;
        }
    }
    if let Some(x) = inputs.find(Port::X) {
        let dims = pool(resample, Port::X, x)?;
        check_dims(Port::Dy, dy, &dims, "the dimensions that pooling makes of x")?;
        return Ok(vec![(Port::Dx, like(&x.dims, x)?)]);
    }
    let mut dims = dy.dims[..2].to_vec();
    for (axis, &size) in dy.dims[2..].iter().enumerate() {
        let (stride, stride_of) = parts("stride", resample.stride[axis], 1)?;
        let (pre, pre_of) = parts("pre_padding", resample.pre_padding[axis], 0)?;
        let (post, post_of) = parts("post_padding", resample.post_padding[axis], 0)?;
        let steps = (i128::from(size) - 1) * stride;
        // Rounded up, so that the last window is inside.
        let room = (steps + stride_of - 1) / stride_of + i128::from(resample.window[axis]);
        let size = room - (pre * post_of + post * pre_of) / (pre_of * post_of);
        dims.push(narrow(size.max(1), axis + 2)?);
    }
    Ok(vec![(Port::Dx, like(&dims, dy)?)])
}

pub(super) fn accepts_pool(resample: &Resample, inputs: Inputs<'_>, dx: &TensorSpec) -> Result<()> {
    if let Some(x) = inputs.find(Port::X) {
        check_dims(Port::Dx, dx, &x.dims, "the dimensions of x")?;
    }
    let dims = pool(resample, Port::Dx, dx)?;
    check_dims(Port::Dy, inputs.get(Port::Dy)?, &dims, "the dimensions that pooling makes of dx")
}
