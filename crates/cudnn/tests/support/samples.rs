//! A valid graph for each operation, small enough to be run.

use keyfold_cudnn::{
    Attention, AttentionInputs, Concatenate, Convolution, DataType, Float, Graph, GraphOptions,
    GraphSpec, Layout, Norm, NormMode, NormPhase, Operation, PaddingMode, Pointwise, PointwiseMode,
    Port, ReductionMode, Resample, ResampleMode, Running, Slice, TensorSpec, Uid,
};

/// Begins a graph in float32.
pub(crate) fn graph(name: &str) -> Graph {
    let io = Some(DataType::F32);
    Graph::new(GraphOptions { name: name.to_string(), io, ..GraphOptions::default() })
}

/// Adds a tensor of another dtype.
pub(crate) fn typed(g: &mut Graph, name: &str, dtype: DataType, dims: &[i64]) -> Uid {
    g.tensor(TensorSpec::new(0, dtype, dims, Layout::Packed).unwrap().named(name)).unwrap()
}

/// Returns the attributes of a convolution with padding 1, stride 2.
pub(crate) fn strided() -> Convolution {
    Convolution {
        pre_padding: vec![1, 1],
        post_padding: vec![1, 1],
        stride: vec![2, 2],
        ..Convolution::new(2)
    }
}

/// Returns the attributes of pooling over windows of 3 with padding 1, stride 2.
pub(crate) fn pooling(mode: ResampleMode) -> Resample {
    let max = mode == ResampleMode::Maxpool;
    Resample {
        mode,
        padding_mode: if max { PaddingMode::NegInf } else { PaddingMode::Zero },
        window: vec![3, 3],
        stride: vec![2.into(), 2.into()],
        pre_padding: vec![1.into(), 1.into()],
        post_padding: vec![1.into(), 1.into()],
    }
}

/// Names results, and gives them memory.
pub(crate) fn finish(mut g: Graph, outputs: &[(&str, Uid)]) -> GraphSpec {
    for &(name, uid) in outputs {
        g.set_name(uid, name).unwrap();
        g.set_output(uid, true).unwrap();
    }
    g.into_spec()
}

/// Returns a valid graph for each operation, under its name.
pub(crate) fn samples() -> Vec<GraphSpec> {
    vec![
        conv_relu(),
        dgrad(),
        wgrad(),
        maxpool(),
        maxpool_backward(),
        avgpool_backward(),
        bilinear(),
        select(),
        relu_backward(),
        matmul(),
        grouped_matmul(),
        reduction(),
        genstats(),
        reshape(),
        transpose(),
        slice(),
        concatenate(),
        softmax(),
        mask(),
        sdpa(),
        sdpa_backward(),
        batchnorm(),
        batchnorm_inference(),
        layernorm(),
        norm_of(NormMode::InstanceNorm),
        norm_of(NormMode::GroupNorm),
        norm_of(NormMode::RmsNorm),
        norm_of(NormMode::AdaLayerNorm),
        norm_backward(),
    ]
}

/// Returns the sample of a name.
pub(crate) fn sample(name: &str) -> GraphSpec {
    let found = samples().into_iter().find(|graph| graph.name == name);
    found.unwrap_or_else(|| panic!("no sample {name}"))
}

fn conv_relu() -> GraphSpec {
    let mut g = graph("conv_relu");
    let x = g.tensor(TensorSpec::untyped(&[2, 4, 5, 5], Layout::ChannelsLast).unwrap().named("x"));
    let (x, w) = (x.unwrap(), g.input("w", &[6, 2, 3, 3]).unwrap());
    let b = g.input("b", &[1, 6, 1, 1]).unwrap();
    let conv = g.add_named(
        "conv",
        None,
        Operation::ConvFprop(strided()),
        &[(Port::X, x), (Port::W, w)],
        &[],
    );
    let conv = conv.unwrap()[0].1;
    g.set_name(conv, "c").unwrap();
    let biased = g.bias(conv, b).unwrap();
    let y = g.relu(biased).unwrap();
    finish(g, &[("y", y)])
}

fn dgrad() -> GraphSpec {
    let mut g = graph("dgrad");
    let (dy, w) = (g.input("dy", &[2, 6, 3, 3]).unwrap(), g.input("w", &[6, 2, 3, 3]).unwrap());
    let dx = g.conv_dgrad(dy, w, strided()).unwrap();
    g.set_dims(dx, &[2, 4, 6, 6]).unwrap();
    finish(g, &[("dx", dx)])
}

fn wgrad() -> GraphSpec {
    let mut g = graph("wgrad");
    let (x, dy) = (g.input("x", &[2, 4, 5, 5]).unwrap(), g.input("dy", &[2, 6, 3, 3]).unwrap());
    let dw = g.conv_wgrad(x, dy, strided()).unwrap();
    g.set_dims(dw, &[6, 2, 3, 3]).unwrap();
    finish(g, &[("dw", dw)])
}

fn maxpool() -> GraphSpec {
    let mut g = graph("maxpool");
    let x = g.input("x", &[2, 3, 5, 5]).unwrap();
    let (y, index) = g.maxpool_with_index(x, pooling(ResampleMode::Maxpool)).unwrap();
    finish(g, &[("y", y), ("index", index)])
}

fn maxpool_backward() -> GraphSpec {
    let mut g = graph("maxpool_backward");
    let x = g.input("x", &[2, 3, 5, 5]).unwrap();
    let (y, dy) = (g.input("y", &[2, 3, 3, 3]).unwrap(), g.input("dy", &[2, 3, 3, 3]).unwrap());
    let operation = Operation::ResampleBackward(pooling(ResampleMode::Maxpool));
    let dx = g.add(operation, &[(Port::Dy, dy), (Port::X, x), (Port::Y, y)], &[]).unwrap()[0].1;
    finish(g, &[("dx", dx)])
}

fn avgpool_backward() -> GraphSpec {
    let mut g = graph("avgpool_backward");
    let dy = g.input("dy", &[2, 3, 3, 3]).unwrap();
    let pool = pooling(ResampleMode::AvgpoolExcludePadding);
    let dx = g.resample_backward(dy, None, pool).unwrap();
    finish(g, &[("dx", dx)])
}

fn bilinear() -> GraphSpec {
    let mut g = graph("bilinear");
    let half = |numerator| keyfold_cudnn::Fraction { numerator, denominator: 2 };
    let x = g.input("x", &[1, 2, 3, 4]).unwrap();
    let resample = Resample {
        mode: ResampleMode::Bilinear,
        padding_mode: PaddingMode::EdgeValue,
        window: vec![2, 2],
        stride: vec![half(1), half(1)],
        pre_padding: vec![half(1), half(1)],
        post_padding: vec![1.into(), 1.into()],
    };
    let y = g.resample(x, resample).unwrap();
    finish(g, &[("y", y)])
}

fn select() -> GraphSpec {
    let mut g = graph("select");
    let x = g.input("x", &[2, 3, 4]).unwrap();
    let (rows, columns) = (g.gen_index(x, 1).unwrap(), g.gen_index(x, 2).unwrap());
    let below = g.binary(PointwiseMode::CmpGe, rows, columns).unwrap();
    let fill = g.scalar(-1.0, None);
    let y = g.binary_select(x, fill, below).unwrap();
    finish(g, &[("y", y)])
}

fn relu_backward() -> GraphSpec {
    let mut g = graph("relu_backward");
    let (dy, x) = (g.input("dy", &[2, 3]).unwrap(), g.input("x", &[2, 3]).unwrap());
    let dx = g.pointwise(Pointwise::new(PointwiseMode::ReluBackward), &[dy, x]).unwrap();
    finish(g, &[("dx", dx)])
}

fn matmul() -> GraphSpec {
    let mut g = graph("matmul");
    let (a, b) = (g.input("a", &[2, 3, 4]).unwrap(), g.input("b", &[1, 4, 5]).unwrap());
    let m = typed(&mut g, "m", DataType::I32, &[2, 1, 1]);
    let c = g.add(Operation::Matmul, &[(Port::A, a), (Port::B, b), (Port::MOverride, m)], &[]);
    let c = c.unwrap()[0].1;
    finish(g, &[("c", c)])
}

fn grouped_matmul() -> GraphSpec {
    let mut g = graph("grouped_matmul");
    let (t, w) = (g.input("t", &[1, 6, 4]).unwrap(), g.input("w", &[3, 4, 5]).unwrap());
    let first = typed(&mut g, "first", DataType::I32, &[3, 1, 1]);
    let y = g.grouped_matmul(t, w, first).unwrap();
    finish(g, &[("y", y)])
}

fn reduction() -> GraphSpec {
    let mut g = graph("reduction");
    let x = g.input("x", &[2, 3, 4]).unwrap();
    let y = g.reduction(x, ReductionMode::Avg, &[2, 1, 4]).unwrap();
    finish(g, &[("y", y)])
}

fn genstats() -> GraphSpec {
    let mut g = graph("genstats");
    let x = g.input("x", &[2, 3, 4, 5]).unwrap();
    let (sum, squares) = g.genstats(x).unwrap();
    finish(g, &[("sum", sum), ("squares", squares)])
}

fn reshape() -> GraphSpec {
    let mut g = graph("reshape");
    let x = g.input("x", &[2, 3, 4]).unwrap();
    let y = g.reshape(x, &[6, 4]).unwrap();
    finish(g, &[("y", y)])
}

fn transpose() -> GraphSpec {
    let mut g = graph("transpose");
    let x = g.input("x", &[2, 3, 4]).unwrap();
    let y = g.transpose(x, &[2, 0, 1]).unwrap();
    finish(g, &[("y", y)])
}

fn slice() -> GraphSpec {
    let mut g = graph("slice");
    let x = g.input("x", &[4, 5]).unwrap();
    let slice = Slice { start: vec![1, 0], limit: vec![4, 5], stride: vec![1, 2] };
    let y = g.add(Operation::Slice(slice), &[(Port::X, x)], &[]).unwrap()[0].1;
    finish(g, &[("y", y)])
}

fn concatenate() -> GraphSpec {
    let mut g = graph("concatenate");
    let (a, b) = (g.input("a", &[2, 3]).unwrap(), g.input("b", &[2, 4]).unwrap());
    let concatenate = Operation::Concatenate(Concatenate { axis: 1, in_place_index: None });
    let y = g.add(concatenate, &[(Port::X, a), (Port::X, b)], &[]).unwrap()[0].1;
    finish(g, &[("y", y)])
}

fn softmax() -> GraphSpec {
    let mut g = graph("softmax");
    let x = g.input("x", &[2, 3, 4]).unwrap();
    let outputs = g.add(Operation::Softmax, &[(Port::X, x)], &[Port::Stats]).unwrap();
    finish(g, &[("y", outputs[0].1), ("stats", outputs[1].1)])
}

fn mask() -> GraphSpec {
    let mut g = graph("mask");
    let x = g.input("x", &[2, 3, 4]).unwrap();
    let fill = g.scalar(f64::NEG_INFINITY, None);
    let y = g.diagonal_band_mask(x, fill, PointwiseMode::CmpGe).unwrap();
    finish(g, &[("y", y)])
}

/// Adds the tensors that attention may read: grouped queries, bias, lengths, dropout.
fn attention(g: &mut Graph) -> (Attention, (Uid, Uid, Uid), AttentionInputs) {
    let q = g.input("q", &[2, 4, 3, 8]).unwrap();
    let (k, v) = (g.input("k", &[2, 2, 5, 8]).unwrap(), g.input("v", &[2, 2, 5, 6]).unwrap());
    let others = AttentionInputs {
        scale: Some(g.scalar(0.25, None)),
        bias: Some(g.input("bias", &[1, 4, 3, 5]).unwrap()),
        lengths: Some((
            typed(g, "lengths_q", DataType::I32, &[2, 1, 1, 1]),
            typed(g, "lengths_kv", DataType::I32, &[2, 1, 1, 1]),
        )),
        random: Some((
            typed(g, "seed", DataType::I64, &[1, 1, 1, 1]),
            typed(g, "offset", DataType::I64, &[1, 1, 1, 1]),
        )),
    };
    let attention =
        Attention { right_bound: Some(0), dropout: Some(Float(0.1)), ..Attention::default() };
    (attention, (q, k, v), others)
}

fn sdpa() -> GraphSpec {
    let mut g = graph("sdpa");
    let (options, qkv, others) = attention(&mut g);
    let (o, stats) = g.sdpa(options, qkv, others, true).unwrap();
    finish(g, &[("o", o), ("stats", stats.unwrap())])
}

fn sdpa_backward() -> GraphSpec {
    let mut g = graph("sdpa_backward");
    let (options, qkv, others) = attention(&mut g);
    let o = g.input("o", &[2, 4, 3, 6]).unwrap();
    let d_o = g.input("do", &[2, 4, 3, 6]).unwrap();
    let stats = g.input("stats", &[2, 4, 3, 1]).unwrap();
    let out = g.sdpa_backward(options, qkv, (o, d_o, stats), others).unwrap();
    finish(g, &[("dq", out.dq), ("dk", out.dk), ("dv", out.dv), ("dbias", out.dbias.unwrap())])
}

fn batchnorm() -> GraphSpec {
    let mut g = graph("batchnorm");
    let x = g.input("x", &[2, 3, 4, 5]).unwrap();
    let mut channels = |name| g.input(name, &[1, 3, 1, 1]).unwrap();
    let (scale, bias) = (channels("scale"), channels("bias"));
    let (mean, variance) = (channels("running_mean"), channels("running_variance"));
    let (epsilon, momentum) = (g.scalar(1e-5, None), g.scalar(0.1, None));
    let running = Some(Running { mean, variance, momentum });
    let out = g.batchnorm(x, scale, bias, epsilon, running).unwrap();
    let (next_mean, next_variance) = out.next_running.unwrap();
    let statistics = [("mean", out.mean.unwrap()), ("inv_variance", out.inv_variance.unwrap())];
    let next = [("next_mean", next_mean), ("next_variance", next_variance)];
    finish(g, &[&[("y", out.y)][..], &statistics, &next].concat())
}

fn batchnorm_inference() -> GraphSpec {
    let mut g = graph("batchnorm_inference");
    let x = g.input("x", &[2, 3, 4, 5]).unwrap();
    let mut channels = |name| g.input(name, &[1, 3, 1, 1]).unwrap();
    let (mean, inv_variance) = (channels("mean"), channels("inv_variance"));
    let (scale, bias) = (channels("scale"), channels("bias"));
    let y = g.batchnorm_inference(x, mean, inv_variance, scale, bias).unwrap();
    finish(g, &[("y", y)])
}

fn layernorm() -> GraphSpec {
    let mut g = graph("layernorm");
    let x = g.input("x", &[2, 3, 4]).unwrap();
    let (scale, bias) =
        (g.input("scale", &[1, 1, 4]).unwrap(), g.input("bias", &[1, 1, 4]).unwrap());
    let epsilon = g.scalar(1e-5, None);
    let norm = Norm { phase: NormPhase::Inference, ..Norm::new(NormMode::LayerNorm) };
    let y = g.norm(norm, x, scale, Some(bias), epsilon).unwrap().y;
    finish(g, &[("y", y)])
}

fn norm_of(mode: NormMode) -> GraphSpec {
    let mut g = graph(mode.name());
    let x = g.input("x", &[2, 4, 3, 5]).unwrap();
    let scale: &[i64] = match mode {
        NormMode::RmsNorm => &[1, 4, 3, 5],
        NormMode::AdaLayerNorm => &[2, 1, 1, 5],
        _ => &[1, 4, 1, 1],
    };
    let bias = (mode != NormMode::RmsNorm).then(|| g.input("bias", scale).unwrap());
    let scale = g.input("scale", scale).unwrap();
    let epsilon = g.scalar(1e-5, None);
    let groups = (mode == NormMode::GroupNorm).then_some(2);
    let out = g.norm(Norm { groups, ..Norm::new(mode) }, x, scale, bias, epsilon).unwrap();
    let statistics = [("mean", out.mean), ("inv_variance", out.inv_variance)];
    let statistics = statistics.into_iter().filter_map(|(name, uid)| Some((name, uid?)));
    let outputs: Vec<(&str, Uid)> = [("y", out.y)].into_iter().chain(statistics).collect();
    finish(g, &outputs)
}

fn norm_backward() -> GraphSpec {
    let mut g = graph("norm_backward");
    let (x, dy) = (g.input("x", &[2, 3, 4]).unwrap(), g.input("dy", &[2, 3, 4]).unwrap());
    let scale = g.input("scale", &[1, 3, 4]).unwrap();
    let (mean, inv) =
        (g.input("mean", &[2, 1, 1]).unwrap(), g.input("inv_variance", &[2, 1, 1]).unwrap());
    let norm = Norm::new(NormMode::LayerNorm);
    let out = g.norm_backward(norm, (dy, x, scale), Some(mean), inv, true).unwrap();
    finish(g, &[("dx", out.dx), ("dscale", out.dscale), ("dbias", out.dbias.unwrap())])
}
