//! Reductions along dimensions, in stretches of lanes.

use keyfold_plugin::{Error, Execution, Params, Result};

use crate::device::{Arg, Buffer, Device};
use crate::layout::{Cut, Loop, MAX_RANK};
use crate::stream::Stream;
use crate::tensor::Place;
use crate::types::Type::{self, BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
use crate::types::prelude;

/// The operations, by the number that they have in the kernel's source, less 1.
const NAMES: [&str; 9] =
    ["sum", "mean", "max", "min", "argmax", "argmin", "all", "any", "has_inf_nan"];

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
        "all" | "any" | "has_inf_nan" => output == Bool,
        _ => return Err(Error::not_supported(format!("it has no reduction {name}"))),
    };
    if fits {
        return Ok(());
    }
    Err(Error::not_supported(format!("its {name} of {input:?} isn't {output:?}")))
}

/// Returns the type that sums to an output are computed in. Integers wrap, so they are added as
/// unsigned ones.
pub fn sum_type(output: Type) -> Type {
    match output {
        F64 => F64,
        float if float.is_float() => F32,
        _ => U64,
    }
}

/// Returns the definitions that a sum or a mean has of its own.
fn sums(input: Type, output: Type) -> String {
    let sum = sum_type(output);
    let number = sum.computed();
    let to = if sum.is_float() {
        format!("TO_ACCV(x) VECTOR(convert_{number})(x)")
    } else if !input.is_float() {
        "TO_ACCV(x) VECTOR(as_ulong)(VECTOR(convert_long)(x))".to_owned()
    } else {
        // Floats are converted to the output's own width, where they saturate.
        format!("TO_ACC(x) (({number}){})", output.convert(input, "x"))
    };
    let from = output.convert(sum, "(v)");
    format!("#define ACC {number}\n#define {to}\n#define FROM_ACC(v) {from}\n")
}

/// Returns the definitions that an extreme has of its own.
fn extremes(least: bool, input: Type) -> String {
    let identity = match (input, least) {
        (F16 | BF16 | F32 | F64, true) => "INFINITY",
        (F16 | BF16 | F32 | F64, false) => "(-INFINITY)",
        (I8, true) => "CHAR_MAX",
        (I8, false) => "CHAR_MIN",
        (I16, true) => "SHRT_MAX",
        (I16, false) => "SHRT_MIN",
        (I32, true) => "INT_MAX",
        (I32, false) => "INT_MIN",
        (I64, true) => "LONG_MAX",
        (I64, false) => "LONG_MIN",
        (Bool | U8, true) => "UCHAR_MAX",
        (U16, true) => "USHRT_MAX",
        (U32, true) => "UINT_MAX",
        (U64, true) => "ULONG_MAX",
        (Bool | U8 | U16 | U32 | U64, false) => "0",
    };
    format!(
        "#define ACC {}\n#define TO_ACCV(x) (x)\n#define IDENTITY {identity}\n",
        input.computed()
    )
}

/// Returns the definitions that `all`, `any` and `has_inf_nan` have of their own.
fn truths(name: &str, input: Type) -> String {
    let mask = match input {
        Bool | I8 | U8 => "char",
        I16 | U16 => "short",
        I32 | U32 | F16 | BF16 | F32 => "int",
        I64 | U64 | F64 => "long",
    };
    let truth = match name {
        "has_inf_nan" if input.is_float() => "(~isfinite(x))",
        "has_inf_nan" => "((x) != (x))",
        _ => "((x) != (CV_x)(0))",
    };
    format!("#define ACC {mask}\n#define TO_ACCV(x) {truth}\n")
}

fn source(device: &Device, op: u8, input: Type, output: Type) -> String {
    let from = if sum_type(output) == F64 { F64 } else { F32 };
    let own = match NAMES[usize::from(op) - 1] {
        "sum" | "mean" => sums(input, output),
        name @ ("all" | "any" | "has_inf_nan") => truths(name, input),
        name => extremes(name.ends_with("min"), input),
    };
    format!(
        "{}{}{}#define OP {op}\n#define DIMS {MAX_RANK}\n#define IS_FLOAT {}\n{own}\
         typedef VECTOR(ACC) ACCV;\n{}",
        prelude(device.float64),
        input.define("x", input),
        output.define("r", from),
        u8::from(input.is_float()),
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
    let kernel = device
        .programs
        .kernel(("reduce", [op, x.dtype as u8, r.dtype as u8, 0, 0, 0, 0, 0]), || {
            source(device, op, x.dtype, r.dtype)
        })?;
    let cut = Cut::new(device, &kept, (count, reduced.innermost(0).1));
    let parts = match cut.stretches {
        1 => None,
        stretches => Some(device.allocate((lanes * stretches * PART) as usize)?),
    };
    let ([px, ax], [pr, ar]) = (x.args(), r.args());
    // Where no parts are written, any buffer will do.
    let parts = parts.as_ref().map_or(pr, |parts| Arg::Buffer(parts.handle));
    let (kept, reduced) = (kept.ranked_bytes(), reduced.ranked_bytes());
    let run = |mode: i32, units: u64, items: u64| {
        let sizes = [lanes, count, cut.stretches, cut.inner].map(Arg::U64);
        let args = [pr, ar, px, ax, parts, Arg::Bytes(&kept), Arg::Bytes(&reduced)];
        let args = [args.as_slice(), &sizes, &[Arg::I32(mode)]].concat();
        device.launch_items(&kernel, stream, &args, units * items)
    };
    run(cut.across.into(), cut.units, device.items as u64)?;
    match cut.stretches {
        1 => Ok(()),
        _ => run(2, lanes, 1),
    }
}
