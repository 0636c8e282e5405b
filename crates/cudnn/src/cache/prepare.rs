//! Plans ahead, for each of a list of shapes.

use std::hash::BuildHasher;

use keyfold_core::{Error, ErrorKind, Result};

use super::{PlanCache, Prepared};
use crate::{
    GraphSpec, OpSpec, Operation, Planner, Policy, Port, Progress, Step, TensorSpec, Uid, infer,
};

/// Dimensions of tensors, by number, in place of those that a graph says.
pub type ShapeClass = Vec<(Uid, Vec<i64>)>;

impl<S: BuildHasher> PlanCache<S> {
    /// Builds the plan of a graph for each of these shapes, so that no later call waits for one.
    /// See [`GraphSpec::with_dims`] for what the shapes say.
    ///
    /// `progress` is told of each shape, as one step, and of what its build tells.
    ///
    /// # Errors
    /// Those of [`GraphSpec::with_dims`] and [`PlanCache::get_or_build`], with the place in the
    /// list. Plans of the shapes before it are kept.
    pub fn prepare(
        &self,
        graph: &GraphSpec,
        shapes: &[ShapeClass],
        planner: &dyn Planner,
        policy: &Policy,
        progress: Progress<'_>,
    ) -> Result<Vec<Prepared>> {
        let total = shapes.len();
        let of_shape = |(done, shape): (usize, &ShapeClass)| {
            progress(Step { done, total, what: &format!("plan for {shape:?}") })?;
            let prepared = graph.with_dims(shape).and_then(|graph| {
                let inner = |step: Step<'_>| progress(Step { done, total, what: step.what });
                self.get_or_build(&graph, planner, policy, &inner)
            });
            prepared.map_err(|error| error.at(&format!("shape {done} of {total}")))
        };
        shapes.iter().enumerate().map(of_shape).collect()
    }
}

impl GraphSpec {
    /// Returns the graph with other dimensions of some tensors, mostly its inputs, and of all
    /// tensors that follow from them. Each keeps the order of its strides, packed, and broadcast
    /// dimensions stay broadcast.
    ///
    /// A dimension that operations leave free (of a reshape, a reduction, or the gradient of an
    /// input) follows where it was that of the operation's input or the one that would be inferred,
    /// and else stays; tensors that are in the list themselves are as it says. Where the input of a
    /// reduction had size 1 and gets another one, the graph doesn't say whether that dimension is
    /// reduced: the list must have the result's dimensions, too.
    ///
    /// # Errors
    /// Those of [`GraphSpec::validate`]; [`ErrorKind::Value`] for a number that the graph has no
    /// tensor of; [`ErrorKind::Shape`] for another number of dimensions, where operations don't take
    /// the new ones, and for a reduction whose result the new ones leave open.
    pub fn with_dims(&self, dims: &[(Uid, Vec<i64>)]) -> Result<GraphSpec> {
        let valid = self.clone().validate()?;
        let mut graph = self.clone();
        for (uid, dims) in dims {
            resize(&mut graph, *uid, dims)?;
        }
        for op in valid.operations() {
            let outputs =
                op.outputs.iter().filter(|port| dims.iter().all(|entry| entry.0 != port.1));
            let outputs: Vec<(Port, Uid)> = outputs.copied().collect();
            let ports: Vec<Port> = outputs.iter().map(|port| port.0).collect();
            let is_reduction = matches!(op.operation, Operation::Reduction(_));
            let inferred = |graph: &GraphSpec| -> Result<Vec<Vec<i64>>> {
                let inputs = inputs_of(graph, op);
                if is_reduction {
                    return Ok(inputs.into_iter().map(|input| input.1.dims.clone()).collect());
                }
                let outputs = infer::outputs(&op.operation, &inputs, &ports);
                let outputs = outputs.map_err(|error| error.at(&graph.place(op)))?;
                Ok(outputs.into_iter().map(|output| output.1.dims).collect())
            };
            let (before, now) = (inferred(self)?, inferred(&graph)?);
            if let (true, [(_, y)]) = (is_reduction, &outputs[..]) {
                check_is_told(&graph, *y, &before[0], &now[0])
                    .map_err(|error| error.at(&graph.place(op)))?;
            }
            for ((_, uid), (before, now)) in outputs.iter().zip(before.iter().zip(&now)) {
                let mut dims = valid.tensor(*uid).dims.clone();
                for (size, (before, now)) in dims.iter_mut().zip(before.iter().zip(now)) {
                    if size == before {
                        *size = *now;
                    }
                }
                resize(&mut graph, *uid, &dims)?;
            }
        }
        Ok(graph)
    }
}

/// Proves that the result of a reduction follows from other dimensions of its input: a dimension
/// that was 1 in both may be one that is reduced, or one that stays.
fn check_is_told(graph: &GraphSpec, y: Uid, before: &[i64], now: &[i64]) -> Result<()> {
    let open = (0..before.len()).find(|&axis| before[axis] == 1 && now[axis] != 1);
    let Some(axis) = open else { return Ok(()) };
    let label = graph.label(y);
    let message = format!(
        "whether dimension {axis} is reduced isn't told: it was 1 in x {before:?} and in y (tensor \
         {label}), and x is now {now:?}; give the dimensions of {label}, too"
    );
    Err(Error::new(ErrorKind::Shape, message))
}

fn inputs_of<'a>(graph: &'a GraphSpec, op: &OpSpec) -> Vec<(Port, &'a TensorSpec)> {
    let tensor = |&(port, uid)| Some((port, graph.tensor(uid)?));
    op.inputs.iter().filter_map(tensor).collect()
}

/// Gives a tensor other dimensions, and strides as [`Graph::set_dims`](crate::Graph::set_dims)
/// does.
fn resize(graph: &mut GraphSpec, uid: Uid, dims: &[i64]) -> Result<()> {
    let label = graph.label(uid);
    let has = || graph.tensors.iter().map(TensorSpec::label).collect::<Vec<_>>().join(", ");
    let Some(index) = graph.tensors.iter().position(|tensor| tensor.uid == uid) else {
        let message = format!("the graph has no tensor #{uid}: it has {}", has());
        return Err(Error::new(ErrorKind::Value, message));
    };
    let tensor = &mut graph.tensors[index];
    if tensor.dims == dims {
        return Ok(());
    }
    if tensor.dims.len() != dims.len() {
        return Err(Error::new(
            ErrorKind::Shape,
            format!(
                "tensor {label} has {} dimensions, {:?}, and is given {}, {dims:?}",
                tensor.dims.len(),
                tensor.dims,
                dims.len()
            ),
        ));
    }
    tensor.strides = infer::resized_strides(dims, tensor)
        .map_err(|error| error.at(&format!("tensor {label}")))?;
    tensor.dims = dims.to_vec();
    Ok(())
}
