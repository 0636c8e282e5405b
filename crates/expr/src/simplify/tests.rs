//! Simplified expressions, kept ones, and equality of results bit by bit.

use keyfold_core::DType;
use proptest::prelude::*;

use crate::tests::random::{any_expr, smooth_expr, steps};
use crate::tests::reference::value;
use crate::{Expr, Literal, Node};

fn simple(text: &str, dtypes: &[DType]) -> String {
    Expr::parse(text).unwrap().simplified_for(dtypes).to_string()
}

#[test]
fn numbers_are_folded_by_the_rules_of_weak_numbers() {
    let table = [
        ("1 + 2 * 3", "7"),
        ("7 // -2", "-4"),
        ("7 % -2", "-1"),
        ("-7 // 2", "-4"),
        ("1 / 4", "0.25"),
        ("4 / 2", "2.0"),
        ("2 ** 10", "1024"),
        ("2 ** 0.5", "1.4142135623730951"),
        ("1 + 0.5", "1.5"),
        ("True + 1", "2"),
        ("1 < 2 < 3", "True"),
        ("~5", "-6"),
        ("1 << 4 | 1", "17"),
        ("-9 >> 1", "-5"),
        ("abs(-3)", "3"),
        ("exp(0)", "1.0"),
        ("sqrt(-1.0)", "nan"),
        ("log(0)", "-inf"),
        ("min(3, nan)", "nan"),
        ("max(2, 3.5)", "3.5"),
        ("1 if 2 > 1 else 0.5", "1.0"),
        ("round(2.5) + floor(-0.5)", "1.0"),
        ("x + (2 - 2 * 4)", "x + -6"),
        // Literals that don't fit, or whose result depends on a dtype, are kept.
        ("9223372036854775807 + 1", "9223372036854775807 + 1"),
        ("2 ** 64", "2 ** 64"),
        ("2 ** -1", "2 ** -1"),
        ("1 << 63", "1 << 63"),
        ("True + True", "True + True"),
        ("-(-9223372036854775808)", "--9223372036854775808"),
        ("float32(1) + 1", "float32(1) + 1"),
        ("0.0 if True else min(0.0, -0.0)", "where(True, 0.0, min(0.0, -0.0))"),
    ];
    for (text, expected) in table {
        assert_eq!(simple(text, &[]), expected, "{text}");
    }
}

#[test]
fn operations_without_effect_are_removed_if_the_dtype_allows() {
    const F: DType = DType::F32;
    const I: DType = DType::I16;
    const B: DType = DType::Bool;
    let table = [
        ("--x", F, "x"),
        ("~~x", I, "x"),
        ("x * 1", F, "x"),
        ("x * 1", I, "x"),
        ("x * 1", B, "x * 1"),
        ("1.0 * x", F, "x"),
        ("1.0 * x", I, "1.0 * x"),
        ("-1 * x", F, "-x"),
        ("x / 1", F, "x"),
        ("x / 1", I, "x / 1"),
        ("x / 8", F, "x * 0.125"),
        ("x / 8", I, "x * 0.125"),
        ("x / 3", F, "x / 3"),
        ("x / 16384", F, "x * 6.103515625e-5"),
        ("x / 65536.0", F, "x / 65536.0"),
        ("x / -2", F, "x * -0.5"),
        ("x ** 1", F, "x"),
        ("x ** 2", F, "x * x"),
        ("x ** 2", I, "x * x"),
        ("x ** 2", B, "x ** 2"),
        ("x ** 2.0", I, "x ** 2.0"),
        ("x ** -1", F, "1 / x"),
        ("x - 0", F, "x"),
        ("x - 0.0", F, "x"),
        ("x - 0.0", I, "x - 0.0"),
        ("x - -0.0", F, "x - -0.0"),
        ("x + 0", F, "x + 0"),
        ("x * 0", F, "x * 0"),
        ("0 - x", F, "0 - x"),
        ("x - x", F, "x - x"),
        ("x / x", F, "x / x"),
        ("exp(x) + -x", F, "exp(x) - x"),
        ("exp(x) - -x", F, "exp(x) + x"),
        ("-x * -exp(x)", F, "x * exp(x)"),
        ("-x * exp(x)", F, "-(x * exp(x))"),
        ("-x * -exp(x) / -x", F, "-(x * exp(x) / x)"),
        ("y + -x", I, "y + -x"),
        ("-x * y", I, "-x * y"),
        ("abs(-x)", I, "abs(-x)"),
        ("abs(-x) + abs(abs(x))", F, "abs(x) + abs(x)"),
        ("~(x == 1)", F, "x != 1"),
        ("~(x < 1)", F, "~(x < 1)"),
        ("min(x, x)", F, "x"),
        ("(x > 1) & (2 > 1)", F, "x > 1"),
        ("(x > 1) | (2 > 1)", F, "True"),
        ("x & True", I, "x & True"),
        ("where(x > 1, x, x)", F, "x"),
        ("where(2 > 1, x, 0)", F, "x"),
        ("where(2 > 1, x, 0.0)", I, "where(True, x, 0.0)"),
        ("float32(float32(x))", I, "float32(x)"),
        ("float32(float16(x))", F, "float32(float16(x))"),
        ("x * (3 - 2) / (1 + 1) ** 2", F, "x * 0.25"),
    ];
    for (text, dtype, expected) in table {
        assert_eq!(simple(text, &[dtype]), expected, "{text} of {dtype}");
    }
}

#[test]
fn without_dtypes_only_identities_of_all_dtypes_apply() {
    let expr = Expr::parse("x * 1 + y ** 2 + exp(float32(x)) * 1.0 + (1 + 1)").unwrap();
    assert_eq!(expr.simplified().to_string(), "x * 1 + y ** 2 + exp(float32(x)) + 2");
}

#[test]
fn a_simplified_expression_has_the_same_inputs_and_parameters() {
    let names = crate::Names::new().input("x").input("y").param("p").param("q");
    let expr = Expr::parse_with("where(True, q, y) if 1 > 0 else p * x", &names).unwrap();
    let simple = expr.simplified();
    assert_eq!((simple.inputs(), simple.params()), (expr.inputs(), expr.params()));
}

/// Returns whether two numbers are equal bit by bit, with one NaN.
fn same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

const SPECIAL: [f64; 12] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -3.75,
    1e300,
    -1e-300,
    f64::MIN_POSITIVE,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
];

/// Returns whether plain integers take part in arithmetic: they have no -0.0, unlike the
/// reference's floats.
fn has_integer_arithmetic(expr: &Expr) -> bool {
    let mut whole = Vec::new();
    let mut computed = false;
    for node in expr.nodes() {
        let literal = matches!(node, Node::Literal(Literal::Int(_) | Literal::Bool(_)));
        let (mut operands, mut all) = (0, true);
        node.operands(|id| {
            operands += 1;
            all &= whole[id.index()];
        });
        let of_whole = operands > 0 && all;
        computed |= of_whole;
        whole.push(literal || of_whole);
    }
    computed
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn no_bit_of_a_value_changes(steps in steps(20), a in 0..12usize, b in 0..12usize) {
        let at = [SPECIAL[a], SPECIAL[b]];
        for expr in [smooth_expr(&steps), any_expr(&steps)] {
            // The reference has no bitwise operations, indices or reads.
            let representable = |node: &Node| match node {
                Node::Index | Node::Coordinate(_) | Node::At { .. } | Node::Param(_) => false,
                Node::Unary(crate::Unary::Not, _) => false,
                // A square as a product is more accurate than some libraries' power.
                Node::Binary(op, ..) => {
                    !matches!(format!("{op:?}").as_str(), "Shl" | "Shr" | "And" | "Or" | "Xor" | "Pow")
                }
                Node::Cast(dtype, _) => *dtype == DType::F64,
                _ => true,
            };
            if expr.nodes().iter().all(representable) && !has_integer_arithmetic(&expr) {
                let simple = expr.simplified_for(&[DType::F64, DType::F64]);
                let (got, expected) = (value(&simple, &at), value(&expr, &at));
                prop_assert!(same(got, expected), "{got}, not {expected}: {expr}\n{simple}");
            }
        }
    }

    #[test]
    fn simplifying_twice_is_simplifying_once(steps in steps(40)) {
        let expr = any_expr(&steps);
        for dtype in [DType::Bool, DType::I8, DType::F32] {
            let simple = expr.simplified_for(&[dtype; 4]);
            prop_assert_eq!(simple.simplified_for(&[dtype; 4]), simple.clone(), "{}", expr);
            prop_assert!(simple.nodes().len() <= expr.nodes().len() + 1);
        }
    }
}
