//! The overload `out` of every row writes the operator's result, which has the inferred shape and dtype.

mod cases;

use keyfold::Tensor;
use keyfold::ops::{Inferred, aten, rows};
use keyfold_core::{DType, Device, ErrorKind, Result};
use keyfold_dispatch::Value as _;
use keyfold_tensor::{Value, ValueRef};

use cases::{arguments, tensor};

fn call(name: &str, args: &[Value]) -> Result<Tensor> {
    let args: Vec<ValueRef<'_>> = args.iter().map(Value::as_ref).collect();
    keyfold::dispatcher().call(name, &args)?.into_tensor()
}

/// Makes tensors of that shape and dtype to write into: contiguous, with gaps, and reversed.
fn targets(shape: &[usize], dtype: DType) -> Vec<Tensor> {
    let made = |shape: &[usize]| Tensor::zeros(shape, dtype, Device::CPU).unwrap();
    let Some((last, front)) = shape.split_last() else { return vec![made(shape)] };
    let gaps = made(&[front, &[2 * last]].concat()).slice(-1, None, None, 2).unwrap();
    vec![made(shape), gaps, made(shape).flip(&[-1]).unwrap()]
}

fn items(x: &Tensor) -> Vec<(u64, u64)> {
    let wide = aten::to(x, DType::C128).unwrap();
    let items = wide.to_vec::<keyfold_core::Complex<f64>>().unwrap();
    items.iter().map(|z| (z.re.to_bits(), z.im.to_bits())).collect()
}

const DTYPES: [DType; 6] = [DType::Bool, DType::U8, DType::I64, DType::F16, DType::F64, DType::C64];

#[test]
fn out_is_written_with_the_result() {
    keyfold::init();
    let (mut operators, mut compared) = (0, 0);
    for row in rows() {
        let Some(out_schema) = row.out_schema() else { continue };
        let (schema, with_out) = (row.schema(), out_schema.name.to_string());
        let name = schema.name.to_string();
        let before = compared;
        for dtype in DTYPES {
            let args = arguments(row, dtype);
            let with = |out: &Tensor| {
                let args = args.iter().cloned().chain([Value::Tensor(out.clone())]);
                call(&with_out, &args.collect::<Vec<_>>())
            };
            let fresh = match call(&name, &args) {
                Ok(fresh) => fresh,
                Err(error) => {
                    let refused = with(&tensor(&[2, 3], dtype)).unwrap_err();
                    assert_eq!(
                        (refused.kind(), refused.message()),
                        (error.kind(), error.message())
                    );
                    continue;
                }
            };
            let form = Inferred::fresh(fresh.shape().clone(), fresh.dtype());
            let boxed: Vec<ValueRef<'_>> = args.iter().map(Value::as_ref).collect();
            match row.infer(&boxed) {
                Ok(inferred) => assert_eq!(inferred, [Some(form)], "{name} of {dtype}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotSupported, "{name}"),
            }
            let wide = fresh.dtype().promote(DType::C128);
            for (dtype, exact) in [(fresh.dtype(), true), (wide, false)] {
                for out in targets(fresh.shape(), dtype) {
                    with(&out).unwrap_or_else(|error| panic!("{with_out} of {dtype}: {error}"));
                    // A narrow result is rounded; the same result in a wider dtype isn't.
                    let rounded = matches!(fresh.dtype(), DType::F16 | DType::C64) && !exact;
                    let same = name == "aten::empty" || rounded || items(&out) == items(&fresh);
                    assert!(same, "{with_out} of {dtype}");
                    compared += 1;
                }
            }
            let wrong = with(&tensor(&[7], fresh.dtype())).unwrap_err();
            assert_eq!(wrong.kind(), ErrorKind::Shape, "{with_out}: {wrong}");
            assert!(wrong.message().contains("argument 'out'"), "{with_out}: {wrong}");
        }
        assert!(compared > before, "{with_out} was never called");
        operators += 1;
    }
    assert_eq!(
        (operators, compared),
        (167, 4556),
        "operators and calls; a new row changes how many"
    );
}
