//! Conversion between any two dtypes, also those that no other kernel takes.
//!
//! The elements go through plain numbers, some at a time: fifteen readers and fifteen writers
//! instead of 225 loops.

use keyfold_core::{Complex, DType, Element, Result, Scalar, bf16, f16};
use keyfold_tensor::{Tensor, for_each_offset};

/// Runs the body with `$t` standing for the dtype's element type; bools as bytes.
macro_rules! for_any {
    ($dtype:expr, $t:ident => $body:expr; $($name:ident $type:ty),*) => {
        match $dtype {
            $(DType::$name => {
                type $t = $type;
                $body
            })*
        }
    };
    ($dtype:expr, $t:ident => $body:expr) => {
        for_any!($dtype, $t => $body; Bool u8, U8 u8, U16 u16, U32 u32, U64 u64, I8 i8, I16 i16,
            I32 i32, I64 i64, F16 f16, BF16 bf16, F32 f32, F64 f64, C64 Complex<f32>,
            C128 Complex<f64>)
    };
}

/// How many numbers are in between at a time.
const CHUNK: usize = 256;

/// Writes the elements of `x`, converted, into a contiguous tensor of its shape.
pub(crate) fn cast_any(x: &Tensor, out: &mut Tensor) -> Result<()> {
    let mut place = 0;
    let mut numbers = Vec::with_capacity(CHUNK);
    for_any!(x.dtype(), T => {
        let (data, origin) = x.as_strided_slice::<T>()?;
        let mut failed = Ok(());
        for_each_offset(x.shape(), [x.strides()], |[at]| {
            numbers.push(data[origin.wrapping_add_signed(at)].to_scalar());
            if numbers.len() == CHUNK && failed.is_ok() {
                failed = write(out, place, &numbers);
                place += CHUNK;
                numbers.clear();
            }
        })?;
        failed?;
    });
    write(out, place, &numbers)
}

fn write(out: &mut Tensor, place: usize, numbers: &[Scalar]) -> Result<()> {
    let dtype = out.dtype();
    for_any!(dtype, T => {
        let out = &mut out.as_mut_slice::<T>()?[place..place + numbers.len()];
        for (out, number) in out.iter_mut().zip(numbers) {
            *out = match dtype {
                DType::Bool => T::from_scalar(Scalar::Int(number.is_nonzero().into())),
                _ => T::from_scalar(*number),
            };
        }
    });
    Ok(())
}
