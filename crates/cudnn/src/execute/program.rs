//! A graph as a list of steps, and how they are run.

use std::borrow::Cow;
use std::sync::Arc;

use keyfold_core::{DType, Error, ErrorKind, Result, Scalar};
use keyfold_dispatch::{DispatchKey, DispatchKeySet, exclude_keys};
use keyfold_tensor::Tensor;

use super::calls::{Calls, sizes};
use super::node::{Node, Results, converted};
use super::{Precision, convolution, float8, products};
use super::{attention, movement, norm, pointwise, pool, reduction};
use crate::{
    DataType, Number, OpSpec, Operation, PlanRunner, Pointwise, PointwiseMode, Port, Progress,
    TensorSpec, Uid, ValidGraph, VariantPack,
};

/// Operations that one call computes: several where the first is a product with a bias or an
/// activation.
#[derive(Debug)]
struct Step {
    operations: Vec<OpSpec>,
    /// How errors name it.
    place: String,
    /// For several operations, the port and number of the bias, and the activation's name.
    epilogue: Option<(Option<Uid>, &'static str)>,
    /// The expression of a pointwise operation.
    expression: Option<pointwise::Expression>,
    /// The places of virtual tensors that no later step reads.
    frees: Vec<usize>,
}

/// The runner of a plan.
#[derive(Debug)]
pub(super) struct Program {
    graph: Arc<ValidGraph>,
    precision: Precision,
    calls: Calls,
    /// The places of tensors in the graph's list, in the order of their numbers.
    places: Vec<(Uid, usize)>,
    steps: Vec<Step>,
    /// The numbers that belong to the graph, at the places of their tensors.
    constants: Vec<Option<Tensor>>,
    /// The numbers of the bytes of 8-bit floats that the graph has.
    tables: Vec<(DataType, Tensor)>,
}

impl Program {
    pub(super) fn new(
        graph: Arc<ValidGraph>,
        precision: Precision,
        calls: Calls,
        progress: Progress<'_>,
    ) -> Result<Program> {
        let tensors = &graph.spec().tensors;
        let places = tensors.iter().enumerate().map(|(place, t)| (t.uid, place));
        let mut places: Vec<(Uid, usize)> = places.collect();
        places.sort_unstable();
        let mut program = Program {
            precision,
            calls,
            places,
            steps: Vec::new(),
            constants: vec![None; tensors.len()],
            tables: Vec::new(),
            graph: graph.clone(),
        };
        for dtype in [DataType::E4M3, DataType::E5M2] {
            if tensors.iter().any(|tensor| tensor.dtype == Some(dtype)) {
                let table = Tensor::from_slice(&float8::table(dtype), &[256])?;
                program.tables.push((dtype, table.to_device(program.calls.device())?));
            }
        }
        for (place, tensor) in tensors.iter().enumerate() {
            if let Some(number) = tensor.scalar {
                program.constants[place] = Some(program.constant(tensor, number)?);
            }
        }
        let total = graph.spec().operations.len();
        let operations: Vec<&OpSpec> = graph.operations().collect();
        let in_place = operations.iter().find_map(|op| match &op.operation {
            Operation::Concatenate(concatenate) => Some((*op, concatenate.in_place_index?)),
            _ => None,
        });
        if let Some((op, index)) = in_place {
            let message = format!(
                "in_place_index is {index}, but the reference executor copies each input, and no input may \
                 overlap its output: leave it out"
            );
            return Err(Error::new(ErrorKind::NotSupported, message).at(&graph.spec().place(op)));
        }
        let mut taken = vec![false; total];
        let mut steps: Vec<(usize, Step)> = Vec::new();
        for (done, op) in operations.iter().enumerate() {
            let what = op.label();
            progress(crate::Step { done, total, what })?;
            if taken[done] {
                continue;
            }
            let (chain, epilogue) = program.fused(&operations, done, &taken);
            for &index in &chain {
                taken[index] = true;
            }
            let place = chain.iter().map(|&i| operations[i].label()).collect::<Vec<_>>();
            let last = *chain.last().expect("a chain has its first operation");
            let place = match chain.len() {
                1 => graph.spec().place(op),
                _ => format!("{} ({})", graph.spec().place(op), place.join(" + ")),
            };
            let expression = match &op.operation {
                Operation::Pointwise(pointwise) => {
                    let dtype = program.working(op);
                    Some(pointwise::Expression::new(pointwise, dtype.is_floating()))
                }
                _ => None,
            };
            let operations = chain.iter().map(|&index| operations[index].clone()).collect();
            let step = Step { operations, place, epilogue, expression, frees: Vec::new() };
            steps.push((last, step));
        }
        // A chain runs where its last operation would: all that it reads is there.
        steps.sort_by_key(|step| step.0);
        program.steps = steps.into_iter().map(|step| step.1).collect();
        program.free_early();
        Ok(program)
    }

    /// Returns a number of the graph as the executor holds it.
    fn constant(&self, spec: &TensorSpec, number: Number) -> Result<Tensor> {
        let dtype = dtype_of(spec);
        let scalar = match number {
            Number::Int(i) if !dtype.is_float() => Scalar::Int(i),
            number if dtype.is_float() => Scalar::Float(number.as_f64()),
            number => Scalar::Int(number.as_f64() as i64),
        };
        let shape: Vec<usize> = spec.dims.iter().map(|&size| size as usize).collect();
        let wide = if dtype.is_float() { DType::F64 } else { DType::I64 };
        let x = Tensor::full(&shape, scalar, wide, self.calls.device())?;
        match self.precision {
            Precision::AsSpec => converted(&self.calls, &x, dtype, dtype.storage()),
            _ => self.calls.to(&x, self.precision.held(dtype)),
        }
    }

    /// Returns the operations that one call computes, of which the first is given, and the bias and
    /// activation behind a product. Operations that another call computes are taken: where two
    /// products are added, the sum can be the bias of either.
    fn fused(
        &self,
        operations: &[&OpSpec],
        first: usize,
        taken: &[bool],
    ) -> (Vec<usize>, Option<(Option<Uid>, &'static str)>) {
        let alone = (vec![first], None);
        let op = operations[first];
        let (port, takes_bias): (Port, &dyn Fn(&TensorSpec) -> bool) = match &op.operation {
            Operation::ConvFprop(conv) if conv.alpha.0 == 1.0 && conv.beta.0 == 0.0 => {
                let dims = self.dims_of(op, Port::Y);
                (Port::Y, &move |bias| along(bias, dims, 1))
            }
            Operation::Matmul
                if op.inputs.len() == 2
                    && op.input(Port::B).is_some_and(|b| {
                        let b = self.spec(self.place(b));
                        b.dims[..b.rank() - 2].iter().all(|&size| size == 1)
                    }) =>
            {
                let dims = self.dims_of(op, Port::C);
                (Port::C, &move |bias| along(bias, dims, dims.len() - 1))
            }
            _ => return alone,
        };
        let dtype = self.working(op);
        // A fused kernel of halves rounds once, and the graph says that each result is rounded.
        if !matches!(dtype, DType::F32 | DType::F64) {
            return alone;
        }
        let Some(mut result) = op.output(port) else { return alone };
        let (mut chain, mut bias, mut activation) = (vec![first], None, None);
        while let Some(next) = self.only_reader(operations, result, dtype) {
            let op = operations[next];
            let Operation::Pointwise(pointwise) = &op.operation else { break };
            if taken[next] || self.working(op) != dtype {
                break;
            }
            let other = op.inputs.iter().map(|entry| entry.1).find(|&uid| uid != result);
            match (activation_of(pointwise), other) {
                (Some(name), None) => activation = Some(name),
                (None, Some(uid))
                    if bias.is_none()
                        && pointwise.mode == PointwiseMode::Add
                        && (pointwise.alpha1.0, pointwise.alpha2.0) == (1.0, 1.0)
                        && takes_bias(self.spec(self.place(uid))) =>
                {
                    bias = Some(uid);
                }
                _ => break,
            }
            chain.push(next);
            result = op.outputs[0].1;
            if activation.is_some() {
                break;
            }
        }
        match chain.len() {
            1 => alone,
            _ => (chain, Some((bias, activation.unwrap_or("none")))),
        }
    }

    fn dims_of(&self, op: &OpSpec, port: Port) -> &[i64] {
        op.output(port).map_or(&[], |uid| &self.spec(self.place(uid)).dims)
    }

    /// Returns the one operation that reads a tensor, once, where the tensor needs no memory and
    /// isn't rounded.
    fn only_reader(&self, operations: &[&OpSpec], uid: Uid, dtype: DType) -> Option<usize> {
        let spec = self.spec(self.place(uid));
        if !spec.is_virtual || self.precision.held(dtype_of(spec)) != dtype {
            return None;
        }
        let reads = |op: &OpSpec| op.inputs.iter().filter(|entry| entry.1 == uid).count();
        let mut readers = (0..operations.len()).filter(|&index| reads(operations[index]) > 0);
        let reader = readers.next()?;
        (readers.next().is_none() && reads(operations[reader]) == 1).then_some(reader)
    }

    /// Notes for each step the virtual tensors that no later one reads.
    fn free_early(&mut self) {
        let mut seen = vec![false; self.constants.len()];
        for index in (0..self.steps.len()).rev() {
            let mut frees = Vec::new();
            for op in &self.steps[index].operations {
                for (_, uid) in op.inputs.iter().chain(&op.outputs) {
                    let place = self.place(*uid);
                    let is_virtual = self.graph.spec().tensors[place].is_virtual;
                    if is_virtual && !std::mem::replace(&mut seen[place], true) {
                        frees.push(place);
                    }
                }
            }
            self.steps[index].frees = frees;
        }
    }

    pub(super) fn calls(&self) -> &Calls {
        &self.calls
    }

    pub(super) fn precision(&self) -> Precision {
        self.precision
    }

    /// Returns the dtype that an operation computes in.
    fn working(&self, op: &OpSpec) -> DType {
        self.precision.working(op.compute.unwrap_or(DataType::F32))
    }

    /// Returns the place of a tensor in the graph's list.
    pub(super) fn place(&self, uid: Uid) -> usize {
        self.find(uid).expect("operations of a valid graph name its tensors")
    }

    fn find(&self, uid: Uid) -> Option<usize> {
        let found = self.places.binary_search_by_key(&uid, |entry| entry.0);
        found.ok().map(|index| self.places[index].1)
    }

    pub(super) fn spec(&self, place: usize) -> &TensorSpec {
        &self.graph.spec().tensors[place]
    }

    /// Says what each step does.
    pub(super) fn describe(&self) -> Vec<String> {
        let say = |step: &Step| {
            let mut text =
                step.operations.iter().map(OpSpec::label).collect::<Vec<_>>().join(" + ");
            if step.epilogue.is_some() {
                text.push_str(match step.operations[0].operation {
                    Operation::Matmul => ", as one keyfold::linear_activation",
                    _ => ", as one keyfold::convolution_activation",
                });
            }
            let freed: Vec<String> =
                step.frees.iter().map(|&place| self.spec(place).label()).collect();
            if !freed.is_empty() {
                text.push_str("; then frees ");
                text.push_str(&freed.join(", "));
            }
            text
        };
        self.steps.iter().map(say).collect()
    }

    /// Returns the most bytes that virtual tensors hold at once during a run.
    pub(super) fn peak_bytes(&self) -> u64 {
        let (mut now, mut peak) = (0_u64, 0);
        let bytes = |place: usize| {
            let spec = self.spec(place);
            let size = self.precision.held(dtype_of(spec)).size() as u64;
            // The validator has proven that the number of elements is one of 64 bits.
            spec.numel().map_or(0, |count| (count as u64).saturating_mul(size))
        };
        for step in &self.steps {
            let outputs = step.operations.last().map_or(&[][..], |op| &op.outputs[..]);
            let places = outputs.iter().map(|entry| self.place(entry.1));
            let written = places.filter(|&place| self.spec(place).is_virtual).map(bytes);
            now = written.fold(now, u64::saturating_add);
            peak = peak.max(now);
            // Results within a step have no memory, and aren't in the sum.
            let first = &step.operations[..step.operations.len() - 1];
            let within: Vec<Uid> = first.iter().flat_map(|op| &op.outputs).map(|e| e.1).collect();
            let freed = step.frees.iter().filter(|&&place| !within.contains(&self.spec(place).uid));
            now = freed.map(|&place| bytes(place)).fold(now, u64::saturating_sub);
        }
        peak
    }

    /// Returns the memory that the program holds, in bytes, about.
    pub(super) fn bytes(&self) -> u64 {
        let constants = self.constants.iter().flatten().map(Tensor::nbytes).sum::<usize>();
        let tables = self.tables.len() * 1024;
        (constants + tables + 256 * self.steps.len() + 128 * self.places.len()) as u64
    }

    /// Returns a tensor of the graph in a dtype: itself where it has that.
    pub(super) fn load<'a>(
        &self,
        memory: &'a [Option<Tensor>],
        place: usize,
        dtype: DType,
    ) -> Result<Cow<'a, Tensor>> {
        let tensor = memory[place].as_ref().ok_or_else(|| self.missing(place))?;
        let of = dtype_of(self.spec(place));
        match tensor.dtype() {
            DType::U8 if of.is_f8() => self.decoded(tensor, of, dtype).map(Cow::Owned),
            held if held == dtype => Ok(Cow::Borrowed(tensor)),
            _ => self.calls.to(tensor, dtype).map(Cow::Owned),
        }
    }

    /// Returns the numbers of bytes of 8-bit floats that the graph has, in a dtype.
    pub(super) fn decoded(&self, bytes: &Tensor, of: DataType, dtype: DType) -> Result<Tensor> {
        match self.tables.iter().find(|table| table.0 == of) {
            Some((_, table)) => self.calls.to(&float8::decode(&self.calls, bytes, table)?, dtype),
            None => self.calls.to(bytes, dtype),
        }
    }

    /// Returns the tensor of the caller that results in a dtype can be written to as they are.
    pub(super) fn target<'a>(
        &self,
        memory: &'a [Option<Tensor>],
        place: usize,
        dtype: DType,
    ) -> Option<&'a Tensor> {
        let spec = self.spec(place);
        let of = dtype_of(spec);
        match &memory[place] {
            Some(tensor) if !spec.is_virtual && !of.is_f8() && of.storage() == dtype => {
                Some(tensor)
            }
            _ => None,
        }
    }

    #[cold]
    fn missing(&self, place: usize) -> Error {
        let (spec, name) = (self.spec(place), &self.graph.spec().name);
        let message = format!(
            "graph {name:?}: the pack has no memory for tensor {} ({} {:?})",
            spec.label(),
            dtype_of(spec),
            spec.dims
        );
        Error::new(ErrorKind::Value, message)
    }

    fn run_step(&self, step: &Step, memory: &[Option<Tensor>]) -> Result<(usize, Results)> {
        let node = |index: usize| {
            let op = &step.operations[index];
            let expression = step.expression.as_ref();
            Node { program: self, op, dtype: self.working(op), expression, memory }
        };
        let (first, last) = (node(0), step.operations.len() - 1);
        let results = if let Some((bias, activation)) = step.epilogue {
            let load = |uid: Uid| self.load(memory, self.place(uid), first.dtype);
            let bias = bias.map(load).transpose()?;
            let bias = bias.as_deref();
            let port = step.operations[last].outputs[0].0;
            let last = node(last);
            match &first.op.operation {
                Operation::ConvFprop(conv) => {
                    convolution::fused(&first, conv, bias, activation, (&last, port))
                }
                _ => products::fused(&first, bias, activation, (&last, port)),
            }?
        } else {
            compute(&first)?
        };
        Ok((last, results))
    }

    /// Keeps a result: as its virtual tensor, or in the caller's.
    fn store(&self, memory: &mut [Option<Tensor>], place: usize, result: &Tensor) -> Result<()> {
        let spec = self.spec(place);
        let dtype = dtype_of(spec);
        let result = match sizes(result) == spec.dims {
            true => result.clone(),
            false => self.calls.reshape(result, &spec.dims)?,
        };
        if spec.is_virtual {
            let held = self.precision.held(dtype);
            // Operations that move elements copy the bytes of 8-bit floats.
            memory[place] = Some(match dtype.is_f8() && result.dtype() == DType::U8 {
                true if held != DType::U8 => self.decoded(&result, dtype, held)?,
                _ => converted(&self.calls, &result, dtype, held)?,
            });
            return Ok(());
        }
        let target = memory[place].as_ref().ok_or_else(|| self.missing(place))?;
        // A copy rounds floats, once.
        let result = match dtype.is_float() && !dtype.is_f8() {
            true => result,
            false => converted(&self.calls, &result, dtype, dtype.storage())?,
        };
        self.calls.one("aten::copy_", &[target.into(), (&result).into()]).map(|_| ())
    }
}

impl PlanRunner for Program {
    fn run(&self, pack: &VariantPack<'_>) -> Result<()> {
        let modes =
            DispatchKeySet::EMPTY.insert(DispatchKey::Autocast).insert(DispatchKey::Autograd);
        let _guard = exclude_keys(modes);
        let mut memory = self.constants.clone();
        for (uid, tensor) in pack.tensors {
            let Some(place) = self.find(*uid) else { continue };
            let by_value = self.spec(place).by_value && tensor.device() != self.calls.device();
            memory[place] = Some(match by_value {
                true => tensor.to_device(self.calls.device())?,
                false => tensor.detach(),
            });
        }
        for (place, spec) in self.graph.spec().tensors.iter().enumerate() {
            if !spec.is_virtual && memory[place].is_none() {
                return Err(self.missing(place));
            }
        }
        for step in &self.steps {
            let at = |error: Error| error.at(&step.place);
            let (last, results) = self.run_step(step, &memory).map_err(at)?;
            for (port, result) in results {
                if let Some(uid) = step.operations[last].output(port) {
                    self.store(&mut memory, self.place(uid), &result).map_err(at)?;
                }
            }
            for &place in &step.frees {
                memory[place] = None;
            }
        }
        Ok(())
    }
}

fn compute(node: &Node<'_>) -> Result<Results> {
    match &node.op.operation {
        Operation::ConvFprop(conv) => convolution::forward(node, conv),
        Operation::ConvDgrad(conv) => convolution::data_gradient(node, conv),
        Operation::ConvWgrad(conv) => convolution::filter_gradient(node, conv),
        Operation::Pointwise(pointwise) => pointwise::compute(node, pointwise),
        Operation::Resample(resample) => pool::forward(node, resample),
        Operation::ResampleBackward(resample) => pool::backward(node, resample),
        Operation::Norm(norm) => norm::forward(node, norm),
        Operation::NormBackward(norm) => norm::backward(node, norm),
        Operation::Matmul => products::matmul(node),
        Operation::GroupedMatmul => products::grouped(node),
        Operation::Reduction(reduction) => reduction::reduce(node, reduction),
        Operation::GenStats => reduction::gen_stats(node),
        Operation::Softmax => reduction::softmax(node),
        Operation::DiagonalBandMask(mask) => reduction::band_mask(node, mask),
        Operation::Reshape
        | Operation::Transpose(_)
        | Operation::Slice(_)
        | Operation::Concatenate(_) => movement::compute(node),
        Operation::Sdpa(attributes) => attention::forward(node, attributes),
        Operation::SdpaBackward(attributes) => attention::backward(node, attributes),
    }
}

pub(super) fn dtype_of(spec: &TensorSpec) -> DataType {
    spec.dtype.expect("tensors of a valid graph have dtypes")
}

/// Returns whether a tensor has a number for each index of one dimension of others.
fn along(bias: &TensorSpec, dims: &[i64], axis: usize) -> bool {
    let fits = |(index, &size): (usize, &i64)| size == if index == axis { dims[axis] } else { 1 };
    bias.rank() == dims.len() && bias.dims.iter().enumerate().all(fits)
}

/// Returns the name of an activation that products end with.
fn activation_of(pointwise: &Pointwise) -> Option<&'static str> {
    match pointwise.mode {
        PointwiseMode::Relu if *pointwise == Pointwise::new(PointwiseMode::Relu) => Some("relu"),
        PointwiseMode::Gelu => Some("gelu"),
        PointwiseMode::GeluApproxTanh => Some("gelu_tanh"),
        PointwiseMode::Sigmoid => Some("sigmoid"),
        PointwiseMode::Tanh => Some("tanh"),
        _ => None,
    }
}
