//! Very long texts: a beginning, a piece repeated until there are 20,000 bytes, and an end, which
//! the input separates by bytes 0xff. Parsing, and wording an error, must take time in proportion:
//! what doesn't ends at libFuzzer's time limit.
#![no_main]

use keyfold_fuzz::dice::Dice;
use keyfold_fuzz::schema::{check_binding, check_text};
use libfuzzer_sys::fuzz_target;

const LENGTH: usize = 20_000;

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(3, |byte| *byte == 0xff).map(String::from_utf8_lossy);
    let beginning = parts.next().unwrap_or_default();
    let piece = parts.next().unwrap_or_default();
    let end = parts.next().unwrap_or_default();
    let mut text = beginning.into_owned();
    let times = LENGTH / piece.len().max(1);
    for number in 0..times {
        // `#` in a piece is its number, so that a name can be another one each time.
        for (index, part) in piece.split('#').enumerate() {
            if index > 0 {
                text += &number.to_string();
            }
            text += part;
        }
    }
    text += &end;
    if let Some(schema) = check_text(&text) {
        check_binding(&schema, &mut Dice::of(data));
    }
});
