//! Built expressions equal parsed ones.

use keyfold_core::DType;

use super::{Builder, Term, TermOperand};
use crate::{Expr, Names};

fn check(build: impl for<'b> Fn(&'b Builder, Term<'b>, Term<'b>) -> Term<'b>, text: &str) {
    let b = Builder::new();
    let (x, y) = (b.input("x"), b.input("y"));
    let built = b.finish(build(&b, x, y));
    let names = Names::of(&built);
    let parsed = Expr::parse_with(text, &names).unwrap_or_else(|e| panic!("{}", e.message()));
    assert_eq!(built, parsed, "{built}, not {text}");
}

#[test]
fn operators_take_terms_and_numbers_on_either_side() {
    check(|_, x, y| x + y * 2 - 1.5, "x + y * 2 - 1.5");
    check(|_, x, y| 2 * x / (1.0 - y), "2 * x / (1.0 - y)");
    check(|_, x, y| 7i64 % x + true * y, "7 % x + True * y");
    check(|_, x, y| -(x & 3 | y ^ 1), "-(x & 3 | y ^ 1)");
    check(|_, x, y| (1 << x) >> (!y), "(1 << x) >> ~y");
    check(|_, x, _| 1 / x, "1 / x");
}

#[test]
fn methods_are_the_functions_of_the_language() {
    check(|_, x, _| (x.exp() + 1.0).log(), "log(exp(x) + 1.0)");
    check(|_, x, y| x.pow(2).floor_div(y).min(1).max(y), "max(min(x ** 2 // y, 1), y)");
    check(|_, x, y| x.lt(y).logical_and(x.ne(0)), "x < y and x != 0");
    check(|_, x, y| x.eq(1).logical_or(y).logical_xor(x.ge(2)), "logical_xor(x == 1 or y, x >= 2)");
    check(|_, x, y| x.le(y).logical_not() | x.gt(1), "(not x <= y) | (x > 1)");
    check(|b, x, y| b.where_(x.gt(0), x, y), "x if x > 0 else y");
    check(|_, x, _| x.clamp(-1, 1.5).cast(DType::F16), "float16(clamp(x, -1, 1.5))");
    check(|_, x, y| x.logaddexp(y).hypot(2), "hypot(logaddexp(x, y), 2)");
    check(|_, x, _| x.is_nan() | x.is_finite() | x.is_inf(), "isnan(x) | isfinite(x) | isinf(x)");
    check(|b, x, _| x * b.index() + b.coordinate(1), "x * index + index(1)");
    check(|b, x, _| x + b.number(f64::NAN), "x + nan");
}

#[test]
fn every_unary_function_is_a_method() {
    type Method = for<'b> fn(Term<'b>) -> Term<'b>;
    let table: [(&str, Method); 33] = [
        ("abs", |x| x.abs()),
        ("sign", |x| x.sign()),
        ("exp", |x| x.exp()),
        ("expm1", |x| x.expm1()),
        ("log", |x| x.log()),
        ("log1p", |x| x.log1p()),
        ("sqrt", |x| x.sqrt()),
        ("rsqrt", |x| x.rsqrt()),
        ("sin", |x| x.sin()),
        ("cos", |x| x.cos()),
        ("tanh", |x| x.tanh()),
        ("sigmoid", |x| x.sigmoid()),
        ("erf", |x| x.erf()),
        ("floor", |x| x.floor()),
        ("ceil", |x| x.ceil()),
        ("round", |x| x.round()),
        ("trunc", |x| x.trunc()),
        ("isnan", |x| x.is_nan()),
        ("isfinite", |x| x.is_finite()),
        ("relu", |x| x.relu()),
        ("gelu", |x| x.gelu()),
        ("gelu_tanh", |x| x.gelu_tanh()),
        ("silu", |x| x.silu()),
        ("softplus", |x| x.softplus()),
        ("square", |x| x.square()),
        ("reciprocal", |x| x.reciprocal()),
        ("exp2", |x| x.exp2()),
        ("log2", |x| x.log2()),
        ("log10", |x| x.log10()),
        ("sinh", |x| x.sinh()),
        ("cosh", |x| x.cosh()),
        ("tan", |x| x.tan()),
        ("erfc", |x| x.erfc()),
    ];
    for (name, method) in table {
        let b = Builder::new();
        let built = b.finish(method(b.input("x")));
        assert_eq!(built, Expr::parse(&format!("{name}(x)")).unwrap(), "{name}");
    }
}

#[test]
fn inputs_and_parameters_are_numbered_as_they_are_asked_for() {
    let b = Builder::new();
    let beta = b.param("beta");
    let x = b.input("x");
    let table = b.ranked("table", 2);
    let expr =
        b.finish(table.at(&[x.cast(DType::I64), b.index()]) * b.param("beta") + b.input("x"));
    assert_eq!(expr.to_string(), "table[int64(x), index] * beta + x");
    assert_eq!(expr.params(), ["beta"]);
    assert_eq!(expr.inputs()[1].rank, Some(2));
    // The builder remains usable.
    assert_eq!(b.finish(beta * 2).to_string(), "beta * 2");
    assert_eq!(b.finish(3).to_string(), "3");
    assert_eq!(
        format!("{x:?} {table:?} {:?}", TermOperand::from(1)),
        "Term(x) Ranked(table, 2) Int(1)"
    );
}

/// Returns the message of a panic.
fn panics(build: impl FnOnce() + std::panic::UnwindSafe) -> String {
    let panic = std::panic::catch_unwind(build).expect_err("it has to panic");
    panic.downcast_ref::<String>().cloned().unwrap_or_else(|| {
        panic.downcast_ref::<&str>().map_or_else(String::new, |text| (*text).to_owned())
    })
}

#[test]
fn invalid_constructions_panic_with_the_reason() {
    let message = panics(|| {
        let (a, b) = (Builder::new(), Builder::new());
        let _ = a.finish(a.input("x") + b.input("x"));
    });
    assert!(message.contains("a term of another builder"), "{message}");
    let message = panics(|| {
        Builder::new().input("if");
    });
    assert!(message.contains("'if' is a word of the language"), "{message}");
    let message = panics(|| {
        let b = Builder::new();
        b.input("x");
        b.param("x");
    });
    assert_eq!(message, "'x' is an input already");
    let message = panics(|| {
        let b = Builder::new();
        b.ranked("t", 2).at(&[b.index()]);
    });
    assert_eq!(message, "1 indices for an input of rank 2");
}
