//! Operators of one's own from a schema and an expression.

use std::sync::{Arc, Mutex, PoisonError};

use keyfold_core::{Error, ErrorKind, Result, Scalar};
use keyfold_dispatch::schema::{Alias, Argument, Return, Schema, Type};
use keyfold_dispatch::{DispatchKey, Kernel};
use keyfold_expr::{Expr, Names};
use keyfold_tensor::{Tensor, Value, ValueRef};
use smallvec::SmallVec;

use super::{Pointwise, given_shape};
use crate::infer::Call;
use crate::on_device::on_device;
use crate::op::{Op, Runner, Target};
use crate::row::COMPUTES;

/// How an operator's arguments are an expression's inputs and parameters.
///
/// Each `Tensor` argument is an input (read element by element, or at indices where the expression
/// has brackets behind its name), each number a parameter. One that the operator writes to takes the
/// result: `Tensor(a!) out` if the expression doesn't read it, `Tensor(a!) self` if it does. An
/// argument `int[]? shape=None` is the result's shape, where no input is read element by element.
pub struct Definition {
    /// The operator's name without its overload.
    name: &'static str,
    expr: Expr,
    /// The positions of the inputs and the parameters among the arguments.
    inputs: Vec<usize>,
    params: Vec<usize>,
    /// The position of the argument that takes the result, and its name.
    out: Option<(usize, String)>,
    /// The position of the argument that is the result's shape.
    shape: Option<usize>,
}

/// Whether an argument is the result's shape.
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
    /// The expression of a schema's arguments.
    ///
    /// # Errors
    /// [`ErrorKind::Registration`] for arguments that no expression can have, or more or other
    /// results than one tensor; and as [`Expr::parse_with`].
    pub fn new(schema: &Schema, text: &str) -> Result<Definition> {
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
        let name = kept(schema.name.qualified());
        Ok(Definition { name, expr, inputs, params, out, shape })
    }

    /// The expression.
    pub fn expr(&self) -> &Expr {
        &self.expr
    }

    /// The positions of the inputs among the operator's arguments.
    pub fn inputs(&self) -> &[usize] {
        &self.inputs
    }

    /// The positions of the parameters among the operator's arguments.
    pub fn params(&self) -> &[usize] {
        &self.params
    }

    /// The position of the argument that takes the result, if one does.
    pub fn out(&self) -> Option<usize> {
        self.out.as_ref().map(|(at, _)| *at)
    }

    /// The position of the argument that is the result's shape, if one is.
    pub fn shape(&self) -> Option<usize> {
        self.shape
    }

    fn run(&self, row: &Pointwise, args: &[ValueRef<'_>]) -> Result<Value> {
        let inputs: SmallVec<[&Tensor; 4]> =
            self.inputs.iter().map(|at| args[*at].tensor()).collect::<Result<_>>()?;
        let params: SmallVec<[Scalar; 4]> =
            self.params.iter().filter_map(|at| args[*at].scalar()).collect();
        let given = self.shape.map(|at| given_shape(row.op(), args[at])).transpose()?.flatten();
        let out = match &self.out {
            None => None,
            Some((at, _)) => Some(args[*at].tensor()?),
        };
        let size = Call::new(row.op(), &(), out).size(given.as_deref());
        let plan = row.plan(inputs, params, size)?;
        match (&self.out, out) {
            (Some((at, name)), Some(out)) => {
                // SAFETY: the schema says that the operator writes to this argument.
                unsafe { plan.write(row.op(), (name, out), args) }?;
                Ok(Value::Argument(*at))
            }
            _ => plan.fresh(row.op()).map(Value::Tensor),
        }
    }

    fn kernel_of(self: &Arc<Self>, op: Op, suffix: &str) -> Kernel<Value> {
        let definition = self.clone();
        let label = self.name.rsplit("::").next().unwrap_or(self.name);
        let row = Pointwise::new(op, self.expr.clone());
        Kernel::boxed(move |_, args| definition.run(&row, args))
            .named(format!("{label}_{suffix}"))
            .with_host_lock(COMPUTES)
    }

    /// The operator's kernel for a backend.
    pub(crate) fn kernel(self: &Arc<Self>, runner: Arc<Runner>) -> Kernel<Value> {
        let kind = runner.kind;
        let op = Op::new(self.name, Target::Backend(runner.clone()));
        let kernel = self.kernel_of(op, &kind.name());
        if kind.is_host() { kernel } else { on_device(kernel, &runner, true) }
    }

    /// The operator's kernel for Meta. The definition is its payload: so a backend that is registered
    /// later finds it.
    fn meta_kernel(self: &Arc<Self>) -> Kernel<Value> {
        self.kernel_of(Op::new(self.name, Target::Meta), "meta").with_payload(self.clone())
    }
}

/// A name that lives on: operators' names are few, and messages want them at any time.
fn kept(name: String) -> &'static str {
    static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.iter().find(|known| **known == name) {
        return known;
    }
    let name: &'static str = Box::leak(name.into_boxed_str());
    names.push(name);
    name
}

/// Kernels, each with its key.
pub type Kernels = Vec<(DispatchKey, Kernel<Value>)>;

/// The kernels, each with its key, of an operator that is an expression of its arguments: for Meta and
/// for each backend that is registered. A backend that is registered later gets its kernel then.
///
/// # Errors
/// As [`Definition::new`].
pub fn kernels(schema: &Schema, text: &str) -> Result<(Arc<Definition>, Kernels)> {
    let definition = Arc::new(Definition::new(schema, text)?);
    let mut kernels = Vec::new();
    for (kind, backend) in keyfold_backend::backends() {
        let runner = Arc::new(Runner::new(kind, backend));
        kernels.push((DispatchKey::from_device_type(kind), definition.kernel(runner)));
    }
    kernels.push((DispatchKey::Meta, definition.meta_kernel()));
    Ok((definition, kernels))
}

/// The schema of an operator's overload that writes the result into a tensor of the caller's:
/// `ns::name.out(..., *, Tensor(a!) out) -> Tensor(a!)`; `None` where the operator writes to an
/// argument already, has an argument of that name, or doesn't return one fresh tensor.
pub fn out_schema(schema: &Schema) -> Option<Schema> {
    let [Return { ty: Type::Tensor, alias: None, .. }] = &schema.returns[..] else { return None };
    let taken = |argument: &Argument| {
        argument.name == "out" || argument.alias.as_ref().is_some_and(|alias| alias.write)
    };
    if schema.arguments.iter().any(taken) {
        return None;
    }
    let alias = Alias { sets: vec!["a".to_owned()], write: true, after: Vec::new() };
    let mut with_out = schema.clone();
    let overload = &mut with_out.name.overload;
    *overload = if overload.is_empty() { "out".to_owned() } else { format!("{overload}_out") };
    with_out.arguments.push(Argument {
        name: "out".to_owned(),
        ty: Type::Tensor,
        default: None,
        kwarg_only: true,
        alias: Some(alias.clone()),
    });
    with_out.returns[0].alias = Some(alias);
    Some(with_out)
}
