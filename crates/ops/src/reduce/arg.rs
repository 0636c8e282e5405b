//! The place of the greatest or the smallest element: the first of several, and the first NaN if
//! there is one.
//!
//! As sums are, the work is cut into parts that depend on nothing but shape and layout.

use std::ops::Range;

use keyfold_core::{DType, Result, bf16, f16};
use keyfold_expr::isa::{self, Isa, Work};
use keyfold_tensor::Tensor;

use super::convert::{Block, Input, Sink, Truth};
use super::extreme::End;
use super::geometry::{Geometry, Reduction, count, runs, steps};
use super::monoid::{Extreme, Greatest, Monoid, Ops, Ordered, Pick, Smallest};
use super::rows::{self, BLOCK, PART};
use super::share::{Shared, for_parts};
use super::{base, out_base};

/// Columns that are searched together.
const COLUMNS: usize = 512;
/// Rows of columns that one thread searches, at least.
const ROWS: usize = 256;
/// Tasks that columns are cut into, where they are few.
const TASKS: usize = 64;
/// Results that are kept before they are written.
const RESULTS: usize = 64;

/// Writes the places in the lanes of `x` into a tensor of int64 of the reduction's shape.
///
/// # Errors
/// When a tensor's memory can't be reached, or the result's not be written.
pub(crate) fn compute_into(
    end: End,
    reduction: &Reduction,
    x: &Tensor,
    out: &Tensor,
) -> Result<()> {
    macro_rules! of {
        ($type:ty, $stored:ty) => {
            into(end, reduction, x, out, Input::plain::<$type>(base::<$stored>(x)?))
        };
        ($type:ty, $stored:ty as $number:ty) => {
            into::<$number>(end, reduction, x, out, Input::plain::<$type>(base::<$stored>(x)?))
        };
    }
    match x.dtype() {
        DType::Bool => of!(Truth, u8 as u8),
        DType::F16 => of!(f16, f16 as f32),
        DType::BF16 => of!(bf16, bf16 as f32),
        DType::U8 => of!(u8, u8 as u8),
        DType::U16 => of!(u16, u16 as u16),
        DType::U32 => of!(u32, u32 as u32),
        DType::U64 => of!(u64, u64 as u64),
        DType::I8 => of!(i8, i8 as i8),
        DType::I16 => of!(i16, i16 as i16),
        DType::I32 => of!(i32, i32 as i32),
        DType::I64 => of!(i64, i64 as i64),
        DType::F32 => of!(f32, f32 as f32),
        DType::F64 => of!(f64, f64 as f64),
        // Refused by `extreme::plan`.
        DType::C64 | DType::C128 => Ok(()),
    }
}

fn into<T: Ordered>(
    end: End,
    reduction: &Reduction,
    x: &Tensor,
    out: &Tensor,
    input: Input<T>,
) -> Result<()> {
    let geometry = reduction.geometry(x, out, true);
    let mut sink = Sink::<i64>::of::<i64>(out_base(out)?);
    let mut input = input;
    input.base = input.at(geometry.x_base);
    sink.base = sink.base.wrapping_offset(geometry.out_base * size_of::<i64>() as isize);
    if geometry.lanes() == 0 {
        return Ok(());
    }
    let job = Job { geometry: &geometry, input, sink, search: Search::of(end) };
    if job.geometry.along_rows() { lanes_of(&job) } else { columns(&job) }
}

struct Job<'a, T> {
    geometry: &'a Geometry,
    input: Input<T>,
    sink: Sink<i64>,
    search: Search<T>,
}

/// The best number so far, and its place; none yet at place `NONE`.
#[derive(Clone, Copy)]
struct Best<T> {
    number: T,
    place: i64,
}

const NONE: i64 = -1;

/// The loops, compiled for each level.
struct Search<T> {
    worst: T,
    /// For the best number alone.
    ops: Ops<T>,
    /// Whether the second takes the place of the first.
    better: fn(T, T) -> bool,
    /// Of each lane of dense numbers, a step apart: the best and its place.
    lanes: unsafe fn(*const T, isize, usize, &mut [Best<T>]),
    /// Puts the numbers of rows, a step apart, that are better in the place of those there are, and
    /// the row's number with them, the first row's given.
    rows: unsafe fn(*const T, isize, usize, &mut [T], &mut [u32], u32),
}

impl<T: Ordered> Search<T> {
    fn of(end: End) -> Self {
        match end {
            End::Greatest => Search::with::<Greatest>(),
            End::Smallest => Search::with::<Smallest>(),
        }
    }

    fn with<P: Pick>() -> Self
    where
        Extreme<P, T>: Monoid<Number = T>,
    {
        Search {
            worst: P::worst(),
            ops: Ops::of::<Extreme<P, T>>(),
            better: is_better::<P, T>,
            lanes: lanes::<P, T>,
            rows: search_rows::<P, T>,
        }
    }
}

#[inline(always)]
fn is_better<P: Pick, T: Ordered>(a: T, b: T) -> bool {
    P::beyond(a, b) | (b.is_nan() & !a.is_nan())
}

struct Lanes<'a, P, T> {
    from: *const T,
    step: isize,
    len: usize,
    results: &'a mut [Best<T>],
    pick: std::marker::PhantomData<P>,
}

impl<P: Pick, T: Ordered> Work for Lanes<'_, P, T>
where
    Extreme<P, T>: Monoid<Number = T>,
{
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        for (lane, result) in self.results.iter_mut().enumerate() {
            let from = self.from.wrapping_offset(lane as isize * self.step);
            // SAFETY: the caller of `lanes` says that each lane has so many numbers there.
            let lane = unsafe { std::slice::from_raw_parts(from, self.len) };
            *result = twice::<P, T>(lane);
        }
    }
}

/// First which it is, then where: both go through vectors, and neither guesses at branches that
/// depend on the numbers.
#[inline(always)]
fn twice<P: Pick, T: Ordered>(x: &[T]) -> Best<T>
where
    Extreme<P, T>: Monoid<Number = T>,
{
    let number = super::monoid::dense::<Extreme<P, T>>(x);
    const CHUNK: usize = 64;
    // As many as the widest vector has of float32, and known to the compiler, so that short lanes
    // aren't its leftovers.
    const WAYS: usize = 16;
    let mut place = 0;
    let mut chunk = x;
    // A chunk without it is passed over.
    while chunk.len() > CHUNK {
        let (head, rest) = chunk.split_at(CHUNK);
        if head.iter().fold(false, |hit, x| hit | same(*x, number)) {
            chunk = head;
            break;
        }
        (chunk, place) = (rest, place + CHUNK);
    }
    let mut first = [u32::MAX; WAYS];
    let at = |x: T, at: usize| if same(x, number) { at as u32 } else { u32::MAX };
    let mut parts = chunk.chunks_exact(WAYS);
    let mut start = 0;
    for part in &mut parts {
        for i in 0..WAYS {
            first[i] = first[i].min(at(part[i], start + i));
        }
        start += WAYS;
    }
    for (i, x) in parts.remainder().iter().enumerate() {
        first[i] = first[i].min(at(*x, start + i));
    }
    let first = first.into_iter().fold(u32::MAX, u32::min);
    Best { number, place: place as i64 + i64::from(first) }
}

#[inline(always)]
fn same<T: Ordered>(a: T, b: T) -> bool {
    (a == b) | (a.is_nan() & b.is_nan())
}

/// # Safety
/// So many numbers, at least one, can be read in each lane.
unsafe fn lanes<P: Pick, T: Ordered>(
    from: *const T,
    step: isize,
    len: usize,
    results: &mut [Best<T>],
) where
    Extreme<P, T>: Monoid<Number = T>,
{
    isa::dispatch(Lanes::<P, T> { from, step, len, results, pick: std::marker::PhantomData });
}

struct Rows<'a, P, T> {
    from: *const T,
    step: isize,
    rows: usize,
    best: &'a mut [T],
    places: &'a mut [u32],
    first: u32,
    pick: std::marker::PhantomData<P>,
}

impl<P: Pick, T: Ordered> Work for Rows<'_, P, T> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        for row in 0..self.rows {
            let from = self.from.wrapping_offset(row as isize * self.step);
            // SAFETY: the caller of `search_rows` says that each row has so many numbers there.
            let x = unsafe { std::slice::from_raw_parts(from, self.best.len()) };
            one_row::<P, T>(self.best, self.places, x, self.first + row as u32);
        }
    }
}

#[inline(always)]
fn one_row<P: Pick, T: Ordered>(best: &mut [T], places: &mut [u32], x: &[T], row: u32) {
    for ((best, place), x) in best.iter_mut().zip(places).zip(x) {
        let better = is_better::<P, T>(*best, *x);
        *best = if better { *x } else { *best };
        *place = if better { row } else { *place };
    }
}

/// # Safety
/// As many numbers as there are in `best` can be read in each row.
unsafe fn search_rows<P: Pick, T: Ordered>(
    from: *const T,
    step: isize,
    rows: usize,
    best: &mut [T],
    places: &mut [u32],
    first: u32,
) {
    let pick = std::marker::PhantomData::<P>;
    isa::dispatch(Rows { from, step, rows, best, places, first, pick });
}

impl<T: Ordered> Job<'_, T> {
    fn none(&self) -> Best<T> {
        Best { number: self.search.worst, place: NONE }
    }

    /// The better of two, the first of equals; `b` lies behind `a`.
    fn first_best(&self, a: Best<T>, b: Best<T>) -> Best<T> {
        let better = a.place == NONE || (self.search.better)(a.number, b.number);
        if better && b.place != NONE { b } else { a }
    }
}

fn lanes_of<T: Ordered>(job: &Job<'_, T>) -> Result<()> {
    let (lanes, len) = (job.geometry.lanes(), job.geometry.len());
    if len <= PART {
        let grain = (PART / len).max(1);
        return for_parts(lanes, grain, lanes * len, |part| {
            whole_lanes(job, part, len);
            Ok(())
        });
    }
    // First the best of each part; then its place, in the first part that has it.
    let parts = len.div_ceil(PART);
    let mut partial = vec![job.search.worst; lanes * parts];
    let shared = Shared::new(&mut partial);
    let start = |lane: usize| {
        let mut at = (0, 0);
        runs(&job.geometry.kept, lane..lane + 1, 1, |run| at = (run.x, run.out));
        at
    };
    let range = |part: usize| part * PART..len.min((part + 1) * PART);
    for_parts(lanes * parts, 1, lanes * len, |tasks| {
        let mut stage = [job.search.worst; BLOCK];
        for task in tasks {
            let ((x, _), part) = (start(task / parts), range(task % parts));
            let (input, ops) = (&job.input, &job.search.ops);
            let best = rows::part_of_lane(job.geometry, input, ops, x, part, &mut stage);
            // SAFETY: each task has a place of its own.
            unsafe { shared.write(task, best) };
        }
        Ok(())
    })?;
    for_parts(lanes, 1, lanes * PART, |some| {
        let mut stage = [job.search.worst; BLOCK];
        for lane in some {
            let partial = &partial[lane * parts..(lane + 1) * parts];
            let mut best = 0;
            for (part, number) in partial.iter().enumerate() {
                if (job.search.better)(partial[best], *number) {
                    best = part;
                }
            }
            let (x, out) = start(lane);
            let found = part_of_lane(job, x, range(best), &mut stage);
            // SAFETY: the result's own walk stays inside it, and each lane has its own place.
            unsafe { job.sink.put(&mut [found.place], out, 1) };
        }
        Ok(())
    })
}

fn whole_lanes<T: Ordered>(job: &Job<'_, T>, part: Range<usize>, len: usize) {
    let (kept, _) = steps(&job.geometry.kept);
    let (inner, _) = steps(&job.geometry.reduced);
    let simple = job.geometry.reduced.len() == 1;
    let in_place = simple && job.input.direct && inner.x == 1 && len <= 4 * BLOCK;
    let mut results = [job.none(); RESULTS];
    let mut places = [0; RESULTS];
    let mut stage = None;
    runs(&job.geometry.kept, part, 1, |run| {
        let mut done = 0;
        while done < run.len {
            let x = run.x + done as isize * kept.x;
            let mut count = RESULTS.min(run.len - done);
            if in_place {
                let from = job.input.at(x).cast();
                // SAFETY: the walk stays inside the tensor, whose elements are of this type.
                unsafe { (job.search.lanes)(from, kept.x, len, &mut results[..count]) };
            } else {
                let stage = stage.get_or_insert([job.search.worst; BLOCK]);
                if simple && len <= BLOCK / 2 {
                    count = count.min(BLOCK / len);
                    let block = Block { rows: count, row_step: kept.x, len, step: inner.x };
                    // SAFETY: the walk stays inside the tensor, and the block's elements fit.
                    unsafe {
                        job.input.fill(x, block, stage.as_mut_ptr());
                        let from = stage.as_ptr();
                        (job.search.lanes)(from, len as isize, len, &mut results[..count]);
                    }
                } else {
                    count = 1;
                    results[0] = part_of_lane(job, x, 0..len, stage);
                }
            }
            for (place, best) in places.iter_mut().zip(&results[..count]) {
                *place = best.place;
            }
            let out = run.out + done as isize * kept.out;
            // SAFETY: the walk over the result stays inside it, and each lane has its own place.
            unsafe { job.sink.put(&mut places[..count], out, kept.out) };
            done += count;
        }
    });
}

/// The best of a range of the elements of the lane that begins at `x`.
fn part_of_lane<T: Ordered>(
    job: &Job<'_, T>,
    x: isize,
    range: Range<usize>,
    stage: &mut [T; BLOCK],
) -> Best<T> {
    let (inner, around) = steps(&job.geometry.reduced);
    let direct = job.input.direct && inner.x == 1;
    let mut all = job.none();
    let mut place = range.start as i64;
    let mut found = [job.none()];
    runs(&job.geometry.reduced, range, BLOCK, |run| {
        let start = x + run.x;
        let mut push = |found: &[Best<T>; 1], len: usize| {
            let [mut best] = *found;
            best.place += place;
            place += len as i64;
            all = job.first_best(all, best);
        };
        if run.rows > 1 {
            let block = Block { rows: run.rows, row_step: around.x, len: run.len, step: inner.x };
            let len = run.rows * run.len;
            // SAFETY: the walk stays inside the tensor, and a run of several rows fits.
            unsafe {
                job.input.fill(start, block, stage.as_mut_ptr());
                (job.search.lanes)(stage.as_ptr(), 0, len, &mut found);
            }
            return push(&found, len);
        }
        let mut done = 0;
        while done < run.len {
            let at = start + done as isize * inner.x;
            let len = (run.len - done).min(if direct { 4 * BLOCK } else { BLOCK });
            // SAFETY: the walk stays inside the tensor; what is staged fits.
            unsafe {
                if direct {
                    (job.search.lanes)(job.input.at(at).cast(), 0, len, &mut found);
                } else {
                    let block = Block { rows: 1, row_step: 0, len, step: inner.x };
                    job.input.fill(at, block, stage.as_mut_ptr());
                    (job.search.lanes)(stage.as_ptr(), 0, len, &mut found);
                }
            }
            push(&found, len);
            done += len;
        }
    });
    all
}

/// Tiles of columns, in parts of their rows.
fn columns<T: Ordered>(job: &Job<'_, T>) -> Result<()> {
    let kept = &*job.geometry.kept;
    let (inner, _) = steps(kept);
    let outer = &kept[..kept.len().saturating_sub(1)];
    let (len, width) = (job.geometry.len(), inner.size.min(COLUMNS));
    let per_outer = inner.size.div_ceil(width);
    let tiles = count(outer) * per_outer;
    let elements = job.geometry.lanes() * len;
    // At most so many rows that their numbers fit into 32 bits.
    let most = (len / ROWS).max(1);
    let part = len.div_ceil(TASKS.div_ceil(tiles).min(most)).min(1 << 30);
    let parts = len.div_ceil(part);
    let place = |tile: usize| {
        let (mut x, mut out) = (0, 0);
        let at = tile / per_outer;
        runs(outer, at..at + 1, 1, |run| (x, out) = (run.x, run.out));
        let start = tile % per_outer * width;
        let width = width.min(inner.size - start);
        (x + start as isize * inner.x, out + start as isize * inner.out, width)
    };
    let mut partial = vec![job.none(); if parts > 1 { tiles * parts * width } else { 0 }];
    let shared = Shared::new(&mut partial);
    let grain = (PART / (part * width)).max(1);
    for_parts(tiles * parts, grain, elements, |tasks| {
        let mut scratch = Scratch::new(job, width);
        for task in tasks {
            let (tile, at) = (task / parts, task % parts);
            let (x, out, columns) = place(tile);
            part_of_columns(job, x, columns, at * part..len.min((at + 1) * part), &mut scratch);
            // SAFETY: each task has places of its own, in the result or among the partial ones.
            unsafe {
                if parts == 1 {
                    job.sink.put(&mut scratch.found[..columns], out, inner.out);
                } else {
                    let found = shared.part(task * width..task * width + columns);
                    for (c, best) in found.iter_mut().enumerate() {
                        *best = Best { number: scratch.best[c], place: scratch.found[c] };
                    }
                }
            }
        }
        Ok(())
    })?;
    for (tile, partial) in partial.chunks_exact(parts * width).enumerate() {
        let (_, out, columns) = place(tile);
        for c in 0..columns {
            let rows = partial[c..].iter().step_by(width);
            let best = rows.fold(job.none(), |a, b| job.first_best(a, *b));
            // SAFETY: the result's own walk stays inside it.
            unsafe { job.sink.put(&mut [best.place], out + c as isize * inner.out, 1) };
        }
    }
    Ok(())
}

struct Scratch<T> {
    best: Vec<T>,
    rows: Vec<u32>,
    found: Vec<i64>,
    stage: Vec<T>,
}

impl<T: Ordered> Scratch<T> {
    fn new(job: &Job<'_, T>, width: usize) -> Self {
        let worst = job.search.worst;
        Scratch {
            best: vec![worst; width],
            rows: vec![0; width],
            found: vec![0; width],
            stage: vec![worst; BLOCK.max(width)],
        }
    }
}

/// Leaves the best of each column, and its place, in `scratch`.
fn part_of_columns<T: Ordered>(
    job: &Job<'_, T>,
    x: isize,
    columns: usize,
    range: Range<usize>,
    scratch: &mut Scratch<T>,
) {
    let (inner, _) = steps(&job.geometry.kept);
    let (row, _) = steps(&job.geometry.reduced);
    let direct = job.input.direct && (inner.x == 1 || inner.size == 1);
    let Scratch { best, rows, found, stage } = scratch;
    let (best, places) = (&mut best[..columns], &mut rows[..columns]);
    let start = range.start as i64;
    // The first row is the best so far, so that places are right where nothing beats the worst.
    let mut next = 0_u32;
    places.fill(0);
    let mut first = true;
    runs(&job.geometry.reduced, range, 1, |run| {
        let mut done = 0;
        while done < run.len {
            let at = x + run.x + done as isize * row.x;
            let mut count = run.len - done;
            let (from, step): (*const T, isize) = if direct {
                (job.input.at(at).cast(), row.x)
            } else {
                count = count.min((stage.len() / columns).max(1));
                let block = Block { rows: count, row_step: row.x, len: columns, step: inner.x };
                // SAFETY: the walk stays inside the tensor, and the block's elements fit.
                unsafe { job.input.fill(at, block, stage.as_mut_ptr()) };
                (stage.as_ptr(), columns as isize)
            };
            // SAFETY: as above; the elements are of this type where they are read directly.
            unsafe {
                if first {
                    best.copy_from_slice(std::slice::from_raw_parts(from, columns));
                    first = false;
                }
                (job.search.rows)(from, step, count, best, places, next);
            }
            next += count as u32;
            done += count;
        }
    });
    for (found, row) in found.iter_mut().zip(&*places) {
        *found = start + i64::from(*row);
    }
}
