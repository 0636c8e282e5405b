//! `jvp`: a function's results and its derivative along a direction, in one run.

use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{DispatchKey, DispatchKeySet, LocalData, include_keys_with, outside_layers};
use keyfold_tensor::Tensor;

use super::dual::{add_tangent, tangent_at, without_level};
use super::level::{Level, recording};
use super::node::TensorMeta;
use super::tangent::is_differentiable;
use super::{aten, misuse};
use crate::vmap;

/// Ends a level on drop, also after an error or a panic.
struct EndOnDrop(Arc<Level>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Runs `f` inside a level on this thread, with the key Autograd on. Gradients are recorded unless `records`
/// is false; tangents are computed in both cases.
pub fn with_level<R>(level: &Arc<Level>, records: bool, f: impl FnOnce() -> R) -> R {
    let data: LocalData = Arc::clone(level) as _;
    let _level = include_keys_with(DispatchKeySet::EMPTY, data);
    let _recording = (!records).then(|| recording(false));
    outside_layers(DispatchKey::Autograd.into(), f)
}

/// Returns the results of `f` at `primals`, and their tangents: the derivative of `f` along `tangents`, one
/// per primal. A result that depends on no primal has a tangent of zeros.
///
/// The tangent of a complex result is the derivative along the direction in the complex plane, `f'(z) t` for
/// a holomorphic `f`. Gradients have the conjugate of `f'`, tangents don't.
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
    let open = EndOnDrop(Level::open());
    let level = &open.0;
    with_level(level, true, || {
        let both = primals.iter().zip(tangents).enumerate();
        let inputs = both.map(|(i, (primal, tangent))| {
            make_dual(primal, tangent, level).map_err(|error| error.at(&format!("jvp: primal {i}")))
        });
        let outputs = f(&inputs.collect::<Result<Vec<_>>>()?)?;
        let parts = outputs.iter().map(|output| {
            let (value, tangent) = unpack_dual(output, level)?;
            let tangent = tangent.map_or_else(|| aten::zeros_like(&value), Ok)?;
            Ok((value, tangent))
        });
        Ok(parts.collect::<Result<Vec<_>>>()?.into_iter().unzip())
    })
}

/// Returns the primal with a tangent at a level. A primal or tangent that is an example of a `vmap` batch
/// makes both examples of that batch.
///
/// # Errors
/// [`ErrorKind::DType`] for a primal that is neither floating nor complex, [`ErrorKind::Gradient`] for a
/// tangent of another form.
pub fn make_dual(primal: &Tensor, tangent: &Tensor, level: &Arc<Level>) -> Result<Tensor> {
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
        // A view, which Autograd refuses to write: a write would change the caller's tensor.
        let dual = super::alias_with_graph(primal)?;
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
    vmap::wrap(make_dual(&all(primal)?, &all(tangent)?, level)?, 0, batch)
}

/// Returns a tensor without its tangent at a level, and that tangent; `None` for zero.
///
/// # Errors
/// [`ErrorKind::Gradient`] where the tensor was written since its tangent was computed.
pub fn unpack_dual(tensor: &Tensor, level: &Level) -> Result<(Tensor, Option<Tensor>)> {
    if let Some((physical, batch, dim)) = vmap::physical(tensor) {
        let (value, tangent) = unpack_dual(&physical, level)?;
        let value = vmap::wrap(value, dim, batch)?;
        let tangent = tangent.map(|tangent| vmap::wrap(tangent, dim, batch)).transpose()?;
        return Ok((value, tangent));
    }
    let Some(dual) = super::dual::dual_of(tensor) else { return Ok((tensor.clone(), None)) };
    dual.check(tensor)?;
    Ok((without_level(tensor, level)?, tangent_at(tensor, level)))
}
