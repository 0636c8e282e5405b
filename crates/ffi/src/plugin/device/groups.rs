//! The operations of a plugin's devices that have any number of outputs: their parameters are fields.

use std::mem::size_of;

use keyfold_backend::{Execute, Field, Group, Kernels, Offer, Operation, Params};
use keyfold_core::{DType, Result};
use keyfold_plugin::abi::Text;
use keyfold_plugin::abi::device::{self as abi, GROUPS};
use keyfold_tensor::Tensor;

use super::kernels::{Named, PluginBackend, address};

/// Returns the bit of a group in the ABI; 0 for a group that it doesn't have.
pub(super) fn bit_of(group: Group) -> u64 {
    GROUPS.iter().find(|(_, name)| *name == group.name()).map_or(0, |(bit, _)| *bit)
}

fn named<P: Params>(op: &'static Operation) -> Named {
    (bit_of(P::GROUP), op.name())
}

/// Returns a parameter as the ABI has it, which borrows its numbers.
fn field_of((name, field): &(&'static str, Field)) -> abi::Field {
    let (name, empty) = (Text::new(name), Text::new(""));
    let none = abi::Field {
        name,
        kind: abi::FIELD_INT,
        count: 0,
        int: 0,
        float: 0.0,
        ints: std::ptr::null(),
        text: empty,
    };
    match field {
        Field::Int(int) => abi::Field { int: *int, ..none },
        Field::Bits(bits) => abi::Field { kind: abi::FIELD_BITS, int: *bits as i64, ..none },
        Field::Float(float) => abi::Field { kind: abi::FIELD_FLOAT, float: *float, ..none },
        Field::Ints(all) => {
            let (count, ints) = (all.len() as u32, all.as_ptr());
            abi::Field { kind: abi::FIELD_INTS, count, ints, ..none }
        }
        Field::Text(text) => abi::Field { kind: abi::FIELD_TEXT, text: Text::new(text), ..none },
    }
}

impl<P: Params> Kernels<P> for PluginBackend {
    fn kernel(
        &self,
        op: &'static Operation,
        inputs: &[DType],
        outputs: &[DType],
    ) -> Offer<&dyn Execute<P>> {
        match self.supported(named::<P>(op), inputs, outputs) {
            Ok(()) => Offer::Native(self),
            Err(reason) => Offer::No(reason),
        }
    }
}

impl<P: Params> Execute<P> for PluginBackend {
    unsafe fn execute(&self, params: &P, inputs: &[&Tensor], outputs: &[&Tensor]) -> Result<()> {
        let values = params.fields();
        let fields: Vec<abi::Field> = values.iter().map(field_of).collect();
        let (size, count) = (size_of::<abi::Fields>() as u32, fields.len() as u32);
        let given = abi::Fields { size, count, fields: fields.as_ptr() };
        self.execute(named::<P>(params.operation()), address(&given), inputs, outputs)
    }
}
