//! Convolutions of one, two and three dimensions of space, and transposed ones: composites of
//! `aten::convolution`.

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{Arg, CallContext, Kernel, RegistrationKey};
use keyfold_layers::autocast::Category;
use keyfold_tensor::{IntList, Tensor, Value, ValueRef};

use super::arguments::Settings;
use super::sizes;
use crate::inferred::Inferred;
use crate::naming::Naming;
use crate::row::{Layers, Row, Rule};

/// An operator of this module.
trait Operator: 'static {
    const NAME: &'static str;
    /// Dimensions of space.
    const RANK: usize;
    const TRANSPOSED: bool;
}

macro_rules! operators {
    // The kernels of rows are functions without state, so each operator is a type.
    ($($type:ident, $name:literal, $rank:literal, $transposed:literal;)*) => {$(
        struct $type;

        impl Operator for $type {
            const NAME: &'static str = concat!("aten::", $name);
            const RANK: usize = $rank;
            const TRANSPOSED: bool = $transposed;
        }
    )*};
}

operators! {
    Conv1d, "conv1d", 1, false;
    Conv2d, "conv2d", 2, false;
    Conv3d, "conv3d", 3, false;
    ConvTranspose1d, "conv_transpose1d", 1, true;
    ConvTranspose2d, "conv_transpose2d", 2, true;
    ConvTranspose3d, "conv_transpose3d", 3, true;
}

/// The checked arguments of a call.
struct Call<'a> {
    input: &'a Tensor,
    weight: &'a Tensor,
    bias: Option<&'a Tensor>,
    settings: Settings,
}

fn error(name: &str, kind: ErrorKind, message: impl AsRef<str>) -> Error {
    Error::new(kind, format!("{name}: {}", message.as_ref()))
}

/// Reads and checks the arguments, and infers the result.
fn read<'a, O: Operator>(args: &[ValueRef<'a>]) -> Result<(Call<'a>, Inferred)> {
    let [input, weight, bias, stride, padding, rest @ ..] = args else {
        let message = format!("takes more than {} arguments", args.len());
        return Err(error(O::NAME, ErrorKind::Binding, message));
    };
    let (input, weight) = (input.tensor()?, weight.tensor()?);
    let bias = <Option<&'static Tensor>>::unbox(*bias)?;
    if weight.ndim() != O::RANK + 2 {
        let message = format!(
            "argument 'weight' has shape {:?}; it has {} dimensions: two of channels and {} of space",
            weight.shape(),
            O::RANK + 2,
            O::RANK
        );
        return Err(error(O::NAME, ErrorKind::Shape, message));
    }
    let stride = IntList::unbox(*stride)?;
    let settings = match (rest, O::TRANSPOSED) {
        ([dilation, groups], false) => {
            let dilation = IntList::unbox(*dilation)?;
            let padding = match padding {
                ValueRef::Str(text) => named_padding::<O>(text, weight, &stride, &dilation)?,
                list => IntList::unbox(*list)?,
            };
            let (output_padding, groups) = (list(&[0])?, i64::unbox(*groups)?);
            Settings { stride, padding, dilation, transposed: false, output_padding, groups }
        }
        ([output_padding, groups, dilation], true) => Settings {
            stride,
            padding: IntList::unbox(*padding)?,
            dilation: IntList::unbox(*dilation)?,
            transposed: true,
            output_padding: IntList::unbox(*output_padding)?,
            groups: i64::unbox(*groups)?,
        },
        _ => {
            let message = format!("doesn't take {} arguments", args.len());
            return Err(error(O::NAME, ErrorKind::Binding, message));
        }
    };
    let sizes = sizes::check(O::NAME, (input, weight, bias), &settings)?;
    let inferred = Inferred::fresh(sizes.output, sizes.dtype);
    Ok((Call { input, weight, bias, settings }, inferred))
}

fn list(numbers: &[i64]) -> Result<IntList> {
    IntList::unbox(ValueRef::Ints(numbers))
}

/// Returns the padding that a word stands for: none, or so much that a stride of 1 keeps the size.
fn named_padding<O: Operator>(
    text: &str,
    weight: &Tensor,
    stride: &[i64],
    dilation: &[i64],
) -> Result<IntList> {
    match text {
        "valid" => return list(&[0]),
        "same" => {}
        other => {
            let message =
                format!("argument 'padding' is '{other}'; as a word it is 'valid' or 'same'");
            return Err(error(O::NAME, ErrorKind::Value, message));
        }
    }
    if stride.iter().any(|stride| *stride != 1) {
        let message = format!(
            "argument 'padding' is 'same', which needs a stride of 1, and argument 'stride' is \
             {stride:?}; give the padding as numbers"
        );
        return Err(error(O::NAME, ErrorKind::Value, message));
    }
    let mut pairs = Vec::with_capacity(2 * O::RANK);
    for (d, kernel) in weight.shape()[2..].iter().enumerate() {
        let dilation = dilation.get(d).or(dilation.last()).copied().unwrap_or(1);
        let total = (*kernel as i64 - 1).checked_mul(dilation).ok_or_else(|| {
            error(
                O::NAME,
                ErrorKind::Value,
                format!("argument 'dilation' is {dilation}; give less"),
            )
        })?;
        let total = total.max(0);
        pairs.extend([total / 2, total - total / 2]);
    }
    list(&pairs)
}

fn run<O: Operator>(context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> Result<Value> {
    let (Call { input, weight, bias, settings }, _) = read::<O>(args)?;
    let bias = bias.map_or(ValueRef::None, ValueRef::Tensor);
    let tensors = [input.into(), weight.into(), bias];
    context.dispatcher()?.call("aten::convolution", &[&tensors[..], &settings.values()].concat())
}

fn row<O: Operator>(schema: &'static str) -> Result<Row> {
    let name = O::NAME.trim_start_matches("aten::");
    Row::composite(
        schema,
        RegistrationKey::CompositeImplicitAutograd,
        || Kernel::boxed(run::<O>),
        |args| Ok(read::<O>(args)?.1),
        Layers {
            derivative: Rule::Derived,
            tangent: Rule::Derived,
            batching: Rule::Derived,
            autocast: Category::LowerPrecision,
        },
        Naming::PartOf(name),
    )
}

/// Returns the rows of this module.
pub(super) fn rows() -> Result<Vec<Row>> {
    Ok(vec![
        row::<Conv1d>(
            "aten::conv1d(Tensor input, Tensor weight, Tensor? bias=None, int[1] stride=1, \
             int[1] padding=0, int[1] dilation=1, int groups=1) -> Tensor",
        )?,
        row::<Conv1d>(
            "aten::conv1d.padding(Tensor input, Tensor weight, Tensor? bias=None, \
             int[1] stride=1, str padding=\"valid\", int[1] dilation=1, int groups=1) -> Tensor",
        )?,
        row::<Conv2d>(
            "aten::conv2d(Tensor input, Tensor weight, Tensor? bias=None, int[2] stride=1, \
             int[2] padding=0, int[2] dilation=1, int groups=1) -> Tensor",
        )?,
        row::<Conv2d>(
            "aten::conv2d.padding(Tensor input, Tensor weight, Tensor? bias=None, \
             int[2] stride=1, str padding=\"valid\", int[2] dilation=1, int groups=1) -> Tensor",
        )?,
        row::<Conv3d>(
            "aten::conv3d(Tensor input, Tensor weight, Tensor? bias=None, int[3] stride=1, \
             int[3] padding=0, int[3] dilation=1, int groups=1) -> Tensor",
        )?,
        row::<Conv3d>(
            "aten::conv3d.padding(Tensor input, Tensor weight, Tensor? bias=None, \
             int[3] stride=1, str padding=\"valid\", int[3] dilation=1, int groups=1) -> Tensor",
        )?,
        row::<ConvTranspose1d>(
            "aten::conv_transpose1d(Tensor input, Tensor weight, Tensor? bias=None, \
             int[1] stride=1, int[1] padding=0, int[1] output_padding=0, int groups=1, \
             int[1] dilation=1) -> Tensor",
        )?,
        row::<ConvTranspose2d>(
            "aten::conv_transpose2d.input(Tensor input, Tensor weight, Tensor? bias=None, \
             int[2] stride=1, int[2] padding=0, int[2] output_padding=0, int groups=1, \
             int[2] dilation=1) -> Tensor",
        )?,
        row::<ConvTranspose3d>(
            "aten::conv_transpose3d.input(Tensor input, Tensor weight, Tensor? bias=None, \
             int[3] stride=1, int[3] padding=0, int[3] output_padding=0, int groups=1, \
             int[3] dilation=1) -> Tensor",
        )?,
    ])
}
