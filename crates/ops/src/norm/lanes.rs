//! The derivatives of normalizations and of their gradients, as compositions of other operators: forward mode,
//! and gradients of gradients.
//!
//! With `normal = (x - mean) rstd` and `gw = g w`, the gradients are `dx = rstd (gw - mean(gw) - normal mean(gw
//! normal))`, `dw = sum(g normal)` and `db = sum(g)`. They are differentiated as functions of `g`, `x`, `mean`,
//! `rstd` and `w`, and mean and `rstd` as functions of `x` by the derivative of the normalization.

use keyfold_core::Result;
use keyfold_layers::autograd::{TensorMeta, added};
use keyfold_tensor::Tensor;

use crate::aten;
use crate::vjp::match_meta;

/// The lanes of a normalized tensor, in a view of it in which statistics and weights broadcast.
pub(super) struct Lanes {
    /// The shape of the view.
    pub(super) view: Vec<i64>,
    /// The dimensions of the view along a lane.
    pub(super) dims: Vec<i64>,
    /// The shape of weights beside the view.
    pub(super) weights: Vec<i64>,
    /// Whether the mean is subtracted.
    pub(super) centered: bool,
    /// Whether the statistics are constants, not functions of the elements.
    pub(super) constant: bool,
}

/// The tensors of a normalization's gradient, in the lanes' view.
pub(super) struct Operands {
    pub(super) grad: Option<Tensor>,
    pub(super) x: Tensor,
    /// None for RMS norm.
    pub(super) mean: Option<Tensor>,
    pub(super) rstd: Tensor,
    pub(super) weight: Option<Tensor>,
}

/// Adds two tensors, where `None` is zero.
pub(super) fn plus(a: Option<Tensor>, b: Option<Tensor>) -> Result<Option<Tensor>> {
    added(a, b)
}

/// Multiplies by a tensor, where `None` is one.
fn times(a: &Tensor, b: Option<&Tensor>) -> Result<Tensor> {
    b.map_or_else(|| Ok(a.clone()), |b| aten::mul(a, b))
}

impl Lanes {
    /// Views a tensor of the normalized tensor's shape.
    pub(super) fn view(&self, x: &Tensor) -> Result<Tensor> {
        aten::reshape(x, &self.view)
    }

    /// Views statistics.
    pub(super) fn view_statistics(&self, x: &Tensor) -> Result<Tensor> {
        let mut sizes = self.view.clone();
        for dim in &self.dims {
            sizes[*dim as usize] = 1;
        }
        aten::reshape(x, &sizes)
    }

    /// Views weights or biases.
    pub(super) fn view_weights(&self, x: &Tensor) -> Result<Tensor> {
        aten::reshape(x, &self.weights)
    }

    /// Converts a gradient in the view to an operand's shape and dtype.
    pub(super) fn fit(&self, grad: &Tensor, form: &TensorMeta, own: &[i64]) -> Result<Tensor> {
        let sizes: Vec<usize> = own.iter().map(|size| *size as usize).collect();
        let grad = aten::reshape(&aten::sum_to(grad, &sizes)?, &aten::sizes(&form.shape))?;
        match_meta(form, &grad)
    }

    /// As [`Lanes::fit`], for weights and biases.
    pub(super) fn fit_weights(&self, grad: &Tensor, form: &TensorMeta) -> Result<Tensor> {
        self.fit(grad, form, &self.weights)
    }

    /// As [`Lanes::fit`], for statistics.
    pub(super) fn fit_statistics(&self, grad: &Tensor, form: &TensorMeta) -> Result<Tensor> {
        let mut sizes = self.view.clone();
        self.dims.iter().for_each(|dim| sizes[*dim as usize] = 1);
        self.fit(grad, form, &sizes)
    }

    fn sum(&self, x: &Tensor) -> Result<Tensor> {
        aten::sum(x, &self.dims, true)
    }

    /// The mean of each lane.
    fn mean(&self, x: &Tensor) -> Result<Tensor> {
        let count: i64 = self.dims.iter().map(|dim| self.view[*dim as usize]).product();
        aten::div_scalar(&self.sum(x)?, count)
    }

    fn distance(&self, operands: &Operands) -> Result<Tensor> {
        match &operands.mean {
            Some(mean) => aten::sub(&operands.x, mean),
            None => Ok(operands.x.clone()),
        }
    }

    fn normal(&self, operands: &Operands) -> Result<Tensor> {
        aten::mul(&self.distance(operands)?, &operands.rstd)
    }

    /// Subtracts from `x` its components along constants and along `normal`.
    fn project(&self, x: &Tensor, normal: &Tensor) -> Result<Tensor> {
        if self.constant {
            return Ok(x.clone());
        }
        let along = aten::mul(normal, &self.mean(&aten::mul(x, normal)?)?)?;
        let rest = aten::sub(x, &along)?;
        if self.centered { aten::sub(&rest, &self.mean(x)?) } else { Ok(rest) }
    }

    /// The gradient of the elements from those of the mean and of the reciprocal deviation.
    pub(super) fn gradient_of_statistics(
        &self,
        operands: &Operands,
        mean: Option<&Tensor>,
        rstd: Option<&Tensor>,
    ) -> Result<Option<Tensor>> {
        let count: i64 = self.dims.iter().map(|dim| self.view[*dim as usize]).product();
        let of_mean = mean.map(|grad| aten::div_scalar(grad, count)).transpose()?;
        let of_rstd = rstd
            .map(|grad| {
                let square = aten::mul(&operands.rstd, &operands.rstd)?;
                let factor = aten::div_scalar(&aten::mul(grad, &square)?, -count)?;
                aten::mul(&factor, &self.normal(operands)?)
            })
            .transpose()?;
        plus(of_mean, of_rstd)
    }

    /// The tangents of the normalized elements, of the means and of the reciprocal deviations.
    pub(super) fn tangents(
        &self,
        operands: &Operands,
        [x, weight, bias]: [Option<&Tensor>; 3],
    ) -> Result<[Option<Tensor>; 3]> {
        let normal = self.normal(operands)?;
        let mut all = bias.cloned();
        if let Some(weight) = weight {
            all = plus(Some(aten::mul(&normal, weight)?), all)?;
        }
        let Some(x) = x else { return Ok([all, None, None]) };
        let own = aten::mul(&self.project(x, &normal)?, &operands.rstd)?;
        all = plus(Some(times(&own, operands.weight.as_ref())?), all)?;
        let square = aten::mul(&operands.rstd, &operands.rstd)?;
        let along = self.mean(&aten::mul(&normal, x)?)?;
        Ok([all, Some(self.mean(x)?), Some(aten::neg(&aten::mul(&square, &along)?)?)])
    }

    /// The gradients of the operands of a gradient, `[grad, x, mean, rstd, weight]`, from those of its results,
    /// `[dx, dw, db]`.
    pub(super) fn gradients(
        &self,
        operands: &Operands,
        [u, v, s]: [Option<Tensor>; 3],
    ) -> Result<[Option<Tensor>; 5]> {
        let Some(grad) = &operands.grad else { return Ok(Default::default()) };
        let normal = self.normal(operands)?;
        let (mut of_grad, mut of_normal, mut of_rstd, mut of_weight) = (s, None, None, None);
        if let Some(u) = u {
            let weighted = times(grad, operands.weight.as_ref())?;
            let scaled = aten::mul(&u, &operands.rstd)?;
            let through = self.project(&scaled, &normal)?;
            of_rstd = Some(self.sum(&aten::mul(&u, &self.project(&weighted, &normal)?)?)?);
            if !self.constant {
                let along = self.mean(&aten::mul(&weighted, &normal)?)?;
                let other = self.mean(&aten::mul(&scaled, &normal)?)?;
                let both = aten::add(&aten::mul(&scaled, &along)?, &aten::mul(&weighted, &other)?)?;
                of_normal = Some(aten::neg(&both)?);
            }
            of_weight = Some(aten::mul(grad, &through)?);
            of_grad = plus(of_grad, Some(times(&through, operands.weight.as_ref())?))?;
        }
        if let Some(v) = v {
            of_grad = plus(of_grad, Some(aten::mul(&v, &normal)?))?;
            of_normal = plus(of_normal, Some(aten::mul(&v, grad)?))?;
        }
        let mut of_x = None;
        if let Some(of_normal) = of_normal {
            of_x = Some(aten::mul(&of_normal, &operands.rstd)?);
            let product = aten::mul(&of_normal, &self.distance(operands)?)?;
            of_rstd = plus(of_rstd, Some(self.sum(&product)?))?;
        }
        let of_mean = of_x.as_ref().filter(|_| operands.mean.is_some());
        let of_mean = of_mean.map(|of_x| aten::neg(&self.sum(of_x)?)).transpose()?;
        Ok([of_grad, of_x, of_mean, of_rstd, of_weight])
    }

    /// The tangents of a gradient's results `[dx, dw, db]`, before they are summed to their shapes, from those of
    /// its operands `[grad, x, mean, rstd, weight]`.
    pub(super) fn tangents_of_gradients(
        &self,
        operands: &Operands,
        [g, x, mean, rstd, weight]: [Option<&Tensor>; 5],
    ) -> Result<[Option<Tensor>; 3]> {
        let Some(grad) = &operands.grad else { return Ok(Default::default()) };
        let normal = self.normal(operands)?;
        let weighted = times(grad, operands.weight.as_ref())?;
        let mut distance = x.cloned();
        if let Some(mean) = mean {
            distance = plus(distance, Some(aten::neg(mean)?))?;
        }
        let scaled = distance.map(|moved| aten::mul(&moved, &operands.rstd)).transpose()?;
        let stretched =
            rstd.map(|moved| aten::mul(&self.distance(operands)?, moved)).transpose()?;
        let normal_moved = plus(scaled, stretched)?;
        let by_grad = g.map(|g| times(g, operands.weight.as_ref())).transpose()?;
        let by_weight = weight.map(|weight| aten::mul(grad, weight)).transpose()?;
        let weighted_moved = plus(by_grad, by_weight)?;
        let mut dx = match &weighted_moved {
            Some(moved) => Some(aten::mul(&self.project(moved, &normal)?, &operands.rstd)?),
            None => None,
        };
        if let (Some(moved), false) = (&normal_moved, self.constant) {
            let along = self.mean(&aten::mul(&weighted, &normal)?)?;
            let other = self.mean(&aten::mul(&weighted, moved)?)?;
            let both = aten::add(&aten::mul(moved, &along)?, &aten::mul(&normal, &other)?)?;
            dx = plus(dx, Some(aten::neg(&aten::mul(&both, &operands.rstd)?)?))?;
        }
        if let Some(moved) = rstd {
            dx = plus(dx, Some(aten::mul(&self.project(&weighted, &normal)?, moved)?))?;
        }
        let by_grad = g.map(|g| aten::mul(g, &normal)).transpose()?;
        let by_normal = normal_moved.map(|moved| aten::mul(grad, &moved)).transpose()?;
        Ok([dx, plus(by_grad, by_normal)?, g.cloned()])
    }
}
