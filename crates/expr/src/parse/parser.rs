//! The parser: operands and what waits for them on two stacks.

use keyfold_core::Failure;

use super::MAX_NODES;
use super::lex::{Kind, Lexer, Token, failure};
use super::names::{Scope, refuse_name};
use super::operators::{Entry, Level, Open, Waiting};
use crate::fold::Constants;
use crate::graph::{Expr, Graph, Id, Node};

/// The highest dimension that `index(d)` takes.
pub(super) const LAST_DIMENSION: i64 = 63;

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
    pub(super) before: Option<Token>,
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

    /// Goes on to the next token; inside brackets to the next that isn't a line's end.
    pub(super) fn advance(&mut self) -> Step {
        self.before = Some(self.token);
        loop {
            self.token = self.lexer.next()?;
            if self.open == 0 || self.token.kind != Kind::Newline {
                return Ok(());
            }
        }
    }

    pub(super) fn written(&self, token: Token) -> &'t str {
        &self.text[token.at..token.end]
    }

    /// What follows the current token, as far as it is a token.
    pub(super) fn peek(&self) -> Option<Kind> {
        let mut ahead = self.lexer.clone();
        loop {
            match ahead.next().ok()?.kind {
                Kind::Newline if self.open > 0 => {}
                kind => return Some(kind),
            }
        }
    }

    /// The bracket at a place.
    pub(super) fn bracket(&self, at: usize) -> &'t str {
        &self.text[at..=at]
    }

    pub(super) fn wait(&mut self, waiting: Waiting, at: usize) {
        self.waiting.push(Entry { waiting, at });
    }

    pub(super) fn open(&mut self, what: Open, at: usize) {
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
}
