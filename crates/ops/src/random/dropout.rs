//! `dropout`, a composite of other operators, so that all layers derive their rules from those: of
//! `native_dropout`, and on devices without that of a comparison of random numbers.

use keyfold_core::{DType, Error, ErrorKind, Result, Scalar};
use keyfold_dispatch::{CallContext, Kernel, RegistrationKey, Tags, Value as _};
use keyfold_layers::autocast::Category;
use keyfold_layers::vmap;
use keyfold_tensor::{Value, ValueRef};

use crate::inferred::Inferred;
use crate::naming::named;
use crate::row::{Layers, Row, Rule};

const NAME: &str = "aten::dropout";

fn error(kind: ErrorKind, message: &str) -> Error {
    Error::new(kind, format!("{NAME}: {message}"))
}

/// Replaces each element by 0 with probability `p` and scales the others by `1 / (1 - p)`, so that the
/// expectation is unchanged (N. Srivastava and others, "Dropout: a simple way to prevent neural networks
/// from overfitting", 2014, in the form that scales while training).
fn dropout(context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> Result<Value> {
    let [given, p, train] = args else {
        return Err(error(ErrorKind::Binding, &format!("takes 3 arguments, not {}", args.len())));
    };
    let x = given.tensor()?;
    let p = p.scalar().map_or(f64::NAN, Scalar::as_f64);
    if !(0.0..=1.0).contains(&p) {
        let message = format!("argument 'p' is a probability, from 0 to 1, and not {p}");
        return Err(error(ErrorKind::Value, &message));
    }
    if matches!(train, ValueRef::Bool(false)) || p == 0.0 {
        return Ok(Value::Argument(0));
    }
    if !x.dtype().is_floating() {
        let message = format!(
            "argument 'self': dtype {} isn't supported here; convert to a float with aten::to",
            x.dtype()
        );
        return Err(error(ErrorKind::DType, &message));
    }
    let dispatcher = context.dispatcher()?;
    let call = |name: &str, args: &[ValueRef<'_>]| dispatcher.call(name, args);
    let device = ValueRef::Device(x.device());
    if p == 1.0 {
        // A product with 0 would be NaN for infinite elements.
        let none =
            call("aten::zeros", &[ValueRef::Ints(&[]), ValueRef::DType(DType::Bool), device])?;
        return call("aten::where.ScalarOther", &[none.as_ref(), *given, ValueRef::Float(0.0)]);
    }
    // Inside vmap the open frames decide which examples share numbers, which `rand` knows.
    if vmap::innermost().is_none() {
        let native =
            call("aten::native_dropout", &[*given, ValueRef::Float(p), ValueRef::Bool(true)]);
        match native {
            Err(error) if error.kind() == ErrorKind::NotSupported => {}
            result => return first_of(result?),
        }
    }
    let size: Vec<i64> = x.shape().iter().map(|n| *n as i64).collect();
    let draw = [ValueRef::Ints(&size), ValueRef::DType(DType::F32), device];
    let drawn = call("aten::rand", &draw)?;
    let kept = call("aten::ge.Scalar", &[drawn.as_ref(), ValueRef::Float(p)])?;
    let scaled = call("aten::mul.Scalar", &[*given, ValueRef::Float(1.0 / (1.0 - p))])?;
    call("aten::where.ScalarOther", &[kept.as_ref(), scaled.as_ref(), ValueRef::Float(0.0)])
}

/// Returns the first of several results.
fn first_of(results: Value) -> Result<Value> {
    match results {
        Value::Tuple(results) => results.into_iter().next(),
        _ => None,
    }
    .ok_or_else(|| error(ErrorKind::Return, "aten::native_dropout returned no tuple"))
}

/// Infers the result, which is the argument itself where nothing is replaced.
fn infer(args: &[ValueRef<'_>]) -> Result<Inferred> {
    let x = args[0].tensor()?;
    let keeps = matches!(args[2], ValueRef::Bool(false))
        || args[1].scalar().is_some_and(|p| !p.is_nonzero());
    Ok(match keeps {
        true => Inferred::argument(0, x),
        false => Inferred::fresh(x.shape().clone(), x.dtype()),
    })
}

/// Returns the row of `dropout`.
pub(super) fn row() -> Result<Row> {
    let row = Row::composite(
        "aten::dropout(Tensor self, float p=0.5, bool train=True) -> Tensor",
        RegistrationKey::CompositeImplicitAutograd,
        || Kernel::boxed(dropout),
        infer,
        Layers {
            derivative: Rule::Derived,
            tangent: Rule::Derived,
            batching: Rule::Derived,
            autocast: Category::Leave,
        },
        named(
            "dropout",
            "Tensor x, float p=0.5, *, bool train=True",
            "Return the array of floats with random elements replaced by 0. Not in the \
             standard.\n\nThe others are scaled by `1 / (1 - p)`, so that the expectation doesn't \
             change. The random\nnumbers are the process's own, see `manual_seed`.\n\nRaises:\n    \
             InvalidValue: the probability is out of range.",
        ),
    )?;
    Ok(row.tagged(Tags::NONDETERMINISTIC_SEEDED))
}
