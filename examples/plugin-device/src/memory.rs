//! The device's memory: bytes that only its own threads see, and elements read out of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyfold_plugin::{ByteOffsets, DType, DeviceTensor, Error, ErrorKind, Result};

use crate::half::{BFLOAT16, FLOAT16};

/// A buffer. Queued operations have clones, so that it lives until they have run.
pub(crate) type Buffer = Arc<Mutex<Vec<u8>>>;

pub(crate) fn allocate(bytes: usize) -> Result<Buffer> {
    let mut memory = Vec::new();
    let made = memory.try_reserve_exact(bytes);
    made.map_err(|_| Error::new(ErrorKind::Memory, format!("there are no {bytes} bytes left")))?;
    memory.resize(bytes, 0);
    Ok(Arc::new(Mutex::new(memory)))
}

fn lock(buffer: &Buffer) -> MutexGuard<'_, Vec<u8>> {
    buffer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One element: an integer or a bool, or a float.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    pub(crate) fn float(self) -> f64 {
        match self {
            Number::Int(value) => value as f64,
            Number::Float(value) => value,
        }
    }

    pub(crate) fn is_true(self) -> bool {
        self.float() != 0.0
    }

    pub(crate) fn plus(self, other: Number) -> Number {
        match (self, other) {
            (Number::Int(a), Number::Int(b)) => Number::Int(a.wrapping_add(b)),
            _ => Number::Float(self.float() + other.float()),
        }
    }
}

impl From<bool> for Number {
    fn from(value: bool) -> Number {
        Number::Int(value.into())
    }
}

macro_rules! elements {
    // The dtypes whose elements are numbers of a Rust type.
    ($($dtype:ident $type:ty: $kind:ident($as:ty);)*) => {
        /// Returns whether elements of a dtype can be computed with.
        pub(crate) fn is_number(dtype: DType) -> bool {
            [DType::BOOL, DType::F16, DType::BF16, $(DType::$dtype),*].contains(&dtype)
        }

        fn get(dtype: DType, bytes: &[u8]) -> Number {
            match dtype {
                $(DType::$dtype => {
                    let bytes = bytes.try_into().expect("an element's bytes");
                    Number::$kind(<$type>::from_ne_bytes(bytes) as $as)
                })*
                DType::F16 => Number::Float(FLOAT16.widen(u16::from_ne_bytes([bytes[0], bytes[1]]))),
                DType::BF16 => Number::Float(BFLOAT16.widen(u16::from_ne_bytes([bytes[0], bytes[1]]))),
                _ => Number::from(bytes[0] != 0),
            }
        }

        /// Converts as the primitive `cast` does: integers wrap, floats saturate and round once.
        fn put(dtype: DType, number: Number, bytes: &mut [u8]) {
            match (dtype, number) {
                $((DType::$dtype, Number::Int(value)) => {
                    bytes.copy_from_slice(&(value as $type).to_ne_bytes());
                }
                (DType::$dtype, Number::Float(value)) => {
                    bytes.copy_from_slice(&(value as $type).to_ne_bytes());
                })*
                (DType::F16, _) => {
                    bytes.copy_from_slice(&FLOAT16.narrow(number.float()).to_ne_bytes());
                }
                (DType::BF16, _) => {
                    bytes.copy_from_slice(&BFLOAT16.narrow(number.float()).to_ne_bytes());
                }
                _ => bytes[0] = u8::from(number.is_true()),
            }
        }
    };
}

elements! {
    I8 i8: Int(i128); I16 i16: Int(i128); I32 i32: Int(i128); I64 i64: Int(i128);
    U8 u8: Int(i128); U16 u16: Int(i128); U32 u32: Int(i128); U64 u64: Int(i128);
    F32 f32: Float(f64); F64 f64: Float(f64);
}

/// A tensor for a queued operation: it keeps the buffer, and all that its description says.
#[derive(Clone)]
pub(crate) struct View {
    buffer: Buffer,
    offsets: ByteOffsets,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: DType,
    size: usize,
}

impl View {
    pub(crate) fn new(tensor: &DeviceTensor<'_, Buffer>) -> View {
        View {
            buffer: Arc::clone(tensor.buffer()),
            offsets: tensor.byte_offsets(),
            shape: tensor.shape().iter().map(|size| *size as usize).collect(),
            dtype: tensor.dtype(),
            size: tensor.element_size(),
        }
    }

    /// Returns the elements in row-major order.
    pub(crate) fn numbers(&self) -> Vec<Number> {
        let memory = lock(&self.buffer);
        let elements = self.offsets.clone().map(|at| get(self.dtype, &memory[at..at + self.size]));
        elements.collect()
    }

    /// Writes the elements in row-major order.
    pub(crate) fn set(&self, numbers: impl IntoIterator<Item = Number>) {
        let mut memory = lock(&self.buffer);
        for (at, number) in self.offsets.clone().zip(numbers) {
            put(self.dtype, number, &mut memory[at..at + self.size]);
        }
    }

    /// Returns the elements' bytes in row-major order.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let memory = lock(&self.buffer);
        self.offsets.clone().flat_map(|at| memory[at..at + self.size].to_vec()).collect()
    }

    /// Writes the elements' bytes in row-major order.
    pub(crate) fn set_bytes(&self, bytes: &[u8]) {
        let mut memory = lock(&self.buffer);
        for (at, element) in self.offsets.clone().zip(bytes.chunks_exact(self.size)) {
            memory[at..at + self.size].copy_from_slice(element);
        }
    }

    /// Returns a number as an element of the dtype would keep it.
    pub(crate) fn rounded(&self, number: Number) -> Number {
        let mut bytes = [0; 8];
        put(self.dtype, number, &mut bytes[..self.size]);
        get(self.dtype, &bytes[..self.size])
    }

    pub(crate) fn numel(&self) -> usize {
        self.shape.iter().product()
    }
}
