//! The row of an operator: its schema, its computation, and its rule for each layer.
//!
//! A family of operators is a function that returns rows. The kernels for Meta and for every backend, the
//! overloads `out`, and the kernels at Autograd, Vmap and Autocast are made from the rows.

use std::panic::Location;
use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::schema::{Schema, Type};
use keyfold_dispatch::{
    Args, DefineOptions, DispatchKey, Dispatcher, HostLock, Kernel, Override, Provenance,
    RegistrationKey, Tags,
};
use keyfold_layers::autocast::{self, Category};
use keyfold_layers::autograd::{
    self, Derivative, Formula, Jvp, Linear, Multilinear, Pushforward, Saves, Vjp,
};
use keyfold_layers::vmap;
use keyfold_tensor::{Tensor, Value, ValueRef};

use crate::device_kernel::device_kernel;
use crate::infer::{Call, Infer, Run};
use crate::inferred::Inferred;
use crate::naming::Naming;
use crate::op::{Op, Runner, Target};
use crate::pointwise::{Expression, Pointwise, jvp, out_schema, vjp};

/// Kernels that compute release the host language's lock from this number of elements on.
pub(crate) const COMPUTES: HostLock = HostLock::ReleaseFrom(1 << 15);

/// An operator's rule for a layer. There is no default: a row without a rule for each layer doesn't compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule<T> {
    /// The rule is hand-written for this operator.
    Given(T),
    /// The rule follows from the operator's expression, or from the operators that a composite calls.
    Derived,
    /// There is no rule for this reason, and the layer's fallback serves.
    Refused(&'static str),
}

/// A hand-written derivative.
#[derive(Clone, Copy)]
pub enum Gradient {
    /// A vector-Jacobian product, and the tensors that the gradient of each operand reads.
    Formula(&'static [Saves], Vjp),
    /// Another derivative, made from the operator's name.
    Other(fn(&str) -> Arc<dyn Derivative>),
    /// The result is detached from the graph.
    Detach,
}

/// A hand-written rule of forward mode.
#[derive(Clone, Copy)]
pub enum Tangent {
    /// The operator is linear in its floating and complex tensors together: it is called with the tangents.
    Linear,
    /// The operator is linear in each tensor: the sum of its results with one tensor replaced by its tangent.
    Multilinear,
    /// A Jacobian-vector product.
    Jvp(Jvp),
    /// Another rule.
    Other(fn() -> Arc<dyn Pushforward>),
}

/// A hand-written batching rule.
#[derive(Clone, Copy)]
pub enum Batching {
    /// One call for the whole batch.
    Rule(vmap::Rule),
    /// One draw of random numbers for the whole batch.
    Draw,
}

/// An operator's rules for the layers.
#[derive(Clone, Copy)]
pub struct Layers {
    /// The rule of reverse mode.
    pub derivative: Rule<Gradient>,
    /// The rule of forward mode.
    pub tangent: Rule<Tangent>,
    /// The rule of `vmap`.
    pub batching: Rule<Batching>,
    /// The category of autocast, which decides the dtype of its arguments.
    pub autocast: Category,
}

/// A function that makes the kernel of an operator for a target.
type KernelFactory = Box<dyn Fn(&Op) -> Kernel<Value> + Send + Sync>;

/// The kernels of an operator.
enum Runs {
    /// A kernel for Meta and for each backend, and one for the overload `out`.
    Everywhere { fresh: KernelFactory, out: Option<KernelFactory>, lock: HostLock },
    /// One kernel for all devices, which usually calls other operators.
    Composite(RegistrationKey, fn() -> Kernel<Value>),
}

/// A function that infers a result from boxed arguments.
type InferForm = dyn Fn(&[ValueRef<'_>]) -> Result<Inferred> + Send + Sync;

/// Whether a result's shape follows from the arguments' shapes.
#[derive(Clone)]
enum FormFollows {
    /// It follows from shapes, dtypes and devices, so the operator has a kernel for Meta.
    Arguments(Arc<InferForm>),
    /// It depends on elements.
    Elements,
}

/// An operator: its schema, its kernels, and its rules for the layers.
pub struct Row {
    schema: Schema,
    /// The name without its overload, for messages.
    name: &'static str,
    mixed_devices: bool,
    tags: Tags,
    runs: Runs,
    infer: FormFollows,
    /// The expression that it computes, if it computes one.
    expression: Option<Arc<Expression>>,
    layers: Layers,
    naming: Naming,
    /// The source location of the row.
    location: &'static Location<'static>,
}

impl Row {
    #[track_caller]
    fn new(
        name: &'static str,
        schema: &str,
        runs: Runs,
        infer: impl Fn(&[ValueRef<'_>]) -> Result<Inferred> + Send + Sync + 'static,
        layers: Layers,
        naming: Naming,
    ) -> Result<Row> {
        Ok(Row::of(name, Schema::parse(schema)?, runs, infer, layers, naming))
    }

    #[track_caller]
    fn of(
        name: &'static str,
        schema: Schema,
        runs: Runs,
        infer: impl Fn(&[ValueRef<'_>]) -> Result<Inferred> + Send + Sync + 'static,
        layers: Layers,
        naming: Naming,
    ) -> Row {
        Row {
            schema,
            name,
            mixed_devices: false,
            tags: Tags::NONE,
            runs,
            infer: FormFollows::Arguments(Arc::new(infer)),
            expression: None,
            layers,
            naming,
            location: Location::caller(),
        }
    }

    /// Makes the row of an operator that computes into new memory, with an overload `out` that writes into a
    /// tensor of the caller's.
    ///
    /// `args` is the part of the schema in the parentheses. `infer` checks arguments of the types `A` and plans
    /// the call. `state` makes the state of a target's kernels, which lives across calls.
    #[track_caller]
    pub(crate) fn computes<A, S, F>(
        (name, overload): (&'static str, &str),
        args: &str,
        state: impl Fn(&Op) -> S + Send + Sync + 'static,
        infer: F,
        layers: Layers,
        naming: Naming,
    ) -> Result<Row>
    where
        A: Args<Value>,
        S: Send + Sync + 'static,
        F: for<'c, 'a> Infer<'c, 'a, A, S> + Copy + Send + Sync + 'static,
    {
        let dot = if overload.is_empty() { "" } else { "." };
        let schema = format!("{name}{dot}{overload}({args}) -> Tensor");
        let state = Arc::new(state);
        let (for_out, meta) = (state.clone(), Op::new(name, Target::Meta));
        let on_meta = state(&meta);
        let fresh: KernelFactory = Box::new(move |op| {
            let (op, state) = (op.clone(), state(op));
            Kernel::tupled::<A, Tensor, _>(move |args| {
                infer.infer_fresh(Call::new(&op, &state, None), args)?.fresh(&op)
            })
        });
        let out: KernelFactory = Box::new(move |op| {
            let (op, state) = (op.clone(), for_out(op));
            Kernel::boxed(move |_, args: &[ValueRef<'_>]| {
                let (out, args) = args.split_last().ok_or_else(|| op.lacks_out())?;
                let out = out.tensor()?;
                let plan = infer.infer(Call::new(&op, &state, Some(out)), A::unbox(args)?)?;
                // SAFETY: the schema says that the operator writes to this argument, so the caller, in
                // whichever language, gave its memory up for the time of the call.
                unsafe { plan.write(&op, ("out", out), args) }?;
                Ok(Value::Argument(args.len()))
            })
        });
        let runs = Runs::Everywhere { fresh, out: Some(out), lock: COMPUTES };
        let form = move |args: &[ValueRef<'_>]| {
            let call = Call::new(&meta, &on_meta, None);
            Ok(Inferred::of_form(infer.infer(call, A::unbox(args)?)?.form))
        };
        Row::new(name, &schema, runs, form, layers, naming)
    }

    /// Makes the row of an operator that computes an expression of its arguments. `state` makes the state of a
    /// target's kernels from the expression's kernel.
    #[track_caller]
    pub(crate) fn pointwise<A, S, F>(
        name: (&'static str, &str),
        args: &str,
        expression: Arc<Expression>,
        state: impl Fn(Pointwise) -> S + Send + Sync + 'static,
        infer: F,
        layers: Layers,
        naming: Naming,
    ) -> Result<Row>
    where
        A: Args<Value>,
        S: Send + Sync + 'static,
        F: for<'c, 'a> Infer<'c, 'a, A, S> + Copy + Send + Sync + 'static,
    {
        let expr = expression.expr().clone();
        let state = move |op: &Op| state(Pointwise::new(op.clone(), expr.clone()));
        let row = Row::computes::<A, S, F>(name, args, state, infer, layers, naming)?;
        Ok(Row { expression: Some(expression), ..row })
    }

    /// Makes the row of an operator that returns a view of its first argument, or a copy if strides require it.
    #[track_caller]
    pub(crate) fn view<A: Args<Value>>(
        schema: &'static str,
        view: impl for<'a> Fn(&Op, A::Of<'a>) -> Result<Tensor> + Copy + Send + Sync + 'static,
        layers: Layers,
        naming: Naming,
    ) -> Result<Row> {
        let name = name_of(schema);
        let meta = Op::new(name, Target::Meta);
        let fresh: KernelFactory = Box::new(move |op| {
            let op = op.clone();
            Kernel::tupled::<A, Tensor, _>(move |args| view(&op, args))
        });
        let runs = Runs::Everywhere { fresh, out: None, lock: HostLock::Keep };
        let form =
            move |args: &[ValueRef<'_>]| Ok(Inferred::of(&view(&meta, A::unbox(args)?)?, args));
        Row::new(name, schema, runs, form, layers, naming)
    }

    /// Makes the row of an operator that writes into its first argument.
    #[track_caller]
    pub(crate) fn writes<A, F>(
        schema: &'static str,
        infer: F,
        layers: Layers,
        naming: Naming,
    ) -> Result<Row>
    where
        A: Args<Value>,
        F: for<'c, 'a> Infer<'c, 'a, A, ()> + Copy + Send + Sync + 'static,
    {
        let name = name_of(schema);
        let meta = Op::new(name, Target::Meta);
        let fresh: KernelFactory = Box::new(move |op| {
            let op = op.clone();
            Kernel::boxed(move |_, args| {
                let plan = infer.infer(Call::new(&op, &(), None), A::unbox(args)?)?;
                if !op.is_meta() {
                    // SAFETY: the schema says that the operator writes to this argument, so the caller, in
                    // whichever language, gave its memory up for the time of the call; what computes it
                    // reads arguments that share it from copies.
                    unsafe { plan.run.run(&op, args[0].tensor()?) }?;
                }
                Ok(Value::Argument(0))
            })
        });
        let runs = Runs::Everywhere { fresh, out: None, lock: COMPUTES };
        let form = move |args: &[ValueRef<'_>]| {
            infer.infer(Call::new(&meta, &(), None), A::unbox(args)?)?;
            Ok(Inferred::argument(0, args[0].tensor()?))
        };
        Row::new(name, schema, runs, form, layers, naming)
    }

    /// Makes the row of a user's schema and expression, with the kernels that `fresh` makes. An overload `out`
    /// is a separate row.
    #[track_caller]
    pub(crate) fn of_user(
        (name, schema): (&'static str, &Schema),
        expression: Arc<Expression>,
        fresh: impl Fn(&Op) -> Kernel<Value> + Send + Sync + 'static,
        infer: impl Fn(&[ValueRef<'_>]) -> Result<Inferred> + Send + Sync + 'static,
        layers: Layers,
    ) -> Row {
        let runs = Runs::Everywhere { fresh: Box::new(fresh), out: None, lock: COMPUTES };
        let naming = Naming::Unnamed("`keyfold.ops` has it");
        let row = Row::of(name, schema.clone(), runs, infer, layers, naming);
        Row { expression: Some(expression), ..row }
    }

    /// Makes the row of an operator with one kernel for all devices, registered at an alias key.
    #[track_caller]
    pub(crate) fn composite(
        schema: &'static str,
        key: RegistrationKey,
        kernel: fn() -> Kernel<Value>,
        infer: fn(&[ValueRef<'_>]) -> Result<Inferred>,
        layers: Layers,
        naming: Naming,
    ) -> Result<Row> {
        Row::new(name_of(schema), schema, Runs::Composite(key, kernel), infer, layers, naming)
    }

    /// Sets when the kernels release the host language's lock.
    pub(crate) fn with_host_lock(mut self, host_lock: HostLock) -> Row {
        if let Runs::Everywhere { lock, .. } = &mut self.runs {
            *lock = host_lock;
        }
        self
    }

    /// Removes the overload `out`.
    pub(crate) fn without_out(mut self) -> Row {
        if let Runs::Everywhere { out, .. } = &mut self.runs {
            *out = None;
        }
        self
    }

    /// Declares that the result's shape depends on elements, so that there is no kernel for Meta.
    pub(crate) fn data_dependent(self) -> Row {
        let row = Row { infer: FormFollows::Elements, ..self };
        row.tagged(Tags::DATA_DEPENDENT_SHAPE)
    }

    /// Sets the tags.
    pub(crate) fn tagged(self, tags: Tags) -> Row {
        Row { tags, ..self }
    }

    /// Allows arguments on several devices.
    pub(crate) fn across_devices(self) -> Row {
        Row { mixed_devices: true, ..self }
    }

    /// Returns the schema.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Returns the tags.
    pub fn tags(&self) -> Tags {
        self.tags
    }

    /// Returns the rules for the layers.
    pub fn layers(&self) -> &Layers {
        &self.layers
    }

    /// Returns its names in Python.
    pub fn naming(&self) -> &Naming {
        &self.naming
    }

    /// Returns the expression of its arguments that the operator computes, if it computes one.
    pub fn expression(&self) -> Option<&Expression> {
        self.expression.as_deref()
    }

    /// Infers the result of a call from the arguments, without reading or computing elements.
    ///
    /// # Errors
    /// Those of a call, and [`ErrorKind::NotSupported`] if the shape depends on elements.
    pub fn infer(&self, args: &[ValueRef<'_>]) -> Result<Inferred> {
        match &self.infer {
            FormFollows::Arguments(infer) => infer(args),
            FormFollows::Elements => {
                let message =
                    format!("{}: the result's shape follows from elements", self.schema.name);
                Err(Error::new(ErrorKind::NotSupported, message))
            }
        }
    }

    /// Returns whether the operator is a composite of other operators.
    pub fn is_composite(&self) -> bool {
        matches!(self.runs, Runs::Composite(..))
    }

    /// Returns the schema of the overload `out`, if there is one.
    pub fn out_schema(&self) -> Option<Schema> {
        let Runs::Everywhere { out: Some(_), .. } = &self.runs else { return None };
        out_schema(&self.schema)
    }

    /// Makes the kernels for a target, each with the schema of its overload.
    pub(crate) fn kernels(&self, target: &Target) -> Vec<(Schema, Kernel<Value>)> {
        let Runs::Everywhere { fresh, out, lock } = &self.runs else { return Vec::new() };
        let op = Op::new(self.name, target.clone());
        let kind = op.kind();
        let mut kernels = vec![(self.schema.clone(), self.checked(fresh(&op)))];
        if let (Some(make), Some(schema)) = (out, self.out_schema()) {
            kernels.push((schema, make(&op)));
        }
        let named = kernels.into_iter().map(|(schema, kernel)| {
            let provenance = Provenance::rust(format!("{}_{kind}", label(&schema)), self.location);
            (schema, kernel.with_provenance(provenance).with_host_lock(*lock))
        });
        named.collect()
    }

    /// Wraps a kernel to compare its results with the inferred ones, in builds with debug assertions.
    fn checked(&self, kernel: Kernel<Value>) -> Kernel<Value> {
        let FormFollows::Arguments(infer) = &self.infer else { return kernel };
        if !cfg!(debug_assertions) {
            return kernel;
        }
        let (infer, name) = (infer.clone(), self.schema.name.to_string());
        Kernel::boxed(move |context, args| {
            let result = kernel.invoke(context, args)?;
            match infer(args) {
                Ok(inferred) => inferred.check(&name, &result, args)?,
                // The shape depends on the elements of this call's arguments.
                Err(error) if error.kind() == ErrorKind::NotSupported => {}
                Err(error) => return Err(error.at("inferred after the kernel ran")),
            }
            Ok(result)
        })
    }

    /// Refuses a derived rule in a row without an expression that isn't a composite.
    fn check(&self) -> Result<()> {
        let derived = matches!(self.layers.derivative, Rule::Derived)
            || matches!(self.layers.tangent, Rule::Derived)
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
            let provenance = Provenance::rust(label(&self.schema), self.location);
            let kernel = self.checked(kernel()).with_provenance(provenance);
            let kernel = kernel.with_host_lock(COMPUTES);
            dispatcher.implement(&name, *key, kernel, Override::Error)?;
        }
        for (schema, kernel) in self.kernels(&Target::Meta) {
            let name = schema.name.to_string();
            dispatcher.define_with(schema, options)?;
            if !self.tags.contains(Tags::DATA_DEPENDENT_SHAPE) {
                dispatcher.implement(&name, DispatchKey::Meta, kernel, Override::Error)?;
            }
        }
        for (key, kernel) in self.layer_kernels()? {
            dispatcher.implement(&name, key, kernel, Override::Error)?;
        }
        Ok(())
    }

    /// Makes the kernels for a backend, each with the schema of its overload.
    pub(crate) fn backend_kernels(&self, runner: &Arc<Runner>) -> Vec<(Schema, Kernel<Value>)> {
        let kernels = self.kernels(&Target::Backend(runner.clone()));
        if runner.kind.is_host() {
            return kernels;
        }
        // Random numbers come from the stream of their own device, so random operators don't fall back.
        let falls_back = !self.tags.contains(Tags::NONDETERMINISTIC_SEEDED);
        let there = |(schema, kernel)| (schema, device_kernel(kernel, runner, falls_back));
        kernels.into_iter().map(there).collect()
    }

    /// Makes the kernels for the layers that have a rule, each with its key.
    pub(crate) fn layer_kernels(&self) -> Result<Vec<(DispatchKey, Kernel<Value>)>> {
        let layers = [
            (DispatchKey::Autograd, self.autograd(&self.schema.name.to_string())?),
            (DispatchKey::Vmap, self.vmap()),
            (DispatchKey::Autocast, self.autocast()),
        ];
        Ok(layers.into_iter().filter_map(|(key, kernel)| Some((key, kernel?))).collect())
    }

    /// Makes the kernel at Autograd; `None` if the fallback serves, or a composite's operators have kernels.
    fn autograd(&self, name: &str) -> Result<Option<Kernel<Value>>> {
        let derivative = match self.layers.derivative {
            Rule::Given(Gradient::Formula(reads, vjp)) => Arc::new(Formula::new(name, reads, vjp)),
            Rule::Given(Gradient::Other(make)) => make(name),
            Rule::Given(Gradient::Detach) => {
                let kernel = Kernel::boxed(|context, args| context.call_below(args));
                return Ok(Some(kernel.named("no gradient passes").with_host_lock(COMPUTES)));
            }
            Rule::Derived => match &self.expression {
                Some(expression) => {
                    vjp::of_arguments(name, expression.clone(), self.positions(expression)?)
                }
                None => return Ok(None),
            },
            Rule::Refused(_) => return Ok(None),
        };
        Ok(Some(match self.tangent(name)? {
            Some(tangent) => autograd::kernel_with_tangent(derivative, tangent),
            None => autograd::kernel(derivative),
        }))
    }

    /// Makes the rule of forward mode; `None` if it is refused, or a composite's operators have rules.
    fn tangent(&self, name: &str) -> Result<Option<Arc<dyn Pushforward>>> {
        Ok(match (self.layers.tangent, &self.expression) {
            (Rule::Given(Tangent::Linear), _) => Some(Arc::new(Linear)),
            (Rule::Given(Tangent::Multilinear), _) => Some(Arc::new(Multilinear)),
            (Rule::Given(Tangent::Jvp(jvp)), _) => Some(Arc::new(jvp)),
            (Rule::Given(Tangent::Other(make)), _) => Some(make()),
            (Rule::Derived, Some(expression)) => {
                let positions = self.positions(expression)?;
                Some(jvp::of_arguments(name, expression.clone(), positions))
            }
            (Rule::Derived, None) | (Rule::Refused(_), _) => None,
        })
    }

    /// Returns the positions of an expression's inputs and parameters among the arguments.
    ///
    /// # Errors
    /// [`ErrorKind::Registration`] for a name without an argument.
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

    /// Makes the kernel at Vmap; `None` if the fallback's loop serves.
    fn vmap(&self) -> Option<Kernel<Value>> {
        let name = "batching rule of its own";
        match self.layers.batching {
            Rule::Given(Batching::Rule(rule)) => Some(vmap::kernel(rule, name)),
            Rule::Given(Batching::Draw) => Some(vmap::draw().named("one draw for the whole batch")),
            Rule::Derived if self.is_composite() => {
                Some(vmap::composite().named("the operators it is written in"))
            }
            Rule::Derived => {
                let mut others = self.schema.arguments.iter().skip(1);
                let broadcasts = others.any(|argument| argument.ty == Type::Tensor);
                let rule = if broadcasts { vmap::several } else { vmap::single };
                Some(vmap::kernel(rule, name))
            }
            Rule::Refused(_) => None,
        }
    }

    fn autocast(&self) -> Option<Kernel<Value>> {
        let category = self.layers.autocast;
        (category != Category::Leave).then(|| autocast::kernel(category))
    }
}

/// Returns an operator's name with its overload, for the names of its kernels.
fn label(schema: &Schema) -> String {
    let name = &schema.name;
    match &*name.overload {
        "" => name.name.to_string(),
        overload => format!("{}_{}", name.name, overload.to_lowercase()),
    }
}

/// Returns the name at the beginning of a schema's text, without its overload.
fn name_of(schema: &'static str) -> &'static str {
    schema.find(['.', '(']).map_or(schema, |end| &schema[..end])
}
