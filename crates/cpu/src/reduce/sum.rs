//! Sums and means.
//!
//! Floats are added pairwise: see [`super::cascade`].

use std::marker::PhantomData;

use keyfold_backend::ReduceParams;
use keyfold_core::{Complex, DType, Error, ErrorKind, Result, bf16, f16};
use keyfold_tensor::Tensor;

use super::blocks::{Fill, Input, Sink, fill};
use super::convert::{Convert, Plain, To, Truth};
use super::geometry::Reduction;
use super::monoid::{Addend, Sum};
use super::ops::Ops;
use super::{Kernel, base, out_base, run};
use crate::kernel::HostKernel;

/// The kernel for sums, or means, of elements of a dtype as numbers of another; none where those can't
/// hold them.
pub(crate) fn kernel(mean: bool, from: DType, to: DType) -> Option<Kernel> {
    macro_rules! of {
        // Elements as they are stored, what some are added up in first, and what all are.
        ($type:ty, $stored:ty; $first:ty, $all:ty => $to:ty) => {
            |job: &Job<'_>| {
                let input = Input::plain::<$type>(base::<$stored>(job.x)?);
                let ops = Ops::of::<Plain<$type, $first>, Sum<$first>, Sum<$all>>();
                into(job, input, ops, Sink::<$all>::of::<$to>(job.to))
            }
        };
    }
    macro_rules! both {
        ($add:expr) => {
            match mean {
                true => HostKernel::new(|params, inputs, out| {
                    $add(&Job::new(true, params, inputs[0], out)?)
                }),
                false => HostKernel::new(|params, inputs, out| {
                    $add(&Job::new(false, params, inputs[0], out)?)
                }),
            }
        };
    }
    if to == DType::Bool || from.is_complex() && !to.is_complex() {
        return None;
    }
    // These are converted in registers. Of 16 bits or less, as many as a part of a lane has have a
    // sum of 32 bits.
    Some(match (from, to) {
        (DType::F16, DType::F16) => both!(of!(f16, f16; f32, f32 => f16)),
        (DType::F16, DType::F32) => both!(of!(f16, f16; f32, f32 => f32)),
        (DType::BF16, DType::BF16) => both!(of!(bf16, bf16; f32, f32 => bf16)),
        (DType::BF16, DType::F32) => both!(of!(bf16, bf16; f32, f32 => f32)),
        (DType::Bool, DType::I64) => both!(of!(Truth, u8; i32, i64 => i64)),
        (DType::I8, DType::I64) => both!(of!(i8, i8; i32, i64 => i64)),
        (DType::I16, DType::I64) => both!(of!(i16, i16; i32, i64 => i64)),
        (DType::I32, DType::I64) => both!(of!(i32, i32; i64, i64 => i64)),
        (DType::U8, DType::U64) => both!(of!(u8, u8; u32, u64 => u64)),
        (DType::U16, DType::U64) => both!(of!(u16, u16; u32, u64 => u64)),
        (DType::U32, DType::U64) => both!(of!(u32, u32; u64, u64 => u64)),
        _ => both!(by_blocks),
    })
}

/// The elements to be added up, and where the sums go.
struct Job<'a> {
    mean: bool,
    reduction: Reduction,
    x: &'a Tensor,
    out: &'a Tensor,
    to: *mut u8,
}

impl<'a> Job<'a> {
    fn new(mean: bool, params: &ReduceParams, x: &'a Tensor, out: &'a Tensor) -> Result<Self> {
        Ok(Job { mean, reduction: Reduction::new(params, x), x, out, to: out_base(out)? })
    }
}

/// Sums of elements that lie as they are computed in, or are converted block by block.
fn by_blocks(job: &Job<'_>) -> Result<()> {
    let (x, to) = (job.x, job.to);
    // Whole numbers are added in 64 bits, which wraps around as the narrower type would.
    match job.out.dtype() {
        DType::F16 => same(job, f32::input(x)?, Sink::of::<f16>(to)),
        DType::BF16 => same(job, f32::input(x)?, Sink::of::<bf16>(to)),
        DType::F32 => same(job, f32::input(x)?, Sink::of::<f32>(to)),
        DType::F64 => same(job, f64::input(x)?, Sink::of::<f64>(to)),
        DType::I8 => same(job, by_way_of::<i8, i64>(x)?, Sink::of::<i8>(to)),
        DType::I16 => same(job, by_way_of::<i16, i64>(x)?, Sink::of::<i16>(to)),
        DType::I32 => same(job, by_way_of::<i32, i64>(x)?, Sink::of::<i32>(to)),
        DType::I64 => same(job, i64::input(x)?, Sink::of::<i64>(to)),
        DType::U8 => same(job, by_way_of::<u8, u64>(x)?, Sink::of::<u8>(to)),
        DType::U16 => same(job, by_way_of::<u16, u64>(x)?, Sink::of::<u16>(to)),
        DType::U32 => same(job, by_way_of::<u32, u64>(x)?, Sink::of::<u32>(to)),
        DType::U64 => same(job, u64::input(x)?, Sink::of::<u64>(to)),
        DType::C64 => same(job, Complex::<f32>::input(x)?, Sink::of::<Complex<f32>>(to)),
        DType::C128 => same(job, Complex::<f64>::input(x)?, Sink::of::<Complex<f64>>(to)),
        DType::Bool => Err(no_input("bool", x.dtype())),
    }
}

fn same<A: Addend + To<A>>(job: &Job<'_>, input: Input<A>, sink: Sink<A>) -> Result<()> {
    into(job, input, Ops::of::<Plain<A, A>, Sum<A>, Sum<A>>(), sink)
}

fn into<S, A>(job: &Job<'_>, input: Input<S>, ops: Ops<S, A>, mut sink: Sink<A>) -> Result<()>
where
    S: Copy + 'static,
    A: Addend,
{
    let Job { mean, reduction, x, out, .. } = job;
    if *mean {
        // Without elements this is 0 / 0, NaN, as in NumPy.
        sink.divide = Some((A::divide, reduction.len as f64));
    }
    run(reduction.geometry(x, out, false), input, ops, sink, A::ZERO)
}

/// A type that numbers are computed in, with how elements of other dtypes become numbers of it.
pub(crate) trait Computed: Copy + 'static {
    /// A tensor's elements.
    ///
    /// # Errors
    /// When the memory can't be reached, and for complex elements as real numbers.
    fn input(x: &Tensor) -> Result<Input<Self>>;
}

#[cold]
fn no_input(to: &str, from: DType) -> Error {
    Error::new(ErrorKind::DType, format!("{from} elements can't be added up as {to}"))
}

macro_rules! computed {
    // One row per dtype: the type that stands for its elements, and the one that they're had as.
    ($to:ty; $($dtype:ident $type:ty, $stored:ty;)*) => {
        impl Computed for $to {
            fn input(x: &Tensor) -> Result<Input<$to>> {
                match x.dtype() {
                    $(DType::$dtype => Ok(Input::plain::<$type>(base::<$stored>(x)?)),)*
                    #[allow(unreachable_patterns, reason = "real types don't take complex ones")]
                    other => Err(no_input(stringify!($to), other)),
                }
            }
        }
    };
    (real: $($to:ty),*) => {$(
        computed! { $to; Bool Truth, u8; U8 u8, u8; U16 u16, u16; U32 u32, u32; U64 u64, u64;
            I8 i8, i8; I16 i16, i16; I32 i32, i32; I64 i64, i64; F16 f16, f16; BF16 bf16, bf16;
            F32 f32, f32; F64 f64, f64; }
    )*};
    (complex: $($to:ty),*) => {$(
        computed! { $to; Bool Truth, u8; U8 u8, u8; U16 u16, u16; U32 u32, u32; U64 u64, u64;
            I8 i8, i8; I16 i16, i16; I32 i32, i32; I64 i64, i64; F16 f16, f16; BF16 bf16, bf16;
            F32 f32, f32; F64 f64, f64; C64 Complex<f32>, Complex<f32>;
            C128 Complex<f64>, Complex<f64>; }
    )*};
}
computed!(real: f32, f64, i64, u64);
computed!(complex: Complex<f32>, Complex<f64>);

/// A tensor's elements as numbers of type `A`, floats by way of the narrower type `D`, which
/// saturates where it can't hold them.
fn by_way_of<D, A: Computed>(x: &Tensor) -> Result<Input<A>>
where
    D: To<A> + Copy + 'static,
    f32: To<D>,
    f64: To<D>,
{
    let mut input = A::input(x)?;
    let fill: Fill<A> = match x.dtype() {
        DType::F16 => fill::<Through<f16, f32, D, A>>,
        DType::BF16 => fill::<Through<bf16, f32, D, A>>,
        DType::F32 => fill::<Through<f32, f32, D, A>>,
        DType::F64 => fill::<Through<f64, f64, D, A>>,
        _ => return Ok(input),
    };
    input.fill = fill;
    Ok(input)
}

/// From `S` to `A` through two types in between.
struct Through<S, B, D, A>(PhantomData<(S, B, D, A)>);

impl<S, B, D, A> Convert for Through<S, B, D, A>
where
    S: To<B> + Copy + 'static,
    B: To<D> + 'static,
    D: To<A> + 'static,
    A: Copy + 'static,
{
    type From = S;
    type To = A;
    #[inline(always)]
    fn one(from: S) -> A {
        To::<A>::convert(To::<D>::convert(To::<B>::convert(from)))
    }
}
