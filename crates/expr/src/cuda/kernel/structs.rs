//! A kernel's structs: sizes and strides, and the context of its elements.

use std::collections::BTreeSet;

use super::element::ValueScope;
use super::{Writer, line, write_all};
use crate::cuda::Layout;
use crate::cuda::numbers::{computed, stored};
use crate::lower::{StepId, StepOp};

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

    /// Writes the structs that are named after the kernel.
    pub(super) fn structs(&self, text: &mut String) {
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
                format_args!(
                    "// The arguments that all elements share.\nstruct {name}_context {{\n"
                ),
            );
            for (ty, name) in members {
                line(text, 1, format_args!("{ty} {name};"));
            }
            text.push_str("};\n\n");
        }
    }
}
