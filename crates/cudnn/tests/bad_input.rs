//! Bad input, kind by kind: dtypes of every port, ranks, attributes, and numbers at the ends of
//! their range.

#[path = "support/samples.rs"]
mod samples;

use keyfold_core::ErrorKind;
use keyfold_cudnn::{
    DataType, Float, Fraction, GraphSpec, NormPhase, Operation, Pointwise, PointwiseMode, Port,
    Resample, ResampleMode, TensorSpec,
};
use samples::{graph, sample, samples};

/// Returns the dtypes of the tensors that a graph's operations read and write.
fn with_dtype(graph: &GraphSpec, index: usize, dtype: DataType) -> GraphSpec {
    let mut changed = graph.clone();
    changed.tensors[index].dtype = Some(dtype);
    changed
}

#[test]
fn each_dtype_of_each_tensor_is_valid_or_refused_by_name() {
    let (mut valid, mut refused) = (0, 0);
    for graph in samples() {
        for (index, tensor) in graph.tensors.iter().enumerate() {
            for dtype in DataType::ALL {
                let Err(error) = with_dtype(&graph, index, dtype).validate() else {
                    valid += 1;
                    continue;
                };
                refused += 1;
                // A scalar may be none of a dtype, and an alignment too small for it.
                let kinds = [ErrorKind::DType, ErrorKind::Value];
                let message = error.message();
                assert!(kinds.contains(&error.kind()), "{error:?}");
                assert!(message.contains(&format!("graph {:?}", graph.name)), "{message}");
                let other = error.kind() == ErrorKind::DType && message.contains(" computes in ");
                let named = message.contains(&tensor.label()) || message.contains("compute dtype");
                assert!(named || other, "{} as {dtype}: {message}", tensor.label());
            }
        }
    }
    assert!(valid > 500 && refused > 500, "{valid} valid, {refused} refused");
}

#[test]
fn each_compute_dtype_is_valid_or_refused_by_name() {
    for graph in samples() {
        for index in 0..graph.operations.len() {
            for dtype in DataType::ALL {
                let mut changed = graph.clone();
                changed.operations[index].compute = Some(dtype);
                if let Err(error) = changed.validate() {
                    let message = error.message();
                    assert_eq!(error.kind(), ErrorKind::DType, "{message}");
                    assert!(message.contains(&format!("compute dtype is {dtype}")), "{message}");
                    assert!(
                        message.contains(graph.operations[index].operation.name()),
                        "{message}"
                    );
                }
            }
        }
    }
}

#[test]
fn comparisons_are_not_computed_in_bool() {
    let mut g = graph("compare");
    let (a, b) = (g.input("a", &[2]).unwrap(), g.input("b", &[2]).unwrap());
    g.set_dtype(a, DataType::I32).unwrap();
    g.set_dtype(b, DataType::I32).unwrap();
    let compare = Operation::Pointwise(Pointwise::new(PointwiseMode::CmpGt));
    let inputs = [(Port::X, a), (Port::B, b)];
    let y = g.add_named("", Some(DataType::Bool), compare, &inputs, &[]).unwrap()[0].1;
    g.set_output(y, true).unwrap();
    let error = g.into_spec().validate().unwrap_err();
    assert!(error.message().contains("cmp_gt: its compute dtype is bool"), "{error}");
}

#[test]
fn attributes_that_a_mode_lacks_are_refused_with_their_number() {
    let seven = Float(7.0);
    type Change = fn(&mut Pointwise, Float);
    let changes: [(&str, Change); 8] = [
        ("alpha1", |p, x| p.alpha1 = x),
        ("alpha2", |p, x| p.alpha2 = x),
        ("relu_lower_clip", |p, x| p.relu_lower_clip = x),
        ("relu_upper_clip", |p, x| p.relu_upper_clip = x),
        ("relu_lower_clip_slope", |p, x| p.relu_lower_clip_slope = x),
        ("elu_alpha", |p, x| p.elu_alpha = x),
        ("softplus_beta", |p, x| p.softplus_beta = x),
        ("swish_beta", |p, x| p.swish_beta = x),
    ];
    for mode in PointwiseMode::all() {
        let ports = Operation::Pointwise(Pointwise::new(mode)).ports();
        let operands = ports.iter().filter(|rule| !rule.is_output).count();
        for (name, change) in changes {
            let mut pointwise = Pointwise::new(mode);
            change(&mut pointwise, seven);
            let function = name.split('_').next().unwrap();
            let has = mode.formula().contains(name)
                || (name.contains('_') && mode.name().trim_end_matches("_backward") == function);
            let mut g = graph("modes");
            let uids: Vec<_> = (0..operands).map(|_| g.input("", &[2]).unwrap()).collect();
            match g.pointwise(pointwise, &uids) {
                Ok(_) => assert!(has, "{} with {name}", mode.name()),
                Err(error) if error.message().contains("tensor at its input") => {
                    panic!("{}: {error}", mode.name())
                }
                Err(error) => {
                    let message = error.message();
                    assert!(!has, "{message}");
                    assert!(message.contains(&format!("{name} is 7")), "{message}");
                    assert!(message.contains(mode.name()), "{message}");
                }
            }
        }
    }
}

#[test]
fn ranks_that_an_operation_lacks_are_refused() {
    let mut wrong = Vec::new();
    for (name, tensor, dims) in [
        ("genstats", "x", &[2, 3][..]),
        ("genstats", "x", &[1, 2, 3, 4, 5, 6]),
        ("grouped_matmul", "t", &[6, 4]),
        ("grouped_matmul", "w", &[3, 4]),
        ("mask", "x", &[5]),
        ("maxpool", "x", &[2, 3]),
        ("maxpool_backward", "dy", &[2, 3]),
        ("batchnorm", "x", &[3]),
        ("batchnorm", "x", &[1, 3, 1, 1, 1, 1]),
        ("dgrad", "dy", &[2, 6]),
        ("wgrad", "x", &[2, 4]),
        ("sdpa", "v", &[2, 5, 6]),
    ] {
        let mut graph = sample(name);
        let found = graph.tensors.iter_mut().find(|one| one.name == tensor);
        let found = found.unwrap_or_else(|| panic!("{name} has no {tensor}"));
        *found = TensorSpec { strides: vec![0; dims.len()], dims: dims.to_vec(), ..found.clone() };
        let error = graph.validate().unwrap_err();
        let message = error.message();
        let named = message.contains(&format!("{tensor:?}")) && message.contains("dimensions");
        if error.kind() != ErrorKind::Shape || !named {
            wrong.push(format!("{name} {tensor} {dims:?}: {error:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn gradients_of_norms_are_those_of_training() {
    let mut graph = sample("norm_backward");
    if let Operation::NormBackward(norm) = &mut graph.operations[0].operation {
        norm.phase = NormPhase::Inference;
    }
    let error = graph.validate().unwrap_err();
    assert!(error.message().contains("layernorm_backward is of the phase inference"), "{error}");
}

#[test]
fn positions_of_an_interpolation_are_counted_in_64_bits() {
    let resample = |stride: Fraction, pre: Fraction| Resample {
        mode: ResampleMode::Bilinear,
        padding_mode: keyfold_cudnn::PaddingMode::EdgeValue,
        window: vec![2],
        stride: vec![stride],
        pre_padding: vec![pre],
        post_padding: vec![1.into()],
    };
    let fraction = |numerator, denominator| Fraction { numerator, denominator };
    let outcome = |stride, pre| {
        let mut g = graph("positions");
        let x = g.input("x", &[1, 1, 4]).unwrap();
        g.resample(x, resample(stride, pre)).map(|y| g.spec().tensor(y).unwrap().dims[2])
    };
    assert_eq!(outcome(fraction(1, 2), fraction(1, 2)).unwrap(), 8);
    for (stride, pre) in [
        (fraction(1 << 62, 1 << 16), fraction(1 << 60, 1)),
        (fraction(i64::MAX, 1), fraction(1, 2)),
        (fraction(1, 2), fraction(i64::MAX / 2, 1)),
        (fraction(1, 1 << 16), fraction(1 << 47, 1 << 16)),
    ] {
        let error = outcome(stride, pre).unwrap_err();
        let message = error.message();
        assert!(message.contains("graph \"positions\", resample"), "{message}");
        assert!(message.contains("\"x\""), "{message}");
        assert!(message.contains(&format!("stride {stride}")), "{message}");
    }
}

#[test]
fn the_shortest_decimal_of_a_greatest_number_is_that_number() {
    for (dtype, text, wrong) in [
        (DataType::F32, "3.4028235e38", "3.4028236e38"),
        (DataType::F32, "-3.4028235e+38", "-3.5e38"),
        (DataType::F16, "65519.9", "65520.0"),
        (DataType::BF16, "3.3961775e38", "3.397e38"),
    ] {
        let of = |text: &str| {
            let mut graph = sample("select");
            let scalar = graph.tensors.iter_mut().find(|tensor| tensor.by_value).unwrap();
            scalar.dtype = Some(dtype);
            scalar.scalar = Some(keyfold_cudnn::Number::Float(text.parse().unwrap()));
            GraphSpec::from_json(&graph.to_json()).unwrap().validate()
        };
        assert!(of(text).is_ok(), "{dtype} {text}: {:?}", of(text));
        let message = of(wrong).unwrap_err();
        assert!(message.message().contains(&format!("no {dtype}")), "{message}");
    }
    let mut graph = sample("select");
    let scalar = graph.tensors.iter_mut().find(|tensor| tensor.by_value).unwrap();
    // As a float32 prints itself.
    let printed = f32::MAX.to_string().parse::<f64>().unwrap();
    scalar.scalar = Some(keyfold_cudnn::Number::Float(printed));
    graph.validate().unwrap();
}
