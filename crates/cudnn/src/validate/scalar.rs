//! Proofs of numbers that belong to a graph.

use keyfold_core::{Error, ErrorKind, Result};

use crate::{DataType, Number, Port, TensorSpec};

/// Returns the least and the greatest number of a dtype that isn't 64 bits wide.
fn range(dtype: DataType) -> Option<(f64, f64)> {
    let around = |greatest: f64| Some((-greatest, greatest));
    match dtype {
        DataType::F32 => around(f64::from(f32::MAX)),
        DataType::F16 => around(65504.0),
        DataType::BF16 => around(3.389_531_389_251_535_5e38),
        DataType::E4M3 => around(448.0),
        DataType::E5M2 => around(57344.0),
        DataType::I8 => Some((-128.0, 127.0)),
        DataType::U8 => Some((0.0, 255.0)),
        DataType::I32 => Some((f64::from(i32::MIN), f64::from(i32::MAX))),
        DataType::Bool => Some((0.0, 1.0)),
        DataType::F64 | DataType::I64 => None,
    }
}

/// Returns whether a finite number rounds to the greatest one of its dtype, or to the least, and
/// not to an infinity. The shortest decimal of a dtype's greatest number, such as 3.4028235e38 of
/// float32, may lie beyond it, by less than half of the distance of its neighbours.
fn rounds_into(x: f64, dtype: DataType) -> bool {
    // The first number that rounds away from the greatest one: ties go to the even mantissa, which
    // is that of the power of two behind it.
    let limit = match dtype {
        DataType::F32 => 2.0_f64.powi(128) - 2.0_f64.powi(103),
        DataType::F16 => 65520.0,
        DataType::BF16 => 2.0_f64.powi(128) - 2.0_f64.powi(119),
        _ => return false,
    };
    x.abs() < limit
}

/// Proves that a number is one of a dtype; floats are rounded, and may be infinite or NaN where the dtype
/// has these.
pub(super) fn check(number: Number, dtype: DataType) -> Result<()> {
    let x = number.as_f64();
    let special = !x.is_finite();
    let fits = match number {
        Number::Float(_) if special => match dtype {
            DataType::E4M3 => x.is_nan(),
            dtype => dtype.is_float(),
        },
        Number::Float(x) if !dtype.is_float() => {
            x.fract() == 0.0 && (dtype != DataType::I64 || x.abs() <= 9_007_199_254_740_992.0)
        }
        _ => true,
    };
    let inside = special
        || range(dtype).is_none_or(|(least, most)| (least..=most).contains(&x))
        || rounds_into(x, dtype);
    if fits && inside {
        return Ok(());
    }
    let given = match number {
        Number::Float(x) => format!("{x:?}"),
        Number::Int(i) => i.to_string(),
    };
    let whole = if dtype.is_float() { "numbers" } else { "whole numbers" };
    let has = match range(dtype) {
        Some((least, most)) => format!("{whole} from {least} to {most}"),
        None => whole.to_string(),
    };
    Err(Error::new(ErrorKind::Value, format!("its scalar {given} is no {dtype}, which has {has}")))
}

/// Proves the numbers of a norm that belong to the graph: an epsilon that can be added to a variance, and a
/// momentum that is a share.
pub(super) fn check_norm(inputs: &[(Port, &TensorSpec)]) -> Result<()> {
    for (port, tensor) in inputs {
        let (most, range) = match port {
            Port::Epsilon => (f64::MAX, "0 or more, and finite"),
            Port::Momentum => (1.0, "0 to 1: the share of the new statistics"),
            _ => continue,
        };
        let Some(number) = tensor.scalar else { continue };
        let x = number.as_f64();
        if !(0.0..=most).contains(&x) {
            let label = tensor.label();
            let message = format!("its {port} (tensor {label}) is {x:?}: it must be {range}");
            return Err(Error::new(ErrorKind::Value, message));
        }
    }
    Ok(())
}
