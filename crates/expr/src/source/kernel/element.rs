//! The device function that computes one element: a statement per step.

use keyfold_core::{DType, Result};

use super::{Writer, line, write_all};
use crate::lower::{StepId, StepOp, undefined};
use crate::source::numbers::{computed, literal, zero};
use crate::source::steps;

/// The place where a step's value is used.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ValueScope {
    /// In the kernel, before its loop, for values that are the same for all elements.
    Kernel,
    /// In the function of one element.
    Element,
}

impl Writer<'_> {
    pub(super) fn operand(&self, id: StepId, scope: ValueScope) -> String {
        let step = self.step(id);
        let outer = if scope == ValueScope::Element { "context->" } else { "" };
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

    /// Writes the statement that computes a step; none for steps that are written inline as
    /// operands.
    ///
    /// # Errors
    /// [`ErrorKind::DType`](keyfold_core::ErrorKind) for a function that isn't defined for its
    /// operands' dtype.
    pub(super) fn statement(&self, id: StepId, scope: ValueScope, text: &mut String) -> Result<()> {
        let step = self.step(id);
        let operand = |id: StepId| self.operand(id, scope);
        let from = |id: StepId| self.step(id).dtype;
        let found = |text: Option<String>, name: &str, from: DType| {
            text.ok_or_else(|| undefined(name, from, "no kernel computes it"))
        };
        let value = match &step.op {
            StepOp::Constant(_)
            | StepOp::Input(_)
            | StepOp::Param { .. }
            | StepOp::Index
            | StepOp::Coordinate(_) => return Ok(()),
            StepOp::At { input, indices } => {
                let indices: Vec<String> = indices.iter().map(|id| operand(*id)).collect();
                self.at(id, *input as usize, &indices, text);
                return Ok(());
            }
            StepOp::Unary(op, a) => {
                found(steps::unary(*op, step, from(*a), &operand(*a)), op.name(), from(*a))?
            }
            StepOp::Binary(op, a, b) => {
                let value = steps::binary(*op, step, from(*a), &operand(*a), &operand(*b));
                let value = found(value, op.name(), from(*a))?;
                let fault = if scope == ValueScope::Element { "context->fault" } else { "fault" };
                value.replace("FAULT", fault)
            }
            StepOp::Where(c, a, b) => {
                format!("{} ? {} : {}", operand(*c), operand(*a), operand(*b))
            }
            StepOp::Cast(a) => steps::cast(from(*a), step.dtype, &operand(*a)),
            StepOp::Round(to, a) => steps::load(&steps::store(&operand(*a), from(*a), *to), *to),
        };
        line(text, 1, format_args!("const {} s{} = {value};", computed(step.dtype), id.0));
        Ok(())
    }

    /// Writes a read at computed indices, which returns 0 and reports a fault if one is out of
    /// range.
    fn at(&self, id: StepId, input: usize, indices: &[String], text: &mut String) {
        let (dtype, id, view) = (self.lowered.inputs()[input], id.0, self.view(input));
        let ty = computed(dtype);
        let data = &self.data[input];
        if indices.is_empty() {
            let element = steps::load(&self.element_at("context->", data, "0"), dtype);
            return line(text, 1, format_args!("const {ty} s{id} = {element};"));
        }
        let (mut found, mut place) = (Vec::new(), Vec::new());
        for (dim, index) in indices.iter().enumerate() {
            line(
                text,
                1,
                format_args!(
                    "const $I64 s{id}_at{dim} = kf_locate({index}, context->{view}.size[{dim}]);"
                ),
            );
            found.push(format!("s{id}_at{dim} >= 0"));
            place.push(format!("s{id}_at{dim} * context->{view}.stride[{dim}]"));
        }
        line(text, 1, format_args!("const bool s{id}_found = {};", found.join(" && ")));
        let code = input + 2;
        line(text, 1, format_args!("if (!s{id}_found) kf_fault(context->fault, {code}u);"));
        let element = steps::load(&self.element_at("context->", data, &place.join(" + ")), dtype);
        line(
            text,
            1,
            format_args!("const {ty} s{id} = s{id}_found ? {element} : {};", zero(dtype)),
        );
    }

    /// Writes the function that computes one element.
    ///
    /// # Errors
    /// As [`Writer::statement`].
    pub(super) fn element(&self, text: &mut String) -> Result<()> {
        let name = &self.options.name;
        let mut parameters = Vec::new();
        if !self.context().is_empty() {
            parameters.push(format!("const {name}_context* context"));
        }
        if self.uses_index {
            parameters.push("const $I64 at".into());
        }
        for input in &self.loaded {
            let dtype = self.lowered.inputs()[*input as usize];
            parameters.push(format!("const {} {}", computed(dtype), self.values[*input as usize]));
        }
        write_all(
            text,
            format_args!(
                "$DEVICE {} {name}_element({}) {{\n",
                computed(self.lowered.result()),
                parameters.join(", ")
            ),
        );
        self.coordinates(text);
        for (at, step) in self.lowered.steps().iter().enumerate() {
            if !step.uniform {
                self.statement(StepId(at as u32), ValueScope::Element, text)?;
            }
        }
        let last = StepId(self.lowered.steps().len() as u32 - 1);
        line(text, 1, format_args!("return {};", self.operand(last, ValueScope::Element)));
        text.push_str("}\n\n");
        Ok(())
    }

    /// Writes the element's indices along dimensions, computed from its index in row-major order.
    fn coordinates(&self, text: &mut String) {
        let used = |dim| self.lowered.steps().iter().any(|step| step.op == StepOp::Coordinate(dim));
        let mut rest = "($U64)at".to_owned();
        for dim in 0..self.shape {
            line(
                text,
                1,
                format_args!(
                    "const $U64 outer{dim} = kf_divide({rest}, \
                     context->shape.magic[{dim}], context->shape.shift[{dim}], \
                     context->shape.wide != 0);"
                ),
            );
            if used(dim) {
                line(
                    text,
                    1,
                    format_args!(
                        "const $I64 coordinate{dim} = \
                         ($I64)({rest} - outer{dim} * context->shape.size[{dim}]);"
                    ),
                );
            }
            rest = format!("outer{dim}");
        }
    }

    /// Returns a call of the element's function; `value` returns the text of an input's element.
    pub(super) fn call(&self, place: &str, value: impl Fn(u32) -> String) -> String {
        let mut given = Vec::new();
        if !self.context().is_empty() {
            given.push("&context".into());
        }
        if self.uses_index {
            given.push(place.into());
        }
        for input in &self.loaded {
            given.push(steps::load(&value(*input), self.lowered.inputs()[*input as usize]));
        }
        let call = format!("{}_element({})", self.options.name, given.join(", "));
        let last = self.step(StepId(self.lowered.steps().len() as u32 - 1));
        steps::store(&call, last.dtype, self.lowered.result())
    }
}
