//! Convolutions and their gradients: a work-item for each element of a result, or for sums over all
//! images a group.

use keyfold_plugin::{Error, Execution, Result};

use crate::activation;
use crate::dense::{self, Dense, On, numel, words};
use crate::device::{Arg, Buffer};
use crate::types::Type;

/// The operations, by the numbers of their programs.
const NAMES: [&str; 4] = ["convolution", "transposed", "weight_gradient", "bias_gradient"];
const WEIGHT_GRADIENT: u8 = 2;
const BIAS_GRADIENT: u8 = 3;

fn form(name: &str) -> Option<u8> {
    (0..).zip(NAMES).find(|(_, known)| *known == name).map(|(number, _)| number)
}

/// Returns whether an operation has a kernel.
///
/// # Errors
/// Why it has none.
pub fn support(name: &str, inputs: &[Type], outputs: &[Type]) -> Result<()> {
    form(name).ok_or_else(|| dense::unknown("convolution", name))?;
    dense::floats(name, outputs)?;
    match inputs.iter().all(|dtype| *dtype == outputs[0]) {
        true => Ok(()),
        false => Err(Error::not_supported(format!("its {name} of {inputs:?} isn't {outputs:?}"))),
    }
}

/// Numbers of up to three dimensions, behind those of the dimensions that there aren't.
fn three(numbers: &[i64], lacking: i64) -> [i64; 3] {
    let mut all = [lacking; 3];
    all[3 - numbers.len()..].copy_from_slice(numbers);
    all
}

/// Runs an operation.
///
/// # Errors
/// The device's.
pub fn execute(on: On<'_>, call: &Execution<'_, Buffer>) -> Result<()> {
    let (device, stream) = on;
    let (fields, name) = (call.fields(), call.name());
    let Some(form) = form(name) else { return Err(dense::unknown("convolution", name)) };
    let (first, result) = (call.input(0)?, call.output(0)?);
    let count = numel(result.shape());
    if count == 0 {
        return Ok(());
    }
    let (given, made) = (dense::inputs(on, call)?, dense::outputs(on, call)?);
    let dtype = made[0].place.dtype;
    let applied = if form < WEIGHT_GRADIENT { fields.text("activation")? } else { "none" };
    let activation = activation::number(applied)?;
    let key = [form, dtype as u8, activation, 0, 0, 0, 0, 0];
    let kernel = device.programs.kernel(("convolution", key), || {
        let form = format!("#define FORM {form}\n{}", activation::source(activation, dtype));
        dense::source(device, dtype, &form, include_str!("kernels/convolution.cl"))
    })?;
    let groups = [count.cast_unsigned() as usize, 1, 1];
    let mut args: Vec<Arg<'_>> = made.iter().chain(&given).flat_map(Dense::args).collect();
    let shape = first.shape();
    if form == BIAS_GRADIENT {
        args.extend([shape[0], shape[1], numel(&shape[2..])].map(Arg::I64));
        device.launch(&kernel, stream, &args, groups, [device.group, 1, 1])?;
        return dense::finish(on, call, &made);
    }
    // The convolution's input, its output and its weight.
    let second = call.input(1)?;
    let (x, y, weight) = match name {
        "convolution" => (shape, result.shape(), second.shape()),
        "transposed" => (result.shape(), shape, second.shape()),
        _ => (shape, second.shape(), result.shape()),
    };
    let rank = fields.int("rank")?.cast_unsigned() as usize;
    let list = |name: &str, lacking: i64| Ok(three(&fields.ints(name)?[..rank], lacking));
    let lists = [
        three(&x[2..], 1),
        three(&y[2..], 1),
        three(&weight[2..], 1),
        list("stride", 1)?,
        list("padding", 0)?,
        list("dilation", 1)?,
    ];
    let sizes = [x[0], x[1], y[1], fields.int("groups")?];
    let sizes = words(&[lists.concat().as_slice(), &sizes].concat());
    if form == WEIGHT_GRADIENT {
        args.push(Arg::Bytes(&sizes));
        device.launch(&kernel, stream, &args, groups, [device.group, 1, 1])?;
        return dense::finish(on, call, &made);
    }
    let has_bias = fields.flag("has_bias")?;
    if !has_bias {
        // In the place of a bias that there isn't, any buffer will do.
        args.extend(made[0].args());
    }
    let count = count.cast_unsigned();
    args.extend([Arg::Bytes(&sizes), Arg::U64(count), Arg::I32(has_bias.into())]);
    device.launch_items(&kernel, stream, &args, count)?;
    dense::finish(on, call, &made)
}
