//! The two halves, by their bits: float16 and bfloat16.

/// How many bits of a half are the exponent's and the fraction's.
pub(crate) struct Format {
    exponent: u32,
    fraction: u32,
}

pub(crate) const FLOAT16: Format = Format { exponent: 5, fraction: 10 };
pub(crate) const BFLOAT16: Format = Format { exponent: 8, fraction: 7 };

impl Format {
    fn bias(&self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// The bits of infinity, the greatest exponent.
    fn infinity(&self) -> u16 {
        ((1 << self.exponent) - 1) << self.fraction
    }

    pub(crate) fn widen(&self, bits: u16) -> f64 {
        let (sign, bits) = (if bits >> 15 == 1 { -1.0 } else { 1.0 }, bits & 0x7fff);
        if bits >= self.infinity() {
            return if bits == self.infinity() { sign * f64::INFINITY } else { f64::NAN };
        }
        let (exponent, fraction) = (bits >> self.fraction, bits & ((1 << self.fraction) - 1));
        let implicit = if exponent == 0 { 0 } else { 1 << self.fraction };
        let power = i32::from(exponent.max(1)) - self.bias() - self.fraction as i32;
        sign * f64::from(fraction + implicit) * f64::from(power).exp2()
    }

    /// Rounds once, to nearest, ties to even.
    pub(crate) fn narrow(&self, value: f64) -> u16 {
        let sign = u16::from(value.is_sign_negative()) << 15;
        if value.is_nan() {
            return sign | self.infinity() | 1 << (self.fraction - 1);
        }
        let fraction = self.fraction as i32;
        let exponent = (value.abs().to_bits() >> 52) as i32 - 1023;
        let least = exponent.max(1 - self.bias()) - fraction;
        if least + fraction > self.bias() {
            return sign | self.infinity();
        }
        let units = (value.abs() * f64::from(-least).exp2()).round_ties_even() as i32;
        // A carry out of the fraction raises the exponent.
        sign | (((least + fraction + self.bias() - 1) << fraction) + units) as u16
    }
}
