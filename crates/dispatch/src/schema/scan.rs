//! The scanner: blanks, names, numbers, strings, and descriptions of unexpected text.

use std::str::CharIndices;

use super::types::Literal;
use keyfold_core::Failure;

pub(super) type Parsed<T> = std::result::Result<T, Failure>;

/// The longest name, since messages quote names in full.
const LONGEST_NAME: usize = 255;

/// The text and the position, which is always at a character boundary.
pub(super) struct Scanner<'t> {
    pub(super) text: &'t str,
    pub(super) at: usize,
}

impl<'t> Scanner<'t> {
    /// Reads an identifier: ASCII letters, digits and `_`, not starting with a digit.
    pub(super) fn ident(&mut self, expected: &str) -> Parsed<&'t str> {
        let at = self.at;
        let text = self.run(|c| c.is_alphanumeric() || c == '_');
        let Some(first) = text.chars().next() else { return Err(self.expected(expected)) };
        if first.is_ascii_digit() || !text.is_ascii() {
            let message = format!(
                "expected {expected}, found `{}`: a name has ASCII letters, digits and `_`, and \
                 starts with no digit",
                short(text)
            );
            return Err(Failure { at, message });
        }
        if text.len() > LONGEST_NAME {
            let message = format!("a name of {} characters: at most {LONGEST_NAME}", text.len());
            return Err(Failure { at, message });
        }
        Ok(text)
    }

    /// Reads the longest run of characters that `belongs` accepts.
    pub(super) fn run(&mut self, mut belongs: impl FnMut(char) -> bool) -> &'t str {
        let rest = &self.text[self.at..];
        let end = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    pub(super) fn blanks(&mut self) {
        self.run(|c| c.is_ascii_whitespace());
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    /// Returns whether `c` is next.
    pub(super) fn next_is(&self, c: char) -> bool {
        self.peek() == Some(c)
    }

    /// Returns whether `c` is next after blanks.
    pub(super) fn sees(&self, c: char) -> bool {
        self.text[self.at..].trim_ascii_start().starts_with(c)
    }

    /// Skips blanks, and `token` if it comes next; returns whether it did.
    pub(super) fn eat(&mut self, token: &str) -> bool {
        self.blanks();
        let found = self.text[self.at..].starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    pub(super) fn end(&mut self, expected: &str) -> Parsed<()> {
        self.blanks();
        if self.at == self.text.len() { Ok(()) } else { Err(self.expected(expected)) }
    }

    pub(super) fn number(&mut self) -> Parsed<Literal> {
        let at = self.at;
        // All characters that could belong to a number, so that an error quotes it whole.
        let mut last = ' ';
        let text = self.run(|c| {
            let signs = c == '-' || c == '+';
            let exponent = matches!(last, 'e' | 'E' | ' ');
            last = c;
            c.is_ascii_alphanumeric() || c == '.' || c == '_' || (signs && exponent)
        });
        let fail = |message: String| Err(Failure { at, message });
        if text == "-inf" {
            return Ok(Literal::Float(f64::NEG_INFINITY));
        }
        let digits = text.strip_prefix('-').unwrap_or(text);
        if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
            return match text.parse::<i64>() {
                Ok(value) => Ok(Literal::Int(value)),
                Err(_) => fail(format!(
                    "{} is out of range: whole numbers go from {} to {}",
                    short(text),
                    i64::MIN,
                    i64::MAX
                )),
            };
        }
        // Rust's parser accepts exactly these forms, and the names of infinity and NaN.
        let value = match digits.bytes().next() {
            Some(b'0'..=b'9' | b'.') => text.parse::<f64>().ok(),
            _ => None,
        };
        match value {
            Some(value) if value.is_finite() => Ok(Literal::Float(value)),
            Some(_) => fail(format!("{} is out of range for a float; write inf", short(text))),
            None => fail(format!("`{}` isn't a number such as 1, -2 or 1e-5", short(text))),
        }
    }

    /// Reads a string in `"` or `'`, with Python's usual escapes.
    pub(super) fn string(&mut self) -> Parsed<Literal> {
        let opened = self.at;
        let rest = &self.text[opened..];
        let mut chars = rest.char_indices();
        let quote = chars.next().map_or('"', |(_, c)| c);
        let mut value = String::new();
        while let Some((offset, c)) = chars.next() {
            match c {
                '\n' | '\r' => break,
                '\\' => match escape(&mut chars) {
                    Some(c) => value.push(c),
                    None => {
                        let message = "an unknown escape: expected \\n, \\r, \\t, \\0, \\\\, \\\", \\', \
                                       \\x and 2 hexadecimal digits, or \\u and 4";
                        return Err(Failure { at: opened + offset, message: message.into() });
                    }
                },
                c if c == quote => {
                    self.at = opened + offset + 1;
                    return Ok(Literal::Str(value));
                }
                c => value.push(c),
            }
        }
        let message = format!("a string isn't closed: expected `{quote}` on the same line");
        Err(Failure { at: opened, message })
    }

    pub(super) fn failure(&self, message: &str) -> Failure {
        Failure { at: self.at, message: message.to_owned() }
    }

    #[cold]
    pub(super) fn expected(&self, what: &str) -> Failure {
        self.failure(&format!("expected {what}, found {}", self.found()))
    }

    /// Returns the error for an element of a sequence that neither a comma nor the end follows.
    #[cold]
    pub(super) fn unfinished(&self, opened: usize, after: &str) -> Failure {
        let open = &self.text[opened..=opened];
        let close = if open == "[" { "]" } else { ")" };
        let never = match self.peek() {
            None => {
                let column = self.text[..opened].chars().count() + 1;
                format!("; the `{open}` at character {column} isn't closed")
            }
            Some(_) => String::new(),
        };
        self.failure(&format!(
            "expected `,` or `{close}` after {}, found {}{never}",
            after,
            self.found()
        ))
    }

    /// Describes the text at the position.
    pub(super) fn found(&self) -> String {
        let rest = &self.text[self.at..];
        match rest.chars().next() {
            None => "the end of the text".into(),
            Some('"' | '\'') => "a string".into(),
            Some('-') if rest.starts_with("->") => "`->`".into(),
            Some(c) if c.is_alphanumeric() || c == '_' => {
                let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
                format!("`{}`", short(&rest[..end.unwrap_or(rest.len())]))
            }
            Some(c) => format!("`{}`", c.escape_debug()),
        }
    }
}

/// Returns the character of an escape sequence after its backslash.
fn escape(chars: &mut CharIndices<'_>) -> Option<char> {
    let digits = match chars.next()?.1 {
        'n' => return Some('\n'),
        'r' => return Some('\r'),
        't' => return Some('\t'),
        '0' => return Some('\0'),
        c @ ('\\' | '"' | '\'') => return Some(c),
        'x' => 2,
        'u' => 4,
        _ => return None,
    };
    let mut code = 0;
    for _ in 0..digits {
        code = code * 16 + chars.next()?.1.to_digit(16)?;
    }
    char::from_u32(code)
}

/// Returns a text, shortened to fit a message.
pub(super) fn short(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
