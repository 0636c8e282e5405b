//! Copies and fills of parts that no command of a queue describes, by a kernel.

use keyfold_plugin::Result;

use crate::device::{Arg, Device};
use crate::layout::{Loop, MAX_RANK};
use crate::stream::Stream;
use crate::tensor::Place;

/// Runs the kernel, over the target's and the source's steps.
fn run(
    (device, stream): (&Device, &Stream),
    over: &Loop<2>,
    (to, from): (Place, Place),
    number: Option<u64>,
) -> Result<()> {
    let count = over.numel();
    if count == 0 {
        return Ok(());
    }
    let index = if count >> 31 == 0 { "uint" } else { "ulong" };
    let key = [to.dtype as u8, u8::from(index == "ulong"), 0, 0, 0, 0, 0, 0];
    let kernel = device.programs.kernel(("strided", key), || {
        format!(
            "#define T {}\n#define INDEX {index}\n#define MAX_RANK {MAX_RANK}\n{}",
            to.dtype.stored(),
            include_str!("kernels/strided.cl")
        )
    })?;
    let [[to, to_at], [from, from_at]] = [to.args(), from.args()];
    let loops = over.bytes();
    let rank = Arg::I32(over.rank as i32);
    let fills = [Arg::I32(number.is_some().into()), Arg::U64(number.unwrap_or_default())];
    let args = [to, to_at, from, from_at, Arg::Bytes(&loops), rank, Arg::U64(count)];
    device.launch_items(&kernel, stream, &[args.as_slice(), &fills].concat(), count)
}

/// Copies elements from place to place, of equal unsigned types.
///
/// # Errors
/// The device's.
pub fn copy(on: (&Device, &Stream), over: &Loop<2>, from: Place, to: Place) -> Result<()> {
    run(on, over, (to, from), None)
}

/// Fills a place with an unsigned number.
///
/// # Errors
/// The device's.
pub fn fill(on: (&Device, &Stream), over: &Loop<2>, to: Place, number: u64) -> Result<()> {
    run(on, over, (to, to), Some(number))
}
