//! `keyfold::elementwise`: an operator that evaluates any expression, which is one of its arguments.
//!
//! Derivatives of expressions are expressions, and are computed by calls of this operator. So gradients of
//! gradients, batches and traces of them need no further rules. The expression is a text that begins with its
//! arguments, as in `x, table[2]; beta: beta * x * table[index, 0]`: the inputs (with the rank of a table),
//! and after the `;` the parameters.

use std::sync::{Arc, LazyLock, RwLock};

use keyfold_core::{Error, ErrorKind, Result, Scalar};
use keyfold_expr::{ComplexGradient, Expr, Names, Variable};
use keyfold_layers::autocast::Category;
use keyfold_tensor::{Tensor, ValueRef};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::vjp::of_elementwise;
use super::{Pointwise, batching, jvp, parse, shape_argument};
use crate::infer::{Call, CallPlan, Run};
use crate::naming::Naming;
use crate::op::Op;
use crate::row::{Batching, Gradient, Layers, Row, Rule, Tangent};

/// The operator's name.
pub const ELEMENTWISE: &str = "keyfold::elementwise";

/// The position of the argument `out` in the overload `out`.
pub const OUT_ARGUMENT: usize = 4;

/// The capacity of a cache of texts. A full cache is emptied.
const MAX_CACHED_TEXTS: usize = 4096;

/// The text of a complex derivative.
#[derive(Clone)]
pub struct ComplexText {
    /// The text.
    pub text: Arc<str>,
    /// Whether the imaginary unit is a further parameter, the last one.
    pub takes_unit: bool,
}

/// An expression, with a cache of the texts of its derivatives.
pub struct Expression {
    expr: Expr,
    /// The gradients by input.
    derivatives: RwLock<FxHashMap<usize, Option<Arc<str>>>>,
    /// The complex gradients by input and its kind.
    complex: RwLock<FxHashMap<(usize, Variable), Option<ComplexText>>>,
    /// The complex tangents by input and its kind.
    tangents: RwLock<FxHashMap<(usize, Variable), Option<ComplexText>>>,
}

impl Expression {
    /// Wraps an expression.
    pub fn new(expr: Expr) -> Expression {
        Expression {
            expr,
            derivatives: RwLock::default(),
            complex: RwLock::default(),
            tangents: RwLock::default(),
        }
    }

    /// Parses an expression of inputs and parameters of these names.
    ///
    /// # Errors
    /// As [`Expr::parse_with`].
    pub(crate) fn parse(text: &str, inputs: &[&str], params: &[&str]) -> Result<Arc<Expression>> {
        Ok(Arc::new(Expression::new(parse(text, inputs, params)?)))
    }

    /// Returns the expression.
    pub fn expr(&self) -> &Expr {
        &self.expr
    }

    /// Returns the text of the gradient with respect to an input. Its inputs are those of the expression and, as
    /// the last one, the gradient of the result. `None` is a gradient of zero.
    ///
    /// # Errors
    /// As [`Expr::derivative`].
    pub fn gradient(&self, input: usize) -> Result<Option<Arc<str>>> {
        if let Ok(known) = self.derivatives.read()
            && let Some(text) = known.get(&input)
        {
            return Ok(text.clone());
        }
        let text = self.expr().gradient(input)?.map(|expr| Arc::from(to_text(&expr)));
        if let Ok(mut known) = self.derivatives.write() {
            known.insert(input, text.clone());
        }
        Ok(text)
    }

    /// As [`Expression::gradient`], where a tensor or a number is complex.
    ///
    /// # Errors
    /// As [`Expr::complex_gradient`].
    pub fn complex_gradient(
        &self,
        input: usize,
        variable: Variable,
    ) -> Result<Option<ComplexText>> {
        let make = || self.expr().complex_gradient(input, variable);
        cached(&self.complex, (input, variable), make)
    }

    /// Returns the text of the result's tangent, where a tensor or a number is complex. Its last input is the
    /// tangent of the expression's input.
    ///
    /// # Errors
    /// As [`Expr::complex_tangent`].
    pub fn complex_tangent(&self, input: usize, variable: Variable) -> Result<Option<ComplexText>> {
        let make = || self.expr().complex_tangent(input, variable);
        cached(&self.tangents, (input, variable), make)
    }
}

/// Returns a text from the cache, or makes it.
fn cached(
    known: &RwLock<FxHashMap<(usize, Variable), Option<ComplexText>>>,
    key: (usize, Variable),
    make: impl FnOnce() -> Result<Option<ComplexGradient>>,
) -> Result<Option<ComplexText>> {
    if let Ok(known) = known.read()
        && let Some(text) = known.get(&key)
    {
        return Ok(text.clone());
    }
    let text = make()?.map(|ComplexGradient { expr, takes_unit }| {
        let text = Arc::from(to_text(&expr));
        ComplexText { text, takes_unit }
    });
    if let Ok(mut known) = known.write() {
        known.insert(key, text.clone());
    }
    Ok(text)
}

/// Formats an expression with its arguments at the beginning.
pub fn to_text(expr: &Expr) -> String {
    let mut text = String::new();
    for (i, input) in expr.inputs().iter().enumerate() {
        text += if i > 0 { ", " } else { "" };
        text += &input.name;
        if let Some(rank) = input.rank {
            text += &format!("[{rank}]");
        }
    }
    for (i, name) in expr.params().iter().enumerate() {
        text += if i > 0 { ", " } else { "; " };
        text += name;
    }
    format!("{text}: {expr}")
}

/// Parses a text of [`to_text`].
///
/// # Errors
/// [`ErrorKind::Value`] for a text without the arguments at the beginning, and as [`Expr::parse_with`].
pub fn from_text(text: &str) -> Result<Expr> {
    let Some((arguments, expression)) = text.split_once(':') else {
        return Err(Error::new(
            ErrorKind::Value,
            format!(
                "'{text}' has no arguments in front; write them as in `x, y; beta: x + beta * y`"
            ),
        ));
    };
    let (inputs, params) = arguments.split_once(';').unwrap_or((arguments, ""));
    let mut names = Names::new();
    for name in inputs.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        names = match name.split_once('[') {
            None => names.input(name),
            Some((name, rank)) => {
                let rank = rank.trim_end_matches(']').trim().parse().map_err(|_| {
                    let message =
                        format!("the rank of '{name}' has to be a number, as in `{name}[2]`");
                    Error::new(ErrorKind::Value, message)
                })?;
                names.ranked(name.trim(), rank)
            }
        };
    }
    for name in params.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        names = names.param(name);
    }
    Expr::parse_with(expression, &names)
}

/// A cache of objects that are made of texts.
struct TextCache<T>(RwLock<FxHashMap<Box<str>, Arc<T>>>);

impl<T> TextCache<T> {
    /// # Errors
    /// Those of `make`, which is called once for a text.
    fn get(&self, text: &str, make: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        if let Ok(known) = self.0.read()
            && let Some(found) = known.get(text)
        {
            return Ok(found.clone());
        }
        let made = Arc::new(make()?);
        if let Ok(mut known) = self.0.write() {
            if known.len() >= MAX_CACHED_TEXTS {
                known.clear();
            }
            known.insert(text.into(), made.clone());
        }
        Ok(made)
    }
}

/// Returns the expression of a text, from a cache.
///
/// # Errors
/// As [`from_text`].
pub fn cached_expression(text: &str) -> Result<Arc<Expression>> {
    static CACHE: LazyLock<TextCache<Expression>> = LazyLock::new(|| TextCache(RwLock::default()));
    CACHE.get(text, || Ok(Expression::new(from_text(text)?)))
}

/// The operator on a backend or on Meta, with its prepared expressions by text.
struct ExpressionCache {
    op: Op,
    known: TextCache<Pointwise>,
}

/// The inputs, the numbers, the text and the shape.
type Arguments<'a> = (ValueRef<'a>, ValueRef<'a>, ValueRef<'a>, ValueRef<'a>);

impl ExpressionCache {
    fn new(op: Op) -> Self {
        ExpressionCache { op, known: TextCache(RwLock::default()) }
    }

    fn row(&self, text: &str) -> Result<Arc<Pointwise>> {
        let make = || Ok(Pointwise::new(self.op.clone(), from_text(text)?));
        self.op.at(self.known.get(text, make))
    }
}

fn elementwise(
    call: Call<'_, ExpressionCache>,
    (inputs, numbers, text, shape): Arguments<'_>,
) -> Result<CallPlan<impl Run>> {
    let ValueRef::Str(text) = text else {
        return Err(call.error(ErrorKind::Binding, "argument 'expression' must be text"));
    };
    let row = call.state.row(text)?;
    let inputs: SmallVec<[&Tensor; 4]> =
        inputs.items().map(ValueRef::tensor).collect::<Result<_>>()?;
    let params: SmallVec<[Scalar; 4]> = numbers.items().filter_map(ValueRef::scalar).collect();
    let wanted = (row.expr().inputs().len(), row.expr().params().len());
    if wanted != (inputs.len(), params.len()) {
        let message = format!(
            "the expression has {} inputs and {} numbers, but {} and {} were given: {text}",
            wanted.0,
            wanted.1,
            inputs.len(),
            params.len()
        );
        return Err(call.error(ErrorKind::Binding, message));
    }
    let (shape, device) = (shape_argument(&call, shape)?, row.device_of(&inputs));
    Pointwise::plan_on(row, inputs, params, None, (device, call.size(shape.as_deref())))
}

/// Returns the row of the operator.
pub(super) fn rows() -> Result<Vec<Row>> {
    let row = Row::computes::<Arguments<'_>, _, _>(
        (ELEMENTWISE, ""),
        "Tensor[] inputs, Scalar[] numbers, *, str expression, int[]? shape=None",
        |op| ExpressionCache::new(op.clone()),
        elementwise,
        Layers {
            derivative: Rule::Given(Gradient::Other(of_elementwise)),
            tangent: Rule::Given(Tangent::Other(jvp::of_elementwise)),
            batching: Rule::Given(Batching::Rule(batching::elementwise)),
            autocast: Category::Leave,
        },
        Naming::PartOf("elementwise"),
    )?;
    Ok(vec![row])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_as_they_are_written() {
        for source in ["x, table[2]; beta: beta * x * table[index, 0]", "x: exp(x)", "x, y: x + y"]
        {
            let parsed = from_text(source).unwrap();
            assert_eq!(from_text(&to_text(&parsed)).unwrap(), parsed, "{source}");
        }
        assert!(from_text("x + y").is_err());
        assert!(from_text("x[two]: x[1]").is_err());
    }

    #[test]
    fn gradients_have_the_gradient_as_their_last_input() {
        let exp = cached_expression("x: exp(x)").unwrap();
        let gradient = from_text(&exp.gradient(0).unwrap().unwrap()).unwrap();
        assert_eq!(gradient.to_string(), "exp(x) * grad");
        let names: Vec<_> = gradient.inputs().iter().map(|i| i.name.as_str()).collect();
        assert_eq!(names, ["x", "grad"]);
        assert_eq!(cached_expression("x: floor(x)").unwrap().gradient(0).unwrap(), None);
        let same =
            from_text(&cached_expression("grad: grad + 1").unwrap().gradient(0).unwrap().unwrap())
                .unwrap();
        assert_eq!(same.to_string(), "grad_");
    }
}
