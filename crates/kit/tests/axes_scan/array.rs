//! The example's input: a strided array of numbers of any dtype.

use std::any::Any;

use half::{bf16, f16};
use keyfold_core::{Element, Error, ErrorKind, Result};
use num_complex::Complex;

/// An element that can be summed. Half types are summed in `f32`, integers wrap.
pub(crate) trait Number: Element {
    /// The type of the sums.
    type Wide: Copy + Default + Send + Sync;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    fn plus(a: Self::Wide, b: Self::Wide) -> Self::Wide;
}

macro_rules! number {
    ($($wide:ty: $($type:ty)+ => |$a:ident, $b:ident| $plus:expr;)+) => {$($(
        impl Number for $type {
            type Wide = $wide;
            fn widen(self) -> $wide {
                self.into()
            }
            fn narrow(wide: $wide) -> Self {
                Narrow::narrow(wide)
            }
            fn plus($a: $wide, $b: $wide) -> $wide {
                $plus
            }
        }
    )+)+};
}

trait Narrow<T> {
    fn narrow(self) -> T;
}

impl<T> Narrow<T> for T {
    fn narrow(self) -> T {
        self
    }
}

impl Narrow<f16> for f32 {
    fn narrow(self) -> f16 {
        f16::from_f32(self)
    }
}

impl Narrow<bf16> for f32 {
    fn narrow(self) -> bf16 {
        bf16::from_f32(self)
    }
}

number! {
    f32: f16 bf16 f32 => |a, b| a + b;
    f64: f64 => |a, b| a + b;
    Complex<f32>: Complex<f32> => |a, b| a + b;
    Complex<f64>: Complex<f64> => |a, b| a + b;
    bool: bool => |a, b| a | b;
    u8: u8 => |a, b| a.wrapping_add(b);
    u16: u16 => |a, b| a.wrapping_add(b);
    u32: u32 => |a, b| a.wrapping_add(b);
    u64: u64 => |a, b| a.wrapping_add(b);
    i8: i8 => |a, b| a.wrapping_add(b);
    i16: i16 => |a, b| a.wrapping_add(b);
    i32: i32 => |a, b| a.wrapping_add(b);
    i64: i64 => |a, b| a.wrapping_add(b);
}

/// Numbers of one dtype in a `Vec`, at a distance of `step` elements.
pub(crate) struct Array {
    data: Box<dyn Any>,
    step: usize,
}

impl Array {
    pub(crate) fn new<T: Element>(items: &[T], step: usize) -> Array {
        let mut data = vec![T::default(); items.len() * step];
        for (place, &item) in data.iter_mut().step_by(step).zip(items) {
            *place = item;
        }
        Array { data: Box::new(data), step }
    }

    pub(crate) fn items<T: Element>(&self) -> Result<Vec<T>> {
        let (data, step) = self.read::<T>()?;
        Ok(data.iter().step_by(step).copied().collect())
    }

    pub(crate) fn read<T: Element>(&self) -> Result<(&[T], usize)> {
        let data = self.data.downcast_ref::<Vec<T>>();
        Ok((data.ok_or_else(other_dtype::<T>)?, self.step))
    }

    pub(crate) fn write<T: Element>(&mut self) -> Result<(&mut [T], usize)> {
        let data = self.data.downcast_mut::<Vec<T>>();
        Ok((data.ok_or_else(other_dtype::<T>)?, self.step))
    }
}

fn other_dtype<T: Element>() -> Error {
    Error::new(ErrorKind::DType, format!("scan: the array isn't one of {}", T::DTYPE))
}
