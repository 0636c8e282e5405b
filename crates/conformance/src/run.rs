//! Runs one case on a device and compares what it did with what it should.

use std::sync::Arc;

use keyfold_backend::{GpuBackend, fallback_of};
use keyfold_core::{Device, Error, ErrorKind, Result};
use keyfold_dispatch::schema::{Argument, Return};
use keyfold_dispatch::{Dispatcher, Value as _};
use keyfold_ops::Row;
use keyfold_tensor::device::{MemoryRef, memory_of, random};
use keyfold_tensor::{Tensor, Value, ValueRef, dispatcher};

use crate::array::{Arg, Array, Layout, Operand};
use crate::block::{Block, byte_offsets};
use crate::case::{Plan, Way};
use crate::model::{Expected, Given, property};
use crate::number::{Number, decode};
use crate::report::Symptom;

/// The device under test.
pub(crate) struct Target {
    /// The device.
    pub(crate) device: Device,
    /// Its memory.
    pub(crate) memory: MemoryRef<'static>,
    /// Its backend.
    pub(crate) backend: Arc<dyn GpuBackend>,
    /// The dispatcher that calls go to, if it isn't the process's.
    pub(crate) dispatcher: Option<Dispatcher<Value>>,
}

impl Target {
    /// # Errors
    /// [`ErrorKind::Device`] for a device without memory or without a backend, or one that falls
    /// back to another, whose results would pass for its own.
    pub(crate) fn new(device: Device) -> Result<Target> {
        let memory = memory_of(device)?;
        let backend = keyfold_backend::backend(device).ok_or_else(|| {
            let message = format!("{device} has no backend to test; register one first");
            Error::new(ErrorKind::Device, message)
        })?;
        if let Some(to) = fallback_of(device.kind()) {
            let message = format!(
                "operators of {0} may fall back to {to}, which would hide what {0} lacks; revoke it \
                 by allow_fallback",
                device.kind()
            );
            return Err(Error::new(ErrorKind::Device, message));
        }
        Ok(Target { device, memory, backend, dispatcher: None })
    }
}

/// A case's fault.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// The kind.
    pub(crate) symptom: Symptom,
    /// The sentence.
    pub(crate) message: String,
    /// The wrong elements, as positions in row-major order.
    pub(crate) wrong: Vec<usize>,
}

impl Fault {
    pub(crate) fn new(symptom: Symptom, message: impl Into<String>) -> Fault {
        Fault { symptom, message: message.into(), wrong: Vec::new() }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        let message = format!("{}: {}", error.kind().name(), error.message());
        Fault::new(Symptom::CallFailed, message)
    }
}

/// The outcome of a case.
pub(crate) enum Outcome {
    /// All is right.
    Passed,
    /// The operator takes no such arguments.
    NothingRan,
    /// The backend doesn't offer it, for this reason.
    Lacking(String),
    /// Something is wrong.
    Failed(Fault),
}

impl Outcome {
    /// Returns the outcome of a call that is an error.
    pub(crate) fn of_error(error: Error, backend: &dyn GpuBackend) -> Outcome {
        match refusal(&error, backend) {
            Some(reason) => Outcome::Lacking(reason),
            None => Outcome::Failed(error.into()),
        }
    }
}

/// A result of a call, and the bytes that it left.
pub(crate) struct CallResult {
    /// The result's elements; none where there is no tensor.
    pub(crate) got: Vec<Number>,
    /// The elements of `out` that still have the bytes from before.
    pub(crate) untouched: Vec<bool>,
}

/// Returns the reason of an error that says that the backend doesn't offer an operation.
pub(crate) fn refusal(error: &Error, backend: &dyn GpuBackend) -> Option<String> {
    let says = format!("isn't supported by backend '{}': ", backend.name());
    let (_, reason) = error.message().split_once(&says)?;
    let reason = reason.rsplit_once("; ").map_or(reason, |(reason, _)| reason);
    (error.kind() == ErrorKind::NotSupported).then(|| reason.to_owned())
}

/// Runs a case and compares its result. New memory has no guard bytes, so a call that passes there is
/// repeated into a contiguous `out`, which a kernel can't tell from it.
pub(crate) fn run(target: &Target, row: &Row, plan: &Plan) -> Outcome {
    let outcome = run_once(target, row, plan);
    if !matches!(outcome, Outcome::Passed) || plan.way != Way::Fresh || row.out_schema().is_none() {
        return outcome;
    }
    run_once(target, row, &Plan { way: Way::Out(Layout::Contiguous), ..plan.clone() })
}

fn run_once(target: &Target, row: &Row, plan: &Plan) -> Outcome {
    match execute(target, row, plan, 0) {
        Ok(Ok(done)) => match compare(row, plan, &done) {
            None => Outcome::Passed,
            Some(fault) => Outcome::Failed(fault),
        },
        Ok(Err(fault)) => Outcome::Failed(fault),
        Err(error) => Outcome::of_error(error, &*target.backend),
    }
}

/// Compares the elements of the results, and what they have in common with the arguments.
pub(crate) fn compare(row: &Row, plan: &Plan, done: &[CallResult]) -> Option<Fault> {
    let wrong = |(at, (expected, done)): (usize, (&Expected, &CallResult))| {
        let of = if plan.expected.len() > 1 { format!(" of result {at}") } else { String::new() };
        wrong_elements(expected, done, &of)
    };
    if let Some(fault) = plan.expected.iter().zip(done).enumerate().find_map(wrong) {
        return Some(fault);
    }
    let holds = property(row)?;
    let array = |(expected, done): (&Expected, &CallResult)| Array {
        items: done.got.clone(),
        dtype: expected.array.dtype,
        shape: expected.array.shape.clone(),
    };
    let results: Vec<Array> = plan.expected.iter().zip(done).map(array).collect();
    let mistake = holds(&Given::new(&plan.args, plan.state), &results).err()?;
    Some(Fault::new(Symptom::WrongValue, mistake))
}

/// Compares the elements of a result, which a message calls so.
fn wrong_elements(expected: &Expected, done: &CallResult, name: &str) -> Option<Fault> {
    let wrong: Vec<usize> =
        (0..done.got.len()).filter(|at| !expected.accepts(*at, done.got[*at])).collect();
    let first = *wrong.first()?;
    let wanted = expected.array.items[first];
    let got = done.got[first];
    let symptom = match wanted.is_nan() && !got.is_nan() {
        true => Symptom::NanDropped,
        false => Symptom::WrongValue,
    };
    let index = index_of(first, &expected.array.shape);
    let allowed = match expected.tolerance(first) {
        0.0 => "exactly".to_owned(),
        tolerance => format!("within {tolerance:.3e}"),
    };
    let message = format!(
        "{} of {} elements{name} are wrong; the first is {index:?}: expected {} {allowed}, got {}",
        wrong.len(),
        done.got.len(),
        wanted.cast(expected.array.dtype).scalar(),
        got.scalar(),
    );
    Some(Fault { symptom, message, wrong })
}

/// Returns the index of a position in row-major order.
pub(crate) fn index_of(mut place: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (i, size) in index.iter_mut().zip(shape).rev() {
        *i = place % size;
        place /= size;
    }
    index
}

/// The tensors of a call on the device.
struct DeviceArgs {
    blocks: Vec<Block>,
    values: Vec<Value>,
    /// The blocks that the call writes to.
    written: Vec<usize>,
    /// The tensors that the call writes to and doesn't return.
    only_written: Vec<Tensor>,
}

/// Places the arguments; equal tensors of an aliased call share a block.
fn place(target: &Target, row: &Row, plan: &Plan, pattern: u8) -> Result<DeviceArgs> {
    let (blocks, values) = (Vec::new(), Vec::new());
    let (written, only_written) = (Vec::new(), Vec::new());
    let mut placed = DeviceArgs { blocks, values, written, only_written };
    let mut known: Vec<(usize, &Operand)> = Vec::new();
    for (arg, argument) in plan.args.iter().zip(&row.schema().arguments) {
        let mut tensors = Vec::new();
        for operand in arg.operands() {
            let equal = |(_, other): &(usize, &Operand)| other.array == operand.array;
            if let Some((at, _)) = known.iter().copied().find(equal)
                && plan.way == Way::Aliased
            {
                tensors.push(placed.blocks[at].tensor.clone());
                continue;
            }
            known.push((placed.blocks.len(), operand));
            if argument.alias.as_ref().is_some_and(|alias| alias.write) {
                placed.written.push(placed.blocks.len());
            }
            let block = Block::place(
                &*target.memory,
                target.device,
                &operand.array,
                operand.layout,
                (pattern, true),
            )?;
            tensors.push(block.tensor.clone());
            placed.blocks.push(block);
        }
        if is_only_written(row, argument) {
            placed.only_written.extend(tensors.iter().cloned());
        }
        let mut tensors = tensors.into_iter();
        placed.values.push(match arg {
            Arg::Plain(value) => value.clone(),
            Arg::Tensor(_) => tensors.next().map_or(Value::None, Value::Tensor),
            Arg::Tensors(all) => Value::List(
                all.iter()
                    .map(|one| match one {
                        Some(_) => tensors.next().map_or(Value::None, Value::Tensor),
                        None => Value::None,
                    })
                    .collect(),
            ),
        });
    }
    Ok(placed)
}

/// Calls the operator, and reads every block that the call could reach.
///
/// # Errors
/// Of the call, also late ones, and of the device.
pub(crate) fn execute(
    target: &Target,
    row: &Row,
    plan: &Plan,
    pattern: u8,
) -> Result<Result<Vec<CallResult>, Fault>> {
    let memory = &*target.memory;
    let mut placed = place(target, row, plan, pattern)?;
    let mut name = row.schema().name.to_string();
    let mut outs = Vec::new();
    match (plan.way, row.out_schema()) {
        (Way::Out(layout), Some(schema)) => {
            let filler = (pattern, false);
            for expected in &plan.expected {
                let array = &expected.array;
                let place = || Block::place(memory, target.device, array, layout, filler);
                outs.push((!expected.absent).then(place).transpose()?);
            }
            name = schema.name.to_string();
        }
        (Way::InPlace, Some(schema)) => {
            placed.written.push(0);
            placed.values.push(Value::Tensor(placed.blocks[0].tensor.clone()));
            name = schema.name.to_string();
        }
        _ => {}
    }
    let value = |block: &Block| Value::Tensor(block.tensor.clone());
    placed.values.extend(outs.iter().map(|block| block.as_ref().map_or(Value::None, value)));
    let before = random::state(target.device)?;
    random::set_state(plan.state)?;
    let args: Vec<ValueRef<'_>> = placed.values.iter().map(Value::as_ref).collect();
    let calls = target.dispatcher.as_ref().unwrap_or_else(|| dispatcher());
    let result = calls.call(&name, &args);
    random::set_state(before)?;
    let mut results = Vec::new();
    match result? {
        // An operator without results.
        Value::None if row.schema().returns.is_empty() => {}
        value => flatten(value, &mut results)?,
    }
    results.extend(placed.only_written.iter().cloned().map(Some));
    if let Some(fault) = wrong_form(target, plan, &results) {
        return Ok(Err(fault));
    }
    let now = placed.blocks.iter().map(|block| block.read(memory)).collect::<Result<Vec<_>>>()?;
    for (at, (block, now)) in placed.blocks.iter().zip(&now).enumerate() {
        let written = placed.written.contains(&at);
        if let Some(byte) = block.changed(now, written) {
            let (symptom, what) = match written {
                true => (Symptom::OutOfBounds, "the output"),
                false => (Symptom::InputChanged, "an input"),
            };
            let message =
                format!("byte {byte} from the first element of {what} (tensor {at}) changed");
            return Ok(Err(Fault::new(symptom, message)));
        }
    }
    let mut done = Vec::with_capacity(results.len());
    for block in &outs {
        let Some(block) = block else {
            done.push(CallResult { got: Vec::new(), untouched: Vec::new() });
            continue;
        };
        let now = block.read(memory)?;
        if let Some(byte) = block.changed(&now, true) {
            let message = format!("byte {byte} from the output's first element changed");
            return Ok(Err(Fault::new(Symptom::OutOfBounds, message)));
        }
        done.push(CallResult { got: block.numbers(&now), untouched: block.untouched(&now) });
    }
    for result in results.into_iter().skip(outs.len()) {
        let shares =
            |result: &Tensor, block: &Block| result.buffer().shares_with(block.tensor.buffer());
        let got = match &result {
            None => Vec::new(),
            Some(result) => {
                let mut blocks = placed.blocks.iter().zip(&now);
                match blocks.find(|(block, _)| shares(result, block)) {
                    Some((block, now)) => block.view(now, result),
                    None => elements(result)?,
                }
            }
        };
        done.push(CallResult { got, untouched: Vec::new() });
    }
    Ok(Ok(done))
}

/// Returns whether an operator writes to an argument and doesn't return it.
pub(crate) fn is_only_written(row: &Row, argument: &Argument) -> bool {
    let Some(alias) = argument.alias.as_ref().filter(|alias| alias.write) else { return false };
    let is_it = |returned: &Return| {
        let own = returned.alias.as_ref();
        own.is_some_and(|own| own.sets.iter().any(|set| alias.sets.contains(set)))
    };
    !row.schema().returns.iter().any(is_it)
}

/// Adds the tensors of a result, those of tuples and lists in their order.
///
/// # Errors
/// As [`Value::into_tensor`].
pub(crate) fn flatten(value: Value, to: &mut Vec<Option<Tensor>>) -> Result<()> {
    match value {
        Value::Tuple(all) | Value::List(all) => {
            all.into_iter().try_for_each(|one| flatten(one, to))
        }
        Value::None => {
            to.push(None);
            Ok(())
        }
        one => {
            to.push(Some(one.into_tensor()?));
            Ok(())
        }
    }
}

/// Checks number, dtypes, shapes and devices of the results.
fn wrong_form(target: &Target, plan: &Plan, results: &[Option<Tensor>]) -> Option<Fault> {
    let wrong = |message: String| Some(Fault::new(Symptom::WrongForm, message));
    if results.len() != plan.expected.len() {
        return wrong(format!("expected {} results, got {}", plan.expected.len(), results.len()));
    }
    for (at, (result, expected)) in results.iter().zip(&plan.expected).enumerate() {
        let wanted = &expected.array;
        let fits = match result {
            None => expected.absent,
            Some(result) => {
                !expected.absent
                    && result.dtype() == wanted.dtype
                    && result.shape()[..] == wanted.shape[..]
                    && result.device() == target.device
            }
        };
        if fits {
            continue;
        }
        let of = if results.len() > 1 { format!("result {at}: ") } else { String::new() };
        let wanted = match expected.absent {
            true => "None".to_owned(),
            false => format!("{}{:?} on {}", wanted.dtype, wanted.shape, target.device),
        };
        let got = result.as_ref().map_or_else(
            || "None".to_owned(),
            |got| format!("{}{:?} on {}", got.dtype(), got.shape(), got.device()),
        );
        return wrong(format!("{of}expected {wanted}, got {got}"));
    }
    None
}

/// Returns the elements of a tensor, in row-major order.
///
/// # Errors
/// The device's errors, also late ones.
pub(crate) fn elements(tensor: &Tensor) -> Result<Vec<Number>> {
    let host = tensor.to_device(Device::CPU)?.copy()?;
    let size = host.dtype().size();
    if host.numel() == 0 {
        return Ok(Vec::new());
    }
    let start = host.raw_data_ptr()?;
    // SAFETY: a new contiguous tensor of the host has that many initialised bytes.
    let bytes = unsafe { std::slice::from_raw_parts(start, host.nbytes()) };
    let places = byte_offsets(host.shape(), host.strides(), 0, size);
    Ok(places.into_iter().map(|at| decode(host.dtype(), &bytes[at..at + size])).collect())
}

/// Returns the layouts and shapes of a call's tensors, for messages.
pub(crate) fn described(plan: &Plan) -> String {
    let operands = plan.args.iter().flat_map(Arg::operands);
    let each = operands.map(|operand| {
        format!("{}{:?} {}", operand.array.dtype, operand.array.shape, operand.layout.name())
    });
    let way = match plan.way {
        Way::Fresh => String::new(),
        Way::Out(Layout::Contiguous) => "; into a contiguous out".to_owned(),
        Way::Out(layout) => format!("; into a {} out", layout.name()),
        Way::Aliased => "; the same tensor twice".to_owned(),
        Way::InPlace => "; into the first tensor".to_owned(),
    };
    format!("{}{way}", each.collect::<Vec<_>>().join(", "))
}
