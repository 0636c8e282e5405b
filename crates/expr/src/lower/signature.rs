//! The data that callers need of an expression for certain dtypes.

use keyfold_core::{DType, Error, ErrorKind, Result, Scalar, Shape, layout};

use super::step::{Step, StepOp};

/// The inputs, numbers and result of an expression for certain dtypes.
#[derive(Clone, PartialEq, Debug)]
pub struct Signature {
    pub(crate) inputs: Vec<DType>,
    pub(crate) ranks: Vec<Option<u32>>,
    pub(crate) names: Vec<String>,
    /// For each parameter that a step uses, its index and the dtype it is converted to.
    pub(crate) params: Vec<(u32, DType)>,
    pub(crate) result: DType,
}

impl Signature {
    /// Returns the parameters that steps use.
    pub(crate) fn params_of(steps: &[Step]) -> Vec<(u32, DType)> {
        let numbers = steps.iter().filter_map(|step| match step.op {
            StepOp::Param { index, to } => Some((index, to)),
            _ => None,
        });
        numbers.collect()
    }

    /// Returns the dtypes of the inputs in memory.
    #[inline]
    pub fn inputs(&self) -> &[DType] {
        &self.inputs
    }

    /// Returns the rank of each input that is read at computed indices, `None` for elementwise
    /// inputs.
    #[inline]
    pub fn ranks(&self) -> &[Option<u32>] {
        &self.ranks
    }

    /// Returns the inputs' names, for messages.
    #[inline]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the stored dtype of the result; halves are computed as float32.
    #[inline]
    pub fn result(&self) -> DType {
        self.result
    }

    /// Returns whether no input is elementwise; the caller then chooses the result's shape.
    pub fn is_shapeless(&self) -> bool {
        self.ranks.iter().all(Option::is_some)
    }

    /// Returns the shape that the elementwise inputs broadcast to.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if they don't broadcast, or a ranked input has another rank;
    /// [`ErrorKind::Binding`] for a wrong number of inputs.
    pub fn broadcast_shape(&self, shapes: &[&[usize]]) -> Result<Shape> {
        let wanted = self.inputs.len();
        if shapes.len() != wanted {
            let given = shapes.len();
            return Err(Error::new(
                ErrorKind::Binding,
                format!("the expression has {wanted} inputs, but {given} were given"),
            ));
        }
        let mut all = Shape::empty();
        for (input, (shape, rank)) in shapes.iter().zip(&self.ranks).enumerate() {
            match rank {
                None if *shape == &*all => {}
                None if all.is_empty() => all = Shape::new(shape)?,
                None => all = layout::broadcast_shapes(&all, shape)?,
                Some(_) => self.check_rank(input, shape.len())?,
            }
        }
        Ok(all)
    }

    /// Checks that an input that is read at computed indices has as many dimensions as indices.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if it hasn't.
    pub fn check_rank(&self, input: usize, given: usize) -> Result<()> {
        match self.ranks[input] {
            Some(rank) if rank as usize != given => Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "'{}' is read at {rank} indices, so it needs {rank} dimensions; it has {given}",
                    self.names[input]
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Checks that each parameter fits the dtype it is converted to.
    ///
    /// # Errors
    /// [`ErrorKind::Binding`] if there are too few, and as [`Scalar::check`].
    pub fn check_params(&self, params: &[Scalar]) -> Result<()> {
        for &(index, to) in &self.params {
            let Some(number) = params.get(index as usize) else {
                return Err(Error::new(
                    ErrorKind::Binding,
                    format!("parameter {} is missing: {} were given", index + 1, params.len()),
                ));
            };
            number.check(to)?;
        }
        Ok(())
    }
}
