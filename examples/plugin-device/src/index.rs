//! Indexing: elements at positions, which are int64 and count from the end if they are negative.

use keyfold_plugin::{Error, ErrorKind, Result, dims};

use crate::memory::Number;
use crate::memory::View;

/// Returns the operations' names.
pub(crate) const OPERATIONS: [&str; 6] =
    ["take", "put", "put_add", "gather", "scatter_add", "positions"];

/// The strides of a shape in row-major order.
fn steps(shape: &[usize]) -> Vec<usize> {
    (0..shape.len()).map(|dim| shape[dim + 1..].iter().product()).collect()
}

/// Returns the index along each dimension of the element at a position in row-major order.
fn index_of(mut at: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (index, size) in index.iter_mut().zip(shape).rev() {
        (*index, at) = (at % size, at / size);
    }
    index
}

/// Returns a position as an index of a dimension.
///
/// # Errors
/// A position out of range.
fn checked(position: Number, size: usize) -> Result<usize> {
    let Number::Int(at) = position else { return Ok(0) };
    let from_start = if at < 0 { at + size as i128 } else { at };
    usize::try_from(from_start).ok().filter(|at| *at < size).ok_or_else(|| {
        let message = format!("index {at} is out of range for dimension of size {size}");
        Error::new(ErrorKind::Index, message)
    })
}

/// Pairs each element of a picked tensor with the element of the tensor that it is picked from:
/// positions in row-major order. `at` is the index of the positions' first dimension in the picked
/// tensor, and bit `d` of `bits` is set if dimension `d` has positions.
fn picked(
    picked: &View,
    from: &View,
    positions: &[View],
    bits: u64,
    at: usize,
) -> Result<Vec<usize>> {
    let group = positions[0].shape.len();
    let all: Vec<Vec<Number>> = positions.iter().map(View::numbers).collect();
    let (group_steps, from_steps) = (steps(&positions[0].shape), steps(&from.shape));
    let chosen: Vec<usize> = dims(bits).collect();
    let element = |number: usize| {
        let index = index_of(number, &picked.shape);
        let inside: usize =
            index[at..at + group].iter().zip(&group_steps).map(|(i, s)| i * s).sum();
        let mut others = index[..at].iter().chain(&index[at + group..]);
        (0..from.shape.len()).try_fold(0, |sum, dim| {
            let index = match chosen.iter().position(|chosen| *chosen == dim) {
                Some(place) => checked(all[place][inside], from.shape[dim])?,
                None => others.next().copied().unwrap_or(0),
            };
            Ok(sum + index * from_steps[dim])
        })
    };
    (0..picked.numel()).map(element).collect()
}

/// As [`picked`], for positions of one dimension whose shape is the picked tensor's.
fn gathered(from: &View, positions: &View, bits: u64) -> Result<Vec<usize>> {
    let (all, from_steps) = (positions.numbers(), steps(&from.shape));
    let element = |(number, position): (usize, &Number)| {
        let index = index_of(number, &positions.shape);
        (0..from.shape.len()).try_fold(0, |sum, dim| {
            let chosen = bits >> dim & 1 == 1;
            let index = if chosen { checked(*position, from.shape[dim])? } else { index[dim] };
            Ok(sum + index * from_steps[dim])
        })
    };
    all.iter().enumerate().map(element).collect()
}

/// Runs an operation.
///
/// # Errors
/// A position out of range.
pub(crate) fn run(name: &str, inputs: &[View], out: &View, bits: u64, at: usize) -> Result<()> {
    let (x, positions) = (&inputs[0], &inputs[1..]);
    let reads = matches!(name, "take" | "gather");
    let places = match name {
        "take" => picked(out, x, positions, bits, at)?,
        "gather" => gathered(x, &positions[0], bits)?,
        "scatter_add" => gathered(out, &positions[0], bits)?,
        _ => picked(x, out, positions, bits, at)?,
    };
    let values = x.numbers();
    if reads {
        out.set(places.into_iter().map(|place| values[place]));
        return Ok(());
    }
    let (mut all, value_steps) = (out.numbers(), steps(&x.shape));
    for (number, place) in places.into_iter().enumerate() {
        // The values of `scatter_add` may have more elements than there are positions.
        let value = match name {
            "scatter_add" => {
                let index = index_of(number, &positions[0].shape);
                values[index.iter().zip(&value_steps).map(|(i, step)| i * step).sum::<usize>()]
            }
            _ => values[number],
        };
        all[place] = if name == "put" { value } else { out.rounded(all[place].plus(value)) };
    }
    out.set(all);
    Ok(())
}

/// Writes the index of each true element, one output for each dimension.
pub(crate) fn positions(mask: &View, outs: &[View]) {
    let elements = mask.numbers();
    let found = (0..elements.len()).filter(|at| elements[*at].is_true());
    let found: Vec<Vec<usize>> = found.map(|at| index_of(at, &mask.shape)).collect();
    for (dim, out) in outs.iter().enumerate() {
        out.set(found.iter().map(|index| Number::Int(index[dim] as i128)));
    }
}
