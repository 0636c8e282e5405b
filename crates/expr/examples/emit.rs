//! Prints an expression as CUDA C or OpenCL C.
//!
//! ```text
//! cargo run -p keyfold-expr --example emit -- "beta * x + log1p(exp(y))" x=float32 y=float16 beta:float
//! cargo run -p keyfold-expr --example emit -- "x * 2" x=int32 --layout strided --in-place x --name twice
//! cargo run -p keyfold-expr --example emit -- "x * 2" x=float32 --target opencl
//! ```
//!
//! Inputs come with dtypes, parameters with kinds: bool, int, float or complex. `--out DTYPE` sets
//! the result's dtype, `--vector N` the vector width, `--dims N` the number of dimensions of the
//! walk.

use std::io::Write as _;
use std::process::ExitCode;

use keyfold_core::{DType, DTypeKind, Error, ErrorKind, Result};
use keyfold_expr::source::{self, Layout, Options, Target};
use keyfold_expr::{Expr, Lowered, Names};

fn wrong(message: String) -> Error {
    Error::new(ErrorKind::Value, message)
}

fn kind(name: &str) -> Result<DTypeKind> {
    Ok(match name {
        "bool" => DTypeKind::Bool,
        "int" => DTypeKind::Int,
        "float" => DTypeKind::Float,
        "complex" => DTypeKind::Complex,
        _ => return Err(wrong(format!("{name:?}: bool, int, float or complex"))),
    })
}

/// The parsed command line, in order.
#[derive(Default)]
struct Wanted {
    text: String,
    inputs: Vec<(String, DType)>,
    params: Vec<(String, DTypeKind)>,
    out: Option<DType>,
    settings: Vec<(String, String)>,
}

fn read(mut arguments: impl Iterator<Item = String>) -> Result<Wanted> {
    let mut wanted = Wanted { text: arguments.next().unwrap_or_default(), ..Wanted::default() };
    while let Some(argument) = arguments.next() {
        if let Some(setting) = argument.strip_prefix("--") {
            let value = arguments
                .next()
                .ok_or_else(|| wrong(format!("{argument} needs a value after it")))?;
            match setting {
                "out" => wanted.out = Some(value.parse()?),
                _ => wanted.settings.push((setting.into(), value)),
            }
        } else if let Some((name, dtype)) = argument.split_once('=') {
            wanted.inputs.push((name.into(), dtype.parse()?));
        } else if let Some((name, kind)) = argument.split_once(':') {
            wanted.params.push((name.into(), self::kind(kind)?));
        } else {
            return Err(wrong(format!(
                "{argument:?} is neither name=dtype, name:kind nor a setting"
            )));
        }
    }
    Ok(wanted)
}

fn emit(wanted: &Wanted) -> Result<String> {
    let mut names = Names::new();
    for (name, _) in &wanted.inputs {
        names = names.tensor(name.as_str());
    }
    for (name, _) in &wanted.params {
        names = names.param(name.as_str());
    }
    let expr = Expr::parse_with(&wanted.text, &names)?;
    let inputs: Vec<DType> = wanted.inputs.iter().map(|(_, dtype)| *dtype).collect();
    let params: Vec<DTypeKind> = wanted.params.iter().map(|(_, kind)| *kind).collect();
    let lowered = Lowered::new(&expr, &inputs, &params, wanted.out)?;
    let mut options = Options::new(&expr);
    for (setting, value) in &wanted.settings {
        let number =
            || value.parse::<u32>().map_err(|_| wrong(format!("--{setting} {value}: a number")));
        match setting.as_str() {
            "name" => options.name.clone_from(value),
            "target" if value == "cuda" => options.target = Target::CudaC,
            "target" if value == "opencl" => options.target = Target::OpenClC,
            "layout" if value == "contiguous" => options.layout = Layout::Contiguous,
            "layout" if value == "strided" => options.layout = Layout::Strided,
            "vector" => options.vector = Some(number()?),
            "dims" => options.dims = number()?,
            "in-place" => {
                let found = wanted.inputs.iter().position(|(name, _)| name == value);
                let found = found.ok_or_else(|| wrong(format!("no input is called {value:?}")))?;
                options.in_place = Some(found as u32);
            }
            _ => return Err(wrong(format!("--{setting} {value} isn't known"))),
        }
    }
    Ok(source::emit(&lowered, &options)?.text)
}

fn main() -> ExitCode {
    let text = read(std::env::args().skip(1)).and_then(|wanted| emit(&wanted));
    let written = match &text {
        Ok(text) => std::io::stdout().write_all(text.as_bytes()),
        Err(error) => writeln!(std::io::stderr(), "{}", error.message()),
    };
    if text.is_ok() && written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
