//! Reductions along dimensions: a work-item for each lane, or a tree of groups for few long ones.

use keyfold_plugin::{Error, Execution, Params, Result};

use crate::device::{Arg, Buffer, Device};
use crate::layout::Loop;
use crate::stream::Stream;
use crate::tensor::Place;
use crate::types::Type::{self, Bool, F32, F64, I64, U64};
use crate::types::prelude;

/// The operations, by the number that they have in the kernel's source, less 1.
const NAMES: [&str; 8] = ["sum", "mean", "max", "min", "argmax", "argmin", "all", "any"];

/// The bytes of a part of a lane, at most.
const PART: u64 = 16;

fn number(name: &str) -> Option<u8> {
    (1..).zip(NAMES).find(|(_, known)| *known == name).map(|(number, _)| number)
}

/// Returns whether a reduction has a kernel.
///
/// # Errors
/// Why it has none.
pub fn support(name: &str, input: Type, output: Type) -> Result<()> {
    let fits = match name {
        "sum" => output != Bool,
        "mean" => output.is_float(),
        "max" | "min" => input == output,
        "argmax" | "argmin" => output == I64,
        "all" | "any" => output == Bool,
        _ => return Err(Error::not_supported(format!("it has no reduction {name}"))),
    };
    if fits {
        return Ok(());
    }
    Err(Error::not_supported(format!("its {name} of {input:?} isn't {output:?}")))
}

/// Returns the type that sums to an output are computed in.
fn sum_type(output: Type) -> Type {
    match output {
        F64 => F64,
        float if float.is_float() => F32,
        U64 => U64,
        _ => I64,
    }
}

fn source(
    device: &Device,
    op: u8,
    (input, output): (Type, Type),
    form: u8,
    ranks: [usize; 2],
) -> String {
    let sum = sum_type(output);
    let add = if sum.is_float() { sum.computed() } else { "ulong" };
    let from = if sum == F64 { F64 } else { F32 };
    let (x, r) = (input.define("x", input), output.define("r", from));
    format!(
        "{}{x}{r}#define OP {op}\n#define FORM {form}\n#define KEPT {}\n#define REDUCED {}\n\
         #define IS_FLOAT {}\n#define ACC {}\n#define ADD {add}\n#define TO_ACC(x) {}\n\
         #define FROM_ACC(v) {}\n{}",
        prelude(device.float64),
        ranks[0],
        ranks[1],
        u8::from(input.is_float()),
        sum.computed(),
        // Floats are converted to the output's own width, where they saturate.
        if sum.is_float() || !input.is_float() {
            sum.convert(input, "x")
        } else {
            format!("(({}){})", sum.computed(), output.convert(input, "x"))
        },
        output.convert(sum, "(v)"),
        include_str!("kernels/reduce.cl")
    )
}

/// Runs a reduction.
///
/// # Errors
/// The device's.
pub fn execute(device: &Device, stream: &Stream, call: &Execution<'_, Buffer>) -> Result<()> {
    let (input, output) = (call.input(0)?, call.output(0)?);
    let (Some(op), Params::Reduce { dims, keepdim }) = (number(call.name()), call.params()) else {
        return Err(Error::not_supported(format!("it has no reduction {}", call.name())));
    };
    let (mut kept, mut reduced) = (Loop::<2>::new(), Loop::<1>::new());
    let mut at = 0;
    for (dim, (size, step)) in input.shape().iter().zip(input.strides()).enumerate() {
        let is_reduced = dims >> dim & 1 == 1;
        if is_reduced {
            reduced.push(*size, [*step])?;
        } else {
            kept.push(*size, [*step, output.strides()[at]])?;
        }
        at += usize::from(!is_reduced || keepdim);
    }
    let (lanes, count) = (kept.numel(), reduced.numel());
    if lanes == 0 {
        return Ok(());
    }
    let (x, r) = (Place::of(&input)?, Place::of(&output)?);
    let ranks = [kept.kernel_rank(), reduced.kernel_rank()];
    let kernel = |form: u8| {
        let key = [op, x.dtype as u8, r.dtype as u8, form, ranks[0] as u8, ranks[1] as u8, 0, 0];
        let make = || source(device, op, (x.dtype, r.dtype), form, ranks);
        device.programs.kernel(("reduce", key), make)
    };
    let (mut kept_bytes, mut reduced_bytes) = (Vec::new(), Vec::new());
    kept.write_first(2, &mut kept_bytes);
    reduced.write_first(1, &mut reduced_bytes);
    let (kept, reduced) = (Arg::Bytes(&kept_bytes), Arg::Bytes(&reduced_bytes));
    let [px, ax] = x.args();
    let [pr, ar] = r.args();
    let group = device.group as u64;
    if lanes >= 64 * group || count <= 2 * group {
        let args = [pr, ar, px, ax, kept, reduced, Arg::U64(lanes), Arg::U64(count)];
        return device.launch_items(&*kernel(0)?, stream, &args, lanes);
    }
    // Enough groups for every unit of a device, each with at least 16 elements a work-item.
    let stretches = (1024 / lanes).clamp(1, count.div_ceil(16 * group));
    let parts = device.allocate((lanes * stretches * PART) as usize)?;
    let given = Arg::Buffer(parts.handle);
    let args = [given, px, ax, kept, reduced, Arg::U64(stretches), Arg::U64(count)];
    let groups = [(lanes * stretches) as usize, 1, 1];
    device.launch(&*kernel(1)?, stream, &args, groups, [device.group, 1, 1])?;
    let args = [pr, ar, given, kept, Arg::U64(stretches), Arg::U64(lanes), Arg::U64(count)];
    device.launch_items(&*kernel(2)?, stream, &args, lanes)
}
