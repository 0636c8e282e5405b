//! What is done with the elements: combining two, a lane, and rows element by element.

use keyfold_core::Complex;
use keyfold_expr::isa::{self, Isa, Work};

/// A way to combine two numbers into one, in any order up to rounding.
pub(crate) trait Monoid: 'static {
    type Number: Copy + Send + Sync + 'static;
    /// Combined with a number it changes nothing.
    const IDENTITY: Self::Number;
    fn combine(a: Self::Number, b: Self::Number) -> Self::Number;
    /// Whether nothing that is still to come can change it.
    #[inline(always)]
    fn is_final(_: Self::Number) -> bool {
        false
    }
}

/// Numbers that can be added and, for means, divided.
pub(crate) trait Addend: Copy + Send + Sync + 'static {
    /// What added to a number changes nothing: for floats -0.0, since 0.0 would change that.
    const NEUTRAL: Self;
    const ZERO: Self;
    /// Whole numbers wrap around.
    fn plus(self, other: Self) -> Self;
    fn divide(all: &mut [Self], by: f64);
}

macro_rules! whole_addend {
    ($($type:ty),*) => {$(
        impl Addend for $type {
            const NEUTRAL: Self = 0;
            const ZERO: Self = 0;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn divide(_: &mut [Self], _: f64) {}
        }
    )*};
}
whole_addend!(i64, u64);

macro_rules! float_addend {
    ($($type:ty),*) => {$(
        impl Addend for $type {
            const NEUTRAL: Self = -0.0;
            const ZERO: Self = 0.0;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }
            fn divide(all: &mut [Self], by: f64) {
                all.iter_mut().for_each(|x| *x /= by as $type);
            }
        }
        impl Addend for Complex<$type> {
            const NEUTRAL: Self = Complex::new(-0.0, -0.0);
            const ZERO: Self = Complex::new(0.0, 0.0);
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                Complex::new(self.re + other.re, self.im + other.im)
            }
            fn divide(all: &mut [Self], by: f64) {
                all.iter_mut().for_each(|x| *x /= by as $type);
            }
        }
    )*};
}
float_addend!(f32, f64);

pub(crate) struct Sum<T>(std::marker::PhantomData<T>);
impl<T: Addend> Monoid for Sum<T> {
    type Number = T;
    const IDENTITY: T = T::NEUTRAL;
    #[inline(always)]
    fn combine(a: T, b: T) -> T {
        a.plus(b)
    }
}

/// Numbers with an order; a NaN is both the greatest and the smallest, as in NumPy.
pub(crate) trait Ordered: Copy + Send + Sync + PartialEq + 'static {
    const LOWEST: Self;
    const HIGHEST: Self;
    fn is_nan(self) -> bool;
    fn less(self, other: Self) -> bool;
}

macro_rules! ordered {
    ($($type:ty, $low:expr, $high:expr, $x:ident => $nan:expr;)*) => {$(
        impl Ordered for $type {
            const LOWEST: Self = $low;
            const HIGHEST: Self = $high;
            #[inline(always)]
            fn is_nan(self) -> bool {
                let $x = self;
                $nan
            }
            #[inline(always)]
            fn less(self, other: Self) -> bool {
                self < other
            }
        }
    )*};
}
ordered! {
    u8, 0, u8::MAX, _x => false;
    u16, 0, u16::MAX, _x => false;
    u32, 0, u32::MAX, _x => false;
    u64, 0, u64::MAX, _x => false;
    i8, i8::MIN, i8::MAX, _x => false;
    i16, i16::MIN, i16::MAX, _x => false;
    i32, i32::MIN, i32::MAX, _x => false;
    i64, i64::MIN, i64::MAX, _x => false;
    f32, f32::NEG_INFINITY, f32::INFINITY, x => x.is_nan();
    f64, f64::NEG_INFINITY, f64::INFINITY, x => x.is_nan();
}

/// Which of two numbers is kept.
pub(crate) trait Pick: 'static {
    fn worst<T: Ordered>() -> T;
    /// Whether `b` is beyond `a`; false for NaN.
    fn beyond<T: Ordered>(a: T, b: T) -> bool;
}

pub(crate) struct Greatest;
impl Pick for Greatest {
    #[inline(always)]
    fn worst<T: Ordered>() -> T {
        T::LOWEST
    }
    #[inline(always)]
    fn beyond<T: Ordered>(a: T, b: T) -> bool {
        a.less(b)
    }
}

pub(crate) struct Smallest;
impl Pick for Smallest {
    #[inline(always)]
    fn worst<T: Ordered>() -> T {
        T::HIGHEST
    }
    #[inline(always)]
    fn beyond<T: Ordered>(a: T, b: T) -> bool {
        b.less(a)
    }
}

pub(crate) struct Extreme<P, T>(std::marker::PhantomData<(P, T)>);

macro_rules! extreme {
    ($($pick:ty, $identity:ident;)*) => {$(
        impl<T: Ordered> Monoid for Extreme<$pick, T> {
            type Number = T;
            const IDENTITY: T = T::$identity;
            #[inline(always)]
            fn combine(a: T, b: T) -> T {
                // Where `a` is a NaN nothing is beyond it.
                if <$pick>::beyond(a, b) | b.is_nan() { b } else { a }
            }
        }
    )*};
}
extreme! {
    Greatest, LOWEST;
    Smallest, HIGHEST;
}

/// Whether any is not zero, as the greatest: beyond zero it's decided.
pub(crate) struct Any<T>(std::marker::PhantomData<T>);
/// Whether all are not zero, as the smallest: at zero it's decided.
pub(crate) struct All<T>(std::marker::PhantomData<T>);

impl<T: Ordered> Monoid for Any<T> {
    type Number = T;
    const IDENTITY: T = T::LOWEST;
    #[inline(always)]
    fn combine(a: T, b: T) -> T {
        if a.less(b) { b } else { a }
    }
    #[inline(always)]
    fn is_final(a: T) -> bool {
        a != T::LOWEST
    }
}

impl<T: Ordered> Monoid for All<T> {
    type Number = T;
    const IDENTITY: T = T::HIGHEST;
    #[inline(always)]
    fn combine(a: T, b: T) -> T {
        if b.less(a) { b } else { a }
    }
    #[inline(always)]
    fn is_final(a: T) -> bool {
        a == T::LOWEST
    }
}

/// A monoid's loops, compiled for each level, as functions: so that what walks the memory is
/// compiled once per type of number.
pub(crate) struct Ops<A> {
    pub(crate) identity: A,
    pub(crate) combine: fn(A, A) -> A,
    pub(crate) is_final: fn(A) -> bool,
    /// Of lanes of dense numbers, a step apart, each combined.
    pub(crate) lanes: unsafe fn(*const A, isize, usize, &mut [A]),
    /// Combines each of the numbers with the one at its place in each of the rows, a step apart.
    pub(crate) accumulate: unsafe fn(*const A, isize, usize, &mut [A]),
}

impl<A: Copy> Ops<A> {
    pub(crate) fn of<M: Monoid<Number = A>>() -> Self {
        Ops {
            identity: M::IDENTITY,
            combine: M::combine,
            is_final: M::is_final,
            lanes: lanes::<M>,
            accumulate: accumulate::<M>,
        }
    }
}

struct Lanes<'a, M: Monoid> {
    from: *const M::Number,
    step: isize,
    len: usize,
    results: &'a mut [M::Number],
}

impl<M: Monoid> Work for Lanes<'_, M> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        // SAFETY: the caller of `lanes` says that each lane has so many numbers there.
        let lane = |lane: usize| unsafe {
            let from = self.from.wrapping_offset(lane as isize * self.step);
            std::slice::from_raw_parts(from, self.len)
        };
        let mut first = 0;
        if self.len >= 4 * WIDE {
            // Memory is read faster in several places at a time.
            while first + 4 <= self.results.len() {
                let x = [lane(first), lane(first + 1), lane(first + 2), lane(first + 3)];
                self.results[first..first + 4].copy_from_slice(&four_dense::<M>(x));
                first += 4;
            }
        }
        for (at, result) in self.results.iter_mut().enumerate().skip(first) {
            *result = dense::<M>(lane(at));
        }
    }
}

/// Combines the numbers of each lane, `len` dense ones a step after those of the lane before.
///
/// # Safety
/// They can be read there.
unsafe fn lanes<M: Monoid>(
    from: *const M::Number,
    step: isize,
    len: usize,
    results: &mut [M::Number],
) {
    let count = results.len();
    debug_assert!(count > 0);
    isa::dispatch(Lanes::<M> { from, step, len, results });
}

/// Dense numbers, combined in as many independent ways as make good use of vectors. The ways don't
/// depend on the level, so neither does the result of a sum.
#[inline(always)]
pub(crate) fn dense<M: Monoid>(x: &[M::Number]) -> M::Number {
    // 256 bytes: four of the widest vectors.
    match size_of::<M::Number>() {
        _ if x.len() < 16 => x.iter().fold(M::IDENTITY, |a, x| M::combine(a, *x)),
        _ if x.len() < WIDE => ways::<M, 16>(x),
        1 => ways::<M, 256>(x),
        2 => ways::<M, 128>(x),
        4 => ways::<M, 64>(x),
        8 => ways::<M, 32>(x),
        _ => ways::<M, 16>(x),
    }
}

/// Numbers from which on a lane is combined in the most ways.
const WIDE: usize = 256;

/// As [`dense`] of each, which has to be at least [`WIDE`] long.
#[inline(always)]
fn four_dense<M: Monoid>(x: [&[M::Number]; 4]) -> [M::Number; 4] {
    match size_of::<M::Number>() {
        1 => four_ways::<M, 256>(x),
        2 => four_ways::<M, 128>(x),
        4 => four_ways::<M, 64>(x),
        8 => four_ways::<M, 32>(x),
        _ => four_ways::<M, 16>(x),
    }
}

/// As [`ways`] of each.
#[inline(always)]
fn four_ways<M: Monoid, const WAYS: usize>(x: [&[M::Number]; 4]) -> [M::Number; 4] {
    let mut all = [[M::IDENTITY; WAYS]; 4];
    let [a, b, c, d] = x.map(|x| x.chunks_exact(WAYS));
    let rest = [a.remainder(), b.remainder(), c.remainder(), d.remainder()];
    for (((a, b), c), d) in a.zip(b).zip(c).zip(d) {
        for i in 0..WAYS {
            all[0][i] = M::combine(all[0][i], a[i]);
        }
        for i in 0..WAYS {
            all[1][i] = M::combine(all[1][i], b[i]);
        }
        for i in 0..WAYS {
            all[2][i] = M::combine(all[2][i], c[i]);
        }
        for i in 0..WAYS {
            all[3][i] = M::combine(all[3][i], d[i]);
        }
    }
    let mut results = [M::IDENTITY; 4];
    for (result, (all, rest)) in results.iter_mut().zip(all.into_iter().zip(rest)) {
        *result = folded::<M, WAYS>(all, rest);
    }
    results
}

#[inline(always)]
fn ways<M: Monoid, const WAYS: usize>(x: &[M::Number]) -> M::Number {
    let mut all = [M::IDENTITY; WAYS];
    let mut chunks = x.chunks_exact(WAYS);
    for chunk in &mut chunks {
        for i in 0..WAYS {
            all[i] = M::combine(all[i], chunk[i]);
        }
    }
    folded::<M, WAYS>(all, chunks.remainder())
}

#[inline(always)]
fn folded<M: Monoid, const WAYS: usize>(
    mut all: [M::Number; WAYS],
    rest: &[M::Number],
) -> M::Number {
    for (a, x) in all.iter_mut().zip(rest) {
        *a = M::combine(*a, *x);
    }
    let mut half = WAYS / 2;
    while half > 0 {
        for i in 0..half {
            all[i] = M::combine(all[i], all[i + half]);
        }
        half /= 2;
    }
    all[0]
}

struct Accumulate<'a, M: Monoid> {
    from: *const M::Number,
    step: isize,
    rows: usize,
    all: &'a mut [M::Number],
}

impl<M: Monoid> Work for Accumulate<'_, M> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Accumulate { from, step, rows, all } = self;
        let len = all.len();
        // SAFETY: the caller of `accumulate` says that each row has so many numbers there.
        let row = |r: usize| unsafe {
            std::slice::from_raw_parts(from.wrapping_offset(r as isize * step), len)
        };
        let mut r = 0;
        // Four at a time, so that the results are loaded and stored less often.
        while r + 4 <= rows {
            four::<M>(all, row(r), row(r + 1), row(r + 2), row(r + 3));
            r += 4;
        }
        while r < rows {
            one::<M>(all, row(r));
            r += 1;
        }
    }
}

#[inline(always)]
fn four<M: Monoid>(
    all: &mut [M::Number],
    a: &[M::Number],
    b: &[M::Number],
    c: &[M::Number],
    d: &[M::Number],
) {
    let len = all.len();
    let (a, b, c, d) = (&a[..len], &b[..len], &c[..len], &d[..len]);
    for i in 0..len {
        let pair = M::combine(M::combine(a[i], b[i]), M::combine(c[i], d[i]));
        all[i] = M::combine(all[i], pair);
    }
}

#[inline(always)]
fn one<M: Monoid>(all: &mut [M::Number], a: &[M::Number]) {
    for (all, a) in all.iter_mut().zip(a) {
        *all = M::combine(*all, *a);
    }
}

/// Combines each of `all` with the number at its place in each row, the rows a step apart.
///
/// # Safety
/// As many numbers as there are in `all` can be read in each row.
unsafe fn accumulate<M: Monoid>(
    from: *const M::Number,
    step: isize,
    rows: usize,
    all: &mut [M::Number],
) {
    isa::dispatch(Accumulate::<M> { from, step, rows, all });
}
