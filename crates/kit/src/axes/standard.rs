//! The axes that tensor kernels have in common, and named subsets of them.

use std::marker::PhantomData;

use half::{bf16, f16};
use keyfold_core::{DType, DeviceType, Element, Error, ErrorKind, Result};
use num_complex::Complex;

use super::axis::{Axis, AxisValue, Coordinate};
use super::type_bool::OwnId;
use super::type_list::{Every, OneOf};
use crate::pool::Schedule;

axis! {
    @ OwnId<0, 0>;
    /// The device that the kernel runs on.
    pub enum Device("device") {
        /// On the host.
        Cpu = "cpu",
        /// On an NVIDIA GPU.
        Cuda = "cuda",
    }
}

axis! {
    @ OwnId<0, 1>;
    /// Whether the elements of every tensor are in row-major order without gaps.
    pub enum Contiguity("contiguity") {
        /// Every tensor is contiguous, so that one linear index serves all.
        Contiguous = "contiguous",
        /// Some tensor may be strided.
        Strided = "strided",
    }
}

axis! {
    @ OwnId<0, 2>;
    /// The destination of the result.
    pub enum Placement("placement") {
        /// The result overwrites the input.
        InPlace = "in place",
        /// The result is written to other memory.
        OutOfPlace = "out of place",
    }
}

axis! {
    @ OwnId<0, 3>;
    /// Whether equal inputs must give results that are equal to the last bit.
    pub enum Determinism("determinism") {
        /// Results may differ in the last bits, as the order of additions may vary.
        NotRequired = "not required",
        /// Results must be equal to the last bit.
        Required = "required",
    }
}

/// The axis of dtypes; a value's type is [`Of<f32>`](Of) and so on.
pub type Dtype = DType;

/// The axis of schedules: how work is divided among threads.
pub type Scheduling = Schedule;

/// The dtype whose elements are `T`, as a type.
pub struct Of<T>(PhantomData<fn() -> T>);

impl<T> Of<T> {
    /// The value of this type.
    pub const fn new() -> Self {
        Of(PhantomData)
    }
}

impl<T> Clone for Of<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Of<T> {}

impl<T> Default for Of<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Element> std::fmt::Debug for Of<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", T::DTYPE)
    }
}

impl<T: Element> AxisValue for Of<T> {
    type Axis = Dtype;
    const VALUE: Dtype = T::DTYPE;
    const INDEX: usize = T::DTYPE as usize;
}

impl<T: Element> Coordinate for Of<T> {
    type Axis = Dtype;
    #[inline(always)]
    fn coordinate(self) -> Dtype {
        T::DTYPE
    }
}

impl Axis for Dtype {
    const NAME: &'static str = "dtype";
    const ALL: &'static [Self] = &DType::ALL;
    type Id = OwnId<1, 0>;
    type Values =
        values!(Bool, U8, U16, U32, U64, I8, I16, I32, I64, F16, BF16, F32, F64, C64, C128);

    #[inline(always)]
    fn index(self) -> usize {
        self as usize
    }

    fn label(self) -> &'static str {
        self.name()
    }
}

impl Coordinate for Dtype {
    type Axis = Dtype;
    #[inline(always)]
    fn coordinate(self) -> Dtype {
        self
    }
}

macro_rules! dtypes {
    // A macro, since each name is both a type and its value.
    ($($name:ident = $element:ty),* $(,)?) => {$(
        #[doc = concat!("The dtype of `", stringify!($element), "`, as a type.")]
        pub type $name = Of<$element>;
        #[doc = concat!("The dtype of `", stringify!($element), "`, as a value of its type.")]
        #[allow(non_upper_case_globals, reason = "it is called as its type")]
        pub const $name: $name = Of::new();
    )*};
}

dtypes! {
    Bool = bool, U8 = u8, U16 = u16, U32 = u32, U64 = u64, I8 = i8, I16 = i16, I32 = i32,
    I64 = i64, F16 = f16, BF16 = bf16, F32 = f32, F64 = f64,
    C64 = Complex<f32>, C128 = Complex<f64>,
}

impl Axis for Schedule {
    const NAME: &'static str = "scheduling";
    const ALL: &'static [Self] = &[Schedule::Uniform, Schedule::Adaptive];
    type Id = OwnId<1, 1>;
    type Values = values!(Uniform, Adaptive);

    #[inline(always)]
    fn index(self) -> usize {
        self as usize
    }

    fn label(self) -> &'static str {
        match self {
            Schedule::Uniform => "uniform",
            Schedule::Adaptive => "adaptive",
        }
    }
}

impl Coordinate for Schedule {
    type Axis = Schedule;
    #[inline(always)]
    fn coordinate(self) -> Schedule {
        self
    }
}

macro_rules! schedules {
    // A macro that makes the types of the values; the pools declare the enum.
    ($($name:ident = $doc:literal),*) => {$(
        #[doc = $doc]
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name;

        impl AxisValue for $name {
            type Axis = Schedule;
            const VALUE: Schedule = Schedule::$name;
            const INDEX: usize = Schedule::$name as usize;
        }

        impl Coordinate for $name {
            type Axis = Schedule;
            #[inline(always)]
            fn coordinate(self) -> Schedule {
                Schedule::$name
            }
        }
    )*};
}

schedules! {
    Uniform = "One part per thread, all of one size.",
    Adaptive = "Threads take parts as they become free."
}

/// Every device.
pub const ALL_DEVICES: Every<Device> = Every::new();
/// Every dtype.
pub const ALL_DTYPES: Every<Dtype> = Every::new();
/// `float16`, `bfloat16`, `float32`, `float64`.
pub const FLOATS: OneOf<(F16, BF16, F32, F64)> = OneOf::new();
/// The half types, which compute in `float32`: `float16`, `bfloat16`.
pub const HALVES: OneOf<(F16, BF16)> = OneOf::new();
/// Integers with a sign.
pub const SIGNED_INTS: OneOf<(I8, I16, I32, I64)> = OneOf::new();
/// Integers without a sign.
pub const UNSIGNED_INTS: OneOf<(U8, U16, U32, U64)> = OneOf::new();
/// Every integer; `bool` isn't one.
pub const INTS: OneOf<Ints> = OneOf::new();
/// The values of [`INTS`].
pub type Ints = (U8, U16, U32, U64, I8, I16, I32, I64);
/// Every dtype whose elements have an order: all but the complex ones.
pub const ORDERED: OneOf<OrderedDtypes> = OneOf::new();
/// The values of [`ORDERED`].
pub type OrderedDtypes = (Bool, U8, U16, U32, U64, I8, I16, I32, I64, F16, BF16, F32, F64);
/// `complex64`, `complex128`.
pub const COMPLEX: OneOf<(C64, C128)> = OneOf::new();
/// Contiguous and strided.
pub const ALL_CONTIGUITIES: Every<Contiguity> = Every::new();
/// In place and out of place.
pub const ALL_PLACEMENTS: Every<Placement> = Every::new();
/// Determinism not required and required.
pub const ALL_DETERMINISMS: Every<Determinism> = Every::new();
/// Uniform and adaptive.
pub const ALL_SCHEDULES: Every<Scheduling> = Every::new();

impl Device {
    /// Returns the axis value of a device type.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] for a device that kernels of this crate don't run on.
    pub fn from_type(kind: DeviceType) -> Result<Device> {
        match kind {
            DeviceType::CPU => Ok(Device::Cpu),
            DeviceType::CUDA => Ok(Device::Cuda),
            other => Err(Error::new(
                ErrorKind::Device,
                format!("the axis device has no value {other}; its values are cpu and cuda"),
            )),
        }
    }
}

impl Contiguity {
    /// The contiguity of several tensors: contiguous only if each is.
    pub fn of_all(contiguous: impl IntoIterator<Item = bool>) -> Contiguity {
        let all = contiguous.into_iter().all(|one| one);
        if all { Contiguity::Contiguous } else { Contiguity::Strided }
    }
}
