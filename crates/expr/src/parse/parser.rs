//! The parser: operands and what waits for them on two stacks.

use keyfold_core::{DType, Failure, did_you_mean};

use super::MAX_NODES;
use super::lex::{Kind, Lexer, Token, failure, shown, too_big};
use super::names::{CONSTANTS, Scope, Value, refuse_name};
use super::operators::{Entry, Infix, Level, Open, Prefix, Waiting, infix};
use crate::compose;
use crate::fold::Constants;
use crate::graph::{Expr, Graph, Id, Literal, Node};
use crate::{DTYPES, functions};

/// The highest dimension that `index(d)` takes.
pub(super) const LAST_DIMENSION: i64 = 63;

/// What some know a function as, and its name here.
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

/// A complete operand and the text that it comes from.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    pub(super) id: Id,
    pub(super) at: usize,
    pub(super) end: usize,
}

pub(super) struct Parser<'t> {
    pub(super) text: &'t str,
    lexer: Lexer<'t>,
    pub(super) token: Token,
    /// The token before, none at the start of a statement.
    before: Option<Token>,
    pub(super) scope: Scope,
    pub(super) graph: Graph,
    pub(super) constants: Constants,
    pub(super) waiting: Vec<Entry>,
    pub(super) operands: Vec<Operand>,
    /// Brackets that are open: inside them a line's end is a blank.
    pub(super) open: usize,
}

pub(super) type Step<T = ()> = Result<T, Failure>;

impl<'t> Parser<'t> {
    pub(super) fn new(text: &'t str, scope: Scope) -> Parser<'t> {
        Parser {
            text,
            lexer: Lexer::new(text),
            token: Token { kind: Kind::Newline, at: 0, end: 0 },
            before: None,
            scope,
            graph: Graph::default(),
            constants: Constants::default(),
            waiting: Vec::new(),
            operands: Vec::new(),
            open: 0,
        }
    }

    /// Reads statements; the last is the result.
    pub(super) fn run(mut self) -> Step<Expr> {
        let mut result: Option<(Id, usize)> = None;
        // The last name that was given, and where.
        let mut named: Option<(&str, usize)> = None;
        loop {
            self.advance()?;
            while matches!(self.token.kind, Kind::Newline | Kind::Sign(";")) {
                self.advance()?;
            }
            self.before = None;
            if self.token.kind == Kind::End {
                break;
            }
            if let Some((_, at)) = result {
                return failure(
                    at,
                    "this value isn't used: give it a name, 'name = ...', or go on inside brackets",
                );
            }
            let start = self.token.at;
            if self.token.kind == Kind::Name && self.peek() == Some(Kind::Sign("=")) {
                let name = self.written(self.token);
                if let Some(why) = refuse_name(name) {
                    return failure(start, format!("{why}; to compare write '=='"));
                }
                self.advance()?;
                self.advance()?;
                let value = self.expression()?;
                self.scope.assign(name, value, start)?;
                named = Some((name, start));
            } else {
                result = Some((self.expression()?, start));
            }
            if self.token.kind == Kind::End {
                break;
            }
        }
        let Some((root, _)) = result else {
            return match named {
                Some((name, at)) => failure(
                    at,
                    format!(
                        "the last line is the result, which has no name; remove '{name} =' (to compare \
                         write '==')"
                    ),
                ),
                None => failure(self.text.len(), "an expression is missing: the text is empty"),
            };
        };
        self.scope.check_used()?;
        let (inputs, params) = self.scope.into_parts();
        Ok(Expr::new(&self.graph, root, inputs, params))
    }

    fn advance(&mut self) -> Step {
        self.before = Some(self.token);
        self.token = self.lexer.next()?;
        Ok(())
    }

    fn written(&self, token: Token) -> &'t str {
        &self.text[token.at..token.end]
    }

    /// What follows the current token, as far as it is a token.
    fn peek(&self) -> Option<Kind> {
        let mut ahead = self.lexer.clone();
        loop {
            match ahead.next().ok()?.kind {
                Kind::Newline if self.open > 0 => {}
                kind => return Some(kind),
            }
        }
    }

    /// Reads up to the end of a statement, which becomes the current token.
    fn expression(&mut self) -> Step<Id> {
        loop {
            while self.operand()? {}
            while !self.operator()? {
                if matches!(self.token.kind, Kind::Newline | Kind::End | Kind::Sign(";")) {
                    return self.finish();
                }
            }
        }
    }

    /// The value of a statement that is complete.
    fn finish(&mut self) -> Step<Id> {
        self.reduce(Level::Bracket)?;
        if let Some(open) = self.waiting.last() {
            return failure(open.at, format!("'{}' isn't closed", self.bracket(open.at)));
        }
        let operand = self.operands.pop();
        Ok(operand.map_or(Id(0), |operand| operand.id))
    }

    /// The bracket at a place.
    pub(super) fn bracket(&self, at: usize) -> &'t str {
        &self.text[at..=at]
    }

    /// Reads where an operand is expected; whether it still is afterwards.
    fn operand(&mut self) -> Step<bool> {
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
            Kind::Sign("-") => self.wait(Waiting::Prefix(Prefix::Minus), token.at),
            Kind::Sign("+") => self.wait(Waiting::Prefix(Prefix::Plus), token.at),
            Kind::Sign("~") => self.wait(Waiting::Prefix(Prefix::Invert), token.at),
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

    /// Whether the bracket of a call or of indices has nothing in it yet.
    fn just_opened(&self) -> bool {
        let after_bracket =
            self.before.is_some_and(|token| matches!(token.kind, Kind::Sign("(" | "[")));
        let top = self.waiting.last().map(|entry| entry.waiting);
        after_bracket
            && matches!(top, Some(Waiting::Open { what, .. }) if !matches!(what, Open::Group))
    }

    fn missing_operand<T>(&self) -> Step<T> {
        let before = self.before.filter(|token| token.kind != Kind::Newline);
        let after = before.map(|token| format!(" after '{}'", shown(self.written(token))));
        let message = match (self.token.kind, after) {
            (Kind::Sign("="), _) => return self.equals_sign(),
            (Kind::End | Kind::Newline | Kind::Sign(";"), Some(after)) => {
                format!("a value is missing{after}")
            }
            (Kind::Sign(sign @ (")" | "]")), None) => format!("'{sign}' without an open bracket"),
            (Kind::Sign(")"), Some(_)) if self.open == 0 => "')' without an open bracket".into(),
            (_, Some(after)) => {
                format!("a value is missing{after}, found '{}'", shown(self.written(self.token)))
            }
            (_, None) => {
                format!("a value is missing before '{}'", shown(self.written(self.token)))
            }
        };
        failure(self.token.at, message)
    }

    fn equals_sign<T>(&self) -> Step<T> {
        failure(
            self.token.at,
            "'=' gives a name at the start of a line, 'name = value'; to compare write '=='",
        )
    }

    fn wait(&mut self, waiting: Waiting, at: usize) {
        self.waiting.push(Entry { waiting, at });
    }

    fn open(&mut self, what: Open, at: usize) {
        self.open += 1;
        self.wait(Waiting::Open { what, below: self.operands.len() }, at);
    }

    pub(super) fn push(&mut self, node: Node, at: usize, end: usize) -> Step {
        let id = self.graph.add(node);
        self.push_id(id, at, end)
    }

    pub(super) fn push_id(&mut self, id: Id, at: usize, end: usize) -> Step {
        if self.graph.nodes().len() > MAX_NODES {
            return failure(
                at,
                format!("the expression has more than {MAX_NODES} nodes up to here"),
            );
        }
        self.operands.push(Operand { id, at, end });
        Ok(())
    }

    /// Takes the minus sign before a number, which is a part of it; but `-2 ** 2` is `-(2 ** 2)`.
    fn takes_minus(&mut self) -> Option<usize> {
        let minus = self.waiting.last().copied()?;
        let belongs = matches!(minus.waiting, Waiting::Prefix(Prefix::Minus))
            && self.peek() != Some(Kind::Sign("**"));
        belongs.then(|| {
            self.waiting.pop();
            minus.at
        })
    }

    fn number(&mut self, token: Token, value: u64) -> Step {
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

    fn float(&mut self, token: Token, value: f64) -> Step {
        // There is one NaN, without a sign.
        let minus = if value.is_nan() { None } else { self.takes_minus() };
        let signed = if minus.is_some() { -value } else { value };
        let id = compose::float(&mut self.graph, signed);
        self.push_id(id, minus.unwrap_or(token.at), token.end)
    }

    /// Reads a name where an operand is expected; whether one still is afterwards.
    fn name(&mut self, token: Token) -> Step<bool> {
        let name = self.written(token);
        let Token { at, end, .. } = token;
        let bracket = self.peek();
        match name {
            "not" => {
                if self.waiting.last().is_some_and(|entry| entry.level() > Level::Not) {
                    return failure(at, "'not' binds loosely; put it in brackets with its operand");
                }
                self.wait(Waiting::Prefix(Prefix::Not), at);
                self.advance()?;
                return Ok(true);
            }
            "if" | "else" | "and" | "or" => return self.missing_operand(),
            "True" | "true" => self.push(Node::Literal(Literal::Bool(true)), at, end)?,
            "False" | "false" => self.push(Node::Literal(Literal::Bool(false)), at, end)?,
            "index" if bracket == Some(Kind::Sign("(")) => return self.enter(Open::Place),
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
                        Value::Node(id) => self.push_id(id, at, end)?,
                        Value::Input(number) => self.push(Node::Input(number), at, end)?,
                        Value::Param(number) => self.push(Node::Param(number), at, end)?,
                    }
                }
            }
        }
        self.advance()?;
        Ok(false)
    }

    /// Goes on behind the bracket of a call.
    fn enter(&mut self, what: Open) -> Step<bool> {
        self.advance()?;
        self.open(what, self.token.at);
        self.advance()?;
        Ok(true)
    }

    /// What is called by a name.
    fn callee(&self, name: &str, at: usize) -> Step<Open> {
        if let Some(function) = functions::find(name) {
            return Ok(Open::Call(function));
        }
        if let Some(dtype) = DType::ALL.into_iter().find(|dtype| dtype.name() == name) {
            return Ok(Open::Cast(dtype));
        }
        if let Some(what) = self.scope.what(name) {
            let message =
                format!("'{name}' is {what}, not a function; a product is written {name} * (...)");
            return failure(at, message);
        }
        let known = functions::names().chain(DTYPES).chain(["index"]);
        let hint = match OTHER_NAMES.iter().find(|(other, _)| *other == name) {
            Some((_, here)) => format!("; did you mean '{here}'?"),
            None => did_you_mean(name, known),
        };
        failure(at, format!("unknown function '{}'{hint}", shown(name)))
    }

    /// Reads behind an operand; whether another operand is expected afterwards. At the end of a
    /// statement it stays there.
    fn operator(&mut self) -> Step<bool> {
        let token = self.token;
        let written = self.written(token);
        match token.kind {
            Kind::Newline if self.open > 0 => {
                self.advance()?;
                return Ok(false);
            }
            Kind::Newline | Kind::End | Kind::Sign(";") => return Ok(false),
            Kind::Sign("=") => return self.equals_sign(),
            Kind::Sign(sign @ (")" | "]")) => {
                self.close(sign)?;
                self.advance()?;
                return Ok(false);
            }
            Kind::Sign(",") => self.comma()?,
            Kind::Sign(_) | Kind::Name if infix(written).is_some() => {
                let Some((op, level)) = infix(written) else { return Ok(false) };
                self.infix(op, level, token.at)?;
            }
            Kind::Name if written == "if" => {
                self.reduce(Level::Choice)?;
                self.wait(Waiting::If, token.at);
            }
            Kind::Name if written == "else" => self.otherwise(token.at)?,
            _ => return self.missing_operator(),
        }
        self.advance()?;
        Ok(true)
    }

    fn missing_operator<T>(&self) -> Step<T> {
        let found = shown(self.written(self.token));
        let before = self.operands.last().map_or("", |o| &self.text[o.at..o.end]);
        let message = match self.token.kind {
            Kind::Sign("[") => format!(
                "only a ranked input has indices, not '{}'; a list has no meaning here",
                shown(before)
            ),
            Kind::Sign("(") | Kind::Int(_) | Kind::Float(_) | Kind::Name
                if !matches!(found.as_str(), "not" | "in" | "is" | "for" | "xor") =>
            {
                format!(
                    "an operator is missing between '{}' and '{found}'; a product is written with '*'",
                    shown(before)
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

    fn infix(&mut self, op: Infix, level: Level, at: usize) -> Step {
        match (op, level) {
            (Infix::Binary(comparison), Level::Comparison) => {
                self.reduce(Level::Comparison)?;
                let mut before = None;
                if let Some(Entry { waiting: Waiting::Comparison(..), .. }) = self.waiting.last() {
                    // a < b < c: the one before is complete, and its right operand is used again.
                    let shared = self.operands.last().copied();
                    self.apply()?;
                    before = self.operands.pop().map(|operand| operand.id);
                    self.operands.extend(shared);
                }
                self.wait(Waiting::Comparison(comparison, before), at);
            }
            // The one from the right: what waits on the same level stays.
            (_, Level::Power) => {
                self.reduce(level)?;
                self.wait(Waiting::Infix(op, level), at);
            }
            _ => {
                self.reduce(level)?;
                while self.waiting.last().is_some_and(|entry| entry.level() == level) {
                    self.apply()?;
                }
                self.wait(Waiting::Infix(op, level), at);
            }
        }
        Ok(())
    }

    fn otherwise(&mut self, at: usize) -> Step {
        self.reduce(Level::Choice)?;
        while matches!(self.waiting.last(), Some(Entry { waiting: Waiting::Else, .. })) {
            self.apply()?;
        }
        match self.waiting.last_mut() {
            Some(entry @ Entry { waiting: Waiting::If, .. }) => {
                *entry = Entry { waiting: Waiting::Else, at };
                Ok(())
            }
            _ => failure(at, "'else' without 'if'; a choice is written 'a if condition else b'"),
        }
    }
}
