//! The graphs of a call while they are made: tensors of the call as tensors of graphs, and what is
//! between.

use keyfold_core::layout::{broadcast_strides, may_overlap, reshape_strides};
use keyfold_core::{DType, Error, ErrorKind, Result, Shape};
use keyfold_tensor::Tensor;

use crate::{DataType, GraphSpec, Layout, OpSpec, Operation, Pointwise, Port, TensorSpec, Uid};

/// Where the memory of a graph's tensor comes from, by its place in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// An input of the call.
    Input(usize),
    /// A copy of an input.
    Copy(usize),
    /// An output of the call.
    Output(usize),
    /// Memory of the run's own.
    Scratch(usize),
}

/// A view of memory as a graph sees it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Operand {
    pub(super) source: Source,
    pub(super) dtype: DataType,
    pub(super) dims: Vec<i64>,
    pub(super) strides: Vec<i64>,
    alignment: i64,
}

impl Operand {
    /// Returns packed memory under other dimensions.
    pub(super) fn packed_as(&self, dims: &[i64]) -> Result<Operand> {
        let strides = Layout::Packed.strides(dims)?;
        Ok(Operand { dims: dims.to_vec(), strides, ..self.clone() })
    }
}

/// A contiguous copy of an input, broadcast to a shape where one is given.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CopyOf {
    pub(super) input: usize,
    pub(super) shape: Option<Shape>,
}

/// Contiguous memory of a run's own; with a number it is filled before the first graph runs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scratch {
    pub(super) shape: Shape,
    pub(super) dtype: DType,
    pub(super) fill: Option<f64>,
}

/// What gives an output its elements without a graph.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Finish {
    /// One number.
    Fill { output: usize, number: f64 },
    /// A tensor, broadcast to this shape of the output's elements.
    Spread { output: usize, shape: Shape, from: Operand },
}

/// A graph and the memory of its tensors, in the order of the graph's tensors with memory.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) graph: GraphSpec,
    pub(super) bound: Vec<(Uid, Operand)>,
}

/// What a call becomes: graphs one after another, and the memory between them.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    inputs: &'a [&'a Tensor],
    outputs: &'a [&'a Tensor],
    /// The dtype that everything is computed in: float64 if one of the tensors is, else float32.
    pub(super) compute: DataType,
    pub(super) copies: Vec<CopyOf>,
    pub(super) scratch: Vec<Scratch>,
    pub(super) steps: Vec<Step>,
    /// Conversions behind all steps.
    closing: Vec<Step>,
    pub(super) finish: Vec<Finish>,
}

/// Returns the error of a call that has no graph, for a reason that is a sentence about cuDNN's
/// graphs.
#[cold]
pub(super) fn refused(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::NotSupported, reason.into())
}

/// The greatest alignment that is told apart, in bytes.
const ALIGNMENT: usize = 16;

/// Returns the alignment of a tensor's first element in bytes. Memory that hides its address is
/// aligned itself.
pub(super) fn alignment(tensor: &Tensor) -> usize {
    let size = tensor.dtype().size();
    let place = match tensor.address() {
        0 => tensor.offset() * size,
        address => address,
    };
    let bits = (place | ALIGNMENT).trailing_zeros();
    (1 << bits).max(size.min(ALIGNMENT))
}

pub(super) fn product(sizes: &[i64]) -> i64 {
    sizes.iter().product()
}

fn shape_of(dims: &[i64]) -> Result<Shape> {
    let sizes: Vec<usize> = dims.iter().map(|&size| size as usize).collect();
    Shape::new(&sizes)
}

/// Gives dimensions of size 1 the strides that they have in packed tensors of the same order.
fn settle_strides(dims: &[i64], strides: &mut [i64]) {
    for axis in (0..dims.len()).rev() {
        if dims[axis] == 1 {
            strides[axis] = dims.get(axis + 1).map_or(1, |size| size * strides[axis + 1]);
        }
    }
}

impl<'a> Draft<'a> {
    pub(super) fn new(inputs: &'a [&'a Tensor], outputs: &'a [&'a Tensor]) -> Draft<'a> {
        let mut all = inputs.iter().chain(outputs);
        let wide = all.any(|tensor| tensor.dtype() == DType::F64);
        Draft {
            inputs,
            outputs,
            compute: if wide { DataType::F64 } else { DataType::F32 },
            copies: Vec::new(),
            scratch: Vec::new(),
            steps: Vec::new(),
            closing: Vec::new(),
            finish: Vec::new(),
        }
    }

    /// Returns the sizes of an input.
    pub(super) fn sizes(&self, input: usize) -> Vec<i64> {
        self.inputs[input].shape().iter().map(|&size| size as i64).collect()
    }

    /// Returns the sizes of an output.
    pub(super) fn sizes_of_output(&self, output: usize) -> Vec<i64> {
        self.outputs[output].shape().iter().map(|&size| size as i64).collect()
    }

    pub(super) fn dtype(&self, input: usize) -> Result<DataType> {
        DataType::of(self.inputs[input].dtype())
    }

    pub(super) fn dtype_of_output(&self, output: usize) -> Result<DataType> {
        DataType::of(self.outputs[output].dtype())
    }

    /// Returns whether all outputs are without elements, so that there is nothing to do.
    pub(super) fn is_empty(&self) -> bool {
        self.outputs.iter().all(|output| output.numel() == 0)
    }

    /// Returns whether an input is without elements.
    pub(super) fn has_empty_input(&self) -> bool {
        self.inputs.iter().any(|input| input.numel() == 0)
    }

    /// Returns an input under other dimensions: a view where its strides allow that, else a copy.
    /// Elements that overlap or lie backwards are copied, too, since cuDNN takes no strides of 0
    /// and below.
    pub(super) fn input(&mut self, input: usize, dims: &[i64]) -> Result<Operand> {
        let tensor = self.inputs[input];
        let (shape, strides) = (tensor.shape(), tensor.strides());
        let target = shape_of(dims)?;
        let plain = strides.iter().all(|&stride| stride >= 0) && !may_overlap(shape, strides);
        let found = plain.then(|| reshape_strides(shape, strides, &target)).flatten();
        let Some(found) = found else {
            let source = self.copy(CopyOf { input, shape: None });
            return self.packed(source, self.dtype(input)?, dims);
        };
        let mut strides: Vec<i64> = found.iter().map(|&stride| stride as i64).collect();
        settle_strides(dims, &mut strides);
        Ok(Operand {
            source: Source::Input(input),
            dtype: self.dtype(input)?,
            dims: dims.to_vec(),
            strides,
            alignment: alignment(tensor) as i64,
        })
    }

    /// Returns an input broadcast to a shape, under other dimensions: a copy, unless it has that
    /// shape already.
    pub(super) fn expanded(
        &mut self,
        input: usize,
        shape: &[i64],
        dims: &[i64],
    ) -> Result<Operand> {
        if self.sizes(input) == shape {
            return self.input(input, dims);
        }
        let shape = shape_of(shape)?;
        let tensor = self.inputs[input];
        broadcast_strides(tensor.shape(), tensor.strides(), &shape)?;
        let source = self.copy(CopyOf { input, shape: Some(shape) });
        self.packed(source, self.dtype(input)?, dims)
    }

    fn copy(&mut self, copy: CopyOf) -> Source {
        let known = self.copies.iter().position(|other| *other == copy);
        Source::Copy(known.unwrap_or_else(|| {
            self.copies.push(copy);
            self.copies.len() - 1
        }))
    }

    /// Returns an output under other dimensions. Outputs are contiguous.
    pub(super) fn output(&self, output: usize, dims: &[i64]) -> Result<Operand> {
        let operand = self.packed(Source::Output(output), self.dtype_of_output(output)?, dims)?;
        Ok(Operand { alignment: alignment(self.outputs[output]) as i64, ..operand })
    }

    /// Returns memory of the run's own, which a step writes before another reads it.
    pub(super) fn scratch(&mut self, dtype: DataType, dims: &[i64]) -> Result<Operand> {
        self.own(dtype, dims, None)
    }

    /// Returns memory of the run's own, filled with a number.
    pub(super) fn filled(&mut self, dtype: DataType, dims: &[i64], number: f64) -> Result<Operand> {
        self.own(dtype, dims, Some(number))
    }

    fn own(&mut self, dtype: DataType, dims: &[i64], fill: Option<f64>) -> Result<Operand> {
        self.scratch.push(Scratch { shape: shape_of(dims)?, dtype: dtype.storage(), fill });
        self.packed(Source::Scratch(self.scratch.len() - 1), dtype, dims)
    }

    fn packed(&self, source: Source, dtype: DataType, dims: &[i64]) -> Result<Operand> {
        let strides = Layout::Packed.strides(dims)?;
        let alignment = ALIGNMENT as i64;
        Ok(Operand { source, dtype, dims: dims.to_vec(), strides, alignment })
    }

    /// Returns an input that a graph takes as float32 or float64 only: halves are converted by a
    /// step.
    pub(super) fn wide_input(&mut self, input: usize, dims: &[i64]) -> Result<Operand> {
        let given = self.input(input, dims)?;
        if given.dtype.size() >= DataType::F32.size() {
            return Ok(given);
        }
        let wide = self.scratch(self.compute, dims)?;
        let step = self.conversion(&given, &wide);
        self.steps.push(step);
        Ok(wide)
    }

    /// Returns an output that a graph writes as float32 or float64 only: halves are converted by a
    /// step behind all others.
    pub(super) fn wide_output(&mut self, output: usize, dims: &[i64]) -> Result<Operand> {
        let wanted = self.output(output, dims)?;
        if wanted.dtype.size() >= DataType::F32.size() {
            return Ok(wanted);
        }
        let wide = self.scratch(self.compute, dims)?;
        let step = self.conversion(&wide, &wanted);
        self.closing.push(step);
        Ok(wide)
    }

    fn conversion(&self, from: &Operand, to: &Operand) -> Step {
        let mut sketch = self.sketch("convert");
        let (x, y) = (sketch.bind("x", from), sketch.bind("y", to));
        sketch.pointwise(Pointwise::new(crate::PointwiseMode::Identity), &[x], y);
        sketch.step
    }

    /// Fills an output with a number.
    pub(super) fn fill(&mut self, output: usize, number: f64) {
        self.finish.push(Finish::Fill { output, number });
    }

    /// Broadcasts a tensor to an output, whose elements have this shape.
    pub(super) fn spread(&mut self, output: usize, shape: &[i64], from: Operand) -> Result<()> {
        self.finish.push(Finish::Spread { output, shape: shape_of(shape)?, from });
        Ok(())
    }

    /// Begins a graph.
    pub(super) fn sketch(&self, name: &str) -> Sketch {
        let graph = GraphSpec { name: name.to_string(), ..GraphSpec::default() };
        Sketch { step: Step { graph, bound: Vec::new() }, compute: self.compute }
    }

    /// Adds a graph as the next step.
    pub(super) fn add(&mut self, sketch: Sketch) {
        self.steps.push(sketch.step);
    }

    /// Ends the draft: conversions of outputs follow all other steps.
    pub(super) fn close(&mut self) {
        self.steps.append(&mut self.closing);
    }
}

/// One graph of a draft.
#[derive(Debug)]
pub(super) struct Sketch {
    step: Step,
    compute: DataType,
}

impl Sketch {
    /// Returns the tensor of an operand, by a name for errors and drawings.
    pub(super) fn bind(&mut self, name: &str, operand: &Operand) -> Uid {
        let known = self.step.bound.iter().find(|entry| entry.1 == *operand);
        if let Some((uid, _)) = known {
            return *uid;
        }
        let uid = self.push(TensorSpec {
            uid: 0,
            name: name.to_string(),
            dtype: Some(operand.dtype),
            dims: operand.dims.clone(),
            strides: operand.strides.clone(),
            alignment: operand.alignment,
            is_virtual: false,
            by_value: false,
            scalar: None,
        });
        self.step.bound.push((uid, operand.clone()));
        uid
    }

    /// Returns a number that belongs to the graph, as a tensor of that rank.
    pub(super) fn number(&mut self, value: f64, rank: usize) -> Uid {
        self.push(TensorSpec::number(0, self.compute, rank, value.into()))
    }

    /// Returns a virtual tensor with the dimensions and strides of another one.
    pub(super) fn between(&mut self, like: Uid) -> Uid {
        let like = self.step.graph.tensor(like).expect("a tensor of this graph").clone();
        let (name, dtype) = (String::new(), Some(self.compute));
        self.push(TensorSpec { name, dtype, is_virtual: true, alignment: 16, ..like })
    }

    fn push(&mut self, mut tensor: TensorSpec) -> Uid {
        let tensors = &mut self.step.graph.tensors;
        tensor.uid = tensors.len() as Uid + 1;
        tensors.push(tensor);
        tensors.len() as Uid
    }

    /// Adds an operation.
    pub(super) fn operation(
        &mut self,
        operation: Operation,
        inputs: &[(Port, Uid)],
        outputs: &[(Port, Uid)],
    ) {
        let mut op = OpSpec::new(operation, inputs, outputs);
        op.compute = op.compute.map(|_| self.compute);
        self.step.graph.operations.push(op);
    }

    /// Adds a pointwise operation of one to three inputs.
    pub(super) fn pointwise(&mut self, pointwise: Pointwise, inputs: &[Uid], y: Uid) {
        let ports = [Port::X, Port::B, Port::T].into_iter().zip(inputs.iter().copied());
        let ports: Vec<(Port, Uid)> = ports.collect();
        self.operation(Operation::Pointwise(pointwise), &ports, &[(Port::Y, y)]);
    }

    /// Adds pointwise operations one after another: each reads what the one before wrote, and its
    /// own second input. The last one writes `y`; without operations, `x` is `y`.
    pub(super) fn chain(&mut self, x: Uid, chain: Vec<(Pointwise, Option<Uid>)>, y: Uid) {
        let (mut last, count) = (x, chain.len());
        for (at, (pointwise, second)) in chain.into_iter().enumerate() {
            let to = if at + 1 == count { y } else { self.between(y) };
            let inputs: Vec<Uid> = [Some(last), second].into_iter().flatten().collect();
            self.pointwise(pointwise, &inputs, to);
            last = to;
        }
    }
}
