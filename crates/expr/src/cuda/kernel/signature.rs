//! A kernel's parameters.

use super::Writer;
use crate::cuda::numbers::{computed, stored};
use crate::cuda::{Argument, Layout, Parameter};
use crate::lower::StepOp;

impl Writer<'_> {
    pub(super) fn parameters(&self) -> Vec<Parameter> {
        let mut all = Vec::new();
        let mut add = |name: &str, ty: String, argument| {
            all.push(Parameter { name: name.into(), ty, argument });
        };
        let name = &self.options.name;
        let inputs = self.lowered.inputs();
        add(
            "out_data",
            format!("{}* __restrict__", stored(self.lowered.result())),
            Argument::Output,
        );
        for (input, rank) in self.lowered.ranks().iter().enumerate() {
            if self.options.in_place == Some(input as u32) {
                continue;
            }
            let ty = format!("const {}* __restrict__", stored(inputs[input]));
            add(&self.data[input], ty, Argument::Input(input as u32));
            if let Some(rank @ 1..) = rank {
                let ty = format!("const kf_ranked<{rank}>");
                add(&self.view(input), ty, Argument::Ranked(input as u32));
            }
        }
        for (id, name) in &self.params {
            let step = self.step(*id);
            if let StepOp::Param { index, to } = step.op {
                let argument = Argument::Param { index, to, dtype: step.dtype };
                add(name, format!("const {}", computed(step.dtype)), argument);
            }
        }
        if self.options.layout == Layout::Strided {
            add("strides", format!("const {name}_strides"), Argument::Strides);
        }
        if self.shape > 0 {
            add("shape", format!("const {name}_shape"), Argument::Shape(self.shape));
        }
        add("first", "const unsigned long long".into(), Argument::First);
        add("count", "const unsigned long long".into(), Argument::Count);
        if self.faults {
            add("fault", "unsigned*".into(), Argument::Fault);
        }
        all
    }

    /// Returns the size and alignment of a parameter in bytes.
    pub(super) fn size(&self, argument: Argument) -> usize {
        match argument {
            Argument::Param { dtype, .. } => dtype.size().max(8),
            Argument::Ranked(input) => {
                16 * self.lowered.ranks()[input as usize].unwrap_or(0) as usize
            }
            Argument::Strides => {
                8 * (2 + (4 + self.elementwise().count()) * self.options.dims as usize)
            }
            Argument::Shape(dims) => 8 * (1 + 3 * dims as usize),
            _ => 8,
        }
    }
}
