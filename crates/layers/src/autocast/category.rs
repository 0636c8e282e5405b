//! What an operator's arguments are cast to.

use std::fmt;
use std::str::FromStr;

use keyfold_core::{DType, Error, ErrorKind, Result};

/// How autocast treats an operator's tensor arguments.
///
/// Whole numbers, bools and complex numbers are never touched, and float64 never becomes shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    /// To the scope's dtype, where shorter numbers are worth it: matrix products. A call with a
    /// float64 argument is left alone: the result would be float64 of rounded numbers.
    LowerPrecision,
    /// float16 and bfloat16 to float32, where short numbers lose too much: exponentials, sums.
    FullPrecision,
    /// Floating arguments of different dtypes to the widest among them.
    Widest,
    /// Nothing is cast.
    Leave,
    /// float16, bfloat16 and float32 to exactly this floating dtype.
    To(DType),
}

impl Category {
    /// The names of the categories that are words.
    pub const NAMES: [(&'static str, Category); 4] = [
        ("lower", Category::LowerPrecision),
        ("full", Category::FullPrecision),
        ("widest", Category::Widest),
        ("leave", Category::Leave),
    ];

    /// The category that casts to exactly a dtype.
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

    /// The dtype that an argument becomes inside a scope of `scope`; `widest` is that of the call's
    /// floating arguments together.
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
