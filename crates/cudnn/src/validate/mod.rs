//! The proof that a graph has no mistake.

mod dtypes;
mod scalar;
mod tensors;

use std::collections::HashMap;

use keyfold_core::{Error, ErrorKind, Result};

use crate::infer::{self, is_free};
use crate::{Count, GraphSpec, OpSpec, Port, PortRule, TensorSpec, Uid, ValidGraph};

impl GraphSpec {
    /// Proves the graph: it has operations; tensors have numbers, dtypes, sizes, strides and alignments that
    /// memory can have; operations read and write what they take, with shapes and dtypes that fit; each
    /// tensor has one writer at most; virtual tensors are written and read; and no operation waits for its
    /// own result.
    ///
    /// ```
    /// use keyfold_cudnn::{DataType, Graph, GraphOptions};
    ///
    /// let mut g = Graph::new(GraphOptions { io: Some(DataType::F32), ..GraphOptions::default() });
    /// let (a, b) = (g.input("a", &[2, 3])?, g.input("b", &[3, 4])?);
    /// let c = g.matmul(a, b)?;
    /// let error = g.spec().clone().validate().unwrap_err();
    /// assert!(error.message().contains("set_output"), "{error}");
    /// g.set_output(c, true)?;
    /// assert_eq!(g.into_spec().validate()?.operations().count(), 1);
    /// # Ok::<(), keyfold_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The first mistake, with the names of graph, operation and tensor, and the numbers:
    /// [`ErrorKind::Shape`], [`ErrorKind::DType`], [`ErrorKind::Index`], and [`ErrorKind::Value`] for others.
    pub fn validate(self) -> Result<ValidGraph> {
        let order = prove(&self)?;
        Ok(ValidGraph::new(self, order))
    }

    /// Returns how errors name the graph.
    pub(crate) fn title(&self) -> String {
        match self.name.as_str() {
            "" => "graph".to_string(),
            name => format!("graph {name:?}"),
        }
    }

    /// Returns how errors name an operation: by the graph, its own name and what it computes.
    pub(crate) fn place(&self, op: &OpSpec) -> String {
        format!("{}, {}", self.title(), node(op))
    }
}

fn node(op: &OpSpec) -> String {
    match op.name.as_str() {
        "" => op.operation.name().to_string(),
        name => format!("node {name:?} ({})", op.operation.name()),
    }
}

/// Where each tensor of a graph is, and who writes it.
struct Links<'a> {
    graph: &'a GraphSpec,
    /// The index of each number's tensor.
    tensors: HashMap<Uid, usize>,
    /// The operation that writes each tensor.
    writers: Vec<Option<usize>>,
}

impl Links<'_> {
    fn find(&self, port: Port, uid: Uid) -> Result<&TensorSpec> {
        let index = self.tensors.get(&uid).ok_or_else(|| {
            let message = format!("its {port} is tensor #{uid}, which the graph doesn't have");
            Error::new(ErrorKind::Value, message)
        })?;
        Ok(&self.graph.tensors[*index])
    }

    fn all(&self, list: &[(Port, Uid)]) -> Result<Vec<(Port, &TensorSpec)>> {
        list.iter().map(|&(port, uid)| Ok((port, self.find(port, uid)?))).collect()
    }
}

/// Proves a graph, and returns an order of its operations in which each reads what is there.
fn prove(graph: &GraphSpec) -> Result<Vec<usize>> {
    let title = graph.title();
    if graph.operations.is_empty() {
        let count = graph.tensors.len();
        return Err(value(format!("{title} has no operation: it has {count} tensors alone")));
    }
    let mut tensors = HashMap::with_capacity(graph.tensors.len());
    for (index, tensor) in graph.tensors.iter().enumerate() {
        let place = format!("{title}, tensor {}", tensor.label());
        tensors::check(tensor).map_err(|error| error.at(&place))?;
        if let Some(other) = tensors.insert(tensor.uid, index) {
            return Err(value(format!(
                "{title} has two tensors with uid {}: {} at {other} and {} at {index}",
                tensor.uid,
                graph.tensors[other].label(),
                tensor.label()
            )));
        }
    }
    let writers = vec![None; graph.tensors.len()];
    let mut links = Links { graph, tensors, writers };
    let mut read = vec![false; graph.tensors.len()];
    for (index, op) in graph.operations.iter().enumerate() {
        let at = |error: Error| error.at(&graph.place(op));
        let rules = op.operation.ports();
        for (list, is_output) in [(&op.inputs, false), (&op.outputs, true)] {
            let ports: Vec<Port> = list.iter().map(|entry| entry.0).collect();
            check_ports(&rules, &ports, is_output).map_err(at)?;
            links.all(list).map_err(at)?;
        }
        for entry in &op.inputs {
            read[links.tensors[&entry.1]] = true;
        }
        for (port, uid) in &op.outputs {
            let place = links.tensors[uid];
            check_target(&links, op, *port, place).map_err(at)?;
            links.writers[place] = Some(index);
        }
    }
    for (index, tensor) in graph.tensors.iter().enumerate() {
        let place = format!("{title}, tensor {}", tensor.label());
        check_use(tensor, links.writers[index].is_some(), read[index])
            .map_err(|error| error.at(&place))?;
    }
    let order = sort(&links)?;
    for &index in &order {
        let op = &graph.operations[index];
        check_operation(&links, op).map_err(|error| error.at(&graph.place(op)))?;
    }
    Ok(order)
}

fn value(message: String) -> Error {
    Error::new(ErrorKind::Value, message)
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
    if let Some(port) = given.iter().find(|&&port| !rules().any(|rule| rule.port == port)) {
        let has = rules().map(|rule| rule.port.to_string()).collect::<Vec<_>>().join(", ");
        return Err(value(format!("it has no {noun} {port}: with its attributes it has {has}")));
    }
    for rule in rules() {
        let port = rule.port;
        let message = match (given.iter().filter(|&&one| one == port).count(), rule.count) {
            (0, Count::Optional) | (1, _) => continue,
            (0, _) => format!("it has no tensor at its {noun} {port}, which it needs"),
            (_, Count::Several) => continue,
            (count, _) => format!("it has {count} tensors at its {noun} {port}, which takes one"),
        };
        return Err(value(message));
    }
    Ok(())
}

/// Proves that an operation may write a tensor.
fn check_target(links: &Links<'_>, op: &OpSpec, port: Port, place: usize) -> Result<()> {
    let tensor = &links.graph.tensors[place];
    let label = tensor.label();
    if let Some(other) = links.writers[place] {
        let other = node(&links.graph.operations[other]);
        let message = format!(
            "it writes tensor {label} at {port}, which {other} writes too: a tensor has one writer"
        );
        return Err(value(message));
    }
    if tensor.by_value {
        return Err(value(format!(
            "it writes tensor {label} at {port}, which is given by value: results have memory or are virtual"
        )));
    }
    if tensor.is_virtual && op.updates(tensor.uid) {
        return Err(value(format!(
            "beta is {}, but tensor {label} at {port} is virtual: numbers that it held before need memory",
            op.beta()
        )));
    }
    tensors::check_strides_of_output(port, tensor)
}

/// Proves that a tensor has its part in the graph.
fn check_use(tensor: &TensorSpec, written: bool, read: bool) -> Result<()> {
    let message = match (tensor.is_virtual, written, read) {
        (true, false, _) => {
            "it is virtual, and no operation writes it: give it memory, or a writer"
        }
        (true, true, false) => {
            "it is virtual, and no operation reads it: set_output gives it memory, or leave it out"
        }
        (false, false, false) => "no operation reads or writes it: leave it out",
        _ => return Ok(()),
    };
    Err(value(message.to_string()))
}

/// Returns an order of the operations in which each is behind those whose results it reads; of those that
/// may be next, the first one of the graph is.
fn sort(links: &Links<'_>) -> Result<Vec<usize>> {
    let operations = &links.graph.operations;
    let writers_of = |index: usize| {
        operations[index].inputs.iter().filter_map(|entry| links.writers[links.tensors[&entry.1]])
    };
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); operations.len()];
    let mut waits = vec![0_usize; operations.len()];
    for (index, waits) in waits.iter_mut().enumerate() {
        for writer in writers_of(index) {
            readers[writer].push(index);
            *waits += 1;
        }
    }
    let ready = (0..operations.len()).filter(|&index| waits[index] == 0);
    let mut ready: std::collections::BTreeSet<usize> = ready.collect();
    let mut order = Vec::with_capacity(operations.len());
    while let Some(index) = ready.pop_first() {
        order.push(index);
        for &reader in &readers[index] {
            waits[reader] -= 1;
            if waits[reader] == 0 {
                ready.insert(reader);
            }
        }
    }
    if order.len() == operations.len() {
        return Ok(order);
    }
    // Each operation that waits has a writer that waits: going back along them comes round to one again.
    let mut path = vec![(0..waits.len()).find(|&index| waits[index] > 0).expect("some wait")];
    let start = loop {
        let last = path[path.len() - 1];
        let next = writers_of(last).find(|&writer| waits[writer] > 0).expect("it waits for one");
        if let Some(start) = path.iter().position(|&index| index == next) {
            break start;
        }
        path.push(next);
    };
    let mut cycle: Vec<String> =
        path[start..].iter().rev().map(|&index| node(&operations[index])).collect();
    cycle.push(cycle[0].clone());
    Err(value(format!(
        "{} has a cycle, in which each operation reads a result of the one before: {}",
        links.graph.title(),
        cycle.join(", ")
    )))
}

/// Proves the shapes and dtypes of an operation.
fn check_operation(links: &Links<'_>, op: &OpSpec) -> Result<()> {
    let (inputs, outputs) = (links.all(&op.inputs)?, links.all(&op.outputs)?);
    let wanted: Vec<Port> = outputs.iter().map(|entry| entry.0).collect();
    let inferred = infer::outputs(&op.operation, &inputs, &wanted)?;
    for ((port, tensor), (_, inferred)) in outputs.iter().zip(inferred) {
        if is_free(&op.operation, *port) {
            infer::accepts(&op.operation, &inputs, tensor)?;
        } else if tensor.dims != inferred.dims {
            let from: Vec<String> =
                inputs.iter().map(|(port, tensor)| format!("{port} {:?}", tensor.dims)).collect();
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "its output {port} (tensor {}) is {:?}, but it must be {:?}: its inputs are {}",
                    tensor.label(),
                    tensor.dims,
                    inferred.dims,
                    from.join(", ")
                ),
            ));
        }
    }
    scalar::check_norm(&inputs)?;
    dtypes::check(op, &inputs, &outputs)
}
