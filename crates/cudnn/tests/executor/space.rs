//! Convolutions against loops.

use keyfold::cudnn::{
    Convolution, ConvolutionMode, Layout, Operation, Pointwise, PointwiseMode, Port, TensorSpec,
};

use super::*;

/// Sizes of a convolution of two dimensions.
struct Sizes {
    x: [usize; 4],
    w: [usize; 4],
    y: [usize; 4],
}

/// Calls `f` with the places of `x`, `w` and `y` of each product.
fn each(sizes: &Sizes, conv: &Convolution, mut f: impl FnMut(usize, usize, usize)) {
    let Sizes { x, w, y } = sizes;
    let per_group = y[1] / (x[1] / w[1]);
    let at = |s: &[usize; 4], i: [usize; 4]| ((i[0] * s[1] + i[1]) * s[2] + i[2]) * s[3] + i[3];
    for n in 0..y[0] {
        for k in 0..y[1] {
            for (oh, ow) in (0..y[2]).flat_map(|h| (0..y[3]).map(move |w| (h, w))) {
                for c in 0..w[1] {
                    for (fh, fw) in (0..w[2]).flat_map(|h| (0..w[3]).map(move |w| (h, w))) {
                        let place = |o: usize, f: usize, axis: usize| {
                            o as i64 * conv.stride[axis] + f as i64 * conv.dilation[axis]
                                - conv.pre_padding[axis]
                        };
                        let (ih, iw) = (place(oh, fh, 0), place(ow, fw, 1));
                        if ih < 0 || iw < 0 || ih >= x[2] as i64 || iw >= x[3] as i64 {
                            continue;
                        }
                        let channel = k / per_group * w[1] + c;
                        let (rh, rw) = match conv.mode {
                            ConvolutionMode::CrossCorrelation => (fh, fw),
                            ConvolutionMode::Convolution => (w[2] - 1 - fh, w[3] - 1 - fw),
                        };
                        f(
                            at(x, [n, channel, ih as usize, iw as usize]),
                            at(w, [k, c, rh, rw]),
                            at(y, [n, k, oh, ow]),
                        );
                    }
                }
            }
        }
    }
}

fn dims(sizes: [usize; 4]) -> [i64; 4] {
    sizes.map(|size| size as i64)
}

fn cases() -> Vec<(Sizes, Convolution)> {
    let conv = |pre: [i64; 2], post: [i64; 2], stride: [i64; 2], dilation: [i64; 2]| Convolution {
        pre_padding: pre.to_vec(),
        post_padding: post.to_vec(),
        stride: stride.to_vec(),
        dilation: dilation.to_vec(),
        ..Convolution::new(2)
    };
    let flipped =
        Convolution { mode: ConvolutionMode::Convolution, ..conv([0, 2], [1, 0], [1, 2], [2, 1]) };
    vec![
        (
            Sizes { x: [2, 3, 5, 6], w: [4, 3, 3, 3], y: [2, 4, 5, 6] },
            conv([1, 1], [1, 1], [1, 1], [1, 1]),
        ),
        (
            Sizes { x: [1, 4, 6, 5], w: [6, 2, 2, 3], y: [1, 6, 4, 3] },
            conv([1, 0], [2, 2], [2, 2], [1, 1]),
        ),
        (Sizes { x: [2, 2, 6, 5], w: [2, 1, 3, 2], y: [2, 2, 3, 3] }, flipped),
    ]
}

#[test]
fn convolutions_are_sums_of_products() {
    for (sizes, conv) in cases() {
        for (alpha, beta) in [(1.0, 0.0), (0.5, 2.0)] {
            let conv = Convolution { alpha: alpha.into(), beta: beta.into(), ..conv.clone() };
            let count = |s: [usize; 4]| s.iter().product::<usize>();
            let (xs, ws) = (data(count(sizes.x), 1), data(count(sizes.w), 4));
            let ys = data(count(sizes.y), 9);
            for layout in [Layout::Packed, Layout::ChannelsLast] {
                let tensor = |name: &str, s: [usize; 4]| {
                    TensorSpec::untyped(&dims(s), layout.clone()).unwrap().named(name)
                };
                let mut g = graph();
                let x = g.tensor(tensor("x", sizes.x)).unwrap();
                let w = g.tensor(tensor("w", sizes.w)).unwrap();
                let y = add(
                    &mut g,
                    Operation::ConvFprop(conv.clone()),
                    &[(Port::X, x), (Port::W, w)],
                    &[],
                )[0];
                assert_eq!(g.spec().tensor(y).unwrap().dims, dims(sizes.y));
                let mut want = vec![7.0 * beta; ys.len()];
                each(&sizes, &conv, |x, w, y| want[y] += alpha * xs[x] * ws[w]);
                assert_close(&run(g.spec(), &[(x, xs.clone()), (w, ws.clone())])[0], &want, 1e-5);

                let mut g = graph();
                let dy = g.tensor(tensor("dy", sizes.y)).unwrap();
                let w = g.tensor(tensor("w", sizes.w)).unwrap();
                let inputs = [(Port::Dy, dy), (Port::W, w)];
                let dx = g.add(Operation::ConvDgrad(conv.clone()), &inputs, &[]).unwrap()[0].1;
                g.set_dims(dx, &dims(sizes.x)).unwrap();
                g.set_output(dx, true).unwrap();
                let mut want = vec![7.0 * beta; xs.len()];
                each(&sizes, &conv, |x, w, y| want[x] += alpha * ys[y] * ws[w]);
                assert_close(&run(g.spec(), &[(dy, ys.clone()), (w, ws.clone())])[0], &want, 1e-5);

                let mut g = graph();
                let x = g.tensor(tensor("x", sizes.x)).unwrap();
                let dy = g.tensor(tensor("dy", sizes.y)).unwrap();
                let inputs = [(Port::X, x), (Port::Dy, dy)];
                let dw = g.add(Operation::ConvWgrad(conv.clone()), &inputs, &[]).unwrap()[0].1;
                g.set_dims(dw, &dims(sizes.w)).unwrap();
                g.set_output(dw, true).unwrap();
                let mut want = vec![7.0 * beta; ws.len()];
                each(&sizes, &conv, |x, w, y| want[w] += alpha * ys[y] * xs[x]);
                assert_close(&run(g.spec(), &[(x, xs.clone()), (dy, ys.clone())])[0], &want, 1e-5);
            }
        }
    }
}

#[test]
fn products_with_bias_and_activation_are_one_call() {
    for activation in [None, Some(PointwiseMode::Relu), Some(PointwiseMode::Gelu)] {
        let (sizes, conv) = cases().remove(1);
        let mut g = graph();
        let (x, w) = (g.input("x", &dims(sizes.x)).unwrap(), g.input("w", &dims(sizes.w)).unwrap());
        let b = g.input("b", &[1, sizes.y[1] as i64, 1, 1]).unwrap();
        let inputs = [(Port::X, x), (Port::W, w)];
        let t = g.add(Operation::ConvFprop(conv.clone()), &inputs, &[]).unwrap()[0].1;
        let sum = Operation::Pointwise(Pointwise::new(PointwiseMode::Add));
        let mut y = g.add(sum, &[(Port::X, t), (Port::B, b)], &[]).unwrap()[0].1;
        if let Some(mode) = activation {
            let operation = Operation::Pointwise(Pointwise::new(mode));
            y = g.add(operation, &[(Port::X, y)], &[]).unwrap()[0].1;
        }
        g.set_output(y, true).unwrap();
        let plan = plan(g.spec(), Device::CPU, Precision::AsSpec).unwrap();
        assert_eq!(plan.spec.steps.len(), 1, "{:?}", plan.spec.steps);
        assert!(plan.spec.steps[0].contains("convolution_activation"));
        let given = [(x, data(120, 1)), (w, data(72, 4)), (b, data(6, 2))];
        let fused = run(g.spec(), &given);
        // The same graph with its middle as an output takes a call for each operation.
        g.set_output(t, true).unwrap();
        let single = run(g.spec(), &given);
        assert_close(&fused[0], single.last().unwrap(), 1e-6);
    }
}
