//! The planes of a tensor that are pooled, and the rows of a plane.

use std::ops::Range;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_tensor::{Tensor, for_each_offset};

use crate::reduce::blocks::{Block, Input, Sink};

/// The pooled dimensions of a tensor, three after those that are missing in front were added with size 1; one
/// such plane for each index of the other dimensions.
pub(super) struct Planes<A> {
    pub(super) count: usize,
    starts: Starts,
    pub(super) sizes: [usize; 3],
    pub(super) strides: [isize; 3],
    /// Whether a plane's elements are stored one after another, as the type that they are computed in.
    pub(super) in_place: bool,
    /// Where elements are read or written.
    pub(super) memory: A,
}

/// The offsets of planes: a step apart, or listed.
enum Starts {
    Step(isize),
    List(Vec<isize>),
}

impl Starts {
    fn new(shape: &[usize], strides: &[isize]) -> Result<Starts> {
        let step = strides.last().copied().unwrap_or(0);
        let mut next = step;
        let even = shape.iter().zip(strides).rev().all(|(size, stride)| {
            let fits = *stride == next;
            next = stride * *size as isize;
            fits
        });
        if even {
            return Ok(Starts::Step(step));
        }
        let mut starts = Vec::with_capacity(shape.iter().product());
        for_each_offset(shape, [strides], |[at]| starts.push(at))?;
        Ok(Starts::List(starts))
    }
}

impl<A> Planes<A> {
    /// Returns the planes in the last dimensions of a tensor; `direct` says whether its elements are stored as
    /// the type that they are computed in.
    pub(super) fn new(x: &Tensor, dims: usize, memory: A, direct: bool) -> Result<Self> {
        let outer = x.ndim() - dims;
        let (leading, own) = x.shape().split_at(outer);
        let (count, starts) =
            (leading.iter().product(), Starts::new(leading, &x.strides()[..outer])?);
        let (mut sizes, mut strides) = ([1; 3], [0; 3]);
        sizes[3 - dims..].copy_from_slice(own);
        strides[3 - dims..].copy_from_slice(&x.strides()[outer..]);
        let mut step = 1;
        let dense = (0..3).rev().all(|d| {
            let fits = sizes[d] <= 1 || strides[d] == step;
            step *= sizes[d] as isize;
            fits
        });
        Ok(Planes { count, starts, sizes, strides, in_place: direct && dense, memory })
    }

    /// The number of rows of a plane.
    pub(super) fn rows(&self) -> usize {
        self.sizes[0] * self.sizes[1]
    }

    /// The number of elements of a row.
    pub(super) fn width(&self) -> usize {
        self.sizes[2]
    }

    /// The number of elements of a plane.
    pub(super) fn elements(&self) -> usize {
        self.rows() * self.width()
    }

    /// The offset of a plane.
    #[inline(always)]
    fn start(&self, plane: usize) -> isize {
        match &self.starts {
            Starts::Step(step) => plane as isize * step,
            Starts::List(starts) => starts[plane],
        }
    }

    /// Whether all planes are one after another, in place.
    pub(super) fn adjoin(&self) -> bool {
        self.in_place
            && matches!(self.starts, Starts::Step(step) if step == self.elements() as isize)
    }

    /// The offset of a row.
    #[inline(always)]
    pub(super) fn row(&self, plane: usize, [d, h]: [usize; 2]) -> isize {
        self.start(plane) + d as isize * self.strides[0] + h as isize * self.strides[1]
    }
}

impl<T: Copy + 'static> Planes<Input<T>> {
    /// Returns the address of a row's elements, if they are stored one after another as they are computed.
    #[inline(always)]
    pub(super) fn row_in_place(&self, plane: usize, row: [usize; 2]) -> Option<*const T> {
        let dense = self.memory.direct() && (self.strides[2] == 1 || self.width() == 1);
        dense.then(|| self.memory.at(self.row(plane, row)).cast())
    }

    /// Copies a row.
    ///
    /// # Safety
    /// The row is inside, and the tensor's memory can be read.
    unsafe fn copy_row(&self, plane: usize, row: [usize; 2], to: &mut [T]) {
        assert!(to.len() >= self.width());
        let block = Block::along(1, 0, self.width(), self.strides[2]);
        // SAFETY: the caller's promise; there is room for the row.
        unsafe { self.memory.fill(self.row(plane, row), block, to.as_mut_ptr()) };
    }

    /// Returns the elements of a plane, in place or copied to the stage, which has room for them.
    ///
    /// # Safety
    /// The plane is inside, and the tensor's memory can be read.
    pub(super) unsafe fn plane<'a>(&self, plane: usize, stage: &'a mut [T]) -> &'a [T] {
        let [depth, height, width] = self.sizes;
        let len = self.elements();
        if self.in_place {
            // SAFETY: the plane's elements are stored one after another.
            return unsafe {
                std::slice::from_raw_parts(self.memory.at(self.start(plane)).cast(), len)
            };
        }
        assert!(stage.len() >= len);
        for d in 0..depth {
            let block = Block::along(height, self.strides[1], width, self.strides[2]);
            let to = stage[d * height * width..].as_mut_ptr();
            // SAFETY: the caller's promise; there is room for the rows.
            unsafe { self.memory.fill(self.row(plane, [d, 0]), block, to) };
        }
        &stage[..len]
    }
}

impl<T: Copy> Planes<Sink<T>> {
    /// Returns memory for a row: in place, or in the stage, which has room for it. [`Planes::end_row`] follows.
    ///
    /// # Safety
    /// The row is inside, and no other thread accesses it.
    #[inline(always)]
    pub(super) unsafe fn begin_row<'a>(
        &self,
        plane: usize,
        row: [usize; 2],
        stage: &'a mut [T],
    ) -> &'a mut [T] {
        if !self.in_place {
            return &mut stage[..self.width()];
        }
        let to = self.memory.at(self.row(plane, row)).cast();
        // SAFETY: the row's elements are stored one after another, and are the caller's alone.
        unsafe { std::slice::from_raw_parts_mut(to, self.width()) }
    }

    /// Ends the write of a row that [`Planes::begin_row`] began, with the same stage.
    ///
    /// # Safety
    /// As for [`Planes::begin_row`].
    #[inline(always)]
    pub(super) unsafe fn end_row(&self, plane: usize, row: [usize; 2], stage: &mut [T]) {
        if !self.in_place {
            let stage = &mut stage[..self.width()];
            // SAFETY: the caller's promise.
            unsafe { self.memory.put(stage, self.row(plane, row), self.strides[2]) };
        }
    }

    /// Returns the elements of planes that [adjoin](Planes::adjoin).
    ///
    /// # Safety
    /// The planes are inside, and no other thread accesses them.
    #[allow(clippy::mut_from_ref, reason = "callers promise that no other code has the planes")]
    pub(super) unsafe fn adjoining(&self, planes: Range<usize>) -> &mut [T] {
        let to = self.memory.at(self.start(planes.start)).cast();
        // SAFETY: the planes' elements are stored one after another, and are the caller's alone.
        unsafe { std::slice::from_raw_parts_mut(to, planes.len() * self.elements()) }
    }

    /// Calls `f` with memory for a plane, whose elements may be anything, and writes what it leaves there;
    /// `stage` has room for it.
    ///
    /// # Errors
    /// Those of `f`.
    ///
    /// # Safety
    /// The plane is inside, and no other thread accesses it.
    pub(super) unsafe fn write_plane(
        &self,
        plane: usize,
        stage: &mut [T],
        f: impl FnOnce(&mut [T]) -> Result<()>,
    ) -> Result<()> {
        let len = self.elements();
        if self.in_place {
            let to = self.memory.at(self.start(plane)).cast();
            // SAFETY: the plane's elements are stored one after another, and are the caller's alone.
            return f(unsafe { std::slice::from_raw_parts_mut(to, len) });
        }
        let stage = &mut stage[..len];
        f(stage)?;
        for (row, from) in stage.chunks_exact_mut(self.width().max(1)).enumerate() {
            let offset = self.row(plane, [row / self.sizes[1], row % self.sizes[1]]);
            // SAFETY: the caller's promise.
            unsafe { self.memory.put(from, offset, self.strides[2]) };
        }
        Ok(())
    }
}

/// Copies of rows of a plane, between elements that pad them.
///
/// A window's rows are kept together: the rows of a plane take turns in as many places as a window spans.
pub(super) struct Rows<T> {
    memory: Vec<T>,
    /// The row in each place.
    rows: Vec<Option<(usize, [usize; 2])>>,
    /// The elements of a place, and those before the first one of a row.
    len: usize,
    before: usize,
}

impl<T: Copy + 'static> Rows<T> {
    /// Makes `places` for rows of `len` elements with their padding, of which `before` precede a row's own.
    ///
    /// # Errors
    /// [`ErrorKind::Memory`] if there isn't as much.
    pub(super) fn new(places: usize, len: usize, before: usize, padding: T) -> Result<Self> {
        let mut memory = Vec::new();
        let all = places.checked_mul(len).filter(|all| memory.try_reserve_exact(*all).is_ok());
        let Some(all) = all else {
            let message =
                format!("can't allocate host memory for {places} padded rows of {len} elements");
            return Err(Error::new(ErrorKind::Memory, message));
        };
        memory.resize(all, padding);
        Ok(Rows { memory, rows: vec![None; places], len, before })
    }

    /// Returns a row with its padding, which stays in its place until a row is asked for that is as many rows
    /// away as there are places.
    ///
    /// # Safety
    /// As [`Planes::copy_row`].
    pub(super) unsafe fn get(
        &mut self,
        planes: &Planes<Input<T>>,
        plane: usize,
        row: [usize; 2],
    ) -> *const T {
        let place = (row[0] * planes.sizes[1] + row[1]) % self.rows.len();
        let own = &mut self.memory[place * self.len..][..self.len];
        if self.rows[place] != Some((plane, row)) {
            // SAFETY: the caller's promise.
            unsafe { planes.copy_row(plane, row, &mut own[self.before..]) };
            self.rows[place] = Some((plane, row));
        }
        // The address is one in all memory, so that later copies don't end its use.
        self.memory.as_ptr().wrapping_add(place * self.len)
    }
}
