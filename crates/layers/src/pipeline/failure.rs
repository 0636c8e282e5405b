//! The record of an operation that failed.

use std::fmt;

use keyfold_core::{Error, SharedError};

use super::host;
use super::operation::{Operation, Structure};
use crate::tracer::{Assembly, Graph, Results};

/// An operation of a pipeline that failed, with what a person needs to find it.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its place among all operations of the pipeline.
    pub index: usize,
    /// The operator's name, with its overload.
    pub operator: String,
    /// The line that recorded it, as `file:line`, if the host language knows it.
    pub site: Option<String>,
    /// The call, with the forms of its arguments and results.
    pub call: String,
    /// The operations whose results it read, or after which it ran.
    pub depends_on: Vec<usize>,
    /// The call as a graph with its arguments as constants: a replay fails as the operation did. Its
    /// arguments stay alive with it.
    pub graph: Graph,
    /// The error, which all readers of what depends on the operation get.
    pub error: SharedError,
}

impl Failure {
    /// Makes the failure of an operation that returned an error when it ran.
    pub(super) fn new(operation: &Operation, call: String, error: Error) -> Failure {
        let site = operation.site.as_ref().and_then(|site| site.resolve());
        let operator = operation.operator.name().to_owned();
        let recorded = match &site {
            Some(site) => format!(", recorded at {site}"),
            None => String::new(),
        };
        let index = operation.index;
        let note =
            format!("operation {index} of a pipeline, {operator}{recorded}, failed when it ran");
        host::annotate(&error, &note);
        let error = error.noted(&note);
        let depends_on = operation.after.to_vec();
        let error = SharedError::new(error.late());
        let mut graph = Assembly::default();
        let inputs = operation.inputs().unwrap_or_default();
        let is_list = operation.structure == Structure::List;
        let results = Results { forms: &operation.forms(), is_list };
        let made = graph.call(&operation.operator, &inputs, &results, &|_| None);
        let graph = graph.finish(made.into_iter().flatten());
        Failure { index, operator, site, call, depends_on, graph, error }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "operation {} failed when it ran: {}", self.index, self.error)?;
        writeln!(f, "  {}", self.call)?;
        if let Some(site) = &self.site {
            writeln!(f, "  recorded at {site}")?;
        }
        if !self.depends_on.is_empty() {
            let after: Vec<String> = self.depends_on.iter().map(|at| format!("%{at}")).collect();
            writeln!(f, "  after {}", after.join(", "))?;
        }
        Ok(())
    }
}
