//! The cases of norms and convolutions.

use keyfold::dispatcher;
use keyfold::ops::aten;
use keyfold_core::Result;
use keyfold_tensor::{Tensor, Value, ValueRef as V};

use super::{Table, data};
use crate::support::call;

/// Calls an operator with several results, and joins those that are floating.
fn joined(name: &str, args: &[V<'_>]) -> Result<Tensor> {
    let Value::Tuple(results) = dispatcher().call(name, args)? else {
        unreachable!("it has several results")
    };
    let tensors = results.into_iter().filter_map(|result| result.into_tensor().ok());
    let flat = tensors.map(|tensor| aten::reshape(&tensor, &[-1])).collect::<Result<Vec<_>>>()?;
    aten::cat(&flat, 0)
}

pub(super) fn norms(table: &mut Table) {
    const ALL: V<'static> = V::Refs(&[V::Bool(true), V::Bool(true), V::Bool(true)]);
    const TWO: V<'static> = V::Refs(&[V::Bool(true), V::Bool(true)]);
    const EPS: V<'static> = V::Float(0.125);
    let (yes, no, none, share) = (V::Bool(true), V::Bool(false), V::None, V::Float(0.25));
    let real = |shape: &[usize], seed| data(shape, seed, -1.5, 1.9);
    let positive = |shape: &[usize], seed| data(shape, seed, 0.4, 1.9);
    let last = V::Ints(&[3]);
    let weights = || vec![real(&[4, 3], 0), real(&[3], 1), real(&[3], 2)];
    table.add("aten::native_layer_norm", weights(), vec![], move |x, _| {
        joined(
            "aten::native_layer_norm",
            &[(&x[0]).into(), last, (&x[1]).into(), (&x[2]).into(), EPS],
        )
    });
    table.add("aten::_fused_rms_norm", weights()[..2].to_vec(), vec![], move |x, _| {
        joined("aten::_fused_rms_norm", &[(&x[0]).into(), last, (&x[1]).into(), EPS])
    });
    let gradients = || {
        vec![
            real(&[4, 3], 0),
            real(&[4, 3], 1),
            real(&[4, 1], 2),
            positive(&[4, 1], 3),
            real(&[3], 4),
        ]
    };
    table.add("aten::native_layer_norm_backward", gradients(), vec![], move |x, _| {
        let [g, own, mean, rstd, w] = [0, 1, 2, 3, 4].map(|at| V::Tensor(&x[at]));
        joined("aten::native_layer_norm_backward", &[g, own, last, mean, rstd, w, none, ALL])
    });
    let inputs = gradients().into_iter().enumerate().filter(|(at, _)| *at != 2);
    let inputs = inputs.map(|(_, tensor)| tensor).collect();
    table.add("aten::_fused_rms_norm_backward", inputs, vec![], move |x, _| {
        let [g, own, rstd, w] = [0, 1, 2, 3].map(|at| V::Tensor(&x[at]));
        joined("aten::_fused_rms_norm_backward", &[g, own, last, rstd, w, TWO])
    });
    let shape: &[usize] = &[2, 4, 2];
    let channels = || vec![real(shape, 0), real(&[4], 1), real(&[4], 2)];
    let running = || [channels(), vec![real(&[4], 3), positive(&[4], 4)]].concat();
    let [n, c, len, groups] = [2, 4, 2, 2].map(V::Int);
    table.add("aten::native_group_norm", channels(), vec![], move |x, _| {
        let [own, w, b] = [0, 1, 2].map(|at| V::Tensor(&x[at]));
        joined("aten::native_group_norm", &[own, w, b, n, c, len, groups, EPS])
    });
    let inputs =
        vec![real(shape, 0), real(shape, 1), real(&[2, 2], 2), positive(&[2, 2], 3), real(&[4], 4)];
    table.add("aten::native_group_norm_backward", inputs, vec![], move |x, _| {
        let [g, own, mean, rstd, w] = [0, 1, 2, 3, 4].map(|at| V::Tensor(&x[at]));
        let args = [g, own, mean, rstd, w, n, c, len, groups, ALL];
        joined("aten::native_group_norm_backward", &args)
    });
    table.add("aten::_native_batch_norm_legit.no_stats", channels(), vec![], move |x, _| {
        let [own, w, b] = [0, 1, 2].map(|at| V::Tensor(&x[at]));
        joined("aten::_native_batch_norm_legit.no_stats", &[own, w, b, yes, share, EPS])
    });
    table.add("aten::_native_batch_norm_legit_functional", running(), vec![], move |x, _| {
        let [own, w, b, mean, variance] = [0, 1, 2, 3, 4].map(|at| V::Tensor(&x[at]));
        let args = [own, w, b, mean, variance, yes, share, EPS];
        joined("aten::_native_batch_norm_legit_functional", &args)
    });
    table.add("aten::_native_batch_norm_legit_no_training", running(), vec![], move |x, _| {
        let [own, w, b, mean, variance] = [0, 1, 2, 3, 4].map(|at| V::Tensor(&x[at]));
        let args = [own, w, b, mean, variance, share, EPS];
        joined("aten::_native_batch_norm_legit_no_training", &args)
    });
    for trains in [true, false] {
        let inputs =
            vec![real(shape, 0), real(shape, 1), real(&[4], 2), real(&[4], 3), positive(&[4], 4)];
        table.add("aten::native_batch_norm_backward", inputs, vec![], move |x, _| {
            let [g, own, w, mean, rest] = [0, 1, 2, 3, 4].map(|at| V::Tensor(&x[at]));
            let args = match trains {
                true => [g, own, w, none, none, mean, rest, yes, EPS, ALL],
                false => [g, own, w, mean, rest, none, none, no, EPS, ALL],
            };
            joined("aten::native_batch_norm_backward", &args)
        });
    }
    for op in ["aten::_softmax_backward_data", "aten::_log_softmax_backward_data"] {
        for dim in [0, -1] {
            let inputs = vec![real(&[2, 3, 2], 0), real(&[2, 3, 2], 1)];
            table.add(op, inputs, vec![], move |x, _| {
                let dtype = V::DType(x[1].dtype());
                call(op, &[V::Tensor(&x[0]), V::Tensor(&x[1]), V::Int(dim), dtype])
            });
        }
    }
}

pub(super) fn convolutions(table: &mut Table) {
    const NAME: &str = "aten::convolution";
    /// Input, weight, groups, and whether it is transposed.
    type Sizes = (&'static [usize], &'static [usize], i64, bool);
    let sizes: [Sizes; 5] = [
        (&[2, 2, 5], &[3, 2, 2], 1, false),
        (&[2, 4, 3, 4], &[4, 2, 2, 3], 2, false),
        (&[2, 3, 4], &[2, 2, 2, 1], 1, false),
        (&[2, 2, 3], &[2, 3, 2], 1, true),
        (&[1, 2, 2, 2, 3], &[2, 2, 1, 2, 2], 1, false),
    ];
    for (x, weight, groups, transposed) in sizes {
        let rank = weight.len() - 2;
        let channels = if transposed { weight[1] } else { weight[0] };
        let settings = move || -> Vec<Vec<i64>> {
            vec![vec![2; rank], vec![1; rank], vec![1; rank], vec![0; rank]]
        };
        let inputs = vec![
            data(x, 0, -1.0, 1.0),
            data(weight, 1, -1.0, 1.0),
            data(&[channels], 2, -1.0, 1.0),
        ];
        table.add(NAME, inputs, vec![], move |x, _| {
            let lists = settings();
            call(
                NAME,
                &[
                    V::Tensor(&x[0]),
                    V::Tensor(&x[1]),
                    V::Tensor(&x[2]),
                    V::Ints(&lists[0]),
                    V::Ints(&lists[1]),
                    V::Ints(&lists[2]),
                    V::Bool(transposed),
                    V::Ints(&lists[3]),
                    V::Int(groups),
                ],
            )
        });
    }
    for activation in ["none", "relu", "gelu", "gelu_tanh", "gelu_sigmoid", "sigmoid", "tanh"] {
        let inputs = vec![
            data(&[2, 2, 4], 0, -1.0, 1.0),
            data(&[2, 2, 3], 1, -1.0, 1.0),
            data(&[2], 2, -1.0, 1.0),
        ];
        table.add("keyfold::convolution_activation", inputs, vec![], move |x, _| {
            let (tensors, one) = ([V::Tensor(&x[0]), V::Tensor(&x[1])], V::Ints(&[1]));
            let rest = [V::Tensor(&x[2]), one, V::Ints(&[0, 1]), one, V::Int(1)];
            let all = [&tensors[..], &rest, &[V::Str(activation)]].concat();
            call("keyfold::convolution_activation", &all)
        });
    }
    // Its three gradients as one vector.
    let inputs = vec![
        data(&[2, 4, 2], 0, -1.0, 1.0),
        data(&[2, 2, 3], 1, -1.0, 1.0),
        data(&[4, 1, 2], 2, -1.0, 1.0),
    ];
    table.add("aten::convolution_backward", inputs, vec![], |x, _| {
        let (one, zero) = (V::Ints(&[1]), V::Ints(&[0]));
        let mask = [V::Bool(true); 3];
        let tensors = [V::Tensor(&x[0]), V::Tensor(&x[1]), V::Tensor(&x[2]), V::None];
        let rest = [one, zero, one, V::Bool(false), zero, V::Int(2), V::Refs(&mask)];
        let args = [&tensors[..], &rest].concat();
        let results = keyfold::dispatcher().call("aten::convolution_backward", &args)?;
        let Value::Tuple(results) = results else { panic!("a tuple of results") };
        let flat: Vec<Tensor> = results
            .into_iter()
            .map(|one| aten::reshape(&one.into_tensor()?, &[-1]))
            .collect::<Result<_>>()?;
        aten::cat(&flat, 0)
    });
}
