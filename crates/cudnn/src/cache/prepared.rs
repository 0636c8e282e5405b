//! Plans that are ready to run under a caller's numbers of tensors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use keyfold_core::{DType, Device, Error, ErrorKind, Result};
use keyfold_tensor::{Overlap, Tensor, overlap};
use smallvec::SmallVec;

use super::Asked;
use super::lru::Kept;
use super::stats::{EntryInfo, KindCounts, kind};
use crate::{DataType, GraphSpec, Plan, Signature, TensorSpec, Uid, VariantPack};

/// The size of an entry without its key and its plan, in bytes, about.
const ENTRY_BYTES: u64 = 512;

/// An entry of the cache.
#[derive(Debug)]
pub(super) struct Record {
    /// The plan; a marker has none.
    pub(super) plan: Option<Plan>,
    /// The tensors that a run is given, inputs and outputs.
    members: Vec<Role>,
    /// The numbers of the graph's tensors in canonical order.
    uids: Vec<Uid>,
    signature: Signature,
    operation: &'static str,
    dtype: Option<DataType>,
    bytes: u64,
    build_time: Duration,
    hits: AtomicU64,
    /// The counters of its kind.
    pub(super) counts: Arc<KindCounts>,
}

/// A tensor of a plan that a run is given.
#[derive(Debug)]
struct Role {
    /// Its place in the canonical order.
    place: usize,
    /// Its place in the plan's graph.
    tensor: usize,
    /// Its number in the plan's graph.
    uid: Uid,
    /// The dtype of what holds it.
    dtype: DType,
    device: Device,
    is_output: bool,
    /// Whether the run reads what the output holds before.
    is_updated: bool,
    /// The alignment that its address must have, in bytes.
    alignment: usize,
}

impl Kept for Arc<Record> {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_marker(&self) -> bool {
        self.plan.is_none()
    }
}

impl Record {
    /// Makes an entry of a graph and its plan, whose tensors have these numbers in canonical order.
    pub(super) fn new(
        graph: &GraphSpec,
        asked: &Asked,
        plan: Option<Plan>,
        build_time: Duration,
        counts: Arc<KindCounts>,
    ) -> Record {
        let (operation, dtype) = kind(graph);
        let members = plan.as_ref().map_or_else(Vec::new, |plan| members(graph, &asked.uids, plan));
        let held = plan.as_ref().map_or(0, |plan| plan.bytes);
        Record {
            members,
            uids: asked.uids.clone(),
            signature: asked.signature(),
            operation,
            dtype,
            bytes: ENTRY_BYTES.saturating_add(asked.key.len() as u64).saturating_add(held),
            build_time,
            hits: AtomicU64::new(0),
            counts,
            plan,
        }
    }

    pub(super) fn note_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
        self.counts.note(|counts| counts.hits += 1);
    }

    pub(super) fn info(&self) -> EntryInfo {
        let spec = self.plan.as_ref().map(|plan| &plan.spec);
        EntryInfo {
            operation: self.operation,
            dtype: self.dtype,
            signature: self.signature,
            device: spec.map_or_else(String::new, |spec| spec.device.clone()),
            engine: spec.map_or_else(String::new, |spec| spec.config.engine.clone()),
            workspace_bytes: spec.map_or(0, |spec| spec.workspace_bytes),
            bytes: self.bytes,
            build_time: self.build_time,
            hits: self.hits.load(Ordering::Relaxed),
            is_marker: spec.is_none(),
        }
    }
}

/// Returns the tensors of a plan that a run is given: those with memory, and the numbers that are
/// given by value, where an operation names them.
fn members(graph: &GraphSpec, uids: &[Uid], plan: &Plan) -> Vec<Role> {
    let mut roles = Vec::new();
    for (tensor, spec) in graph.tensors.iter().enumerate() {
        let uid = spec.uid;
        let names = |list: &[(_, Uid)]| list.iter().any(|port| port.1 == uid);
        let is_output = graph.operations.iter().any(|op| names(&op.outputs));
        let is_named = is_output || graph.operations.iter().any(|op| names(&op.inputs));
        let place = uids.iter().position(|&other| other == uid);
        if let (Some(place), Some(dtype)) = (place, spec.dtype)
            && is_named
            && !spec.is_virtual
            && spec.scalar.is_none()
        {
            let device = if spec.by_value { Device::CPU } else { plan.device };
            let is_updated = graph.operations.iter().any(|op| op.updates(uid));
            // A power of two in a valid graph.
            let alignment = match spec.by_value {
                true => 1,
                false => spec.alignment.min(plan.alignment).max(1) as usize,
            };
            let dtype = dtype.storage();
            roles.push(Role {
                place,
                tensor,
                uid,
                dtype,
                device,
                is_output,
                is_updated,
                alignment,
            });
        }
    }
    roles
}

/// A tensor that a run of a [`Prepared`] plan is given.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// Its number in the caller's graph.
    pub uid: Uid,
    /// What it must be; its number and name are those of the graph that the plan was built for.
    pub spec: &'a TensorSpec,
    /// Whether the run writes it.
    pub is_output: bool,
    /// Whether the run reads what an output holds before, as a convolution with a factor beta does.
    pub is_updated: bool,
}

/// A plan of the cache under the numbers that tensors have in a caller's graph.
///
/// It keeps the plan, also when the cache has forgotten it, and may be run by many threads.
#[derive(Clone, Debug)]
pub struct Prepared {
    record: Arc<Record>,
    /// The caller's numbers in canonical order.
    uids: Vec<Uid>,
    /// The caller's names of the members, where they aren't the plan's.
    names: Option<Vec<String>>,
}

impl Prepared {
    /// Takes a plan for a graph. The entry isn't a marker.
    pub(super) fn new(record: Arc<Record>, graph: &GraphSpec, uids: Vec<Uid>) -> Prepared {
        let mut prepared = Prepared { record, uids, names: None };
        let plan = prepared.plan();
        let name =
            |member: Member<'_>| graph.tensor(member.uid).map_or("", |tensor| tensor.name.as_str());
        let same = plan.graph.spec().name == graph.name
            && prepared.members().all(|member| name(member) == member.spec.name);
        if !same {
            let names = prepared.members().map(|member| name(member).to_string()).collect();
            prepared.names = Some(names);
        }
        prepared
    }

    /// Returns the plan.
    pub fn plan(&self) -> &Plan {
        self.record.plan.as_ref().expect("a marker is never prepared")
    }

    /// Returns the graph's signature.
    pub fn signature(&self) -> Signature {
        self.record.signature
    }

    /// Returns the caller's number of each tensor, in canonical order.
    pub fn uids(&self) -> &[Uid] {
        &self.uids
    }

    /// Returns the tensors that a run is given, in the order of the graph that the plan was built
    /// for.
    pub fn members(&self) -> impl ExactSizeIterator<Item = Member<'_>> {
        let tensors = &self.plan().graph.spec().tensors;
        self.record.members.iter().map(move |role| Member {
            uid: self.uids[role.place],
            spec: &tensors[role.tensor],
            is_output: role.is_output,
            is_updated: role.is_updated,
        })
    }

    /// Runs the plan on these tensors, or queues it on their device's current stream: each
    /// [member](Prepared::members) once, in any order.
    ///
    /// # Errors
    /// Before anything is written: [`ErrorKind::Value`] for a tensor that is missing, given twice,
    /// or that the graph has none of, and for an output that overlaps another tensor;
    /// [`ErrorKind::DType`], [`ErrorKind::Shape`], [`ErrorKind::Device`], [`ErrorKind::ReadOnly`]
    /// for one that isn't what the graph says; [`ErrorKind::Memory`] for scratch memory that can't
    /// be had. Then the plan's.
    pub fn run(&self, tensors: &[(Uid, &Tensor)]) -> Result<()> {
        let plan = self.plan();
        plan.runner.available()?;
        let mut pack: SmallVec<[(Uid, &Tensor); 12]> = SmallVec::new();
        for (index, role) in self.record.members.iter().enumerate() {
            let uid = self.uids[role.place];
            // As a rule, they come in the order of the members.
            let given = match tensors.get(index) {
                Some(given) if given.0 == uid => Some(given),
                _ => tensors.iter().find(|given| given.0 == uid),
            };
            let Some(&(_, tensor)) = given else { return Err(self.missing(index, tensors)) };
            self.check(index, role, tensor)?;
            pack.push((role.uid, tensor));
        }
        if tensors.len() != pack.len() {
            return Err(self.superfluous(tensors));
        }
        self.check_overlaps(&pack)?;
        let workspace = match plan.spec.workspace_bytes {
            0 => None,
            bytes => Some(plan.runner.allocate(bytes as usize, DType::U8, plan.device)?),
        };
        let pack = VariantPack { tensors: &pack, workspace: workspace.as_ref() };
        plan.runner.run(&pack).map_err(|error| self.renamed(error))
    }

    /// Returns the name of the graph that the plan was built for, whose names and numbers its steps
    /// and the errors of its runs have; `None` where the caller's graph has the same.
    pub fn planned_as(&self) -> Option<&str> {
        let same = self.names.is_none() && self.uids == self.record.uids;
        (!same).then(|| self.plan().graph.spec().name.as_str())
    }

    /// Returns an error of the plan, which says whose names it has where these aren't the caller's.
    #[cold]
    fn renamed(&self, error: Error) -> Error {
        match self.planned_as() {
            Some(name) => error.at(&format!("by the plan of an equal graph, {name:?}")),
            None => error,
        }
    }

    /// Checks that a tensor is what its member says.
    fn check(&self, index: usize, role: &Role, tensor: &Tensor) -> Result<()> {
        let spec = &self.plan().graph.spec().tensors[role.tensor];
        let dims_fit = tensor.ndim() == spec.dims.len()
            && spec.dims.iter().zip(tensor.shape().iter()).all(|(&a, &b)| a == b as i64);
        // No element lies in another place for the stride of a dimension of size 1.
        let strides_fit = || {
            let strides = spec.strides.iter().zip(tensor.strides().iter());
            strides.zip(&spec.dims).all(|((&a, &b), &size)| size == 1 || a == b as i64)
        };
        let fits = tensor.dtype() == role.dtype && tensor.device() == role.device;
        if !fits || !dims_fit || !strides_fit() {
            return Err(self.unfit(index, role, spec, tensor));
        }
        if role.alignment > 1 && !tensor.address().is_multiple_of(role.alignment) {
            return Err(self.misaligned(index, role, tensor));
        }
        if role.is_output {
            tensor.check_write().map_err(|error| error.at(&self.label(index)))?;
        }
        Ok(())
    }

    fn check_overlaps(&self, pack: &[(Uid, &Tensor)]) -> Result<()> {
        let roles = &self.record.members;
        for (index, (_, output)) in pack.iter().enumerate().filter(|entry| roles[entry.0].is_output)
        {
            for (other, (_, tensor)) in pack.iter().enumerate() {
                let twice = roles[other].is_output && other < index;
                if other != index && !twice && overlap(output, tensor)? != Overlap::None {
                    return Err(Error::new(
                        ErrorKind::Value,
                        format!(
                            "{} overlaps {}: the memory of an output is no other tensor's",
                            self.label(index),
                            self.label(other)
                        ),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Returns how errors call a member.
    #[cold]
    fn label(&self, index: usize) -> String {
        let member = self.members().nth(index).expect("an index of a member");
        let name = match &self.names {
            Some(names) => &names[index],
            None => &member.spec.name,
        };
        let part = if member.is_output { "output" } else { "input" };
        match name.as_str() {
            "" => format!("{part} #{}", member.uid),
            name => format!("{part} {name:?} (#{})", member.uid),
        }
    }

    #[cold]
    fn unfit(&self, index: usize, role: &Role, spec: &TensorSpec, tensor: &Tensor) -> Error {
        let label = self.label(index);
        if tensor.dtype() != role.dtype {
            let wanted = role.dtype;
            return Error::new(
                ErrorKind::DType,
                format!("{label} is {}, and the graph says {wanted}", tensor.dtype()),
            );
        }
        if tensor.device() != role.device {
            return Error::new(
                ErrorKind::Device,
                format!("{label} is on {}, and has to be on {}", tensor.device(), role.device),
            );
        }
        let (shape, strides) = (tensor.shape(), tensor.strides());
        Error::new(
            ErrorKind::Shape,
            format!(
                "{label} has shape {shape:?} and strides {strides:?}, and the graph says {:?} and \
                 {:?}",
                spec.dims, spec.strides
            ),
        )
    }

    #[cold]
    fn misaligned(&self, index: usize, role: &Role, tensor: &Tensor) -> Error {
        let (label, alignment) = (self.label(index), role.alignment);
        let over = tensor.address() % alignment;
        let message = format!(
            "{label} is at an address that is {over} bytes behind a multiple of {alignment}, and the plan \
             relies on an alignment of {alignment} bytes: copy it, or say a lower alignment in the graph"
        );
        Error::new(ErrorKind::Value, message)
    }

    #[cold]
    fn missing(&self, index: usize, tensors: &[(Uid, &Tensor)]) -> Error {
        let given: Vec<Uid> = tensors.iter().map(|given| given.0).collect();
        Error::new(
            ErrorKind::Value,
            format!("{} is missing: given are the tensors {given:?}", self.label(index)),
        )
    }

    #[cold]
    fn superfluous(&self, tensors: &[(Uid, &Tensor)]) -> Error {
        let wanted: Vec<Uid> = self.members().map(|member| member.uid).collect();
        let twice = |place: usize| tensors[..place].iter().any(|given| given.0 == tensors[place].0);
        let place =
            (0..tensors.len()).find(|&place| twice(place) || !wanted.contains(&tensors[place].0));
        let uid = place.map_or(0, |place| tensors[place].0);
        let what = match place {
            Some(place) if twice(place) => "is given twice",
            _ if self.uids.contains(&uid) => "has no memory of the caller's",
            _ => "isn't in the graph",
        };
        Error::new(ErrorKind::Value, format!("the tensor #{uid} {what}: a run is given {wanted:?}"))
    }
}
