//! The loop over vectors of contiguous elements.

use keyfold_core::DType;

use super::{Writer, line, write_all};
use crate::source::Target;
use crate::source::numbers::stored;

impl Writer<'_> {
    /// Returns the pointers that vectors are loaded from and stored to, the result's first.
    fn vectorized(&self) -> Vec<(&str, DType)> {
        let inputs = self.loaded.iter().filter(|input| self.options.in_place != Some(**input));
        let inputs = inputs.map(|i| (self.pointer(*i), self.lowered.inputs()[*i as usize]));
        std::iter::once(("out_data", self.lowered.result())).chain(inputs).collect()
    }

    /// Returns whether any vector is larger than the alignment of its elements.
    fn has_vectors(&self) -> bool {
        let width = self.vector as usize;
        self.vectorized().iter().any(|(_, dtype)| width * dtype.size() > dtype.align())
    }

    /// Returns the type of a vector: a struct that [`Writer::vector_structs`] declares for CUDA,
    /// OpenCL's own of the elements, or of complex numbers' parts.
    fn vector_type(&self, dtype: DType) -> String {
        match (self.options.target, self.numbers(dtype)) {
            (Target::CudaC, _) => format!("kf_{dtype}x{}", self.vector),
            (Target::OpenClC, 1) => stored(dtype).into(),
            (Target::OpenClC, numbers) => {
                format!("{}{numbers}", self.spell(stored(dtype.real())))
            }
        }
    }

    /// Returns the number of reals in a vector.
    fn numbers(&self, dtype: DType) -> u32 {
        if dtype.is_complex() { 2 * self.vector } else { self.vector }
    }

    /// Writes the structs of vectors.
    pub(super) fn vector_structs(&self, text: &mut String) {
        if self.options.target != Target::CudaC || !self.has_vectors() {
            return;
        }
        let width = self.vector;
        let mut declared = Vec::new();
        for (_, dtype) in self.vectorized() {
            if declared.contains(&dtype) {
                continue;
            }
            declared.push(dtype);
            let (ty, guard) = (self.vector_type(dtype), format!("KF_VECTOR_{dtype}x{width}"));
            let (stored, bytes) = (stored(dtype), width as usize * dtype.size());
            write_all(
                text,
                format_args!(
                    "#ifndef {guard}\n#define {guard}\nstruct alignas({bytes}) {ty} {{\n    \
                     {stored} item[{width}];\n}};\n#endif\n\n"
                ),
            );
        }
    }

    /// Writes the loop over vectors, if there are any. Returns the start of the loop over the rest.
    pub(super) fn vectors(&self, text: &mut String) -> &'static str {
        if !self.has_vectors() {
            return "lane";
        }
        let (width, result) = (self.vector as usize, self.lowered.result());
        let aligned: Vec<String> = self
            .vectorized()
            .iter()
            .map(|(data, dtype)| {
                let place = self.offset("", data, "($I64)first");
                format!("kf_aligned({data} + ({place}), {})", width * dtype.size())
            })
            .collect();
        line(text, 1, format_args!("$U64 done = 0;"));
        line(text, 1, format_args!("if ({}) {{", aligned.join(" && ")));
        line(text, 2, format_args!("const $U64 vectors = count / {width};"));
        line(text, 2, format_args!("for ($U64 i = lane; i < vectors; i += lanes) {{"));
        line(text, 3, format_args!("const $I64 place = ($I64)(first + i * {width});"));
        for input in &self.loaded {
            let ty = self.vector_type(self.lowered.inputs()[*input as usize]);
            let (local, data) = (self.local(*input), self.pointer(*input));
            let place = self.offset("", data, "place");
            line(
                text,
                3,
                format_args!("const {ty} {local} = *($GLOBAL const {ty}*)({data} + ({place}));"),
            );
        }
        let ty = self.vector_type(result);
        line(text, 3, format_args!("{ty} results;"));
        match self.options.target {
            Target::CudaC => self.indexed_items(text),
            Target::OpenClC => self.named_items(text),
        }
        let place = self.offset("", "out_data", "place");
        line(text, 3, format_args!("*($GLOBAL {ty}*)(out_data + ({place})) = results;"));
        line(text, 2, format_args!("}}"));
        line(text, 2, format_args!("done = vectors * {width};"));
        line(text, 1, format_args!("}}"));
        "done + lane"
    }

    fn local(&self, input: u32) -> String {
        format!("{}s", self.values[input as usize])
    }

    /// Writes the elements of a vector by a loop that is unrolled.
    fn indexed_items(&self, text: &mut String) {
        line(text, 0, format_args!("#pragma unroll"));
        line(text, 3, format_args!("for (int k = 0; k < {}; ++k) {{", self.vector));
        let call = self.call("place + k", |input| format!("{}.item[k]", self.local(input)));
        line(text, 4, format_args!("results.item[k] = {call};"));
        line(text, 3, format_args!("}}"));
    }

    /// Writes the elements of a vector one by one: OpenCL's vectors have names for them.
    fn named_items(&self, text: &mut String) {
        let result = self.lowered.result();
        let item = |vector: &str, dtype: DType, number: u32| match self.numbers(dtype) {
            1 => vector.to_owned(),
            _ => format!("{vector}.s{number:x}"),
        };
        for k in 0..self.vector {
            let call = self.call(&format!("place + {k}"), |input| {
                let (local, dtype) = (self.local(input), self.lowered.inputs()[input as usize]);
                match dtype.is_complex() {
                    true => format!(
                        "kf_make_{dtype}({}, {})",
                        item(&local, dtype, 2 * k),
                        item(&local, dtype, 2 * k + 1)
                    ),
                    false => item(&local, dtype, k),
                }
            });
            if result.is_complex() {
                let value = format!("result{k}");
                line(text, 3, format_args!("const kf_{result} {value} = {call};"));
                for (part, number) in [("re", 2 * k), ("im", 2 * k + 1)] {
                    let place = item("results", result, number);
                    line(text, 3, format_args!("{place} = {value}.{part};"));
                }
            } else {
                line(text, 3, format_args!("{} = {call};", item("results", result, k)));
            }
        }
    }
}
