//! The row of an operator: its schema, what runs it, and what each layer does with it.
//!
//! A family of operators is a function that makes rows. From the rows come the kernels for Meta and for
//! every backend, the overloads `out`, and the kernels at Autograd, Vmap and Autocast.

use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::schema::{Schema, Type};
use keyfold_dispatch::{
    DefineOptions, DispatchKey, Dispatcher, HostLock, Kernel, Override, RegistrationKey, Tags,
};
use keyfold_layers::autocast::{self, Category};
use keyfold_layers::autograd::{self, Derivative, Formula, Keeps, Product};
use keyfold_layers::vmap;
use keyfold_tensor::Value;

use crate::elementwise::{Expression, Pointwise, out_schema, symbolic};
use crate::op::{Op, Target};

/// For a kernel that computes: the host language's lock is given up from so many elements on.
pub(crate) const COMPUTES: HostLock = HostLock::ReleaseFrom(1 << 15);

/// What a layer does with an operator, and where that is written.
///
/// There is no default: a row without one of its layers doesn't compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule<T> {
    /// Written for this operator.
    Given(T),
    /// Follows from what the operator computes: from its expression, or from the operators that it is
    /// written in.
    Derived,
    /// None: the layer's fallback serves, for this reason.
    Refused(&'static str),
}

/// A derivative that was written for an operator.
#[derive(Clone, Copy)]
pub enum Gradient {
    /// A vector-Jacobian product, and what the gradient of each operand reads.
    Formula(&'static [Keeps], Product),
    /// A derivative of another form, made from the operator's name.
    Other(fn(&str) -> Arc<dyn Derivative>),
    /// None on purpose: the result is cut off from the graph.
    Cut,
}

/// A batching rule that was written for an operator.
#[derive(Clone, Copy)]
pub enum Batching {
    /// One call for the whole batch.
    Rule(vmap::Rule),
    /// Random numbers for the whole batch.
    Draw,
}

/// What the layers do with an operator.
#[derive(Clone, Copy)]
pub struct Layers {
    /// How gradients go back through it.
    pub derivative: Rule<Gradient>,
    /// How it is called for a whole batch.
    pub batching: Rule<Batching>,
    /// What autocast casts its arguments to.
    pub autocast: Category,
}

/// A function that makes the kernel of an operator for what it runs on.
type Make = Box<dyn Fn(Op) -> Kernel<Value> + Send + Sync>;

/// How an operator runs.
enum Runs {
    /// A kernel for Meta and for each backend.
    Everywhere { fresh: Make, out: Option<Make>, lock: HostLock },
    /// One kernel for all devices, in terms of other operators or of none.
    Composite(RegistrationKey, fn() -> Kernel<Value>),
}

/// An operator: its schema, what runs it, and what each layer does with it.
pub struct Row {
    schema: Schema,
    /// The name without its overload, as messages have it.
    name: &'static str,
    mixed_devices: bool,
    tags: Tags,
    runs: Runs,
    /// What it computes, where that is one expression.
    expression: Option<Arc<Expression>>,
    layers: Layers,
}

impl Row {
    fn new(name: &'static str, schema: &str, runs: Runs, layers: Layers) -> Result<Row> {
        Ok(Row {
            schema: Schema::parse(schema)?,
            name,
            mixed_devices: false,
            tags: Tags::NONE,
            runs,
            expression: None,
            layers,
        })
    }

    /// An operator that computes.
    pub(crate) fn computes(
        schema: &'static str,
        fresh: impl Fn(Op) -> Kernel<Value> + Send + Sync + 'static,
        layers: Layers,
    ) -> Result<Row> {
        let runs = Runs::Everywhere { fresh: Box::new(fresh), out: None, lock: COMPUTES };
        Row::new(name_of(schema), schema, runs, layers)
    }

    /// An operator that touches no elements, or few: a view, a factory, random numbers.
    pub(crate) fn light(
        schema: &'static str,
        fresh: impl Fn(Op) -> Kernel<Value> + Send + Sync + 'static,
        layers: Layers,
    ) -> Result<Row> {
        let runs = Runs::Everywhere { fresh: Box::new(fresh), out: None, lock: HostLock::Keep };
        Row::new(name_of(schema), schema, runs, layers)
    }

    /// An operator that computes, and its overload that writes into a tensor of the caller's.
    ///
    /// `args` is the part of the schema between the parentheses; the overload is called `out`, or
    /// `Scalar_out` if the operator's own is `Scalar`.
    pub(crate) fn with_out(
        (name, overload): (&'static str, &str),
        args: &str,
        fresh: impl Fn(Op) -> Kernel<Value> + Send + Sync + 'static,
        into: impl Fn(Op) -> Kernel<Value> + Send + Sync + 'static,
        layers: Layers,
    ) -> Result<Row> {
        let dot = if overload.is_empty() { "" } else { "." };
        let schema = format!("{name}{dot}{overload}({args}) -> Tensor");
        let out: Option<Make> = Some(Box::new(into));
        let runs = Runs::Everywhere { fresh: Box::new(fresh), out, lock: COMPUTES };
        Row::new(name, &schema, runs, layers)
    }

    /// An operator that is one expression of its arguments, and its overload that writes into a tensor of
    /// the caller's. `fresh` and `into` make the kernels that check the arguments and have the expression
    /// computed.
    pub(crate) fn pointwise(
        name: (&'static str, &str),
        args: &str,
        expression: Arc<Expression>,
        fresh: impl Fn(Pointwise) -> Kernel<Value> + Send + Sync + 'static,
        into: impl Fn(Pointwise) -> Kernel<Value> + Send + Sync + 'static,
        layers: Layers,
    ) -> Result<Row> {
        let (for_fresh, for_out) = (expression.expr().clone(), expression.expr().clone());
        let row = Row::with_out(
            name,
            args,
            move |op| fresh(Pointwise::new(op, for_fresh.clone())),
            move |op| into(Pointwise::new(op, for_out.clone())),
            layers,
        )?;
        Ok(Row { expression: Some(expression), ..row })
    }

    /// An operator that has one kernel for all devices, registered at an alias.
    pub(crate) fn composite(
        schema: &'static str,
        key: RegistrationKey,
        kernel: fn() -> Kernel<Value>,
        layers: Layers,
    ) -> Result<Row> {
        Row::new(name_of(schema), schema, Runs::Composite(key, kernel), layers)
    }

    /// The same with tags.
    pub(crate) fn tagged(self, tags: Tags) -> Row {
        Row { tags, ..self }
    }

    /// The same, whose arguments may be on several devices.
    pub(crate) fn across_devices(self) -> Row {
        Row { mixed_devices: true, ..self }
    }

    /// The schema.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The tags.
    pub fn tags(&self) -> Tags {
        self.tags
    }

    /// What the layers do with it.
    pub fn layers(&self) -> &Layers {
        &self.layers
    }

    /// What it computes, where that is one expression of its arguments.
    pub fn expression(&self) -> Option<&Expression> {
        self.expression.as_deref()
    }

    /// Whether it is written in terms of other operators.
    pub fn is_composite(&self) -> bool {
        matches!(self.runs, Runs::Composite(..))
    }

    /// The schema of the overload that writes into a tensor of the caller's, if there is one.
    pub fn out_schema(&self) -> Option<Schema> {
        let Runs::Everywhere { out: Some(_), .. } = &self.runs else { return None };
        out_schema(&self.schema)
    }

    /// The kernels for what the operator runs on, each with the schema of its overload.
    pub(crate) fn kernels(&self, target: &Target) -> Vec<(Schema, Kernel<Value>)> {
        let Runs::Everywhere { fresh, out, lock } = &self.runs else { return Vec::new() };
        let op = Op::new(self.name, target.clone());
        let kind = op.kind();
        let mut kernels = vec![(self.schema.clone(), fresh(op.clone()))];
        if let (Some(make), Some(schema)) = (out, self.out_schema()) {
            kernels.push((schema, make(op)));
        }
        let named = kernels.into_iter().map(|(schema, kernel)| {
            let label = format!("{}_{kind}", label(&schema));
            (schema, kernel.named(label).with_host_lock(*lock))
        });
        named.collect()
    }

    /// Refuses a rule that is derived where there is nothing that it could follow from.
    fn check(&self) -> Result<()> {
        let derived = matches!(self.layers.derivative, Rule::Derived)
            || matches!(self.layers.batching, Rule::Derived);
        if !derived || self.expression.is_some() || self.is_composite() {
            return Ok(());
        }
        let message =
            format!("{}: a rule is derived, but the row has no expression", self.schema.name);
        Err(Error::new(ErrorKind::Registration, message))
    }

    /// Defines the operator, with its kernels for Meta and for the layers.
    pub(crate) fn define(&self, dispatcher: &Dispatcher<Value>) -> Result<()> {
        self.check()?;
        let options = DefineOptions {
            mixed_devices: self.mixed_devices,
            tags: self.tags,
            ..DefineOptions::default()
        };
        let name = self.schema.name.to_string();
        if let Runs::Composite(key, kernel) = &self.runs {
            dispatcher.define_with(self.schema.clone(), options)?;
            let kernel = kernel().named(label(&self.schema)).with_host_lock(COMPUTES);
            dispatcher.implement(&name, *key, kernel, Override::Error)?;
        }
        for (schema, kernel) in self.kernels(&Target::Meta) {
            let name = schema.name.to_string();
            dispatcher.define_with(schema, options)?;
            if !self.tags.contains(Tags::DATA_DEPENDENT_SHAPE) {
                dispatcher.implement(&name, DispatchKey::Meta, kernel, Override::Error)?;
            }
        }
        let layers = [
            (DispatchKey::Autograd, self.autograd(&name)?),
            (DispatchKey::Vmap, self.vmap()),
            (DispatchKey::Autocast, self.autocast()),
        ];
        for (key, kernel) in layers {
            if let Some(kernel) = kernel {
                dispatcher.implement(&name, key, kernel, Override::Error)?;
            }
        }
        Ok(())
    }

    /// The kernel at Autograd; none where the layer's general way does, or the operators that this one
    /// is written in.
    fn autograd(&self, name: &str) -> Result<Option<Kernel<Value>>> {
        let derivative = match self.layers.derivative {
            Rule::Given(Gradient::Formula(reads, product)) => {
                Arc::new(Formula::new(name, reads, product))
            }
            Rule::Given(Gradient::Other(make)) => make(name),
            Rule::Given(Gradient::Cut) => {
                let kernel = Kernel::boxed(|context, args| context.call_below(args));
                return Ok(Some(kernel.named("detach").with_host_lock(COMPUTES)));
            }
            Rule::Derived => match &self.expression {
                Some(expression) => {
                    symbolic::of_arguments(name, expression.clone(), self.positions(expression)?)
                }
                None => return Ok(None),
            },
            Rule::Refused(_) => return Ok(None),
        };
        Ok(Some(autograd::kernel(derivative)))
    }

    /// The positions of an expression's inputs and parameters among the arguments.
    ///
    /// # Errors
    /// [`ErrorKind::Registration`] for a name that no argument has.
    fn positions(&self, expression: &Expression) -> Result<(Vec<usize>, Vec<usize>)> {
        let arguments = &self.schema.arguments;
        let at = |name: &str| {
            let found = arguments.iter().position(|argument| argument.name == name);
            found.ok_or_else(|| {
                let message = format!("{}: no argument is called '{name}'", self.schema.name);
                Error::new(ErrorKind::Registration, message)
            })
        };
        let expr = expression.expr();
        let inputs = expr.inputs().iter().map(|input| at(&input.name));
        let params = expr.params().iter().map(|name| at(name));
        Ok((inputs.collect::<Result<_>>()?, params.collect::<Result<_>>()?))
    }

    /// The kernel at Vmap; none where the loop does.
    fn vmap(&self) -> Option<Kernel<Value>> {
        let name = format!("{}_vmap", label(&self.schema));
        match self.layers.batching {
            Rule::Given(Batching::Rule(rule)) => Some(vmap::kernel(rule, &name)),
            Rule::Given(Batching::Draw) => Some(vmap::draw().named(name)),
            Rule::Derived if self.is_composite() => Some(vmap::composite().named(name)),
            Rule::Derived => {
                let tensors =
                    self.schema.arguments.iter().filter(|argument| argument.ty == Type::Tensor);
                let rule = if tensors.count() > 1 { vmap::several } else { vmap::single };
                Some(vmap::kernel(rule, &name))
            }
            Rule::Refused(_) => None,
        }
    }

    fn autocast(&self) -> Option<Kernel<Value>> {
        let category = self.layers.autocast;
        (category != Category::Leave).then(|| autocast::kernel(category))
    }
}

/// An operator's name in the names of its kernels, overload included.
fn label(schema: &Schema) -> String {
    let name = &schema.name;
    match &*name.overload {
        "" => name.name.to_string(),
        overload => format!("{}_{}", name.name, overload.to_lowercase()),
    }
}

/// The name that a schema's text begins with, without its overload.
fn name_of(schema: &'static str) -> &'static str {
    schema.find(['.', '(']).map_or(schema, |end| &schema[..end])
}
