//! The builder of graphs, which infers shapes.

mod attention;
mod compute;
mod movement;
mod norm;

pub use attention::{AttentionGradients, AttentionInputs, AttentionScales, ScaledAttention};
pub use norm::{NormGradients, Normalized, Running};

use keyfold_core::{Error, ErrorKind, Result};

use crate::infer::{self, Inferred};
use crate::{
    Count, DataType, Defaults, GraphSpec, Layout, Number, OpSpec, Operation, Port, TensorSpec, Uid,
};

/// The name of a graph, and its [`Defaults`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphOptions {
    /// The graph's name in errors and drawings; may be empty.
    pub name: String,
    /// The dtype of tensors with memory.
    pub io: Option<DataType>,
    /// The dtype of virtual tensors.
    pub intermediate: Option<DataType>,
    /// The dtype that operations compute in.
    pub compute: Option<DataType>,
}

impl Default for GraphOptions {
    /// Virtual tensors and computations are float32; tensors with memory have no dtype of their own.
    fn default() -> GraphOptions {
        let Defaults { io, intermediate, compute } = Defaults::default();
        GraphOptions { name: String::new(), io, intermediate, compute }
    }
}

/// The properties of a tensor that the builder infers, because the user hasn't set them.
#[derive(Clone, Copy, Debug)]
struct Auto {
    dims: bool,
    strides: bool,
    dtype: bool,
    /// The dtype that the tensor's operation gives it, where it leaves no choice.
    inferred: Option<DataType>,
}

/// A graph that is being built.
///
/// Inputs are described by [`Graph::tensor`]; each method of an operation returns the number of the tensor
/// that it writes, with the dimensions that follow from its inputs. Results are virtual until
/// [`Graph::set_output`]. Nothing changes where a method returns an error.
///
/// ```
/// use keyfold_cudnn::{Convolution, DataType, Graph, GraphOptions};
///
/// let mut g = Graph::new(GraphOptions { io: Some(DataType::F32), ..GraphOptions::default() });
/// let x = g.input("x", &[8, 64, 56, 56])?;
/// let w = g.input("w", &[32, 64, 3, 3])?;
/// let conv = g.conv_fprop(x, w, Convolution::new(2))?;
/// let y = g.relu(conv)?;
/// g.set_output(y, true)?;
/// assert_eq!(g.spec().tensor(y).unwrap().dims, [8, 32, 54, 54]);
/// g.into_spec().validate()?;
/// # Ok::<(), keyfold_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Graph {
    spec: GraphSpec,
    /// For each tensor of the specification.
    auto: Vec<Auto>,
}

impl Graph {
    /// Begins a graph.
    pub fn new(options: GraphOptions) -> Graph {
        let GraphOptions { name, io, intermediate, compute } = options;
        let defaults = Defaults { io, intermediate, compute };
        let spec = GraphSpec { name, defaults, ..GraphSpec::default() };
        Graph { spec, auto: Vec::new() }
    }

    /// Goes on with a graph that is there, by its defaults. A result whose dimensions and strides
    /// are those that would be inferred from its operation's inputs follows when these change;
    /// dtypes stay.
    pub fn from_spec(spec: GraphSpec) -> Graph {
        let fixed = Auto { dims: false, strides: false, dtype: false, inferred: None };
        let mut graph = Graph { auto: vec![fixed; spec.tensors.len()], spec };
        for op in &graph.spec.operations {
            let wanted: Vec<Port> = op.outputs.iter().map(|entry| entry.0).collect();
            let Ok(inferred) = graph.inferred(op, &wanted) else { continue };
            for (port, inferred) in inferred {
                let uid = op.output(port);
                let index = graph.spec.tensors.iter().position(|tensor| Some(tensor.uid) == uid);
                if let Some(index) = index.filter(|_| !infer::is_free(&op.operation, port)) {
                    let tensor = &graph.spec.tensors[index];
                    graph.auto[index].dims = tensor.dims == inferred.dims;
                    graph.auto[index].strides = tensor.strides == inferred.strides;
                }
            }
        }
        graph
    }

    /// Returns the graph as data.
    pub fn spec(&self) -> &GraphSpec {
        &self.spec
    }

    /// Returns the graph as data, without the builder.
    pub fn into_spec(self) -> GraphSpec {
        self.spec
    }

    /// Adds a tensor. The number 0 asks for the next free one; without a dtype it gets that of tensors with
    /// memory, or of virtual ones.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for a number that another tensor has, [`ErrorKind::Shape`] for strides that
    /// aren't as many as the dimensions.
    pub fn tensor(&mut self, mut tensor: TensorSpec) -> Result<Uid> {
        if tensor.uid == 0 {
            tensor.uid = self.free_uid();
        } else if let Some(other) = self.spec.tensor(tensor.uid) {
            return Err(Error::new(
                ErrorKind::Value,
                format!(
                    "graph {:?}: a tensor with uid {} is there already: {}; without a uid the next free \
                     one is taken",
                    self.spec.name,
                    tensor.uid,
                    other.label()
                ),
            ));
        }
        Layout::Strides(tensor.strides.clone()).strides(&tensor.dims)?;
        let dtype = tensor.dtype.is_none();
        let uid = tensor.uid;
        self.push(tensor, Auto { dims: false, strides: false, dtype, inferred: None });
        Ok(uid)
    }

    /// Adds a packed tensor with memory, of the dtype of such tensors.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] for sizes whose product overflows.
    pub fn input(&mut self, name: &str, dims: &[i64]) -> Result<Uid> {
        self.tensor(TensorSpec::untyped(dims, Layout::Packed)?.named(name))
    }

    /// Adds a number whose value belongs to the graph: a tensor of one element, which operations broadcast.
    /// Without a dtype it gets the one that operations compute in.
    pub fn scalar(&mut self, value: impl Into<Number>, dtype: Option<DataType>) -> Uid {
        let uid = self.free_uid();
        let dtype = dtype.or(self.spec.defaults.compute).unwrap_or(DataType::F32);
        // One number of a float dtype has one key, however it is written.
        let value = match value.into() {
            Number::Int(i) if dtype.is_float() && i.unsigned_abs() <= 1 << 53 => {
                Number::Float(i as f64)
            }
            value => value,
        };
        let tensor = TensorSpec::number(uid, dtype, 1, value);
        self.push(tensor, Auto { dims: false, strides: false, dtype: false, inferred: None });
        uid
    }

    /// Adds an operation, and returns the tensors that it writes: those at the ports that it must write,
    /// and those at the wanted ones, in the order of [`Operation::ports`].
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for ports that the operation lacks, needs, or has once, and for numbers that no
    /// tensor has; and those of shapes that don't fit.
    pub fn add(
        &mut self,
        operation: Operation,
        inputs: &[(Port, Uid)],
        wanted: &[Port],
    ) -> Result<Vec<(Port, Uid)>> {
        self.add_named("", None, operation, inputs, wanted)
    }

    /// Adds an operation under a name, with a compute dtype other than the graph's where one is given.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn add_named(
        &mut self,
        name: &str,
        compute: Option<DataType>,
        operation: Operation,
        inputs: &[(Port, Uid)],
        wanted: &[Port],
    ) -> Result<Vec<(Port, Uid)>> {
        let mut op = OpSpec::new(operation, inputs, &[]);
        op.name = name.to_string();
        op.compute =
            op.operation.computes().then_some(compute.or(self.spec.defaults.compute)).flatten();
        let place = self.spec.place(&op);
        let written = self.inferred(&op, wanted).map_err(|error| error.at(&place))?;
        for (port, inferred) in written {
            let uid = self.free_uid();
            let tensor = TensorSpec {
                uid,
                is_virtual: true,
                dtype: inferred.dtype.or(self.spec.defaults.intermediate),
                strides: inferred.strides,
                ..TensorSpec::untyped(&inferred.dims, Layout::Packed)?
            };
            let auto = Auto { dims: true, strides: true, dtype: true, inferred: inferred.dtype };
            self.push(tensor, auto);
            op.outputs.push((port, uid));
        }
        let outputs = op.outputs.clone();
        self.spec.operations.push(op);
        Ok(outputs)
    }

    /// Gives a result memory, in the dtype of tensors with memory unless another one was said.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for a number that no tensor has.
    pub fn set_output(&mut self, uid: Uid, output: bool) -> Result<()> {
        self.change(uid, |tensor, _| {
            tensor.is_virtual = !output;
            Ok(())
        })
    }

    /// Gives a tensor a name.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for a number that no tensor has.
    pub fn set_name(&mut self, uid: Uid, name: &str) -> Result<()> {
        self.change(uid, |tensor, _| {
            tensor.name = name.to_string();
            Ok(())
        })
    }

    /// Gives a tensor a dtype.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for a number that no tensor has.
    pub fn set_dtype(&mut self, uid: Uid, dtype: DataType) -> Result<()> {
        self.change(uid, |tensor, auto| {
            (tensor.dtype, auto.dtype) = (Some(dtype), false);
            Ok(())
        })
    }

    /// Gives a tensor dimensions, packed in the order in memory that it had (channels last stay last): for
    /// results that inputs leave free, such as those of reductions and reshapes, and for inputs of other
    /// sizes. Dimensions of what is computed from it follow.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for a number that no tensor has, and those of operations whose inputs don't fit
    /// then.
    pub fn set_dims(&mut self, uid: Uid, dims: &[i64]) -> Result<()> {
        self.change(uid, |tensor, auto| {
            tensor.strides = infer::resized_strides(dims, tensor)?;
            tensor.dims = dims.to_vec();
            (auto.dims, auto.strides) = (false, false);
            Ok(())
        })
    }

    /// Gives a tensor strides, in elements.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for a number that no tensor has, [`ErrorKind::Shape`] for strides that aren't as
    /// many as the dimensions.
    pub fn set_strides(&mut self, uid: Uid, strides: &[i64]) -> Result<()> {
        self.change(uid, |tensor, auto| {
            tensor.strides = Layout::Strides(strides.to_vec()).strides(&tensor.dims)?;
            auto.strides = false;
            Ok(())
        })
    }

    /// Gives a tensor another number.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for a number that no tensor has, and for a new one that another tensor has or that
    /// is 0.
    pub fn set_uid(&mut self, uid: Uid, new: Uid) -> Result<()> {
        let index = self.spec.tensors.iter().position(|tensor| tensor.uid == uid);
        let index = index.ok_or_else(|| self.unknown(uid))?;
        let other = self.spec.tensor(new).filter(|_| new != uid);
        if new == 0 || other.is_some() {
            let label = self.spec.tensors[index].label();
            let reason = other.map_or("0 is none".to_string(), |other| {
                format!("tensor {} has that number", other.label())
            });
            let message = format!("tensor {label} can't get the uid {new}: {reason}");
            return Err(Error::new(ErrorKind::Value, message));
        }
        self.spec.tensors[index].uid = new;
        for op in &mut self.spec.operations {
            for entry in op.inputs.iter_mut().chain(&mut op.outputs) {
                entry.1 = if entry.1 == uid { new } else { entry.1 };
            }
        }
        Ok(())
    }

    /// Adds an operation, and returns the first tensor that it writes.
    fn one(&mut self, operation: Operation, inputs: &[(Port, Uid)]) -> Result<Uid> {
        Ok(self.add(operation, inputs, &[])?[0].1)
    }

    /// Adds an operation whose first result has dimensions that its inputs leave free, as those of
    /// a reduction and a reshape, and returns that result.
    ///
    /// # Errors
    /// Those of [`Graph::add`], and [`ErrorKind::Shape`] for dimensions that the operation can't write.
    pub fn add_shaped(
        &mut self,
        name: &str,
        compute: Option<DataType>,
        operation: Operation,
        inputs: &[(Port, Uid)],
        dims: &[i64],
    ) -> Result<Uid> {
        let before = self.clone();
        let (port, y) = self.add_named(name, compute, operation, inputs, &[])?[0];
        let op = &self.spec.operations[self.spec.operations.len() - 1];
        let place = self.spec.place(op);
        let result = self.set_dims(y, dims).and_then(|()| {
            let find = |uid| self.spec.tensor(uid).expect("it was found before");
            infer::check_sizes(port, find(y))?;
            let op = &self.spec.operations[self.spec.operations.len() - 1];
            let inputs: Vec<(Port, &TensorSpec)> =
                inputs.iter().map(|&(port, uid)| (port, find(uid))).collect();
            infer::accepts(&op.operation, &inputs, find(y))
        });
        match result {
            Ok(()) => Ok(y),
            Err(error) => {
                *self = before;
                Err(error.at(&place))
            }
        }
    }

    fn push(&mut self, tensor: TensorSpec, auto: Auto) {
        self.spec.tensors.push(tensor);
        self.auto.push(auto);
        self.settle(self.auto.len() - 1);
    }

    /// Returns a number that no tensor has.
    fn free_uid(&self) -> Uid {
        let greatest = self.spec.tensors.iter().map(|tensor| tensor.uid).max().unwrap_or(0).max(0);
        greatest.checked_add(1).unwrap_or_else(|| {
            (1..)
                .find(|&uid| self.spec.tensor(uid).is_none())
                .expect("tensors are fewer than numbers")
        })
    }

    /// Gives a tensor the dtype of its kind, where none was said.
    fn settle(&mut self, index: usize) {
        let (tensor, auto) = (&mut self.spec.tensors[index], self.auto[index]);
        if auto.dtype {
            let defaults = &self.spec.defaults;
            let kind = if tensor.is_virtual { defaults.intermediate } else { defaults.io };
            tensor.dtype = auto.inferred.or(kind);
        }
    }

    /// Changes a tensor, and what was inferred from it; restores all where that fails.
    fn change(
        &mut self,
        uid: Uid,
        change: impl FnOnce(&mut TensorSpec, &mut Auto) -> Result<()>,
    ) -> Result<()> {
        let index = self.spec.tensors.iter().position(|tensor| tensor.uid == uid);
        let index = index.ok_or_else(|| self.unknown(uid))?;
        let before = (self.spec.tensors.clone(), self.auto.clone());
        let shape =
            |tensor: &TensorSpec| (tensor.dims.clone(), tensor.strides.clone(), tensor.dtype);
        let old = shape(&self.spec.tensors[index]);
        let mut result = change(&mut self.spec.tensors[index], &mut self.auto[index]);
        let label = format!("tensor {}", self.spec.tensors[index].label());
        result = result.map_err(|error| error.at(&label));
        self.settle(index);
        if result.is_ok() && shape(&self.spec.tensors[index]) != old {
            result = self.infer_again();
        }
        if result.is_err() {
            (self.spec.tensors, self.auto) = before;
        }
        result
    }

    /// Returns the operations in an order in which each follows those whose results it reads; those
    /// of a circle come last.
    fn order(&self) -> Vec<usize> {
        let operations = &self.spec.operations;
        let mut unwritten: std::collections::HashSet<Uid> =
            operations.iter().flat_map(|op| &op.outputs).map(|entry| entry.1).collect();
        let (mut order, mut left) = (Vec::new(), (0..operations.len()).collect::<Vec<_>>());
        loop {
            let before = left.len();
            left.retain(|&index| {
                let op = &operations[index];
                let waits = op.inputs.iter().any(|entry| unwritten.contains(&entry.1));
                if !waits {
                    for (_, uid) in &op.outputs {
                        unwritten.remove(uid);
                    }
                    order.push(index);
                }
                waits
            });
            if left.len() == before {
                order.append(&mut left);
                return order;
            }
        }
    }

    /// Infers all results again, each behind the tensors that it is computed from.
    fn infer_again(&mut self) -> Result<()> {
        for index in self.order() {
            let op = &self.spec.operations[index];
            let wanted: Vec<Port> = op.outputs.iter().map(|entry| entry.0).collect();
            let inferred =
                self.inferred(op, &wanted).map_err(|error| error.at(&self.spec.place(op)))?;
            let uids: Vec<Uid> = op.outputs.iter().map(|entry| entry.1).collect();
            for (uid, (_, inferred)) in uids.into_iter().zip(inferred) {
                let place = self.spec.tensors.iter().position(|tensor| tensor.uid == uid);
                let place = place.ok_or_else(|| self.unknown(uid))?;
                let (tensor, auto) = (&mut self.spec.tensors[place], &mut self.auto[place]);
                if auto.dims {
                    tensor.dims = inferred.dims;
                }
                if auto.strides {
                    tensor.strides = inferred.strides;
                }
                auto.inferred = inferred.dtype;
                self.settle(place);
            }
        }
        Ok(())
    }

    /// Returns what an operation writes, at the ports that it must and at the wanted ones.
    fn inferred(&self, op: &OpSpec, wanted: &[Port]) -> Result<Vec<(Port, Inferred)>> {
        let rules = op.operation.ports();
        let mut inputs = Vec::with_capacity(op.inputs.len());
        for &(port, uid) in &op.inputs {
            inputs.push((port, self.spec.tensor(uid).ok_or_else(|| self.unknown(uid))?));
        }
        crate::validate::check_inputs(&rules, &inputs)?;
        for port in wanted {
            if !rules.iter().any(|rule| rule.is_output && rule.port == *port) {
                let has: Vec<String> =
                    rules.iter().filter(|r| r.is_output).map(|r| r.port.to_string()).collect();
                return Err(Error::new(
                    ErrorKind::Value,
                    format!("it has no output {port}: it has {}", has.join(", ")),
                ));
            }
        }
        let is_written = |rule: &&crate::PortRule| {
            rule.is_output && (rule.count != Count::Optional || wanted.contains(&rule.port))
        };
        let ports: Vec<Port> = rules.iter().filter(is_written).map(|rule| rule.port).collect();
        infer::outputs(&op.operation, &inputs, &ports)
    }

    fn unknown(&self, uid: Uid) -> Error {
        let count = self.spec.tensors.len();
        let message = format!(
            "graph {:?} has no tensor with uid {uid}; it has {count} tensors",
            self.spec.name
        );
        Error::new(ErrorKind::Value, message)
    }
}

/// Returns the tensor at a port of a list.
fn find(list: &[(Port, Uid)], port: Port) -> Option<Uid> {
    list.iter().find(|entry| entry.0 == port).map(|entry| entry.1)
}
