//! Methods of the builder: convolutions, products, functions of elements, pooling, reductions.

use keyfold_core::Result;

use super::Graph;
use crate::{
    Convolution, Operation, Pointwise, PointwiseMode, Port, Reduction, ReductionMode, Resample, Uid,
};

impl Graph {
    /// Adds a convolution of `x` `[N, C, ...]` with the filter `w` `[K, C / groups, ...]`: `[N, K, ...]`,
    /// where each dimension of space is `(x + padding - dilation (w - 1) - 1) / stride + 1`, rounded down.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn conv_fprop(&mut self, x: Uid, w: Uid, conv: Convolution) -> Result<Uid> {
        self.one(Operation::ConvFprop(conv), &[(Port::X, x), (Port::W, w)])
    }

    /// Adds the gradient of a convolution's input: of `dy` `[N, K, ...]` and `w`, with the dimensions of `x`.
    ///
    /// Strides and groups leave these open: without [`Graph::set_dims`] they are `[N, C, ...]` for one group,
    /// with the least sizes of space.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn conv_dgrad(&mut self, dy: Uid, w: Uid, conv: Convolution) -> Result<Uid> {
        self.one(Operation::ConvDgrad(conv), &[(Port::Dy, dy), (Port::W, w)])
    }

    /// Adds the gradient of a convolution's filter: of `x` and `dy`, with the dimensions of `w`.
    ///
    /// Strides and groups leave these open: without [`Graph::set_dims`] they are `[K, C, ...]` for one group,
    /// with the greatest sizes of space.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn conv_wgrad(&mut self, x: Uid, dy: Uid, conv: Convolution) -> Result<Uid> {
        self.one(Operation::ConvWgrad(conv), &[(Port::X, x), (Port::Dy, dy)])
    }

    /// Adds a product of `a` `[..., M, K]` and `b` `[..., K, N]`: `[..., M, N]`. Sizes before these are equal
    /// or 1. Of 4 dimensions, the second has heads: those of `a` may be a multiple of those of `b`, of which
    /// each serves several in a row.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn matmul(&mut self, a: Uid, b: Uid) -> Result<Uid> {
        self.one(Operation::Matmul, &[(Port::A, a), (Port::B, b)])
    }

    /// Adds a product of the rows `token` `[1, T, K]` with `weight` `[E, K, N]`: `[1, T, N]`. The rows from
    /// `first[e]` (`[E, 1, 1]`, integers) to the next one are multiplied by matrix `e`.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn grouped_matmul(&mut self, token: Uid, weight: Uid, first: Uid) -> Result<Uid> {
        let inputs =
            [(Port::Token, token), (Port::Weight, weight), (Port::FirstTokenOffset, first)];
        self.one(Operation::GroupedMatmul, &inputs)
    }

    /// Adds a function of elements. Forward modes read `x`, `b`, `t` in this order; backward ones read `dy` and
    /// `x`. The operands have equal sizes or 1 in each dimension, or one element in all; the result has
    /// the greater sizes.
    ///
    /// # Errors
    /// Those of [`Graph::add`]; a mode has a number of operands.
    pub fn pointwise(&mut self, pointwise: Pointwise, operands: &[Uid]) -> Result<Uid> {
        let operation = Operation::Pointwise(pointwise);
        let mut ports: Vec<Port> =
            operation.ports().iter().filter(|rule| !rule.is_output).map(|rule| rule.port).collect();
        // Operands that are too many have a port that is doubled, which `add` refuses.
        ports.resize(operands.len().max(ports.len()), Port::X);
        let inputs: Vec<(Port, Uid)> = ports.into_iter().zip(operands.iter().copied()).collect();
        self.one(operation, &inputs)
    }

    /// Adds a function of the elements of one tensor, such as `relu`, with cuDNN's default attributes.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn unary(&mut self, mode: PointwiseMode, x: Uid) -> Result<Uid> {
        self.pointwise(Pointwise::new(mode), &[x])
    }

    /// Adds a function of the elements of two tensors, such as `add`, with cuDNN's default attributes.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn binary(&mut self, mode: PointwiseMode, x: Uid, b: Uid) -> Result<Uid> {
        self.pointwise(Pointwise::new(mode), &[x, b])
    }

    /// Adds `max(x, 0)`.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn relu(&mut self, x: Uid) -> Result<Uid> {
        self.unary(PointwiseMode::Relu, x)
    }

    /// Adds `x + b`, where `b` is `[1, C, 1, ...]` for images.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn bias(&mut self, x: Uid, b: Uid) -> Result<Uid> {
        self.binary(PointwiseMode::Add, x, b)
    }

    /// Adds `x s`, where `s` is `[1, C, 1, ...]` or one number.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn scale(&mut self, x: Uid, s: Uid) -> Result<Uid> {
        self.binary(PointwiseMode::Mul, x, s)
    }

    /// Adds the elements of `x` where `t` is true, and those of `b` elsewhere.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn binary_select(&mut self, x: Uid, b: Uid, t: Uid) -> Result<Uid> {
        self.pointwise(Pointwise::new(PointwiseMode::BinarySelect), &[x, b, t])
    }

    /// Adds the index of each element along a dimension of `x`, in the dimensions of `x`, as `int32`.
    ///
    /// # Errors
    /// Those of [`Graph::add`]: an axis outside the dimensions.
    pub fn gen_index(&mut self, x: Uid, axis: i64) -> Result<Uid> {
        let mode = Pointwise::new(PointwiseMode::GenIndex);
        self.pointwise(Pointwise { axis: Some(axis), ..mode }, &[x])
    }

    /// Adds pooling or interpolation of `x` `[N, C, ...]`: `[N, C, ...]`, where each dimension of space is
    /// `(x + padding - window) / stride + 1`, rounded down.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn resample(&mut self, x: Uid, resample: Resample) -> Result<Uid> {
        self.one(Operation::Resample(resample), &[(Port::X, x)])
    }

    /// Adds max pooling, and returns the result and the index of each maximum in its window, as `int8`.
    ///
    /// # Errors
    /// Those of [`Graph::add`]; no mode but max pooling has an index.
    pub fn maxpool_with_index(&mut self, x: Uid, resample: Resample) -> Result<(Uid, Uid)> {
        let operation = Operation::Resample(resample);
        let outputs = self.add(operation, &[(Port::X, x)], &[Port::Y, Port::Index])?;
        Ok((outputs[0].1, outputs[1].1))
    }

    /// Adds the gradient of pooling's input: of `dy`, and for max pooling the forward's `index`.
    ///
    /// Its dimensions are those of the forward's input. Strides leave these open: without
    /// [`Graph::set_dims`] they are the least ones.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn resample_backward(
        &mut self,
        dy: Uid,
        index: Option<Uid>,
        resample: Resample,
    ) -> Result<Uid> {
        let inputs: Vec<(Port, Uid)> = [(Port::Dy, Some(dy)), (Port::Index, index)]
            .into_iter()
            .filter_map(|(port, uid)| Some((port, uid?)))
            .collect();
        self.one(Operation::ResampleBackward(resample), &inputs)
    }

    /// Adds a reduction of `x` to `dims`, whose sizes are those of `x`, or 1 where elements are reduced. Of 4
    /// dimensions, the second has heads: it may divide that of `x`, and groups of heads are reduced.
    ///
    /// # Errors
    /// Those of [`Graph::add`], and [`ErrorKind::Shape`](keyfold_core::ErrorKind::Shape) for other sizes.
    pub fn reduction(&mut self, x: Uid, mode: ReductionMode, dims: &[i64]) -> Result<Uid> {
        self.add_shaped("", None, Operation::Reduction(Reduction { mode }), &[(Port::X, x)], dims)
    }

    /// Adds the sums, and the sums of squares, of each channel of `x` `[N, C, ...]`: two of `[1, C, 1, ...]`.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn genstats(&mut self, x: Uid) -> Result<(Uid, Uid)> {
        let outputs = self.add(Operation::GenStats, &[(Port::X, x)], &[])?;
        Ok((outputs[0].1, outputs[1].1))
    }
}
