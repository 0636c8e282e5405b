//! The expressions, dtypes and layouts of the test cases.

use keyfold_core::{Complex, DType, Scalar};

use super::cases::{Case, MemoryLayout};

/// The layouts, used in rotation.
pub(crate) const LAYOUTS: [MemoryLayout; 5] = [
    MemoryLayout::Contiguous,
    MemoryLayout::Strided,
    MemoryLayout::Over,
    MemoryLayout::Misaligned,
    MemoryLayout::StridedOver,
];

/// Correctly rounded functions.
pub(crate) const EXACT: [&str; 14] = [
    "-x",
    "~x",
    "abs(x)",
    "sign(x)",
    "conj(x)",
    "real(x)",
    "imag(x)",
    "sqrt(x)",
    "floor(x)",
    "ceil(x)",
    "round(x)",
    "trunc(x)",
    "isnan(x)",
    "isfinite(x)",
];

const NEAR: [&str; 13] = [
    "exp(x)",
    "expm1(x)",
    "log(x)",
    "log1p(x)",
    "rsqrt(x)",
    "sin(x)",
    "cos(x)",
    "tanh(x)",
    "sigmoid(x)",
    "erf(x)",
    "erfc(x)",
    "log2(x)",
    "log10(x)",
];

/// Returns a case of an expression of inputs.
pub(crate) fn case(
    label: &str,
    text: &str,
    inputs: &[(&'static str, DType)],
    layout: MemoryLayout,
) -> Case {
    Case {
        label: label.into(),
        text: text.into(),
        inputs: inputs.to_vec(),
        params: vec![],
        out: None,
        layout,
        tame: false,
    }
}

/// Returns every function of one operand with every dtype.
pub(crate) fn unary() -> Vec<Case> {
    let mut cases = Vec::new();
    for (at, text) in EXACT.iter().chain(&NEAR).enumerate() {
        for (number, dtype) in DType::ALL.into_iter().enumerate() {
            // Every dtype in two layouts, and all layouts with every function.
            for layout in [LAYOUTS[(at + number) % 5], LAYOUTS[(at + number + 1) % 5]] {
                cases.push(case(text, text, &[("x", dtype)], layout));
            }
        }
    }
    cases
}

/// Returns every function of two operands with every dtype.
pub(crate) fn binary() -> Vec<Case> {
    let texts = [
        "x + y",
        "x - y",
        "x * y",
        "x / y",
        "x // y",
        "x % y",
        "x ** y",
        "minimum(x, y)",
        "maximum(x, y)",
        "x == y",
        "x != y",
        "x < y",
        "x <= y",
        "x > y",
        "x >= y",
        "x & y",
        "x | y",
        "x ^ y",
        "x << y",
        "x >> y",
        "where(x < y, x, y)",
    ];
    let mut cases = Vec::new();
    for (at, text) in texts.into_iter().enumerate() {
        for (number, dtype) in DType::ALL.into_iter().enumerate() {
            for layout in [LAYOUTS[(at + number) % 5], LAYOUTS[(at + number + 1) % 5]] {
                cases.push(case(text, text, &[("x", dtype), ("y", dtype)], layout));
            }
        }
    }
    cases
}

/// Returns every conversion between dtypes.
pub(crate) fn casts() -> Vec<Case> {
    let mut cases = Vec::new();
    for (at, from) in DType::ALL.into_iter().enumerate() {
        for (number, to) in DType::ALL.into_iter().enumerate() {
            let layout = LAYOUTS[(at + number) % 5];
            cases.push(case("cast", &format!("{}(x)", to.name()), &[("x", from)], layout));
            // Rounded once, by the store.
            let mut stored = case("store", "x", &[("x", from)], LAYOUTS[(at + number + 1) % 5]);
            stored.out = Some(to);
            cases.push(stored);
        }
    }
    cases
}

/// Returns indices, reads at indices, parameters, and formulas of many steps.
pub(crate) fn index_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let floats = [DType::F16, DType::BF16, DType::F32, DType::F64];
    for (at, dtype) in DType::ALL.into_iter().enumerate() {
        for text in [
            "index",
            "index(0) + 10 * index(1) + 100 * index(2) + index(3)",
            "x + index",
            "table[index]",
            "table[index(0), index(1)] + x",
            "table[-index - 1] * x",
            "table[index * 2]",
            "table[index(2) * 20, index(0)] + x",
        ] {
            let mut inputs = vec![("x", dtype)];
            if text.contains("table") {
                inputs.push(("table", dtype));
            }
            let mut case = case("indices", text, &inputs, LAYOUTS[(at + text.len()) % 5]);
            case.tame = true;
            cases.push(case);
        }
    }
    for (at, dtype) in floats.into_iter().enumerate() {
        for (number, text) in [
            "beta * x + beta",
            "softplus(x * beta) / beta",
            "gelu(x)",
            "gelu_tanh(x)",
            "silu(x)",
            "t = exp(-x * x); t * beta + where(x > 0.1, t, -t)",
            "sqrt(x * x + 1) - abs(x) * 0.3 + clamp(x, -1, 1)",
            "x * 0.1 + 1e-30 - inf * (beta > 100) + nan * (beta > 100)",
        ]
        .into_iter()
        .enumerate()
        {
            for layout in [LAYOUTS[(at + number) % 5], LAYOUTS[(at + number + 2) % 5]] {
                let mut case = case("formula", text, &[("x", dtype)], layout);
                case.params = vec![("beta", Scalar::Float(1.7))];
                case.tame = true;
                cases.push(case);
            }
        }
    }
    for (dtype, number) in [
        (DType::I8, Scalar::Int(-7)),
        (DType::U64, Scalar::UInt(u64::MAX)),
        (DType::Bool, Scalar::Bool(true)),
        (DType::C64, Scalar::Complex(Complex::new(0.1, -2.0))),
        (DType::I32, Scalar::Float(0.25)),
    ] {
        let mut case =
            case("parameter", "(x * beta) + beta", &[("x", dtype)], MemoryLayout::Contiguous);
        case.params = vec![("beta", number)];
        cases.push(case);
    }
    // Only numbers, with a negative power.
    for text in ["beta * 2 + 1", "beta ** -beta + x"] {
        let mut case = case("numbers", text, &[("x", DType::I64)], MemoryLayout::Strided);
        case.params = vec![("beta", Scalar::Int(3))];
        cases.push(case);
    }
    cases
}

/// Returns chains of operations with correctly rounded results, each rounded to its dtype.
pub(crate) fn chains() -> Vec<Case> {
    let texts = [
        "x + y |> v + x |> v - y",
        "x * y |> v + y |> v * x",
        "x + y |> x - v |> where(v > y, v, x)",
        "x * y |> maximum(v, y) |> v * y |> v + x",
        "x / y |> v * y |> v + x |> v * x",
        "x - y |> float32(v) |> v * x",
        "x + y |> float16(v) |> v * x |> bfloat16(v) |> v + y",
        "x * y |> sqrt(v) |> v * v |> v + y",
        "x > y |> where(v, x, y) |> v + x",
    ];
    let mut cases = Vec::new();
    for (at, text) in texts.into_iter().enumerate() {
        for (number, dtype) in DType::ALL.into_iter().enumerate() {
            for layout in [LAYOUTS[(at + number) % 5], LAYOUTS[(at + number + 1) % 5]] {
                cases.push(case("chain", text, &[("x", dtype), ("y", dtype)], layout));
            }
        }
    }
    cases
}

/// Functions of complex numbers whose formulas could overflow, underflow or cancel.
pub(crate) fn extremes() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::C64, DType::C128] {
        for text in [
            "abs(x)",
            "exp(x)",
            "log(x)",
            "real(log(x))",
            "sqrt(x)",
            "rsqrt(x)",
            "sin(x)",
            "cos(x)",
            "tanh(x)",
            "sign(x)",
            "x / y",
        ] {
            let mut inputs = vec![("x", dtype)];
            if text.contains('y') {
                inputs.push(("y", dtype));
            }
            cases.push(case("extreme", text, &inputs, MemoryLayout::Contiguous));
        }
    }
    cases
}
