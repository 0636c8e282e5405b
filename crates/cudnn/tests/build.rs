//! The builder: what its methods add, what they refuse, and that all of it is valid. And numbers of graphs.

#[path = "support/samples.rs"]
mod samples;

use keyfold_core::ErrorKind;
use keyfold_cudnn::{
    Attention, AttentionInputs, Convolution, DataType, Graph, GraphOptions, GraphSpec, Layout,
    Norm, NormMode, Number, Operation, Pointwise, PointwiseMode, Port, ReductionMode, ResampleMode,
    TensorSpec, Uid,
};
use proptest::prelude::*;
use samples::{graph, pooling, sample, samples, strided};

fn of(g: &Graph, uid: Uid) -> &TensorSpec {
    g.spec().tensor(uid).unwrap()
}

#[test]
fn shapes_follow_from_inputs() {
    let g = &mut graph("shapes");
    let image = g.input("image", &[2, 4, 9, 8]).unwrap();
    let mut expect: Vec<(&str, Uid, &[i64])> = Vec::new();
    let w = g.input("w", &[6, 2, 3, 3]).unwrap();
    let y = g.conv_fprop(image, w, strided()).unwrap();
    expect.push(("conv", y, &[2, 6, 5, 4]));
    expect.push(("dgrad", g.conv_dgrad(y, w, strided()).unwrap(), &[2, 2, 9, 7]));
    expect.push(("wgrad", g.conv_wgrad(image, y, strided()).unwrap(), &[6, 4, 3, 4]));
    let far = Convolution { dilation: vec![2, 3], ..Convolution::new(2) };
    expect.push(("dilated", g.conv_fprop(image, w, far).unwrap(), &[2, 6, 5, 2]));
    let line = g.input("line", &[2, 4, 9]).unwrap();
    let taps = g.input("taps", &[3, 4, 2]).unwrap();
    expect.push(("1-D", g.conv_fprop(line, taps, Convolution::new(1)).unwrap(), &[2, 3, 8]));
    let max = pooling(ResampleMode::Maxpool);
    expect.push(("pool", g.resample(image, max.clone()).unwrap(), &[2, 4, 5, 4]));
    let (pooled, index) = g.maxpool_with_index(image, max.clone()).unwrap();
    expect.push(("index", index, &[2, 4, 5, 4]));
    let back = g.resample_backward(pooled, Some(index), max).unwrap();
    expect.push(("pool backward", back, &[2, 4, 9, 7]));
    let bias = g.input("bias", &[1, 4, 1, 1]).unwrap();
    let two = g.scalar(2.0, None);
    let biased = g.bias(image, bias).unwrap();
    expect.push(("bias", biased, &[2, 4, 9, 8]));
    expect.push(("scale", g.scale(biased, two).unwrap(), &[2, 4, 9, 8]));
    expect.push(("number first", g.binary(PointwiseMode::Sub, two, bias).unwrap(), &[1, 4, 1, 1]));
    expect.push(("index", g.gen_index(bias, 1).unwrap(), &[1, 4, 1, 1]));
    let sums = g.reduction(image, ReductionMode::Add, &[1, 4, 1, 1]).unwrap();
    expect.push(("reduction", sums, &[1, 4, 1, 1]));
    expect.push(("genstats", g.genstats(image).unwrap().1, &[1, 4, 1, 1]));
    let rows = g.reshape(image, &[2, 36, 8]).unwrap();
    expect.push(("reshape", rows, &[2, 36, 8]));
    let turned = g.transpose(rows, &[0, 2, 1]).unwrap();
    expect.push(("transpose", turned, &[2, 8, 36]));
    expect.push(("matmul", g.matmul(rows, turned).unwrap(), &[2, 36, 36]));
    let part = g.slice(rows, &[0, 1, 2], &[2, 36, 4]).unwrap();
    expect.push(("slice", part, &[2, 35, 2]));
    let parts = g.concatenate(&[part, part, part], 1).unwrap();
    expect.push(("concatenate", parts, &[2, 105, 2]));
    expect.push(("softmax", g.softmax(part).unwrap(), &[2, 35, 2]));
    let q = g.input("q", &[2, 8, 5, 16]).unwrap();
    let k = g.input("k", &[2, 2, 7, 16]).unwrap();
    let v = g.input("v", &[2, 4, 7, 24]).unwrap();
    let none = AttentionInputs::default();
    let (o, stats) = g.sdpa(Attention::default(), (q, k, v), none, true).unwrap();
    let stats = stats.unwrap();
    expect.extend([("o", o, &[2, 8, 5, 24][..]), ("stats", stats, &[2, 8, 5, 1])]);
    let gradients = g.sdpa_backward(Attention::default(), (q, k, v), (o, o, stats), none).unwrap();
    expect.extend([("dk", gradients.dk, &[2, 2, 7, 16][..]), ("dv", gradients.dv, &[2, 4, 7, 24])]);
    assert_eq!(gradients.dbias, None);
    let (scale, epsilon) = (g.input("scale", &[1, 4, 1, 1]).unwrap(), g.scalar(1e-5, None));
    let norm = Norm { groups: Some(2), ..Norm::new(NormMode::GroupNorm) };
    let out = g.norm(norm, image, scale, Some(bias), epsilon).unwrap();
    expect.extend([("y", out.y, &[2, 4, 9, 8][..]), ("mean", out.mean.unwrap(), &[2, 2, 1, 1])]);
    for (name, uid, dims) in expect {
        assert_eq!(of(g, uid).dims, dims, "{name}");
        assert!(of(g, uid).is_virtual, "{name}");
    }
}

#[test]
fn channels_last_stay_last_and_packed_stay_packed() {
    let mut g = graph("layouts");
    for (layout, dims) in [
        (Layout::ChannelsLast, [2, 4, 9, 8]),
        (Layout::ChannelsLast, [2, 4, 1, 1]),
        (Layout::ChannelsLast, [1, 1, 5, 5]),
        (Layout::Packed, [2, 4, 9, 8]),
        (Layout::Packed, [2, 4, 1, 1]),
        (Layout::Packed, [2, 1, 5, 5]),
    ] {
        let x = g.tensor(TensorSpec::untyped(&dims, layout.clone()).unwrap()).unwrap();
        let w = g.input("", &[3, dims[1], 1, 1]).unwrap();
        let y = g.conv_fprop(x, w, Convolution::new(2)).unwrap();
        assert_eq!(
            of(&g, y).strides,
            layout.strides(&of(&g, y).dims).unwrap(),
            "{layout:?} {dims:?}"
        );
    }
    // Neither: the last two dimensions are swapped, and stay so.
    let x = TensorSpec::untyped(&[2, 4, 9, 8], Layout::Strides(vec![288, 72, 1, 9])).unwrap();
    let x = g.tensor(x).unwrap();
    let b = g.input("b", &[2, 1, 1, 1]).unwrap();
    let y = g.binary(PointwiseMode::Mul, b, x).unwrap();
    assert_eq!(of(&g, y).strides, [288, 72, 1, 9]);
}

#[test]
fn dtypes_are_those_of_the_kind_unless_one_is_said() {
    let io = Some(DataType::F16);
    let mut g = Graph::new(GraphOptions { io, ..GraphOptions::default() });
    let x = g.input("x", &[2, 3]).unwrap();
    let y = g.relu(x).unwrap();
    assert_eq!((of(&g, x).dtype, of(&g, y).dtype), (io, Some(DataType::F32)));
    g.set_output(y, true).unwrap();
    assert_eq!(of(&g, y).dtype, io);
    g.set_output(y, false).unwrap();
    assert_eq!(of(&g, y).dtype, Some(DataType::F32));
    g.set_dtype(y, DataType::BF16).unwrap();
    g.set_output(y, true).unwrap();
    assert_eq!(of(&g, y).dtype, Some(DataType::BF16));
    // Truth values and what is moved have no other.
    let less = g.binary(PointwiseMode::CmpLt, x, y).unwrap();
    g.set_output(less, true).unwrap();
    assert_eq!(of(&g, less).dtype, Some(DataType::Bool));
    let turned = g.transpose(x, &[1, 0]).unwrap();
    assert_eq!(of(&g, turned).dtype, io);
    assert_eq!(of(&g, g.spec().operations[0].outputs[0].1).dtype, Some(DataType::BF16));
    g.set_output(turned, true).unwrap();
    let none = GraphOptions { io: None, intermediate: None, compute: None, name: String::new() };
    let mut g = Graph::new(none);
    let x = g.input("x", &[2]).unwrap();
    let y = g.relu(x).unwrap();
    assert_eq!(
        (of(&g, x).dtype, of(&g, y).dtype, g.spec().operations[0].compute),
        (None, None, None)
    );
}

#[test]
fn changed_dimensions_are_followed() {
    let mut g = graph("changed");
    let x = g.input("x", &[2, 3, 4]).unwrap();
    let y = g.add(Operation::Reshape, &[(Port::X, x)], &[]).unwrap()[0].1;
    let z = g.relu(y).unwrap();
    g.set_dims(y, &[6, 4]).unwrap();
    assert_eq!(of(&g, z).dims, [6, 4]);
    let b = g.input("b", &[1, 4]).unwrap();
    let sum = g.bias(z, b).unwrap();
    // Refused as a whole: `b` doesn't fit then.
    let before = g.spec().clone();
    let error = g.set_dims(y, &[4, 6]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape);
    assert!(error.message().contains("broadcast"), "{error}");
    assert_eq!(*g.spec(), before);
    g.set_dims(sum, &[6, 4]).unwrap();
    g.set_output(sum, true).unwrap();
    g.into_spec().validate().unwrap();
}

#[test]
fn refusals_name_what_is_wrong_and_change_nothing() {
    let mut g = graph("refusals");
    let x = g.input("x", &[2, 3, 4]).unwrap();
    let before = g.spec().clone();
    let two = |port, uid: Uid| vec![(Port::X, x), (port, uid)];
    let relu = || Operation::Pointwise(Pointwise::new(PointwiseMode::Relu));
    let mut wrong: Vec<(keyfold_core::Error, &[&str])> = Vec::new();
    let refused = |g: &mut Graph, op: Operation, inputs: Vec<(Port, Uid)>, wanted: &[Port]| {
        g.add_named("node", None, op, &inputs, wanted).unwrap_err()
    };
    let error = refused(&mut g, relu(), vec![(Port::X, 99)], &[]);
    wrong.push((error, &["node \"node\" (relu)", "uid 99"]));
    let error = refused(&mut g, relu(), vec![], &[]);
    wrong.push((error, &["no tensor at its input x"]));
    let error = refused(&mut g, relu(), two(Port::X, x), &[]);
    wrong.push((error, &["2 tensors at its input x"]));
    let error = refused(&mut g, relu(), two(Port::B, x), &[]);
    wrong.push((error, &["no input b"]));
    let error = refused(&mut g, relu(), vec![(Port::X, x)], &[Port::Index]);
    wrong.push((error, &["no output index", "it has y"]));
    wrong.push((g.unary(PointwiseMode::Add, x).unwrap_err(), &["add", "input b"]));
    wrong.push((g.binary(PointwiseMode::Relu, x, x).unwrap_err(), &["2 tensors at its input x"]));
    wrong.push((g.reduction(x, ReductionMode::Max, &[2, 2, 4]).unwrap_err(), &["[2, 2, 4]"]));
    wrong.push((g.reduction(x, ReductionMode::Max, &[2, 0, 4]).unwrap_err(), &["is 0"]));
    wrong.push((g.reshape(x, &[5, 5]).unwrap_err(), &["reshape", "24", "25"]));
    wrong.push((g.reshape(x, &[i64::MAX, 4]).unwrap_err(), &["overflow"]));
    wrong.push((g.concatenate(&[], 0).unwrap_err(), &["input x"]));
    wrong.push((g.matmul(x, x).unwrap_err(), &["4 columns", "3 rows"]));
    wrong.push((g.set_output(7, true).unwrap_err(), &["\"refusals\"", "uid 7", "1 tensors"]));
    wrong.push((g.set_strides(x, &[1]).unwrap_err(), &["\"x\"", "1 strides", "3 dimensions"]));
    wrong.push((g.input("y", &[i64::MAX, 3]).unwrap_err(), &["overflows"]));
    let again = TensorSpec { uid: x, ..TensorSpec::untyped(&[1], Layout::Packed).unwrap() };
    wrong.push((g.tensor(again).unwrap_err(), &["uid 1", "\"x\""]));
    for (error, words) in wrong {
        for word in words {
            assert!(error.message().contains(word), "{error} lacks {word}");
        }
    }
    assert_eq!(*g.spec(), before);
}

#[test]
fn a_graph_with_a_result_that_is_none_of_its_tensors_refuses_other_sizes() {
    let mut spec = sample("select");
    spec.operations[0].outputs[0].1 = 99;
    let mut g = Graph::from_spec(spec.clone());
    let error = g.set_dims(spec.tensors[0].uid, &[4, 6, 8]).unwrap_err();
    assert!(error.message().contains("uid 99"), "{error}");
    assert_eq!(*g.spec(), spec);
}

#[test]
fn sizes_are_followed_in_any_order_of_operations() {
    let mut g = graph("order");
    let x = g.input("x", &[2, 3]).unwrap();
    let mut last = x;
    for mode in [PointwiseMode::Exp, PointwiseMode::Tanh, PointwiseMode::Log] {
        last = g.unary(mode, last).unwrap();
    }
    g.set_output(last, true).unwrap();
    let mut spec = g.into_spec();
    spec.operations.reverse();
    let mut g = Graph::from_spec(spec);
    g.set_dims(x, &[5, 3]).unwrap();
    assert!(g.spec().tensors.iter().all(|tensor| tensor.dims == [5, 3]));
    g.into_spec().validate().unwrap();
}

#[test]
fn a_number_of_a_float_dtype_has_one_key() {
    let key = |number: Number| {
        let mut g = graph("number");
        let (x, b) = (g.input("x", &[2]).unwrap(), g.scalar(number, None));
        let y = g.binary(PointwiseMode::Mul, x, b).unwrap();
        g.set_output(y, true).unwrap();
        g.into_spec().canonical().key
    };
    assert_eq!(key(Number::Int(2)), key(Number::Float(2.0)));
}

#[test]
fn numbers_of_tensors_are_free_ones() {
    let mut g = graph("uids");
    let last = TensorSpec { uid: i64::MAX, ..TensorSpec::untyped(&[2], Layout::Packed).unwrap() };
    assert_eq!(g.tensor(last).unwrap(), i64::MAX);
    assert_eq!(g.input("a", &[2]).unwrap(), 1);
    assert_eq!(g.relu(1).unwrap(), 2);
}

#[test]
fn scalars_must_be_numbers_of_their_dtype() {
    use Number::{Float as F, Int as I};
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    for (dtype, good, bad) in [
        (DataType::F32, vec![F(0.1), F(inf), F(nan), I(3)], vec![F(1e39), F(-1e300)]),
        (DataType::F64, vec![F(1e300), F(-inf)], vec![]),
        (DataType::F16, vec![F(65504.0), F(-inf), I(2048)], vec![F(65536.0), I(70000)]),
        (DataType::BF16, vec![F(3e38), F(nan)], vec![F(3.4e38)]),
        (DataType::E4M3, vec![F(448.0), F(nan)], vec![F(449.0), F(inf)]),
        (DataType::E5M2, vec![F(57344.0), F(inf)], vec![F(6e4)]),
        (DataType::I8, vec![I(-128), F(5.0)], vec![I(128), F(0.5), F(nan), F(inf)]),
        (DataType::U8, vec![I(255)], vec![I(-1), I(256)]),
        (DataType::I32, vec![I(-(1 << 31))], vec![I(1 << 31)]),
        (DataType::I64, vec![I(i64::MIN), F(4.0)], vec![F(1e300), F(1.5), F(nan)]),
        (DataType::Bool, vec![I(0), I(1), F(1.0)], vec![I(2), I(-1), F(0.5)]),
    ] {
        for (number, is_good) in
            good.into_iter().map(|n| (n, true)).chain(bad.into_iter().map(|n| (n, false)))
        {
            let mut graph = sample("select");
            let scalar = graph.tensors.iter_mut().find(|tensor| tensor.by_value).unwrap();
            (scalar.dtype, scalar.scalar) = (Some(dtype), Some(number));
            let result = graph.validate();
            assert_eq!(result.is_ok(), is_good, "{dtype} {number:?}: {result:?}");
            if let Err(error) = result {
                let message = error.message();
                assert!(message.contains(&format!("no {dtype}")), "{message}");
            }
        }
    }
}

/// Adds a random operation on random tensors of a graph; those that don't fit are refused.
fn grow(g: &mut Graph, kind: usize, a: Uid, b: Uid) -> keyfold_core::Result<()> {
    let (x, y) = (of(g, a).clone(), of(g, b).clone());
    let space = x.rank().saturating_sub(2);
    let ones = vec![1; x.rank()];
    match kind {
        0 => drop(g.conv_fprop(a, b, Convolution::new(space))?),
        1 => drop(g.conv_dgrad(a, b, Convolution::new(space))?),
        2 => drop(g.conv_wgrad(a, b, Convolution::new(space))?),
        3 => drop(g.matmul(a, b)?),
        4 => drop(g.reduction(a, ReductionMode::Avg, &ones)?),
        5 => drop(g.reshape(a, &[x.numel().unwrap()])?),
        6 => drop(g.transpose(a, &(0..x.rank() as i64).rev().collect::<Vec<_>>())?),
        7 => drop(g.slice(a, &vec![0; x.rank()], &x.dims)?),
        8 => drop(g.concatenate(&[a, b, a], x.rank() as i64 - 1)?),
        9 => drop(g.softmax(a)?),
        10 => drop(g.sdpa(Attention::default(), (a, b, b), AttentionInputs::default(), true)?),
        11 => drop(g.genstats(a)?),
        12 => drop(g.resample(a, pooling(ResampleMode::Maxpool))?),
        13 => drop(g.resample_backward(a, None, pooling(ResampleMode::AvgpoolIncludePadding))?),
        14 | 15 => {
            let mode = if kind == 14 { NormMode::LayerNorm } else { NormMode::InstanceNorm };
            let epsilon = g.scalar(1e-5, None);
            g.norm(Norm::new(mode), a, b, Some(b), epsilon)?;
        }
        16 => drop(g.binary_select(a, b, b)?),
        17 => drop(g.gen_index(a, y.rank() as i64 - 1)?),
        _ => {
            let mode = PointwiseMode::all().nth((kind - 18) % 52).unwrap();
            if let Err(error) = g.unary(mode, a) {
                g.binary(mode, a, b).map_err(|_| error)?;
            }
        }
    }
    Ok(())
}

/// Gives memory to each result that nobody reads, and leaves out what no operation names.
fn close(g: Graph) -> GraphSpec {
    let mut spec = g.into_spec();
    let read: Vec<Uid> = spec.operations.iter().flat_map(|op| &op.inputs).map(|e| e.1).collect();
    let written: Vec<Uid> =
        spec.operations.iter().flat_map(|op| &op.outputs).map(|e| e.1).collect();
    spec.tensors.retain(|tensor| read.contains(&tensor.uid) || written.contains(&tensor.uid));
    for tensor in &mut spec.tensors {
        tensor.is_virtual &= read.contains(&tensor.uid);
    }
    spec
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_the_builder_makes_is_valid(
        last in any::<bool>(),
        steps in prop::collection::vec((0_usize..70, any::<usize>(), any::<usize>()), 1..12),
    ) {
        let mut g = graph("random");
        let layout = if last { Layout::ChannelsLast } else { Layout::Packed };
        for dims in [[2, 4, 5, 5], [4, 4, 3, 3], [1, 4, 1, 1], [2, 4, 5, 1]] {
            g.tensor(TensorSpec::untyped(&dims, layout.clone()).unwrap()).unwrap();
        }
        g.input("", &[2, 3, 3]).unwrap();
        let mut added = 0;
        for (kind, a, b) in steps {
            let uids: Vec<Uid> = g.spec().tensors.iter().map(|tensor| tensor.uid).collect();
            let before = g.spec().operations.len();
            let result = grow(&mut g, kind, uids[a % uids.len()], uids[b % uids.len()]);
            prop_assert_eq!(g.spec().operations.len(), before + usize::from(result.is_ok()));
            added += usize::from(result.is_ok());
        }
        prop_assume!(added > 0);
        let spec = close(g);
        prop_assert_eq!(&GraphSpec::from_json(&spec.to_json()).unwrap(), &spec);
        // Shapes are proven; a dtype that an operation lacks is the caller's choice.
        if let Err(error) = spec.validate() {
            prop_assert_eq!(error.kind(), ErrorKind::DType, "{}", error);
        }
    }

    #[test]
    fn damaged_text_never_panics(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..3), 1..8),
    ) {
        let list = samples();
        let mut bytes = which.get(&list).to_json().into_bytes();
        for (at, byte, kind) in changes {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes[at] = b"0123456789-.e,"[usize::from(byte) % 14],
                _ => drop(bytes.remove(at)),
            }
        }
        if let Ok(spec) = GraphSpec::from_json(&String::from_utf8_lossy(&bytes)) {
            let text = spec.to_json();
            prop_assert_eq!(&GraphSpec::from_json(&text).unwrap(), &spec);
            let _ = spec.canonical();
            let _ = spec.validate();
        }
    }
}

#[test]
fn eight_bit_floats_have_scales_in_attention() {
    let mut graph = sample("sdpa");
    for name in ["q", "k", "v", "o"] {
        let tensor = graph.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap();
        tensor.dtype = Some(DataType::E4M3);
    }
    for (uid, port) in [
        (90, Port::DescaleQ),
        (91, Port::DescaleK),
        (92, Port::DescaleV),
        (93, Port::DescaleS),
        (94, Port::ScaleS),
        (95, Port::ScaleO),
    ] {
        graph.tensors.push(TensorSpec::number(uid, DataType::F32, 4, Number::Float(1.0)));
        graph.operations[0].inputs.push((port, uid));
    }
    graph.clone().validate().unwrap();
    // The result may be wide: libcudnn takes all of the scales then, too.
    let o = graph.tensors.iter_mut().find(|tensor| tensor.name == "o").unwrap();
    o.dtype = Some(DataType::BF16);
    graph.validate().unwrap();
}
