//! The numbers that a pixel's window covers, and packing them for tiles of pixels.
//!
//! A source is a contiguous `[images, channels, depth, height, width]`. The pixels are those of a grid, of
//! all images one after another. Each pixel sees the source through taps: pixel `q` sees through a tap the
//! number at `q * step + offset`, and 0 where that is outside.

use keyfold_kit::isa::{Isa, Level, Work};

use super::lanes::{Lanes, Part, Real, prefetch};
use super::tile::TileShape;

/// The number of channels that a prefetch is ahead.
const AHEAD: usize = 6;

/// Sizes, steps or places along depth, height and width.
pub(super) type Three<T> = [T; 3];

/// A place of the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tap {
    /// The offset of what is seen from a pixel's place in the source.
    pub(super) offset: Three<isize>,
    /// Its place in a channel of the weight.
    pub(super) weight: usize,
}

/// How pixels see a source.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) source: Three<usize>,
    pub(super) grid: Three<usize>,
    pub(super) step: Three<usize>,
    pub(super) taps: Vec<Tap>,
}

/// Pixels of one row of the grid that are neighbours in a tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// The place of the first one in the tile.
    pub(super) lane: usize,
    pub(super) len: usize,
    pub(super) image: usize,
    pub(super) at: Three<usize>,
}

/// Lanes of a register that are read from evenly spaced numbers of the source.
#[derive(Clone, Copy, Debug)]
struct Piece {
    lanes: Part,
    /// The offset of what lane 0 would read.
    offset: isize,
}

/// The pixels of a tile, and the places where they read a channel.
#[derive(Default)]
pub(super) struct Pixels {
    pub(super) runs: Vec<Run>,
    pub(super) registers: usize,
    /// The first piece of each register, tap after tap.
    firsts: Vec<Piece>,
    /// The other pieces, with the places of their registers among these.
    others: Vec<(usize, Piece)>,
    step: usize,
}

impl Window {
    /// Pixels of an image.
    pub(super) fn pixels(&self) -> usize {
        self.grid.iter().product()
    }

    /// Elements of a channel of the source.
    pub(super) fn plane(&self) -> usize {
        self.source.iter().product()
    }

    /// Finds the places that `count` pixels from `first` on see; images have `channels` channels.
    pub(super) fn locate(
        &self,
        (first, count): (usize, usize),
        channels: usize,
        shape: &TileShape,
        found: &mut Pixels,
    ) {
        self.divide(first, count, &mut found.runs);
        found.registers = count.div_ceil(shape.lanes);
        found.step = self.step[2];
        found.firsts.clear();
        found.others.clear();
        let image = self.plane() * channels;
        let nothing = Piece { lanes: Part::new(0..0, 1), offset: 0 };
        for tap in &self.taps {
            found.firsts.resize(found.firsts.len() + found.registers, nothing);
            for run in 0..found.runs.len() {
                self.see(tap, run, image, shape.lanes, found);
            }
        }
    }

    /// Divides pixels by the rows of the grid.
    fn divide(&self, first: usize, count: usize, runs: &mut Vec<Run>) {
        runs.clear();
        let [_, height, width] = self.grid;
        let (mut image, rest) = (first / self.pixels(), first % self.pixels());
        let (row, mut w) = (rest / width, rest % width);
        let (mut d, mut h) = (row / height, row % height);
        let mut lane = 0;
        while lane < count {
            let len = (width - w).min(count - lane);
            runs.push(Run { lane, len, image, at: [d, h, w] });
            lane += len;
            (w, h) = (0, h + 1);
            if h == height {
                (h, d) = (0, d + 1);
            }
            if d == self.grid[0] {
                (d, image) = (0, image + 1);
            }
        }
    }

    /// Adds the pieces of a run through a tap.
    fn see(&self, tap: &Tap, run: usize, image: usize, lanes: usize, found: &mut Pixels) {
        let run = found.runs[run];
        let before = found.firsts.len() - found.registers;
        let place = |dim: usize| (run.at[dim] * self.step[dim]) as isize + tap.offset[dim];
        let (d, h, w) = (place(0), place(1), place(2));
        let inside = |at: isize, size: usize| at >= 0 && (at as usize) < size;
        if !inside(d, self.source[0]) || !inside(h, self.source[1]) {
            return;
        }
        // The lanes whose place in the row is from 0 to below the width. Most runs lie inside, which is
        // seen without a division.
        let (step, width) = (self.step[2] as isize, self.source[2] as isize);
        let skipped = if w < 0 { ((-w) as usize).div_ceil(self.step[2]) } else { 0 };
        let last = w + (run.len as isize - 1) * step;
        let until = match last < width {
            true => run.len,
            false if w < width => ((width - w) as usize).div_ceil(self.step[2]),
            false => 0,
        };
        let (mut lane, end) = (run.lane + skipped, run.lane + until);
        let row = (d as usize * self.source[1] + h as usize) * self.source[2];
        let of_first = (run.image * image + row) as isize + w;
        while lane < end {
            // The number of lanes is a power of 2.
            let (register, within) = (lane >> lanes.trailing_zeros(), lane & (lanes - 1));
            let len = (lanes - within).min(end - lane);
            let offset = of_first + ((lane - run.lane) as isize - within as isize) * step;
            let piece = Piece { lanes: Part::new(within..within + len, self.step[2]), offset };
            match &mut found.firsts[before + register] {
                first if first.lanes.is_empty() => *first = piece,
                _ => found.others.push((before + register, piece)),
            }
            lane += len;
        }
    }
}

/// Packs the numbers that pixels see in some channels: for each channel and tap one row of registers.
pub(super) struct Pack<'a, T> {
    pub(super) pixels: &'a Pixels,
    /// The first of these channels, in the first image.
    pub(super) source: *const T,
    pub(super) channels: usize,
    /// Elements of a channel.
    pub(super) plane: usize,
    pub(super) packed: *mut T,
}

impl<T: Real> Pack<'_, T> {
    /// # Safety
    /// The pixels were located for this source, which is readable, and the packed registers are writable.
    pub(super) unsafe fn run(self, shape: &TileShape) {
        shape.level.run(Compiled(self));
    }
}

/// Packing that the caller of [`Pack::run`] vouches for.
struct Compiled<'a, T>(Pack<'a, T>);

impl<T: Real> Work for Compiled<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        // SAFETY: the promise of the caller of `Pack::run`; the code is compiled for this level.
        unsafe {
            match I::LEVEL {
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => pack::<T, T::Avx512>(&self.0),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => pack::<T, T::Avx2>(&self.0),
                _ => pack::<T, T::Baseline>(&self.0),
            }
        }
    }
}

/// # Safety
/// As of [`Pack::run`], in code of the level of `V`.
#[inline(always)]
unsafe fn pack<T: Real, V: Lanes<T>>(work: &Pack<'_, T>) {
    let Pixels { firsts, others, registers, step, .. } = work.pixels;
    // Each channel is far from the next one, so the processor doesn't foresee these addresses. Most of
    // what the other taps see was seen by pixels before.
    let ahead = AHEAD * work.plane;
    let last = &firsts[firsts.len().saturating_sub(*registers)..];
    for channel in 0..work.channels {
        let source = work.source.wrapping_add(channel * work.plane);
        let packed = work.packed.wrapping_add(channel * firsts.len() * V::LEN);
        for piece in last {
            prefetch(source.wrapping_add(ahead).wrapping_offset(piece.offset));
        }
        // Two loops without branches: which registers have several pieces is hard to foresee.
        // SAFETY: pieces lie inside the source, and there is a register for each first one.
        unsafe {
            let mut to = packed;
            for piece in firsts {
                let from = source.wrapping_offset(piece.offset);
                V::splat(T::ZERO).replace(piece.lanes, from, *step).store(to);
                to = to.add(V::LEN);
            }
            for (at, piece) in others {
                let from = source.wrapping_offset(piece.offset);
                let register = packed.add(at * V::LEN);
                V::load(register).replace(piece.lanes, from, *step).store(register);
            }
        }
    }
}
