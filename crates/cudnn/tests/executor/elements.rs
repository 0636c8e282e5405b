//! Pointwise operations, conversions, 8-bit floats, products, reductions and moves.

use keyfold::Device;
use keyfold::cudnn::{
    DataType, Layout, Number, Operation, Pointwise, PointwiseMode as M, Port, Precision, Reduction,
    ReductionMode, TensorSpec, Transpose,
};

use super::*;

/// Computes a function of two int64 inputs.
fn of_integers(mode: M, a: &[i64], b: &[i64], dtype: DataType) -> Vec<i64> {
    let mut g = graph_of(dtype);
    let dims = [a.len() as i64];
    let (x, y) = (g.input("x", &dims).unwrap(), g.input("y", &dims).unwrap());
    let operation = Operation::Pointwise(Pointwise::new(mode));
    let inputs = [(Port::X, x), (Port::B, y)];
    let used = if mode == M::Abs || mode == M::Neg { &inputs[..1] } else { &inputs[..] };
    let made = g.add_named("", Some(dtype), operation, used, &[]).unwrap()[0].1;
    g.set_dtype(made, dtype).unwrap();
    g.set_output(made, true).unwrap();
    let spec = g.into_spec();
    let valid = Arc::new(
        GraphSpec {
            tensors: spec
                .tensors
                .iter()
                .filter(|t| used.len() == 2 || t.uid != y)
                .cloned()
                .collect(),
            ..spec
        }
        .validate()
        .unwrap(),
    );
    keyfold::init();
    let reference = Reference::new(Device::CPU, Precision::AsSpec);
    let plan = reference.plan(valid, &Policy::default(), &|_| Ok(())).unwrap();
    let tensor = |numbers: &[i64]| match dtype {
        DataType::I64 => Tensor::from_slice(numbers, &[numbers.len()]).unwrap(),
        _ => {
            let narrow: Vec<i32> = numbers.iter().map(|&n| n as i32).collect();
            Tensor::from_slice(&narrow, &[numbers.len()]).unwrap()
        }
    };
    let (a, b, out) = (tensor(a), tensor(b), tensor(&vec![7; a.len()]));
    let all = [(x, &a), (y, &b), (made, &out)];
    let pack: Vec<_> = all.into_iter().filter(|t| used.len() == 2 || t.0 != y).collect();
    plan.runner.run(&VariantPack { tensors: &pack, workspace: None }).unwrap();
    match dtype {
        DataType::I64 => out.to_vec::<i64>().unwrap(),
        _ => out.to_vec::<i32>().unwrap().into_iter().map(i64::from).collect(),
    }
}

#[test]
fn integers_are_computed_exactly_and_saturate() {
    let a = [i64::MAX, i64::MAX - 1, -7, 7, -7, 7, -6, 0, (1 << 53) + 1];
    let b = [2, 10, 2, -2, -2, 2, 2, 5, 3];
    let each = |f: fn(i64, i64) -> i64| a.iter().zip(b).map(|(&a, b)| f(a, b)).collect::<Vec<_>>();
    assert_eq!(of_integers(M::Mod, &a, &b, DataType::I64), each(|a, b| a % b));
    assert_eq!(of_integers(M::Div, &a, &b, DataType::I64), each(|a, b| a / b));
    assert_eq!(
        of_integers(M::FloorMod, &a, &b, DataType::I64),
        each(|a, b| a.rem_euclid(b.abs()) + if b < 0 && a.rem_euclid(b.abs()) != 0 { b } else { 0 })
    );
    for (dtype, least, most) in
        [(DataType::I64, i64::MIN, i64::MAX), (DataType::I32, i32::MIN.into(), i32::MAX.into())]
    {
        let numbers = [least, least + 1, -1, 0, most];
        assert_eq!(of_integers(M::Abs, &numbers, &numbers, dtype), [most, most, 1, 0, most]);
        assert_eq!(of_integers(M::Neg, &numbers, &numbers, dtype), [most, most, 1, 0, -most]);
    }
}

#[test]
fn reductions_of_integers_do_not_overflow() {
    let reduced = |mode, numbers: &[f64], to: DataType| {
        let mut g = graph_of(DataType::I32);
        let x = g.input("x", &[numbers.len() as i64]).unwrap();
        let operation = Operation::Reduction(Reduction { mode });
        let y = g.add_named("", Some(DataType::I32), operation, &[(Port::X, x)], &[]).unwrap()[0].1;
        g.set_dtype(y, to).unwrap();
        g.set_output(y, true).unwrap();
        run(g.spec(), &[(x, numbers.to_vec())])[0][0]
    };
    let least = f64::from(i32::MIN);
    use ReductionMode as R;
    assert_eq!(reduced(R::Norm2, &[70000.0], DataType::I32), 70000.0);
    assert_eq!(reduced(R::Norm1, &[least, 1.0], DataType::I64), 1.0 - least);
    assert_eq!(reduced(R::Amax, &[least, 1.0], DataType::I64), -least);
    assert_eq!(reduced(R::Amax, &[least, 1.0], DataType::I32), f64::from(i32::MAX));
    assert_eq!(reduced(R::Add, &[least, least], DataType::I32), least);
    assert_eq!(reduced(R::Avg, &[least, 0.0], DataType::I32), least / 2.0);
}

fn pointwise(mode: M) -> Operation {
    Operation::Pointwise(Pointwise::new(mode))
}

fn erf(x: f64) -> f64 {
    // The series, which has no cancellation worth the name below 3.
    let mut term = x;
    let mut sum = x;
    for n in 1..80 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn gelu(x: f64) -> f64 {
    x * (1.0 + erf(x / 2.0_f64.sqrt())) / 2.0
}

fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    x * (1.0 + inner.tanh()) / 2.0
}

/// The attributes of the test: none that a mode has is a default.
fn attributes(mode: M) -> Pointwise {
    let plain = Pointwise::new(mode);
    match mode {
        M::Add | M::Sub | M::Mul => {
            Pointwise { alpha1: 0.5.into(), alpha2: (-2.0).into(), ..plain }
        }
        M::Relu | M::ReluBackward => Pointwise {
            relu_lower_clip: (-0.25).into(),
            relu_upper_clip: 1.0.into(),
            relu_lower_clip_slope: 0.125.into(),
            ..plain
        },
        M::Elu | M::EluBackward => Pointwise { elu_alpha: 0.75.into(), ..plain },
        M::Softplus | M::SoftplusBackward => Pointwise { softplus_beta: 2.0.into(), ..plain },
        M::Swish | M::SwishBackward => Pointwise { swish_beta: 1.5.into(), ..plain },
        _ => plain,
    }
}

/// The naive function of a mode with those attributes, of `x` or of `x` and `b`.
fn forward(mode: M, x: f64, b: f64) -> f64 {
    let truth = |holds: bool| f64::from(u8::from(holds));
    match mode {
        M::Identity => x,
        M::Abs => x.abs(),
        M::Ceil => x.ceil(),
        M::Cos => x.cos(),
        M::Erf => erf(x),
        M::Exp => x.exp(),
        M::Floor => x.floor(),
        M::Log => x.ln(),
        M::Neg => -x,
        M::Reciprocal => 1.0 / x,
        M::Rsqrt => 1.0 / x.sqrt(),
        M::Sin => x.sin(),
        M::Sqrt => x.sqrt(),
        M::Tan => x.tan(),
        M::Relu if x > -0.25 => x.min(1.0),
        M::Relu => -0.25 + 0.125 * (x + 0.25),
        M::Tanh => x.tanh(),
        M::Sigmoid => sigmoid(x),
        M::Elu => {
            if x > 0.0 {
                x
            } else {
                0.75 * x.exp_m1()
            }
        }
        M::Gelu => gelu(x),
        M::GeluApproxTanh => gelu_tanh(x),
        M::Softplus => (2.0 * x).exp().ln_1p() / 2.0,
        M::Swish => x * sigmoid(1.5 * x),
        M::Add => 0.5 * x - 2.0 * b,
        M::AddSquare => x + b * b,
        M::Sub => 0.5 * x + 2.0 * b,
        M::Mul => -x * b,
        M::Div => x / b,
        M::Max => x.max(b),
        M::Min => x.min(b),
        M::Mod => x % b,
        M::FloorMod => x - b * (x / b).floor(),
        M::Pow => x.powf(b),
        M::Atan2 => x.atan2(b),
        M::CmpEq => truth(x == b),
        M::CmpNeq => truth(x != b),
        M::CmpGt => truth(x > b),
        M::CmpGe => truth(x >= b),
        M::CmpLt => truth(x < b),
        M::CmpLe => truth(x <= b),
        other => panic!("{other:?} has a test of its own"),
    }
}

#[test]
fn forward_modes_are_their_formulas() {
    let tested = |mode: &M| {
        !mode.is_backward()
            && ![M::LogicalNot, M::LogicalAnd, M::LogicalOr, M::GenIndex, M::BinarySelect]
                .contains(mode)
    };
    let mut count = 0;
    for mode in M::all().filter(tested) {
        let mut g = graph();
        let (x, b) = (g.input("x", &[3, 7]).unwrap(), g.input("b", &[1, 7]).unwrap());
        let two = (M::Add..=M::CmpLe).contains(&mode);
        let mut inputs = vec![(Port::X, x)];
        inputs.extend(two.then_some((Port::B, b)));
        let y = add(&mut g, Operation::Pointwise(attributes(mode)), &inputs, &[])[0];
        g.set_dtype(y, DataType::F32).unwrap();
        let mut spec = g.into_spec();
        if !two {
            spec.tensors.retain(|tensor| tensor.uid != b);
        }
        let positive = matches!(mode, M::Log | M::Rsqrt | M::Sqrt | M::Pow | M::Reciprocal);
        let shift = if positive { 2.0 } else { 0.125 };
        let xs: Vec<f64> = data(21, 1).iter().map(|x| x + shift).collect();
        let bs: Vec<f64> = data(7, 3).iter().map(|b| b + 0.125).collect();
        let mut given = vec![(x, xs.clone())];
        given.extend(two.then_some((b, bs.clone())));
        let want: Vec<f64> = (0..21).map(|i| forward(mode, xs[i], bs[i % 7])).collect();
        let got = run(&spec, &given);
        assert!(close(&got[0], &want, 2e-6), "{mode:?} {got:?} {want:?}");
        let wide = run_on(&spec, &given, Device::CPU, Precision::F64).unwrap();
        let wide_error = wide[0].iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(wide_error < 1e-6, "{mode:?} {wide:?}");
        count += 1;
    }
    assert_eq!(count, 39);
}

#[test]
fn backward_modes_are_the_slopes_of_the_forward_ones() {
    for (backward, of) in [
        (M::ReluBackward, M::Relu),
        (M::TanhBackward, M::Tanh),
        (M::SigmoidBackward, M::Sigmoid),
        (M::EluBackward, M::Elu),
        (M::GeluBackward, M::Gelu),
        (M::GeluApproxTanhBackward, M::GeluApproxTanh),
        (M::SoftplusBackward, M::Softplus),
        (M::SwishBackward, M::Swish),
    ] {
        let mut g = graph();
        let (dy, x) = (g.input("dy", &[11]).unwrap(), g.input("x", &[11]).unwrap());
        let operation = Operation::Pointwise(attributes(backward));
        add(&mut g, operation, &[(Port::Dy, dy), (Port::X, x)], &[]);
        let (dys, xs) = (data(11, 2), data(11, 5));
        let xs: Vec<f64> = xs.iter().map(|x| x + 0.0625).collect();
        let slope = |x: f64| (forward(of, x + 1e-5, 0.0) - forward(of, x - 1e-5, 0.0)) / 2e-5;
        let want: Vec<f64> = dys.iter().zip(&xs).map(|(dy, &x)| dy * slope(x)).collect();
        let got = run(g.spec(), &[(dy, dys), (x, xs)]);
        assert!(close(&got[0], &want, 1e-5), "{backward:?} {got:?} {want:?}");
    }
}

#[test]
fn angles_have_all_quadrants_and_edges() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let edges = [0.0, -0.0, 1.0, -1.0, 1e-30, -3e30, inf, -inf, nan, 0.4, -7.0];
    let pairs: Vec<(f64, f64)> =
        edges.iter().flat_map(|&y| edges.iter().map(move |&x| (y, x))).collect();
    let mut g = graph_of(DataType::F64);
    let n = pairs.len() as i64;
    let (y, x) = (g.input("y", &[n]).unwrap(), g.input("x", &[n]).unwrap());
    add(&mut g, pointwise(M::Atan2), &[(Port::X, y), (Port::B, x)], &[]);
    let (ys, xs): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let got = run(g.spec(), &[(y, ys), (x, xs)]);
    for (got, (y, x)) in got[0].iter().zip(pairs) {
        let want = y.atan2(x);
        let near = (got - want).abs() <= 1e-15 * want.abs()
            && got.is_sign_negative() == want.is_sign_negative();
        assert!(near || (got.is_nan() && want.is_nan()), "atan2({y}, {x}) is {want}, got {got}");
    }
}

#[test]
fn logic_selects_and_indices() {
    let mut g = graph();
    let tensor = |dims: &[i64], dtype| TensorSpec::new(0, dtype, dims, Layout::Packed).unwrap();
    let p = g.tensor(tensor(&[4], DataType::Bool).named("p")).unwrap();
    let q = g.tensor(tensor(&[4], DataType::I32).named("q")).unwrap();
    let (x, b) = (g.input("x", &[4]).unwrap(), g.input("b", &[4]).unwrap());
    add(&mut g, pointwise(M::LogicalNot), &[(Port::X, p)], &[]);
    add(&mut g, pointwise(M::LogicalAnd), &[(Port::X, p), (Port::B, q)], &[]);
    add(&mut g, pointwise(M::LogicalOr), &[(Port::X, p), (Port::B, q)], &[]);
    let select = [(Port::X, x), (Port::B, b), (Port::T, p)];
    add(&mut g, pointwise(M::BinarySelect), &select, &[]);
    let image = g.input("image", &[2, 2, 3]).unwrap();
    for axis in [0, 2] {
        let index = Pointwise { axis: Some(axis), ..Pointwise::new(M::GenIndex) };
        add(&mut g, Operation::Pointwise(index), &[(Port::X, image)], &[]);
    }
    let got = run(
        g.spec(),
        &[
            (p, vec![0.0, 0.0, 1.0, 1.0]),
            (q, vec![0.0, 5.0, 0.0, -1.0]),
            (x, vec![1.0, 2.0, 3.0, 4.0]),
            (b, vec![f64::NAN, 6.0, 7.0, 8.0]),
            (image, data(12, 0)),
        ],
    );
    assert_eq!(got[0], [1.0, 1.0, 0.0, 0.0]);
    assert_eq!(got[1], [0.0, 0.0, 0.0, 1.0]);
    assert_eq!(got[2], [0.0, 1.0, 1.0, 1.0]);
    assert!(got[3][0].is_nan());
    assert_eq!(got[3][1..], [6.0, 3.0, 4.0]);
    assert_eq!(got[4], [0., 0., 0., 0., 0., 0., 1., 1., 1., 1., 1., 1.]);
    assert_eq!(got[5], [0., 1., 2., 0., 1., 2., 0., 1., 2., 0., 1., 2.]);
}

/// What each byte is, from its sign, exponent and mantissa.
fn float8(byte: usize, bits: i32, bias: i32) -> f64 {
    let (exponent, mantissa) = ((byte as i32 & 127) >> bits, byte as i32 & ((1 << bits) - 1));
    let magnitude = match exponent {
        0 => f64::from(mantissa) * 2.0_f64.powi(1 - bias - bits),
        _ => f64::from(mantissa + (1 << bits)) * 2.0_f64.powi(exponent - bias - bits),
    };
    if byte < 128 { magnitude } else { -magnitude }
}

#[test]
fn bytes_of_8_bit_floats_survive_and_midpoints_go_to_even() {
    for (dtype, bits, bias, finite) in [(DataType::E4M3, 3, 7, 127), (DataType::E5M2, 2, 15, 124)] {
        let mut g = graph();
        let x = g.input("x", &[512]).unwrap();
        let y = add(&mut g, pointwise(M::Identity), &[(Port::X, x)], &[])[0];
        g.set_dtype(y, dtype).unwrap();
        let back = g.input("back", &[finite]).unwrap();
        let bytes =
            g.tensor(TensorSpec::new(0, dtype, &[finite], Layout::Packed).unwrap().named("bytes"));
        let bytes = bytes.unwrap();
        let inputs = [(Port::X, bytes), (Port::B, back)];
        add(&mut g, pointwise(M::Mul), &inputs, &[]);
        let last = float8(finite as usize - 1, bits, bias);
        let (mut given, mut want) = (Vec::new(), Vec::new());
        for byte in 0..finite as usize - 1 {
            let (low, high) = (float8(byte, bits, bias), float8(byte + 1, bits, bias));
            given.extend([low, -low, (low + high) / 2.0]);
            want.extend([byte, byte + 128, byte + byte % 2].map(|b| b as f64));
        }
        given.extend([1e9, f64::INFINITY, f64::NEG_INFINITY, last * 1.01, f64::NAN, 1e-12, -1e-12]);
        let nan = if dtype == DataType::E4M3 { 127.0 } else { 126.0 };
        let most = finite as f64 - 1.0;
        want.extend([most, most, most + 128.0, most, nan, 0.0, 128.0]);
        given.resize(512, 0.0);
        want.resize(512, 0.0);
        let numbers: Vec<f64> = (0..finite as usize).map(|byte| float8(byte, bits, bias)).collect();
        let raw: Vec<f64> = (0..finite).map(|byte| byte as f64).collect();
        let got = run(g.spec(), &[(x, given), (back, vec![1.0; finite as usize]), (bytes, raw)]);
        assert_eq!(got[0], want, "{dtype}");
        assert_eq!(got[1], numbers, "{dtype}");
    }
}

#[test]
fn moved_bytes_of_8_bit_floats_are_decoded_in_every_precision() {
    let mut g = graph();
    let spec = TensorSpec::new(0, DataType::E5M2, &[2, 2], Layout::Packed).unwrap();
    let x = g.tensor(spec.named("x")).unwrap();
    let turn = Operation::Transpose(Transpose { permutation: vec![1, 0] });
    let moved = g.add(turn, &[(Port::X, x)], &[]).unwrap()[0].1;
    assert_eq!(g.spec().tensor(moved).unwrap().dtype, Some(DataType::E5M2));
    add(&mut g, pointwise(M::Identity), &[(Port::X, moved)], &[]);
    let given = [(x, vec![0x3c, 0xc0, 0x44, 0x38].into_iter().map(f64::from).collect())];
    for precision in [Precision::AsSpec, Precision::F32, Precision::F64] {
        for device in [Device::CPU, toy()] {
            let got = run_on(g.spec(), &given, device, precision).unwrap();
            assert_eq!(got[0], [1.0, 4.0, -2.0, 0.5], "{precision:?} on {device}");
        }
    }
}

#[test]
fn whole_numbers_saturate_and_round_to_even() {
    let x = [0.5, 1.5, -2.5, 300.0, -300.0, 1e12, -1e12, f64::NAN, f64::INFINITY, 2147483520.0];
    for (dtype, want) in [
        (DataType::I8, [0., 2., -2., 127., -128., 127., -128., 0., 127., 127.]),
        (DataType::U8, [0., 2., 0., 255., 0., 255., 0., 0., 255., 255.]),
        (
            DataType::I32,
            [0., 2., -2., 300., -300., 2147483647., -2147483648., 0., 2147483647., 2147483520.],
        ),
    ] {
        let mut g = graph();
        let input = g.input("x", &[10]).unwrap();
        let y = add(&mut g, pointwise(M::Identity), &[(Port::X, input)], &[])[0];
        g.set_dtype(y, dtype).unwrap();
        assert_eq!(run(g.spec(), &[(input, x.to_vec())])[0], want, "{dtype}");
    }
}

#[test]
fn precisions_round_where_they_say() {
    let mut g = graph_of(DataType::F64);
    let x = g.input("x", &[1]).unwrap();
    let one = g.scalar(Number::Float(1.0), Some(DataType::F64));
    let t = g.add(pointwise(M::Add), &[(Port::X, x), (Port::B, one)], &[]).unwrap()[0].1;
    g.set_dtype(t, DataType::F16).unwrap();
    add(&mut g, pointwise(M::Sub), &[(Port::X, t), (Port::B, one)], &[]);
    let small = 2.0_f64.powi(-20);
    let result =
        |precision| run_on(g.spec(), &[(x, vec![small])], Device::CPU, precision).unwrap()[0][0];
    assert_eq!(result(Precision::AsSpec), 0.0);
    assert_eq!(result(Precision::F32), small);
    assert_eq!(result(Precision::F64), small);
}
