//! CUDA C from an expression: a kernel that NVRTC compiles without any header.
//!
//! A kernel walks the elements `first..first + count` of the result by a grid-stride loop, so any
//! grid does, and a result can be split over several devices. Two layouts there are:
//! [`Layout::Contiguous`] loads and stores vectors of up to 16 bytes where the pointers allow it;
//! [`Layout::Strided`] finds elements by sizes and strides, with a multiplication and a shift in
//! place of every division. See `docs/cuda.md` for launching.
//!
//! One statement per step, each step once: the text's length is that of the expression, and the
//! compiler's recursion doesn't grow with its depth. Nothing depends on hashing or addresses: the
//! same steps give the same text.
//!
//! Numbers: sums and products are rounded separately, as on the CPU, if the kernel is compiled with
//! [`OPTIONS`] (`--fmad=false`; by default NVRTC contracts `a * b + c` to one instruction that
//! rounds once, which differs by at most half a unit in the last place of the product). Functions
//! are CUDA's own.

mod arguments;
mod kernel;
mod names;
mod numbers;
mod steps;

use keyfold_core::{DType, Error, ErrorKind, Result};

use crate::graph::Expr;
use crate::lower::Lowered;

pub use arguments::{ranked_words, shape_words, strides_words};

/// What NVRTC should be told besides the architecture: results as on the CPU.
pub const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

/// How the elements of the result and of the inputs lie.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Layout {
    /// One after the other, all of them in the same order.
    #[default]
    Contiguous,
    /// By sizes and strides: views, transposed and broadcast ones too.
    Strided,
}

/// What kernel to emit.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// The kernel's name, an identifier in C.
    pub name: String,
    /// How the elements lie.
    pub layout: Layout,
    /// The elements per vector where the layout is contiguous: 1, 2, 4, 8 or 16; `None` for as many
    /// as 16 bytes hold of the widest dtype, fewer where the expression is long.
    pub vector: Option<u32>,
    /// The input, of the result's dtype and read element by element, that the result replaces.
    pub in_place: Option<u32>,
    /// How many dimensions the kernel can walk where the layout is strided, after collapsing.
    pub dims: u32,
    /// The inputs' names, for a readable text.
    pub inputs: Vec<String>,
    /// The parameters' names.
    pub params: Vec<String>,
}

impl Options {
    /// A contiguous kernel called `kernel`, with the names of an expression.
    pub fn new(expr: &Expr) -> Options {
        Options {
            name: "kernel".into(),
            layout: Layout::Contiguous,
            vector: None,
            in_place: None,
            dims: 8,
            inputs: expr.inputs().iter().map(|input| input.name.clone()).collect(),
            params: expr.params().to_vec(),
        }
    }
}

/// What a parameter of the kernel is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Argument {
    /// A pointer to the result's element 0, on the device.
    Output,
    /// A pointer to an input's element 0: by number.
    Input(u32),
    /// The sizes and strides of an input that is read at computed indices: [`ranked_words`].
    Ranked(u32),
    /// A number: parameter `index`, converted to `to`, and from there to `dtype` (they differ for
    /// halves, which come as float32). Two of them where a parameter is used in two dtypes.
    Param {
        /// Which.
        index: u32,
        /// The dtype it is rounded to.
        to: DType,
        /// The dtype that it is passed as.
        dtype: DType,
    },
    /// The sizes of the result, and the strides: [`strides_words`].
    Strides,
    /// The last sizes of the result, as many as this: [`shape_words`].
    Shape(u32),
    /// The first element's place in the result, `unsigned long long`.
    First,
    /// How many elements, `unsigned long long`.
    Count,
    /// A pointer to a word that is 0 before and stays so if all went well; [`fault`] says what else.
    Fault,
}

/// A parameter of the kernel, in the order of the call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// Its name in the text.
    pub name: String,
    /// Its type in C.
    pub ty: String,
    /// What it is.
    pub argument: Argument,
}

/// A kernel as CUDA C.
#[derive(Clone, PartialEq, Debug)]
pub struct Source {
    /// The text, with everything that it needs. Several can be joined to one program if the kernels'
    /// names differ.
    pub text: String,
    /// The kernel's name; it is `extern "C"`.
    pub name: String,
    /// What it is called with, in order.
    pub parameters: Vec<Parameter>,
    /// The elements that a lane handles at a time where vectors can be used.
    pub vector: u32,
    /// How many dimensions a strided kernel can walk.
    pub dims: u32,
}

/// What the number in the fault word means: an error for the person who launched the kernel.
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

/// The kernel for these steps.
///
/// # Errors
/// [`ErrorKind::Value`] for a name that isn't an identifier, a vector width that isn't 1, 2, 4, 8 or
/// 16, no dimensions, or parameters of more than 4096 bytes, which is what CUDA can pass;
/// [`ErrorKind::Binding`] for a list of names that doesn't fit, or an input that can't be replaced:
/// one that isn't there, is read at computed indices, or has another dtype than the result.
pub fn emit(lowered: &Lowered, options: &Options) -> Result<Source> {
    check(lowered, options)?;
    kernel::Writer::new(lowered, options).finish()
}

fn check(lowered: &Lowered, options: &Options) -> Result<()> {
    let value = |message: String| Err(Error::new(ErrorKind::Value, message));
    let binding = |message: String| Err(Error::new(ErrorKind::Binding, message));
    if !names::is_identifier(&options.name) {
        return value(format!(
            "cuda: {:?} can't be the name of a kernel; a letter or _, then letters, digits and _, \
             and no word of C++",
            options.name
        ));
    }
    if let Some(vector) = options.vector
        && ![1, 2, 4, 8, 16].contains(&vector)
    {
        return value(format!(
            "cuda: a vector of {vector} elements; it has to be 1, 2, 4, 8 or 16"
        ));
    }
    if !(1..=64).contains(&options.dims) {
        return value(format!("cuda: {} dimensions; from 1 to 64 can be walked", options.dims));
    }
    let inputs = lowered.inputs();
    if options.inputs.len() != inputs.len() {
        return binding(format!(
            "cuda: {} names for {} inputs",
            options.inputs.len(),
            inputs.len()
        ));
    }
    let Some(input) = options.in_place else { return Ok(()) };
    let Some(&dtype) = inputs.get(input as usize) else {
        return binding(format!(
            "cuda: the result should replace input {input}, but there are {}",
            inputs.len()
        ));
    };
    let name = &options.inputs[input as usize];
    if lowered.ranks()[input as usize].is_some() {
        return binding(format!(
            "cuda: the result can't replace {name:?}, which is read at computed indices: another \
             lane may have written there"
        ));
    }
    if dtype != lowered.result() {
        return binding(format!(
            "cuda: the result is {} and can't replace {name:?}, which is {dtype}",
            lowered.result()
        ));
    }
    Ok(())
}
