//! The proof that a graph has no mistake.

use keyfold_core::{Error, ErrorKind, Result};

use crate::{Count, GraphSpec, OpSpec, Port, PortRule, TensorSpec};

impl GraphSpec {
    /// Returns how errors name an operation: by the graph, its own name and what it computes.
    pub(crate) fn place(&self, op: &OpSpec) -> String {
        let graph = match self.name.as_str() {
            "" => "graph".to_string(),
            name => format!("graph {name:?}"),
        };
        match op.name.as_str() {
            "" => format!("{graph}, {}", op.operation.name()),
            name => format!("{graph}, node {name:?} ({})", op.operation.name()),
        }
    }
}

/// Proves that an operation reads at the ports that it has, as many tensors as it takes there.
pub(crate) fn check_inputs(rules: &[PortRule], inputs: &[(Port, &TensorSpec)]) -> Result<()> {
    let read: Vec<Port> = inputs.iter().map(|entry| entry.0).collect();
    check_ports(rules, &read, false)
}

/// Proves that an operation has the ports of a direction that are given, and as many as it takes there.
fn check_ports(rules: &[PortRule], given: &[Port], is_output: bool) -> Result<()> {
    let rules = || rules.iter().filter(|rule| rule.is_output == is_output);
    let noun = if is_output { "output" } else { "input" };
    let error = |message: String| Err(Error::new(ErrorKind::Value, message));
    if let Some(port) = given.iter().find(|&&port| !rules().any(|rule| rule.port == port)) {
        let has = rules().map(|rule| rule.port.to_string()).collect::<Vec<_>>().join(", ");
        return error(format!("it has no {noun} {port}: with its attributes it has {has}"));
    }
    for rule in rules() {
        let port = rule.port;
        match (given.iter().filter(|&&one| one == port).count(), rule.count) {
            (0, Count::Optional) | (1, _) => {}
            (0, _) => {
                return error(format!("it has no tensor at its {noun} {port}, which it needs"));
            }
            (_, Count::Several) => {}
            (count, _) => {
                return error(format!(
                    "it has {count} tensors at its {noun} {port}, which takes one"
                ));
            }
        }
    }
    Ok(())
}
