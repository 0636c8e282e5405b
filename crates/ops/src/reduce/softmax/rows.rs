//! Along the dimension whose elements are the nearest in memory: lane by lane. Lanes of up to
//! [`PART`] elements stay in the cache from the first look to the last; longer ones are cut into parts,
//! looked at twice.

use keyfold_core::Result;

use super::Job;
use super::lanes::{Float, Lanes, Stats, finish_part, joined, softmax_lanes, stats_of};
use crate::reduce::blocks::Block;
use crate::reduce::geometry::{runs, steps};
use crate::reduce::rows::BLOCK;
use crate::reduce::share::{Shared, for_parts};

/// The longest part of a lane that one thread looks at.
const PART: usize = 1 << 15;

/// Elements that one thread does at a time, about.
const TASK: usize = 1 << 14;

pub(super) fn softmax_rows<A: Float>(job: &Job<'_, A>) -> Result<()> {
    let len = job.geometry.len();
    if len <= PART { whole(job, len) } else { in_parts(job, len) }
}

fn whole<A: Float>(job: &Job<'_, A>, len: usize) -> Result<()> {
    let (kept, _) = steps(&job.geometry.kept);
    let (lane, _) = steps(&job.geometry.reduced);
    let read = job.input.direct && (lane.x == 1 || len == 1);
    let write = job.in_place && (lane.out == 1 || len == 1);
    let at_once = (BLOCK / len).max(1);
    let lanes = job.geometry.lanes();
    for_parts(lanes, (TASK / len).max(1), lanes * len, |part| {
        let room = at_once * len;
        let mut xs = vec![A::ZERO; if read { 0 } else { room }];
        let mut outs = vec![A::ZERO; if write { 0 } else { room }];
        runs(&job.geometry.kept, part, 1, |run| {
            let mut done = 0;
            while done < run.len {
                let mut count = run.len - done;
                if !(read && write) {
                    count = count.min(at_once);
                }
                let x = run.x + done as isize * kept.x;
                let out = run.out + done as isize * kept.out;
                let row = len as isize;
                // SAFETY: both walks stay inside their tensors, and lanes of the result are each
                // one thread's alone; what is staged fits.
                unsafe {
                    let (mut lanes_x, mut x_step) = (job.input.at(x).cast::<A>(), kept.x);
                    if !read {
                        let block = Block { rows: count, row_step: kept.x, len, step: lane.x };
                        job.input.fill(x, block, xs.as_mut_ptr());
                        (lanes_x, x_step) = (xs.as_ptr(), row);
                    }
                    let (mut lanes_out, mut out_step) = (job.sink.at(out).cast::<A>(), kept.out);
                    if !write {
                        (lanes_out, out_step) = (outs.as_mut_ptr(), row);
                    }
                    let lanes =
                        Lanes { x: lanes_x, x_step, out: lanes_out, out_step, lanes: count, len };
                    softmax_lanes(lanes, job.log);
                    if !write {
                        for (i, outs) in outs.chunks_exact_mut(len).take(count).enumerate() {
                            job.sink.put(outs, out + i as isize * kept.out, lane.out);
                        }
                    }
                }
                done += count;
            }
        });
        Ok(())
    })
}

fn in_parts<A: Float>(job: &Job<'_, A>, len: usize) -> Result<()> {
    let (lane, _) = steps(&job.geometry.reduced);
    let read = job.input.direct && lane.x == 1;
    let write = job.in_place && lane.out == 1;
    let (lanes, parts) = (job.geometry.lanes(), len.div_ceil(PART));
    let elements = lanes * len;
    let place = |task: usize| {
        let (mut x, mut out) = (0, 0);
        let at = task / parts;
        runs(&job.geometry.kept, at..at + 1, 1, |run| (x, out) = (run.x, run.out));
        let start = task % parts * PART;
        let len = PART.min(len - start);
        (x + start as isize * lane.x, out + start as isize * lane.out, len)
    };
    // A part's elements, where they lie or in `stage`.
    let part_of = |x: isize, len: usize, stage: &mut Vec<A>| {
        if read {
            return job.input.at(x).cast::<A>();
        }
        stage.resize(PART, A::ZERO);
        let block = Block { rows: 1, row_step: 0, len, step: lane.x };
        // SAFETY: the part lies inside the tensor, and fits.
        unsafe { job.input.fill(x, block, stage.as_mut_ptr()) };
        stage.as_ptr()
    };
    let mut partial = vec![Stats::<A>::NONE; lanes * parts];
    let shared = Shared::new(&mut partial);
    for_parts(lanes * parts, 1, elements, |tasks| {
        let mut stage = Vec::new();
        for task in tasks {
            let (x, _, len) = place(task);
            let x = part_of(x, len, &mut stage);
            // SAFETY: the part's elements lie there; each task has a place of its own.
            unsafe { shared.write(task, stats_of(std::slice::from_raw_parts(x, len))) };
        }
        Ok(())
    })?;
    let stats: Vec<_> = partial.chunks_exact(parts).map(joined).collect();
    for_parts(lanes * parts, 1, elements, |tasks| {
        let (mut stage, mut outs) = (Vec::new(), Vec::new());
        for task in tasks {
            let (x, out, len) = place(task);
            let x = part_of(x, len, &mut stage);
            if !write {
                outs.resize(PART, A::ZERO);
            }
            let to = if write { job.sink.at(out).cast() } else { outs.as_mut_ptr() };
            // SAFETY: the part's elements lie there, and its results are this task's alone.
            unsafe {
                let x = std::slice::from_raw_parts(x, len);
                let results = std::slice::from_raw_parts_mut(to, len);
                finish_part(x, results, stats[task / parts], job.log);
                if !write {
                    job.sink.put(&mut outs[..len], out, lane.out);
                }
            }
        }
        Ok(())
    })
}
