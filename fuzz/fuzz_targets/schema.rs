//! Texts as schemas: they parse, and print to what parses to an equal schema, or are refused with a
//! caret in its place. What parses is bound, defined and called.
#![no_main]

use keyfold_fuzz::dice::Dice;
use keyfold_fuzz::schema::{check_binding, check_operator, check_text};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    if let Some(schema) = check_text(&text) {
        let mut dice = Dice::of(data);
        check_binding(&schema, &mut dice);
        check_binding(&schema, &mut dice);
        check_operator(&schema, &mut dice);
    }
});
