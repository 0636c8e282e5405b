//! The graphs that calls become.

use keyfold_backend::{
    Activation, AttentionParams, ConvolutionParams, LinearFactor, LinearParams, NormParams,
    Operation, PoolParams,
};
use keyfold_core::{DType, ErrorKind};
use keyfold_tensor::Tensor;

use super::draft::Finish;
use super::{GraphGroup, drafted};
use crate::{
    Convolution, DataType, Graph, GraphOptions, GraphSpec, Operation as Node, Pointwise,
    PointwiseMode, Port, ResampleMode,
};

fn meta(shape: &[usize]) -> Tensor {
    of(DType::F32, shape)
}

fn of(dtype: DType, shape: &[usize]) -> Tensor {
    Tensor::meta(shape, dtype).unwrap()
}

/// Returns each graph of a call in words, after proving that all are valid.
fn graphs<P: GraphGroup>(params: &P, inputs: &[&Tensor], outputs: &[&Tensor]) -> Vec<String> {
    let draft = drafted(params, inputs, outputs).unwrap();
    draft.steps.iter().for_each(|step| drop(step.graph.clone().validate().unwrap()));
    draft.steps.iter().map(|step| described(&step.graph)).collect()
}

/// Returns why a call has no graph.
fn reason<P: GraphGroup>(params: &P, inputs: &[&Tensor], outputs: &[&Tensor]) -> String {
    let error = drafted(params, inputs, outputs).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    error.message().to_string()
}

/// Returns operations with the dimensions of what they read and write: `relu([2, 3]) [2, 3]`.
fn described(graph: &GraphSpec) -> String {
    let tensor = |uid: &(Port, i64)| {
        let tensor = graph.tensor(uid.1).unwrap();
        match tensor.scalar {
            Some(number) => format!("{}", number.as_f64()),
            None => format!("{}{:?}", if tensor.is_virtual { "~" } else { "" }, tensor.dims),
        }
    };
    let all = |list: &[(Port, i64)]| list.iter().map(tensor).collect::<Vec<_>>().join(", ");
    let one = |op: &crate::OpSpec| {
        format!("{}({}) {}", op.operation.name(), all(&op.inputs), all(&op.outputs))
    };
    graph.operations.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn convolution(op: &'static Operation, rank: u32) -> ConvolutionParams {
    ConvolutionParams {
        op,
        rank,
        activation: Activation::None,
        has_bias: false,
        groups: 1,
        stride: [1; 3],
        padding: [0; 3],
        dilation: [1; 3],
    }
}

const CONVOLUTION: &Operation = &Operation::new("convolution");
const TRANSPOSED: &Operation = &Operation::new("transposed");

#[test]
fn a_convolution_with_bias_and_activation_is_the_graph_that_the_builder_makes() {
    let (x, w, bias) = (meta(&[2, 3, 9, 11]), meta(&[4, 3, 3, 3]), meta(&[4]));
    let y = meta(&[2, 4, 5, 5]);
    let params = ConvolutionParams {
        activation: Activation::GeluSigmoid,
        has_bias: true,
        stride: [2, 2, 0],
        padding: [1, 0, 0],
        ..convolution(CONVOLUTION, 2)
    };
    let inputs = [&x, &w, &bias];
    let outputs = [&y];
    let draft = drafted(&params, &inputs, &outputs).unwrap();
    let [step] = &draft.steps[..] else { panic!("one graph") };

    let options = GraphOptions { io: Some(DataType::F32), ..GraphOptions::default() };
    let mut g = Graph::new(GraphOptions { name: "convolution".into(), ..options });
    let x = g.input("x", &[2, 3, 9, 11]).unwrap();
    let w = g.input("w", &[4, 3, 3, 3]).unwrap();
    let bias = g.input("bias", &[1, 4, 1, 1]).unwrap();
    let mut conv = Convolution::new(2);
    (conv.pre_padding, conv.post_padding, conv.stride) = (vec![1, 0], vec![1, 0], vec![2, 2]);
    let mut add =
        |operation: Node, inputs: &[(Port, i64)]| g.add(operation, inputs, &[]).unwrap()[0].1;
    let sum = add(Node::ConvFprop(conv), &[(Port::X, x), (Port::W, w)]);
    let add_bias = Node::Pointwise(Pointwise::new(PointwiseMode::Add));
    let biased = add(add_bias, &[(Port::X, sum), (Port::B, bias)]);
    let swish = Pointwise { swish_beta: 1.702.into(), ..Pointwise::new(PointwiseMode::Swish) };
    let y = add(Node::Pointwise(swish), &[(Port::X, biased)]);
    g.set_output(y, true).unwrap();
    assert_eq!(step.graph.canonical().key, g.spec().canonical().key);
    assert_eq!(step.graph.operations.len(), 3);
}

#[test]
fn lines_are_images_of_height_one_and_padding_behind_follows_from_sizes() {
    let (x, w) = (meta(&[2, 4, 10]), meta(&[6, 2, 3]));
    let params = ConvolutionParams {
        groups: 2,
        stride: [2, 0, 0],
        padding: [2, 0, 0],
        ..convolution(CONVOLUTION, 1)
    };
    let described = graphs(&params, &[&x, &w], &[&meta(&[2, 6, 6])]);
    assert_eq!(described, ["conv_fprop([2, 4, 1, 10], [6, 2, 1, 3]) [2, 6, 1, 6]"]);
    let padding = |y: usize| {
        let (inputs, outputs) = ([&x, &w], [&meta(&[2, 6, y])]);
        let draft = drafted(&params, &inputs, &outputs).unwrap();
        match &draft.steps[0].graph.operations[0].operation {
            Node::ConvFprop(conv) => (conv.pre_padding.clone(), conv.post_padding.clone()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(padding(6), (vec![0, 2], vec![0, 2]));
    assert_eq!(padding(5), (vec![0, 2], vec![0, 0]));
    assert_eq!(padding(8), (vec![0, 2], vec![0, 5]));
}

#[test]
fn transposed_convolutions_are_gradients_of_the_input() {
    let (dy, w, bias) = (meta(&[2, 6, 5]), meta(&[6, 4, 3]), meta(&[4]));
    let params =
        ConvolutionParams { has_bias: true, stride: [2, 0, 0], ..convolution(TRANSPOSED, 1) };
    let described = graphs(&params, &[&dy, &w, &bias], &[&meta(&[2, 4, 12])]);
    let dgrad = "conv_dgrad([2, 6, 1, 5], [6, 4, 1, 3]) ~[2, 4, 1, 12]";
    assert_eq!(described, [format!("{dgrad}; add(~[2, 4, 1, 12], [1, 4, 1, 1]) [2, 4, 1, 12]")]);
    // As many elements behind as the stride make another place.
    let dilated = ConvolutionParams { dilation: [2, 0, 0], ..convolution(TRANSPOSED, 1) };
    let reason = reason(&dilated, &[&dy, &w], &[&meta(&[2, 4, 10])]);
    assert!(reason.contains("has 6 places, not 5"), "{reason}");
}

#[test]
fn gradients_of_convolutions_have_graphs() {
    let (x, dy) = (meta(&[2, 4, 6, 6]), meta(&[2, 8, 4, 4]));
    let params = ConvolutionParams {
        groups: 2,
        ..convolution(&const { Operation::new("weight_gradient") }, 2)
    };
    let described = graphs(&params, &[&x, &dy], &[&meta(&[8, 2, 3, 3])]);
    assert_eq!(described, ["conv_wgrad([2, 4, 6, 6], [2, 8, 4, 4]) [8, 2, 3, 3]"]);
    let params = convolution(&const { Operation::new("bias_gradient") }, 2);
    let described = graphs(&params, &[&dy], &[&meta(&[8])]);
    assert_eq!(described, ["reduction([2, 8, 4, 4]) [1, 8, 1, 1]"]);
    // A sum of halves is float32, and rounded by a graph of its own.
    let described = graphs(&params, &[&of(DType::F16, &[2, 8, 4, 4])], &[&of(DType::F16, &[8])]);
    let convert = "identity([1, 8, 1, 1]) [1, 8, 1, 1]";
    assert_eq!(described, ["reduction([2, 8, 4, 4]) [1, 8, 1, 1]", convert]);
}

#[test]
fn sums_without_terms_have_no_graph() {
    let finish = |params: ConvolutionParams, inputs: &[&Tensor], output: &[usize]| {
        let outputs = [&meta(output)];
        let draft = drafted(&params, inputs, &outputs).unwrap();
        (draft.steps.len(), draft.finish)
    };
    let params = convolution(CONVOLUTION, 1);
    let (x, w, bias) = (meta(&[2, 0, 5]), meta(&[3, 0, 2]), meta(&[3]));
    let (steps, filled) = finish(params, &[&x, &w], &[2, 3, 4]);
    assert_eq!((steps, filled), (0, vec![Finish::Fill { output: 0, number: 0.0 }]));
    let sigmoid = ConvolutionParams { activation: Activation::Sigmoid, ..params };
    let (_, filled) = finish(sigmoid, &[&x, &w], &[2, 3, 4]);
    assert_eq!(filled, [Finish::Fill { output: 0, number: 0.5 }]);
    // The activation of a bias is a graph, and is broadcast.
    let biased = ConvolutionParams { has_bias: true, ..sigmoid };
    let (steps, filled) = finish(biased, &[&x, &w, &bias], &[2, 3, 4]);
    assert!(matches!(&filled[..], [Finish::Spread { output: 0, .. }]));
    assert_eq!(steps, 1);
    // There is nothing to do for an empty result.
    assert_eq!(finish(params, &[&meta(&[0, 1, 5]), &meta(&[3, 1, 2])], &[0, 3, 4]), (0, vec![]));
}

#[test]
fn backward_and_overlapping_elements_are_copied() {
    let params = convolution(CONVOLUTION, 1);
    let (x, w, y) = (meta(&[1, 2, 5]), meta(&[3, 2, 2]), meta(&[1, 3, 4]));
    let copies = |x: &Tensor| {
        let (inputs, outputs) = ([x, &w], [&y]);
        drafted(&params, &inputs, &outputs).unwrap().copies.len()
    };
    assert_eq!(copies(&x), 0);
    assert_eq!(copies(&x.flip(&[2]).unwrap()), 1);
    assert_eq!(copies(&meta(&[1, 1, 5]).broadcast_to(&[1, 2, 5]).unwrap()), 1);
    assert_eq!(copies(&meta(&[1, 5, 2]).transpose(1, 2).unwrap()), 0);
}

fn norm(op: &'static Operation, tensors: u32) -> NormParams {
    NormParams { eps: 0.5, dims: 2, groups: 2, momentum: 0.25, tensors, ..NormParams::new(op) }
}

#[test]
fn layer_norm_is_one_of_rows_with_ones_for_a_weight_that_is_absent() {
    let params = norm(&const { Operation::new("layer_norm") }, NormParams::BIAS);
    let (x, bias) = (meta(&[5, 3, 4]), meta(&[3, 4]));
    let outputs = [&meta(&[5, 3, 4]), &meta(&[5, 1, 1]), &meta(&[5, 1, 1])];
    let (rows, wide, each) = ("[5, 12, 1, 1]", "[1, 12, 1, 1]", "[5, 1, 1, 1]");
    assert_eq!(
        graphs(&params, &[&x, &bias], &outputs),
        [format!("layernorm({rows}, {wide}, {wide}, 0.5) {rows}, {each}, {each}")]
    );
    let draft = drafted(&params, &[&x, &bias], &outputs).map(|draft| draft.scratch).unwrap();
    assert_eq!(draft.iter().map(|own| own.fill).collect::<Vec<_>>(), [Some(1.0)]);
    let params = norm(&const { Operation::new("layer_norm_backward") }, NormParams::GRAD_WEIGHT);
    let (mean, rstd) = (meta(&[5, 1, 1]), meta(&[5, 1, 1]));
    assert_eq!(
        graphs(&params, &[&x, &x, &mean, &rstd], &[&meta(&[3, 4])]),
        [format!(
            "layernorm_backward({rows}, {rows}, {wide}, {each}, {each}) {rows}, {wide}, {wide}"
        )]
    );
}

#[test]
fn group_norm_is_instance_norm_of_groups() {
    let op = &const { Operation::new("group_norm") };
    let x = meta(&[3, 4, 5]);
    let outputs = [&meta(&[3, 4, 5]), &meta(&[3, 2]), &meta(&[3, 2])];
    let alone = "instancenorm([3, 2, 10, 1], [1, 2, 1, 1], [1, 2, 1, 1], 0.5) [3, 2, 10, 1], \
                 [3, 2, 1, 1], [3, 2, 1, 1]";
    assert_eq!(graphs(&norm(op, 0), &[&x], &outputs), [alone]);
    let affine = norm(op, NormParams::WEIGHT | NormParams::BIAS);
    let weights = "mul([3, 4, 5], [1, 4, 1]) ~[3, 4, 5]; add(~[3, 4, 5], [1, 4, 1]) [3, 4, 5]";
    let channels = meta(&[4]);
    assert_eq!(graphs(&affine, &[&x, &channels, &channels], &outputs), [alone, weights]);
    let wanted = NormParams::GRAD_INPUT | NormParams::GRAD_WEIGHT | NormParams::GRAD_BIAS;
    let params =
        norm(&const { Operation::new("group_norm_backward") }, NormParams::WEIGHT | wanted);
    let (lanes, inputs) = (meta(&[3, 2]), [&x, &x]);
    let inputs = [inputs[0], inputs[1], &lanes, &lanes, &channels];
    let described = graphs(&params, &inputs, &[&x, &channels, &channels]);
    assert_eq!(described.len(), 4);
    assert_eq!(described[0], "mul([3, 4, 5], [1, 4, 1]) [3, 4, 5]");
    assert!(described[2].ends_with("reduction(~[3, 2, 2, 5]) [1, 2, 2, 1]"), "{described:?}");
    assert_eq!(described[3], "reduction([3, 4, 5]) [1, 4, 1]");
}

#[test]
fn batch_norm_is_one_of_images_and_in_inference_pointwise() {
    let op = &const { Operation::new("batch_norm") };
    let (x, c) = (of(DType::F16, &[3, 4, 5]), of(DType::F16, &[4]));
    let wide = meta(&[4]);
    let described =
        graphs(&norm(op, NormParams::RUNNING), &[&x, &c, &wide], &[&x, &wide, &wide, &c, &wide]);
    // The running mean of halves is converted before and behind.
    let (image, each) = ("[3, 4, 1, 5]", "[1, 4, 1, 1]");
    let convert = format!("identity({each}) {each}");
    let all = format!("{each}, {each}, {each}, {each}");
    let inputs = format!("{image}, {each}, {each}, 0.5, 0.25, {each}, {each}");
    let batch = format!("batchnorm({inputs}) {image}, {all}");
    assert_eq!(described, [convert.clone(), batch, convert]);
    let params = norm(&const { Operation::new("batch_norm_inference") }, NormParams::WEIGHT);
    let described = graphs(&params, &[&x, &wide, &wide, &c], &[&x]);
    assert_eq!(
        described,
        [format!(
            "add({each}, 0.5) ~{each}; rsqrt(~{each}) ~{each}; sub({image}, {each}) ~{image}; \
             mul(~{image}, ~{each}) ~{image}; mul(~{image}, {each}) {image}"
        )]
    );
}

fn pool(op: &'static Operation, dims: u32) -> PoolParams {
    PoolParams {
        op,
        dims,
        count_include_pad: 0,
        kernel: [3, 2, 1],
        stride: [2, 2, 1],
        padding: [1, 0, 0],
        dilation: [1; 3],
        divisor: 0,
    }
}

#[test]
fn the_index_of_max_pooling_is_counted_in_the_plane_by_a_graph() {
    let params = pool(&const { Operation::new("max") }, 2);
    let (y, index) = (meta(&[4, 3, 3]), of(DType::I64, &[4, 3, 3]));
    let described = graphs(&params, &[&meta(&[4, 5, 6])], &[&y, &index]);
    assert_eq!(described[0], "resample([1, 4, 5, 6]) [1, 4, 3, 3], [1, 4, 3, 3]");
    assert!(
        described[1].starts_with("div([1, 4, 3, 3], 2) ~[1, 4, 3, 3]; floor("),
        "{described:?}"
    );
    assert_eq!(described.len(), 2);
    let dilated = PoolParams { dilation: [2, 1, 1], ..params };
    let reason = reason(&dilated, &[&meta(&[4, 7, 6])], &[&y, &index]);
    assert!(reason.contains("no dilation"), "{reason}");
}

#[test]
fn averages_count_padding_in_all_windows_or_in_none() {
    let op = &const { Operation::new("average") };
    let counted = PoolParams { count_include_pad: 1, ..pool(op, 2) };
    let (x, y) = (meta(&[4, 5, 6]), meta(&[4, 3, 3]));
    assert_eq!(graphs(&counted, &[&x], &[&y]), ["resample([1, 4, 5, 6]) [1, 4, 3, 3]"]);
    // One more window reaches behind the padding.
    let more = reason(&counted, &[&meta(&[4, 6, 6])], &[&meta(&[4, 4, 3])]);
    assert!(more.contains("behind the padding"), "{more}");
    let divided = PoolParams { divisor: -3, ..counted };
    let described = graphs(&divided, &[&x], &[&y]);
    let mean = "resample([1, 4, 5, 6]) ~[1, 4, 3, 3]";
    assert_eq!(described, [format!("{mean}; mul(~[1, 4, 3, 3], -2) [1, 4, 3, 3]")]);
    let adaptive = pool(&const { Operation::new("adaptive_average") }, 1);
    assert_eq!(
        graphs(&adaptive, &[&meta(&[2, 3, 6])], &[&meta(&[2, 3, 2])]),
        ["resample([2, 3, 1, 6]) [2, 3, 1, 2]"]
    );
    let uneven = reason(&adaptive, &[&meta(&[2, 3, 5])], &[&meta(&[2, 3, 2])]);
    assert!(uneven.contains("2 windows of 5 elements aren't equal"), "{uneven}");
}

#[test]
fn windows_behind_the_elements_count_no_padding_where_there_is_none() {
    // Windows in ceil mode: the last one reaches one element behind the input.
    let op = &const { Operation::new("average") };
    let counted = PoolParams {
        count_include_pad: 1,
        kernel: [2, 2, 1],
        stride: [2, 2, 1],
        padding: [0; 3],
        ..pool(op, 2)
    };
    let (x, y) = (meta(&[4, 5, 6]), meta(&[4, 3, 3]));
    let (inputs, outputs) = ([&x], [&y]);
    let draft = drafted(&counted, &inputs, &outputs).unwrap();
    match &draft.steps[0].graph.operations[0].operation {
        Node::Resample(resample) => {
            assert_eq!(resample.mode, ResampleMode::AvgpoolExcludePadding);
            assert_eq!(resample.post_padding[0], 1.into());
        }
        other => panic!("{other:?}"),
    }
    // With padding in one dimension, windows behind the elements of the other one count it.
    let mixed = PoolParams { padding: [0, 1, 0], ..counted };
    let more = reason(&mixed, &[&x], &[&meta(&[4, 3, 4])]);
    assert!(more.contains("behind the padding"), "{more}");
}

#[test]
fn the_index_in_the_plane_is_computed_exactly() {
    let computed = |kernel: i64, plane: usize, padding: i64| {
        let params = PoolParams {
            kernel: [kernel, 1, 1],
            stride: [1; 3],
            padding: [padding, 0, 0],
            ..pool(&const { Operation::new("max") }, 1)
        };
        let count = plane + 2 * padding as usize + 1 - kernel as usize;
        let (x, y) = (meta(&[1, 1, plane]), meta(&[1, 1, count]));
        let index = of(DType::I64, &[1, 1, count]);
        let (inputs, outputs) = ([&x], [&y, &index]);
        let draft = drafted(&params, &inputs, &outputs).map_err(|error| error.to_string())?;
        let last = draft.steps.last().unwrap();
        last.graph.clone().validate().map_err(|error| error.to_string())?;
        let read = last.graph.operations[0].inputs[0].1;
        let dtype = last.graph.tensor(read).unwrap().dtype;
        Ok((last.graph.operations[0].compute.unwrap(), dtype.unwrap()))
    };
    let found: Result<_, String> = computed(3, 100, 1);
    assert_eq!(found, Ok((DataType::F32, DataType::I8)));
    // A window that is greater than the plane has more places than float32 has integers.
    let large = 1 << 25;
    assert_eq!(computed(large, 8, large / 2), Ok((DataType::F64, DataType::I32)));
    assert_eq!(computed(1 << 33, 8, 1 << 32), Ok((DataType::F64, DataType::I64)));
    let refused = computed(1 << 55, 8, 1 << 54).unwrap_err();
    assert!(refused.contains("isn't exact in float64"), "{refused}");
}

#[test]
fn pooling_to_nothing_is_refused_and_not_divided_by() {
    let params = pool(&const { Operation::new("adaptive_average") }, 1);
    for (elements, results) in [([2, 3, 6], [2, 3, 0]), ([2, 3, 0], [2, 3, 2])] {
        let error = super::pool::Windows::new(&params, &elements, &results).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotSupported);
        assert!(error.message().contains("has no windows"), "{error}");
    }
}

#[test]
fn products_without_terms_are_the_addend() {
    let op = &const { Operation::new("matmul") };
    let two = LinearFactor { re: 2.0, ..LinearFactor::ONE };
    let (alpha, beta) = (LinearFactor::ONE, two);
    let params =
        LinearParams { op, has_addend: false, activation: Activation::Sigmoid, alpha, beta };
    let finish = |params: LinearParams, inputs: &[&Tensor]| {
        let outputs = [&meta(&[4, 6])];
        let draft = drafted(&params, inputs, &outputs).unwrap();
        (draft.steps.iter().map(|step| described(&step.graph)).collect::<Vec<_>>(), draft.finish)
    };
    let (a, b, row) = (meta(&[4, 0]), meta(&[0, 6]), meta(&[6]));
    let (steps, filled) = finish(params, &[&a, &b]);
    assert_eq!((steps.len(), filled), (0, vec![Finish::Fill { output: 0, number: 0.5 }]));
    let (steps, filled) = finish(LinearParams { has_addend: true, ..params }, &[&a, &b, &row]);
    assert_eq!(steps, ["mul([1, 1, 6], 2) ~[1, 1, 6]; sigmoid(~[1, 1, 6]) [1, 1, 6]"]);
    assert!(matches!(&filled[..], [Finish::Spread { output: 0, .. }]));
}

#[test]
fn attention_has_four_dimensions_and_a_mask_of_bools_becomes_numbers() {
    let op = &const { Operation::new("forward") };
    let params = AttentionParams { op, scale: 0.5, has_mask: 1, is_causal: 0 };
    let (q, k) = (meta(&[2, 3, 7, 4]), meta(&[5, 4]));
    let mask = of(DType::Bool, &[7, 5]);
    let (o, stats) = (meta(&[2, 3, 7, 6]), meta(&[2, 3, 7]));
    let inputs = [&q, &k, &meta(&[2, 3, 5, 6]), &mask];
    assert_eq!(
        graphs(&params, &inputs, &[&o, &stats]),
        [
            "binary_select(0, -inf, [1, 1, 7, 5]) [1, 1, 7, 5]",
            "sdpa([2, 3, 7, 4], [2, 3, 5, 4], [2, 3, 5, 6], 0.5, [1, 1, 7, 5]) [2, 3, 7, 6], \
             [2, 3, 7, 1]"
        ]
    );
    // Without keys no score counts.
    let causal = AttentionParams { has_mask: 0, is_causal: 1, ..params };
    let inputs = [&q, &meta(&[2, 3, 0, 4]), &meta(&[2, 3, 0, 6])];
    let outputs = [&o, &stats];
    let draft = drafted(&causal, &inputs, &outputs).unwrap();
    assert_eq!(draft.finish[1], Finish::Fill { output: 1, number: f64::NEG_INFINITY });
    // Without columns every score is 0.
    let described = graphs(
        &causal,
        &[&meta(&[7, 0]), &meta(&[5, 0]), &meta(&[5, 6])],
        &[&meta(&[7, 6]), &meta(&[7])],
    );
    assert_eq!(
        described,
        ["sdpa([1, 1, 7, 1], [1, 1, 5, 1], [1, 1, 5, 6], 0.5) [1, 1, 7, 6], [1, 1, 7, 1]"]
    );
}

#[test]
fn products_have_three_dimensions() {
    let op = &const { Operation::new("matmul") };
    let two = LinearFactor { re: 2.0, ..LinearFactor::ONE };
    let (alpha, beta) = (two, LinearFactor::ONE);
    let params = LinearParams { op, has_addend: true, activation: Activation::Relu, alpha, beta };
    // The matrices of the first operand are the rows of one.
    let described = graphs(
        &params,
        &[&meta(&[2, 3, 4, 5]), &meta(&[5, 6]), &meta(&[6])],
        &[&meta(&[2, 3, 4, 6])],
    );
    let product = "matmul([1, 24, 5], [1, 5, 6]) ~[1, 24, 6]";
    let epilogue = "add(~[1, 24, 6], [1, 1, 6]) ~[1, 24, 6]; relu(~[1, 24, 6]) [1, 24, 6]";
    assert_eq!(described, [format!("{product}; {epilogue}")]);
    let batched = LinearParams { has_addend: false, activation: Activation::None, ..params };
    let described = graphs(&batched, &[&meta(&[4, 5]), &meta(&[3, 5, 6])], &[&meta(&[3, 4, 6])]);
    let product = "matmul([1, 4, 5], [3, 5, 6]) ~[3, 4, 6]";
    assert_eq!(described, [format!("{product}; mul(~[3, 4, 6], 2) [3, 4, 6]")]);
}
