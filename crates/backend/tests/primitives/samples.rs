//! Sample numbers: special ones, and random ones of all magnitudes.

use keyfold_core::{Complex, DType, Element, Scalar, Shape, Strides, bf16, f16};
use keyfold_tensor::Tensor;

/// A generator of random bits (G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number
/// generators", 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// Returns a number from -1 to 1.
    fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }

    /// Returns a float, mostly of moderate magnitude.
    fn float(&mut self) -> f64 {
        match self.below(8) {
            0..4 => self.unit() * 8.0,
            4 => self.unit() * 100.0,
            5 => self.unit() * 1e5,
            6 => self.unit() * 10f64.powi(self.below(76) as i32 - 38),
            _ => self.unit() * 10f64.powi(self.below(616) as i32 - 308),
        }
    }

    fn whole(&mut self, dtype: DType) -> Scalar {
        let (low, high) = dtype.int_range().unwrap();
        let wide = match self.below(4) {
            0 => self.below(9) as i128 - 4,
            1 => low + self.below(3) as i128,
            2 => high - self.below(70) as i128,
            _ => i128::from(self.bits()),
        };
        let wide = low + (wide - low).rem_euclid(high - low + 1);
        Scalar::from_wide(wide).unwrap()
    }

    fn scalar(&mut self, dtype: DType) -> Scalar {
        match dtype {
            DType::Bool => Scalar::Bool(self.bits() & 1 == 1),
            DType::C64 | DType::C128 => Scalar::Complex(self.complex()),
            _ if dtype.is_floating() => Scalar::Float(self.float()),
            _ => self.whole(dtype),
        }
    }

    /// Returns a complex number, mostly with parts of similar magnitude or near modulus 1.
    fn complex(&mut self) -> Complex<f64> {
        match self.below(8) {
            0 => Complex::from_polar(1.0 + self.unit() * 1e-3, self.unit() * 4.0),
            1 => Complex::new(self.float(), self.float()),
            2 => Complex::new(self.below(7) as f64 - 3.0, self.below(3) as f64 - 1.0),
            _ => Complex::new(self.unit() * 4.0, self.unit() * 4.0),
        }
    }
}

/// Returns the special values of functions.
pub(crate) fn special(dtype: DType) -> Vec<Scalar> {
    let floats = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        2.0,
        -3.0,
        10.0,
        1e3,
        1e-3,
        -1e-5,
        0.55,
        40.0,
        -40.0,
        88.5,
        -103.5,
        709.5,
        -745.0,
        1e-40,
        -5e-324,
        1e30,
        -1e30,
        1e300,
        65_504.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ];
    match dtype {
        DType::Bool => vec![Scalar::Bool(false), Scalar::Bool(true)],
        DType::C64 | DType::C128 => {
            let parts = [0.0, -0.0, 1.0, -1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
            let both = |re: f64| parts.map(|im| Scalar::Complex(Complex::new(re, im)));
            parts.into_iter().flat_map(both).collect()
        }
        _ if dtype.is_floating() => floats.map(Scalar::Float).into(),
        _ => {
            let (low, high) = dtype.int_range().unwrap();
            let near = [0, 1, 2, 3, 7, 8, 31, 63, 64, low, low + 1, high - 1, high, -1, -2, -5];
            let inside = near.into_iter().filter(|whole| (low..=high).contains(whole));
            inside.filter_map(Scalar::from_wide).collect()
        }
    }
}

/// Returns a tensor of one dimension with these elements.
pub(crate) fn tensor(dtype: DType, items: &[Scalar]) -> Tensor {
    fn of<T: Element>(items: &[Scalar]) -> Tensor {
        Tensor::from_vec::<T>(items.iter().map(|item| item.to::<T>()).collect(), &[items.len()])
            .unwrap()
    }
    match dtype {
        DType::Bool => of::<bool>(items),
        DType::U8 => of::<u8>(items),
        DType::U16 => of::<u16>(items),
        DType::U32 => of::<u32>(items),
        DType::U64 => of::<u64>(items),
        DType::I8 => of::<i8>(items),
        DType::I16 => of::<i16>(items),
        DType::I32 => of::<i32>(items),
        DType::I64 => of::<i64>(items),
        DType::F16 => of::<f16>(items),
        DType::BF16 => of::<bf16>(items),
        DType::F32 => of::<f32>(items),
        DType::F64 => of::<f64>(items),
        DType::C64 => of::<Complex<f32>>(items),
        DType::C128 => of::<Complex<f64>>(items),
    }
}

/// Returns random elements.
pub(crate) fn random(dtype: DType, count: usize, seed: u64) -> Tensor {
    let mut random = Random(seed);
    let items: Vec<Scalar> = (0..count).map(|_| random.scalar(dtype)).collect();
    tensor(dtype, &items)
}

/// Returns elements of inputs of these dtypes: all pairs of special ones of the first two, and
/// random ones.
pub(crate) fn inputs(dtypes: &[DType], count: usize, seed: u64) -> Vec<Tensor> {
    let specials: Vec<Vec<Scalar>> = dtypes.iter().map(|dtype| special(*dtype)).collect();
    let second = specials.get(1).map_or(1, Vec::len);
    let pairs = specials[0].len() * second;
    let mut random = Random(seed);
    let column = |(at, dtype): (usize, &DType)| {
        let own = &specials[at];
        let item = |row: usize| match at {
            0 => own[row / second],
            1 => own[row % second],
            _ => own[row % own.len()],
        };
        let mut items: Vec<Scalar> = (0..pairs).map(item).collect();
        items.extend((0..count).map(|_| random.scalar(*dtype)));
        tensor(*dtype, &items)
    };
    dtypes.iter().enumerate().map(column).collect()
}

/// Returns random elements that broadcast to a shape, with permuted dimensions and gaps.
pub(crate) fn view(dtype: DType, shape: &[usize], random: &mut Random, seed: u64) -> Tensor {
    let mut sizes = shape[random.below(shape.len() + 1) / 2..].to_vec();
    for size in &mut sizes {
        if random.below(5) == 0 {
            *size = 1;
        }
    }
    let mut dims: Vec<usize> = (0..sizes.len()).collect();
    dims.sort_by_key(|_| random.bits());
    let mut strides = vec![0_isize; sizes.len()];
    let (mut step, mut offset) = (1, random.below(3));
    for dim in dims {
        let stride = (step * (1 + random.below(3))) as isize;
        step = stride as usize * sizes[dim].max(1);
        strides[dim] = stride;
        if random.below(3) == 0 && sizes[dim] > 0 {
            strides[dim] = -stride;
            offset += stride as usize * (sizes[dim] - 1);
        }
    }
    let memory = self::random(dtype, step + offset + 1, seed).into_buffer();
    let (sizes, strides) = (Shape::new(&sizes).unwrap(), Strides::new(&strides).unwrap());
    Tensor::from_parts(memory, sizes, strides, offset).unwrap()
}
