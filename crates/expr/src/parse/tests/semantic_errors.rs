//! Errors of syntactically correct texts.

use keyfold_core::ErrorKind;

use super::errors::{all, refused};
use crate::{Expr, Names};

#[test]
fn division_by_a_zero_literal_is_pointed_at() {
    let zero = |written: &str| {
        format!("division by zero: '{written}' is 0; write inf or nan where that is meant")
    };
    refused("x / ‸0", "division by zero; write inf or nan where that is meant", None);
    for (marked, written) in [
        ("x / ‸(1-1)", "(1-1)"),
        ("x / ‸0.0", "0.0"),
        ("x / ‸-0.0", "-0.0"),
        ("x / ‸False", "False"),
        ("1 + x / ‸(2 ** 0 - 1) * 3", "(2 ** 0 - 1)"),
        ("t = 1 - 1; x / ‸t", "t"),
        ("x / ‸sin(0)", "sin(0)"),
        ("divide(x, ‸0 * 2)", "0 * 2"),
    ] {
        refused(marked, &zero(written), None);
    }
    let rest = "of whole numbers the result would be 0, of floats nan: write that";
    refused("x // ‸0", &format!("'//' by zero; {rest}"), None);
    refused("x % ‸(1 - 1.0)", &format!("'%' by zero: '(1 - 1.0)' is 0; {rest}"), None);
    refused("mod(x, ‸0)", &format!("'mod' by zero; {rest}"), None);
    for fine in ["0 / x", "x / inf", "x // 1", "x / (y - y)", "0 * x"] {
        assert!(Expr::parse(fine).is_ok(), "{fine}");
    }
}

#[test]
fn bits_of_floats_are_refused_and_powers_recommended() {
    let table = [
        (
            "x ‸^ 2.0",
            "'^' works on the bits of whole numbers, '2.0' is a float; a power is written with '**'",
        ),
        (
            "0.5 ‸^ x",
            "'^' works on the bits of whole numbers, '0.5' is a float; a power is written with '**'",
        ),
        ("x ‸& (1 + 0.5)", "'&' works on the bits of whole numbers, '(1 + 0.5)' is a float"),
        ("x ‸| 1.5", "'|' works on the bits of whole numbers, '1.5' is a float"),
        ("x ‸<< 1.5", "'<<' works on the bits of whole numbers, '1.5' is a float"),
        ("2.5 ‸>> x", "'>>' works on the bits of whole numbers, '2.5' is a float"),
        ("‸~0.5", "'~' works on the bits of whole numbers, '0.5' is a float"),
    ];
    all(&table);
    assert!(Expr::parse("x ^ 2").is_ok());
}

#[test]
fn an_input_is_read_elementwise_or_at_indices_but_not_both() {
    all(&[
        (
            "x + x‸[1]",
            "'x' is read element by element, so it takes no indices; only an input that is always written with them has them",
        ),
        ("x[1] + ‸x", "'x' is read at indices; write x[i]"),
        ("x[1, 2] + ‸x[1]", "'x' is read at 2 indices, here at 1 index; write x[i, j]"),
        ("x[1] + ‸x[1, 2]", "'x' is read at 1 index, here at 2 indices; write x[i]"),
        ("‸x[x]", "'x' is read with and without indices; an input has one way"),
        ("t = x; t‸[1]", "'t' is a value, so it takes no indices; only inputs do"),
        (
            "(x + 1)‸[2]",
            "only a ranked input has indices, not '(x + 1)'; a list has no meaning here",
        ),
        ("‸[x]", "a value is missing before '['"),
        (
            "index(‸x)",
            "the dimension of index(d) has to be a whole number written out, counted from the last: index(0)",
        ),
        (
            "index(‸-1)",
            "the dimension of index(d) is -1; it is counted from the last, which is 0, up to 63",
        ),
        (
            "index(‸64)",
            "the dimension of index(d) is 64; it is counted from the last, which is 0, up to 63",
        ),
    ]);
    let names = Names::new().input("x").ranked("grid", 2).param("beta");
    for (marked, message) in [
        ("beta‸[1]", "'beta' is a parameter, one number, so it takes no indices"),
        ("‸beta(1)", "'beta' is a parameter, not a function; a product is written beta * (...)"),
        ("‸grid + x", "'grid' is read at indices; write grid[i, j]"),
        ("‸grid[x]", "'grid' is read at 2 indices, here at 1 index; write grid[i, j]"),
        (
            "x‸[1]",
            "'x' is read element by element, so it takes no indices; only an input that is always written with them has them",
        ),
        ("x * ‸bata", "unknown name 'bata'; did you mean 'beta'?"),
        ("x * ‸weights", "unknown name 'weights'; declared are x, grid, beta"),
        ("‸gird[1, 2]", "unknown name 'gird'; did you mean 'grid'?"),
    ] {
        refused(marked, message, Some(&names));
    }
}

#[test]
fn names_are_assigned_once_and_used() {
    all(&[
        ("‸t = exp(x); x", "'t' isn't used; remove the line"),
        ("a = x\n‸b = x\na", "'b' isn't used; remove the line"),
        ("t = x; ‸t = x + 1; t", "'t' has a value already; take another name"),
        ("y = t + 1; ‸t = x; y * t", "'t' is an input already; take another name"),
        (
            "‸t = x",
            "the last line is the result, which has no name; remove 't =' (to compare write '==')",
        ),
        (
            "‸x + 1\nx + 2",
            "this value isn't used: give it a name, 'name = ...', or go on inside brackets",
        ),
        (
            "‸x\n+ 1",
            "this value isn't used: give it a name, 'name = ...', or go on inside brackets",
        ),
        ("‸pi = 3; pi", "'pi' is a constant, so nothing can be named so; to compare write '=='"),
        (
            "‸index = 3; index",
            "'index' is a word of the language, so nothing can be named so; to compare write '=='",
        ),
        (
            "‸int32 = x; x",
            "'int32' is a dtype, which converts: name(x), so nothing can be named so; to compare write '=='",
        ),
        (
            "‸for = x; x",
            "'for' is a word of Python, so nothing can be named so; to compare write '=='",
        ),
        ("‸t = t + 1; t", "'t' is an input already; take another name"),
    ]);
    let names = Names::new().param("b");
    refused("‸b = 1; b", "'b' is a parameter already; take another name", Some(&names));
}

#[test]
fn empty_text_is_an_error_at_its_end() {
    all(&[
        ("‸", "an expression is missing: the text is empty"),
        ("  \n\t ‸", "an expression is missing: the text is empty"),
        (";;‸", "an expression is missing: the text is empty"),
        ("# only a comment‸", "an expression is missing: the text is empty"),
    ]);
}

#[test]
fn invalid_names_are_refused_when_they_are_declared() {
    let table = [
        (Names::new().input("2x"), "expression, input '2x': '2x' isn't a name"),
        (Names::new().param(""), "expression, parameter '': '' isn't a name"),
        (Names::new().param("a b"), "expression, parameter 'a b': 'a b' isn't a name"),
        (
            Names::new().input("e"),
            "expression, input 'e': 'e' is a constant, so nothing can be named so",
        ),
        (
            Names::new().tensor("lambda"),
            "expression, input 'lambda': 'lambda' is a word of Python, so nothing can be named so",
        ),
        (
            Names::new().input("x").param("x"),
            "expression, parameter 'x': another input or parameter has the same name",
        ),
    ];
    for (names, message) in table {
        let error = Expr::parse_with("1", &names).unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::Value, message));
    }
}
