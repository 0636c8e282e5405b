//! Arrays of the reference, and the arguments of a call.

use std::sync::Arc;

use keyfold_core::{DType, Result, Shape, layout};
use keyfold_tensor::{BufferHandle, HostBuffer, Tensor, Value};

use crate::number::{Number, encode};

/// An array on the host: a dtype, a shape, and the elements in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// The dtype.
    pub dtype: DType,
    /// The size of each dimension.
    pub shape: Vec<usize>,
    /// The elements.
    pub items: Vec<Number>,
}

impl Array {
    /// Makes an array of a function of the index.
    pub fn from_fn(
        dtype: DType,
        shape: &[usize],
        mut item: impl FnMut(&[usize]) -> Number,
    ) -> Array {
        let mut items = Vec::with_capacity(shape.iter().product());
        for_each_index(shape, |index| items.push(item(index)));
        Array { dtype, shape: shape.to_vec(), items }
    }

    /// Returns the element at an index.
    pub fn at(&self, index: &[usize]) -> Number {
        self.items[self.place(index)]
    }

    /// Returns the position of an index in row-major order.
    pub fn place(&self, index: &[usize]) -> usize {
        index.iter().zip(&self.shape).fold(0, |place, (i, size)| place * size + i)
    }

    /// Returns the element that broadcasts to an index of a larger shape.
    pub fn broadcast_at(&self, index: &[usize]) -> Number {
        let skipped = index.len() - self.shape.len();
        let own = index[skipped..].iter().zip(&self.shape);
        let place = own.fold(0, |place, (i, size)| place * size + if *size == 1 { 0 } else { *i });
        self.items[place]
    }

    /// Returns the array with its elements converted.
    pub fn cast(&self, dtype: DType) -> Array {
        let items = self.items.iter().map(|item| item.cast(dtype)).collect();
        Array { dtype, shape: self.shape.clone(), items }
    }
}

/// Calls a function with each index of a shape, in row-major order.
pub fn for_each_index(shape: &[usize], mut f: impl FnMut(&[usize])) {
    if shape.contains(&0) {
        return;
    }
    let mut index = vec![0; shape.len()];
    loop {
        f(&index);
        let mut d = shape.len();
        loop {
            if d == 0 {
                return;
            }
            d -= 1;
            index[d] += 1;
            if index[d] < shape[d] {
                break;
            }
            index[d] = 0;
        }
    }
}

/// The layout of a tensor in its block of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Row-major, without gaps.
    Contiguous,
    /// Contiguous, at an odd offset.
    Offset,
    /// The strides of the transposed tensor.
    Transposed,
    /// Every second element of the last dimension, with an offset.
    Sliced,
    /// The first dimension repeats: its stride is 0.
    Broadcast,
    /// Negative strides along each dimension.
    Negative,
}

impl Layout {
    /// Returns its name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Contiguous => "contiguous",
            Layout::Offset => "offset",
            Layout::Transposed => "transposed",
            Layout::Sliced => "sliced",
            Layout::Broadcast => "broadcast",
            Layout::Negative => "negative",
        }
    }

    /// Returns the strides of a shape, the distance of the first element from the lowest, and the
    /// number of elements from the lowest to the highest.
    pub fn place(self, shape: &[usize]) -> (Vec<isize>, usize, usize) {
        let mut strides = vec![0_isize; shape.len()];
        let mut span = if self == Layout::Sliced { 2 } else { 1 };
        let order: Vec<usize> = match self {
            Layout::Transposed => (0..shape.len()).collect(),
            _ => (0..shape.len()).rev().collect(),
        };
        for d in order {
            strides[d] = span as isize;
            if self == Layout::Broadcast && d == 0 {
                strides[d] = 0;
            } else {
                span *= shape[d].max(1);
            }
        }
        let mut first = 0;
        if self == Layout::Negative {
            for (stride, size) in strides.iter_mut().zip(shape) {
                first += stride.unsigned_abs() * size.saturating_sub(1);
                *stride = -*stride;
            }
        }
        (strides, first, span)
    }
}

/// A tensor argument: its elements and their layout.
#[derive(Clone, Debug)]
pub struct Operand {
    /// The elements.
    pub array: Array,
    /// Their layout.
    pub layout: Layout,
}

/// An argument of a call.
#[derive(Clone, Debug)]
pub enum Arg {
    /// A tensor.
    Tensor(Operand),
    /// A list of tensors, or none in its place.
    Tensors(Vec<Option<Operand>>),
    /// Anything else.
    Plain(Value),
}

impl Array {
    /// Returns the array as a contiguous tensor of the host.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn to_tensor(&self) -> Result<Tensor> {
        let bytes: Vec<u8> = self.items.iter().flat_map(|item| encode(*item, self.dtype)).collect();
        let buffer = BufferHandle::new(Arc::new(HostBuffer::copy_of(&bytes)?), self.dtype)?;
        let strides = layout::contiguous_strides(&self.shape);
        Tensor::from_parts(buffer, Shape::new(&self.shape)?, strides, 0)
    }
}

impl Arg {
    /// Returns the argument with contiguous tensors of the host.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub fn to_value(&self) -> Result<Value> {
        let tensor = |operand: &Operand| operand.array.to_tensor().map(Value::Tensor);
        Ok(match self {
            Arg::Plain(value) => value.clone(),
            Arg::Tensor(operand) => tensor(operand)?,
            Arg::Tensors(all) => {
                let each = all.iter().map(|one| one.as_ref().map_or(Ok(Value::None), tensor));
                Value::List(each.collect::<Result<_>>()?)
            }
        })
    }

    /// Returns the tensors in it.
    pub fn operands(&self) -> Vec<&Operand> {
        match self {
            Arg::Tensor(operand) => vec![operand],
            Arg::Tensors(all) => all.iter().flatten().collect(),
            Arg::Plain(_) => Vec::new(),
        }
    }

    /// Returns the tensors in it.
    pub fn operands_mut(&mut self) -> Vec<&mut Operand> {
        match self {
            Arg::Tensor(operand) => vec![operand],
            Arg::Tensors(all) => all.iter_mut().flatten().collect(),
            Arg::Plain(_) => Vec::new(),
        }
    }
}
