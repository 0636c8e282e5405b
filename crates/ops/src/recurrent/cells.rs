//! Cells with the products of their gates: composites, so that all layers derive their rules from the
//! operators that they call.

use keyfold_core::{ErrorKind, Result};
use keyfold_dispatch::{CallContext, Kernel, RegistrationKey, Value as _};
use keyfold_layers::autocast::Category;
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::checks::{check_float, single_bias};
use crate::inferred::Inferred;
use crate::naming::named;
use crate::op::{Op, Target};
use crate::row::{Layers, Row, Rule};

/// The tensors of a cell with its products.
struct Products<'a> {
    op: Op,
    input: &'a Tensor,
    state: &'a Tensor,
    weights: [&'a Tensor; 2],
    biases: [Option<&'a Tensor>; 2],
}

impl<'a> Products<'a> {
    /// Checks the arguments of a cell of so many gates.
    fn new(
        name: &'static str,
        gates: usize,
        state: &'a Tensor,
        args: &'a [ValueRef<'a>],
    ) -> Result<Products<'a>> {
        let op = Op::new(name, Target::Meta);
        let tensor = |place: usize| args[place].tensor();
        let optional = |place: usize| match args.get(place) {
            None | Some(ValueRef::None) => Ok(None),
            Some(given) => given.tensor().map(Some),
        };
        let (input, weights) = (tensor(0)?, [tensor(2)?, tensor(3)?]);
        let biases = [optional(4)?, optional(5)?];
        check_float(&op, "input", input)?;
        check_float(&op, "hx", state)?;
        let [batch, features] = **input.shape() else {
            return Err(wrong_shape(&op, "input", input, "[batch, features]"));
        };
        let width = match **state.shape() {
            [rows, width] if rows == batch => width,
            _ => return Err(wrong_shape(&op, "hx", state, &format!("[{batch}, width]"))),
        };
        let expected = [
            ("w_ih", Some(weights[0]), vec![gates * width, features]),
            ("w_hh", Some(weights[1]), vec![gates * width, width]),
            ("b_ih", biases[0], vec![gates * width]),
            ("b_hh", biases[1], vec![gates * width]),
        ];
        for (argument, given, shape) in expected {
            let Some(given) = given else { continue };
            check_float(&op, argument, given)?;
            if **given.shape() != *shape {
                let wanted = format!("{shape:?}, for {gates} gates of a state of width {width}");
                return Err(wrong_shape(&op, argument, given, &wanted));
            }
        }
        match biases {
            [Some(_), None] => return Err(single_bias(&op, "b_ih", "b_hh")),
            [None, Some(_)] => return Err(single_bias(&op, "b_hh", "b_ih")),
            _ => {}
        }
        Ok(Products { op, input, state, weights, biases })
    }

    /// Calls the operator that computes the cell from its gates, with the last state among its arguments.
    fn call(
        &self,
        context: &CallContext<'_, Value>,
        fused: &str,
        last: &Tensor,
    ) -> Result<Vec<Value>> {
        let dispatcher = context.dispatcher()?;
        let product = |x: &Tensor, weight: &Tensor| -> Result<Value> {
            let dims = [ValueRef::Tensor(weight), ValueRef::Int(0), ValueRef::Int(1)];
            let weight = dispatcher.call("aten::transpose", &dims)?;
            dispatcher.call("aten::matmul", &[x.into(), weight.as_ref()])
        };
        let input = product(self.input, self.weights[0])?;
        let hidden = product(self.state, self.weights[1])?;
        let [b_ih, b_hh] = self.biases.map(|bias| bias.map_or(ValueRef::None, ValueRef::Tensor));
        let args = [input.as_ref(), hidden.as_ref(), last.into(), b_ih, b_hh];
        match self.op.at(dispatcher.call(fused, &args))? {
            Value::Tuple(results) | Value::List(results) => Ok(results),
            one => Ok(vec![one]),
        }
    }
}

#[cold]
fn wrong_shape(op: &Op, argument: &str, given: &Tensor, wanted: &str) -> keyfold_core::Error {
    let message =
        format!("argument '{argument}' has shape {:?}, but it must be {wanted}", given.shape());
    op.error(ErrorKind::Shape, message)
}

const GRU: &str = "aten::gru_cell";
const LSTM: &str = "aten::lstm_cell";

fn gru(context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> Result<Value> {
    let state = args[1].tensor()?;
    let cell = Products::new(GRU, 3, state, args)?;
    let results = cell.call(context, "aten::_thnn_fused_gru_cell", state)?;
    results.into_iter().next().ok_or_else(|| cell.op.lacks_out())
}

/// Returns the state and the cell state.
fn states<'a>(op: &Op, hx: &'a [ValueRef<'a>]) -> Result<(&'a Tensor, &'a Tensor)> {
    let [state, cell] = hx else {
        let message = format!(
            "argument 'hx' has {} tensors, but it must have 2: the state and the cell state",
            hx.len()
        );
        return Err(op.error(ErrorKind::Value, message));
    };
    Ok((state.tensor()?, cell.tensor()?))
}

fn lstm(context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> Result<Value> {
    let hx: Vec<ValueRef<'_>> = args[1].items().collect();
    let (state, last) = states(&Op::new(LSTM, Target::Meta), &hx)?;
    let cell = Products::new(LSTM, 4, state, args)?;
    let mut results = cell.call(context, "aten::_thnn_fused_lstm_cell", last)?;
    results.truncate(2);
    Ok(Value::Tuple(results))
}

/// Infers a result of the state's shape, of the dtype of all tensors together.
fn form(args: &[ValueRef<'_>], state: &Tensor) -> Result<Inferred> {
    let mut dtype = state.dtype();
    for arg in args {
        for item in arg.items().chain([*arg]) {
            if let Ok(tensor) = item.tensor() {
                dtype = dtype.promote(tensor.dtype());
            }
        }
    }
    Ok(Inferred::fresh(state.shape().clone(), dtype))
}

fn infer_gru(args: &[ValueRef<'_>]) -> Result<Inferred> {
    let state = args[1].tensor()?;
    Products::new(GRU, 3, state, args)?;
    form(args, state)
}

fn infer_lstm(args: &[ValueRef<'_>]) -> Result<Vec<Option<Inferred>>> {
    let hx: Vec<ValueRef<'_>> = args[1].items().collect();
    let (state, _) = states(&Op::new(LSTM, Target::Meta), &hx)?;
    Products::new(LSTM, 4, state, args)?;
    Ok(vec![Some(form(args, state)?), Some(form(args, state)?)])
}

/// Returns the rows of cells with their products.
pub(super) fn rows() -> Result<Vec<Row>> {
    let layers = Layers {
        derivative: Rule::Derived,
        tangent: Rule::Derived,
        batching: Rule::Derived,
        autocast: Category::LowerPrecision,
    };
    Ok(vec![
        Row::composite(
            "aten::gru_cell(Tensor input, Tensor hx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, \
             Tensor? b_hh=None) -> Tensor",
            RegistrationKey::CompositeImplicitAutograd,
            || Kernel::boxed(gru),
            infer_gru,
            layers,
            named(
                "gru_cell",
                "Tensor input, Tensor hx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, \
                 Tensor? b_hh=None",
                "Return the next state `[batch, H]` of a gated recurrent unit. Not in the \
                 standard.\n\nOf `input` `[batch, I]` and the state `hx` `[batch, H]`, with weights \
                 `w_ih` `[3H, I]` and\n`w_hh` `[3H, H]`, and both biases `[3H]` or none. The gates \
                 are those of the reset, the\nupdate and the new state, in this order (K. Cho and \
                 others, 2014).\n\nRaises:\n    ShapeError: a tensor has another shape.\n    \
                 InvalidValue: one bias is given without the other.",
            ),
        )?,
        Row::composite_of_several(
            "aten::lstm_cell(Tensor input, Tensor[] hx, Tensor w_ih, Tensor w_hh, \
             Tensor? b_ih=None, Tensor? b_hh=None) -> (Tensor, Tensor)",
            RegistrationKey::CompositeImplicitAutograd,
            || Kernel::boxed(lstm),
            infer_lstm,
            layers,
            named(
                "lstm_cell",
                "Tensor input, Tensor[] hx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, \
                 Tensor? b_hh=None",
                "Return the next state and cell state, each `[batch, H]`, of a long short-term \
                 memory. Not in the standard.\n\nOf `input` `[batch, I]` and `hx`, the state and the \
                 cell state `[batch, H]` in a tuple, with\nweights `w_ih` `[4H, I]` and `w_hh` \
                 `[4H, H]`, and both biases `[4H]` or none. The gates are\nthose of input, \
                 forgetting, cell and output, in this order (S. Hochreiter and\nJ. Schmidhuber, \
                 1997).\n\nRaises:\n    ShapeError: a tensor has another shape.\n    InvalidValue: \
                 one bias is given without the other.",
            ),
        )?,
    ])
}
