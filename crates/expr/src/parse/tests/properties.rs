//! Properties of parsing any text and of printing any expression.

use keyfold_core::ErrorKind;
use proptest::prelude::*;

use crate::tests::random::{any_expr, steps};
use crate::{Expr, Names};

/// Checks that a text parses and prints to an equal expression, or that its error is well-formed.
fn check(text: &str, names: Option<&Names>) {
    let parsed = match names {
        Some(names) => Expr::parse_with(text, names),
        None => Expr::parse(text),
    };
    match parsed {
        Ok(expr) => {
            let printed = expr.to_string();
            let again = Expr::parse_with(&printed, &Names::of(&expr));
            let again = again.unwrap_or_else(|error| panic!("{text}\n{}", error.message()));
            assert_eq!(again, expr, "{text}\n{printed}");
            assert_eq!(again.to_string(), printed);
            let simple = expr.simplified();
            assert_eq!(simple.simplified(), simple, "{text}");
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Expression);
            let lines: Vec<&str> = error.message().split('\n').collect();
            let [header, _, caret] = lines.as_slice() else { panic!("{}", error.message()) };
            assert!(header.starts_with("expression, ") && header.len() < 1000, "{header}");
            assert!(caret.ends_with('^') && caret.chars().count() <= 75, "{caret}");
        }
    }
}

/// Texts that mutations start from.
const SEEDS: [&str; 14] = [
    "log1p(exp(x))",
    "t = exp(x); t / (1 + t)",
    "x if x > 0 else -x ** 2 if x < -1e-3 else inf",
    "table[int64(x), index(0)] * 0x1F - 1_000",
    "not (a and b or isnan(c)) # comment\n",
    "a < b <= c != d == e",
    "min(max(x, -1.5), +2, y) // 3 % 7",
    "~(i << 3) & 0b101 | j ^ k >> 1",
    "where(x == nan, pi, -9223372036854775808)",
    "gelu(x) + hypot(x, y) - logaddexp(x, softplus(y))",
    "float16(x) + bool(y) - complex64(z)",
    "s = x * x\nt = sqrt(s +\n 1)\ns / t",
    "clamp(größe, 0, 1) * (漢 - 2 ** -x ** 3)",
    "True and false or index % 2 == 0",
];

/// Tokens inserted by mutations.
const TOKENS: [&str; 40] = [
    "+",
    "-",
    "*",
    "/",
    "//",
    "%",
    "**",
    "~",
    "&",
    "|",
    "^",
    "<<",
    ">>",
    "<",
    "<=",
    "==",
    "!=",
    "=",
    "(",
    ")",
    "[",
    "]",
    ",",
    ";",
    "\n",
    " if ",
    " else ",
    " and ",
    " not ",
    "x",
    "exp(",
    "index",
    "0",
    "1.5",
    "9223372036854775808",
    "inf",
    "#",
    "&&",
    "漢",
    "\t",
];

/// Returns a mutated text. A change has a position and a kind: remove a character, insert a token,
/// duplicate a piece.
fn mutated(text: &str, changes: &[(u16, u8)]) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    for (place, what) in changes {
        let at = *place as usize % (characters.len() + 1);
        match *what as usize {
            token if token < TOKENS.len() => {
                characters.splice(at..at, TOKENS[token].chars());
            }
            what if what % 3 == 0 => {
                let piece: Vec<char> = characters[at..].iter().take(what % 7).copied().collect();
                characters.splice(at..at, piece);
            }
            _ if at < characters.len() => {
                characters.remove(at);
            }
            _ => {}
        }
    }
    characters.into_iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_characters_are_parsed_or_refused(text in "\\PC{0,40}") {
        check(&text, None);
    }

    #[test]
    fn any_tokens_are_parsed_or_refused(
        tokens in proptest::collection::vec(0..TOKENS.len(), 0..25),
        spaced in any::<bool>(),
    ) {
        let texts: Vec<&str> = tokens.iter().map(|at| TOKENS[*at]).collect();
        check(&texts.join(if spaced { " " } else { "" }), None);
    }

    #[test]
    fn changed_texts_are_parsed_or_refused(
        seed in 0..SEEDS.len(),
        changes in proptest::collection::vec(any::<(u16, u8)>(), 0..6),
    ) {
        let text = mutated(SEEDS[seed], &changes);
        check(&text, None);
        check(&text, Some(&Names::new().tensor("x").tensor("table").param("y")));
    }

    #[test]
    fn any_expression_prints_as_text_of_an_equal_one(steps in steps(40)) {
        let expr = any_expr(&steps);
        let printed = expr.to_string();
        let again = Expr::parse_with(&printed, &Names::of(&expr));
        let again = again.unwrap_or_else(|error| panic!("{}", error.message()));
        prop_assert_eq!(&again, &expr, "{}", printed);
    }
}
