//! Layers over the device: gradients, batches, traces, autocast, the profiler.

use keyfold::backend::delayed::{Call, OPERATION_NS};
use keyfold::layers::autograd::{self, Options};
use keyfold::layers::profiler::{self, Session};
use keyfold::layers::vmap::{Randomness, vmap_with};
use keyfold::layers::{autocast, tracer};
use keyfold::ops::aten;
use keyfold::{DType, Device, ErrorKind, Result, Tensor, ValueRef, dispatcher};

use crate::{Toy, call, data, on, positions, seen};

/// Returns the weights of two layers of a network, and examples with their classes, on a device.
fn network(device: Device) -> Vec<Tensor> {
    let shapes: [&[usize]; 4] = [&[5, 4], &[4, 3], &[3], &[2, 3]];
    let tensors = shapes.iter().enumerate().map(|(i, shape)| data(shape, DType::F64, i));
    tensors.map(|tensor| tensor.to_device(device).unwrap()).collect()
}

/// Returns a loss that calls many kinds of operators: products, gelu, softmax, indices, masks,
/// writes.
fn loss(x: &[Tensor]) -> Result<Tensor> {
    let hidden = on("aten::gelu", &[&on("aten::matmul", &[&x[0], &x[1]])?])?;
    let hidden = aten::add(&hidden, &x[2])?;
    let at = positions(&[2]).to_device(x[0].device())?;
    let picked = aten::index(&hidden, &[Some(at), None])?;
    let joined = call("aten::cat", &[ValueRef::Tensors(&[picked, x[3].clone()])])?;
    let mask = call("aten::gt.Scalar", &[(&joined).into(), 0.into()])?;
    let kept = aten::where_scalar_other(&mask, &joined, 0.5)?;
    let rows = call("aten::log_softmax", &[(&kept).into(), 1.into()])?;
    aten::sum_all(&aten::mul(&rows, &joined)?)
}

fn leaves(tensors: &[Tensor]) -> Vec<Tensor> {
    let leaf = |tensor: &Tensor| {
        let leaf = tensor.detach();
        autograd::set_requires_grad(&leaf, true).unwrap();
        leaf
    };
    tensors.iter().map(leaf).collect()
}

/// Returns gradients of the loss, and the gradients of the sum of their squares.
fn gradients(device: Device) -> Result<Vec<Tensor>> {
    let inputs = leaves(&network(device));
    let twice = Options { create_graph: true, retain_graph: true };
    let grads = autograd::grad(&[loss(&inputs)?], &inputs, &[None], twice, &|| Ok(()))?;
    let grads: Vec<Tensor> = grads.into_iter().flatten().collect();
    let mut squares = Tensor::zeros(&[], DType::F64, device)?;
    for grad in &grads {
        squares = aten::add(&squares, &aten::sum_all(&aten::mul(grad, grad)?)?)?;
    }
    let second = autograd::grad(&[squares], &inputs, &[None], twice, &|| Ok(()))?;
    Ok(grads.into_iter().chain(second.into_iter().flatten()).collect())
}

#[track_caller]
fn same(cpu: &[Tensor], there: &[Tensor], device: Device) {
    assert_eq!(cpu.len(), there.len());
    for (cpu, there) in cpu.iter().zip(there) {
        assert_eq!(there.device(), device);
        assert_eq!(seen(there).unwrap(), seen(cpu).unwrap());
    }
}

#[test]
fn gradients_and_their_gradients_are_those_of_the_cpu() {
    let toy = Toy::new();
    let cpu = gradients(Device::CPU).unwrap();
    let there = gradients(toy.device(1)).unwrap();
    assert_eq!(cpu.len(), 8);
    same(&cpu, &there, toy.device(1));
    // Only the results that the test compares are downloaded.
    assert_eq!(toy.memory.counts().of(Call::Download), 8);
    drop(there);
    toy.memory.drain().unwrap();
    assert_eq!(toy.memory.live(), 0);
}

#[test]
fn backward_adds_gradients_to_leaves_on_their_device() {
    let toy = Toy::new();
    let grads = |device| {
        let inputs = leaves(&network(device));
        for _ in 0..2 {
            let options = Options { create_graph: false, retain_graph: false };
            autograd::backward(&[loss(&inputs).unwrap()], &[None], options, &|| Ok(())).unwrap();
        }
        inputs.iter().map(|x| autograd::grad_of(x).unwrap()).collect::<Vec<_>>()
    };
    same(&grads(Device::CPU), &grads(toy.device(1)), toy.device(1));
}

#[test]
fn a_saved_tensor_that_a_kernel_of_the_device_wrote_over_is_noticed() {
    let toy = Toy::new();
    for device in [Device::CPU, toy.device(1)] {
        let x = leaves(&[data(&[3], DType::F64, 1).to_device(device).unwrap()]).remove(0);
        let y = data(&[3], DType::F64, 2).to_device(device).unwrap();
        let product = aten::sum_all(&aten::mul(&x, &y).unwrap()).unwrap();
        let number = ValueRef::Float(2.0);
        let out = ValueRef::Tensor(&y);
        call("aten::add.Scalar_out", &[(&y.copy().unwrap()).into(), number, out]).unwrap();
        let options = Options { create_graph: false, retain_graph: false };
        let error = autograd::backward(&[product], &[None], options, &|| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gradient, "{device}: {error}");
    }
}

#[test]
fn batches_are_those_of_the_cpu() {
    let toy = Toy::new();
    let batched = |device: Device| {
        let x = data(&[6, 5, 4], DType::F64, 1).to_device(device).unwrap();
        let rest = network(device);
        let f = |x: &[Tensor]| {
            let all = [&x[0], &rest[1], &rest[2], &rest[3]].map(Clone::clone);
            let sorted = call("aten::amax", &[(&x[0]).into(), ValueRef::Ints(&[1])])?;
            Ok(vec![loss(&all)?, sorted])
        };
        vmap_with(Randomness::Error, f, &[Some(0)], &[Some(0)], &[x]).unwrap()
    };
    same(&batched(Device::CPU), &batched(toy.device(1)), toy.device(1));
}

#[test]
fn a_trace_replays_on_the_device() {
    let toy = Toy::new();
    let device = toy.device(1);
    let inputs = network(device);
    let given: Vec<&Tensor> = inputs.iter().collect();
    let graph = tracer::trace(&given, |x| Ok(vec![loss(x)?])).unwrap();
    let other: Vec<Tensor> = inputs.iter().map(|x| aten::add(x, x).unwrap()).collect();
    let other: Vec<&Tensor> = other.iter().collect();
    let replayed = graph.run(dispatcher(), &other).unwrap().remove(0).into_tensor().unwrap();
    let other: Vec<Tensor> = other.iter().map(|x| x.to_device(Device::CPU).unwrap()).collect();
    same(&[loss(&other).unwrap()], &[replayed], device);
}

#[test]
fn autocast_computes_on_the_device_in_the_dtype_of_its_scope() {
    let toy = Toy::new();
    let cast = |device: Device| {
        let scope = autocast::scope(DType::BF16).unwrap();
        let x: Vec<Tensor> =
            network(device).iter().map(|x| aten::to(x, DType::F32).unwrap()).collect();
        let product = on("aten::matmul", &[&x[0], &x[1]]).unwrap();
        assert_eq!(product.dtype(), DType::BF16);
        let made = vec![call("aten::softmax", &[(&product).into(), 1.into()]).unwrap(), product];
        drop(scope);
        made
    };
    same(&cast(Device::CPU), &cast(toy.device(1)), toy.device(1));
}

#[test]
fn the_profiler_records_calls_on_the_device() {
    let toy = Toy::new();
    let inputs = network(toy.device(1));
    let recorded = || {
        let session = Session::new(profiler::Options { nested: true, memory: true });
        let recording = session.start().unwrap();
        let result = loss(&inputs).unwrap();
        recording.stop().unwrap();
        (session.profile(), result)
    };
    let (profile, result) = recorded();
    let time = profile.device_time().unwrap();
    assert!(time >= 10 * OPERATION_NS && time.is_multiple_of(OPERATION_NS), "{time} ns");
    let times = |profile: &profiler::Profile| -> Vec<Option<u64>> {
        profile.events.iter().map(|event| event.device_time).collect()
    };
    assert_eq!(times(&recorded().0), times(&profile));
    let names: Vec<&str> = profile.events.iter().map(|event| &*event.name).collect();
    for name in ["aten::matmul", "aten::gelu", "aten::index.Tensor", "aten::log_softmax"] {
        assert!(names.contains(&name), "{name} isn't in {names:?}");
    }
    same(&[loss(&network(Device::CPU)).unwrap()], &[result], toy.device(1));
}
