//! From tensors' memory to blocks and back: strides, halves, bools, tiles.

use keyfold_core::{Complex, DType, Scalar, bf16, f16};

use crate::isa::{Isa, Work, dispatch};

/// Reads `len` elements that are `stride` elements apart into a block, in the dtype that they are
/// computed in: halves are widened to float32, bools become 0 or 1.
///
/// # Safety
/// `src` is valid for reading those elements of the dtype it was made for, which are initialised
/// and aligned; `dst` has room for them, aligned for what they are computed in. They don't overlap.
pub type Load = unsafe fn(dst: *mut u8, src: *const u8, stride: isize, len: usize);

/// Writes a block to `len` elements that are `stride` elements apart, rounded where the dtype is a
/// half.
///
/// # Safety
/// As [`Load`], the other way round.
pub type Store = unsafe fn(dst: *mut u8, stride: isize, src: *const u8, len: usize);

/// Copies a tile: row `r` of the result is contiguous, `cols` long, and its element `c` is
/// `src[r + c * stride]` (in elements).
///
/// # Safety
/// `src` is valid for reading those elements, `dst` for `rows * cols`, aligned; they don't overlap.
pub type Transpose =
    unsafe fn(dst: *mut u8, src: *const u8, stride: isize, rows: usize, cols: usize);

/// A conversion on the way from or to memory.
trait Convert: 'static {
    type From: Copy;
    type To: Copy;
    fn convert(from: Self::From) -> Self::To;
}

/// Elements of a type as they are.
struct Plain<T>(T);
struct Truth;
struct FromF16;
struct FromBf16;
struct ToF16;
struct ToBf16;

impl<T: Copy + 'static> Convert for Plain<T> {
    type From = T;
    type To = T;
    #[inline(always)]
    fn convert(from: T) -> T {
        from
    }
}
impl Convert for Truth {
    type From = u8;
    type To = u8;
    #[inline(always)]
    fn convert(from: u8) -> u8 {
        u8::from(from != 0)
    }
}
impl Convert for FromF16 {
    type From = u16;
    type To = f32;
    #[inline(always)]
    fn convert(from: u16) -> f32 {
        f16::from_bits(from).to_f32()
    }
}
impl Convert for FromBf16 {
    type From = u16;
    type To = f32;
    #[inline(always)]
    fn convert(from: u16) -> f32 {
        bf16::from_bits(from).to_f32()
    }
}
impl Convert for ToF16 {
    type From = f32;
    type To = u16;
    #[inline(always)]
    fn convert(from: f32) -> u16 {
        f16::from_f32(from).to_bits()
    }
}
impl Convert for ToBf16 {
    type From = f32;
    type To = u16;
    #[inline(always)]
    fn convert(from: f32) -> u16 {
        bf16::from_f32(from).to_bits()
    }
}

/// A contiguous run, converted.
struct Run<C: Convert> {
    dst: *mut C::To,
    src: *const C::From,
    len: usize,
}

impl<C: Convert> Work for Run<C> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        // SAFETY: the promise of whoever calls the load or store.
        let (dst, src) = unsafe {
            (
                std::slice::from_raw_parts_mut(self.dst, self.len),
                std::slice::from_raw_parts(self.src, self.len),
            )
        };
        for (dst, src) in dst.iter_mut().zip(src) {
            *dst = C::convert(*src);
        }
    }
}

/// # Safety
/// As [`Load`].
unsafe fn load<C: Convert>(dst: *mut u8, src: *const u8, stride: isize, len: usize) {
    let (dst, src) = (dst.cast::<C::To>(), src.cast::<C::From>());
    match stride {
        1 => dispatch(Run::<C> { dst, src, len }),
        0 => {
            // SAFETY: the caller's promise; where there is nothing to read nothing is.
            unsafe {
                if len > 0 {
                    let value = C::convert(*src);
                    std::slice::from_raw_parts_mut(dst, len).fill(value);
                }
            }
        }
        _ => {
            for i in 0..len {
                // SAFETY: the caller's promise.
                unsafe { *dst.add(i) = C::convert(*src.offset(i as isize * stride)) };
            }
        }
    }
}

/// # Safety
/// As [`Store`].
unsafe fn store<C: Convert>(dst: *mut u8, stride: isize, src: *const u8, len: usize) {
    let (dst, src) = (dst.cast::<C::To>(), src.cast::<C::From>());
    if stride == 1 {
        dispatch(Run::<C> { dst, src, len });
        return;
    }
    for i in 0..len {
        // SAFETY: the caller's promise.
        unsafe { *dst.offset(i as isize * stride) = C::convert(*src.add(i)) };
    }
}

/// # Safety
/// As [`Transpose`].
unsafe fn transpose<T: Copy>(
    dst: *mut u8,
    src: *const u8,
    stride: isize,
    rows: usize,
    cols: usize,
) {
    let (dst, src) = (dst.cast::<T>(), src.cast::<T>());
    for c in 0..cols {
        for r in 0..rows {
            // SAFETY: the caller's promise.
            unsafe { *dst.add(r * cols + c) = *src.offset(r as isize + c as isize * stride) };
        }
    }
}

/// The load of elements of this many bytes as they are.
pub fn raw_load(size: usize) -> Load {
    match size {
        1 => load::<Plain<u8>>,
        2 => load::<Plain<u16>>,
        4 => load::<Plain<u32>>,
        8 => load::<Plain<u64>>,
        _ => load::<Plain<[u64; 2]>>,
    }
}

/// The load of a dtype.
pub fn loader(dtype: DType) -> Load {
    match dtype {
        DType::Bool => load::<Truth>,
        DType::F16 => load::<FromF16>,
        DType::BF16 => load::<FromBf16>,
        // Aligned like its parts.
        DType::C64 => load::<Plain<[u32; 2]>>,
        _ => raw_load(dtype.size()),
    }
}

/// The store of a dtype.
pub fn storer(dtype: DType) -> Store {
    match dtype {
        DType::F16 => store::<ToF16>,
        DType::BF16 => store::<ToBf16>,
        DType::C64 => store::<Plain<[u32; 2]>>,
        _ => match dtype.size() {
            1 => store::<Plain<u8>>,
            2 => store::<Plain<u16>>,
            4 => store::<Plain<u32>>,
            8 => store::<Plain<u64>>,
            _ => store::<Plain<[u64; 2]>>,
        },
    }
}

/// The transposing copy for elements of a dtype, not converted.
pub fn transposer(dtype: DType) -> Transpose {
    match dtype {
        DType::C64 => transpose::<[u32; 2]>,
        _ => match dtype.size() {
            1 => transpose::<u8>,
            2 => transpose::<u16>,
            4 => transpose::<u32>,
            8 => transpose::<u64>,
            _ => transpose::<[u64; 2]>,
        },
    }
}

/// Whether elements of the dtype are computed as they lie in memory.
pub fn is_direct(dtype: DType) -> bool {
    !matches!(dtype, DType::Bool | DType::F16 | DType::BF16)
}

/// Writes `start`, `start + step`, ... as int64.
///
/// # Safety
/// `dst` has room for `len` of them, aligned.
pub unsafe fn count(dst: *mut u8, start: i64, step: i64, len: usize) {
    struct Count(*mut i64, i64, i64, usize);
    impl Work for Count {
        type Output = ();

        #[inline(always)]
        fn run<I: Isa>(self) {
            // SAFETY: the caller's promise.
            let dst = unsafe { std::slice::from_raw_parts_mut(self.0, self.3) };
            for (i, dst) in dst.iter_mut().enumerate() {
                *dst = self.1.wrapping_add((i as i64).wrapping_mul(self.2));
            }
        }
    }
    dispatch(Count(dst.cast(), start, step, len));
}

/// One number, as the bytes of an element; aligned for every dtype.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C, align(16))]
pub struct Value(pub(crate) [u8; 16]);

impl Value {
    /// The number as an element of a dtype that isn't a half, converted as by `Scalar::to`.
    pub fn new(number: Scalar, dtype: DType) -> Value {
        let mut value = Value::default();
        let bytes = &mut value.0;
        match dtype {
            DType::Bool => bytes[0] = u8::from(number.is_nonzero()),
            DType::U8 => bytes[..1].copy_from_slice(&number.to::<u8>().to_ne_bytes()),
            DType::U16 => bytes[..2].copy_from_slice(&number.to::<u16>().to_ne_bytes()),
            DType::U32 => bytes[..4].copy_from_slice(&number.to::<u32>().to_ne_bytes()),
            DType::U64 => bytes[..8].copy_from_slice(&number.to::<u64>().to_ne_bytes()),
            DType::I8 => bytes[..1].copy_from_slice(&number.to::<i8>().to_ne_bytes()),
            DType::I16 => bytes[..2].copy_from_slice(&number.to::<i16>().to_ne_bytes()),
            DType::I32 => bytes[..4].copy_from_slice(&number.to::<i32>().to_ne_bytes()),
            DType::I64 => bytes[..8].copy_from_slice(&number.to::<i64>().to_ne_bytes()),
            DType::F16 | DType::BF16 | DType::F32 => {
                bytes[..4].copy_from_slice(&number.to::<f32>().to_ne_bytes());
            }
            DType::F64 => bytes[..8].copy_from_slice(&number.as_f64().to_ne_bytes()),
            DType::C64 => {
                let number = number.to::<Complex<f32>>();
                bytes[..4].copy_from_slice(&number.re.to_ne_bytes());
                bytes[4..8].copy_from_slice(&number.im.to_ne_bytes());
            }
            DType::C128 => {
                let number = number.as_complex();
                bytes[..8].copy_from_slice(&number.re.to_ne_bytes());
                bytes[8..].copy_from_slice(&number.im.to_ne_bytes());
            }
        }
        value
    }
}
