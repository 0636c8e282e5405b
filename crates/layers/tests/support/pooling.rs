//! The cases of pooling.

use keyfold_core::Result;
use keyfold_tensor::{Tensor, Value, ValueRef as V};

use super::{Table, data, ints};
use crate::support::call;

/// Calls an operator, and returns its first result.
fn first(name: &str, args: &[V<'_>]) -> Result<Tensor> {
    match keyfold::dispatcher().call(name, args)? {
        Value::Tuple(items) | Value::List(items) => {
            items.into_iter().next().unwrap_or(Value::None).into_tensor()
        }
        one => one.into_tensor(),
    }
}

pub(super) fn pooling(table: &mut Table) {
    let (two, three) = ([[1, 4, 5], [2, 3, 4]], [[2, 3, 4], [3, 2, 2]]);
    let windows = [V::Int(2), V::Int(1), V::Int(1)];
    for (dims, sizes) in [(2, two), (3, three)] {
        for size in sizes {
            // Channels alone, and a batch of them.
            let shape: Vec<usize> = match dims {
                2 => size.to_vec(),
                _ => [&[1][..], &size].concat(),
            };
            let name = |text: &str| -> &'static str {
                Box::leak(text.replace("Nd", &format!("{dims}d")).into_boxed_str())
            };
            let x = || data(&shape, 0, -1.5, 1.9);
            let average = [&windows[..], &[V::Bool(true), V::Bool(false), V::None]].concat();
            table.plain(name("aten::avg_poolNd"), &[&shape], average.clone());
            let adapted: &'static [i64] = if dims == 2 { &[2, 3] } else { &[2, 1, 3] };
            table.plain(name("aten::adaptive_avg_poolNd"), &[&shape], vec![V::Ints(adapted)]);
            let max = name("aten::max_poolNd_with_indices");
            let dilated = [&windows[..], &[V::Int(1), V::Bool(false)]].concat();
            let own = dilated.clone();
            table.add(max, vec![x()], vec![], move |x, _| {
                first(max, &[&[V::Tensor(&x[0])], &own[..]].concat())
            });
            let back = name("aten::avg_poolNd_backward");
            let out = call(name("aten::avg_poolNd"), &[&[V::Tensor(&x())], &average[..]].concat());
            let grad = data(out.unwrap().shape(), 1, -1.0, 1.0);
            table.add(back, vec![grad.clone()], vec![x()], move |g, x| {
                call(back, &[&[V::Tensor(&g[0]), V::Tensor(&x[0])], &average[..]].concat())
            });
            let back = name("aten::_adaptive_avg_poolNd_backward");
            let pooled =
                call(name("aten::adaptive_avg_poolNd"), &[V::Tensor(&x()), V::Ints(adapted)]);
            let of_pooled = data(pooled.unwrap().shape(), 1, -1.0, 1.0);
            table.add(back, vec![of_pooled], vec![x()], move |g, x| {
                call(back, &[V::Tensor(&g[0]), V::Tensor(&x[0])])
            });
            let back = name("aten::max_poolNd_with_indices_backward");
            let grad = data(
                first(max, &[&[V::Tensor(&x())], &dilated[..]].concat()).unwrap().shape(),
                1,
                -1.0,
                1.0,
            );
            let places: Vec<i64> = (0..grad.numel() as i64).map(|i| i * 5 % 8).collect();
            let indices = ints(&places, grad.shape());
            table.add(back, vec![grad], vec![x(), indices], move |g, c| {
                let operands = [V::Tensor(&g[0]), V::Tensor(&c[0])];
                call(back, &[&operands[..], &dilated[..], &[V::Tensor(&c[1])]].concat())
            });
        }
    }
}
