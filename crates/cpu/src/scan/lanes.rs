//! Scans along the dimension that is innermost in memory. Each result waits for the one before, which takes
//! several cycles, so several lanes are scanned side by side, or several blocks of a long lane.

use std::array;

use keyfold_core::Result;
use keyfold_kit::scan::chained_groups;

use super::combine::Combine;
use super::{Job, Stage, TASK, new_stage};
use crate::reduce::blocks::Block;
use crate::reduce::geometry::{Dim, runs, steps};
use crate::reduce::parallel::for_parts;

/// The most lanes, or blocks, side by side.
const WIDTH: usize = 8;

/// Elements of a block, whose results are computed in order.
const BLOCK: usize = 1024;

/// Elements of the blocks side by side.
const GROUP: usize = WIDTH * BLOCK;

/// Elements of each lane that are staged at a time.
const STAGED: usize = 512;

pub(super) fn scan_lanes<M: Combine>(job: &Job<'_, M::Number>) -> Result<()> {
    let lanes = Lanes::new(job);
    let (count, len) = (job.geometry.lanes(), lanes.len);
    if M::IN_BLOCKS && count < WIDTH && len > BLOCK {
        for lane in 0..count {
            let (mut x, mut out) = (0, 0);
            runs(&job.geometry.kept, lane..lane + 1, 1, |run| (x, out) = (run.x, run.out));
            lanes.in_blocks::<M>(x, out)?;
        }
        return Ok(());
    }
    for_parts(count, (TASK / len).max(1).next_multiple_of(WIDTH), count * len, |part| {
        let mut stage = new_stage(if lanes.is_direct() { 0 } else { WIDTH * STAGED });
        runs(&job.geometry.kept, part, 1, |run| {
            let mut done = 0;
            while done < run.len {
                let at = done as isize;
                let (x, out) = (run.x + at * lanes.next.x, run.out + at * lanes.next.out);
                done += match run.len - done {
                    WIDTH.. => lanes.several::<M, WIDTH>(x, out, &mut stage),
                    4.. => lanes.several::<M, 4>(x, out, &mut stage),
                    2.. => lanes.several::<M, 2>(x, out, &mut stage),
                    _ => lanes.several::<M, 1>(x, out, &mut stage),
                };
            }
        });
        Ok(())
    })
}

/// The lanes of a scan.
struct Lanes<'a, A> {
    job: &'a Job<'a, A>,
    /// The steps along a lane, and to the next lane.
    along: Dim,
    next: Dim,
    len: usize,
    /// Whether elements are read in place, and results written in place.
    reads: bool,
    writes: bool,
}

impl<'a, A: Copy + Send + Sync + 'static> Lanes<'a, A> {
    fn new(job: &'a Job<'a, A>) -> Self {
        let ((next, _), (along, _)) = (steps(&job.geometry.kept), steps(&job.geometry.reduced));
        let len = job.geometry.len();
        let reads = job.input.direct() && (along.x == 1 || len == 1);
        let writes = job.to.direct && (along.out == 1 || len == 1);
        Lanes { job, along, next, len, reads, writes }
    }

    fn is_direct(&self) -> bool {
        self.reads && self.writes
    }

    /// Scans `W` lanes, of which the first begins at these offsets. Returns their number.
    fn several<M: Combine<Number = A>, const W: usize>(
        &self,
        x: isize,
        out: isize,
        stage: &mut Stage<A>,
    ) -> usize {
        let at_once = if self.is_direct() { self.len } else { STAGED };
        let mut before = [None; W];
        for start in (0..self.len).step_by(at_once) {
            let len = at_once.min(self.len - start);
            let x = x + start as isize * self.along.x;
            let out = out + start as isize * self.along.out;
            let row = len as isize;
            // SAFETY: both traversals stay inside their tensors, and no other thread accesses these lanes of
            // the result; the stage has room.
            unsafe {
                let (mut from, mut from_step) = (self.job.input.at(x).cast(), self.next.x);
                if !self.reads {
                    let block = Block::along(W, self.next.x, len, self.along.x);
                    self.job.input.fill(x, block, stage.as_mut_ptr().cast());
                    (from, from_step) = (stage.as_ptr().cast(), row);
                }
                let (mut to, mut to_step) = (self.job.to.sink.at(out).cast(), self.next.out);
                if !self.writes {
                    (to, to_step) = (stage.as_mut_ptr().cast(), row);
                }
                let last = side_by_side::<M, W>((from, from_step), (to, to_step), len, before);
                before = last.map(Some);
                for lane in (0..W).filter(|_| !self.writes) {
                    let found = std::slice::from_raw_parts_mut(to.add(lane * len), len);
                    let out = out + lane as isize * self.next.out;
                    self.job.to.sink.put(found, out, self.along.out);
                }
            }
        }
        W
    }

    /// Scans one long lane, which begins at these offsets, in groups of blocks on several threads.
    fn in_blocks<M: Combine<Number = A>>(&self, x: isize, out: isize) -> Result<()> {
        let place = |group: usize| {
            let start = group * GROUP;
            let at = start as isize;
            (x + at * self.along.x, out + at * self.along.out, GROUP.min(self.len - start))
        };
        chained_groups(
            self.len.div_ceil(GROUP),
            |group| {
                let (x, _, len) = place(group);
                let mut stage = new_stage(if self.is_direct() { 0 } else { GROUP });
                let mut from: *const A = self.job.input.at(x).cast();
                if !self.reads {
                    let block = Block::along(1, 0, len, self.along.x);
                    // SAFETY: the group lies inside the tensor, and fits in the stage.
                    unsafe { self.job.input.fill(x, block, stage.as_mut_ptr().cast()) };
                    from = stage.as_ptr().cast();
                }
                // SAFETY: as above.
                unsafe { Blocks::new::<M>(from, len, stage) }
            },
            // SAFETY: the state of a group whose elements can be read.
            |blocks, before| unsafe { blocks.carry::<M>(before) },
            |group, mut blocks| {
                let (_, out, len) = place(group);
                let mut to: *mut A = self.job.to.sink.at(out).cast();
                if !self.writes {
                    to = blocks.stage.as_mut_ptr().cast();
                }
                // SAFETY: no other thread accesses the group's results; the stage has room for them.
                unsafe {
                    blocks.write::<M>(to);
                    if !self.writes {
                        let found = std::slice::from_raw_parts_mut(to, len);
                        self.job.to.sink.put(found, out, self.along.out);
                    }
                }
            },
        )
    }
}

/// A group of a long lane: blocks of equal length, and the few elements behind them.
struct Blocks<A> {
    from: *const A,
    len: usize,
    stage: Stage<A>,
    /// The result of each block's elements, then that of all elements before it; the last place is for the
    /// elements behind the blocks.
    totals: [Option<A>; WIDTH + 1],
}

impl<A: Copy> Blocks<A> {
    /// # Safety
    /// `from` has that many readable elements, as long as the blocks are used.
    unsafe fn new<M: Combine<Number = A>>(from: *const A, len: usize, stage: Stage<A>) -> Self {
        let block = len / WIDTH;
        let mut totals = [None; WIDTH + 1];
        if block > 0 {
            // SAFETY: the blocks are inside.
            unsafe {
                let first = |w: usize| from.add(w * block);
                let mut all: [A; WIDTH] = array::from_fn(|w| first(w).read());
                for i in 1..block {
                    for (w, all) in all.iter_mut().enumerate() {
                        *all = M::combine(*all, first(w).add(i).read());
                    }
                }
                totals[..WIDTH].copy_from_slice(&all.map(Some));
            }
        }
        Blocks { from, len, stage, totals }
    }

    /// Replaces each block's total by that of all elements before it, and returns the total of all.
    ///
    /// # Safety
    /// The elements can still be read.
    unsafe fn carry<M: Combine<Number = A>>(&mut self, mut before: Option<A>) -> A {
        let join = |before: Option<A>, next: A| before.map_or(next, |all| M::combine(all, next));
        for total in &mut self.totals[..WIDTH] {
            let all = total.map(|own| join(before, own)).or(before);
            (*total, before) = (before, all);
        }
        self.totals[WIDTH] = before;
        for i in self.len / WIDTH * WIDTH..self.len {
            // SAFETY: the caller's promise.
            before = Some(join(before, unsafe { self.from.add(i).read() }));
        }
        before.expect("a group has an element")
    }

    /// Writes the results.
    ///
    /// # Safety
    /// The elements can still be read, and `to` has room for as many results; it may be where they are.
    unsafe fn write<M: Combine<Number = A>>(&self, to: *mut A) {
        let (block, done) = (self.len / WIDTH, self.len / WIDTH * WIDTH);
        let step = block as isize;
        let before: [Option<A>; WIDTH] = array::from_fn(|w| self.totals[w]);
        // SAFETY: the caller's promise.
        unsafe {
            if block > 0 {
                side_by_side::<M, WIDTH>((self.from, step), (to, step), block, before);
            }
            if done < self.len {
                let (from, to) = (self.from.add(done), to.add(done));
                let before = [self.totals[WIDTH]];
                side_by_side::<M, 1>((from, 0), (to, 0), self.len - done, before);
            }
        }
    }
}

/// Scans `W` sequences of `len` elements, 1 or more, that begin a step apart, and returns their last results.
/// `before` is what the elements before each sequence combine to.
///
/// # Safety
/// The elements can be read, and the results written; a result may be where its element is.
#[inline(always)]
unsafe fn side_by_side<M: Combine, const W: usize>(
    (from, from_step): (*const M::Number, isize),
    (to, to_step): (*mut M::Number, isize),
    len: usize,
    before: [Option<M::Number>; W],
) -> [M::Number; W] {
    // SAFETY: the caller's promise.
    unsafe {
        let from = |w: usize| from.wrapping_offset(w as isize * from_step);
        let to = |w: usize| to.wrapping_offset(w as isize * to_step);
        let mut all: [M::Number; W] = array::from_fn(|w| {
            let first = from(w).read();
            let first = before[w].map_or(first, |before| M::combine(before, first));
            to(w).write(first);
            first
        });
        for i in 1..len {
            for (w, all) in all.iter_mut().enumerate() {
                *all = M::combine(*all, from(w).add(i).read());
                to(w).add(i).write(*all);
            }
        }
        all
    }
}
