//! Index parsing for `x[...]`: integers, slices, `...`, new axes, masks and arrays of positions, as in NumPy.
//!
//! [`plan`] turns the entries of an index into steps, each of which makes a view, and into what is picked
//! out of the last view: `aten::index` of a list of positions and masks, one per dimension. An entry's array
//! is of any type `A`, so that a language binding can plan for its own objects.
//!
//! ```
//! use keyfold_tensor::Tensor;
//! use keyfold_tensor::index::{Entry, plan};
//!
//! let x = Tensor::from_vec((0..12).collect::<Vec<i64>>(), &[3, 4])?;
//!
//! // x[1:, -1]
//! let view = plan::<Tensor>(x.shape(), vec![Entry::from(1..), Entry::At(-1)])?.view(&x)?;
//! assert_eq!(view.to_vec::<i64>()?, [7, 11]);
//!
//! // x[..., None] has a dimension more.
//! let view = plan::<Tensor>(x.shape(), vec![Entry::Ellipsis, Entry::NewAxis])?.view(&x)?;
//! assert_eq!(view.shape()[..], [3, 4, 1]);
//!
//! // x[:, [2, 0]] picks: the rows are all taken, and the columns by these positions.
//! let columns = Entry::from_tensor(&Tensor::from_slice(&[2_i64, 0], &[2])?)?;
//! let planned = plan(x.shape(), vec![Entry::from(..), columns])?;
//! assert_eq!(planned.picks.map(|picks| picks.len()), Some(2));
//! # Ok::<(), keyfold_core::Error>(())
//! ```

use std::ops::{Range, RangeFrom, RangeFull, RangeTo};

use keyfold_core::{DType, Error, ErrorKind, Result};

use crate::tensor::Tensor;

/// One entry of an index. Positions below zero count from the end of their dimension.
#[derive(Clone, Debug)]
pub enum Entry<A> {
    /// A position.
    At(i64),
    /// A position in an array without dimensions: what it picks is a copy, as with all arrays.
    AtCopied(i64),
    /// Positions from `start` to before `stop`, `step` apart; as far as there are where one isn't given.
    Slice {
        /// The first position.
        start: Option<i64>,
        /// The position behind the last.
        stop: Option<i64>,
        /// How far apart they are; below zero for backwards.
        step: i64,
    },
    /// A new dimension of size 1.
    NewAxis,
    /// All dimensions that the other entries leave.
    Ellipsis,
    /// `true` takes everything in a new dimension, `false` nothing.
    Flag(bool),
    /// A mask without dimensions whose value isn't known yet.
    UnreadFlag(A),
    /// Positions, or a mask, and how many dimensions they index.
    Array(A, usize),
    /// A mask without elements, which picks nothing of so many dimensions, whatever their sizes.
    EmptyMask(usize),
}

impl<A> From<i64> for Entry<A> {
    fn from(position: i64) -> Self {
        Entry::At(position)
    }
}

impl<A> From<RangeFull> for Entry<A> {
    fn from(_: RangeFull) -> Self {
        Entry::Slice { start: None, stop: None, step: 1 }
    }
}

impl<A> From<RangeFrom<i64>> for Entry<A> {
    fn from(range: RangeFrom<i64>) -> Self {
        Entry::Slice { start: Some(range.start), stop: None, step: 1 }
    }
}

impl<A> From<RangeTo<i64>> for Entry<A> {
    fn from(range: RangeTo<i64>) -> Self {
        Entry::Slice { start: None, stop: Some(range.end), step: 1 }
    }
}

impl<A> From<Range<i64>> for Entry<A> {
    fn from(range: Range<i64>) -> Self {
        Entry::Slice { start: Some(range.start), stop: Some(range.end), step: 1 }
    }
}

impl Entry<Tensor> {
    /// A mask or positions.
    ///
    /// # Errors
    /// As [`Entry::array`].
    pub fn from_tensor(tensor: &Tensor) -> Result<Self> {
        Entry::array(tensor.clone(), tensor, || Ok(()))
    }
}

impl<A> Entry<A> {
    /// A mask or positions: `array`, with the elements of `view`. The element of an array without
    /// dimensions is read, unless `may_read` refuses that; a mask then stays unread.
    ///
    /// # Errors
    /// [`ErrorKind::DType`] for elements that are neither bools nor whole numbers, [`ErrorKind::Index`] for
    /// a position beyond 64 bits, and what `may_read` refuses a position with.
    pub fn array(array: A, view: &Tensor, may_read: impl FnOnce() -> Result<()>) -> Result<Self> {
        let (ndim, dtype) = (view.ndim(), view.dtype());
        let is_mask = dtype == DType::Bool;
        if !is_mask && !dtype.is_integral() {
            let message = format!(
                "an array that indexes must be of whole numbers or bools, not {dtype}; convert it, or \
                 compare for a mask"
            );
            return Err(Error::new(ErrorKind::DType, message));
        }
        if ndim > 0 {
            return Ok(match is_mask {
                true if view.numel() == 0 => Entry::EmptyMask(ndim),
                true => Entry::Array(array, ndim),
                false => Entry::Array(array, 1),
            });
        }
        match may_read() {
            Err(_) if is_mask => return Ok(Entry::UnreadFlag(array)),
            refused => refused?,
        }
        let element = view.item()?;
        if is_mask {
            return Ok(Entry::Flag(element.is_nonzero()));
        }
        match element.as_i64() {
            Some(position) => Ok(Entry::AtCopied(position)),
            None => Err(Error::new(ErrorKind::Index, format!("index {element} is out of range"))),
        }
    }

    /// The dimensions of the tensor that it indexes.
    fn takes(&self) -> usize {
        match self {
            Entry::At(_) | Entry::AtCopied(_) | Entry::Slice { .. } => 1,
            Entry::Array(_, dims) | Entry::EmptyMask(dims) => *dims,
            Entry::NewAxis | Entry::Ellipsis | Entry::Flag(_) | Entry::UnreadFlag(_) => 0,
        }
    }

    fn is_array(&self) -> bool {
        matches!(self, Entry::Array(..) | Entry::EmptyMask(_))
    }

    /// Whether it picks beside arrays, where a position counts as one.
    fn picks(&self) -> bool {
        self.is_array() || matches!(self, Entry::At(_) | Entry::AtCopied(_))
    }
}

/// One view on the way to what an index means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The elements at a position of a dimension, which goes.
    Select(usize, i64),
    /// The positions of a dimension from the first bound to before the second, so far apart.
    Slice(usize, Option<i64>, Option<i64>, i64),
    /// A new dimension of size 1 at this place.
    Unsqueeze(usize),
    /// The dimensions in this order.
    Permute(Vec<usize>),
}

impl Step {
    /// The view of a tensor.
    ///
    /// # Errors
    /// [`ErrorKind::Index`] for a position that the dimension doesn't have.
    pub fn view(&self, tensor: &Tensor) -> Result<Tensor> {
        match self {
            Step::Select(dim, position) => tensor.select(*dim as i64, *position),
            Step::Slice(dim, start, stop, step) => tensor.slice(*dim as i64, *start, *stop, *step),
            Step::Unsqueeze(dim) => tensor.unsqueeze(*dim as i64),
            Step::Permute(dims) => {
                let dims: Vec<i64> = dims.iter().map(|dim| *dim as i64).collect();
                tensor.permute(&dims)
            }
        }
    }
}

/// The elements of a dimension that an index picks.
#[derive(Clone, Debug)]
pub enum Pick<A> {
    /// All of it.
    All,
    /// One position, as an array without dimensions.
    At(i64),
    /// No position, as an empty array.
    Nothing,
    /// Positions, or a mask of so many dimensions.
    Array(A, usize),
}

/// An index planned for tensors of a shape.
#[derive(Clone, Debug)]
pub struct Plan<A> {
    /// The views, each of the one before.
    pub steps: Vec<Step>,
    /// The picks out of the last view, dimension by dimension; `None` where the view is all.
    pub picks: Option<Vec<Pick<A>>>,
    /// Whether what is read without picks is a copy nevertheless.
    pub copies: bool,
    /// Masks without dimensions that aren't known yet: whether anything is taken at all.
    pub masks: Vec<A>,
}

impl<A> Plan<A> {
    /// The last view of a tensor of the shape that was planned for.
    ///
    /// # Errors
    /// As [`Step::view`].
    pub fn view(&self, tensor: &Tensor) -> Result<Tensor> {
        self.steps.iter().try_fold(tensor.clone(), |view, step| step.view(&view))
    }
}

/// Plans an index of tensors of this shape.
///
/// # Errors
/// [`ErrorKind::Index`] for more entries than dimensions, a second `...`, and flags beside arrays;
/// [`ErrorKind::Value`] for a step of zero.
pub fn plan<A>(shape: &[usize], entries: Vec<Entry<A>>) -> Result<Plan<A>> {
    let refuse = |message: String| Err(Error::new(ErrorKind::Index, message));
    let taken: usize = entries.iter().map(Entry::takes).sum();
    let Some(rest) = shape.len().checked_sub(taken) else {
        return refuse(format!(
            "{taken} indices are too many for shape {shape:?}, which has {} dimensions",
            shape.len()
        ));
    };
    if entries.iter().filter(|entry| matches!(entry, Entry::Ellipsis)).count() > 1 {
        return refuse("an index can have one ... only".to_owned());
    }
    let has_arrays = entries.iter().any(Entry::is_array);
    let is_flag = |entry: &Entry<A>| matches!(entry, Entry::Flag(_) | Entry::UnreadFlag(_));
    if has_arrays && entries.iter().any(is_flag) {
        return refuse("True and False can't stand beside arrays in an index".to_owned());
    }
    let apart = has_arrays && stand_apart(&entries);
    let copies = entries.iter().any(|entry| matches!(entry, Entry::AtCopied(_)));
    let (mut steps, mut picks, mut masks) = (Vec::new(), Vec::new(), Vec::new());
    let mut dim = 0;
    for entry in entries {
        match entry {
            // Beside arrays a position counts as one, as in NumPy.
            Entry::At(position) | Entry::AtCopied(position) if has_arrays => {
                picks.push(Pick::At(position));
                dim += 1;
            }
            Entry::At(position) | Entry::AtCopied(position) => {
                steps.push(Step::Select(dim, position));
            }
            Entry::Slice { step: 0, .. } => {
                let message = "the step of a slice can't be zero";
                return Err(Error::new(ErrorKind::Value, message));
            }
            Entry::Slice { start, stop, step } => {
                if start.is_some() || stop.is_some() || step != 1 {
                    steps.push(Step::Slice(dim, start, stop, step));
                }
                picks.push(Pick::All);
                dim += 1;
            }
            Entry::NewAxis => {
                steps.push(Step::Unsqueeze(dim));
                picks.push(Pick::All);
                dim += 1;
            }
            Entry::Flag(flag) => {
                steps.push(Step::Unsqueeze(dim));
                if !flag {
                    steps.push(Step::Slice(dim, Some(0), Some(0), 1));
                }
                dim += 1;
            }
            Entry::UnreadFlag(mask) => {
                steps.push(Step::Unsqueeze(dim));
                masks.push(mask);
                dim += 1;
            }
            Entry::Ellipsis => {
                picks.extend((0..rest).map(|_| Pick::All));
                dim += rest;
            }
            Entry::Array(array, dims) => {
                picks.push(Pick::Array(array, dims));
                dim += dims;
            }
            Entry::EmptyMask(dims) => {
                picks.extend((0..dims).map(|_| Pick::Nothing));
                dim += dims;
            }
        }
    }
    if apart {
        let added = steps.iter().filter(|step| matches!(step, Step::Unsqueeze(_))).count();
        let (dims, in_front) = picked_first(shape.len() + added, picks);
        steps.push(Step::Permute(dims));
        picks = in_front;
    }
    Ok(Plan { steps, picks: has_arrays.then_some(picks), copies, masks })
}

/// Whether something stands between the arrays of an index, be it a `...` for no dimension at all:
/// then NumPy puts the dimensions that they give first. Positions count as arrays.
fn stand_apart<A>(entries: &[Entry<A>]) -> bool {
    let first = entries.iter().position(Entry::picks).unwrap_or(0);
    let last = entries.iter().rposition(Entry::picks).unwrap_or(0);
    !entries[first..=last].iter().all(Entry::picks)
}

/// The dimensions of a view, those that are picked from first, and the picks for them.
fn picked_first<A>(ndim: usize, picks: Vec<Pick<A>>) -> (Vec<usize>, Vec<Pick<A>>) {
    let (mut in_front, mut behind, mut arrays) = (Vec::new(), Vec::new(), Vec::new());
    let mut dim = 0;
    for pick in picks {
        let dims = match &pick {
            Pick::All => {
                behind.push(dim);
                dim += 1;
                continue;
            }
            Pick::Array(_, dims) => *dims,
            Pick::At(_) | Pick::Nothing => 1,
        };
        in_front.extend(dim..dim + dims);
        dim += dims;
        arrays.push(pick);
    }
    // Dimensions behind the index stay behind.
    in_front.extend(behind.into_iter().chain(dim..ndim));
    (in_front, arrays)
}
