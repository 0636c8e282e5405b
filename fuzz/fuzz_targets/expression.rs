//! Texts as expressions: they parse, and print to what parses to an equal expression, or are refused
//! with a caret in its place. What parses is simplified and differentiated.
#![no_main]

use keyfold_fuzz::expression::check_text;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    check_text(&String::from_utf8_lossy(data));
});
