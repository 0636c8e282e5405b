//! Users' operators that are made of a schema and an expression.

use std::sync::{Arc, Mutex, PoisonError};

use keyfold_core::{Error, ErrorKind, Result, Scalar};
use keyfold_dispatch::Kernel;
use keyfold_dispatch::schema::{Alias, Argument, Schema, Type};
use keyfold_expr::{Expr, Names};
use keyfold_layers::autocast::Category;
use keyfold_tensor::{Tensor, Value, ValueRef};
use smallvec::SmallVec;

use super::expression::Expression;
use super::{Pointwise, batching, shape_argument};
use crate::infer::{Call, CallPlan, Run};
use crate::inferred::Inferred;
use crate::op::{Op, Target};
use crate::row::{Layers, Row, Rule};

/// The mapping of an operator's arguments to an expression's inputs and parameters, see [`super::implement`].
pub(super) struct Definition {
    pub(super) expression: Arc<Expression>,
    /// The positions of the inputs and the parameters among the arguments.
    inputs: Vec<usize>,
    params: Vec<usize>,
    /// The position of the argument that takes the result, and its name.
    out: Option<(usize, String)>,
    /// The position of the argument that is the result's shape.
    shape: Option<usize>,
}

/// Returns whether an argument is the result's shape.
fn is_shape(argument: &Argument) -> bool {
    let numbers = Type::List(Box::new(Type::Int), None);
    argument.name == "shape" && *argument.ty.without_optional() == numbers
}

#[cold]
fn refuse(schema: &Schema, message: impl AsRef<str>) -> Error {
    let message = format!("elementwise '{}': {}", schema.name, message.as_ref());
    Error::new(ErrorKind::Registration, message)
}

impl Definition {
    /// Parses an expression of a schema's arguments.
    ///
    /// # Errors
    /// [`ErrorKind::Registration`] for arguments that no expression can have, and for results other than one
    /// tensor; and as [`Expr::parse_with`].
    pub(super) fn new(schema: &Schema, text: &str) -> Result<Definition> {
        let [result] = &schema.returns[..] else {
            return Err(refuse(schema, "an expression has one result: `-> Tensor`"));
        };
        if result.ty != Type::Tensor {
            return Err(refuse(schema, format!("it returns {}, not Tensor", result.ty)));
        }
        let writes = |alias: &Option<Alias>| alias.as_ref().is_some_and(|alias| alias.write);
        let mut names = Names::new();
        let (mut inputs, mut params) = (Vec::new(), Vec::new());
        let (mut out, mut shape) = (None, None);
        for (at, argument) in schema.arguments.iter().enumerate() {
            match argument.ty {
                Type::Tensor => {
                    if writes(&argument.alias) && out.replace((at, argument.name.clone())).is_some()
                    {
                        return Err(refuse(
                            schema,
                            "it writes to two arguments; one can be the result",
                        ));
                    }
                    if writes(&argument.alias) && argument.kwarg_only {
                        continue;
                    }
                    names = names.tensor(&argument.name);
                    inputs.push(at);
                }
                Type::Scalar | Type::Int | Type::Float | Type::Bool | Type::Complex => {
                    names = names.param(&argument.name);
                    params.push(at);
                }
                _ if is_shape(argument) => shape = Some(at),
                ref other => {
                    return Err(refuse(
                        schema,
                        format!(
                            "argument '{}' is of type {other}; an expression takes Tensor, float, \
                             int, bool, complex and Scalar, and `int[] shape` for the result's shape",
                            argument.name
                        ),
                    ));
                }
            }
        }
        if inputs.is_empty() && out.is_none() && shape.is_none() {
            return Err(refuse(schema, "it has no Tensor argument, and no `int[] shape`"));
        }
        if out.is_some() != writes(&result.alias) {
            return Err(refuse(
                schema,
                "what it writes to is what it returns: `(Tensor x, *, Tensor(a!) out) -> Tensor(a!)`",
            ));
        }
        let expr = Expr::parse_with(text, &names)
            .map_err(|error| error.at(&format!("elementwise '{}'", schema.name)))?;
        let expression = Arc::new(Expression::new(expr));
        Ok(Definition { expression, inputs, params, out, shape })
    }

    /// Plans a call; also returns the argument that takes the result, if any.
    fn plan<'a>(
        &self,
        pointwise: &'a Pointwise,
        args: &'a [ValueRef<'_>],
    ) -> Result<(CallPlan<impl Run + use<'a>>, Option<&'a Tensor>)> {
        let inputs: SmallVec<[&Tensor; 4]> =
            self.inputs.iter().map(|at| args[*at].tensor()).collect::<Result<_>>()?;
        let params: SmallVec<[Scalar; 4]> =
            self.params.iter().filter_map(|at| args[*at].scalar()).collect();
        let given =
            self.shape.map(|at| shape_argument(pointwise.op(), args[at])).transpose()?.flatten();
        let out = self.out.as_ref().map(|(at, _)| args[*at].tensor()).transpose()?;
        let size = Call::new(pointwise.op(), &(), out).size(given.as_deref());
        Ok((pointwise.plan(inputs, params, size)?, out))
    }

    fn run(&self, pointwise: &Pointwise, args: &[ValueRef<'_>]) -> Result<Value> {
        let (plan, out) = self.plan(pointwise, args)?;
        match (&self.out, out) {
            (Some((at, name)), Some(out)) => {
                // SAFETY: the schema says that the operator writes to this argument.
                unsafe { plan.write(pointwise.op(), (name, out), args) }?;
                Ok(Value::Argument(*at))
            }
            _ => plan.fresh(pointwise.op()).map(Value::Tensor),
        }
    }

    fn infer(&self, pointwise: &Pointwise, args: &[ValueRef<'_>]) -> Result<Inferred> {
        let (plan, out) = self.plan(pointwise, args)?;
        Ok(match (&self.out, out) {
            (Some((at, _)), Some(out)) => Inferred::argument(*at, out),
            _ => Inferred::of_plan(plan, args),
        })
    }

    /// Returns the rules that follow from the expression; none for an operator that writes to an argument.
    fn layers(&self) -> Layers {
        let (derivative, tangent, batching) = match &self.out {
            Some(_) => {
                let writes = "operators that write are the layers' own concern";
                (Rule::Refused(writes), Rule::Refused(writes), Rule::Refused(writes))
            }
            None if self.shape.is_none() && batching::is_pointwise(self.expression.expr()) => {
                (Rule::Derived, Rule::Derived, Rule::Derived)
            }
            None => {
                let places = "an element's place isn't its place in the batch";
                (Rule::Derived, Rule::Derived, Rule::Refused(places))
            }
        };
        Layers { derivative, tangent, batching, autocast: Category::Leave }
    }

    /// Makes the row of the operator of this schema.
    #[track_caller]
    pub(super) fn row(self, schema: &Schema) -> Row {
        let (name, layers, expression) =
            (interned(schema.name.qualified()), self.layers(), self.expression.clone());
        let definition = Arc::new(self);
        let for_infer = definition.clone();
        let pointwise = |definition: &Definition, op: &Op| {
            Pointwise::new(op.clone(), definition.expression.expr().clone())
        };
        let meta = pointwise(&definition, &Op::new(name, Target::Meta));
        let fresh = move |op: &Op| {
            let (definition, pointwise) = (definition.clone(), pointwise(&definition, op));
            Kernel::boxed(move |_, args| definition.run(&pointwise, args))
        };
        let infer = move |args: &[ValueRef<'_>]| for_infer.infer(&meta, args);
        Row::of_user((name, schema), expression, fresh, infer, layers)
    }
}

/// Interns an operator's name, which is never freed.
fn interned(name: String) -> &'static str {
    static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.iter().find(|known| **known == name) {
        return known;
    }
    let name: &'static str = Box::leak(name.into_boxed_str());
    names.push(name);
    name
}

/// Returns the schema of an operator's overload `out`, which writes the results into tensors of the caller's:
/// `ns::name.out(..., *, Tensor(a!) out) -> Tensor(a!)`. With several results there is an argument for each, of
/// the result's name, or `out0` and so on where it has none; one that is optional is None for a result that the
/// call doesn't want. Returns `None` if the operator writes to an argument, has an argument of such a name, or
/// returns something else than new tensors.
pub fn out_schema(schema: &Schema) -> Option<Schema> {
    let mut with_out = schema.clone();
    let several = schema.returns.len() > 1;
    for (at, result) in with_out.returns.iter_mut().enumerate() {
        if *result.ty.without_optional() != Type::Tensor || result.alias.is_some() {
            return None;
        }
        let name = match &result.name {
            Some(name) if several => name.clone(),
            _ if several => format!("out{at}"),
            _ => "out".to_owned(),
        };
        let set = char::from(b'a' + u8::try_from(at).ok()?).to_string();
        let alias = Alias { sets: vec![set], write: true, after: Vec::new() };
        let ty = result.ty.clone();
        result.alias = Some(alias.clone());
        let (default, kwarg_only) = (None, true);
        let argument = Argument { name, ty, default, kwarg_only, alias: Some(alias) };
        with_out.arguments.push(argument);
    }
    let (own, outs) = with_out.arguments.split_at(schema.arguments.len());
    let taken = |own: &Argument| {
        own.alias.as_ref().is_some_and(|alias| alias.write)
            || outs.iter().any(|out| out.name == own.name)
    };
    if outs.is_empty() || own.iter().any(taken) {
        return None;
    }
    let overload = &mut with_out.name.overload;
    *overload = if overload.is_empty() { "out".to_owned() } else { format!("{overload}_out") };
    Some(with_out)
}
