//! What must hold for the error of any text that doesn't parse.

use keyfold_core::ErrorKind;

/// The longest message: a header that quotes at most a few names, of 255 characters each, the cut
/// line of at most 122, and the caret's.
pub const LONGEST_MESSAGE: usize = 2500;

/// An error has three lines: what and where, the line, and a caret below the character meant.
pub fn check_error(text: &str, what: &str, error: &keyfold_core::Error) {
    let message = error.message();
    let kind = if what == "expression" { ErrorKind::Expression } else { ErrorKind::Schema };
    assert_eq!(error.kind(), kind, "{message}");
    assert!(message.len() <= LONGEST_MESSAGE, "{} bytes: {message}", message.len());
    let lines: Vec<&str> = message.split('\n').collect();
    let [header, shown, caret] = lines.as_slice() else { panic!("not three lines: {message:?}") };
    let place = header.strip_prefix(what).unwrap_or_else(|| panic!("{message}"));
    let (place, said) = place.strip_prefix(", ").and_then(|p| p.split_once(": ")).unwrap();
    assert!(!said.is_empty(), "{message}");
    let (line, column) = match place.strip_prefix("line ") {
        Some(place) => place.split_once(", column ").unwrap(),
        None => ("1", place.strip_prefix("column ").unwrap()),
    };
    let (line, column): (usize, usize) = (line.parse().unwrap(), column.parse().unwrap());
    let source = text.split('\n').nth(line - 1).unwrap_or_else(|| panic!("{message:?}"));
    // One behind the end is where something is missing.
    let length = source.chars().count();
    assert!((1..=length + 1).contains(&column), "{column} of {length}: {message:?}");
    let below = caret.chars().count() - 1;
    assert!(caret.ends_with('^') && below <= column && below <= 71, "{message:?}");
    let meant = source.chars().nth(column - 1);
    match (shown.chars().nth(below), meant) {
        // Blanks at the end aren't shown.
        (None, meant) => assert!(meant.is_none_or(not_shown), "{meant:?}: {message:?}"),
        (Some(' '), meant) => assert!(meant.is_none_or(not_shown), "{meant:?}: {message:?}"),
        (Some(c), meant) => assert_eq!(Some(c), meant, "{message:?}"),
    }
    assert!(!header.chars().chain(shown.chars()).any(char::is_control), "{message:?}");
}

/// Whether a character is shown as a blank, or not at all at the end of a line.
fn not_shown(c: char) -> bool {
    c.is_whitespace()
        || c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
