//! Syntax errors: message and position of each kind.

use keyfold_core::{ErrorKind, Failure};

use crate::{Expr, Names};

/// Marks the position of the caret in a text of a test.
const CARET: char = '‸';

/// Checks that a text, without its mark, is refused at the mark with this message.
pub(super) fn refused(marked: &str, message: &str, names: Option<&Names>) {
    let at = marked.find(CARET).unwrap_or_else(|| panic!("no mark in {marked:?}"));
    let text = marked.replace(CARET, "");
    let result = match names {
        Some(names) => Expr::parse_with(&text, names),
        None => Expr::parse(&text),
    };
    let error = result.err().unwrap_or_else(|| panic!("{text:?} is parsed"));
    assert_eq!(error.kind(), ErrorKind::Expression);
    let expected = Failure { at, message: message.into() }.into_error(
        ErrorKind::Expression,
        "expression",
        &text,
    );
    assert_eq!(error.message(), expected.message(), "{marked:?}");
}

pub(super) fn all(table: &[(&str, &str)]) {
    for (marked, message) in table {
        refused(marked, message, None);
    }
}

#[test]
fn an_error_shows_the_line_and_a_caret_at_the_position() {
    let error = Expr::parse("t = exp(x)\n\tt / (1 + lgo(ä漢))").unwrap_err();
    let expected = "expression, line 2, column 11: unknown function 'lgo'; did you mean 'log'?\n \
                    t / (1 + lgo(ä漢))\n          ^";
    assert_eq!(error.message(), expected);
    let error = Expr::parse("ä漢 + \t$").unwrap_err();
    let expected = "expression, column 7: '$' has no meaning here\nä漢 +  $\n \u{3000}    ^";
    assert_eq!(error.message(), expected);
}

#[test]
fn unknown_functions_get_the_nearest_name() {
    all(&[
        ("1 + ‸epx(x)", "unknown function 'epx'; did you mean 'exp'?"),
        ("‸sofplus(x)", "unknown function 'sofplus'; did you mean 'softplus'?"),
        ("‸ln(x)", "unknown function 'ln'; did you mean 'log'?"),
        ("‸float(x)", "unknown function 'float'; did you mean 'float64'?"),
        ("‸flaot32(x)", "unknown function 'flaot32'; did you mean 'float32'?"),
        ("‸indx(0)", "unknown function 'indx'; did you mean 'index'?"),
        ("‸quaternion(x)", "unknown function 'quaternion'"),
        ("x + ‸x(2)", "'x' is an input, not a function; a product is written x * (...)"),
        ("t = x; ‸t(2)", "'t' is a value, not a function; a product is written t * (...)"),
    ]);
}

#[test]
fn functions_and_dtypes_are_not_values() {
    all(&[
        ("‸exp + 1", "'exp' is a function; write exp(x)"),
        ("x * ‸clamp", "'clamp' is a function; write clamp(x, lo, hi)"),
        ("‸exp[x]", "'exp' is a function; write exp(x)"),
        ("x + ‸float32", "'float32' is a dtype; write float32(x) to convert x"),
        (
            "‸None",
            "'None' is a word of Python without meaning here; expressions are made of numbers",
        ),
        (
            "‸return x",
            "'return' is a word of Python without meaning here; the last line is the result as it is",
        ),
        (
            "‸lambda x: x",
            "'lambda' is a word of Python without meaning here; write what follows the colon alone",
        ),
    ]);
}

#[test]
fn a_wrong_number_of_arguments_shows_the_right_call() {
    all(&[
        ("1 + ‸exp()", "exp(x) takes 1 argument, none given"),
        ("‸exp(x, y)", "exp(x) takes 1 argument, 2 given"),
        ("‸where(x > 0, x)", "where(condition, a, b) takes 3 arguments, 2 given"),
        ("‸clamp (x, 1)", "clamp(x, lo, hi) takes 3 arguments, 2 given"),
        ("‸min(x)", "min(a, b, ...) takes 2 or more arguments, 1 given"),
        ("‸power(x)", "power(a, b) takes 2 arguments, 1 given"),
        ("‸int32(x, y)", "int32(x) takes 1 argument, 2 given"),
        ("‸index(0, 1)", "index(d) takes 1 argument, 2 given"),
        ("‸index()", "index(d) takes 1 argument, none given"),
    ]);
}

#[test]
fn errors_of_missing_operands_name_the_token_before() {
    all(&[
        ("x +‸", "a value is missing after '+'"),
        ("x + ‸", "a value is missing after '+'"),
        ("x + ‸; x", "a value is missing after '+'"),
        ("x ** ‸* y", "a value is missing after '**', found '*'"),
        ("‸* x", "a value is missing before '*'"),
        ("(x + ‸)", "a value is missing after '+', found ')'"),
        ("(‸)", "a value is missing after '(', found ')'"),
        ("f = exp(x, ‸)\nf", "a value is missing after ',', found ')'"),
        ("max(x, ‸, y)", "a value is missing after ',', found ','"),
        ("max(‸, y)", "a value is missing after '(', found ','"),
        ("x and ‸or y", "a value is missing after 'and', found 'or'"),
        ("‸and y", "a value is missing before 'and'"),
        ("x if ‸else y", "a value is missing after 'if', found 'else'"),
        ("x if y else‸", "a value is missing after 'else'"),
        ("not‸", "a value is missing after 'not'"),
        ("-‸", "a value is missing after '-'"),
        ("t = ‸; t", "a value is missing after '='"),
        ("table[‸]", "an index is missing between the brackets"),
    ]);
}

#[test]
fn errors_of_missing_operators_name_the_tokens_around() {
    all(&[
        ("x ‸y", "an operator is missing between 'x' and 'y'; a product is written with '*'"),
        ("x ‸2", "an operator is missing between 'x' and '2'; a product is written with '*'"),
        ("2 ‸x", "an operator is missing between '2' and 'x'; a product is written with '*'"),
        ("(x)‸(y)", "an operator is missing between '(x)' and '('; a product is written with '*'"),
        (
            "exp(x) ‸exp",
            "an operator is missing between 'exp(x)' and 'exp'; a product is written with '*'",
        ),
        ("x ‸~y", "an operator is missing before '~'"),
        ("x ‸is y", "'is' has no meaning here; to compare write '=='"),
        ("x ‸xor y", "'xor' isn't an operator; write '^', or logical_xor(a, b)"),
        ("x ‸not in y", "an operator is missing before 'not'"),
        ("x == ‸not y", "'not' binds loosely; put it in brackets with its operand"),
        ("-‸not y", "'not' binds loosely; put it in brackets with its operand"),
    ]);
}

#[test]
fn brackets_that_do_not_match_are_pointed_at() {
    all(&[
        ("‸(x + 1", "'(' isn't closed"),
        ("exp‸((x) + 1", "'(' isn't closed"),
        ("x + 1‸)", "')' without an open bracket"),
        ("‸)", "')' without an open bracket"),
        ("x + ‸)", "')' without an open bracket"),
        ("(x + 1‸]", "'(' is closed by ')', found ']'"),
        ("table[x‸)", "'[' is closed by ']', found ')'"),
        ("table[int64\n(0‸]", "'(' is closed by ')', found ']'"),
        ("(1 / (\n‸))", "a value is missing after '(', found ')'"),
        ("table‸[x", "'[' isn't closed"),
        ("t = ‸(x; t)", "'(' isn't closed"),
        (
            "(x ‸, y)",
            "a comma has no meaning between these brackets; only calls and indices have several values",
        ),
        ("x‸, y", "an expression is one value; ',' has no meaning here"),
    ]);
}

#[test]
fn choices_need_both_words() {
    all(&[
        ("x ‸if y", "'if' without 'else'; a choice is written 'a if condition else b'"),
        ("(x ‸if y) else z", "'if' without 'else'; a choice is written 'a if condition else b'"),
        ("x ‸else y", "'else' without 'if'; a choice is written 'a if condition else b'"),
        (
            "x if y else z ‸else a",
            "'else' without 'if'; a choice is written 'a if condition else b'",
        ),
        ("‸if x: y", "a value is missing before 'if'"),
    ]);
}

#[test]
fn signs_of_other_languages_are_refused_with_advice() {
    all(&[
        ("x ‸&& y", "'&&' isn't an operator; write 'and'"),
        ("x ‸|| y", "'||' isn't an operator; write 'or'"),
        ("‸!x", "'!' isn't an operator; write 'not' (or '~' for bits)"),
        (
            "x + y ‸= z",
            "'=' gives a name at the start of a line, 'name = value'; to compare write '=='",
        ),
        (
            "(x ‸= y)",
            "'=' gives a name at the start of a line, 'name = value'; to compare write '=='",
        ),
        (
            "x == ‸= y",
            "'=' gives a name at the start of a line, 'name = value'; to compare write '=='",
        ),
        ("x ‸=== y", "'===' isn't an operator; write '=='"),
        ("x ‸=< y", "'=<' isn't an operator; write '<='"),
        ("x ‸<> y", "'<>' isn't an operator; write '!='"),
        ("x ‸? y : z", "'?' isn't an operator; a choice is written 'a if condition else b'"),
        ("x ‸@ y", "'@' isn't an operator: an expression computes one element at a time"),
        ("x ‸× y", "'×' isn't an operator; write '*'"),
        ("‸−x", "this minus sign is another character than '-'; write '-'"),
        ("x ‸≤ y", "'≤' isn't an operator; write '<='"),
        ("‸{x}", "'{' has no meaning here; group with round brackets"),
        ("‸'x'", "text in quotes has no meaning here: expressions are made of numbers"),
        (
            "np‸.exp(x)",
            "'.' has no meaning here; functions are called by their plain names: exp(x)",
        ),
        ("x + ‸\\\n 1", "'\\' isn't needed: a line goes on inside brackets and after an operator"),
        ("x + ‸$", "'$' has no meaning here"),
        ("x + ‸€", "the character '€' has no meaning here"),
        ("x ‸\u{7}", "the character \\u{7} has no meaning here"),
    ]);
}

#[test]
fn errors_of_malformed_numbers_name_the_mistake() {
    all(&[
        ("1 + ‸1.2.3", "malformed number '1.2.3': a number has one point"),
        ("‸2x", "malformed number '2x': a product is written 2*x"),
        ("‸1e", "malformed number '1e': the exponent's digits are missing"),
        ("‸1e+", "malformed number '1e+': the exponent's digits are missing"),
        ("‸1__0", "malformed number '1__0': an underscore stands between two digits"),
        ("‸1_", "malformed number '1_': an underscore stands between two digits"),
        ("‸1_.5", "malformed number '1_.5': an underscore stands between two digits"),
        ("‸0x", "malformed number '0x': hexadecimal digits are expected after '0x'"),
        ("‸0b12", "malformed number '0b12': binary digits are expected after '0b'"),
        (
            "‸012",
            "malformed number '012': a whole number doesn't begin with 0; octal ones begin with 0o",
        ),
        ("‸2j", "malformed number '2j': complex numbers can't be written in an expression"),
        (
            "‸2.5f",
            "malformed number '2.5f': '2.5' is enough: a number takes the dtype of what it meets",
        ),
        ("‸1e400", "the number '1e400' is beyond float64; write inf"),
        (
            "‸9223372036854775808",
            "the whole number 9223372036854775808 doesn't fit int64 (at most 9223372036854775807); write it with a point, as a float",
        ),
        (
            "-‸9223372036854775809",
            "the whole number 9223372036854775809 doesn't fit int64 (at most 9223372036854775807); write it with a point, as a float",
        ),
        (
            "‸0x1_0000_0000_0000_0000",
            "the whole number 0x1_0000_0000_0000_0000 doesn't fit int64 (at most 9223372036854775807); write it with a point, as a float",
        ),
        (
            "-‸9223372036854775808 ** 2",
            "the whole number 9223372036854775808 doesn't fit int64 (at most 9223372036854775807); write it with a point, as a float",
        ),
    ]);
}
