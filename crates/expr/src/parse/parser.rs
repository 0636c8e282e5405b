//! The parser: a stack of operands and a stack of pending operators.

use keyfold_core::Failure;

use super::MAX_NODES;
use super::lex::{Kind, Lexer, Token, failure};
use super::names::{NameScope, refuse_name};
use super::operators::{Level, Open, Pending, StackEntry};
use crate::fold::Constants;
use crate::graph::{Expr, Graph, Id, Node};

/// The highest dimension that `index(d)` takes.
pub(super) const LAST_DIMENSION: i64 = 63;

/// A complete operand and its position in the text.
#[derive(Clone, Copy)]
pub(super) struct ParsedOperand {
    pub(super) id: Id,
    pub(super) at: usize,
    pub(super) end: usize,
}

pub(super) struct Parser<'t> {
    pub(super) text: &'t str,
    lexer: Lexer<'t>,
    pub(super) token: Token,
    /// The previous token; `None` at the start of a statement.
    pub(super) before: Option<Token>,
    pub(super) scope: NameScope,
    pub(super) graph: Graph,
    pub(super) constants: Constants,
    pub(super) waiting: Vec<StackEntry>,
    pub(super) operands: Vec<ParsedOperand>,
    /// The number of open brackets, inside which a line's end is a blank.
    pub(super) open: usize,
}

pub(super) type Parsed<T = ()> = Result<T, Failure>;

impl<'t> Parser<'t> {
    pub(super) fn new(text: &'t str, scope: NameScope) -> Parser<'t> {
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

    /// Parses statements; the last is the result.
    pub(super) fn run(mut self) -> Parsed<Expr> {
        let mut result: Option<(Id, usize)> = None;
        // The last assigned name and its position.
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

    /// Parses up to the end of a statement, which becomes the current token.
    fn expression(&mut self) -> Parsed<Id> {
        loop {
            while self.operand()? {}
            while !self.operator()? {
                if matches!(self.token.kind, Kind::Newline | Kind::End | Kind::Sign(";")) {
                    return self.finish();
                }
            }
        }
    }

    /// Returns the value of a complete statement.
    fn finish(&mut self) -> Parsed<Id> {
        self.reduce(Level::Bracket)?;
        if let Some(open) = self.waiting.last() {
            return failure(open.at, format!("'{}' isn't closed", self.bracket(open.at)));
        }
        let operand = self.operands.pop();
        Ok(operand.map_or(Id(0), |operand| operand.id))
    }

    /// Advances to the next token; inside brackets, line ends are skipped.
    pub(super) fn advance(&mut self) -> Parsed {
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

    /// Returns the kind of the token after the current one, if it is valid.
    pub(super) fn peek(&self) -> Option<Kind> {
        let mut ahead = self.lexer.clone();
        loop {
            match ahead.next().ok()?.kind {
                Kind::Newline if self.open > 0 => {}
                kind => return Some(kind),
            }
        }
    }

    /// Returns the bracket at a position.
    pub(super) fn bracket(&self, at: usize) -> &'t str {
        &self.text[at..=at]
    }

    pub(super) fn push_pending(&mut self, waiting: Pending, at: usize) {
        self.waiting.push(StackEntry { waiting, at });
    }

    pub(super) fn open(&mut self, what: Open, at: usize) {
        self.open += 1;
        self.push_pending(Pending::Open { what, below: self.operands.len() }, at);
    }

    pub(super) fn push(&mut self, node: Node, at: usize, end: usize) -> Parsed {
        let id = self.graph.add(node);
        self.push_id(id, at, end)
    }

    pub(super) fn push_id(&mut self, id: Id, at: usize, end: usize) -> Parsed {
        if self.graph.nodes().len() > MAX_NODES {
            return failure(
                at,
                format!("the expression has more than {MAX_NODES} nodes up to here"),
            );
        }
        self.operands.push(ParsedOperand { id, at, end });
        Ok(())
    }
}
