//! Steps of optimizers, compared with a naive model of one element; and what they refuse, before anything
//! is written.

mod support;

use keyfold_core::{DType, Device, ErrorKind, Result};
use keyfold_tensor::{Tensor, Value, ValueRef};
use support::*;

/// The numbers of a step of Adam.
#[derive(Clone, Copy)]
struct Adam {
    step: i64,
    lr: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    decay: f64,
    decoupled: bool,
    maximize: bool,
}

const PLAIN: Adam = Adam {
    step: 1,
    lr: 0.125,
    beta1: 0.9,
    beta2: 0.99,
    eps: 1e-3,
    decay: 0.0,
    decoupled: false,
    maximize: false,
};

/// Calls an operator that writes to its first argument.
fn write(name: &str, args: &[ValueRef<'_>]) -> Result<Tensor> {
    match dispatcher().call(name, args)? {
        Value::Argument(0) => Ok(args[0].tensor()?.clone()),
        other => other.into_tensor(),
    }
}

/// Takes the step: parameters, gradient, first and second moment, and perhaps the greatest second moment.
fn adam(tensors: &[&Tensor], numbers: Adam) -> Result<Tensor> {
    let mut args: Vec<ValueRef<'_>> = tensors.iter().map(|x| ValueRef::Tensor(x)).collect();
    args.resize(5, ValueRef::None);
    let Adam { step, lr, beta1, beta2, eps, decay, decoupled, maximize } = numbers;
    args.push(ValueRef::Int(step));
    args.extend([lr, beta1, beta2, eps, decay].map(ValueRef::Float));
    args.extend([decoupled, maximize].map(ValueRef::Bool));
    write("keyfold::adam_step_", &args)
}

/// The same for one element, by its definition.
fn naive(n: Adam, [p, g, m, v, most]: [f64; 5]) -> [f64; 4] {
    let g = if n.maximize { -g } else { g };
    let g = if n.decoupled { g } else { g + n.decay * p };
    let p = if n.decoupled { p - n.lr * n.decay * p } else { p };
    let (m, v) = (n.beta1 * m + (1.0 - n.beta1) * g, n.beta2 * v + (1.0 - n.beta2) * g * g);
    let most = most.max(v);
    let unbiased = most / (1.0 - n.beta2.powi(n.step as i32));
    let change = n.lr * (m / (1.0 - n.beta1.powi(n.step as i32))) / (unbiased.sqrt() + n.eps);
    [p - change, m, v, most]
}

/// Makes numbers in [0.1, 1) that look random, in every second case negative.
fn numbers(count: usize, seed: usize, signed: bool) -> Vec<f64> {
    let item = |i: usize| {
        let x = 0.1 + 0.9 * (((i + 31 * seed) as f64 * 0.618_034).fract());
        if signed && (i * 7 + seed).is_multiple_of(3) { -x } else { x }
    };
    (0..count).map(item).collect()
}

fn tensor(shape: &[usize], items: &[f64], dtype: DType) -> Tensor {
    let x = Tensor::from_slice(items, shape).unwrap();
    call("to", &[ValueRef::Tensor(&x), ValueRef::DType(dtype)]).unwrap()
}

/// The dtypes of parameters and of state, and the relative error of the latter.
const DTYPES_OF_STATE: [(DType, DType, f64); 6] = [
    (DType::F64, DType::F64, 1e-14),
    (DType::F32, DType::F32, 1e-6),
    (DType::F16, DType::F16, 2e-3),
    (DType::F16, DType::F32, 1e-6),
    (DType::BF16, DType::BF16, 2e-2),
    (DType::BF16, DType::F32, 1e-6),
];

fn unit_of(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1e-3,
        DType::BF16 => 1e-2,
        DType::F32 => 1e-6,
        _ => 1e-13,
    }
}

fn assert_near(got: &Tensor, wanted: &[f64], tolerance: f64, what: &str) {
    for (i, (got, wanted)) in values(got).iter().zip(wanted).enumerate() {
        let error = (got - wanted).abs();
        assert!(error <= tolerance * wanted.abs().max(1.0), "{what}[{i}]: {got}, not {wanted}");
    }
}

#[test]
fn adam_of_every_dtype_and_layout_is_its_definition() {
    let cases = [
        PLAIN,
        Adam { step: 3, decay: 0.5, ..PLAIN },
        Adam { step: 1000, decay: 0.5, decoupled: true, maximize: true, ..PLAIN },
        Adam { beta1: 0.0, beta2: 0.0, ..PLAIN },
    ];
    // More than a block of conversions and than a task of a thread, and the edges of ranks.
    for shape in [&[7, 5, 3][..], &[40_001], &[1], &[], &[0, 3]] {
        let count: usize = shape.iter().product();
        for (case, n) in cases.into_iter().enumerate() {
            for (at, (dtype, state, error)) in DTYPES_OF_STATE.into_iter().enumerate() {
                if count > 1000 && case != at % 4 {
                    continue;
                }
                for amsgrad in [false, true] {
                    let seed = 5 * case + at;
                    let of = |number: usize, dtype: DType| {
                        let x = tensor(shape, &numbers(count, number, number < 2), dtype);
                        // The first case is contiguous, the others lie differently from each other.
                        if case == 0 { x } else { scramble(&x, (seed + number) as u64) }
                    };
                    let all =
                        [of(0, dtype), of(1, dtype), of(2, state), of(3, state), of(4, state)];
                    let before: Vec<Vec<f64>> = all.iter().map(values).collect();
                    let some: Vec<&Tensor> = all[..if amsgrad { 5 } else { 4 }].iter().collect();
                    let result = adam(&some, n).unwrap();
                    assert!(count == 0 || result.touches(&all[0]), "it returns its first argument");
                    let mut wanted: [Vec<f64>; 4] = Default::default();
                    let column = |i: usize| [0, 1, 2, 3, 4].map(|at: usize| before[at][i]);
                    for [p, g, m, v, most] in (0..count).map(column) {
                        let old = [p, g, m, v, if amsgrad { most } else { 0.0 }];
                        for (all, one) in wanted.iter_mut().zip(naive(n, old)) {
                            all.push(one);
                        }
                    }
                    let what = format!("{shape:?} {dtype} {state} case {case} amsgrad {amsgrad}");
                    assert_near(&all[0], &wanted[0], 4.0 * unit_of(dtype).max(error / 4.0), &what);
                    assert_near(&all[2], &wanted[1], error, &what);
                    assert_near(&all[3], &wanted[2], error, &what);
                    assert_eq!(values(&all[1]), before[1], "{what}: the gradient is only read");
                    let most = if amsgrad { &wanted[3] } else { &before[4] };
                    assert_near(&all[4], most, error, &what);
                }
            }
        }
    }
}

/// Takes a step of gradient descent: parameters, gradient, perhaps the buffer; its step; learning rate,
/// momentum, dampening and weight decay; Nesterov's rule and maximize.
fn sgd(tensors: &[&Tensor], step: i64, numbers: [f64; 4], flags: [bool; 2]) -> Result<Tensor> {
    let mut args: Vec<ValueRef<'_>> = tensors.iter().map(|x| ValueRef::Tensor(x)).collect();
    args.resize(3, ValueRef::None);
    args.push(ValueRef::Int(step));
    args.extend(numbers.map(ValueRef::Float));
    args.extend(flags.map(ValueRef::Bool));
    write("keyfold::sgd_step_", &args)
}

#[test]
fn descent_is_its_definition() {
    let shape = [9, 70];
    let cases = [
        (1, [0.5, 0.0, 0.0, 0.0], [false, false]),
        (4, [0.5, 0.0, 0.0, 0.25], [false, true]),
        (1, [0.5, 0.75, 0.5, 0.0], [false, false]),
        (2, [0.5, 0.75, 0.5, 0.25], [false, false]),
        (1, [0.5, 0.75, 0.0, 0.0], [true, false]),
        (7, [0.5, 0.75, 0.0, 0.25], [true, true]),
    ];
    for (case, (step, numbers_, flags)) in cases.into_iter().enumerate() {
        let [lr, momentum, dampening, decay] = numbers_;
        for (dtype, state, error) in DTYPES_OF_STATE {
            let of = |number: usize, dtype| {
                let x = tensor(&shape, &numbers(630, number, true), dtype);
                scramble(&x, (case + number) as u64)
            };
            let all = [of(0, dtype), of(1, dtype), of(2, state)];
            let before: Vec<Vec<f64>> = all.iter().map(values).collect();
            let some: Vec<&Tensor> = all[..if momentum == 0.0 { 2 } else { 3 }].iter().collect();
            sgd(&some, step, numbers_, flags).unwrap();
            let (mut params, mut buffers) = (Vec::new(), Vec::new());
            let column = |i: usize| [0, 1, 2].map(|at: usize| before[at][i]);
            for [p, g, b] in (0..630).map(column) {
                let g = if flags[1] { -g } else { g } + decay * p;
                let b = if step == 1 { g } else { momentum * b + (1.0 - dampening) * g };
                let d = match (momentum == 0.0, flags[0]) {
                    (true, _) => g,
                    (false, true) => g + momentum * b,
                    (false, false) => b,
                };
                params.push(p - lr * d);
                buffers.push(b);
            }
            let what = format!("{dtype} {state} case {case}");
            assert_near(&all[0], &params, 4.0 * unit_of(dtype).max(error / 4.0), &what);
            let buffers = if momentum == 0.0 { &before[2] } else { &buffers };
            assert_near(&all[2], buffers, error, &what);
        }
    }
}

#[test]
fn a_buffer_of_momentum_is_not_read_in_the_first_step() {
    let (p, g, b) = (floats(&[1.0]), floats(&[2.0]), floats(&[f64::NAN]));
    sgd(&[&p, &g, &b], 1, [0.5, 0.9, 0.5, 0.0], [false; 2]).unwrap();
    assert_eq!((values(&p), values(&b)), (vec![0.0], vec![2.0]));
}

#[test]
fn infinities_and_nan_go_where_they_belong() {
    let of = |x: f64| floats(&[x]);
    // The decay of 0 isn't added, so that an infinite parameter doesn't make NaN of its moments.
    let (p, g, m, v) = (of(f64::INFINITY), of(1.0), of(0.0), of(0.0));
    adam(&[&p, &g, &m, &v], PLAIN).unwrap();
    assert!(values(&p)[0] == f64::INFINITY && values(&m)[0].is_finite());
    let (p, g, m, v) = (of(1.0), of(f64::NAN), of(0.0), of(0.0));
    let most = of(1.0);
    adam(&[&p, &g, &m, &v, &most], PLAIN).unwrap();
    assert!([&p, &m, &v, &most].iter().all(|x| values(x)[0].is_nan()));
    adam(&[&p, &of(1.0), &of(0.0), &of(0.0), &most], PLAIN).unwrap();
    assert!(values(&most)[0].is_nan(), "the greatest of NaN and a number is NaN");
}

#[test]
fn what_cannot_be_a_step_is_refused_before_anything_is_written() {
    let name = "keyfold::adam_step_";
    let of = || floats(&[1.0, 2.0, 3.0]);
    let all = [of(), of(), of(), of(), of()];
    let with = |at: usize, other: &Tensor, n: Adam| {
        let mut tensors: Vec<&Tensor> = all.iter().collect();
        tensors[at] = other;
        adam(&tensors, n)
    };
    let args = ["self", "grad", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"];
    for (at, arg) in args.into_iter().enumerate() {
        if at > 0 {
            let quoted = format!("'{arg}'");
            let short = with(at, &floats(&[1.0, 2.0]), PLAIN);
            fails(short, ErrorKind::Shape, &[name, &quoted, "[2]", "[3]"]);
            let single = tensor(&[3], &[1.0; 3], DType::F32);
            fails(
                with(at, &single, PLAIN),
                ErrorKind::DType,
                &[name, &quoted, "float32", "float64"],
            );
            let meta = to_meta(&all[0]);
            let elsewhere = with(at, &meta, PLAIN).unwrap_err();
            assert_eq!(elsewhere.kind(), ErrorKind::Device, "{elsewhere}");
        }
        if at != 1 {
            let quoted = format!("'{arg}'");
            fails(with(at, &all[1], PLAIN), ErrorKind::Value, &[name, &quoted, "'grad'", "memory"]);
            let repeated = floats(&[1.0]).broadcast_to(&[3]).unwrap();
            fails(with(at, &repeated, PLAIN), ErrorKind::Value, &[name, &quoted, "share memory"]);
            let frozen = of().into_read_only();
            fails(with(at, &frozen, PLAIN), ErrorKind::ReadOnly, &[name, &quoted]);
        }
    }
    fails(
        with(0, &ints(&[1, 2, 3]), PLAIN),
        ErrorKind::DType,
        &[name, "'self'", "int64", "float32"],
    );
    let numbers: [(&str, Adam); 9] = [
        ("'step' is 0", Adam { step: 0, ..PLAIN }),
        ("'step' is -3", Adam { step: -3, ..PLAIN }),
        ("'lr' is NaN", Adam { lr: f64::NAN, ..PLAIN }),
        ("'lr' is -1", Adam { lr: -1.0, ..PLAIN }),
        ("'beta1' is 1", Adam { beta1: 1.0, ..PLAIN }),
        ("'beta2' is -0.1", Adam { beta2: -0.1, ..PLAIN }),
        ("'beta2' is NaN", Adam { beta2: f64::NAN, ..PLAIN }),
        ("'eps' is -1", Adam { eps: -1.0, ..PLAIN }),
        ("'weight_decay' is inf", Adam { decay: f64::INFINITY, ..PLAIN }),
    ];
    for (part, n) in numbers {
        fails(adam(&all.each_ref()[..4], n), ErrorKind::Value, &[name, part]);
        let meta: Vec<Tensor> = all[..4].iter().map(to_meta).collect();
        fails(adam(&meta.iter().collect::<Vec<_>>(), n), ErrorKind::Value, &[name, part]);
    }
    let name = "keyfold::sgd_step_";
    let one = [0.1, 0.9, 0.0, 0.0];
    let (two, three) = ([&all[0], &all[1]], [&all[0], &all[1], &all[2]]);
    fails(sgd(&two, 1, one, [false; 2]), ErrorKind::Value, &[name, "'momentum_buffer' is missing"]);
    let without = [0.1, 0.0, 0.0, 0.0];
    fails(sgd(&three, 1, without, [false; 2]), ErrorKind::Value, &[name, "leave the buffer away"]);
    fails(sgd(&two, 1, without, [true, false]), ErrorKind::Value, &[name, "'nesterov'"]);
    let damped = [0.1, 0.9, 0.5, 0.0];
    fails(sgd(&three, 1, damped, [true, false]), ErrorKind::Value, &[name, "'dampening' is 0.5"]);
    fails(sgd(&two, 0, without, [false; 2]), ErrorKind::Value, &[name, "'step' is 0"]);
    for x in &all {
        assert_eq!((values(x), x.version()), (vec![1.0, 2.0, 3.0], 0), "nothing was written");
    }
}

#[test]
fn halves_keep_their_state_in_one_dtype() {
    let of = |dtype| tensor(&[2], &[1.0, 2.0], dtype);
    let (half, wide) = (DType::F16, DType::F32);
    let mixed = adam(&[&of(half), &of(half), &of(wide), &of(half)], PLAIN);
    fails(mixed, ErrorKind::DType, &["'exp_avg_sq' is float16", "has to be float32"]);
    let other = adam(&[&of(half), &of(half), &of(DType::BF16), &of(half)], PLAIN);
    fails(other, ErrorKind::DType, &["'exp_avg' is bfloat16", "float16, or float32 for all state"]);
}

#[test]
fn steps_count_as_writes_and_meta_takes_them_too() {
    let all = [floats(&[1.0]), floats(&[1.0]), floats(&[0.0]), floats(&[0.0])];
    adam(&all.each_ref(), PLAIN).unwrap();
    let versions: Vec<u32> = all.iter().map(Tensor::version).collect();
    assert_eq!(versions, [1, 0, 1, 1]);
    let meta = all.each_ref().map(to_meta);
    let result = adam(&meta.each_ref(), PLAIN).unwrap();
    assert_eq!((result.device(), result.shape()), (Device::META, meta[0].shape()));
}
