//! Parsing where an operand is expected: numbers, names, prefix operators, brackets.

use keyfold_core::{DType, did_you_mean};

use super::lex::{Kind, Token, excerpt, failure, too_big};
use super::names::{CONSTANTS, NameValue};
use super::operators::{Level, Open, Pending, Prefix};
use super::parser::{Parsed, Parser};
use crate::graph::{Literal, Node};
use crate::{DTYPES, derived_functions, functions};

/// Other libraries' names of functions, with the names here.
const OTHER_NAMES: [(&str, &str); 13] = [
    ("float", "float64"),
    ("double", "float64"),
    ("half", "float16"),
    ("int", "int64"),
    ("long", "int64"),
    ("ln", "log"),
    ("fmin", "min"),
    ("fmax", "max"),
    ("logistic", "sigmoid"),
    ("sgn", "sign"),
    ("swish", "silu"),
    ("select", "where"),
    ("inv", "reciprocal"),
];

impl Parser<'_> {
    /// Reads a token where an operand is expected; returns whether one is still expected
    /// afterwards.
    pub(super) fn operand(&mut self) -> Parsed<bool> {
        let token = self.token;
        match token.kind {
            Kind::Newline => {}
            Kind::Int(value) => {
                self.number(token, value)?;
                self.advance()?;
                return Ok(false);
            }
            Kind::Float(value) => {
                self.float(token, value)?;
                self.advance()?;
                return Ok(false);
            }
            Kind::Name => return self.name(token),
            Kind::Sign("(") => {
                self.open(Open::Group, token.at);
            }
            Kind::Sign("-") => self.push_pending(Pending::Prefix(Prefix::Minus), token.at),
            Kind::Sign("+") => self.push_pending(Pending::Prefix(Prefix::Plus), token.at),
            Kind::Sign("~") => self.push_pending(Pending::Prefix(Prefix::Invert), token.at),
            Kind::Sign(sign @ (")" | "]")) if self.just_opened() => {
                self.close(sign)?;
                self.advance()?;
                return Ok(false);
            }
            Kind::Sign(_) | Kind::End => return self.missing_operand(),
        }
        self.advance()?;
        Ok(true)
    }

    /// Returns whether the bracket of a call or of indices is still empty.
    fn just_opened(&self) -> bool {
        let after_bracket =
            self.before.is_some_and(|token| matches!(token.kind, Kind::Sign("(" | "[")));
        let top = self.waiting.last().map(|entry| entry.waiting);
        after_bracket
            && matches!(top, Some(Pending::Open { what, .. }) if !matches!(what, Open::Group))
    }

    /// Takes the minus sign before a number, which becomes part of it; but `-2 ** 2` is `-(2 **
    /// 2)`.
    fn takes_minus(&mut self) -> Option<usize> {
        let minus = self.waiting.last().copied()?;
        let belongs = matches!(minus.waiting, Pending::Prefix(Prefix::Minus))
            && self.peek() != Some(Kind::Sign("**"));
        belongs.then(|| {
            self.waiting.pop();
            minus.at
        })
    }

    fn number(&mut self, token: Token, value: u64) -> Parsed {
        let minus = self.takes_minus();
        let signed = match minus {
            Some(_) => 0i64.checked_sub_unsigned(value),
            None => i64::try_from(value).ok(),
        };
        let Some(signed) = signed else {
            return failure(token.at, too_big(self.written(token)));
        };
        self.push(Node::Literal(Literal::Int(signed)), minus.unwrap_or(token.at), token.end)
    }

    fn float(&mut self, token: Token, value: f64) -> Parsed {
        // NaN has no sign.
        let minus = if value.is_nan() { None } else { self.takes_minus() };
        let signed = if minus.is_some() { -value } else { value };
        let id = derived_functions::float(&mut self.graph, signed);
        self.push_id(id, minus.unwrap_or(token.at), token.end)
    }

    /// Reads a name where an operand is expected; returns whether one is still expected afterwards.
    fn name(&mut self, token: Token) -> Parsed<bool> {
        let name = self.written(token);
        let Token { at, end, .. } = token;
        let bracket = self.peek();
        match name {
            "not" => {
                if self.waiting.last().is_some_and(|entry| entry.level() > Level::Not) {
                    return failure(at, "'not' binds loosely; put it in brackets with its operand");
                }
                self.push_pending(Pending::Prefix(Prefix::Not), at);
                self.advance()?;
                return Ok(true);
            }
            "if" | "else" | "and" | "or" => return self.missing_operand(),
            "True" | "true" => self.push(Node::Literal(Literal::Bool(true)), at, end)?,
            "False" | "false" => self.push(Node::Literal(Literal::Bool(false)), at, end)?,
            "index" if bracket == Some(Kind::Sign("(")) => return self.enter(Open::Coordinate),
            "index" => self.push(Node::Index, at, end)?,
            _ => {
                if let Some((_, value)) = CONSTANTS.iter().find(|(known, _)| *known == name) {
                    self.float(token, *value)?;
                } else if bracket == Some(Kind::Sign("(")) {
                    let what = self.callee(name, at)?;
                    return self.enter(what);
                } else if bracket == Some(Kind::Sign("[")) {
                    self.advance()?;
                    let input = self.scope.ranked(name, at, self.token.at)?;
                    self.open(Open::Read(input), self.token.at);
                    self.advance()?;
                    return Ok(true);
                } else {
                    match self.scope.value(name, at)? {
                        NameValue::Node(id) => self.push_id(id, at, end)?,
                        NameValue::Input(number) => self.push(Node::Input(number), at, end)?,
                        NameValue::Param(number) => self.push(Node::Param(number), at, end)?,
                    }
                }
            }
        }
        self.advance()?;
        Ok(false)
    }

    /// Continues after the bracket of a call.
    fn enter(&mut self, what: Open) -> Parsed<bool> {
        self.advance()?;
        self.open(what, self.token.at);
        self.advance()?;
        Ok(true)
    }

    /// Returns the function of a name.
    fn callee(&self, name: &str, at: usize) -> Parsed<Open> {
        if let Some(function) = functions::find(name) {
            return Ok(Open::Call(function));
        }
        if let Some(dtype) = DType::ALL.into_iter().find(|dtype| dtype.name() == name) {
            return Ok(Open::Cast(dtype));
        }
        if let Some(what) = self.scope.describe(name) {
            let message =
                format!("'{name}' is {what}, not a function; a product is written {name} * (...)");
            return failure(at, message);
        }
        let known = functions::names().chain(DTYPES).chain(["index"]);
        let hint = match OTHER_NAMES.iter().find(|(other, _)| *other == name) {
            Some((_, here)) => format!("; did you mean '{here}'?"),
            None => did_you_mean(name, known),
        };
        failure(at, format!("unknown function '{}'{hint}", excerpt(name)))
    }
}
