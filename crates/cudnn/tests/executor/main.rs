//! The reference executor: each operation against literal or naive results, on the host and on a
//! device that computes later and hides its memory.

mod elements;
mod layers;
mod pools;
mod products;
mod runs;
mod space;

use std::sync::{Arc, OnceLock};

use keyfold::backend::delayed::{Delayed, DelayedMemory};
use keyfold::backend::{GpuBackend, register};
use keyfold::cpu::HostBackend;
use keyfold::cudnn::{
    DataType, Graph, GraphOptions, GraphSpec, Operation, Plan, Planner, Policy, Port, Precision,
    Reference, TensorSpec, Uid, VariantPack,
};
use keyfold::{Device, DeviceType, Result, Tensor, ValueRef, dispatcher};
use keyfold_core::{DType, Shape, Strides};

/// The elements of tensors by their numbers.
type Given = Vec<(Uid, Vec<f64>)>;

/// A device of the delayed kind, which stays for the whole process.
fn toy() -> Device {
    static TOY: OnceLock<Device> = OnceLock::new();
    *TOY.get_or_init(|| {
        keyfold::init();
        let kind = DeviceType::register("toy").unwrap();
        let memory = DelayedMemory::new(kind, 1, 2);
        let backend = Delayed::over(Arc::new(HostBackend), memory.clone());
        // The registration has no end but a call.
        register(kind, Arc::new(backend) as Arc<dyn GpuBackend>).unwrap();
        memory.device(0)
    })
}

/// Begins a graph whose tensors with memory are float32, and whose virtual ones are.
fn graph() -> Graph {
    graph_of(DataType::F32)
}

fn graph_of(dtype: DataType) -> Graph {
    let compute = if dtype == DataType::F64 { DataType::F64 } else { DataType::F32 };
    let [io, compute] = [dtype, compute].map(Some);
    Graph::new(GraphOptions { name: "test".into(), io, intermediate: compute, compute })
}

/// Adds an operation whose results are outputs, and returns their numbers.
fn add(g: &mut Graph, operation: Operation, inputs: &[(Port, Uid)], wanted: &[Port]) -> Vec<Uid> {
    let results = g.add(operation, inputs, wanted).unwrap();
    results.into_iter().map(|(_, uid)| g.set_output(uid, true).map(|()| uid).unwrap()).collect()
}

/// Returns a tensor of a specification with these elements in row-major order, and its strides.
fn tensor(spec: &TensorSpec, numbers: &[f64]) -> Result<Tensor> {
    let reach: i64 = spec.dims.iter().zip(&spec.strides).map(|(d, s)| (d - 1) * s).sum();
    let dtype = spec.dtype.unwrap().storage();
    let flat = Tensor::zeros(&[reach as usize + 1], dtype, Device::CPU)?;
    let shape: Vec<usize> = spec.dims.iter().map(|&size| size as usize).collect();
    let strides: Vec<isize> = spec.strides.iter().map(|&stride| stride as isize).collect();
    let (dims, strides) = (Shape::new(&shape)?, Strides::new(&strides)?);
    let x = Tensor::from_parts(flat.buffer().clone(), dims, strides, 0)?;
    let source = Tensor::from_slice(numbers, &shape)?;
    let source = dispatcher().call("aten::to", &[(&source).into(), dtype.into()])?.into_tensor()?;
    dispatcher().call("aten::copy_", &[(&x).into(), (&source).into()])?;
    Ok(x)
}

/// Returns the elements in row-major order.
fn numbers(x: &Tensor) -> Result<Vec<f64>> {
    let host = x.to_device(Device::CPU)?;
    let args: [ValueRef<'_>; 2] = [(&host).into(), DType::F64.into()];
    dispatcher().call("aten::to", &args)?.into_tensor()?.contiguous()?.to_vec::<f64>()
}

fn plan(spec: &GraphSpec, device: Device, precision: Precision) -> Result<Plan> {
    keyfold::init();
    let valid = Arc::new(spec.clone().validate()?);
    Reference::new(device, precision).plan(valid, &Policy::default(), &|_| Ok(()))
}

/// Runs a graph, and returns its outputs in the order of its tensors. Tensors without given
/// elements hold 7 before the run.
fn run_on(
    spec: &GraphSpec,
    given: &[(Uid, Vec<f64>)],
    device: Device,
    precision: Precision,
) -> Result<Vec<Vec<f64>>> {
    let plan = plan(spec, device, precision)?;
    let (mut tensors, mut outputs) = (Vec::new(), Vec::new());
    for spec in &spec.tensors {
        if spec.is_virtual || spec.scalar.is_some() {
            continue;
        }
        let elements = given.iter().find(|entry| entry.0 == spec.uid);
        if elements.is_none() {
            outputs.push(tensors.len());
        }
        let before = vec![7.0; spec.numel().unwrap() as usize];
        let x = tensor(spec, elements.map_or(&before, |entry| &entry.1))?;
        tensors.push((spec.uid, if spec.by_value { x } else { strided_on(&x, device)? }));
    }
    let pack: Vec<(Uid, &Tensor)> = tensors.iter().map(|(uid, x)| (*uid, x)).collect();
    plan.runner.run(&VariantPack { tensors: &pack, workspace: None })?;
    outputs.into_iter().map(|index| numbers(&tensors[index].1)).collect()
}

/// Returns a copy on a device with the same strides.
fn strided_on(x: &Tensor, device: Device) -> Result<Tensor> {
    if device == Device::CPU {
        return Ok(x.clone());
    }
    let len = x.buffer().len();
    let shape = Shape::new(&[len])?;
    let flat = Tensor::from_parts(x.buffer().clone(), shape, Strides::new(&[1])?, 0)?;
    let there = flat.to_device(device)?;
    Tensor::from_parts(there.buffer().clone(), x.shape().clone(), x.strides().clone(), 0)
}

/// Runs a graph as its dtypes say, on the host and on the delayed device, with the same bits.
fn run(spec: &GraphSpec, given: &[(Uid, Vec<f64>)]) -> Vec<Vec<f64>> {
    let host = run_on(spec, given, Device::CPU, Precision::AsSpec).unwrap();
    let there = run_on(spec, given, toy(), Precision::AsSpec).unwrap();
    let bits = |all: &[Vec<f64>]| -> Vec<u64> {
        all.iter().flatten().map(|x| if x.is_nan() { 1 } else { x.to_bits() }).collect()
    };
    assert_eq!(bits(&host), bits(&there), "{host:?} on the host, {there:?} on the toy");
    host
}

/// Returns whether numbers are those, within a part of each and of 1; NaN is NaN.
fn close(got: &[f64], want: &[f64], part: f64) -> bool {
    let near = |(a, b): (&f64, &f64)| {
        a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= part * b.abs().max(1.0)
    };
    got.len() == want.len() && got.iter().zip(want).all(near)
}

#[track_caller]
fn assert_close(got: &[f64], want: &[f64], part: f64) {
    assert!(close(got, want, part), "got {got:?}\nwant {want:?}");
}

/// Different numbers around 0, exact in all dtypes.
fn data(count: usize, seed: usize) -> Vec<f64> {
    (0..count).map(|i| ((i * 5 + seed * 3 + 7) % 13) as f64 / 4.0 - 1.5).collect()
}

#[test]
fn a_planted_error_is_found() {
    assert!(close(&[1.0, f64::NAN], &[1.0 + 1e-9, f64::NAN], 1e-6));
    for wrong in [[1.0, 2.1], [1.0, f64::NAN]] {
        assert!(!close(&wrong, &[1.0, 2.0], 1e-6));
    }
    assert!(!close(&[1.0], &[1.0, 1.0], 1e-6));
}
