//! The checks of a convolution's arguments, and the sizes that follow from them.

use keyfold_backend::{Activation, ConvolutionParams, Operation};
use keyfold_core::{DType, Error, ErrorKind, Result, Shape};
use keyfold_tensor::Tensor;

use super::arguments::Settings;

/// The most dimensions of space.
pub(super) const MAX_RANK: usize = 3;

/// A checked convolution.
pub(super) struct Sizes {
    /// Dimensions of space.
    pub(super) rank: usize,
    /// Whether the input is one image, without a dimension for images.
    pub(super) single: bool,
    /// The dtype that all operands promote to.
    pub(super) dtype: DType,
    /// Channels of the result.
    pub(super) channels: usize,
    /// The shape of the result, without a dimension for images where the input has none.
    pub(super) output: Shape,
    pub(super) stride: [u64; MAX_RANK],
    /// Zeros before the input.
    pub(super) padding: [u64; MAX_RANK],
    pub(super) dilation: [u64; MAX_RANK],
    pub(super) groups: u64,
}

impl Sizes {
    /// Returns the parameters of an operation.
    pub(super) fn params(&self, op: &'static Operation) -> ConvolutionParams {
        ConvolutionParams {
            op,
            rank: self.rank as u32,
            activation: Activation::None,
            has_bias: false,
            groups: self.groups,
            stride: self.stride,
            padding: self.padding,
            dilation: self.dilation,
        }
    }
}

#[cold]
fn error(name: &str, kind: ErrorKind, message: impl AsRef<str>) -> Error {
    Error::new(kind, format!("{name}: {}", message.as_ref()))
}

/// Checks the arguments of a convolution, for errors in the name of an operator, and computes its sizes.
///
/// # Errors
/// [`ErrorKind::Shape`], [`ErrorKind::DType`], and [`ErrorKind::Value`] for settings out of range.
pub(super) fn check(
    name: &str,
    (input, weight, bias): (&Tensor, &Tensor, Option<&Tensor>),
    settings: &Settings,
) -> Result<Sizes> {
    let dtype = check_dtypes(name, input, weight, bias)?;
    let rank = weight.ndim().saturating_sub(2);
    if !(1..=MAX_RANK).contains(&rank) {
        let message = format!(
            "argument 'weight' has shape {:?}; it has two dimensions of channels and then one to \
             three of space",
            weight.shape()
        );
        return Err(error(name, ErrorKind::Shape, message));
    }
    if input.ndim() != rank + 2 && input.ndim() != rank + 1 {
        let message = format!(
            "argument 'input' has shape {:?}; with a weight of shape {:?} it has {} dimensions: \
             images, channels and {rank} of space, or {} for one image",
            input.shape(),
            weight.shape(),
            rank + 2,
            rank + 1
        );
        return Err(error(name, ErrorKind::Shape, message));
    }
    let single = input.ndim() == rank + 1;
    let space = input.ndim() - rank;
    let groups = check_groups(name, input.shape()[space - 1], weight, settings)?;
    // The weight's second size is that of a group.
    let channels = match settings.transposed {
        true => weight.shape()[1].checked_mul(groups as usize).ok_or_else(|| overflow(name))?,
        false => weight.shape()[0],
    };
    if let Some(bias) = bias
        && **bias.shape() != [channels]
    {
        let message = format!(
            "argument 'bias' has shape {:?}; it has one number for each of the {channels} channels \
             of the result, shape [{channels}]",
            bias.shape()
        );
        return Err(error(name, ErrorKind::Shape, message));
    }
    let list =
        |argument: &str, numbers: &[i64], least: i64| spread(name, argument, numbers, rank, least);
    let stride = list("stride", &settings.stride, 1)?;
    let dilation = list("dilation", &settings.dilation, 1)?;
    let (before, after) = spread_padding(name, &settings.padding, rank)?;
    let extra = list("output_padding", &settings.output_padding, 0)?;
    let mut output: Shape = match single {
        true => Shape::new(&[])?,
        false => Shape::new(&input.shape()[..1])?,
    };
    output.insert(output.len(), channels)?;
    for d in 0..rank {
        let (size, kernel) = (input.shape()[space + d], weight.shape()[2 + d]);
        let along = Along {
            size,
            kernel,
            stride: stride[d],
            padding: (before[d], after[d]),
            dilation: dilation[d],
            extra: extra[d],
        };
        let size = if settings.transposed { along.transposed() } else { along.forward() };
        let size = size.map_err(|message| {
            error(name, ErrorKind::Shape, format!("along dimension {d} of space, {message}"))
        })?;
        output.insert(output.len(), size)?;
    }
    let total = output.iter().try_fold(1_usize, |total, size| total.checked_mul(*size));
    if total.is_none_or(|total| total > isize::MAX as usize / 8) {
        return Err(overflow(name));
    }
    Ok(Sizes { rank, single, dtype, channels, output, stride, padding: before, dilation, groups })
}

/// Checks that all are floats, and returns the dtype that they promote to.
fn check_dtypes(
    name: &str,
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<DType> {
    let mut dtype = input.dtype();
    let all = [("input", Some(input)), ("weight", Some(weight)), ("bias", bias)];
    for (argument, tensor) in all {
        let Some(tensor) = tensor else { continue };
        if !tensor.dtype().is_floating() {
            let message = format!(
                "argument '{argument}': dtype {} isn't supported here; convert to one of float16, \
                 bfloat16, float32, float64 with aten::to",
                tensor.dtype()
            );
            return Err(error(name, ErrorKind::DType, message));
        }
        dtype = dtype.promote(tensor.dtype());
    }
    Ok(dtype)
}

/// Checks the number of groups beside the channels of input and weight.
fn check_groups(name: &str, given: usize, weight: &Tensor, settings: &Settings) -> Result<u64> {
    let groups = settings.groups;
    if groups < 1 {
        let message = format!("argument 'groups' is {groups}; there is at least 1 group");
        return Err(error(name, ErrorKind::Value, message));
    }
    let (first, second) = (weight.shape()[0], weight.shape()[1]);
    let count = groups as usize;
    let wanted = match settings.transposed {
        true => Some(first),
        false => second.checked_mul(count),
    };
    if first % count != 0 || !given.is_multiple_of(count) {
        let message = format!(
            "argument 'groups' is {groups}, which divides neither or only one of the input's {given} \
             channels and the weight's {first}; it has to divide both"
        );
        return Err(error(name, ErrorKind::Shape, message));
    }
    if wanted != Some(given) {
        let wanted = wanted.ok_or_else(|| overflow(name))?;
        let message = format!(
            "argument 'input' has {given} channels; with a weight of shape {:?} and argument \
             'groups' {groups} it has {wanted}",
            weight.shape()
        );
        return Err(error(name, ErrorKind::Shape, message));
    }
    Ok(groups as u64)
}

/// Returns a setting for each dimension of space; one number is that of all dimensions.
fn spread(
    name: &str,
    argument: &str,
    numbers: &[i64],
    rank: usize,
    least: i64,
) -> Result<[u64; MAX_RANK]> {
    if numbers.len() != rank && numbers.len() != 1 {
        let pairs =
            if argument == "padding" { ", or a pair for each, before and after" } else { "" };
        let message = format!(
            "argument '{argument}' is {numbers:?}; it has one number, or one for each of the {rank} \
             dimensions of space{pairs}"
        );
        return Err(error(name, ErrorKind::Shape, message));
    }
    if let Some(number) = numbers.iter().find(|number| **number < least) {
        let message = format!("argument '{argument}' has {number}; it has to be at least {least}");
        return Err(error(name, ErrorKind::Value, message));
    }
    let mut spread = [0; MAX_RANK];
    for (d, to) in spread[..rank].iter_mut().enumerate() {
        *to = numbers[if numbers.len() == 1 { 0 } else { d }] as u64;
    }
    Ok(spread)
}

/// Returns the padding before and after each dimension: one number for all, one for each dimension, or a pair
/// for each.
fn spread_padding(
    name: &str,
    numbers: &[i64],
    rank: usize,
) -> Result<([u64; MAX_RANK], [u64; MAX_RANK])> {
    if numbers.len() != 2 * rank {
        let both = spread(name, "padding", numbers, rank, 0)?;
        return Ok((both, both));
    }
    let (before, after): (Vec<i64>, Vec<i64>) =
        numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).unzip();
    let half = |numbers: &[i64]| spread(name, "padding", numbers, rank, 0);
    Ok((half(&before)?, half(&after)?))
}

/// A convolution along one dimension.
struct Along {
    size: usize,
    kernel: usize,
    stride: u64,
    padding: (u64, u64),
    dilation: u64,
    /// The size that is added to a transposed convolution's result.
    extra: u64,
}

impl Along {
    /// The distance of what the last place of the kernel sees from what the first one sees, plus 1.
    fn reach(&self) -> Result<i128, String> {
        if self.kernel == 0 {
            return Err("argument 'weight' has size 0; a kernel has at least 1 place".to_owned());
        }
        Ok((self.kernel as i128 - 1) * i128::from(self.dilation) + 1)
    }

    fn padding(&self) -> i128 {
        i128::from(self.padding.0) + i128::from(self.padding.1)
    }

    fn forward(&self) -> Result<usize, String> {
        let (reach, padding) = (self.reach()?, self.padding());
        if self.extra != 0 {
            let message = format!(
                "argument 'output_padding' is {}; only a transposed convolution has one",
                self.extra
            );
            return Err(message);
        }
        let padded = self.size as i128 + padding;
        if reach > padded {
            return Err(format!(
                "the kernel spans {reach} elements ({} at a dilation of {}), and argument 'input' \
                 has {padded} with its padding ({} without); give more padding or a smaller kernel",
                self.kernel, self.dilation, self.size
            ));
        }
        in_range((padded - reach) / i128::from(self.stride) + 1)
    }

    fn transposed(&self) -> Result<usize, String> {
        let (reach, padding) = (self.reach()?, self.padding());
        if self.extra >= self.stride.max(self.dilation) {
            return Err(format!(
                "argument 'output_padding' is {}; it has to be below the stride, {}, or the \
                 dilation, {}",
                self.extra, self.stride, self.dilation
            ));
        }
        if self.size == 0 {
            return Err(
                "argument 'input' has size 0, of which there is no transposed convolution; \
                        give at least 1"
                    .to_owned(),
            );
        }
        let size = (self.size as i128 - 1) * i128::from(self.stride) - padding
            + reach
            + i128::from(self.extra);
        if size < 1 {
            return Err(format!(
                "the result would have size {size}: argument 'padding' takes {padding} away, more \
                 than there is; give less"
            ));
        }
        in_range(size)
    }
}

fn in_range(size: i128) -> Result<usize, String> {
    match usize::try_from(size) {
        Ok(size) if size <= isize::MAX as usize => Ok(size),
        _ => Err(format!("the result would have size {size}, which is out of range")),
    }
}

#[cold]
fn overflow(name: &str) -> Error {
    error(name, ErrorKind::Shape, "the result would have more elements than memory has addresses")
}
