//! Expressions that the host emits in OpenCL C.

use std::sync::OnceLock;

use keyfold_plugin::{
    Argument, Compiler, DType, Error, Language, Launch, Operation, Result, Source,
};

use crate::OpenCl;
use crate::device::{Arg, Buffer};
use crate::program::Kernel;

/// The kernel of an expression on each device, compiled at its first launch there.
pub struct Program {
    name: String,
    text: String,
    kernels: Vec<OnceLock<Kernel>>,
}

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
    type Program = Program;

    fn language(&self) -> Language {
        Language::OpenClC
    }

    fn compile(&self, source: &Source<'_>) -> Result<Program> {
        let kernels = self.devices.iter().map(|_| OnceLock::new()).collect();
        Ok(Program { name: source.name().to_owned(), text: source.text().to_owned(), kernels })
    }

    fn launch(&self, launch: &Launch<'_, Buffer, Program>) -> Result<()> {
        let program = launch.program();
        self.on(launch.device(), |device| {
            let stream = device.stream(launch.stream());
            stream.note(launch.operator());
            let kept = &program.kernels[launch.device() as usize];
            let kernel = match kept.get() {
                Some(kernel) => kernel,
                None => {
                    let label = format!("of {}", launch.operator());
                    let made = device.programs.compile(&label, &program.name, &program.text)?;
                    kept.get_or_init(|| made)
                }
            };
            let args = launch.arguments().map(|argument| match argument {
                Argument::Bytes(bytes) => Ok(Arg::Bytes(bytes)),
                Argument::Buffer { buffer, .. } => Ok(Arg::Buffer(buffer.handle)),
                _ => Err(Error::not_supported("an argument that is neither bytes nor a buffer")),
            });
            let args = args.collect::<Result<Vec<_>>>()?;
            device.launch_grid(kernel, stream, &args, launch.elements())
        })
    }
}
