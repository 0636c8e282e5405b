//! Plans: what is asked of a device, what it answers, and how a plan is run.

use std::fmt::Debug;
use std::sync::Arc;

use keyfold_core::{DType, Device, Result};
use keyfold_tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::{Document, Uid, ValidGraph};

/// Which heuristics rank engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeurMode {
    /// cuDNN's mode A: quick.
    #[default]
    A,
    /// cuDNN's mode B: more exact, slower.
    B,
    /// Engines that take what others don't.
    Fallback,
}

/// A question to the heuristics.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeurSpec {
    /// Which heuristics rank engines.
    pub mode: HeurMode,
    /// How many engine configurations are asked for, the best first.
    pub top_k: u32,
}

/// An engine with its choices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineConfigSpec {
    /// The engine's name.
    pub engine: String,
    /// The choices: numbers of knobs, with values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub knobs: Vec<(i64, i64)>,
}

/// A plan as data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanSpec {
    /// The device that it is for, and the version of what planned it: the planner's
    /// [profile](Planner::profile).
    pub device: String,
    /// The policy that it was chosen by.
    #[serde(default)]
    pub policy: Policy,
    /// The engine and its choices.
    pub config: EngineConfigSpec,
    /// The size of the scratch memory that a run needs, in bytes.
    pub workspace_bytes: u64,
    /// The steps from the graph to the plan, in words.
    #[serde(default)]
    pub steps: Vec<String>,
}

/// Which buffer is which tensor of a graph, as data: addresses are a run's alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariantPackSpec {
    /// The number of each tensor with memory, and its buffer's place in the list of buffers.
    pub buffers: Vec<(Uid, usize)>,
}

impl Document for HeurSpec {
    const NAME: &str = "heuristics";
}

impl Document for EngineConfigSpec {
    const NAME: &str = "engine configuration";
}

impl Document for PlanSpec {
    const NAME: &str = "plan";
}

impl Document for VariantPackSpec {
    const NAME: &str = "variant pack";
}

/// Which plan is wanted of those that a device has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// How an engine is chosen.
    #[serde(default)]
    pub choice: Choice,
    /// The most scratch memory that a run may need, in bytes; `None` without a limit.
    #[serde(default)]
    pub workspace_limit: Option<u64>,
    /// Whether float32 may be multiplied as TF32.
    #[serde(default)]
    pub tf32: bool,
    /// How far a planner may rewrite a graph that the device has no plan for as it is.
    #[serde(default)]
    pub rewrite: Rewrite,
}

/// How far a planner may rewrite a graph that the device has no plan for as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rewrite {
    /// See the same memory under other dimensions, which costs nothing.
    View,
    /// That, and compute it by several plans, which pass tensors on in the scratch memory.
    #[default]
    Split,
}

/// How an engine is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// The first that works, in the order of the heuristics.
    #[default]
    First,
    /// The quickest of those that work, timed on the device.
    Autotune,
    /// The first that works and gives the same bits on each run.
    Deterministic,
}

/// A step of a build, for a progress bar.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// How many of the steps are done.
    pub done: usize,
    /// How many there are.
    pub total: usize,
    /// What is done next, in words.
    pub what: &'a str,
}

/// Watches builds; an error that it returns cancels the build, which fails with that error.
pub type Progress<'a> = &'a (dyn Fn(Step<'_>) -> Result<()> + Sync);

/// Makes plans for one device.
pub trait Planner: Send + Sync + Debug {
    /// Returns the device's profile and the version of what plans: all that a plan depends on
    /// beside graph and policy.
    fn profile(&self) -> &str;

    /// Makes a plan.
    ///
    /// # Errors
    /// [`NotSupported`](keyfold_core::ErrorKind::NotSupported) with the reason where the device has no
    /// plan for the graph, and the errors of `progress`.
    fn plan(&self, graph: Arc<ValidGraph>, policy: &Policy, progress: Progress<'_>)
    -> Result<Plan>;
}

/// A graph that is ready to run on a device.
#[derive(Debug)]
pub struct Plan {
    /// The graph, under the numbers that the planner was given it with.
    pub graph: Arc<ValidGraph>,
    /// The plan as data.
    pub spec: PlanSpec,
    /// The device that it runs on, where its tensors and its scratch memory are.
    pub device: Device,
    /// The alignment of addresses that a run relies on, in bytes: that of a tensor's specification
    /// counts up to it. 1 where a run takes any address.
    pub alignment: i64,
    /// The memory that it holds while it is kept, in bytes, about.
    pub bytes: u64,
    /// What runs it.
    pub runner: Box<dyn PlanRunner>,
}

/// Runs a plan.
pub trait PlanRunner: Send + Sync + Debug {
    /// Computes the outputs from the inputs, or queues that on the current stream of their device.
    ///
    /// The caller has checked the pack: each tensor with memory is there, with its dtype,
    /// dimensions and strides, at an address that is aligned as far as the plan relies on it, on
    /// the plan's device, and no output overlaps another tensor.
    ///
    /// # Errors
    /// The device's errors.
    fn run(&self, pack: &VariantPack<'_>) -> Result<()>;

    /// Proves that it can be run in this process, before a run's tensors are looked at.
    ///
    /// # Errors
    /// [`NotSupported`](keyfold_core::ErrorKind::NotSupported) for a plan of a device that isn't here.
    fn available(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the plan as its device's library has it, as JSON: what is needed to run it elsewhere. `None` where it
    /// is calls of operators.
    fn document(&self) -> Option<String> {
        None
    }

    /// Allocates memory for an output or for scratch, one dimension of it: by the device's backend, unless a runner
    /// is for a device that has none.
    ///
    /// # Errors
    /// The device's.
    fn allocate(&self, elements: usize, dtype: DType, device: Device) -> Result<Tensor> {
        Tensor::empty(&[elements], dtype, device)
    }
}

/// The memory of a run.
#[derive(Debug)]
pub struct VariantPack<'a> {
    /// Each tensor with memory under its number in the plan's graph. Numbers that are given by value are
    /// in the host's memory, on any device.
    pub tensors: &'a [(Uid, &'a Tensor)],
    /// The scratch memory, of the size in the plan; `None` where that is 0.
    pub workspace: Option<&'a Tensor>,
}

impl<'a> VariantPack<'a> {
    /// Returns the memory of a tensor.
    pub fn get(&self, uid: Uid) -> Option<&'a Tensor> {
        self.tensors.iter().find(|entry| entry.0 == uid).map(|entry| entry.1)
    }
}
