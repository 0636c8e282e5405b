//! Forward mode of every row against reverse mode and against central differences.

mod cases;

use std::collections::BTreeMap;
use std::slice::from_ref;

use keyfold::Tensor;
use keyfold::layers::autograd::{self, Options};
use keyfold::ops::{Row, Rule, Tangent, aten, rows};
use keyfold_core::{Complex, DType, Device, ErrorKind, Result, Scalar};
use keyfold_dispatch::Value as _;
use keyfold_dispatch::schema::Type;
use keyfold_tensor::device::random;
use keyfold_tensor::{Value, ValueRef};

use cases::arguments;

/// The arguments of one call.
type Case = Vec<Value>;

fn real(shape: &[usize], from: usize) -> Value {
    let count: usize = shape.iter().product();
    // Distinct numbers of both signs that aren't multiples of each other.
    let item = |i: usize| {
        let sign = if (i + from).is_multiple_of(3) { -1.0 } else { 1.0 };
        sign * (0.35 + 0.21 * ((i * 5 + from * 2) % 11) as f64 + 0.013 * from as f64)
    };
    Value::Tensor(Tensor::from_vec((0..count).map(item).collect(), shape).unwrap())
}

fn positive(shape: &[usize], from: usize) -> Value {
    Value::Tensor(aten::abs(real(shape, from).as_ref().tensor().unwrap()).unwrap())
}

fn complex(shape: &[usize], from: usize) -> Value {
    let (re, im) = (real(shape, from), real(shape, from + 1));
    let (re, im) = (re.into_tensor().unwrap(), im.into_tensor().unwrap());
    let items = re.to_vec::<f64>().unwrap().into_iter().zip(im.to_vec::<f64>().unwrap());
    let items = items.map(|(re, im)| Complex::new(re, im)).collect();
    Value::Tensor(Tensor::from_vec(items, shape).unwrap())
}

fn whole(items: &[i64], shape: &[usize]) -> Value {
    Value::Tensor(Tensor::from_slice(items, shape).unwrap())
}

fn bools(items: &[bool], shape: &[usize]) -> Value {
    Value::Tensor(Tensor::from_slice(items, shape).unwrap())
}

fn ints(items: &[i64]) -> Value {
    Value::List(items.iter().map(|i| Value::Int(*i)).collect())
}

/// Returns calls of an expression's row, with inputs that broadcast and are positive or of both signs.
fn pointwise(row: &Row) -> Vec<Case> {
    let cases = [0, 1, 2].map(|which| {
        let mut tensors = 0;
        let arguments = row.schema().arguments.iter().map(|argument| match argument.ty {
            Type::Tensor if matches!(&*argument.name, "condition" | "mask") => {
                bools(&[true, false, true, false, false, true], &[2, 3])
            }
            Type::Tensor => {
                tensors += 1;
                let shape: &[usize] = if tensors == 2 { &[3] } else { &[2, 3] };
                match which {
                    0 => positive(shape, tensors),
                    1 => real(shape, tensors + 3),
                    _ => complex(shape, tensors),
                }
            }
            _ => Value::Float(1.5),
        });
        arguments.collect()
    });
    cases.into()
}

/// Returns calls of a row without an expression; none if no argument is a tensor.
fn others(name: &str) -> Vec<Case> {
    let x = || real(&[2, 3], 1);
    let (none, row) = (|| Value::None, || Value::Int(1));
    let picked = || Value::List(vec![whole(&[1, 0, 1], &[3]), whole(&[2, 0, 1], &[3])]);
    let slice = || [Value::Int(1), Value::Int(0), Value::None, Value::Int(2)];
    match name {
        "keyfold::elementwise" => vec![vec![
            Value::List(vec![x(), real(&[3], 4)]),
            Value::List(vec![Value::Float(0.5)]),
            Value::Str("x, y; a: a * x * sin(y)".into()),
            none(),
        ]],
        "aten::matmul" => [(&[2, 3][..], &[3, 4][..]), (&[3], &[3]), (&[2, 2, 3], &[3])]
            .into_iter()
            .flat_map(|(a, b)| [vec![real(a, 1), real(b, 2)], vec![complex(a, 1), complex(b, 2)]])
            .collect(),
        "aten::mm" => vec![vec![x(), real(&[3, 4], 2)], vec![x(), complex(&[3, 4], 2)]],
        "aten::bmm" => vec![vec![real(&[2, 2, 3], 1), real(&[2, 3, 2], 2)]],
        "aten::mv" => vec![vec![x(), real(&[3], 2)]],
        "aten::dot" => vec![vec![real(&[3], 1), real(&[3], 2)]],
        "aten::addmm" => [real(&[4], 3), complex(&[2, 4], 3)]
            .map(|own| vec![own, x(), real(&[3, 4], 2), Value::Float(0.5), Value::Float(-1.5)])
            .into(),
        "aten::baddbmm" => [real(&[4], 3), real(&[2, 2, 4], 3)]
            .map(|own| {
                let factors = [real(&[2, 2, 3], 1), real(&[2, 3, 4], 2)];
                [vec![own], factors.into(), vec![row(), Value::Float(2.5)]].concat()
            })
            .into(),
        "aten::linear" => vec![
            vec![x(), real(&[4, 3], 2), real(&[4], 3)],
            vec![x(), real(&[4, 3], 2), none()],
            vec![complex(&[2, 2, 3], 1), real(&[4, 3], 2), real(&[4], 3)],
            vec![x(), real(&[3], 2), real(&[], 3)],
        ],
        "keyfold::linear_activation" => {
            let of =
                |name: &str| vec![x(), real(&[4, 3], 2), real(&[4], 3), Value::Str(name.into())];
            ["none", "relu", "gelu", "gelu_tanh", "gelu_sigmoid", "sigmoid", "tanh"].map(of).into()
        }
        "aten::sum" | "aten::mean" => vec![vec![x(), none()], vec![complex(&[2, 3], 1), none()]],
        "aten::sum.dim" | "aten::mean.dim" => vec![
            vec![x(), ints(&[1]), Value::Bool(false), none()],
            vec![x(), none(), Value::Bool(true), none()],
        ],
        "aten::max" | "aten::min" => vec![vec![x()]],
        "aten::amax" | "aten::amin" | "aten::all" | "aten::any" => vec![
            vec![x(), ints(&[1]), Value::Bool(false)],
            vec![x(), ints(&[0, 1]), Value::Bool(true)],
            vec![x(), none(), Value::Bool(false)],
        ],
        "keyfold::has_inf_nan" => vec![vec![x()]],
        "aten::argmax" | "aten::argmin" => vec![vec![x(), row(), Value::Bool(false)]],
        "aten::softmax" | "aten::log_softmax" => {
            vec![vec![x(), Value::Int(-1)], vec![x(), Value::Int(0)]]
        }
        "aten::cumsum" | "aten::cumprod" => {
            let zeros = Tensor::from_slice(&[0.0, 2.0, 3.0, 0.5, 0.0, 0.0], &[2, 3]).unwrap();
            let of = |x: Value| vec![x, row(), none()];
            vec![of(x()), of(complex(&[2, 3], 1)), of(Value::Tensor(zeros))]
        }
        "aten::reshape" => vec![vec![x(), ints(&[3, -1])]],
        "aten::contiguous" | "aten::clone" | "aten::detach" | "aten::alias" | "aten::squeeze" => {
            vec![vec![x()], vec![complex(&[2, 1], 1)]]
        }
        "aten::to" => {
            vec![vec![x(), Value::DType(DType::F64)], vec![x(), Value::DType(DType::C128)]]
        }
        "aten::to.device" => vec![vec![x(), Value::Device(Device::CPU)]],
        "aten::transpose" => vec![vec![x(), Value::Int(0), row()]],
        "aten::permute" => vec![vec![x(), ints(&[1, 0])]],
        "aten::unsqueeze" => vec![vec![x(), row()]],
        "aten::squeeze.dim" => vec![vec![real(&[2, 1], 1), row()]],
        "aten::expand" => vec![vec![real(&[1, 3], 1), ints(&[2, 2, 3])]],
        "aten::flip" => vec![vec![x(), ints(&[0, 1])]],
        "aten::select.int" => vec![vec![x(), row(), Value::Int(2)]],
        "aten::slice.Tensor" => vec![[vec![x()], slice().into()].concat()],
        "aten::cat" | "aten::stack" => {
            vec![vec![Value::List(vec![x(), real(&[2, 3], 5)]), row()]]
        }
        "aten::select_scatter" => vec![vec![x(), real(&[2], 5), row(), Value::Int(2)]],
        "aten::slice_scatter" => vec![[vec![x(), real(&[2, 2], 5)], slice().into()].concat()],
        "aten::index.Tensor" => {
            vec![vec![x(), picked()], vec![x(), Value::List(vec![bools(&[true, false], &[2])])]]
        }
        "aten::index_put" | "aten::index_put_" => {
            [false, true].map(|adds| vec![x(), picked(), real(&[3], 5), Value::Bool(adds)]).into()
        }
        "aten::index_add" => vec![vec![x(), row(), whole(&[2, 0], &[2]), real(&[2, 2], 5)]],
        "aten::index_select" => vec![vec![x(), row(), whole(&[2, 0, 2], &[3])]],
        "aten::masked_select" => {
            vec![vec![x(), bools(&[true, false, true, true, false, false], &[2, 3])]]
        }
        "aten::split.Tensor" | "aten::chunk" | "aten::tensor_split.sections" => {
            vec![vec![x(), Value::Int(2), row()]]
        }
        "aten::split_with_sizes" | "aten::tensor_split.indices" => {
            let places = Value::List(vec![Value::Int(1), Value::Int(2)]);
            vec![vec![x(), places, row()]]
        }
        "aten::unbind.int" => vec![vec![x(), row()]],
        "aten::split_copy.Tensor_out" => {
            let out = Value::List(vec![real(&[1, 3], 5), real(&[1, 3], 6)]);
            vec![vec![x(), row(), Value::Int(0), out]]
        }
        "aten::split_with_sizes_copy.out" => {
            let sizes = Value::List(vec![Value::Int(2)]);
            vec![vec![x(), sizes, Value::Int(0), Value::List(vec![real(&[2, 3], 5)])]]
        }
        "aten::embedding" => {
            let no = || Value::Bool(false);
            vec![vec![x(), whole(&[1, 0, 1], &[3]), Value::Int(-1), no(), no()]]
        }
        "aten::embedding_dense_backward" => {
            let rest = [Value::Int(4), Value::Int(3), Value::Bool(false)];
            vec![[vec![x(), whole(&[3, 1], &[2])], rest.into()].concat()]
        }
        "keyfold::slice_write_" => vec![vec![x(), real(&[2], 5), row()]],
        "keyfold::slice_read" => vec![vec![x(), row()]],
        "aten::gather" => vec![vec![x(), row(), whole(&[2, 0, 1, 1], &[2, 2])]],
        "aten::scatter_add" => {
            vec![vec![x(), row(), whole(&[2, 0, 1, 1], &[2, 2]), real(&[2, 3], 5)]]
        }
        "aten::copy_" => vec![vec![x(), real(&[3], 5)]],
        "aten::fill_.Scalar" => vec![vec![x(), Value::Float(2.5)]],
        "keyfold::adam_step_" => {
            let state = [x(), x(), positive(&[2, 3], 2), positive(&[2, 3], 3), none(), row()];
            let numbers = [0.1, 0.9, 0.99, 1e-3, 0.5].map(Value::Float);
            let flags = [Value::Bool(false), Value::Bool(false)];
            vec![state.into_iter().chain(numbers).chain(flags).collect()]
        }
        "keyfold::sgd_step_" => {
            let numbers = [0.1, 0.0, 0.0, 0.5].map(Value::Float);
            let flags = [Value::Bool(false), Value::Bool(false)];
            vec![[x(), x(), none(), row()].into_iter().chain(numbers).chain(flags).collect()]
        }
        "aten::native_dropout" => {
            vec![
                vec![x(), Value::Float(0.5), none()],
                vec![x(), Value::Float(0.5), Value::Bool(false)],
            ]
        }
        "keyfold::dropout_threshold" => {
            vec![vec![x(), Value::Int(1 << 31), Value::Float(2.0), Value::Int(3), Value::Int(4)]]
        }
        "aten::dropout" => vec![vec![x(), Value::Float(0.5), Value::Bool(true)]],
        "aten::_thnn_fused_gru_cell" | "aten::_thnn_fused_lstm_cell" => {
            let gates = if name.contains("gru") { 6 } else { 8 };
            let cell = |biases: [Value; 2]| {
                let tensors = [real(&[2, gates], 1), real(&[2, gates], 2), real(&[2, 2], 3)];
                tensors.into_iter().chain(biases).collect()
            };
            vec![cell([none(), none()]), cell([real(&[gates], 4), real(&[gates], 5)])]
        }
        "aten::_thnn_fused_gru_cell_backward" => {
            vec![vec![real(&[2, 2], 1), real(&[2, 10], 2), Value::Bool(true)]]
        }
        "aten::_thnn_fused_lstm_cell_backward_impl" => {
            let states = [1, 2, 3, 4].map(|from| real(&[2, 2], from));
            vec![[&states[..], &[real(&[2, 8], 5), Value::Bool(true)]].concat()]
        }
        "aten::gru_cell" => {
            let shapes: [&[usize]; 6] = [&[2, 3], &[2, 2], &[6, 3], &[6, 2], &[6], &[6]];
            vec![shapes.iter().enumerate().map(|(from, shape)| real(shape, from)).collect()]
        }
        "aten::lstm_cell" => {
            let shapes: [&[usize]; 5] = [&[2, 3], &[8, 3], &[8, 2], &[8], &[8]];
            let mut all: Case = shapes.iter().enumerate().map(|(i, s)| real(s, i)).collect();
            all.insert(1, Value::List(vec![real(&[2, 2], 6), real(&[2, 2], 7)]));
            vec![all]
        }
        name if name.starts_with("aten::linalg_") => decompositions(name),
        _ => Vec::new(),
    }
}

/// Operators of symmetric matrices, which move in symmetric directions only.
const OF_SYMMETRIC: [&str; 4] = [
    "aten::linalg_eigh",
    "aten::linalg_eigvalsh",
    "aten::linalg_cholesky",
    "aten::linalg_cholesky_ex",
];

/// Returns the sum of matrices and the transposed ones.
fn symmetric(x: &Tensor) -> Result<Tensor> {
    aten::add(x, &aten::transpose(x, -1, -2)?)
}

/// Returns calls of decompositions and of linear systems.
fn decompositions(name: &str) -> Vec<Case> {
    let none = || Value::None;
    let square = || real(&[2, 3, 3], 1);
    let positive = || {
        let x = symmetric(square().as_ref().tensor().unwrap()).unwrap();
        let shift: Vec<f64> =
            (0..9).map(|i| [8.0, 0.0, 0.0, 0.0][i % 4] + i as f64 / 9.0).collect();
        let shift = symmetric(&Tensor::from_vec(shift, &[3, 3]).unwrap()).unwrap();
        Value::Tensor(aten::add(&x, &shift).unwrap())
    };
    let flag = Value::Bool;
    match name.trim_start_matches("aten::linalg_") {
        "svd" => [&[3, 2][..], &[2, 3], &[2, 2, 2]]
            .map(|shape| vec![real(shape, 1), flag(false), none()])
            .into(),
        "svdvals" => vec![vec![real(&[2, 3, 2], 1), none()]],
        "qr" => [&[3, 2][..], &[2, 3], &[2, 2, 2]]
            .map(|shape| vec![real(shape, 1), Value::Str("reduced".into())])
            .into(),
        "eigh" | "eigvalsh" => {
            ["L", "U"].map(|name| vec![positive(), Value::Str(name.into())]).into()
        }
        "cholesky" => [true, false].map(|upper| vec![positive(), flag(upper)]).into(),
        "cholesky_ex" => vec![vec![positive(), flag(false), flag(false)]],
        "solve" => vec![
            vec![square(), real(&[3, 2], 2), flag(true)],
            vec![square(), real(&[3], 2), flag(true)],
            vec![square(), real(&[2, 3], 2), flag(true)],
            vec![square(), real(&[2, 2, 3], 2), flag(false)],
        ],
        "solve_ex" => vec![vec![square(), real(&[3, 2], 2), flag(true), flag(false)]],
        "solve_triangular" => [(true, true, false), (false, true, true), (true, false, false)]
            .map(|(upper, left, unit)| {
                vec![square(), real(&[3, 3], 2), flag(upper), flag(left), flag(unit)]
            })
            .into(),
        _ => vec![vec![square()]],
    }
}

/// Returns the floating and complex tensors of a call, in order.
fn primals(case: &Case) -> Vec<Tensor> {
    fn gather(value: &Value, found: &mut Vec<Tensor>) {
        match value {
            Value::Tensor(tensor)
                if tensor.dtype().is_floating() || tensor.dtype().is_complex() =>
            {
                found.push(tensor.clone());
            }
            Value::List(items) => items.iter().for_each(|item| gather(item, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    case.iter().for_each(|value| gather(value, &mut found));
    found
}

/// Calls the operator with other floating and complex tensors.
fn call(row: &Row, case: &Case, tensors: &[Tensor]) -> Result<Tensor> {
    fn replaced(value: &Value, rest: &mut std::slice::Iter<'_, Tensor>) -> Value {
        match value {
            Value::Tensor(tensor)
                if tensor.dtype().is_floating() || tensor.dtype().is_complex() =>
            {
                Value::Tensor(rest.next().unwrap().clone())
            }
            Value::List(items) => {
                Value::List(items.iter().map(|item| replaced(item, rest)).collect())
            }
            other => other.clone(),
        }
    }
    let writes = row.schema().arguments[0].alias.as_ref().is_some_and(|alias| alias.write);
    let mut tensors = tensors.to_vec();
    if writes {
        // A written argument is a copy of the caller's tensor.
        tensors[0] = aten::clone(&tensors[0])?;
    }
    let mut rest = tensors.iter();
    let mut args: Vec<Value> = case.iter().map(|value| replaced(value, &mut rest)).collect();
    drop(tensors);
    random::manual_seed(7)?;
    let result = {
        let refs: Vec<ValueRef<'_>> = args.iter().map(Value::as_ref).collect();
        keyfold::dispatcher().call(&row.schema().name.to_string(), &refs)?
    };
    match result {
        Value::Argument(at) => args.swap_remove(at).into_tensor(),
        Value::Tuple(results) | Value::List(results) => joined(results),
        other => other.into_tensor(),
    }
}

/// Returns the elements of all floating and complex results, one behind the other.
fn joined(results: Vec<Value>) -> Result<Tensor> {
    let tensors = results.into_iter().map(Value::into_tensor).collect::<Result<Vec<_>>>()?;
    let inexact = |x: &&Tensor| x.dtype().is_floating() || x.dtype().is_complex();
    let flat = tensors.iter().filter(inexact).map(|x| aten::reshape(x, &[-1]));
    aten::cat(&flat.collect::<Result<Vec<_>>>()?, 0)
}

/// Returns the real and imaginary parts of the elements.
fn numbers(tensor: &Tensor) -> Vec<f64> {
    match tensor.dtype().is_complex() {
        true => {
            let items = tensor.to_vec::<Complex<f64>>().unwrap();
            items.into_iter().flat_map(|item| [item.re, item.im]).collect()
        }
        false => tensor.to_vec::<f64>().unwrap(),
    }
}

/// Makes a tangent for a tensor.
fn direction(like: &Tensor, from: usize) -> Tensor {
    let shape = like.shape();
    let made = if like.dtype().is_complex() { complex(shape, from) } else { real(shape, from) };
    made.into_tensor().unwrap()
}

/// Returns the real inner product.
fn product(a: &Tensor, b: &Tensor) -> f64 {
    numbers(a).iter().zip(numbers(b)).map(|(a, b)| a * b).sum()
}

fn close(a: f64, b: f64, tolerance: f64) -> bool {
    a.is_nan() && b.is_nan() || (a - b).abs() <= tolerance * a.abs().max(b.abs()).max(1.0)
}

/// Compares forward mode of a call with reverse mode and with central differences. Returns whether the result
/// has a derivative.
fn compare(row: &Row, case: &Case) -> Result<bool> {
    let name = &row.schema().name;
    let primals = primals(case);
    if primals.is_empty() {
        call(row, case, &primals)?;
        return Ok(false);
    }
    let tangents: Vec<Tensor> =
        primals.iter().enumerate().map(|(i, x)| direction(x, i + 3)).collect();
    let tangents: Vec<Tensor> = match OF_SYMMETRIC.contains(&&*name.to_string()) {
        true => tangents.iter().map(symmetric).collect::<Result<_>>()?,
        false => tangents,
    };
    let (values, found) = autograd::jvp(|x| Ok(vec![call(row, case, x)?]), &primals, &tangents)?;
    let (value, tangent) = (&values[0], &found[0]);
    assert_eq!((value.shape(), value.dtype()), (tangent.shape(), tangent.dtype()), "{name}");
    if !value.dtype().is_floating() && !value.dtype().is_complex() {
        return Ok(false);
    }
    let step = 1e-6;
    let moved = |sign: f64| {
        let both = primals.iter().zip(&tangents);
        let moved = both.map(|(x, t)| aten::add(x, &aten::mul_scalar(t, sign * step)?));
        call(row, case, &moved.collect::<Result<Vec<_>>>()?)
    };
    let (up, down) = (numbers(&moved(1.0)?), numbers(&moved(-1.0)?));
    let cut = matches!(row.layers().tangent, Rule::Refused(_));
    for (found, (up, down)) in numbers(tangent).iter().zip(up.iter().zip(down)) {
        let difference = if cut { 0.0 } else { (up - down) / (2.0 * step) };
        // Outside of a function's domain the formula of the derivative may be finite.
        let undefined = difference.is_nan();
        assert!(
            undefined || close(*found, difference, 1e-7),
            "{name}: {found}, {difference} by differences"
        );
    }
    if cut {
        return Ok(true);
    }
    let leaves: Vec<Tensor> = primals.iter().map(Tensor::detach).collect();
    leaves.iter().try_for_each(|leaf| autograd::set_requires_grad(leaf, true))?;
    let result = call(row, case, &leaves)?;
    let seed = direction(&result, 1);
    let grads = match autograd::requires_grad(&result) {
        true => {
            autograd::grad(&[result], &leaves, &[Some(seed.clone())], Options::default(), &|| {
                Ok(())
            })?
        }
        false => vec![None; leaves.len()],
    };
    let back: f64 = grads
        .iter()
        .zip(&tangents)
        .filter_map(|(grad, tangent)| grad.as_ref().map(|grad| product(grad, tangent)))
        .sum();
    let forward = product(&seed, tangent);
    assert!(close(forward, back, 1e-12), "{name}: {forward} forward, {back} in reverse");
    Ok(true)
}

#[test]
fn forward_mode_of_every_row_equals_reverse_mode_and_differences() {
    keyfold::init();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut compared, mut complex_ones) = (0, 0);
    for row in rows() {
        let name = row.schema().name.to_string();
        if name == "keyfold::matmul_mixed" {
            // It takes no float64, and differences of rounded factors mean nothing.
            continue;
        }
        let mut cases = if row.expression().is_some() { pointwise(row) } else { others(&name) };
        if cases.is_empty() && row.schema().arguments.iter().any(|arg| arg.ty == Type::Tensor) {
            cases = vec![arguments(row, DType::F64)];
        }
        let rule = row.layers().tangent;
        let reason = match rule {
            Rule::Given(Tangent::Linear) => "linear",
            Rule::Given(Tangent::Multilinear) => "multilinear",
            Rule::Given(_) => "given",
            Rule::Derived => "derived",
            Rule::Refused(reason) => reason,
        };
        *counts.entry(reason).or_default() += 1;
        let takes_none = reason == "no argument is a tensor";
        assert_eq!(cases.is_empty(), takes_none, "{name}: no calls to compare");
        let mut differentiable = 0;
        for case in &cases {
            let is_complex = primals(case).iter().any(|x| x.dtype().is_complex());
            match compare(row, case) {
                Ok(true) => {
                    differentiable += 1;
                    complex_ones += usize::from(is_complex);
                }
                Ok(false) => {}
                // Not of all dtypes: bit patterns of integers alone, order of real ones alone.
                Err(error) if is_complex || matches!(rule, Rule::Refused(_)) => {
                    // A refused rule is said when the call is differentiated.
                    let refused = matches!(rule, Rule::Refused(_)) && !is_complex;
                    let expected = match error.kind() {
                        ErrorKind::Gradient => refused,
                        kind => matches!(kind, ErrorKind::DType | ErrorKind::Value),
                    };
                    assert!(expected, "{name}: {error}");
                }
                Err(error) => panic!("{name}: {error}"),
            }
        }
        if !matches!(rule, Rule::Refused(_)) {
            assert!(differentiable > 0, "{name}: no call with a derivative");
        }
        compared += differentiable;
    }
    let counts: Vec<(&str, usize)> = counts.into_iter().collect();
    assert_eq!(counts, COUNTS, "rows by their rule of forward mode; a new row changes them");
    assert_eq!((compared, complex_ones), CALLS, "calls compared; a new row changes how many");
}

const COUNTS: &[(&str, usize)] = &[
    ("derived", 91),
    ("detaches its result", 1),
    ("given", 54),
    ("gradients that are differentiated are computed by the operators of the cell's derivative", 2),
    ("it writes to its outputs", 2),
    ("it writes to its state, too", 2),
    ("linear", 50),
    ("multilinear", 5),
    ("no argument is a tensor", 7),
    ("no argument is floating or complex", 1),
    ("tangents of gradients go through the operators that they are written in", 1),
    ("the result is bool", 19),
    ("the result is bool or integer", 15),
];
const CALLS: (usize, usize) = (360, 50);

fn number(value: f64) -> Tensor {
    Tensor::full(&[], Scalar::Float(value), DType::F64, Device::CPU).unwrap()
}

/// Computes the derivative of a function of one number.
fn derivative(f: impl Fn(&Tensor) -> Result<Tensor>, at: &Tensor) -> Result<Tensor> {
    let (_, mut tangents) = autograd::jvp(|x| Ok(vec![f(&x[0])?]), from_ref(at), &[number(1.0)])?;
    Ok(tangents.remove(0))
}

#[test]
fn levels_nest_without_confusion() {
    keyfold::init();
    let cube = |x: &Tensor| aten::mul(&aten::mul(x, x)?, x);
    let second = derivative(|x| derivative(cube, x), &number(2.0)).unwrap();
    assert_eq!(second.item().unwrap().as_f64(), 12.0);
    let third = derivative(|x| derivative(|x| derivative(cube, x), x), &number(2.0)).unwrap();
    assert_eq!(third.item().unwrap().as_f64(), 6.0);
    // d/dx (x * d/dy (x + y)) is 1: the inner level ignores x's tangent.
    let outer =
        derivative(|x| aten::mul(x, &derivative(|y| aten::add(x, y), &number(1.0))?), &number(3.0));
    assert_eq!(outer.unwrap().item().unwrap().as_f64(), 1.0);
}

#[test]
fn both_modes_differentiate_each_other() {
    keyfold::init();
    // f(x) = sum(exp(x) * x): f' = exp(x) (x + 1), f'' = exp(x) (x + 2).
    let f = |x: &Tensor| aten::sum_all(&aten::mul(&aten::exp(x)?, x)?);
    let gradient = |x: &Tensor| -> Result<Tensor> {
        let x = autograd::per_example::variable(x)?;
        let grads = autograd::grad(&[f(&x)?], &[x], &[], Options::default(), &|| Ok(()))?;
        Ok(grads[0].clone().unwrap())
    };
    let x = Tensor::from_slice(&[0.5, -1.0], &[2]).unwrap();
    let t = Tensor::from_slice(&[1.0, 2.0], &[2]).unwrap();
    let expected = [0.5_f64.exp() * 2.5, (-1.0_f64).exp() * 2.0];
    let check = |found: &Tensor| {
        let found = found.to_vec::<f64>().unwrap();
        assert!(found.iter().zip(expected).all(|(a, b)| close(*a, b, 1e-14)), "{found:?}");
    };
    // Forward over reverse: nodes save tensors with their tangents.
    let (_, found) =
        autograd::jvp(|x| Ok(vec![gradient(&x[0])?]), from_ref(&x), from_ref(&t)).unwrap();
    assert!(!found[0].requires_grad());
    check(&found[0]);
    // Reverse over forward: the computation of tangents is recorded.
    let leaf = x.detach();
    autograd::set_requires_grad(&leaf, true).unwrap();
    let (_, along) = autograd::jvp(|x| Ok(vec![f(&x[0])?]), from_ref(&leaf), &[t]).unwrap();
    let grads = autograd::grad(&along, &[leaf], &[], Options::default(), &|| Ok(())).unwrap();
    check(grads[0].as_ref().unwrap());
}

#[test]
fn tangents_that_mean_nothing_any_more_are_errors() {
    keyfold::init();
    let (x, t) = (number(2.0), number(1.0));
    let mut kept = None;
    let square = |x: &Tensor| aten::mul(x, x);
    autograd::jvp(
        |x| {
            kept = Some(x[0].clone());
            Ok(vec![square(&x[0])?])
        },
        from_ref(&x),
        from_ref(&t),
    )
    .unwrap();
    let error = square(&kept.unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gradient);
    assert!(error.message().contains("has ended"), "{error}");

    let wrong = |primal: Tensor, tangent: Tensor| {
        autograd::jvp(|x| Ok(x.to_vec()), &[primal], &[tangent]).unwrap_err()
    };
    let error = wrong(x, Tensor::from_slice(&[1.0], &[1]).unwrap());
    assert!(error.message().contains("primal 0: a tangent of float64[1]"), "{error}");
    let whole = Tensor::from_slice(&[1_i64], &[1]).unwrap();
    assert_eq!(wrong(whole.clone(), whole).kind(), ErrorKind::DType);
}
