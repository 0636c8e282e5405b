//! Parse errors that show the text and point at the column.

use crate::error::{Error, ErrorKind};

/// The most characters of a long line that are shown on either side of the column.
const BEFORE: usize = 70;
const AFTER: usize = 50;

/// A parse error: its message and its position, a byte offset at a character boundary.
#[derive(Debug)]
pub struct Failure {
    /// The byte offset from the beginning of the text.
    pub at: usize,
    /// The mistake, and the correct form.
    pub message: String,
}

impl Failure {
    /// Returns the error with its message, the line, and a caret under the column. `what` names the
    /// kind of text: a schema, an expression.
    #[cold]
    pub fn into_error(self, kind: ErrorKind, what: &str, text: &str) -> Error {
        let (before, after) = text.split_at(self.at);
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let end = after.find('\n').map_or(text.len(), |newline| self.at + newline);
        let column = text[start..self.at].chars().count();
        let place = match before.matches('\n').count() {
            0 => format!("column {}", column + 1),
            lines => format!("line {}, column {}", lines + 1, column + 1),
        };
        let skipped = column.saturating_sub(BEFORE);
        let mut shown = String::new();
        let mut padding = String::new();
        if skipped > 0 {
            shown.push('…');
            padding.push(' ');
        }
        let line = &text[start..end];
        let mut rest = line.chars().skip(skipped);
        for c in rest.by_ref().take(column - skipped) {
            shown.push(printable(c));
            padding.push(blank_of_width(c));
        }
        shown.extend(rest.by_ref().take(AFTER).map(printable));
        if rest.next().is_some() {
            shown.push('…');
        }
        let message =
            format!("{what}, {place}: {}\n{}\n{padding}^", self.message, shown.trim_end());
        Error::new(kind, message)
    }
}

/// Returns `c`, or a placeholder for a character that would break the line or reverse its direction
/// on a terminal.
fn printable(c: char) -> char {
    match c {
        c if c.is_control() => ' ',
        '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => ' ',
        c => c,
    }
}

/// Returns a blank of the terminal width of `c`, so that the caret stays below its column on
/// screen.
fn blank_of_width(c: char) -> char {
    match u32::from(c) {
        0x0300..=0x036f | 0x200b..=0x200f | 0x20d0..=0x20ff | 0xfe00..=0xfe0f => '\u{200b}',
        0x1100..=0x115f
        | 0x2e80..=0xa4cf
        | 0xac00..=0xd7a3
        | 0xf900..=0xfaff
        | 0xfe30..=0xfe6f
        | 0xff00..=0xff60
        | 0xffe0..=0xffe6
        | 0x1f300..=0x1faff
        | 0x20000..=0x3fffd => '\u{3000}',
        _ => ' ',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str, at: usize) -> String {
        let error =
            Failure { at, message: "wrong".into() }.into_error(ErrorKind::Schema, "schema", text);
        assert_eq!(error.kind(), ErrorKind::Schema);
        error.message().to_owned()
    }

    #[test]
    fn the_caret_is_under_its_column() {
        assert_eq!(message("abc", 1), "schema, column 2: wrong\nabc\n ^");
        assert_eq!(message("abc", 3), "schema, column 4: wrong\nabc\n   ^");
        assert_eq!(message("", 0), "schema, column 1: wrong\n\n^");
    }

    #[test]
    fn of_several_lines_the_wrong_one_is_shown() {
        let text = "first\r\n  second\r\nthird";
        assert_eq!(message(text, 9), "schema, line 2, column 3: wrong\n  second\n  ^");
        assert_eq!(message(text, 0), "schema, column 1: wrong\nfirst\n^");
        assert_eq!(message("a\n", 2), "schema, line 2, column 1: wrong\n\n^");
    }

    #[test]
    fn tabs_and_control_characters_are_one_blank_each() {
        let shown = message("\ta\u{1b}b\u{202e}c", 3);
        assert_eq!(shown, "schema, column 4: wrong\n a b c\n   ^");
    }

    #[test]
    fn wide_text_gets_wide_padding() {
        assert_eq!(message("漢é!", 5), "schema, column 3: wrong\n漢é!\n\u{3000} ^");
        assert_eq!(message("e\u{301}!", 3), "schema, column 3: wrong\ne\u{301}!\n \u{200b}^");
    }

    #[test]
    fn a_long_line_is_cut_on_both_sides() {
        let text = "x".repeat(100_000) + "!" + &"y".repeat(100_000);
        let shown = message(&text, 100_000);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0], "schema, column 100001: wrong");
        assert_eq!(lines[1].chars().count(), 1 + BEFORE + AFTER + 1);
        let caret = lines[2].chars().count() - 1;
        assert_eq!(lines[1].chars().nth(caret), Some('!'));
    }
}
