//! The overload `out` of composites: the results are computed, and then copied.

use keyfold_core::{Device, Result};
use keyfold_dispatch::{CallContext, Kernel};
use keyfold_layers::autograd::TensorMeta;
use keyfold_tensor::{Tensor, Value, ValueRef};
use smallvec::SmallVec;

use super::{FormFollows, Row};
use crate::aten;
use crate::infer::{tuple_of, wanted_outs};
use crate::inferred::Inferred;
use crate::op::{Op, Target};

/// The arguments that results are written into, with their names: `None` for a result that isn't wanted.
pub(super) type Outs<'a> = SmallVec<[(&'a str, Option<&'a Tensor>); 4]>;

/// Returns the arguments of an operator and those that its overload `out` has in addition. `own` is the number of
/// the former.
pub(super) fn split_outs<'s, 'a>(
    context: &'s CallContext<'_, Value>,
    args: &'s [ValueRef<'a>],
    own: usize,
) -> Result<(&'s [ValueRef<'a>], Outs<'s>)> {
    let (args, outs) = args.split_at(own.min(args.len()));
    let given = context.operator().schema().arguments[own..].iter().zip(outs);
    let given = given.map(|(argument, out)| match out {
        ValueRef::None => Ok((&*argument.name, None)),
        out => Ok((&*argument.name, Some(out.tensor()?))),
    });
    Ok((args, given.collect::<Result<_>>()?))
}

impl Row {
    /// Makes the kernel of a composite's overload `out`.
    pub(super) fn composite_out(&self) -> Kernel<Value> {
        let (op, infer) = (Op::new(self.name, Target::Meta), self.infer.clone());
        let (name, own) = (self.schema.name.to_string(), self.schema.arguments.len());
        Kernel::boxed(move |context, args| {
            let (args, outs) = split_outs(context, args, own)?;
            let compute = || context.dispatcher()?.call(&name, args);
            if let FormFollows::Arguments(infer) = &infer {
                match infer(args) {
                    Ok(forms) => check_outs(&op, forms, &outs)?,
                    // The operator's own error has its name.
                    Err(error) => return Err(compute().err().unwrap_or(error)),
                }
            }
            let results = match compute()? {
                Value::Tuple(results) => results,
                one => vec![one],
            };
            for (result, (_, out)) in results.into_iter().zip(&outs) {
                if let Some(out) = out {
                    aten::copy_(out, &aten::detach(&result.into_tensor()?)?)?;
                }
            }
            Ok(tuple_of(outs.iter().map(|(_, out)| out.cloned())))
        })
    }
}

/// Refuses tensors that results of these forms can't be written into.
fn check_outs(op: &Op, forms: Vec<Option<Inferred>>, outs: &Outs<'_>) -> Result<()> {
    let device = outs.iter().find_map(|(_, out)| *out).map_or(Device::META, Tensor::device);
    let form = |result: Inferred| TensorMeta { device, shape: result.shape, dtype: result.dtype };
    let forms: Vec<_> = forms.into_iter().map(|result| result.map(form)).collect();
    for (_, name, out) in wanted_outs(op, &forms, outs)? {
        if out.device() != Device::META {
            op.at_argument(name, out.check_writable())?;
        }
    }
    Ok(())
}
