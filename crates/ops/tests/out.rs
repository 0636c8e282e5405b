//! The overload `out` of every row writes the operator's results, which have the inferred shapes and dtypes.

mod cases;

use keyfold::Tensor;
use keyfold::ops::{Inferred, Row, aten, rows};
use keyfold_core::{DType, Device, ErrorKind, Result};
use keyfold_dispatch::Value as _;
use keyfold_tensor::device::random::{set_state, state};
use keyfold_tensor::{Value, ValueRef};

use cases::{arguments, tensor};

/// The results of a call: `None` for one that the call doesn't want.
type Results = Vec<Option<Tensor>>;

/// Calls an operator at the start of the random numbers.
fn call(name: &str, args: &[Value]) -> Result<Results> {
    let args: Vec<ValueRef<'_>> = args.iter().map(Value::as_ref).collect();
    let before = state(Device::CPU)?;
    let result = keyfold::dispatcher().call(name, &args);
    set_state(before)?;
    match result? {
        Value::Tuple(results) => results.into_iter().map(optional).collect(),
        one => Ok(vec![optional(one)?]),
    }
}

fn optional(value: Value) -> Result<Option<Tensor>> {
    if matches!(value, Value::None) { Ok(None) } else { value.into_tensor().map(Some) }
}

/// A row, and the name of its overload `out`.
struct WithOut<'r> {
    row: &'r Row,
    name: String,
    /// The names of the arguments that it writes to.
    outs: Vec<String>,
    /// Whether a result that isn't wanted is None.
    is_optional: bool,
}

impl WithOut<'_> {
    fn call(&self, args: &[Value], outs: &[Option<Tensor>]) -> Result<Results> {
        let value = |out: &Option<Tensor>| out.clone().map_or(Value::None, Value::Tensor);
        let args: Vec<Value> = args.iter().cloned().chain(outs.iter().map(value)).collect();
        call(&self.name, &args)
    }

    /// Checks that a call is refused with that error, which names the argument, and writes nothing.
    fn refuses(&self, args: &[Value], outs: &[Option<Tensor>], kind: ErrorKind, at: usize) {
        let before: Vec<_> = outs.iter().flatten().map(items).collect();
        let error = self.call(args, outs).unwrap_err();
        let name = format!("'{}'", self.outs[at]);
        assert!(error.kind() == kind && error.message().contains(&name), "{}: {error}", self.name);
        let after: Vec<_> = outs.iter().flatten().map(items).collect();
        assert!(before == after, "{} wrote, and {error}", self.name);
    }
}

/// Returns a tensor of that shape and dtype for each result that is wanted, of the given layout.
fn outs_like(fresh: &Results, dtype: impl Fn(DType) -> DType, layout: usize) -> Results {
    let out = |x: &Tensor| {
        let all = targets(x.shape(), dtype(x.dtype()));
        all[layout % all.len()].clone()
    };
    fresh.iter().map(|x| x.as_ref().map(out)).collect()
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

/// Compares what was written with the results of the operator; returns how many tensors were.
fn compare(with_out: &WithOut<'_>, args: &[Value], fresh: &Results) -> usize {
    let wide = |dtype: DType| dtype.promote(DType::C128);
    let (name, mut compared) = (&with_out.name, 0);
    for (is_wide, layout) in [(false, 0), (false, 1), (false, 2), (true, 0), (true, 1), (true, 2)] {
        let outs = outs_like(fresh, |dtype| if is_wide { wide(dtype) } else { dtype }, layout);
        // A tensor without dimensions has one layout.
        let is_new = |x: &Tensor| layout == 0 || x.ndim() > 0;
        if !outs.iter().flatten().any(is_new) {
            continue;
        }
        let results = with_out.call(args, &outs).unwrap_or_else(|error| panic!("{name}: {error}"));
        for ((out, result), fresh) in outs.iter().zip(&results).zip(fresh) {
            let (Some(out), Some(fresh)) = (out, fresh) else {
                assert!(out.is_none() && result.is_none(), "{name}");
                continue;
            };
            assert_eq!(result.as_ref().unwrap().address(), out.address(), "{name}");
            // A narrow result is rounded; the same result in a wider dtype isn't.
            let rounded = matches!(fresh.dtype(), DType::F16 | DType::C64) && is_wide;
            let same = name == "aten::empty.out" || rounded || items(out) == items(fresh);
            assert!(same, "{name} of {}", fresh.dtype());
            compared += usize::from(is_new(out));
        }
    }
    compared
}

/// Calls with tensors that a result can't be written into.
fn refusals(with_out: &WithOut<'_>, args: &[Value], fresh: &Results) {
    for (at, result) in fresh.iter().enumerate() {
        let replaced = |by: Option<Tensor>| {
            let mut outs = outs_like(fresh, |dtype| dtype, 0);
            outs[at] = by;
            outs
        };
        let Some(result) = result else {
            let outs = replaced(Some(tensor(&[2], DType::F64)));
            with_out.refuses(args, &outs, ErrorKind::Value, at);
            continue;
        };
        let shape = replaced(Some(tensor(&[7, 1, 1], result.dtype())));
        with_out.refuses(args, &shape, ErrorKind::Shape, at);
        if result.dtype() != DType::Bool {
            let narrow =
                replaced(Some(Tensor::zeros(result.shape(), DType::Bool, Device::CPU).unwrap()));
            with_out.refuses(args, &narrow, ErrorKind::DType, at);
        }
        if with_out.is_optional {
            with_out.refuses(args, &replaced(None), ErrorKind::Value, at);
        }
        // The same memory for this result and another one.
        let twin = |other: &Option<Tensor>| {
            let other = other.as_ref()?;
            let like = (other.dtype(), other.shape()) == (result.dtype(), result.shape());
            (like && other.numel() > 0).then_some(())
        };
        if let Some(other) = fresh[..at].iter().position(|other| twin(other).is_some()) {
            let mut outs = outs_like(fresh, |dtype| dtype, 0);
            outs[at] = outs[other].clone();
            with_out.refuses(args, &outs, ErrorKind::Value, at);
            with_out.refuses(args, &outs, ErrorKind::Value, other);
        }
    }
}

/// Writes each result into an argument of its shape and dtype; returns how many there are.
fn in_place(with_out: &WithOut<'_>, args: &[Value], fresh: &Results) -> usize {
    let mut compared = 0;
    for (at, result) in fresh.iter().enumerate() {
        let Some(result) = result else { continue };
        for place in 0..args.len() {
            let own = |arg: &Value| match arg {
                Value::Tensor(x) => Value::Tensor(x.copy().unwrap()),
                other => other.clone(),
            };
            let args: Vec<Value> = args.iter().map(own).collect();
            let Value::Tensor(x) = &args[place] else { continue };
            if (x.dtype(), x.shape()) != (result.dtype(), result.shape()) {
                continue;
            }
            let mut outs = outs_like(fresh, |dtype| dtype, 0);
            outs[at] = Some(x.clone());
            with_out.call(&args, &outs).unwrap();
            let same = outs.iter().flatten().zip(fresh.iter().flatten());
            for (out, fresh) in same {
                assert!(items(out) == items(fresh), "{} into argument {place}", with_out.name);
            }
            compared += 1;
        }
    }
    compared
}

#[test]
fn out_is_written_with_the_results() {
    keyfold::init();
    let (mut operators, mut compared, mut overlapping) = ([0, 0], 0, 0);
    for row in rows() {
        let Some(out_schema) = row.out_schema() else { continue };
        let outs = out_schema.outs().map(|argument| argument.name.clone()).collect();
        let is_optional = out_schema.returns.iter().any(|result| result.ty.is_optional());
        let with_out = WithOut { row, name: out_schema.name.to_string(), outs, is_optional };
        let name = with_out.row.schema().name.to_string();
        let before = compared;
        for dtype in DTYPES {
            let args = arguments(row, dtype);
            let fresh = match call(&name, &args) {
                Ok(fresh) => fresh,
                Err(error) => {
                    let outs = vec![Some(tensor(&[2, 3], dtype)); with_out.outs.len()];
                    let refused = with_out.call(&args, &outs).unwrap_err();
                    assert_eq!(
                        (refused.kind(), refused.message()),
                        (error.kind(), error.message())
                    );
                    continue;
                }
            };
            let form = |x: &Tensor| Inferred::fresh(x.shape().clone(), x.dtype());
            let forms: Vec<_> = fresh.iter().map(|x| x.as_ref().map(form)).collect();
            let boxed: Vec<ValueRef<'_>> = args.iter().map(Value::as_ref).collect();
            match row.infer(&boxed) {
                Ok(inferred) => assert_eq!(inferred, forms, "{name} of {dtype}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotSupported, "{name}"),
            }
            compared += compare(&with_out, &args, &fresh);
            refusals(&with_out, &args, &fresh);
            if name != "aten::empty" {
                overlapping += in_place(&with_out, &args, &fresh);
            }
        }
        assert!(compared > before, "{} was never called", with_out.name);
        operators[usize::from(with_out.outs.len() > 1)] += 1;
    }
    assert_eq!(
        (operators, compared, overlapping),
        ([167, 28], 5410, 666),
        "operators with one result and with several, results, and results in arguments; a new row \
         changes how many"
    );
}

#[test]
fn a_stack_that_fails_in_the_middle_writes_nothing() {
    keyfold::init();
    let x = Tensor::from_slice(&[4.0, 0.0, 0.0, 4.0, -1.0, 0.0, 0.0, 1.0], &[2, 2, 2]).unwrap();
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, Device::CPU).unwrap();
    let (factor, info) = (zeros(&[2, 2, 2], DType::F64), zeros(&[2], DType::I32));
    let flags = [Value::Bool(false), Value::Bool(true)];
    let args: Vec<Value> = [Value::Tensor(x)].into_iter().chain(flags).collect();
    let outs = [&factor, &info].map(|out| Value::Tensor(out.clone()));
    let args = [args, outs.to_vec()].concat();
    let refs: Vec<ValueRef<'_>> = args.iter().map(Value::as_ref).collect();
    let error = keyfold::dispatcher().call("aten::linalg_cholesky_ex.L", &refs).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Value, "{error}");
    for out in [&factor, &info] {
        assert!(items(out).iter().all(|item| *item == (0, 0)));
    }
}

/// The overloads have PyTorch's names, and their arguments, too.
#[test]
fn overloads_of_several_results_are_pytorchs() {
    let expected = [
        ("native_layer_norm.out", "out0, out1, out2"),
        ("native_group_norm_backward.out", "out0, out1, out2"),
        ("_native_batch_norm_legit.no_stats_out", "out, save_mean, save_invstd"),
        ("native_batch_norm.out", "out, save_mean, save_invstd"),
        ("native_batch_norm_backward.out", "out0, out1, out2"),
        ("native_dropout.out", "out0, out1"),
        ("max_pool2d_with_indices.out", "out, indices"),
        ("max_pool3d_with_indices.out", "out, indices"),
        ("linalg_svd.U", "U, S, Vh"),
        ("linalg_eigh.eigvals", "eigvals, eigvecs"),
        ("linalg_qr.out", "Q, R"),
        ("linalg_cholesky_ex.L", "L, info"),
        ("linalg_solve_ex.out", "result, info"),
        ("linalg_slogdet.out", "sign, logabsdet"),
        ("convolution_backward.out", "out0, out1, out2"),
        ("_thnn_fused_gru_cell.out", "out0, out1"),
    ];
    let schemas: Vec<_> = rows().iter().filter_map(Row::out_schema).collect();
    for (name, outs) in expected {
        let name = format!("aten::{name}");
        let schema = schemas.iter().find(|schema| schema.name.to_string() == name);
        let found: Vec<_> = schema.expect(&name).outs().map(|out| out.name.as_str()).collect();
        assert_eq!(found.join(", "), outs, "{name}");
    }
}
