//! Convolutions as products of matrices: the weight's rows times what pixels see, a tile of pixels after
//! another, packed into the cache (an implicit matrix of columns).
//!
//! The forward direction is one product. The gradient of the input is one for each remainder of the stride:
//! the places of the input that have the same remainder see the gradient of the output through the same
//! taps, at steps of 1.

use std::ops::Range;

use keyfold_core::Result;
use keyfold_kit::pool::{Schedule, num_threads, parallel_for};

use super::lanes::Real;
use super::shared::{Lines, Shared, scratch};
use super::tile::{MAX_ROWS, Segment, Start, Tile, TileShape};
use super::window::{Pack, Pixels, Three, Window};

/// Steps that are packed at once: their registers stay in the second cache.
const STEPS: usize = 640;
/// Bytes of a group's packed weight from which on several tiles are packed at once, so that each part of
/// the weight is read once for all of them.
const LARGE_WEIGHT: usize = 512 << 10;
/// The number of tiles that are then packed at once.
const TILES: usize = 4;
/// The number of a thread's ranges of parts, from which others can take some.
const RANGES: usize = 16;
/// Multiplications that are worth a thread's part.
const PART: usize = 1 << 20;

/// A function that changes results where they lie.
pub(super) type Finish<'a, T> = Option<&'a (dyn Fn(&mut [T]) + Sync)>;

/// The numbers of a weight: those of row `r` and channel `c` of a group are at
/// `group * of_group + r * of_row + c * of_channel`, in the order of the taps' places.
pub(super) struct Weight<T> {
    pub(super) numbers: *const T,
    pub(super) of_group: usize,
    pub(super) of_row: usize,
    pub(super) of_channel: usize,
}

/// The places of results: an image's, a channel's, and a pixel's along the grid.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub(super) base: usize,
    pub(super) image: usize,
    pub(super) channel: usize,
    pub(super) pixel: Three<usize>,
}

/// A convolution of all images.
pub(super) struct Product<'a, T> {
    pub(super) shape: TileShape,
    pub(super) window: &'a Window,
    pub(super) images: usize,
    pub(super) groups: usize,
    /// Channels of a group of the source.
    pub(super) channels: usize,
    /// Channels of a group of the result.
    pub(super) rows: usize,
    pub(super) source: *const T,
    pub(super) weight: Weight<T>,
    /// The first sum of each channel of the result.
    pub(super) bias: Option<&'a [T]>,
    pub(super) result: Shared<T>,
    pub(super) places: Places,
    /// Changes results where they lie.
    pub(super) finish: Finish<'a, T>,
}

// SAFETY: the sources are only read, and each part of the result is written by one thread.
unsafe impl<T: Sync> Sync for Product<'_, T> {}

/// The weight in panels: for each group and block of rows, for each channel and tap the rows' numbers.
struct Panels<T> {
    numbers: Vec<T>,
    /// The bias of each group's rows, filled up to whole blocks.
    bias: Vec<T>,
    blocks: usize,
    /// Numbers of a panel.
    len: usize,
}

impl<T: Real> Product<'_, T> {
    /// # Safety
    /// The source, the weight and the result are as large as the sizes say; nothing else uses the result.
    pub(super) unsafe fn run(&self) -> Result<()> {
        let (pixels, steps) = (self.images * self.window.pixels(), self.steps());
        if pixels == 0 || self.rows == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let panels = unsafe { self.panels() }?;
        let tiles = pixels.div_ceil(self.shape.width());
        let large = panels.len * panels.blocks * size_of::<T>() > LARGE_WEIGHT;
        let at_once = if large { TILES.min(tiles) } else { 1 };
        // Tiles of the same pixels for several parts of the blocks are packed several times, so that is
        // done only where there are too few tiles for all threads.
        let threads = num_threads()?;
        let tile_parts = tiles.div_ceil(at_once);
        let wanted = (2 * threads).div_ceil(tile_parts * self.groups);
        let block_parts = if threads == 1 { 1 } else { wanted.clamp(1, panels.blocks) };
        let parts = self.groups * tile_parts * block_parts;
        let cost = at_once * self.shape.width() * steps * self.rows / block_parts;
        // A range makes memory of its own, so it has several parts where there are many.
        let grain = (PART / cost.max(1)).max(parts / (RANGES * threads)).max(1);
        parallel_for(Schedule::Adaptive, 0..parts, grain, |range| {
            let mut room = Room::new(at_once);
            for part in range {
                let (group, part) =
                    (part / (tile_parts * block_parts), part % (tile_parts * block_parts));
                let (blocks, tile) = (part / tile_parts, part % tile_parts * at_once);
                let first = panels.blocks * blocks / block_parts;
                let end = panels.blocks * (blocks + 1) / block_parts;
                let of_part = Part {
                    group,
                    blocks: first..end,
                    first: tile * self.shape.width(),
                    end: pixels.min((tile + at_once) * self.shape.width()),
                };
                // SAFETY: the caller's promise; each part has pixels or blocks of its own.
                unsafe { self.part(&panels, &of_part, &mut room) };
            }
            Ok(())
        })
    }

    /// Steps of a sum.
    fn steps(&self) -> usize {
        self.channels * self.window.taps.len()
    }

    /// # Safety
    /// As of [`Product::run`].
    unsafe fn panels(&self) -> Result<Panels<T>> {
        let height = self.shape.rows;
        let (steps, blocks) = (self.steps(), self.rows.div_ceil(height));
        let len = steps * height;
        let mut numbers = scratch(self.groups * blocks * len);
        let to = Shared(numbers.as_mut_ptr());
        let taps = self.window.taps.len();
        // SAFETY: the weight is as large as the sizes say; each panel, or each channel's part of all panels,
        // is one thread's.
        let pack = |group: usize, block: usize, channels: Range<usize>| unsafe {
            let first = group * self.weight.of_group + block * height * self.weight.of_row;
            let rows = height.min(self.rows - block * height);
            let at = (group * blocks + block) * len + channels.start * taps * height;
            self.panel(self.weight.numbers.add(first), rows, channels, to.at(at));
        };
        let by_channels = self.weight.of_row < self.weight.of_channel;
        // The weight is read in the order in which it lies.
        let parts = if by_channels { self.channels } else { blocks };
        let grain = (PART / 16 * parts.max(1) / (blocks * len).max(1)).max(1);
        parallel_for(Schedule::Adaptive, 0..self.groups * parts, grain, |range| {
            for part in range {
                let (group, part) = (part / parts, part % parts);
                match by_channels {
                    true => (0..blocks).for_each(|block| pack(group, block, part..part + 1)),
                    false => pack(group, part, 0..self.channels),
                }
            }
            Ok(())
        })?;
        let mut bias = Vec::new();
        if let Some(given) = self.bias {
            bias = scratch(self.groups * blocks * height);
            for (of_group, given) in
                bias.chunks_exact_mut(blocks * height).zip(given.chunks_exact(self.rows))
            {
                of_group[..self.rows].copy_from_slice(given);
            }
        }
        Ok(Panels { numbers, bias, blocks, len })
    }

    /// Packs some channels of a panel; the rows that a whole block lacks are 0.
    ///
    /// # Safety
    /// `from` is the block's first row, and the panel is writable.
    unsafe fn panel(&self, from: *const T, rows: usize, channels: Range<usize>, panel: *mut T) {
        let (height, taps) = (self.shape.rows, &self.window.taps);
        let mut at = panel;
        for channel in channels {
            for tap in taps {
                let from = from.wrapping_add(channel * self.weight.of_channel + tap.weight);
                for row in 0..height {
                    // SAFETY: the caller's promise.
                    unsafe {
                        *at.add(row) = match row < rows {
                            true => *from.add(row * self.weight.of_row),
                            false => T::ZERO,
                        };
                    }
                }
                at = at.wrapping_add(height);
            }
        }
    }

    /// Computes some blocks of some pixels.
    ///
    /// # Safety
    /// As of [`Product::run`]; nothing else uses the results of the part.
    unsafe fn part(&self, panels: &Panels<T>, part: &Part, room: &mut Room<T>) {
        let (width, height) = (self.shape.width(), self.shape.rows);
        let (taps, plane) = (self.window.taps.len(), self.window.plane());
        let all_channels = self.groups * self.channels;
        let mut count = 0;
        for first in (part.first..part.end).step_by(width) {
            let pixels = width.min(part.end - first);
            self.window.locate((first, pixels), all_channels, &self.shape, &mut room.pixels[count]);
            count += 1;
        }
        let together = (STEPS / taps.max(1)).clamp(1, self.channels.max(1));
        let packed_len = together * taps * width;
        let results_len = part.blocks.len() * height * width;
        let all_packed = room.packed.of(count * packed_len);
        let mut channel = 0;
        loop {
            let channels = together.min(self.channels - channel);
            let source = self.source.wrapping_add((part.group * self.channels + channel) * plane);
            for (t, pixels) in room.pixels[..count].iter().enumerate() {
                let packed = all_packed[t * packed_len..].as_mut_ptr();
                // SAFETY: the pixels were located in this source.
                unsafe { Pack { pixels, source, channels, plane, packed }.run(&self.shape) };
            }
            for (b, block) in part.blocks.clone().enumerate() {
                let at = part.group * panels.blocks + block;
                let start = match (channel, panels.bias.is_empty()) {
                    (0, true) => Start::Zero,
                    (0, false) => Start::Rows(panels.bias[at * height..].as_ptr()),
                    _ => Start::Result,
                };
                for (t, pixels) in room.pixels[..count].iter().enumerate() {
                    let (result, result_step) = match self.direct(part.group, block, pixels) {
                        Some(place) => (place, self.places.channel),
                        None => {
                            grow(&mut room.results, count * results_len);
                            let at = t * results_len + b * height * width;
                            (room.results[at..].as_mut_ptr(), width)
                        }
                    };
                    let panel = &panels.numbers[at * panels.len..][..panels.len];
                    let tile = Tile {
                        shape: self.shape,
                        numbers: panel[channel * taps * height..].as_ptr(),
                        rows: std::array::from_fn(|row| row),
                        step: height,
                        segments: &[Segment { start: 0, len: channels * taps }],
                        packed: all_packed[t * packed_len..].as_ptr(),
                        registers: pixels.registers,
                        start,
                        result,
                        result_step,
                    };
                    // SAFETY: the panel and the packed pixels have these steps, the results these rows
                    // and registers.
                    unsafe { tile.run() };
                }
            }
            channel += channels;
            if channel >= self.channels {
                break;
            }
        }
        for (t, pixels) in room.pixels[..count].iter().enumerate() {
            for (b, block) in part.blocks.clone().enumerate() {
                let results = match self.direct(part.group, block, pixels) {
                    Some(_) => None,
                    None => Some(&room.results[t * results_len + b * height * width..]),
                };
                // SAFETY: the caller's promise.
                unsafe { self.write(part.group, block, pixels, results) };
            }
        }
    }

    /// Returns the place of a tile's results if they are whole registers of one image, one after another.
    fn direct(&self, group: usize, block: usize, pixels: &Pixels) -> Option<*mut T> {
        let (first, last) = (pixels.runs.first()?, pixels.runs.last()?);
        let [depth, height, width] = self.window.grid;
        let steps_follow = self.places.pixel[2] == 1
            && (height == 1 || self.places.pixel[1] == width)
            && (depth == 1 || self.places.pixel[0] == height * width);
        let is_whole = first.image == last.image
            && last.lane + last.len == pixels.registers * self.shape.lanes
            && (block + 1) * self.shape.rows <= self.rows;
        (steps_follow && is_whole).then(|| {
            self.result.at(self.place(group, block * self.shape.rows, first.image, first.at))
        })
    }

    fn place(&self, group: usize, row: usize, image: usize, at: Three<usize>) -> usize {
        let Places { base, image: of_image, channel, pixel } = self.places;
        base + image * of_image
            + (group * self.rows + row) * channel
            + at.iter().zip(pixel).map(|(at, step)| at * step).sum::<usize>()
    }

    /// Moves a block's results to their places, unless they are there, and finishes them.
    ///
    /// # Safety
    /// Nothing else uses these places.
    unsafe fn write(&self, group: usize, block: usize, pixels: &Pixels, results: Option<&[T]>) {
        if results.is_none() && self.finish.is_none() {
            return;
        }
        let step = self.places.pixel[2];
        let first = block * self.shape.rows;
        for row in first..self.rows.min(first + self.shape.rows) {
            for run in &pixels.runs {
                let to = self.result.at(self.place(group, row, run.image, run.at));
                if let Some(results) = results {
                    let from = &results[(row - first) * self.shape.width() + run.lane..][..run.len];
                    for (i, x) in from.iter().enumerate() {
                        // SAFETY: the caller's promise.
                        unsafe { *to.add(i * step) = *x };
                    }
                }
                if let Some(finish) = self.finish {
                    debug_assert_eq!(step, 1, "only a forward product is finished");
                    // SAFETY: the caller's promise.
                    finish(unsafe { std::slice::from_raw_parts_mut(to, run.len) });
                }
            }
        }
    }
}

/// Blocks of a group, and pixels.
struct Part {
    group: usize,
    blocks: Range<usize>,
    first: usize,
    end: usize,
}

/// A thread's memory.
struct Room<T> {
    pixels: Vec<Pixels>,
    packed: Lines<T>,
    results: Vec<T>,
}

impl<T: Real> Room<T> {
    fn new(tiles: usize) -> Self {
        let pixels = (0..tiles).map(|_| Pixels::default()).collect();
        Room { pixels, packed: Lines::new(), results: Vec::new() }
    }
}

fn grow<T: Real>(memory: &mut Vec<T>, len: usize) {
    if memory.len() < len {
        memory.resize(len, T::ZERO);
    }
}

/// The rows of a tile are at most these.
const _: () = assert!(MAX_ROWS <= 16);
