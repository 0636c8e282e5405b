//! Pooling over windows: a work-item for each element of the result.

use keyfold_plugin::{Error, Execution, Result};

use crate::dense::{self, Dense, On, numel, words};
use crate::device::{Arg, Buffer, Device};
use crate::types::{Type, prelude};

/// The programs, as in their source.
const MAXIMUM: u8 = 0;
const MAXIMUM_BACKWARD: u8 = 1;
const STRAYS: u8 = 2;
const AVERAGE: u8 = 3;
const AVERAGE_BACKWARD: u8 = 4;

fn form(name: &str) -> Option<u8> {
    Some(match name {
        "max" => MAXIMUM,
        "max_backward" => MAXIMUM_BACKWARD,
        "average" | "adaptive_average" => AVERAGE,
        "average_backward" | "adaptive_average_backward" => AVERAGE_BACKWARD,
        _ => return None,
    })
}

/// Returns whether an operation has a kernel.
///
/// # Errors
/// Why it has none.
pub fn support(name: &str, inputs: &[Type], outputs: &[Type]) -> Result<()> {
    let first = inputs[..1].to_vec();
    let fits = match form(name).ok_or_else(|| dense::unknown("pool", name))? {
        MAXIMUM => outputs == [first[0], Type::I64] && first[0] != Type::Bool,
        MAXIMUM_BACKWARD => {
            dense::floats(name, &first)?;
            inputs == [first[0], Type::I64] && outputs == first
        }
        _ => {
            dense::floats(name, &first)?;
            outputs == first
        }
    };
    match fits {
        true => Ok(()),
        false => Err(Error::not_supported(format!("its {name} of {inputs:?} isn't {outputs:?}"))),
    }
}

fn source(device: &Device, form: u8, dtype: Type) -> String {
    let form = format!("#define FORM {form}\n");
    let body = include_str!("kernels/pool.cl");
    if dtype.is_float() {
        return dense::source(device, dtype, &form, body);
    }
    // Only the greatest of integers are found, which nothing is divided for.
    let (prelude, x) = (prelude(device.float64), dtype.define("x", dtype));
    format!("{prelude}{x}#define ACC float\n{form}{body}")
}

/// Numbers of up to three dimensions, behind those of the dimensions that there aren't.
fn three(numbers: &[i64], dims: usize, lacking: i64) -> [i64; 3] {
    let mut all = [lacking; 3];
    all[3 - dims..].copy_from_slice(&numbers[..dims]);
    all
}

/// Runs an operation.
///
/// # Errors
/// The device's.
pub fn execute(on: On<'_>, call: &Execution<'_, Buffer>) -> Result<()> {
    let (device, stream) = on;
    let (fields, name) = (call.fields(), call.name());
    let Some(form) = form(name) else { return Err(dense::unknown("pool", name)) };
    let (first, result) = (call.input(0)?, call.output(0)?);
    let dims = fields.int("dims")?.cast_unsigned() as usize;
    let count = numel(result.shape()).cast_unsigned();
    if count == 0 {
        return Ok(());
    }
    let is_backward = matches!(form, MAXIMUM_BACKWARD | AVERAGE_BACKWARD);
    let (x, y) = if is_backward { (result, first) } else { (first, result) };
    let last = |shape: &[i64]| three(&shape[shape.len() - dims..], dims, 1);
    let (sizes, windows) = (last(x.shape()), last(y.shape()));
    let is_adaptive = name.starts_with("adaptive");
    let list = |name: &str, lacking: i64| match is_adaptive {
        true => Ok([1; 3]),
        false => fields.ints(name).map(|numbers| three(numbers, dims, lacking)),
    };
    let is_max = matches!(form, MAXIMUM | MAXIMUM_BACKWARD);
    let dilation = if is_max { list("dilation", 1)? } else { [1; 3] };
    let [kernel, stride, padding] = [list("kernel", 1)?, list("stride", 1)?, list("padding", 0)?];
    let (divisor, padded) = match is_adaptive || is_max {
        true => (0, 0),
        false => (fields.int("divisor")?, fields.int("count_include_pad")?),
    };
    let (in_plane, out_plane) = (numel(&sizes), numel(&windows));
    let lists = [sizes, windows, kernel, stride, padding, dilation].concat();
    let rest = [divisor, padded, is_adaptive.into(), in_plane, out_plane];
    let windows = words(&[lists.as_slice(), &rest].concat());
    let (given, made) = (dense::inputs(on, call)?, dense::outputs(on, call)?);
    let dtype = made[0].place.dtype;
    let kernel = |form: u8| {
        let key = [form, dtype as u8, 0, 0, 0, 0, 0, 0];
        device.programs.kernel(("pool", key), || source(device, form, dtype))
    };
    let mut args: Vec<Arg<'_>> = made.iter().chain(&given).flat_map(Dense::args).collect();
    args.extend([Arg::Bytes(&windows), Arg::U64(count)]);
    device.launch_items(&*kernel(form)?, stream, &args, count)?;
    if form == MAXIMUM_BACKWARD && numel(first.shape()) > 0 {
        let expected = stream.expect("max_backward", call.operator())?;
        args.extend([Arg::Buffer(stream.records), Arg::I32(expected.record)]);
        let planes = count as usize / in_plane.cast_unsigned() as usize;
        device.launch(&*kernel(STRAYS)?, stream, &args, [planes, 1, 1], [device.group, 1, 1])?;
    }
    dense::finish(on, call, &made)
}
