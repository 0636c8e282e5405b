//! Cells of recurrent networks.

use keyfold::dispatcher;
use keyfold::ops::aten;
use keyfold_core::Result;
use keyfold_tensor::{Tensor, Value, ValueRef as V};

use super::Table;
use crate::support::data;

/// Calls an operator, and joins those of its results that are chosen.
fn joined(op: &str, args: &[V<'_>], results: &[usize]) -> Result<Tensor> {
    let all = match dispatcher().call(op, args)? {
        Value::Tuple(all) => all,
        one => vec![one],
    };
    let chosen = results.iter().map(|place| all[*place].clone().into_tensor());
    aten::cat(&chosen.collect::<Result<Vec<_>>>()?, -1)
}

pub(super) fn add(table: &mut Table) {
    let cells: [(&'static str, usize, &'static [&'static [usize]]); 2] = [
        ("aten::_thnn_fused_gru_cell", 3, &[&[0], &[1], &[1, 0]]),
        ("aten::_thnn_fused_lstm_cell", 4, &[&[0], &[1], &[0, 1], &[2, 1, 0]]),
    ];
    for (op, gates, results) in cells {
        for (rows, width, biased) in [(2, 2, true), (3, 1, false), (0, 2, true)] {
            let shapes = [vec![rows, gates * width], vec![rows, gates * width], vec![rows, width]];
            let bias = vec![gates * width];
            let biases = [bias.clone(), bias];
            let all = shapes.iter().chain(biases.iter().filter(|_| biased)).enumerate();
            let inputs: Vec<Tensor> = all.map(|(i, s)| data(s, i, -1.0, 1.0)).collect();
            for chosen in results {
                table.add(op, inputs.clone(), vec![], move |x, _| {
                    let args: Vec<V<'_>> = x.iter().map(V::Tensor).collect();
                    joined(op, &args, chosen)
                });
            }
        }
    }
}
