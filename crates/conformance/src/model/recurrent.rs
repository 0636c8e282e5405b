//! Cells of recurrent networks.

use keyfold_core::DType;

use super::{Expected, Given, accumulator};
use crate::array::Array;
use crate::number::{Number, unit};

pub(super) fn expected(name: &str, given: &Given<'_>) -> Option<Vec<Expected>> {
    Some(match name {
        "aten::_thnn_fused_gru_cell" | "aten::_thnn_fused_lstm_cell" => {
            let gates = if name.contains("gru") { 3 } else { 4 };
            let rows = |at: usize| Rows::of(given.array(at));
            let biases = [3, 4].map(|at| given.optional(at).map(Rows::of));
            let cell = Cell {
                dtype: given.array(0).dtype,
                gates,
                input: rows(0),
                hidden: rows(1),
                state: rows(2),
                biases,
                rounded: 0.0,
            };
            if gates == 3 { cell.gru() } else { cell.lstm() }
        }
        "aten::gru_cell" => {
            let mut all = with_products(given, 3, given.array(1), given.array(1)).gru();
            all.truncate(1);
            all
        }
        "aten::lstm_cell" => {
            let states = given.tensors(1);
            let mut all = with_products(given, 4, states[0]?, states[1]?).lstm();
            all.truncate(2);
            all
        }
        "aten::_thnn_fused_gru_cell_backward" => gru_backward(given),
        "aten::_thnn_fused_lstm_cell_backward_impl" => lstm_backward(given),
        _ => return None,
    })
}

/// The rows of a matrix; a vector is the row of each.
struct Rows {
    items: Vec<f64>,
    columns: usize,
    count: usize,
}

impl Rows {
    fn of(array: &Array) -> Rows {
        let columns = *array.shape.last().unwrap_or(&1);
        let count = if array.shape.len() == 2 { array.shape[0] } else { 1 };
        Rows { items: array.items.iter().map(|item| item.float()).collect(), columns, count }
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        self.items[row.min(self.count - 1) * self.columns + column]
    }
}

/// The arguments of a cell.
struct Cell {
    dtype: DType,
    gates: usize,
    input: Rows,
    hidden: Rows,
    state: Rows,
    biases: [Option<Rows>; 2],
    /// The relative error of the gates.
    rounded: f64,
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The cell whose gates are products of `given`'s arguments.
fn with_products(given: &Given<'_>, gates: usize, state: &Array, last: &Array) -> Cell {
    let dtype = given.array(0).dtype;
    let product = |x: &Array, weight: &Array| {
        let (x, weight) = (Rows::of(x), Rows::of(weight));
        let columns = weight.count;
        let mut items = Vec::new();
        for row in 0..x.count {
            items.extend((0..columns).map(|column| {
                (0..x.columns).map(|k| x.at(row, k) * weight.at(column, k)).sum::<f64>()
            }));
        }
        Rows { items, columns, count: x.count }
    };
    Cell {
        dtype,
        gates,
        input: product(given.array(0), given.array(2)),
        hidden: product(state, given.array(3)),
        state: Rows::of(last),
        biases: [4, 5].map(|at| given.optional(at).map(Rows::of)),
        rounded: 64.0 * unit(dtype) + 256.0 * unit(accumulator(dtype)),
    }
}

impl Cell {
    /// The sums of a gate and its bias: of the input, and of the state.
    fn sums(&self, row: usize, gate: usize, column: usize) -> [f64; 2] {
        let at = gate * self.state.columns + column;
        let bias = |which: usize| self.biases[which].as_ref().map_or(0.0, |bias| bias.at(0, at));
        [self.input.at(row, at) + bias(0), self.hidden.at(row, at) + bias(1)]
    }

    /// The size of everything that an element is computed from.
    fn size(&self, row: usize, column: usize) -> f64 {
        let gates = (0..self.gates).map(|gate| {
            let at = gate * self.state.columns + column;
            let biases = self.biases.iter().flatten().map(|bias| bias.at(0, at).abs());
            self.input.at(row, at).abs() + self.hidden.at(row, at).abs() + biases.sum::<f64>()
        });
        1.0 + self.state.at(row, column).abs() + gates.sum::<f64>()
    }

    /// Makes results of these widths, in widths of the state, of functions of row and column.
    fn results<const N: usize>(
        &self,
        shapes: &[&[usize]],
        values: impl Fn(usize, usize) -> [f64; N],
    ) -> Vec<Expected> {
        let (rows, width) = (self.state.count, self.state.columns);
        let u = unit(accumulator(self.dtype)) * 64.0 + self.rounded;
        let one = |places: &&[usize]| {
            Expected::from_fn(self.dtype, &[rows, places.len() * width], |index| {
                let (row, column) = (index[0], index[1] % width);
                let size = self.size(row, column);
                let value = values(row, column)[places[index[1] / width]];
                (Number::Float(value), u * size * size)
            })
        };
        shapes.iter().map(one).collect()
    }

    fn gru(&self) -> Vec<Expected> {
        self.results(&[&[0], &[1, 2, 3, 4, 5]], |row, column| {
            let [reset, update] = [0, 1].map(|gate| {
                let [input, hidden] = self.sums(row, gate, column);
                sigmoid(input + hidden)
            });
            let [input, hidden] = self.sums(row, 2, column);
            let new = (input + reset * hidden).tanh();
            let state = self.state.at(row, column);
            [(1.0 - update) * new + update * state, reset, update, new, state, hidden]
        })
    }

    fn lstm(&self) -> Vec<Expected> {
        self.results(&[&[0], &[1], &[2, 3, 4, 5]], |row, column| {
            let gate = |gate: usize| self.sums(row, gate, column).iter().sum::<f64>();
            let (input, forget) = (sigmoid(gate(0)), sigmoid(gate(1)));
            let (cell, output) = (gate(2).tanh(), sigmoid(gate(3)));
            let next = forget * self.state.at(row, column) + input * cell;
            [output * next.tanh(), next, input, forget, cell, output]
        })
    }
}

/// Makes the gradients of gates, places of `values` for each, and those of biases as their sums.
struct Gradients<'a> {
    dtype: DType,
    rows: usize,
    width: usize,
    /// The gradients for a row and a column, and the size of what they are computed from.
    values: &'a dyn Fn(usize, usize) -> ([f64; 6], f64),
}

impl Gradients<'_> {
    fn of(&self, places: &[usize]) -> Expected {
        let u = unit(accumulator(self.dtype)) * 64.0;
        Expected::from_fn(self.dtype, &[self.rows, places.len() * self.width], |index| {
            let (values, size) = (self.values)(index[0], index[1] % self.width);
            (Number::Float(values[places[index[1] / self.width]]), u * size)
        })
    }

    /// The sums over the rows: of gradients that were rounded to the dtype.
    fn sums(&self, places: &[usize], wanted: bool) -> Expected {
        if !wanted {
            return Expected::from_fn(self.dtype, &[0], |_| (Number::Float(0.0), 0.0));
        }
        let u = unit(accumulator(self.dtype)) * 64.0 + unit(self.dtype) * 2.0;
        Expected::from_fn(self.dtype, &[places.len() * self.width], |index| {
            let (mut total, mut error) = (0.0, 0.0);
            for row in 0..self.rows {
                let (values, size) = (self.values)(row, index[0] % self.width);
                total += values[places[index[0] / self.width]];
                error += u * size * (1.0 + self.rows as f64).sqrt();
            }
            (Number::Float(total), error)
        })
    }
}

fn gru_backward(given: &Given<'_>) -> Vec<Expected> {
    let (grad, workspace) = (Rows::of(given.array(0)), Rows::of(given.array(1)));
    let width = grad.columns;
    let values = |row: usize, column: usize| {
        let g = grad.at(row, column);
        let [r, z, n, h, hn] = [0, 1, 2, 3, 4].map(|gate| workspace.at(row, gate * width + column));
        let dn = g * (1.0 - z) * (1.0 - n * n);
        let dz = g * (h - n) * z * (1.0 - z);
        let dr = dn * hn * r * (1.0 - r);
        let sizes = [r, z, n, h, hn].map(|x| (1.0 + x.abs()).powi(2));
        ([dr, dz, dn, dn * r, g * z, 0.0], g.abs() * sizes.iter().product::<f64>())
    };
    let (dtype, rows) = (given.array(0).dtype, grad.count);
    let made = Gradients { dtype, rows, width, values: &values };
    let biased = given.flag(2);
    let (input, hidden) = ([0, 1, 2], [0, 1, 3]);
    let sums = [made.sums(&input, biased), made.sums(&hidden, biased)];
    [made.of(&input), made.of(&hidden), made.of(&[4])].into_iter().chain(sums).collect()
}

fn lstm_backward(given: &Given<'_>) -> Vec<Expected> {
    let grads = [0, 1].map(|at| given.optional(at).map(Rows::of));
    let [cell, next, workspace] = [2, 3, 4].map(|at| Rows::of(given.array(at)));
    let width = cell.columns;
    let values = |row: usize, column: usize| {
        let grad = |which: usize| grads[which].as_ref().map_or(0.0, |rows| rows.at(row, column));
        let (dh, dc) = (grad(0), grad(1));
        let [i, f, g, o] = [0, 1, 2, 3].map(|gate| workspace.at(row, gate * width + column));
        let (c, t) = (cell.at(row, column), next.at(row, column).tanh());
        let d = dc + dh * o * (1.0 - t * t);
        let sizes = [i, f, g, o, c].map(|x| (1.0 + x.abs()).powi(2));
        let size = (dh.abs() + dc.abs()) * sizes.iter().product::<f64>();
        let of_gates = [d * g * i * (1.0 - i), d * c * f * (1.0 - f), d * i * (1.0 - g * g)];
        let [di, df, dg] = of_gates;
        ([di, df, dg, dh * t * o * (1.0 - o), d * f, 0.0], size)
    };
    let (dtype, rows) = (given.array(2).dtype, cell.count);
    let made = Gradients { dtype, rows, width, values: &values };
    let gates = [0, 1, 2, 3];
    vec![made.of(&gates), made.of(&[4]), made.sums(&gates, given.flag(5))]
}
