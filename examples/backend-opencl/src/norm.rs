//! Normalizations, and the gradients of softmax: a group for each lane, or for neighbouring ones.

use keyfold_plugin::{Error, Execution, Fields, Result};

use crate::dense::{self, Dense, On, numel, words};
use crate::device::{Arg, Buffer};
use crate::types::Type;

/// The bits of the optional tensors that are there.
const WEIGHT: i64 = 1;
const BIAS: i64 = 2;
const RUNNING: i64 = 4;
const GRAD_INPUT: i64 = 8;
const GRAD_WEIGHT: i64 = 16;
const GRAD_BIAS: i64 = 32;

/// The bits of the kernels' argument `mode`: their differences from layer norm.
const RMS: i32 = 1;
const GIVEN: i32 = 2;
const LOGARITHM: i32 = 4;

/// The programs.
const NORMALIZE: u8 = 0;
const BACKWARD: u8 = 1;
const SUMS: u8 = 2;
const SOFTMAX: u8 = 3;

const NAMES: [&str; 12] = [
    "layer_norm",
    "layer_norm_backward",
    "rms_norm",
    "rms_norm_backward",
    "group_norm",
    "group_norm_backward",
    "batch_norm",
    "batch_norm_backward",
    "batch_norm_inference",
    "batch_norm_inference_backward",
    "softmax_backward",
    "log_softmax_backward",
];

/// Returns whether an operation has a kernel.
///
/// # Errors
/// Why it has none.
pub fn support(name: &str, inputs: &[Type], outputs: &[Type]) -> Result<()> {
    if !NAMES.contains(&name) {
        return Err(dense::unknown("norm", name));
    }
    dense::floats(name, &[inputs, outputs].concat())
}

/// The lanes of a call, as in the kernel's source.
struct Lanes {
    inner: i64,
    a: i64,
    b: i64,
    s: i64,
    p: i64,
    q: i64,
    lanes: i64,
    count: i64,
}

impl Lanes {
    /// Lanes one after another.
    fn rows(lanes: i64, count: i64) -> Lanes {
        Lanes { inner: 1, a: count, b: 0, s: count.max(1), p: 0, q: 1, lanes, count }
    }

    /// Those along the middle one of three dimensions.
    fn columns([outer, count, inner]: [i64; 3]) -> Lanes {
        let lanes = outer * inner;
        Lanes { inner, a: count * inner, b: 1, s: 1, p: inner, q: 0, lanes, count }
    }

    /// Those of the channels of a tensor of examples, channels and places.
    fn channels([examples, channels, places]: [i64; 3]) -> Lanes {
        let (inner, p, count) = (channels, channels * places, examples * places);
        Lanes { inner, a: 0, b: places, s: places, p, q: 1, lanes: channels, count }
    }

    /// The lanes that a group computes: neighbours if their elements lie side by side.
    fn together(&self, group: usize) -> u32 {
        match self.b == 1 && self.lanes > 1 {
            true => group.min(16) as u32,
            false => 1,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        words(&[self.inner, self.a, self.b, self.s, self.p, self.q, self.lanes, self.count])
    }
}

/// How weights and statistics belong to lanes, as in the kernel's source.
struct Others {
    channels: i64,
    first: i64,
    each: i64,
    row: i64,
}

impl Others {
    fn bytes(&self) -> Vec<u8> {
        words(&[self.channels, self.first, self.each, self.row])
    }
}

/// The lanes that a call normalizes, and those of the sums for a weight, each with the others.
fn lanes_of(call: &Execution<'_, Buffer>, fields: &Fields<'_>) -> Result<[(Lanes, Others); 2]> {
    let x = call.input(usize::from(call.name().ends_with("_backward")))?;
    let shape = x.shape();
    if call.name().starts_with("layer") || call.name().starts_with("rms") {
        let dims = fields.int("dims")?.cast_unsigned() as usize;
        let (outer, inner) = shape.split_at(shape.len() - dims);
        let (lanes, count) = (numel(outer), numel(inner));
        let of_x = Others { channels: 1, first: 0, each: 1, row: 0 };
        let of_weight = Others { channels: count, first: 0, each: 1, row: 1 };
        let sums = Lanes::columns([1, lanes, count]);
        return Ok([(Lanes::rows(lanes, count), of_x), (sums, of_weight)]);
    }
    let [examples, channels, places @ ..] = shape else {
        return Err(Error::value(format!("{} has examples and channels", call.name())));
    };
    let (examples, channels, places) = (*examples, *channels, numel(places));
    let sums = Lanes::channels([examples, channels, places]);
    if call.name().starts_with("group") {
        let groups = fields.int("groups")?;
        let each = channels / groups;
        let lanes = Lanes::rows(examples * groups, each * places);
        let of_x = Others { channels: groups, first: each, each: places, row: 0 };
        let of_weight = Others { channels: each, first: 0, each: 1, row: groups };
        return Ok([(lanes, of_x), (sums, of_weight)]);
    }
    let count = examples * places;
    let of_x = Others { channels, first: 1, each: count, row: 0 };
    let of_weight = Others { channels: 1, first: 0, each: 1, row: 0 };
    Ok([(Lanes::channels([examples, channels, places]), of_x), (sums, of_weight)])
}

/// Queues a program over lanes; the arguments end with the lanes and what follows them.
fn run(
    (device, stream): On<'_>,
    (form, dtype): (u8, Type),
    tensors: &[Arg<'_>],
    (lanes, others): (&Lanes, Option<&Others>),
    (mode, numbers): (i32, &[f64]),
) -> Result<()> {
    if lanes.lanes == 0 {
        return Ok(());
    }
    let key = [form, dtype as u8, 0, 0, 0, 0, 0, 0];
    let kernel = device.programs.kernel(("norm", key), || {
        let form = format!("#define FORM {form}\n");
        dense::source(device, dtype, &form, include_str!("kernels/norm.cl"))
    })?;
    let columns = lanes.together(device.group);
    let (bytes, of) = (lanes.bytes(), others.map(Others::bytes));
    let numbers: Vec<Vec<u8>> = numbers.iter().map(|x| dense::reals(dtype, &[*x])).collect();
    let mut args = tensors.to_vec();
    args.push(Arg::Bytes(&bytes));
    args.extend(of.as_deref().map(Arg::Bytes));
    args.extend([Arg::I32(columns.cast_signed()), Arg::I32(mode)]);
    args.extend(numbers.iter().map(|bytes| Arg::Bytes(bytes)));
    let groups = lanes.lanes.cast_unsigned().div_ceil(columns.into());
    device.launch(&kernel, stream, &args, [groups as usize, 1, 1], [device.group, 1, 1])
}

/// The gradient of softmax.
fn softmax(on: On<'_>, call: &Execution<'_, Buffer>) -> Result<()> {
    let given = dense::inputs(on, call)?;
    let made = dense::outputs(on, call)?;
    let output = call.output(0)?;
    let (shape, axis) = (output.shape(), call.fields().int("axis")?.cast_unsigned() as usize);
    let lanes = match shape {
        [] => Lanes::rows(1, 1),
        _ => {
            let (outer, rest) = shape.split_at(axis);
            Lanes::columns([numel(outer), rest[0], numel(&rest[1..])])
        }
    };
    let mode = if call.name().starts_with("log") { LOGARITHM } else { 0 };
    let [[pr, ar], [pg, ag], [ps, as_]] = [made[0].args(), given[0].args(), given[1].args()];
    let [tg, ts] = [&given[0], &given[1]].map(|of| Arg::I32(of.place.dtype as i32));
    let args = [pr, ar, pg, ag, tg, ps, as_, ts];
    run(on, (SOFTMAX, made[0].place.dtype), &args, (&lanes, None), (mode, &[]))?;
    dense::finish(on, call, &made)
}

/// Runs an operation.
///
/// # Errors
/// The device's.
pub fn execute(on: On<'_>, call: &Execution<'_, Buffer>) -> Result<()> {
    let name = call.name();
    if name.ends_with("softmax_backward") {
        return softmax(on, call);
    }
    let fields = call.fields();
    let (tensors, eps) = (fields.int("tensors")?, fields.float("eps")?);
    let has = |bit: i64| tensors & bit != 0;
    let is_backward = name.ends_with("_backward");
    let is_given = name.starts_with("batch_norm_inference");
    let is_rms = name.starts_with("rms");
    let mode = if is_rms { RMS } else { 0 } | if is_given { GIVEN } else { 0 };
    let [(lanes, of_x), (sums, of_weight)] = lanes_of(call, &fields)?;
    let (given, made) = (dense::inputs(on, call)?, dense::outputs(on, call)?);
    let dtype = given[usize::from(is_backward)].place.dtype;
    let first = given[0].args();
    // A tensor that isn't there has the type 0.
    let absent = [first[0], first[1], Arg::I32(0)];
    let (mut inputs, mut outputs) = (given.iter(), made.iter());
    let input = |is_there: bool, all: &mut std::slice::Iter<'_, Dense>| match is_there {
        true => all.next().map_or(absent, Dense::any),
        false => absent,
    };
    if is_backward {
        let [g, x] = [inputs.next(), inputs.next()].map(|of| of.map_or(first, Dense::args));
        let mean = input(!is_rms, &mut inputs);
        let rstd = input(true, &mut inputs);
        let weight = input(has(WEIGHT), &mut inputs);
        let statistics = [mean, rstd].concat();
        if has(GRAD_INPUT) {
            let dx = outputs.next().map_or(first, Dense::args);
            let args = [dx.as_slice(), &g, &x, &statistics, &weight].concat();
            let of = (&lanes, Some(&of_x));
            run(on, (BACKWARD, dtype), &args, of, (mode, &[eps]))?;
        }
        let dweight = input(has(GRAD_WEIGHT), &mut outputs);
        let dbias = input(has(GRAD_BIAS), &mut outputs);
        if has(GRAD_WEIGHT) || has(GRAD_BIAS) {
            let args = [dweight.as_slice(), &dbias, &g, &x, &statistics].concat();
            let of = (&sums, Some(&of_weight));
            run(on, (SUMS, dtype), &args, of, (mode, &[eps]))?;
        }
        return dense::finish(on, call, &made);
    }
    let x = inputs.next().map_or(first, Dense::args);
    let y = outputs.next().map_or(first, Dense::args);
    let [mut mean, mut rstd] = [absent; 2];
    if is_given {
        mean = input(true, &mut inputs);
        rstd = input(true, &mut inputs);
    }
    let weight = input(has(WEIGHT), &mut inputs);
    let bias = input(has(BIAS), &mut inputs);
    let old = [0, 1].map(|_| input(has(RUNNING), &mut inputs));
    if !is_given {
        mean = input(!is_rms, &mut outputs);
        rstd = input(true, &mut outputs);
    }
    let new = [0, 1].map(|_| input(has(RUNNING), &mut outputs));
    let others = [mean, rstd, weight, bias, old[0], old[1], new[0], new[1]].concat();
    let args = [y.as_slice(), &x, &others].concat();
    let numbers = [eps, fields.float("momentum")?];
    run(on, (NORMALIZE, dtype), &args, (&lanes, Some(&of_x)), (mode, &numbers))?;
    dense::finish(on, call, &made)
}
