//! Comparisons of signed with unsigned 64-bit integers.
//!
//! The two have no common integer dtype, and float64, to which they promote, doesn't distinguish
//! 2^63 from the number below it. So they are compared exactly: a negative number is below every
//! unsigned one, and others compare as unsigned numbers.

use keyfold_core::{DType, Result, Scalar};

use super::lowering::{Lowering, TypedStep};
use super::step::{StepId, StepOp};
use super::types::Type;
use crate::graph::{Binary, Unary};

/// Returns the same comparison for exchanged operands; `None` for other operations.
fn mirrored(op: Binary) -> Option<Binary> {
    Some(match op {
        Binary::Eq | Binary::Ne => op,
        Binary::Lt => Binary::Gt,
        Binary::Le => Binary::Ge,
        Binary::Gt => Binary::Lt,
        Binary::Ge => Binary::Le,
        _ => return None,
    })
}

fn is_signed(ty: Type) -> bool {
    matches!(ty, Type::Strong(DType::I8 | DType::I16 | DType::I32 | DType::I64))
}

impl Lowering {
    /// Returns the exact comparison of a signed number with a uint64; `None` for other operations
    /// and operands.
    pub(super) fn compare_mixed_signs(
        &mut self,
        op: Binary,
        a: TypedStep,
        b: TypedStep,
    ) -> Result<Option<StepId>> {
        let Some(turned) = mirrored(op) else { return Ok(None) };
        let unsigned = Type::Strong(DType::U64);
        let (op, signed, unsigned) = if is_signed(a.ty) && b.ty == unsigned {
            (op, a, b)
        } else if is_signed(b.ty) && a.ty == unsigned {
            (turned, b, a)
        } else {
            return Ok(None);
        };
        let signed = self.convert(signed, DType::I64, false)?;
        let zero = self.add(StepOp::Constant(Scalar::Int(0)), DType::I64);
        let negative = self.add(StepOp::Binary(Binary::Lt, signed, zero), DType::Bool);
        let bits = self.add(StepOp::Cast(signed), DType::U64);
        let right = self.convert(unsigned, DType::U64, false)?;
        let compared = self.add(StepOp::Binary(op, bits, right), DType::Bool);
        Ok(Some(match op {
            Binary::Ne | Binary::Lt | Binary::Le => {
                self.add(StepOp::Binary(Binary::Or, negative, compared), DType::Bool)
            }
            _ => {
                let other = self.add(StepOp::Unary(Unary::Not, negative), DType::Bool);
                self.add(StepOp::Binary(Binary::And, other, compared), DType::Bool)
            }
        }))
    }
}
