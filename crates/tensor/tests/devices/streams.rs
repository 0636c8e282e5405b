use keyfold_backend::delayed::{Call, Mistake};
use keyfold_core::{DType, Device, ErrorKind, Scalar};
use keyfold_tensor::Tensor;
use keyfold_tensor::device::{
    Event, Memory, StreamId, current_stream, memory_of, set_current_stream,
};

use crate::Toy;

const SECOND: StreamId = StreamId::new(1);

fn full(value: i64, device: Device) -> Tensor {
    Tensor::full(&[3], Scalar::Int(value), DType::I64, device).unwrap()
}

#[test]
fn a_stream_belongs_to_a_thread_and_a_device() {
    let toy = Toy::new();
    let (first, other) = (toy.device(0), toy.device(1));
    assert_eq!(current_stream(first), StreamId::DEFAULT);
    assert_eq!(set_current_stream(first, SECOND).unwrap(), StreamId::DEFAULT);
    assert_eq!((current_stream(first), current_stream(other)), (SECOND, StreamId::DEFAULT));
    let elsewhere = std::thread::spawn(move || current_stream(first)).join().unwrap();
    assert_eq!(elsewhere, StreamId::DEFAULT);
    assert_eq!(set_current_stream(first, StreamId::new(2)).unwrap(), SECOND);
    assert_eq!(set_current_stream(first, StreamId::DEFAULT).unwrap(), StreamId::new(2));
    assert_eq!(current_stream(first), StreamId::DEFAULT);
    let words = ["toy:0 has 3 streams; there is no stream 3"];
    toy.refuses(set_current_stream(first, StreamId::new(3)), ErrorKind::Device, &words);
    toy.refuses(set_current_stream(Device::CPU, SECOND), ErrorKind::Device, &["cpu has 1 stream;"]);
    toy.refuses(set_current_stream(Device::cuda(0), SECOND), ErrorKind::Device, &["cuda:0"]);
}

#[test]
fn events_order_streams_and_tell_the_time() {
    let toy = Toy::new();
    let (memory, device) = (&toy.memory, toy.device(0));
    let start = memory.record(device, StreamId::DEFAULT).unwrap();
    let x = full(7, device);
    let made = memory.record(device, StreamId::DEFAULT).unwrap();
    assert!(!memory.is_done(&made).unwrap(), "nobody waited for it");

    set_current_stream(device, SECOND).unwrap();
    let unordered = x.copy().unwrap();
    // The first stream hasn't run yet, and nothing orders the second one after it.
    assert_ne!(unordered.to_vec::<i64>().unwrap(), [7; 3]);
    memory.wait(device, SECOND, &made).unwrap();
    assert!(!memory.is_done(&made).unwrap(), "the host doesn't wait");
    assert_eq!(x.copy().unwrap().to_vec::<i64>().unwrap(), [7; 3]);
    assert!(memory.is_done(&made).unwrap());
    set_current_stream(device, StreamId::DEFAULT).unwrap();

    let forwards = memory.elapsed(&start, &made).unwrap();
    assert_eq!(memory.elapsed(&made, &start).unwrap(), -forwards);
    assert!(forwards >= 0);
    let host = memory_of(Device::CPU).unwrap();
    let now = host.record(Device::CPU, StreamId::DEFAULT).unwrap();
    assert!(host.is_done(&now).unwrap());
    assert_eq!(host.elapsed(&now, &now).unwrap(), 0);
    host.wait(Device::CPU, StreamId::DEFAULT, &now).unwrap();
    let words = ["recorded on toy:0"];
    toy.refuses(host.wait(Device::CPU, StreamId::DEFAULT, &start), ErrorKind::Device, &words);
    toy.refuses(memory.is_done(&now), ErrorKind::Device, &["recorded on cpu"]);
    assert_eq!(format!("{:?}", Event::new(device, ())), format!("Event(device={device})"));
}

#[test]
fn a_copy_to_another_device_comes_behind_the_sources_work_and_before_what_overwrites_it() {
    let toy = Toy::new();
    let x = full(1, toy.device(0));
    set_current_stream(toy.device(1), SECOND).unwrap();
    let copy = x.to_device(toy.device(1)).unwrap();
    // SAFETY: nothing else accesses the memory.
    unsafe { x.copy_from(&full(2, toy.device(0))) }.unwrap();
    assert_eq!(x.to_vec::<i64>().unwrap(), [2; 3]);
    assert_eq!(copy.to_vec::<i64>().unwrap(), [1; 3]);
    set_current_stream(toy.device(1), StreamId::DEFAULT).unwrap();
    assert_eq!(toy.memory.counts().of(Call::Upload), 0);
    assert_eq!(toy.memory.counts().of(Call::Download), 2);
}

#[test]
fn synchronize_waits_for_every_stream() {
    let toy = Toy::new();
    let device = toy.device(0);
    let events = [0, 1, 2].map(|number| {
        set_current_stream(device, StreamId::new(number)).unwrap();
        let x = full(3, device);
        let event = toy.memory.record(device, StreamId::new(number)).unwrap();
        drop(x);
        event
    });
    set_current_stream(device, StreamId::DEFAULT).unwrap();
    // Dropped tensors' memory is in use until the queued operations have run.
    assert_eq!(toy.memory.live(), 3);
    toy.memory.synchronize(device).unwrap();
    assert!(events.iter().all(|event| toy.memory.is_done(event).unwrap()));
    assert_eq!(toy.memory.live(), 0);
}

#[test]
fn the_toy_shows_an_early_read() {
    let toy = Toy::new();
    let x = full(5, toy.device(0));
    toy.memory.plant(Mistake::ReadsEarly);
    assert_ne!(x.to_vec::<i64>().unwrap(), [5; 3]);
    toy.memory.plant(Mistake::None);
    assert_eq!(x.to_vec::<i64>().unwrap(), [5; 3]);
}
