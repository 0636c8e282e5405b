//! The text of a kernel: what one element is, as a function, and the loop over the elements.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use keyfold_core::{DType, Error, ErrorKind, Result};

use super::names::Names;
use super::numbers::{computed, literal, stored, zero};
use super::steps::{self, Helper};
use super::{Argument, Layout, Options, Parameter, Source};
use crate::lower::{Lowered, Step, StepId, StepOp};

/// Bytes of the widest load.
const VECTOR_BYTES: usize = 16;
/// The cost of steps times vector width that is still unrolled.
const UNROLLED: u32 = 512;
/// Bytes of parameters that every CUDA can pass.
const PARAMETER_BYTES: usize = 4096;

/// Where a step's value is asked for.
#[derive(Clone, Copy, PartialEq)]
enum Scope {
    /// In the kernel, before its loop: numbers that are the same for all elements.
    Kernel,
    /// In the function of one element.
    Element,
}

/// A kernel under construction.
pub(super) struct Writer<'a> {
    lowered: &'a Lowered,
    options: &'a Options,
    /// By input: its pointer, and its element.
    data: Vec<String>,
    values: Vec<String>,
    /// The inputs read element by element that steps use.
    loaded: Vec<u32>,
    /// Parameters: the step, its name.
    params: Vec<(StepId, String)>,
    /// Whether elements depend on their place.
    places: bool,
    /// One more than the greatest dimension that steps ask for.
    shape: u32,
    /// Whether something can go wrong.
    faults: bool,
    vector: u32,
}

impl<'a> Writer<'a> {
    pub(super) fn new(lowered: &'a Lowered, options: &'a Options) -> Writer<'a> {
        let mut names = Names::default();
        names.give("out", "data");
        let data: Vec<String> = options.inputs.iter().map(|n| names.give(n, "data")).collect();
        let values = options.inputs.iter().map(|n| names.give(n, "value")).collect();
        let (mut loaded, mut params) = (BTreeSet::new(), Vec::new());
        let (mut places, mut shape, mut faults) = (false, 0, false);
        for (at, step) in lowered.steps().iter().enumerate() {
            match &step.op {
                StepOp::Input(input) => {
                    loaded.insert(*input);
                }
                StepOp::Param { index, .. } => {
                    let name = options.params.get(*index as usize).map_or("number", String::as_str);
                    params.push((StepId(at as u32), names.give(name, "param")));
                }
                StepOp::Index => places = true,
                StepOp::Coordinate(dim) => {
                    places = true;
                    shape = shape.max(dim + 1);
                }
                StepOp::At { .. } => faults = true,
                StepOp::Binary(crate::graph::Binary::Pow, ..) => {
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
            places,
            shape,
            faults,
            vector: 1,
        };
        writer.vector = writer.vector();
        writer
    }

    /// As many elements as a load of the widest dtype has, fewer where that is too much text.
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

    /// The inputs that have a pointer and are read element by element.
    fn elementwise(&self) -> impl Iterator<Item = usize> + '_ {
        let ranks = self.lowered.ranks();
        (0..ranks.len()).filter(|i| ranks[*i].is_none() && self.options.in_place != Some(*i as u32))
    }

    /// The pointer that an input is read through.
    fn pointer(&self, input: u32) -> &str {
        match self.options.in_place == Some(input) {
            true => "out_data",
            false => &self.data[input as usize],
        }
    }

    fn view(&self, input: usize) -> String {
        format!("{}_view", self.data[input])
    }

    fn operand(&self, id: StepId, scope: Scope) -> String {
        let step = self.step(id);
        let outer = if scope == Scope::Element { "context." } else { "" };
        match &step.op {
            StepOp::Constant(number) => literal(*number, step.dtype),
            StepOp::Input(input) => self.values[*input as usize].clone(),
            StepOp::Param { .. } => {
                let found = self.params.iter().find(|(param, _)| *param == id);
                format!("{outer}{}", found.map_or("", |(_, name)| name))
            }
            StepOp::Index => "at".into(),
            StepOp::Coordinate(dim) => format!("coordinate{dim}"),
            _ if step.uniform => format!("{outer}s{}", id.0),
            _ => format!("s{}", id.0),
        }
    }

    /// The statement that computes a step; nothing for those that operands spell out themselves.
    fn statement(&self, id: StepId, scope: Scope, text: &mut String) {
        let step = self.step(id);
        let operand = |id: StepId| self.operand(id, scope);
        let from = |id: StepId| self.step(id).dtype;
        let value = match &step.op {
            StepOp::Constant(_)
            | StepOp::Input(_)
            | StepOp::Param { .. }
            | StepOp::Index
            | StepOp::Coordinate(_) => return,
            StepOp::At { input, indices } => {
                let indices: Vec<String> = indices.iter().map(|id| operand(*id)).collect();
                return self.at(id, *input as usize, &indices, text);
            }
            StepOp::Unary(op, a) => steps::unary(*op, step, from(*a), &operand(*a)),
            StepOp::Binary(op, a, b) => {
                let value = steps::binary(*op, step, from(*a), &operand(*a), &operand(*b));
                let fault = if scope == Scope::Element { "context.fault" } else { "fault" };
                value.replace("FAULT", fault)
            }
            StepOp::Where(c, a, b) => {
                format!("{} ? {} : {}", operand(*c), operand(*a), operand(*b))
            }
            StepOp::Cast(a) => steps::cast(from(*a), step.dtype, &operand(*a)),
            StepOp::Round(to, a) => steps::load(&steps::store(&operand(*a), *to), *to),
        };
        line(text, 1, format_args!("const {} s{} = {value};", computed(step.dtype), id.0));
    }

    /// A read at computed indices: 0 and a fault where one is out of range.
    fn at(&self, id: StepId, input: usize, indices: &[String], text: &mut String) {
        let (dtype, id, view) = (self.lowered.inputs()[input], id.0, self.view(input));
        let ty = computed(dtype);
        if indices.is_empty() {
            let element = steps::load(&format!("context.{}[0]", self.data[input]), dtype);
            return line(text, 1, format_args!("const {ty} s{id} = {element};"));
        }
        line(text, 1, format_args!("long long s{id}_place = 0;"));
        for (dim, index) in indices.iter().enumerate() {
            let (declare, and) = match dim {
                0 => ("bool ", String::new()),
                _ => ("", format!(" && s{id}_found")),
            };
            line(
                text,
                1,
                format_args!(
                    "{declare}s{id}_found = kf_locate({index}, context.{view}.size[{dim}], \
                     context.{view}.stride[{dim}], s{id}_place){and};"
                ),
            );
        }
        let code = input + 2;
        line(text, 1, format_args!("if (!s{id}_found) kf_fault(context.fault, {code}u);"));
        let element = steps::load(&format!("context.{}[s{id}_place]", self.data[input]), dtype);
        line(
            text,
            1,
            format_args!("const {ty} s{id} = s{id}_found ? {element} : {};", zero(dtype)),
        );
    }

    /// What elements need of the kernel: type, name.
    fn context(&self) -> Vec<(String, String)> {
        let steps = self.lowered.steps();
        let mut used = BTreeSet::new();
        for step in steps.iter().filter(|step| !step.uniform) {
            step.op.operands(|id| {
                used.insert(id);
            });
        }
        used.insert(StepId(steps.len() as u32 - 1));
        let mut members = Vec::new();
        for id in used {
            let step = self.step(id);
            if step.uniform && !matches!(step.op, StepOp::Constant(_)) {
                members.push((computed(step.dtype).into(), self.operand(id, Scope::Kernel)));
            }
        }
        for (input, rank) in self.lowered.ranks().iter().enumerate() {
            let Some(rank) = rank else { continue };
            let ty = stored(self.lowered.inputs()[input]);
            members.push((format!("const {ty}*"), self.data[input].clone()));
            if *rank > 0 {
                members.push((format!("kf_ranked<{rank}>"), self.view(input)));
            }
        }
        if self.shape > 0 {
            members.push((format!("{}_shape", self.options.name), "shape".into()));
        }
        if self.faults {
            members.push(("unsigned*".into(), "fault".into()));
        }
        members
    }

    fn parameters(&self) -> Vec<Parameter> {
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

    /// The bytes of a parameter, and what it is aligned to.
    fn size(&self, argument: Argument) -> usize {
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

    /// The whole text.
    pub(super) fn finish(self) -> Result<Source> {
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
        self.element(&mut text);
        self.kernel(&parameters, &mut text);
        Ok(Source {
            text,
            name: self.options.name.clone(),
            parameters,
            vector: self.vector,
            dims: self.options.dims,
        })
    }

    /// The structs that are named after the kernel.
    fn structs(&self, text: &mut String) {
        let name = &self.options.name;
        let array = |text: &mut String, ty: &str, field: &str, dims: u32| {
            line(text, 1, format_args!("{ty} {field}[{dims}];"));
        };
        if self.options.layout == Layout::Strided {
            write_all(
                text,
                format_args!("// Of the last dimension first.\nstruct {name}_strides {{\n"),
            );
            line(text, 1, format_args!("long long dims;\n    long long wide;"));
            for field in ["size", "magic", "shift"] {
                array(text, "unsigned long long", field, self.options.dims);
            }
            array(text, "long long", "out", self.options.dims);
            for input in self.elementwise() {
                array(text, "long long", &self.data[input], self.options.dims);
            }
            text.push_str("};\n\n");
        }
        if self.shape > 0 {
            write_all(
                text,
                format_args!("// Of the last dimension first.\nstruct {name}_shape {{\n"),
            );
            line(text, 1, format_args!("long long wide;"));
            for field in ["size", "magic", "shift"] {
                array(text, "unsigned long long", field, self.shape);
            }
            text.push_str("};\n\n");
        }
        let members = self.context();
        if !members.is_empty() {
            write_all(
                text,
                format_args!("// What is the same for all elements.\nstruct {name}_context {{\n"),
            );
            for (ty, name) in members {
                line(text, 1, format_args!("{ty} {name};"));
            }
            text.push_str("};\n\n");
        }
    }

    /// The function that computes one element.
    fn element(&self, text: &mut String) {
        let name = &self.options.name;
        let mut parameters = Vec::new();
        if !self.context().is_empty() {
            parameters.push(format!("const {name}_context& context"));
        }
        if self.places {
            parameters.push("const long long at".into());
        }
        for input in &self.loaded {
            let dtype = self.lowered.inputs()[*input as usize];
            parameters.push(format!("const {} {}", computed(dtype), self.values[*input as usize]));
        }
        write_all(
            text,
            format_args!(
                "static __device__ __forceinline__ {} {name}_element({}) {{\n",
                computed(self.lowered.result()),
                parameters.join(", ")
            ),
        );
        self.coordinates(text);
        for (at, step) in self.lowered.steps().iter().enumerate() {
            if !step.uniform {
                self.statement(StepId(at as u32), Scope::Element, text);
            }
        }
        let last = StepId(self.lowered.steps().len() as u32 - 1);
        line(text, 1, format_args!("return {};", self.operand(last, Scope::Element)));
        text.push_str("}\n\n");
    }

    /// The element's places along dimensions, from its place in row-major order.
    fn coordinates(&self, text: &mut String) {
        let used = |dim| self.lowered.steps().iter().any(|step| step.op == StepOp::Coordinate(dim));
        let mut rest = "(unsigned long long)at".to_owned();
        for dim in 0..self.shape {
            line(
                text,
                1,
                format_args!(
                    "const unsigned long long outer{dim} = kf_divide({rest}, \
                     context.shape.magic[{dim}], context.shape.shift[{dim}], \
                     context.shape.wide != 0);"
                ),
            );
            if used(dim) {
                line(
                    text,
                    1,
                    format_args!(
                        "const long long coordinate{dim} = \
                         (long long)({rest} - outer{dim} * context.shape.size[{dim}]);"
                    ),
                );
            }
            rest = format!("outer{dim}");
        }
    }

    /// The call of the element's function; `value` says how an input's element is written.
    fn call(&self, place: &str, value: impl Fn(u32) -> String) -> String {
        let mut given = Vec::new();
        if !self.context().is_empty() {
            given.push("context".into());
        }
        if self.places {
            given.push(format!("(long long)({place})"));
        }
        for input in &self.loaded {
            given.push(steps::load(&value(*input), self.lowered.inputs()[*input as usize]));
        }
        let call = format!("{}_element({})", self.options.name, given.join(", "));
        steps::store(&call, self.lowered.result())
    }

    fn kernel(&self, parameters: &[Parameter], text: &mut String) {
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
                self.statement(StepId(at as u32), Scope::Kernel, text);
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

    /// The loop over vectors, where there are any; returns where the loop over the rest begins.
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

/// Writing to a string can't fail.
fn write_all(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    let _ = text.write_fmt(arguments);
}

fn line(text: &mut String, depth: usize, arguments: std::fmt::Arguments<'_>) {
    text.push_str(&"    ".repeat(depth));
    write_all(text, arguments);
    text.push('\n');
}
