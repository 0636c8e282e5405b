//! The evaluator of expressions over blocks of elements, as in numexpr.
//!
//! A [`Program`] is a list of instructions on registers, and a register is a block of elements that
//! stays in the L1 cache. Each instruction is one loop of vector code over a block. So
//! reading the program costs little, memory is read and written once, and nothing is compiled at run
//! time. The caller puts blocks of memory into the slots of a [`Frame`] and calls [`Program::run`];
//! [`evaluate`](crate::evaluate) does that for whole tensors.
//!
//! ```
//! use std::ptr::null_mut;
//!
//! use keyfold_core::DType;
//! use keyfold_expr::{Expr, Lowered};
//! use keyfold_kit::interpreter::{Frame, Program};
//!
//! let expr = Expr::parse("x * exp(y)")?;
//! let program = Program::new(&Lowered::new(&expr, &[DType::F32; 2], &[], None)?)?;
//!
//! // One slot per input, one for the output, and registers behind them.
//! let size = program.register_bytes() / size_of::<u64>();
//! let mut memory = vec![0_u64; program.slots() * size];
//! let mut slots: Vec<*mut u8> =
//!     memory.chunks_mut(size).map(|register| register.as_mut_ptr().cast()).collect();
//! let (mut x, mut y, mut out) = ([2.0_f32; 8], [0.0_f32; 8], [0.0_f32; 8]);
//! slots[0] = x.as_mut_ptr().cast();
//! slots[1] = y.as_mut_ptr().cast();
//! slots[program.output()] = out.as_mut_ptr().cast();
//!
//! let values = program.constants().expect("the expression has no parameters");
//! let frame =
//!     Frame { slots: &mut slots, values, tables: &[], gather_offsets: null_mut(), gathered: null_mut() };
//! // SAFETY: every slot points to 8 elements or to a register, and a block has more than 8 elements.
//! unsafe { program.run(&frame, 8) }.expect("no element fails");
//! assert_eq!(out, [2.0; 8]);
//! # Ok::<(), keyfold_core::Error>(())
//! ```

pub mod access;
mod binary;
mod cast;
mod chain;
mod compile;
pub mod conversion;
mod convert;
mod floor_division;
mod fusion;
mod integer;
mod kernel;
mod run;
pub mod streaming;
mod streaming_kernels;
#[cfg(test)]
mod tests;
mod unary;
mod value;

use std::fmt;

use keyfold_core::{DType, Error, ErrorKind, Result, Scalar};
use keyfold_expr::fuse::{Fused, Stored};
use keyfold_expr::{Lowered, Signature, Step, StepId, computed};
use smallvec::SmallVec;

use access::Access;
pub use compile::Iota;
use compile::{Action, CompiledCode, compile};
pub use run::{Frame, Table};
use streaming::CHUNK;
pub use value::Value;

/// The reason why an element can't be computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// An integer raised to a negative power.
    NegativePower,
    /// An index of a ranked input out of range.
    IndexOutOfRange {
        /// The input.
        input: u32,
        /// Its dimension.
        dim: u32,
        /// The index.
        value: i64,
        /// The dimension's size.
        size: i64,
    },
}

/// An expression compiled for inputs of certain dtypes, to be run on blocks.
pub struct Program {
    code: CompiledCode,
    signature: Signature,
    /// The dtypes of the results.
    results: SmallVec<[DType; 1]>,
    /// The accesses of the inputs and then of the outputs.
    accesses: Vec<Access>,
    block: usize,
}

/// Bytes of a register in programs of few registers.
const REGISTER_BYTES: usize = 4096;
/// Bytes of all registers together: half of a small L2 cache.
const ALL_REGISTERS_BYTES: usize = 128 << 10;

impl Program {
    /// Chooses kernels and allocates registers.
    ///
    /// # Errors
    /// [`ErrorKind::DType`] for a step whose function isn't defined for its operands' dtype;
    /// [`Lowered::new`] makes no such step.
    pub fn new(lowered: &Lowered) -> Result<Program> {
        let step = StepId(lowered.steps().len() as u32 - 1);
        let result = Stored { step, dtype: lowered.result() };
        Program::compile(lowered.steps(), lowered.signature(), &[result])
    }

    /// As [`Program::new`], for a group, which may have several results: the first is that of
    /// [`Program::result`], and the others have the next slots after [`Program::output`].
    ///
    /// # Errors
    /// As [`Program::new`].
    pub fn fused(fused: &Fused) -> Result<Program> {
        Program::compile(fused.steps(), fused.signature(), fused.results())
    }

    fn compile(steps: &[Step], signature: &Signature, results: &[Stored]) -> Result<Program> {
        let inputs = signature.inputs();
        let code = compile(steps, inputs, results)?;
        let stored = inputs.iter().map(|dtype| dtype.size().max(computed(*dtype).size()));
        let stored = stored.max().unwrap_or(1);
        let widest = code.widest.max(stored).max(if code.gathers { 8 } else { 1 });
        let registers = inputs.len() + code.iotas.len() + code.kept.len() + results.len();
        let bytes = (ALL_REGISTERS_BYTES / (registers + code.registers)).clamp(512, REGISTER_BYTES);
        let results: SmallVec<[DType; 1]> = results.iter().map(|result| result.dtype).collect();
        Ok(Program {
            block: if bytes / widest > CHUNK {
                bytes / widest / CHUNK * CHUNK
            } else {
                bytes / widest
            },
            signature: signature.clone(),
            accesses: inputs.iter().chain(&results).map(|dtype| Access::new(*dtype)).collect(),
            results,
            code,
        })
    }

    /// The signature: dtypes, ranks, names.
    #[inline]
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// The error of a fault, with the expression's names.
    #[cold]
    pub fn error(&self, fault: Fault) -> Error {
        match fault {
            Fault::NegativePower => Error::new(
                ErrorKind::Value,
                "a whole number was raised to a negative power, which gives a fraction; make the \
                 base a float",
            ),
            Fault::IndexOutOfRange { input, dim, value, size } => Error::new(
                ErrorKind::Index,
                format!(
                    "index {value} is out of range for dimension {dim} of '{}', which has size \
                     {size}",
                    self.signature.names()[input as usize]
                ),
            ),
        }
    }

    /// Whether the program is one chain of arithmetic on inputs as they lie in memory, whose values stay in the
    /// processor's registers: [`Program::run`] takes any number of elements then.
    #[inline]
    pub fn is_one_chain(&self) -> bool {
        matches!(&self.code.instructions[..], [one] if matches!(one.action, Action::Chain(_)))
            && self.streams_result()
            && self.code.kept.is_empty()
            && self.code.iotas.is_empty()
            && self.accesses.iter().all(|access| access.direct)
    }

    /// The most elements that [`Program::run`] takes in one call, unless the program [is one
    /// chain](Program::is_one_chain).
    #[inline]
    pub fn block(&self) -> usize {
        self.block
    }

    /// Bytes of a register: a block of the widest elements in the program.
    #[inline]
    pub fn register_bytes(&self) -> usize {
        REGISTER_BYTES
    }

    /// The dtypes of the inputs in memory.
    #[inline]
    pub fn inputs(&self) -> &[DType] {
        self.signature.inputs()
    }

    /// Each input's rank if it is read at computed indices, `None` if it is read element by element.
    #[inline]
    pub fn ranks(&self) -> &[Option<u32>] {
        self.signature.ranks()
    }

    /// Whether an input is read element by element, from its slot. An input that is unused, or read at
    /// computed indices only, isn't.
    #[inline]
    pub fn reads(&self, input: usize) -> bool {
        self.code.reads[input]
    }

    /// The dtype of the stored result; halves are computed as float32.
    #[inline]
    pub fn result(&self) -> DType {
        self.signature.result()
    }

    /// The dtypes of all results.
    #[inline]
    pub fn results(&self) -> &[DType] {
        &self.results
    }

    /// The accesses of the inputs and then of the outputs.
    #[inline]
    pub fn accesses(&self) -> &[Access] {
        &self.accesses
    }

    /// The iota operands, int64 each; their slots follow the inputs'.
    #[inline]
    pub fn iotas(&self) -> &[Iota] {
        &self.code.iotas
    }

    /// Whether any input is read at computed indices.
    #[inline]
    pub fn gathers(&self) -> bool {
        self.code.gathers
    }

    /// The number of pointers in a frame.
    #[inline]
    pub fn slots(&self) -> usize {
        self.first_register() + self.code.registers
    }

    /// The slot of the first output's pointer; those of further outputs follow.
    #[inline]
    pub fn output(&self) -> usize {
        self.inputs().len() + self.code.iotas.len()
    }

    /// The slot that holds the result of this number after a run: its output's, or another one if the
    /// result is an input, an iota operand, a uniform value or an earlier result.
    #[inline]
    pub fn result_slot(&self, result: usize) -> usize {
        self.code.results[result] as usize
    }

    /// Whether an instruction writes the output's slot of this result, in the dtype that it is stored in.
    #[inline]
    pub fn writes_result(&self, result: usize) -> bool {
        self.result_slot(result) == self.output() + result
            && computed(self.results[result]) == self.results[result]
    }

    /// Whether an instruction has a streaming kernel, so that [`Program::run_streaming`] prefetches and
    /// stores all of a block.
    #[inline]
    pub fn has_streaming_kernel(&self) -> bool {
        self.code.streaming > 0
    }

    /// Whether the program is one streaming instruction that writes the result in the dtype it is stored
    /// in, so that [`Program::run_streaming`] can write it by non-temporal stores.
    #[inline]
    pub fn streams_result(&self) -> bool {
        self.code.streaming == 1
            && self.code.instructions.len() == 1
            && self.results.len() == 1
            && self.writes_result(0)
    }

    /// The first slot of the kept values, which [`Program::fill`] fills; registers follow.
    #[inline]
    pub fn first_kept(&self) -> usize {
        self.output() + self.results.len()
    }

    fn first_register(&self) -> usize {
        self.first_kept() + self.code.kept.len()
    }

    /// The estimated time per element on one thread, in nanoseconds, with reads and writes that hit the
    /// caches.
    pub fn cost(&self) -> f64 {
        self.code.cost + 0.05 * self.accesses.len() as f64
    }

    /// The uniform values, if they are all constants.
    #[inline]
    pub fn constants(&self) -> Option<&[Value]> {
        (self.code.params.is_empty() && self.code.uniform.is_empty()).then_some(&self.code.values)
    }

    /// Computes the uniform values into `values`, which is empty.
    ///
    /// # Errors
    /// As [`Scalar::check`] where a parameter doesn't fit the dtype that it is used in,
    /// [`ErrorKind::Binding`] for too few parameters, and a [`Fault`]'s.
    pub fn prepare(&self, params: &[Scalar], values: &mut SmallVec<[Value; 8]>) -> Result<()> {
        self.signature.check_params(params)?;
        values.extend_from_slice(&self.code.values);
        for param in &self.code.params {
            let number = params[param.index as usize];
            values[param.value as usize] = param.convert(number);
        }
        for step in &self.code.uniform {
            let base = values.as_mut_ptr();
            let [a, b, c] =
                step.operands.map(|value| base.wrapping_add(value as usize).cast::<u8>());
            // SAFETY: each value has room for any element and is aligned for it; no step is its own
            // operand.
            if unsafe { (step.kernel.run)(base.wrapping_add(step.dst as usize).cast(), a, b, c, 1) }
            {
                return Err(self.error(Fault::NegativePower));
            }
        }
        Ok(())
    }

    /// Fills the registers of kept values.
    ///
    /// # Safety
    /// The slots from [`Program::first_kept`] on are valid for writing `len` elements.
    pub unsafe fn fill(&self, slots: &[*mut u8], values: &[Value], len: usize) {
        for ((value, load), slot) in self.code.kept.iter().zip(&slots[self.first_kept()..]) {
            // SAFETY: the caller's promise; a value is as large as any element.
            unsafe { load(*slot, values[*value as usize].0.as_ptr(), 0, len) };
        }
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("inputs", &self.inputs())
            .field("results", &self.results())
            .field("instructions", &self.code.instructions.len())
            .field("registers", &self.code.registers)
            .field("block", &self.block)
            .finish()
    }
}
