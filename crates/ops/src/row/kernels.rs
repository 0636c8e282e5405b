//! The kernels of a row: for Meta and the backends, and for the layers.

use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::schema::{Schema, Type};
use keyfold_dispatch::{
    DefineOptions, DispatchKey, Dispatcher, Kernel, Override, Provenance, RegistrationKey, Tags,
};
use keyfold_layers::autocast::{self, Category};
use keyfold_layers::autograd::{self, Formula, FormulaOfSeveral, Linear, Multilinear, Pushforward};
use keyfold_layers::pipeline::{self, Form};
use keyfold_layers::vmap;
use keyfold_tensor::Value;

use super::{Batching, COMPUTES, FormFollows, Gradient, Row, Rule, Runs, Tangent};
use crate::device_kernel::device_kernel;
use crate::inferred::{self, Inferred};
use crate::op::{Op, Runner, Target};
use crate::pointwise::{Expression, jvp, vjp};

impl Row {
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
            if let Some(schema) = self.out_schema() {
                let name = schema.name.to_string();
                let provenance = Provenance::rust(label(&schema), self.location);
                let kernel = self.composite_out().with_provenance(provenance);
                dispatcher.define_with(schema, options)?;
                let key = RegistrationKey::CompositeExplicitAutograd;
                dispatcher.implement(
                    &name,
                    key,
                    kernel.with_host_lock(COMPUTES),
                    Override::Error,
                )?;
            }
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
                Ok(inferred) => inferred::check(&inferred, &name, &result, args)?,
                // The shape depends on the elements of this call's arguments.
                Err(error) if error.kind() == ErrorKind::NotSupported => {}
                Err(error) => return Err(error.at("inferred after the kernel ran")),
            }
            Ok(result)
        })
    }

    /// Makes the kernels for a backend, each with the schema of its overload.
    pub(crate) fn backend_kernels(&self, runner: &Arc<Runner>) -> Vec<(Schema, Kernel<Value>)> {
        let kernels = self.kernels(&Target::Backend(runner.clone()));
        let own = |(schema, kernel): (Schema, Kernel<Value>)| {
            (schema, kernel.with_payload(runner.computes.clone()))
        };
        if runner.kind.is_host() {
            return kernels.into_iter().map(own).collect();
        }
        // Random numbers come from the stream of their own device, so random operators don't fall back.
        let falls_back = !self.tags.contains(Tags::NONDETERMINISTIC_SEEDED);
        let there = |(schema, kernel)| own((schema, device_kernel(kernel, runner, falls_back)));
        kernels.into_iter().map(there).collect()
    }

    /// Makes the kernels for the layers that have a rule, each with its key.
    pub(crate) fn layer_kernels(&self) -> Result<Vec<(DispatchKey, Kernel<Value>)>> {
        let layers = [
            (DispatchKey::Autograd, self.autograd(&self.schema.name.to_string())?),
            (DispatchKey::Vmap, self.vmap()),
            (DispatchKey::Autocast, self.autocast()),
            (DispatchKey::Deferred, self.deferred()),
        ];
        Ok(layers.into_iter().filter_map(|(key, kernel)| Some((key, kernel?))).collect())
    }

    /// Makes the kernel at Autograd; `None` if the fallback serves, or a composite's operators have kernels.
    fn autograd(&self, name: &str) -> Result<Option<Kernel<Value>>> {
        let derivative: Arc<dyn autograd::Derivative> = match self.layers.derivative {
            Rule::Given(Gradient::Formula(reads, vjp)) => Arc::new(Formula::new(name, reads, vjp)),
            Rule::Given(Gradient::Several(reads, vjp)) => {
                Arc::new(FormulaOfSeveral::new(name, reads, vjp))
            }
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

    /// Makes the kernel at Deferred; `None` if the shape depends on elements, which the fallback handles.
    fn deferred(&self) -> Option<Kernel<Value>> {
        let FormFollows::Arguments(infer) = &self.infer else { return None };
        let infer = infer.clone();
        let work = self.work;
        let form = |inferred: Option<Inferred>| inferred.map(Inferred::into_form);
        Some(pipeline::kernel(Arc::new(move |args| {
            let mut forms: Vec<Option<Form>> = infer(args)?.into_iter().map(form).collect();
            if let (Some(work), Some(first)) = (work, forms.iter_mut().flatten().next()) {
                first.work = Some(work(args, &first.shape)?);
            }
            Ok(forms)
        })))
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
