//! Random programs of operators, views, writes, indices and copies between devices. Results on the
//! device equal the CPU's, also if calls fail.

use std::sync::LazyLock;

use keyfold::backend::delayed::{Call, Mistake};
use keyfold::{DType, Device, ErrorKind, Tensor, Value, ValueRef};

type Result<T, E = keyfold::Error> = std::result::Result<T, E>;
use keyfold_tensor::device::random::{State, set_state};
use keyfold_tensor::device::{Memory, StreamId, current_stream, set_current_stream};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::{Toy, borrowed, call, data, moved, on, positions, seen};

/// The kind of a step, and three numbers that select its operands.
#[derive(Clone, Copy, Debug)]
struct Step {
    kind: Kind,
    a: usize,
    b: usize,
    n: i64,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Make,
    Random,
    Unary,
    Binary,
    Number,
    Reduce,
    Softmax,
    Matmul,
    Convert,
    Transpose,
    Slice,
    Reshape,
    Expand,
    Join,
    Write,
    Fill,
    WriteAt,
    Take,
    TakeMasked,
    Gather,
    Where,
    Move,
    Read,
    Drop,
    Stream,
}

const KINDS: [(u32, Kind); 25] = [
    (4, Kind::Make),
    (1, Kind::Random),
    (4, Kind::Unary),
    (6, Kind::Binary),
    (3, Kind::Number),
    (3, Kind::Reduce),
    (1, Kind::Softmax),
    (2, Kind::Matmul),
    (2, Kind::Convert),
    (3, Kind::Transpose),
    (3, Kind::Slice),
    (1, Kind::Reshape),
    (1, Kind::Expand),
    (1, Kind::Join),
    (4, Kind::Write),
    (1, Kind::Fill),
    (2, Kind::WriteAt),
    (2, Kind::Take),
    (1, Kind::TakeMasked),
    (1, Kind::Gather),
    (1, Kind::Where),
    (3, Kind::Move),
    (2, Kind::Read),
    (3, Kind::Drop),
    (2, Kind::Stream),
];

const UNARY: [&str; 8] = [
    "aten::neg",
    "aten::exp",
    "aten::tanh",
    "aten::gelu",
    "aten::relu",
    "aten::contiguous",
    "aten::logical_not",
    "aten::sqrt",
];
const BINARY: [&str; 6] =
    ["aten::add", "aten::sub", "aten::mul", "aten::div", "aten::maximum", "aten::lt"];
const REDUCE: [&str; 6] =
    ["aten::sum.dim", "aten::mean.dim", "aten::amax", "aten::argmin", "aten::any", "aten::all"];
const DTYPES: [DType; 4] = [DType::F32, DType::F64, DType::I64, DType::Bool];

fn programs() -> impl Strategy<Value = Vec<Step>> {
    let kinds = KINDS.map(|(weight, kind)| (weight, Just(kind).boxed()));
    let kind = proptest::strategy::Union::new_weighted(kinds.to_vec());
    let step = (kind, 0_usize..64, 0_usize..64, -3_i64..4);
    let step = step.prop_map(|(kind, a, b, n)| Step { kind, a, b, n });
    proptest::collection::vec(step, 1..50)
}

/// The content that a read returned, or the kind of a call's error.
type Seen = Result<(DType, Vec<usize>, Vec<u8>), ErrorKind>;

/// The target of a program: the CPU, or the devices of a toy.
struct Machine<'a> {
    toy: Option<&'a Toy>,
    /// Each tensor with the index of its device; on the CPU, the index it would have.
    tensors: Vec<(Tensor, u8)>,
    seen: Vec<Seen>,
    /// The tensors that the program uploaded and downloaded.
    asked_for: [usize; 2],
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        for device in (0..2).map(|index| self.device(index)).filter(|d| *d != Device::CPU) {
            let _ = set_current_stream(device, StreamId::DEFAULT);
        }
    }
}

impl<'a> Machine<'a> {
    fn new(toy: Option<&'a Toy>) -> Machine<'a> {
        Machine { toy, tensors: Vec::new(), seen: Vec::new(), asked_for: [0; 2] }
    }

    fn device(&self, index: u8) -> Device {
        self.toy.map_or(Device::CPU, |toy| toy.device(index))
    }

    fn pick(&self, number: usize) -> Option<(Tensor, u8)> {
        self.tensors.get(number % self.tensors.len().max(1)).cloned()
    }

    /// Another tensor on the same device.
    fn pick_beside(&self, number: usize, index: u8) -> Option<Tensor> {
        let beside: Vec<&Tensor> =
            self.tensors.iter().filter(|(_, at)| *at == index).map(|(x, _)| x).collect();
        beside.get(number % beside.len().max(1)).copied().cloned()
    }

    /// Copies a host tensor to a device.
    fn bring(&mut self, host: &Tensor, index: u8) -> Result<Tensor> {
        self.asked_for[0] += usize::from(self.toy.is_some() && host.numel() > 0);
        host.to_device(self.device(index))
    }

    fn read(&mut self, tensor: &Tensor) -> Result<()> {
        self.asked_for[1] += usize::from(self.toy.is_some() && tensor.numel() > 0);
        let seen = seen(tensor)?;
        self.seen.push(Ok(seen));
        Ok(())
    }

    fn run(&mut self, program: &[Step]) -> Result<()> {
        for index in 0..2 {
            set_state(State { device: self.device(index), seed: 1, offset: 0 })?;
        }
        for (place, step) in program.iter().enumerate() {
            match self.step(*step, (place % 2) as u8) {
                // On the CPU both devices share one generator, seeded for the first.
                Ok(None) => {}
                Ok(Some((tensor, index))) => {
                    assert_eq!(tensor.device(), self.device(index), "the result of {step:?}");
                    // Larger tensors only take time.
                    if tensor.numel() <= 400 {
                        self.tensors.push((tensor, index));
                    }
                }
                Err(error) if error.message().contains("injected") => return Err(error),
                // Random programs may combine operands that don't fit.
                Err(error) => self.seen.push(Err(error.kind())),
            }
        }
        let all = std::mem::take(&mut self.tensors);
        all.iter().try_for_each(|(tensor, _)| self.read(tensor))
    }

    fn step(&mut self, step: Step, fresh: u8) -> Result<Option<(Tensor, u8)>> {
        let Step { kind, a, b, n } = step;
        let shape = [[2, 3], [3, 3], [1, 3], [3, 0]][b % 4];
        match kind {
            Kind::Make => {
                let host = data(&shape, DTYPES[a % 4], b);
                return Ok(Some((self.bring(&host, fresh)?, fresh)));
            }
            Kind::Random => {
                // Random numbers are drawn on one device, since the CPU has one generator for both.
                let size = [shape[0] as i64, shape[1] as i64];
                let dtype = ValueRef::DType(DType::F64);
                let device = ValueRef::Device(self.device(0));
                let name = ["aten::rand", "aten::randn"][a % 2];
                return Ok(Some((call(name, &[ValueRef::Ints(&size), dtype, device])?, 0)));
            }
            Kind::Drop => {
                if !self.tensors.is_empty() {
                    self.tensors.swap_remove(a % self.tensors.len());
                }
                return Ok(None);
            }
            Kind::Stream => {
                self.go_on_on(StreamId::new((a % 3) as u32))?;
                return Ok(None);
            }
            _ => {}
        }
        let Some((x, index)) = self.pick(a) else { return Ok(None) };
        let y = self.pick_beside(b, index).unwrap_or_else(|| x.clone());
        // The CPU reports an index out of range at once, the device later.
        if matches!(kind, Kind::WriteAt | Kind::Take | Kind::Gather) && x.numel() == 0 {
            return Ok(None);
        }
        let axis = n.rem_euclid(x.ndim().max(1) as i64);
        let (self_, dim) = (ValueRef::Tensor(&x), ValueRef::Int(axis));
        let device = self.device(index);
        let made = match kind {
            Kind::Unary => on(UNARY[b % UNARY.len()], &[&x])?,
            Kind::Binary => on(BINARY[n.rem_euclid(6) as usize], &[&x, &y])?,
            Kind::Number => {
                let number = if b % 2 == 0 { ValueRef::Int(n) } else { ValueRef::Float(0.5) };
                call(&format!("{}.Scalar", BINARY[b % 4]), &[self_, number])?
            }
            Kind::Reduce => {
                let keep = ValueRef::Bool(n > 0);
                let name = REDUCE[b % REDUCE.len()];
                let dims = [axis];
                let over = if name == "aten::argmin" { dim } else { ValueRef::Ints(&dims) };
                call(name, &[self_, over, keep])?
            }
            Kind::Softmax => call("aten::softmax", &[self_, dim])?,
            Kind::Matmul => on("aten::matmul", &[&x, &y])?,
            Kind::Convert => call("aten::to", &[self_, ValueRef::DType(DTYPES[b % 4])])?,
            Kind::Transpose => {
                call("aten::transpose", &[self_, ValueRef::Int(0), ValueRef::Int(-1)])?
            }
            Kind::Slice => call("aten::slice.Tensor", &[self_, dim, ValueRef::Int(n.abs() % 2)])?,
            Kind::Reshape => call("aten::reshape", &[self_, ValueRef::Ints(&[-1])])?,
            Kind::Expand => {
                let sizes: Vec<i64> =
                    [2].into_iter().chain(x.shape().iter().map(|n| *n as i64)).collect();
                call("aten::expand", &[self_, ValueRef::Ints(&sizes)])?
            }
            Kind::Join => {
                let list = [x.clone(), y];
                let name = ["aten::cat", "aten::stack"][b % 2];
                call(name, &[ValueRef::Tensors(&list), dim])?
            }
            Kind::Write => return on("aten::copy_", &[&x, &y]).map(|_| None),
            Kind::Fill => return call("aten::fill_.Scalar", &[self_, n.into()]).map(|_| None),
            Kind::WriteAt => {
                let at = Value::List(vec![Value::Tensor(self.places(&[2], index, &x)?)]);
                let values = call("aten::to", &[ValueRef::Tensor(&y), ValueRef::DType(x.dtype())])?;
                let values = call("aten::select.int", &[(&values).into(), 0.into(), 0.into()])?;
                let args = [Value::Tensor(x), at, Value::Tensor(values), Value::Bool(n > 0)];
                return call("aten::index_put_", &borrowed(&args)).map(|_| None);
            }
            Kind::Take => {
                let at = Value::List(vec![Value::Tensor(self.places(&[2, 2], index, &x)?)]);
                call("aten::index.Tensor", &borrowed(&[Value::Tensor(x), at]))?
            }
            Kind::TakeMasked => {
                let mask = call("aten::gt.Scalar", &[self_, ValueRef::Int(0)])?;
                on("aten::masked_select", &[&x, &mask])?
            }
            Kind::Gather => {
                let at = self.places(&[1, 2], index, &x)?;
                call("aten::gather", &[self_, ValueRef::Int(0), (&at).into()])?
            }
            Kind::Where => {
                let condition = call("aten::to", &[self_, ValueRef::DType(DType::Bool)])?;
                on("aten::where", &[&condition, &x, &y])?
            }
            Kind::Move => {
                let target = [Value::Tensor(x), Value::Device(Device::CPU)];
                let target = [target[0].clone(), moved(&target[1], self.device(1 - index))?];
                let copy = call("aten::to.device", &borrowed(&target))?;
                return Ok(Some((copy, 1 - index)));
            }
            Kind::Read => return self.read(&x).map(|()| None),
            Kind::Make | Kind::Random | Kind::Drop | Kind::Stream => return Ok(None),
        };
        assert_eq!(made.device(), device, "the result of {step:?}");
        Ok(Some((made, index)))
    }

    /// Returns indices along the first dimension of a tensor, on its device.
    fn places(&mut self, shape: &[usize], index: u8, of: &Tensor) -> Result<Tensor> {
        let size = of.shape().first().copied().unwrap_or(1) as i64;
        let host = on("aten::remainder", &[&positions(shape), &Tensor::from_slice(&[size], &[])?])?;
        self.bring(&host, index)
    }

    /// Continues on another stream, ordered after the previous one.
    fn go_on_on(&self, stream: StreamId) -> Result<()> {
        let Some(toy) = self.toy else { return Ok(()) };
        for device in [toy.device(0), toy.device(1)] {
            let event = toy.memory.record(device, current_stream(device))?;
            toy.memory.wait(device, stream, &event)?;
            set_current_stream(device, stream)?;
        }
        Ok(())
    }
}

fn on_the_cpu(program: &[Step]) -> Result<Machine<'static>, String> {
    // Tests share the CPU's random numbers.
    let _alone = crate::random_numbers();
    let mut host = Machine::new(None);
    host.run(program).map_err(|error| format!("on the CPU: {error}"))?;
    Ok(host)
}

/// Runs a program on the CPU and on the toy, and compares.
fn compare(toy: &Toy, program: &[Step]) -> Result<(), String> {
    let host = on_the_cpu(program)?;
    let counts = toy.memory.counts();
    let transfers = || [counts.of(Call::Upload), counts.of(Call::Download)];
    let before = transfers();
    let mut device = Machine::new(Some(toy));
    let done = device.run(program);
    let (seen, asked_for) = (std::mem::take(&mut device.seen), device.asked_for);
    drop(device);
    let end = toy.memory.drain();
    if toy.memory.live() != 0 {
        return Err(format!("{} blocks are in use at the end", toy.memory.live()));
    }
    done.and(end).map_err(|error| error.to_string())?;
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

/// Runs a program in which one call fails, and compares earlier reads with the CPU's.
fn compare_failing(toy: &Toy, program: &[Step], call: Call, nth: usize) -> Result<(), String> {
    let host = on_the_cpu(program)?;
    toy.memory.fail_at(Some(call), nth);
    let mut device = Machine::new(Some(toy));
    let done = device.run(program);
    toy.memory.fail_at(None, 0);
    let seen = std::mem::take(&mut device.seen);
    drop(device);
    let end = toy.memory.drain();
    if toy.memory.live() != 0 {
        return Err(format!("{} blocks are in use at the end", toy.memory.live()));
    }
    if !host.seen.starts_with(&seen) {
        return Err(format!("on the CPU {:?}, on the toy {seen:?}", host.seen));
    }
    let is_whole = seen == host.seen;
    let errors: Vec<_> = [done.err(), end.err()].into_iter().flatten().collect();
    if errors.is_empty() && !is_whole {
        return Err("results are missing, and no error was told".to_owned());
    }
    match errors.iter().find(|error| !error.message().contains("injected")) {
        Some(other) => Err(format!("another error: {other}")),
        None => Ok(()),
    }
}

proptest! {
    #![proptest_config(Config::with_cases(500))]

    #[test]
    fn random_programs_on_the_device_equal_the_cpus(program in programs()) {
        static TOY: LazyLock<Toy> = LazyLock::new(Toy::new);
        prop_assert_eq!(compare(&TOY, &program), Ok(()));
    }

    #[test]
    fn a_call_that_fails_is_told_and_leaks_nothing(
        program in programs(), call in 0..Call::ALL.len(), nth in 1_usize..20,
    ) {
        static TOY: LazyLock<Toy> = LazyLock::new(Toy::new);
        prop_assert_eq!(compare_failing(&TOY, &program, Call::ALL[call], nth), Ok(()));
        prop_assert_eq!(compare(&TOY, &program), Ok(()));
    }
}

/// Returns whether random programs find a mistake.
fn is_found(mistake: Mistake) -> bool {
    let toy = Toy::new();
    toy.memory.plant(mistake);
    let config =
        Config { cases: 200, failure_persistence: None, max_shrink_iters: 0, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let found = TestRunner::new_with_rng(config, rng)
        .run(&programs(), |program| compare(&toy, &program).map_err(TestCaseError::fail));
    found.is_err()
}

#[test]
fn random_programs_find_every_planted_mistake_and_none_where_there_is_none() {
    assert!(!is_found(Mistake::None));
    for mistake in Mistake::ALL {
        assert!(is_found(mistake), "{mistake:?}");
    }
}
