//! The nodes that texts parse to.

use crate::graph::{Expr, Literal, Node};
use crate::{Names, Term};

/// Returns the canonical text of a parsed text.
fn printed(text: &str) -> String {
    let expr = Expr::parse(text).unwrap_or_else(|error| panic!("{}", error.message()));
    expr.to_string()
}

#[test]
fn operators_bind_as_in_python() {
    let table = [
        ("a + b * c", "a + b * c"),
        ("(a + b) * c", "(a + b) * c"),
        ("((a)) - (b - c)", "a - (b - c)"),
        ("a - b - c", "a - b - c"),
        ("a / b * c // d % f", "a / b * c // d % f"),
        ("-x ** 2", "-x ** 2"),
        ("(-x) ** 2", "(-x) ** 2"),
        ("2 ** -x ** 3", "2 ** -x ** 3"),
        ("2 ** -x * 3", "2 ** -x * 3"),
        ("(2 ** -x) ** 3", "(2 ** -x) ** 3"),
        ("a ** b ** c", "a ** b ** c"),
        ("(a ** b) ** c", "(a ** b) ** c"),
        ("- - x", "--x"),
        ("+x", "x"),
        ("-~x", "-~x"),
        ("a << 1 + b", "a << 1 + b"),
        ("a & b | c ^ d", "a & b | c ^ d"),
        ("(a | b) & c", "(a | b) & c"),
        ("a & b == c", "a & b == c"),
        ("(a == b) & c", "(a == b) & c"),
        ("a < b + 1", "a < b + 1"),
        ("a < b < c", "(a < b) & (b < c)"),
        ("a < b < c < d", "(a < b) & (b < c) & (c < d)"),
        ("(a < b) < c", "(a < b) < c"),
        ("a < b == c", "(a < b) & (b == c)"),
        ("a if c else b", "where(c, a, b)"),
        ("a if c else b if d else f", "where(c, a, where(d, b, f))"),
        ("(a if c else b) if d else f", "where(d, where(c, a, b), f)"),
        ("a if b if c else d else f", "where(where(c, b, d), a, f)"),
        ("a + 1 if c > 0 else b * 2", "where(c > 0, a + 1, b * 2)"),
        ("a > 0 and b > 0 or c > 0", "(a > 0) & (b > 0) | (c > 0)"),
        ("not a > 0 and b > 0", "~(a > 0) & (b > 0)"),
        ("not not a", "~~(a != False)"),
        ("a and b", "(a != False) & (b != False)"),
        ("not (isnan(x) or isfinite(x))", "~(isnan(x) | isfinite(x))"),
        ("x if x > 0 and x < 1 else 0", "where((x > 0) & (x < 1), x, 0)"),
    ];
    for (text, expected) in table {
        assert_eq!(printed(text), expected, "{text}");
    }
}

#[test]
fn numbers_are_read_as_python_writes_them() {
    let table = [
        ("0", Literal::Int(0)),
        ("1_000_000", Literal::Int(1_000_000)),
        ("0xFf", Literal::Int(255)),
        ("0b1010", Literal::Int(10)),
        ("0o17", Literal::Int(15)),
        ("-1", Literal::Int(-1)),
        ("- 1", Literal::Int(-1)),
        ("9223372036854775807", Literal::Int(i64::MAX)),
        ("-9223372036854775808", Literal::Int(i64::MIN)),
        ("(-9_223_372_036_854_775_808)", Literal::Int(i64::MIN)),
        ("1.5", Literal::Float(1.5f64.to_bits())),
        ("1.", Literal::Float(1f64.to_bits())),
        (".5", Literal::Float(0.5f64.to_bits())),
        ("1e-3", Literal::Float(1e-3f64.to_bits())),
        ("1E+3", Literal::Float(1e3f64.to_bits())),
        ("1_0.2_5e1_0", Literal::Float(10.25e10f64.to_bits())),
        ("-0.0", Literal::Float((-0.0f64).to_bits())),
        ("pi", Literal::Float(std::f64::consts::PI.to_bits())),
        ("-e", Literal::Float((-std::f64::consts::E).to_bits())),
        ("-inf", Literal::Float(f64::NEG_INFINITY.to_bits())),
        ("nan", Literal::Float(f64::NAN.to_bits())),
        ("True", Literal::Bool(true)),
        ("false", Literal::Bool(false)),
    ];
    for (text, expected) in table {
        let expr = Expr::parse(text).unwrap();
        assert_eq!(expr.nodes(), [Node::Literal(expected)], "{text}");
        assert_eq!(Expr::parse(&expr.to_string()).unwrap(), expr, "{text}");
    }
}

#[test]
fn a_minus_sign_belongs_to_a_number_unless_a_power_does() {
    assert_eq!(Expr::parse("-2 ** 2").unwrap().nodes().len(), 3);
    assert_eq!(printed("-2 ** 2"), "-2 ** 2");
    assert_eq!(printed("(-2) ** 2"), "(-2) ** 2");
    assert_eq!(printed("(-2\n** x)"), "-2 ** x");
    assert_eq!(printed("-(2)"), "-(2)");
    assert_eq!(printed("--2"), "--2");
    assert_eq!(printed("x - -1"), "x - -1");
    assert_eq!(printed("x - 1"), "x - 1");
    assert_eq!(printed("-nan"), "-nan");
    assert_eq!(printed("-(inf)"), "-(inf)");
}

#[test]
fn lines_continue_inside_brackets() {
    for (text, expected) in [
        ("(exp\n(x))", "exp(x)"),
        ("(int64\n\n(x) * 2)", "int64(x) * 2"),
        ("(table\n[index\n(\n0\n)\n,\n1])", "table[index(0), 1]"),
        ("(x\n+ y)", "x + y"),
        ("(x # the first\n + # and\n y # the second\n)", "x + y"),
        ("(not\nx)", "~(x != False)"),
    ] {
        assert_eq!(printed(text), expected, "{text}");
    }
}

#[test]
fn every_free_name_is_an_input_in_order_of_appearance() {
    let expr = Expr::parse("b * a + table[a] + b + grid[a, b]").unwrap();
    let inputs: Vec<_> = expr.inputs().iter().map(|i| (i.name.as_str(), i.rank)).collect();
    assert_eq!(inputs, [("b", None), ("a", None), ("table", Some(1)), ("grid", Some(2))]);
    assert!(expr.params().is_empty());
}

#[test]
fn declared_names_keep_their_numbers() {
    let names = Names::new()
        .input("x")
        .tensor("unused")
        .tensor("table")
        .ranked("grid", 2)
        .param("s")
        .param("u");
    let expr = Expr::parse_with("table[int64(x)] * u", &names).unwrap();
    let ranks: Vec<_> = expr.inputs().iter().map(|input| input.rank).collect();
    assert_eq!(ranks, [None, None, Some(1), Some(2)]);
    assert_eq!(expr.params(), ["s", "u"]);
    assert!(expr.nodes().contains(&Node::Param(1)));
    assert_eq!(Expr::parse_with(&expr.to_string(), &Names::of(&expr)).unwrap(), expr);
}

#[test]
fn a_name_may_equal_a_functions_if_no_bracket_follows() {
    let names = Names::new().input("x").param("min").param("max");
    let expr = Expr::parse_with("min(max(x, min), max)", &names).unwrap();
    assert_eq!(expr.to_string(), "min(max(x, min), max)");
}

#[test]
fn statements_name_values() {
    let plain = Expr::parse("exp(x) / (1 + exp(x))").unwrap();
    for text in [
        "t = exp(x); t / (1 + t)",
        "t = exp(x)\nt / (1 + t)",
        "\n t = exp(x) ;\n\n t / (1 +\n t)\n;",
        "t = exp(  # a comment\n x) # another ( one\n t / (1 + t)  # the end",
        "t = exp(x)\r\nu = 1 +\n t; t / u",
    ] {
        assert_eq!(Expr::parse(text).unwrap(), plain, "{text}");
    }
}

#[test]
fn indices_reads_and_casts_are_nodes() {
    assert_eq!(printed("index + index(0) * index(2)"), "index + index(0) * index(2)");
    assert_eq!(printed("index(1 + 1)"), "index(2)");
    assert_eq!(printed("t[index, int64(t[0, x])]"), "t[index, int64(t[0, x])]");
    assert_eq!(printed("bool(float16(x))"), "bool(float16(x))");
    assert_eq!(printed("complex64 (x)"), "complex64(x)");
    assert_eq!(printed("größe * _λ2"), "größe * _λ2");
}

#[test]
fn composed_functions_are_built_of_nodes() {
    let table = [
        ("relu(x)", "where(x <= 0, 0, x)"),
        ("softplus(x)", "where(x > 40, x, log1p(exp(x)))"),
        ("silu(x)", "max(x, -1000.0) * sigmoid(x)"),
        ("clip(x, 0, y)", "min(max(x, 0), y)"),
        ("square(x)", "x * x"),
        ("reciprocal(x)", "1 / x"),
        ("min(a, b, c)", "min(min(a, b), c)"),
        ("maximum(a, b)", "max(a, b)"),
        ("isinf(x)", "abs(x) == inf"),
        ("logical_xor(a, b)", "(a != False) ^ (b != False)"),
        ("subtract(a, mod(b, c))", "a - b % c"),
        ("exp2(x)", "2.0 ** x"),
        ("tan(x)", "sin(x) / cos(x)"),
        ("gelu(x)", "0.5 * max(x, -40.0) * erfc(-0.7071067811865476 * x)"),
    ];
    for (text, expected) in table {
        assert_eq!(printed(text), expected, "{text}");
    }
}

#[test]
fn large_shared_parts_are_printed_once() {
    let text = printed("t = exp(x) * 2 + x; u = t * t + t; u * u");
    assert_eq!(text, "t0 = exp(x) * 2 + x; t1 = t0 * t0 + t0; t1 * t1");
    let names = Names::new().input("t0").input("x");
    let expr = Expr::parse_with("t = exp(x) * 2 + t0; t * t", &names).unwrap();
    assert_eq!(expr.to_string(), "t1 = exp(x) * 2 + t0; t1 * t1");
    // Doubled a hundred times, the text without names would be endless.
    let mut text = String::from("t0 = exp(x) * 2 + x");
    for at in 0..100 {
        text += &format!("\nt{} = t{at} * t{at} + t{at}", at + 1);
    }
    text += "\nt100";
    let expr = Expr::parse(&text).unwrap();
    assert!(expr.to_string().len() < 4000);
    assert_eq!(Expr::parse(&expr.to_string()).unwrap(), expr);
}

/// Returns texts as deep as they are long.
fn deep(depth: usize) -> Vec<String> {
    vec![
        "(".repeat(depth) + "x" + &")".repeat(depth),
        "-".repeat(depth) + "x",
        "~".repeat(depth) + "x",
        "not ".repeat(depth) + "x",
        "exp(".repeat(depth) + "x" + &")".repeat(depth),
        "t[".repeat(depth) + "x" + &"]".repeat(depth),
        "min(x, ".repeat(depth) + "x" + &")".repeat(depth),
        "2 ** ".repeat(depth) + "x",
        "x ** -".repeat(depth) + "x",
        "x + ".repeat(depth) + "1",
        "x - (".repeat(depth) + "1" + &")".repeat(depth),
        "x < ".repeat(depth) + "1",
        "x and ".repeat(depth) + "1",
        "x if y else ".repeat(depth) + "1",
        "x if ".repeat(depth) + "y" + &" else z".repeat(depth),
        "(x if y else ".repeat(depth) + "1" + &")".repeat(depth),
        "max(".to_owned() + &"x, ".repeat(depth) + "x)",
    ]
}

#[test]
fn depth_10_000_is_parsed_printed_and_parsed_again() {
    for text in deep(10_000) {
        let expr = Expr::parse(&text).unwrap_or_else(|error| panic!("{}", error.message()));
        let again = expr.to_string();
        let parsed = Expr::parse_with(&again, &Names::of(&expr)).unwrap();
        // Not assert_eq, which would print a million characters.
        assert!(parsed == expr, "{}", &text[..40]);
        let simple = expr.simplified();
        assert!(simple.nodes().len() <= expr.nodes().len());
    }
}

#[test]
fn deep_text_that_breaks_off_is_an_error() {
    for text in deep(10_000) {
        let cut = &text[..text.len() / 2];
        assert!(Expr::parse(&format!("{cut} $")).is_err());
    }
}

#[test]
fn too_much_text_and_too_many_nodes_are_refused() {
    let text = "x".repeat(crate::MAX_TEXT + 1);
    let error = Expr::parse(&text).unwrap_err();
    assert!(error.message().contains("at most 16777216"), "{}", error.message());
    let mut text = String::from("0");
    for number in 0..600_000 {
        text += &format!("+{number}");
    }
    let error = Expr::parse(&text).unwrap_err();
    assert!(error.message().contains("more than 1000000 nodes"), "{}", error.message());
}

#[test]
fn expressions_built_in_another_order_are_equal() {
    let b = crate::Builder::new();
    let x = b.input("x");
    let late: Term<'_> = x.exp();
    let early = x.log();
    assert_eq!(b.finish(early - late), Expr::parse("log(x) - exp(x)").unwrap());
}

const DOCUMENTATION: &str = include_str!("../../../../../docs/expressions.md");

#[test]
fn the_documentation_lists_every_function() {
    for name in crate::functions::names() {
        let listed = [format!("`{name}`"), format!("`{name}("), format!("`{name} ")];
        assert!(listed.iter().any(|text| DOCUMENTATION.contains(text)), "{name}");
    }
}

#[test]
fn the_documentation_shows_errors_as_they_are() {
    let shown = DOCUMENTATION.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 15);
    for error in lines.chunks(3) {
        // The second line follows one that isn't shown.
        let before = if error[0].contains("line 2") { "t = exp(x)\n" } else { "" };
        let given = Expr::parse(&format!("{before}{}", error[1])).unwrap_err();
        assert_eq!(given.message(), error.join("\n"));
    }
}
