//! Derivatives against finite differences, at kinks, and for large arguments.

use keyfold_core::ErrorKind;
use proptest::prelude::*;

use crate::tests::random::{smooth_expr, steps};
use crate::tests::reference::value;
use crate::{Expr, Names};

fn parse(text: &str) -> Expr {
    Expr::parse(text).unwrap_or_else(|error| panic!("{}", error.message()))
}

/// Returns the derivative of a text with respect to its first input, as text.
fn derived(text: &str) -> String {
    let names = Names::new().input("x");
    Expr::parse_with(text, &names).unwrap().derivative(0).unwrap().to_string()
}

/// Returns the slope of an expression by differences at two distances, extrapolated (Richardson).
fn slope(expr: &Expr, inputs: &[f64], input: usize) -> f64 {
    let at = |distance: f64| {
        let mut moved = inputs.to_vec();
        moved[input] += distance;
        value(expr, &moved)
    };
    let difference = |h: f64| (at(h) - at(-h)) / (2.0 * h);
    let h = 1e-3 * inputs[input].abs().max(0.1);
    (4.0 * difference(h / 2.0) - difference(h)) / 3.0
}

fn close(got: f64, expected: f64, tolerance: f64) -> bool {
    (got - expected).abs() <= tolerance * expected.abs().max(1.0)
}

#[test]
fn derivatives_are_as_short_as_those_written_by_hand() {
    let table = [
        ("x", "1.0"),
        ("3", "0.0"),
        ("x + x", "2.0"),
        ("x * x", "x + x"),
        ("x ** 2", "2 * x"),
        ("x ** 3", "3 * (x * x)"),
        ("x ** 1", "1.0"),
        ("x ** 0", "0.0"),
        ("x ** 0.5", "0.5 * x ** -0.5"),
        ("3 * x + 2", "3.0"),
        ("x / 4", "0.25"),
        ("1 / x", "-(1 / x / x)"),
        ("-x", "-1.0"),
        ("exp(x)", "exp(x)"),
        ("exp(-x)", "-exp(-x)"),
        ("exp(2 * x)", "exp(2 * x) * 2"),
        ("expm1(x)", "exp(x)"),
        ("log(x)", "1.0 / x"),
        ("log1p(x)", "1.0 / (1 + x)"),
        ("sqrt(x)", "0.5 / sqrt(x)"),
        ("rsqrt(x)", "-0.5 * rsqrt(x) / x"),
        ("sin(x)", "cos(x)"),
        ("cos(x)", "-sin(x)"),
        ("tanh(x)", "1 - tanh(x) * tanh(x)"),
        ("sigmoid(x)", "sigmoid(x) * (1 - sigmoid(x))"),
        ("erf(x)", "1.1283791670955126 * exp(-(x * x))"),
        ("abs(x)", "sign(x)"),
        ("relu(x)", "where(x <= 0, 0.0, 1.0)"),
        ("max(x, 0)", "where(x < 0, 0.0, where(x == 0, 0.5, 1.0))"),
        ("log1p(exp(x))", "sigmoid(x)"),
        ("log(1 + exp(2 * x))", "sigmoid(2 * x) * 2"),
        ("log(exp(x))", "1.0"),
        ("1 / (1 + exp(-x))", "1 / (1 + exp(-x)) * sigmoid(-x)"),
        ("2 ** x", "2 ** x * 0.6931471805599453"),
        ("floor(x) + (x > 0) + index + isnan(x)", "0.0"),
        ("x % 3", "1.0"),
        ("float32(x) * 2", "2.0"),
        ("int32(x) * x", "int32(x)"),
        ("where(x > 0, x, 2 * x)", "where(x > 0, 1.0, 2)"),
        ("where(x > 0, 1, 2)", "0.0"),
    ];
    let got: Vec<_> = table.iter().map(|(text, _)| (*text, derived(text))).collect();
    let got: Vec<_> = got.iter().map(|(text, got)| (*text, got.as_str())).collect();
    assert_eq!(got, table);
}

/// Each function with points where it is smooth.
const FUNCTIONS: [(&str, &[f64]); 44] = [
    ("-x", &[-2.0, 0.5]),
    ("abs(x)", &[-2.0, 0.5]),
    ("sign(x)", &[-2.0, 0.5]),
    ("exp(x)", &[-3.0, 0.0, 2.0]),
    ("expm1(x)", &[-3.0, 0.0, 2.0]),
    ("log(x)", &[0.3, 1.0, 70.0]),
    ("log1p(x)", &[-0.7, 0.0, 70.0]),
    ("sqrt(x)", &[0.3, 1.0, 70.0]),
    ("rsqrt(x)", &[0.3, 1.0, 70.0]),
    ("sin(x)", &[-3.0, 0.0, 2.0]),
    ("cos(x)", &[-3.0, 0.0, 2.0]),
    ("tan(x)", &[-1.0, 0.0, 0.7]),
    ("tanh(x)", &[-3.0, 0.0, 2.0]),
    ("sinh(x)", &[-3.0, -0.4, 0.0, 0.3, 2.0]),
    ("cosh(x)", &[-3.0, 0.0, 2.0]),
    ("sigmoid(x)", &[-3.0, 0.0, 2.0]),
    ("erf(x)", &[-2.0, 0.0, 0.7]),
    ("erfc(x)", &[-2.0, 0.0, 0.7]),
    ("floor(x) + ceil(x) + round(x) + trunc(x)", &[-1.3, 0.7]),
    ("relu(x)", &[-2.0, 0.5]),
    ("gelu(x)", &[-2.0, 0.0, 0.7, 4.0]),
    ("gelu_tanh(x)", &[-2.0, 0.0, 0.7, 4.0]),
    ("silu(x)", &[-2.0, 0.0, 0.7, 4.0]),
    ("softplus(x)", &[-2.0, 0.7, 4.0]),
    ("square(x)", &[-2.0, 0.0, 0.7]),
    ("reciprocal(x)", &[-2.0, 0.7]),
    ("clamp(x, -1, 1)", &[-2.0, 0.7, 3.0]),
    ("exp2(x)", &[-2.0, 0.7]),
    ("log2(x)", &[0.3, 1.0, 70.0]),
    ("log10(x)", &[0.3, 1.0, 70.0]),
    ("logaddexp(x, y)", &[-2.0, 0.7, 4.0]),
    ("logaddexp(y, x)", &[-2.0, 0.7, 4.0]),
    ("hypot(x, y)", &[-2.0, 0.7, 4.0]),
    ("x ** y", &[0.3, 1.0, 2.0]),
    ("y ** x", &[-1.0, 0.0, 2.0]),
    ("x ** x", &[0.3, 1.0, 2.0]),
    ("x ** 5 - x ** -2 + x ** 0.5", &[0.3, 1.0, 2.0]),
    ("(-2) ** 3 * x", &[0.3]),
    ("x / y + y / x + x / (x + y)", &[0.3, 2.0]),
    ("x % y + y % x", &[0.31, 2.0, 4.0]),
    ("min(x, y, 1.1) * max(x, y)", &[0.3, 2.0]),
    ("x * y - y * (x - y)", &[0.3, 2.0]),
    ("x if x > 1 else x * x", &[0.3, 2.0]),
    ("float64(float32(x)) * x + int32(x) * bool(x)", &[0.25, 2.5]),
];

#[test]
fn every_function_has_the_slope_of_its_values() {
    for (text, places) in FUNCTIONS {
        let names = Names::new().input("x").input("y");
        let expr = Expr::parse_with(text, &names).unwrap();
        let derivative = expr.derivative(0).unwrap();
        let second = derivative.derivative(0).unwrap();
        for x in places {
            let at = [*x, 1.3];
            let (got, expected) = (value(&derivative, &at), slope(&expr, &at, 0));
            assert!(
                close(got, expected, 1e-8),
                "{text} at {x}: {got}, not {expected}\n{derivative}"
            );
            let (got, expected) = (value(&second, &at), slope(&derivative, &at, 0));
            assert!(close(got, expected, 1e-7), "{text} at {x}: {got}, not {expected}\n{second}");
        }
    }
}

#[test]
fn derivatives_at_kinks_follow_autograd() {
    let table = [
        ("abs(x)", 0.0, 0.0),
        ("relu(x)", 0.0, 0.0),
        ("relu(x)", -0.0, 0.0),
        ("relu(x)", f64::NAN, 1.0),
        ("max(x, 0)", 0.0, 0.5),
        ("min(x, 0)", 0.0, 0.5),
        ("max(2, x)", 2.0, 0.5),
        ("max(x, 0)", f64::NAN, 1.0),
        ("max(x, x * x)", 1.0, 1.5),
        ("min(x * x, x)", 0.0, 0.5),
        ("sign(x)", 0.0, 0.0),
        ("x ** 0", 0.0, 0.0),
        ("softplus(x)", 0.0, 0.5),
        ("x if x > 0 else 0", 0.0, 0.0),
        ("sqrt(x)", 0.0, f64::INFINITY),
        ("sqrt(relu(x))", -1.0, 0.0),
        ("sqrt(relu(x))", 0.0, 0.0),
        ("log(clamp(x, 0, 1))", -1.0, 0.0),
        ("sqrt(where(x > 0, x, 0.0))", 0.0, 0.0),
        ("1 / relu(x)", -1.0, 0.0),
        ("sqrt(relu(x) + relu(2 * x))", -1.0, 0.0),
        ("sqrt(where(x > 0, relu(x - 1), relu(-x - 1)))", 0.5, 0.0),
        ("where(x > 0, sqrt(x), 0.0)", 0.0, 0.0),
    ];
    for (text, x, expected) in table {
        let got = value(&parse(text).derivative(0).unwrap(), &[x]);
        assert_eq!(got, expected, "{text} at {x}");
    }
}

#[test]
fn derivatives_of_powers_of_zero_and_of_negative_numbers_follow_autograd() {
    let expr = parse("x ** y");
    let (of_base, of_exponent) = (expr.derivative(0).unwrap(), expr.derivative(1).unwrap());
    let table = [
        (0.0, 0.0, 0.0, 0.0),
        (0.0, 1.0, 1.0, 0.0),
        (0.0, 2.0, 0.0, 0.0),
        (-2.0, 3.0, 12.0, f64::NAN),
        (-2.0, 2.0, -4.0, f64::NAN),
        (0.0, -1.0, f64::NEG_INFINITY, f64::NEG_INFINITY),
        (2.0, 0.0, 0.0, std::f64::consts::LN_2),
    ];
    for (x, y, base, exponent) in table {
        let got = (value(&of_base, &[x, y]), value(&of_exponent, &[x, y]));
        assert_eq!(got.0, base, "{x} ** {y} by x");
        assert!(
            got.1 == exponent || got.1.is_nan() && exponent.is_nan(),
            "{x} ** {y} by y: {}",
            got.1
        );
    }
    // The second derivative at 0 ** 0 is finite, too.
    let second = of_base.derivative(0).unwrap();
    assert_eq!(value(&second, &[0.0, 2.0]), 2.0);
}

#[test]
fn derivatives_stay_finite_for_large_arguments() {
    // The derivatives towards -inf and towards inf.
    let table = [
        ("softplus(x)", 0.0, 1.0),
        ("log1p(exp(x))", 0.0, 1.0),
        ("log(1 + exp(x))", 0.0, 1.0),
        ("1 / (1 + exp(-x))", 0.0, 0.0),
        ("x / (1 + exp(-x))", 0.0, 1.0),
        ("gelu(x)", 0.0, 1.0),
        ("gelu_tanh(x)", 0.0, 1.0),
        ("silu(x)", 0.0, 1.0),
        ("sigmoid(x)", 0.0, 0.0),
        ("tanh(x)", 0.0, 0.0),
        ("erf(x)", 0.0, 0.0),
        ("logaddexp(x, 1)", 0.0, 1.0),
        ("logaddexp(1, x)", 0.0, 1.0),
        ("logaddexp(x, x + 2)", 1.0, 1.0),
        ("logaddexp(x, x)", 1.0, 1.0),
        ("hypot(x, 1e-6)", -1.0, 1.0),
        ("hypot(x, x)", -std::f64::consts::SQRT_2, std::f64::consts::SQRT_2),
        ("where(x > 0, x, expm1(-abs(x)))", 0.0, 1.0),
        ("where(abs(x) < 9, sinh(x) / cosh(x), sign(x))", 0.0, 0.0),
    ];
    for (text, below, above) in table {
        let derivative = parse(text).derivative(0).unwrap();
        for size in [750.0, 1e4, 1e25, 1e160, 1e300] {
            for (x, expected) in [(-size, below), (size, above)] {
                let got = value(&derivative, &[x]);
                assert!(close(got, expected, 1e-12), "{text} at {x}: {got}\n{derivative}");
            }
        }
    }
}

#[test]
fn second_derivatives_of_smooth_functions_are_finite_for_large_arguments() {
    for text in ["softplus(x)", "log1p(exp(x))", "gelu(x)", "gelu_tanh(x)", "silu(x)", "tanh(x)"] {
        let second = parse(text).derivative(0).unwrap().derivative(0).unwrap();
        for x in [-1e4, -750.0, 750.0, 1e4] {
            let got = value(&second, &[x]);
            assert!(got.abs() < 1e-12, "{text} at {x}: {got}\n{second}");
        }
    }
}

#[test]
fn derivatives_at_infinities_and_zeros_are_the_limits() {
    let inf = f64::INFINITY;
    // At (x, y): the derivatives by x and y, and the second one by x.
    let table = [
        ("hypot(x, y)", (-inf, 1.0), (-1.0, 0.0), 0.0),
        ("hypot(x, y)", (inf, f64::NAN), (1.0, 0.0), 0.0),
        ("hypot(x, y)", (3.0, -inf), (0.0, -1.0), 0.0),
        ("hypot(x, y)", (inf, -inf), (0.5f64.sqrt(), -(0.5f64.sqrt())), 0.0),
        ("hypot(x, y)", (0.0, 0.0), (0.0, 0.0), 0.0),
        ("hypot(x, y)", (0.0, -4.0), (0.0, -1.0), 0.25),
        ("logaddexp(x, y)", (inf, inf), (0.5, 0.5), 0.0),
        ("logaddexp(x, y)", (-inf, -inf), (0.5, 0.5), 0.0),
        ("logaddexp(x, y)", (inf, -inf), (1.0, 0.0), 0.0),
        ("logaddexp(x, y)", (-inf, 2.0), (0.0, 1.0), 0.0),
        ("logaddexp(x, y)", (3.0, 3.0), (0.5, 0.5), 0.25),
    ];
    for (text, (x, y), (by_x, by_y), second) in table {
        let expr = parse(text);
        let [first_x, first_y] = [0, 1].map(|at| expr.derivative(at).unwrap());
        let second_x = first_x.derivative(0).unwrap();
        for (derivative, expected) in [(&first_x, by_x), (&first_y, by_y), (&second_x, second)] {
            let got = value(derivative, &[x, y]);
            assert!(close(got, expected, 1e-15), "{text} at {x}, {y}: {got}\n{derivative}");
        }
    }
    for text in ["gelu(x)", "gelu_tanh(x)", "silu(x)", "relu(x)", "softplus(x)"] {
        let expr = parse(text);
        let slope = expr.derivative(0).unwrap();
        let second = slope.derivative(0).unwrap();
        for (expr, below, above) in [(expr, 0.0, inf), (slope, 0.0, 1.0), (second, 0.0, 0.0)] {
            assert_eq!(value(&expr, &[-inf]), below, "{text}: {expr}");
            // The derivatives of silu have no second bound, for the time it would take.
            if text != "silu(x)" || above == inf {
                assert_eq!(value(&expr, &[inf]), above, "{text}: {expr}");
            }
            assert!(value(&expr, &[f64::NAN]).is_nan() || text == "relu(x)", "{text}: {expr}");
        }
    }
}

#[test]
fn bounds_of_gates_have_no_derivative() {
    let slope = parse("silu(x)").derivative(0).unwrap().to_string();
    assert_eq!(slope, "sigmoid(x) + max(x, -1000.0) * (sigmoid(x) * (1 - sigmoid(x)))");
    let slope = parse("gelu(x)").derivative(0).unwrap().to_string();
    assert_eq!(slope.matches("where").count(), 0, "{slope}");
    assert_eq!(slope.matches("0.5 * erfc(").count(), 1, "{slope}");
    // Between the bounds of a value and of its derivative, and around them.
    for text in ["gelu(x)", "gelu_tanh(x)", "silu(x)"] {
        let slope = parse(text).derivative(0).unwrap();
        for size in [15.9, 16.0, 16.1, 20.0, 40.0, 60.0, 61.0, 999.0, 1000.0, 1001.0] {
            let (below, above) = (value(&slope, &[-size]), value(&slope, &[size]));
            assert!(below.abs() < 2e-5 && (above - 1.0).abs() < 2e-5, "{text}: {below}, {above}");
        }
    }
    // Without a gate that is 0 below the bound.
    for text in ["max(x, -1000.0) * sigmoid(0.1 * x)", "max(x, -2.0) * sigmoid(x)", "max(x, 1) * x"]
    {
        let slope = parse(text).derivative(0).unwrap().to_string();
        assert_eq!(slope.matches("where").count(), 2, "{slope}");
    }
}

#[test]
fn derivatives_of_hypot_are_directions_down_to_the_smallest_numbers() {
    let expr = parse("hypot(x, y)");
    let [by_x, by_y] = [0, 1].map(|at| expr.derivative(at).unwrap());
    for size in [5e-324, 1e-323, 3e-310, 2.3e-308, 1e-200, 1.0, 1e200, 4e307] {
        let at = [3.0 * size, -4.0 * size];
        let got = (value(&by_x, &at), value(&by_y, &at));
        assert!(close(got.0, 0.6, 1e-15) && close(got.1, -0.8, 1e-15), "{size}: {got:?}");
        assert_eq!(value(&by_x, &[-size, 0.0]), -1.0, "{size}");
        assert_eq!(value(&by_x, &[0.0, size]), 0.0, "{size}");
    }
}

#[test]
fn a_derivatives_size_is_proportional_to_the_expressions() {
    let chain = |depth: usize| {
        let mut text = String::from("t0 = x");
        for at in 0..depth {
            text +=
                &format!("\nt{} = sin(t{at}) * t{at} + tanh(t{at}) / (2 + t{at} * t{at})", at + 1);
        }
        parse(&format!("{text}\nt{depth}"))
    };
    let (half, whole) = (chain(500), chain(1000));
    let size = |expr: &Expr| expr.derivative(0).unwrap().nodes().len();
    assert_eq!(size(&whole) / 100, size(&half) * 2 / 100);
    assert!(size(&whole) < 4 * whole.nodes().len(), "{} of {}", size(&whole), whole.nodes().len());
    // Depth isn't limited by recursion.
    let deep = parse(&("exp(".repeat(10_000) + "x" + &")".repeat(10_000)));
    assert!(deep.derivative(0).unwrap().nodes().len() < 30_000);
}

#[test]
fn inputs_and_parameters_keep_their_numbers() {
    let names = Names::new().input("a").input("x").ranked("table", 1).param("p").param("q");
    let expr = Expr::parse_with("x * x * q + table[index]", &names).unwrap();
    let derivative = expr.derivative(1).unwrap();
    assert_eq!(derivative.inputs(), expr.inputs());
    assert_eq!(derivative.params(), expr.params());
    assert_eq!(derivative.to_string(), "(x + x) * q");
    assert_eq!(expr.derivative(0).unwrap().to_string(), "0.0");
}

#[test]
fn ranked_and_missing_inputs_have_no_derivative() {
    let expr = parse("x * table[int64(x)]");
    let error = expr.derivative(1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert!(error.message().contains("'table' is read at computed indices"), "{}", error.message());
    assert_eq!(expr.derivative(0).unwrap().to_string(), "table[int64(x)]");
    let error = expr.derivative(2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Index);
    assert!(error.message().contains("no input 2; the expression has 2"), "{}", error.message());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn random_expressions_have_the_slope_of_their_values(
        steps in steps(12),
        x in -1.5f64..1.5,
        y in -1.5f64..1.5,
        input in 0..2usize,
    ) {
        let expr = smooth_expr(&steps);
        let derivative = expr.derivative(input).unwrap();
        let (got, expected) = (value(&derivative, &[x, y]), slope(&expr, &[x, y], input));
        prop_assume!(expected.abs() < 1e4);
        prop_assert!(close(got, expected, 1e-5), "{got}, not {expected}: {expr}\n{derivative}");
        let text = derivative.to_string();
        prop_assert_eq!(Expr::parse_with(&text, &Names::of(&derivative)).unwrap(), derivative);
    }
}
