//! The calls whose forward mode is compared: of each row.

use keyfold::Tensor;
use keyfold::ops::{Row, aten};
use keyfold_core::{Complex, DType, Device, Result};
use keyfold_dispatch::Value as _;
use keyfold_dispatch::schema::Type;
use keyfold_tensor::Value;

/// The arguments of one call.
pub(crate) type Case = Vec<Value>;

pub(crate) fn real(shape: &[usize], from: usize) -> Value {
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

pub(crate) fn complex(shape: &[usize], from: usize) -> Value {
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
pub(crate) fn pointwise(row: &Row) -> Vec<Case> {
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
pub(crate) fn others(name: &str) -> Vec<Case> {
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
pub(crate) const OF_SYMMETRIC: [&str; 4] = [
    "aten::linalg_eigh",
    "aten::linalg_eigvalsh",
    "aten::linalg_cholesky",
    "aten::linalg_cholesky_ex",
];

/// Returns the sum of matrices and the transposed ones.
pub(crate) fn symmetric(x: &Tensor) -> Result<Tensor> {
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
