//! Pooling and interpolation against loops, literals and adjoints.

use keyfold::cudnn::{
    DataType, Fraction, Operation, PaddingMode, Port, Precision, Resample, ResampleMode as M,
};

use super::*;

fn pool(mode: M, window: &[i64], stride: &[i64], pre: &[i64], post: &[i64]) -> Resample {
    let fractions = |list: &[i64]| list.iter().map(|&n| Fraction::from(n)).collect::<Vec<_>>();
    Resample {
        mode,
        padding_mode: if mode == M::Maxpool { PaddingMode::NegInf } else { PaddingMode::Zero },
        window: window.to_vec(),
        stride: fractions(stride),
        pre_padding: fractions(pre),
        post_padding: fractions(post),
    }
}

/// Pools rows: `[1, 1, n]` of `x`, with the greatest one's place in the window.
fn pooled(p: &Resample, x: &[f64], places: usize) -> Vec<(f64, usize)> {
    let (stride, pre) = (p.stride[0].numerator, p.pre_padding[0].numerator);
    let window = p.window[0] as usize;
    let at = |o: usize, k: usize| {
        let i = o as i64 * stride + k as i64 - pre;
        (i >= 0 && (i as usize) < x.len()).then(|| x[i as usize])
    };
    let one = |o: usize| {
        let parts: Vec<(usize, f64)> = (0..window).filter_map(|k| Some((k, at(o, k)?))).collect();
        let sum: f64 = parts.iter().map(|part| part.1).sum();
        match p.mode {
            M::Maxpool => {
                let most = parts.iter().map(|part| part.1).fold(f64::NEG_INFINITY, f64::max);
                (most, parts.iter().find(|part| part.1 == most).unwrap().0)
            }
            M::AvgpoolIncludePadding => (sum / window as f64, 0),
            _ => (sum / parts.len() as f64, 0),
        }
    };
    (0..places).map(one).collect()
}

#[test]
fn rows_are_pooled_with_uneven_padding_and_back() {
    for mode in [M::Maxpool, M::AvgpoolIncludePadding, M::AvgpoolExcludePadding] {
        let p = pool(mode, &[3], &[2], &[2], &[1]);
        let x = [1.0, 4.0, -2.0, 0.5, 3.0, 2.0];
        let mut g = graph();
        let input = g.input("x", &[1, 1, 6]).unwrap();
        let wanted: &[Port] = if mode == M::Maxpool { &[Port::Index] } else { &[] };
        let outputs = add(&mut g, Operation::Resample(p.clone()), &[(Port::X, input)], wanted);
        let places = g.spec().tensor(outputs[0]).unwrap().dims[2] as usize;
        let want = pooled(&p, &x, places);
        let got = run(g.spec(), &[(input, x.to_vec())]);
        assert_close(&got[0], &want.iter().map(|w| w.0).collect::<Vec<_>>(), 1e-6);
        if mode == M::Maxpool {
            assert_eq!(got[1], want.iter().map(|w| w.1 as f64).collect::<Vec<_>>());
        }
        let dy = data(places, 4);
        let mut dx = [0.0; 6];
        for (o, w) in want.iter().enumerate() {
            let first = o as i64 * 2 - 2;
            let inside: Vec<usize> =
                (first..first + 3).filter(|i| (0..6).contains(i)).map(|i| i as usize).collect();
            match mode {
                M::Maxpool => dx[(first + w.1 as i64) as usize] += dy[o],
                M::AvgpoolIncludePadding => inside.iter().for_each(|&i| dx[i] += dy[o] / 3.0),
                _ => inside.iter().for_each(|&i| dx[i] += dy[o] / inside.len() as f64),
            }
        }
        for by_index in [true, false] {
            let mut g = graph();
            let grad = g.input("dy", &[1, 1, places as i64]).unwrap();
            let (mut inputs, mut given) = (vec![(Port::Dy, grad)], vec![(grad, dy.clone())]);
            if mode == M::Maxpool && by_index {
                let index = g.input("index", &[1, 1, places as i64]).unwrap();
                g.set_dtype(index, DataType::I8).unwrap();
                inputs.push((Port::Index, index));
                given.push((index, got[1].clone()));
            } else if mode == M::Maxpool {
                let (x_again, y) = (
                    g.input("x", &[1, 1, 6]).unwrap(),
                    g.input("y", &[1, 1, places as i64]).unwrap(),
                );
                inputs.extend([(Port::X, x_again), (Port::Y, y)]);
                given.extend([(x_again, x.to_vec()), (y, got[0].clone())]);
            }
            let out = g.add(Operation::ResampleBackward(p.clone()), &inputs, &[]).unwrap()[0].1;
            g.set_dims(out, &[1, 1, 6]).unwrap();
            g.set_output(out, true).unwrap();
            assert_close(&run(g.spec(), &given)[0], &dx, 1e-6);
        }
    }
}

#[test]
fn places_in_windows_are_row_major() {
    // Images whose greatest element in each window is known.
    let p = pool(M::Maxpool, &[2, 3], &[2, 3], &[0, 0], &[0, 0]);
    let mut x = vec![0.0; 4 * 6];
    for (at, value) in [(8, 1.0), (3, 2.0), (12, 3.0), (22, 4.0)] {
        x[at] = value;
    }
    let mut g = graph();
    let input = g.input("x", &[1, 1, 4, 6]).unwrap();
    add(&mut g, Operation::Resample(p.clone()), &[(Port::X, input)], &[Port::Index]);
    let got = run(g.spec(), &[(input, x)]);
    assert_eq!(got[0], [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(got[1], [5.0, 0.0, 0.0, 4.0]);
    let mut g = graph();
    let (dy, index) = (g.input("dy", &[1, 1, 2, 2]).unwrap(), g.input("i", &[1, 1, 2, 2]).unwrap());
    g.set_dtype(index, DataType::I8).unwrap();
    let inputs = [(Port::Dy, dy), (Port::Index, index)];
    add(&mut g, Operation::ResampleBackward(p), &inputs, &[]);
    let dx = run(g.spec(), &[(dy, vec![1.0, 2.0, 3.0, 4.0]), (index, got[1].clone())]);
    let at: Vec<usize> = (0..24).filter(|&i| dx[0][i] != 0.0).collect();
    assert_eq!(at, [3, 8, 12, 22]);
}

#[test]
fn volumes_are_pooled_and_gradients_are_adjoint() {
    for mode in [M::Maxpool, M::AvgpoolIncludePadding, M::AvgpoolExcludePadding] {
        let p = pool(mode, &[2, 2, 2], &[1, 2, 1], &[1, 0, 1], &[0, 0, 1]);
        let x = data(3 * 4 * 3, 1);
        adjoint(&p, &[1, 1, 3, 4, 3], &x);
    }
}

/// Checks that what a resampling does to `x`, times `dy`, is what its gradient does to `dy`, times
/// `x`.
fn adjoint(p: &Resample, dims: &[i64], x: &[f64]) {
    let mut g = graph_of(DataType::F64);
    let input = g.input("x", dims).unwrap();
    let y = add(&mut g, Operation::Resample(p.clone()), &[(Port::X, input)], &[])[0];
    let y_dims = g.spec().tensor(y).unwrap().dims.clone();
    let y = &run(g.spec(), &[(input, x.to_vec())])[0];
    let dy = data(y.len(), 7);
    let mut g = graph_of(DataType::F64);
    let grad = g.input("dy", &y_dims).unwrap();
    let (mut inputs, mut given) = (vec![(Port::Dy, grad)], vec![(grad, dy.clone())]);
    if p.mode == M::Maxpool {
        let (again, out) = (g.input("x", dims).unwrap(), g.input("y", &y_dims).unwrap());
        inputs.extend([(Port::X, again), (Port::Y, out)]);
        given.extend([(again, x.to_vec()), (out, y.clone())]);
    }
    let out = g.add(Operation::ResampleBackward(p.clone()), &inputs, &[]).unwrap()[0].1;
    g.set_dims(out, dims).unwrap();
    g.set_output(out, true).unwrap();
    let dx = &run(g.spec(), &given)[0];
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    assert_close(&[dot(dx, x)], &[dot(&dy, y)], 1e-12);
}

fn interpolation(mode: M, padding_mode: PaddingMode) -> Resample {
    let half = Fraction { numerator: 1, denominator: 2 };
    Resample {
        mode,
        padding_mode,
        window: vec![2],
        stride: vec![half],
        pre_padding: vec![half],
        post_padding: vec![1.into()],
    }
}

#[test]
fn interpolation_reads_between_neighbours() {
    let edge = PaddingMode::EdgeValue;
    for (mode, padding, want) in [
        (M::Bilinear, edge, [2.0, 2.0, 3.0, 4.0, 4.0, 4.0]),
        (M::Bilinear, PaddingMode::Zero, [1.0, 2.0, 3.0, 4.0, 2.0, 0.0]),
        (M::Nearest, edge, [2.0, 2.0, 4.0, 4.0, 4.0, 4.0]),
    ] {
        let p = interpolation(mode, padding);
        let mut g = graph();
        let x = g.input("x", &[1, 1, 2]).unwrap();
        let y = add(&mut g, Operation::Resample(p), &[(Port::X, x)], &[])[0];
        let places = g.spec().tensor(y).unwrap().dims[2] as usize;
        assert_eq!(run(g.spec(), &[(x, vec![2.0, 4.0])])[0], want[..places], "{mode:?}");
    }
}

#[test]
fn gradients_of_interpolation_are_adjoint() {
    for mode in [M::Bilinear, M::Nearest] {
        for padding_mode in [PaddingMode::EdgeValue, PaddingMode::Zero] {
            let fraction = |numerator, denominator| Fraction { numerator, denominator };
            let p = Resample {
                mode,
                padding_mode,
                window: vec![2, 2],
                stride: vec![fraction(1, 3), fraction(3, 2)],
                pre_padding: vec![fraction(1, 3), fraction(1, 4)],
                post_padding: vec![1.into(), fraction(1, 2)],
            };
            adjoint(&p, &[2, 2, 4, 5], &data(80, 1));
        }
    }
}

#[test]
fn infinities_in_a_gradient_reach_the_elements_that_were_read_alone() {
    let third = |numerator| Fraction { numerator, denominator: 3 };
    for mode in [M::Bilinear, M::Nearest] {
        for padding_mode in [PaddingMode::EdgeValue, PaddingMode::Zero] {
            let p = Resample {
                mode,
                padding_mode,
                window: vec![2, 2],
                stride: vec![third(2), third(4)],
                pre_padding: vec![third(1), third(1)],
                post_padding: vec![1.into(), 1.into()],
            };
            let dims = [1, 2, 4, 5];
            let mut g = graph();
            let x = g.input("x", &dims).unwrap();
            let y = add(&mut g, Operation::Resample(p.clone()), &[(Port::X, x)], &[])[0];
            let y_dims = g.spec().tensor(y).unwrap().dims.clone();
            let count: usize = y_dims.iter().product::<i64>() as usize;
            // An output reads the elements of which a NaN shows in it.
            let reads: Vec<Vec<usize>> = (0..40)
                .map(|element| {
                    let mut numbers = vec![1.0; 40];
                    numbers[element] = f64::NAN;
                    let y =
                        &run_on(g.spec(), &[(x, numbers)], Device::CPU, Precision::F64).unwrap()[0];
                    (0..count).filter(|&o| y[o].is_nan()).collect()
                })
                .collect();
            let mut back = graph();
            let dy = back.input("dy", &y_dims).unwrap();
            let dx = back.add(Operation::ResampleBackward(p), &[(Port::Dy, dy)], &[]).unwrap()[0].1;
            back.set_dims(dx, &dims).unwrap();
            back.set_output(dx, true).unwrap();
            for output in 0..count {
                let mut numbers = vec![0.5; count];
                numbers[output] = f64::INFINITY;
                let dx = &run(back.spec(), &[(dy, numbers)])[0];
                for (element, outputs) in reads.iter().enumerate() {
                    let want = outputs.contains(&output);
                    assert_eq!(
                        dx[element] == f64::INFINITY,
                        want,
                        "{mode:?} {padding_mode:?} {dx:?}"
                    );
                    assert!(want || dx[element].is_finite(), "{mode:?} {padding_mode:?} {dx:?}");
                }
            }
        }
    }
}

#[test]
fn the_input_says_the_sizes_of_an_averages_gradient() {
    // Images of 7 and of 8 elements have averages of 4 windows.
    let p = pool(M::AvgpoolExcludePadding, &[2], &[2], &[0], &[1]);
    for size in [7, 8] {
        let mut g = graph();
        let (x, dy) = (g.input("x", &[1, 1, size]).unwrap(), g.input("dy", &[1, 1, 4]).unwrap());
        let inputs = [(Port::Dy, dy), (Port::X, x)];
        let dx = add(&mut g, Operation::ResampleBackward(p.clone()), &inputs, &[])[0];
        assert_eq!(g.spec().tensor(dx).unwrap().dims, [1, 1, size]);
        let given = [(x, data(size as usize, 1)), (dy, vec![2.0, 4.0, 6.0, 8.0])];
        let mut want = [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0];
        want[6] = if size == 7 { 8.0 } else { 4.0 };
        assert_eq!(run(g.spec(), &given)[0], want[..size as usize]);
    }
}

#[test]
fn padding_without_numbers_stays_out_of_the_means() {
    let p = pool(M::AvgpoolExcludePadding, &[2, 2], &[2, 2], &[1, 1], &[1, 1]);
    let mut g = graph();
    let x = g.input("x", &[1, 1, 2, 2]).unwrap();
    add(&mut g, Operation::Resample(p), &[(Port::X, x)], &[]);
    let numbers = vec![1.0, 2.0, 3.0, 4.0];
    assert_eq!(run(g.spec(), &[(x, numbers.clone())])[0], numbers);
    let wide = run_on(g.spec(), &[(x, numbers.clone())], Device::CPU, Precision::F64).unwrap();
    assert_eq!(wide[0], numbers);
}
