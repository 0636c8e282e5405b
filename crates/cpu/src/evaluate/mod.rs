//! Expressions over tensors.
//!
//! [`evaluate`] runs a [`Program`] over whole tensors: any strides, broadcast, in place, on all
//! threads. [`Compiled`] is an expression with the programs that were made of it, one per mixture of
//! dtypes: what an operator keeps.

mod compiled;
mod drive;
mod overlap;
mod plan;
mod scratch;
mod spans;
pub(crate) mod stream;
#[cfg(test)]
mod tests;
mod tiles;

use keyfold_core::{Error, ErrorKind, Result, Scalar, Shape, layout};
use keyfold_expr::eval::memory::Value;
use keyfold_expr::eval::{Program, Table};
use keyfold_tensor::Tensor;
use smallvec::SmallVec;

pub use compiled::Compiled;
pub use overlap::{Overlap, overlap};

use crate::pool::{Schedule, grain_for, parallel_for};
use drive::Job;
use plan::Plan;

/// The most inputs an expression can be evaluated with.
pub const MAX_INPUTS: usize = 64;

/// The shape that the inputs of a program broadcast to; those that are read at computed indices
/// take no part.
///
/// # Errors
/// [`ErrorKind::Shape`] where they don't broadcast, or a ranked input has another rank;
/// [`ErrorKind::Binding`] where there are too few or too many.
pub fn broadcast_shape(program: &Program, shapes: &[&[usize]]) -> Result<Shape> {
    check_count(program, shapes.len())?;
    let mut all = Shape::empty();
    for (input, (shape, rank)) in shapes.iter().zip(program.ranks()).enumerate() {
        match rank {
            None if *shape == &*all => {}
            None => all = layout::broadcast_shapes(&all, shape)?,
            Some(rank) => check_rank(input, shape.len(), *rank)?,
        }
    }
    Ok(all)
}

fn check_count(program: &Program, given: usize) -> Result<()> {
    let wanted = program.inputs().len();
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

fn check_rank(input: usize, given: usize, rank: u32) -> Result<()> {
    if given == rank as usize {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Shape,
        format!(
            "input {input} is read at {rank} indices, so it needs {rank} dimensions; it has {given}"
        ),
    ))
}

/// Whether the host can reach the tensor's memory.
fn check_host(tensor: &Tensor) -> Result<()> {
    if tensor.device() == keyfold_core::Device::CPU || !tensor.buffer().host_ptr().is_null() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::NotSupported,
        format!(
            "an expression can't be evaluated on the host for a tensor on {}; use one on cpu",
            tensor.device()
        ),
    ))
}

fn check_input(program: &Program, index: usize, input: &Tensor, out: &Tensor) -> Result<bool> {
    let wanted = program.inputs()[index];
    if input.dtype() != wanted {
        return Err(Error::new(
            ErrorKind::DType,
            format!("input {index} has dtype {}; the program is for {wanted}", input.dtype()),
        ));
    }
    check_host(input)?;
    if let Some(rank) = program.ranks()[index] {
        check_rank(index, input.ndim(), rank)?;
    } else if input.shape() != out.shape() {
        let (own, wide) = (input.shape(), out.shape());
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
        // Elements at computed indices may be any.
        Overlap::Exact if program.ranks()[index].is_some() => Overlap::Partial,
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
    Ok(meets == Overlap::Exact)
}

fn check_output(program: &Program, out: &Tensor) -> Result<()> {
    if out.dtype() != program.result() {
        return Err(Error::new(
            ErrorKind::DType,
            format!("the output has dtype {}; the program gives {}", out.dtype(), program.result()),
        ));
    }
    check_host(out)?;
    out.check_writable()?;
    if !out.is_contiguous() && out.may_overlap_itself() {
        return Err(Error::new(
            ErrorKind::Value,
            format!(
                "an output of shape {:?} and strides {:?} has elements that share memory; give one \
                 of its own for each",
                out.shape(),
                out.strides()
            ),
        ));
    }
    Ok(())
}

/// Computes every element of `out`: the inputs broadcast to its shape, except for those that are
/// read at computed indices. An input may be the output itself (the same elements in the same
/// order); [`overlap`] tells which ones have to be copied before.
///
/// # Errors
/// [`ErrorKind::Binding`] for the wrong number of inputs or parameters; [`ErrorKind::DType`] for
/// other dtypes than the program's; [`ErrorKind::Shape`] for an input that doesn't broadcast to the
/// output's shape; [`ErrorKind::ReadOnly`]; [`ErrorKind::Value`] for an output that overlaps itself
/// or, differently ordered, an input, for whole numbers raised to negative powers, and for a
/// parameter that doesn't fit; [`ErrorKind::Index`] for an index out of range;
/// [`ErrorKind::NotSupported`] for memory that the host can't reach.
///
/// # Safety
/// Until it returns, nobody else uses the output's memory or writes to that of the inputs, and no
/// slice of the output's is alive.
pub unsafe fn evaluate(
    program: &Program,
    inputs: &[&Tensor],
    params: &[Scalar],
    out: &Tensor,
) -> Result<()> {
    check_count(program, inputs.len())?;
    check_output(program, out)?;
    let mut in_place = false;
    for (index, input) in inputs.iter().enumerate() {
        in_place |= check_input(program, index, input, out)?;
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
            ptr: input.raw_data_ptr(),
            shape: input.shape(),
            strides: input.strides(),
        }));
    }
    let plan = Plan::new(program, inputs, out);
    let streamed = !in_place && out.nbytes() >= STREAMED;
    let job = Job { program, plan, values, tables: &tables, in_place, streamed };
    let (units, unit) = job.units();
    let grain = (grain_for(program.cost()) / unit).max(1);
    let result = parallel_for(Schedule::Adaptive, 0..units, grain, |range| {
        let result = job.run(range);
        if streamed {
            stream::fence();
        }
        result
    });
    out.note_write();
    result
}

/// Bytes from which on an output goes past the caches.
pub(crate) const STREAMED: usize = 8 << 20;
