//! The checks of a new view: every element that it can access lies inside its memory.

use keyfold_core::{Element, Error, ErrorKind, Result, Shape, layout};

/// Returns the number of elements of a view, after checking that each lies among the `len` elements of
/// the memory.
///
/// # Errors
/// [`ErrorKind::Shape`] for too many dimensions, for another number of strides than of sizes, for an
/// element count or an index that overflows, or for an element outside the memory.
pub(super) fn inside<T: Element>(
    what: &str,
    len: usize,
    shape: &[usize],
    strides: &[isize],
    offset: usize,
) -> Result<usize> {
    let name = |error: Error| Error::new(error.kind(), format!("{what}: {}", error.message()));
    // `Shape::new` refuses more dimensions than the limit.
    Shape::new(shape).map_err(name)?;
    if shape.len() != strides.len() {
        let message = format!(
            "{what}: {} strides don't fit shape {shape:?}: one each is needed",
            strides.len()
        );
        return Err(Error::new(ErrorKind::Shape, message));
    }
    let count = layout::numel(shape, size_of::<T>()).map_err(name)?;
    let fits = match layout::bounds(shape, strides, offset).map_err(name)? {
        Some((_, last)) => last < len,
        None => offset <= len,
    };
    if !fits {
        let message = format!(
            "{what}: a view of shape {shape:?}, strides {strides:?} and offset {offset} reaches \
             beyond its memory of {len} elements"
        );
        return Err(Error::new(ErrorKind::Shape, message));
    }
    Ok(count)
}

/// # Errors
/// [`ErrorKind::Value`] if two indices of a view for writing may be the same element.
pub(super) fn no_overlap(what: &str, shape: &[usize], strides: &[isize]) -> Result<()> {
    if !layout::may_overlap(shape, strides) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Value,
        format!(
            "{what}: in a view of shape {shape:?} and strides {strides:?} several indices may be \
             the same element, so it can't be written; write to a copy"
        ),
    ))
}

/// # Errors
/// [`ErrorKind::Value`] if a layout declared as contiguous isn't.
pub(super) fn contiguous(what: &str, shape: &[usize], strides: &[isize]) -> Result<()> {
    if layout::is_contiguous(shape, strides) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Value,
        format!(
            "{what}: shape {shape:?} with strides {strides:?} isn't contiguous; use a Strided view \
             or a contiguous copy"
        ),
    ))
}
