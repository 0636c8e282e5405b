//! Cumulative sums and products: a work-item for each lane, or groups for each of few long ones.

use keyfold_plugin::{Error, Execution, Params, Result};

use crate::device::{Arg, Buffer, Device};
use crate::layout::lanes_of;
use crate::reduce::sum_type;
use crate::stream::Stream;
use crate::tensor::Place;
use crate::types::Type::{self, Bool, F32, F64};
use crate::types::prelude;

/// The operations, by the number that they have in the kernel's source, less 1.
const NAMES: [&str; 2] = ["sum", "prod"];

/// The bytes of what a stretch of a lane combines to, at most.
const PART: u64 = 16;

fn number(name: &str) -> Option<u8> {
    (1..).zip(NAMES).find(|(_, known)| *known == name).map(|(number, _)| number)
}

/// Returns whether a scan has a kernel.
///
/// # Errors
/// Why it has none.
pub fn support(name: &str, input: Type, output: Type) -> Result<()> {
    match number(name) {
        None => Err(Error::not_supported(format!("it has no scan {name}"))),
        Some(_) if output == Bool => {
            Err(Error::not_supported(format!("its scan {name} of {input:?} isn't {output:?}")))
        }
        Some(_) => Ok(()),
    }
}

fn source(device: &Device, op: u8, (input, output): (Type, Type), form: u8, rank: usize) -> String {
    let all = sum_type(output);
    let from = if all == F64 { F64 } else { F32 };
    let (x, r) = (input.define("x", input), output.define("r", from));
    format!(
        "{}{x}{r}#define OP {op}\n#define FORM {form}\n#define KEPT {rank}\n#define ACC {}\n\
         #define ACC_IS_FLOAT {}\n#define TO_ACC(x) {}\n\
         #define FROM_ACC(v) {}\n{}",
        prelude(device.float64),
        all.computed(),
        u8::from(all.is_float()),
        // Floats are converted to the output's own width, where they saturate.
        if all.is_float() || !input.is_float() {
            all.convert(input, "x")
        } else {
            format!("(({}){})", all.computed(), output.convert(input, "x"))
        },
        output.convert(all, "(v)"),
        include_str!("kernels/scan.cl")
    )
}

/// Runs a scan.
///
/// # Errors
/// The device's.
pub fn execute(device: &Device, stream: &Stream, call: &Execution<'_, Buffer>) -> Result<()> {
    let (input, output) = (call.input(0)?, call.output(0)?);
    let (Some(op), Params::Scan { axis }) = (number(call.name()), call.params()) else {
        return Err(Error::not_supported(format!("it has no scan {}", call.name())));
    };
    let (kept, (count, step_x, step_r)) = lanes_of(&input, &output, axis)?;
    let lanes = kept.numel();
    if lanes == 0 || count == 0 {
        return Ok(());
    }
    let (x, r) = (Place::of(&input)?, Place::of(&output)?);
    let rank = kept.kernel_rank();
    let kernel = |form: u8| {
        let key = [op, x.dtype as u8, r.dtype as u8, form, rank as u8, 0, 0, 0];
        let make = || source(device, op, (x.dtype, r.dtype), form, rank);
        device.programs.kernel(("scan", key), make)
    };
    let mut bytes = Vec::new();
    kept.write_first(2, &mut bytes);
    let along = kept.steps[0][rank - 1].unsigned_abs();
    let kept = Arg::Bytes(&bytes);
    let ([px, ax], [pr, ar]) = (x.args(), r.args());
    let steps = [Arg::I64(step_x), Arg::I64(step_r)];
    let (group, length) = (device.group as u64, count.cast_unsigned());
    let count = Arg::U64(length);
    // Neighbouring work-items read neighbouring elements of another dimension.
    let in_columns = lanes >= 4 * group && along < step_x.unsigned_abs();
    if in_columns || lanes >= 64 * group || length <= 2 * group {
        let args = [pr, ar, px, ax, kept, Arg::U64(lanes), count, steps[0], steps[1]];
        return device.launch_items(&*kernel(0)?, stream, &args, lanes);
    }
    // Enough groups for every unit of a device, each with at least 16 elements a work-item.
    let stretches = (1024 / lanes).clamp(1, length.div_ceil(16 * group));
    let (number, groups) = (Arg::U64(stretches), [(lanes * stretches) as usize, 1, 1]);
    let (local, mut parts, mut given) = ([device.group, 1, 1], None, pr);
    if stretches > 1 {
        let memory = parts.insert(device.allocate((lanes * stretches * PART) as usize)?);
        given = Arg::Buffer(memory.handle);
        let args = [given, px, ax, kept, number, count, steps[0]];
        device.launch(&*kernel(1)?, stream, &args, groups, local)?;
        let args = [given, number, Arg::U64(lanes)];
        device.launch_items(&*kernel(2)?, stream, &args, lanes)?;
    }
    let args = [pr, ar, px, ax, kept, given, number, count, steps[0], steps[1]];
    device.launch(&*kernel(3)?, stream, &args, groups, local)
}
