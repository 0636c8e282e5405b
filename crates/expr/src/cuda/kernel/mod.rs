//! The text of a kernel: a function of one element, and the loop over the elements.

mod element;
mod signature;
mod structs;
mod walk;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use keyfold_core::{Error, ErrorKind, Result};

use super::names::UniqueNames;
use super::steps::{self, Helper};
use super::{CudaKernel, Layout, Options};
use crate::graph::Binary;
use crate::lower::{Lowered, Step, StepId, StepOp};

/// The size of the widest load in bytes.
const VECTOR_BYTES: usize = 16;
/// The greatest cost of steps times vector width that is unrolled.
const UNROLLED: u32 = 512;
/// The parameter bytes that every CUDA version supports.
const PARAMETER_BYTES: usize = 4096;

/// A kernel under construction.
pub(super) struct Writer<'a> {
    lowered: &'a Lowered,
    options: &'a Options,
    /// By input: its pointer, and its element.
    data: Vec<String>,
    values: Vec<String>,
    /// The elementwise inputs that steps use.
    loaded: Vec<u32>,
    /// Parameters: step and name.
    params: Vec<(StepId, String)>,
    /// Whether elements depend on their index.
    uses_index: bool,
    /// One more than the greatest dimension that steps use.
    shape: u32,
    /// Whether a fault is possible.
    faults: bool,
    vector: u32,
}

impl<'a> Writer<'a> {
    pub(super) fn new(lowered: &'a Lowered, options: &'a Options) -> Writer<'a> {
        let mut names = UniqueNames::default();
        names.unique("out", "data");
        let data: Vec<String> = options.inputs.iter().map(|n| names.unique(n, "data")).collect();
        let values = options.inputs.iter().map(|n| names.unique(n, "value")).collect();
        let (mut loaded, mut params) = (BTreeSet::new(), Vec::new());
        let (mut uses_index, mut shape, mut faults) = (false, 0, false);
        for (at, step) in lowered.steps().iter().enumerate() {
            match &step.op {
                StepOp::Input(input) => {
                    loaded.insert(*input);
                }
                StepOp::Param { index, .. } => {
                    let name = options.params.get(*index as usize).map_or("number", String::as_str);
                    params.push((StepId(at as u32), names.unique(name, "param")));
                }
                StepOp::Index => uses_index = true,
                StepOp::Coordinate(dim) => {
                    uses_index = true;
                    shape = shape.max(dim + 1);
                }
                StepOp::At { .. } => faults = true,
                StepOp::Binary(Binary::Pow, ..) => {
                    faults |= step.dtype.is_integral();
                }
                _ => {}
            }
        }
        let loaded = loaded.into_iter().collect();
        let mut writer = Writer {
            lowered,
            options,
            data,
            values,
            loaded,
            params,
            uses_index,
            shape,
            faults,
            vector: 1,
        };
        writer.vector = writer.vector();
        writer
    }

    /// Returns the vector width: the elements in a load of the widest dtype, fewer for a long
    /// expression.
    fn vector(&self) -> u32 {
        if self.options.layout == Layout::Strided {
            return 1;
        }
        let sizes = self.loaded.iter().map(|input| self.lowered.inputs()[*input as usize].size());
        let widest = sizes.chain([self.lowered.result().size()]).max().unwrap_or(1);
        let fitting = (VECTOR_BYTES / widest) as u32;
        let cost: u32 = self.lowered.steps().iter().map(steps::cost).sum();
        let mut vector = fitting;
        while vector > 1 && vector * cost > UNROLLED {
            vector /= 2;
        }
        self.options.vector.map_or(vector, |wanted| wanted.min(fitting.max(1)))
    }

    fn step(&self, id: StepId) -> &'a Step {
        &self.lowered.steps()[id.index()]
    }

    /// Returns the elementwise inputs that have a pointer.
    fn elementwise(&self) -> impl Iterator<Item = usize> + '_ {
        let ranks = self.lowered.ranks();
        (0..ranks.len()).filter(|i| ranks[*i].is_none() && self.options.in_place != Some(*i as u32))
    }

    /// Returns the pointer through which an input is read.
    fn pointer(&self, input: u32) -> &str {
        match self.options.in_place == Some(input) {
            true => "out_data",
            false => &self.data[input as usize],
        }
    }

    fn view(&self, input: usize) -> String {
        format!("{}_view", self.data[input])
    }

    fn helpers(&self) -> BTreeSet<Helper> {
        let mut needed = BTreeSet::from([Helper::Launch]);
        let mut need = |dtype| {
            steps::helpers(dtype, |helper| {
                needed.insert(helper);
            });
        };
        self.lowered.steps().iter().for_each(|step| need(step.dtype));
        self.lowered.inputs().iter().copied().for_each(&mut need);
        need(self.lowered.result());
        for step in self.lowered.steps() {
            if let StepOp::Round(dtype, _) = step.op {
                need(dtype);
            }
        }
        needed
    }

    /// Returns the kernel with its whole text.
    pub(super) fn finish(self) -> Result<CudaKernel> {
        let parameters = self.parameters();
        let bytes: usize = parameters.iter().map(|p| self.size(p.argument)).sum();
        if bytes > PARAMETER_BYTES {
            return Err(Error::new(
                ErrorKind::Value,
                format!(
                    "cuda: the parameters of {} take {bytes} bytes, but CUDA passes {PARAMETER_BYTES}; \
                     use fewer inputs, parameters or dimensions",
                    self.options.name
                ),
            ));
        }
        let mut text = String::new();
        let needed = self.helpers();
        for helper in Helper::ALL.into_iter().filter(|helper| needed.contains(helper)) {
            let (guard, helper) = helper.text();
            write_all(
                &mut text,
                format_args!("#ifndef {guard}\n#define {guard}\n{helper}#endif\n\n"),
            );
        }
        self.structs(&mut text);
        self.element(&mut text)?;
        self.kernel(&parameters, &mut text)?;
        Ok(CudaKernel {
            text,
            name: self.options.name.clone(),
            parameters,
            vector: self.vector,
            dims: self.options.dims,
        })
    }
}

/// Writing to a string can't fail.
fn write_all(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    let _ = text.write_fmt(arguments);
}

fn line(text: &mut String, depth: usize, arguments: std::fmt::Arguments<'_>) {
    text.push_str(&"    ".repeat(depth));
    write_all(text, arguments);
    text.push('\n');
}
