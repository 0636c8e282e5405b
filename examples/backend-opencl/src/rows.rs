//! Softmax and its logarithm: a work-item for each short lane, a group for each long one.

use keyfold_plugin::{Error, Execution, Params, Result};

use crate::device::{Arg, Buffer, Device};
use crate::layout::Loop;
use crate::stream::Stream;
use crate::tensor::Place;
use crate::types::{Type, prelude};

/// Returns whether an operation on lanes has a kernel.
///
/// # Errors
/// Why it has none.
pub fn support(name: &str, input: Type, output: Type) -> Result<()> {
    if !matches!(name, "softmax" | "log_softmax") {
        return Err(Error::not_supported(format!("it has no operation {name} on lanes")));
    }
    match output.is_float() {
        true => Ok(()),
        false => Err(Error::not_supported(format!("its {name} of {input:?} isn't {output:?}"))),
    }
}

fn source(
    device: &Device,
    logarithm: bool,
    (input, output): (Type, Type),
    form: u8,
    rank: usize,
) -> String {
    // Elements are computed in the output's type.
    let from = if output == Type::F64 { Type::F64 } else { Type::F32 };
    format!(
        "{}{}{}#define LOGARITHM {}\n#define FORM {form}\n#define KEPT {rank}\n{}",
        prelude(device.float64),
        input.define("x", input),
        output.define("r", from),
        u8::from(logarithm),
        include_str!("kernels/rows.cl")
    )
}

/// Runs an operation on lanes.
///
/// # Errors
/// The device's.
pub fn execute(device: &Device, stream: &Stream, call: &Execution<'_, Buffer>) -> Result<()> {
    let (input, output) = (call.input(0)?, call.output(0)?);
    let Params::Rows { axis } = call.params() else {
        return Err(Error::not_supported("an operation on lanes without a dimension"));
    };
    let (mut kept, mut lane) = (Loop::<2>::new(), (1, 0, 0));
    for (dim, size) in input.shape().iter().enumerate() {
        let steps = [input.strides()[dim], output.strides()[dim]];
        match dim == axis {
            true => lane = (*size, steps[0], steps[1]),
            false => kept.push(*size, steps)?,
        }
    }
    let (lanes, (count, step_x, step_r)) = (kept.numel(), lane);
    if lanes == 0 || count == 0 {
        return Ok(());
    }
    let (x, r) = (Place::of(&input)?, Place::of(&output)?);
    let logarithm = call.name() == "log_softmax";
    let long = count > 64 || lanes < 16;
    let rank = kept.kernel_rank();
    let key =
        [u8::from(logarithm), x.dtype as u8, r.dtype as u8, u8::from(long), rank as u8, 0, 0, 0];
    let kernel = device.programs.kernel(("rows", key), || {
        source(device, logarithm, (x.dtype, r.dtype), u8::from(long), rank)
    })?;
    let mut bytes = Vec::new();
    kept.write_first(2, &mut bytes);
    let ([px, ax], [pr, ar]) = (x.args(), r.args());
    let sizes = [Arg::U64(lanes), Arg::I64(count), Arg::I64(step_x), Arg::I64(step_r)];
    let args = [[pr, ar, px, ax].as_slice(), &[Arg::Bytes(&bytes)], &sizes].concat();
    if long {
        let groups = [lanes as usize, 1, 1];
        return device.launch(&kernel, stream, &args, groups, [device.group, 1, 1]);
    }
    device.launch_items(&kernel, stream, &args, lanes)
}
