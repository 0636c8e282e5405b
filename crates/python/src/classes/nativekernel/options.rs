//! How a native function is called, as users say it.

use keyfold_core::ErrorKind;
use keyfold_ffi::{Outputs, Runtime, Tensors, runtime};
use pyo3::prelude::*;

use crate::marshal::errors::{IntoPyResult, error};

/// How the function is called.
#[derive(Clone, Copy)]
pub(super) struct Options {
    pub(super) release_gil: bool,
    pub(super) objects: Option<&'static Runtime>,
    pub(super) tensors: Tensors,
    pub(super) outputs: Outputs,
}

impl Options {
    /// Reads the keywords; `native` says whether the function knows objects where nobody says.
    pub(super) fn read(
        py: Python<'_>,
        release_gil: bool,
        objects: Option<bool>,
        tensors: &str,
        outputs: &str,
        native: bool,
    ) -> PyResult<Options> {
        let refuse = |message: String| error(py, ErrorKind::Value, message);
        let tensors = match tensors {
            "view" => Tensors::Views,
            "object" => Tensors::Objects,
            other => {
                return Err(refuse(format!("tensors={other:?} must be \"view\" or \"object\"")));
            }
        };
        let outputs = match outputs {
            "filled" => Outputs::Filled,
            "returned" => Outputs::Returned,
            other => {
                return Err(refuse(format!(
                    "outputs={other:?} must be \"filled\" or \"returned\""
                )));
            }
        };
        let needed = tensors == Tensors::Objects || outputs == Outputs::Returned;
        if needed && objects == Some(false) {
            let message = "tensors=\"object\" and outputs=\"returned\" pass objects of TVM FFI's \
                           library, which objects=False rules out";
            return Err(refuse(message.to_owned()));
        }
        let objects = match objects.unwrap_or(native || needed) {
            true => Some(runtime::required().py(py)?),
            false => None,
        };
        Ok(Options { release_gil, objects, tensors, outputs })
    }
}
