//! A device with primitives only: plain loops over host memory.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use keyfold_backend::primitives::{Primitive, PrimitiveParams, Primitives, fault};
use keyfold_backend::{
    GpuBackend, Groups, Index, Launch, Linalg, Offer, Pointwise, Random, Reduce, Rows, Scan,
    not_supported,
};
use keyfold_core::{DType, DTypeKind, Element, Result, Scalar, bf16, f16};
use keyfold_tensor::Tensor;
use keyfold_tensor::device::{HostMemory, Memory};

/// The device, and a predicate of its missing primitives.
#[derive(Debug)]
pub(crate) struct Host {
    lacks: fn(Primitive, &[DType]) -> bool,
    launches: AtomicUsize,
    /// Whether functions have an additional error of one unit in the last place.
    inexact: bool,
}

impl Host {
    pub(crate) fn complete() -> Host {
        Host::without(|_, _| false)
    }

    pub(crate) fn without(lacks: fn(Primitive, &[DType]) -> bool) -> Host {
        Host { lacks, launches: AtomicUsize::new(0), inexact: false }
    }

    /// Functions with the greatest allowed error.
    pub(crate) fn inexact() -> Host {
        Host { inexact: true, ..Host::complete() }
    }

    /// Returns the number of launches.
    pub(crate) fn launches(&self) -> usize {
        self.launches.load(Ordering::Relaxed)
    }
}

impl GpuBackend for Host {
    fn name(&self) -> &str {
        "plain"
    }
    fn memory(&self) -> Arc<dyn Memory> {
        Arc::new(HostMemory)
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn pointwise(&self) -> Option<Pointwise<'_>> {
        Some(Pointwise::Primitives(self))
    }
    fn reduce(&self) -> Option<&dyn Reduce> {
        None
    }
    fn rows(&self) -> Option<&dyn Rows> {
        None
    }
    fn scan(&self) -> Option<&dyn Scan> {
        None
    }
    fn linalg(&self) -> Option<&dyn Linalg> {
        None
    }
    fn index(&self) -> Option<&dyn Index> {
        None
    }
    fn random(&self) -> Option<&dyn Random> {
        None
    }
    fn groups(&self) -> Groups<'_> {
        Groups::NONE
    }
}

impl Primitives for Host {
    fn primitive(
        &self,
        primitive: Primitive,
        inputs: &[DType],
        output: DType,
    ) -> Offer<&dyn Launch<PrimitiveParams>> {
        let is_half = |dtype: &DType| matches!(dtype, DType::F16 | DType::BF16);
        let halves = inputs.iter().any(is_half) || is_half(&output);
        assert!(inputs.iter().chain([&output]).all(|dtype| !dtype.is_complex()));
        assert!(!halves || matches!(primitive, Primitive::Cast | Primitive::Gather));
        if (self.lacks)(primitive, inputs) {
            return Offer::No("which was left out".into());
        }
        Offer::Native(self)
    }
}

impl Launch<PrimitiveParams> for Host {
    unsafe fn launch(
        &self,
        params: &PrimitiveParams,
        inputs: &[&Tensor],
        out: &Tensor,
    ) -> Result<()> {
        self.launches.fetch_add(1, Ordering::Relaxed);
        let elementwise = if params.primitive == Primitive::Gather { &inputs[1..] } else { inputs };
        assert!(elementwise.iter().all(|input| input.shape() == out.shape()));
        for input in elementwise {
            let exact = input.raw_data_ptr()? == out.raw_data_ptr()?
                && input.strides() == out.strides()
                && input.dtype().size() == out.dtype().size();
            assert!(exact || !input.touches(out), "{input:?} and {out:?} share memory otherwise");
        }
        match params.primitive {
            Primitive::Cast => cast(inputs[0], out),
            Primitive::Iota => {
                (0_i64..).zip(offsets(out)).for_each(|(at, offset)| write(out, offset, at));
                Ok(())
            }
            Primitive::Gather => gather(inputs[0], inputs[1], out),
            Primitive::Check => check(inputs[0], out, params.fault),
            Primitive::Where => choose(inputs, out),
            other => match inputs[0].dtype() {
                DType::Bool => bools(other, inputs, out),
                DType::U8 => u8::compute(other, inputs, out, self.inexact),
                DType::U16 => u16::compute(other, inputs, out, self.inexact),
                DType::U32 => u32::compute(other, inputs, out, self.inexact),
                DType::U64 => u64::compute(other, inputs, out, self.inexact),
                DType::I8 => i8::compute(other, inputs, out, self.inexact),
                DType::I16 => i16::compute(other, inputs, out, self.inexact),
                DType::I32 => i32::compute(other, inputs, out, self.inexact),
                DType::I64 => i64::compute(other, inputs, out, self.inexact),
                DType::F32 => f32::compute(other, inputs, out, self.inexact),
                DType::F64 => f64::compute(other, inputs, out, self.inexact),
                dtype => Err(unknown(other, dtype)),
            },
        }
    }
}

#[cold]
fn unknown(primitive: Primitive, dtype: DType) -> keyfold_core::Error {
    not_supported(
        &format!("{primitive} of {dtype}"),
        "plain",
        &"it isn't known".into(),
        "ask before",
    )
}

/// Returns the offsets of a tensor's elements from the first, in elements, in row-major order.
fn offsets(tensor: &Tensor) -> Vec<isize> {
    let mut all = vec![0];
    for (size, stride) in tensor.shape().iter().zip(tensor.strides().iter()) {
        let along = |offset: isize| (0..*size as isize).map(move |i| offset + i * stride);
        all = all.into_iter().flat_map(along).collect();
    }
    all
}

fn read<T: Copy>(tensor: &Tensor, offset: isize) -> T {
    assert_eq!(size_of::<T>(), tensor.dtype().size());
    let start = tensor.raw_data_ptr().unwrap().cast::<T>();
    // SAFETY: the offset of an element of the tensor, whose dtype has the type's size.
    unsafe { *start.offset(offset) }
}

fn write<T: Copy>(tensor: &Tensor, offset: isize, value: T) {
    assert_eq!(size_of::<T>(), tensor.dtype().size());
    let start = tensor.raw_data_ptr().unwrap().cast::<T>();
    // SAFETY: as for reading; by the launch's contract nothing else accesses the output.
    unsafe { *start.offset(offset) = value };
}

fn map1<A: Copy, R: Copy>(inputs: &[&Tensor], out: &Tensor, f: impl Fn(A) -> R) -> Result<()> {
    for (to, a) in offsets(out).into_iter().zip(offsets(inputs[0])) {
        write(out, to, f(read(inputs[0], a)));
    }
    Ok(())
}

fn map2<A: Copy, R: Copy>(inputs: &[&Tensor], out: &Tensor, f: impl Fn(A, A) -> R) -> Result<()> {
    let pairs = offsets(inputs[0]).into_iter().zip(offsets(inputs[1]));
    for (to, (a, b)) in offsets(out).into_iter().zip(pairs) {
        write(out, to, f(read(inputs[0], a), read(inputs[1], b)));
    }
    Ok(())
}

fn choose(inputs: &[&Tensor], out: &Tensor) -> Result<()> {
    fn of<T: Copy>(inputs: &[&Tensor], out: &Tensor) -> Result<()> {
        let all = inputs.iter().map(|input| offsets(input)).collect::<Vec<_>>();
        for (at, to) in offsets(out).into_iter().enumerate() {
            let from = if read::<u8>(inputs[0], all[0][at]) != 0 { 1 } else { 2 };
            write(out, to, read::<T>(inputs[from], all[from][at]));
        }
        Ok(())
    }
    match out.dtype().size() {
        1 => of::<u8>(inputs, out),
        2 => of::<u16>(inputs, out),
        4 => of::<u32>(inputs, out),
        _ => of::<u64>(inputs, out),
    }
}

fn gather(table: &Tensor, index: &Tensor, out: &Tensor) -> Result<()> {
    fn of<T: Copy>(table: &Tensor, index: &Tensor, out: &Tensor) -> Result<()> {
        for (to, at) in offsets(out).into_iter().zip(offsets(index)) {
            let at: i64 = read(index, at);
            assert!((0..table.shape()[0] as i64).contains(&at), "{at} in {table:?}");
            write(out, to, read::<T>(table, at as isize * table.strides()[0]));
        }
        Ok(())
    }
    match out.dtype().size() {
        1 => of::<u8>(table, index, out),
        2 => of::<u16>(table, index, out),
        4 => of::<u32>(table, index, out),
        _ => of::<u64>(table, index, out),
    }
}

fn check(input: &Tensor, out: &Tensor, code: u32) -> Result<()> {
    let all = offsets(input).into_iter().all(|offset| read::<u8>(input, offset) != 0);
    map1(&[input], out, |truth: u8| truth)?;
    if all { Ok(()) } else { Err(fault(code)) }
}

fn cast(input: &Tensor, out: &Tensor) -> Result<()> {
    fn from<A: Element>(input: &Tensor, out: &Tensor) -> Result<()> {
        fn to<A: Element, R: Element>(input: &Tensor, out: &Tensor) -> Result<()> {
            map1(&[input], out, |a: A| match a.to_scalar() {
                // Rounded once, which a conversion through float64 wouldn't be.
                Scalar::Int(whole) if R::DTYPE == DType::F32 => {
                    R::from_scalar(Scalar::Float(f64::from(whole as f32)))
                }
                Scalar::UInt(whole) if R::DTYPE == DType::F32 => {
                    R::from_scalar(Scalar::Float(f64::from(whole as f32)))
                }
                scalar => saturated::<R>(scalar),
            })
        }
        match out.dtype() {
            DType::Bool => to::<A, bool>(input, out),
            DType::U8 => to::<A, u8>(input, out),
            DType::U16 => to::<A, u16>(input, out),
            DType::U32 => to::<A, u32>(input, out),
            DType::U64 => to::<A, u64>(input, out),
            DType::I8 => to::<A, i8>(input, out),
            DType::I16 => to::<A, i16>(input, out),
            DType::I32 => to::<A, i32>(input, out),
            DType::I64 => to::<A, i64>(input, out),
            DType::F16 => to::<A, f16>(input, out),
            DType::BF16 => to::<A, bf16>(input, out),
            DType::F32 => to::<A, f32>(input, out),
            DType::F64 => to::<A, f64>(input, out),
            dtype => Err(unknown(Primitive::Cast, dtype)),
        }
    }
    match input.dtype() {
        DType::Bool => from::<bool>(input, out),
        DType::U8 => from::<u8>(input, out),
        DType::U16 => from::<u16>(input, out),
        DType::U32 => from::<u32>(input, out),
        DType::U64 => from::<u64>(input, out),
        DType::I8 => from::<i8>(input, out),
        DType::I16 => from::<i16>(input, out),
        DType::I32 => from::<i32>(input, out),
        DType::I64 => from::<i64>(input, out),
        DType::F16 => from::<f16>(input, out),
        DType::BF16 => from::<bf16>(input, out),
        DType::F32 => from::<f32>(input, out),
        DType::F64 => from::<f64>(input, out),
        dtype => Err(unknown(Primitive::Cast, dtype)),
    }
}

/// Converts a scalar, saturating at the ends of an integer dtype's range.
fn saturated<R: Element>(scalar: Scalar) -> R {
    match (scalar, R::DTYPE.int_range()) {
        (Scalar::Float(x), Some((low, high))) => {
            let whole = (x as i128).clamp(low, high);
            R::from_scalar(Scalar::from_wide(whole).unwrap_or(Scalar::Int(0)))
        }
        _ => R::from_scalar(scalar),
    }
}

fn bools(primitive: Primitive, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
    match primitive {
        Primitive::And => map2(inputs, out, |a: u8, b: u8| a & b),
        Primitive::Or => map2(inputs, out, |a: u8, b: u8| a | b),
        Primitive::Xor => map2(inputs, out, |a: u8, b: u8| a ^ b),
        Primitive::Equal => map2(inputs, out, |a: u8, b: u8| a == b),
        other => Err(unknown(other, DType::Bool)),
    }
}

trait Compute: Debug {
    fn compute(p: Primitive, inputs: &[&Tensor], out: &Tensor, inexact: bool) -> Result<()>;
}

macro_rules! whole {
    // A macro, since the standard library has no trait for integers.
    ($($t:ident)*) => {$(
        impl Compute for $t {
            fn compute(p: Primitive, inputs: &[&Tensor], out: &Tensor, _: bool) -> Result<()> {
                assert!(matches!(inputs[0].dtype().kind(), DTypeKind::Int | DTypeKind::UInt));
                let two = |f: fn($t, $t) -> $t| map2(inputs, out, f);
                let shift = |a: $t, b: $t, f: fn($t, u32) -> $t| {
                    f(a, u32::try_from(b).ok().filter(|b| *b < $t::BITS).unwrap())
                };
                match p {
                    Primitive::Add => two(|a, b| a.wrapping_add(b)),
                    Primitive::Sub => two(|a, b| a.wrapping_sub(b)),
                    Primitive::Mul => two(|a, b| a.wrapping_mul(b)),
                    Primitive::Div => two(|a, b| if b == 0 { 0 } else { a.wrapping_div(b) }),
                    Primitive::Equal => map2(inputs, out, |a: $t, b: $t| a == b),
                    Primitive::Less => map2(inputs, out, |a: $t, b: $t| a < b),
                    Primitive::And => two(|a, b| a & b),
                    Primitive::Or => two(|a, b| a | b),
                    Primitive::Xor => two(|a, b| a ^ b),
                    Primitive::ShiftLeft => map2(inputs, out, |a, b| shift(a, b, |a, b| a << b)),
                    Primitive::ShiftRight => map2(inputs, out, |a, b| shift(a, b, |a, b| a >> b)),
                    other => Err(unknown(other, inputs[0].dtype())),
                }
            }
        }
    )*};
}

whole! { u8 u16 u32 u64 i8 i16 i32 i64 }

macro_rules! floats {
    ($($t:ident)*) => {$(
        impl Compute for $t {
            fn compute(p: Primitive, inputs: &[&Tensor], out: &Tensor, inexact: bool) -> Result<()> {
                let one = |f: fn($t) -> $t| map1(inputs, out, f);
                // Exact arguments and results stay exact.
                let off = |x: $t| match x.to_bits() & 2 {
                    _ if !inexact || x == 0.0 || x == 1.0 || !x.is_finite() => x,
                    0 => x.next_up(),
                    _ => x.next_down(),
                };
                let function = |f: fn($t) -> $t| map1(inputs, out, |a| off(f(a)));
                let two = |f: fn($t, $t) -> $t| map2(inputs, out, f);
                match p {
                    Primitive::Add => two(|a, b| a + b),
                    Primitive::Sub => two(|a, b| a - b),
                    Primitive::Mul => two(|a, b| a * b),
                    Primitive::Div => two(|a, b| a / b),
                    Primitive::Neg => one(|a| -a),
                    Primitive::Abs => one($t::abs),
                    Primitive::Sqrt => one($t::sqrt),
                    Primitive::Exp => function($t::exp),
                    Primitive::Log => function($t::ln),
                    Primitive::Sin => function($t::sin),
                    Primitive::Cos => function($t::cos),
                    Primitive::Floor => one($t::floor),
                    Primitive::Equal => map2(inputs, out, |a: $t, b: $t| a == b),
                    Primitive::Less => map2(inputs, out, |a: $t, b: $t| a < b),
                    other => Err(unknown(other, inputs[0].dtype())),
                }
            }
        }
    )*};
}

floats! { f32 f64 }
