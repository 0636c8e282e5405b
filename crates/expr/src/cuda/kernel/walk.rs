//! The kernel function: values common to all elements, and the loop over the elements.

use keyfold_core::{DType, Result};

use super::element::ValueScope;
use super::{Writer, line, write_all};
use crate::cuda::numbers::stored;
use crate::cuda::{Layout, Parameter};
use crate::lower::StepId;

impl Writer<'_> {
    /// # Errors
    /// As [`Writer::statement`].
    pub(super) fn kernel(&self, parameters: &[Parameter], text: &mut String) -> Result<()> {
        let name = &self.options.name;
        let list: Vec<String> = parameters.iter().map(|p| format!("{} {}", p.ty, p.name)).collect();
        write_all(
            text,
            format_args!(
                "extern \"C\" __global__ void __launch_bounds__(512) {name}(\n    {}) {{\n",
                list.join(",\n    ")
            ),
        );
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
        text.push_str(
            "    const unsigned long long lane = \
             (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;\n    \
             const unsigned long long lanes = (unsigned long long)gridDim.x * blockDim.x;\n",
        );
        match self.options.layout {
            Layout::Contiguous => self.contiguous(text),
            Layout::Strided => self.strided(text),
        }
        text.push_str("}\n");
        Ok(())
    }

    fn contiguous(&self, text: &mut String) {
        let result = self.lowered.result();
        let start = self.vectors(result, text);
        line(
            text,
            1,
            format_args!("for (unsigned long long i = {start}; i < count; i += lanes) {{"),
        );
        line(text, 2, format_args!("const unsigned long long place = first + i;"));
        let call = self.call("place", |input| format!("{}[place]", self.pointer(input)));
        line(text, 2, format_args!("out_data[place] = {call};"));
        line(text, 1, format_args!("}}"));
    }

    /// Writes the loop over vectors, if there are any. Returns the start of the loop over the rest.
    fn vectors(&self, result: DType, text: &mut String) -> &'static str {
        let width = self.vector as usize;
        let mut loads: Vec<(&str, DType)> = vec![("out_data", result)];
        for input in &self.loaded {
            if self.options.in_place != Some(*input) {
                loads.push((self.pointer(*input), self.lowered.inputs()[*input as usize]));
            }
        }
        if loads.iter().all(|(_, dtype)| width * dtype.size() <= dtype.align()) {
            return "lane";
        }
        let aligned: Vec<String> = loads
            .iter()
            .map(|(data, dtype)| format!("kf_aligned({data} + first, {})", width * dtype.size()))
            .collect();
        line(text, 1, format_args!("unsigned long long done = 0;"));
        line(text, 1, format_args!("if ({}) {{", aligned.join(" && ")));
        line(text, 2, format_args!("const unsigned long long vectors = count / {width};"));
        line(
            text,
            2,
            format_args!("for (unsigned long long i = lane; i < vectors; i += lanes) {{"),
        );
        line(text, 3, format_args!("const unsigned long long place = first + i * {width};"));
        let vector = |dtype| format!("kf_vector<{}, {width}>", stored(dtype));
        let local = |input: u32| format!("{}s", self.values[input as usize]);
        for input in &self.loaded {
            let ty = vector(self.lowered.inputs()[*input as usize]);
            let (local, data) = (local(*input), self.pointer(*input));
            line(text, 3, format_args!("const {ty} {local} = *(const {ty}*)({data} + place);"));
        }
        let ty = vector(result);
        line(text, 3, format_args!("{ty} results;"));
        line(text, 0, format_args!("#pragma unroll"));
        line(text, 3, format_args!("for (int k = 0; k < {width}; ++k) {{"));
        let call = self.call("place + k", |input| format!("{}.item[k]", local(input)));
        line(text, 4, format_args!("results.item[k] = {call};"));
        line(text, 3, format_args!("}}"));
        line(text, 3, format_args!("*({ty}*)(out_data + place) = results;"));
        line(text, 2, format_args!("}}"));
        line(text, 2, format_args!("done = vectors * {width};"));
        line(text, 1, format_args!("}}"));
        "done + lane"
    }

    fn strided(&self, text: &mut String) {
        let walked: Vec<(String, &str)> = std::iter::once(("out_place".to_owned(), "out"))
            .chain(
                self.elementwise().filter(|input| self.loaded.contains(&(*input as u32))).map(
                    |input| (format!("{}_place", self.data[input]), self.data[input].as_str()),
                ),
            )
            .collect();
        line(text, 1, format_args!("for (unsigned long long i = lane; i < count; i += lanes) {{"));
        line(text, 2, format_args!("unsigned long long rest = first + i;"));
        for (place, _) in &walked {
            line(text, 2, format_args!("long long {place} = 0;"));
        }
        line(text, 0, format_args!("#pragma unroll"));
        line(text, 2, format_args!("for (int d = 0; d < {}; ++d) {{", self.options.dims));
        for statement in [
            "if (d >= strides.dims) break;",
            "unsigned long long outer = 0;",
            "if (d + 1 < strides.dims) {",
            "    outer = kf_divide(rest, strides.magic[d], strides.shift[d], strides.wide != 0);",
            "}",
            "const long long coordinate = (long long)(rest - outer * strides.size[d]);",
            "rest = outer;",
        ] {
            line(text, 3, format_args!("{statement}"));
        }
        for (place, field) in &walked {
            line(text, 3, format_args!("{place} += coordinate * strides.{field}[d];"));
        }
        line(text, 2, format_args!("}}"));
        let call = self.call("first + i", |input| match self.options.in_place == Some(input) {
            true => "out_data[out_place]".into(),
            false => {
                let data = self.pointer(input);
                format!("{data}[{data}_place]")
            }
        });
        line(text, 2, format_args!("out_data[out_place] = {call};"));
        line(text, 1, format_args!("}}"));
    }
}
