//! Source text of an expression for a compiler of a device: CUDA C or OpenCL C, see [`Target`].
//!
//! A kernel computes the elements `first..first + count` of the result in a grid-stride loop, so
//! that any grid works and a result can be split over several devices. There are two layouts:
//! [`Layout::Contiguous`] loads and stores vectors of up to 16 bytes if the pointers are aligned;
//! [`Layout::Strided`] computes addresses from sizes and strides, with a multiplication and a shift
//! in place of every division. See `docs/cuda.md` and `docs/opencl.md` for launching.
//!
//! Each step is one statement: the text's length is proportional to the expression, and the
//! compiler's recursion doesn't grow with its depth. The text is deterministic: it depends on
//! neither hashes nor addresses.
//!
//! Sums and products are rounded separately, as on the CPU, if the kernel is compiled with
//! [`Target::options`] (by default both compilers contract `a * b + c` to one instruction that
//! rounds once, which differs by at most half a unit in the last place of the product). Functions
//! such as `exp` are the target's own.

mod arguments;
mod helpers;
mod kernel;
mod names;
mod numbers;
mod steps;
mod target;

use keyfold_core::{DType, Error, ErrorKind, Result};

use crate::graph::Expr;
use crate::lower::Lowered;

pub use arguments::{ranked_words, shape_words, strides_words};
pub use target::Target;

/// The memory layout of the result and the inputs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Layout {
    /// All contiguous, in the same order.
    #[default]
    Contiguous,
    /// By sizes and strides, for views, transposed and broadcast ones too.
    Strided,
}

/// The options of a kernel.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// The language.
    pub target: Target,
    /// The kernel's name, a C identifier.
    pub name: String,
    /// How the elements lie.
    pub layout: Layout,
    /// The number of elements per vector of a contiguous kernel: 1, 2, 4, 8 or 16; `None` for as
    /// many elements of the widest dtype as fit in 16 bytes, fewer for a long expression.
    pub vector: Option<u32>,
    /// The input whose memory the result overwrites. It has the result's dtype and is read element
    /// by element.
    pub in_place: Option<u32>,
    /// The most dimensions of a strided kernel, after merging.
    pub dims: u32,
    /// The inputs' names, for readable text.
    pub inputs: Vec<String>,
    /// The parameters' names.
    pub params: Vec<String>,
}

impl Options {
    /// Returns options of a contiguous kernel in CUDA C called `elementwise`, with the names of an
    /// expression.
    pub fn new(expr: &Expr) -> Options {
        Options {
            target: Target::default(),
            name: "elementwise".into(),
            layout: Layout::Contiguous,
            vector: None,
            in_place: None,
            dims: 8,
            inputs: expr.inputs().iter().map(|input| input.name.clone()).collect(),
            params: expr.params().to_vec(),
        }
    }
}

/// The value of a kernel's parameter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Argument {
    /// A pointer to the result's element 0, on the device; in OpenCL the buffer.
    Output,
    /// A pointer to the element 0 of the input of this index; in OpenCL the buffer.
    Input(u32),
    /// In OpenCL: the result's element 0, counted in elements from its buffer's start, int64. A
    /// device that holds the part from `first` on gets an offset of `-first`.
    OutputOffset,
    /// In OpenCL: the same of the input of this index.
    InputOffset(u32),
    /// The sizes and strides of an input that is read at computed indices: [`ranked_words`].
    Ranked(u32),
    /// A number: the expression's parameter `index`, converted to `to`, and then to `dtype` (they
    /// differ for halves, which are passed as float32). A parameter used in two dtypes is passed
    /// twice.
    Param {
        /// The index of the expression's parameter.
        index: u32,
        /// The dtype it is rounded to.
        to: DType,
        /// The dtype in which it is passed; bool as a byte.
        dtype: DType,
    },
    /// The result's sizes and all strides: [`strides_words`].
    Strides,
    /// The last sizes of the result, of this number: [`shape_words`].
    Shape(u32),
    /// The index of the first element in the result, uint64.
    First,
    /// The number of elements, uint64.
    Count,
    /// A pointer to the fault word, which is 0 before the launch and stays 0 on success; [`fault`]
    /// decodes it.
    Fault,
}

/// A kernel's parameter, in the order of the call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// Its name in the text.
    pub name: String,
    /// Its type in C.
    pub ty: String,
    /// Its value.
    pub argument: Argument,
}

/// A kernel as source text.
#[derive(Clone, PartialEq, Debug)]
pub struct KernelSource {
    /// The language.
    pub target: Target,
    /// The self-contained text. Several can be joined to one program if the kernels' names differ.
    pub text: String,
    /// The kernel's name, which has C linkage.
    pub name: String,
    /// Its parameters, in order.
    pub parameters: Vec<Parameter>,
    /// The number of elements per vector.
    pub vector: u32,
    /// The most dimensions of a strided kernel.
    pub dims: u32,
    /// Whether it needs float64, which a device of OpenCL may lack (`cl_khr_fp64`).
    pub uses_float64: bool,
}

/// Returns the error of a fault word; `None` for 0.
pub fn fault(word: u32, options: &Options) -> Option<Error> {
    match word {
        0 => None,
        1 => Some(Error::new(
            ErrorKind::Value,
            "a whole number was raised to a negative power, which gives fractions that whole \
             numbers can't hold; make the base a float",
        )),
        input => {
            let name = options.inputs.get(input as usize - 2).map_or("?", String::as_str);
            Some(Error::new(
                ErrorKind::Value,
                format!("an index into input {name:?} is out of its range"),
            ))
        }
    }
}

/// Emits the kernel of these steps.
///
/// # Errors
/// [`ErrorKind::Value`] for a name that isn't an identifier, a vector width other than 1, 2, 4, 8
/// or 16, no dimensions, or parameters of more than 4096 bytes in CUDA, 1024 in OpenCL, which every
/// device passes;
/// [`ErrorKind::Binding`] for a wrong number of names, or an `in_place` input that doesn't exist,
/// is read at computed indices, or has another dtype than the result.
pub fn emit(lowered: &Lowered, options: &Options) -> Result<KernelSource> {
    check(lowered, options)?;
    kernel::Writer::new(lowered, options).finish()
}

fn check(lowered: &Lowered, options: &Options) -> Result<()> {
    let target = options.target.name();
    let value = |message: String| Err(Error::new(ErrorKind::Value, message));
    let binding = |message: String| Err(Error::new(ErrorKind::Binding, message));
    if !names::is_kernel_name(&options.name, options.target) {
        return value(format!(
            "{target}: {:?} can't be the name of a kernel; a letter or _, then letters, digits and \
             _, and no word or function of the language",
            options.name
        ));
    }
    if let Some(vector) = options.vector
        && ![1, 2, 4, 8, 16].contains(&vector)
    {
        return value(format!(
            "{target}: a vector of {vector} elements; it has to be 1, 2, 4, 8 or 16"
        ));
    }
    if !(1..=64).contains(&options.dims) {
        return value(format!("{target}: {} dimensions; from 1 to 64 can be walked", options.dims));
    }
    let inputs = lowered.inputs();
    if options.inputs.len() != inputs.len() {
        return binding(format!(
            "{target}: {} names for {} inputs",
            options.inputs.len(),
            inputs.len()
        ));
    }
    let Some(input) = options.in_place else { return Ok(()) };
    let Some(&dtype) = inputs.get(input as usize) else {
        return binding(format!(
            "{target}: the result should replace input {input}, but there are {}",
            inputs.len()
        ));
    };
    let name = &options.inputs[input as usize];
    if lowered.ranks()[input as usize].is_some() {
        return binding(format!(
            "{target}: the result can't replace {name:?}, which is read at computed indices: another \
             lane may have written there"
        ));
    }
    if dtype != lowered.result() {
        return binding(format!(
            "{target}: the result is {} and can't replace {name:?}, which is {dtype}",
            lowered.result()
        ));
    }
    Ok(())
}
