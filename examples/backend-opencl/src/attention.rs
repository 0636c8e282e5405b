//! Scaled-dot-product attention and its gradients: a group for each row of a result.

use keyfold_plugin::{Error, Execution, Result};

use crate::dense::{self, Dense, On, numel, words};
use crate::device::{Arg, Buffer};
use crate::layout::Loop;
use crate::types::Type;

/// The programs: the result, the gradient of a query, those of a key and its value.
const FORWARD: u8 = 0;
const QUERY: u8 = 1;
const KEY: u8 = 2;

/// Returns whether an operation has a kernel.
///
/// # Errors
/// Why it has none.
pub fn support(name: &str, inputs: &[Type], outputs: &[Type]) -> Result<()> {
    if !matches!(name, "forward" | "backward") {
        return Err(dense::unknown("attention", name));
    }
    let dtype = outputs[0];
    dense::floats(name, &[dtype])?;
    // The logarithms are the last of either, and a mask may be of bools.
    let lists = if name == "forward" { (outputs, inputs) } else { (inputs, outputs) };
    let (sums, mut rest) = match lists.0.split_last() {
        Some((sums, rest)) => (*sums, rest.iter().chain(lists.1)),
        None => return Err(dense::unknown("attention", name)),
    };
    let fits = (sums == dtype || sums == Type::F32 && dtype != Type::F64)
        && rest.all(|other| [dtype, Type::Bool].contains(other));
    match fits {
        true => Ok(()),
        false => Err(Error::not_supported(format!("its {name} of {inputs:?} isn't {outputs:?}"))),
    }
}

/// Runs attention, or its backward.
///
/// # Errors
/// The device's.
pub fn execute(on: On<'_>, call: &Execution<'_, Buffer>) -> Result<()> {
    let (device, stream) = on;
    let fields = call.fields();
    let is_backward = call.name() == "backward";
    let (first, has_mask) = (usize::from(is_backward), fields.flag("has_mask")?);
    let output = call.output(0)?;
    let leading = &output.shape()[..output.shape().len() - 2];
    let given = |at: usize| call.input(first + at);
    let (query, key, value) = (given(0)?, given(1)?, given(2)?);
    let last = |shape: &[i64], from_end: usize| shape[shape.len() - from_end];
    let (l, e) = (last(query.shape(), 2), last(query.shape(), 1));
    let (s, v) = (last(key.shape(), 2), last(value.shape(), 1));
    let whole = |rows: i64, columns: i64| [leading, &[rows, columns]].concat();
    let [q, k, w] = [(&query, l, e), (&key, s, e), (&value, s, v)]
        .map(|(tensor, rows, columns)| Dense::broadcast(on, tensor, &whole(rows, columns)));
    let (q, k, w) = (q?, k?, w?);
    let dtype = q.place.dtype;
    let mask = if has_mask { Some(given(3)?) } else { None };
    // A mask's own steps; those of the dimensions that it lacks or repeats are 0.
    let step = |dim: usize| {
        let mask = mask.as_ref()?;
        let own = (dim + mask.shape().len()).checked_sub(leading.len() + 2)?;
        (mask.shape()[own] != 1).then(|| mask.strides()[own])
    };
    let mut batches = Loop::<1>::new();
    for (dim, size) in leading.iter().enumerate() {
        batches.push(*size, [step(dim).unwrap_or(0)])?;
    }
    let (rank, mut over) = (batches.kernel_rank(), Vec::new());
    batches.write_first(1, &mut over);
    let steps = [0, 1].map(|dim| step(leading.len() + dim).unwrap_or(0));
    let is_bool = mask.as_ref().is_some_and(|mask| mask.element_size() == 1);
    let kind = if has_mask { 2 - i64::from(is_bool) } else { 0 };
    let is_causal = fields.int("is_causal")?;
    let sizes = words(&[l, s, e, v, steps[0], steps[1], kind, is_causal]);
    let scale = dense::reals(dtype, &[fields.float("scale")?]);
    let place = match &mask {
        Some(mask) => crate::tensor::Place::of(mask)?,
        None => q.place,
    };
    let mut shared = [q.args(), k.args(), w.args(), place.args()].concat();
    shared.extend([&over, &sizes, &scale].map(|bytes| Arg::Bytes(bytes)));
    let made = dense::outputs(on, call)?;
    let run = |form: u8, own: &[&Dense], sums: Type, rows: i64| {
        let groups = (numel(leading) * rows).cast_unsigned() as usize;
        if groups == 0 {
            return Ok(());
        }
        let key = [form, dtype as u8, sums as u8, rank as u8, 0, 0, 0, 0];
        let kernel = device.programs.kernel(("attention", key), || {
            let sums = sums.define("s", sums);
            let definitions = format!("#define FORM {form}\n#define RANK {rank}\n{sums}");
            dense::source(device, dtype, &definitions, include_str!("kernels/attention.cl"))
        })?;
        let mut args: Vec<Arg<'_>> = own.iter().flat_map(|tensor| tensor.args()).collect();
        args.extend_from_slice(&shared);
        device.launch(&kernel, stream, &args, [groups, 1, 1], [device.group, 1, 1])
    };
    if is_backward {
        let [gradient, result, sums] =
            [call.input(0)?, given(3 + usize::from(has_mask))?, given(4 + usize::from(has_mask))?]
                .map(|tensor| Dense::of(on, &tensor));
        let (gradient, result, sums) = (gradient?, result?, sums?);
        let of = sums.place.dtype;
        run(QUERY, &[&made[0], &gradient, &result, &sums], of, l)?;
        run(KEY, &[&made[1], &made[2], &gradient, &result, &sums], of, s)?;
    } else {
        run(FORWARD, &[&made[0], &made[1]], made[1].place.dtype, l)?;
    }
    dense::finish(on, call, &made)
}
