//! Plans: what they refuse, what they keep, how they are run.

use keyfold::cudnn::{
    Convolution, DataType, Layout, Norm, NormMode, Number, Operation, Pointwise, PointwiseMode,
    Port, Precision, Resample, ResampleMode, TensorSpec,
};
use keyfold_core::ErrorKind;

use super::*;

fn relu() -> Operation {
    Operation::Pointwise(Pointwise::new(PointwiseMode::Relu))
}

#[test]
fn virtual_tensors_are_freed_behind_their_last_reader() {
    let mut g = graph();
    let x = g.input("x", &[4]).unwrap();
    let mut uid = x;
    for name in ["a", "b"] {
        uid = g.add(relu(), &[(Port::X, uid)], &[]).unwrap()[0].1;
        g.set_name(uid, name).unwrap();
    }
    let first = g.spec().operations[0].outputs[0].1;
    let sum = Operation::Pointwise(Pointwise::new(PointwiseMode::Add));
    add(&mut g, sum, &[(Port::X, uid), (Port::B, first)], &[]);
    let plan = plan(g.spec(), Device::CPU, Precision::AsSpec).unwrap();
    assert_eq!(plan.spec.workspace_bytes, 0);
    assert!(!plan.spec.steps[1].contains("frees"), "{:?}", plan.spec.steps);
    assert!(plan.spec.steps[2].contains("then frees \"b\", \"a\""), "{:?}", plan.spec.steps);
    assert_eq!(run(g.spec(), &[(x, vec![-1.0, 0.0, 1.0, 2.0])])[0], [0.0, 0.0, 2.0, 4.0]);
}

#[test]
fn builds_are_cancelled_by_their_progress() {
    let mut g = graph();
    let x = g.input("x", &[4]).unwrap();
    add(&mut g, relu(), &[(Port::X, x)], &[]);
    let valid = Arc::new(g.into_spec().validate().unwrap());
    let reference = Reference::new(Device::CPU, Precision::F32);
    let stop = |_: keyfold::cudnn::Step<'_>| {
        Err(keyfold::Error::new(ErrorKind::Value, "enough".to_string()))
    };
    let error = reference.plan(valid, &Policy::default(), &stop).unwrap_err();
    assert_eq!(error.message(), "enough");
}

#[test]
fn devices_without_a_backend_and_packs_without_a_tensor_are_refused() {
    let mut g = graph();
    let x = g.input("x", &[4]).unwrap();
    add(&mut g, relu(), &[(Port::X, x)], &[]);
    let nowhere = Device::new(DeviceType::register("nowhere").unwrap(), 0);
    let error = plan(g.spec(), nowhere, Precision::F32).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert!(error.message().contains("nowhere"), "{error}");
    let plan = plan(g.spec(), Device::CPU, Precision::F32).unwrap();
    let error = plan.runner.run(&VariantPack { tensors: &[], workspace: None }).unwrap_err();
    assert!(error.message().contains("\"x\" (f32 [4])"), "{error}");
}

#[test]
fn errors_of_a_run_name_the_operation() {
    // A device that lacks a group of operations.
    toy();
    let kind = DeviceType::register("lacking").unwrap();
    let memory = DelayedMemory::new(kind, 1, 1);
    let backend = Delayed::over(Arc::new(HostBackend), memory.clone());
    let backend = backend.without(keyfold::backend::Group::Convolution);
    register(kind, Arc::new(backend) as Arc<dyn GpuBackend>).unwrap();
    let mut g = graph();
    let (x, w) = (g.input("x", &[1, 1, 3, 3]).unwrap(), g.input("w", &[1, 1, 2, 2]).unwrap());
    let conv = Operation::ConvFprop(Convolution::new(2));
    add(&mut g, conv, &[(Port::X, x), (Port::W, w)], &[]);
    let given = [(x, data(9, 1)), (w, data(4, 2))];
    let error = run_on(g.spec(), &given, memory.device(0), Precision::F32).unwrap_err();
    assert!(error.message().starts_with("graph \"test\", conv_fprop"), "{error}");
}

#[test]
fn numbers_are_given_by_value_at_each_run() {
    let mut g = graph();
    let x = g.input("x", &[3]).unwrap();
    let by_value =
        TensorSpec { by_value: true, ..TensorSpec::untyped(&[1], Layout::Packed).unwrap() };
    let factor = g.tensor(by_value.named("factor")).unwrap();
    let mul = Operation::Pointwise(Pointwise::new(PointwiseMode::Mul));
    add(&mut g, mul, &[(Port::X, x), (Port::B, factor)], &[]);
    for number in [2.0, -3.0] {
        let got = run(g.spec(), &[(x, vec![1.0, 2.0, 3.0]), (factor, vec![number])]);
        assert_eq!(got[0], [1.0, 2.0, 3.0].map(|x| x * number));
    }
}

#[test]
fn halves_are_rounded_between_operations_and_strides_are_the_callers() {
    for (dtype, step) in [(DataType::F16, 1.0 / 1024.0), (DataType::BF16, 1.0 / 128.0)] {
        let options = GraphOptions {
            io: Some(dtype),
            intermediate: Some(dtype),
            compute: Some(DataType::F32),
            ..GraphOptions::default()
        };
        let mut g = Graph::new(options);
        let x =
            g.tensor(TensorSpec::untyped(&[2, 2, 2, 2], Layout::ChannelsLast).unwrap()).unwrap();
        let scale = g.input("scale", &[1, 2, 1, 1]).unwrap();
        let mul = Operation::Pointwise(Pointwise::new(PointwiseMode::Mul));
        let t = g.add(mul, &[(Port::X, x), (Port::B, scale)], &[]).unwrap()[0].1;
        let one = g.scalar(Number::Float(1.0), None);
        let sub = Operation::Pointwise(Pointwise::new(PointwiseMode::Sub));
        let y = add(&mut g, sub, &[(Port::X, t), (Port::B, one)], &[])[0];
        assert_eq!(g.spec().tensor(y).unwrap().strides, [8, 1, 4, 2]);
        // (1 + step) (1 + step) is 1 + 2 step + step^2, whose end is rounded away.
        let given = [(x, vec![1.0 + step; 16]), (scale, vec![1.0, 1.0 + step])];
        let want: Vec<f64> =
            (0..16).map(|i| if i / 4 % 2 == 0 { step } else { 2.0 * step }).collect();
        assert_eq!(run(g.spec(), &given)[0], want, "{dtype}");
    }
}

#[test]
fn a_result_is_rounded_to_its_dtype_whether_or_not_it_has_memory() {
    for dtype in [DataType::F16, DataType::BF16] {
        let of = Some(dtype);
        let options =
            GraphOptions { io: of, intermediate: of, compute: of, ..GraphOptions::default() };
        let mut g = Graph::new(options);
        let (a, b) = (g.input("a", &[1, 4, 16]).unwrap(), g.input("b", &[1, 16, 8]).unwrap());
        let bias = g.input("bias", &[1, 1, 8]).unwrap();
        let product = g.matmul(a, b).unwrap();
        let sum = g.bias(product, bias).unwrap();
        let y = g.unary(PointwiseMode::Gelu, sum).unwrap();
        g.set_output(y, true).unwrap();
        let given = [(a, data(64, 1)), (b, data(128, 2)), (bias, data(8, 3))];
        let whole = run(g.spec(), &given);
        g.set_output(product, true).unwrap();
        g.set_output(sum, true).unwrap();
        assert_eq!(run(g.spec(), &given).last(), whole.last(), "{dtype}");
    }
}

#[test]
fn planners_of_other_dispatchers_share_no_plans() {
    keyfold::init();
    let make = || Reference::with_dispatcher(Device::CPU, Precision::AsSpec, dispatcher().clone());
    let (a, b) = (make(), make());
    let own = Reference::new(Device::CPU, Precision::AsSpec);
    assert_ne!(a.profile(), b.profile());
    assert_ne!(a.profile(), own.profile());
    assert_eq!(a.clone().profile(), a.profile());
}

#[test]
fn virtual_tensors_beyond_the_limit_and_inputs_in_place_are_refused() {
    let mut g = graph();
    let x = g.input("x", &[10, 10]).unwrap();
    let e = g.unary(PointwiseMode::Exp, x).unwrap();
    let y = g.unary(PointwiseMode::Tanh, e).unwrap();
    g.set_output(y, true).unwrap();
    keyfold::init();
    let valid = Arc::new(g.into_spec().validate().unwrap());
    let reference = Reference::new(Device::CPU, Precision::AsSpec);
    let plan = |limit| {
        let policy = Policy { workspace_limit: Some(limit), ..Policy::default() };
        reference.plan(valid.clone(), &policy, &|_| Ok(()))
    };
    assert!(plan(400).unwrap().spec.steps[2].contains("400 bytes"));
    let error = plan(399).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert!(error.message().contains("400 bytes") && error.message().contains("399"), "{error}");

    let mut g = graph();
    let (a, b) = (g.input("a", &[2, 3]).unwrap(), g.input("b", &[2, 3]).unwrap());
    let concatenate = keyfold::cudnn::Concatenate { axis: 0, in_place_index: Some(1) };
    let inputs = [(Port::X, a), (Port::X, b)];
    add(&mut g, Operation::Concatenate(concatenate), &inputs, &[]);
    let error = super::plan(g.spec(), Device::CPU, Precision::AsSpec).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert!(error.message().contains("concatenate: in_place_index is 1"), "{error}");
}

#[test]
fn a_graph_with_the_wrong_padding_is_found() {
    let result = |pre: i64| {
        let mut g = graph();
        let (x, w) = (g.input("x", &[1, 1, 5]).unwrap(), g.input("w", &[1, 1, 2]).unwrap());
        let conv = Convolution {
            pre_padding: vec![pre],
            post_padding: vec![1 - pre],
            ..Convolution::new(1)
        };
        add(&mut g, Operation::ConvFprop(conv), &[(Port::X, x), (Port::W, w)], &[]);
        run(g.spec(), &[(x, data(5, 1)), (w, data(2, 2))]).remove(0)
    };
    assert!(close(&result(0), &result(0), 1e-6));
    assert!(!close(&result(0), &result(1), 1e-6));
}

#[test]
fn a_network_of_several_operations_is_its_operations_one_by_one() {
    let mut g = graph();
    let (x, w) = (g.input("x", &[2, 3, 8, 8]).unwrap(), g.input("w", &[4, 3, 3, 3]).unwrap());
    let [s, b] = ["scale", "bias"].map(|name| g.input(name, &[1, 4, 1, 1]).unwrap());
    let epsilon = g.scalar(Number::Float(1e-5), None);
    let conv = Operation::ConvFprop(Convolution::new(2));
    let t = g.add(conv, &[(Port::X, x), (Port::W, w)], &[]).unwrap()[0].1;
    let inputs = [(Port::X, t), (Port::Scale, s), (Port::Bias, b), (Port::Epsilon, epsilon)];
    let norm = g.add(Operation::Norm(Norm::new(NormMode::BatchNorm)), &inputs, &[]).unwrap();
    for (_, statistic) in &norm[1..] {
        g.set_output(*statistic, true).unwrap();
    }
    let r = g.add(relu(), &[(Port::X, norm[0].1)], &[]).unwrap()[0].1;
    let pool = Resample {
        mode: ResampleMode::Maxpool,
        padding_mode: keyfold::cudnn::PaddingMode::NegInf,
        window: vec![2, 2],
        stride: vec![2.into(); 2],
        pre_padding: vec![0.into(); 2],
        post_padding: vec![0.into(); 2],
    };
    let y = g.add(Operation::Resample(pool), &[(Port::X, r)], &[]).unwrap()[0].1;
    g.set_output(y, true).unwrap();
    let given = [(x, data(384, 1)), (w, data(108, 2)), (s, data(4, 3)), (b, data(4, 4))];
    let whole = run(g.spec(), &given);
    for uid in [t, norm[0].1, r] {
        g.set_output(uid, true).unwrap();
    }
    let single = run(g.spec(), &given);
    assert_eq!(whole.last(), single.last());
}
