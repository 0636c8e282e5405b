//! Steps of optimizers: a work-item for each element.

use keyfold_plugin::{Error, Execution, Fields, Result};

use crate::dense::{self, Dense, On};
use crate::device::{Arg, Buffer, Device};
use crate::types::Type;

/// The bits of the kernels' argument `flags`.
const DECAYS: i32 = 1;
const AMSGRAD: i32 = 2;
const MOMENTUM: i32 = 4;
const FIRST: i32 = 8;
const NESTEROV: i32 = 16;

/// Returns whether a step has a kernel.
///
/// # Errors
/// Why it has none.
pub fn support(name: &str, inputs: &[Type], outputs: &[Type]) -> Result<()> {
    if !matches!(name, "adam" | "sgd") {
        return Err(dense::unknown("optim", name));
    }
    dense::floats(name, &[inputs, outputs].concat())?;
    let fits = match outputs {
        [parameters, state @ ..] => {
            let kinds = [*parameters, Type::F32];
            inputs == [*parameters]
                && state.iter().all(|dtype| *dtype == state[0] && kinds.contains(dtype))
                && (*parameters != Type::F64 || state.iter().all(|dtype| *dtype == Type::F64))
        }
        [] => false,
    };
    match fits {
        true => Ok(()),
        false => Err(Error::not_supported(format!(
            "its {name} has no step of {outputs:?} along {inputs:?}"
        ))),
    }
}

fn source(device: &Device, is_adam: bool, dtype: Type, state: Type) -> String {
    let definitions = format!(
        "{}#define IS_ADAM {}\n#define STEP {}\n",
        state.define("s", state),
        u8::from(is_adam),
        if is_adam { "Adam" } else { "Descent" },
    );
    dense::source(device, dtype, &definitions, include_str!("kernels/optim.cl"))
}

/// Returns the numbers of a step of Adam, computed in float64, and its flags.
fn adam(fields: &Fields<'_>) -> Result<(Vec<f64>, i32)> {
    let step = fields.int("step")? as f64;
    let [beta1, beta2] = [fields.float("beta1")?, fields.float("beta2")?];
    let [lr, decay] = [fields.float("lr")?, fields.float("weight_decay")?];
    let decoupled = fields.flag("decoupled")?;
    let mut flags = if decoupled || decay == 0.0 { 0 } else { DECAYS };
    flags |= if fields.flag("amsgrad")? { AMSGRAD } else { 0 };
    let numbers = vec![
        if fields.flag("maximize")? { -1.0 } else { 1.0 },
        decay,
        if decoupled { 1.0 - lr * decay } else { 1.0 },
        beta1,
        beta2,
        1.0 - beta1,
        1.0 - beta2,
        -lr / (1.0 - beta1.powf(step)),
        1.0 / (1.0 - beta2.powf(step)).sqrt(),
        fields.float("eps")?,
    ];
    Ok((numbers, flags))
}

/// The same of a step of gradient descent.
fn descent(fields: &Fields<'_>, has_buffer: bool) -> Result<(Vec<f64>, i32)> {
    let decay = fields.float("weight_decay")?;
    let mut flags = if decay == 0.0 { 0 } else { DECAYS };
    flags |= if has_buffer { MOMENTUM } else { 0 };
    flags |= if fields.int("step")? == 1 { FIRST } else { 0 };
    flags |= if fields.flag("nesterov")? { NESTEROV } else { 0 };
    let numbers = vec![
        if fields.flag("maximize")? { -1.0 } else { 1.0 },
        decay,
        -fields.float("lr")?,
        fields.float("momentum")?,
        1.0 - fields.float("dampening")?,
    ];
    Ok((numbers, flags))
}

/// Makes a step.
///
/// # Errors
/// The device's.
pub fn execute(on: On<'_>, call: &Execution<'_, Buffer>) -> Result<()> {
    let (device, stream) = on;
    let (fields, is_adam) = (call.fields(), call.name() == "adam");
    let (numbers, flags) = match is_adam {
        true => adam(&fields)?,
        false => descent(&fields, call.output_count() > 1)?,
    };
    let count = dense::numel(call.output(0)?.shape());
    if count == 0 {
        return Ok(());
    }
    let gradient = Dense::of(on, &call.input(0)?)?;
    // The kernels read the tensors that they write, too.
    let made: Vec<Dense> =
        call.outputs().map(|tensor| Dense::of(on, &tensor)).collect::<Result<_>>()?;
    let dtype = made[0].place.dtype;
    let state = made.get(1).map_or(dtype, |state| state.place.dtype);
    let key = [u8::from(is_adam), dtype as u8, state as u8, 0, 0, 0, 0, 0];
    let kernel =
        device.programs.kernel(("optim", key), || source(device, is_adam, dtype, state))?;
    let mut args = gradient.args().to_vec();
    // In the place of state that there isn't, any buffer will do.
    (0..4).for_each(|at| args.extend(made.get(at).unwrap_or(&made[0]).args()));
    let numbers = dense::reals(dtype, &numbers);
    args.extend([Arg::U64(count.cast_unsigned()), Arg::Bytes(&numbers), Arg::I32(flags)]);
    device.launch_items(&kernel, stream, &args, count.cast_unsigned())?;
    dense::finish(on, call, &made)
}
