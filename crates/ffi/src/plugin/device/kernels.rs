//! The operations of a plugin's devices.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use keyfold_backend::primitives::{Primitive, PrimitiveParams, Primitives};
use keyfold_backend::{
    GpuBackend, Groups, Index, IndexParams, Launch, Linalg, Offer, Operation, Pointwise, Positions,
    Random, RandomParams, Reason, Reduce, ReduceParams, RowParams, Rows, Scan, ScanParams,
};
use keyfold_core::{DType, Error, ErrorKind, Result};
use keyfold_plugin::abi::device::{
    self as abi, GROUP_INDEX, GROUP_LINALG, GROUP_POINTWISE, GROUP_RANDOM, GROUP_REDUCE,
    GROUP_ROWS, GROUP_SCAN, GROUPS,
};
use keyfold_plugin::abi::{DLDataType, DLTensor, Text};
use keyfold_tensor::Tensor;
use keyfold_tensor::device::{Memory, current_stream};
use smallvec::SmallVec;

use super::groups::bit_of;
use super::memory::{PluginBuffer, PluginMemory};
use super::{COMPILES, PluginDevice};
use crate::plugin::table;
use crate::plugin::values::dtype_to;

/// A plugin's device type as a backend. It is its own kernel of every operation, since parameters
/// have the operation and tensors the dtypes.
#[derive(Clone)]
pub(super) struct PluginBackend {
    pub(super) memory: PluginMemory,
}

impl fmt::Debug for PluginBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PluginBackend({})", self.device().label())
    }
}

/// An operation: the bit of its group, and its name.
pub(super) type Named = (u64, &'static str);

/// A question to the slot `support`.
#[derive(PartialEq)]
pub(super) struct Question {
    operation: Named,
    inputs: SmallVec<[DType; 4]>,
    outputs: SmallVec<[DType; 4]>,
}

fn group_name(group: u64) -> &'static str {
    GROUPS.iter().find(|(bit, _)| *bit == group).map_or("?", |(_, name)| *name)
}

impl PluginBackend {
    pub(super) fn new(device: Arc<PluginDevice>) -> Self {
        PluginBackend { memory: PluginMemory(device) }
    }

    pub(super) fn device(&self) -> &Arc<PluginDevice> {
        &self.memory.0
    }

    /// Returns this backend if it has the group.
    fn with(&self, group: u64) -> Option<&Self> {
        (self.device().spec.groups & group != 0).then_some(self)
    }

    /// Asks the plugin whether it has an operation. A question that fails, by a panic, say, is no
    /// refusal: then calls of the operation fail with its error.
    ///
    /// # Errors
    /// The plugin's reason why it hasn't.
    pub(super) fn supported(
        &self,
        (group, name): Named,
        inputs: &[DType],
        outputs: &[DType],
    ) -> Result<(), Reason> {
        let device = self.device();
        let reason = |error: Error| Reason(error.message().to_owned().into());
        let slot = device.slot("support", device.spec.support).map_err(reason)?;
        let all = |dtypes: &[DType]| -> SmallVec<[DLDataType; 4]> {
            dtypes.iter().map(|dtype| dtype_to(*dtype)).collect()
        };
        let (dtypes, output_dtypes) = (all(inputs), all(outputs));
        let operation = abi::Operation {
            size: size_of::<abi::Operation>() as u32,
            inputs: dtypes.len() as u32,
            group: Text::new(group_name(group)),
            name: Text::new(name),
            input_dtypes: dtypes.as_ptr(),
            output: dtype_to(outputs.first().copied().unwrap_or(DType::Bool)),
            reserved: 0,
            output_dtypes: output_dtypes.as_ptr(),
            outputs: output_dtypes.len() as u32,
            reserved2: 0,
        };
        // SAFETY: a slot of the plugin with its data, and an operation that lives until it returns.
        let held = unsafe { table::take_held(slot(device.spec.data, &raw const operation)) };
        match held {
            None => Ok(()),
            // A refusal. Whoever reports it names the backend.
            Some(held) if held.error.kind() == ErrorKind::NotSupported => Err(reason(held.error)),
            Some(held) => {
                let error = device.failed(held, &format!("support of {name}"));
                let (inputs, outputs) = (inputs.into(), outputs.into());
                let question = Question { operation: (group, name), inputs, outputs };
                device.note_failure(question, error);
                Ok(())
            }
        }
    }

    /// Checks that the plugin could say whether it has an operation.
    ///
    /// # Errors
    /// That of the slot `support`, if it failed. There may be more tensors than in the question.
    pub(super) fn check_claim(
        &self,
        operation: Named,
        inputs: &[DType],
        outputs: &[DType],
    ) -> Result<()> {
        let failure = self.device().failure(|question| {
            question.operation == operation
                && inputs.starts_with(&question.inputs)
                && outputs.starts_with(&question.outputs)
        });
        failure.map_or(Ok(()), Err)
    }

    /// Returns the kernel of an operation, if the plugin has it.
    fn offer<T>(&self, operation: Named, inputs: &[DType], output: DType, kernel: T) -> Offer<T> {
        match self.supported(operation, inputs, &[output]) {
            Ok(()) => Offer::Native(kernel),
            Err(reason) => Offer::No(reason),
        }
    }

    /// Returns a tensor as the plugin gets it. It borrows the tensor's shape and strides.
    pub(super) fn described(&self, tensor: &Tensor) -> Result<DLTensor> {
        let own = tensor.buffer().downcast_ref::<PluginBuffer>();
        let mut dl = self.memory.described(own, tensor.buffer())?;
        dl.dtype = dtype_to(tensor.dtype());
        dl.ndim = tensor.ndim() as i32;
        // `usize` and `isize` have the width of `i64` (asserted in `abi`).
        dl.shape = tensor.shape().as_ptr().cast_mut().cast();
        dl.strides = tensor.strides().as_ptr().cast_mut().cast();
        dl.byte_offset = (tensor.offset() * tensor.dtype().size()) as u64;
        Ok(dl)
    }

    /// Runs an operation. `params` is the group's struct, or null.
    pub(super) fn execute(
        &self,
        (group, name): Named,
        params: *const c_void,
        inputs: &[&Tensor],
        outputs: &[&Tensor],
    ) -> Result<()> {
        let device = self.device();
        let slot = device.slot("execute", device.spec.execute)?;
        let tensors = inputs.iter().chain(outputs).map(|tensor| self.described(tensor));
        let tensors: SmallVec<[DLTensor; 4]> = tensors.collect::<Result<_>>()?;
        let dtypes = |tensors: &[&Tensor]| -> SmallVec<[DType; 4]> {
            tensors.iter().map(|tensor| tensor.dtype()).collect()
        };
        self.check_claim((group, name), &dtypes(inputs), &dtypes(outputs))?;
        let stream = outputs.first().map_or_else(Default::default, |o| current_stream(o.device()));
        let operator = device.running_operator();
        let call = abi::Execution {
            size: size_of::<abi::Execution>() as u32,
            inputs: inputs.len() as u32,
            outputs: outputs.len() as u32,
            stream: stream.number(),
            group: Text::new(group_name(group)),
            name: Text::new(name),
            operator: Text::new(&operator),
            params,
            tensors: tensors.as_ptr(),
        };
        // SAFETY: a slot of the plugin with its data; everything lives until it returns, and the
        // tensors are of its own memory.
        let done = unsafe {
            let error = slot(device.spec.data, &raw const call);
            device.outcome(error, || format!("execute of {name}"))
        };
        done.map_err(|error| match error.kind() {
            // A claim that doesn't hold, unless a part of it was refused in words.
            ErrorKind::NotSupported => Error::new(
                ErrorKind::NotSupported,
                format!("{}; its slot support claims this operation", error.message()),
            ),
            _ => error,
        })
    }
}

/// Returns the address of parameters.
pub(super) fn address<P>(params: &P) -> *const c_void {
    std::ptr::from_ref(params).cast()
}

impl Primitives for PluginBackend {
    fn primitive(
        &self,
        primitive: Primitive,
        inputs: &[DType],
        output: DType,
    ) -> Offer<&dyn Launch<PrimitiveParams>> {
        self.offer((GROUP_POINTWISE, primitive.name()), inputs, output, self)
    }
}

impl Launch<PrimitiveParams> for PluginBackend {
    unsafe fn launch(
        &self,
        params: &PrimitiveParams,
        inputs: &[&Tensor],
        out: &Tensor,
    ) -> Result<()> {
        let size = size_of::<abi::PointwiseParams>() as u32;
        let given = abi::PointwiseParams { size, fault: params.fault };
        let operation = (GROUP_POINTWISE, params.primitive.name());
        self.execute(operation, address(&given), inputs, &[out])
    }
}

impl Reduce for PluginBackend {
    fn reduce(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<ReduceParams>> {
        self.offer((GROUP_REDUCE, op.name()), &[input], output, self)
    }
}

impl Launch<ReduceParams> for PluginBackend {
    unsafe fn launch(&self, params: &ReduceParams, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
        let size = size_of::<abi::ReduceParams>() as u32;
        let given = abi::ReduceParams { size, keepdim: params.keepdim, dims: params.dims };
        self.execute((GROUP_REDUCE, params.op.name()), address(&given), inputs, &[out])
    }
}

impl Rows for PluginBackend {
    fn rows(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<RowParams>> {
        self.offer((GROUP_ROWS, op.name()), &[input], output, self)
    }
}

impl Launch<RowParams> for PluginBackend {
    unsafe fn launch(&self, params: &RowParams, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
        let given = abi::RowParams { size: size_of::<abi::RowParams>() as u32, axis: params.axis };
        self.execute((GROUP_ROWS, params.op.name()), address(&given), inputs, &[out])
    }
}

impl Scan for PluginBackend {
    fn scan(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<ScanParams>> {
        self.offer((GROUP_SCAN, op.name()), &[input], output, self)
    }
}

impl Launch<ScanParams> for PluginBackend {
    unsafe fn launch(&self, params: &ScanParams, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
        let given =
            abi::ScanParams { size: size_of::<abi::ScanParams>() as u32, axis: params.axis };
        self.execute((GROUP_SCAN, params.op.name()), address(&given), inputs, &[out])
    }
}

impl Linalg for PluginBackend {
    fn matmul(&self, input: DType, output: DType) -> Offer<&dyn Launch<()>> {
        self.offer((GROUP_LINALG, "matmul"), &[input, input], output, self)
    }
}

impl Launch<()> for PluginBackend {
    unsafe fn launch(&self, (): &(), inputs: &[&Tensor], out: &Tensor) -> Result<()> {
        self.execute((GROUP_LINALG, "matmul"), std::ptr::null(), inputs, &[out])
    }
}

/// The operation that writes the positions of true elements.
const POSITIONS: Named = (GROUP_INDEX, "positions");

impl Index for PluginBackend {
    fn index(&self, op: &'static Operation, elements: DType) -> Offer<&dyn Launch<IndexParams>> {
        let inputs = [elements, DType::I64];
        self.offer((GROUP_INDEX, op.name()), &inputs, elements, self)
    }

    fn positions(&self) -> Offer<&dyn Positions> {
        self.offer(POSITIONS, &[DType::Bool], DType::I64, self)
    }
}

impl Launch<IndexParams> for PluginBackend {
    unsafe fn launch(&self, params: &IndexParams, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
        let size = size_of::<abi::IndexParams>() as u32;
        let given = abi::IndexParams { size, at: params.at, dims: params.dims };
        self.execute((GROUP_INDEX, params.op.name()), address(&given), inputs, &[out])
    }
}

impl Positions for PluginBackend {
    fn positions(&self, mask: &Tensor) -> Result<Vec<Tensor>> {
        let device = self.device();
        let slot = device.slot("count_true", device.spec.count_true)?;
        let (dl, stream) = (self.described(mask)?, current_stream(mask.device()));
        self.check_claim(POSITIONS, &[DType::Bool], &[DType::I64])?;
        let mut count = 0;
        // SAFETY: a slot of the plugin with its data, and a tensor of its own memory.
        unsafe {
            let error = slot(device.spec.data, &raw const dl, stream.number(), &raw mut count);
            device.outcome(error, || "count_true".to_owned())?;
        }
        let count = usize::try_from(count).ok().filter(|count| *count <= mask.numel());
        let Some(count) = count else {
            let message = format!(
                "{}, count_true: it counted more elements than the mask's {}",
                device.label(),
                mask.numel()
            );
            return Err(Error::new(ErrorKind::KernelFailed, message));
        };
        let positions =
            (0..mask.ndim()).map(|_| Tensor::empty(&[count], DType::I64, mask.device()));
        let positions = positions.collect::<Result<Vec<_>>>()?;
        if count > 0 && !positions.is_empty() {
            let outputs: Vec<&Tensor> = positions.iter().collect();
            self.execute(POSITIONS, std::ptr::null(), &[mask], &outputs)?;
        }
        Ok(positions)
    }
}

impl Random for PluginBackend {
    fn random(&self, op: &'static Operation, output: DType) -> Offer<&dyn Launch<RandomParams>> {
        self.offer((GROUP_RANDOM, op.name()), &[], output, self)
    }
}

impl Launch<RandomParams> for PluginBackend {
    unsafe fn launch(&self, params: &RandomParams, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
        let (size, reserved) = (size_of::<abi::RandomParams>() as u32, 0);
        let given = abi::RandomParams { size, reserved, seed: params.seed, offset: params.offset };
        self.execute((GROUP_RANDOM, params.op.name()), address(&given), inputs, &[out])
    }
}

impl GpuBackend for PluginBackend {
    fn name(&self) -> &str {
        &self.device().name
    }

    fn memory(&self) -> Arc<dyn Memory> {
        Arc::new(self.memory.clone())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn pointwise(&self) -> Option<Pointwise<'_>> {
        self.with(GROUP_POINTWISE).map(|own| match self.device().spec.flags & COMPILES {
            0 => Pointwise::Primitives(own),
            _ => Pointwise::Expressions(own),
        })
    }

    fn reduce(&self) -> Option<&dyn Reduce> {
        self.with(GROUP_REDUCE).map(|own| own as _)
    }

    fn rows(&self) -> Option<&dyn Rows> {
        self.with(GROUP_ROWS).map(|own| own as _)
    }

    fn scan(&self) -> Option<&dyn Scan> {
        self.with(GROUP_SCAN).map(|own| own as _)
    }

    fn linalg(&self) -> Option<&dyn Linalg> {
        self.with(GROUP_LINALG).map(|own| own as _)
    }

    fn index(&self) -> Option<&dyn Index> {
        self.with(GROUP_INDEX).map(|own| own as _)
    }

    fn random(&self) -> Option<&dyn Random> {
        self.with(GROUP_RANDOM).map(|own| own as _)
    }

    fn groups(&self) -> Groups<'_> {
        Groups::of(self, |group| self.device().spec.groups & bit_of(group) != 0)
    }
}
