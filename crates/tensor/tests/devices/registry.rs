use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use keyfold_backend::delayed::{DelayedMemory, Mistake};
use keyfold_core::{DType, Device, DeviceType, ErrorKind, Scalar};
use keyfold_tensor::Tensor;
use keyfold_tensor::device::{
    Content, Memory, MetaMemory, Part, StreamId, devices, memory, memory_of, register,
};

use crate::{Toy, bytes, refused};

fn empty(device: Device) -> keyfold_core::Result<Tensor> {
    Tensor::empty(&[2], DType::F32, device)
}

#[test]
fn the_host_and_meta_are_built_in() {
    for device in [Device::CPU, Device::META] {
        assert_eq!(memory_of(device).unwrap().device_count(), 1);
        assert!(devices().contains(&device));
        let refused = register(device.kind(), Arc::new(MetaMemory)).unwrap_err();
        assert_eq!(refused.error.kind(), ErrorKind::Registration);
        assert!(refused.error.message().contains("has a memory already"), "{}", refused.error);
    }
    assert!(memory(DeviceType::CUDA).is_none());
}

#[test]
fn a_second_memory_is_refused_by_the_first_ones_name_and_handed_back() {
    let toy = Toy::new();
    let kind = toy.device(0).kind();
    let second = DelayedMemory::new(kind, 7, 1);
    let refused = register(kind, Arc::new(second)).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Registration);
    let (message, name) = (refused.error.message(), &toy.name);
    let words = format!("{name} has a memory already: DelayedMemory({name})");
    assert!(message.contains(&words), "{message}");
    assert_eq!(refused.memory.device_count(), 7);
    assert_eq!(memory(kind).unwrap().device_count(), 2);
}

#[test]
fn a_device_that_is_not_there_is_an_error_with_those_that_are() {
    let toy = Toy::new();
    let known = ["toy has 2 devices: toy:0, toy:1; there is no toy:5"];
    toy.refuses(empty(toy.device(5)), ErrorKind::Device, &known);
    let x = Tensor::zeros(&[2], DType::F32, Device::CPU).unwrap();
    toy.refuses(x.to_device(toy.device(2)), ErrorKind::Device, &["there is no toy:2"]);
    for kind in [DeviceType::CPU, DeviceType::META] {
        let words = [format!("{kind} has 1 device: {kind}; there is no {kind}:1")];
        toy.refuses(empty(Device::new(kind, 1)), ErrorKind::Device, &[&words[0]]);
    }
    let words = ["no memory for cuda:3", "cpu, ", "toy:0, toy:1", "meta"];
    toy.refuses(empty(Device::cuda(3)), ErrorKind::Device, &words);
    let none = DeviceType::register("no_units").unwrap();
    let registration = register(none, Arc::new(DelayedMemory::new(none, 0, 1))).unwrap();
    toy.refuses(empty(Device::new(none, 0)), ErrorKind::Device, &["no_units has no devices here"]);
    assert!(registration.remove().is_some());
}

#[test]
fn tensors_outlive_the_registration_of_their_memory() {
    let toy = Toy::new();
    let x = Tensor::from_slice(&[1_i64, 2, 3, 4], &[2, 2]).unwrap();
    let there = x.to_device(toy.device(1)).unwrap();
    let removed = toy.registration.remove().unwrap();
    assert!(toy.registration.remove().is_none());
    toy.refuses(empty(toy.device(1)), ErrorKind::Device, &["no memory for toy:1"]);
    toy.refuses(x.to_device(toy.device(1)), ErrorKind::Device, &["no memory for toy:1"]);
    let copy = there.transpose(0, 1).unwrap().copy().unwrap();
    assert_eq!(copy.device(), toy.device(1));
    drop(there);
    assert_eq!(copy.to_vec::<i64>().unwrap(), [1, 3, 2, 4]);
    assert_eq!(copy.buffer().clone_buffer().unwrap().device(), toy.device(1));

    // Another memory of the same device doesn't access the first one's buffers.
    let other = DelayedMemory::new(toy.device(0).kind(), 2, 1);
    let registration = register(toy.device(0).kind(), Arc::new(other.clone())).unwrap();
    assert!(toy.registration.remove().is_none(), "it isn't this registration's");
    assert_eq!(copy.get_scalar(&[0, 1]).unwrap(), Scalar::Int(3));
    let fresh = Tensor::zeros(&[2, 2], DType::I64, toy.device(1)).unwrap();
    // SAFETY: nothing else accesses the memory.
    let mixed = unsafe { fresh.copy_from(&copy) };
    toy.refuses(mixed, ErrorKind::Device, &["toy:1 that was removed", ".cpu()"]);
    // The first one still copies its own.
    let moved = copy.transpose(0, 1).unwrap().to_device(Device::CPU).unwrap();
    assert_eq!(moved.to_vec::<i64>().unwrap(), [1, 2, 3, 4]);
    drop(fresh);
    other.drain().unwrap();
    assert_eq!(other.live(), 0);
    registration.remove();
    drop((copy, removed));
    toy.memory.drain().unwrap();
    assert_eq!(toy.memory.live(), 0);
}

#[test]
fn registering_and_allocating_at_the_same_time_is_an_error_or_right() {
    let toy = Toy::new();
    let (kind, device) = (toy.device(0).kind(), toy.device(0));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    match Tensor::full(&[2], Scalar::Int(6), DType::I64, device) {
                        Ok(tensor) => assert_eq!(tensor.to_vec::<i64>().unwrap(), [6, 6]),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Device, "{error}"),
                    }
                }
            });
        }
        for _ in 0..200 {
            toy.registration.remove();
            let again = register(kind, Arc::new(toy.memory.clone())).unwrap();
            assert!(register(kind, Arc::new(toy.memory.clone())).is_err());
            assert!(again.remove().is_some());
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(toy.memory.live(), 0);
}

#[test]
fn memory_that_was_not_asked_for_is_refused() {
    let toy = Toy::new();
    toy.memory.plant(Mistake::GivesHostMemory);
    let words = ["toy is at fault", "8 bytes on toy:0", "gave 8 bytes on cpu"];
    toy.refuses(empty(toy.device(0)), ErrorKind::Device, &words);
    toy.memory.plant(Mistake::GivesTooLittle);
    toy.refuses(empty(toy.device(0)), ErrorKind::Device, &["gave 7 bytes on toy:0"]);
    assert_eq!(toy.memory.live(), 0);
}

#[test]
fn parts_lie_inside_their_buffers() {
    let host = memory_of(Device::CPU).unwrap();
    let buffer = host.allocate(Device::CPU, 24, Content::Zeros).unwrap();
    let part = |offset, shape: &[usize], strides: &[isize], size| {
        Part::new(&*buffer, offset, shape, strides, size).map(|part| part.byte_len())
    };
    assert_eq!(part(0, &[3], &[1], 8).unwrap(), 24);
    assert_eq!(part(16, &[3], &[-1], 8).unwrap(), 24);
    assert_eq!(part(1, &[2, 2], &[8, 3], 1).unwrap(), 4);
    assert_eq!(part(99, &[0, 4], &[1, 1], 8).unwrap(), 0);
    let cases: [(usize, &[usize], &[isize], usize); 6] = [
        (1, &[3], &[1], 8),
        (8, &[3], &[-1], 8),
        (0, &[2], &[isize::MAX], 8),
        (usize::MAX, &[], &[], 1),
        (0, &[3], &[1, 1], 1),
        (0, &[1 << 40, 1 << 40], &[0, 0], 1),
    ];
    for (offset, shape, strides, size) in cases {
        refused(part(offset, shape, strides, size), ErrorKind::Shape, &[""]);
    }
    // The host's memory can't access another device's buffer.
    let toy = Toy::new();
    let foreign = toy.memory.allocate(toy.device(0), 8, Content::Zeros).unwrap();
    let part = Part::new(&*foreign, 0, &[8], &[1], 1).unwrap();
    let read = host.download(&part, &mut [0; 8], StreamId::DEFAULT);
    toy.refuses(read, ErrorKind::Device, &["can't reach"]);
}

#[test]
fn a_memory_refuses_parts_that_do_not_fit_and_streams_that_are_not_there() {
    let toy = Toy::new();
    for device in [Device::CPU, Device::META, toy.device(1)] {
        let memory = memory_of(device).unwrap();
        let buffer = memory.allocate(device, 16, Content::Zeros).unwrap();
        let part = |shape, strides, size| Part::new(&*buffer, 0, shape, strides, size).unwrap();
        let (dense, apart) = (part(&[4], &[1], 2), part(&[4], &[2], 2));
        let (none, stream) = (StreamId::DEFAULT, StreamId::new(9));
        // SAFETY: the buffer isn't shared.
        unsafe {
            let shape = ErrorKind::Shape;
            refused(memory.upload(&[0; 7], &dense, none), shape, &["7 bytes"]);
            refused(memory.upload(&[0; 8], &apart, none), shape, &["contiguous"]);
            refused(memory.download(&dense, &mut [0; 9], none), shape, &["9 bytes"]);
            refused(memory.copy_strided(&part(&[2], &[1], 2), &dense, none), shape, &["differ"]);
            refused(memory.copy_strided(&part(&[4], &[1], 1), &dense, none), shape, &["differ"]);
            refused(memory.fill(&dense, &[1], none), shape, &["1 bytes"]);
            let words = ["there is no stream 9"];
            refused(memory.upload(&[0; 8], &dense, stream), ErrorKind::Device, &words);
            refused(memory.fill(&dense, &[0; 2], stream), ErrorKind::Device, &words);
            refused(memory.record(device, stream), ErrorKind::Device, &words);
            memory.upload_pinned(&[3; 8], &dense, none).unwrap();
            memory.synchronize(device).unwrap();
        }
        assert!(!memory.pins_uploads());
        let read = |part: &Part<'_>| {
            let mut bytes = vec![0; part.byte_len()];
            memory.download(part, &mut bytes, none).map(|()| bytes)
        };
        if device != Device::META {
            assert_eq!(read(&dense).unwrap(), [3; 8]);
            // SAFETY: as above.
            unsafe { memory.fill(&apart, &[5, 6], none) }.unwrap();
            let whole = [5, 6, 3, 3, 5, 6, 3, 3, 5, 6, 0, 0, 5, 6, 0, 0];
            assert_eq!(read(&part(&[16], &[1], 1)).unwrap(), whole);
            // Elements of a size that no dtype has, in reverse.
            let target = Part::new(&*buffer, 13, &[2], &[-1], 3).unwrap();
            // SAFETY: as above.
            unsafe { memory.copy_strided(&part(&[2], &[1], 3), &target, none) }.unwrap();
            assert_eq!(read(&part(&[16], &[1], 1)).unwrap()[10..], [3, 5, 6, 5, 6, 3]);
        }
    }
}

#[test]
fn statistics_and_limits_are_a_devices_own() {
    let toy = Toy::new();
    let numbers =
        |index| memory_of(toy.device(index)).unwrap().statistics(toy.device(index)).unwrap();
    let a = Tensor::zeros(&[100], DType::U8, toy.device(0)).unwrap();
    let b = Tensor::zeros(&[50], DType::U8, toy.device(0)).unwrap();
    drop(a);
    let now = numbers(0);
    assert_eq!((now.in_use, now.cached, now.peak, now.allocations), (50, 100, 150, 2));
    assert_eq!(numbers(1).allocations, 0);
    toy.memory.set_limit(toy.device(0), Some(60)).unwrap();
    assert_eq!((numbers(0).cached, numbers(0).limit), (0, 60));
    assert_ne!(numbers(1).limit, 60);
    drop(b);
    assert_eq!((numbers(0).in_use, numbers(0).cached), (0, 50));
    // A recycled block has content that isn't mistaken for zeros.
    let again = Tensor::empty(&[50], DType::U8, toy.device(0)).unwrap();
    assert_eq!(bytes(&again).unwrap(), [0xdd; 50]);
    assert_eq!(numbers(0).cached, 0);
    toy.memory.set_limit(toy.device(0), None).unwrap();
    assert_eq!(numbers(0).limit, numbers(1).limit);
}

#[test]
fn the_hosts_numbers_are_its_caches() {
    let host = memory_of(Device::CPU).unwrap();
    let numbers = || host.statistics(Device::CPU).unwrap();
    let default = numbers().limit;
    // Under a sanitizer nothing is kept otherwise, nor counted.
    host.set_limit(Device::CPU, Some(1 << 24)).unwrap();
    let before = numbers().allocations;
    let large = Tensor::zeros(&[1 << 20], DType::U8, Device::CPU).unwrap();
    assert!(numbers().in_use >= 1 << 20);
    assert!(numbers().allocations > before);
    drop(large);
    host.set_limit(Device::CPU, Some(1 << 10)).unwrap();
    assert_eq!(numbers().limit, 1 << 10);
    assert!(numbers().cached <= 1 << 10);
    host.set_limit(Device::CPU, None).unwrap();
    assert_eq!(numbers().limit, default);
}
