//! Matrix products by tiles in local memory.

use keyfold_plugin::{Error, Execution, Result};

use crate::device::{Arg, Buffer, Device};
use crate::layout::{Loop, MAX_RANK};
use crate::stream::Stream;
use crate::tensor::Place;
use crate::types::{Type, prelude};

/// Returns whether products have a kernel.
///
/// # Errors
/// Why they have none.
pub fn support(name: &str, input: Type, output: Type) -> Result<()> {
    if name == "matmul" && input == output {
        return Ok(());
    }
    Err(Error::not_supported(format!("its products of {input:?} are {input:?}, not {output:?}")))
}

/// The shape of a group's tile.
struct Tile {
    /// The work-items, by columns and rows.
    items: [usize; 2],
    /// The rows, and the vectors of columns, that each of them computes.
    rows: usize,
    vectors: usize,
    /// The stretch of the factors that is in local memory at once.
    depth: usize,
}

impl Tile {
    fn of(device: &Device) -> Tile {
        match (device.items, device.width) {
            // The sums of a work-item fill half of AVX-512's registers or most of AVX2's.
            (1, width) => Tile {
                items: [1, device.group.min(16)],
                rows: if width == 16 { 8 } else { 6 },
                vectors: 2,
                depth: 128,
            },
            _ => {
                let side = if device.group < 256 { device.group.isqrt() } else { 16 };
                Tile { items: [side; 2], rows: 4, vectors: 1, depth: 16 }
            }
        }
    }
}

fn source(device: &Device, dtype: Type) -> String {
    // Integers wrap, so they are multiplied as unsigned ones.
    let (number, product) = match dtype {
        Type::Bool => ("uchar", "((s) | ((a) & (b)))"),
        Type::I64 | Type::U64 => ("ulong", "((s) + (a) * (b))"),
        float if float.is_float() => (float.computed(), "((s) + (a) * (b))"),
        _ => ("uint", "((s) + (a) * (b))"),
    };
    let Tile { items: [columns, lines], rows, vectors, depth } = Tile::of(device);
    format!(
        "{}{}{}#define DIMS {MAX_RANK}\n#define ACC {number}\n#define CONVERT convert_{number}\n\
         #define ADD_PRODUCT(s, a, b) {product}\n#define COLUMN_ITEMS {columns}\n\
         #define ROW_ITEMS {lines}\n#define ROWS {rows}\n#define VECTORS {vectors}\n\
         #define DEPTH {depth}\ntypedef VECTOR(ACC) ACCV;\n{}",
        prelude(device.float64),
        dtype.define("x", dtype),
        dtype.define("r", dtype),
        include_str!("kernels/matmul.cl")
    )
}

/// Multiplies matrices.
///
/// # Errors
/// The device's.
pub fn execute(device: &Device, stream: &Stream, call: &Execution<'_, Buffer>) -> Result<()> {
    let (a, b, output) = (call.input(0)?, call.input(1)?, call.output(0)?);
    let (outer_a, inner_a) = a.shape().split_at(a.shape().len() - 2);
    let (outer_b, inner_b) = b.shape().split_at(b.shape().len() - 2);
    let rank = outer_a.len().max(outer_b.len());
    // A leading dimension that a factor lacks, or has only one of, is repeated.
    let leading =
        |sizes: &[i64], steps: &[i64], dim: usize| match (dim + sizes.len()).checked_sub(rank) {
            Some(own) if sizes[own] != 1 => (sizes[own], steps[own]),
            _ => (1, 0),
        };
    let mut batch = Loop::<2>::new();
    for dim in 0..rank {
        let (size_a, step_a) = leading(outer_a, a.strides(), dim);
        let (size_b, step_b) = leading(outer_b, b.strides(), dim);
        batch.push(size_a.max(size_b), [step_a, step_b])?;
    }
    let (rows, columns, depth) = (inner_a[0], inner_b[1], inner_a[1]);
    let steps_a = &a.strides()[outer_a.len()..];
    let steps_b = &b.strides()[outer_b.len()..];
    let [x, y, r] = [&a, &b, &output].map(Place::of);
    let (x, y, r) = (x?, y?, r?);
    let key = [x.dtype as u8, 0, 0, 0, 0, 0, 0, 0];
    let kernel = device.programs.kernel(("matmul", key), || source(device, x.dtype))?;
    let bytes = batch.ranked_bytes();
    let ([pr, ar], [pa, aa], [pb, ab]) = (r.args(), x.args(), y.args());
    let numbers = [rows, columns, depth, steps_a[0], steps_a[1], steps_b[0], steps_b[1]];
    let args = [pr, ar, pa, aa, pb, ab, Arg::Bytes(&bytes)];
    let args = [args.as_slice(), &numbers.map(Arg::I64)].concat();
    let tile = Tile::of(device);
    let tiles = |size: i64, one: usize| (size.cast_unsigned() as usize).div_ceil(one);
    let [across, down] = tile.items;
    let groups = [
        tiles(columns, across * tile.vectors * device.width),
        tiles(rows, down * tile.rows),
        batch.numel() as usize,
    ];
    device.launch(&kernel, stream, &args, groups, [across, down, 1])
}
