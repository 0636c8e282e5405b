//! What tells the calls of a kernel apart.

use keyfold_tensor::Tensor;
use smallvec::SmallVec;

use super::draft::alignment;

/// Parameters and tensors of a call, as far as its graphs depend on them.
#[derive(Debug)]
pub(super) struct Key(SmallVec<[u8; 512]>);

impl Key {
    /// Begins the key of an operation.
    pub(super) fn new(group: &str, operation: &str) -> Key {
        let mut key = Key(SmallVec::new());
        for name in [group, operation] {
            key.word(name.len() as u64);
            key.0.extend_from_slice(name.as_bytes());
        }
        key
    }

    /// Adds a number.
    pub(super) fn word(&mut self, word: u64) {
        self.0.extend_from_slice(&word.to_ne_bytes());
    }

    /// Adds numbers, which each key of the operation has as many of.
    pub(super) fn words(&mut self, words: impl IntoIterator<Item = u64>) {
        words.into_iter().for_each(|word| self.word(word));
    }

    /// Adds the dtype, shape, strides and alignment of tensors.
    pub(super) fn tensors(&mut self, tensors: &[&Tensor]) {
        self.word(tensors.len() as u64);
        for tensor in tensors {
            self.0.extend([tensor.dtype() as u8, tensor.ndim() as u8, alignment(tensor) as u8]);
            self.words(tensor.shape().iter().map(|&size| size as u64));
            self.words(tensor.strides().iter().map(|&stride| stride as u64));
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}
