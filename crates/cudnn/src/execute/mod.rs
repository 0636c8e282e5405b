//! The reference executor: plans that run any proven graph by calls of built-in operators.
//!
//! [`Reference`] is what the GPU's results are compared with, and what runs graphs where no cuDNN
//! is: on each device that has a backend. Its decisions where cuDNN's documents leave a choice:
//!
//! - Floats that become whole numbers are rounded to the nearest, ties to even, and saturate; NaN
//!   becomes 0.
//! - Floats that become 8-bit floats are rounded so, too, and saturate at the greatest finite
//!   number, infinities included, as CUDA's conversions do; NaN stays.
//! - Whole numbers are convolved in float64, which is exact below 2^53. Pointwise functions of them
//!   are exact where results are whole: sums, products, quotients, remainders, extremes and
//!   comparisons. Powers, clipped relu and factors alpha1 and alpha2 are computed in float64.
//! - The index of max pooling is the place in the window, in row-major order, as in cuDNN.
//! - Bilinear and nearest resampling read at `output * stride - pre_padding`; nearest takes the
//!   upper one of two that are as near.
//! - Attention without `attn_scale` scales by 1. A row that sees no key has `o` 0 and `stats` -inf.
//! - Dropout draws from Philox blocks of its own order: repeatable by seed and offset, other
//!   elements than cuDNN's.
//! - Rows and columns beyond a matmul's overrides are 0.

mod attention;
mod calls;
mod convolution;
mod float8;
mod movement;
mod node;
mod norm;
mod pointwise;
mod pool;
mod products;
mod program;
mod reduction;
mod resample;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keyfold_core::{DType, Device, Error, ErrorKind, Result};
use keyfold_dispatch::Dispatcher;
use keyfold_tensor::{Tensor, Value, dispatcher};

use crate::{DataType, EngineConfigSpec, Plan, PlanSpec, Planner, Policy, Progress, ValidGraph};
use program::Program;

/// The dtype that [`Reference`] computes floats in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Each operation computes in its compute dtype, and each result is rounded to its tensor's
    /// dtype.
    #[default]
    AsSpec,
    /// All floats are float32; outputs alone are rounded to their dtype.
    F32,
    /// All floats are float64; outputs alone are rounded to their dtype.
    F64,
}

impl Precision {
    /// Returns the dtype that an operation of a compute dtype works in. Whole numbers stay.
    fn working(self, compute: DataType) -> DType {
        match self {
            Precision::F32 if compute.is_float() => DType::F32,
            Precision::F64 if compute.is_float() => DType::F64,
            _ => compute.storage(),
        }
    }

    /// Returns the dtype that a virtual tensor is held in.
    fn held(self, dtype: DataType) -> DType {
        self.working(dtype)
    }
}

/// Plans graphs for a device with a backend of keyfold's: each operation calls built-in operators.
///
/// ```
/// use keyfold::cudnn::{
///     DataType, Graph, GraphOptions, Planner, Policy, Precision, Reference, VariantPack,
/// };
/// use keyfold::{Device, Tensor};
/// use std::sync::Arc;
///
/// keyfold::init();
/// let mut g = Graph::new(GraphOptions { io: Some(DataType::F32), ..GraphOptions::default() });
/// let (a, b) = (g.input("a", &[2, 2])?, g.input("b", &[2, 2])?);
/// let c = g.matmul(a, b)?;
/// g.set_output(c, true)?;
/// let graph = Arc::new(g.into_spec().validate()?);
/// let reference = Reference::new(Device::CPU, Precision::AsSpec);
/// let plan = reference.plan(graph, &Policy::default(), &|_| Ok(()))?;
/// let x = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// let y = Tensor::zeros(&[2, 2], x.dtype(), Device::CPU)?;
/// plan.runner.run(&VariantPack { tensors: &[(a, &x), (b, &x), (c, &y)], workspace: None })?;
/// assert_eq!(y.to_vec::<f32>()?, [7.0, 10.0, 15.0, 22.0]);
/// # Ok::<(), keyfold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Reference {
    device: Device,
    precision: Precision,
    dispatcher: Dispatcher<Value>,
    profile: String,
}

impl Reference {
    /// Makes a planner that calls the process's operators.
    pub fn new(device: Device, precision: Precision) -> Reference {
        let version = env!("CARGO_PKG_VERSION");
        let profile = format!("reference {version}, {device}, {precision:?}");
        Reference { device, precision, dispatcher: dispatcher().clone(), profile }
    }

    /// Makes a planner that calls the operators of a dispatcher. Its plans call that dispatcher's
    /// operators, so they are shared with clones of this planner alone: its profile has a number of
    /// its own.
    pub fn with_dispatcher(
        device: Device,
        precision: Precision,
        dispatcher: Dispatcher<Value>,
    ) -> Reference {
        static MADE: AtomicU64 = AtomicU64::new(1);
        let mut reference = Reference::new(device, precision);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        reference.profile.push_str(&format!(", dispatcher {number}"));
        Reference { dispatcher, ..reference }
    }
}

impl Planner for Reference {
    fn profile(&self) -> &str {
        &self.profile
    }

    fn plan(
        &self,
        graph: Arc<ValidGraph>,
        policy: &Policy,
        progress: Progress<'_>,
    ) -> Result<Plan> {
        // A device without memory is refused here, before a run.
        Tensor::empty(&[0], DType::F32, self.device).map_err(|error| {
            let reason = format!("device {} can't run graphs: {}", self.device, error.message());
            Error::new(ErrorKind::NotSupported, reason)
        })?;
        let calls = calls::Calls::new(self.dispatcher.clone(), self.device);
        let program = Program::new(graph.clone(), self.precision, calls, progress)?;
        let (mut steps, peak) = (program.describe(), program.peak_bytes());
        if let Some(limit) = policy.workspace_limit.filter(|&limit| peak > limit) {
            let title = graph.spec().title();
            let message = format!(
                "{title}: its virtual tensors hold {peak} bytes at once, and workspace_limit is {limit}"
            );
            return Err(Error::new(ErrorKind::NotSupported, message));
        }
        if peak > 0 {
            steps.push(format!("virtual tensors hold at most {peak} bytes at once"));
        }
        let bytes = program.bytes();
        Ok(Plan {
            graph,
            spec: PlanSpec {
                device: self.profile.clone(),
                policy: policy.clone(),
                config: EngineConfigSpec { engine: "reference".to_string(), knobs: Vec::new() },
                // A run allocates virtual tensors itself, from the device's caching allocator, and
                // frees each behind its last reader, so that the results of later steps reuse the
                // memory.
                workspace_bytes: 0,
                steps,
            },
            device: self.device,
            // Operators take any address.
            alignment: 1,
            bytes,
            runner: Box::new(program),
        })
    }
}
