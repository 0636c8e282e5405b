//! Softmax and its logarithm, in stretches of lanes.

use keyfold_plugin::{Error, Execution, Params, Result};

use crate::device::{Arg, Buffer, Device};
use crate::layout::{Cut, MAX_RANK, lanes_of};
use crate::stream::Stream;
use crate::tensor::Place;
use crate::types::{Type, prelude};

/// The part of the work that a launch does, as in the kernel's source: a unit's part, the results of all
/// parts, both for neighbouring lanes.
const COUNT: i32 = 1;
const WRITE: i32 = 2;
const LANES: i32 = 4;

/// The bytes of a part, at most.
const PART: u64 = 16;

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

fn source(device: &Device, logarithm: bool, input: Type, output: Type) -> String {
    // Elements are computed in the output's type.
    let from = if output == Type::F64 { Type::F64 } else { Type::F32 };
    format!(
        "{}{}{}#define LOGARITHM {}\n#define DIMS {MAX_RANK}\n\
         #define CONVERTV(x) VECTOR(convert_{})(x)\n{}",
        prelude(device.float64),
        input.define("x", input),
        output.define("r", from),
        u8::from(logarithm),
        output.computed(),
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
    let (kept, (count, step_x, step_r)) = lanes_of(&input, &output, axis)?;
    let lanes = kept.numel();
    if lanes == 0 || count == 0 {
        return Ok(());
    }
    let (x, r) = (Place::of(&input)?, Place::of(&output)?);
    let logarithm = call.name() == "log_softmax";
    let key = [u8::from(logarithm), x.dtype as u8, r.dtype as u8, 0, 0, 0, 0, 0];
    let kernel =
        device.programs.kernel(("rows", key), || source(device, logarithm, x.dtype, r.dtype))?;
    let count = count.cast_unsigned();
    let cut = Cut::new(device, &kept, (count, step_x));
    let parts = match cut.stretches {
        1 => None,
        stretches => Some(device.allocate((lanes * stretches * PART) as usize)?),
    };
    let ([px, ax], [pr, ar]) = (x.args(), r.args());
    // Where no parts are written, any buffer will do.
    let parts = parts.as_ref().map_or(pr, |parts| Arg::Buffer(parts.handle));
    let kept = kept.ranked_bytes();
    let run = |mode: i32| {
        let sizes = [lanes, count, cut.stretches, cut.inner].map(Arg::U64);
        let mode = Arg::I32(mode | if cut.across { LANES } else { 0 });
        let steps = [Arg::I64(step_x), Arg::I64(step_r), mode];
        let args = [pr, ar, px, ax, parts, Arg::Bytes(&kept)];
        let args = [args.as_slice(), &sizes, &steps].concat();
        device.launch_items(&kernel, stream, &args, cut.units * device.items as u64)
    };
    match cut.stretches {
        1 => run(COUNT | WRITE),
        _ => {
            run(COUNT)?;
            run(WRITE)
        }
    }
}
