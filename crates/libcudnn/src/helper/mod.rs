//! The helper process: libcudnn with a shim in the driver's place, for cards that aren't here.
//!
//! The two talk by frames over the helper's standard input and output: the length of a JSON text in 4 bytes, least first,
//! and the text. The helper ends when its input does.

pub mod client;
mod protocol;
pub mod server;
mod shim;
