//! Indexing: a work-item for each value, or for each element that several values are added to.

use std::fmt::Write;

use keyfold_plugin::{DeviceTensor, Error, Execution, Params, Result, dims};

use crate::device::{Arg, Buffer, Device};
use crate::layout::MAX_RANK;
use crate::stream::Stream;
use crate::tensor::Place;
use crate::types::Type::{self, Bool, I64, U64};
use crate::types::prelude;

const NAMES: [&str; 5] = ["take", "put", "put_add", "gather", "scatter_add"];

/// The most lists of positions.
const MAX_POSITIONS: usize = 8;

/// Returns whether an indexing operation has a kernel.
///
/// # Errors
/// Why it has none.
pub fn support(name: &str) -> Result<()> {
    match name {
        "positions" => Ok(()),
        name if NAMES.contains(&name) => Ok(()),
        name => Err(Error::not_supported(format!("it has no {name}"))),
    }
}

/// A dimension of a loop over values.
#[derive(Clone)]
struct Dim {
    size: i64,
    values: i64,
    x: i64,
    positions: Vec<i64>,
}

/// Appends a kernel's loop of at least one dimension.
fn write(dims: &[Dim], lists: usize, bytes: &mut Vec<u8>) {
    let one = [Dim { size: 1, values: 0, x: 0, positions: vec![0; lists] }];
    let dims = if dims.is_empty() { &one } else { dims };
    let mut put = |number: &dyn Fn(&Dim) -> i64| {
        dims.iter().for_each(|dim| bytes.extend(number(dim).to_ne_bytes()));
    };
    put(&|dim| dim.size);
    put(&|dim| dim.values);
    put(&|dim| dim.x);
    (0..lists).for_each(|list| put(&|dim| dim.positions[list]));
}

/// A call: the dimensions that each have an element of x to themselves, and those along which
/// values may fall on one.
struct Indexing {
    own: Vec<Dim>,
    shared: Vec<Dim>,
    /// The indexed dimensions of x.
    dims: Vec<usize>,
}

impl Indexing {
    /// Of `take`, `put` and `put_add`.
    fn lists(
        x: &DeviceTensor<'_, Buffer>,
        values: &DeviceTensor<'_, Buffer>,
        lists: &[DeviceTensor<'_, Buffer>],
        indexed: Vec<usize>,
        at: usize,
    ) -> Indexing {
        let rank = lists[0].shape().len();
        let (mut own, mut shared) = (Vec::new(), Vec::new());
        let mut others = (0..x.shape().len()).filter(|dim| !indexed.contains(dim));
        for (dim, size) in values.shape().iter().enumerate() {
            let step = values.strides()[dim];
            if (at..at + rank).contains(&dim) {
                let positions = lists.iter().map(|list| list.strides()[dim - at]).collect();
                shared.push(Dim { size: *size, values: step, x: 0, positions });
            } else {
                let x = others.next().map_or(0, |other| x.strides()[other]);
                let positions = vec![0; lists.len()];
                own.push(Dim { size: *size, values: step, x, positions });
            }
        }
        Indexing { own, shared, dims: indexed }
    }

    /// Of `gather` and `scatter_add`.
    fn along(
        x: &DeviceTensor<'_, Buffer>,
        values: &DeviceTensor<'_, Buffer>,
        list: &DeviceTensor<'_, Buffer>,
        indexed: usize,
    ) -> Indexing {
        let (mut own, mut shared) = (Vec::new(), Vec::new());
        for (dim, size) in list.shape().iter().enumerate() {
            let along = dim == indexed;
            let to = if along { &mut shared } else { &mut own };
            to.push(Dim {
                size: *size,
                values: values.strides()[dim],
                x: if along { 0 } else { x.strides()[dim] },
                positions: vec![list.strides()[dim]],
            });
        }
        Indexing { own, shared, dims: vec![indexed] }
    }
}

fn source(device: &Device, mode: u8, dtype: Type, ranks: usize, lists: usize) -> String {
    // Integers wrap, so they are added as unsigned ones.
    let (number, sum) = match dtype {
        Bool => ("uint", "a | b"),
        I64 | U64 => ("ulong", "a + b"),
        float if float.is_float() => (float.computed(), "a + b"),
        _ => ("uint", "a + b"),
    };
    let (mut places, mut given, mut place) = (String::new(), String::new(), String::from("p0"));
    for list in 0..lists {
        let comma = if list == 0 { "" } else { ", " };
        let _ = write!(places, "{comma}global const long *p{list}");
        let _ = write!(given, "{comma}p{list}");
        if list > 0 {
            place = format!("((k) == {list} ? p{list} : {place})");
        }
    }
    format!(
        "{}{}#define MODE {mode}\n#define RANK {ranks}\n#define POSITIONS {lists}\n\
         inline {number} sum_of({number} a, {number} b) {{ return {sum}; }}\n\
         #define PLACES {places}\n#define GIVEN {given}\n\
         #define PLACE(k) {place}\ntypedef struct {{ long at[POSITIONS]; }} Starts;\n{}",
        prelude(device.float64),
        dtype.define("x", dtype),
        include_str!("kernels/index.cl")
    )
}

/// Runs an indexing operation.
///
/// # Errors
/// The device's.
pub fn execute(device: &Device, stream: &Stream, call: &Execution<'_, Buffer>) -> Result<()> {
    let known = NAMES.iter().find(|name| **name == call.name());
    let (Some(name), Params::Index { dims: bits, at }) = (known, call.params()) else {
        return Err(Error::not_supported(format!("it has no {}", call.name())));
    };
    let (first, output) = (call.input(0)?, call.output(0)?);
    let lists: Vec<_> = call.inputs().skip(1).collect();
    let indexed: Vec<usize> = dims(bits).collect();
    let (mode, x, values) = match *name {
        "take" | "gather" => (0, first, output),
        "put" => (1, output, first),
        _ => (2, output, first),
    };
    if lists.is_empty() || lists.len() > MAX_POSITIONS || lists.len() != indexed.len() {
        return Err(Error::not_supported(format!("{name} has at most {MAX_POSITIONS} positions")));
    }
    let mut given = match *name {
        "gather" | "scatter_add" => Indexing::along(&x, &values, &lists[0], indexed[0]),
        _ => Indexing::lists(&x, &values, &lists, indexed, at),
    };
    if mode != 2 {
        given.own.append(&mut given.shared);
    }
    let [mut own, mut shared] = [given.own, given.shared];
    [&mut own, &mut shared].into_iter().for_each(|dims| dims.retain(|dim| dim.size != 1));
    let count = |dims: &[Dim]| dims.iter().map(|dim| dim.size).product::<i64>() as u64;
    let (items, inner) = (count(&own), count(&shared));
    if items == 0 || inner == 0 {
        return Ok(());
    }
    // Both loops have the kernel's number of dimensions; the missing ones are of one element.
    let rank = own.len().max(shared.len()).max(1);
    // Both loops and the rest of the arguments have to fit 1024 bytes.
    let (count_of_lists, words) = (lists.len(), 2 * (3 + lists.len()) * rank + 4 * lists.len());
    if rank > MAX_RANK || words * 8 > 880 {
        return Err(Error::not_supported(format!(
            "{name} has {count_of_lists} positions and {rank} other dimensions, which don't fit a \
             kernel's parameters"
        )));
    }
    let one = Dim { size: 1, values: 0, x: 0, positions: vec![0; count_of_lists] };
    let [mut outer, mut within, mut starts, mut sizes] = [const { Vec::new() }; 4];
    for (dims, bytes) in [(&mut own, &mut outer), (&mut shared, &mut within)] {
        dims.resize(rank, one.clone());
        write(dims, count_of_lists, bytes);
    }
    let numbers = |bytes: &mut Vec<u8>, number: &dyn Fn(usize) -> i64| {
        (0..count_of_lists).for_each(|list| bytes.extend(number(list).to_ne_bytes()));
    };
    numbers(&mut starts, &|list| (lists[list].byte_offset() / 8) as i64);
    numbers(&mut sizes, &|list| x.shape()[given.dims[list]]);
    numbers(&mut sizes, &|list| x.strides()[given.dims[list]]);
    numbers(&mut sizes, &|list| given.dims[list] as i64);
    let (x, values) = (Place::of(&x)?, Place::of(&values)?);
    let key = [mode, x.dtype as u8, rank as u8, count_of_lists as u8, 0, 0, 0, 0];
    let kernel = device
        .programs
        .kernel(("index", key), || source(device, mode, x.dtype, rank, count_of_lists))?;
    let expected = stream.expect(name, call.operator())?;
    let ([pv, av], [px, ax]) = (values.args(), x.args());
    let mut args = vec![pv, av, px, ax];
    args.extend(lists.iter().map(|list| Arg::Buffer(list.buffer().handle)));
    args.extend([&starts, &outer, &within, &sizes].map(|bytes| Arg::Bytes(bytes)));
    args.extend([Arg::U64(items), Arg::U64(inner)]);
    args.extend([Arg::Buffer(stream.records), Arg::I32(expected.record)]);
    device.launch_items(&kernel, stream, &args, items)
}
