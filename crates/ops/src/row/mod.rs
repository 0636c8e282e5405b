//! The row of an operator: its schema, its computation, and its rule for each layer.
//!
//! A family of operators is a function that returns rows. The kernels for Meta and for every backend, the
//! overloads `out`, and the kernels at Autograd, Vmap and Autocast are made from the rows.

mod composite_out;
mod construct;
mod kernels;
mod rules;

use std::panic::Location;
use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::schema::Schema;
use keyfold_dispatch::{HostLock, Kernel, RegistrationKey, Tags};
use keyfold_layers::pipeline::Work;
use keyfold_tensor::{Value, ValueRef};

use crate::inferred::Inferred;
use crate::naming::Naming;
use crate::op::Op;
use crate::pointwise::{Expression, out_schema};

pub use rules::{Batching, Gradient, Layers, Rule, Tangent};

/// Kernels that compute release the host language's lock from this number of elements on.
pub(crate) const COMPUTES: HostLock = HostLock::ReleaseFrom(1 << 15);

/// A function that makes the kernel of an operator for a target.
type KernelFactory = Box<dyn Fn(&Op) -> Kernel<Value> + Send + Sync>;

/// The kernels of an operator.
enum Runs {
    /// A kernel for Meta and for each backend, and one for the overload `out`.
    Everywhere { fresh: KernelFactory, out: Option<KernelFactory>, lock: HostLock },
    /// One kernel for all devices, which usually calls other operators.
    Composite(RegistrationKey, fn() -> Kernel<Value>),
}

/// A function that estimates the time of a call, by its arguments and the shape of its first result.
pub(crate) type Estimate = fn(&[ValueRef<'_>], &[usize]) -> Result<Work>;

/// The name of an overload `out`, and of each argument that it writes to.
type OutNames = (&'static str, &'static [&'static str]);

/// A function that infers the results from boxed arguments.
type InferForm = dyn Fn(&[ValueRef<'_>]) -> Result<Vec<Option<Inferred>>> + Send + Sync;

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
    /// The name of the overload `out`, and of its arguments, where they differ from those of [`out_schema`]; a
    /// composite without them has no such overload.
    out_names: Option<OutNames>,
    infer: FormFollows,
    /// The time of a call, if it isn't that of a few operations for each element.
    work: Option<Estimate>,
    /// The expression that it computes, if it computes one.
    expression: Option<Arc<Expression>>,
    layers: Layers,
    naming: Naming,
    /// The source location of the row.
    location: &'static Location<'static>,
}

impl Row {
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

    /// Infers the results of a call from the arguments, without reading or computing elements: `None` for one
    /// that the call doesn't want, and one item for each tensor of a list.
    ///
    /// # Errors
    /// Those of a call, and [`ErrorKind::NotSupported`] if the shape depends on elements.
    pub fn infer(&self, args: &[ValueRef<'_>]) -> Result<Vec<Option<Inferred>>> {
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
        let has_out = match &self.runs {
            Runs::Everywhere { out, .. } => out.is_some(),
            Runs::Composite(..) => self.out_names.is_some(),
        };
        let mut schema = has_out.then(|| out_schema(&self.schema))??;
        if let Some((overload, names)) = self.out_names {
            schema.name.overload = overload.to_owned();
            for (out, name) in schema.arguments[self.schema.arguments.len()..].iter_mut().zip(names)
            {
                out.name = (*name).to_owned();
            }
        }
        Some(schema)
    }
}
