//! Indexing: elements at positions, which are int64 and count from the end if they are negative.

use std::collections::BTreeMap;

use keyfold_plugin::{Error, ErrorKind, Number, Result, dims};

use crate::memory::View;

pub fn has(name: &str) -> bool {
    matches!(name, "take" | "put" | "put_add" | "gather" | "scatter_add" | "positions")
}

/// Runs an operation; `bits` and `at` are [`keyfold_plugin::Params::Index`].
pub fn run(name: &str, inputs: &[View], bits: u64, at: usize, out: &View) -> Result<()> {
    let (x, positions) = (&inputs[0], &inputs[1..]);
    let (indexed, picked) = match name {
        "take" => (x, out),
        "gather" => (x, &positions[0]),
        "scatter_add" => (out, &positions[0]),
        _ => (out, x),
    };
    // Nothing is written before all positions are checked.
    let mut results = BTreeMap::new();
    for index in picked.layout.indices() {
        // The dimensions of the positions, and those in the place of the indexed ones.
        let group = at..at + positions[0].layout.shape().len();
        let (inside, replaced) = match (name, dims(bits).next()) {
            ("gather" | "scatter_add", Some(dim)) => (0..index.len(), dim..dim + 1),
            _ => (group.clone(), group),
        };
        let mut rest = (0..index.len()).filter(|dim| !replaced.contains(dim));
        let mut positions = positions.iter();
        let place = indexed.layout.shape().iter().enumerate().map(|(dim, size)| {
            match if bits >> dim & 1 == 1 { positions.next() } else { None } {
                Some(positions) => checked(positions.get(&index[inside.clone()]), *size),
                None => Ok(rest.next().map_or(0, |dim| index[dim])),
            }
        });
        let place = place.collect::<Result<Vec<usize>>>()?;
        match name {
            "take" | "gather" => results.insert(index, x.get(&place)),
            "put" => results.insert(place, x.get(&index)),
            _ => {
                let sum = results.get(&place).copied().unwrap_or_else(|| out.get(&place));
                results.insert(place, sum + x.get(&index))
            }
        };
    }
    results.iter().for_each(|(index, number)| out.put(index, *number));
    Ok(())
}

/// Returns a position as an index of a dimension.
fn checked(position: Number, size: usize) -> Result<usize> {
    let Number::Int(at) = position else { return Ok(0) };
    let from_start = if at < 0 { at + size as i128 } else { at };
    usize::try_from(from_start).ok().filter(|at| *at < size).ok_or_else(|| {
        let message = format!("index {at} is out of range for dimension of size {size}");
        Error::new(ErrorKind::Index, message)
    })
}

/// Writes the index of each true element, one output for each dimension.
pub fn positions(mask: &View, outs: &[View]) -> Result<()> {
    let elements = mask.layout.indices().zip(mask.numbers());
    let found: Vec<Vec<usize>> =
        elements.filter(|(_, number)| number.is_true()).map(|(index, _)| index).collect();
    for (dim, out) in outs.iter().enumerate() {
        out.set(found.iter().map(|index| Number::Int(index[dim] as i128)));
    }
    Ok(())
}
