//! The gradient of a convolution's weight: for each of its numbers the sum over all pixels of the output's
//! gradient times what the pixel sees.
//!
//! The registers of a tile hold channels of the output: its gradient is transposed first, so that the
//! channels of a pixel lie together. What pixels see is read where it lies, one number at a time, in
//! the input, or in a copy of it with the padding around.

use keyfold_core::Result;
use keyfold_kit::pool::{Schedule, num_threads, parallel_for};

use super::geometry::Geometry;
use super::lanes::Real;
use super::shared::{Lines, Shared, scratch, scratch_of};
use super::tile::{MAX_ROWS, Segment, Start, Tile, TileShape};
use super::transpose::transpose;
use super::window::Three;

/// Pixels whose registers stay in the first cache.
const PIXELS: usize = 128;
/// The most tiles of a part; their sums stay in the second cache.
const TILES: usize = 96;
/// The most numbers of the sums of slices of images, in all, if there are several slices.
const SUMS: usize = 1 << 19;
/// The fewest tiles of a part, where there are as many.
const FEW_TILES: usize = 6;
/// Elements that are worth a thread's part.
const PART: usize = 1 << 15;

/// The gradient of a weight `[groups * rows, channels, kernel]`.
pub(super) struct WeightGradient<'a, T> {
    pub(super) shape: TileShape,
    pub(super) geometry: &'a Geometry,
    /// The input, `[images, groups * channels, size]`.
    pub(super) input: *const T,
    /// The output's gradient, `[images, groups * rows, size]`.
    pub(super) gradient: *const T,
    pub(super) result: Shared<T>,
}

// SAFETY: the sources are only read, and each part of the result is written by one thread.
unsafe impl<T: Sync> Sync for WeightGradient<'_, T> {}

/// The sizes of an input that has all that pixels see.
struct Padded<T> {
    numbers: *const T,
    size: Three<usize>,
    plane: usize,
}

// SAFETY: the numbers are only read.
unsafe impl<T: Sync> Sync for Padded<T> {}

impl<T: Real> WeightGradient<'_, T> {
    /// # Safety
    /// The sources and the result are as large as the sizes say; nothing else uses the result.
    pub(super) unsafe fn run(&self) -> Result<()> {
        let Geometry { groups, channels, images, .. } = *self.geometry;
        let height = self.shape.rows;
        let steps = channels * self.geometry.taps();
        let pixels = self.geometry.pixels();
        if images * pixels == 0 {
            for at in 0..groups * self.geometry.rows * steps {
                // SAFETY: the caller's promise.
                unsafe { *self.result.at(at) = T::ZERO };
            }
            return Ok(());
        }
        let mut room = Vec::new();
        // SAFETY: the caller's promise.
        let input = unsafe { self.padded(&mut room) }?;
        let offsets = self.offsets(&input);
        let panels = self.panels();
        let tiles = steps.div_ceil(height);
        // How many slices there are doesn't depend on the threads, so that neither do the sums. Groups are
        // parts enough.
        let len = groups * self.geometry.rows * steps;
        let most = if groups == 1 { (SUMS / len).clamp(1, images) } else { 1 };
        let each = images.div_ceil(most);
        let slices = images.div_ceil(each);
        let mut sums = scratch(if slices > 1 { slices * len } else { 0 });
        let first_sum = if slices > 1 { Shared(sums.as_mut_ptr()) } else { self.result };
        // Each part transposes the gradient of its panel anew, so a part has some tiles.
        let parts = 2 * num_threads()?;
        let at_once = tiles * panels * groups * slices / parts;
        let at_once = at_once.clamp(FEW_TILES, TILES).min(tiles);
        let groups_of_tiles = tiles.div_ceil(at_once);
        let of_slice = groups * panels * groups_of_tiles;
        parallel_for(Schedule::Adaptive, 0..slices * of_slice, 1, |range| {
            let mut sums = Lines::new();
            let mut packed = Lines::new();
            let sums = sums.of(at_once * height * self.shape.width());
            let packed = packed.of(2 * PIXELS * self.shape.width());
            for part in range {
                let (slice, part) = (part / of_slice, part % of_slice);
                let (panel, first) = (part / groups_of_tiles, part % groups_of_tiles * at_once);
                let (group, panel) = (panel / panels, panel % panels);
                let registers = self.registers(panel);
                let before = self.registers_before(panel);
                let part = Part {
                    images: slice * each..images.min((slice + 1) * each),
                    group,
                    first_row: before * self.shape.lanes,
                    registers,
                    tiles: first..tiles.min(first + at_once),
                    result: Shared(first_sum.at(slice * len)),
                };
                // SAFETY: the caller's promise; each part has numbers of its own.
                unsafe { self.part(&part, &input, &offsets, (&mut *packed, &mut *sums)) };
            }
            Ok(())
        })?;
        for (slice, sums) in sums.chunks_exact(len).enumerate() {
            for (at, sum) in sums.iter().enumerate() {
                // SAFETY: the caller's promise.
                let to = unsafe { &mut *self.result.at(at) };
                *to = if slice == 0 { *sum } else { to.plus(*sum) };
            }
        }
        Ok(())
    }

    /// The number of panels, which divide a group's registers of channels evenly.
    fn panels(&self) -> usize {
        self.geometry.rows.div_ceil(self.shape.lanes).div_ceil(self.shape.registers)
    }

    fn registers_before(&self, panel: usize) -> usize {
        self.geometry.rows.div_ceil(self.shape.lanes) * panel / self.panels()
    }

    fn registers(&self, panel: usize) -> usize {
        self.registers_before(panel + 1) - self.registers_before(panel)
    }

    /// The distance of each number of a kernel from the origin of what a pixel sees.
    fn offsets(&self, input: &Padded<T>) -> Vec<usize> {
        let [depth, height, width] = self.geometry.kernel;
        let [by_d, by_h, by_w] = self.geometry.dilation;
        let mut offsets = Vec::with_capacity(self.geometry.channels * self.geometry.taps());
        for channel in 0..self.geometry.channels {
            for d in 0..depth {
                for h in 0..height {
                    let row = (d * by_d * input.size[1] + h * by_h) * input.size[2];
                    offsets.extend((0..width).map(|w| channel * input.plane + row + w * by_w));
                }
            }
        }
        offsets
    }

    /// Returns the input if pixels see nothing outside of it, else a copy with the padding.
    ///
    /// # Safety
    /// As of [`WeightGradient::run`].
    unsafe fn padded(&self, room: &mut Vec<T>) -> Result<Padded<T>> {
        let geometry = self.geometry;
        let seen: Three<usize> = std::array::from_fn(|dim| {
            let last = (geometry.output[dim] - 1).saturating_mul(geometry.stride[dim]);
            let reach = (geometry.kernel[dim] - 1).saturating_mul(geometry.dilation[dim]);
            last.saturating_add(reach).saturating_add(1)
        });
        let [depth, height, width] = geometry.input;
        let plane = depth * height * width;
        let is_inside = (0..3).all(|d| geometry.padding[d] == 0 && seen[d] <= geometry.input[d]);
        if is_inside {
            return Ok(Padded { numbers: self.input, size: geometry.input, plane });
        }
        let planes = geometry.images * geometry.groups * geometry.channels;
        *room = scratch_of(&[planes, seen[0], seen[1], seen[2]])?;
        let padded_plane: usize = seen.iter().product();
        let (from, to) = (Shared(self.input.cast_mut()), Shared(room.as_mut_ptr()));
        let grain = (PART / padded_plane).max(1);
        // The places in the copy of the input's first number and of what follows the last one.
        let [first, end] = [0, 1].map(|end| {
            let place = |d: usize| geometry.padding[d] + end as isize * geometry.input[d] as isize;
            [0, 1, 2].map(|d| place(d).clamp(0, seen[d] as isize) as usize)
        });
        parallel_for(Schedule::Adaptive, 0..planes, grain, |range| {
            for at in range {
                for d in first[0]..end[0] {
                    for h in first[1]..end[1] {
                        let source =
                            |dim: usize, at: usize| (at as isize - geometry.padding[dim]) as usize;
                        let row =
                            (source(0, d) * height + source(1, h)) * width + source(2, first[2]);
                        let place = (d * seen[1] + h) * seen[2] + first[2];
                        // SAFETY: the places are inside the input and the copy, each plane of which is
                        // one thread's.
                        unsafe {
                            std::ptr::copy_nonoverlapping(
                                from.at(at * plane + row),
                                to.at(at * padded_plane + place),
                                end[2] - first[2],
                            );
                        }
                    }
                }
            }
            Ok(())
        })?;
        Ok(Padded { numbers: room.as_ptr(), size: seen, plane: padded_plane })
    }

    /// Computes some tiles of a panel.
    ///
    /// # Safety
    /// As of [`WeightGradient::run`]; nothing else uses the results of the part.
    unsafe fn part(
        &self,
        part: &Part<T>,
        input: &Padded<T>,
        offsets: &[usize],
        (packed, sums): (&mut [T], &mut [T]),
    ) {
        let Geometry { groups, channels, rows, output, stride, .. } = *self.geometry;
        let (height, width) = (self.shape.rows, part.registers * self.shape.lanes);
        let mut segments = Vec::new();
        let pixels = self.geometry.pixels();
        let mut start = Start::Zero;
        let [depth, lines, line] = output;
        // The rows of an input without padding that pixels see one after another are one row.
        let is_flat = stride == [1; 3]
            && (depth * lines == 1 || line == input.size[2])
            && (depth == 1 || lines == input.size[1]);
        let (lines, line) = match is_flat {
            true => (1, depth * lines * line),
            false => (depth * lines, line),
        };
        for image in part.images.clone() {
            let numbers =
                input.numbers.wrapping_add((image * groups + part.group) * channels * input.plane);
            let (mut at, mut within, mut first) = (0, 0, 0);
            while at < lines {
                segments.clear();
                let mut steps = 0;
                while at < lines && steps < PIXELS {
                    let (d, h) = match is_flat {
                        true => (0, 0),
                        false => (at / output[1], at % output[1]),
                    };
                    let row = (d * stride[0] * input.size[1] + h * stride[1]) * input.size[2];
                    // Short rows aren't divided.
                    let left = line - within;
                    let len = if left <= PIXELS { left } else { PIXELS - steps.min(PIXELS - 1) };
                    segments.push(Segment { start: row + within * stride[2], len });
                    steps += len;
                    within += len;
                    if within == line {
                        (at, within) = (at + 1, 0);
                    }
                }
                for register in 0..part.registers {
                    let channel = part.first_row + register * self.shape.lanes;
                    let row = (image * groups + part.group) * rows + channel;
                    let from = self.gradient.wrapping_add(row * pixels + first);
                    let to = packed[register * self.shape.lanes..].as_mut_ptr();
                    let count = self.shape.lanes.min(rows - channel);
                    // SAFETY: the gradient has these channels and pixels, and there is room for two
                    // lines that are no longer than the pixels of a part.
                    unsafe { transpose(&self.shape, (from, pixels, count), (to, width), steps) };
                }
                first += steps;
                for (t, tile) in part.tiles.clone().enumerate() {
                    let offset =
                        |row: usize| offsets.get(tile * height + row).copied().unwrap_or(0);
                    let tile = Tile {
                        shape: self.shape,
                        numbers,
                        rows: std::array::from_fn::<_, MAX_ROWS, _>(offset),
                        step: stride[2],
                        segments: &segments,
                        packed: packed.as_ptr(),
                        registers: part.registers,
                        start,
                        result: sums[t * height * width..].as_mut_ptr(),
                        result_step: width,
                    };
                    // SAFETY: pixels see the numbers of these segments, the packed registers follow
                    // each other in the order of the pixels, and the sums are as large as the tiles.
                    unsafe { tile.run() };
                }
                start = Start::Result;
            }
        }
        let first = part.tiles.start * height;
        let count = part.tiles.len() * height;
        let count = count.min(offsets.len() - first);
        for row in 0..width.min(rows - part.first_row) {
            let place = (part.group * rows + part.first_row + row) * offsets.len() + first;
            for step in 0..count {
                // SAFETY: the result is as large as the sizes say, and the caller's promise.
                unsafe { *part.result.at(place + step) = sums[step * width + row] };
            }
        }
    }
}

/// Some tiles of a group's panel, over some images.
struct Part<T> {
    images: std::ops::Range<usize>,
    group: usize,
    first_row: usize,
    registers: usize,
    tiles: std::ops::Range<usize>,
    /// Where the sums of these images go.
    result: Shared<T>,
}

/// The sums over images and pixels of each channel: the gradient of the bias.
///
/// # Safety
/// The gradient, `[images, channels, pixels]`, is as large as the sizes say, and so is the result, which
/// nothing else uses.
pub(super) unsafe fn bias_gradient<T: Real>(
    (images, channels, pixels): (usize, usize, usize),
    gradient: *const T,
    result: Shared<T>,
) -> Result<()> {
    let gradient = Shared(gradient.cast_mut());
    let grain = (PART / (images * pixels).max(1)).max(1);
    parallel_for(Schedule::Adaptive, 0..channels, grain, |range| {
        for channel in range {
            let mut sum = T::ZERO;
            for image in 0..images {
                let from = gradient.at((image * channels + channel) * pixels);
                // SAFETY: the caller's promise.
                sum = sum.plus(total(unsafe { std::slice::from_raw_parts(from, pixels) }));
            }
            // SAFETY: as above; each channel is one thread's.
            unsafe { *result.at(channel) = sum };
        }
        Ok(())
    })
}

/// The sum of numbers: halves of long ones are added up by themselves, so that the error stays small.
fn total<T: Real>(numbers: &[T]) -> T {
    if numbers.len() > 1024 {
        let (left, right) = numbers.split_at(numbers.len() / 2);
        return total(left).plus(total(right));
    }
    let mut sums = [T::ZERO; 16];
    let (chunks, rest) = numbers.as_chunks::<16>();
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum = sum.plus(*x);
        }
    }
    let sum = rest.iter().fold(T::ZERO, |sum, x| sum.plus(*x));
    sums.iter().fold(sum, |sum, x| sum.plus(*x))
}
