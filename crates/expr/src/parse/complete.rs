//! Completing what waits: operators that have their operands, brackets that close.

use super::lex::{failure, shown};
use super::operators::{Entry, Infix, Level, Open, Prefix, Waiting};
use super::parser::{LAST_DIMENSION, Operand, Parser, Step};
use crate::derived_functions;
use crate::graph::{Binary, Id, Literal, Node, Unary};

impl Parser<'_> {
    /// Completes what binds tighter than a level.
    pub(super) fn reduce(&mut self, level: Level) -> Step {
        while self.waiting.last().is_some_and(|entry| entry.level() > level) {
            self.apply()?;
        }
        Ok(())
    }

    pub(super) fn comma(&mut self) -> Step {
        self.reduce(Level::Bracket)?;
        match self.waiting.last().map(|entry| entry.waiting) {
            Some(Waiting::Open { what, .. }) if !matches!(what, Open::Group) => Ok(()),
            Some(_) => failure(
                self.token.at,
                "a comma has no meaning between these brackets; only calls and indices have several \
                 values",
            ),
            None => failure(self.token.at, "an expression is one value; ',' has no meaning here"),
        }
    }

    /// Closes the innermost bracket.
    pub(super) fn close(&mut self, sign: &str) -> Step {
        // A bracket that is empty has nothing to complete.
        self.reduce(Level::Bracket)?;
        let token = self.token;
        let Some(Entry { waiting: Waiting::Open { what, below }, at }) = self.waiting.pop() else {
            return failure(token.at, format!("'{sign}' without an open bracket"));
        };
        let right = if matches!(what, Open::Read(_)) { "]" } else { ")" };
        if sign != right {
            let opened = self.bracket(at);
            return failure(token.at, format!("'{opened}' is closed by '{right}', found '{sign}'"));
        }
        self.open -= 1;
        let arguments: Vec<Operand> = self.operands.drain(below..).collect();
        let ids: Vec<Id> = arguments.iter().map(|argument| argument.id).collect();
        let start = self.name_before(at);
        match (what, arguments.as_slice()) {
            (Open::Group, _) => {
                // One operand, which now reaches from bracket to bracket.
                self.operands.extend(ids.iter().map(|id| Operand { id: *id, at, end: token.end }));
                Ok(())
            }
            (Open::Call(function), _) => match function.apply(&mut self.graph, &ids) {
                Some(id) => {
                    if matches!(
                        function.name,
                        "div" | "divide" | "true_divide" | "floor_divide" | "remainder" | "mod"
                    ) {
                        self.refuse_zero(arguments[1], function.name)?;
                    }
                    self.push_id(id, start, token.end)
                }
                None => self.wrong_count(start, &function.call(), function.takes(), ids.len()),
            },
            (Open::Cast(dtype), [x]) => self.push(Node::Cast(dtype, x.id), start, token.end),
            (Open::Cast(dtype), _) => {
                self.wrong_count(start, &format!("{dtype}(x)"), "1 argument", ids.len())
            }
            (Open::Place, [dimension]) => {
                let node = self.coordinate(*dimension)?;
                self.push(node, start, token.end)
            }
            (Open::Place, _) => self.wrong_count(start, "index(d)", "1 argument", ids.len()),
            (Open::Read(_), []) => failure(token.at, "an index is missing between the brackets"),
            (Open::Read(input), _) => {
                self.scope.set_rank(input, ids.len() as u32, start)?;
                self.push(Node::At { input, indices: ids.into() }, start, token.end)
            }
        }
    }

    /// Where the name before an open bracket begins.
    fn name_before(&self, bracket: usize) -> usize {
        let before = self.text[..bracket].trim_end();
        let name = before.trim_end_matches(|c: char| c == '_' || c.is_alphanumeric());
        // Brackets that group have an operator or nothing before them.
        if name.len() == before.len() { bracket } else { name.len() }
    }

    fn wrong_count<T>(&self, at: usize, call: &str, takes: &str, given: usize) -> Step<T> {
        let given = if given == 0 { "none".into() } else { given.to_string() };
        failure(at, format!("{call} takes {takes}, {given} given"))
    }

    /// The node of `index(d)`.
    fn coordinate(&mut self, dimension: Operand) -> Step<Node> {
        match self.constants.of(&self.graph, dimension.id) {
            Some(Literal::Int(d)) if (0..=LAST_DIMENSION).contains(&d) => {
                Ok(Node::Coordinate(d as u32))
            }
            Some(Literal::Int(d)) => failure(
                dimension.at,
                format!(
                    "the dimension of index(d) is {d}; it is counted from the last, which is 0, up \
                     to {LAST_DIMENSION}"
                ),
            ),
            _ => failure(
                dimension.at,
                "the dimension of index(d) has to be a whole number written out, counted from the \
                 last: index(0)",
            ),
        }
    }

    /// Completes what waits on top of the stack.
    pub(super) fn apply(&mut self) -> Step {
        let Some(entry) = self.waiting.pop() else { return Ok(()) };
        let Some(last) = self.operands.pop() else { return Ok(()) };
        let end = last.end;
        match entry.waiting {
            Waiting::Prefix(prefix) => {
                let id = match prefix {
                    Prefix::Plus => last.id,
                    Prefix::Minus => derived_functions::unary(&mut self.graph, Unary::Neg, last.id),
                    Prefix::Invert => {
                        self.refuse_float(&[last], "~", entry.at)?;
                        derived_functions::unary(&mut self.graph, Unary::Not, last.id)
                    }
                    Prefix::Not => derived_functions::logical_not(&mut self.graph, last.id),
                };
                self.push_id(id, entry.at, end)
            }
            Waiting::Infix(op, _) => {
                let Some(first) = self.operands.pop() else { return Ok(()) };
                let id = match op {
                    Infix::Binary(op) => self.binary(op, first, last, entry.at)?,
                    Infix::And => {
                        derived_functions::logical(&mut self.graph, Binary::And, first.id, last.id)
                    }
                    Infix::Or => {
                        derived_functions::logical(&mut self.graph, Binary::Or, first.id, last.id)
                    }
                };
                self.push_id(id, first.at, end)
            }
            Waiting::Comparison(op, before) => {
                let Some(first) = self.operands.pop() else { return Ok(()) };
                let mut id = derived_functions::binary(&mut self.graph, op, first.id, last.id);
                if let Some(before) = before {
                    id = derived_functions::binary(&mut self.graph, Binary::And, before, id);
                }
                self.push_id(id, first.at, end)
            }
            Waiting::If => failure(
                entry.at,
                "'if' without 'else'; a choice is written 'a if condition else b'",
            ),
            Waiting::Else => {
                let (Some(condition), Some(first)) = (self.operands.pop(), self.operands.pop())
                else {
                    return Ok(());
                };
                let node = Node::Where(condition.id, first.id, last.id);
                self.push(node, first.at, end)
            }
            // Brackets are closed, not completed.
            Waiting::Open { .. } => Ok(()),
        }
    }

    fn binary(&mut self, op: Binary, a: Operand, b: Operand, at: usize) -> Step<Id> {
        match op {
            Binary::Div => self.refuse_zero(b, "/")?,
            Binary::FloorDiv => self.refuse_zero(b, "//")?,
            Binary::Mod => self.refuse_zero(b, "%")?,
            Binary::And => self.refuse_float(&[a, b], "&", at)?,
            Binary::Or => self.refuse_float(&[a, b], "|", at)?,
            Binary::Xor => self.refuse_float(&[a, b], "^", at)?,
            Binary::Shl => self.refuse_float(&[a, b], "<<", at)?,
            Binary::Shr => self.refuse_float(&[a, b], ">>", at)?,
            _ => {}
        }
        Ok(derived_functions::binary(&mut self.graph, op, a.id, b.id))
    }

    /// A divisor that is zero, written out or as numbers that make it.
    fn refuse_zero(&mut self, divisor: Operand, sign: &str) -> Step {
        let zero = match self.constants.of(&self.graph, divisor.id) {
            Some(Literal::Bool(value)) => !value,
            Some(Literal::Int(value)) => value == 0,
            Some(Literal::Float(bits)) => f64::from_bits(bits) == 0.0,
            None => false,
        };
        if !zero {
            return Ok(());
        }
        let written = shown(&self.text[divisor.at..divisor.end]);
        let is = if written == "0" { String::new() } else { format!(": '{written}' is 0") };
        let message = match sign {
            "/" | "div" | "divide" | "true_divide" => {
                format!("division by zero{is}; write inf or nan where that is meant")
            }
            _ => format!(
                "'{sign}' by zero{is}; of whole numbers the result would be 0, of floats nan: write that"
            ),
        };
        failure(divisor.at, message)
    }

    /// A float where there are bits to work on.
    fn refuse_float(&mut self, operands: &[Operand], sign: &str, at: usize) -> Step {
        for operand in operands {
            if matches!(self.constants.of(&self.graph, operand.id), Some(Literal::Float(_))) {
                let written = shown(&self.text[operand.at..operand.end]);
                let hint = if sign == "^" { "; a power is written with '**'" } else { "" };
                return failure(
                    at,
                    format!(
                        "'{sign}' works on the bits of whole numbers, '{written}' is a float{hint}"
                    ),
                );
            }
        }
        Ok(())
    }
}
