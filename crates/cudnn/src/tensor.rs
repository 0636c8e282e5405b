//! Tensors of a graph: their number, dtype, dimensions, strides.

use keyfold_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::{DataType, Number};

/// The number by which a graph's operations name a tensor. 0 is none.
pub type Uid = i64;

/// The order in which a tensor's elements lie in memory.
///
/// Dimensions are always images, channels, then space; a layout says strides only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Packed in row-major order: NCHW, and NCDHW.
    Packed,
    /// Packed with the channels last: NHWC, and NDHWC.
    ChannelsLast,
    /// These strides, in elements.
    Strides(Vec<i64>),
}

impl Layout {
    /// Returns the strides of a tensor with these dimensions, in elements.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] for channels last below 3 dimensions, strides that aren't as many as the
    /// dimensions, and sizes whose product overflows.
    pub fn strides(&self, dims: &[i64]) -> Result<Vec<i64>> {
        let order: Vec<usize> = match self {
            Layout::Strides(strides) if strides.len() == dims.len() => return Ok(strides.clone()),
            Layout::Strides(strides) => {
                return Err(shape_error(format!(
                    "{} strides {strides:?} for {} dimensions {dims:?}",
                    strides.len(),
                    dims.len()
                )));
            }
            Layout::ChannelsLast if dims.len() < 3 => {
                return Err(shape_error(format!(
                    "channels last needs 3 dimensions or more (images, channels, space), got {dims:?}"
                )));
            }
            // From the innermost dimension outwards.
            Layout::ChannelsLast => {
                [1].into_iter().chain((2..dims.len()).rev()).chain([0]).collect()
            }
            Layout::Packed => (0..dims.len()).rev().collect(),
        };
        let mut strides = vec![0; dims.len()];
        let mut stride = 1_i64;
        for axis in order {
            strides[axis] = stride;
            stride = stride.checked_mul(dims[axis].max(1)).ok_or_else(|| {
                shape_error(format!("the number of elements of dimensions {dims:?} overflows"))
            })?;
        }
        Ok(strides)
    }
}

fn shape_error(message: String) -> Error {
    Error::new(ErrorKind::Shape, message)
}

/// A tensor of a graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorSpec {
    /// Its number in the graph.
    pub uid: Uid,
    /// Its name in errors and drawings; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The dtype of its elements; a graph without one isn't valid.
    pub dtype: Option<DataType>,
    /// Its sizes: images, channels, space for operations on images.
    pub dims: Vec<i64>,
    /// The distances of neighbours in memory, in elements; as many as the sizes.
    pub strides: Vec<i64>,
    /// The alignment of its address in bytes, a power of two.
    #[serde(default = "default_alignment")]
    pub alignment: i64,
    /// Whether it has no memory: it is passed on between operations of the graph.
    #[serde(default, rename = "virtual")]
    pub is_virtual: bool,
    /// Whether it is one number that is given by value when the graph is run.
    #[serde(default)]
    pub by_value: bool,
    /// The number of a tensor whose value belongs to the graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scalar: Option<Number>,
}

const DEFAULT_ALIGNMENT: i64 = 16;

fn default_alignment() -> i64 {
    DEFAULT_ALIGNMENT
}

impl TensorSpec {
    /// Makes a tensor, aligned to 16 bytes, with memory.
    ///
    /// ```
    /// use keyfold_cudnn::{DataType, Layout, TensorSpec};
    /// let x = TensorSpec::new(1, DataType::F32, &[2, 3, 4, 5], Layout::ChannelsLast)?;
    /// assert_eq!(x.strides, [60, 1, 15, 3]);
    /// # Ok::<(), keyfold_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Layout::strides`].
    pub fn new(uid: Uid, dtype: DataType, dims: &[i64], layout: Layout) -> Result<TensorSpec> {
        Ok(TensorSpec {
            uid,
            name: String::new(),
            dtype: Some(dtype),
            strides: layout.strides(dims)?,
            dims: dims.to_vec(),
            alignment: DEFAULT_ALIGNMENT,
            is_virtual: false,
            by_value: false,
            scalar: None,
        })
    }

    /// Makes such a tensor without number and dtype, which [`Graph::tensor`](crate::Graph::tensor) gives it.
    ///
    /// # Errors
    /// Those of [`Layout::strides`].
    pub fn untyped(dims: &[i64], layout: Layout) -> Result<TensorSpec> {
        Ok(TensorSpec { dtype: None, ..TensorSpec::new(0, DataType::F32, dims, layout)? })
    }

    /// Makes a tensor of one element whose value belongs to the graph.
    pub fn number(uid: Uid, dtype: DataType, rank: usize, value: Number) -> TensorSpec {
        TensorSpec {
            uid,
            name: String::new(),
            dtype: Some(dtype),
            dims: vec![1; rank],
            strides: vec![1; rank],
            alignment: DEFAULT_ALIGNMENT,
            is_virtual: false,
            by_value: true,
            scalar: Some(value),
        }
    }

    /// Returns it with a name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> TensorSpec {
        self.name = name.into();
        self
    }

    /// Returns it with other strides.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] for strides that aren't as many as the dimensions.
    pub fn with_strides(mut self, strides: &[i64]) -> Result<TensorSpec> {
        self.strides = Layout::Strides(strides.to_vec()).strides(&self.dims)?;
        Ok(self)
    }

    /// Returns it with another alignment, in bytes.
    #[must_use]
    pub fn with_alignment(mut self, alignment: i64) -> TensorSpec {
        self.alignment = alignment;
        self
    }

    /// Returns it without memory.
    #[must_use]
    pub fn virtualized(mut self) -> TensorSpec {
        self.is_virtual = true;
        self
    }

    /// Returns the number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Returns the number of elements, or `None` where it overflows.
    pub fn numel(&self) -> Option<i64> {
        self.dims.iter().try_fold(1_i64, |product, &size| product.checked_mul(size))
    }

    /// Returns how errors and drawings call it: its name, or its number.
    pub fn label(&self) -> String {
        match self.name.as_str() {
            "" => format!("#{}", self.uid),
            name => format!("{name:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nchw_packed_strides_4d() {
        assert_eq!(Layout::Packed.strides(&[2, 3, 4, 5]).unwrap(), [60, 20, 5, 1]);
    }

    #[test]
    fn nhwc_packed_strides_4d() {
        assert_eq!(Layout::ChannelsLast.strides(&[2, 3, 4, 5]).unwrap(), [60, 1, 15, 3]);
        assert_eq!(Layout::ChannelsLast.strides(&[2, 3, 4, 5, 6]).unwrap(), [360, 1, 90, 18, 3]);
    }

    #[test]
    fn layouts_refuse_dimensions_that_they_have_no_strides_for() {
        for (layout, dims) in [
            (Layout::ChannelsLast, &[2_i64, 3][..]),
            (Layout::Strides(vec![1]), &[2, 3]),
            (Layout::Packed, &[i64::MAX, i64::MAX]),
        ] {
            let error = layout.strides(dims).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Shape);
            assert!(error.message().contains(&format!("{dims:?}")), "{error}");
        }
        assert_eq!(Layout::Packed.strides(&[]).unwrap(), [0_i64; 0]);
    }

    #[test]
    fn tensor_spec_round_trip() {
        let x = TensorSpec::new(7, DataType::BF16, &[2, 3, 4, 5], Layout::ChannelsLast).unwrap();
        let x = x.named("x").with_alignment(32).virtualized();
        let text = serde_json::to_string(&x).unwrap();
        assert_eq!(serde_json::from_str::<TensorSpec>(&text).unwrap(), x);
        assert_eq!(x.rank(), 4);
        assert_eq!(x.numel(), Some(120));
    }
}
