//! The check of a pipeline: a flush also runs its operations eagerly, and compares the results.
//!
//! Before a flush runs its plan, all of its operations run one by one in the order of the record, below
//! the pipeline, on copies of the memory that they read; an operation that reads another one's result
//! reads the eager one. So nothing that the plan does (groups, order, buffers that are used again)
//! changes the expected results. Random numbers are drawn from the same state both times.
//!
//! Results are compared when the pipeline has computed them, before anybody reads them. A difference is
//! a failure of its operation, as any other: what depends on it gets the error, the rest is computed.

use std::sync::{Arc, PoisonError};

use keyfold_core::{DType, Device, Error, ErrorKind, Result, Scalar, Shape, Strides, layout};
use keyfold_dispatch::{Tags, Value as _};
use keyfold_tensor::device::random;
use keyfold_tensor::{BufferHandle, DeviceBuffer, Tensor, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::copies::contiguous_bytes;
use super::host::{self, Watch};
use super::operation::{Operation, Slot, for_each_tensor, memory_id, ready_of};
use super::session::Session;

/// The results that a pipeline compares its own with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The results of the same operations, run one by one: equal in each bit, NaN equal to NaN.
    Eager,
}

impl Check {
    /// Returns the check of that name.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for any name but `eager`.
    pub fn named(name: &str) -> Result<Check> {
        match name {
            "eager" => Ok(Check::Eager),
            _ => Err(Error::new(
                ErrorKind::Value,
                format!(
                    "check of a pipeline is {name:?}: give \"eager\", to compare with operations \
                     that run one by one, or None"
                ),
            )),
        }
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Check::Eager => "eager",
        }
    }
}

/// The results of a flush's operations when they run eagerly, by the operations' indices: one for each
/// result, or for each memory that is written. None of operations that depend on a failed one.
#[derive(Default)]
pub(super) struct Expected(FxHashMap<usize, Result<Vec<Option<Tensor>>>>);

/// Copies of memory, by the identity of the memory that operations were recorded with.
type Copies = FxHashMap<usize, Arc<dyn DeviceBuffer>>;

/// An operation that is to run eagerly.
struct Call<'o> {
    operation: &'o Operation,
    args: Vec<Value>,
    /// The identities of the tensors' memories, in order.
    memories: SmallVec<[usize; 4]>,
}

impl Session {
    /// Runs operations eagerly, if the options ask for a check. Looks for an interrupt before each of them.
    ///
    /// # Errors
    /// An interrupt, and the error of a copy, as for memory: nothing ran then.
    pub(super) fn expected(
        &self,
        operations: &[Arc<Operation>],
        watch: &Watch,
    ) -> Result<Expected> {
        let Some(Check::Eager) = self.options().check else { return Ok(Expected::default()) };
        let states = states_of(operations)?;
        let expected = self.run_eagerly(operations, watch);
        states.into_iter().try_for_each(put_back)?;
        expected
    }

    fn run_eagerly(&self, operations: &[Arc<Operation>], watch: &Watch) -> Result<Expected> {
        let (mut copies, mut expected) = (Copies::default(), Expected::default());
        // All copies are made first: a kernel that reads a pending tensor runs operations.
        let calls = self.calls(operations, &mut copies)?;
        let written: FxHashSet<usize> = calls.iter().flat_map(Call::written).collect();
        for call in &calls {
            watch.look()?;
            if !call.memories.iter().all(|memory| copies.contains_key(memory)) {
                continue;
            }
            let index = call.operation.index;
            self.note_running(call.operation);
            let outcome = call.run(&mut copies, &written);
            self.lock().note_stopped(index);
            match outcome {
                Err(error) if host::is_interrupt(&error) => return Err(error),
                outcome => expected.0.insert(index, outcome),
            };
        }
        Ok(expected)
    }

    /// Returns the operations that don't run already, and copies what they read of earlier flushes.
    fn calls<'o>(
        &self,
        operations: &'o [Arc<Operation>],
        copies: &mut Copies,
    ) -> Result<Vec<Call<'o>>> {
        let running = self.lock().running.clone();
        let mut made = FxHashSet::default();
        let mut calls = Vec::with_capacity(operations.len());
        for operation in operations.iter().filter(|one| !running.contains(&one.index)) {
            let args = operation.args.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let (mut memories, mut failed) = (SmallVec::new(), None);
            for arg in &args {
                for_each_tensor(arg.as_ref(), &mut |tensor| {
                    let memory = memory_id(tensor);
                    memories.push(memory);
                    if made.contains(&memory) || copies.contains_key(&memory) {
                        return;
                    }
                    // Memory of a failed operation has no copy, and its readers don't run.
                    let Ok(ready) = ready_of(tensor) else { return };
                    match operation.on_stream(|| copy_of(&ready)) {
                        Ok(copy) => drop(copies.insert(memory, copy)),
                        Err(error) => failed = Some(error),
                    }
                });
            }
            if let Some(error) = failed {
                return Err(error);
            }
            made.extend(operation.results.iter().flatten().map(address_of));
            calls.push(Call { operation, args, memories });
        }
        Ok(calls)
    }
}

impl Call<'_> {
    /// Returns the identities of the memories that it writes in place.
    fn written(&self) -> SmallVec<[usize; 1]> {
        let written = self.operation.written.iter().filter_map(|at| match self.args.get(*at) {
            Some(Value::Tensor(tensor)) => Some(memory_id(tensor)),
            _ => None,
        });
        written.collect()
    }

    /// Runs the operation on copies, to which its results are added, and returns the results. Those in
    /// memory that is `written` later are copied once more.
    fn run(&self, copies: &mut Copies, written: &FxHashSet<usize>) -> Result<Vec<Option<Tensor>>> {
        let mut memories = self.memories.iter();
        let args = self.args.iter().map(|arg| over_copies(arg, &mut memories, copies));
        let args = args.collect::<Result<Vec<_>>>()?;
        let result = match self.operation.call(&args) {
            Ok(result) => result,
            Err(error) => {
                // A write that failed leaves arbitrary elements.
                self.written().iter().for_each(|memory| drop(copies.remove(memory)));
                return Err(error);
            }
        };
        let mut results = Vec::new();
        for at in &self.operation.written {
            let Some(Value::Tensor(tensor)) = args.get(*at) else { continue };
            let snapshot = self.operation.on_stream(|| copy_of(tensor))?;
            results.push(Some(over(tensor, snapshot)?));
        }
        self.operation.for_each_result(result, |at, item| {
            let Some(slot) = &self.operation.results[at] else {
                results.push(None);
                return Ok(());
            };
            let mut result = item.into_tensor()?;
            self.operation.make_own(slot, &mut result)?;
            let address = address_of(slot);
            let kept = match written.contains(&address) {
                true => self.operation.on_stream(|| result.copy())?,
                false => result.clone(),
            };
            results.push(Some(kept));
            copies.insert(address, memory_of(result)?);
            Ok(())
        })?;
        Ok(results)
    }
}

impl Expected {
    /// Compares the results that the pipeline computed and that somebody holds. `group` has the
    /// operations that were computed in the same pass. Returns whether there was something to compare.
    ///
    /// # Errors
    /// [`ErrorKind::Pipeline`] for the first element that differs, and for an eager call that failed.
    pub(super) fn compare(&self, operation: &Operation, group: &[usize]) -> Result<bool> {
        let Some(outcome) = self.0.get(&operation.index) else { return Ok(false) };
        let name = operation.operator.name();
        let differs = |text: String| {
            let group: Vec<String> = group.iter().map(|index| format!("%{index}")).collect();
            let how = match &group[..] {
                [] => "by itself".to_owned(),
                all => format!("in one pass over {}", all.join(", ")),
            };
            let message = format!("{name}: {text}; the pipeline computed it {how}");
            Error::new(ErrorKind::Pipeline, message)
        };
        let found = operation.computed()?;
        if found.iter().all(Option::is_none) {
            return Ok(false);
        }
        let expected = outcome.as_ref().map_err(|error| {
            differs(format!("it has a result, and an eager call failed: {}", error.message()))
        })?;
        let found_count = found.len();
        for (at, pair) in found.iter().zip(expected).enumerate() {
            let (Some(found), Some(expected)) = pair else { continue };
            let Some(difference) = operation.on_stream(|| difference(found, expected))? else {
                continue;
            };
            let which = match found_count {
                1 => String::new(),
                _ => format!(" of result {at}"),
            };
            let Difference { index, found, expected } = difference;
            return Err(differs(format!(
                "element {index:?}{which} is {found}, and {expected} when the call runs eagerly"
            )));
        }
        Ok(true)
    }
}

impl Operation {
    /// Returns what it computed, as far as somebody holds it, in the order of [`Call::run`].
    fn computed(&self) -> Result<Vec<Option<Tensor>>> {
        let args = self.args.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Vec::new();
        for at in &self.written {
            let Some(Value::Tensor(tensor)) = args.get(*at) else { continue };
            all.push(tensor.over_staged());
        }
        for slot in &self.results {
            let staged = |slot: &Slot| slot.held()?.staged().cloned();
            let Some((slot, memory)) = slot.as_ref().and_then(|slot| Some((slot, staged(slot)?)))
            else {
                all.push(None);
                continue;
            };
            let buffer = BufferHandle::new(memory, slot.dtype)?;
            let strides = layout::contiguous_strides(&slot.shape);
            all.push(Some(Tensor::from_parts(buffer, slot.shape.clone(), strides, 0)?));
        }
        Ok(all)
    }
}

/// The first element that differs.
struct Difference {
    index: Vec<usize>,
    found: Scalar,
    expected: Scalar,
}

/// Compares two tensors of one form, bit by bit; NaN equals NaN.
fn difference(found: &Tensor, expected: &Tensor) -> Result<Option<Difference>> {
    let (found, expected) = (on_host(found)?, on_host(expected)?);
    let size = found.dtype().size();
    let bytes_of = |x: &Tensor| contiguous_bytes(x, x.offset(), x.numel());
    let (bytes, expected_bytes) = (bytes_of(&found)?, bytes_of(&expected)?);
    let (bytes, expected_bytes) = (bytes.as_slice::<u8>()?, expected_bytes.as_slice::<u8>()?);
    if bytes == expected_bytes {
        return Ok(None);
    }
    let pairs = bytes.chunks_exact(size).zip(expected_bytes.chunks_exact(size));
    for (place, _) in pairs.enumerate().filter(|(_, (a, b))| a != b) {
        let index = index_of(place, found.shape());
        let (found, expected) = (found.get_scalar(&index)?, expected.get_scalar(&index)?);
        if !are_nan_alike(found, expected) {
            return Ok(Some(Difference { index, found, expected }));
        }
    }
    Ok(None)
}

/// Returns whether two numbers of different bits are NaN in the same parts, and equal in the others.
fn are_nan_alike(a: Scalar, b: Scalar) -> bool {
    let alike = |a: f64, b: f64| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    match (a, b) {
        (Scalar::Float(a), Scalar::Float(b)) => alike(a, b),
        (Scalar::Complex(a), Scalar::Complex(b)) => alike(a.re, b.re) && alike(a.im, b.im),
        _ => false,
    }
}

fn on_host(tensor: &Tensor) -> Result<Tensor> {
    tensor.to_device(Device::CPU)?.contiguous()
}

/// Returns the index of an element by its place in row-major order.
fn index_of(mut place: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (at, size) in index.iter_mut().zip(shape).rev() {
        (*at, place) = (place % size, place / size);
    }
    index
}

/// Returns an argument with each tensor over the copy of its memory; `memories` are the identities.
fn over_copies<'m>(
    arg: &Value,
    memories: &mut impl Iterator<Item = &'m usize>,
    copies: &Copies,
) -> Result<Value> {
    Ok(match arg {
        Value::Tensor(tensor) => match memories.next().and_then(|memory| copies.get(memory)) {
            Some(copy) => Value::Tensor(over(tensor, Arc::clone(copy))?),
            None => unreachable!("all memories of a call that runs have copies"),
        },
        Value::List(items) => {
            let items = items.iter().map(|item| over_copies(item, memories, copies));
            Value::List(items.collect::<Result<_>>()?)
        }
        other => other.clone(),
    })
}

/// Returns the same view of other memory.
fn over(tensor: &Tensor, memory: Arc<dyn DeviceBuffer>) -> Result<Tensor> {
    let buffer = BufferHandle::new(memory, tensor.dtype())?;
    let view = (tensor.shape().clone(), tensor.strides().clone());
    let made = Tensor::from_parts(buffer, view.0, view.1, tensor.offset())?;
    let made = if tensor.is_view() { made.into_view() } else { made };
    Ok(if tensor.is_writable() { made } else { made.into_read_only() })
}

/// Returns a copy of all of a tensor's memory, so that views of it keep their layout.
fn copy_of(tensor: &Tensor) -> Result<Arc<dyn DeviceBuffer>> {
    let buffer = tensor.buffer().clone().with_dtype(DType::U8)?;
    let (shape, strides) = (Shape::new(&[buffer.len()])?, Strides::new(&[1])?);
    memory_of(Tensor::from_parts(buffer, shape, strides, 0)?.copy()?)
}

/// Returns the memory of a new tensor.
fn memory_of(tensor: Tensor) -> Result<Arc<dyn DeviceBuffer>> {
    let borrowed = || Error::new(ErrorKind::Pipeline, "a copy is memory of another library");
    tensor.into_buffer().into_shared().ok_or_else(borrowed)
}

fn address_of(slot: &Slot) -> usize {
    slot.memory.as_ptr().addr()
}

/// Returns the states of the random numbers that operations draw, by their tag.
fn states_of(operations: &[Arc<Operation>]) -> Result<Vec<random::State>> {
    let mut states: Vec<random::State> = Vec::new();
    for operation in operations {
        let draws = operation.operator.tags().contains(Tags::NONDETERMINISTIC_SEEDED);
        if draws && states.iter().all(|state| state.device != operation.device) {
            states.push(state_of(operation.device)?);
        }
    }
    Ok(states)
}

/// Returns a device's state. [`random::state`] would first run the recorded draws of all pipelines, for
/// which a flush of another thread may wait while this one waits for it.
fn state_of(device: Device) -> Result<random::State> {
    random::take(device, 0)
}

/// Moves a device's stream back to a state.
fn put_back(state: random::State) -> Result<()> {
    let now = state_of(state.device)?;
    if now.seed != state.seed {
        // A kernel chose another stream.
        return random::set_state(state);
    }
    random::take(state.device, state.offset.wrapping_sub(now.offset)).map(drop)
}
