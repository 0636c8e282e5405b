//! Random numbers: a work-item for each block of the stream.

use keyfold_plugin::{Error, Execution, Params, Result};

use crate::device::{Arg, Buffer, Device};
use crate::stream::Stream;
use crate::tensor::Place;
use crate::types::Type::{self, BF16, F16, F64};
use crate::types::prelude;

/// Returns whether a distribution has a kernel.
///
/// # Errors
/// Why it has none.
pub fn support(name: &str, output: Type) -> Result<()> {
    if matches!(name, "uniform" | "normal") && output.is_float() {
        return Ok(());
    }
    Err(Error::not_supported(format!("it has no {name} numbers of {output:?}")))
}

fn source(device: &Device, normal: bool, dtype: Type) -> String {
    let bits = match dtype {
        F16 => 11,
        BF16 => 8,
        _ => 24,
    };
    // The CPU computes normal numbers in float64.
    let (wide, turn) = match device.float64 {
        true => ("double", "6.283185307179586477"),
        false => ("float", "6.2831855f"),
    };
    format!(
        "{}{}#define NORMAL {}\n#define NUMBERS {}\n#define BITS {bits}\n#define WIDE {wide}\n\
         #define TURN {turn}\n{}{}",
        prelude(device.float64),
        dtype.define("r", dtype),
        u8::from(normal),
        if dtype == F64 { 2 } else { 4 },
        include_str!("kernels/philox.cl"),
        include_str!("kernels/random.cl")
    )
}

/// Makes numbers.
///
/// # Errors
/// The device's.
pub fn execute(device: &Device, stream: &Stream, call: &Execution<'_, Buffer>) -> Result<()> {
    let output = call.output(0)?;
    let Params::Random { seed, offset } = call.params() else {
        return Err(Error::not_supported("random numbers without a seed"));
    };
    let (r, count) = (Place::of(&output)?, output.shape().iter().product::<i64>() as u64);
    if count == 0 {
        return Ok(());
    }
    let normal = call.name() == "normal";
    let key = [u8::from(normal), r.dtype as u8, 0, 0, 0, 0, 0, 0];
    let kernel = device.programs.kernel(("random", key), || source(device, normal, r.dtype))?;
    let [pr, ar] = r.args();
    let args = [pr, ar, Arg::U64(count), Arg::U64(seed), Arg::U64(offset)];
    let numbers = if r.dtype == F64 { 2 } else { 4 };
    device.launch_items(&kernel, stream, &args, count.div_ceil(numbers))
}
