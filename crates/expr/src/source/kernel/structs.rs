//! A kernel's structs: sizes and strides, and the context of its elements.

use std::collections::BTreeSet;

use super::element::ValueScope;
use super::{Writer, line, write_all};
use crate::lower::{StepId, StepOp};
use crate::source::Layout;
use crate::source::numbers::{computed, stored};

impl Writer<'_> {
    /// Returns the fields of the elements' context: type, name.
    pub(super) fn context(&self) -> Vec<(String, String)> {
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
                members.push((computed(step.dtype).into(), self.operand(id, ValueScope::Kernel)));
            }
        }
        for (input, rank) in self.lowered.ranks().iter().enumerate() {
            let Some(rank) = rank else { continue };
            let ty = stored(self.lowered.inputs()[input]);
            members.push((format!("$GLOBAL const {ty}*"), self.data[input].clone()));
            if self.options.target.has_offsets() {
                members.push(("$I64".into(), format!("{}_offset", self.data[input])));
            }
            if *rank > 0 {
                members.push((format!("kf_ranked{rank}"), self.view(input)));
            }
        }
        if self.shape > 0 {
            members.push((format!("{}_shape", self.options.name), "shape".into()));
        }
        if self.faults {
            members.push(("$GLOBAL $U32*".into(), "fault".into()));
        }
        members
    }

    /// Writes the structs that are named after the kernel.
    pub(super) fn structs(&self, text: &mut String) {
        self.vector_structs(text);
        let name = &self.options.name;
        let array = |text: &mut String, ty: &str, field: &str, dims: u32| {
            line(text, 1, format_args!("{ty} {field}[{dims}];"));
        };
        if self.options.layout == Layout::Strided {
            write_all(text, format_args!("// Of the last dimension first.\ntypedef struct {{\n"));
            line(text, 1, format_args!("$I64 dims;\n    $I64 wide;"));
            for field in ["size", "magic", "shift"] {
                array(text, "$U64", field, self.options.dims);
            }
            array(text, "$I64", "out_data", self.options.dims);
            for input in self.elementwise() {
                array(text, "$I64", &self.data[input], self.options.dims);
            }
            write_all(text, format_args!("}} {name}_strides;\n\n"));
        }
        if self.shape > 0 {
            write_all(text, format_args!("// Of the last dimension first.\ntypedef struct {{\n"));
            line(text, 1, format_args!("$I64 wide;"));
            for field in ["size", "magic", "shift"] {
                array(text, "$U64", field, self.shape);
            }
            write_all(text, format_args!("}} {name}_shape;\n\n"));
        }
        let members = self.context();
        if !members.is_empty() {
            write_all(
                text,
                format_args!("// The arguments that all elements share.\ntypedef struct {{\n"),
            );
            for (ty, member) in members {
                line(text, 1, format_args!("{ty} {member};"));
            }
            write_all(text, format_args!("}} {name}_context;\n\n"));
        }
    }
}
