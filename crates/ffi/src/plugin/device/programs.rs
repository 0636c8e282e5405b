//! Whole expressions, which the plugin compiles from CUDA C or OpenCL C.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use keyfold_backend::primitives::fault;
use keyfold_backend::{Expressions, GroupKernel, Offer, PointwiseKernel, Reason, Tiles};
use keyfold_core::{Complex, DType, Error, ErrorKind, Result, Scalar, bf16, f16};
use keyfold_expr::fuse::{Fused, Limits};
use keyfold_expr::source::{
    self, KernelSource, Layout, Options, Target, emit, ranked_words, shape_words, strides_words,
};
use keyfold_expr::{Lowered, StepOp};
use keyfold_plugin::abi::Text;
use keyfold_plugin::abi::device::{
    ARGUMENT_BUFFER, ARGUMENT_BYTES, Argument, DEVICE_OPENCL_C, GROUP_POINTWISE, Launch, Source,
};
use keyfold_tensor::Tensor;
use keyfold_tensor::device::{Content, Memory, Part, current_stream};

use super::PluginDevice;
use super::kernels::PluginBackend;

/// The device of a program and how it accesses memory: there is one for each combination that was called.
#[derive(Clone, Copy, PartialEq)]
struct Access {
    /// The index of the device.
    device: u32,
    target: Target,
    layout: Layout,
    /// The input that the result overwrites.
    in_place: Option<u32>,
}

/// The dimensions of strided kernels. Tensors with more, after joining, are copied.
const DIMS: u32 = 8;

impl Access {
    fn options(self, lowered: &Lowered) -> Options {
        let params = lowered.steps().iter().filter_map(|step| match step.op {
            StepOp::Param { index, .. } => Some(index + 1),
            _ => None,
        });
        let params = 0..params.max().unwrap_or(0);
        Options {
            target: self.target,
            name: "elementwise".to_owned(),
            layout: self.layout,
            vector: None,
            in_place: self.in_place,
            dims: DIMS,
            inputs: (0..lowered.inputs().len()).map(|input| format!("x{input}")).collect(),
            params: params.map(|index| format!("p{index}")).collect(),
        }
    }
}

/// A compiled program.
struct Program {
    device: Arc<PluginDevice>,
    program: NonNull<c_void>,
    kernel: KernelSource,
}

// SAFETY: the ABI requires that any thread may use and release a program.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(release) = self.device.spec.program_release {
            // SAFETY: a program of `compile` that isn't used any more.
            unsafe { release(self.device.spec.data, self.program.as_ptr()) }
        }
    }
}

/// An expression whose programs are compiled at the first call that needs them.
struct CompiledExpression {
    backend: PluginBackend,
    lowered: Lowered,
    /// The failure of the slot `support`.
    broken: Option<Error>,
    /// Whether there is a strided kernel: its parameters have a limit.
    has_strided: OnceLock<bool>,
    programs: Mutex<Vec<(Access, Arc<Program>)>>,
}

impl PluginBackend {
    /// Returns the language of its compiler.
    fn target(&self) -> Target {
        match self.device().spec.flags & DEVICE_OPENCL_C {
            0 => Target::CudaC,
            _ => Target::OpenClC,
        }
    }
}

impl Expressions for PluginBackend {
    fn prepare(&self, lowered: &Lowered) -> Offer<Arc<dyn PointwiseKernel>> {
        let mut dtypes: Vec<DType> = Vec::new();
        let steps = lowered.steps().iter().map(|step| step.dtype);
        for dtype in lowered.inputs().iter().copied().chain(steps) {
            if !dtypes.contains(&dtype) {
                dtypes.push(dtype);
            }
        }
        let expression = (GROUP_POINTWISE, "expression");
        if let Err(reason) = self.supported(expression, &dtypes, &[lowered.result()]) {
            return Offer::No(reason);
        }
        let broken = self.check_claim(expression, &dtypes, &[lowered.result()]).err();
        let (target, layout) = (self.target(), Layout::Contiguous);
        let access = Access { device: 0, target, layout, in_place: None };
        if let Err(error) = emit(lowered, &access.options(lowered)) {
            return Offer::No(Reason(error.message().to_owned().into()));
        }
        let (backend, programs) = (self.clone(), Mutex::default());
        let lowered = lowered.clone();
        let has_strided = OnceLock::new();
        let compiled = CompiledExpression { backend, lowered, broken, has_strided, programs };
        Offer::Native(Arc::new(compiled))
    }

    fn prepare_group(&self, _: &Fused) -> Offer<Arc<dyn GroupKernel>> {
        Offer::No("its programs have one result each".into())
    }

    /// The parameters of a strided kernel have sizes and strides of 8 dimensions for each input, and a
    /// device of OpenCL may take no more than 1024 bytes of them.
    fn limits(&self) -> Limits {
        let one = Limits { results: 1, ..Limits::default() };
        match self.target() {
            Target::CudaC => one,
            Target::OpenClC => Limits { inputs: 7, params: 8, ..one },
        }
    }

    fn tiles(&self) -> Option<&dyn Tiles> {
        // Its kernels run after they were launched.
        None
    }
}

/// Returns a parameter's bytes: a half is rounded and passed as float32.
fn param_bytes(number: Scalar, to: DType, dtype: DType) -> Vec<u8> {
    match (to, dtype) {
        (DType::F16, _) => number.to::<f16>().to_f32().to_ne_bytes().into(),
        (DType::BF16, _) => number.to::<bf16>().to_f32().to_ne_bytes().into(),
        (_, DType::U8) => vec![number.to::<u8>()],
        (_, DType::I8) => number.to::<i8>().to_ne_bytes().into(),
        (_, DType::U16) => number.to::<u16>().to_ne_bytes().into(),
        (_, DType::I16) => number.to::<i16>().to_ne_bytes().into(),
        (_, DType::U32) => number.to::<u32>().to_ne_bytes().into(),
        (_, DType::I32) => number.to::<i32>().to_ne_bytes().into(),
        (_, DType::U64) => number.to::<u64>().to_ne_bytes().into(),
        (_, DType::I64) => number.to::<i64>().to_ne_bytes().into(),
        (_, DType::F64) => number.to::<f64>().to_ne_bytes().into(),
        (_, DType::C64) => {
            let value = number.to::<Complex<f32>>();
            [value.re.to_ne_bytes(), value.im.to_ne_bytes()].concat()
        }
        (_, DType::C128) => {
            let value = number.to::<Complex<f64>>();
            [value.re.to_ne_bytes(), value.im.to_ne_bytes()].concat()
        }
        (_, DType::Bool) => vec![u8::from(number.to::<bool>())],
        (_, DType::F32 | DType::F16 | DType::BF16) => number.to::<f32>().to_ne_bytes().into(),
    }
}

fn sizes(shape: &[usize]) -> Vec<u64> {
    shape.iter().map(|size| *size as u64).collect()
}

fn steps(strides: &[isize]) -> Vec<i64> {
    strides.iter().map(|stride| *stride as i64).collect()
}

/// A kernel's argument until the launch.
enum Value {
    Bytes(Vec<u8>),
    Buffer { handle: *const c_void, offset: u64 },
}

impl Value {
    fn words(words: &[u64]) -> Value {
        Value::Bytes(words.iter().flat_map(|word| word.to_ne_bytes()).collect())
    }

    /// Returns the argument as the plugin gets it. It borrows the bytes.
    fn argument(&self) -> Argument {
        match self {
            Value::Bytes(bytes) => {
                let (size, value) = (bytes.len() as u32, bytes.as_ptr().cast());
                Argument { kind: ARGUMENT_BYTES, size, value, offset: 0 }
            }
            Value::Buffer { handle, offset } => {
                Argument { kind: ARGUMENT_BUFFER, size: 0, value: *handle, offset: *offset }
            }
        }
    }
}

impl CompiledExpression {
    /// Returns a program, compiled at the first call.
    fn program(&self, access: Access) -> Result<Arc<Program>> {
        let lock = || self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let known = |programs: &[(Access, Arc<Program>)]| {
            programs.iter().find(|(known, _)| *known == access).map(|(_, made)| Arc::clone(made))
        };
        if let Some(program) = known(&lock()) {
            return Ok(program);
        }
        // Without the lock, since the plugin is foreign code.
        let device = self.backend.device();
        let slot = device.slot("compile", device.spec.compile)?;
        let kernel = emit(&self.lowered, &access.options(&self.lowered))?;
        let types: Vec<Text> = kernel.parameters.iter().map(|p| Text::new(&p.ty)).collect();
        let source = Source {
            size: size_of::<Source>() as u32,
            parameters: types.len() as u32,
            device: access.device,
            reserved: 0,
            name: Text::new(&kernel.name),
            text: Text::new(&kernel.text),
            types: types.as_ptr(),
        };
        let mut program = null_mut();
        // SAFETY: a slot of the plugin with its data, and a source that lives until it returns.
        unsafe {
            let error = slot(device.spec.data, &raw const source, &raw mut program);
            device.outcome(error, || "compile of an expression".to_owned())?;
        }
        let program = device.not_null(program, "compile", "the program")?;
        let program = Arc::new(Program { device: Arc::clone(device), program, kernel });
        let mut programs = lock();
        // Another thread may have compiled it, too.
        Ok(known(&programs).unwrap_or_else(|| {
            programs.push((access, Arc::clone(&program)));
            program
        }))
    }

    /// Returns the pointer to a tensor's element at index zero; in OpenCL the buffer, whose offset is
    /// a parameter.
    fn buffer(&self, tensor: &Tensor) -> Result<Value> {
        let dl = self.backend.described(tensor)?;
        let offset = match self.backend.target() {
            Target::CudaC => dl.byte_offset,
            Target::OpenClC => 0,
        };
        Ok(Value::Buffer { handle: dl.data, offset })
    }

    /// Returns the values of a kernel's parameters; `fault` is the handle of the fault word.
    fn values(
        &self,
        (kernel, access): (&KernelSource, Access),
        (inputs, out): (&[Tensor], &Tensor),
        params: &[Scalar],
        fault: *const c_void,
    ) -> Result<Vec<Value>> {
        let shape = sizes(out.shape());
        let value = |argument: source::Argument| {
            Ok(match argument {
                source::Argument::Output => self.buffer(out)?,
                source::Argument::Input(input) => self.buffer(&inputs[input as usize])?,
                source::Argument::OutputOffset => Value::words(&[out.offset() as u64]),
                source::Argument::InputOffset(input) => {
                    Value::words(&[inputs[input as usize].offset() as u64])
                }
                source::Argument::Ranked(input) => {
                    let input = &inputs[input as usize];
                    Value::words(&ranked_words(&sizes(input.shape()), &steps(input.strides())))
                }
                source::Argument::Param { index, to, dtype } => {
                    Value::Bytes(param_bytes(params[index as usize], to, dtype))
                }
                source::Argument::Strides => Value::words(&self.strides(inputs, out, access)?),
                source::Argument::Shape(dims) => Value::words(&shape_words(&shape, dims)?),
                source::Argument::First => Value::words(&[0]),
                source::Argument::Count => Value::words(&[out.numel() as u64]),
                source::Argument::Fault => Value::Buffer { handle: fault, offset: 0 },
            })
        };
        kernel.parameters.iter().map(|parameter| value(parameter.argument)).collect()
    }

    /// Returns the parameter of a strided kernel.
    ///
    /// # Errors
    /// More dimensions than it has.
    fn strides(&self, inputs: &[Tensor], out: &Tensor, access: Access) -> Result<Vec<u64>> {
        let ranks = self.lowered.ranks().iter().enumerate();
        let read = ranks.filter(|(at, rank)| rank.is_none() && access.in_place != Some(*at as u32));
        let inputs = read.map(|(at, _)| steps(inputs[at].strides()));
        let all: Vec<Vec<i64>> = std::iter::once(steps(out.strides())).chain(inputs).collect();
        let all: Vec<&[i64]> = all.iter().map(Vec::as_slice).collect();
        strides_words(&sizes(out.shape()), &all, DIMS)
    }

    /// Returns whether a kernel accesses these tensors in this way.
    fn has_kernel(&self, inputs: &[Tensor], out: &Tensor, access: Access) -> bool {
        let all = Access { in_place: None, ..access };
        access.layout == Layout::Contiguous
            || *self
                .has_strided
                .get_or_init(|| emit(&self.lowered, &all.options(&self.lowered)).is_ok())
                && self.strides(inputs, out, access).is_ok()
    }

    /// Copies inputs, and returns them with a new output, all contiguous.
    fn copies(&self, inputs: Vec<Tensor>, out: &Tensor) -> Result<(Vec<Tensor>, Tensor)> {
        let ranks = self.lowered.ranks().iter();
        let copies = inputs.into_iter().zip(ranks).map(|(input, rank)| match rank {
            None => input.contiguous(),
            Some(_) => Ok(input),
        });
        let out = Tensor::empty(out.shape(), out.dtype(), out.device())?;
        Ok((copies.collect::<Result<_>>()?, out))
    }

    /// Launches a program.
    fn launch(&self, program: &Program, values: &[Value], out: &Tensor) -> Result<()> {
        let device = self.backend.device();
        let slot = device.slot("launch", device.spec.launch)?;
        let values: Vec<Argument> = values.iter().map(Value::argument).collect();
        let operator = device.running_operator();
        let launch = Launch {
            size: size_of::<Launch>() as u32,
            arguments: values.len() as u32,
            device: out.device().index().into(),
            stream: current_stream(out.device()).number(),
            program: program.program.as_ptr(),
            operator: Text::new(&operator),
            values: values.as_ptr(),
            elements: out.numel() as u64,
        };
        // SAFETY: a slot of the plugin with its data, its program, and a value for each of the
        // kernel's parameters, which live until it returns.
        unsafe {
            let error = slot(device.spec.data, &raw const launch);
            device.outcome(error, || "launch of an expression".to_owned())
        }
    }

    /// Returns the inputs as the kernel reads them, and how it accesses memory.
    fn views(&self, inputs: &[&Tensor], out: &Tensor) -> Result<(Vec<Tensor>, Access)> {
        let signature = self.lowered.signature();
        let (mut in_place, mut contiguous) = (None, out.is_contiguous());
        let target = self.backend.target();
        let mut views = Vec::with_capacity(inputs.len());
        for (at, input) in inputs.iter().enumerate() {
            signature.check_rank(at, input.ndim())?;
            if signature.ranks()[at].is_some() {
                views.push((*input).clone());
                continue;
            }
            let view = match (input.touches(out), in_place) {
                (false, _) => input.broadcast_to(out.shape())?,
                // In OpenCL any input may be the result.
                (true, _) if input.dtype() == out.dtype() && target == Target::OpenClC => {
                    (*input).clone()
                }
                (true, None) if input.dtype() == out.dtype() => {
                    in_place = Some(at as u32);
                    (*input).clone()
                }
                // In CUDA pointers share no memory, except for one input in place.
                (true, _) => input.copy()?,
            };
            contiguous &= view.is_contiguous();
            views.push(view);
        }
        let layout = if contiguous { Layout::Contiguous } else { Layout::Strided };
        let device = out.device().index().into();
        Ok((views, Access { device, target, layout, in_place }))
    }
}

impl PointwiseKernel for CompiledExpression {
    unsafe fn run(&self, inputs: &[&Tensor], params: &[Scalar], out: &Tensor) -> Result<()> {
        let wanted = self.lowered.inputs().len();
        if inputs.len() != wanted {
            let given = inputs.len();
            let message = format!("the expression has {wanted} inputs, but {given} were given");
            return Err(Error::new(ErrorKind::Binding, message));
        }
        self.lowered.signature().check_params(params)?;
        if let Some(broken) = &self.broken {
            return Err(Error::new(broken.kind(), broken.message()));
        }
        if out.numel() == 0 {
            return Ok(());
        }
        let (views, access) = self.views(inputs, out)?;
        if !self.has_kernel(&views, out, access) {
            let (copies, made) = self.copies(views, out)?;
            let access = Access { layout: Layout::Contiguous, in_place: None, ..access };
            self.compute(&copies, access, params, &made)?;
            // SAFETY: the caller's contract.
            return unsafe { out.copy_from(&made) };
        }
        self.compute(&views, access, params, out)
    }
}

impl CompiledExpression {
    /// Computes an expression by the program that accesses the tensors in this way.
    fn compute(
        &self,
        views: &[Tensor],
        access: Access,
        params: &[Scalar],
        out: &Tensor,
    ) -> Result<()> {
        let program = self.program(access)?;
        let memory = &self.backend.memory;
        let can_fail = |p: &source::Parameter| p.argument == source::Argument::Fault;
        let word = match program.kernel.parameters.iter().any(can_fail) {
            true => Some(memory.allocate(out.device(), 4, Content::Zeros)?),
            false => None,
        };
        let handle = word.as_ref().and_then(|word| word.opaque_handle());
        let handle = handle.map_or(std::ptr::null(), |handle| handle.as_ptr().cast_const().cast());
        let values = self.values((&program.kernel, access), (views, out), params, handle)?;
        self.launch(&program, &values, out)?;
        let Some(word) = word else { return Ok(()) };
        // An expression that can fail waits for the device, so that its own call returns the error.
        let (mut bytes, part) = ([0; 4], Part::new(&*word, 0, &[4], &[1], 1)?);
        memory.download(&part, &mut bytes, current_stream(out.device()))?;
        match u32::from_ne_bytes(bytes) {
            0 => Ok(()),
            1 => Err(fault(1)),
            _ => Err(fault(2)),
        }
    }
}
