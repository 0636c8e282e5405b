//! Reductions of the parser's stack: operators with their operands, and closing brackets.

use super::lex::{excerpt, failure};
use super::operators::{Infix, Level, Open, Pending, Prefix, StackEntry};
use super::parser::{LAST_DIMENSION, Parsed, ParsedOperand, Parser};
use crate::derived_functions;
use crate::graph::{Binary, Id, Literal, Node, Unary};

impl Parser<'_> {
    /// Reduces all operators that bind tighter than a level.
    pub(super) fn reduce(&mut self, level: Level) -> Parsed {
        while self.waiting.last().is_some_and(|entry| entry.level() > level) {
            self.apply()?;
        }
        Ok(())
    }

    pub(super) fn comma(&mut self) -> Parsed {
        self.reduce(Level::Bracket)?;
        match self.waiting.last().map(|entry| entry.waiting) {
            Some(Pending::Open { what, .. }) if !matches!(what, Open::Group) => Ok(()),
            Some(_) => failure(
                self.token.at,
                "a comma has no meaning between these brackets; only calls and indices have several \
                 values",
            ),
            None => failure(self.token.at, "an expression is one value; ',' has no meaning here"),
        }
    }

    /// Closes the innermost bracket.
    pub(super) fn close(&mut self, sign: &str) -> Parsed {
        // An empty bracket has nothing to reduce.
        self.reduce(Level::Bracket)?;
        let token = self.token;
        let Some(StackEntry { waiting: Pending::Open { what, below }, at }) = self.waiting.pop()
        else {
            return failure(token.at, format!("'{sign}' without an open bracket"));
        };
        let right = if matches!(what, Open::Read(_)) { "]" } else { ")" };
        if sign != right {
            let opened = self.bracket(at);
            return failure(token.at, format!("'{opened}' is closed by '{right}', found '{sign}'"));
        }
        self.open -= 1;
        let arguments: Vec<ParsedOperand> = self.operands.drain(below..).collect();
        let ids: Vec<Id> = arguments.iter().map(|argument| argument.id).collect();
        let start = self.name_before(at);
        match (what, arguments.as_slice()) {
            (Open::Group, _) => {
                // One operand, whose text now extends from bracket to bracket.
                self.operands.extend(ids.iter().map(|id| ParsedOperand {
                    id: *id,
                    at,
                    end: token.end,
                }));
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
            (Open::Coordinate, [dimension]) => {
                let node = self.coordinate(*dimension)?;
                self.push(node, start, token.end)
            }
            (Open::Coordinate, _) => self.wrong_count(start, "index(d)", "1 argument", ids.len()),
            (Open::Read(_), []) => failure(token.at, "an index is missing between the brackets"),
            (Open::Read(input), _) => {
                self.scope.set_rank(input, ids.len() as u32, start)?;
                self.push(Node::At { input, indices: ids.into() }, start, token.end)
            }
        }
    }

    /// Returns where the name before an open bracket begins.
    fn name_before(&self, bracket: usize) -> usize {
        let before = self.text[..bracket].trim_end();
        let name = before.trim_end_matches(|c: char| c == '_' || c.is_alphanumeric());
        // Grouping brackets follow an operator or nothing.
        if name.len() == before.len() { bracket } else { name.len() }
    }

    fn wrong_count<T>(&self, at: usize, call: &str, takes: &str, given: usize) -> Parsed<T> {
        let given = if given == 0 { "none".into() } else { given.to_string() };
        failure(at, format!("{call} takes {takes}, {given} given"))
    }

    /// Returns the node of `index(d)`.
    fn coordinate(&mut self, dimension: ParsedOperand) -> Parsed<Node> {
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

    /// Reduces the top of the stack.
    pub(super) fn apply(&mut self) -> Parsed {
        let Some(entry) = self.waiting.pop() else { return Ok(()) };
        let Some(last) = self.operands.pop() else { return Ok(()) };
        let end = last.end;
        match entry.waiting {
            Pending::Prefix(prefix) => {
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
            Pending::Infix(op, _) => {
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
            Pending::Comparison(op, before) => {
                let Some(first) = self.operands.pop() else { return Ok(()) };
                let mut id = derived_functions::binary(&mut self.graph, op, first.id, last.id);
                if let Some(before) = before {
                    id = derived_functions::binary(&mut self.graph, Binary::And, before, id);
                }
                self.push_id(id, first.at, end)
            }
            Pending::If => failure(
                entry.at,
                "'if' without 'else'; a choice is written 'a if condition else b'",
            ),
            Pending::Else => {
                let (Some(condition), Some(first)) = (self.operands.pop(), self.operands.pop())
                else {
                    return Ok(());
                };
                let node = Node::Where(condition.id, first.id, last.id);
                self.push(node, first.at, end)
            }
            // `close` removes brackets, not this function.
            Pending::Open { .. } => Ok(()),
        }
    }

    fn binary(&mut self, op: Binary, a: ParsedOperand, b: ParsedOperand, at: usize) -> Parsed<Id> {
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

    /// Refuses a divisor that is zero, as a literal or a constant expression.
    fn refuse_zero(&mut self, divisor: ParsedOperand, sign: &str) -> Parsed {
        let zero = match self.constants.of(&self.graph, divisor.id) {
            Some(Literal::Bool(value)) => !value,
            Some(Literal::Int(value)) => value == 0,
            Some(Literal::Float(bits)) => f64::from_bits(bits) == 0.0,
            None => false,
        };
        if !zero {
            return Ok(());
        }
        let written = excerpt(&self.text[divisor.at..divisor.end]);
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

    /// Refuses a float operand of a bitwise operation.
    fn refuse_float(&mut self, operands: &[ParsedOperand], sign: &str, at: usize) -> Parsed {
        for operand in operands {
            if matches!(self.constants.of(&self.graph, operand.id), Some(Literal::Float(_))) {
                let written = excerpt(&self.text[operand.at..operand.end]);
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
