//! Functions of a result before it is stored.

use keyfold_plugin::{Error, Result};

use crate::types::Type;

/// The activations, by their numbers in the kernel's source.
const NAMES: [&str; 7] = ["none", "relu", "gelu", "gelu_tanh", "gelu_sigmoid", "sigmoid", "tanh"];

/// Returns the number of an activation.
///
/// # Errors
/// An activation that this version doesn't know.
pub fn number(name: &str) -> Result<u8> {
    let known = (0..).zip(NAMES).find(|(_, known)| *known == name);
    known
        .map(|(number, _)| number)
        .ok_or_else(|| Error::not_supported(format!("it has no activation {name}")))
}

/// Returns the definition of an activation of floats that are computed in `ACC`.
pub fn source(number: u8, dtype: Type) -> String {
    let suffix = if dtype == Type::F64 { "" } else { "f" };
    format!(
        "#define ACTIVATION {number}\n#define INVERSE_ROOT_2 0.70710678118654752{suffix}\n\
         #define GELU_SCALE 1.59576912160573071{suffix}\n#define GELU_CUBIC 0.044715{suffix}\n\
         #define GELU_SIGMOID 1.702{suffix}\n{}",
        include_str!("kernels/activation.cl")
    )
}
