//! The tensors of a recording: views of memories that a replay fills.

use keyfold_core::{Error, ErrorKind, Result, Shape, Strides};
use keyfold_dispatch::Value as _;
use keyfold_tensor::{Tensor, Value, ValueRef};

/// The memories of a replay: inputs, then results.
pub(super) struct Memories<'i> {
    inputs: &'i [Tensor],
    results: Vec<Option<Tensor>>,
}

impl<'i> Memories<'i> {
    pub(super) fn new(inputs: &'i [Tensor], count: usize) -> Memories<'i> {
        let mut results = Vec::new();
        results.resize_with(count - inputs.len(), || None);
        Memories { inputs, results }
    }

    /// Stores a result, and returns it where it is.
    #[inline]
    pub(super) fn set(&mut self, memory: usize, result: Tensor) -> &mut Tensor {
        self.results[memory - self.inputs.len()].insert(result)
    }

    /// Stores the results of a step that a step or an output reads.
    pub(super) fn set_all(&mut self, memories: &[Option<usize>], results: Vec<Tensor>) {
        for (memory, result) in memories.iter().zip(results) {
            if let Some(memory) = memory {
                self.set(*memory, result);
            }
        }
    }

    /// Drops a result.
    pub(super) fn clear(&mut self, memory: usize) {
        if let Some(result) = memory.checked_sub(self.inputs.len()) {
            self.results[result] = None;
        }
    }

    /// Takes a result that is all of its memory.
    pub(super) fn take(&mut self, operand: &Operand) -> Option<Tensor> {
        let Operand::Whole(memory) = operand else { return None };
        self.results[memory.checked_sub(self.inputs.len())?].take()
    }

    fn get(&self, memory: usize) -> Result<&Tensor> {
        let Some(result) = memory.checked_sub(self.inputs.len()) else {
            return Ok(&self.inputs[memory]);
        };
        self.results[result].as_ref().ok_or_else(|| {
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
    /// Returns the tensor where it is: `None` for a view, which is made anew.
    pub(super) fn known<'m>(&'m self, memories: &'m Memories<'_>) -> Result<Option<&'m Tensor>> {
        match self {
            Operand::Constant(tensor) => Ok(Some(tensor)),
            Operand::Whole(memory) => memories.get(*memory).map(Some),
            Operand::View { .. } => Ok(None),
        }
    }

    pub(super) fn tensor(&self, memories: &Memories<'_>) -> Result<Tensor> {
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
    pub(super) fn value(&self, memories: &Memories<'_>) -> Result<Value> {
        Ok(match self {
            Argument::Tensor(operand) => Value::Tensor(operand.tensor(memories)?),
            Argument::List(items) => {
                Value::List(items.iter().map(|item| item.value(memories)).collect::<Result<_>>()?)
            }
            Argument::Value(value) => value.clone(),
        })
    }

    /// Returns it where it is; `None` for one that is made anew: a view, or a list.
    pub(super) fn lent<'m>(&'m self, memories: &'m Memories<'_>) -> Result<Option<ValueRef<'m>>> {
        Ok(match self {
            Argument::Tensor(operand) => operand.known(memories)?.map(ValueRef::Tensor),
            Argument::List(_) => None,
            Argument::Value(value) => Some(value.as_ref()),
        })
    }

    /// Returns it as a value, if it isn't a tensor.
    pub(super) fn other(&self) -> Option<Value> {
        match self {
            Argument::Tensor(_) => None,
            // Tiles have no operations of tensors in lists.
            Argument::List(items) => {
                items.iter().map(Argument::other).collect::<Option<_>>().map(Value::List)
            }
            Argument::Value(value) => Some(value.clone()),
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
