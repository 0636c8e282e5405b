//! `jvp`: the value of a function and its derivative along a direction, in one run.

use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{DispatchKey, DispatchKeySet, LocalData, include_keys_with, outside_layers};
use keyfold_tensor::Tensor;

use super::dual::{add_tangent, tangent_at, without};
use super::level::{Level, recording};
use super::node::TensorMeta;
use super::tangent::is_differentiable;
use super::{aten, misuse};
use crate::vmap;

/// Ends a level, also when what ran in it failed.
struct End(Arc<Level>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Runs `f` with a level open on this thread, as if no operator were being differentiated around it. It is
/// recorded for gradients unless `records` is off; then the graph alone is off.
pub fn inside<R>(level: &Arc<Level>, records: bool, f: impl FnOnce() -> R) -> R {
    let data: LocalData = Arc::clone(level) as _;
    let _level = include_keys_with(DispatchKeySet::EMPTY, data);
    let _recording = (!records).then(|| recording(false));
    outside_layers(DispatchKey::Autograd.into(), f)
}

/// The results of `f` at `primals`, and their tangents: the derivative of `f` along `tangents`, one per
/// primal. The tangent of a result that doesn't depend on any primal is zeros.
///
/// Of complex numbers it is the derivative along the direction in the complex plane, `f'(z) t` where `f`
/// has a complex derivative. The conjugate stands in gradients, not here.
///
/// ```
/// use keyfold::layers::autograd;
/// use keyfold::ops::aten;
/// use keyfold_tensor::Tensor;
/// keyfold::init();
///
/// let (x, t) = (Tensor::from_vec(vec![1.0, 2.0], &[2])?, Tensor::from_vec(vec![1.0, 0.5], &[2])?);
/// let (values, tangents) = autograd::jvp(|x| Ok(vec![aten::mul(&x[0], &x[0])?]), &[x], &[t])?;
/// assert_eq!(values[0].to_vec::<f64>()?, [1.0, 4.0]);
/// assert_eq!(tangents[0].to_vec::<f64>()?, [2.0, 2.0]);
/// # Ok::<(), keyfold_core::Error>(())
/// ```
///
/// # Errors
/// Those of `f`; [`ErrorKind::Gradient`] for a tangent that isn't of its primal's form, and for an operator
/// without a rule; [`ErrorKind::DType`] for a primal that is neither floating nor complex.
pub fn jvp(
    f: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
    primals: &[Tensor],
    tangents: &[Tensor],
) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    if primals.len() != tangents.len() {
        let (primals, tangents) = (primals.len(), tangents.len());
        return Err(misuse(format!(
            "jvp: {tangents} tangents for {primals} primals; give one each"
        )));
    }
    let open = End(Level::open());
    let level = &open.0;
    inside(level, true, || {
        let both = primals.iter().zip(tangents).enumerate();
        let inputs = both.map(|(i, (primal, tangent))| {
            dual(primal, tangent, level).map_err(|error| error.at(&format!("jvp: primal {i}")))
        });
        let outputs = f(&inputs.collect::<Result<Vec<_>>>()?)?;
        let parts = outputs.iter().map(|output| {
            let (value, tangent) = unpack(output, level)?;
            let tangent = tangent.map_or_else(|| aten::zeros_like(&value), Ok)?;
            Ok((value, tangent))
        });
        Ok(parts.collect::<Result<Vec<_>>>()?.into_iter().unzip())
    })
}

/// The primal with a tangent at a level. Examples of batches become one of a batch of both.
///
/// # Errors
/// [`ErrorKind::DType`] for a primal that is neither floating nor complex, [`ErrorKind::Gradient`] for a
/// tangent of another form.
pub fn dual(primal: &Tensor, tangent: &Tensor, level: &Arc<Level>) -> Result<Tensor> {
    if !is_differentiable(primal) {
        return Err(Error::new(
            ErrorKind::DType,
            format!(
                "a tensor of dtype {} has no tangent; use a float or complex one",
                primal.dtype()
            ),
        ));
    }
    let (given, wanted) = (TensorMeta::of(tangent), TensorMeta::of(primal));
    if given != wanted {
        return Err(misuse(format!("a tangent of {given} doesn't fit a primal of {wanted}")));
    }
    let batch = |tensor| vmap::batch_of(tensor).map_or(0, |batched| batched.level);
    let batch = batch(primal).max(batch(tangent));
    if batch == 0 {
        // A view: what is written to it in place would be written to the caller's.
        let dual = super::alias_of(primal)?;
        add_tangent(&dual, level, tangent.clone())?;
        return Ok(dual);
    }
    let all = |tensor| -> Result<Tensor> {
        let batched = vmap::batched_at(tensor, batch)?;
        match vmap::physical(&batched) {
            Some((physical, _, dim)) => {
                outside_layers(DispatchKey::Vmap.into(), || vmap::move_dim(&physical, dim, 0))
            }
            None => Ok(batched),
        }
    };
    vmap::wrap(dual(&all(primal)?, &all(tangent)?, level)?, 0, batch)
}

/// A tensor without its tangent at a level, and this; `None` for zero.
///
/// # Errors
/// [`ErrorKind::Gradient`] where the tensor was changed since its tangent was computed.
pub fn unpack(tensor: &Tensor, level: &Level) -> Result<(Tensor, Option<Tensor>)> {
    if let Some((physical, batch, dim)) = vmap::physical(tensor) {
        let (value, tangent) = unpack(&physical, level)?;
        let value = vmap::wrap(value, dim, batch)?;
        let tangent = tangent.map(|tangent| vmap::wrap(tangent, dim, batch)).transpose()?;
        return Ok((value, tangent));
    }
    let Some(dual) = super::dual::dual_of(tensor) else { return Ok((tensor.clone(), None)) };
    dual.check(tensor)?;
    Ok((without(tensor, level)?, tangent_at(tensor, level)))
}
