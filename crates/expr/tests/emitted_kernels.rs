//! Emitted kernels in CUDA C and OpenCL C, compiled as C++ and run on the CPU, against an interpreter
//! of the steps.

#[path = "shim/cases.rs"]
#[allow(dead_code, reason = "two tests share it")]
mod cases;
#[path = "shim/interpreter.rs"]
#[allow(dead_code, reason = "two tests share it")]
mod interpreter;
#[path = "shim/lists.rs"]
#[allow(dead_code, reason = "two tests share it")]
mod lists;
#[path = "shim/runner.rs"]
#[allow(dead_code, reason = "two tests share it")]
mod runner;

use std::collections::{BTreeMap, BTreeSet};

use cases::{Case, MemoryLayout, Ready};
use keyfold_core::{DType, DTypeKind};
use keyfold_expr::source::{self, KernelSource, Layout, Options, Target};
use keyfold_expr::{Expr, Lowered, Names};
use lists::{EXACT, LAYOUTS, case};
use runner::{Launch, Memory, Run};

/// The language whose kernels of all cases run here; `keyfold-kit`'s test runs the other one's.
const CUDA: &[Target] = &[Target::CudaC];

/// Computes all cases that aren't refused, in these languages, and lists the worst error per label
/// and dtype; fails if one is above the result of `allowed`. Returns the number of kernels of each.
fn check(name: &str, targets: &[Target], cases: &[Case], allowed: impl Fn(&Case) -> f64) -> usize {
    let counts: BTreeSet<usize> =
        targets.iter().map(|target| check_target(name, cases, *target, &allowed)).collect();
    assert_eq!(counts.len(), 1, "{counts:?} kernels");
    counts.into_iter().sum()
}

fn check_target(
    name: &str,
    cases: &[Case],
    target: Target,
    allowed: impl Fn(&Case) -> f64,
) -> usize {
    let ready: Vec<Ready> = cases
        .iter()
        .cloned()
        .enumerate()
        .filter_map(|(number, mut case)| match Ready::new(case.clone(), number, target) {
            Ok(ready) => Some(ready),
            // An input of another dtype than the result's can't be replaced.
            Err(_)
                if case.layout == MemoryLayout::Over
                    || case.layout == MemoryLayout::StridedOver =>
            {
                case.layout = MemoryLayout::Contiguous;
                Ready::new(case, number, target).ok()
            }
            Err(_) => None,
        })
        .collect();
    let runs: Vec<_> = ready.iter().map(|ready| ready.run.clone()).collect();
    let outcomes = runner::run(name, &runs);
    let mut worst: BTreeMap<(String, &str), f64> = BTreeMap::new();
    let mut wrong = Vec::new();
    let (mut dtypes, mut layouts, mut texts) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (ready, outcome) in ready.iter().zip(&outcomes) {
        let (error, text) = ready.error(outcome);
        let limit = allowed(&ready.case);
        if error > limit {
            wrong.push(format!("{error} (at most {limit}): {text}"));
        }
        let dtype = ready.case.inputs.first().map_or("none", |(_, dtype)| dtype.name());
        let known = worst.entry((ready.case.label.clone(), dtype)).or_default();
        *known = known.max(error);
        texts.insert(ready.case.text.clone());
        dtypes.insert(dtype);
        layouts.insert(ready.case.layout);
    }
    let listed: Vec<String> = worst
        .iter()
        .filter(|(_, error)| **error > 0.0)
        .map(|((label, dtype), error)| format!("{label} {dtype} {error:.3}"))
        .collect();
    report(&format!(
        "{name}, {}: {} kernels of {} expressions, {} dtypes, {} layouts; errors in ulp, else 0: {}",
        target.name(),
        ready.len(),
        texts.len(),
        dtypes.len(),
        layouts.len(),
        listed.join(", ")
    ));
    assert!(wrong.is_empty(), "{} wrong: {}", wrong.len(), wrong[..wrong.len().min(12)].join("\n"));
    ready.len()
}

/// Prints a measurement, for `--nocapture`.
#[expect(clippy::print_stdout, reason = "numbers for whoever runs the test by hand")]
fn report(text: &str) {
    println!("{text}");
}

#[test]
fn unary_functions() {
    let count = check("unary", CUDA, &lists::unary(), |case| match case.inputs[0].1 {
        DType::C64 | DType::C128 if case.text == "-x" => 0.0,
        // num-complex's tanh cancels near the poles.
        DType::C128 if case.text == "tanh(x)" => 1024.0,
        DType::C64 | DType::C128 => 16.0,
        _ if EXACT.contains(&case.text.as_str()) => 0.0,
        _ => 2.0,
    });
    assert!(count > 400, "{count}");
}

#[test]
fn binary_functions() {
    let count = check("binary", CUDA, &lists::binary(), |case| match case.inputs[0].1 {
        DType::C64 | DType::C128 => 32.0,
        _ if case.text == "x ** y" => 2.0,
        _ => 0.0,
    });
    assert!(count > 450, "{count}");
}

#[test]
fn chains_whose_members_are_rounded() {
    let count = check("chains", CUDA, &lists::chains(), |case| match case.inputs[0].1 {
        DType::C64 | DType::C128 => 32.0,
        _ => 0.0,
    });
    assert!(count > 180, "{count}");
}

#[test]
fn conversions_between_all_dtypes() {
    let count = check("casts", CUDA, &lists::casts(), |_| 0.0);
    assert!(count > 350, "{count}");
}

#[test]
fn expressions_with_indices_parameters_and_reads() {
    let count = check("indices", &Target::ALL, &lists::index_cases(), |case| {
        match (case.label.as_str(), case.inputs[0].1) {
            // Sums cancel, which magnifies a function's error.
            ("formula", DType::F32 | DType::F64) => 64.0,
            ("formula", _) => 1.0,
            (_, DType::C64 | DType::C128) => 8.0,
            _ => 0.0,
        }
    });
    assert!(count > 150, "{count}");
}

#[test]
fn literals_are_exact() {
    let doubles = [
        "0.1",
        "-0.0",
        "1e-45",
        "5e-324",
        "1.7976931348623157e308",
        "inf",
        "-inf",
        "nan",
        "1e22",
        "123456.789",
        "4.9e-320",
        "-3.4028234663852886e38",
        "0.3333333333333333",
    ];
    let wholes =
        ["9223372036854775807", "-9223372036854775808", "-1", "0", "2147483648", "-2147483648"];
    let mut cases = Vec::new();
    for (at, text) in doubles.into_iter().enumerate() {
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64, DType::C64, DType::C128] {
            let text = format!("where(isfinite(x), {text}, {text})");
            cases.push(case("literal", &text, &[("x", dtype)], LAYOUTS[at % 2]));
        }
    }
    for (at, text) in wholes.into_iter().enumerate() {
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_integral()) {
            let text = format!("where(x == x, {text}, x)");
            cases.push(case("literal", &text, &[("x", dtype)], LAYOUTS[at % 2]));
        }
    }
    let count = check("literals", &Target::ALL, &cases, |_| 0.0);
    assert!(count > 90, "{count}");
}

#[test]
fn an_expression_of_depth_10_000_is_a_kernel() {
    let steps: String = (0..5000).map(|i| format!(" * x - {}", i % 7)).collect();
    let nested = format!("{}x{}", "sin(".repeat(10_000), ")".repeat(10_000));
    let cases = [format!("x{steps}"), nested].map(|text| {
        let mut case = case("deep", &text, &[("x", DType::F32)], MemoryLayout::Contiguous);
        case.tame = true;
        case
    });
    let count = check("deep", CUDA, &cases, |case| {
        // Ten thousand sines shrink every number, and the errors with them.
        if case.text.starts_with("sin") { 1000.0 } else { 0.0 }
    });
    assert_eq!(count, 2);
}

/// Returns a kernel for `x * 2 + index`, of integers.
fn doubled(layout: Layout, target: Target) -> (KernelSource, Options) {
    let expr = Expr::parse("x * 2 + index(1) * 1000 + index").unwrap();
    let lowered = Lowered::new(&expr, &[DType::I64], &[], None).unwrap();
    let mut options = Options::new(&expr);
    options.name = format!("doubled_{layout:?}");
    options.layout = layout;
    options.target = target;
    (source::emit(&lowered, &options).unwrap(), options)
}

#[test]
fn elements_beyond_2_to_the_32_are_found() {
    // The last part of a result of 3 x 2^33 elements, which alone is allocated.
    let shape = [3, 1 << 33];
    let (first, count) = (3 * (1_u64 << 33) - 50, 50_usize);
    let memory = |numbers: &[i64]| Memory {
        bytes: numbers.iter().flat_map(|number| number.to_ne_bytes()).collect(),
        skew: 0,
        origin: -8 * first as i64,
    };
    let given: Vec<i64> = (0..50).map(|i| i * i - 100).collect();
    for target in Target::ALL {
        let runs = [Layout::Contiguous, Layout::Strided].map(|layout| {
            let (source, options) = doubled(layout, target);
            let strides = [1_i64 << 33, 1];
            // Broadcast along the first dimension, so that no dimensions can be merged.
            let row = [0, 1];
            let x = if layout == Layout::Strided { &row } else { &strides };
            let mut input = memory(&given);
            if layout == Layout::Strided {
                input.origin = -8 * ((1 << 33) - 50);
            }
            Run {
                strides: source::strides_words(&shape, &[&strides, x], options.dims).unwrap(),
                shape: source::shape_words(&shape, 2).unwrap(),
                source,
                out: memory(&[0; 50]),
                inputs: vec![input],
                params: vec![],
                ranked: vec![],
                launches: vec![Launch { first, count: count as u64, blocks: 2, threads: 4 }],
            }
        });
        for outcome in runner::run("far", &runs) {
            for (at, bytes) in outcome.out.chunks(8).enumerate() {
                let got = i64::from_ne_bytes(bytes.try_into().unwrap());
                assert_eq!(got, given[at] * 2 + 2000 + first as i64 + at as i64, "{at}");
            }
        }
    }
}

#[test]
fn the_same_steps_give_the_same_text() {
    let text = "t = exp(x); t * beta + where(y > t, table[int64(y)], t)";
    let emitted: BTreeSet<String> = (0..3)
        .map(|_| {
            let names = Names::new().input("x").input("y").ranked("table", 1).param("beta");
            let expr = Expr::parse_with(text, &names).unwrap();
            let dtypes = [DType::F32, DType::F16, DType::F64];
            let lowered = Lowered::new(&expr, &dtypes, &[DTypeKind::Float], None).unwrap();
            source::emit(&lowered, &Options::new(&expr)).unwrap().text
        })
        .collect();
    assert_eq!(emitted.len(), 1);
    let text = emitted.first().unwrap();
    assert_eq!(text.matches("expf(x_value)").count(), 1, "exp(x) is there once");
    for name in ["x_value", "y_value", "table_data", "beta_param"] {
        assert!(text.contains(name), "{name}");
    }
    assert!(!text.contains("#include"));
}

#[test]
fn kernels_that_cannot_be_emitted_are_refused_by_name() {
    let expr = Expr::parse_with("x + table[0]", &Names::new().tensor("x").tensor("table")).unwrap();
    let lowered = Lowered::new(&expr, &[DType::F32, DType::F64], &[], None).unwrap();
    let refused = |change: &dyn Fn(&mut Options)| {
        let mut options = Options::new(&expr);
        change(&mut options);
        source::emit(&lowered, &options).unwrap_err().message().to_owned()
    };
    let name = refused(&|options| options.name = "two words".into());
    assert!(name.contains("\"two words\""), "{name}");
    assert!(refused(&|options| options.name = "float".into()).contains("no word or function"));
    assert!(refused(&|options| options.vector = Some(3)).contains("1, 2, 4, 8 or 16"));
    assert!(refused(&|options| options.dims = 0).contains("0 dimensions"));
    assert!(refused(&|options| options.inputs.clear()).contains("0 names for 2 inputs"));
    assert!(refused(&|options| options.in_place = Some(2)).contains("input 2"));
    let dtype = refused(&|options| options.in_place = Some(0));
    assert!(dtype.contains("float64") && dtype.contains("float32"), "{dtype}");
    assert!(refused(&|options| options.in_place = Some(1)).contains("computed indices"));
    let sum: Vec<String> = (0..9).map(|i| format!("x{i}")).collect();
    let expr = Expr::parse(&sum.join(" + ")).unwrap();
    let lowered = Lowered::new(&expr, &[DType::F32; 9], &[], None).unwrap();
    let options = Options { layout: Layout::Strided, dims: 64, ..Options::new(&expr) };
    let many = source::emit(&lowered, &options).unwrap_err();
    assert!(many.message().contains("4096"), "{many}");
}

#[test]
fn a_fault_names_its_input() {
    let expr = Expr::parse("x + table[index]").unwrap();
    let options = Options::new(&expr);
    assert!(source::fault(0, &options).is_none());
    assert!(source::fault(1, &options).unwrap().message().contains("negative power"));
    assert!(source::fault(3, &options).unwrap().message().contains("\"table\""));
}
