//! Layouts, numbers of the call, ranked inputs, faults.

use std::sync::Arc;

use keyfold_backend::GpuBackend;
use keyfold_core::{DType, DTypeKind, Device, ErrorKind, Scalar};
use keyfold_expr::{Expr, Lowered, Names};
use keyfold_tensor::Tensor;

use crate::compare::{elements, worst};
use crate::device::Host;
use crate::{by_evaluator, by_primitives, kernel, lowered, samples};

/// Returns the primitives' result, after comparing it with the evaluator's.
fn same(lowered: &Lowered, inputs: &[&Tensor], params: &[Scalar]) -> Tensor {
    let got = by_primitives(lowered, inputs, params).unwrap();
    let wanted = by_evaluator(lowered, inputs, params).unwrap();
    let (error, at) = worst(&got, &wanted);
    assert_eq!(error, 0.0, "{:?}, not {:?}", elements(&got)[at], elements(&wanted)[at]);
    got
}

#[test]
fn inputs_broadcast_and_have_any_strides() {
    let lowered = lowered("x * y + z", &[DType::F32, DType::F16, DType::C64]).unwrap();
    let x = samples::random(DType::F32, 12, 1).reshape(&[3, 4]).unwrap();
    let y = samples::random(DType::F16, 3, 2).reshape(&[3, 1]).unwrap();
    let z = samples::random(DType::C64, 40, 3).reshape(&[4, 10]).unwrap();
    let z = z.transpose(0, 1).unwrap().slice(0, Some(9), None, -3).unwrap_or(z);
    let z = z.slice(0, Some(0), Some(3), 1).unwrap();
    let out = same(&lowered, &[&x, &y, &z], &[]);
    assert_eq!(out.shape()[..], [3, 4]);
}

#[test]
fn an_output_has_any_strides() {
    for (text, dtype) in [("exp(x) + index", DType::F32), ("x * x - 1", DType::C128)] {
        let lowered = lowered(text, &[dtype]).unwrap();
        let x = samples::random(dtype, 12, 5).reshape(&[3, 4]).unwrap();
        let wanted = by_primitives(&lowered, &[&x], &[]).unwrap();
        let memory = Tensor::zeros(&[8, 6], lowered.result(), Device::CPU).unwrap();
        let part = memory.transpose(0, 1).unwrap().slice(0, None, None, 2).unwrap();
        let out = part.slice(1, Some(1), Some(5), 1).unwrap().flip(&[1]).unwrap();
        let backend: Arc<dyn GpuBackend> = Arc::new(Host::complete());
        // SAFETY: nothing else accesses the memory.
        unsafe { kernel(&backend, &lowered).run(&[&x], &[], &out).unwrap() };
        assert_eq!(elements(&out), elements(&wanted), "{text}");
    }
}

#[test]
fn an_input_may_be_the_output() {
    let dtypes = [DType::I32, DType::F16, DType::F32, DType::C64, DType::C128];
    for text in ["x", "x * x + y", "y - conj(x)", "where(x == y, y, -x)", "x / (y * y + 1)"] {
        for dtype in dtypes {
            let Ok(lowered) =
                lowered(text, &[dtype][..].repeat(1 + text.matches('y').count().min(1)))
            else {
                continue;
            };
            if lowered.result() != dtype {
                continue;
            }
            let x = samples::random(dtype, 50, 6);
            let y = samples::random(dtype, 50, 7);
            let inputs = if text.contains('y') { vec![&x, &y] } else { vec![&x] };
            let wanted = by_primitives(&lowered, &inputs, &[]).unwrap();
            let backend: Arc<dyn GpuBackend> = Arc::new(Host::complete());
            // SAFETY: nothing else accesses the memory.
            unsafe { kernel(&backend, &lowered).run(&inputs, &[], &x).unwrap() };
            assert_eq!(worst(&x, &wanted).0, 0.0, "{text} of {dtype}");
        }
    }
}

#[test]
fn one_element_and_none_are_computed() {
    for text in ["sin(x) + 1", "index + x", "index(0) * x", "3"] {
        let count = usize::from(text.contains('x'));
        let lowered = lowered(text, &[DType::F64][..count]).unwrap();
        for shape in [&[][..], &[1], &[0], &[2, 0, 3]] {
            let x = Tensor::full(shape, Scalar::Float(0.5), DType::F64, Device::CPU).unwrap();
            let out = by_primitives(&lowered, &[&x][..count], &[]).unwrap();
            let wanted = by_evaluator(&lowered, &[&x][..count], &[]).unwrap();
            assert_eq!(worst(&out, &wanted).0, 0.0, "{text} of {shape:?}");
        }
    }
}

#[test]
fn indices_are_those_of_the_output() {
    for text in ["index", "index(0)", "index(1)", "index(5)", "index % 7 - index(2)"] {
        let lowered = lowered(&format!("{text} + x * 0"), &[DType::I64]).unwrap();
        let x = samples::random(DType::I64, 24, 1).reshape(&[2, 3, 4]).unwrap();
        same(&lowered, &[&x], &[]);
        let alone = crate::lowered(text, &[]).unwrap();
        let out = Tensor::zeros(&[2, 3, 4], DType::I64, Device::CPU).unwrap();
        let backend: Arc<dyn GpuBackend> = Arc::new(Host::complete());
        // SAFETY: the output isn't shared.
        unsafe { kernel(&backend, &alone).run(&[], &[], &out).unwrap() };
        assert_eq!(
            elements(&out),
            elements(&by_evaluator(&lowered, &[&x], &[]).unwrap()),
            "{text}"
        );
    }
}

#[test]
fn numbers_of_the_call_are_checked_and_rounded() {
    let names = Names::new().input("x").param("a").param("b");
    let expr = Expr::parse_with("x * a + sqrt(b) * a", &names).unwrap();
    let kinds = [DTypeKind::Float, DTypeKind::Float];
    let params = [Scalar::Float(0.1), Scalar::Float(2.0)];
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let lowered = Lowered::new(&expr, &[dtype], &kinds, None).unwrap();
        same(&lowered, &[&samples::random(dtype, 30, 4)], &params);
    }
    let kinds = [DTypeKind::Complex, DTypeKind::Float];
    let lowered = Lowered::new(&expr, &[DType::C64], &kinds, None).unwrap();
    let params = [Scalar::Complex(keyfold_core::Complex::new(0.1, 0.3)), Scalar::Float(4.0)];
    same(&lowered, &[&samples::random(DType::C64, 30, 4)], &params);

    let expr = Expr::parse_with("x + a", &Names::new().input("x").param("a")).unwrap();
    let lowered = Lowered::new(&expr, &[DType::U8], &[DTypeKind::Int], None).unwrap();
    for count in [0, 3] {
        let x = Tensor::zeros(&[count], DType::U8, Device::CPU).unwrap();
        for (params, kind) in
            [(&[Scalar::Int(300)][..], ErrorKind::Value), (&[], ErrorKind::Binding)]
        {
            let error = by_primitives(&lowered, &[&x], params).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert_eq!(error.kind(), by_evaluator(&lowered, &[&x], params).unwrap_err().kind());
        }
    }
}

#[test]
fn ranked_inputs_are_read_at_computed_indices() {
    for dtype in [DType::Bool, DType::I16, DType::BF16, DType::F32, DType::F64, DType::C64] {
        let table = samples::random(dtype, 60, 2).reshape(&[6, 10]).unwrap();
        let turned = table.transpose(0, 1).unwrap().flip(&[0]).unwrap();
        let part = turned.slice(0, Some(1), None, 2).unwrap();
        for text in ["t[i, i % 3 - 2]", "t[-1, 2]", "where(t[i, 0] == t[0, i], t[i, 1], t[4, -i])"]
        {
            let names = Names::new().ranked("t", 2).input("i");
            let expr = Expr::parse_with(text, &names).unwrap();
            let lowered = Lowered::new(&expr, &[dtype, DType::I64], &[], None).unwrap();
            let i = Tensor::from_slice(&[0_i64, 1, 4, 2, -1, -5, 3, 3], &[2, 4]).unwrap();
            same(&lowered, &[&part, &i], &[]);
        }
    }
    let expr = Expr::parse_with("t[] * x", &Names::new().ranked("t", 0).input("x"));
    if let Ok(expr) = expr {
        let lowered = Lowered::new(&expr, &[DType::F32; 2], &[], None).unwrap();
        let t = Tensor::from_scalar(Scalar::Float(2.5), DType::F32).unwrap();
        same(&lowered, &[&t, &samples::random(DType::F32, 5, 1)], &[]);
    }
}

#[test]
fn an_index_out_of_range_is_an_error() {
    let expr =
        Expr::parse_with("t[i, j]", &Names::new().ranked("t", 2).input("i").input("j")).unwrap();
    let lowered = Lowered::new(&expr, &[DType::F32, DType::I64, DType::I64], &[], None).unwrap();
    let table = samples::random(DType::F32, 12, 1).reshape(&[3, 4]).unwrap();
    let at = |i: i64, j: i64| {
        let [i, j] = [i, j].map(|place| Tensor::from_slice(&[0, place], &[2]).unwrap());
        let got = by_primitives(&lowered, &[&table, &i, &j], &[]);
        let wanted = by_evaluator(&lowered, &[&table, &i, &j], &[]);
        assert_eq!(got.as_ref().err().map(|e| e.kind()), wanted.err().map(|e| e.kind()));
        got
    };
    assert!(at(2, -4).is_ok() && at(-3, 3).is_ok());
    // The second index is within the table's memory, but out of its dimension's range.
    for (i, j) in [(3, 0), (0, 4), (-4, 0), (0, -5), (i64::MAX, 0), (i64::MIN, 1)] {
        assert_eq!(at(i, j).unwrap_err().kind(), ErrorKind::Index, "{i}, {j}");
    }
    let zero = Tensor::from_slice(&[0_i64], &[1]).unwrap();
    let empty = Tensor::zeros(&[0, 4], DType::F32, Device::CPU).unwrap();
    let error = by_primitives(&lowered, &[&empty, &zero, &zero], &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Index);
    let flat = Tensor::zeros(&[4], DType::F32, Device::CPU).unwrap();
    let lowered_out = Tensor::zeros(&[1], DType::F32, Device::CPU).unwrap();
    let backend: Arc<dyn GpuBackend> = Arc::new(Host::complete());
    // SAFETY: the output isn't shared.
    let run = unsafe { kernel(&backend, &lowered).run(&[&flat, &zero, &zero], &[], &lowered_out) };
    assert_eq!(run.unwrap_err().kind(), ErrorKind::Shape);
}

#[test]
fn a_negative_power_of_integers_is_an_error() {
    for dtype in [DType::I8, DType::I16, DType::I32, DType::I64] {
        let lowered = lowered("x ** y", &[dtype, dtype]).unwrap();
        let x = samples::tensor(dtype, &[Scalar::Int(2), Scalar::Int(3)]);
        let y = samples::tensor(dtype, &[Scalar::Int(5), Scalar::Int(-1)]);
        let error = by_primitives(&lowered, &[&x, &y], &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Value, "{error}");
        assert!(error.message().contains("negative power"), "{error}");
        assert_eq!(by_evaluator(&lowered, &[&x, &y], &[]).unwrap_err().kind(), ErrorKind::Value);
    }
}
