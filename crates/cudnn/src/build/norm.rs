//! Methods of the builder: normalizations.

use keyfold_core::Result;

use super::{Graph, find};
use crate::{Norm, NormMode, NormPhase, Operation, Port, Uid};

/// The tensors that a normalization writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Normalized {
    /// The result, with the dimensions of `x`.
    pub y: Uid,
    /// The means, in training; RMS norm has none.
    pub mean: Option<Uid>,
    /// The inverse square roots of variances with epsilon, in training.
    pub inv_variance: Option<Uid>,
    /// The running mean and variance after this batch, where they were given before it.
    pub next_running: Option<(Uid, Uid)>,
}

/// The gradients that a normalization's backward writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormGradients {
    /// That of `x`.
    pub dx: Uid,
    /// That of `scale`.
    pub dscale: Uid,
    /// That of the bias; RMS norm may have none.
    pub dbias: Option<Uid>,
}

/// Statistics of batch norm that are carried from batch to batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    /// The running mean, `[1, C, 1, ...]`.
    pub mean: Uid,
    /// The running variance, `[1, C, 1, ...]`.
    pub variance: Uid,
    /// The factor of the batch's statistics in what is carried on: one number.
    pub momentum: Uid,
}

impl Graph {
    /// Adds a normalization of `x` `[N, C, ...]` with `scale` and `bias`, whose dimensions are equal; `epsilon`
    /// is one number.
    ///
    /// - Batch norm, instance norm and group norm: `scale` is `[1, C, 1, ...]`. Statistics are `[1, C, 1, ...]`,
    ///   `[N, C, 1, ...]` and `[N, groups, 1, ...]`.
    /// - Layer norm and RMS norm: `scale` has the sizes of `x` where elements are normalized together, and 1
    ///   elsewhere; statistics have 1 and the sizes of `x` there.
    /// - Adaptive layer norm: so, and `scale` begins with `N`.
    ///
    /// RMS norm alone may be without `bias`. Batch norm in inference is [`Graph::batchnorm_inference`].
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn norm(
        &mut self,
        norm: Norm,
        x: Uid,
        scale: Uid,
        bias: Option<Uid>,
        epsilon: Uid,
    ) -> Result<Normalized> {
        self.normalize(norm, x, scale, bias, epsilon, None)
    }

    /// Adds batch norm in training: the statistics of each channel of `x` are computed, used, returned, and
    /// mixed into the running ones where they are given.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn batchnorm(
        &mut self,
        x: Uid,
        scale: Uid,
        bias: Uid,
        epsilon: Uid,
        running: Option<Running>,
    ) -> Result<Normalized> {
        let norm = Norm::new(NormMode::BatchNorm);
        self.normalize(norm, x, scale, Some(bias), epsilon, running)
    }

    fn normalize(
        &mut self,
        norm: Norm,
        x: Uid,
        scale: Uid,
        bias: Option<Uid>,
        epsilon: Uid,
        running: Option<Running>,
    ) -> Result<Normalized> {
        let mut inputs = vec![(Port::X, x), (Port::Scale, scale)];
        inputs.extend(bias.map(|bias| (Port::Bias, bias)));
        inputs.push((Port::Epsilon, epsilon));
        let mut wanted = Vec::new();
        if let Some(running) = running {
            inputs.extend([
                (Port::Momentum, running.momentum),
                (Port::RunningMean, running.mean),
                (Port::RunningVariance, running.variance),
            ]);
            wanted = vec![Port::NextRunningMean, Port::NextRunningVariance];
        }
        let outputs = self.add(Operation::Norm(norm), &inputs, &wanted)?;
        let at = |port| find(&outputs, port);
        Ok(Normalized {
            y: outputs[0].1,
            mean: at(Port::Mean),
            inv_variance: at(Port::InvVariance),
            next_running: at(Port::NextRunningMean).zip(at(Port::NextRunningVariance)),
        })
    }

    /// Adds batch norm in inference: `scale (x - mean) inv_variance + bias`, each but `x` `[1, C, 1, ...]`.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn batchnorm_inference(
        &mut self,
        x: Uid,
        mean: Uid,
        inv_variance: Uid,
        scale: Uid,
        bias: Uid,
    ) -> Result<Uid> {
        let phase = NormPhase::Inference;
        let norm = Norm { phase, ..Norm::new(NormMode::BatchNorm) };
        let inputs = [
            (Port::X, x),
            (Port::Mean, mean),
            (Port::InvVariance, inv_variance),
            (Port::Scale, scale),
            (Port::Bias, bias),
        ];
        self.one(Operation::Norm(norm), &inputs)
    }

    /// Adds the gradients of a normalization, from `dy` and the forward's `x`, `scale` and statistics. RMS norm
    /// has no `mean`, and has a gradient of the bias where `has_bias` says so; others have one anyway.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn norm_backward(
        &mut self,
        norm: Norm,
        (dy, x, scale): (Uid, Uid, Uid),
        mean: Option<Uid>,
        inv_variance: Uid,
        has_bias: bool,
    ) -> Result<NormGradients> {
        let mut inputs = vec![(Port::X, x), (Port::Dy, dy), (Port::Scale, scale)];
        inputs.extend(mean.map(|mean| (Port::Mean, mean)));
        inputs.push((Port::InvVariance, inv_variance));
        let wanted: &[Port] = if has_bias { &[Port::Dbias] } else { &[] };
        let outputs = self.add(Operation::NormBackward(norm), &inputs, wanted)?;
        let dbias = find(&outputs, Port::Dbias);
        Ok(NormGradients { dx: outputs[0].1, dscale: outputs[1].1, dbias })
    }
}
