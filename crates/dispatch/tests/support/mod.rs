//! A value type that has nothing to do with tensors: words that carry keys; and kernels for it.

#![allow(dead_code, reason = "each test program uses its own part")]

mod value;

use keyfold_dispatch::{CallContext, DispatchKey as K, DispatchKeySet, Dispatcher, Kernel};
pub(crate) use value::{Ref, Val, Word};

pub(crate) type D = Dispatcher<Val>;
pub(crate) type Context<'c> = CallContext<'c, Val>;

/// A kernel in boxed form, which has this label for its name and answers with it.
#[track_caller]
pub(crate) fn says(label: &str) -> Kernel<Val> {
    let text = label.to_owned();
    Kernel::boxed(move |_: &Context<'_>, _: &[Ref<'_>]| Ok(word(&text, K::CPU))).named(label)
}

/// A layer that answers with its label around the answer of what is below.
#[track_caller]
pub(crate) fn wraps(label: &str) -> Kernel<Val> {
    let text = label.to_owned();
    Kernel::boxed(move |context: &Context<'_>, args: &[Ref<'_>]| {
        let below = said(context.call_below(args)?);
        Ok(word(&format!("{text}({below})"), K::CPU))
    })
    .named(label)
}

pub(crate) fn word(text: &str, keys: impl Into<DispatchKeySet>) -> Val {
    Val::Word(Word::new(text, keys))
}

/// What a kernel of [`says`] answered.
pub(crate) fn said(value: Val) -> String {
    match value {
        Val::Word(word) => word.text,
        other => panic!("not a word: {other:?}"),
    }
}

/// The argument of an operator in plain form, `name(Tensor[] inputs) -> Tensor`.
pub(crate) fn list(keys: impl Into<DispatchKeySet>) -> Val {
    Val::List(vec![word("x", keys)])
}

/// Numbers that look random and are the same in each run (Vigna's splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// Waits until what is checked is so. Snapshots that nobody holds are freed at the next change,
/// unless just then some thread of the process, another test's say, is between announcing itself
/// and saying what it read: so this makes changes until it is.
#[track_caller]
pub(crate) fn settles(what: &str, check: impl Fn() -> bool) {
    let other = D::new();
    for _ in 0..20_000 {
        if check() {
            return;
        }
        let handle = other.register("change", K::CPU, says("change")).unwrap();
        assert!(handle.remove());
        std::thread::yield_now();
    }
    panic!("it never came about: {what}");
}
