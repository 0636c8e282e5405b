//! A backend's groups of operations as graphs.

mod attention;
mod convolution;
mod draft;
mod key;
mod linear;
mod norm;
mod pool;
mod recipe;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use keyfold_backend::{
    Activation, Execute, Groups, Kernels, Offer, Operation, Params, not_supported,
};
use keyfold_core::{DType, Error, ErrorKind, Result};
use keyfold_tensor::Tensor;

use self::draft::Draft;
use self::key::Key;
use self::recipe::Recipe;
use crate::cache::{ByteHash, Failure, Kept, Shelf};
use crate::{PlanCache, Planner, Pointwise, PointwiseMode, Policy, plan_cache};

/// The kernels of a backend's groups `convolution`, `norm`, `pool`, `attention` and `linear`, which
/// run the plans of cuDNN graphs.
///
/// A call becomes one graph, or a few that run one after another, with the shapes and strides of
/// its tensors. Their plans come from a [`PlanCache`]. What has no graph, and what the planner
/// refuses, is [`NotSupported`](ErrorKind::NotSupported) with the reason; it never runs elsewhere.
/// Sizes of 0 need no graph.
///
/// Calls are remembered by parameters, shapes, strides, dtypes and alignments: a call that came
/// before runs its plans at once, without a graph being made, and a refused one is refused at once.
/// The last 1024 calls are remembered, and keep their plans, up to 1 GiB of them.
///
/// ```
/// use keyfold_cudnn::GraphKernels;
/// # use keyfold_core::Device;
/// # use keyfold_cudnn::{Precision, Reference};
/// use std::sync::Arc;
///
/// # let planner = Reference::new(Device::CPU, Precision::AsSpec);
/// let kernels = GraphKernels::new("npu", Arc::new(planner));
/// assert!(kernels.groups().convolution.is_some());
/// ```
pub struct GraphKernels {
    backend: String,
    planner: Arc<dyn Planner>,
    cache: Option<Arc<PlanCache>>,
    policy: Policy,
    known: Shelf<Known, ByteHash>,
}

/// The most calls that are remembered, and the most bytes that their plans hold.
const CALLS: usize = 1024;
const BYTES: u64 = 1 << 30;

/// Returns a memory of no calls.
fn no_calls() -> Shelf<Known, ByteHash> {
    Shelf::new(CALLS, BYTES, ByteHash::default())
}

/// A remembered call.
#[derive(Clone)]
enum Known {
    /// It runs.
    Runs(Arc<Recipe>),
    /// It has no plan, for this reason.
    Refused(Arc<str>),
}

impl Kept for Known {
    fn bytes(&self) -> u64 {
        match self {
            Known::Runs(recipe) => recipe.bytes(),
            Known::Refused(reason) => reason.len() as u64,
        }
    }
}

impl fmt::Debug for GraphKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphKernels")
            .field("backend", &self.backend)
            .field("planner", &self.planner)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl GraphKernels {
    /// Makes the kernels of a backend, whose name errors give. Plans are made by this planner,
    /// whose device is that of the tensors, and kept in the process's cache.
    pub fn new(backend: impl Into<String>, planner: Arc<dyn Planner>) -> GraphKernels {
        GraphKernels {
            backend: backend.into(),
            planner,
            cache: None,
            policy: Policy::default(),
            known: no_calls(),
        }
    }

    /// Takes plans from another cache.
    #[must_use]
    pub fn with_cache(self, cache: Arc<PlanCache>) -> GraphKernels {
        GraphKernels { cache: Some(cache), known: no_calls(), ..self }
    }

    /// Asks for plans by another policy.
    #[must_use]
    pub fn with_policy(self, policy: Policy) -> GraphKernels {
        GraphKernels { policy, known: no_calls(), ..self }
    }

    /// Returns the groups of these kernels, for a backend's `groups`.
    pub fn groups(&self) -> Groups<'_> {
        Groups {
            norm: Some(self),
            linear: Some(self),
            convolution: Some(self),
            pool: Some(self),
            attention: Some(self),
            ..Groups::NONE
        }
    }

    /// Returns the recipe of a call, which is remembered.
    #[cold]
    fn learn<P: GraphGroup>(
        &self,
        key: &Key,
        params: &P,
        inputs: &[&Tensor],
        outputs: &[&Tensor],
    ) -> Result<Known> {
        let build = || match self.recipe(params, inputs, outputs) {
            Ok(recipe) => Ok(Known::Runs(Arc::new(recipe))),
            Err(error) if error.kind() == ErrorKind::NotSupported => {
                Ok(Known::Refused(error.message().into()))
            }
            Err(error) => Err(Failure::Failed(error)),
        };
        let known = self.known.get_or_build(key.bytes(), &|| Ok(()), build, drop);
        known.map(|(known, _)| known)
    }

    fn recipe<P: GraphGroup>(
        &self,
        params: &P,
        inputs: &[&Tensor],
        outputs: &[&Tensor],
    ) -> Result<Recipe> {
        let cache = self.cache.as_deref().unwrap_or_else(|| plan_cache());
        Recipe::new(drafted(params, inputs, outputs)?, |graph| {
            cache.get_or_build(graph, &*self.planner, &self.policy, &|_| Ok(()))
        })
    }
}

/// Returns what a call becomes.
fn drafted<'a, P: GraphGroup>(
    params: &P,
    inputs: &'a [&'a Tensor],
    outputs: &'a [&'a Tensor],
) -> Result<Draft<'a>> {
    let mut draft = Draft::new(inputs, outputs);
    if !draft.is_empty() {
        params.draft(&mut draft)?;
        draft.close();
    }
    Ok(draft)
}

/// A group's calls as graphs.
trait GraphGroup: Params {
    /// Adds all parameters but the operation to a key.
    fn write(&self, key: &mut Key);

    /// Returns why there is no kernel for an operation and dtypes, if there is none.
    fn refusal(op: &Operation, inputs: &[DType], outputs: &[DType]) -> Option<String>;

    /// Adds the graphs of a call. Not all outputs are empty.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] with the reason where there are none.
    fn draft(&self, draft: &mut Draft<'_>) -> Result<()>;
}

impl<P: GraphGroup> Kernels<P> for GraphKernels {
    fn kernel(
        &self,
        op: &'static Operation,
        inputs: &[DType],
        outputs: &[DType],
    ) -> Offer<&dyn Execute<P>> {
        match P::refusal(op, inputs, outputs) {
            Some(reason) => Offer::No(reason.into()),
            None => Offer::Native(self),
        }
    }
}

#[expect(unsafe_code, reason = "a backend's kernels are called by its promise")]
impl<P: GraphGroup> Execute<P> for GraphKernels {
    unsafe fn execute(&self, params: &P, inputs: &[&Tensor], outputs: &[&Tensor]) -> Result<()> {
        let mut key = Key::new(P::GROUP.name(), params.operation().name());
        params.write(&mut key);
        key.tensors(inputs);
        key.tensors(outputs);
        let known = match self.known.get(key.bytes()) {
            Some(known) => known,
            None => self.learn(&key, params, inputs, outputs)?,
        };
        match known {
            // The recipe is that of a call with the same shapes, strides and dtypes, so its views lie
            // within these inputs and outputs.
            // SAFETY: `run` has the contract of `execute`, whose caller promises that nothing else
            // accesses the outputs and that no input and no other output overlaps one.
            Known::Runs(recipe) => unsafe { recipe.run(inputs, outputs) },
            Known::Refused(reason) => Err(self.refuse(params, &reason)),
        }
    }
}

impl GraphKernels {
    #[cold]
    fn refuse<P: Params>(&self, params: &P, reason: &str) -> Error {
        let op = format!("{} '{}'", P::GROUP.name(), params.operation().name());
        let hint = "copy the arguments to another device with .to()";
        not_supported(&op, &self.backend, &reason.to_string().into(), hint)
    }
}

/// Returns the reason why not all dtypes are floats, if they aren't.
fn all_floats<'a>(mut dtypes: impl Iterator<Item = &'a DType>) -> Option<String> {
    let other = dtypes.find(|dtype| !dtype.is_floating());
    other.map(|other| format!("its graphs compute floats, not {other}"))
}

/// Returns the reason why dtypes aren't one dtype of floats, if they aren't.
fn floats_of_one_dtype<'a>(mut dtypes: impl Iterator<Item = &'a DType> + Clone) -> Option<String> {
    all_floats(dtypes.clone()).or_else(|| {
        let first = dtypes.next()?;
        let other = dtypes.find(|dtype| *dtype != first)?;
        Some(format!("its graphs compute tensors of one dtype, not of {first} and {other}"))
    })
}

/// Returns a function of results as a pointwise operation; `None` for the identity.
fn activation(function: Activation) -> Option<Pointwise> {
    let mode = match function {
        Activation::None => return None,
        Activation::Relu => PointwiseMode::Relu,
        Activation::Gelu => PointwiseMode::Gelu,
        Activation::GeluTanh => PointwiseMode::GeluApproxTanh,
        Activation::GeluSigmoid => PointwiseMode::Swish,
        Activation::Sigmoid => PointwiseMode::Sigmoid,
        Activation::Tanh => PointwiseMode::Tanh,
    };
    let pointwise = Pointwise::new(mode);
    Some(match function {
        Activation::GeluSigmoid => Pointwise { swish_beta: 1.702.into(), ..pointwise },
        _ => pointwise,
    })
}

/// Returns a function's value at 0.
fn value_at_zero(function: Activation) -> f64 {
    if function == Activation::Sigmoid { 0.5 } else { 0.0 }
}
