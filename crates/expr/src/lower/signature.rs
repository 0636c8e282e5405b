//! What a caller has to know of an expression for certain dtypes.

use keyfold_core::{DType, Error, ErrorKind, Result, Scalar, Shape, layout};

/// The inputs, numbers and result of an expression for certain dtypes.
#[derive(Clone, PartialEq, Debug)]
pub struct Signature {
    pub(super) inputs: Vec<DType>,
    pub(super) ranks: Vec<Option<u32>>,
    pub(super) names: Vec<String>,
    /// Of each number that a step uses its place, and the dtype that it becomes part of.
    pub(super) params: Vec<(u32, DType)>,
    pub(super) result: DType,
}

impl Signature {
    /// The dtypes of the inputs, as they lie in memory.
    #[inline]
    pub fn inputs(&self) -> &[DType] {
        &self.inputs
    }

    /// Each input's rank if it is read at computed indices, `None` if element by element.
    #[inline]
    pub fn ranks(&self) -> &[Option<u32>] {
        &self.ranks
    }

    /// The inputs' names, for messages.
    #[inline]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The dtype of the result as it is stored; halves are computed as float32.
    #[inline]
    pub fn result(&self) -> DType {
        self.result
    }

    /// Whether no input is read element by element: then the result's shape is the caller's to say.
    pub fn is_shapeless(&self) -> bool {
        self.ranks.iter().all(Option::is_some)
    }

    /// The shape that the inputs broadcast to; those that are read at computed indices take no part.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] where they don't broadcast, or a ranked input has another rank;
    /// [`ErrorKind::Binding`] where there are too few or too many.
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

    /// That an input that is read at computed indices has as many dimensions as indices.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`].
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

    /// That each number can be held by the dtype that it becomes part of.
    ///
    /// # Errors
    /// [`ErrorKind::Binding`] where there are too few, and as [`Scalar::check`].
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
