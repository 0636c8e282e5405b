//! A test case: an expression with inputs in some layout, its run, and the errors of its results.

use std::sync::Arc;

use keyfold_core::{DType, DTypeKind, Scalar, bf16, f16};
use keyfold_expr::fuse::{Fusion, Group, GroupInput, Limits, Member, Source};
use keyfold_expr::source::{self, Layout, Options, Target};
use keyfold_expr::{Expr, Lowered, Names};

use super::interpreter::{self, Data, Value};
use super::runner::{Launch, Memory, Outcome, Run, element_bytes};

/// The memory layout of the operands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum MemoryLayout {
    /// Contiguous and aligned.
    Contiguous,
    /// Contiguous, but too misaligned for vector loads.
    Misaligned,
    /// Transposed, broadcast, backwards.
    Strided,
    /// The strided kernel, in place of the first input.
    StridedOver,
    /// Contiguous, in place of the first input.
    Over,
}

/// The shape of every result.
pub(crate) const SHAPE: [u64; 3] = [4, 5, 11];
const COUNT: usize = 220;

/// An expression with dtypes and layout.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// The label of its errors in the list.
    pub(crate) label: String,
    pub(crate) text: String,
    pub(crate) inputs: Vec<(&'static str, DType)>,
    pub(crate) params: Vec<(&'static str, Scalar)>,
    pub(crate) out: Option<DType>,
    pub(crate) layout: MemoryLayout,
    /// Without infinities and extreme numbers.
    pub(crate) tame: bool,
}

/// Pseudo-random numbers with a fixed seed.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    /// SplitMix64.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn float(&mut self, tame: bool) -> f64 {
        const ODD: [f64; 16] = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.5,
            -2.5,
            3.5,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
            1e-45,
            -1e-40,
            3e38,
            5e-324,
            1.7e308,
            65520.0,
        ];
        match self.next() % 4 {
            0 if !tame => ODD[self.next() as usize % ODD.len()],
            0 => ODD[self.next() as usize % 7],
            1 if !tame => (self.unit() - 0.5) * 2_f64.powi((self.next() % 200) as i32 - 100),
            2 => (self.unit() - 0.5) * 200.0,
            _ => (self.unit() - 0.5) * 4.0,
        }
    }

    /// Returns a complex number whose square, reciprocal or exponential leaves the range of its
    /// parts, or whose modulus is near 1.
    fn extreme(&mut self, dtype: DType) -> Vec<u8> {
        let part = dtype.real();
        let (large, small, limit, near) = match part {
            DType::F32 => (3e38, 1e-39, 89.4, 1e-4),
            _ => (1.6e308, 1e-310, 710.1, 1e-7),
        };
        let pairs = [
            (large, 0.0),
            (large, large),
            (1.0, large),
            (small, 0.0),
            (small, small),
            (1.0, small),
            (1.0, near),
            (0.6, 0.8),
            (limit, 0.785),
            (-limit, 0.3),
            (0.785, limit),
        ];
        let (re, im) = pairs[self.next() as usize % pairs.len()];
        let (re, im) = if self.next().is_multiple_of(2) { (re, im) } else { (im, re) };
        let im = if self.next().is_multiple_of(2) { im } else { -im };
        [re, im].map(|value| element_bytes(Scalar::Float(value), part)).concat()
    }

    /// Returns one element.
    pub(crate) fn element(&mut self, dtype: DType, tame: bool) -> Vec<u8> {
        match dtype.kind() {
            DTypeKind::Bool => vec![(self.next() & 1) as u8],
            DTypeKind::UInt | DTypeKind::Int => {
                let bits = 8 * dtype.size() as u32;
                let word = self.next();
                let value = match self.next() % 4 {
                    _ if tame => word % 13,
                    0 => {
                        [0, 1, u64::MAX, 1 << (bits - 1), (1 << (bits - 1)) - 1][word as usize % 5]
                    }
                    1 => (word % 21).wrapping_sub(10),
                    _ => word,
                };
                value.to_le_bytes()[..dtype.size()].into()
            }
            DTypeKind::Float => element_bytes(Scalar::Float(self.float(tame)), dtype),
            DTypeKind::Complex => {
                let part = dtype.real();
                let mut one = || element_bytes(Scalar::Float((self.unit() - 0.5) * 6.0), part);
                [one(), one()].concat()
            }
        }
    }
}

/// The memory of an operand, and its strides in elements.
struct OperandMemory {
    memory: Memory,
    strides: [i64; 3],
    size: usize,
}

impl OperandMemory {
    fn bytes(&self, at: [i64; 3]) -> &[u8] {
        let offset: i64 = at.iter().zip(self.strides).map(|(at, stride)| at * stride).sum();
        let start = (self.memory.origin + offset * self.size as i64) as usize;
        &self.memory.bytes[start..start + self.size]
    }

    /// Returns an operand in some layout, filled with these elements.
    fn new(
        layout: MemoryLayout,
        operand: usize,
        dtype: DType,
        mut numbers: impl FnMut() -> Vec<u8>,
    ) -> Self {
        let size = dtype.size();
        let strides = match (layout, operand) {
            // The result: transposed, and the last dimension backwards.
            (MemoryLayout::Strided | MemoryLayout::StridedOver, 0) => [1, 44, -4],
            (MemoryLayout::Strided | MemoryLayout::StridedOver, 1) => [55, 11, 1],
            // A row, broadcast along the others.
            (MemoryLayout::Strided | MemoryLayout::StridedOver, 2) => [0, 11, 1],
            (MemoryLayout::Strided | MemoryLayout::StridedOver, _) => [5, 1, 20],
            _ => [55, 11, 1],
        };
        let origin = if strides[2] < 0 { 40 * size as i64 } else { 0 };
        let skew = match layout {
            MemoryLayout::Misaligned => dtype.align() as u64,
            _ => 0,
        };
        let bytes = (0..COUNT).flat_map(|_| numbers()).collect();
        OperandMemory { memory: Memory { bytes, skew, origin }, strides, size }
    }
}

/// Returns the indices of all elements, in order.
fn all_indices() -> impl Iterator<Item = [i64; 3]> {
    (0..COUNT as i64).map(|offset| [offset / 55, offset / 11 % 5, offset % 11])
}

/// A case prepared to run.
pub(crate) struct Ready {
    pub(crate) case: Case,
    pub(crate) lowered: Lowered,
    pub(crate) run: Run,
    out: OperandMemory,
    inputs: Vec<OperandMemory>,
}

/// Lowers a chain: expressions between `|>`, in which `v` is the result of the one before. The first
/// one reads all inputs.
fn lower_chain(case: &Case) -> keyfold_core::Result<(Expr, Lowered)> {
    let mut members: Vec<Member> = Vec::new();
    for text in case.text.split(" |> ") {
        let mut names = Names::new();
        let mut sources = Vec::new();
        let inputs = case.inputs.iter().enumerate().map(|(at, input)| (input.0, Some(at as u32)));
        for (name, input) in inputs.chain([("v", None)]) {
            if text.contains(name) {
                names = names.input(name);
                sources.push(match input {
                    Some(input) => Source::Input(input),
                    None => Source::Member(members.len() as u32 - 1),
                });
            }
        }
        members.push(Member::new(Arc::new(Expr::parse_with(text, &names)?), &sources));
    }
    let inputs = case.inputs.iter().map(|input| GroupInput { dtype: input.1, rank: None });
    let (expr, last) = (members[0].expr.as_ref().clone(), members.len() as u32 - 1);
    let group = Group { inputs: inputs.collect(), params: vec![], members, results: vec![last] };
    match group.fuse(&Limits::default())? {
        Fusion::Program(fused) => Ok((expr, fused.program(0))),
        cut => panic!("{cut:?}: {case:?}"),
    }
}

/// Lowers a case, or returns its refusal.
pub(crate) fn lower(case: &Case) -> keyfold_core::Result<(Expr, Lowered)> {
    if case.text.contains("|>") {
        return lower_chain(case);
    }
    let mut names = Names::new();
    for (name, _) in &case.inputs {
        names = names.tensor(*name);
    }
    for (name, _) in &case.params {
        names = names.param(*name);
    }
    let expr = Expr::parse_with(&case.text, &names)?;
    let dtypes: Vec<DType> = case.inputs.iter().map(|(_, dtype)| *dtype).collect();
    let kinds: Vec<DTypeKind> = case.params.iter().map(|(_, number)| number.kind()).collect();
    let lowered = Lowered::new(&expr, &dtypes, &kinds, case.out)?;
    Ok((expr, lowered))
}

impl Ready {
    /// Returns the kernel and its arguments; `number` determines its name and its data.
    pub(crate) fn new(case: Case, number: usize, target: Target) -> keyfold_core::Result<Ready> {
        let (expr, lowered) = lower(&case)?;
        let mut numbers = Numbers(number as u64);
        let mut options = Options::new(&expr);
        options.target = target;
        options.name = format!("kernel_{number}");
        let strided = matches!(case.layout, MemoryLayout::Strided | MemoryLayout::StridedOver);
        options.layout = if strided { Layout::Strided } else { Layout::Contiguous };
        options.dims = 3;
        if matches!(case.layout, MemoryLayout::Over | MemoryLayout::StridedOver) {
            options.in_place = Some(0);
        }
        let source = source::emit(&lowered, &options)?;
        let inputs: Vec<OperandMemory> = case
            .inputs
            .iter()
            .enumerate()
            .map(|(at, (_, dtype))| {
                // The replaced input has the result's layout.
                let operand = if options.in_place == Some(at as u32) { 0 } else { at + 1 };
                OperandMemory::new(case.layout, operand, *dtype, || match case.label.as_str() {
                    "extreme" => numbers.extreme(*dtype),
                    _ => numbers.element(*dtype, case.tame),
                })
            })
            .collect();
        let result = lowered.result();
        let out = match options.in_place {
            Some(_) => OperandMemory {
                memory: inputs[0].memory.clone(),
                strides: inputs[0].strides,
                size: inputs[0].size,
            },
            None => OperandMemory::new(case.layout, 0, result, || vec![0x55; result.size()]),
        };
        let walked: Vec<&[i64]> = std::iter::once(&out)
            .chain(
                inputs
                    .iter()
                    .enumerate()
                    .filter(|(at, _)| {
                        lowered.ranks()[*at].is_none() && options.in_place != Some(*at as u32)
                    })
                    .map(|(_, operand)| operand),
            )
            .map(|operand| operand.strides.as_slice())
            .collect();
        // Two parts, for two devices, with grids of different sizes.
        let middle = 97;
        let launches = vec![
            Launch { first: 0, count: middle, blocks: 2, threads: 8 },
            Launch { first: middle, count: COUNT as u64 - middle, blocks: 1, threads: 300 },
        ];
        let run = Run {
            strides: source::strides_words(&SHAPE, &walked, options.dims)?,
            shape: source::shape_words(&SHAPE, shape_dims(&source))?,
            // Ranked inputs are matrices of 20 x 11 or vectors of 220.
            ranked: lowered
                .ranks()
                .iter()
                .map(|rank| match rank {
                    Some(2) => source::ranked_words(&[20, 11], &[11, 1]),
                    _ => source::ranked_words(&[220], &[1]),
                })
                .collect(),
            out: out.memory.clone(),
            inputs: inputs.iter().map(|input| input.memory.clone()).collect(),
            params: case.params.iter().map(|(_, number)| *number).collect(),
            launches,
            source,
        };
        Ok(Ready { case, lowered, run, out, inputs })
    }

    /// Returns the elements of an input in order, or all elements of a ranked input, with the
    /// shape, for other evaluators.
    pub(crate) fn elements(&self, input: usize) -> (Vec<Value>, Vec<u64>) {
        let (operand, dtype) = (&self.inputs[input], self.case.inputs[input].1);
        let load = |bytes| interpreter::load(bytes, dtype);
        match self.lowered.ranks()[input] {
            None => (all_indices().map(|at| load(operand.bytes(at))).collect(), SHAPE.into()),
            Some(rank) => {
                let all = operand.memory.bytes.chunks(operand.size).map(load).collect();
                (all, self.run.ranked[input][..rank as usize].into())
            }
        }
    }

    /// Returns the elements of a run's result, in order.
    pub(crate) fn results(&self, outcome: &Outcome) -> Vec<Value> {
        let memory = Memory { bytes: outcome.out.clone(), ..self.out.memory.clone() };
        let out = OperandMemory { memory, ..self.out };
        all_indices().map(|at| interpreter::load(out.bytes(at), self.lowered.result())).collect()
    }

    /// Returns the greatest error of an element against the interpreter, in units in the last
    /// place, and a description of it. A wrong fault word is an infinite error.
    pub(crate) fn error(&self, outcome: &Outcome) -> (f64, String) {
        let mut fault = 0;
        let mut worst = (0.0, String::new());
        let results = self.results(outcome);
        let dtype = self.lowered.result();
        for ((at, got), offset) in all_indices().zip(results).zip(0..) {
            let element = Element { ready: self, offset, at };
            let (wanted, its_fault) = interpreter::evaluate(&self.lowered, &element);
            fault = fault.max(its_fault);
            let error = distance(got, wanted, dtype);
            if error > worst.0 {
                let given: Vec<Value> =
                    (0..self.inputs.len() as u32).map(|input| element.input(input)).collect();
                let text = format!("{:?}: {given:?} gives {got:?}, not {wanted:?}", self.case);
                worst = (error, text);
            }
        }
        if fault != outcome.fault {
            let text = format!("{:?}: fault {}, not {fault}", self.case, outcome.fault);
            worst = (f64::INFINITY, text);
        }
        worst
    }
}

fn shape_dims(source: &source::KernelSource) -> u32 {
    let dims = source.parameters.iter().find_map(|parameter| match parameter.argument {
        source::Argument::Shape(dims) => Some(dims),
        _ => None,
    });
    dims.unwrap_or(1)
}

struct Element<'a> {
    ready: &'a Ready,
    offset: i64,
    at: [i64; 3],
}

impl Data for Element<'_> {
    fn input(&self, input: u32) -> Value {
        let operand = &self.ready.inputs[input as usize];
        let dtype = self.ready.case.inputs[input as usize].1;
        let at =
            if self.ready.lowered.ranks()[input as usize].is_some() { [0; 3] } else { self.at };
        interpreter::load(operand.bytes(at), dtype)
    }
    fn param(&self, index: u32) -> Scalar {
        self.ready.case.params[index as usize].1
    }
    fn offset(&self) -> i64 {
        self.offset
    }
    fn coordinate(&self, dim: u32) -> i64 {
        self.at.iter().rev().nth(dim as usize).copied().unwrap_or(0)
    }
    fn at(&self, input: u32, indices: &[i64]) -> Option<Value> {
        let words = &self.ready.run.ranked[input as usize];
        let mut offset = 0;
        for (dim, index) in indices.iter().enumerate() {
            let size = words[dim] as i64;
            let index = if *index < 0 { index + size } else { *index };
            (0..size).contains(&index).then_some(())?;
            offset += index as usize * words[indices.len() + dim] as usize;
        }
        let dtype = self.ready.case.inputs[input as usize].1;
        let bytes = &self.ready.inputs[input as usize].memory.bytes;
        Some(interpreter::load(&bytes[offset * dtype.size()..][..dtype.size()], dtype))
    }
}

/// Returns the number's index among all numbers of its dtype: neighbours differ by one.
fn rank(value: f64, dtype: DType) -> i64 {
    let (bits, sign) = match dtype {
        DType::F16 => (i64::from(f16::from_f64(value).to_bits()), 1 << 15),
        DType::BF16 => (i64::from(bf16::from_f64(value).to_bits()), 1 << 15),
        DType::F32 => (i64::from((value as f32).to_bits()), 1 << 31),
        _ => (value.to_bits() as i64, i64::MIN),
    };
    if bits & sign != 0 { -(bits & !sign) } else { bits }
}

/// Returns the distance of two values in units in the last place of a dtype; of complex ones
/// relative to the modulus.
pub(crate) fn distance(got: Value, wanted: Value, dtype: DType) -> f64 {
    let float = |got: f64, wanted: f64| match (got.is_nan(), wanted.is_nan()) {
        (true, true) => 0.0,
        (false, false) if got == wanted && got.is_sign_negative() != wanted.is_sign_negative() => {
            f64::INFINITY
        }
        (false, false) => {
            (i128::from(rank(got, dtype)) - i128::from(rank(wanted, dtype))).abs() as f64
        }
        _ => f64::INFINITY,
    };
    match (got, wanted) {
        (Value::Single(got), Value::Single(wanted)) => float(got.into(), wanted.into()),
        (Value::Double(got), Value::Double(wanted)) => float(got, wanted),
        (Value::Complex(got), Value::Complex(wanted)) => {
            if got == wanted || (!got.is_finite() && !wanted.is_finite()) {
                return 0.0;
            }
            if !got.is_finite() || !wanted.is_finite() {
                return f64::INFINITY;
            }
            let (unit, least) = match dtype {
                DType::C64 => (f32::EPSILON.into(), f32::from_bits(1).into()),
                _ => (f64::EPSILON, f64::from_bits(1)),
            };
            // Where the modulus overflows.
            let scale = if wanted.norm().is_finite() { 1.0 } else { 0.25 };
            let size: f64 = (wanted * scale).norm() * unit;
            (got * scale - wanted * scale).norm() / size.max(least)
        }
        _ if got == wanted => 0.0,
        _ => f64::INFINITY,
    }
}
