//! Forward mode of expressions: the symbolic derivatives, which are expressions, times the tangents.

use std::sync::Arc;

use keyfold_core::{Complex, DTypeKind, Error, ErrorKind, Result, Scalar};
use keyfold_expr::Variable;
use keyfold_layers::aten::Aten;
use keyfold_layers::autograd::{Forward, Pushforward, Tangents, added};
use keyfold_tensor::{Tensor, ValueRef};

use super::expression::{ComplexText, ELEMENTWISE, Expression, cached_expression};

/// The rule of an operator with a fixed expression; the positions are those of the expression's inputs and
/// parameters among the arguments.
struct ArgumentsJvp {
    name: String,
    text: Arc<Expression>,
    inputs: Vec<usize>,
    params: Vec<usize>,
}

/// The rule of `keyfold::elementwise`, whose expression is an argument.
struct ElementwiseJvp;

pub(crate) fn of_arguments(
    name: &str,
    text: Arc<Expression>,
    (inputs, params): (Vec<usize>, Vec<usize>),
) -> Arc<dyn Pushforward> {
    Arc::new(ArgumentsJvp { name: name.to_owned(), text, inputs, params })
}

pub(super) fn of_elementwise() -> Arc<dyn Pushforward> {
    Arc::new(ElementwiseJvp)
}

impl Pushforward for ArgumentsJvp {
    fn apply(&self, call: &Forward<'_, '_>) -> Result<Vec<Option<Tensor>>> {
        let inputs: Vec<ValueRef<'_>> = self.inputs.iter().map(|at| call.args()[*at]).collect();
        let tangents: Vec<Option<Tensor>> =
            self.inputs.iter().map(|at| call.tangent(*at).cloned()).collect();
        let params: Vec<Scalar> =
            self.params.iter().filter_map(|at| call.args()[*at].scalar()).collect();
        tangent(&self.name, &self.text, &inputs, &tangents, &params).map(|one| vec![one])
    }
}

impl Pushforward for ElementwiseJvp {
    fn apply(&self, call: &Forward<'_, '_>) -> Result<Vec<Option<Tensor>>> {
        let (args, Tangents::Each(tangents)) = (call.args(), call.tangents(0)) else {
            return Ok(vec![None]);
        };
        let ValueRef::Str(source) = args[2] else { return Ok(vec![None]) };
        let inputs: Vec<ValueRef<'_>> = args[0].items().collect();
        let params: Vec<Scalar> = args[1].items().filter_map(ValueRef::scalar).collect();
        tangent(ELEMENTWISE, &*cached_expression(source)?, &inputs, tangents, &params)
            .map(|one| vec![one])
    }
}

/// Computes the tangent of an expression's value, which is the sum over its inputs.
fn tangent(
    name: &str,
    expression: &Expression,
    inputs: &[ValueRef<'_>],
    tangents: &[Option<Tensor>],
    params: &[Scalar],
) -> Result<Option<Tensor>> {
    static CALL: Aten = Aten::new(ELEMENTWISE);
    let is_complex = |tensor: &Tensor| tensor.dtype().is_complex();
    let complex = tangents.iter().flatten().any(is_complex)
        || inputs.iter().any(|input| input.tensor().is_ok_and(is_complex))
        || params.iter().any(|number| number.kind() == DTypeKind::Complex);
    let numbers: Vec<ValueRef<'_>> = params.iter().map(|number| (*number).into()).collect();
    let unit = Scalar::Complex(Complex::new(0.0, 1.0));
    let with_unit: Vec<ValueRef<'_>> = numbers.iter().copied().chain([unit.into()]).collect();
    let mut sum = None;
    for (i, tangent) in tangents.iter().enumerate() {
        let Some(tangent) = tangent else { continue };
        let found = match complex {
            // For real numbers the tangent is the derivative times the input's tangent, so the expression of the
            // gradient serves.
            false => expression
                .gradient(i)
                .map(|text| text.map(|text| ComplexText { text, takes_unit: false })),
            true if is_complex(tangent) => expression.complex_tangent(i, Variable::Complex),
            true => expression.complex_tangent(i, Variable::Real),
        };
        let found = found.map_err(|error| match error.kind() {
            ErrorKind::NotSupported => {
                Error::new(ErrorKind::Gradient, format!("{name}: {}", error.message()))
            }
            _ => error.at(name),
        })?;
        // The derivative of a step function (`floor`, `round`) is zero.
        let Some(ComplexText { text, takes_unit }) = found else { continue };
        let inputs: Vec<ValueRef<'_>> = inputs.iter().copied().chain([tangent.into()]).collect();
        let args = [
            ValueRef::Refs(&inputs),
            ValueRef::Refs(if takes_unit { &with_unit } else { &numbers }),
            ValueRef::Str(&text),
            ValueRef::None,
        ];
        sum = added(sum, Some(CALL.call(&args)?))?;
    }
    Ok(sum)
}
