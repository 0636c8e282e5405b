//! Calls with their plans: the steps of a run of a call whose form has been planned.

use keyfold_core::{Result, Scalar, Shape, Strides};
use keyfold_tensor::Tensor;
use smallvec::SmallVec;

use super::draft::{CopyOf, Draft, Finish, Operand, Scratch, Source};
use crate::{GraphSpec, Prepared, Uid};

/// A draft whose graphs have plans.
#[derive(Debug)]
pub(super) struct Recipe {
    copies: Vec<CopyOf>,
    scratch: Vec<Scratch>,
    steps: Vec<(Prepared, Vec<(Uid, View)>)>,
    finish: Vec<Finish>,
}

/// A view of memory of a call.
#[derive(Debug)]
struct View {
    source: Source,
    shape: Shape,
    strides: Strides,
}

impl View {
    fn new(operand: &Operand) -> Result<View> {
        let sizes: Vec<usize> = operand.dims.iter().map(|&size| size as usize).collect();
        let strides: Vec<isize> = operand.strides.iter().map(|&stride| stride as isize).collect();
        let (shape, strides) = (Shape::new(&sizes)?, Strides::new(&strides)?);
        Ok(View { source: operand.source, shape, strides })
    }
}

/// The memory of a run.
struct Memory<'a> {
    inputs: &'a [&'a Tensor],
    outputs: &'a [&'a Tensor],
    copies: SmallVec<[Tensor; 4]>,
    scratch: SmallVec<[Tensor; 4]>,
}

impl Memory<'_> {
    fn view(&self, view: &View) -> Result<Tensor> {
        let tensor = match view.source {
            Source::Input(place) => self.inputs[place],
            Source::Output(place) => self.outputs[place],
            Source::Copy(place) => &self.copies[place],
            Source::Scratch(place) => &self.scratch[place],
        };
        let (shape, strides) = (view.shape.clone(), view.strides.clone());
        Tensor::from_parts(tensor.buffer().clone(), shape, strides, tensor.offset())
    }
}

impl Recipe {
    /// Gets a plan for each graph of a draft.
    pub(super) fn new(
        draft: Draft<'_>,
        plan: impl Fn(&GraphSpec) -> Result<Prepared>,
    ) -> Result<Recipe> {
        let planned = |step: &super::draft::Step| {
            let views = step.bound.iter().map(|(uid, operand)| Ok((*uid, View::new(operand)?)));
            Ok((plan(&step.graph)?, views.collect::<Result<_>>()?))
        };
        let steps = draft.steps.iter().map(planned).collect::<Result<_>>()?;
        let Draft { copies, scratch, finish, .. } = draft;
        Ok(Recipe { copies, scratch, steps, finish })
    }

    /// Returns about how much memory its plans hold, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.steps.iter().map(|(prepared, _)| prepared.plan().bytes).sum()
    }

    /// Computes the outputs, or queues that on the current stream of their device.
    ///
    /// # Errors
    /// Those of memory that can't be had, and of the plans.
    ///
    /// # Safety
    /// As [`Execute::execute`](keyfold_backend::Execute::execute).
    #[expect(unsafe_code, reason = "a backend's caller promises that outputs are its own")]
    pub(super) unsafe fn run(&self, inputs: &[&Tensor], outputs: &[&Tensor]) -> Result<()> {
        let Some(device) = outputs.first().map(|output| output.device()) else { return Ok(()) };
        let copy = |copy: &CopyOf| match &copy.shape {
            Some(shape) => inputs[copy.input].broadcast_to(shape)?.copy(),
            None => inputs[copy.input].copy(),
        };
        let own = |scratch: &Scratch| match scratch.fill {
            Some(number) => {
                Tensor::full(&scratch.shape, Scalar::Float(number), scratch.dtype, device)
            }
            None => Tensor::empty_of(scratch.shape.clone(), scratch.dtype, device),
        };
        let memory = Memory {
            inputs,
            outputs,
            copies: self.copies.iter().map(copy).collect::<Result<_>>()?,
            scratch: self.scratch.iter().map(own).collect::<Result<_>>()?,
        };
        for (prepared, views) in &self.steps {
            let mut tensors: SmallVec<[(Uid, Tensor); 8]> = SmallVec::new();
            for (uid, view) in views {
                tensors.push((*uid, memory.view(view)?));
            }
            let given: SmallVec<[(Uid, &Tensor); 8]> =
                tensors.iter().map(|(uid, tensor)| (*uid, tensor)).collect();
            prepared.run(&given)?;
        }
        for finish in &self.finish {
            let (output, from) = match finish {
                Finish::Fill { output, number } => {
                    let output = outputs[*output].clone();
                    let (dtype, device) = (output.dtype(), output.device());
                    (output, Tensor::full(&[], Scalar::Float(*number), dtype, device)?)
                }
                Finish::Spread { output, shape, from } => {
                    // Outputs are contiguous.
                    (outputs[*output].reshape(&sizes(shape))?, memory.view(&View::new(from)?)?)
                }
            };
            // SAFETY: the caller promises that nothing else accesses the outputs. `from` is the
            // number made above, an input, a copy or scratch memory of this run, and none of these
            // overlaps an output.
            unsafe { output.copy_from(&from)? };
        }
        Ok(())
    }
}

fn sizes(shape: &Shape) -> Vec<i64> {
    shape.iter().map(|&size| size as i64).collect()
}
