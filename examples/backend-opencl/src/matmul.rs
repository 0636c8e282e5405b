//! Matrix products by tiles in local memory, also with a scaled addend and an activation.

use keyfold_plugin::{Error, Execution, Result};

use crate::activation;
use crate::dense;
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
    let is_mixed = matches!(input, Type::F16 | Type::BF16) && output == Type::F32;
    if name == "matmul" && (input == output || is_mixed) {
        return Ok(());
    }
    Err(Error::not_supported(format!("its products of {input:?} are {input:?}, not {output:?}")))
}

/// Returns whether products with an epilogue have a kernel.
///
/// # Errors
/// Why they have none.
pub fn support_linear(name: &str, inputs: &[Type], outputs: &[Type]) -> Result<()> {
    if name != "matmul" {
        return Err(dense::unknown("linear", name));
    }
    match inputs.iter().find(|input| **input != outputs[0]) {
        None => Ok(()),
        Some(input) => support(name, *input, outputs[0])
            .and(Err(Error::not_supported("its products with an epilogue have one dtype"))),
    }
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

/// Returns the type that products are added in. Integers wrap, so they are multiplied as unsigned ones.
fn accumulator(dtype: Type) -> &'static str {
    match dtype {
        Type::Bool => "uchar",
        Type::I64 | Type::U64 => "ulong",
        float if float.is_float() => float.computed(),
        _ => "uint",
    }
}

/// Returns the program of a product, with an epilogue if there is an activation's number.
fn source(device: &Device, dtype: Type, output: Type, epilogue: Option<u8>) -> String {
    let number = accumulator(dtype);
    let (product, sum) = match dtype {
        Type::Bool => ("((a) & (b))", "((s) | ((a) & (b)))"),
        _ => ("((a) * (b))", "((s) + (a) * (b))"),
    };
    let activated = epilogue.map(|applied| activation::source(applied, dtype)).unwrap_or_default();
    let Tile { items: [columns, lines], rows, vectors, depth } = Tile::of(device);
    format!(
        "{}{}{}#define DIMS {MAX_RANK}\n#define ACC {number}\n#define CONVERT convert_{number}\n\
         #define PRODUCT(a, b) {product}\n#define ADD_PRODUCT(s, a, b) {sum}\n\
         #define HAS_EPILOGUE {}\n{activated}#define COLUMN_ITEMS {columns}\n\
         #define ROW_ITEMS {lines}\n#define ROWS {rows}\n#define VECTORS {vectors}\n\
         #define DEPTH {depth}\ntypedef VECTOR(ACC) ACCV;\n{}",
        prelude(device.float64),
        dtype.define("x", dtype),
        output.define("r", output),
        u8::from(epilogue.is_some()),
        include_str!("kernels/matmul.cl")
    )
}

/// Returns the factors of a product and of its addend, as the kernel's struct.
fn factors(call: &Execution<'_, Buffer>, dtype: Type) -> Result<Vec<u8>> {
    let fields = call.fields();
    if dtype.is_float() {
        return Ok(dense::reals(dtype, &[fields.float("alpha")?, fields.float("beta")?]));
    }
    let numbers = [fields.int("alpha_integer")?, fields.int("beta_integer")?];
    let bytes = |number: i64| match accumulator(dtype) {
        "uchar" => vec![u8::from(number != 0)],
        "ulong" => number.to_ne_bytes().to_vec(),
        _ => (number as u32).to_ne_bytes().to_vec(),
    };
    Ok(numbers.map(bytes).concat())
}

/// Multiplies matrices, in the group `linear` with an epilogue.
///
/// # Errors
/// The device's.
pub fn execute(device: &Device, stream: &Stream, call: &Execution<'_, Buffer>) -> Result<()> {
    let (a, b, output) = (call.input(0)?, call.input(1)?, call.output(0)?);
    let is_linear = call.group() == "linear";
    let addend = match is_linear && call.fields().flag("has_addend")? {
        true => Some(call.input(2)?),
        false => None,
    };
    let (outer_a, inner_a) = a.shape().split_at(a.shape().len() - 2);
    let (outer_b, inner_b) = b.shape().split_at(b.shape().len() - 2);
    let rank = outer_a.len().max(outer_b.len());
    // A leading dimension that a factor lacks, or has only one of, is repeated.
    let leading = |sizes: &[i64], steps: &[i64], dim: usize, rank: usize| match (dim + sizes.len())
        .checked_sub(rank)
    {
        Some(own) if sizes[own] != 1 => (sizes[own], steps[own]),
        _ => (1, 0),
    };
    let beside = |dim: usize, rank: usize| match &addend {
        Some(addend) => leading(addend.shape(), addend.strides(), dim, rank).1,
        None => 0,
    };
    let mut batch = Loop::<3>::new();
    for dim in 0..rank {
        let (size_a, step_a) = leading(outer_a, a.strides(), dim, rank);
        let (size_b, step_b) = leading(outer_b, b.strides(), dim, rank);
        batch.push(size_a.max(size_b), [step_a, step_b, beside(dim, rank + 2)])?;
    }
    let (rows, columns, depth) = (inner_a[0], inner_b[1], inner_a[1]);
    let steps_a = &a.strides()[outer_a.len()..];
    let steps_b = &b.strides()[outer_b.len()..];
    let [x, y, r] = [&a, &b, &output].map(Place::of);
    let (x, y, r) = (x?, y?, r?);
    let epilogue = match is_linear {
        true => Some(activation::number(call.fields().text("activation")?)?),
        false => None,
    };
    let variant = epilogue.map_or(0, |number| number + 1);
    let key = [x.dtype as u8, r.dtype as u8, variant, 0, 0, 0, 0, 0];
    let make = || source(device, x.dtype, r.dtype, epilogue);
    let kernel = device.programs.kernel(("matmul", key), make)?;
    let bytes = batch.ranked_bytes();
    let ([pr, ar], [pa, aa], [pb, ab]) = (r.args(), x.args(), y.args());
    let numbers = [rows, columns, depth, steps_a[0], steps_a[1], steps_b[0], steps_b[1]];
    let mut args = vec![pr, ar, pa, aa, pb, ab, Arg::Bytes(&bytes)];
    args.extend(numbers.map(Arg::I64));
    let steps = [beside(rank, rank + 2), beside(rank + 1, rank + 2), addend.is_some().into()];
    let steps = dense::words(&steps);
    let factors = if is_linear { factors(call, x.dtype)? } else { Vec::new() };
    if is_linear {
        // In the place of an addend that there isn't, any buffer will do.
        args.extend(addend.as_ref().map_or(Ok(x), Place::of)?.args());
        args.extend([Arg::Bytes(&steps), Arg::Bytes(&factors)]);
    }
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
