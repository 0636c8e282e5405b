//! Softmax along the dimension that is innermost in memory: lane by lane. Lanes of up to [`PART`]
//! elements stay in the cache between the passes; longer ones are divided into parts, which are read
//! twice.

use std::mem::MaybeUninit;

use keyfold_core::Result;

use super::Job;
use super::float::{Float, MaxAndSum};
use super::lanes::{Lanes, finish_part, join_parts, max_and_sum_of, softmax_lanes};
use crate::reduce::blocks::Block;
use crate::reduce::convert::To;
use crate::reduce::geometry::{runs, steps};
use crate::reduce::parallel::{DisjointSlice, for_parts};
use crate::reduce::rows::BLOCK;

/// The most elements of a lane that one thread computes at a time.
const PART: usize = 1 << 15;

/// Elements per task of one thread, approximately.
const TASK: usize = 1 << 14;

pub(super) fn softmax_rows<S, A, D>(job: &Job<'_, S, D>) -> Result<()>
where
    S: To<A> + Copy + 'static,
    A: Float + To<D>,
    D: Copy + 'static,
{
    let len = job.geometry.len();
    if len <= PART { softmax_whole_lanes(job, len) } else { softmax_in_parts(job, len) }
}

/// Staging memory for elements that are gathered, or results that are scattered.
type Stage<T> = Vec<MaybeUninit<T>>;

fn new_stage<T: Copy>(len: usize) -> Stage<T> {
    vec![MaybeUninit::uninit(); len]
}

fn softmax_whole_lanes<S, A, D>(job: &Job<'_, S, D>, len: usize) -> Result<()>
where
    S: To<A> + Copy + 'static,
    A: Float + To<D>,
    D: Copy + 'static,
{
    let (kept, _) = steps(&job.geometry.kept);
    let (lane, _) = steps(&job.geometry.reduced);
    let read = job.input.direct() && (lane.x == 1 || len == 1);
    let write = lane.out == 1 || len == 1;
    let at_once = (BLOCK / len).max(1);
    let lanes = job.geometry.lanes();
    for_parts(lanes, (TASK / len).max(1), lanes * len, |part| {
        let mut xs = new_stage::<S>(if read { 0 } else { at_once * len });
        let mut outs = new_stage::<D>(if write { 0 } else { at_once * len });
        let mut exponentials = Vec::<A>::new();
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
                // SAFETY: both traversals stay inside their tensors, and no other thread accesses the
                // lanes of the result; the stage has room.
                unsafe {
                    let (mut lanes_x, mut x_step) = (job.input.at(x).cast::<S>(), kept.x);
                    if !read {
                        let block = Block::along(count, kept.x, len, lane.x);
                        job.input.fill(x, block, xs.as_mut_ptr().cast());
                        (lanes_x, x_step) = (xs.as_ptr().cast(), row);
                    }
                    let (mut lanes_out, mut out_step) = (job.sink.at(out).cast::<D>(), kept.out);
                    if !write {
                        (lanes_out, out_step) = (outs.as_mut_ptr().cast(), row);
                    }
                    let lanes =
                        Lanes { x: lanes_x, x_step, out: lanes_out, out_step, lanes: count, len };
                    softmax_lanes(lanes, &mut exponentials, job.log);
                    if !write {
                        for i in 0..count {
                            let results = lanes_out.add(i * len);
                            let results = std::slice::from_raw_parts_mut(results, len);
                            job.sink.put(results, out + i as isize * kept.out, lane.out);
                        }
                    }
                }
                done += count;
            }
        });
        Ok(())
    })
}

fn softmax_in_parts<S, A, D>(job: &Job<'_, S, D>, len: usize) -> Result<()>
where
    S: To<A> + Copy + 'static,
    A: Float + To<D>,
    D: Copy + 'static,
{
    let (lane, _) = steps(&job.geometry.reduced);
    let read = job.input.direct() && lane.x == 1;
    let write = lane.out == 1;
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
    // Returns a part's elements, in place or staged.
    let part_of = |x: isize, len: usize, stage: &mut Stage<S>| {
        if read {
            return job.input.at(x).cast::<S>();
        }
        stage.resize(PART, MaybeUninit::uninit());
        let block = Block::along(1, 0, len, lane.x);
        // SAFETY: the part lies inside the tensor, and fits in the stage.
        unsafe { job.input.fill(x, block, stage.as_mut_ptr().cast()) };
        stage.as_ptr().cast()
    };
    let mut partial = vec![MaxAndSum::<A>::NONE; lanes * parts];
    let shared = DisjointSlice::new(&mut partial);
    for_parts(lanes * parts, 1, elements, |tasks| {
        let mut stage = Vec::new();
        for task in tasks {
            let (x, _, len) = place(task);
            let x = part_of(x, len, &mut stage);
            // SAFETY: the part's elements are readable; each task writes to its own element.
            unsafe { shared.write(task, max_and_sum_of(std::slice::from_raw_parts(x, len))) };
        }
        Ok(())
    })?;
    let max_and_sum: Vec<_> = partial.chunks_exact(parts).map(join_parts).collect();
    for_parts(lanes * parts, 1, elements, |tasks| {
        let mut stage = Vec::new();
        let mut outs = new_stage::<D>(if write { 0 } else { PART });
        for task in tasks {
            let (x, out, len) = place(task);
            let x = part_of(x, len, &mut stage);
            let to = if write { job.sink.at(out).cast() } else { outs.as_mut_ptr().cast() };
            // SAFETY: the part's elements are readable, and no other task writes its results.
            unsafe {
                finish_part((x, to), len, max_and_sum[task / parts], job.log);
                if !write {
                    let results = std::slice::from_raw_parts_mut(to, len);
                    job.sink.put(results, out, lane.out);
                }
            }
        }
        Ok(())
    })
}
