//! The validator: each rule has a mutation of a valid graph that breaks it, and the words of its error.

#[path = "support/samples.rs"]
mod samples;

use keyfold_core::ErrorKind::{self, DType, Index, Shape, Value};
use keyfold_cudnn::{
    DataType, Float, Fraction, GraphSpec, NormMode, Number, OpSpec, Operation, PaddingMode,
    Pointwise, PointwiseMode, Port, TensorSpec, Uid,
};
use samples::{sample, samples};

type Mutation = fn(&mut GraphSpec);

fn tensor<'a>(g: &'a mut GraphSpec, name: &str) -> &'a mut TensorSpec {
    let found = g.tensors.iter_mut().find(|tensor| tensor.name == name);
    found.unwrap_or_else(|| panic!("no tensor {name}"))
}

fn uid(g: &GraphSpec, name: &str) -> Uid {
    g.tensors.iter().find(|tensor| tensor.name == name).unwrap().uid
}

/// Gives a tensor packed dimensions.
fn dims(g: &mut GraphSpec, name: &str, dims: &[i64]) {
    let tensor = tensor(g, name);
    tensor.dims = dims.to_vec();
    tensor.strides = vec![1; dims.len()];
    for axis in (1..dims.len()).rev() {
        tensor.strides[axis - 1] = tensor.strides[axis].wrapping_mul(dims[axis].max(1));
    }
}

fn op(g: &mut GraphSpec) -> &mut OpSpec {
    &mut g.operations[0]
}

/// Leaves a tensor out, and what an operation does with it.
fn drop_input(g: &mut GraphSpec, port: Port) {
    op(g).inputs.retain(|entry| entry.0 != port);
    drop_unused(g);
}

fn drop_unused(g: &mut GraphSpec) {
    let used: Vec<Uid> = g
        .operations
        .iter()
        .flat_map(|op| op.inputs.iter().chain(&op.outputs))
        .map(|e| e.1)
        .collect();
    g.tensors.retain(|tensor| used.contains(&tensor.uid));
}

fn conv(g: &mut GraphSpec) -> &mut keyfold_cudnn::Convolution {
    match &mut op(g).operation {
        Operation::ConvFprop(conv) | Operation::ConvDgrad(conv) | Operation::ConvWgrad(conv) => {
            conv
        }
        other => panic!("{other:?}"),
    }
}

fn pool(g: &mut GraphSpec) -> &mut keyfold_cudnn::Resample {
    match &mut op(g).operation {
        Operation::Resample(pool) | Operation::ResampleBackward(pool) => pool,
        other => panic!("{other:?}"),
    }
}

fn norm(g: &mut GraphSpec) -> &mut keyfold_cudnn::Norm {
    match &mut op(g).operation {
        Operation::Norm(norm) | Operation::NormBackward(norm) => norm,
        other => panic!("{other:?}"),
    }
}

fn attention(g: &mut GraphSpec) -> &mut keyfold_cudnn::Attention {
    match &mut op(g).operation {
        Operation::Sdpa(attention) | Operation::SdpaBackward(attention) => attention,
        other => panic!("{other:?}"),
    }
}

fn slice(g: &mut GraphSpec) -> &mut keyfold_cudnn::Slice {
    match &mut op(g).operation {
        Operation::Slice(slice) => slice,
        other => panic!("{other:?}"),
    }
}

fn concatenate(g: &mut GraphSpec) -> &mut keyfold_cudnn::Concatenate {
    match &mut op(g).operation {
        Operation::Concatenate(concatenate) => concatenate,
        other => panic!("{other:?}"),
    }
}

/// Each sample, a mutation of it, and the error: its kind, and words of its message.
type Rule = (&'static str, Mutation, ErrorKind, &'static [&'static str]);

/// Rules of structure and of single tensors.
const STRUCTURE: &[Rule] = &[
    ("matmul", |g| g.operations.clear(), Value, &["\"matmul\"", "no operation", "4 tensors"]),
    ("matmul", |g| tensor(g, "a").uid = 0, Value, &["tensor \"a\"", "uid is 0"]),
    ("matmul", |g| tensor(g, "a").uid = 2, Value, &["uid 2", "\"a\"", "\"b\""]),
    ("matmul", |g| op(g).inputs[0].1 = 77, Value, &["matmul", "a is tensor #77", "doesn't have"]),
    ("matmul", |g| op(g).outputs[0].1 = 77, Value, &["c is tensor #77"]),
    ("matmul", |g| op(g).inputs.truncate(1), Value, &["no tensor at its input b"]),
    ("matmul", |g| op(g).inputs.push((Port::A, 1)), Value, &["2 tensors at its input a"]),
    ("matmul", |g| op(g).inputs.push((Port::Q, 1)), Value, &["no input q", "a, b, m_override"]),
    ("matmul", |g| op(g).outputs.clear(), Value, &["no tensor at its output c"]),
    ("matmul", |g| op(g).outputs.push((Port::Y, 1)), Value, &["no output y", "it has c"]),
    ("concatenate", |g| op(g).inputs.clear(), Value, &["no tensor at its input x"]),
    (
        "matmul",
        |g| g.tensors.push(TensorSpec::number(9, DataType::F32, 1, Number::Int(1)).named("left")),
        Value,
        &["tensor \"left\"", "no operation reads or writes it"],
    ),
    (
        "matmul",
        |g| tensor(g, "a").is_virtual = true,
        Value,
        &["tensor \"a\"", "virtual", "no operation writes it"],
    ),
    (
        "matmul",
        |g| tensor(g, "c").is_virtual = true,
        Value,
        &["tensor \"c\"", "no operation reads it", "set_output"],
    ),
    (
        "matmul",
        |g| {
            let again = op(g).clone();
            g.operations.push(OpSpec { name: "again".to_string(), ..again });
        },
        Value,
        &["node \"again\" (matmul)", "tensor \"c\"", "matmul writes too"],
    ),
    (
        "conv_relu",
        |g| {
            let y = uid(g, "y");
            g.operations[1].inputs[0].1 = y;
        },
        Value,
        &["tensor \"c\"", "no operation reads it"],
    ),
    (
        "conv_relu",
        |g| {
            let y = uid(g, "y");
            g.operations[1].inputs[1].1 = y;
            drop_unused(g);
        },
        Value,
        &["\"conv_relu\"", "cycle", "relu, add, relu"],
    ),
    (
        "relu_backward",
        |g| {
            let dx = uid(g, "dx");
            op(g).inputs[0].1 = dx;
            drop_unused(g);
        },
        Value,
        &["cycle", "relu_backward, relu_backward"],
    ),
    ("matmul", |g| tensor(g, "a").dtype = None, DType, &["tensor \"a\"", "no dtype", "set it"]),
    ("matmul", |g| op(g).compute = None, DType, &["no compute dtype", "f32"]),
    ("matmul", |g| dims(g, "a", &[2, 0, 4]), Shape, &["\"a\"", "dimension 1", "[2, 0, 4]", "is 0"]),
    ("matmul", |g| dims(g, "a", &[2, -3, 4]), Shape, &["dimension 1", "is -3", "1 or more"]),
    ("matmul", |g| dims(g, "a", &[]), Shape, &["0 dimensions", "1 to 8"]),
    ("matmul", |g| dims(g, "a", &[1; 9]), Shape, &["9 dimensions", "1 to 8"]),
    ("matmul", |g| dims(g, "a", &[i64::MAX, 4, 4]), Shape, &["overflow"]),
    ("matmul", |g| tensor(g, "a").strides[0] = i64::MAX, Shape, &["strides", "overflow"]),
    ("matmul", |g| tensor(g, "a").strides.truncate(2), Shape, &["2 strides", "3 dimensions"]),
    ("matmul", |g| tensor(g, "a").strides[1] = -4, Shape, &["stride 1", "-4", "0 or more"]),
    ("matmul", |g| tensor(g, "a").alignment = 3, Value, &["alignment is 3", "power of two", "4"]),
    ("matmul", |g| tensor(g, "a").alignment = 2, Value, &["alignment is 2", "4 or more for f32"]),
    ("matmul", |g| tensor(g, "a").alignment = 0, Value, &["alignment is 0"]),
    ("matmul", |g| tensor(g, "a").alignment = -16, Value, &["alignment is -16"]),
    (
        "matmul",
        |g| tensor(g, "c").strides[2] = 0,
        Shape,
        &["output c", "\"c\"", "overlap", "stride 2"],
    ),
    (
        "matmul",
        |g| tensor(g, "c").strides[1] = 4,
        Shape,
        &["tensor \"c\"", "overlap", "stride 1 is 4", "5 or more"],
    ),
    (
        "matmul",
        |g| tensor(g, "a").strides = vec![999, 1, 1],
        Shape,
        &["tensor \"a\"", "[999, 1, 1]", "overlap", "0 for a dimension that is broadcast"],
    ),
    ("matmul", |g| tensor(g, "a").by_value = true, Shape, &["by value", "[2, 3, 4]"]),
    (
        "mask",
        |g| {
            let fill = g.tensors.iter_mut().find(|tensor| tensor.by_value).unwrap();
            fill.is_virtual = true;
        },
        Value,
        &["by value and virtual"],
    ),
    (
        "mask",
        |g| g.tensors.iter_mut().find(|tensor| tensor.by_value).unwrap().by_value = false,
        Value,
        &["scalar", "by_value"],
    ),
    (
        "reduction",
        |g| {
            dims(g, "y", &[1, 1, 1]);
            tensor(g, "y").by_value = true;
        },
        Value,
        &["writes tensor \"y\"", "by value"],
    ),
];

/// Rules of convolutions, pooling, and of functions of elements.
const SPACE: &[Rule] = &[
    (
        "conv_relu",
        |g| dims(g, "x", &[2, 5, 5, 5]),
        Shape,
        &["node \"conv\"", "5 channels", "must be 2"],
    ),
    (
        "conv_relu",
        |g| dims(g, "w", &[5, 2, 3, 3]),
        Shape,
        &["2 groups", "5 filters", "multiple of 2"],
    ),
    ("conv_relu", |g| dims(g, "w", &[6, 2, 9, 3]), Shape, &["covers 9", "padded input has 7"]),
    (
        "conv_relu",
        |g| conv(g).dilation[0] = 4,
        Shape,
        &["covers 9", "dilation 4", "has 7 (5 + 1 + 1)"],
    ),
    ("conv_relu", |g| dims(g, "w", &[6, 2, 3]), Shape, &["as many dimensions"]),
    ("conv_relu", |g| dims(g, "x", &[2, 4]), Shape, &["x (tensor \"x\", [2, 4])", "3 to 5"]),
    ("conv_relu", |g| conv(g).stride[1] = 0, Value, &["stride [2, 0] has 0", "1 or more"]),
    ("conv_relu", |g| conv(g).dilation[1] = 0, Value, &["dilation [1, 0] has 0"]),
    ("conv_relu", |g| conv(g).pre_padding[0] = -1, Value, &["pre_padding [-1, 1] has -1"]),
    ("conv_relu", |g| conv(g).post_padding.push(1), Value, &["post_padding has 3", "needs 2"]),
    ("conv_relu", |g| conv(g).stride.clear(), Value, &["stride has 0 numbers", "needs 2"]),
    ("conv_relu", |g| conv(g).beta = Float(1.0), Value, &["beta is 1", "\"c\"", "virtual"]),
    (
        "conv_relu",
        |g| dims(g, "c", &[2, 6, 3, 4]),
        Shape,
        &["output y (tensor \"c\") is [2, 6, 3, 4]", "must be [2, 6, 3, 3]", "x [2, 4, 5, 5]"],
    ),
    ("conv_relu", |g| conv(g).pre_padding[0] = i64::MAX, Shape, &["overflow"]),
    ("conv_relu", |g| dims(g, "b", &[1, 5, 1, 1]), Shape, &["\"b\"", "broadcast", "[1, 5, 1, 1]"]),
    ("conv_relu", |g| dims(g, "b", &[6, 1, 1]), Shape, &["broadcast", "as many dimensions"]),
    ("dgrad", |g| dims(g, "dy", &[2, 5, 3, 3]), Shape, &["dy has 5 channels", "w has 6 filters"]),
    ("dgrad", |g| dims(g, "dx", &[2, 4, 9, 6]), Shape, &["dy", "must be [2, 6, 5, 3]"]),
    ("dgrad", |g| dims(g, "dx", &[2, 3, 5, 5]), Shape, &["dx", "3 channels"]),
    ("wgrad", |g| dims(g, "dw", &[6, 3, 3, 3]), Shape, &["4 channels", "must be 3"]),
    ("wgrad", |g| dims(g, "dw", &[6, 2, 1, 3]), Shape, &["must be [2, 6, 4, 3]"]),
    ("wgrad", |g| dims(g, "dy", &[1, 6, 3, 3]), Shape, &["as many images"]),
    ("wgrad", |g| dims(g, "dy", &[2, 6, 9, 3]), Shape, &["begins at 16", "has 7"]),
    ("maxpool", |g| pool(g).window.clear(), Value, &["window is unset", "2 numbers"]),
    ("maxpool", |g| pool(g).window[0] = 0, Value, &["window [0, 3] has 0"]),
    ("maxpool", |g| pool(g).window[0] = 9, Shape, &["too small", "9 elements", "5 + 1 + 1"]),
    ("maxpool", |g| pool(g).stride[0] = 0.into(), Value, &["stride 0/1", "1 or more"]),
    ("maxpool", |g| pool(g).stride.clear(), Value, &["stride has 0 numbers"]),
    ("maxpool", |g| pool(g).pre_padding[0] = (-1).into(), Value, &["pre_padding -1/1"]),
    ("maxpool", |g| pool(g).pre_padding[1] = 3.into(), Value, &["padding alone", "3 before"]),
    ("maxpool", |g| pool(g).post_padding[1] = 5.into(), Value, &["padding alone", "5 behind"]),
    ("maxpool", |g| pool(g).padding_mode = PaddingMode::Zero, Value, &["Zero", "neg_inf"]),
    (
        "maxpool",
        |g| pool(g).stride[0] = Fraction { numerator: 3, denominator: 2 },
        Value,
        &["stride 3/2", "whole number"],
    ),
    (
        "bilinear",
        |g| pool(g).stride[0] = Fraction { numerator: 3, denominator: 0 },
        Value,
        &["stride 3/0", "over 1 to 65536"],
    ),
    ("bilinear", |g| pool(g).padding_mode = PaddingMode::NegInf, Value, &["NegInf", "edge_value"]),
    ("maxpool", |g| dims(g, "index", &[2, 3, 3, 2]), Shape, &["index", "must be [2, 3, 3, 3]"]),
    ("maxpool", |g| tensor(g, "index").dtype = Some(DataType::F32), DType, &["index", "f32", "i8"]),
    (
        "maxpool",
        |g| {
            dims(g, "x", &[2, 3, 16, 16]);
            dims(g, "y", &[2, 3, 1, 1]);
            dims(g, "index", &[2, 3, 1, 1]);
            pool(g).window = vec![18, 18];
        },
        DType,
        &["i8", "128 elements", "[18, 18]"],
    ),
    ("maxpool_backward", |g| drop_input(g, Port::Y), Value, &["neither index nor y"]),
    ("maxpool_backward", |g| dims(g, "dy", &[2, 3, 4, 3]), Shape, &["must be [2, 3, 4, 3]"]),
    ("maxpool_backward", |g| dims(g, "dx", &[2, 3, 6, 5]), Shape, &["dx", "dimensions of x"]),
    ("avgpool_backward", |g| dims(g, "dx", &[2, 3, 7, 5]), Shape, &["dy", "makes of dx"]),
    (
        "select",
        |g| {
            if let Operation::Pointwise(index) = &mut g.operations[0].operation {
                index.axis = None;
            }
        },
        Value,
        &["gen_index has no axis", "3 dimensions"],
    ),
    (
        "select",
        |g| {
            if let Operation::Pointwise(index) = &mut g.operations[1].operation {
                index.axis = Some(3);
            }
        },
        Index,
        &["axis 3", "outside the 3 dimensions"],
    ),
    (
        "select",
        |g| {
            let x = uid(g, "x");
            g.operations[3].inputs[2].1 = x;
            g.operations.truncate(4);
            g.operations.drain(..3);
            drop_unused(g);
        },
        DType,
        &["binary_select", "t (tensor \"x\") is f32", "bool"],
    ),
    (
        "relu_backward",
        |g| {
            op(g).operation = Operation::Pointwise(Pointwise::new(PointwiseMode::Relu));
            op(g).inputs.remove(0);
        },
        Value,
        &["relu", "no output dx", "has y"],
    ),
    ("relu_backward", |g| dims(g, "dx", &[1, 3]), Shape, &["must be [2, 3]", "dy [2, 3]"]),
];

/// Rules of products, reductions, and of what moves elements.
const MOVEMENT: &[Rule] = &[
    ("matmul", |g| dims(g, "b", &[1, 5, 5]), Shape, &["a has 4 columns", "b has 5 rows"]),
    ("matmul", |g| dims(g, "b", &[3, 4, 5]), Shape, &["sizes 2 and 3", "dimension 0"]),
    ("matmul", |g| dims(g, "b", &[4, 5]), Shape, &["as many dimensions"]),
    (
        "matmul",
        |g| {
            dims(g, "a", &[2, 6, 3, 4]);
            dims(g, "b", &[2, 4, 4, 5]);
        },
        Shape,
        &["sizes 6 and 4 of dimension 1", "or a's a multiple of b's"],
    ),
    (
        // Heads of `a` share those of `b`, and not the other way round.
        "matmul",
        |g| {
            dims(g, "a", &[2, 2, 3, 4]);
            dims(g, "b", &[2, 6, 4, 5]);
        },
        Shape,
        &["sizes 2 and 6 of dimension 1"],
    ),
    ("matmul", |g| dims(g, "a", &[4]), Shape, &["1 dimensions", "2 to 8"]),
    ("matmul", |g| dims(g, "m", &[2, 3, 1]), Shape, &["m_override", "\"m\"", "last two sizes"]),
    ("matmul", |g| tensor(g, "m").dtype = Some(DataType::F32), DType, &["m_override", "i32, i64"]),
    (
        "matmul",
        |g| tensor(g, "a").dtype = Some(DataType::Bool),
        DType,
        &["a (tensor \"a\") is bool"],
    ),
    ("matmul", |g| op(g).compute = Some(DataType::E4M3), DType, &["compute dtype is e4m3"]),
    ("matmul", |g| op(g).compute = Some(DataType::I32), DType, &["i32", "a (tensor \"a\") is f32"]),
    ("grouped_matmul", |g| dims(g, "t", &[2, 6, 4]), Shape, &["must begin with 1"]),
    ("grouped_matmul", |g| dims(g, "w", &[3, 5, 5]), Shape, &["4 columns", "5 rows"]),
    (
        "grouped_matmul",
        |g| dims(g, "first", &[4, 1, 1]),
        Shape,
        &["first_token_offset", "[3, 1, 1]"],
    ),
    ("reduction", |g| dims(g, "y", &[2, 2, 4]), Shape, &["[2, 3, 4]", "[2, 2, 4]", "must be 1"]),
    ("reduction", |g| dims(g, "y", &[2, 4]), Shape, &["can't be reduced"]),
    (
        "reduction",
        |g| {
            dims(g, "x", &[2, 6, 3, 4]);
            dims(g, "y", &[2, 4, 1, 1]);
        },
        Shape,
        &["can't be reduced", "a size that divides x's"],
    ),
    ("reduction", |g| tensor(g, "x").dtype = Some(DataType::Bool), DType, &["x", "is bool"]),
    ("genstats", |g| dims(g, "sum", &[1, 4, 1, 1]), Shape, &["must be [1, 3, 1, 1]"]),
    ("genstats", |g| tensor(g, "sum").dtype = Some(DataType::F16), DType, &["sum", "f32, f64"]),
    ("reshape", |g| dims(g, "y", &[5, 5]), Shape, &["24", "25", "as many"]),
    ("reshape", |g| op(g).compute = Some(DataType::F32), DType, &["moves elements only"]),
    (
        "transpose",
        |g| {
            if let Operation::Transpose(transpose) = &mut op(g).operation {
                transpose.permutation = vec![0, 0, 1];
            }
        },
        Value,
        &["permutation [0, 0, 1]", "0 to 2, once"],
    ),
    (
        "transpose",
        |g| {
            if let Operation::Transpose(transpose) = &mut op(g).operation {
                transpose.permutation = vec![1, 0];
            }
        },
        Value,
        &["permutation has 2", "needs 3"],
    ),
    ("transpose", |g| tensor(g, "y").dtype = Some(DataType::F16), DType, &["is f16", "identity"]),
    ("slice", |g| slice(g).limit[0] = 5, Index, &["1 to 5", "dimension 0", "at most 4"]),
    ("slice", |g| slice(g).start[0] = -1, Index, &["-1 to 4", "0 or more"]),
    ("slice", |g| slice(g).start[0] = 4, Index, &["4 to 4", "less than limit"]),
    ("slice", |g| slice(g).stride[1] = 0, Value, &["stride 0", "dimension 1"]),
    ("slice", |g| slice(g).start.truncate(1), Value, &["start has 1", "needs 2"]),
    ("concatenate", |g| concatenate(g).axis = 2, Index, &["axis 2", "2 dimensions"]),
    ("concatenate", |g| concatenate(g).axis = -1, Index, &["axis -1"]),
    (
        "concatenate",
        |g| concatenate(g).in_place_index = Some(2),
        Index,
        &["in_place_index 2", "0 to 1"],
    ),
    ("concatenate", |g| dims(g, "b", &[3, 4]), Shape, &["input 1", "equal but in dimension 1"]),
    (
        "concatenate",
        |g| tensor(g, "b").dtype = Some(DataType::F16),
        DType,
        &["\"b\"", "f16", "f32"],
    ),
];

/// Rules of norms and attention.
const NETWORKS: &[Rule] = &[
    ("softmax", |g| dims(g, "stats", &[2, 3, 4]), Shape, &["must be [2, 3, 1]"]),
    ("softmax", |g| tensor(g, "x").dtype = Some(DataType::I32), DType, &["is i32"]),
    ("mask", |g| drop_input(g, Port::B), Value, &["input b"]),
    (
        "mask",
        |g| {
            let x = uid(g, "x");
            op(g).inputs[1].1 = x;
            drop_unused(g);
        },
        Shape,
        &["b (tensor \"x\"", "one number"],
    ),
    (
        "mask",
        |g| {
            if let Operation::DiagonalBandMask(mask) = &mut op(g).operation {
                mask.comparison = PointwiseMode::Relu;
            }
        },
        Value,
        &["comparison relu", "cmp_ge"],
    ),
    ("sdpa", |g| dims(g, "k", &[2, 3, 5, 8]), Shape, &["4 heads of q", "3 heads of k"]),
    ("sdpa", |g| dims(g, "v", &[2, 3, 5, 6]), Shape, &["3 heads of v"]),
    ("sdpa", |g| dims(g, "k", &[2, 2, 5, 7]), Shape, &["k must be [2, heads, keys, 8]"]),
    ("sdpa", |g| dims(g, "v", &[2, 2, 6, 6]), Shape, &["v must be [2, heads, 5, depth]"]),
    ("sdpa", |g| dims(g, "q", &[4, 3, 8]), Shape, &["q", "3 dimensions", "needs 4"]),
    ("sdpa", |g| dims(g, "bias", &[1, 4, 3, 4]), Shape, &["bias", "[2, 4, 3, 5]"]),
    ("sdpa", |g| dims(g, "lengths_q", &[3, 1, 1, 1]), Shape, &["seq_len_q", "[2, 1, 1, 1]"]),
    ("sdpa", |g| dims(g, "seed", &[2, 1, 1, 1]), Shape, &["seed", "one number"]),
    ("sdpa", |g| dims(g, "o", &[2, 4, 3, 8]), Shape, &["output o", "[2, 4, 3, 6]"]),
    ("sdpa", |g| drop_input(g, Port::SeqLenKv), Value, &["seq_len_q", "without seq_len_kv"]),
    ("sdpa", |g| drop_input(g, Port::Seed), Value, &["dropout 0.1", "no seed"]),
    ("sdpa", |g| attention(g).dropout = None, Value, &["seed", "without a dropout"]),
    ("sdpa", |g| attention(g).dropout = Some(Float(1.0)), Value, &["dropout 1", "less than 1"]),
    ("sdpa", |g| attention(g).dropout = Some(Float(-0.5)), Value, &["dropout -0.5"]),
    ("sdpa", |g| attention(g).dropout = Some(Float(f64::NAN)), Value, &["dropout NaN"]),
    ("sdpa", |g| attention(g).left_bound = Some(0), Value, &["left_bound 0", "1 or more"]),
    ("sdpa", |g| attention(g).right_bound = Some(-2), Value, &["right_bound -2"]),
    ("sdpa", |g| tensor(g, "seed").dtype = Some(DataType::F32), DType, &["seed", "i32, i64"]),
    ("sdpa", |g| tensor(g, "q").dtype = Some(DataType::I8), DType, &["q (tensor \"q\") is i8"]),
    (
        "sdpa",
        |g| {
            let scale = TensorSpec::number(90, DataType::F32, 4, Number::Float(1.0));
            g.tensors.push(scale);
            op(g).inputs.push((Port::DescaleQ, 90));
        },
        DType,
        &["descale_q", "q (tensor \"q\") is f32", "8-bit"],
    ),
    ("sdpa_backward", |g| dims(g, "do", &[2, 4, 3, 8]), Shape, &["do", "[2, 4, 3, 6]"]),
    ("sdpa_backward", |g| dims(g, "stats", &[2, 4, 3, 2]), Shape, &["stats", "[2, 4, 3, 1]"]),
    ("sdpa_backward", |g| drop_input(g, Port::Bias), Value, &["no output dbias"]),
    ("batchnorm", |g| dims(g, "scale", &[1, 4, 1, 1]), Shape, &["scale", "[1, 3, 1, 1]"]),
    ("batchnorm", |g| dims(g, "bias", &[1, 3, 1, 5]), Shape, &["bias", "dimensions of scale"]),
    ("batchnorm", |g| dims(g, "mean", &[2, 3, 1, 1]), Shape, &["mean", "must be [1, 3, 1, 1]"]),
    ("batchnorm", |g| dims(g, "running_mean", &[2, 3, 1, 1]), Shape, &["running_mean"]),
    ("batchnorm", |g| drop_input(g, Port::Momentum), Value, &["running_mean", "without momentum"]),
    (
        "batchnorm",
        |g| {
            for port in [Port::Momentum, Port::RunningMean, Port::RunningVariance] {
                drop_input(g, port);
            }
        },
        Value,
        &["no output next_running_mean"],
    ),
    ("batchnorm", |g| norm(g).groups = Some(1), Value, &["batchnorm has no groups", "got 1"]),
    ("batchnorm", |g| tensor(g, "mean").dtype = Some(DataType::BF16), DType, &["mean", "f32, f64"]),
    ("batchnorm_inference", |g| dims(g, "mean", &[1, 1, 1, 1]), Shape, &["mean", "[1, 3, 1, 1]"]),
    (
        "batchnorm",
        |g| {
            let momentum = g.tensors.iter_mut().filter(|tensor| tensor.by_value).nth(1).unwrap();
            momentum.scalar = Some(Number::Int(2));
        },
        Value,
        &["momentum", "is 2.0", "0 to 1"],
    ),
    (
        "layernorm",
        |g| {
            let epsilon = g.tensors.iter_mut().find(|tensor| tensor.by_value).unwrap();
            epsilon.scalar = Some(Number::Float(-1e-5));
        },
        Value,
        &["epsilon", "-1e-5", "0 or more"],
    ),
    ("layernorm", |g| dims(g, "scale", &[1, 1, 3]), Shape, &["scale", "doesn't fit", "[2, 3, 4]"]),
    ("layernorm", |g| dims(g, "scale", &[4]), Shape, &["scale", "1 dimensions", "needs 3"]),
    ("layernorm", |g| norm(g).mode = NormMode::AdaLayerNorm, Shape, &["scale", "begin with 2"]),
    ("groupnorm", |g| norm(g).groups = None, Value, &["no number of groups", "4 channels"]),
    ("groupnorm", |g| norm(g).groups = Some(3), Value, &["3 groups", "4 channels"]),
    ("groupnorm", |g| norm(g).groups = Some(0), Value, &["0 groups"]),
    ("groupnorm", |g| dims(g, "mean", &[2, 4, 1, 1]), Shape, &["must be [2, 2, 1, 1]"]),
    ("instancenorm", |g| dims(g, "mean", &[1, 4, 1, 1]), Shape, &["must be [2, 4, 1, 1]"]),
    ("rmsnorm", |g| dims(g, "inv_variance", &[1, 1, 1, 1]), Shape, &["must be [2, 1, 1, 1]"]),
    ("norm_backward", |g| dims(g, "dy", &[2, 3, 5]), Shape, &["dy", "dimensions of x"]),
    ("norm_backward", |g| dims(g, "mean", &[2, 3, 1]), Shape, &["mean", "[2, 1, 1]"]),
    ("norm_backward", |g| dims(g, "dscale", &[1, 1, 4]), Shape, &["must be [1, 3, 4]"]),
];

#[test]
fn each_mistake_is_named_with_node_tensor_and_numbers() {
    let mut wrong = Vec::new();
    for (place, (name, mutate, kind, words)) in
        STRUCTURE.iter().chain(SPACE).chain(MOVEMENT).chain(NETWORKS).enumerate()
    {
        let mut graph = sample(name);
        mutate(&mut graph);
        match graph.validate() {
            Ok(_) => wrong.push(format!("{place} {name}: valid, want {words:?}")),
            Err(error) => {
                let message = error.message();
                let named = message.starts_with(&format!("graph {name:?}"));
                let missing: Vec<_> =
                    words.iter().filter(|word| !message.contains(**word)).collect();
                if error.kind() != *kind || !missing.is_empty() || !named {
                    wrong.push(format!("{place} {name}: lacks {missing:?} or {kind:?}: {error:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn samples_are_valid_and_survive_json() {
    for graph in samples() {
        let text = graph.to_json();
        assert_eq!(GraphSpec::from_json(&text).unwrap(), graph, "{text}");
        let name = graph.name.clone();
        let count = graph.operations.len();
        match graph.validate() {
            Ok(valid) => assert_eq!(valid.operations().count(), count),
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

#[test]
fn operations_are_sorted_so_that_each_reads_what_is_there() {
    let mut graph = sample("conv_relu");
    graph.operations.reverse();
    let valid = graph.validate().unwrap();
    let names: Vec<&str> = valid.operations().map(|op| op.operation.name()).collect();
    assert_eq!(names, ["conv_fprop", "add", "relu"]);
}
