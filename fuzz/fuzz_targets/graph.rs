//! Texts as cuDNN graphs, and valid graphs with changes: read, written, keyed, drawn, resized and proven;
//! or refused with an error that names the graph.
#![no_main]

use keyfold_fuzz::graph::check_input;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    check_input(data);
});
