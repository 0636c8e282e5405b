//! Cells of recurrent networks and their gradients.

use crate::{Group, Groups, Kernels, Operation, Params};

/// The parameters of the group `recurrent`.
///
/// All tensors are of one floating dtype and of any strides; `B` is the batch and `H` the width of the state.
/// Halves are computed in float32. The gates of a cell lie side by side in a row.
///
/// | name | inputs | outputs |
/// | --- | --- | --- |
/// | `gru_cell` | input gates and hidden gates `[B, 3H]`, state `[B, H]`, both biases `[3H]` if `biased` | the new state `[B, H]`, workspace `[B, 5H]` |
/// | `gru_cell_backward` | the state's gradient `[B, H]`, workspace `[B, 5H]` | the gradients of the input gates and the hidden gates `[B, 3H]`, and of the state `[B, H]` |
/// | `lstm_cell` | input gates and hidden gates `[B, 4H]`, cell state `[B, H]`, both biases `[4H]` if `biased` | the new state and the new cell state `[B, H]`, workspace `[B, 4H]` |
/// | `lstm_cell_backward` | the gradients of the new state and of the new cell state `[B, H]`, each if `grads` says so, cell state and new cell state `[B, H]`, workspace `[B, 4H]` | the gradients of the gates `[B, 4H]` and of the cell state `[B, H]` |
///
/// The gates of `gru_cell` are those of the reset `r`, the update `z` and the new state `n`: with the sums `i`
/// and `h` of gates and biases, `r = sigmoid(ir + hr)`, `z = sigmoid(iz + hz)`, `n = tanh(in + r hn)`, and the
/// new state is `n + z (state - n)`. The workspace is `r`, `z`, `n`, the state, and `hn`.
///
/// The gates of `lstm_cell` are those of input `i`, forgetting `f`, cell `g` and output `o`, each the sum of its
/// input gate, hidden gate and biases, through `sigmoid` and for `g` through `tanh`: the new cell state is
/// `f cell + i g`, and the new state is `o tanh(new cell state)`. The workspace is `i`, `f`, `g` and `o`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecurrentParams {
    /// The kernel's operation.
    pub op: &'static Operation,
    /// Whether both biases are among the inputs.
    pub biased: bool,
    /// Which of the gradients of the new state and of the new cell state are among the inputs of
    /// `lstm_cell_backward`; the others are 0.
    pub grads: [bool; 2],
}

impl Params for RecurrentParams {
    const GROUP: Group = Group::Recurrent;

    fn group<'a>(groups: &Groups<'a>) -> Option<&'a dyn Kernels<Self>> {
        groups.recurrent
    }

    fn operation(&self) -> &'static Operation {
        self.op
    }

    fn fields(&self) -> Vec<(&'static str, crate::Field)> {
        vec![("biased", self.biased.into()), ("grads", self.grads.into())]
    }
}
