//! Operations as plain data: what each reads, writes and evaluates. Equal programs have equal plans.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, PoisonError};

use keyfold_backend::{GpuBackend, tiles_of};
use keyfold_core::{DType, DTypeKind, Device, Result, Shape, Strides};
use keyfold_dispatch::Value as _;
use keyfold_expr::fuse::grouping::{Op, Pointwise, Read};
use keyfold_expr::{Expr, kind_of};
use keyfold_tensor::device::StreamId;
use keyfold_tensor::{Tensor, Value};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::BackendKernel;
use super::schedule::{Movable, may_be_concurrent};
use crate::pipeline::operation::{Operation, Slot, Structure, for_each_tensor, memory_id};
use crate::pipeline::waiting::Held;

/// A shared object, compared by its address, which it keeps from being used again.
pub(super) struct Same<T: ?Sized>(pub(super) Arc<T>);

impl<T: ?Sized> PartialEq for Same<T> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.0), Arc::as_ptr(&other.0))
    }
}

impl<T: ?Sized> Eq for Same<T> {}

impl<T: ?Sized> Hash for Same<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).cast::<()>().hash(state);
    }
}

impl<T: ?Sized> Clone for Same<T> {
    fn clone(&self) -> Self {
        Same(Arc::clone(&self.0))
    }
}

/// The expression of an operation that may be computed with others.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Member {
    pub(super) backend: Same<dyn GpuBackend>,
    pub(super) expr: Same<Expr>,
    /// The positions of the inputs among the tensors of the arguments.
    pub(super) inputs: SmallVec<[u32; 3]>,
    pub(super) dtypes: SmallVec<[DType; 3]>,
    /// The kinds of the parameters.
    pub(super) params: SmallVec<[DTypeKind; 1]>,
    /// The dtype that the call chose for its result.
    pub(super) out: Option<DType>,
    /// The dtype of its result.
    pub(super) result: DType,
}

/// The operations of a flush.
#[derive(PartialEq, Eq, Hash, Default)]
pub(super) struct Program {
    pub(super) ops: Vec<Op>,
    /// For each value, its memory.
    pub(super) memory: Vec<u32>,
    /// For each memory, whether somebody can read it after the flush.
    pub(super) held: Vec<bool>,
    /// For each operation.
    pub(super) members: Vec<Option<Member>>,
    /// For each operation, the rows that it computes one by one.
    pub(super) rows: Vec<Option<Tiling>>,
    /// For each operation, the elements that it computes one by one, or reduces part by part.
    pub(super) elements: Vec<Option<Tiling>>,
    /// For each operation that reduces, the number of leading dimensions that it keeps.
    pub(super) kept_dims: Vec<Option<u32>>,
    /// For each operation, the dimensions of its first result.
    pub(super) ndim: Vec<u32>,
    /// For each operation that may run on any thread, in programs where several threads may gain.
    pub(super) movable: Vec<Option<Movable>>,
}

/// The rows of an operation, the first dimension of its results, each of which it computes by itself; or its
/// elements, all dimensions.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Tiling {
    /// A backend that computes tile by tile.
    pub(super) backend: Same<dyn GpuBackend>,
    /// A number of the rows' count, or of the elements' shape: equal ones have equal numbers.
    pub(super) number: u32,
}

/// A view of a memory.
#[derive(PartialEq)]
struct View {
    offset: usize,
    dtype: DType,
    shape: Shape,
    /// `None` if it is contiguous.
    strides: Option<Strides>,
}

/// A memory that operations use.
struct Used {
    number: u32,
    views: SmallVec<[(View, u32); 1]>,
}

/// The numbers of what operations use, in the order of their first use.
#[derive(Default)]
struct Numbers {
    memories: FxHashMap<usize, Used>,
    shapes: Vec<Shape>,
    counts: Vec<usize>,
    places: Vec<(Device, Option<StreamId>, Same<dyn GpuBackend>)>,
}

/// Returns the number of an item, which is added if it isn't there.
fn number<T: PartialEq>(known: &mut Vec<T>, item: T) -> u32 {
    let at = known.iter().position(|one| *one == item).unwrap_or_else(|| {
        known.push(item);
        known.len() - 1
    });
    at as u32
}

impl Program {
    /// Describes operations, in order.
    pub(super) fn of(operations: &[Arc<Operation>], held: &Held) -> Program {
        let (mut program, mut numbers) = (Program::default(), Numbers::default());
        let moves = may_be_concurrent(operations);
        for operation in operations {
            program.add(operation, moves, &mut numbers);
        }
        for operation in operations {
            for slot in operation.results.iter().flatten() {
                if let Some(used) = numbers.memories.get(&slot.memory.as_ptr().addr()) {
                    program.held[used.number as usize] = held.has(slot);
                }
            }
        }
        program
    }

    /// Adds an operation. `moves` says whether to look if it may run on any thread.
    fn add(&mut self, operation: &Operation, moves: bool, numbers: &mut Numbers) {
        let args = operation.args.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tensors: SmallVec<[&Tensor; 4]> = SmallVec::new();
        for arg in &*args {
            for_each_tensor(arg.as_ref(), &mut |tensor| tensors.push(tensor));
        }
        let values: SmallVec<[u32; 4]> =
            tensors.iter().map(|tensor| self.value_of(tensor, numbers)).collect();
        let mut writes: SmallVec<[u32; 1]> =
            operation.results.iter().flatten().map(|slot| self.new_value(slot, numbers)).collect();
        for at in &operation.written {
            if let Some(Value::Tensor(tensor)) = args.get(*at) {
                writes.push(self.value_of(tensor, numbers));
            }
        }
        let member = member_of(operation, &tensors);
        let op = match (&member, operation.results.first()) {
            (Some(member), Some(Some(slot))) => {
                let place = (operation.device, operation.stream.map(|stream| stream.1));
                let place = (place.0, place.1, member.backend.clone());
                let pointwise = Pointwise {
                    shape: number(&mut numbers.shapes, slot.shape.clone()),
                    device: number(&mut numbers.places, place),
                    nodes: member.expr.0.nodes().len() as u32,
                    params: member.params.len() as u32,
                };
                let inputs = member.inputs.iter().zip(member.expr.0.inputs());
                let reads = inputs.map(|(at, input)| Read {
                    value: values[*at as usize],
                    ranked: input.rank.is_some(),
                });
                Op { pointwise: Some(pointwise), reads: reads.collect(), writes }
            }
            _ => {
                if operation.is_random {
                    writes.push(self.random_state(numbers));
                }
                let reads = values.iter().map(|value| Read { value: *value, ranked: false });
                Op { pointwise: None, reads: reads.collect(), writes }
            }
        };
        self.ops.push(op);
        let rows = rows_of(operation, member.as_ref(), &tensors);
        self.rows.push(rows.map(|(backend, count)| {
            let number = number(&mut numbers.counts, count);
            Tiling { backend, number }
        }));
        let elements = elements_of(operation, member.as_ref(), &tensors);
        self.elements.push(elements.map(|(backend, shape)| {
            let number = number(&mut numbers.shapes, shape);
            Tiling { backend, number }
        }));
        let reduces = operation.reduces();
        self.kept_dims.push(reduces.map(|params| params.dims.trailing_zeros()));
        let first = operation.results.iter().flatten().next();
        self.ndim.push(first.map_or(0, |slot| slot.shape.len() as u32));
        let movable = moves.then(|| Movable::of(operation, member.as_ref(), &tensors));
        self.movable.push(movable.flatten());
        self.members.push(member);
    }

    /// Returns the number of a tensor that an argument keeps.
    fn value_of(&mut self, tensor: &Tensor, numbers: &mut Numbers) -> u32 {
        let strides = (!tensor.is_contiguous()).then(|| tensor.strides().clone());
        let (offset, dtype, shape) = (tensor.offset(), tensor.dtype(), tensor.shape().clone());
        let view = View { offset, dtype, shape, strides };
        self.value(memory_id(tensor), view, numbers)
    }

    /// Returns the number of a result.
    fn new_value(&mut self, slot: &Slot, numbers: &mut Numbers) -> u32 {
        let (dtype, shape) = (slot.dtype, slot.shape.clone());
        let view = View { offset: 0, dtype, shape, strides: None };
        self.value(slot.memory.as_ptr().addr(), view, numbers)
    }

    /// Returns the number of the state that random numbers are drawn from: draws keep their order.
    fn random_state(&mut self, numbers: &mut Numbers) -> u32 {
        let shape = Shape::default();
        let view = View { offset: 0, dtype: DType::U8, shape, strides: None };
        // No memory is at this address.
        self.value(0, view, numbers)
    }

    fn value(&mut self, memory: usize, view: View, numbers: &mut Numbers) -> u32 {
        let held = &mut self.held;
        let used = numbers.memories.entry(memory).or_insert_with(|| {
            held.push(true);
            let number = (held.len() - 1) as u32;
            Used { number, views: SmallVec::new() }
        });
        if let Some((_, value)) = used.views.iter().find(|(known, _)| *known == view) {
            return *value;
        }
        let value = self.memory.len() as u32;
        used.views.push((view, value));
        self.memory.push(used.number);
        value
    }
}

/// Returns an operation's expression, if it may be computed with others: on memory of its own device,
/// by the backend's own kernel.
fn member_of(operation: &Operation, tensors: &[&Tensor]) -> Option<Member> {
    let evaluates = operation.evaluates.as_ref()?;
    let (Structure::One, [Some(slot)]) = (operation.structure, &operation.results[..]) else {
        return None;
    };
    let inputs: Result<SmallVec<[&Tensor; 3]>, ()> =
        evaluates.inputs.iter().map(|at| tensors.get(*at as usize).copied().ok_or(())).collect();
    let inputs = inputs.ok()?;
    let is_there = |tensor: &&Tensor| tensor.device() == operation.device;
    if slot.shape.contains(&0) || !inputs.iter().all(is_there) {
        return None;
    }
    Some(Member {
        backend: backend_of(operation)?,
        expr: Same(Arc::clone(&evaluates.expr)),
        inputs: evaluates.inputs.clone(),
        dtypes: inputs.iter().map(|input| input.dtype()).collect(),
        params: evaluates.params.iter().map(|number| kind_of(*number)).collect(),
        out: evaluates.out,
        result: slot.dtype,
    })
}

/// Returns the backend whose own kernel a call reaches.
pub(super) fn backend_of(operation: &Operation) -> Option<Same<dyn GpuBackend>> {
    let backend = operation.operator.with_kernel(operation.keyset, |kernel| {
        let payload = kernel.payload()?.downcast_ref::<BackendKernel>()?;
        Some(Same(Arc::clone(&payload.0)))
    });
    backend.flatten()
}

/// Returns the rows that an operation computes one by one, on a backend that computes tile by tile: those of
/// an operation that a group may have, and of one that says so of its one tensor.
fn rows_of(
    operation: &Operation,
    member: Option<&Member>,
    tensors: &[&Tensor],
) -> Option<(Same<dyn GpuBackend>, usize)> {
    let Some(Some(slot)) = operation.results.first() else { return None };
    let count = *slot.shape.first()?;
    let backend = match member {
        // Elements' places are counted from the first one of a tile.
        Some(member) if member.expr.0.depends_on_index() => return None,
        Some(member) => member.backend.clone(),
        None => {
            let [tensor] = tensors else { return None };
            let has_rows = operation.rows() > 0
                && operation.is_pure()
                && tensor.device() == operation.device
                && operation.results.iter().flatten().all(|one| one.shape.first() == Some(&count))
                && tensor.shape().first() == Some(&count);
            has_rows.then(|| backend_of(operation))??
        }
    };
    tiles_of(&*backend.0)?;
    Some((backend, count))
}

/// Returns the shape of an operation's elements, on a backend that computes tile by tile: those of the result
/// of one that a group may have, and those that a reduction goes over, if it does part by part.
fn elements_of(
    operation: &Operation,
    member: Option<&Member>,
    tensors: &[&Tensor],
) -> Option<(Same<dyn GpuBackend>, Shape)> {
    let [Some(slot)] = &operation.results[..] else { return None };
    match member {
        // Elements' places are counted from the first one of a tile.
        Some(member) if member.expr.0.depends_on_index() => None,
        Some(member) => {
            tiles_of(&*member.backend.0)?;
            Some((member.backend.clone(), slot.shape.clone()))
        }
        None => {
            let (params, [tensor]) = (operation.reduces()?, tensors) else { return None };
            let is_here = operation.is_pure() && tensor.device() == operation.device;
            let backend = is_here.then(|| backend_of(operation))??;
            tiles_of(&*backend.0)?.reduce_parts(params.op, tensor.dtype(), slot.dtype)?;
            Some((backend, tensor.shape().clone()))
        }
    }
}
