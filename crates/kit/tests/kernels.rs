//! Conversions and divisions of floats at every level, compared with Rust's and Python's scalar results.

use keyfold_core::{DType, bf16, f16};
use keyfold_expr::{Expr, Lowered};
use keyfold_kit::interpreter::{Frame, Program};
use keyfold_kit::isa::{self, Level};

/// A type of tensor elements.
trait Element: Copy + Default + std::fmt::Debug {
    const DTYPE: DType;
}

macro_rules! elements {
    ($($t:ident $dtype:ident;)*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

elements! {
    u8 U8; u16 U16; u32 U32; u64 U64; i8 I8; i16 I16; i32 I32; i64 I64; f32 F32; f64 F64;
    f16 F16; bf16 BF16;
}

/// Runs an expression over operands of equal length, block by block.
fn run<A: Element, R: Element>(text: &str, operands: &[&[A]]) -> Vec<R> {
    let expr = Expr::parse(text).unwrap();
    let dtypes = vec![A::DTYPE; operands.len()];
    let lowered = Lowered::new(&expr, &dtypes, &[], Some(R::DTYPE)).unwrap();
    let program = Program::new(&lowered).unwrap();
    let mut results = vec![R::default(); operands[0].len()];
    let (output, block) = (program.output(), program.block());
    let mut slots = vec![std::ptr::null_mut(); program.slots()];
    assert!(output == operands.len() && slots.len() == output + 1);
    // A register for operands that are computed in another dtype than they are stored in.
    let mut computed = vec![0_u64; block];
    let access = program.accesses()[output];
    for at in (0..results.len()).step_by(block) {
        let len = block.min(results.len() - at);
        for (slot, operand) in slots.iter_mut().zip(operands) {
            *slot = operand[at..].as_ptr().cast_mut().cast();
        }
        let target = results[at..].as_mut_ptr().cast();
        let direct = program.writes_result(0);
        slots[output] = if direct { target } else { computed.as_mut_ptr().cast() };
        let frame = Frame {
            slots: &mut slots,
            values: program.constants().unwrap(),
            tables: &[],
            gather_offsets: std::ptr::null_mut(),
            gathered: std::ptr::null_mut(),
        };
        // SAFETY: every slot points to `len` elements, which is at most a block.
        unsafe {
            program.run(&frame, len).unwrap();
            if !direct {
                (access.store)(target, 1, computed.as_ptr().cast(), len);
            }
        }
    }
    results
}

fn for_each_level(mut f: impl FnMut(Level)) {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _guard = LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
        assert_eq!(isa::set_level(level), level);
        f(level);
    }
}

fn check_cast<A: Element, R: Element + PartialEq>(numbers: &[A], expected: impl Fn(A) -> R) {
    for_each_level(|level| {
        // Short slices too, whose tail takes another path.
        for numbers in [numbers, &numbers[..1], &numbers[..7], &numbers[..67]] {
            let results = run::<A, R>("x", &[numbers]);
            for (x, result) in numbers.iter().zip(results) {
                assert_eq!(result, expected(*x), "{x:?} at {level:?}");
            }
        }
    });
}

macro_rules! check_casts {
    ($numbers:expr => $($to:ident)*) => {
        $( check_cast($numbers, |x| x as $to); )*
    };
}

/// Numbers near the integers' limits, numbers that aren't finite, and a sweep over bit patterns.
fn doubles() -> Vec<f64> {
    let limits = (0..=64).flat_map(|bits| {
        let limit = 2f64.powi(bits);
        [limit - 1.0, limit - 0.5, limit.next_down(), limit, limit.next_up(), limit + 1.0]
    });
    let other = [0.0, 0.3, 0.999, f64::NAN, f64::INFINITY, f64::MAX, f64::MIN_POSITIVE, 5e-324];
    let bits = (0..1_u64 << 15).map(|i| (i << 49) | (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 15));
    let all = other.into_iter().chain(limits).chain(bits.map(f64::from_bits));
    all.flat_map(|x| [x, -x]).collect()
}

/// The same for float32, and the neighbours of those numbers.
fn singles() -> Vec<f32> {
    let near = doubles().into_iter().flat_map(|x| {
        let x = x as f32;
        [x, x.next_up(), x.next_down()]
    });
    near.chain((0..=u32::MAX).step_by(99_991).map(f32::from_bits)).collect()
}

#[test]
fn floats_become_integers_as_in_rust() {
    check_casts!(&doubles() => u8 i8 u16 i16 u32 i32 u64 i64);
    check_casts!(&singles() => u8 i8 u16 i16 u32 i32 u64 i64);
}

#[test]
fn integers_become_floats_as_in_rust() {
    let numbers: Vec<u64> = doubles().iter().map(|x| x.to_bits()).collect();
    check_casts!(&numbers => f32 f64);
    let numbers: Vec<i64> = numbers.iter().map(|x| *x as i64 >> (x % 64)).collect();
    check_casts!(&numbers => f32 f64 u8 i16 i32);
}

#[test]
fn float64_is_rounded_once_to_the_halves() {
    // A number slightly beside the midpoint of two halves: rounding to float32 first would lose the
    // difference.
    let middles = (0..0x7bff_u16).step_by(7).flat_map(|bits| {
        let x = f64::midpoint(f16::from_bits(bits).to_f64(), f16::from_bits(bits + 1).to_f64());
        [x, x.next_up(), x.next_down(), -x, x * (1.0 + 1e-12)]
    });
    let numbers: Vec<f64> = middles.chain(doubles()).filter(|x| !x.is_nan()).collect();
    check_cast(&numbers, <f16 as keyfold_kit::half::Half>::narrow_f64);
    check_cast(&numbers, <bf16 as keyfold_kit::half::Half>::narrow_f64);
}

/// Python's floor division and remainder, with NumPy's results for a divisor of 0.
macro_rules! python {
    ($($name:ident $float:ident;)*) => {$(
        fn $name(a: $float, b: $float) -> [$float; 2] {
            if b == 0.0 {
                return [a / b, $float::NAN];
            }
            let mut rest = a % b;
            let mut quotient = (a - rest) / b;
            if rest == 0.0 {
                rest = (0.0 as $float).copysign(b);
            } else if (rest < 0.0) != (b < 0.0) {
                rest += b;
                quotient -= 1.0;
            }
            let floor = quotient.floor();
            let nearest = if quotient - floor > 0.5 { floor + 1.0 } else { floor };
            [if quotient == 0.0 { (0.0 as $float).copysign(a / b) } else { nearest }, rest]
        }
    )*};
}

python! {
    python_f32 f32;
    python_f64 f64;
}

fn check_divisions<T: Element + Into<f64>>(a: &[T], b: &[T], python: impl Fn(T, T) -> [T; 2]) {
    for_each_level(|level| {
        for len in [a.len(), 1, 5, 33, 70] {
            let (a, b) = (&a[..len], &b[..len]);
            for (at, text) in ["a // b", "a % b"].into_iter().enumerate() {
                let results: Vec<T> = run(text, &[a, b]);
                for ((a, b), result) in a.iter().zip(b).zip(results) {
                    let (got, wanted): (f64, f64) = (result.into(), python(*a, *b)[at].into());
                    let same = got.to_bits() == wanted.to_bits() || got.is_nan() && wanted.is_nan();
                    assert!(same, "{text}: {a:?}, {b:?}: {got:e}, {wanted:e} at {level:?}");
                }
            }
        }
    });
}

/// A pseudo-random sequence, the same in every run.
fn bits(count: u64) -> impl Iterator<Item = u64> {
    (1..=count).map(|i| {
        let x = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
    })
}

macro_rules! pairs {
    // Pairs of special numbers, exact multiples and their neighbours, and random bits.
    ($($name:ident $float:ident $bits:ident $digits:expr;)*) => {$(
        fn $name() -> (Vec<$float>, Vec<$float>) {
            let special = [
                0.0, 1.0, 2.0, 3.0, 0.1, 1.5, 1e-20, 7e18, $float::MAX, $float::INFINITY, $float::NAN,
                $float::MIN_POSITIVE, $float::from_bits(1), $float::from_bits(3), $float::EPSILON,
            ];
            let signed = special.iter().flat_map(|x| [*x, -x]);
            let mut pairs: Vec<[$float; 2]> =
                signed.clone().flat_map(|a| signed.clone().map(move |b| [a, b])).collect();
            for (random, power) in bits(20_000).zip((0..$digits + 3).cycle()) {
                // A divisor from 1 to 2 with a random number of digits, and a quotient of about the
                // remaining bits.
                let few = (random >> 60) as u32 * $digits / 16;
                let divisor = 1.0 + ((random >> 8) as $float / (1_u64 << 57) as $float);
                let divisor = $float::from_bits(divisor.to_bits() >> few << few);
                let quotient = ((1_u64 << power) + (random % (1 << power))) as $float;
                let product = quotient * divisor;
                let scale = (2.0 as $float).powi((random >> 33) as i32 % 100);
                let sign = |bit: u64| if random >> bit & 1 == 1 { scale } else { -scale };
                let near = [product, product.next_up(), product.next_down(), product + 0.5];
                pairs.extend(near.map(|a| [a * sign(7), divisor * sign(8)]));
            }
            let any = |x: u64| $float::from_bits((x >> (64 - $bits::BITS)) as $bits);
            pairs.extend(bits(4000).zip(bits(8000).skip(4000)).map(|(a, b)| [any(a), any(b)]));
            (pairs.iter().map(|p| p[0]).collect(), pairs.iter().map(|p| p[1]).collect())
        }
    )*};
}

pairs! {
    single_pairs f32 u32 24;
    double_pairs f64 u64 53;
}

#[test]
fn floor_division_and_remainder_of_floats_are_those_of_python() {
    let (a, b) = single_pairs();
    check_divisions(&a, &b, python_f32);
    let (a, b) = double_pairs();
    check_divisions(&a, &b, python_f64);
}
