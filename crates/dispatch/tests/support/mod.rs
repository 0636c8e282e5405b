//! A value type unrelated to tensors: words that carry keys; and kernels for it.

#![allow(dead_code, reason = "each test program uses its own part")]

mod value;

use keyfold_dispatch::{CallContext, DispatchKey as K, DispatchKeySet, Dispatcher, Kernel};
pub(crate) use value::{Ref, Val, Word};

pub(crate) type D = Dispatcher<Val>;
pub(crate) type Context<'c> = CallContext<'c, Val>;

/// Returns a boxed kernel that is named `label` and returns it.
#[track_caller]
pub(crate) fn says(label: &str) -> Kernel<Val> {
    let text = label.to_owned();
    Kernel::boxed(move |_: &Context<'_>, _: &[Ref<'_>]| Ok(word(&text, K::CPU))).named(label)
}

/// Returns a layer that wraps the result of the kernel below in its label.
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

/// Returns the label that a kernel of [`says`] returned.
pub(crate) fn said(value: Val) -> String {
    match value {
        Val::Word(word) => word.text,
        other => panic!("not a word: {other:?}"),
    }
}

/// Returns the argument of an operator `name(Tensor[] inputs) -> Tensor`.
pub(crate) fn list(keys: impl Into<DispatchKeySet>) -> Val {
    Val::List(vec![word("x", keys)])
}

/// Pseudo-random numbers with a fixed seed (Vigna's splitmix64).
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

/// Waits until the condition holds. Snapshots without readers are freed at the next change, unless
/// a thread, such as another test's, is just between announcing itself and narrowing the
/// announcement: so this makes changes until it holds.
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
