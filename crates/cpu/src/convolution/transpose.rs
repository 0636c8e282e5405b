//! Transposing rows of numbers into registers.

use keyfold_kit::isa::{Isa, Level, Work};

use super::lanes::Real;
use super::tile::TileShape;

/// Writes for each of `count` steps a register with one number of each row: rows are at a distance of
/// `from.1` numbers from each other, and there are `from.2` of them, at most a register's lanes; the other
/// lanes become 0. Registers are at a distance of `to.1`.
///
/// # Safety
/// These numbers are readable, and the registers writable.
pub(super) unsafe fn transpose<T: Real>(
    shape: &TileShape,
    from: (*const T, usize, usize),
    to: (*mut T, usize),
    count: usize,
) {
    shape.level.run(Transpose { lanes: shape.lanes, from, to, count });
}

/// The arguments of [`transpose`], which its caller vouches for.
struct Transpose<T> {
    lanes: usize,
    from: (*const T, usize, usize),
    to: (*mut T, usize),
    count: usize,
}

impl<T: Real> Work for Transpose<T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Transpose { lanes, from: (from, row_step, rows), to: (to, register_step), count } =
            self;
        for first in (0..count).step_by(lanes) {
            let end = count.min(first + lanes);
            let (from, to) = (from.wrapping_add(first), to.wrapping_add(first * register_step));
            #[cfg(target_arch = "x86_64")]
            if I::LEVEL == Level::Avx512 && rows == lanes && end - first == lanes {
                // SAFETY: the promise of the caller of `transpose`, of a whole square.
                if unsafe { T::transpose_square((from, row_step), (to, register_step)) } {
                    continue;
                }
            }
            for row in 0..lanes {
                for step in 0..end - first {
                    // SAFETY: as above.
                    unsafe {
                        let x = if row < rows { *from.add(row * row_step + step) } else { T::ZERO };
                        *to.add(step * register_step + row) = x;
                    }
                }
            }
        }
    }
}
