//! Groups of operations as cuDNN graphs, on a device whose kernels are the plans of the reference
//! executor.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use keyfold::cudnn::{
    GraphKernels, Plan, PlanCache, Planner, Policy, Precision, Progress, Reference, ValidGraph,
};
use keyfold_backend::delayed::{Delayed, DelayedMemory};
use keyfold_backend::{
    GpuBackend, Groups, Index, Linalg, Pointwise, Random, Reduce, Rows, Scan, register,
};
use keyfold_conformance::{Options, Verdict, assert_conforms};
use keyfold_core::{Device, DeviceType, Result};
use keyfold_cpu::HostBackend;
use keyfold_tensor::device::Memory;
use keyfold_tensor::{Tensor, ValueRef, dispatcher};

/// The host's backend, whose groups of networks are graphs.
#[derive(Debug)]
struct Graphs(GraphKernels);

impl GpuBackend for Graphs {
    fn name(&self) -> &str {
        "graphs"
    }

    fn memory(&self) -> Arc<dyn Memory> {
        HostBackend.memory()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn pointwise(&self) -> Option<Pointwise<'_>> {
        Some(Pointwise::Expressions(&HostBackend))
    }

    fn reduce(&self) -> Option<&dyn Reduce> {
        Some(&HostBackend)
    }

    fn rows(&self) -> Option<&dyn Rows> {
        Some(&HostBackend)
    }

    fn scan(&self) -> Option<&dyn Scan> {
        Some(&HostBackend)
    }

    fn linalg(&self) -> Option<&dyn Linalg> {
        Some(&HostBackend)
    }

    fn index(&self) -> Option<&dyn Index> {
        Some(&HostBackend)
    }

    fn random(&self) -> Option<&dyn Random> {
        Some(&HostBackend)
    }

    fn groups(&self) -> Groups<'_> {
        let (own, host) = (self.0.groups(), HostBackend.groups());
        Groups {
            norm: own.norm,
            linear: own.linear,
            convolution: own.convolution,
            pool: own.pool,
            attention: own.attention,
            ..host
        }
    }
}

/// The reference executor, whose plans are counted.
#[derive(Debug)]
struct Counting {
    reference: Reference,
    plans: AtomicUsize,
}

impl Planner for Counting {
    fn profile(&self) -> &str {
        self.reference.profile()
    }

    fn plan(
        &self,
        graph: Arc<ValidGraph>,
        policy: &Policy,
        progress: Progress<'_>,
    ) -> Result<Plan> {
        self.plans.fetch_add(1, Ordering::Relaxed);
        self.reference.plan(graph, policy, progress)
    }
}

/// The planner of the one device of these tests, and that device.
static DEVICE: LazyLock<(Arc<Counting>, Device)> = LazyLock::new(|| {
    keyfold::init();
    let kind = DeviceType::register("graphs").unwrap();
    let reference = Reference::new(Device::CPU, Precision::AsSpec);
    let planner = Arc::new(Counting { reference, plans: AtomicUsize::new(0) });
    let memory = DelayedMemory::new(kind, 1, 2);
    let device = memory.device(0);
    // The name of the backend that is asked: the kernels below run on its streams.
    let kernels = GraphKernels::new("delayed", planner.clone())
        .with_cache(Arc::new(PlanCache::new(4096, 1 << 30).unwrap()));
    let backend = Delayed::over(Arc::new(Graphs(kernels)), memory);
    register(kind, Arc::new(backend) as Arc<dyn GpuBackend>).unwrap();
    (planner, device)
});

/// Why calls have no graph, as errors say it.
const REASONS: [&str; 9] = [
    "no gradient of softmax",
    "the index within each window",
    "compute floats, not",
    "no maxima of",
    "no dilation",
    "cuDNN's windows are",
    "counts padding in all windows or in none",
    "no output padding of the stride or more",
    "it has no",
];

#[test]
fn a_device_whose_networks_are_graphs_conforms() {
    let kind = DEVICE.1.kind();
    let families = ["convolution", "norm", "pool", "attention", "linalg"];
    let fraction = std::env::var("KEYFOLD_CONFORMANCE_FRACTION");
    let fraction = fraction.ok().and_then(|text| text.parse().ok()).unwrap_or(0.1);
    let groups = Some(families.map(str::to_owned).to_vec());
    let options = Options { groups, fraction, ..Options::default() };
    let report = assert_conforms(kind, &options, "a_device_whose_networks_are_graphs_conforms");
    assert!(report.operations(Verdict::Passed) > 150, "{report}");
    for finding in report.with(Verdict::Lacking) {
        let known = REASONS.iter().any(|reason| finding.message.contains(reason));
        assert!(known, "{}: {}", finding.operator, finding.message);
    }
}

fn data(shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let items = (0..count).map(|i| (i * 7 % 11) as f32 / 4.0 - 1.0).collect();
    Tensor::from_vec(items, shape).unwrap().to_device(DEVICE.1).unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.to_device(Device::CPU).unwrap().to_vec().unwrap()
}

#[test]
fn a_second_call_of_a_shape_makes_no_plan() {
    let planner = &DEVICE.0;
    let (w, bias) = (data(&[4, 3, 3, 3]), data(&[4]));
    let call = |images: usize| {
        let x = data(&[images, 3, 6, 6]);
        let args = [ValueRef::Tensor(&x), ValueRef::Tensor(&w), ValueRef::Tensor(&bias)];
        numbers(&dispatcher().call("aten::conv2d", &args).unwrap().into_tensor().unwrap())
    };
    let before = planner.plans.load(Ordering::Relaxed);
    let first = call(2);
    assert_eq!(planner.plans.load(Ordering::Relaxed), before + 1);
    assert_eq!(call(2), first);
    assert_eq!(planner.plans.load(Ordering::Relaxed), before + 1);
    call(3);
    assert_eq!(planner.plans.load(Ordering::Relaxed), before + 2);
}
