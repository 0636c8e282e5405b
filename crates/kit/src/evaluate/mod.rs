//! The evaluator of expressions over whole tensors.
//!
//! [`evaluate`] runs a [`Program`] over tensors of any strides, broadcast, in place, on all threads.
//! [`Compiled`] is an expression with the programs compiled from it, one per combination of dtypes; an
//! operator keeps one.
//!
//! ```
//! use keyfold_core::{Device, Scalar};
//! use keyfold_expr::{Expr, Names};
//! use keyfold_kit::evaluate::{Compiled, evaluate};
//! use keyfold_tensor::Tensor;
//!
//! let names = Names::new().input("x").input("y").param("beta");
//! let compiled = Compiled::new(Expr::parse_with("beta * x + y", &names)?);
//!
//! let x = Tensor::from_slice(&[1.0_f32, 2.0, 3.0], &[3])?;
//! let y = Tensor::from_slice(&[10.0_f64, 20.0], &[2, 1])?;
//! let beta = [Scalar::Float(2.0)];
//! let program = compiled.program(&[x.dtype(), y.dtype()], &beta, None)?;
//! let shape = program.signature().broadcast_shape(&[x.shape(), y.shape()])?;
//! let out = Tensor::empty(&shape, program.result(), Device::CPU)?;
//! // SAFETY: no other code accesses the new tensor.
//! unsafe { evaluate(&program, &[&x, &y], &beta, &out)? };
//! assert_eq!(out.to_vec::<f64>()?, [12.0, 14.0, 16.0, 22.0, 24.0, 26.0]);
//! # Ok::<(), keyfold_core::Error>(())
//! ```

mod compiled;
mod contiguous;
pub(crate) mod non_temporal;
mod plan;
mod scratch;
mod short_rows;
#[cfg(test)]
mod tests;
mod tiles;
mod worker;
mod write_combining;

use std::ops::Range;

use keyfold_core::{DType, Error, ErrorKind, Result, Scalar};
use keyfold_tensor::{Overlap, Tensor, overlap};
use smallvec::SmallVec;

pub use compiled::Compiled;

use crate::interpreter::{Iota, Program, Table, Value};
use crate::pool::{Schedule, grain_for, num_threads, parallel_for};
use plan::TraversalPlan;

/// The most inputs that an expression can be evaluated with.
pub const MAX_INPUTS: usize = 64;

#[inline]
fn check_count(program: &Program, given: usize, outputs: usize) -> Result<()> {
    let (wanted, results) = (program.inputs().len(), program.results().len());
    if outputs != results {
        return Err(Error::new(
            ErrorKind::Binding,
            format!("the program has {results} results, but {outputs} outputs were given"),
        ));
    }
    if given != wanted {
        return Err(Error::new(
            ErrorKind::Binding,
            format!("the expression has {wanted} inputs, but {given} were given"),
        ));
    }
    if given > MAX_INPUTS {
        return Err(Error::new(
            ErrorKind::Value,
            format!(
                "an expression of {given} inputs can't be evaluated; {MAX_INPUTS} are the most"
            ),
        ));
    }
    Ok(())
}

/// As [`evaluate_all`], for tensors whose memory another library may move: each is pinned for the length
/// of the call.
///
/// # Safety
/// As [`evaluate_all`].
#[cold]
unsafe fn evaluate_unpinned(
    program: &Program,
    inputs: &[&Tensor],
    params: &[Scalar],
    (out, more): (&Tensor, &[&Tensor]),
) -> Result<()> {
    let pin = |tensor: &Tensor| match tensor.pinned()? {
        None if !tensor.is_pinned() => Err(Error::new(
            ErrorKind::NotSupported,
            format!(
                "an expression can't be evaluated on the host for a tensor on {}; use one on cpu",
                tensor.device()
            ),
        )),
        pinned => Ok(pinned),
    };
    let pin_all = |tensors: &[&Tensor]| -> Result<SmallVec<[Option<Tensor>; 4]>> {
        tensors.iter().map(|tensor| pin(tensor)).collect()
    };
    let (pinned, target, targets) = (pin_all(inputs)?, pin(out)?, pin_all(more)?);
    let inputs: SmallVec<[&Tensor; 4]> =
        pinned.iter().zip(inputs).map(|(pinned, input)| pinned.as_ref().unwrap_or(input)).collect();
    let more: SmallVec<[&Tensor; 4]> =
        targets.iter().zip(more).map(|(pinned, out)| pinned.as_ref().unwrap_or(out)).collect();
    // SAFETY: the caller's promise, of the same memory.
    unsafe { evaluate_into(program, &inputs, params, target.as_ref().unwrap_or(out), &more) }
}

/// The relation of an input to the output.
struct InputRelation {
    /// The input is the output.
    in_place: bool,
    /// The input is contiguous and of the output's shape, or is read at computed indices.
    flat: bool,
}

#[inline]
fn check_input(
    program: &Program,
    index: usize,
    input: &Tensor,
    out: &Tensor,
    out_is_flat: bool,
) -> Result<InputRelation> {
    let wanted = program.inputs()[index];
    if input.dtype() != wanted {
        return Err(Error::new(
            ErrorKind::DType,
            format!("input {index} has dtype {}; the program is for {wanted}", input.dtype()),
        ));
    }
    let rank = program.ranks()[index];
    if out_is_flat
        && rank.is_none()
        && sizes_are_equal(input.shape(), out.shape())
        && input.is_contiguous()
    {
        // Both are contiguous, so comparing their address ranges suffices.
        let (read, written) = (input.pinned_ptr().addr(), out.pinned_ptr().addr());
        let apart = read >= written + out.nbytes() || written >= read + input.nbytes();
        let same = read == written && input.dtype().size() == out.dtype().size();
        if apart || same {
            return Ok(InputRelation { in_place: !apart, flat: true });
        }
    }
    check_strided(program, index, input, out)
}

fn check_strided(
    program: &Program,
    index: usize,
    input: &Tensor,
    out: &Tensor,
) -> Result<InputRelation> {
    let (own, wide) = (input.shape(), out.shape());
    let rank = program.ranks()[index];
    if rank.is_some() {
        program.signature().check_rank(index, input.ndim())?;
    } else if own != wide {
        let fits = own.len() <= wide.len()
            && own.iter().rev().zip(wide.iter().rev()).all(|(n, wide)| n == wide || *n == 1);
        if !fits {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "input {index} of shape {own:?} doesn't broadcast to the output's {wide:?}"
                ),
            ));
        }
    }
    let meets = match overlap(out, input)? {
        // An input that is read at computed indices may be read anywhere, so it must not overlap the
        // output.
        Overlap::Exact if rank.is_some() => Overlap::Partial,
        meets => meets,
    };
    if meets == Overlap::Partial {
        return Err(Error::new(
            ErrorKind::Value,
            format!(
                "the output shares memory with input {index} in another order, so that elements \
                 would be overwritten before they are read; give a copy of the input"
            ),
        ));
    }
    let flat = rank.is_some() || (own == wide && input.is_contiguous());
    Ok(InputRelation { in_place: meets == Overlap::Exact, flat })
}

/// Checks an output for a result of this dtype, and returns whether it is contiguous.
#[inline]
fn check_output(result: DType, out: &Tensor) -> Result<bool> {
    if out.dtype() != result {
        return Err(Error::new(
            ErrorKind::DType,
            format!("the output has dtype {}; the program gives {result}", out.dtype()),
        ));
    }
    out.check_writable()?;
    let flat = out.is_contiguous();
    if !flat && out.may_overlap_itself() {
        return Err(Error::new(
            ErrorKind::Value,
            format!(
                "an output of shape {:?} and strides {:?} has elements that share memory; write to a \
                 copy",
                out.shape(),
                out.strides()
            ),
        ));
    }
    Ok(flat)
}

/// Compares sizes as `==` does, without a call of memcmp for so few.
#[inline]
fn sizes_are_equal(a: &[usize], b: &[usize]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b)
}

/// Computes every element of `out`. The inputs broadcast to its shape, except for those that are read at
/// computed indices. An input may be the output itself (the same elements in the same order);
/// [`overlap`] tells which inputs have to be copied before.
///
/// # Errors
/// After an error of an element (a negative power, an index out of range) the output's elements are
/// unspecified, but initialised.
/// [`ErrorKind::Binding`] for the wrong number of inputs or parameters; [`ErrorKind::DType`] for dtypes
/// that differ from the program's; [`ErrorKind::Shape`] for an input that doesn't broadcast to the
/// output's shape; [`ErrorKind::ReadOnly`]; [`ErrorKind::Value`] for an output that overlaps itself or,
/// in another order, an input, for integers raised to negative powers, and for a parameter that doesn't
/// fit; [`ErrorKind::Index`] for an index out of range; [`ErrorKind::NotSupported`] for memory that the
/// host can't access.
///
/// # Safety
/// Until the call returns, no other code accesses the output's memory or writes to the inputs', and no
/// slice of the output is alive.
pub unsafe fn evaluate(
    program: &Program,
    inputs: &[&Tensor],
    params: &[Scalar],
    out: &Tensor,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { evaluate_into(program, inputs, params, out, &[]) }
}

/// As [`evaluate`], for a program with any number of results: one pass over the inputs computes all
/// outputs, which have one shape and share no memory.
///
/// # Errors
/// As [`evaluate`], also for each other output; [`ErrorKind::Binding`] for a wrong number of outputs;
/// [`ErrorKind::Shape`] for outputs of different shapes; [`ErrorKind::Value`] for outputs that share
/// memory.
///
/// # Safety
/// As [`evaluate`], for each output.
pub unsafe fn evaluate_all(
    program: &Program,
    inputs: &[&Tensor],
    params: &[Scalar],
    outs: &[&Tensor],
) -> Result<()> {
    let Some((out, more)) = outs.split_first() else {
        return check_count(program, inputs.len(), 0);
    };
    // SAFETY: the caller's promise.
    unsafe { evaluate_into(program, inputs, params, out, more) }
}

/// Checks a further output and the inputs against it. Returns whether an input is that output, and
/// whether it and all inputs are contiguous and of one shape.
#[cold]
fn check_further(
    program: &Program,
    result: usize,
    inputs: &[&Tensor],
    (out, others): (&Tensor, &[&Tensor]),
) -> Result<InputRelation> {
    let is_flat = check_output(program.results()[result], out)?;
    for other in others {
        if other.shape() != out.shape() {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "output {result} has shape {:?}, and an output before it {:?}; they have to be \
                     equal",
                    out.shape(),
                    other.shape()
                ),
            ));
        }
        if overlap(out, other)? != Overlap::None {
            return Err(Error::new(
                ErrorKind::Value,
                format!("output {result} shares memory with an output before it; write to a copy"),
            ));
        }
    }
    let mut all = InputRelation { in_place: false, flat: is_flat };
    for (index, input) in inputs.iter().enumerate() {
        let fit = check_input(program, index, input, out, is_flat)?;
        all.in_place |= fit.in_place;
        all.flat &= fit.flat;
    }
    Ok(all)
}

/// # Safety
/// As [`evaluate_all`].
#[inline(always)]
unsafe fn evaluate_into(
    program: &Program,
    inputs: &[&Tensor],
    params: &[Scalar],
    out: &Tensor,
    more: &[&Tensor],
) -> Result<()> {
    check_count(program, inputs.len(), 1 + more.len())?;
    if !out.is_pinned() || more.iter().any(|out| !out.is_pinned()) {
        // SAFETY: the caller's promise.
        return unsafe { evaluate_unpinned(program, inputs, params, (out, more)) };
    }
    let out_is_flat = check_output(program.result(), out)?;
    let (mut in_place, mut flat) = (false, out_is_flat);
    for (index, input) in inputs.iter().enumerate() {
        if !input.is_pinned() {
            // SAFETY: the caller's promise.
            return unsafe { evaluate_unpinned(program, inputs, params, (out, more)) };
        }
        let fit = check_input(program, index, input, out, out_is_flat)?;
        in_place |= fit.in_place;
        flat &= fit.flat;
    }
    for (before, further) in more.iter().enumerate() {
        let others: SmallVec<[&Tensor; 8]> =
            std::iter::once(out).chain(more[..before].iter().copied()).collect();
        let fit = check_further(program, 1 + before, inputs, (further, &others))?;
        in_place |= fit.in_place;
        flat &= fit.flat;
    }
    let mut computed = SmallVec::<[Value; 8]>::new();
    let values = match program.constants() {
        Some(values) => values,
        None => {
            program.prepare(params, &mut computed)?;
            &computed[..]
        }
    };
    if out.numel() == 0 {
        return Ok(());
    }
    let mut tables = SmallVec::<[Table<'_>; 2]>::new();
    if program.gathers() {
        tables.extend(inputs.iter().map(|input| Table {
            ptr: input.pinned_ptr(),
            shape: input.shape(),
            strides: input.strides(),
        }));
    }
    let non_temporal = !in_place && out.nbytes() >= NON_TEMPORAL_BYTES;
    let job = Job { program, values, tables: &tables, more, in_place, non_temporal };
    out.note_write();
    more.iter().for_each(|out| out.note_write());
    if flat && program.iotas().iter().all(|iota| *iota == Iota::Index) {
        let units = job.contiguous_units(inputs, out);
        if units == 1 {
            return job.flat(inputs, out, 0..1);
        }
        job.run_on_threads(units, job.block(), |units| job.flat(inputs, out, units))
    } else {
        let plan = TraversalPlan::new(program, inputs, (out, more));
        let (units, unit) = job.units(&plan);
        job.run_on_threads(units, unit, |units| job.run(&plan, units))
    }
}

/// An evaluation, the same for all workers.
struct Job<'a> {
    program: &'a Program,
    values: &'a [Value],
    tables: &'a [Table<'a>],
    /// The outputs after the first one.
    more: &'a [&'a Tensor],
    /// Whether an input is an output, so that blocks are computed into a register first.
    in_place: bool,
    /// Whether the output is written by non-temporal stores.
    non_temporal: bool,
}

// SAFETY: the memory behind the pointers is only read by workers, except for the output, which each
// worker writes at its own indices.
unsafe impl Sync for Job<'_> {}

impl Job<'_> {
    /// Whether the program writes this result directly into its output.
    #[inline]
    fn writes_directly(&self, result: usize) -> bool {
        self.program.writes_result(result) && !self.in_place && !self.non_temporal
    }

    /// The most elements of a block. If a program without streaming kernels writes non-temporal stores,
    /// blocks have half the length, so that the processor computes one while it stores another.
    #[inline]
    fn block(&self) -> usize {
        let block = self.program.block();
        if self.non_temporal && !self.program.has_streaming_kernel() {
            (block / 2).max(MIN_BLOCK)
        } else {
            block
        }
    }

    /// The number of elements, as large as the output's, between a pointer and the cache line that it lies
    /// in; 0 if blocks are too short for alignment to matter.
    #[inline]
    fn misalignment(&self, at: *mut u8) -> usize {
        // Inputs are often aligned like the output, and are read faster from the beginning of a line,
        // too. The result has to be less than a block.
        let matters = self.block() >= non_temporal::LINE;
        if matters { at.addr() % non_temporal::LINE / self.program.result().size() } else { 0 }
    }

    /// Divides `units` of `unit` elements each among the threads.
    fn run_on_threads(
        &self,
        units: usize,
        unit: usize,
        f: impl Fn(Range<usize>) -> Result<()> + Sync,
    ) -> Result<()> {
        let grain = (grain_for(self.program.cost()) / unit).max(1);
        let grain = even_grain(units, grain, num_threads()?);
        parallel_for(Schedule::Adaptive, 0..units, grain, |units| {
            let result = f(units);
            if self.non_temporal {
                non_temporal::fence();
            }
            result
        })
    }
}

/// Returns a grain of at most that size that divides few parts evenly among the threads: with a grain of 71, two
/// threads would compute 71 and 29 of 100 units.
fn even_grain(units: usize, grain: usize, threads: usize) -> usize {
    /// With that many parts for each thread, those that end first take the others'.
    const MANY: usize = 8;
    match units.div_ceil(grain) {
        0 | 1 => grain,
        parts if parts <= threads => units.div_ceil(parts),
        parts if parts < MANY * threads => units.div_ceil(parts.next_multiple_of(threads)),
        _ => grain,
    }
}

/// Outputs of at least this many bytes are written by non-temporal stores. Measured on a Xeon (Sapphire
/// Rapids) with 2 MB of L2 cache per core, one thread, CPU time. Tests use a small number, so that small
/// outputs are written that way, too.
pub(crate) const NON_TEMPORAL_BYTES: usize = if cfg!(test) { 4 << 10 } else { 8 << 20 };

/// Elements of the smallest block, used by programs of very many registers.
const MIN_BLOCK: usize = 32;

/// The distance, in blocks, from the block that is computed to the block that is prefetched. Measured on
/// that Xeon with two threads, float32, 20 million elements, with streaming kernels: `exp` takes 3.26 ms
/// with blocks of 4 KB and 2 blocks ahead, 3.36 to 3.5 ms with 1 block ahead; with blocks of 2 KB and 4
/// ahead 3.4 to 3.75 ms.
const PREFETCH_BLOCKS: usize = 2;
