//! The gated recurrent unit (K. Cho and others, "Learning phrase representations using RNN encoder-decoder
//! for statistical machine translation", 2014), with the reset applied after the product, as cuDNN has it.

use keyfold_backend::RecurrentParams;
use keyfold_core::Result;
use keyfold_kit::math::Real;
use keyfold_kit::math::function::{Sigmoid, Tanh};
use keyfold_kit::math::slices::map_in_place;

use super::{PART, Source, Target, each, for_parts};

/// Computes the new state and the workspace.
pub(super) fn forward<T: Real>(
    params: &RecurrentParams,
    inputs: &[Source<T>],
    outputs: &[Target<T>],
) -> Result<()> {
    let [input, hidden, state, biases @ ..] = inputs else { return Ok(()) };
    let [next, workspace] = outputs else { return Ok(()) };
    let biases = if params.biased { biases } else { &[] };
    let [rows, width] = state.shape;
    for_parts(rows, width, |part| {
        // The sums of the gates `r` and `z`, and the parts of `n`, which stay apart.
        let zero = [T::ZERO; PART];
        let (mut r, mut z, mut n, mut hn, mut h) = (zero, zero, zero, zero, zero);
        for (gate, sum) in [(0, &mut r), (1, &mut z)] {
            input.load(part, gate, sum);
            hidden.add(part, gate, sum);
            biases.iter().for_each(|bias| bias.add(part, gate, sum));
            map_in_place::<Sigmoid, T>(&mut sum[..part.len]);
        }
        input.load(part, 2, &mut n);
        hidden.load(part, 2, &mut hn);
        if let [of_input, of_hidden] = biases {
            of_input.add(part, 2, &mut n);
            of_hidden.add(part, 2, &mut hn);
        }
        each(part, &mut n, |i, n| *n = *n + r[i] * hn[i]);
        map_in_place::<Tanh, T>(&mut n[..part.len]);
        state.load(part, 0, &mut h);
        let mut new = zero;
        each(part, &mut new, |i, new| *new = n[i] + z[i] * (h[i] - n[i]));
        next.store(part, 0, &mut new);
        for (gate, values) in [&mut r, &mut z, &mut n, &mut h, &mut hn].into_iter().enumerate() {
            workspace.store(part, gate, values);
        }
    })
}

/// Computes the gradients of the gates and of the state.
pub(super) fn backward<T: Real>(inputs: &[Source<T>], outputs: &[Target<T>]) -> Result<()> {
    let [grad, workspace] = inputs else { return Ok(()) };
    let [of_input, of_hidden, of_state] = outputs else { return Ok(()) };
    let [rows, width] = grad.shape;
    for_parts(rows, width, |part| {
        let zero = [T::ZERO; PART];
        let (mut g, mut r, mut z, mut n, mut h, mut hn) = (zero, zero, zero, zero, zero, zero);
        grad.load(part, 0, &mut g);
        let all = [&mut r, &mut z, &mut n, &mut h, &mut hn];
        for (gate, values) in all.into_iter().enumerate() {
            workspace.load(part, gate, values);
        }
        // Each variable becomes the gradient of the sum that it is a function of; `h` that of the state.
        for i in 0..part.len {
            let (dz, dh) = (g[i] * (h[i] - n[i]), g[i] * z[i]);
            let dn = g[i] * (T::ONE - z[i]) * (T::ONE - n[i] * n[i]);
            let dr = dn * hn[i];
            hn[i] = dn * r[i];
            r[i] = dr * r[i] * (T::ONE - r[i]);
            z[i] = dz * z[i] * (T::ONE - z[i]);
            (n[i], h[i]) = (dn, dh);
        }
        for target in [of_input, of_hidden] {
            target.store(part, 0, &mut r);
            target.store(part, 1, &mut z);
        }
        of_input.store(part, 2, &mut n);
        of_hidden.store(part, 2, &mut hn);
        of_state.store(part, 0, &mut h);
    })
}
