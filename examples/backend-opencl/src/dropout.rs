//! Dropout: a work-item for each block of the stream.

use keyfold_plugin::{Error, Execution, Result};

use crate::dense::{self, Dense, On};
use crate::device::{Arg, Buffer};
use crate::types::Type;

/// Returns whether dropout has a kernel.
///
/// # Errors
/// Why it has none.
pub fn support(name: &str, inputs: &[Type], outputs: &[Type]) -> Result<()> {
    if name != "dropout" {
        return Err(dense::unknown("dropout", name));
    }
    dense::floats(name, inputs)?;
    match outputs == [inputs[0], Type::Bool] {
        true => Ok(()),
        false => Err(Error::not_supported(format!("its dropout of {inputs:?} isn't {outputs:?}"))),
    }
}

/// Drops elements.
///
/// # Errors
/// The device's.
pub fn execute(on: On<'_>, call: &Execution<'_, Buffer>) -> Result<()> {
    let (device, stream) = on;
    let fields = call.fields();
    let count = dense::numel(call.output(0)?.shape()).cast_unsigned();
    if count == 0 {
        return Ok(());
    }
    let x = Dense::of(on, &call.input(0)?)?;
    let made = dense::outputs(on, call)?;
    let dtype = x.place.dtype;
    let kernel = device.programs.kernel(("dropout", [dtype as u8, 0, 0, 0, 0, 0, 0, 0]), || {
        let body = concat!(include_str!("kernels/philox.cl"), include_str!("kernels/dropout.cl"));
        dense::source(device, dtype, "", body)
    })?;
    let threshold = fields.int("threshold")?.cast_unsigned();
    let numbers = [count, threshold, fields.bits("seed")?, fields.bits("offset")?].map(Arg::U64);
    let scale = dense::reals(dtype, &[fields.float("scale")?]);
    let tensors = [made[0].args(), made[1].args(), x.args()].concat();
    let args = [tensors.as_slice(), &numbers, &[Arg::Bytes(&scale)]].concat();
    device.launch_items(&kernel, stream, &args, count.div_ceil(4))?;
    dense::finish(on, call, &made)
}
