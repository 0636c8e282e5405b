//! Parsing after an operand: operators, commas, closing brackets.

use super::lex::{Kind, failure};
use super::operators::{Infix, Level, Pending, StackEntry, infix};
use super::parser::{Parsed, Parser};

impl Parser<'_> {
    /// Reads the token after an operand; returns whether another operand must follow. Stops at the
    /// end of a statement.
    pub(super) fn operator(&mut self) -> Parsed<bool> {
        let token = self.token;
        let written = self.written(token);
        match token.kind {
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
                self.push_pending(Pending::If, token.at);
            }
            Kind::Name if written == "else" => self.otherwise(token.at)?,
            _ => return self.missing_operator(),
        }
        self.advance()?;
        Ok(true)
    }

    fn infix(&mut self, op: Infix, level: Level, at: usize) -> Parsed {
        match (op, level) {
            (Infix::Binary(comparison), Level::Comparison) => {
                self.reduce(Level::Comparison)?;
                let mut before = None;
                if let Some(StackEntry { waiting: Pending::Comparison(..), .. }) =
                    self.waiting.last()
                {
                    // a < b < c: the comparison before is complete, and its right operand is used
                    // again.
                    let shared = self.operands.last().copied();
                    self.apply()?;
                    before = self.operands.pop().map(|operand| operand.id);
                    self.operands.extend(shared);
                }
                self.push_pending(Pending::Comparison(comparison, before), at);
            }
            // Right-associative: pending operators of the same level stay.
            (_, Level::Power) => {
                self.reduce(level)?;
                self.push_pending(Pending::Infix(op, level), at);
            }
            _ => {
                self.reduce(level)?;
                while self.waiting.last().is_some_and(|entry| entry.level() == level) {
                    self.apply()?;
                }
                self.push_pending(Pending::Infix(op, level), at);
            }
        }
        Ok(())
    }

    fn otherwise(&mut self, at: usize) -> Parsed {
        self.reduce(Level::Choice)?;
        while matches!(self.waiting.last(), Some(StackEntry { waiting: Pending::Else, .. })) {
            self.apply()?;
        }
        match self.waiting.last_mut() {
            Some(entry @ StackEntry { waiting: Pending::If, .. }) => {
                *entry = StackEntry { waiting: Pending::Else, at };
                Ok(())
            }
            _ => failure(at, "'else' without 'if'; a choice is written 'a if condition else b'"),
        }
    }
}
