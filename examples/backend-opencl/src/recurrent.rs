//! Cells of recurrent networks: a work-item for each element of a state.

use keyfold_plugin::{Error, Execution, Result};

use crate::dense::{self, Dense, On, numel};
use crate::device::{Arg, Buffer};
use crate::types::Type;

/// Returns whether an operation has a kernel.
///
/// # Errors
/// Why it has none.
pub fn support(name: &str, inputs: &[Type], outputs: &[Type]) -> Result<()> {
    if !matches!(name, "gru_cell" | "gru_cell_backward" | "lstm_cell" | "lstm_cell_backward") {
        return Err(dense::unknown("recurrent", name));
    }
    let all = [inputs, outputs].concat();
    dense::floats(name, &all)?;
    match all.iter().all(|dtype| *dtype == all[0]) {
        true => Ok(()),
        false => Err(Error::not_supported(format!("its {name} of {inputs:?} isn't {outputs:?}"))),
    }
}

/// Runs a cell, or its backward.
///
/// # Errors
/// The device's.
pub fn execute(on: On<'_>, call: &Execution<'_, Buffer>) -> Result<()> {
    let (device, stream) = on;
    let (fields, name) = (call.fields(), call.name());
    let (is_gru, is_backward) = (name.starts_with("gru"), name.ends_with("_backward"));
    // The state, or its gradient.
    let state = call.output(if is_backward { call.output_count() - 1 } else { 0 })?;
    let count = numel(state.shape()).cast_unsigned();
    if count == 0 {
        return Ok(());
    }
    let width = state.shape()[1].cast_unsigned();
    let (given, made) = (dense::inputs(on, call)?, dense::outputs(on, call)?);
    let dtype = made[0].place.dtype;
    let (gates, kept) = if is_gru { (3, 5) } else { (4, 4) };
    let key = [gates, u8::from(is_backward), dtype as u8, 0, 0, 0, 0, 0];
    let kernel = device.programs.kernel(("recurrent", key), || {
        let definitions = format!(
            "#define GATES {gates}\n#define KEPT {kept}\n#define IS_BACKWARD {}\n",
            u8::from(is_backward)
        );
        dense::source(device, dtype, &definitions, include_str!("kernels/recurrent.cl"))
    })?;
    let sizes = [Arg::U64(count), Arg::U64(width)];
    // In the place of a tensor that isn't there, any will do.
    let mut all: Vec<&Dense> = made.iter().collect();
    let mut flags = None;
    if !is_backward {
        if is_gru {
            all.insert(1, &made[0]);
        }
        all.extend(&given);
        let is_biased = fields.flag("biased")?;
        all.extend([&made[0], &made[0]].iter().filter(|_| !is_biased));
        flags = Some(is_biased.into());
    } else if is_gru {
        all.extend(&given);
    } else {
        let (grads, mut rest) = (fields.ints("grads")?, given.iter());
        for is_there in grads {
            let own = if *is_there != 0 { rest.next() } else { None };
            all.push(own.unwrap_or(&made[0]));
        }
        all.extend(rest);
        flags = Some(i32::from(grads[0] != 0) | i32::from(grads[1] != 0) << 1);
    }
    let mut args: Vec<Arg<'_>> = all.into_iter().flat_map(Dense::args).collect();
    args.extend(sizes);
    args.extend(flags.map(Arg::I32));
    device.launch_items(&kernel, stream, &args, count)?;
    dense::finish(on, call, &made)
}
