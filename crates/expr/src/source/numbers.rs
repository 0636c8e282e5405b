//! C types of dtypes, and exact literals of numbers, in the words of [`super::target`].

use keyfold_core::{DType, DTypeKind, Scalar};

/// Returns the C type of an element in memory.
pub(super) fn stored(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "$U8",
        DType::F16 | DType::BF16 => "$U16",
        other => computed(other),
    }
}

/// Returns the C type in which a value is computed; float for halves.
pub(super) fn computed(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "bool",
        DType::U8 => "$U8",
        DType::U16 => "$U16",
        DType::U32 => "$U32",
        DType::U64 => "$U64",
        DType::I8 => "$I8",
        DType::I16 => "short",
        DType::I32 => "int",
        DType::I64 => "$I64",
        DType::F16 | DType::BF16 | DType::F32 => "float",
        DType::F64 => "double",
        DType::C64 => "kf_complex64",
        DType::C128 => "kf_complex128",
    }
}

/// Returns the number as a literal of the dtype's C type.
pub(super) fn literal(number: Scalar, dtype: DType) -> String {
    match dtype {
        DType::Bool => number.to::<bool>().to_string(),
        DType::U64 => format!("{}u$L", number.to::<u64>()),
        DType::U32 => format!("{}u", number.to::<u32>()),
        DType::I64 => match number.to::<i64>() {
            i64::MIN => format!("({}$L - 1)", i64::MIN + 1),
            value => signed(value, "$L"),
        },
        DType::I32 => match number.to::<i32>() {
            i32::MIN => format!("({} - 1)", i32::MIN + 1),
            value => signed(value.into(), ""),
        },
        DType::U8 => format!("($U8){}", number.to::<u8>()),
        DType::U16 => format!("($U16){}", number.to::<u16>()),
        DType::I8 => format!("($I8){}", signed(number.to::<i8>().into(), "")),
        DType::I16 => format!("(short){}", signed(number.to::<i16>().into(), "")),
        DType::F64 => float64(number.as_f64()),
        DType::F16 | DType::BF16 | DType::F32 => float32(number.to::<f32>()),
        DType::C64 | DType::C128 => {
            let value = number.as_complex();
            let part = |x: f64| match dtype {
                DType::C64 => float32(x as f32),
                _ => float64(x),
            };
            format!("kf_make_{dtype}({}, {})", part(value.re), part(value.im))
        }
    }
}

/// Returns the zero of the dtype's C type.
pub(super) fn zero(dtype: DType) -> String {
    match dtype.kind() {
        DTypeKind::Bool => "false".into(),
        _ => literal(Scalar::Int(0), dtype),
    }
}

fn signed(value: i64, suffix: &str) -> String {
    if value < 0 { format!("({value}{suffix})") } else { format!("{value}{suffix}") }
}

fn float32(value: f32) -> String {
    if !value.is_finite() {
        return format!("$ASFLOAT({:#x}u)", value.to_bits());
    }
    finite(value.into(), "f")
}

fn float64(value: f64) -> String {
    if !value.is_finite() {
        return format!("$ASDOUBLE({}$L)", value.to_bits() as i64);
    }
    finite(value, "")
}

/// Returns a float in decimal if a short one is exact, else in hexadecimal with a decimal comment.
fn finite(value: f64, suffix: &str) -> String {
    let short = value.abs() < 1e6 && (value * 1024.0).fract() == 0.0;
    let text = if short { format!("{value:?}{suffix}") } else { hexadecimal(value) + suffix };
    let text = if short { text } else { format!("{text} /* {value:?} */") };
    if value.is_sign_negative() { format!("({text})") } else { text }
}

/// Returns `0x1.8p+0` for 1.5; subnormal numbers begin with `0x0.`.
fn hexadecimal(value: f64) -> String {
    let bits = value.to_bits();
    let sign = if value.is_sign_negative() { "-" } else { "" };
    let exponent = (bits >> 52 & 0x7ff) as i32;
    let digits = format!("{:013x}", bits & ((1 << 52) - 1));
    let digits = digits.trim_end_matches('0');
    let point = if digits.is_empty() { "" } else { "." };
    match exponent {
        0 => format!("{sign}0x0{point}{digits}p-1022"),
        _ => format!("{sign}0x1{point}{digits}p{:+}", exponent - 1023),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_mean_the_number() {
        let cases = [
            (Scalar::Float(0.5), DType::F32, "0.5f"),
            (Scalar::Float(-0.0), DType::F64, "(-0.0)"),
            (Scalar::Float(0.1), DType::F64, "0x1.999999999999ap-4 /* 0.1 */"),
            (Scalar::Float(f64::INFINITY), DType::F32, "$ASFLOAT(0x7f800000u)"),
            (Scalar::Float(5e-324), DType::F64, "0x0.0000000000001p-1022 /* 5e-324 */"),
            (Scalar::Int(i64::MIN), DType::I64, "(-9223372036854775807$L - 1)"),
            (Scalar::Int(-3), DType::I8, "($I8)(-3)"),
            (Scalar::UInt(u64::MAX), DType::U64, "18446744073709551615u$L"),
            (Scalar::Bool(true), DType::I32, "1"),
            (Scalar::Int(2), DType::C64, "kf_make_complex64(2.0f, 0.0f)"),
        ];
        for (number, dtype, text) in cases {
            assert_eq!(literal(number, dtype), text);
        }
        assert_eq!(hexadecimal(-1.5), "-0x1.8p+0");
        assert_eq!(hexadecimal(f64::MAX), "0x1.fffffffffffffp+1023");
    }
}
