//! Tensors in a kernel: dtype, shape, strides, device, and checked access to their elements.

use std::fmt;
use std::marker::PhantomData;

use crate::abi::{Any, DEVICE_USER, DLTensor, FLAG_WRITABLE, TENSOR};
use crate::backend::{Backend, DeviceTensor};
use crate::element::{Element, Plain};
use crate::error::{Error, ErrorKind, Result};
use crate::types::{DType, Device};

/// The call's other tensors, which slices must not overlap.
#[derive(Clone, Copy)]
pub(crate) struct Peers<'a> {
    pub(crate) values: &'a [Any],
    /// `FLAG_` bits of each value.
    pub(crate) flags: &'a [u8],
    /// How many of the values are inputs.
    pub(crate) inputs: usize,
}

impl Peers<'_> {
    pub(crate) const NONE: Peers<'static> = Peers { values: &[], flags: &[], inputs: 0 };

    /// Returns whether the kernel may write to the argument.
    pub(crate) fn is_written(&self, at: usize) -> bool {
        at >= self.inputs || self.flags.get(at).is_some_and(|flags| flags & FLAG_WRITABLE != 0)
    }
}

/// The common part of views and outputs.
#[derive(Clone, Copy)]
struct Raw<'a> {
    dl: &'a DLTensor,
    /// Its index among the arguments.
    at: usize,
    peers: Peers<'a>,
}

impl<'a> Raw<'a> {
    fn shape(&self) -> &'a [i64] {
        // SAFETY: the host provides `ndim` sizes, which live as long as the tensor.
        unsafe { sizes(self.dl.shape, self.dl.ndim) }
    }

    fn strides(&self) -> &'a [i64] {
        // SAFETY: as above; strides are never null.
        unsafe { sizes(self.dl.strides, self.dl.ndim) }
    }

    fn numel(&self) -> usize {
        self.shape().iter().product::<i64>() as usize
    }

    fn is_contiguous(&self) -> bool {
        is_contiguous(self.shape(), self.strides())
    }

    /// Returns the first element's address; dangling and aligned for a tensor without elements.
    fn pointer<T: Element>(&self) -> Result<*mut T::Raw> {
        let (dtype, device) = (DType(self.dl.dtype), Device(self.dl.device));
        if dtype != T::DTYPE {
            let message = format!("a {dtype} tensor can't be read or written as {}", T::DTYPE);
            return Err(Error::dtype(message));
        }
        if !device.is_cpu() {
            let message = format!("a tensor on {device} can't be read or written by the CPU");
            return Err(Error::new(ErrorKind::Device, message));
        }
        if self.numel() == 0 {
            return Ok(std::ptr::dangling_mut());
        }
        Ok(self.dl.data.wrapping_byte_add(self.dl.byte_offset as usize).cast())
    }

    /// Returns the address of the lowest byte of the tensor and the one after its highest.
    fn range(&self) -> (usize, usize) {
        if self.numel() == 0 {
            return (0, 0);
        }
        let start = self.dl.data as usize + self.dl.byte_offset as usize;
        let bytes = i64::from(self.dl.dtype.bits.div_ceil(8));
        let (mut low, mut high) = (0, bytes);
        for (&size, &stride) in self.shape().iter().zip(self.strides()) {
            let reach = (size - 1) * stride * bytes;
            if reach < 0 { low += reach } else { high += reach }
        }
        (start.wrapping_add_signed(low as isize), start.wrapping_add_signed(high as isize))
    }

    /// Refuses a tensor that shares memory with another tensor of the call for which `counts` is
    /// true.
    fn check_overlap(&self, counts: impl Fn(usize) -> bool) -> Result<()> {
        let (start, end) = self.range();
        for (at, value) in self.peers.values.iter().enumerate() {
            if at == self.at || value.type_index != TENSOR || !counts(at) {
                continue;
            }
            // SAFETY: a tensor of the same call.
            let dl = unsafe { &*(value.payload as *const DLTensor) };
            let (other_start, other_end) = Raw { dl, at, peers: self.peers }.range();
            if start < other_end && other_start < end {
                return Err(Error::value(format!(
                    "arguments {} and {at} share memory, of which there can be no slice; use \
                     elements() and fill()",
                    self.at
                )));
            }
        }
        Ok(())
    }

    fn slice_pointer<T: Plain>(&self) -> Result<*mut T> {
        let pointer = self.pointer::<T>()?;
        if !self.is_contiguous() {
            return Err(Error::value(format!(
                "a tensor of shape {:?} and strides {:?} isn't contiguous and can't be a slice; \
                 use elements() and fill()",
                self.shape(),
                self.strides()
            )));
        }
        if !pointer.is_aligned() {
            return Err(Error::value(
                "the tensor's memory isn't aligned; use elements() and fill()",
            ));
        }
        Ok(pointer)
    }

    fn walk<T: Element>(&self) -> Result<Walk<'a, T>> {
        let (mut left, mut run, mut step) = (self.numel(), 1, 0);
        let mut outer = self.shape().len();
        let pointer = self.pointer::<T>()?;
        if self.is_contiguous() {
            (run, step, outer) = (left, 1, 0);
        } else if let (Some(&size), Some(&stride)) = (self.shape().last(), self.strides().last()) {
            (run, step, outer) = (size as usize, stride as isize, outer - 1);
        }
        if left == 0 {
            (left, run) = (0, 0);
        }
        Ok(Walk {
            next: pointer,
            left,
            in_run: run,
            run,
            step,
            row: pointer,
            shape: &self.shape()[..outer],
            strides: &self.strides()[..outer],
            index: vec![0; outer],
            element: PhantomData,
        })
    }
}

/// # Safety
/// `data` points to `len` numbers that live for `'a`, or `len` is 0.
pub(crate) unsafe fn sizes<'a>(data: *const i64, len: i32) -> &'a [i64] {
    if len <= 0 {
        return &[];
    }
    // SAFETY: the contract.
    unsafe { std::slice::from_raw_parts(data, len as usize) }
}

/// Returns whether elements lie in row-major order without gaps.
pub(crate) fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1;
    let mut fits = shape.iter().zip(strides).rev().map(|(&size, &stride)| {
        let fits = size == 1 || stride == expected;
        expected *= size;
        fits
    });
    fits.all(|fits| fits) || shape.contains(&0)
}

/// Iterates over addresses of elements in row-major order of the indices, for any strides.
struct Walk<'a, T: Element> {
    next: *mut T::Raw,
    left: usize,
    /// Elements left in the innermost run, and how long runs are.
    in_run: usize,
    run: usize,
    step: isize,
    /// Where the run began.
    row: *mut T::Raw,
    shape: &'a [i64],
    strides: &'a [i64],
    index: Vec<i64>,
    element: PhantomData<&'a T>,
}

impl<T: Element> Walk<'_, T> {
    #[inline(always)]
    fn advance(&mut self) -> Option<*mut T::Raw> {
        if self.left == 0 {
            return None;
        }
        let at = self.next;
        self.left -= 1;
        self.in_run -= 1;
        if self.in_run == 0 {
            self.next_run();
        } else {
            self.next = self.next.wrapping_offset(self.step);
        }
        Some(at)
    }

    #[inline(never)]
    fn next_run(&mut self) {
        for axis in (0..self.shape.len()).rev() {
            self.index[axis] += 1;
            let stride = self.strides[axis] as isize;
            if self.index[axis] < self.shape[axis] {
                self.row = self.row.wrapping_offset(stride);
                break;
            }
            self.row = self.row.wrapping_offset(-stride * (self.shape[axis] as isize - 1));
            self.index[axis] = 0;
        }
        (self.next, self.in_run) = (self.row, self.run);
    }
}

/// Iterates over the values of a tensor in row-major order, read one by one.
pub struct Elements<'a, T: Element>(Walk<'a, T>);

impl<T: Element> Iterator for Elements<'_, T> {
    type Item = T;

    #[inline(always)]
    fn next(&mut self) -> Option<T> {
        let at = self.0.advance()?;
        // SAFETY: an element of a live tensor of that dtype. Others may write to it, so no
        // reference to it is made.
        Some(T::read(unsafe { at.read_unaligned() }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.left, Some(self.0.left))
    }
}

impl<T: Element> ExactSizeIterator for Elements<'_, T> {}

impl<T: Element> fmt::Debug for Elements<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Elements({} left)", self.0.left)
    }
}

macro_rules! described {
    // The methods that views and outputs share.
    ($($type:ident),*) => {$(
        impl $type<'_> {
            /// Returns the element type.
            pub fn dtype(&self) -> DType {
                DType(self.0.dl.dtype)
            }

            /// Returns the device of the memory.
            pub fn device(&self) -> Device {
                Device(self.0.dl.device)
            }

            /// Returns the sizes of the dimensions.
            pub fn shape(&self) -> &[i64] {
                self.0.shape()
            }

            /// Returns the strides in elements; they may be 0 or negative.
            pub fn strides(&self) -> &[i64] {
                self.0.strides()
            }

            /// Returns the number of elements.
            pub fn numel(&self) -> usize {
                self.0.numel()
            }

            /// Returns whether the elements lie in row-major order without gaps.
            pub fn is_contiguous(&self) -> bool {
                self.0.is_contiguous()
            }

            /// Returns the DLPack struct, for code that needs pointers. The kernel is responsible
            /// for accesses through it.
            pub fn as_dl_tensor(&self) -> *const DLTensor {
                self.0.dl
            }
        }

        impl fmt::Debug for $type<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} {:?} on {}", self.dtype(), self.shape(), self.device())
            }
        }
    )*};
}

/// A tensor to read.
#[derive(Clone, Copy)]
pub struct TensorView<'a>(Raw<'a>);

/// A tensor to write: an output, or an argument that the schema marks so, `Tensor(a!)`.
pub struct TensorMut<'a>(Raw<'a>);

described!(TensorView, TensorMut);

impl<'a> TensorView<'a> {
    pub(crate) fn new(dl: &'a DLTensor, at: usize, peers: Peers<'a>) -> Self {
        TensorView(Raw { dl, at, peers })
    }

    pub(crate) fn dl(&self) -> &'a DLTensor {
        self.0.dl
    }

    /// Returns the values in row-major order, for any strides.
    ///
    /// # Errors
    /// Another dtype than `T`'s, memory that the CPU can't reach.
    pub fn elements<T: Element>(&self) -> Result<Elements<'a, T>> {
        Ok(Elements(self.0.walk()?))
    }

    /// Returns the values as a slice. Nothing may write to the tensor meanwhile, neither an
    /// operator that the kernel calls nor another thread; the kernel has to ensure that.
    ///
    /// # Errors
    /// Another dtype than `T`'s, memory that the CPU can't reach, elements that aren't in row-major
    /// order without gaps, a tensor that shares memory with one that the kernel writes.
    pub fn as_slice<T: Plain>(&self) -> Result<&'a [T]> {
        let pointer = self.0.slice_pointer::<T>()?;
        self.0.check_overlap(|at| self.0.peers.is_written(at))?;
        // SAFETY: `numel` aligned elements without gaps, of any bits. They live as long as the
        // tensor, and no argument that the call writes overlaps them.
        Ok(unsafe { std::slice::from_raw_parts(pointer, self.0.numel()) })
    }
}

impl<'a> TensorView<'a> {
    /// Returns the tensor on a device of this plugin, for kernels registered at the device's key.
    ///
    /// # Errors
    /// A tensor without elements, which has no buffer, or on a device that has none.
    ///
    /// # Safety
    /// The kernel is registered at the key of the device that this plugin registered with backend
    /// `B`. Hosts of 1.1 pass no other backend's tensor to it.
    pub unsafe fn on_backend<B: Backend>(&self) -> Result<DeviceTensor<'a, B::Buffer>> {
        if self.0.dl.device.device_type != DEVICE_USER || self.0.dl.data.is_null() {
            let message = format!("{self:?} has no buffer of a plugin's device");
            return Err(Error::new(ErrorKind::Device, message));
        }
        // SAFETY: the caller's contract; the data is a handle of the backend.
        Ok(unsafe { DeviceTensor::new(self.0.dl) })
    }
}

impl<'a> TensorMut<'a> {
    pub(crate) fn new(dl: &'a DLTensor, at: usize, peers: Peers<'a>) -> Self {
        TensorMut(Raw { dl, at, peers })
    }

    /// Iterates over its present values in row-major order, for kernels that change a tensor in
    /// place. An output that the host allocated is uninitialised; its values are arbitrary.
    ///
    /// # Errors
    /// As [`TensorView::elements`].
    pub fn elements<T: Element>(&self) -> Result<Elements<'a, T>> {
        Ok(Elements(self.0.walk()?))
    }

    /// Writes values in row-major order, for any strides. Each is written before the next is
    /// requested from the iterator, so that an input with the same memory can be read element by
    /// element.
    ///
    /// # Errors
    /// As [`TensorView::elements`]; also if there are more or fewer values than elements.
    pub fn fill<T: Element>(&mut self, values: impl IntoIterator<Item = T>) -> Result<()> {
        let mut walk = self.0.walk::<T>()?;
        let mut values = values.into_iter();
        let mut written = 0;
        while let Some(at) = walk.advance() {
            let Some(value) = values.next() else {
                return Err(Error::shape(format!(
                    "{written} values for a tensor of {} elements",
                    self.numel()
                )));
            };
            // SAFETY: an element of a live tensor that may be written.
            unsafe { at.write_unaligned(value.write()) };
            written += 1;
        }
        match values.next() {
            None => Ok(()),
            Some(_) => {
                Err(Error::shape(format!("more than {written} values for {written} elements")))
            }
        }
    }

    /// Returns the elements as a slice. As for [`TensorView::as_slice`], nothing else may access
    /// the tensor meanwhile.
    ///
    /// # Errors
    /// As [`TensorView::as_slice`], for memory shared with any other argument.
    pub fn as_mut_slice<T: Plain>(&mut self) -> Result<&mut [T]> {
        let pointer = self.0.slice_pointer::<T>()?;
        self.0.check_overlap(|_| true)?;
        // SAFETY: as in `as_slice`; no other argument shares the memory, and this is its only
        // `TensorMut` (`Args::output` returns each once).
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer, self.0.numel()) })
    }

    /// Returns a view of the tensor, to read it or to pass it to a call.
    pub fn into_view(self) -> TensorView<'a> {
        TensorView(self.0)
    }
}
