//! Emitted kernels in OpenCL C, compiled as C++ and run on the CPU, compared with the evaluator.

#[path = "../../expr/tests/shim/cases.rs"]
#[allow(dead_code, reason = "two tests share it")]
mod cases;
#[path = "../../expr/tests/shim/interpreter.rs"]
#[allow(dead_code, reason = "two tests share it")]
mod interpreter;
#[path = "../../expr/tests/shim/lists.rs"]
#[allow(dead_code, reason = "two tests share it")]
mod lists;
#[path = "../../expr/tests/shim/runner.rs"]
#[allow(dead_code, reason = "two tests share it")]
mod runner;

use std::collections::BTreeMap;

use cases::{Case, Ready, SHAPE};
use interpreter::Value;
use keyfold_core::{Complex, DType, Device, Element, Result, Scalar, bf16, f16};
use keyfold_expr::source::Target;
use keyfold_kit::evaluate::evaluate;
use keyfold_kit::interpreter::Program;
use keyfold_tensor::Tensor;

fn scalar(value: Value) -> Scalar {
    match value {
        Value::Bool(b) => Scalar::Bool(b),
        Value::Whole(v) => i64::try_from(v).map_or_else(|_| Scalar::UInt(v as u64), Scalar::Int),
        Value::Single(x) => Scalar::Float(x.into()),
        Value::Double(x) => Scalar::Float(x),
        Value::Complex(c) => Scalar::Complex(c),
    }
}

fn tensor_of<T: Element>(elements: &[Value], shape: &[usize]) -> Tensor {
    Tensor::from_vec(elements.iter().map(|value| scalar(*value).to::<T>()).collect(), shape)
        .expect("a tensor of the elements")
}

fn tensor(elements: &[Value], shape: &[u64], dtype: DType) -> Tensor {
    let shape: Vec<usize> = shape.iter().map(|size| *size as usize).collect();
    let count = shape.iter().product();
    let make = match dtype {
        DType::Bool => tensor_of::<bool>,
        DType::U8 => tensor_of::<u8>,
        DType::U16 => tensor_of::<u16>,
        DType::U32 => tensor_of::<u32>,
        DType::U64 => tensor_of::<u64>,
        DType::I8 => tensor_of::<i8>,
        DType::I16 => tensor_of::<i16>,
        DType::I32 => tensor_of::<i32>,
        DType::I64 => tensor_of::<i64>,
        DType::F16 => tensor_of::<f16>,
        DType::BF16 => tensor_of::<bf16>,
        DType::F32 => tensor_of::<f32>,
        DType::F64 => tensor_of::<f64>,
        DType::C64 => tensor_of::<Complex<f32>>,
        DType::C128 => tensor_of::<Complex<f64>>,
    };
    make(&elements[..count], &shape)
}

/// The evaluator's results, element by element.
fn evaluated(ready: &Ready) -> Result<Vec<Value>> {
    let inputs: Vec<Tensor> = (0..ready.case.inputs.len())
        .map(|input| {
            let (elements, shape) = ready.elements(input);
            tensor(&elements, &shape, ready.case.inputs[input].1)
        })
        .collect();
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let shape = SHAPE.map(|size| size as usize);
    let dtype = ready.lowered.result();
    let out = Tensor::empty(&shape, dtype, Device::CPU)?;
    // SAFETY: no other code accesses the output.
    unsafe { evaluate(&Program::new(&ready.lowered)?, &inputs, &ready.run.params, &out)? };
    let all = 0..SHAPE.iter().product::<u64>() as usize;
    all.map(|i| Ok(interpreter::number(out.get_scalar(&[i / 55, i / 11 % 5, i % 11])?, dtype)))
        .collect()
}

/// The allowed difference in units in the last place: the evaluator's functions are within 2 (4 for
/// `pow` and `erf`), the C library's, which replace the device's, within 1.
fn allowed(case: &Case) -> f64 {
    let complex = case.inputs[0].1.is_complex();
    match case.text.as_str() {
        "x ** y" | "erf(x)" if !complex => 5.0,
        // The error is relative to the greater part, so the smaller one may have few right digits.
        "tanh(x)" if complex => 1024.0,
        _ if complex => 32.0,
        text if lists::EXACT.contains(&text) || text.contains('y') || text.contains("table") => 0.0,
        // Sums cancel, which enlarges the relative error of a function.
        _ if case.label == "formula" => match case.inputs[0].1 {
            DType::F32 | DType::F64 => 64.0,
            _ => 1.0,
        },
        _ if case.label == "unary" || case.text.contains('(') => 3.0,
        _ => 0.0,
    }
}

#[test]
fn emitted_kernels_agree_with_the_evaluator() {
    let lists = [
        lists::unary(),
        lists::binary(),
        lists::casts(),
        lists::index_cases(),
        lists::extremes(),
        lists::chains(),
    ];
    let ready: Vec<Ready> = lists
        .into_iter()
        .flatten()
        .enumerate()
        .filter_map(|(number, case)| Ready::new(case, number, Target::OpenClC).ok())
        .collect();
    let runs: Vec<_> = ready.iter().map(|ready| ready.run.clone()).collect();
    let mut worst: BTreeMap<(String, &str), f64> = BTreeMap::new();
    let mut wrong = Vec::new();
    let mut faults = 0;
    for (ready, outcome) in ready.iter().zip(runner::run("evaluator", &runs)) {
        let expected = match evaluated(ready) {
            Ok(expected) => expected,
            // The evaluator's error corresponds to the kernel's fault word.
            Err(error) => {
                assert_ne!(outcome.fault, 0, "{error}: {:?}", ready.case);
                faults += 1;
                continue;
            }
        };
        assert_eq!(outcome.fault, 0, "{:?}", ready.case);
        let dtype = ready.lowered.result();
        for (place, (got, expected)) in
            ready.results(&outcome).into_iter().zip(expected).enumerate()
        {
            let error = cases::distance(got, expected, dtype);
            let known =
                worst.entry((ready.case.label.clone(), ready.case.inputs[0].1.name())).or_default();
            *known = known.max(error);
            if error > allowed(&ready.case) {
                wrong.push(format!(
                    "{error}: {got:?}, not {expected:?} at {place}: {:?}",
                    ready.case
                ));
                break;
            }
        }
    }
    let listed: Vec<String> = worst
        .iter()
        .filter(|(_, error)| **error > 0.0)
        .map(|((label, dtype), error)| format!("{label} {dtype} {error:.3}"))
        .collect();
    report(&format!(
        "{} kernels, {faults} of them with a fault; errors in ulp, else 0: {}",
        ready.len(),
        listed.join(", ")
    ));
    assert!(wrong.is_empty(), "{} wrong: {}", wrong.len(), wrong[..wrong.len().min(12)].join("\n"));
    assert!(ready.len() > 1200 && faults > 10, "{} kernels, {faults} faults", ready.len());
}

/// Prints the measurements, for runs with `--nocapture`.
#[expect(clippy::print_stdout, reason = "numbers for whoever runs the test by hand")]
fn report(text: &str) {
    println!("{text}");
}
