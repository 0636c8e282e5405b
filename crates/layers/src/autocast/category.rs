//! Categories of operators, which decide the dtypes that autocast casts arguments to.

use std::fmt;
use std::str::FromStr;

use keyfold_core::{DType, Error, ErrorKind, Result};

/// How autocast treats an operator's tensor arguments.
///
/// Integers, bools and complex numbers are never cast, and float64 is never cast to a narrower dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    /// Casts to the scope's dtype, for operators that are faster in it: matrix products. A call with a float64
    /// argument isn't cast, since its float64 result would be computed from rounded numbers.
    LowerPrecision,
    /// Casts float16 and bfloat16 to float32, for operators that lose accuracy in them: exponentials, sums.
    FullPrecision,
    /// Casts floating arguments of different dtypes to the widest of them.
    Widest,
    /// Casts nothing.
    Leave,
    /// Casts float16, bfloat16 and float32 to this floating dtype.
    To(DType),
}

impl Category {
    /// The categories' names, without those of dtypes.
    pub const NAMES: [(&'static str, Category); 4] = [
        ("lower", Category::LowerPrecision),
        ("full", Category::FullPrecision),
        ("widest", Category::Widest),
        ("leave", Category::Leave),
    ];

    /// Returns the category that casts to a dtype.
    ///
    /// # Errors
    /// [`ErrorKind::DType`] for a dtype that isn't floating.
    pub fn exactly(dtype: DType) -> Result<Category> {
        if dtype.is_floating() {
            return Ok(Category::To(dtype));
        }
        Err(Error::new(
            ErrorKind::DType,
            format!(
                "autocast: inputs can't be cast to {dtype}; cast_inputs must be one of float16, \
                 bfloat16, float32, float64"
            ),
        ))
    }

    /// Returns the dtype that an argument is cast to in a scope of dtype `scope`; `widest` is the widest dtype of
    /// the call's floating arguments.
    pub(super) fn target(self, given: DType, scope: DType, widest: DType) -> DType {
        let eligible = matches!(given, DType::F16 | DType::BF16 | DType::F32);
        match self {
            Category::LowerPrecision if eligible && widest != DType::F64 => scope,
            Category::FullPrecision if eligible => DType::F32,
            Category::Widest if given.is_floating() => widest,
            Category::To(dtype) if eligible => dtype,
            _ => given,
        }
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Category::To(dtype) => write!(f, "{dtype}"),
            other => {
                let name = Category::NAMES.iter().find(|(_, category)| category == other);
                f.write_str(name.map_or("", |(name, _)| name))
            }
        }
    }
}

impl FromStr for Category {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Category::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, category)| *category).ok_or_else(|| {
            let names = Category::NAMES.map(|(name, _)| format!("{name:?}")).join(", ");
            Error::new(
                ErrorKind::Value,
                format!("autocast: {text:?} is no category; the categories are {names}"),
            )
        })
    }
}
