//! The helper process for Rust programs: `keyfold-cudnn-helper LIBCUDNN`.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(library) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return ExitCode::from(2);
    };
    let code = keyfold_libcudnn::helper::server::serve(&library);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
