//! The long short-term memory (S. Hochreiter and J. Schmidhuber, "Long short-term memory", 1997), with the
//! forget gate of F. Gers, J. Schmidhuber and F. Cummins, "Learning to forget", 2000.

use keyfold_backend::RecurrentParams;
use keyfold_core::Result;
use keyfold_kit::math::Real;
use keyfold_kit::math::function::{Sigmoid, Tanh};
use keyfold_kit::math::slices::map_in_place;

use super::{PART, Source, Target, each, for_parts};

/// Computes the new state, the new cell state and the workspace.
pub(super) fn forward<T: Real>(
    params: &RecurrentParams,
    inputs: &[Source<T>],
    outputs: &[Target<T>],
) -> Result<()> {
    let [input, hidden, cell, biases @ ..] = inputs else { return Ok(()) };
    let [next, next_cell, workspace] = outputs else { return Ok(()) };
    let biases = if params.biased { biases } else { &[] };
    let [rows, width] = cell.shape;
    for_parts(rows, width, |part| {
        let mut gates = [[T::ZERO; PART]; 4];
        for (gate, sum) in gates.iter_mut().enumerate() {
            input.load(part, gate, sum);
            hidden.add(part, gate, sum);
            biases.iter().for_each(|bias| bias.add(part, gate, sum));
            match gate {
                2 => map_in_place::<Tanh, T>(&mut sum[..part.len]),
                _ => map_in_place::<Sigmoid, T>(&mut sum[..part.len]),
            }
            workspace.store(part, gate, sum);
        }
        let [i, f, g, o] = &gates;
        let mut c = [T::ZERO; PART];
        cell.load(part, 0, &mut c);
        each(part, &mut c, |at, c| *c = f[at] * *c + i[at] * g[at]);
        let mut new = c;
        next_cell.store(part, 0, &mut c);
        map_in_place::<Tanh, T>(&mut new[..part.len]);
        each(part, &mut new, |at, new| *new = o[at] * *new);
        next.store(part, 0, &mut new);
    })
}

/// Computes the gradients of the gates and of the cell state.
pub(super) fn backward<T: Real>(
    params: &RecurrentParams,
    inputs: &[Source<T>],
    outputs: &[Target<T>],
) -> Result<()> {
    let given = params.grads.iter().filter(|given| **given).count();
    let (grads, [cell, next_cell, workspace]) = inputs.split_at(given) else { return Ok(()) };
    let [of_gates, of_cell] = outputs else { return Ok(()) };
    let of_state = grads.first().filter(|_| params.grads[0]);
    let of_next_cell = grads.last().filter(|_| params.grads[1]);
    let [rows, width] = cell.shape;
    for_parts(rows, width, |part| {
        let zero = [T::ZERO; PART];
        let (mut dh, mut dc, mut c, mut tanh) = (zero, zero, zero, zero);
        if let Some(grad) = of_state {
            grad.load(part, 0, &mut dh);
        }
        if let Some(grad) = of_next_cell {
            grad.load(part, 0, &mut dc);
        }
        cell.load(part, 0, &mut c);
        next_cell.load(part, 0, &mut tanh);
        map_in_place::<Tanh, T>(&mut tanh[..part.len]);
        let mut gates = [zero; 4];
        for (gate, values) in gates.iter_mut().enumerate() {
            workspace.load(part, gate, values);
        }
        for at in 0..part.len {
            let [i, f, g, o] = gates.each_ref().map(|gate| gate[at]);
            let t = tanh[at];
            let d = dc[at] + dh[at] * o * (T::ONE - t * t);
            gates[0][at] = d * g * i * (T::ONE - i);
            gates[1][at] = d * c[at] * f * (T::ONE - f);
            gates[2][at] = d * i * (T::ONE - g * g);
            gates[3][at] = dh[at] * t * o * (T::ONE - o);
            dc[at] = d * f;
        }
        for (gate, values) in gates.iter_mut().enumerate() {
            of_gates.store(part, gate, values);
        }
        of_cell.store(part, 0, &mut dc);
    })
}
