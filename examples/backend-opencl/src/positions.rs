//! Positions of a mask's true elements: counts of chunks, their running sums, and the positions.

use std::sync::Arc;

use keyfold_plugin::{DeviceTensor, Execution, Result};

use crate::device::{Arg, Buffer, Device};
use crate::layout::Loop;
use crate::program::Kernel;
use crate::stream::Stream;
use crate::tensor::Place;
use crate::types::prelude;

/// The elements of a chunk, at least, and the most chunks.
const CHUNK: u64 = 256;
const MAX_CHUNKS: u64 = 1 << 14;

fn kernel(device: &Device, form: u8, rank: usize) -> Result<Arc<Kernel>> {
    device.programs.kernel(("positions", [form, rank as u8, 0, 0, 0, 0, 0, 0]), || {
        format!(
            "{}#define FORM {form}\n#define RANK {rank}\n{}",
            prelude(device.float64),
            include_str!("kernels/positions.cl")
        )
    })
}

/// A mask divided into chunks.
struct Chunks {
    mask: Place,
    bytes: Vec<u8>,
    rank: usize,
    count: u64,
    chunk: u64,
    chunks: u64,
    /// The counts of chunks, and one more.
    counts: Buffer,
}

impl Chunks {
    /// Counts each chunk's true elements and sums the counts.
    fn of(device: &Device, stream: &Stream, mask: &DeviceTensor<'_, Buffer>) -> Result<Chunks> {
        let over = Loop::over(mask.shape(), [mask.strides()])?;
        let count = over.numel();
        let chunk = count.div_ceil(MAX_CHUNKS).max(CHUNK);
        let chunks = count.div_ceil(chunk);
        let mut bytes = Vec::new();
        over.write_first(1, &mut bytes);
        let counts = device.allocate((chunks as usize + 1) * 8)?;
        let (mask, rank) = (Place::of(mask)?, over.kernel_rank());
        let made = Chunks { mask, bytes, rank, count, chunk, chunks, counts };
        let mut args = made.args().to_vec();
        args.push(Arg::Buffer(made.counts.handle));
        device.launch_items(&*kernel(device, 0, rank)?, stream, &args, chunks)?;
        let args = [Arg::Buffer(made.counts.handle), Arg::U64(chunks)];
        device.launch(&*kernel(device, 1, 1)?, stream, &args, [1; 3], [1; 3])?;
        Ok(made)
    }

    fn args(&self) -> [Arg<'_>; 5] {
        let [mask, at] = self.mask.args();
        [mask, at, Arg::Bytes(&self.bytes), Arg::U64(self.count), Arg::U64(self.chunk)]
    }
}

/// Counts the true elements of a mask.
///
/// # Errors
/// The device's, also of earlier operations.
pub fn count(device: &Device, stream: &Stream, mask: &DeviceTensor<'_, Buffer>) -> Result<u64> {
    stream.faults()?;
    if mask.shape().contains(&0) {
        return Ok(0);
    }
    let chunks = Chunks::of(device, stream, mask)?;
    let mut found = [0; 8];
    stream.read(chunks.counts.handle, chunks.chunks as usize * 8, &mut found)?;
    Ok(u64::from_ne_bytes(found))
}

/// Writes the positions along each dimension.
///
/// # Errors
/// The device's.
pub fn execute(device: &Device, stream: &Stream, call: &Execution<'_, Buffer>) -> Result<()> {
    let mask = call.input(0)?;
    if mask.shape().contains(&0) {
        return Ok(());
    }
    let chunks = Chunks::of(device, stream, &mask)?;
    let kernel = kernel(device, 2, chunks.rank)?;
    for (dim, size) in mask.shape().iter().enumerate() {
        let below: i64 = mask.shape()[dim + 1..].iter().product();
        let output = call.output(dim)?;
        let [pr, ar] = Place::of(&output)?.args();
        let step = output.strides().first().copied().unwrap_or(1);
        let mut args = chunks.args().to_vec();
        args.extend([Arg::Buffer(chunks.counts.handle), pr, ar, Arg::I64(step)]);
        args.extend([Arg::I64(below), Arg::I64(*size)]);
        device.launch_items(&kernel, stream, &args, chunks.chunks)?;
    }
    Ok(())
}
