//! The lexer, with one token of lookahead.

use keyfold_core::Failure;

/// The kind of a token.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Kind {
    /// An integer without a sign: up to 2^63, whose negative is an int64.
    Int(u64),
    Float(f64),
    /// A name or a keyword.
    Name,
    /// An operator, or a bracket, a comma, an assignment.
    Sign(&'static str),
    /// The end of a line.
    Newline,
    End,
}

/// A token and where it is, in bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) at: usize,
    pub(super) end: usize,
}

/// The signs, longer ones first.
const SIGNS: [&str; 29] = [
    "**", "//", "<<", ">>", "<=", ">=", "==", "!=", "+", "-", "*", "/", "%", "~", "&", "|", "^",
    "<", ">", "(", ")", "[", "]", ",", ";", "=", // The following are refused with advice.
    "&&", "||", "!",
];

/// Signs of other languages, with those to write here.
const FOREIGN: [(&str, &str); 22] = [
    ("&&", "'&&' isn't an operator; write 'and'"),
    ("||", "'||' isn't an operator; write 'or'"),
    ("===", "'===' isn't an operator; write '=='"),
    ("!==", "'!==' isn't an operator; write '!='"),
    ("=<", "'=<' isn't an operator; write '<='"),
    ("=>", "'=>' isn't an operator; write '>='"),
    ("<>", "'<>' isn't an operator; write '!='"),
    ("?", "'?' isn't an operator; a choice is written 'a if condition else b'"),
    (":=", "':=' isn't an operator; a name is given at the start of a line: 'name = value'"),
    (":", "':' has no meaning here; a choice is written 'a if condition else b'"),
    ("{", "'{' has no meaning here; group with round brackets"),
    ("}", "'}' has no meaning here; group with round brackets"),
    ("\"", "text in quotes has no meaning here: expressions are made of numbers"),
    ("'", "text in quotes has no meaning here: expressions are made of numbers"),
    ("@", "'@' isn't an operator: an expression computes one element at a time"),
    ("×", "'×' isn't an operator; write '*'"),
    ("·", "'·' isn't an operator; write '*'"),
    ("÷", "'÷' isn't an operator; write '/'"),
    ("−", "this minus sign is another character than '-'; write '-'"),
    ("≤", "'≤' isn't an operator; write '<='"),
    ("≥", "'≥' isn't an operator; write '>='"),
    ("≠", "'≠' isn't an operator; write '!='"),
];

/// Reads tokens.
#[derive(Clone)]
pub(super) struct Lexer<'t> {
    text: &'t str,
    at: usize,
}

/// Returns whether a name can begin with `c`.
fn begins_name(c: char) -> bool {
    c == '_' || c.is_alphabetic()
}

/// Returns whether a name can contain `c` after its first character.
fn continues_name(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// Returns whether a text is one name.
pub(super) fn is_name(text: &str) -> bool {
    text.starts_with(begins_name) && text.chars().all(continues_name)
}

pub(super) fn failure<T>(at: usize, message: impl Into<String>) -> Result<T, Failure> {
    Err(Failure { at, message: message.into() })
}

/// Returns a piece of text for a message, shortened if it is long.
pub(super) fn excerpt(text: &str) -> String {
    const MOST: usize = 40;
    let mut shown: String =
        text.chars().take(MOST).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(MOST).is_some() {
        shown.push('…');
    }
    shown
}

impl<'t> Lexer<'t> {
    pub(super) fn new(text: &'t str) -> Lexer<'t> {
        Lexer { text, at: 0 }
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    /// Returns the next token.
    pub(super) fn next(&mut self) -> Result<Token, Failure> {
        self.skip_blanks();
        let at = self.at;
        let rest = self.rest();
        let token = |kind, length| Token { kind, at, end: at + length };
        let Some(first) = rest.chars().next() else { return Ok(token(Kind::End, 0)) };
        let found = match first {
            '\n' => token(Kind::Newline, 1),
            '0'..='9' => self.number()?,
            '.' if rest[1..].starts_with(|c: char| c.is_ascii_digit()) => self.number()?,
            c if begins_name(c) => {
                let length = rest.find(|c| !continues_name(c)).unwrap_or(rest.len());
                token(Kind::Name, length)
            }
            _ => {
                if let Some(advice) = foreign(rest) {
                    return failure(at, advice);
                }
                let Some(sign) = SIGNS.into_iter().find(|sign| rest.starts_with(sign)) else {
                    return failure(at, stray(first, rest));
                };
                if sign == "!" {
                    return failure(at, "'!' isn't an operator; write 'not' (or '~' for bits)");
                }
                token(Kind::Sign(sign), sign.len())
            }
        };
        self.at = found.end;
        Ok(found)
    }

    /// Skips blanks and comments. A line's end is a token.
    fn skip_blanks(&mut self) {
        let rest = self.rest();
        let mut in_comment = false;
        let end = rest.find(|c: char| {
            in_comment = c != '\n' && (in_comment || c == '#');
            !in_comment && (c == '\n' || !c.is_whitespace())
        });
        self.at += end.unwrap_or(rest.len());
    }

    /// Returns a number: all adjacent letters, digits and points have to form one.
    fn number(&mut self) -> Result<Token, Failure> {
        let rest = self.rest();
        let mut last = ' ';
        let radix = rest.len() > 1 && matches!(&rest.as_bytes()[..2], b"0x" | b"0X");
        let end = rest.find(|c: char| {
            let exponent = !radix && matches!(last, 'e' | 'E') && matches!(c, '+' | '-');
            let part = continues_name(c) || c == '.' || exponent;
            last = c;
            !part
        });
        let written = &rest[..end.unwrap_or(rest.len())];
        let kind = read_number(written).map_err(|message| Failure { at: self.at, message })?;
        Ok(Token { kind, at: self.at, end: self.at + written.len() })
    }
}

/// Returns advice for a sign of another language.
fn foreign(rest: &str) -> Option<&'static str> {
    let mut best: Option<(&str, &str)> = None;
    for (sign, advice) in FOREIGN {
        if rest.starts_with(sign) && best.is_none_or(|(known, _)| known.len() < sign.len()) {
            best = Some((sign, advice));
        }
    }
    // '=<' may be an assignment followed by another mistake; '==' and '!=' are right.
    best.map(|(_, advice)| advice)
}

fn stray(c: char, rest: &str) -> String {
    match c {
        '.' => "'.' has no meaning here; functions are called by their plain names: exp(x)".into(),
        '\\' => "'\\' isn't needed: a line goes on inside brackets and after an operator".into(),
        c if c.is_control() => format!("the character {} has no meaning here", c.escape_default()),
        c if c.is_ascii() => format!("'{c}' has no meaning here"),
        _ => format!("the character '{}' has no meaning here", excerpt(&rest[..c.len_utf8()])),
    }
}

const UNDERSCORE: &str = "an underscore stands between two digits";

/// Parses a number.
fn read_number(written: &str) -> Result<Kind, String> {
    let malformed = |why: &str| Err(format!("malformed number '{}': {why}", excerpt(written)));
    let digits: String = written.chars().filter(|c| *c != '_').collect();
    if written.ends_with('_') || written.contains("__") {
        return malformed(UNDERSCORE);
    }
    let lower = digits.to_ascii_lowercase();
    for (prefix, radix, name) in
        [("0x", 16, "hexadecimal"), ("0b", 2, "binary"), ("0o", 8, "octal")]
    {
        let Some(body) = lower.strip_prefix(prefix) else { continue };
        if body.is_empty() || !body.chars().all(|c| c.is_digit(radix)) {
            return malformed(&format!("{name} digits are expected after '{prefix}'"));
        }
        return u64::from_str_radix(body, radix).map(Kind::Int).map_err(|_| too_big(written));
    }
    if lower.bytes().all(|c| c.is_ascii_digit()) {
        if lower.len() > 1 && lower.starts_with('0') && lower.bytes().any(|c| c != b'0') {
            return malformed("a whole number doesn't begin with 0; octal ones begin with 0o");
        }
        return lower.parse().map(Kind::Int).map_err(|_| too_big(written));
    }
    if !is_float(&lower) {
        return malformed(&why_malformed(&lower));
    }
    if !underscores_between_digits(written) {
        return malformed(UNDERSCORE);
    }
    match lower.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(Kind::Float(value)),
        Ok(_) => Err(format!("the number '{}' is beyond float64; write inf", excerpt(written))),
        Err(_) => malformed("digits, a point and an exponent as in 1.5e-3 are expected"),
    }
}

pub(super) fn too_big(written: &str) -> String {
    format!(
        "the whole number {} doesn't fit int64 (at most {}); write it with a point, as a float",
        excerpt(written),
        i64::MAX
    )
}

/// Returns whether a text is digits with an optional point and exponent.
fn is_float(lower: &str) -> bool {
    let (mantissa, exponent) = lower.split_once('e').map_or((lower, None), |(m, e)| (m, Some(e)));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = |part: &str| part.bytes().all(|c| c.is_ascii_digit());
    let signed = |part: &str| part.strip_prefix(['+', '-']).unwrap_or(part).to_owned();
    digits(whole)
        && digits(fraction)
        && !(whole.is_empty() && fraction.is_empty())
        && exponent.is_none_or(|e| !signed(e).is_empty() && digits(&signed(e)))
}

fn underscores_between_digits(written: &str) -> bool {
    let bytes = written.as_bytes();
    (0..bytes.len()).filter(|at| bytes[*at] == b'_').all(|at| {
        at > 0
            && bytes[at - 1].is_ascii_digit()
            && bytes.get(at + 1).is_some_and(u8::is_ascii_digit)
    })
}

fn why_malformed(lower: &str) -> String {
    let number = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
    let (digits, letters) = lower.split_at(number);
    match letters {
        "" => "a number has one point".into(),
        "j" => "complex numbers can't be written in an expression".into(),
        "f" | "l" | "u" => {
            format!("'{digits}' is enough: a number takes the dtype of what it meets")
        }
        "e" | "e+" | "e-" => "the exponent's digits are missing".into(),
        name if is_name(name) && !name.starts_with('e') => {
            format!("a product is written {digits}*{}", excerpt(name))
        }
        _ => "digits, a point and an exponent as in 1.5e-3 are expected".into(),
    }
}
