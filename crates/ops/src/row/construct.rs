//! The constructors of rows, one for each way to compute a result.

use std::panic::Location;
use std::sync::Arc;

use keyfold_core::Result;
use keyfold_dispatch::schema::Schema;
use keyfold_dispatch::{Args, HostLock, Kernel, RegistrationKey, Tags};
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::composite_out::split_outs;
use super::{COMPUTES, Estimate, FormFollows, KernelFactory, Layers, Row, Runs};
use crate::infer::{Call, Infer, InferSeveral, Run};
use crate::inferred::Inferred;
use crate::naming::Naming;
use crate::op::{Op, Target};
use crate::pointwise::{Expression, Pointwise};

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
        let infer = one_result(infer);
        Ok(Row::of(name, Schema::parse(schema)?, runs, infer, layers, naming))
    }

    #[track_caller]
    fn of(
        name: &'static str,
        schema: Schema,
        runs: Runs,
        infer: impl Fn(&[ValueRef<'_>]) -> Result<Vec<Option<Inferred>>> + Send + Sync + 'static,
        layers: Layers,
        naming: Naming,
    ) -> Row {
        Row {
            schema,
            name,
            mixed_devices: false,
            tags: Tags::NONE,
            runs,
            out_names: None,
            infer: FormFollows::Arguments(Arc::new(infer)),
            work: None,
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
            Ok(Inferred::of_plan(infer.infer(call, A::unbox(args)?)?, args))
        };
        Row::new(name, &schema, runs, form, layers, naming)
    }

    /// Makes the row of an operator with several results in new memory, `-> (Tensor, Tensor)` in its schema.
    ///
    /// `infer` and `state` as in [`Row::computes`]. The overload `out` has an argument for each result.
    #[track_caller]
    pub(crate) fn computes_several<A, S, F>(
        schema: &'static str,
        state: impl Fn(&Op) -> S + Send + Sync + 'static,
        infer: F,
        layers: Layers,
        naming: Naming,
    ) -> Result<Row>
    where
        A: Args<Value>,
        S: Send + Sync + 'static,
        F: for<'c, 'a> InferSeveral<'c, 'a, A, S> + Copy + Send + Sync + 'static,
    {
        let (name, schema) = (name_of(schema), Schema::parse(schema)?);
        let meta = Op::new(name, Target::Meta);
        let (on_meta, own) = (state(&meta), schema.arguments.len());
        let state = Arc::new(state);
        let for_out = state.clone();
        let fresh: KernelFactory = Box::new(move |op| {
            let (op, state) = (op.clone(), state(op));
            Kernel::boxed(move |_, args: &[ValueRef<'_>]| {
                infer.infer(Call::new(&op, &state, None), A::unbox(args)?)?.fresh(&op)
            })
        });
        let out: KernelFactory = Box::new(move |op| {
            let (op, state) = (op.clone(), for_out(op));
            Kernel::boxed(move |context, args: &[ValueRef<'_>]| {
                let (args, outs) = split_outs(context, args, own)?;
                let plan = infer.infer(Call::new(&op, &state, None), A::unbox(args)?)?;
                // SAFETY: the schema says that the operator writes to these arguments, so the caller, in
                // whichever language, gave their memory up for the time of the call.
                unsafe { plan.write(&op, &outs, args) }
            })
        });
        let runs = Runs::Everywhere { fresh, out: Some(out), lock: COMPUTES };
        let form = move |args: &[ValueRef<'_>]| {
            let plan = infer.infer(Call::new(&meta, &on_meta, None), A::unbox(args)?)?;
            Ok(plan.forms.into_iter().map(|form| form.map(Inferred::of_form)).collect())
        };
        Ok(Row::of(name, schema, runs, form, layers, naming))
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

    /// Makes the row of an operator that returns a list of views of its first argument.
    #[track_caller]
    pub(crate) fn views<A: Args<Value>>(
        schema: &'static str,
        views: impl for<'a> Fn(&Op, A::Of<'a>) -> Result<Vec<Tensor>> + Copy + Send + Sync + 'static,
        layers: Layers,
        naming: Naming,
    ) -> Result<Row> {
        let name = name_of(schema);
        let meta = Op::new(name, Target::Meta);
        let fresh: KernelFactory = Box::new(move |op| {
            let op = op.clone();
            Kernel::tupled::<A, Vec<Tensor>, _>(move |args| views(&op, args))
        });
        let runs = Runs::Everywhere { fresh, out: None, lock: HostLock::Keep };
        let form = move |args: &[ValueRef<'_>]| {
            let all = views(&meta, A::unbox(args)?)?;
            Ok(all.iter().map(|view| Some(Inferred::of(view, args))).collect())
        };
        Ok(Row::of(name, Schema::parse(schema)?, runs, form, layers, naming))
    }

    /// Makes the row of an operator without a result, which writes into the list that is its last argument.
    /// `write` checks the arguments, and computes unless its target is Meta.
    #[track_caller]
    pub(crate) fn writes_list<A: Args<Value>>(
        schema: &'static str,
        write: impl for<'a> Fn(&Op, A::Of<'a>) -> Result<()> + Copy + Send + Sync + 'static,
        layers: Layers,
        naming: Naming,
    ) -> Result<Row> {
        let name = name_of(schema);
        let fresh: KernelFactory = Box::new(move |op| {
            let op = op.clone();
            Kernel::tupled::<A, (), _>(move |args| write(&op, args))
        });
        let meta = Op::new(name, Target::Meta);
        let runs = Runs::Everywhere { fresh, out: None, lock: COMPUTES };
        let form = move |args: &[ValueRef<'_>]| {
            write(&meta, A::unbox(args)?)?;
            Ok(vec![None])
        };
        Ok(Row::of(name, Schema::parse(schema)?, runs, form, layers, naming))
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

    /// Makes the row of an operator that writes into several arguments, of which the first is its result.
    /// `step` checks the arguments, and computes unless its target is Meta.
    #[track_caller]
    pub(crate) fn writes_several(
        schema: &'static str,
        step: fn(&Op, &[ValueRef<'_>]) -> Result<()>,
        layers: Layers,
        naming: Naming,
    ) -> Result<Row> {
        let name = name_of(schema);
        let meta = Op::new(name, Target::Meta);
        let fresh: KernelFactory = Box::new(move |op| {
            let op = op.clone();
            Kernel::boxed(move |_, args| {
                step(&op, args)?;
                Ok(Value::Argument(0))
            })
        });
        let runs = Runs::Everywhere { fresh, out: None, lock: COMPUTES };
        let form = move |args: &[ValueRef<'_>]| {
            step(&meta, args)?;
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
        let row = Row::of(name, schema.clone(), runs, one_result(infer), layers, naming);
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

    /// As [`Row::composite`], of an operator with several results, or a list of tensors.
    #[track_caller]
    pub(crate) fn composite_of_several(
        schema: &'static str,
        key: RegistrationKey,
        kernel: fn() -> Kernel<Value>,
        infer: fn(&[ValueRef<'_>]) -> Result<Vec<Option<Inferred>>>,
        layers: Layers,
        naming: Naming,
    ) -> Result<Row> {
        let runs = Runs::Composite(key, kernel);
        Ok(Row::of(name_of(schema), Schema::parse(schema)?, runs, infer, layers, naming))
    }

    /// Sets when the kernels release the host language's lock.
    pub(crate) fn with_host_lock(mut self, host_lock: HostLock) -> Row {
        if let Runs::Everywhere { lock, .. } = &mut self.runs {
            *lock = host_lock;
        }
        self
    }

    /// Sets the estimate of the time of a call.
    pub(crate) fn estimated(self, work: Estimate) -> Row {
        Row { work: Some(work), ..self }
    }

    /// Sets the name of the overload `out`, which a composite gets by that, and those of the arguments that it
    /// writes to.
    pub(crate) fn out_named(
        self,
        overload: &'static str,
        arguments: &'static [&'static str],
    ) -> Row {
        Row { out_names: Some((overload, arguments)), ..self }
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
}

/// Returns the name at the beginning of a schema's text, without its overload.
fn name_of(schema: &'static str) -> &'static str {
    schema.find(['.', '(']).map_or(schema, |end| &schema[..end])
}

/// Returns a function that infers one result as one that infers all of them.
fn one_result(
    infer: impl Fn(&[ValueRef<'_>]) -> Result<Inferred>,
) -> impl Fn(&[ValueRef<'_>]) -> Result<Vec<Option<Inferred>>> {
    move |args| Ok(vec![Some(infer(args)?)])
}
