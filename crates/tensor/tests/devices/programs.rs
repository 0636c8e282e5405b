//! Random programs on a toy device equal those on the CPU, also if calls fail, and differ when a
//! fault is planted.

use std::sync::LazyLock;

use keyfold_backend::delayed::{Call, DelayedMemory, Mistake};
use keyfold_core::{DType, Device, ErrorKind, Result, Scalar};
use keyfold_tensor::device::{Memory, StreamId, current_stream, set_current_stream};
use keyfold_tensor::{HostBuffer, Tensor};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::{Toy, bytes};

/// One operation. Numbers select among the existing tensors and among their axes.
#[derive(Clone, Debug)]
enum Step {
    Zeros(Vec<usize>, DType),
    Full(Vec<usize>, DType, u8),
    Upload(Vec<usize>, DType, u8),
    Empty(Vec<usize>, usize),
    Copy(usize),
    CloneBuffer(usize),
    Contiguous(usize),
    Slice(usize, usize, i64, i64),
    Transpose(usize, usize, usize),
    Flip(usize, usize),
    Select(usize, usize, i64),
    Broadcast(usize, usize),
    Flatten(usize),
    CopyFrom(usize, usize),
    Move(usize),
    RoundTrip(usize),
    Read(usize),
    Element(usize),
    Drop(usize),
    Stream(u32),
    Synchronize,
}

fn step() -> impl Strategy<Value = Step> {
    let shape = || proptest::collection::vec(0_usize..4, 0..4);
    let dtype = || {
        prop_oneof![
            Just(DType::F32),
            Just(DType::I64),
            Just(DType::Bool),
            Just(DType::F16),
            Just(DType::C128)
        ]
    };
    let n = || 0_usize..64;
    prop_oneof![
        1 => (shape(), dtype()).prop_map(|(shape, dtype)| Step::Zeros(shape, dtype)),
        2 => (shape(), dtype(), any::<u8>()).prop_map(|(s, d, v)| Step::Full(s, d, v)),
        6 => (shape(), dtype(), any::<u8>()).prop_map(|(s, d, v)| Step::Upload(s, d, v)),
        1 => (shape(), n()).prop_map(|(shape, of)| Step::Empty(shape, of)),
        3 => n().prop_map(Step::Copy),
        1 => n().prop_map(Step::CloneBuffer),
        2 => n().prop_map(Step::Contiguous),
        3 => (n(), n(), -4_i64..4, prop_oneof![-2_i64..0, 1_i64..3])
            .prop_map(|(of, axis, start, step)| Step::Slice(of, axis, start, step)),
        2 => (n(), n(), n()).prop_map(|(of, a, b)| Step::Transpose(of, a, b)),
        2 => (n(), n()).prop_map(|(of, axis)| Step::Flip(of, axis)),
        1 => (n(), n(), 0_i64..4).prop_map(|(of, axis, at)| Step::Select(of, axis, at)),
        1 => (n(), 1_usize..4).prop_map(|(of, times)| Step::Broadcast(of, times)),
        1 => n().prop_map(Step::Flatten),
        6 => (n(), n()).prop_map(|(to, from)| Step::CopyFrom(to, from)),
        2 => n().prop_map(Step::Move),
        1 => n().prop_map(Step::RoundTrip),
        2 => n().prop_map(Step::Read),
        1 => n().prop_map(Step::Element),
        4 => n().prop_map(Step::Drop),
        2 => (0_u32..3).prop_map(Step::Stream),
        1 => Just(Step::Synchronize),
    ]
}

fn programs() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(step(), 1..40)
}

/// The content that a read returned, a shape and bytes, or the kind of error.
type Seen = std::result::Result<(Vec<usize>, Vec<u8>), ErrorKind>;

/// The target of a program: the CPU, or the devices of a toy.
struct Machine<'a> {
    toy: Option<&'a DelayedMemory>,
    /// Each tensor with the index of its device; on the CPU, the index it would have.
    tensors: Vec<(Tensor, u8)>,
    seen: Vec<Seen>,
    /// The uploads and downloads that the program requested.
    asked_for: [usize; 2],
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        if let Some(toy) = self.toy {
            for index in 0..2 {
                let _ = set_current_stream(toy.device(index), StreamId::DEFAULT);
            }
        }
    }
}

fn data(shape: &[usize], dtype: DType, seed: u8) -> Result<Tensor> {
    let numel: usize = shape.iter().product();
    let value = |i: usize| (i as u8).wrapping_mul(37).wrapping_add(seed);
    let bytes: Vec<u8> = match dtype {
        DType::Bool => (0..numel).map(|i| value(i) & 1).collect(),
        _ => (0..numel * dtype.size()).map(value).collect(),
    };
    let buffer = keyfold_tensor::BufferHandle::new(
        std::sync::Arc::new(HostBuffer::copy_of(&bytes)?),
        dtype,
    )?;
    let strides = keyfold_core::layout::contiguous_strides(shape);
    Tensor::from_parts(buffer, keyfold_core::Shape::new(shape)?, strides, 0)
}

impl Machine<'_> {
    fn new(toy: Option<&DelayedMemory>) -> Machine<'_> {
        Machine { toy, tensors: Vec::new(), seen: Vec::new(), asked_for: [0; 2] }
    }

    fn device(&self, index: u8) -> Device {
        self.toy.map_or(Device::CPU, |toy| toy.device(index))
    }

    fn tensor(&self, number: usize) -> Option<(&Tensor, u8)> {
        let (tensor, index) = self.tensors.get(number % self.tensors.len().max(1))?;
        Some((tensor, *index))
    }

    fn add(&mut self, tensor: Tensor, index: u8) {
        assert_eq!(tensor.device(), self.device(index), "a result is on another device");
        self.tensors.push((tensor, index));
    }

    /// Copies a tensor to a device; counts copies of bytes.
    fn bring(&mut self, tensor: &Tensor, device: Device) -> Result<Tensor> {
        if device == tensor.device() {
            return tensor.copy();
        }
        let (from_host, to_host) = (tensor.device() == Device::CPU, device == Device::CPU);
        self.asked_for[0] += usize::from(from_host && tensor.numel() > 0);
        self.asked_for[1] += usize::from(to_host && tensor.numel() > 0);
        tensor.to_device(device)
    }

    fn read(&mut self, number: usize) -> Result<()> {
        let Some((tensor, _)) = self.tensor(number) else { return Ok(()) };
        let tensor = tensor.clone();
        let host = self.bring(&tensor, Device::CPU)?;
        self.seen.push(Ok((tensor.shape().to_vec(), bytes(&host)?)));
        Ok(())
    }

    /// Records an expected error; other errors end the program.
    fn note(&mut self, result: Result<Tensor>, index: u8) -> Result<()> {
        match result {
            Ok(tensor) => self.add(tensor, index),
            Err(error) if error.message().starts_with("injected") => return Err(error),
            Err(error) => self.seen.push(Err(error.kind())),
        }
        Ok(())
    }

    fn run(&mut self, program: &[Step]) -> Result<()> {
        for (place, step) in program.iter().enumerate() {
            let index = (place % 2) as u8;
            self.step(step, index)?;
        }
        (0..self.tensors.len()).try_for_each(|number| self.read(number))
    }

    fn step(&mut self, step: &Step, index: u8) -> Result<()> {
        let device = self.device(index);
        let made = match step {
            Step::Zeros(shape, dtype) => Some((Tensor::zeros(shape, *dtype, device), index)),
            Step::Full(shape, dtype, value) => {
                let value = Scalar::Int(i64::from(*value));
                Some((Tensor::full(shape, value, *dtype, device), index))
            }
            Step::Upload(shape, dtype, seed) => {
                let host = data(shape, *dtype, *seed)?;
                Some((self.bring(&host, device), index))
            }
            Step::Empty(shape, of) => match self.tensor(*of) {
                // Read only after everything is written.
                Some((source, on)) => {
                    let target = Tensor::empty(shape, source.dtype(), self.device(on))?;
                    // SAFETY: the tensor isn't shared.
                    let written = unsafe { target.copy_from(source) };
                    Some((written.map(|()| target), on))
                }
                None => None,
            },
            Step::CopyFrom(to, from) => match (self.tensor(*to), self.tensor(*from)) {
                (Some((to, on)), Some((from, other))) if on == other => {
                    // SAFETY: the program is one thread, which orders its streams.
                    match unsafe { to.copy_from(from) } {
                        Ok(()) => None,
                        Err(error) => Some((Err(error), on)),
                    }
                }
                _ => None,
            },
            Step::Move(of) => match self.tensor(*of) {
                Some((tensor, on)) => {
                    let tensor = tensor.clone();
                    let target = self.device(1 - on);
                    Some((self.bring(&tensor, target), 1 - on))
                }
                None => None,
            },
            Step::RoundTrip(of) => match self.tensor(*of) {
                Some((tensor, on)) => {
                    let tensor = tensor.clone();
                    let host = self.bring(&tensor, Device::CPU)?;
                    Some((self.bring(&host, self.device(on)), on))
                }
                None => None,
            },
            Step::Read(of) => {
                self.read(*of)?;
                None
            }
            Step::Element(of) => {
                if let Some((tensor, _)) = self.tensor(*of) {
                    let first = vec![0; tensor.ndim()];
                    let (found, on_toy) = (tensor.get_scalar(&first), self.toy.is_some());
                    match found {
                        Err(error) => return self.note(Err(error), index),
                        Ok(scalar) => {
                            self.asked_for[1] += usize::from(on_toy);
                            let text = format!("{scalar:?}").into_bytes();
                            self.seen.push(Ok((Vec::new(), text)));
                        }
                    }
                }
                None
            }
            Step::Drop(of) => {
                if !self.tensors.is_empty() {
                    self.tensors.swap_remove(of % self.tensors.len());
                }
                None
            }
            Step::Stream(number) => {
                self.stream(StreamId::new(*number))?;
                None
            }
            Step::Synchronize => {
                if let Some(toy) = self.toy {
                    toy.synchronize(device)?;
                }
                None
            }
            view => self.view(view),
        };
        made.map_or(Ok(()), |(result, index)| self.note(result, index))
    }

    /// Runs a step that makes a view of another tensor.
    fn view(&self, step: &Step) -> Option<(Result<Tensor>, u8)> {
        let of = match step {
            Step::Copy(of) | Step::CloneBuffer(of) | Step::Contiguous(of) | Step::Flatten(of) => of,
            Step::Slice(of, ..) | Step::Transpose(of, ..) => of,
            Step::Flip(of, _) | Step::Select(of, ..) | Step::Broadcast(of, _) => of,
            _ => return None,
        };
        let (x, index) = self.tensor(*of)?;
        let axis = |number: &usize| (number % x.ndim().max(1)) as i64;
        let made = match step {
            Step::Copy(_) => x.copy(),
            Step::CloneBuffer(_) => x.buffer().clone_buffer().and_then(|buffer| {
                Tensor::from_parts(buffer, x.shape().clone(), x.strides().clone(), x.offset())
            }),
            Step::Contiguous(_) => x.contiguous(),
            Step::Flatten(_) => x.reshape(&[-1]),
            Step::Slice(_, a, start, step) => x.slice(axis(a), Some(*start), None, *step),
            Step::Transpose(_, a, b) => x.transpose(axis(a), axis(b)),
            Step::Flip(_, a) => x.flip(&[axis(a)]),
            Step::Select(_, a, at) => x.select(axis(a), *at),
            Step::Broadcast(_, times) => x.broadcast_to(&[&[*times], &x.shape()[..]].concat()),
            _ => return None,
        };
        Some((made, index))
    }

    /// Continues on another stream, ordered after the previous one.
    fn stream(&self, stream: StreamId) -> Result<()> {
        let Some(toy) = self.toy else { return Ok(()) };
        for index in 0..2 {
            let device = toy.device(index);
            let event = toy.record(device, current_stream(device))?;
            toy.wait(device, stream, &event)?;
            set_current_stream(device, stream)?;
        }
        Ok(())
    }
}

/// Runs a program on the CPU and on the toy, and compares.
fn compare(toy: &DelayedMemory, program: &[Step]) -> Result<(), String> {
    let mut host = Machine::new(None);
    host.run(program).map_err(|error| format!("on the CPU: {error}"))?;
    let transfers = || {
        let counts = toy.counts();
        [counts.of(Call::Upload), counts.of(Call::Download)]
    };
    let before = transfers();
    let mut device = Machine::new(Some(toy));
    let done = device.run(program);
    let (seen, asked_for) = (std::mem::take(&mut device.seen), device.asked_for);
    drop(device);
    toy.drain().unwrap();
    if toy.live() != 0 {
        return Err(format!("{} blocks are in use at the end", toy.live()));
    }
    done.map_err(|error| error.to_string())?;
    if seen != host.seen {
        return Err(format!("on the CPU {:?}, on the toy {seen:?}", host.seen));
    }
    let after = transfers();
    let made = [after[0] - before[0], after[1] - before[1]];
    if made != asked_for {
        return Err(format!("{asked_for:?} uploads and downloads asked for, {made:?} made"));
    }
    Ok(())
}

proptest! {
    #![proptest_config(Config::with_cases(600))]

    #[test]
    fn random_programs_on_the_toy_equal_the_cpus(program in programs()) {
        static TOY: LazyLock<Toy> = LazyLock::new(Toy::new);
        prop_assert_eq!(compare(&TOY.memory, &program), Ok(()));
    }

    #[test]
    fn an_operation_that_fails_late_is_told_to_whoever_waits_and_leaks_nothing(
        program in programs(), nth in 1_usize..12,
    ) {
        static TOY: LazyLock<Toy> = LazyLock::new(Toy::new);
        let toy = &TOY.memory;
        toy.fail_at(Some(Call::Run), nth);
        let mut machine = Machine::new(Some(toy));
        let done = machine.run(&program);
        toy.fail_at(None, 0);
        let seen = std::mem::take(&mut machine.seen);
        drop(machine);
        let end = toy.drain();
        prop_assert_eq!(toy.live(), 0);
        for error in [done.err(), end.err()].into_iter().flatten() {
            prop_assert!(error.message().starts_with("injected: run"), "{}", error);
            prop_assert_eq!(error.kind(), ErrorKind::KernelFailed);
        }
        // No content of a failed operation was taken for a result.
        let mut host = Machine::new(None);
        host.run(&program).unwrap();
        prop_assert!(host.seen.starts_with(&seen));
        prop_assert_eq!(compare(toy, &program), Ok(()));
    }

    #[test]
    fn a_call_that_fails_is_a_typed_error_and_leaks_nothing(
        program in programs(), nth in 1_usize..40,
    ) {
        static TOY: LazyLock<Toy> = LazyLock::new(Toy::new);
        let toy = &TOY.memory;
        toy.fail_at(None, nth);
        let mut machine = Machine::new(Some(toy));
        let done = machine.run(&program);
        toy.fail_at(None, 0);
        let seen = std::mem::take(&mut machine.seen);
        drop(machine);
        toy.drain().unwrap();
        prop_assert_eq!(toy.live(), 0);
        if let Err(error) = &done {
            prop_assert!(error.message().starts_with("injected"), "{}", error);
            let kind = if error.message().contains("allocate") {
                ErrorKind::Memory
            } else {
                ErrorKind::KernelFailed
            };
            prop_assert_eq!(error.kind(), kind);
        }
        // Content read before is right, and the toy works afterwards.
        let mut host = Machine::new(None);
        host.run(&program).unwrap();
        prop_assert!(host.seen.starts_with(&seen));
        prop_assert_eq!(compare(toy, &program), Ok(()));
    }
}

/// Returns whether random programs find the fault.
fn is_found(plant: Mistake) -> bool {
    let toy = Toy::new();
    toy.memory.plant(plant);
    let config =
        Config { cases: 300, failure_persistence: None, max_shrink_iters: 0, ..Config::default() };
    let mut runner =
        TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let found = runner
        .run(&programs(), |program| compare(&toy.memory, &program).map_err(TestCaseError::fail));
    found.is_err()
}

#[test]
fn random_programs_find_every_planted_fault_and_none_where_there_is_none() {
    assert!(!is_found(Mistake::None));
    for plant in Mistake::ALL {
        assert!(is_found(plant), "{plant:?}");
    }
}

#[test]
fn threads_share_a_device() {
    let toy = Toy::new();
    std::thread::scope(|scope| {
        for seed in 0..4_u8 {
            let memory = &toy.memory;
            scope.spawn(move || {
                let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
                let config = Config { cases: 60, failure_persistence: None, ..Config::default() };
                let compared = TestRunner::new_with_rng(config, rng).run(&programs(), |program| {
                    let (mut host, mut device) = (Machine::new(None), Machine::new(Some(memory)));
                    host.run(&program).unwrap();
                    device.run(&program).unwrap();
                    prop_assert_eq!(&host.seen, &device.seen);
                    Ok(())
                });
                compared.unwrap();
            });
        }
    });
    toy.memory.drain().unwrap();
    assert_eq!(toy.memory.live(), 0);
}
