//! Normalizations and attention against loops; gradients against differences.

use keyfold::cudnn::{
    Alignment, Attention, DataType, Layout, Norm, NormMode, NormPhase, Number, Operation, Port,
    Precision, TensorSpec,
};

use super::*;

/// A graph's outputs in float64.
fn wide(spec: &GraphSpec, given: &[(Uid, Vec<f64>)]) -> Vec<Vec<f64>> {
    run_on(spec, given, Device::CPU, Precision::F64).unwrap()
}

/// Returns the slope of `sum(dy * f(x))` by each element.
fn slopes(x: &[f64], dy: &[f64], f: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let value = |x: &[f64]| f(x).iter().zip(dy).map(|(y, dy)| y * dy).sum::<f64>();
    let slope = |at: usize| {
        let moved = |by: f64| {
            let mut x = x.to_vec();
            x[at] += by;
            value(&x)
        };
        (moved(1e-5) - moved(-1e-5)) / 2e-5
    };
    (0..x.len()).map(slope).collect()
}

/// A normalization with the sizes of `x` and of `scale`.
struct Case {
    norm: Norm,
    x: [usize; 3],
    scale: [usize; 3],
}

fn cases() -> Vec<Case> {
    let case = |mode, x, scale| Case { norm: Norm::new(mode), x, scale };
    let mut groups = case(NormMode::GroupNorm, [2, 4, 3], [1, 4, 1]);
    groups.norm.groups = Some(2);
    vec![
        case(NormMode::BatchNorm, [2, 4, 3], [1, 4, 1]),
        case(NormMode::InstanceNorm, [2, 4, 3], [1, 4, 1]),
        groups,
        case(NormMode::LayerNorm, [2, 4, 3], [1, 4, 3]),
        case(NormMode::LayerNorm, [2, 4, 3], [1, 4, 1]),
        case(NormMode::RmsNorm, [2, 4, 3], [1, 1, 3]),
        case(NormMode::AdaLayerNorm, [2, 4, 3], [2, 4, 1]),
    ]
}

/// Returns which set of elements that are normalized together an element is in.
fn set(case: &Case, [n, c, s]: [usize; 3]) -> usize {
    let (scale, groups) = (case.scale, case.norm.groups.unwrap_or(1) as usize);
    match case.norm.mode {
        NormMode::BatchNorm => c,
        NormMode::InstanceNorm => n * case.x[1] + c,
        NormMode::GroupNorm => n * groups + c / (case.x[1] / groups),
        mode => {
            let own = |axis: usize, i: usize| if scale[axis] == 1 { i } else { 0 };
            let n = if mode == NormMode::AdaLayerNorm { n } else { own(0, n) };
            (n * case.x[1] + own(1, c)) * case.x[2] + own(2, s)
        }
    }
}

/// The naive normalization, and the statistics in the order of their sets.
fn naive(case: &Case, x: &[f64], scale: &[f64], bias: &[f64], epsilon: f64) -> [Vec<f64>; 3] {
    let [ns, cs, ss] = case.x;
    let places: Vec<[usize; 3]> =
        (0..ns * cs * ss).map(|i| [i / (cs * ss), i / ss % cs, i % ss]).collect();
    let sets: Vec<usize> = places.iter().map(|&place| set(case, place)).collect();
    let mean_of = |set: usize, f: &dyn Fn(f64) -> f64| {
        let of: Vec<f64> = x.iter().zip(&sets).filter(|e| *e.1 == set).map(|e| f(*e.0)).collect();
        of.iter().sum::<f64>() / of.len() as f64
    };
    let statistics = |set: usize| {
        let centred = case.norm.mode != NormMode::RmsNorm;
        let mean = if centred { mean_of(set, &|x| x) } else { 0.0 };
        (mean, 1.0 / (mean_of(set, &|x| (x - mean) * (x - mean)) + epsilon).sqrt())
    };
    let y = places.iter().enumerate().map(|(i, place)| {
        let at = (0..3).fold(0, |at, axis| {
            at * case.scale[axis] + if case.scale[axis] == 1 { 0 } else { place[axis] }
        });
        let (mean, inv) = statistics(sets[i]);
        (x[i] - mean) * inv * scale[at] + bias[at]
    });
    let mut distinct = sets.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let (means, invs) = distinct.iter().map(|&set| statistics(set)).unzip();
    [y.collect(), means, invs]
}

fn dims(sizes: [usize; 3]) -> [i64; 3] {
    sizes.map(|size| size as i64)
}

#[test]
fn normalizations_and_their_gradients() {
    for case in cases() {
        let rms = case.norm.mode == NormMode::RmsNorm;
        let (count, parameters) = (24, case.scale.iter().product::<usize>());
        let (x, dy) = (data(count, 1), data(count, 8));
        let (scale, bias) = (data(parameters, 3), data(parameters, 5));
        let mut g = graph();
        let input = g.input("x", &dims(case.x)).unwrap();
        let [s, b] = ["scale", "bias"].map(|name| g.input(name, &dims(case.scale)).unwrap());
        let epsilon = g.scalar(Number::Float(0.125), None);
        let inputs =
            [(Port::X, input), (Port::Scale, s), (Port::Bias, b), (Port::Epsilon, epsilon)];
        add(&mut g, Operation::Norm(case.norm.clone()), &inputs, &[]);
        let given = [(input, x.clone()), (s, scale.clone()), (b, bias.clone())];
        let [y, means, invs] = naive(&case, &x, &scale, &bias, 0.125);
        let got = run(g.spec(), &given);
        let mode = case.norm.mode;
        assert!(close(&got[0], &y, 1e-5), "{mode:?} {got:?} {y:?}");
        assert_close(got.last().unwrap(), &invs, 1e-5);
        if !rms {
            assert_close(&got[1], &means, 1e-5);
        }
        let statistics = wide(g.spec(), &given);

        let mut g = graph_of(DataType::F64);
        let [gx, gdy] = ["x", "dy"].map(|name| g.input(name, &dims(case.x)).unwrap());
        let gs = g.input("scale", &dims(case.scale)).unwrap();
        let mut inputs = vec![(Port::X, gx), (Port::Dy, gdy), (Port::Scale, gs)];
        let mut given = vec![(gx, x.clone()), (gdy, dy.clone()), (gs, scale.clone())];
        let shape = statistics_dims(&case);
        // The statistics in float64, since differences are compared.
        let exact = naive(&case, &x, &scale, &bias, 0.125);
        for (port, numbers) in [(Port::Mean, &exact[1]), (Port::InvVariance, &exact[2])] {
            if port == Port::Mean && rms {
                continue;
            }
            let uid = g.input("statistic", &shape).unwrap();
            inputs.push((port, uid));
            given.push((uid, numbers.clone()));
        }
        add(&mut g, Operation::NormBackward(case.norm.clone()), &inputs, &[Port::Dbias]);
        let got = run(g.spec(), &given);
        let value = |x: &[f64], s: &[f64], b: &[f64]| naive(&case, x, s, b, 0.125)[0].clone();
        assert_close(&got[0], &slopes(&x, &dy, |x| value(x, &scale, &bias)), 1e-6);
        assert_close(&got[1], &slopes(&scale, &dy, |s| value(&x, s, &bias)), 1e-6);
        assert_close(&got[2], &slopes(&bias, &dy, |b| value(&x, &scale, b)), 1e-6);
        assert_eq!(statistics.len(), if rms { 2 } else { 3 });
    }
}

fn statistics_dims(case: &Case) -> [i64; 3] {
    let [n, c, s] = dims(case.x);
    match case.norm.mode {
        NormMode::BatchNorm => [1, c, 1],
        NormMode::InstanceNorm => [n, c, 1],
        NormMode::GroupNorm => [n, case.norm.groups.unwrap(), 1],
        mode => {
            let own = |axis: usize, size: i64| if case.scale[axis] == 1 { size } else { 1 };
            let n = if mode == NormMode::AdaLayerNorm { n } else { own(0, n) };
            [n, own(1, c), own(2, s)]
        }
    }
}

#[test]
fn batch_norm_keeps_running_statistics_and_uses_given_ones() {
    let mut g = graph();
    let x = g.input("x", &[2, 1, 2]).unwrap();
    let [s, b, m, v] = ["s", "b", "m", "v"].map(|name| g.input(name, &[1, 1, 1]).unwrap());
    let epsilon = g.scalar(Number::Float(0.0), None);
    let momentum = g.scalar(Number::Float(0.25), None);
    let inputs = [
        (Port::X, x),
        (Port::Scale, s),
        (Port::Bias, b),
        (Port::Epsilon, epsilon),
        (Port::Momentum, momentum),
        (Port::RunningMean, m),
        (Port::RunningVariance, v),
    ];
    let wanted = [Port::NextRunningMean, Port::NextRunningVariance];
    add(&mut g, Operation::Norm(Norm::new(NormMode::BatchNorm)), &inputs, &wanted);
    let one = |x: f64| vec![x];
    let numbers = vec![0.0, 2.0, 4.0, 6.0];
    let given = [(x, numbers.clone()), (s, one(2.0)), (b, one(1.0)), (m, one(8.0)), (v, one(4.0))];
    let got = run(g.spec(), &given);
    let inv = 1.0 / 5.0_f64.sqrt();
    assert_close(&got[0], &[-3.0, -1.0, 1.0, 3.0].map(|d| d * inv * 2.0 + 1.0), 1e-6);
    assert_close(&got[1], &[3.0], 1e-6);
    assert_close(&got[2], &[inv], 1e-6);
    assert_close(&got[3], &[0.75 * 8.0 + 0.25 * 3.0], 1e-6);
    assert_close(&got[4], &[0.75 * 4.0 + 0.25 * 20.0 / 3.0], 1e-6);

    let mut g = graph();
    let x = g.input("x", &[2, 1, 2]).unwrap();
    let ports = [Port::Mean, Port::InvVariance, Port::Scale, Port::Bias];
    let others = ports.map(|port| (port, g.input(&format!("{port}"), &[1, 1, 1]).unwrap()));
    let norm = Norm { phase: NormPhase::Inference, ..Norm::new(NormMode::BatchNorm) };
    let inputs: Vec<(Port, Uid)> = [(Port::X, x)].into_iter().chain(others).collect();
    add(&mut g, Operation::Norm(norm), &inputs, &[]);
    let mut given = vec![(x, numbers)];
    given.extend(others.iter().zip([3.0, 0.5, 2.0, 1.0]).map(|(o, n)| (o.1, one(n))));
    assert_eq!(run(g.spec(), &given)[0], [-2.0, 0.0, 2.0, 4.0]);
}

/// An attention with its sizes: batch, heads, heads of keys, rows, keys, depth.
struct Sdpa {
    attention: Attention,
    bias: bool,
    lengths: Option<[[f64; 2]; 2]>,
    groups: usize,
}

const B: usize = 2;
const H: usize = 4;
const ROWS: usize = 3;
const KEYS: usize = 5;
const D: usize = 2;
const SCALE: f64 = 0.5;

/// The naive attention: `o` and the logarithms of sums of exponentials.
fn attend(case: &Sdpa, q: &[f64], k: &[f64], v: &[f64], bias: &[f64]) -> [Vec<f64>; 2] {
    let heads = H / case.groups;
    let (mut o, mut stats) = (Vec::new(), Vec::new());
    for (b, h, i) in (0..B * H * ROWS).map(|at| (at / (H * ROWS), at / ROWS % H, at % ROWS)) {
        let lengths = case.lengths.map_or([ROWS as i64, KEYS as i64], |l| l.map(|l| l[b] as i64));
        let shift = match case.attention.alignment {
            Alignment::TopLeft => 0,
            Alignment::BottomRight => lengths[1] - lengths[0],
        };
        let row = (b * heads + h / case.groups) * KEYS;
        let sees = |j: usize| {
            let (j, diagonal) = (j as i64, i as i64 + shift);
            (i as i64) < lengths[0]
                && j < lengths[1]
                && case.attention.left_bound.is_none_or(|left| j > diagonal - left)
                && case.attention.right_bound.is_none_or(|right| j <= diagonal + right)
        };
        let score = |j: usize| {
            let at = ((b * H + h) * ROWS + i) * D;
            let dot: f64 = (0..D).map(|d| q[at + d] * k[(row + j) * D + d]).sum();
            dot * SCALE + if case.bias { bias[(h * ROWS + i) * KEYS + j] } else { 0.0 }
        };
        let powers: Vec<f64> =
            (0..KEYS).map(|j| if sees(j) { score(j).exp() } else { 0.0 }).collect();
        let sum: f64 = powers.iter().sum();
        stats.push(sum.ln());
        for d in 0..D {
            let value: f64 = (0..KEYS).map(|j| powers[j] * v[(row + j) * D + d]).sum();
            o.push(if sum == 0.0 { 0.0 } else { value / sum });
        }
    }
    [o, stats]
}

fn attentions() -> Vec<Sdpa> {
    let case = |left_bound, right_bound, alignment| Sdpa {
        attention: Attention { left_bound, right_bound, alignment, dropout: None },
        bias: false,
        lengths: None,
        groups: 1,
    };
    let bottom = Alignment::BottomRight;
    let lengths = Some([[3.0, 2.0], [5.0, 1.0]]);
    vec![
        case(None, None, Alignment::TopLeft),
        Sdpa { groups: 2, bias: true, ..case(None, Some(0), Alignment::TopLeft) },
        Sdpa { groups: 4, ..case(Some(1), Some(0), bottom) },
        Sdpa { lengths, bias: true, ..case(None, Some(1), bottom) },
        Sdpa { lengths, ..case(Some(2), None, Alignment::TopLeft) },
    ]
}

/// Adds the inputs that the forward and the gradients share, and their numbers.
fn shared(g: &mut Graph, case: &Sdpa) -> (Vec<(Port, Uid)>, Given) {
    let heads = (H / case.groups) as i64;
    let (b, h, rows, keys, d) = (B as i64, H as i64, ROWS as i64, KEYS as i64, D as i64);
    let mut list: Vec<(Port, Vec<i64>, Vec<f64>)> = vec![
        (Port::Q, vec![b, h, rows, d], data(B * H * ROWS * D, 1)),
        (Port::K, vec![b, heads, keys, d], data(B * H / case.groups * KEYS * D, 2)),
        (Port::V, vec![b, heads, keys, d], data(B * H / case.groups * KEYS * D, 6)),
    ];
    if case.bias {
        list.push((Port::Bias, vec![1, h, rows, keys], data(H * ROWS * KEYS, 9)));
    }
    let (mut inputs, mut given) = (Vec::new(), Vec::new());
    for (port, dims, numbers) in list {
        let uid = g.input(&format!("{port}"), &dims).unwrap();
        inputs.push((port, uid));
        given.push((uid, numbers));
    }
    if let Some(lengths) = case.lengths {
        for (port, numbers) in [Port::SeqLenQ, Port::SeqLenKv].into_iter().zip(lengths) {
            let spec = TensorSpec::new(0, DataType::I32, &[b, 1, 1, 1], Layout::Packed).unwrap();
            let uid = g.tensor(spec).unwrap();
            inputs.push((port, uid));
            given.push((uid, numbers.to_vec()));
        }
    }
    inputs.push((Port::AttnScale, g.scalar(Number::Float(SCALE), None)));
    (inputs, given)
}

#[test]
fn attention_and_its_gradients() {
    for case in attentions() {
        let mut g = graph();
        let (inputs, given) = shared(&mut g, &case);
        add(&mut g, Operation::Sdpa(case.attention.clone()), &inputs, &[Port::Stats]);
        let of = |at: usize| given[at].1.clone();
        let (q, k, v) = (of(0), of(1), of(2));
        let bias = if case.bias { of(3) } else { Vec::new() };
        let [o, stats] = attend(&case, &q, &k, &v, &bias);
        let got = run(g.spec(), &given);
        assert_close(&got[0], &o, 1e-5);
        assert_close(&got[1], &stats, 1e-5);

        let mut g = graph_of(DataType::F64);
        let (mut inputs, mut given) = shared(&mut g, &case);
        let dy = data(o.len(), 11);
        let shape = [B as i64, H as i64, ROWS as i64, D as i64];
        for (port, numbers) in [(Port::O, o), (Port::Do, dy.clone()), (Port::Stats, stats)] {
            let dims = if port == Port::Stats { [shape[0], shape[1], shape[2], 1] } else { shape };
            let uid = g.input(&format!("{port}"), &dims).unwrap();
            inputs.push((port, uid));
            given.push((uid, numbers));
        }
        let wanted: &[Port] = if case.bias { &[Port::Dbias] } else { &[] };
        add(&mut g, Operation::SdpaBackward(case.attention.clone()), &inputs, wanted);
        let got = run(g.spec(), &given);
        let f = |q: &[f64], k: &[f64], v: &[f64], b: &[f64]| attend(&case, q, k, v, b)[0].clone();
        assert_close(&got[0], &slopes(&q, &dy, |q| f(q, &k, &v, &bias)), 1e-6);
        assert_close(&got[1], &slopes(&k, &dy, |k| f(&q, k, &v, &bias)), 1e-6);
        assert_close(&got[2], &slopes(&v, &dy, |v| f(&q, &k, v, &bias)), 1e-6);
        if case.bias {
            assert_close(&got[3], &slopes(&bias, &dy, |b| f(&q, &k, &v, b)), 1e-6);
        }
    }
}

/// Adds a whole number that belongs to the graph.
fn whole(g: &mut Graph, number: i64) -> Uid {
    g.scalar(Number::Int(number), Some(DataType::I64))
}

#[test]
fn dropout_is_repeatable_and_the_gradient_drops_the_same() {
    let attention = Attention { dropout: Some(0.5.into()), ..Attention::default() };
    let case = Sdpa { attention: attention.clone(), bias: false, lengths: None, groups: 1 };
    let outputs = |seed: i64, moved: Option<(usize, usize, f64)>| {
        let mut g = graph_of(DataType::F64);
        let (mut inputs, mut given) = shared(&mut g, &case);
        inputs.extend([(Port::Seed, whole(&mut g, seed)), (Port::Offset, whole(&mut g, 3))]);
        if let Some((input, at, by)) = moved {
            given[input].1[at] += by;
        }
        add(&mut g, Operation::Sdpa(attention.clone()), &inputs, &[Port::Stats]);
        run(g.spec(), &given)
    };
    let forward = outputs(7, None);
    assert_eq!(forward, outputs(7, None));
    assert_ne!(forward, outputs(8, None));
    let mut g = graph_of(DataType::F64);
    let (mut inputs, mut given) = shared(&mut g, &case);
    inputs.extend([(Port::Seed, whole(&mut g, 7)), (Port::Offset, whole(&mut g, 3))]);
    let dy = data(forward[0].len(), 11);
    let shape = [B as i64, H as i64, ROWS as i64, D as i64];
    let [o, stats] = [forward[0].clone(), forward[1].clone()];
    for (port, numbers) in [(Port::O, o), (Port::Do, dy.clone()), (Port::Stats, stats)] {
        let dims = if port == Port::Stats { [shape[0], shape[1], shape[2], 1] } else { shape };
        let uid = g.input(&format!("{port}"), &dims).unwrap();
        inputs.push((port, uid));
        given.push((uid, numbers));
    }
    add(&mut g, Operation::SdpaBackward(attention.clone()), &inputs, &[]);
    let got = run(g.spec(), &given);
    let dot = |o: &[f64]| o.iter().zip(&dy).map(|(a, b)| a * b).sum::<f64>();
    for (input, gradient) in got.iter().enumerate() {
        for at in [0, 5, 11] {
            let side = |by: f64| dot(&outputs(7, Some((input, at, by)))[0]);
            let slope = (side(1e-5) - side(-1e-5)) / 2e-5;
            assert_close(&[gradient[at]], &[slope], 1e-6);
        }
    }
}

#[test]
fn attention_of_8_bit_floats_has_scales_and_greatest_values() {
    let mut g = graph();
    let byte = |g: &mut Graph, name: &str, dims: &[i64]| {
        let spec = TensorSpec::new(0, DataType::E4M3, dims, Layout::Packed).unwrap();
        g.tensor(spec.named(name)).unwrap()
    };
    let [q, k, v] = [("q", 1), ("k", 2), ("v", 2)].map(|(n, r)| byte(&mut g, n, &[1, 1, r, 1]));
    let mut inputs = vec![(Port::Q, q), (Port::K, k), (Port::V, v)];
    let scales = [
        (Port::DescaleQ, 2.0),
        (Port::DescaleK, 0.5),
        (Port::DescaleV, 4.0),
        (Port::DescaleS, 1.0 / 64.0),
        (Port::ScaleS, 64.0),
        (Port::ScaleO, 8.0),
    ];
    for (port, scale) in scales {
        inputs.push((port, g.scalar(Number::Float(scale), None)));
    }
    let wanted = [Port::AmaxS, Port::AmaxO];
    let outputs = add(&mut g, Operation::Sdpa(Attention::default()), &inputs, &wanted);
    g.set_dtype(outputs[0], DataType::E4M3).unwrap();
    // 56 is 1.0, 0 is 0.0, 64 is 2.0 and 48 is 0.5.
    let given = [(q, vec![56.0]), (k, vec![0.0, 0.0]), (v, vec![64.0, 48.0])];
    let got = run(g.spec(), &given);
    // Weights of a half each: (2 + 0.5) / 2 * 4 = 5, times 8 is 40, in steps of 4: 5 * 8 is byte
    // 98.
    assert_eq!(got[0], [98.0]);
    assert_eq!(got[1], [0.5]);
    assert_eq!(got[2], [5.0]);
}
