//! What must hold for any text that is given as an expression.

use keyfold_core::ErrorKind;
use keyfold_expr::{Expr, Names};

use crate::text::check_error;

/// Parses a text, with every name free and with some declared, and checks what comes of it.
pub fn check_text(text: &str) {
    let names = Names::new().tensor("x").ranked("table", 1).input("unused").param("y");
    for result in [Expr::parse(text), Expr::parse_with(text, &names)] {
        match result {
            Ok(expr) => check_expr(&expr),
            Err(error) => check_error(text, "expression", &error),
        }
    }
}

fn check_expr(expr: &Expr) {
    check_printing(expr);
    let simple = expr.simplified();
    check_printing(&simple);
    assert_eq!(simple.simplified(), simple, "{expr}");
    assert_eq!((simple.inputs(), simple.params()), (expr.inputs(), expr.params()), "{expr}");
    for (number, input) in expr.inputs().iter().enumerate() {
        match expr.derivative(number) {
            Ok(derivative) => {
                assert_eq!(derivative.inputs(), expr.inputs(), "{expr}");
                let second = derivative.derivative(number).unwrap();
                // By the rules for each node, and again for each node of those.
                let bound = 40 * expr.nodes().len() + 40;
                assert!(derivative.nodes().len() <= bound, "{expr}");
                assert!(second.nodes().len() <= 40 * derivative.nodes().len() + 40, "{expr}");
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotSupported, "{expr}");
                assert!(input.rank.is_some(), "{expr}");
            }
        }
    }
}

/// What an expression prints parses to an equal one, unless constants that were folded made it
/// something that text can't say: a division by zero, bits of a float.
fn check_printing(expr: &Expr) {
    let printed = expr.to_string();
    match Expr::parse_with(&printed, &Names::of(expr)) {
        Ok(again) => {
            assert_eq!(&again, expr, "{printed}");
            assert_eq!(again.to_string(), printed);
        }
        Err(error) => {
            let message = error.message();
            let said = message.contains("by zero") || message.contains("works on the bits");
            assert!(said, "{printed}\n{message}");
        }
    }
}
