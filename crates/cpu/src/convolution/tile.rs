//! The inner product of convolutions: a tile of sums in registers.
//!
//! A tile is [`TileShape::rows`] by up to [`TileShape::registers`] registers of sums. Each step adds a column of
//! numbers, one for each row, times a row of registers. The registers' side is packed; the rows' side is
//! read where it lies, one number at a time, at the same distance from each row's origin.

use keyfold_kit::isa::{InUse, Isa, Level, Work};

use super::lanes::{Lanes, Real};

/// The most registers in a row of a tile, and in one of half as many rows.
const REGISTERS: usize = 3;
const REGISTERS_OF_HALF: usize = 2 * REGISTERS;
/// The most rows of a tile.
pub(super) const MAX_ROWS: usize = 8;

/// The sizes of tiles at a level.
#[derive(Clone, Copy, Debug)]
pub(super) struct TileShape {
    pub(super) level: InUse,
    /// Rows of a tile: 8 where there are 32 registers, 4 where there are 16; or half of them.
    pub(super) rows: usize,
    /// The most registers in a row.
    pub(super) registers: usize,
    /// Numbers in a register.
    pub(super) lanes: usize,
}

impl TileShape {
    pub(super) fn of<T: Real>(level: InUse) -> TileShape {
        let (rows, bytes) = match level.level() {
            Level::Avx512 => (MAX_ROWS, 64),
            Level::Avx2 => (MAX_ROWS / 2, 32),
            Level::Baseline => (MAX_ROWS / 2, 16),
        };
        TileShape { level, rows, registers: REGISTERS, lanes: bytes / size_of::<T>() }
    }

    /// The shape for products of that many rows: few of them are tiles of half the rows, and twice as wide.
    pub(super) fn for_rows<T: Real>(level: InUse, rows: usize) -> TileShape {
        let shape = TileShape::of::<T>(level);
        match 2 * rows <= shape.rows {
            true => TileShape { rows: shape.rows / 2, registers: REGISTERS_OF_HALF, ..shape },
            false => shape,
        }
    }

    /// Numbers in a row of the widest tile.
    pub(super) fn width(&self) -> usize {
        self.registers * self.lanes
    }
}

/// Steps whose numbers are at even distances.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// The distance of the first number from each row's origin.
    pub(super) start: usize,
    /// The number of steps.
    pub(super) len: usize,
}

/// The initial sums of a tile.
#[derive(Clone, Copy)]
pub(super) enum Start<T> {
    Zero,
    /// One number for each row of the tile.
    Rows(*const T),
    /// The sums that the result holds.
    Result,
}

/// The sums of a tile: `result[r][j] = start + sum over steps s of rows[r][s] * packed[s][j]`.
pub(super) struct Tile<'a, T> {
    pub(super) shape: TileShape,
    /// Where the rows' numbers are.
    pub(super) numbers: *const T,
    /// The origin of each row; those of the tile's rows are used.
    pub(super) rows: [usize; MAX_ROWS],
    /// The distance of a number from that of the next step.
    pub(super) step: usize,
    pub(super) segments: &'a [Segment],
    /// The registers of all steps, one after another.
    pub(super) packed: *const T,
    /// Registers in a row.
    pub(super) registers: usize,
    pub(super) start: Start<T>,
    pub(super) result: *mut T,
    /// The distance of a result's row from the next one.
    pub(super) result_step: usize,
}

impl<T: Real> Tile<'_, T> {
    /// # Safety
    /// The addresses of the numbers, the packed registers and the start are readable for all steps and
    /// rows, and those of the result writable.
    pub(super) unsafe fn run(&self) {
        self.shape.level.run(Compiled(self));
    }
}

/// A tile whose addresses the caller of [`Tile::run`] vouches for.
struct Compiled<'a, 'b, T>(&'a Tile<'b, T>);

impl<T: Real> Work for Compiled<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        // SAFETY: the promise of the caller of `Tile::run`; the code is compiled for this level.
        unsafe {
            match I::LEVEL {
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => any_shape::<T, T::Avx512, MAX_ROWS, { MAX_ROWS / 2 }>(self.0),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => any_shape::<T, T::Avx2, { MAX_ROWS / 2 }, { MAX_ROWS / 4 }>(self.0),
                _ => any_shape::<T, T::Baseline, { MAX_ROWS / 2 }, { MAX_ROWS / 4 }>(self.0),
            }
        }
    }
}

/// # Safety
/// As of [`Tile::run`], in code of the level of `V`.
#[inline(always)]
unsafe fn any_shape<T: Real, V: Lanes<T>, const ROWS: usize, const HALF: usize>(
    tile: &Tile<'_, T>,
) {
    debug_assert_eq!(tile.shape.lanes, V::LEN);
    // SAFETY: the caller's promise.
    unsafe {
        match (tile.shape.rows == ROWS, tile.registers) {
            (true, 1) => product::<T, V, ROWS, 1>(tile),
            (true, 2) => product::<T, V, ROWS, 2>(tile),
            (true, _) => product::<T, V, ROWS, REGISTERS>(tile),
            (false, 1) => product::<T, V, HALF, 1>(tile),
            (false, 2) => product::<T, V, HALF, 2>(tile),
            (false, 3) => product::<T, V, HALF, 3>(tile),
            (false, 4) => product::<T, V, HALF, 4>(tile),
            (false, 5) => product::<T, V, HALF, 5>(tile),
            (false, _) => product::<T, V, HALF, REGISTERS_OF_HALF>(tile),
        }
    }
}

/// # Safety
/// As of [`any_shape`].
#[inline(always)]
unsafe fn product<T: Real, V: Lanes<T>, const ROWS: usize, const N: usize>(tile: &Tile<'_, T>) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[V::splat(T::ZERO); N]; ROWS];
        for (r, row) in sums.iter_mut().enumerate() {
            for (j, sum) in row.iter_mut().enumerate() {
                match tile.start {
                    Start::Zero => {}
                    Start::Rows(each) => *sum = V::splat(*each.add(r)),
                    Start::Result => {
                        *sum = V::load(tile.result.add(r * tile.result_step + j * V::LEN));
                    }
                }
            }
        }
        let mut rows = [tile.numbers; ROWS];
        for (row, origin) in rows.iter_mut().zip(tile.rows) {
            *row = row.add(origin);
        }
        let mut packed = tile.packed;
        for segment in tile.segments {
            let mut at = segment.start;
            for _ in 0..segment.len {
                let mut values = [V::splat(T::ZERO); N];
                for (j, value) in values.iter_mut().enumerate() {
                    *value = V::load(packed.add(j * V::LEN));
                }
                for (sums, row) in sums.iter_mut().zip(rows) {
                    let number = V::splat(*row.add(at));
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum = number.mul_add(value, *sum);
                    }
                }
                packed = packed.add(N * V::LEN);
                at += tile.step;
            }
        }
        for (r, row) in sums.iter().enumerate() {
            for (j, sum) in row.iter().enumerate() {
                sum.store(tile.result.add(r * tile.result_step + j * V::LEN));
            }
        }
    }
}
