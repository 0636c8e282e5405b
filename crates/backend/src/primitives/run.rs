//! The kernel of an expression that runs step by step.

use std::sync::{Arc, Mutex, PoisonError};

use keyfold_core::{DType, Device, Error, ErrorKind, Result, Scalar, Shape, Strides, layout};
use keyfold_expr::{Lowered, Signature};
use keyfold_tensor::Tensor;
use smallvec::SmallVec;

use super::graph::{CallNumber, ComplexPart, Spread};
use super::lower::{number_bits, rounded};
use super::schedule::{LaunchStep, OperandSource, Program, Target, Temporary};
use super::{OUT_OF_RANGE, PrimitiveParams, Primitives, fault};
use crate::{GpuBackend, Launch, Offer, Pointwise, PointwiseKernel, Reason, not_supported};

/// An expression as a sequence of launches of a backend's primitives.
struct StepByStep {
    backend: Arc<dyn GpuBackend>,
    program: Program,
    signature: Signature,
    /// The expression's constants, on each device that it has run on.
    constants: Mutex<Vec<(Device, Tensor)>>,
}

/// Returns the kernel of an expression on a backend with primitives.
pub(crate) fn step_by_step(
    backend: &Arc<dyn GpuBackend>,
    primitives: &dyn Primitives,
    lowered: &Lowered,
) -> Offer<Arc<dyn PointwiseKernel>> {
    let has = |dtype| lowered.steps().iter().any(|step| step.dtype == dtype);
    // Functions of complex64 in float64 if the backend has all primitives for that.
    let precisions: &[bool] = if has(DType::C64) { &[true, false] } else { &[false] };
    let mut reason = Reason::from("it computes no expressions");
    for wide in precisions {
        let program = match Program::new(lowered, *wide) {
            Ok(program) => program,
            Err(error) => return Offer::No(error.message().to_owned().into()),
        };
        match program.steps.iter().try_for_each(|step| kernel(primitives, step).map(drop)) {
            Ok(()) => {
                return Offer::ViaComposite(Arc::new(StepByStep {
                    backend: backend.clone(),
                    program,
                    signature: lowered.signature().clone(),
                    constants: Mutex::new(Vec::new()),
                }));
            }
            Err(lacking) => reason = lacking,
        }
    }
    Offer::No(reason)
}

/// Returns the kernel of a step, or an error that names the missing primitive.
fn kernel<'p>(
    primitives: &'p dyn Primitives,
    step: &LaunchStep,
) -> Result<&'p dyn Launch<PrimitiveParams>, Reason> {
    let used = &step.used;
    primitives
        .primitive(used.primitive, &used.inputs, used.output)
        .kernel()
        .map_err(|reason| format!("it lacks the primitive {used}, {reason}").into())
}

/// Returns the tensor's memory as another dtype of the same size, or as one part of each complex
/// number.
fn reinterpreted(tensor: &Tensor, part: ComplexPart, dtype: DType) -> Result<Tensor> {
    if part == ComplexPart::Whole && tensor.dtype() == dtype {
        return Ok(tensor.clone());
    }
    let (factor, ahead) = match part {
        ComplexPart::Whole => (1, 0),
        ComplexPart::Real => (2, 0),
        ComplexPart::Imaginary => (2, 1),
    };
    let strides: SmallVec<[isize; 6]> =
        tensor.strides().iter().map(|stride| stride * factor).collect();
    let offset = tensor.offset() * factor as usize + ahead;
    let buffer = tensor.buffer().clone().with_dtype(dtype.real())?;
    let view = Tensor::from_parts(buffer, tensor.shape().clone(), Strides::new(&strides)?, offset)?;
    reinterpreted(&view, ComplexPart::Whole, dtype)
}

/// Returns the memory from a tensor's lowest to its highest element as a row, and the position of
/// the element at index zero in it.
fn row(tensor: &Tensor) -> Result<(Tensor, i64)> {
    let bounds = layout::bounds(tensor.shape(), tensor.strides(), tensor.offset())?;
    let (first, last) = bounds.unwrap_or((tensor.offset(), tensor.offset()));
    let len = if bounds.is_some() { last - first + 1 } else { 0 };
    let (shape, strides) = (Shape::new(&[len])?, Strides::new(&[1])?);
    let row = Tensor::from_parts(tensor.buffer().clone(), shape, strides, first)?;
    Ok((row, (tensor.offset() - first) as i64))
}

/// Uploads words of eight bytes, each a number of any real dtype.
fn upload(words: &[u64], device: Device) -> Result<Tensor> {
    Tensor::from_slice(words, &[words.len()])?.to_device(device)
}

/// Returns the number at an index among the words.
fn word(words: &Tensor, at: usize, dtype: DType) -> Result<Tensor> {
    let buffer = words.buffer().clone().with_dtype(dtype)?;
    let items = 8 / dtype.size();
    // A word's low bytes.
    let lowest = if cfg!(target_endian = "big") { items - 1 } else { 0 };
    let offset = (words.offset() + at) * items + lowest;
    Tensor::from_parts(buffer, Shape::empty(), Strides::new(&[])?, offset)
}

/// The tensors of a call.
struct CallTensors<'a> {
    inputs: &'a [&'a Tensor],
    /// For each ranked input, its memory as a row.
    rows: SmallVec<[Option<Tensor>; 4]>,
    out: &'a Tensor,
    slots: Vec<Tensor>,
    constants: Option<Tensor>,
    numbers: Option<Tensor>,
}

impl StepByStep {
    /// Returns the shape of a temporary.
    fn shape(spread: Spread, out: &Tensor) -> Result<Shape> {
        match spread {
            Spread::Uniform => Ok(Shape::empty()),
            Spread::Full => Ok(out.shape().clone()),
            Spread::Along(dim) => {
                let mut shape: SmallVec<[usize; 6]> = smallvec::smallvec![1; out.ndim()];
                if let Some(at) = out.ndim().checked_sub(dim as usize + 1) {
                    shape[at] = out.shape()[at];
                }
                Shape::new(&shape)
            }
        }
    }

    /// Allocates a temporary, as integers of the element size.
    fn temporary(slot: &Temporary, out: &Tensor) -> Result<Tensor> {
        let dtype = match slot.size {
            1 => DType::U8,
            2 => DType::U16,
            4 => DType::U32,
            _ => DType::U64,
        };
        Tensor::empty(&StepByStep::shape(slot.spread, out)?, dtype, out.device())
    }

    /// Returns the expression's constants on a device. They are uploaded once, before any stream
    /// reads them.
    fn constants(&self, device: Device) -> Result<Option<Tensor>> {
        if self.program.constants.is_empty() {
            return Ok(None);
        }
        let lock = || self.constants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, words)) = lock().iter().find(|(known, _)| *known == device) {
            return Ok(Some(words.clone()));
        }
        // Without the lock, since a memory may be foreign code.
        let words = upload(&self.program.constants, device)?;
        if let Some(memory) = words.buffer().memory() {
            memory.synchronize(device)?;
        }
        lock().push((device, words.clone()));
        Ok(Some(words))
    }

    /// Returns the numbers of a call on a device.
    fn numbers(
        &self,
        inputs: &[&Tensor],
        starts: &[i64],
        params: &[Scalar],
        device: Device,
    ) -> Result<Option<Tensor>> {
        let numbers = &self.program.numbers;
        if numbers.is_empty() {
            return Ok(None);
        }
        let bits = |(number, dtype): &(CallNumber, DType)| match *number {
            CallNumber::Param { index, to, part } => {
                number_bits(rounded(params[index as usize], to), *dtype, part)
            }
            CallNumber::Size { input, dim } => inputs[input as usize].shape()[dim as usize] as u64,
            CallNumber::Stride { input, dim } => {
                inputs[input as usize].strides()[dim as usize] as i64 as u64
            }
            CallNumber::Start { input } => starts[input as usize] as u64,
        };
        let words: Vec<u64> = numbers.iter().map(bits).collect();
        upload(&words, device).map(Some)
    }

    /// Returns the memory of a ranked input as a row. Without elements no index is in range.
    fn row_of(&self, at: usize, input: &Tensor) -> Result<(Tensor, i64)> {
        self.signature.check_rank(at, input.ndim())?;
        if input.numel() == 0 { Err(fault(OUT_OF_RANGE)) } else { row(input) }
    }

    /// Launches a step.
    ///
    /// # Safety
    /// As [`PointwiseKernel::run`].
    unsafe fn launch(
        &self,
        primitives: &dyn Primitives,
        step: &LaunchStep,
        call: &CallTensors<'_>,
    ) -> Result<()> {
        let kernel = kernel(primitives, step).map_err(|reason| {
            let hint = "it had that primitive when the expression was prepared";
            not_supported("an expression", self.backend.name(), &reason, hint)
        })?;
        let target = match step.target {
            Target::Output(part) => reinterpreted(call.out, part, step.used.output)?,
            Target::Slot(slot) => {
                reinterpreted(&call.slots[slot], ComplexPart::Whole, step.used.output)?
            }
        };
        let mut operands: SmallVec<[Tensor; 3]> = SmallVec::new();
        for (source, dtype) in step.operands.iter().zip(&step.used.inputs) {
            let operand = match *source {
                OperandSource::Slot(slot) => {
                    reinterpreted(&call.slots[slot], ComplexPart::Whole, *dtype)?
                }
                OperandSource::Input { input, part } => {
                    reinterpreted(call.inputs[input as usize], part, *dtype)?
                }
                OperandSource::Table { input, part } => {
                    let row = call.rows[input as usize].as_ref();
                    let row = row.ok_or_else(|| fault(OUT_OF_RANGE))?;
                    operands.push(reinterpreted(row, part, *dtype)?);
                    continue;
                }
                OperandSource::Constant(at) => word_of(call.constants.as_ref(), at, *dtype)?,
                OperandSource::Number(at) => word_of(call.numbers.as_ref(), at, *dtype)?,
            };
            operands.push(match operand.shape() == target.shape() {
                true => operand,
                false => operand.broadcast_to(target.shape())?,
            });
        }
        let operands: SmallVec<[&Tensor; 3]> = operands.iter().collect();
        let params = PrimitiveParams { primitive: step.used.primitive, fault: step.fault };
        // SAFETY: temporaries are this call's own, and the caller's contract covers the output. A
        // temporary that a step reads and writes has the same elements in the same order, and so
        // has an input that is the output.
        unsafe { kernel.launch(&params, &operands, &target) }
    }
}

fn word_of(words: Option<&Tensor>, at: usize, dtype: DType) -> Result<Tensor> {
    match words {
        Some(words) => word(words, at, dtype),
        None => Err(Error::new(ErrorKind::Value, "a step reads a number that isn't there")),
    }
}

impl PointwiseKernel for StepByStep {
    unsafe fn run(&self, inputs: &[&Tensor], params: &[Scalar], out: &Tensor) -> Result<()> {
        let Some(Pointwise::Primitives(primitives)) = self.backend.pointwise() else {
            let reason = "it has no primitives any more".into();
            return Err(not_supported(
                "an expression",
                self.backend.name(),
                &reason,
                "it had them when the expression was prepared",
            ));
        };
        let wanted = self.signature.inputs().len();
        if inputs.len() != wanted {
            return Err(Error::new(
                ErrorKind::Binding,
                format!("the expression has {wanted} inputs, but {} were given", inputs.len()),
            ));
        }
        self.signature.check_params(params)?;
        if out.numel() == 0 {
            return Ok(());
        }
        let device = out.device();
        let mut rows = SmallVec::new();
        let mut starts: SmallVec<[i64; 4]> = SmallVec::new();
        for (at, (input, rank)) in inputs.iter().zip(self.signature.ranks()).enumerate() {
            let row = rank.map(|_| self.row_of(at, input)).transpose()?;
            starts.push(row.as_ref().map_or(0, |(_, start)| *start));
            rows.push(row.map(|(row, _)| row));
        }
        let numbers = self.numbers(inputs, &starts, params, device)?;
        let constants = self.constants(device)?;
        let slots = self.program.slots.iter().map(|slot| StepByStep::temporary(slot, out));
        let slots = slots.collect::<Result<_>>()?;
        let call = CallTensors { inputs, rows, out, slots, constants, numbers };
        out.note_write();
        self.program.steps.iter().try_for_each(|step| {
            // SAFETY: the caller's contract.
            unsafe { self.launch(primitives, step, &call) }
        })
    }
}
