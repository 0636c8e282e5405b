//! What is read behind an operand: operators, commas, brackets that close.

use super::lex::{Kind, failure};
use super::operators::{Entry, Infix, Level, Waiting, infix};
use super::parser::{Parser, Step};

impl Parser<'_> {
    /// Reads behind an operand; whether another operand is expected afterwards. At the end of a
    /// statement it stays there.
    pub(super) fn operator(&mut self) -> Step<bool> {
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
                self.wait(Waiting::If, token.at);
            }
            Kind::Name if written == "else" => self.otherwise(token.at)?,
            _ => return self.missing_operator(),
        }
        self.advance()?;
        Ok(true)
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
