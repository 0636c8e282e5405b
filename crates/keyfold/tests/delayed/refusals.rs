//! Refused calls and late errors: two devices in a call, missing groups of operations, faults.

use std::sync::{Arc, Mutex};

use keyfold::backend::Group;
use keyfold::backend::delayed::{Call, Delayed};
use keyfold::backend::{Fallback, allow_fallback, fallbacks, observe_fallbacks, register};
use keyfold::cpu::HostBackend;
use keyfold::{DType, Device, DeviceType, Error, ErrorKind, Tensor, Value, ValueRef, dispatcher};
use keyfold_tensor::device::Memory;

use crate::{Toy, borrowed, call, data, on, seen};

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Error>, kind: ErrorKind, words: &[&str]) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.message().contains(word), "{word:?} isn't in: {error}");
    }
}

#[test]
fn tensors_on_two_devices_are_refused_and_numbers_of_the_cpu_are_not() {
    let toy = Toy::new();
    let x = data(&[3], DType::F32, 1);
    let (here, there) = (x.to_device(toy.device(0)).unwrap(), x.to_device(toy.device(1)).unwrap());
    let names = [toy.device(0), toy.device(1)].map(|device| device.to_string());
    let words = ["aten::add", &names[0], &names[1]];
    refused(on("aten::add", &[&here, &there]), ErrorKind::Device, &words);
    refused(on("aten::matmul", &[&here, &there]), ErrorKind::Device, &words[1..]);
    refused(on("aten::add", &[&x, &there]), ErrorKind::Device, &["cpu", &names[1]]);
    let list = [here, there.clone()];
    refused(call("aten::cat", &[ValueRef::Tensors(&list)]), ErrorKind::Device, &words[1..]);
    let number = Tensor::from_slice(&[2.0_f32], &[]).unwrap();
    for args in [[&number, &there], [&there, &number]] {
        let sum = on("aten::add", &args).unwrap();
        assert_eq!(sum.device(), toy.device(1));
        assert_eq!(seen(&sum).unwrap(), seen(&on("aten::add", &[&x, &number]).unwrap()).unwrap());
    }
}

/// Calls an operator that needs a group.
fn needing(group: Group, device: Device) -> Result<Tensor, Error> {
    let x = data(&[3, 3], DType::F32, 1).to_device(device)?;
    match group {
        Group::Pointwise => on("aten::exp", &[&x]),
        Group::Reduce => on("aten::sum", &[&x]),
        Group::Rows => call("aten::softmax", &[(&x).into(), 1.into()]),
        Group::Scan => call("aten::cumsum", &[(&x).into(), 1.into()]),
        Group::Linalg => on("aten::matmul", &[&x, &x]),
        Group::Index => {
            let at = Tensor::from_slice(&[2_i64, 0], &[2])?.to_device(device)?;
            let at = Value::List(vec![Value::Tensor(at)]);
            call("aten::index.Tensor", &borrowed(&[Value::Tensor(x), at]))
        }
        Group::Random => call(
            "aten::rand",
            &[ValueRef::Ints(&[3]), ValueRef::DType(DType::F32), ValueRef::Device(device)],
        ),
        Group::Optim => {
            let [grad, m, v] =
                [on("aten::neg", &[&x])?, on("aten::neg", &[&x])?, on("aten::mul", &[&x, &x])?];
            let mut args: Vec<ValueRef<'_>> = [&x, &grad, &m, &v].map(ValueRef::Tensor).to_vec();
            args.extend([ValueRef::None, ValueRef::Int(1)]);
            args.extend([0.1, 0.9, 0.999, 1e-8, 0.0].map(ValueRef::Float));
            args.extend([ValueRef::Bool(false); 2]);
            call("keyfold::adam_step_", &args)
        }
        Group::Linear => {
            let numbers = [ValueRef::Int(1), ValueRef::Int(1)];
            call("aten::addmm", &[&[&x, &x, &x].map(ValueRef::Tensor)[..], &numbers].concat())
        }
        Group::Convolution => {
            let input = x.unsqueeze(0)?;
            let weight = data(&[3, 3, 1], DType::F32, 2).to_device(device)?;
            let one = |number: &'static [i64; 1]| ValueRef::Ints(number);
            let tensors = [ValueRef::Tensor(&input), ValueRef::Tensor(&weight), ValueRef::None];
            let numbers = [one(&[1]), one(&[0]), one(&[1]), false.into(), one(&[0]), 1.into()];
            call("aten::convolution", &[&tensors[..], &numbers].concat())
        }
        Group::Attention => {
            let tensors = [&x, &x, &x].map(ValueRef::Tensor);
            let args = [&tensors[..], &[ValueRef::None, false.into(), ValueRef::None]].concat();
            first(dispatcher().call("keyfold::attention", &args)?)
        }
        Group::Recurrent => {
            let gates = data(&[3, 9], DType::F32, 2).to_device(device)?;
            let tensors = [&gates, &gates, &x].map(ValueRef::Tensor);
            let args = [&tensors[..], &[ValueRef::None, ValueRef::None]].concat();
            first(dispatcher().call("aten::_thnn_fused_gru_cell", &args)?)
        }
        Group::Dropout => {
            let numbers = [ValueRef::Int(1 << 31), 2.0.into(), 5.into(), 0.into()];
            let args = [&[ValueRef::Tensor(&x)][..], &numbers].concat();
            first(dispatcher().call("keyfold::dropout_threshold", &args)?)
        }
        other => unreachable!("no operator needs {other:?} yet"),
    }
}

/// Returns the first of several results.
fn first(results: Value) -> Result<Tensor, Error> {
    match results {
        Value::Tuple(results) => results.into_iter().next().unwrap_or(Value::None).into_tensor(),
        other => other.into_tensor(),
    }
}

/// The fallbacks that the observer was called with.
static TOLD: Mutex<Vec<Fallback>> = Mutex::new(Vec::new());

#[test]
fn an_operation_that_is_not_offered_runs_elsewhere_only_where_that_was_allowed() {
    observe_fallbacks(|fallback| TOLD.lock().unwrap().push(fallback.clone()));
    let others = [
        Group::Linear,
        Group::Convolution,
        Group::Attention,
        Group::Recurrent,
        Group::Optim,
        Group::Dropout,
    ];
    for group in Group::ALL.into_iter().take(7).chain(others) {
        let toy = Toy::without(Some(group));
        let device = toy.device(1);
        let words = ["isn't supported by backend 'delayed': it ", "kf.allow_fallback()"];
        let before = toy.memory.counts().of(Call::Download);
        refused(needing(group, device), ErrorKind::NotSupported, &words);
        assert_eq!(toy.memory.counts().of(Call::Download), before, "nothing moved");
        allow_fallback(toy.kind(), Some(DeviceType::CPU)).unwrap();
        if group == Group::Random {
            // Random numbers are never drawn on another device.
            refused(needing(group, device), ErrorKind::NotSupported, &words);
            allow_fallback(toy.kind(), None).unwrap();
            continue;
        }
        let found = needing(group, device).unwrap();
        allow_fallback(toy.kind(), None).unwrap();
        assert_eq!(found.device(), device, "{group:?}");
        let expected = needing(group, Device::CPU).unwrap();
        assert_eq!(seen(&found).unwrap(), seen(&expected).unwrap(), "{group:?}");
        let told: Vec<Fallback> = TOLD.lock().unwrap().drain(..).collect();
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!((told[0].from, told[0].to), (toy.kind(), DeviceType::CPU));
        assert!(fallbacks().contains(&told[0]));
        refused(needing(group, device), ErrorKind::NotSupported, &words);
    }
}

#[test]
fn a_second_backend_is_handed_back_and_the_first_one_named() {
    let toy = Toy::new();
    let second = Delayed::over(Arc::new(HostBackend), toy.memory.clone());
    let second: Arc<dyn keyfold::backend::GpuBackend> = Arc::new(second);
    let refused = register(toy.kind(), second.clone()).unwrap_err();
    assert!(Arc::ptr_eq(&refused.backend, &second));
    assert_eq!(refused.error.kind(), ErrorKind::Registration);
    assert!(refused.error.message().contains("has backend 'delayed' already"), "{}", refused.error);
    assert!(needing(Group::Linalg, toy.device(0)).is_ok());
}

#[test]
fn tensors_outlive_their_backend_and_are_not_another_ones() {
    let toy = Toy::new();
    let x = data(&[3], DType::F32, 1).to_device(toy.device(1)).unwrap();
    let sum = on("aten::add", &[&x, &x]).unwrap();
    toy.registration.remove().unwrap();
    assert!(toy.registration.remove().is_none());
    // Operations queued before run, and their results can be read.
    assert_eq!(sum.to_device(Device::CPU).unwrap().to_vec::<f32>().unwrap()[0], sum_of_first(&x));
    let copy = sum.copy().unwrap();
    assert_eq!(seen(&copy).unwrap(), seen(&sum).unwrap());
    let name = toy.kind().to_string().to_uppercase();
    let words = ["aten::add", &name, "was removed", ".cpu()"];
    refused(on("aten::add", &[&x, &x]), ErrorKind::MissingKernel, &words);
    let other = keyfold::backend::delayed::DelayedMemory::new(toy.kind(), 2, 1);
    let backend = Arc::new(Delayed::over(Arc::new(HostBackend), other.clone()));
    let registration = register(toy.kind(), backend).unwrap();
    refused(on("aten::add", &[&x, &x]), ErrorKind::Device, &["aten::add", "'self'", "was removed"]);
    let fresh = data(&[3], DType::F32, 1).to_device(toy.device(1)).unwrap();
    assert_eq!(seen(&on("aten::add", &[&fresh, &fresh]).unwrap()).unwrap(), seen(&sum).unwrap());
    refused(on("aten::add", &[&fresh, &x]), ErrorKind::Device, &["'other'", "was removed"]);
    registration.remove().unwrap();
    drop((x, sum, copy, fresh));
    toy.memory.drain().unwrap();
    other.drain().unwrap();
    assert_eq!((toy.memory.live(), other.live()), (0, 0));
}

fn sum_of_first(x: &Tensor) -> f32 {
    2.0 * x.to_device(Device::CPU).unwrap().to_vec::<f32>().unwrap()[0]
}

#[test]
fn a_position_out_of_range_is_told_when_the_result_is_read_or_the_device_synchronized() {
    let toy = Toy::new();
    let device = toy.device(1);
    let x = data(&[3, 3], DType::F32, 1).to_device(device).unwrap();
    let take = || {
        let at = Tensor::from_slice(&[0_i64, 7], &[2]).unwrap().to_device(device).unwrap();
        let at = Value::List(vec![Value::Tensor(at)]);
        call("aten::index.Tensor", &borrowed(&[Value::Tensor(x.clone()), at])).unwrap()
    };
    let words = ["index 7 is out of range for dimension 0 of size 3"];
    let picked = take();
    refused(toy.memory.synchronize(device), ErrorKind::Index, &words);
    toy.memory.synchronize(device).unwrap();
    // The faulty result's dependents report the fault, too.
    let sum = on("aten::sum", &[&picked]).unwrap();
    refused(seen(&sum), ErrorKind::Index, &words);
    refused(seen(&take()), ErrorKind::Index, &words);
    assert!(seen(&x).is_ok());
}

#[test]
fn each_call_that_fails_is_told_and_leaves_the_device_as_it_was() {
    let toy = Toy::new();
    let device = toy.device(1);
    let x = data(&[3, 3], DType::F32, 1).to_device(device).unwrap();
    toy.memory.synchronize(device).unwrap();
    let live = toy.memory.live();
    let work = || {
        let y = data(&[3, 3], DType::F32, 2).to_device(device)?;
        let sum = on("aten::add", &[&x, &y])?.copy()?;
        let moved = sum.to_device(toy.device(0))?;
        call("aten::fill_.Scalar", &[(&y).into(), 1.into()])?;
        let all = on("aten::add", &[&sum, &y])?;
        toy.memory.synchronize(device)?;
        seen(&moved)?;
        seen(&all)
    };
    let expected = work().unwrap();
    for which in Call::ALL {
        let mut failures = 0;
        for nth in 1.. {
            toy.memory.fail_at(Some(which), nth);
            let done = work();
            toy.memory.fail_at(None, 0);
            let end = toy.memory.drain();
            let Some(error) = done.err().or(end.err()) else { break };
            let text = format!("injected: {which} number");
            assert!(error.message().contains(&text), "{error}");
            assert_eq!(error.kind() == ErrorKind::Memory, which == Call::Allocate);
            assert_eq!(toy.memory.live(), live, "{which} number {nth} leaks");
            failures += 1;
        }
        assert!(failures > 0, "{which} was never called");
        assert_eq!(work().unwrap(), expected);
    }
}
