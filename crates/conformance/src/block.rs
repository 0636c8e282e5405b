//! Blocks of a device's memory with guard bytes around the elements of a tensor.

use std::sync::Arc;

use keyfold_core::{DType, Device, Result, Shape, Strides};
use keyfold_tensor::device::{Content, Memory, Part, StreamId, current_stream};
use keyfold_tensor::{BufferHandle, DeviceBuffer, Tensor};

use crate::array::{Array, Layout, for_each_index};
use crate::number::{Number, decode, encode};

/// The number of guard bytes before and after the elements.
const GUARD: usize = 64;

/// A tensor in a block whose other bytes have a pattern.
pub(crate) struct Block {
    /// The tensor.
    pub(crate) tensor: Tensor,
    buffer: Arc<dyn DeviceBuffer>,
    /// The bytes that were uploaded.
    before: Vec<u8>,
    /// The byte offset of each element, in row-major order.
    places: Vec<usize>,
}

/// Returns a byte of a pattern; the two patterns differ in every byte. Bools are 0 or 1, so that no
/// kernel reads an invalid one.
fn pattern_byte(at: usize, pattern: u8, dtype: DType) -> u8 {
    match dtype {
        DType::Bool => (at as u8 ^ pattern) & 1,
        _ => (at as u8).wrapping_mul(37).wrapping_add(0x5a) ^ pattern.wrapping_mul(0xff),
    }
}

/// Returns the byte offsets of a view's elements, in row-major order.
pub(crate) fn byte_offsets(
    shape: &[usize],
    strides: &[isize],
    offset: usize,
    size: usize,
) -> Vec<usize> {
    let mut places = Vec::with_capacity(shape.iter().product());
    for_each_index(shape, |index| {
        let moved: isize = index.iter().zip(strides).map(|(i, s)| *i as isize * s).sum();
        places.push(offset.wrapping_add_signed(moved) * size);
    });
    places
}

/// Returns the whole of a buffer as bytes.
///
/// # Errors
/// The device's errors, also late ones.
pub(crate) fn download(memory: &dyn Memory, buffer: &dyn DeviceBuffer) -> Result<Vec<u8>> {
    let mut bytes = vec![0; buffer.byte_len()];
    let shape = [bytes.len()];
    let part = Part::new(buffer, 0, &shape, &[1], 1)?;
    memory.download(&part, &mut bytes, current_stream(buffer.device()))?;
    Ok(bytes)
}

/// Allocates a buffer with these bytes.
///
/// # Errors
/// The device's errors.
pub(crate) fn upload(
    memory: &dyn Memory,
    device: Device,
    bytes: &[u8],
    stream: StreamId,
) -> Result<Arc<dyn DeviceBuffer>> {
    let buffer = memory.allocate(device, bytes.len(), Content::Arbitrary)?;
    let shape = [bytes.len()];
    // SAFETY: nothing else refers to the new buffer.
    unsafe { memory.upload(bytes, &Part::new(&*buffer, 0, &shape, &[1], 1)?, stream)? };
    Ok(buffer)
}

impl Block {
    /// Places an array on a device, between guard bytes of a pattern. Without `filled` the elements
    /// have the pattern, too.
    ///
    /// # Errors
    /// The device's errors.
    pub(crate) fn place(
        memory: &dyn Memory,
        device: Device,
        array: &Array,
        layout: Layout,
        (pattern, filled): (u8, bool),
    ) -> Result<Block> {
        let (dtype, size) = (array.dtype, array.dtype.size());
        let (strides, first, span) = layout.place(&array.shape);
        let shifted = match layout {
            Layout::Contiguous => 0,
            Layout::Offset | Layout::Negative => 1,
            _ => 3,
        };
        let offset = GUARD / size + shifted + first;
        let bytes = (2 * GUARD + (shifted + span) * size).next_multiple_of(16);
        let mut before: Vec<u8> = (0..bytes).map(|at| pattern_byte(at, pattern, dtype)).collect();
        let places = byte_offsets(&array.shape, &strides, offset, size);
        if filled {
            for (place, item) in places.iter().zip(&array.items) {
                before[*place..*place + size].copy_from_slice(&encode(*item, dtype));
            }
        }
        let buffer = upload(memory, device, &before, current_stream(device))?;
        let handle = BufferHandle::new(Arc::clone(&buffer), dtype)?;
        let (shape, strides) = (Shape::new(&array.shape)?, Strides::new(&strides)?);
        let tensor = Tensor::from_parts(handle, shape, strides, offset)?;
        Ok(Block { tensor, buffer, before, places })
    }

    /// Returns the bytes that the block has now.
    ///
    /// # Errors
    /// The device's errors, also late ones.
    pub(crate) fn read(&self, memory: &dyn Memory) -> Result<Vec<u8>> {
        download(memory, &*self.buffer)
    }

    /// Returns the elements among the block's bytes.
    pub(crate) fn numbers(&self, now: &[u8]) -> Vec<Number> {
        self.places.iter().map(|place| self.number(now, *place)).collect()
    }

    fn number(&self, bytes: &[u8], place: usize) -> Number {
        decode(self.tensor.dtype(), &bytes[place..place + self.tensor.dtype().size()])
    }

    /// Returns the elements of a view of the block.
    pub(crate) fn view(&self, now: &[u8], view: &Tensor) -> Vec<Number> {
        let size = view.dtype().size();
        let places = byte_offsets(view.shape(), view.strides(), view.offset(), size);
        places.into_iter().map(|place| decode(view.dtype(), &now[place..place + size])).collect()
    }

    /// Returns the first byte that changed, as its distance from the first element; bytes of
    /// elements count unless they may be `written`.
    pub(crate) fn changed(&self, now: &[u8], written: bool) -> Option<isize> {
        let size = self.tensor.dtype().size();
        let mut ours = vec![false; now.len()];
        if written {
            self.places.iter().for_each(|place| ours[*place..*place + size].fill(true));
        }
        let at = (0..now.len()).find(|at| now[*at] != self.before[*at] && !ours[*at])?;
        let first = self.places.first().copied().unwrap_or(GUARD);
        Some(at as isize - first as isize)
    }

    /// Returns the elements that still have the bytes that they were made with.
    pub(crate) fn untouched(&self, now: &[u8]) -> Vec<bool> {
        let size = self.tensor.dtype().size();
        let same = |place: &usize| now[*place..*place + size] == self.before[*place..*place + size];
        self.places.iter().map(same).collect()
    }
}
