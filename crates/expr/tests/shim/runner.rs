//! Compiles emitted kernels as C++ and runs them on the CPU, many in one program.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use keyfold_core::{Complex, DType, Scalar, bf16, f16};
use keyfold_expr::source::{Argument, KernelSource, Target};

/// A tensor's memory that a kernel gets a pointer to.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) bytes: Vec<u8>,
    /// The offset of its start from an aligned address, in bytes.
    pub(crate) skew: u64,
    /// The offset of element 0 from its start, in bytes.
    pub(crate) origin: i64,
}

impl Memory {
    /// Returns aligned memory with element 0 at its start.
    pub(crate) fn new(bytes: Vec<u8>) -> Memory {
        Memory { bytes, skew: 0, origin: 0 }
    }
}

/// A grid and its range of elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub(crate) first: u64,
    pub(crate) count: u64,
    pub(crate) blocks: u64,
    pub(crate) threads: u64,
}

/// A kernel with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) source: KernelSource,
    pub(crate) out: Memory,
    /// By input.
    pub(crate) inputs: Vec<Memory>,
    /// By parameter.
    pub(crate) params: Vec<Scalar>,
    /// By input: sizes and strides of the ranked ones.
    pub(crate) ranked: Vec<Vec<u64>>,
    pub(crate) strides: Vec<u64>,
    pub(crate) shape: Vec<u64>,
    pub(crate) launches: Vec<Launch>,
}

/// The result of a run: the output's memory, and the fault word.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) out: Vec<u8>,
    pub(crate) fault: u32,
}

/// Returns the number as the bytes of an element.
pub(crate) fn element_bytes(number: Scalar, dtype: DType) -> Vec<u8> {
    match dtype {
        DType::Bool => vec![u8::from(number.to::<bool>())],
        DType::U8 => vec![number.to::<u8>()],
        DType::I8 => number.to::<i8>().to_ne_bytes().into(),
        DType::U16 => number.to::<u16>().to_ne_bytes().into(),
        DType::I16 => number.to::<i16>().to_ne_bytes().into(),
        DType::U32 => number.to::<u32>().to_ne_bytes().into(),
        DType::I32 => number.to::<i32>().to_ne_bytes().into(),
        DType::U64 => number.to::<u64>().to_ne_bytes().into(),
        DType::I64 => number.to::<i64>().to_ne_bytes().into(),
        DType::F16 => number.to::<f16>().to_ne_bytes().into(),
        DType::BF16 => number.to::<bf16>().to_ne_bytes().into(),
        DType::F32 => number.to::<f32>().to_ne_bytes().into(),
        DType::F64 => number.to::<f64>().to_ne_bytes().into(),
        DType::C64 => {
            let value = number.to::<Complex<f32>>();
            [value.re.to_ne_bytes(), value.im.to_ne_bytes()].concat()
        }
        DType::C128 => {
            let value = number.to::<Complex<f64>>();
            [value.re.to_ne_bytes(), value.im.to_ne_bytes()].concat()
        }
    }
}

/// Returns the parameter's bytes, as a kernel takes it.
fn param_bytes(number: Scalar, to: DType, dtype: DType) -> Vec<u8> {
    match to {
        DType::F16 => number.to::<f16>().to_f32().to_ne_bytes().into(),
        DType::BF16 => number.to::<bf16>().to_f32().to_ne_bytes().into(),
        _ => element_bytes(number, dtype),
    }
}

impl Run {
    /// Writes the function that reads the arguments and calls the kernel.
    fn launcher(&self, number: usize, text: &mut String) {
        let mut calls = Vec::new();
        let _ = writeln!(text, "static void launch_{number}(ShimFiles& files) {{");
        let data = match self.source.target {
            Target::CudaC => "element_0",
            Target::OpenClC => "buffer",
        };
        let mut element = String::new();
        for (at, parameter) in self.source.parameters.iter().enumerate() {
            let mut plain = parameter.ty.clone();
            for word in ["__restrict__", "restrict", "__global", "const ", "*"] {
                plain = plain.replace(word, "");
            }
            let plain = plain.trim();
            match parameter.argument {
                Argument::First | Argument::Count => calls.push(parameter.name.clone()),
                Argument::Output | Argument::Input(_) | Argument::Fault => {
                    let _ = writeln!(text, "    ShimBuffer b{at}(files);");
                    calls.push(format!("b{at}.{data}<{plain}>()"));
                    element = plain.into();
                }
                // It follows its buffer.
                Argument::OutputOffset | Argument::InputOffset(_) => {
                    calls.push(format!("b{}.offset<{element}>()", at - 1));
                }
                _ => {
                    let _ = writeln!(text, "    const auto v{at} = files.value<{plain}>();");
                    calls.push(format!("v{at}"));
                }
            }
        }
        let (name, calls) = (&self.source.name, calls.join(", "));
        let _ = writeln!(
            text,
            "    shim_launch(files, [&](uint64_t first, uint64_t count) {{ {name}({calls}); }});"
        );
        for (at, parameter) in self.source.parameters.iter().enumerate() {
            if matches!(parameter.argument, Argument::Output | Argument::Fault) {
                let _ = writeln!(text, "    b{at}.write(files);");
            }
        }
        text.push_str("}\n");
    }

    /// Writes the arguments in the launcher's format.
    fn arguments(&self, file: &mut Vec<u8>) {
        let words = |file: &mut Vec<u8>, words: &[u64]| {
            words.iter().for_each(|word| file.extend(word.to_ne_bytes()));
        };
        let memory = |file: &mut Vec<u8>, memory: &Memory| {
            words(file, &[memory.bytes.len() as u64, memory.skew, memory.origin as u64]);
            file.extend(&memory.bytes);
        };
        for parameter in &self.source.parameters {
            match parameter.argument {
                Argument::Output => memory(file, &self.out),
                Argument::Input(input) => memory(file, &self.inputs[input as usize]),
                Argument::Ranked(input) => words(file, &self.ranked[input as usize]),
                Argument::Param { index, to, dtype } => {
                    file.extend(param_bytes(self.params[index as usize], to, dtype));
                }
                Argument::Strides => words(file, &self.strides),
                Argument::Shape(_) => words(file, &self.shape),
                Argument::OutputOffset
                | Argument::InputOffset(_)
                | Argument::First
                | Argument::Count => {}
                Argument::Fault => memory(file, &Memory::new(vec![0; 4])),
            }
        }
        words(file, &[self.launches.len() as u64]);
        for launch in &self.launches {
            words(file, &[launch.first, launch.count, launch.blocks, launch.threads]);
        }
    }

    fn faults(&self) -> bool {
        self.source.parameters.iter().any(|p| p.argument == Argument::Fault)
    }
}

/// Returns the C++ compiler: `CXX`, else `c++`.
fn compiler() -> String {
    std::env::var("CXX").unwrap_or_else(|_| "c++".into())
}

fn directory() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.join("../expr/tests/shim")
}

/// Compiles all kernels, of one target, to one program and runs it once. Warnings are errors.
pub(crate) fn run(name: &str, runs: &[Run]) -> Vec<Outcome> {
    let header = match runs.first().map(|run| run.source.target) {
        Some(Target::OpenClC) => "opencl_shim",
        _ => "cuda_shim",
    };
    let mut text = format!("#include \"{header}.h\"\n");
    let mut file = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        text += &run.source.text;
        run.launcher(number, &mut text);
        run.arguments(&mut file);
    }
    text += "int main(int, char** names) {\n    \
             ShimFiles files = {std::fopen(names[1], \"rb\"), std::fopen(names[2], \"wb\")};\n";
    for number in 0..runs.len() {
        let _ = writeln!(text, "    launch_{number}(files);");
    }
    text += "    return std::fclose(files.out);\n}\n";
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{header}_{name}"));
    std::fs::create_dir_all(&folder).expect("a folder for the program");
    let path = |file: &str| folder.join(file);
    std::fs::write(path("kernels.cc"), text).expect("the program's text");
    std::fs::write(path("arguments"), &file).expect("the arguments");
    // Not optimised, which takes three times longer. As on a device, products and sums are rounded
    // separately. Unused functions and parameters are expected in a text that is composed of parts.
    let compiled = Command::new(compiler())
        .args([
            "-std=c++17",
            "-O0",
            "-ffp-contract=off",
            "-fno-strict-aliasing",
            "-Wall",
            "-Wextra",
        ])
        .args(["-Werror", "-Wno-unknown-pragmas", "-Wno-unused-parameter", "-Wno-unused-function"])
        .arg("-Wno-tautological-compare")
        .arg("-I")
        .arg(directory())
        .arg("-o")
        .args([path("program"), path("kernels.cc")])
        .output()
        .expect("a C++ compiler: c++, or what CXX names");
    let complaint = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{}", complaint.chars().take(4000).collect::<String>());
    let ran = Command::new(path("program"))
        .args([path("arguments"), path("results")])
        .output()
        .expect("the program");
    assert!(ran.status.success(), "{:?}: {}", ran.status, String::from_utf8_lossy(&ran.stderr));
    let results = std::fs::read(path("results")).expect("the results");
    let mut rest = results.as_slice();
    let mut take = |bytes: usize| {
        let (taken, left) = rest.split_at(bytes);
        rest = left;
        taken.to_vec()
    };
    runs.iter()
        .map(|run| Outcome {
            out: take(run.out.bytes.len()),
            fault: match run.faults() {
                true => u32::from_ne_bytes(take(4).try_into().expect("4 bytes")),
                false => 0,
            },
        })
        .collect()
}
