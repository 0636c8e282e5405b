//! Messages for a missing operand or operator.

use super::lex::{Kind, excerpt, failure};
use super::parser::{Parsed, Parser};

impl Parser<'_> {
    pub(super) fn missing_operand<T>(&self) -> Parsed<T> {
        let before = self.before.filter(|token| token.kind != Kind::Newline);
        let after = before.map(|token| format!(" after '{}'", excerpt(self.written(token))));
        let message = match (self.token.kind, after) {
            (Kind::Sign("="), _) => return self.equals_sign(),
            (Kind::End | Kind::Newline | Kind::Sign(";"), Some(after)) => {
                format!("a value is missing{after}")
            }
            (Kind::Sign(sign @ (")" | "]")), None) => format!("'{sign}' without an open bracket"),
            (Kind::Sign(")"), Some(_)) if self.open == 0 => "')' without an open bracket".into(),
            (_, Some(after)) => {
                format!("a value is missing{after}, found '{}'", excerpt(self.written(self.token)))
            }
            (_, None) => {
                format!("a value is missing before '{}'", excerpt(self.written(self.token)))
            }
        };
        failure(self.token.at, message)
    }

    pub(super) fn missing_operator<T>(&self) -> Parsed<T> {
        let found = excerpt(self.written(self.token));
        let before = self.operands.last().map_or("", |o| &self.text[o.at..o.end]);
        let message = match self.token.kind {
            Kind::Sign("[") => format!(
                "only a ranked input has indices, not '{}'; a list has no meaning here",
                excerpt(before)
            ),
            Kind::Sign("(") | Kind::Int(_) | Kind::Float(_) | Kind::Name
                if !matches!(found.as_str(), "not" | "in" | "is" | "for" | "xor") =>
            {
                format!(
                    "an operator is missing between '{}' and '{found}'; a product is written with '*'",
                    excerpt(before)
                )
            }
            _ => match found.as_str() {
                "is" => "'is' has no meaning here; to compare write '=='".into(),
                "xor" => "'xor' isn't an operator; write '^', or logical_xor(a, b)".into(),
                _ => format!("an operator is missing before '{found}'"),
            },
        };
        failure(self.token.at, message)
    }

    pub(super) fn equals_sign<T>(&self) -> Parsed<T> {
        failure(
            self.token.at,
            "'=' gives a name at the start of a line, 'name = value'; to compare write '=='",
        )
    }
}
