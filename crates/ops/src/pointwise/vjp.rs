//! Reverse mode of expressions: symbolic derivatives, which are expressions.

use std::sync::Arc;

use keyfold_core::{Complex, DTypeKind, Error, ErrorKind, Result, Scalar};
use keyfold_expr::Variable;
use keyfold_layers::aten::Aten;
use keyfold_layers::autograd::{Backward, Derivative, Gradients, Saves, TensorMeta};
use keyfold_tensor::{Tensor, ValueRef};

use super::expression::{ComplexText, ELEMENTWISE, Expression, cached_expression};
use crate::vjp::{match_meta, zeros_of};

/// The inputs and parameters of an expression among the arguments of an operator.
enum ExpressionArguments {
    /// An operator with a fixed expression: the positions of the arguments.
    Arguments { text: Arc<Expression>, inputs: Vec<usize>, params: Vec<usize> },
    /// `keyfold::elementwise`: lists of inputs and numbers, and the expression as text.
    List,
}

/// The symbolic derivative of an operator.
struct ExpressionVjp {
    name: String,
    arguments: ExpressionArguments,
}

/// Makes the derivative of an operator whose arguments at these positions are the inputs and parameters.
pub(crate) fn of_arguments(
    name: &str,
    text: Arc<Expression>,
    (inputs, params): (Vec<usize>, Vec<usize>),
) -> Arc<dyn Derivative> {
    Arc::new(ExpressionVjp {
        name: name.to_owned(),
        arguments: ExpressionArguments::Arguments { text, inputs, params },
    })
}

/// Makes the derivative of `keyfold::elementwise`.
pub(super) fn of_elementwise(name: &str) -> Arc<dyn Derivative> {
    Arc::new(ExpressionVjp { name: name.to_owned(), arguments: ExpressionArguments::List })
}

impl ExpressionVjp {
    fn gradients(
        &self,
        text: &Expression,
        grad: &Tensor,
        tensors: &[Tensor],
        params: &[Scalar],
        wanted: impl Fn(usize) -> Option<TensorMeta>,
    ) -> Result<Vec<Option<Tensor>>> {
        static CALL: Aten = Aten::new(ELEMENTWISE);
        let mut inputs: Vec<ValueRef<'_>> = tensors.iter().map(ValueRef::from).collect();
        inputs.push(grad.into());
        let numbers: Vec<ValueRef<'_>> = params.iter().map(|number| (*number).into()).collect();
        let unit = Scalar::Complex(Complex::new(0.0, 1.0));
        let with_unit: Vec<ValueRef<'_>> = numbers.iter().copied().chain([unit.into()]).collect();
        let complex = tensors.iter().chain([grad]).any(|tensor| tensor.dtype().is_complex())
            || params.iter().any(|number| number.kind() == DTypeKind::Complex);
        (0..tensors.len())
            .map(|i| {
                let Some(form) = wanted(i) else { return Ok(None) };
                let found = match complex {
                    false => text
                        .gradient(i)
                        .map(|text| text.map(|text| ComplexText { text, takes_unit: false })),
                    true => text.complex_gradient(
                        i,
                        match form.dtype.is_complex() {
                            true => Variable::Complex,
                            false => Variable::Real,
                        },
                    ),
                };
                let gradient = found.map_err(|error| match error.kind() {
                    ErrorKind::NotSupported => {
                        let message = format!("{}: {}", self.name, error.message());
                        Error::new(ErrorKind::Gradient, message)
                    }
                    _ => error.at(&self.name),
                })?;
                // The derivative of a step function (`floor`, `round`) is zero.
                let Some(gradient) = gradient else { return zeros_of(&form).map(Some) };
                let args = [
                    ValueRef::Refs(&inputs),
                    ValueRef::Refs(if gradient.takes_unit { &with_unit } else { &numbers }),
                    ValueRef::Str(&gradient.text),
                    ValueRef::None,
                ];
                match_meta(&form, &CALL.call(&args)?).map(Some)
            })
            .collect()
    }
}

impl Derivative for ExpressionVjp {
    fn name(&self) -> &str {
        &self.name
    }

    fn saves(&self) -> Saves {
        match &self.arguments {
            ExpressionArguments::List => Saves::arguments(&[0]),
            ExpressionArguments::Arguments { inputs, .. } => {
                let positions: Vec<u32> =
                    inputs.iter().map(|at| *at as u32).filter(|at| *at < 64).collect();
                Saves::arguments(&positions)
            }
        }
    }

    fn apply(&self, call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        let [Some(grad)] = grads else { return Ok(vec![None; call.slots()]) };
        match &self.arguments {
            ExpressionArguments::Arguments { text, inputs, params } => {
                let tensors: Vec<Tensor> =
                    inputs.iter().map(|at| call.tensor(*at)).collect::<Result<_>>()?;
                let params: Vec<Scalar> = params.iter().map(|at| call.scalar(*at)).collect();
                let wanted = |i: usize| call.needs(inputs[i]).then(|| call.meta(inputs[i]));
                self.gradients(text, grad, &tensors, &params, wanted)
            }
            ExpressionArguments::List => {
                let ValueRef::Str(source) = call.value(2) else {
                    return Ok(vec![None; call.slots()]);
                };
                let expression = cached_expression(source)?;
                let tensors: Vec<Tensor> = call.tensors(0)?.into_iter().flatten().collect();
                let forms = call.metas(0);
                let params: Vec<Scalar> =
                    call.value(1).items().filter_map(ValueRef::scalar).collect();
                let wanted = |i: usize| forms[i].clone().filter(|_| call.needs_slot(i));
                self.gradients(&expression, grad, &tensors, &params, wanted)
            }
        }
    }
}
