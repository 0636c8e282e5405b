//! The elements of samples.

use keyfold_core::{Complex, DType, DTypeKind};

use crate::array::{Arg, Array, Layout, Operand};
use crate::number::{Number, max_of, tiny};
use crate::sample::Sampler;

/// The elements of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Distinct numbers of both signs and of moderate size.
    Plain,
    /// Numbers between 0.25 and 2, where derivatives exist.
    Smooth,
    /// NaN, infinities, signed zeros, the greatest and the smallest numbers among others.
    Special,
}

impl Values {
    /// Returns the name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Values::Plain => "plain",
            Values::Smooth => "smooth",
            Values::Special => "special",
        }
    }
}

/// A generator of reproducible numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Generator(u64);

impl Generator {
    /// Returns the generator of a seed.
    pub fn new(seed: u64) -> Generator {
        Generator(seed)
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n.max(1) as u64) as usize
    }

    /// Returns a number between 0 and 1.
    fn fraction(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * 2f64.powi(-53)
    }
}

impl Sampler {
    /// Returns a tensor of the sample's dtype; layouts take turns.
    pub fn tensor(&mut self, shape: &[usize]) -> Operand {
        let dtype = self.dtype;
        let repeats = self.layout == Layout::Broadcast && shape.first().is_some_and(|n| *n > 1);
        let own = if repeats { &shape[1..] } else { shape };
        let one = Array::from_fn(dtype, own, |_| self.item().cast(dtype));
        let array = match repeats {
            true => Array::from_fn(dtype, shape, |index| one.at(&index[1..])),
            false => one,
        };
        let operand = Operand { array, layout: self.layout };
        self.layout = match self.layout {
            Layout::Contiguous | Layout::Offset => Layout::Contiguous,
            Layout::Transposed | Layout::Negative => Layout::Sliced,
            Layout::Sliced | Layout::Broadcast => Layout::Transposed,
        };
        operand
    }

    /// Returns an element of the sample's dtype.
    fn item(&mut self) -> Number {
        let special = self.values == Values::Special && self.random.below(3) == 0;
        let dtype = self.dtype;
        match dtype.kind() {
            DTypeKind::Bool => Number::Whole(self.random.below(2) as i128),
            DTypeKind::UInt | DTypeKind::Int => {
                let (low, high) = dtype.int_range().unwrap_or((0, 1));
                Number::Whole(match special {
                    true => [low, high, 0, 1, high - 1, low + 1][self.random.below(6)],
                    false => (self.random.below(201) as i128 - 100).max(low).min(high),
                })
            }
            DTypeKind::Float => Number::Float(match special {
                true => self.special(),
                false => self.moderate(),
            }),
            // Complex functions of them may differ in parts, by the branch that a device takes.
            DTypeKind::Complex if special && self.copies => {
                Number::Complex(Complex::new(self.special(), self.special()))
            }
            DTypeKind::Complex => Number::Complex(Complex::new(self.moderate(), self.moderate())),
        }
    }

    fn moderate(&mut self) -> f64 {
        let (x, sign) = (self.random.fraction(), self.random.below(2));
        match self.values {
            Values::Smooth => 0.25 + 1.75 * x,
            _ if sign == 0 => 0.05 + 4.0 * x,
            _ => -0.05 - 4.0 * x,
        }
    }

    /// Returns a special float. Sums get none that overflow in some orders only. Subnormal numbers,
    /// which arithmetic may flush to 0, are only copied.
    fn special(&mut self) -> f64 {
        let (most, least) = (max_of(self.dtype), tiny(self.dtype));
        let infinite = [f64::INFINITY, f64::NEG_INFINITY];
        let all = [
            [0.0, -0.0, 1.0, f64::NAN].as_slice(),
            &infinite,
            &[most, -most, least],
            &[least / 4.0, -least / 2.0],
        ];
        let count = if self.sums {
            2
        } else if self.copies {
            4
        } else {
            3
        };
        let all = all[..count].concat();
        all[self.random.below(all.len())]
    }

    /// Returns a tensor of bools.
    pub fn mask(&mut self, shape: &[usize]) -> Operand {
        let item = |_: &[usize]| Number::Whole(self.random.below(2) as i128);
        Operand { array: Array::from_fn(DType::Bool, shape, item), layout: self.layout_of(shape) }
    }

    /// Returns positions among `size`, negative ones among them.
    pub fn positions(&mut self, shape: &[usize], size: usize) -> Operand {
        let random = &mut self.random;
        let item = |_: &[usize]| Number::Whole(random.below(2 * size) as i128 - size as i128);
        Operand { array: Array::from_fn(DType::I64, shape, item), layout: self.layout_of(shape) }
    }

    /// Returns positions that are all different.
    fn unique_positions(&mut self, count: usize, size: usize) -> Operand {
        let start = self.random.below(size);
        let item = |at: &[usize]| Number::Whole(((start + at[0]) % size) as i128);
        let array = Array::from_fn(DType::I64, &[count.min(size)], item);
        Operand { array, layout: Layout::Contiguous }
    }

    /// Returns a layout that takes turns with the tensors' but repeats nothing.
    fn layout_of(&self, _: &[usize]) -> Layout {
        if self.layout == Layout::Broadcast { Layout::Sliced } else { self.layout }
    }

    /// Returns the indices of a call of `index` or `index_put` on a tensor of that shape: positions,
    /// a mask, or positions behind a whole dimension. Of several values that are put in one place
    /// any may stay, so positions are different where nothing accumulates.
    pub(crate) fn indices(&mut self, operator: &str, shape: &[usize]) -> Arg {
        let puts = operator.starts_with("aten::index_put") && self.choice % 2 == 1;
        Arg::Tensors(match self.choice % 4 {
            0 | 3 if puts => vec![Some(self.unique_positions(2, shape[0]))],
            0 => vec![Some(self.positions(&[4], shape[0]))],
            1 => vec![Some(self.mask(&shape[..1]))],
            2 => vec![None, Some(self.positions(&[2, 2], shape[1]))],
            _ => {
                let all = [self.positions(&[3], shape[0]), self.positions(&[2, 1], shape[1])];
                all.map(Some).into()
            }
        })
    }
}
