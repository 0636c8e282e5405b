//! Instruction levels, and code that is compiled once for each.
//!
//! Kernels are plain loops without branches, generic over [`Isa`]; the compiler vectorises them once for
//! every level, and [`dispatch`] selects the best level that the processor has. So hardly anything is
//! written with intrinsics, and a level needs no source of its own.
//!
//! ```
//! use keyfold_kit::isa::{Isa, Work, dispatch};
//!
//! /// `a * x + y` in place of y.
//! struct Axpy<'a>(f32, &'a [f32], &'a mut [f32]);
//!
//! impl Work for Axpy<'_> {
//!     type Output = ();
//!
//!     #[inline(always)]
//!     fn run<I: Isa>(self) {
//!         for (y, x) in self.2.iter_mut().zip(self.1) {
//!             *y = I::mul_add_f32(self.0, *x, *y);
//!         }
//!     }
//! }
//!
//! let (x, mut y) = ([1.0; 100], [0.5; 100]);
//! dispatch(Axpy(2.0, &x, &mut y));
//! assert_eq!(y, [2.5; 100]);
//! ```

use std::sync::atomic::{AtomicU8, Ordering};

use keyfold_core::{Error, ErrorKind, Result};

/// An instruction level; levels are in ascending order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[repr(u8)]
pub enum Level {
    /// The instructions of every processor of the architecture: SSE2 on x86-64, NEON on AArch64.
    Baseline = 1,
    /// AVX2, FMA and F16C (x86-64-v3).
    Avx2 = 2,
    /// AVX-512 with its F, BW, CD, DQ and VL parts (x86-64-v4).
    Avx512 = 3,
}

impl Level {
    /// Every level, ascending.
    pub const ALL: [Level; 3] = [Level::Baseline, Level::Avx2, Level::Avx512];

    /// The level's name in `KEYFOLD_SIMD`.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Baseline => "baseline",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }

    /// Whether this processor has the level.
    pub fn is_available(self) -> bool {
        self <= best()
    }

    fn from_number(number: u8) -> Option<Level> {
        Level::ALL.into_iter().find(|level| *level as u8 == number)
    }
}

/// A level as a type, for code that is compiled for it.
///
/// Only [`dispatch`] makes the levels above the baseline, after asking the processor; no other code can
/// name them.
pub trait Isa: levels::Known + Copy + 'static {
    /// The level.
    const LEVEL: Level;
    /// Whether the level has fused multiply-add: a product and a sum in one instruction that rounds
    /// once.
    const FMA: bool;

    /// `a * b + c`, rounded once if the level has fused multiply-add.
    #[inline(always)]
    fn mul_add_f32(a: f32, b: f32, c: f32) -> f32 {
        if Self::FMA { a.mul_add(b, c) } else { a * b + c }
    }

    /// As [`Isa::mul_add_f32`].
    #[inline(always)]
    fn mul_add_f64(a: f64, b: f64, c: f64) -> f64 {
        if Self::FMA { a.mul_add(b, c) } else { a * b + c }
    }

    /// Runs the work in a function of its own, compiled for this level: for code with several callers,
    /// each of which would otherwise hold a copy of it.
    fn call<W: Work>(work: W) -> W::Output;
}

/// [`Level::Baseline`].
#[derive(Clone, Copy, Debug)]
pub struct Baseline;

mod levels {
    /// [`Level::Avx2`](super::Level::Avx2).
    #[cfg(target_arch = "x86_64")]
    #[derive(Clone, Copy, Debug)]
    pub(super) struct Avx2;
    /// [`Level::Avx512`](super::Level::Avx512).
    #[cfg(target_arch = "x86_64")]
    #[derive(Clone, Copy, Debug)]
    pub(super) struct Avx512;

    /// The types that are levels.
    pub trait Known {}
    impl Known for super::Baseline {}
    #[cfg(target_arch = "x86_64")]
    impl Known for Avx2 {}
    #[cfg(target_arch = "x86_64")]
    impl Known for Avx512 {}
}
#[cfg(target_arch = "x86_64")]
use levels::{Avx2, Avx512};

impl Isa for Baseline {
    const LEVEL: Level = Level::Baseline;
    const FMA: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));

    #[inline(never)]
    fn call<W: Work>(work: W) -> W::Output {
        work.run::<Baseline>()
    }
}
#[cfg(target_arch = "x86_64")]
impl Isa for Avx2 {
    const LEVEL: Level = Level::Avx2;
    const FMA: bool = true;

    #[inline]
    fn call<W: Work>(work: W) -> W::Output {
        // SAFETY: only `dispatch` names this level, after asking the processor.
        unsafe { run_avx2(work) }
    }
}
#[cfg(target_arch = "x86_64")]
impl Isa for Avx512 {
    const LEVEL: Level = Level::Avx512;
    const FMA: bool = true;

    #[inline]
    fn call<W: Work>(work: W) -> W::Output {
        // SAFETY: as above.
        unsafe { run_avx512(work) }
    }
}

/// Work in code that is compiled once per level.
///
/// The method, and everything in it that should be vectorised, has to be `#[inline(always)]`: only code
/// that is inlined into the function of a level is compiled for it.
pub trait Work {
    /// The result.
    type Output;

    /// Whether the work is compiled for AVX-512, too. Memory-bound code gains little from wider
    /// registers, and each level is a third of its size.
    const AVX512: bool = true;

    /// Runs the work.
    fn run<I: Isa>(self) -> Self::Output;
}

/// The level in use; 0 until the first use.
static LEVEL: AtomicU8 = AtomicU8::new(0);

/// Runs the work at the level in use.
#[inline]
pub fn dispatch<W: Work>(work: W) -> W::Output {
    in_use().run(work)
}

/// A level that the processor has, for pieces of work that have to run at the same one: because they share
/// data in an order that follows from the level.
#[derive(Clone, Copy, Debug)]
pub struct InUse(u8);

/// The level in use as of now.
#[inline]
pub fn in_use() -> InUse {
    match LEVEL.load(Ordering::Relaxed) {
        0 => InUse(detect()),
        level => InUse(level),
    }
}

impl InUse {
    /// The level.
    pub fn level(self) -> Level {
        Level::from_number(self.0).unwrap_or(Level::Baseline)
    }

    /// Runs the work at this level.
    #[inline]
    pub fn run<W: Work>(self, work: W) -> W::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            3 if W::AVX512 => Avx512::call(work),
            #[cfg(target_arch = "x86_64")]
            2 | 3 => Avx2::call(work),
            _ => Baseline::call(work),
        }
    }
}

/// Asks the processor at the first use. The function isn't generic: a copy in each kernel would hold the
/// kernel's code once more.
#[cold]
fn detect() -> u8 {
    set_level(level()) as u8
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt,movbe")]
#[inline(never)]
fn run_avx2<W: Work>(work: W) -> W::Output {
    work.run::<Avx2>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(
    enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt,movbe"
)]
#[inline(never)]
fn run_avx512<W: Work>(work: W) -> W::Output {
    work.run::<Avx512>()
}

/// The best level that this processor has.
fn best() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        let v3 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
            && is_x86_feature_detected!("movbe");
        let v4 = v3
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512cd")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        match (v3, v4) {
            (_, true) => return Level::Avx512,
            (true, false) => return Level::Avx2,
            _ => {}
        }
    }
    Level::Baseline
}

/// The environment variable that limits the level.
pub const LEVEL_VARIABLE: &str = "KEYFOLD_SIMD";

/// Returns the level that the environment variable `KEYFOLD_SIMD` names; `None` if it is unset or empty.
///
/// # Errors
/// [`ErrorKind::Value`] for anything but the name of a level.
pub fn named_level() -> Result<Option<Level>> {
    match std::env::var_os(LEVEL_VARIABLE) {
        None => Ok(None),
        Some(text) => parse(&text.to_string_lossy()),
    }
}

fn parse(text: &str) -> Result<Option<Level>> {
    let name = text.trim();
    let found = Level::ALL.into_iter().find(|level| level.name() == name);
    if found.is_some() || name.is_empty() {
        return Ok(found);
    }
    let names = Level::ALL.map(Level::name).join(", ");
    Err(Error::new(
        ErrorKind::Value,
        format!(
            "the environment variable {LEVEL_VARIABLE} is '{text}'; it must be one of {names}, or \
             not be set"
        ),
    ))
}

/// The level in use: the one set by [`set_level`], otherwise the one that `KEYFOLD_SIMD` names, at most
/// the best that this processor has. A value that [`named_level`] refuses is ignored here.
pub fn level() -> Level {
    if let Some(level) = Level::from_number(LEVEL.load(Ordering::Relaxed)) {
        return level;
    }
    let named = named_level().ok().flatten();
    named.map_or(best(), |level| level.min(best()))
}

/// Sets the level in use, at most the best that the processor has: for tests of lower levels, and for
/// measuring them. Returns the level in use.
pub fn set_level(level: Level) -> Level {
    let level = level.min(best());
    LEVEL.store(level as u8, Ordering::Relaxed);
    level
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Name;
    impl Work for Name {
        type Output = Level;
        #[inline(always)]
        fn run<I: Isa>(self) -> Level {
            I::LEVEL
        }
    }

    #[test]
    fn an_invalid_level_is_quoted_with_the_valid_ones() {
        for text in ["bogus", "AVX2", "avx-2", "avx2 avx512", "3"] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Value);
            let start = format!("the environment variable KEYFOLD_SIMD is '{text}'; ");
            assert!(error.message().starts_with(&start), "{error}");
            assert!(error.message().contains("baseline, avx2, avx512"), "{error}");
        }
        assert_eq!(parse(" avx2\n").unwrap(), Some(Level::Avx2));
        assert_eq!(parse("").unwrap(), None);
    }

    #[test]
    fn work_runs_with_the_level_in_use() {
        for level in Level::ALL {
            let used = set_level(level);
            assert!(used <= level && used.is_available());
            assert_eq!(dispatch(Name), used);
        }
        assert_eq!(set_level(Level::Avx512), best());
    }
}
