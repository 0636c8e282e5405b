//! The kernel function: values common to all elements, and the loop over the elements.

use keyfold_core::Result;

use super::element::ValueScope;
use super::{Writer, line, write_all};
use crate::lower::StepId;
use crate::source::{Layout, Parameter, Target};

impl Writer<'_> {
    /// # Errors
    /// As [`Writer::statement`].
    pub(super) fn kernel(&self, parameters: &[Parameter], text: &mut String) -> Result<()> {
        let name = &self.options.name;
        let list: Vec<String> = parameters.iter().map(|p| format!("{} {}", p.ty, p.name)).collect();
        write_all(text, format_args!("$KERNEL {name}(\n    {}) {{\n", list.join(",\n    ")));
        for (id, name) in &self.params {
            if self.is_passed_as_byte(self.step(*id).dtype) {
                line(text, 1, format_args!("const bool {name} = {name}_byte != 0;"));
            }
        }
        for (at, step) in self.lowered.steps().iter().enumerate() {
            if step.uniform {
                self.statement(StepId(at as u32), ValueScope::Kernel, text)?;
            }
        }
        let members: Vec<String> = self.context().into_iter().map(|(_, name)| name).collect();
        if !members.is_empty() {
            line(
                text,
                1,
                format_args!("const {name}_context context = {{{}}};", members.join(", ")),
            );
        }
        line(text, 1, format_args!("const $U64 lane = $LANE;"));
        line(text, 1, format_args!("const $U64 lanes = $LANES;"));
        match (self.options.layout, self.lanes) {
            (Layout::Contiguous, Some(lanes)) => self.lane_loop(lanes, text),
            (Layout::Contiguous, None) => self.contiguous(text),
            (Layout::Strided, _) => self.strided(text),
        }
        text.push_str("}\n");
        Ok(())
    }

    fn contiguous(&self, text: &mut String) {
        let start = self.vectors(text);
        line(text, 1, format_args!("for ($U64 i = {start}; i < count; i += lanes) {{"));
        line(text, 2, format_args!("const $I64 place = ($I64)(first + i);"));
        let call = self.call("place", |input| self.element_at("", self.pointer(input), "place"));
        let out = self.element_at("", "out_data", "place");
        line(text, 2, format_args!("{out} = {call};"));
        line(text, 1, format_args!("}}"));
    }

    fn strided(&self, text: &mut String) {
        let inputs = self.elementwise().filter(|input| self.loaded.contains(&(*input as u32)));
        let inputs = inputs.map(|input| self.data[input].as_str());
        let walked: Vec<&str> = std::iter::once("out_data").chain(inputs).collect();
        line(text, 1, format_args!("for ($U64 i = lane; i < count; i += lanes) {{"));
        line(text, 2, format_args!("$U64 rest = first + i;"));
        for data in &walked {
            line(text, 2, format_args!("$I64 {data}_place = {};", self.offset("", data, "0")));
        }
        // OpenCL's compilers run at the first call, and take as long again for an unrolled loop.
        if self.options.target == Target::CudaC {
            line(text, 0, format_args!("#pragma unroll"));
        }
        line(text, 2, format_args!("for (int d = 0; d < {}; ++d) {{", self.options.dims));
        for statement in [
            "if (d >= strides.dims) break;",
            "$U64 outer = 0;",
            "if (d + 1 < strides.dims) {",
            "    outer = kf_divide(rest, strides.magic[d], strides.shift[d], strides.wide != 0);",
            "}",
            "const $I64 coordinate = ($I64)(rest - outer * strides.size[d]);",
            "rest = outer;",
        ] {
            line(text, 3, format_args!("{statement}"));
        }
        for data in &walked {
            line(text, 3, format_args!("{data}_place += coordinate * strides.{data}[d];"));
        }
        line(text, 2, format_args!("}}"));
        let call = self.call("($I64)(first + i)", |input| {
            let data = self.pointer(input);
            format!("{data}[{data}_place]")
        });
        line(text, 2, format_args!("out_data[out_data_place] = {call};"));
        line(text, 1, format_args!("}}"));
    }
}
