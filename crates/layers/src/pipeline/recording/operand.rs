//! The tensors of a recording: views of memories that a replay fills.

use keyfold_core::{Error, ErrorKind, Result, Shape, Strides};
use keyfold_tensor::{Tensor, Value};
use smallvec::SmallVec;

/// The memories of a replay: inputs, then results.
pub(super) struct Memories(SmallVec<[Option<Tensor>; 16]>);

impl Memories {
    pub(super) fn new(inputs: &[Tensor], count: usize) -> Memories {
        let mut all: SmallVec<[Option<Tensor>; 16]> = SmallVec::with_capacity(count);
        all.extend(inputs.iter().map(|input| Some(input.clone())));
        all.resize_with(count, || None);
        Memories(all)
    }

    /// Stores a result, if a step or an output reads it.
    pub(super) fn set(&mut self, memory: Option<usize>, result: Tensor) {
        if let Some(memory) = memory {
            self.0[memory] = Some(result);
        }
    }

    pub(super) fn clear(&mut self, memory: usize) {
        self.0[memory] = None;
    }

    fn get(&self, memory: usize) -> Result<&Tensor> {
        self.0[memory].as_ref().ok_or_else(|| {
            Error::new(ErrorKind::Pipeline, "a step of a recording reads what wasn't computed")
        })
    }
}

/// A tensor of a recording.
#[derive(Clone)]
pub(super) enum Operand {
    Constant(Tensor),
    /// All of a memory.
    Whole(usize),
    /// A view of a memory; the offset is from the memory's own first element.
    View {
        memory: usize,
        shape: Shape,
        strides: Strides,
        offset: usize,
        writable: bool,
    },
}

impl Operand {
    pub(super) fn tensor(&self, memories: &Memories) -> Result<Tensor> {
        match self {
            Operand::Constant(tensor) => Ok(tensor.clone()),
            Operand::Whole(memory) => memories.get(*memory).cloned(),
            Operand::View { memory, shape, strides, offset, writable } => {
                let whole = memories.get(*memory)?;
                let offset = whole.offset() + offset;
                let buffer = whole.buffer().clone();
                let view = Tensor::from_parts(buffer, shape.clone(), strides.clone(), offset)?;
                Ok(if *writable && whole.is_writable() { view } else { view.into_read_only() })
            }
        }
    }

    /// Returns the memory that it is in; `None` for a constant.
    pub(super) fn memory(&self) -> Option<usize> {
        match self {
            Operand::Constant(_) => None,
            Operand::Whole(memory) | Operand::View { memory, .. } => Some(*memory),
        }
    }
}

/// An argument of an operation.
pub(super) enum Argument {
    Tensor(Operand),
    List(Vec<Argument>),
    /// Anything that isn't a tensor.
    Value(Value),
}

impl Argument {
    pub(super) fn value(&self, memories: &Memories) -> Result<Value> {
        Ok(match self {
            Argument::Tensor(operand) => Value::Tensor(operand.tensor(memories)?),
            Argument::List(items) => {
                Value::List(items.iter().map(|item| item.value(memories)).collect::<Result<_>>()?)
            }
            Argument::Value(value) => value.clone(),
        })
    }

    /// As [`Argument::value`], of a tensor.
    pub(super) fn tensor(&self, memories: &Memories) -> Result<Tensor> {
        match self {
            Argument::Tensor(operand) => operand.tensor(memories),
            other => other.value(memories)?.into_tensor(),
        }
    }

    /// Calls `f` with each operand.
    pub(super) fn each<'a>(&'a self, f: &mut impl FnMut(&'a Operand)) {
        match self {
            Argument::Tensor(operand) => f(operand),
            Argument::List(items) => items.iter().for_each(|item| item.each(f)),
            Argument::Value(_) => {}
        }
    }
}
