//! Reducing along dimensions whose elements are the nearest in memory: lane by lane.
//!
//! The lanes are shared out among threads; a long one is cut into parts of [`PART`] elements, which
//! depend on nothing but its length, and the parts' results are combined pairwise in their order. So
//! no result depends on the number of threads.

use std::ops::Range;

use keyfold_core::Result;

use super::cascade::Cascade;
use super::convert::{Block, Input, Sink};
use super::geometry::{Geometry, runs, steps};
use super::monoid::Ops;
use super::share::{Shared, for_parts};

/// A reduction with everything that it needs.
pub(crate) struct Job<'a, A> {
    pub(crate) geometry: &'a Geometry,
    pub(crate) input: Input<A>,
    pub(crate) ops: Ops<A>,
    pub(crate) sink: Sink<A>,
}

/// Numbers that are converted, or combined, at a time: they stay in the first-level cache.
pub(crate) const BLOCK: usize = 1024;

/// The longest part of a lane that one thread reduces.
pub(crate) const PART: usize = 1 << 16;

/// Results that are kept before they are written.
const RESULTS: usize = 128;

pub(crate) fn reduce_rows<A: Copy + Send + Sync + 'static>(job: &Job<'_, A>) -> Result<()> {
    let (lanes, len) = (job.geometry.lanes(), job.geometry.len());
    if len <= PART {
        let grain = (PART / len).max(1);
        return for_parts(lanes, grain, lanes * len, |part| {
            whole_lanes(job, part, len);
            Ok(())
        });
    }
    let parts = len.div_ceil(PART);
    let mut partial = vec![job.ops.identity; lanes * parts];
    let shared = Shared::new(&mut partial);
    for_parts(lanes * parts, 1, lanes * len, |tasks| {
        let mut stage = [job.ops.identity; BLOCK];
        for task in tasks {
            let (lane, part) = (task / parts, task % parts);
            let mut x = 0;
            runs(&job.geometry.kept, lane..lane + 1, 1, |run| x = run.x);
            let range = part * PART..len.min((part + 1) * PART);
            let result = part_of_lane(job.geometry, &job.input, &job.ops, x, range, &mut stage);
            // SAFETY: each task has a place of its own.
            unsafe { shared.write(task, result) };
        }
        Ok(())
    })?;
    let mut lane = 0;
    runs(&job.geometry.kept, 0..lanes, 1, |run| {
        let step = steps(&job.geometry.kept).0.out;
        for i in 0..run.len {
            let mut all = Cascade::new(job.ops.identity, job.ops.combine);
            partial[lane * parts..(lane + 1) * parts].iter().for_each(|p| all.push(*p));
            let result = all.finish().unwrap_or(job.ops.identity);
            // SAFETY: the result's own walk stays inside it.
            unsafe { job.sink.put(&mut [result], run.out + i as isize * step, 1) };
            lane += 1;
        }
    });
    Ok(())
}

/// Lanes one after the other.
fn whole_lanes<A: Copy + Send + Sync + 'static>(job: &Job<'_, A>, part: Range<usize>, len: usize) {
    let (kept, _) = steps(&job.geometry.kept);
    let (inner, _) = steps(&job.geometry.reduced);
    let simple = job.geometry.reduced.len() == 1;
    let in_place = simple && job.input.direct && inner.x == 1 && len <= BLOCK;
    let mut results = [job.ops.identity; RESULTS];
    let mut stage = None;
    runs(&job.geometry.kept, part, 1, |run| {
        let mut done = 0;
        while done < run.len {
            let x = run.x + done as isize * kept.x;
            let mut count = RESULTS.min(run.len - done);
            if in_place {
                let from = job.input.at(x).cast();
                // SAFETY: the walk stays inside the tensor, whose elements are of this type.
                unsafe { (job.ops.lanes)(from, kept.x, len, &mut results[..count]) };
            } else {
                let stage = stage.get_or_insert([job.ops.identity; BLOCK]);
                if simple && len <= BLOCK / 2 {
                    count = count.min(BLOCK / len);
                    let block = Block { rows: count, row_step: kept.x, len, step: inner.x };
                    // SAFETY: the walk stays inside the tensor, and the block's elements fit.
                    unsafe {
                        job.input.fill(x, block, stage.as_mut_ptr());
                        let from = stage.as_ptr();
                        (job.ops.lanes)(from, len as isize, len, &mut results[..count]);
                    }
                } else {
                    count = 1;
                    results[0] = part_of_lane(job.geometry, &job.input, &job.ops, x, 0..len, stage);
                }
            }
            // SAFETY: the walk over the result stays inside it, and each lane has its own place.
            unsafe {
                job.sink.put(&mut results[..count], run.out + done as isize * kept.out, kept.out);
            }
            done += count;
        }
    });
}

/// A range of the elements of the lane that begins at `x`, combined.
pub(crate) fn part_of_lane<A: Copy + Send + Sync + 'static>(
    geometry: &Geometry,
    input: &Input<A>,
    ops: &Ops<A>,
    x: isize,
    range: Range<usize>,
    stage: &mut [A; BLOCK],
) -> A {
    const AT_ONCE: usize = 16;
    let (inner, around) = steps(&geometry.reduced);
    let direct = input.direct && inner.x == 1;
    let mut all = Cascade::new(ops.identity, ops.combine);
    let mut decided = None;
    let mut results = [ops.identity; AT_ONCE];
    runs(&geometry.reduced, range, BLOCK, |run| {
        if decided.is_some() {
            return;
        }
        let mut push = |results: &[A]| {
            for &result in results {
                if (ops.is_final)(result) {
                    decided = Some(result);
                }
                all.push(result);
            }
        };
        let start = x + run.x;
        // Short rows are gathered into blocks; long ones are cut into blocks.
        if run.rows > 1 && (!direct || run.len < 128) {
            let block = Block { rows: run.rows, row_step: around.x, len: run.len, step: inner.x };
            // SAFETY: the walk stays inside the tensor, and a run of several rows fits.
            unsafe {
                input.fill(start, block, stage.as_mut_ptr());
                (ops.lanes)(stage.as_ptr(), 0, run.rows * run.len, &mut results[..1]);
            }
            return push(&results[..1]);
        }
        for row in 0..run.rows as isize {
            let start = start + row * around.x;
            let mut done = 0;
            while done < run.len {
                let left = run.len - done;
                let at = start + done as isize * inner.x;
                // SAFETY: the walk stays inside the tensor; what is staged fits.
                unsafe {
                    if direct && left >= PART {
                        results[0] = whole_part(ops, input.at(at).cast(), stage);
                        push(&results[..1]);
                        done += PART;
                    } else if direct {
                        let from = input.at(at).cast();
                        let whole = (left / BLOCK).min(AT_ONCE);
                        let (count, len) = if whole > 0 { (whole, BLOCK) } else { (1, left) };
                        (ops.lanes)(from, BLOCK as isize, len, &mut results[..count]);
                        push(&results[..count]);
                        done += count * len;
                    } else {
                        let len = left.min(BLOCK);
                        let block = Block { rows: 1, row_step: 0, len, step: inner.x };
                        input.fill(at, block, stage.as_mut_ptr());
                        (ops.lanes)(stage.as_ptr(), 0, len, &mut results[..1]);
                        push(&results[..1]);
                        done += len;
                    }
                }
            }
        }
    });
    decided.or(all.finish()).unwrap_or(ops.identity)
}

/// [`PART`] dense numbers, combined: read in four places at a time, which is faster than in one, and
/// row by row.
///
/// # Safety
/// They can be read there.
unsafe fn whole_part<A: Copy>(ops: &Ops<A>, from: *const A, rows: &mut [A; BLOCK]) -> A {
    const QUARTER: usize = PART / 4;
    rows.fill(ops.identity);
    let mut result = [ops.identity];
    // SAFETY: the caller's promise.
    unsafe {
        for start in (0..QUARTER).step_by(BLOCK) {
            (ops.accumulate)(from.add(start), QUARTER as isize, 4, rows);
        }
        (ops.lanes)(rows.as_ptr(), 0, BLOCK, &mut result);
    }
    result[0]
}
