//! The text of a kernel: a function of one element, and the loop over the elements.

mod element;
mod lanes;
mod signature;
mod structs;
mod vectors;
mod walk;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use keyfold_core::{DType, Error, ErrorKind, Result};

use self::lanes::Lanes;
use super::names::UniqueNames;
use super::target::{Words, spell};
use super::{KernelSource, Layout, Options, helpers, steps};
use crate::graph::Binary;
use crate::lower::{Lowered, Step, StepId, StepOp};

/// The size of the widest load in bytes.
const VECTOR_BYTES: usize = 16;
/// The greatest cost of steps times vector width that is unrolled.
const UNROLLED: u32 = 512;
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
    /// The vectors that it computes; `None` for one element after another.
    lanes: Option<Lanes>,
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
        let loaded: Vec<u32> = loaded.into_iter().collect();
        let lanes = Lanes::of(lowered, options, &loaded);
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
            lanes,
        };
        writer.vector = lanes.map_or_else(|| writer.vector(), |lanes| lanes.width);
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

    /// Returns an element of an operand in memory; `scope` is `context->` for a pointer there.
    fn element_at(&self, scope: &str, data: &str, place: &str) -> String {
        format!("{scope}{data}[{}]", self.offset(scope, data, place))
    }

    /// Returns a place counted from where a pointer points, which for some targets isn't element 0.
    fn offset(&self, scope: &str, data: &str, place: &str) -> String {
        match self.options.target.has_offsets() {
            true => format!("{scope}{data}_offset + {place}"),
            false => place.into(),
        }
    }

    fn spell(&self, text: &str) -> String {
        spell(text, self.options.target, &Words::default())
    }

    /// Returns whether a value has dtype float64 or complex128.
    fn uses_float64(&self) -> bool {
        let steps = self.lowered.steps().iter().map(|step| step.dtype);
        let stored = self.lowered.inputs().iter().copied().chain([self.lowered.result()]);
        steps.chain(stored).any(|dtype| matches!(dtype, DType::F64 | DType::C128))
    }

    /// Returns the kernel with its whole text.
    pub(super) fn finish(self) -> Result<KernelSource> {
        let target = self.options.target;
        let parameters = self.parameters();
        let bytes: usize = parameters.iter().map(|p| self.size(p.argument)).sum();
        if bytes > target.parameter_bytes() {
            return Err(Error::new(
                ErrorKind::Value,
                format!(
                    "{}: the parameters of {} take {bytes} bytes, but every device passes no more \
                     than {}; use fewer inputs, parameters or dimensions",
                    target.name(),
                    self.options.name,
                    target.parameter_bytes()
                ),
            ));
        }
        let uses_float64 = self.uses_float64();
        let mut text = target.header(uses_float64).to_owned();
        for helper in helpers::needed(self.lowered) {
            text += &helper.text(target);
        }
        let mut kernel = String::new();
        self.structs(&mut kernel);
        match self.lanes {
            Some(lanes) => self.lane_functions(lanes, &mut kernel),
            None => self.element(&mut kernel)?,
        }
        self.kernel(&parameters, &mut kernel)?;
        text += &self.spell(&kernel);
        Ok(KernelSource {
            target,
            text,
            name: self.options.name.clone(),
            parameters,
            vector: self.vector,
            dims: self.options.dims,
            uses_float64,
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
