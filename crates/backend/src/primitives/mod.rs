//! Primitives: 24 pointwise operations on real dtypes, from which every expression is composed.
//!
//! For backends without a compiler of expressions. A backend implements [`Primitives`], and
//! [`prepare`](crate::prepare) runs an expression step by step, each step a launch of one
//! primitive, with temporaries on the device. Other functions become formulas of primitives: `erf`
//! a rational approximation times an exponential, complex numbers pairs of real ones. The formulas
//! are as accurate as the CPU's evaluator to a few units in the last place, in the dtype of the
//! expression: float32 never needs float64. Complex64 is computed in float64 if the backend has it.
//!
//! [`primitives_of`] lists the primitives of an expression:
//!
//! ```
//! use keyfold_backend::primitives::primitives_of;
//! use keyfold_core::DType;
//! use keyfold_expr::{Expr, Lowered};
//!
//! let lowered = Lowered::new(&Expr::parse("sigmoid(x)")?, &[DType::F32], &[], None)?;
//! let needed: Vec<String> = primitives_of(&lowered)?.iter().map(ToString::to_string).collect();
//! assert!(needed.contains(&"exp(float32) -> float32".to_owned()));
//! assert_eq!(needed.len(), 9);
//! # Ok::<(), keyfold_core::Error>(())
//! ```
//!
//! A backend that only has the product of float32:
//!
//! ```
//! use std::any::Any;
//! use std::sync::Arc;
//!
//! use keyfold_backend::primitives::{Primitive, PrimitiveParams, Primitives};
//! use keyfold_backend::{
//!     GpuBackend, Groups, Index, Launch, Linalg, Offer, Pointwise, Random, Reduce, Rows, Scan,
//!     prepare,
//! };
//! use keyfold_core::{DType, Device, Result};
//! use keyfold_expr::{Expr, Lowered};
//! use keyfold_tensor::Tensor;
//! use keyfold_tensor::device::{HostMemory, Memory};
//!
//! #[derive(Debug)]
//! struct Products;
//!
//! impl Launch<PrimitiveParams> for Products {
//!     unsafe fn launch(&self, _: &PrimitiveParams, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
//!         let to = out.data_mut_ptr::<f32>()?;
//!         for at in 0..out.numel() {
//!             let (a, b) = (inputs[0].get::<f32>(&[at])?, inputs[1].get::<f32>(&[at])?);
//!             // SAFETY: the output has that many elements, and nobody else uses them.
//!             unsafe { *to.offset(out.strides()[0] * at as isize) = a * b };
//!         }
//!         Ok(())
//!     }
//! }
//!
//! impl Primitives for Products {
//!     fn primitive(
//!         &self,
//!         primitive: Primitive,
//!         inputs: &[DType],
//!         _: DType,
//!     ) -> Offer<&dyn Launch<PrimitiveParams>> {
//!         match (primitive, inputs) {
//!             (Primitive::Mul, [DType::F32, _]) => Offer::Native(self),
//!             _ => Offer::No("which isn't a product of float32".into()),
//!         }
//!     }
//! }
//!
//! impl GpuBackend for Products {
//!     fn name(&self) -> &str {
//!         "products"
//!     }
//!     fn memory(&self) -> Arc<dyn Memory> {
//!         Arc::new(HostMemory)
//!     }
//!     fn as_any(&self) -> &dyn Any {
//!         self
//!     }
//!     fn pointwise(&self) -> Option<Pointwise<'_>> {
//!         Some(Pointwise::Primitives(self))
//!     }
//!     fn reduce(&self) -> Option<&dyn Reduce> {
//!         None
//!     }
//!     fn rows(&self) -> Option<&dyn Rows> {
//!         None
//!     }
//!     fn scan(&self) -> Option<&dyn Scan> {
//!         None
//!     }
//!     fn linalg(&self) -> Option<&dyn Linalg> {
//!         None
//!     }
//!     fn index(&self) -> Option<&dyn Index> {
//!         None
//!     }
//!     fn random(&self) -> Option<&dyn Random> {
//!         None
//!     }
//!     fn groups(&self) -> Groups<'_> {
//!         Groups::NONE
//!     }
//! }
//!
//! let backend: Arc<dyn GpuBackend> = Arc::new(Products);
//! let of_float32 = |text| Lowered::new(&Expr::parse(text)?, &[DType::F32], &[], None);
//!
//! let cube = prepare(&backend, &of_float32("x * x * x")?).kernel().expect("only products");
//! let x = Tensor::from_slice(&[1.0_f32, 2.0, 3.0], &[3])?;
//! let out = Tensor::empty(&[3], DType::F32, Device::CPU)?;
//! // SAFETY: nobody else has the output.
//! unsafe { cube.run(&[&x], &[], &out)? };
//! assert_eq!(out.to_vec::<f32>()?, [1.0, 8.0, 27.0]);
//!
//! let reason = prepare(&backend, &of_float32("exp(x)")?).kernel().err().expect("no exponential");
//! assert_eq!(
//!     reason.to_string(),
//!     "it lacks the primitive exp(float32) -> float32, which isn't a product of float32"
//! );
//! # Ok::<(), keyfold_core::Error>(())
//! ```

mod complex;
mod complex_functions;
mod complex_power;
mod division;
mod erf;
mod float;
mod graph;
mod integer;
mod lower;
mod power;
mod run;
mod schedule;
mod value;

use std::fmt;

use keyfold_core::{DType, Error, ErrorKind, Result};
use keyfold_expr::Lowered;
use smallvec::SmallVec;

use crate::{Launch, Offer};

pub(crate) use run::step_by_step;

/// A pointwise operation on tensors of one shape and of real dtypes.
///
/// "Float" means float32 and float64. Only [`Primitive::Cast`] reads and writes halves. A bool is a
/// byte, 0 or 1. Arithmetic is IEEE 754's, with signed zeros, infinities and NaN (whose payload is
/// unspecified), and each operation is rounded separately. A subnormal number may count as 0, and a
/// result below the normal range may be 0, except where elements are only copied.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Primitive {
    /// Converts the input between any real dtypes. Floats to integers truncate and saturate, NaN
    /// becomes 0; integers to narrower ones wrap; conversions to floats round once, to nearest,
    /// ties to even, also from float64 to a half; anything but 0 is true. Between equal dtypes it
    /// copies.
    Cast = 1,
    /// Without input: each element's position in row-major order, int64.
    Iota = 2,
    /// `table[index]`: the first input is a table of one dimension, of any real dtype and stride,
    /// the second the int64 indices, which are in range.
    Gather = 3,
    /// The input is bool. A false element is the error [`fault`] of [`PrimitiveParams::fault`],
    /// returned by the launch, or at the latest by the next call that waits for the device.
    Check = 4,
    /// `a + b` of integers, which wrap, and floats.
    Add = 5,
    /// `a - b` of integers, which wrap, and floats.
    Sub = 6,
    /// `a * b` of integers, which wrap, and floats.
    Mul = 7,
    /// `a / b`. Integers truncate towards 0; divisor 0 gives 0, and the minimum divided by -1 wraps
    /// to itself. Floats are correctly rounded.
    Div = 8,
    /// `-a` of floats: flips the sign, also of zeros.
    Neg = 9,
    /// The absolute value of floats.
    Abs = 10,
    /// The square root of floats, correctly rounded; NaN below 0, and -0.0 for -0.0.
    Sqrt = 11,
    /// `e ** a` of floats, to 2 units in the last place; 1 for 0.
    Exp = 12,
    /// The natural logarithm of floats, to 2 units in the last place, also near 1; 0 for 1, -inf
    /// for 0, NaN below.
    Log = 13,
    /// The sine of floats in radians, of any magnitude, to 2 units in the last place.
    Sin = 14,
    /// The cosine of floats in radians, of any magnitude, to 2 units in the last place.
    Cos = 15,
    /// The greatest integer not above `a`, of floats; -0.0 for -0.0.
    Floor = 16,
    /// `a == b`, a bool, of every real dtype but halves; NaN equals nothing.
    Equal = 17,
    /// `a < b`, a bool, of integers and floats; false where either is NaN.
    Less = 18,
    /// `a & b` of bools and integers.
    And = 19,
    /// `a | b` of bools and integers.
    Or = 20,
    /// `a ^ b` of bools and integers.
    Xor = 21,
    /// `a << b` of integers, for b from 0 to the width less 1; bits beyond the width are lost.
    ShiftLeft = 22,
    /// `a >> b` of integers, for b from 0 to the width less 1, with sign extension.
    ShiftRight = 23,
    /// The second input if the first, a bool, is true, else the third; of every real dtype but
    /// halves.
    Where = 24,
}

impl Primitive {
    /// All primitives.
    pub const ALL: [Primitive; 24] = [
        Primitive::Cast,
        Primitive::Iota,
        Primitive::Gather,
        Primitive::Check,
        Primitive::Add,
        Primitive::Sub,
        Primitive::Mul,
        Primitive::Div,
        Primitive::Neg,
        Primitive::Abs,
        Primitive::Sqrt,
        Primitive::Exp,
        Primitive::Log,
        Primitive::Sin,
        Primitive::Cos,
        Primitive::Floor,
        Primitive::Equal,
        Primitive::Less,
        Primitive::And,
        Primitive::Or,
        Primitive::Xor,
        Primitive::ShiftLeft,
        Primitive::ShiftRight,
        Primitive::Where,
    ];

    /// Returns the primitive's name in messages and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Primitive::Cast => "cast",
            Primitive::Iota => "iota",
            Primitive::Gather => "gather",
            Primitive::Check => "check",
            Primitive::Add => "add",
            Primitive::Sub => "sub",
            Primitive::Mul => "mul",
            Primitive::Div => "div",
            Primitive::Neg => "neg",
            Primitive::Abs => "abs",
            Primitive::Sqrt => "sqrt",
            Primitive::Exp => "exp",
            Primitive::Log => "log",
            Primitive::Sin => "sin",
            Primitive::Cos => "cos",
            Primitive::Floor => "floor",
            Primitive::Equal => "equal",
            Primitive::Less => "less",
            Primitive::And => "and",
            Primitive::Or => "or",
            Primitive::Xor => "xor",
            Primitive::ShiftLeft => "shift_left",
            Primitive::ShiftRight => "shift_right",
            Primitive::Where => "where",
        }
    }
}

impl fmt::Display for Primitive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The parameters of a primitive's kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrimitiveParams {
    /// The kernel's primitive.
    pub primitive: Primitive,
    /// The fault code of [`Primitive::Check`], else 0.
    pub fault: u32,
}

/// The fault code of an integer raised to a negative power.
pub(crate) const NEGATIVE_POWER: u32 = 1;
/// The fault code of an index out of range.
pub(crate) const OUT_OF_RANGE: u32 = 2;

/// Returns the error of a [`Primitive::Check`] with a false element.
#[cold]
pub fn fault(code: u32) -> Error {
    match code {
        NEGATIVE_POWER => Error::new(
            ErrorKind::Value,
            "a whole number was raised to a negative power, which gives a fraction; make the base a \
             float",
        ),
        OUT_OF_RANGE => {
            Error::new(ErrorKind::Index, "an index is out of range for the input that it reads")
        }
        other => Error::new(
            ErrorKind::Value,
            format!("an element of an expression is at fault, with the unknown code {other}"),
        ),
    }
}

/// A backend that has primitives.
pub trait Primitives: Send + Sync {
    /// Returns the kernel for inputs and an output of these dtypes.
    ///
    /// All tensors have the output's shape, except for the table of [`Primitive::Gather`], and any
    /// strides, inputs also 0. In addition to [`Launch::launch`], an input other than a table may
    /// be the output itself, with elements of the same size.
    fn primitive(
        &self,
        primitive: Primitive,
        inputs: &[DType],
        output: DType,
    ) -> Offer<&dyn Launch<PrimitiveParams>>;
}

/// A primitive with its dtypes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Used {
    /// The primitive.
    pub primitive: Primitive,
    /// The dtypes of its inputs.
    pub inputs: SmallVec<[DType; 3]>,
    /// The dtype of its output.
    pub output: DType,
}

impl fmt::Display for Used {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inputs: Vec<String> = self.inputs.iter().map(ToString::to_string).collect();
        write!(f, "{}({}) -> {}", self.primitive, inputs.join(", "), self.output)
    }
}

/// Returns the primitives that an expression needs, each once, in the order of their ids.
///
/// # Errors
/// [`ErrorKind::DType`] for a step without a formula.
pub fn primitives_of(lowered: &Lowered) -> Result<Vec<Used>> {
    let program = schedule::Program::new(lowered, false)?;
    let mut all: Vec<Used> = Vec::new();
    for step in &program.steps {
        if !all.contains(&step.used) {
            all.push(step.used.clone());
        }
    }
    all.sort_by_key(|used| used.primitive);
    Ok(all)
}
