//! Reductions along dimensions, and softmax.
//!
//! `dim=None` reduces all dimensions; an empty list reduces none, as in NumPy. Every layout is read
//! where it lies. Halves and narrow whole numbers are converted in registers; elements that aren't
//! dense are copied together block by block, and what else has another type than the reduction works
//! in is converted so.
//!
//! Each operator is a plan (the result's shape and dtype, or an error) and a function that computes
//! into a tensor of that shape and dtype, of any layout: a fresh one, or one that was given.
//!
//! No result depends on the number of threads, or on which of them did what: the work is cut by size
//! and layout alone, and the parts' results are combined in their order. Nor does it depend on the
//! instructions in use, except through `exp`.

mod accumulate;
mod arg;
mod blocks;
mod cascade;
mod columns;
mod convert;
mod extreme;
mod geometry;
mod halves;
mod lanes;
mod monoid;
mod ops;
mod quantify;
mod register;
mod rows;
mod share;
mod softmax;
mod strided;
mod sum;

use keyfold_core::{DType, Element, Result};
use keyfold_tensor::Tensor;

pub(crate) use register::register;

use self::blocks::{Input, Sink};
use self::columns::Columns;
use self::geometry::Geometry;
use self::ops::Ops;
use self::rows::Rows;
use crate::op::Op;

/// The address of a tensor's first element.
///
/// # Errors
/// When the host can't reach it.
fn base<T: Element>(x: &Tensor) -> Result<*const u8> {
    Ok(x.data_ptr::<T>()?.cast())
}

/// The address of a result's first element.
///
/// # Errors
/// When the host can't reach it, or it must not be written.
fn out_base(out: &Tensor) -> Result<*mut u8> {
    out.check_writable()?;
    out.note_write();
    out.raw_data_ptr()
}

/// The dtypes that have an order.
const ORDERED: [DType; 13] = [
    DType::Bool,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
];

/// Refuses complex numbers.
fn check_ordered(op: Op, dtype: DType) -> Result<()> {
    if dtype.is_complex() { Err(op.unsupported("self", dtype, &ORDERED)) } else { Ok(()) }
}

/// Reduces lanes of elements of type `S`; `empty` is what those without elements give.
fn run<S, R>(
    geometry: Geometry,
    mut input: Input<S>,
    ops: Ops<S, R>,
    mut sink: Sink<R>,
    empty: R,
) -> Result<()>
where
    S: Copy + 'static,
    R: Copy + Send + Sync + 'static,
{
    let lanes = geometry.lanes();
    if lanes == 0 {
        return Ok(());
    }
    input.base = input.at(geometry.x_base);
    sink.base = sink.base.wrapping_offset(geometry.out_base * sink.size as isize);
    if geometry.len() == 0 {
        geometry::runs(&geometry.kept, 0..lanes, 1, |run| {
            let step = geometry::steps(&geometry.kept).0.out;
            for i in 0..run.len as isize {
                // SAFETY: the walk over the result stays inside it.
                unsafe { sink.put(&mut [empty], run.out + i * step, 1) };
            }
        });
        return Ok(());
    }
    let geometry = &geometry;
    if geometry.along_rows() {
        Rows { geometry, input, loops: &ops.loops, sink }.reduce()
    } else {
        columns::reduce_columns(&Columns { geometry, input, ops, sink })
    }
}
