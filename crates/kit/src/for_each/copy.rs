//! Gathering strided elements into a block, and scattering a block.

/// Copies a block of `lens` elements of `size` bytes; steps are in bytes.
///
/// # Safety
/// Every element that the lengths and steps address is inside memory that is valid for reading (`src`)
/// and writing (`dst`), aligned for elements of that size (those of 16 bytes to 8), and the two don't
/// overlap.
pub(super) unsafe fn copy_block(
    size: usize,
    dst: (*mut u8, &[isize]),
    src: (*const u8, &[isize]),
    lens: &[usize],
) {
    // SAFETY: the caller's promise, for a type of that size and alignment.
    unsafe {
        match size {
            1 => copy::<u8>(dst, src, lens),
            2 => copy::<u16>(dst, src, lens),
            4 => copy::<u32>(dst, src, lens),
            8 => copy::<u64>(dst, src, lens),
            _ => copy::<[u64; 2]>(dst, src, lens),
        }
    }
}

/// # Safety
/// As [`copy_block`].
unsafe fn copy<E: Copy>(dst: (*mut u8, &[isize]), src: (*const u8, &[isize]), lens: &[usize]) {
    let (Some((&len, inner)), Some((&to, to_inner)), Some((&from, from_inner))) =
        (lens.split_first(), dst.1.split_first(), src.1.split_first())
    else {
        // SAFETY: no dimensions are left, so these are the addresses of one element.
        return unsafe { dst.0.cast::<E>().write(src.0.cast::<E>().read()) };
    };
    if inner.is_empty() {
        // SAFETY: one dimension is left.
        return unsafe { line::<E>(dst.0, to, src.0, from, len) };
    }
    // If the source's steps are smaller along this dimension than along the innermost one (a transposed
    // input), this dimension is the inner loop, so that each cache line of the source is read once.
    if let ([inner_len], [inner_to], [inner_from]) = (inner, to_inner, from_inner)
        && from != 0
        && from.unsigned_abs() < inner_from.unsigned_abs()
    {
        for i in 0..*inner_len as isize {
            // SAFETY: an index inside the lengths, on both sides.
            unsafe {
                line::<E>(dst.0.offset(i * inner_to), to, src.0.offset(i * inner_from), from, len);
            }
        }
        return;
    }
    for i in 0..len as isize {
        // SAFETY: an index inside the lengths, on both sides.
        unsafe {
            let (dst, src) = (dst.0.offset(i * to), src.0.offset(i * from));
            copy::<E>((dst, to_inner), (src, from_inner), inner);
        }
    }
}

/// # Safety
/// As [`copy_block`], for one dimension.
#[inline]
unsafe fn line<E: Copy>(dst: *mut u8, to: isize, src: *const u8, from: isize, len: usize) {
    let size = size_of::<E>() as isize;
    // SAFETY: the caller's promise for every `i` below `len`.
    unsafe {
        if to == size && from == size {
            dst.cast::<E>().copy_from_nonoverlapping(src.cast::<E>(), len);
        } else if to == size && from == 0 {
            let value = src.cast::<E>().read();
            for i in 0..len {
                dst.cast::<E>().add(i).write(value);
            }
        } else {
            for i in 0..len as isize {
                dst.offset(i * to).cast::<E>().write(src.offset(i * from).cast::<E>().read());
            }
        }
    }
}
