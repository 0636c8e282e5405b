//! From steps to instructions: which kernel, and which register for what.

use keyfold_core::{DType, Element, Result, Scalar, bf16, f16};
use keyfold_expr::{Binary, Lowered, Step, StepId, StepOp, Unary, undefined};
use smallvec::SmallVec;

use super::binary::binary;
use super::cast::{before_store, cast, round};
use super::fuse::{Fused, fuse};
use super::kernel::{Kernel, choose};
use super::memory::{Access, Load, raw_load};
use super::unary::unary;
use super::value::Value;

/// A place in the frame's list of pointers.
pub(crate) type Slot = u32;

/// One instruction of a block.
pub(crate) struct Instruction {
    pub(crate) action: Action,
    pub(crate) dst: Slot,
    pub(crate) operands: [Slot; 3],
    /// What takes the place of the third operand.
    pub(crate) constants: Option<Box<[Value; 4]>>,
}

/// What an instruction does.
pub(crate) enum Action {
    /// A loop over the block.
    Run(Kernel),
    /// The uniform value with that number, everywhere; for those that no register is kept for.
    Fill(Load, u32),
    /// Elements of a ranked input at computed indices.
    Gather(Box<Gather>),
}

/// How a ranked input is read.
pub(crate) struct Gather {
    pub(crate) input: u32,
    pub(crate) indices: SmallVec<[Slot; 4]>,
    /// Bytes per element, in memory.
    pub(crate) size: usize,
    /// From the element as it lies in memory to what it is computed in, where they differ.
    pub(crate) convert: Option<Load>,
}

/// A computation of numbers, done once per evaluation.
pub(crate) struct Uniform {
    pub(crate) kernel: Kernel,
    pub(crate) dst: u32,
    pub(crate) operands: [u32; 3],
}

/// A number given with the call.
pub(crate) struct Param {
    pub(crate) index: u32,
    pub(crate) to: DType,
    pub(crate) dtype: DType,
    pub(crate) value: u32,
}

/// Something that is counted, and not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// The place in row-major order.
    Index,
    /// The place along a dimension, counted from the last.
    Coordinate(u32),
}

/// What compiling gives.
#[derive(Default)]
pub(crate) struct Code {
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) uniform: Vec<Uniform>,
    pub(crate) params: Vec<Param>,
    /// Constants; the rest is computed.
    pub(crate) values: Vec<Value>,
    pub(crate) counted: Vec<Counted>,
    /// Values that are kept in a register, with the load that fills it.
    pub(crate) kept: Vec<(u32, Load)>,
    pub(crate) registers: usize,
    /// How many instructions have a streaming kernel.
    pub(crate) streaming: usize,
    /// Where the result is: the output's slot where an instruction writes it.
    pub(crate) result: Slot,
    pub(crate) gathers: bool,
    /// Which inputs are read element by element.
    pub(crate) reads: Vec<bool>,
    /// What an element takes on one thread, in nanoseconds, roughly.
    pub(crate) cost: f64,
    /// The largest element of all steps, in bytes.
    pub(crate) widest: usize,
}

/// Uniform values that have a register of their own; more are filled in when they are needed.
const KEPT: usize = 8;

const NOWHERE: u32 = u32::MAX;

/// Where the value of a step is.
struct Places {
    slot: Vec<Slot>,
    /// Numbers of uniform values.
    value: Vec<u32>,
    last_use: Vec<u32>,
    free: Vec<Slot>,
    first_register: Slot,
    registers: u32,
}

impl Places {
    fn register(&mut self) -> Slot {
        self.free.pop().unwrap_or_else(|| {
            self.registers += 1;
            self.first_register + self.registers - 1
        })
    }
}

/// A kernel, its operands, and how many there are.
pub(super) type Computing = (Kernel, [StepId; 3], usize);

/// That of a computing step; nothing for the others.
pub(super) fn kernel(step: &Step, steps: &[Step]) -> Result<Option<Computing>> {
    let dtype = |id: StepId| steps[id.index()].dtype;
    let found = |kernel: Option<Kernel>, name: &str, from: DType| {
        kernel.ok_or_else(|| undefined(name, from, "no kernel computes it"))
    };
    Ok(Some(match step.op {
        StepOp::Unary(op, a) => (found(unary(op, dtype(a)), op.name(), dtype(a))?, [a, a, a], 1),
        StepOp::Binary(op, a, b) => {
            let kernel = binary(op, dtype(a));
            let swapped = kernel.is_some_and(|(_, swapped)| swapped);
            let kernel = found(kernel.map(|(kernel, _)| kernel), op.name(), dtype(a))?;
            if swapped { (kernel, [b, a, a], 2) } else { (kernel, [a, b, a], 2) }
        }
        StepOp::Where(c, a, b) => (choose(step.dtype), [c, a, b], 3),
        StepOp::Cast(a) => {
            (found(cast(dtype(a), step.dtype), step.dtype.name(), dtype(a))?, [a, a, a], 1)
        }
        StepOp::Round(to, a) => (found(round(to, dtype(a)), to.name(), dtype(a))?, [a, a, a], 1),
        _ => return Ok(None),
    }))
}

/// That of the last step where it rounds to the half that the result is stored as: the store rounds, too.
fn last_kernel(at: usize, steps: &[Step], result: DType) -> Option<Computing> {
    match steps[at].op {
        StepOp::Round(to, a)
            if at + 1 == steps.len() && to == result && steps[a.index()].dtype == DType::F64 =>
        {
            Some((before_store(to)?, [a, a, a], 1))
        }
        _ => None,
    }
}

/// What a step costs per element, in nanoseconds: to within a factor of 2 or so on processors with
/// AVX2, in the first-level cache.
fn cost(step: &Step, steps: &[Step]) -> f64 {
    let dtype = |id: StepId| steps[id.index()].dtype;
    let width = step.dtype.size() as f64 / 4.0;
    match step.op {
        StepOp::At { .. } => 2.0,
        StepOp::Unary(Unary::Neg | Unary::Conj | Unary::Real | Unary::Imag, _) => 0.05 * width,
        StepOp::Unary(_, a) if dtype(a).is_complex() => 25.0,
        StepOp::Unary(op, _) => match op {
            Unary::Neg | Unary::Not | Unary::Abs | Unary::Sign => 0.04 * width,
            Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc => 0.06 * width,
            Unary::IsNan | Unary::IsFinite => 0.05,
            Unary::Sqrt | Unary::Rsqrt => 0.3 * width * width,
            _ => 0.4 * width * width,
        },
        StepOp::Binary(Binary::Pow, a, _) if dtype(a).is_complex() => 60.0,
        StepOp::Binary(Binary::Pow, ..) => 2.0 * width,
        StepOp::Binary(Binary::FloorDiv | Binary::Mod, a, _) if dtype(a).is_floating() => {
            0.5 * width * width
        }
        StepOp::Binary(Binary::FloorDiv | Binary::Mod, ..) => 3.0,
        StepOp::Binary(Binary::Div, ..) => 0.12 * width * width,
        StepOp::Round(..) => 0.2,
        _ => 0.05 * width,
    }
}

/// Slots in order: inputs, counted ones, the output, kept values, registers.
///
/// # Errors
/// [`ErrorKind::DType`] for a function of a dtype that it has no kernel for.
pub(crate) fn compile(lowered: &Lowered) -> Result<Code> {
    let steps = lowered.steps();
    let reads = vec![false; lowered.inputs().len()];
    let mut code = Code { widest: 1, reads, ..Code::default() };
    let mut places = Places {
        slot: vec![NOWHERE; steps.len()],
        value: vec![NOWHERE; steps.len()],
        last_use: vec![0; steps.len()],
        free: Vec::new(),
        first_register: 0,
        registers: 0,
    };
    let (mut fused, parts) = fuse(steps);
    for (at, step) in steps.iter().enumerate() {
        code.widest = code.widest.max(step.dtype.size());
        match &fused[at] {
            Some(fused) => {
                fused.operands.iter().for_each(|id| places.last_use[id.index()] = at as u32);
            }
            None => step.op.operands(|id| places.last_use[id.index()] = at as u32),
        }
        let counted = match step.op {
            StepOp::Index => Counted::Index,
            StepOp::Coordinate(dim) => Counted::Coordinate(dim),
            _ => continue,
        };
        places.slot[at] = (lowered.inputs().len() + code.counted.len()) as Slot;
        code.counted.push(counted);
    }
    let output = (lowered.inputs().len() + code.counted.len()) as Slot;
    uniform_steps(steps, (&fused, &parts), &mut code, &mut places, output)?;
    places.first_register = output + 1 + code.kept.len() as Slot;
    let last = steps.len() - 1;
    for (at, step) in steps.iter().enumerate() {
        if let StepOp::Input(input) = step.op {
            places.slot[at] = input;
            code.reads[input as usize] = true;
        }
        if step.uniform {
            continue;
        }
        if parts[at] {
            code.cost += cost(step, steps);
            continue;
        }
        let mut constants = None;
        let mut operands = SmallVec::<[StepId; 3]>::new();
        let computed = match fused[at].take() {
            Some(fused) => {
                (operands, constants) = (fused.operands, fused.constants);
                Some(fused.kernel)
            }
            None => {
                let last = last_kernel(at, steps, lowered.result());
                match last.map_or_else(|| kernel(step, steps), |last| Ok(Some(last)))? {
                    Some((kernel, list, count)) => {
                        operands.extend_from_slice(&list[..count]);
                        Some(kernel)
                    }
                    None => {
                        step.op.operands(|id| operands.push(id));
                        None
                    }
                }
            }
        };
        // Numbers without a register of their own come in where they are first used.
        operands.iter().for_each(|id| fill(steps, *id, &mut code, &mut places));
        let instruction = if let Some(kernel) = computed {
            // Kernels take three; those that have fewer don't look at the rest.
            let slot = |n: usize| places.slot[operands[n.min(operands.len() - 1)].index()];
            Some((Action::Run(kernel), [slot(0), slot(1), slot(2)]))
        } else if let StepOp::At { input, indices } = &step.op {
            code.gathers = true;
            let access = Access::new(lowered.inputs()[*input as usize]);
            let gather = Gather {
                input: *input,
                indices: indices.iter().map(|id| places.slot[id.index()]).collect(),
                size: access.size,
                convert: (!access.direct).then_some(access.load),
            };
            Some((Action::Gather(Box::new(gather)), [0; 3]))
        } else {
            None
        };
        if let Some((action, operands)) = instruction {
            code.cost += cost(step, steps);
            let dst = if at == last { output } else { places.register() };
            places.slot[at] = dst;
            code.instructions.push(Instruction { action, dst, operands, constants });
        }
        // The registers of operands that nobody needs any more; the result's own comes from before.
        let mut done = SmallVec::<[StepId; 4]>::new();
        for id in operands {
            if places.last_use[id.index()] == at as u32 && !done.contains(&id) {
                done.push(id);
            }
        }
        for id in done {
            let slot = places.slot[id.index()];
            if slot >= places.first_register {
                places.free.push(slot);
            }
        }
    }
    fill(steps, StepId(last as u32), &mut code, &mut places);
    let streaming = |instruction: &&Instruction| match &instruction.action {
        Action::Run(kernel) => kernel.streaming.is_some(),
        _ => false,
    };
    code.streaming = code.instructions.iter().filter(streaming).count();
    code.result = places.slot[last];
    code.registers = places.registers as usize;
    Ok(code)
}

/// Numbers the uniform values, and says how they are computed and which are kept in registers.
fn uniform_steps(
    steps: &[Step],
    (fused, parts): (&[Option<Fused>], &[bool]),
    code: &mut Code,
    places: &mut Places,
    output: Slot,
) -> Result<()> {
    let last = steps.len() - 1;
    let mut needed = vec![false; steps.len()];
    for (at, step) in steps.iter().enumerate() {
        if let Some(fused) = &fused[at] {
            fused.operands.iter().for_each(|id| needed[id.index()] = true);
        } else if parts[at] {
            // What it needs is part of a kernel, or that kernel's operand.
        } else if !step.uniform {
            step.op.operands(|id| needed[id.index()] = true);
        } else {
            needed[at] |= at == last;
            let value = code.values.len() as u32;
            places.value[at] = value;
            code.values.push(match step.op {
                StepOp::Constant(number) => Value::new(number, step.dtype),
                _ => Value::default(),
            });
            if let StepOp::Param { index, to } = step.op {
                code.params.push(Param { index, to, dtype: step.dtype, value });
            } else if let Some((kernel, operands, _)) = kernel(step, steps)? {
                let operands = operands.map(|id| places.value[id.index()]);
                code.uniform.push(Uniform { kernel, dst: value, operands });
            }
        }
    }
    for (at, step) in steps.iter().enumerate() {
        if step.uniform && needed[at] && code.kept.len() < KEPT {
            places.slot[at] = output + 1 + code.kept.len() as Slot;
            code.kept.push((places.value[at], raw_load(step.dtype.size())));
        }
    }
    Ok(())
}

/// Makes sure that a uniform value is in a register.
fn fill(steps: &[Step], id: StepId, code: &mut Code, places: &mut Places) {
    let (at, step) = (id.index(), &steps[id.index()]);
    if !step.uniform || places.slot[at] != NOWHERE {
        return;
    }
    let dst = places.register();
    places.slot[at] = dst;
    let action = Action::Fill(raw_load(step.dtype.size()), places.value[at]);
    code.instructions.push(Instruction { action, dst, operands: [0; 3], constants: None });
}

impl Param {
    /// The number as part of its dtype, and from there as it is computed with.
    pub(crate) fn convert(&self, number: Scalar) -> Value {
        let number = match self.to {
            DType::F16 => number.to::<f16>().to_scalar(),
            DType::BF16 => number.to::<bf16>().to_scalar(),
            _ => number,
        };
        Value::new(number, self.dtype)
    }
}
