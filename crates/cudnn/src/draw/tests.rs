use crate::{
    Attention, Convolution, DataType, Defaults, GraphSpec, Layout, Norm, NormMode, OpSpec,
    Operation, Pointwise, PointwiseMode, Port, TensorSpec, Uid,
};

fn tensor(uid: Uid, dims: &[i64], layout: Layout) -> TensorSpec {
    TensorSpec::new(uid, DataType::F32, dims, layout).unwrap()
}

fn pointwise(mode: PointwiseMode, inputs: &[(Port, Uid)], output: Uid) -> OpSpec {
    OpSpec::new(Operation::Pointwise(Pointwise::new(mode)), inputs, &[(Port::Y, output)])
}

/// A convolution, a bias and an activation with a virtual tensor between each two.
fn block() -> GraphSpec {
    let mut conv = Convolution::new(2);
    conv.pre_padding = vec![1, 1];
    conv.post_padding = vec![1, 1];
    let last = Layout::ChannelsLast;
    GraphSpec {
        name: "block".to_string(),
        defaults: Defaults::default(),
        tensors: vec![
            tensor(1, &[8, 64, 56, 56], last.clone()).named("x"),
            tensor(2, &[32, 64, 3, 3], Layout::Packed).named("w"),
            tensor(3, &[1, 32, 1, 1], Layout::Packed).named("b"),
            tensor(4, &[8, 32, 56, 56], last.clone()).virtualized(),
            tensor(5, &[8, 32, 56, 56], last.clone()).virtualized(),
            tensor(6, &[8, 32, 56, 56], last).named("y"),
        ],
        operations: vec![
            OpSpec::new(Operation::ConvFprop(conv), &[(Port::X, 1), (Port::W, 2)], &[(Port::Y, 4)]),
            pointwise(PointwiseMode::Add, &[(Port::X, 4), (Port::B, 3)], 5),
            pointwise(PointwiseMode::Relu, &[(Port::X, 5)], 6),
        ],
    }
}

/// What the validator refuses: a circle, tensors that the graph lacks, two of one number, strange names.
fn broken() -> GraphSpec {
    let mut graph = GraphSpec {
        name: "\"</svg>\\ & \u{7}".to_string(),
        defaults: Defaults::default(),
        tensors: vec![
            tensor(1, &[2, 3], Layout::Packed).named("<script>\"]-->|;\n#x"),
            tensor(2, &[2, 3], Layout::Strides(vec![999, -7])).virtualized(),
            tensor(3, &[2, 3], Layout::Packed).virtualized(),
            tensor(3, &[], Layout::Packed).named("long ".repeat(50)),
            tensor(0, &[2, 3, 4], Layout::ChannelsLast).virtualized(),
        ],
        operations: vec![
            pointwise(PointwiseMode::Add, &[(Port::X, 3), (Port::B, 77)], 2),
            pointwise(PointwiseMode::Relu, &[(Port::X, 2)], 3),
            pointwise(PointwiseMode::Relu, &[(Port::X, 1)], 1),
            pointwise(PointwiseMode::Relu, &[], -5),
            OpSpec::new(
                Operation::Norm(Norm { groups: Some(4), ..Norm::new(NormMode::GroupNorm) }),
                &[(Port::X, 2), (Port::X, 2)],
                &[(Port::Y, 2)],
            ),
        ],
    };
    graph.tensors[1].dtype = None;
    graph.tensors[1].strides.pop();
    graph
}

#[test]
fn drawings_show_operations_with_attributes_and_tensors_with_layouts() {
    for text in [block().to_dot(), block().to_mermaid(), block().to_svg()] {
        for shown in [
            "conv_fprop",
            "padding [1, 1]",
            "add",
            "relu",
            "f32 [8, 64, 56, 56]",
            "NHWC",
            "NCHW",
            "computes in f32",
        ] {
            assert!(text.contains(shown), "{shown} in\n{text}");
        }
        assert!(!text.contains("dilation"), "defaults aren't shown:\n{text}");
    }
    let attention = Attention { right_bound: Some(0), ..Attention::default() };
    let graph = GraphSpec {
        operations: vec![OpSpec::new(Operation::Sdpa(attention), &[], &[])],
        ..GraphSpec::default()
    };
    assert!(graph.to_dot().contains("right bound 0"));
    assert!(!graph.to_dot().contains("left bound"));
}

#[test]
fn virtual_tensors_are_dashed() {
    assert_eq!(block().to_dot().matches("style=dashed").count(), 2);
    assert_eq!(block().to_mermaid().matches("-.->").count(), 2);
    assert_eq!(block().to_svg().matches("stroke-dasharray").count(), 2);
    // One that two operations read is a box of its own.
    let mut twice = block();
    twice.tensors.push(tensor(7, &[8, 32, 56, 56], Layout::ChannelsLast).named("z"));
    twice.operations.push(pointwise(PointwiseMode::Add, &[(Port::X, 5), (Port::B, 4)], 7));
    assert_eq!(twice.to_dot().matches("style=dashed").count(), 2 * 3);
    assert!(twice.to_mermaid().contains(":::virtual"));
}

#[test]
fn graphs_that_are_not_valid_are_drawn_with_their_text_escaped() {
    let [dot, mermaid, svg] = [broken().to_dot(), broken().to_mermaid(), broken().to_svg()];
    for text in [&dot, &mermaid, &svg] {
        assert!(text.contains("77") && text.contains("no such tensor"), "{text}");
        assert!(text.contains("no dtype"), "{text}");
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text}");
    }
    assert!(dot.starts_with("digraph \"\\\"</svg>\\\\ &amp;  \" {"), "{dot}");
    assert_eq!(svg.matches("</svg>").count(), 1, "{svg}");
    assert!(svg.contains("&lt;script&gt;&quot;]--&gt;|; #x"), "{svg}");
    assert!(!mermaid.contains("<script>") && mermaid.contains("#60;script#62;"), "{mermaid}");
    let empty = GraphSpec::default();
    assert!(empty.to_svg().ends_with("</svg>\n"));
    assert!(empty.to_dot().ends_with("}\n"));
}

#[test]
fn boxes_of_a_drawing_do_not_overlap() {
    let picture = |graph: &GraphSpec| {
        let svg = graph.to_svg();
        let number = |line: &str, name: &str| {
            let (_, rest) = line.split_once(&format!(" {name}=\"")).unwrap();
            rest.split('"').next().unwrap().parse::<f64>().unwrap()
        };
        let boxes = svg.lines().filter(|line| line.starts_with("<rect x="));
        let boxes = boxes.map(|line| ["x", "y", "width", "height"].map(|name| number(line, name)));
        boxes.collect::<Vec<_>>()
    };
    // A chain in which every operation also reads the first tensor: arrows through many layers.
    let mut chain = block();
    for uid in 7..40 {
        chain.tensors.push(tensor(uid, &[8, 32, 56, 56], Layout::ChannelsLast).virtualized());
        let inputs = [(Port::X, uid - 1), (Port::B, uid / 2 + 1)];
        chain.operations.push(pointwise(PointwiseMode::Add, &inputs, uid));
    }
    for graph in [block(), broken(), chain] {
        let boxes = picture(&graph);
        assert!(boxes.len() >= graph.operations.len());
        for (at, [x, y, width, height]) in boxes.iter().enumerate() {
            assert!(x.is_finite() && y.is_finite() && *x >= -0.1 && *y >= -0.1);
            for [left, top, wide, high] in &boxes[at + 1..] {
                let apart = left + 0.2 >= x + width || x + 0.2 >= left + wide;
                assert!(apart || top + 0.2 >= y + height || y + 0.2 >= top + high);
            }
        }
    }
}
