//! Methods of the builder: operations that move elements only.

use keyfold_core::Result;

use super::Graph;
use crate::{Concatenate, Operation, Port, Slice, Transpose, Uid};

impl Graph {
    /// Adds the elements of `x`, in row-major order of dimensions, under other dimensions with as many
    /// elements.
    ///
    /// # Errors
    /// Those of [`Graph::add`], and [`ErrorKind::Shape`](keyfold_core::ErrorKind::Shape) for more or fewer
    /// elements.
    pub fn reshape(&mut self, x: Uid, dims: &[i64]) -> Result<Uid> {
        self.add_shaped("", None, Operation::Reshape, &[(Port::X, x)], dims)
    }

    /// Adds `x` with its dimensions permuted: the result's dimension `i` is `permutation[i]` of `x`.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn transpose(&mut self, x: Uid, permutation: &[i64]) -> Result<Uid> {
        let permutation = permutation.to_vec();
        self.one(Operation::Transpose(Transpose { permutation }), &[(Port::X, x)])
    }

    /// Adds the part of `x` from `start` to `limit`, which isn't part of it, in steps of 1: `limit - start`
    /// elements in each dimension.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn slice(&mut self, x: Uid, start: &[i64], limit: &[i64]) -> Result<Uid> {
        let stride = vec![1; start.len()];
        let slice = Slice { start: start.to_vec(), limit: limit.to_vec(), stride };
        self.one(Operation::Slice(slice), &[(Port::X, x)])
    }

    /// Adds tensors one behind the other along a dimension; their other sizes are equal.
    ///
    /// # Errors
    /// Those of [`Graph::add`].
    pub fn concatenate(&mut self, tensors: &[Uid], axis: i64) -> Result<Uid> {
        let inputs: Vec<(Port, Uid)> = tensors.iter().map(|&uid| (Port::X, uid)).collect();
        let concatenate = Concatenate { axis, in_place_index: None };
        self.one(Operation::Concatenate(concatenate), &inputs)
    }
}
