//! Products, reductions, softmax, masks and moves.

use keyfold::cudnn::{
    Concatenate, DataType, DiagonalBandMask, Layout, Number, Operation, Pointwise, PointwiseMode,
    Port, Reduction, ReductionMode as R, Slice, TensorSpec, Transpose,
};

use super::*;

#[test]
fn two_products_that_are_added_share_no_operation() {
    // With one row, each of them can be the bias of the other.
    let mut g = graph();
    let names = ["a1", "a2"].map(|name| g.input(name, &[1, 1, 4]).unwrap());
    let matrices = ["b1", "b2"].map(|name| g.input(name, &[1, 4, 5]).unwrap());
    let [p, q] = [0, 1].map(|i| g.matmul(names[i], matrices[i]).unwrap());
    let sum = g.bias(p, q).unwrap();
    let y = g.relu(sum).unwrap();
    g.set_output(y, true).unwrap();
    let given: Given = names
        .iter()
        .zip(&matrices)
        .enumerate()
        .flat_map(|(i, (&a, &b))| [(a, data(4, 2 * i)), (b, data(20, 2 * i + 1))])
        .collect();
    let product =
        |a: &[f64], b: &[f64], n: usize| -> f64 { (0..4).map(|k| a[k] * b[5 * k + n]).sum() };
    let want: Vec<f64> = (0..5)
        .map(|n| product(&given[0].1, &given[1].1, n) + product(&given[2].1, &given[3].1, n))
        .map(|sum| sum.max(0.0))
        .collect();
    assert_close(&run(g.spec(), &given)[0], &want, 1e-6);

    let mut g = graph();
    let images = ["x1", "x2"].map(|name| g.input(name, &[1, 3, 1, 1]).unwrap());
    let filters = ["w1", "w2"].map(|name| g.input(name, &[5, 3, 1, 1]).unwrap());
    let conv = || keyfold::cudnn::Convolution::new(2);
    let [p, q] = [0, 1].map(|i| g.conv_fprop(images[i], filters[i], conv()).unwrap());
    let sum = g.bias(p, q).unwrap();
    g.set_output(sum, true).unwrap();
    let given: Given = images
        .iter()
        .zip(&filters)
        .enumerate()
        .flat_map(|(i, (&x, &w))| [(x, data(3, 2 * i)), (w, data(15, 2 * i + 1))])
        .collect();
    let product =
        |x: &[f64], w: &[f64], n: usize| -> f64 { (0..3).map(|k| x[k] * w[3 * n + k]).sum() };
    let want: Vec<f64> = (0..5)
        .map(|n| product(&given[0].1, &given[1].1, n) + product(&given[2].1, &given[3].1, n))
        .collect();
    assert_close(&run(g.spec(), &given)[0], &want, 1e-6);
}

#[test]
fn grouped_products_of_integers_are_integers() {
    let mut g = graph_of(DataType::I32);
    let (t, w) = (g.input("t", &[1, 3, 2]).unwrap(), g.input("w", &[2, 2, 2]).unwrap());
    let first = g.input("first", &[2, 1, 1]).unwrap();
    let inputs = [(Port::Token, t), (Port::Weight, w), (Port::FirstTokenOffset, first)];
    let compute = Some(DataType::I32);
    let y = g.add_named("", compute, Operation::GroupedMatmul, &inputs, &[]).unwrap()[0].1;
    g.set_output(y, true).unwrap();
    let given = [
        (t, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        (w, vec![1.0, 0.0, 0.0, 1.0, 2.0, 1.0, 1.0, -1.0]),
        (first, vec![0.0, 1.0]),
    ];
    assert_eq!(run(g.spec(), &given)[0], [1.0, 2.0, 10.0, -1.0, 16.0, -1.0]);
}

fn typed(g: &mut Graph, name: &str, dims: &[i64], dtype: DataType) -> Uid {
    g.tensor(TensorSpec::new(0, dtype, dims, Layout::Packed).unwrap().named(name)).unwrap()
}

#[test]
fn matmul_broadcasts_and_leaves_what_is_overridden() {
    let (a, b) = (data(2 * 3 * 4, 1), data(4 * 5, 2));
    let product = |n: usize, i: usize, j: usize, k: usize| -> f64 {
        (0..k).map(|k| a[(n * 3 + i) * 4 + k] * b[k * 5 + j]).sum()
    };
    for overridden in [false, true] {
        let mut g = graph();
        let (x, y) = (g.input("a", &[2, 3, 4]).unwrap(), g.input("b", &[1, 4, 5]).unwrap());
        let mut inputs = vec![(Port::A, x), (Port::B, y)];
        let limits = ["m", "n", "k"].map(|name| typed(&mut g, name, &[2, 1, 1], DataType::I32));
        let mut given = vec![(x, a.clone()), (y, b.clone())];
        if overridden {
            let ports = [Port::MOverride, Port::NOverride, Port::KOverride];
            inputs.extend(ports.into_iter().zip(limits));
            let sizes = [vec![2.0, 3.0], vec![5.0, 1.0], vec![4.0, 3.0]];
            given.extend(limits.into_iter().zip(sizes));
        }
        add(&mut g, Operation::Matmul, &inputs, &[]);
        let mut spec = g.into_spec();
        if !overridden {
            spec.tensors.retain(|tensor| !limits.contains(&tensor.uid));
        }
        let mut want = Vec::new();
        for (n, i, j) in (0..30).map(|at| (at / 15, at / 5 % 3, at % 5)) {
            let (rows, columns, inner) =
                if !overridden { (3, 5, 4) } else { [(2, 5, 4), (3, 1, 3)][n] };
            want.push(if i < rows && j < columns { product(n, i, j, inner) } else { 0.0 });
        }
        assert_close(&run(&spec, &given)[0], &want, 1e-6);
    }
}

#[test]
fn whole_numbers_are_multiplied_exactly() {
    let i32 = Some(DataType::I32);
    let options = GraphOptions { io: i32, intermediate: i32, compute: i32, ..Default::default() };
    let mut g = Graph::new(options);
    let a = typed(&mut g, "a", &[1, 2], DataType::I8);
    let b = typed(&mut g, "b", &[2, 1], DataType::U8);
    add(&mut g, Operation::Matmul, &[(Port::A, a), (Port::B, b)], &[]);
    assert_eq!(run(g.spec(), &[(a, vec![-128.0, 127.0]), (b, vec![255.0, 254.0])])[0], [-382.0]);
    let mut g = Graph::new(g_options());
    let x = typed(&mut g, "x", &[1, 1, 2, 2], DataType::I8);
    let w = typed(&mut g, "w", &[1, 1, 2, 2], DataType::I8);
    let conv = Operation::ConvFprop(keyfold::cudnn::Convolution::new(2));
    add(&mut g, conv, &[(Port::X, x), (Port::W, w)], &[]);
    let numbers = vec![-128.0, 127.0, 100.0, 3.0];
    assert_eq!(run(g.spec(), &[(x, numbers.clone()), (w, numbers)])[0], [42522.0]);
}

fn g_options() -> GraphOptions {
    let i32 = Some(DataType::I32);
    GraphOptions { io: i32, intermediate: i32, compute: i32, ..Default::default() }
}

#[test]
fn linear_layers_are_one_call() {
    let mut g = graph();
    let (a, b) = (g.input("a", &[2, 3, 4]).unwrap(), g.input("b", &[1, 4, 5]).unwrap());
    let bias = g.input("bias", &[1, 1, 5]).unwrap();
    let c = g.add(Operation::Matmul, &[(Port::A, a), (Port::B, b)], &[]).unwrap()[0].1;
    let sum = Operation::Pointwise(Pointwise::new(PointwiseMode::Add));
    let s = g.add(sum, &[(Port::X, bias), (Port::B, c)], &[]).unwrap()[0].1;
    let tanh = Operation::Pointwise(Pointwise::new(PointwiseMode::Tanh));
    add(&mut g, tanh, &[(Port::X, s)], &[]);
    let plan = plan(g.spec(), Device::CPU, Precision::F32).unwrap();
    assert_eq!(plan.spec.steps.len(), 1, "{:?}", plan.spec.steps);
    assert!(plan.spec.steps[0].contains("linear_activation"));
    let given = [(a, data(24, 1)), (b, data(20, 2)), (bias, data(5, 3))];
    let fused = run(g.spec(), &given);
    g.set_output(c, true).unwrap();
    assert_close(&fused[0], run(g.spec(), &given).last().unwrap(), 1e-6);
}

#[test]
fn groups_of_rows_have_their_matrices() {
    let mut g = graph();
    let (token, weight) = (g.input("t", &[1, 5, 2]).unwrap(), g.input("w", &[3, 2, 2]).unwrap());
    let first = typed(&mut g, "first", &[3, 1, 1], DataType::I32);
    let inputs = [(Port::Token, token), (Port::Weight, weight), (Port::FirstTokenOffset, first)];
    add(&mut g, Operation::GroupedMatmul, &inputs, &[]);
    let (t, w) = (data(10, 1), data(12, 2));
    let mut want = Vec::new();
    for (row, expert) in [0, 0, 2, 2, 2].into_iter().enumerate() {
        for j in 0..2 {
            want.push((0..2).map(|k| t[row * 2 + k] * w[(expert * 2 + k) * 2 + j]).sum());
        }
    }
    let got = run(g.spec(), &[(token, t), (weight, w), (first, vec![0.0, 2.0, 2.0])]);
    assert_close(&got[0], &want, 1e-6);
}

#[test]
fn reductions_reduce_what_is_1_in_the_result() {
    let x = data(24, 3);
    let column = |at: usize| [0, 1, 2, 3, 4, 5].map(|k| x[(k / 3) * 12 + at * 3 + k % 3]);
    let naive = |mode: R, v: [f64; 6]| match mode {
        R::Add => v.iter().sum(),
        R::Mul => v.iter().product(),
        R::MulNoZeros => v.iter().filter(|x| **x != 0.0).product(),
        R::Min => v.into_iter().fold(f64::INFINITY, f64::min),
        R::Max => v.into_iter().fold(f64::NEG_INFINITY, f64::max),
        R::Amax => v.into_iter().map(f64::abs).fold(0.0, f64::max),
        R::Avg => v.iter().sum::<f64>() / 6.0,
        R::Norm1 => v.into_iter().map(f64::abs).sum(),
        R::Norm2 => v.iter().map(|x| x * x).sum::<f64>().sqrt(),
    };
    for mode in [R::Add, R::Mul, R::MulNoZeros, R::Min, R::Max, R::Amax, R::Avg, R::Norm1, R::Norm2]
    {
        let mut g = graph();
        let input = g.input("x", &[2, 4, 3]).unwrap();
        let reduction = Operation::Reduction(Reduction { mode });
        let y = g.add(reduction, &[(Port::X, input)], &[]).unwrap()[0].1;
        g.set_dims(y, &[1, 4, 1]).unwrap();
        g.set_output(y, true).unwrap();
        let want: Vec<f64> = (0..4).map(|at| naive(mode, column(at))).collect();
        let got = run(g.spec(), &[(input, x.clone())]);
        assert!(close(&got[0], &want, 1e-6), "{mode:?} {got:?} {want:?}");
    }
}

#[test]
fn heads_share_matrices_in_groups() {
    let (a, b) = (data(2 * 6 * 2 * 3, 5), data(2 * 2 * 3 * 2, 6));
    let mut g = graph();
    let (x, y) = (g.input("a", &[2, 6, 2, 3]).unwrap(), g.input("b", &[2, 2, 3, 2]).unwrap());
    add(&mut g, Operation::Matmul, &[(Port::A, x), (Port::B, y)], &[]);
    let product = |n: usize, head: usize, i: usize, j: usize| -> f64 {
        let (a, b) = (&a[((n * 6 + head) * 2 + i) * 3..], &b[(n * 2 + head / 3) * 6 + j..]);
        (0..3).map(|k| a[k] * b[k * 2]).sum()
    };
    let want: Vec<f64> =
        (0..48).map(|at| product(at / 24, at / 4 % 6, at / 2 % 2, at % 2)).collect();
    assert_close(&run(g.spec(), &[(x, a.clone()), (y, b.clone())])[0], &want, 1e-6);
}

#[test]
fn heads_are_reduced_in_groups() {
    let x = data(2 * 6 * 2 * 3, 7);
    let group = |n: usize, head: usize, at: usize| -> [f64; 3] {
        [0, 1, 2].map(|of| x[(n * 6 + head * 3 + of) * 6 + at])
    };
    for (mode, of) in [
        (R::Add, (|v: [f64; 3]| v.iter().sum()) as fn([f64; 3]) -> f64),
        (R::Mul, |v| v.iter().product()),
        (R::Max, |v| v.into_iter().fold(f64::NEG_INFINITY, f64::max)),
    ] {
        let mut g = graph();
        let input = g.input("x", &[2, 6, 2, 3]).unwrap();
        let y = g.reduction(input, mode, &[2, 2, 2, 3]).unwrap();
        g.set_output(y, true).unwrap();
        let want: Vec<f64> = (0..24).map(|at| of(group(at / 12, at / 6 % 2, at % 6))).collect();
        assert_close(&run(g.spec(), &[(input, x.clone())])[0], &want, 1e-6);
    }
    // Rows of a group are reduced with it.
    let mut g = graph();
    let input = g.input("x", &[2, 6, 2, 3]).unwrap();
    let y = g.reduction(input, R::Add, &[1, 2, 1, 3]).unwrap();
    g.set_output(y, true).unwrap();
    let sum = |head: usize, column: usize| -> f64 {
        (0..4).flat_map(|at| group(at / 2, head, at % 2 * 3 + column)).sum()
    };
    let want: Vec<f64> = (0..6).map(|at| sum(at / 3, at % 3)).collect();
    assert_close(&run(g.spec(), &[(input, x.clone())])[0], &want, 1e-6);
}

#[test]
fn statistics_softmax_and_masks() {
    let mut g = graph();
    let image = g.input("image", &[2, 2, 2]).unwrap();
    add(&mut g, Operation::GenStats, &[(Port::X, image)], &[]);
    let rows = g.input("rows", &[2, 3]).unwrap();
    add(&mut g, Operation::Softmax, &[(Port::X, rows)], &[Port::Stats]);
    let none = g.scalar(Number::Float(f64::NEG_INFINITY), None);
    let mask = DiagonalBandMask { comparison: PointwiseMode::CmpGe };
    add(&mut g, Operation::DiagonalBandMask(mask), &[(Port::X, rows), (Port::B, none)], &[]);
    let image_numbers = vec![1., 2., 3., 4., 5., 6., 7., 8.];
    let got = run(g.spec(), &[(image, image_numbers), (rows, vec![0., 1., 2., 1000., 0., 0.])]);
    assert_eq!(got[0], [14.0, 22.0]);
    assert_eq!(got[1], [66.0, 138.0]);
    let sum = 1.0 + 1.0_f64.exp() + 2.0_f64.exp();
    let want = [1.0 / sum, 1.0_f64.exp() / sum, 2.0_f64.exp() / sum, 1.0, 0.0, 0.0];
    assert_close(&got[2], &want, 1e-6);
    assert_close(&got[3], &[sum.ln(), 1000.0], 1e-6);
    let inf = f64::INFINITY;
    assert_eq!(got[4], [0.0, -inf, -inf, 1000.0, 0.0, -inf]);
}

#[test]
fn moves_keep_elements_as_they_are() {
    for dtype in [DataType::F32, DataType::F16, DataType::I32, DataType::E5M2] {
        let mut g = graph();
        let x = typed(&mut g, "x", &[2, 3], dtype);
        let permuted = Operation::Transpose(Transpose { permutation: vec![1, 0] });
        let t = g.add(permuted, &[(Port::X, x)], &[]).unwrap()[0].1;
        let part = Slice { start: vec![0, 0], limit: vec![3, 2], stride: vec![2, 1] };
        let s = g.add(Operation::Slice(part), &[(Port::X, t)], &[]).unwrap()[0].1;
        let joined = Operation::Concatenate(Concatenate { axis: 0, in_place_index: None });
        let c = g.add(joined, &[(Port::X, s), (Port::X, t)], &[]).unwrap()[0].1;
        let y = g.add(Operation::Reshape, &[(Port::X, c)], &[]).unwrap()[0].1;
        g.set_dims(y, &[2, 5]).unwrap();
        g.set_dtype(y, dtype).unwrap();
        g.set_output(y, true).unwrap();
        // Infinities and NaN of float8_e5m2 among them.
        let numbers = match dtype {
            DataType::E5M2 => vec![124.0, 252.0, 127.0, 255.0, 1.0, 0.0],
            _ => vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
        };
        let want: Vec<f64> = [0, 3, 2, 5, 0, 3, 1, 4, 2, 5].map(|i: usize| numbers[i]).to_vec();
        assert_eq!(run(g.spec(), &[(x, numbers)])[0], want, "{dtype}");
    }
}
