//! Rules of forward mode of cells, by operators on the workspace, whose gates are the functions' values.

use std::sync::Arc;

use keyfold_core::Result;
use keyfold_layers::autograd::{Forward, Pushforward, added};
use keyfold_tensor::Tensor;

use super::gradients::{gate, sigmoid_slope, tanh_slope, zeros_like};
use crate::aten;

struct Gru;

struct Lstm;

pub(super) fn gru() -> Arc<dyn Pushforward> {
    Arc::new(Gru)
}

pub(super) fn lstm() -> Arc<dyn Pushforward> {
    Arc::new(Lstm)
}

/// Returns the tangent of gates with their bias; `None` for zero.
fn with_bias(call: &Forward<'_, '_>, gates: usize, bias: usize) -> Result<Option<Tensor>> {
    match (call.tangent(gates), call.tangent(bias)) {
        (Some(gates), Some(bias)) => aten::add(gates, bias).map(Some),
        (None, Some(bias)) => {
            aten::expand(bias, &aten::sizes(call.tensor(gates)?.shape())).map(Some)
        }
        (gates, None) => Ok(gates.cloned()),
    }
}

/// Multiplies a tangent; `None` is zero.
fn times(tangent: Option<Tensor>, factor: &Tensor) -> Result<Option<Tensor>> {
    tangent.map(|tangent| aten::mul(&tangent, factor)).transpose()
}

/// Returns a gate of a tangent.
fn part(tangent: &Option<Tensor>, place: usize, width: usize) -> Result<Option<Tensor>> {
    tangent.as_ref().map(|tangent| gate(tangent, place, width)).transpose()
}

/// Joins the tangents of a workspace's gates, where `None` is zeros like `like`.
fn joined(parts: &[Option<Tensor>], like: &Tensor) -> Result<Tensor> {
    let whole = |part: &Option<Tensor>| match part {
        Some(part) => Ok(part.clone()),
        None => zeros_like(like),
    };
    aten::cat(&parts.iter().map(whole).collect::<Result<Vec<_>>>()?, -1)
}

impl Pushforward for Gru {
    fn apply(&self, call: &Forward<'_, '_>) -> Result<Vec<Option<Tensor>>> {
        let (state, workspace) = (call.tensor(2)?, &call.results()[1]);
        let width = state.shape()[1];
        let value = |place: usize| gate(workspace, place, width);
        let (r, z, n, hn) = (value(0)?, value(1)?, value(2)?, value(4)?);
        let (input, hidden) = (with_bias(call, 0, 3)?, with_bias(call, 1, 4)?);
        let both = added(input.clone(), hidden.clone())?;
        let dr = times(part(&both, 0, width)?, &sigmoid_slope(&r)?)?;
        let dz = times(part(&both, 1, width)?, &sigmoid_slope(&z)?)?;
        let dhn = part(&hidden, 2, width)?;
        let inside = added(times(dr.clone(), &hn)?, times(dhn.clone(), &r)?)?;
        let dn = times(added(part(&input, 2, width)?, inside)?, &tanh_slope(&n)?)?;
        let dh = call.tangent(2).cloned();
        // Of n + z (state - n) = (1 - z) n + z state.
        let new = added(times(dn.clone(), &aten::rsub_scalar(&z, 1)?)?, times(dh.clone(), &z)?)?;
        let new = added(new, times(dz.clone(), &aten::sub(state, &n)?)?)?;
        Ok(vec![new, Some(joined(&[dr, dz, dn, dh, dhn], &n)?)])
    }
}

impl Pushforward for Lstm {
    fn apply(&self, call: &Forward<'_, '_>) -> Result<Vec<Option<Tensor>>> {
        let (cell, results) = (call.tensor(2)?, call.results());
        let width = cell.shape()[1];
        let value = |place: usize| gate(&results[2], place, width);
        let (i, f, g, o) = (value(0)?, value(1)?, value(2)?, value(3)?);
        let gates = added(with_bias(call, 0, 3)?, with_bias(call, 1, 4)?)?;
        let di = times(part(&gates, 0, width)?, &sigmoid_slope(&i)?)?;
        let df = times(part(&gates, 1, width)?, &sigmoid_slope(&f)?)?;
        let dg = times(part(&gates, 2, width)?, &tanh_slope(&g)?)?;
        let d_o = times(part(&gates, 3, width)?, &sigmoid_slope(&o)?)?;
        let new = added(times(di.clone(), &g)?, times(dg.clone(), &i)?)?;
        let kept = added(times(df.clone(), cell)?, times(call.tangent(2).cloned(), &f)?)?;
        let dc = added(new, kept)?;
        let t = aten::tanh(&results[1])?;
        let slope = aten::mul(&o, &tanh_slope(&t)?)?;
        let dh = added(times(d_o.clone(), &t)?, times(dc.clone(), &slope)?)?;
        Ok(vec![dh, dc, Some(joined(&[di, df, dg, d_o], &i)?)])
    }
}
