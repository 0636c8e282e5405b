//! Expressions that the host emits in OpenCL C.

use keyfold_plugin::{
    Argument, Compiler, DType, Error, Language, Launch, Operation, Result, Source,
};

use crate::OpenCl;
use crate::device::{Arg, Buffer};
use crate::program::Kernel;

/// Returns whether expressions of the dtypes of an operation compile.
///
/// # Errors
/// Why they don't.
pub fn support(device: &OpenCl, operation: &Operation<'_>) -> Result<()> {
    let mut dtypes = operation.inputs().chain([operation.output()]);
    match dtypes.any(|dtype| matches!(dtype, DType::F64 | DType::C128)) {
        true => device.has_float64(),
        false => Ok(()),
    }
}

impl Compiler for OpenCl {
    type Program = Kernel;

    fn language(&self) -> Language {
        Language::OpenClC
    }

    fn compile(&self, source: &Source<'_>) -> Result<Kernel> {
        self.on(source.device(), |device| {
            device.programs.compile("expression", source.name(), source.text())
        })
    }

    fn launch(&self, launch: &Launch<'_, Buffer, Kernel>) -> Result<()> {
        self.on(launch.device(), |device| {
            let stream = device.stream(launch.stream());
            stream.note(launch.operator());
            let args = launch.arguments().map(|argument| match argument {
                Argument::Bytes(bytes) => Ok(Arg::Bytes(bytes)),
                Argument::Buffer { buffer, .. } => Ok(Arg::Buffer(buffer.handle)),
                _ => Err(Error::not_supported("an argument that is neither bytes nor a buffer")),
            });
            let args = args.collect::<Result<Vec<_>>>()?;
            let items = launch.elements().div_ceil(device.per_item);
            device.launch_items(launch.program(), stream, &args, items)
        })
    }
}
