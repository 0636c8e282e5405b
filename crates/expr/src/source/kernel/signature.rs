//! A kernel's parameters.

use super::Writer;
use crate::lower::StepOp;
use crate::source::numbers::{computed, stored};
use crate::source::{Argument, Layout, Parameter, Target};
use keyfold_core::DType;

impl Writer<'_> {
    pub(super) fn parameters(&self) -> Vec<Parameter> {
        let mut all = Vec::new();
        let mut add = |name: &str, ty: String, argument| {
            let ty = self.spell(&ty).trim_end().to_owned();
            all.push(Parameter { name: name.into(), ty, argument });
        };
        let name = &self.options.name;
        let inputs = self.lowered.inputs();
        let offsets = self.options.target.has_offsets();
        let offset = || "const $I64".to_owned();
        let ty = stored(self.lowered.result());
        add("out_data", format!("$GLOBAL {ty}* $RESTRICT"), Argument::Output);
        if offsets {
            add("out_data_offset", offset(), Argument::OutputOffset);
        }
        for (input, rank) in self.lowered.ranks().iter().enumerate() {
            let at = input as u32;
            if self.options.in_place == Some(at) {
                continue;
            }
            let data = &self.data[input];
            let ty = stored(inputs[input]);
            add(data, format!("$GLOBAL const {ty}* $RESTRICT"), Argument::Input(at));
            if offsets {
                add(&format!("{data}_offset"), offset(), Argument::InputOffset(at));
            }
            if let Some(rank @ 1..) = rank {
                add(&self.view(input), format!("const kf_ranked{rank}"), Argument::Ranked(at));
            }
        }
        for (id, name) in &self.params {
            let step = self.step(*id);
            let StepOp::Param { index, to } = step.op else { continue };
            let argument = Argument::Param { index, to, dtype: step.dtype };
            match self.is_passed_as_byte(step.dtype) {
                true => add(&format!("{name}_byte"), "const $U8".into(), argument),
                false => add(name, format!("const {}", computed(step.dtype)), argument),
            }
        }
        if self.options.layout == Layout::Strided {
            add("strides", format!("const {name}_strides"), Argument::Strides);
        }
        if self.shape > 0 {
            add("shape", format!("const {name}_shape"), Argument::Shape(self.shape));
        }
        add("first", "const $U64".into(), Argument::First);
        add("count", "const $U64".into(), Argument::Count);
        if self.faults {
            add("fault", "$GLOBAL $U32*".into(), Argument::Fault);
        }
        all
    }

    /// Returns whether a parameter of that dtype comes as a byte: OpenCL's kernels take no bool.
    pub(super) fn is_passed_as_byte(&self, dtype: DType) -> bool {
        self.options.target == Target::OpenClC && dtype == DType::Bool
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
