//! Mutation tests: each deliberate mistake of a device or a kernel is found by a short test.

use keyfold::backend::delayed::{Call, Mistake};
use keyfold::{DType, Device, DispatchKey, ErrorKind, Kernel, Tensor, dispatcher};
use keyfold_tensor::device::{Memory, StreamId, set_current_stream};

use crate::{Toy, data, on, seen};

fn sum_of(x: &Tensor) -> Vec<u8> {
    seen(&on("aten::add", &[x, x]).unwrap()).unwrap().2
}

fn expected() -> (Tensor, Vec<u8>) {
    let x = data(&[4, 4], DType::F32, 1);
    let sum = sum_of(&x);
    (x, sum)
}

#[test]
fn a_result_that_is_read_early_is_poison() {
    let toy = Toy::new();
    let (x, sum) = expected();
    let there = x.to_device(toy.device(1)).unwrap();
    toy.memory.plant(Mistake::ReadsEarly);
    assert_ne!(sum_of(&there), sum);
    toy.memory.plant(Mistake::None);
    assert_eq!(sum_of(&there), sum);
}

#[test]
fn an_operand_that_is_freed_early_is_poison() {
    let toy = Toy::new();
    let (x, sum) = expected();
    for (mistake, is_right) in [(Mistake::FreesEarly, false), (Mistake::None, true)] {
        toy.memory.plant(mistake);
        let there = x.to_device(toy.device(1)).unwrap();
        toy.memory.synchronize(toy.device(1)).unwrap();
        let result = on("aten::add", &[&there, &there]).unwrap();
        drop(there);
        assert_eq!(seen(&result).unwrap().2 == sum, is_right, "{mistake:?}");
    }
}

#[test]
fn a_stream_that_does_not_wait_computes_with_poison() {
    let toy = Toy::new();
    let (x, sum) = expected();
    let (device, second) = (toy.device(1), StreamId::new(1));
    for (mistake, is_right) in [(Mistake::WaitsTooLittle, false), (Mistake::None, true)] {
        toy.memory.plant(mistake);
        let there = x.to_device(device).unwrap();
        let uploaded = toy.memory.record(device, StreamId::DEFAULT).unwrap();
        toy.memory.wait(device, second, &uploaded).unwrap();
        set_current_stream(device, second).unwrap();
        let found = sum_of(&there);
        set_current_stream(device, StreamId::DEFAULT).unwrap();
        assert_eq!(found == sum, is_right, "{mistake:?}");
    }
}

#[test]
fn copies_by_way_of_the_host_are_counted() {
    let toy = Toy::new();
    let (x, _) = expected();
    let there = x.to_device(toy.device(1)).unwrap();
    let downloads = || toy.memory.counts().of(Call::Download);
    there.copy().unwrap();
    assert_eq!(downloads(), 0);
    toy.memory.plant(Mistake::CopiesSilently);
    there.copy().unwrap();
    assert_eq!(downloads(), 1);
}

/// A faulty kernel that adds on the host: the numbers are right, with two transfers too many and a
/// wrong device index.
fn add_on_the_host(x: &Tensor) -> keyfold::Result<Tensor> {
    let host = x.to_device(Device::CPU)?;
    on("aten::add", &[&host, &host])?.to_device(Device::new(x.device().kind(), 0))
}

/// A faulty kernel that reads its argument's elements in the host's memory.
fn add_by_address(x: &Tensor) -> keyfold::Result<Tensor> {
    let doubled = x.as_slice::<f32>()?.iter().map(|x| x + x).collect::<Vec<f32>>();
    Tensor::from_vec(doubled, x.shape())
}

#[test]
fn a_kernel_that_computes_on_the_host_is_found_by_counts_by_its_results_device_and_by_an_error() {
    let toy = Toy::new();
    let (x, sum) = expected();
    let there = x.to_device(toy.device(1)).unwrap();
    let key = DispatchKey::from_device_type(toy.kind());
    let mut handles = Vec::new();
    for (name, kernel) in [
        ("on_the_host", Kernel::typed(add_on_the_host)),
        ("by_address", Kernel::typed(add_by_address)),
    ] {
        let name = format!("delayed_test::{name}");
        dispatcher().define(&format!("{name}(Tensor x) -> Tensor")).unwrap();
        handles.push(dispatcher().register(&name, key, kernel).unwrap());
    }
    let result = on("delayed_test::on_the_host", &[&there]).unwrap();
    assert_eq!(toy.memory.counts().of(Call::Download), 1);
    assert_ne!(result.device(), there.device());
    assert_eq!(seen(&result).unwrap().2, sum);
    let error = on("delayed_test::by_address", &[&there]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    assert!(error.message().contains(".cpu()"), "{error}");
    handles.into_iter().for_each(|handle| {
        handle.remove();
    });
}
