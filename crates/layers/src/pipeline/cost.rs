//! Estimates of the time of a call, by which a plan chooses the steps that run concurrently.

use keyfold_tensor::ValueRef;

use super::decide::{Evaluated, Form, Work};
use super::operation::for_each_tensor;

/// The least nanoseconds for which a step is handed to another thread. Steps of 2,000 lose 5 %, and steps of
/// 5,000 gain 10 % and more.
const LEAST: f64 = 4_096.0;

/// The nanoseconds from which on a kernel that divides its work uses two threads and more by itself: those of
/// two pieces of `keyfold_kit::pool`.
const DIVIDED: f64 = 40_000.0;

/// Nanoseconds to read or write an element, and to compute a node of an expression for one.
const ELEMENT: f64 = 0.1;
const NODE: f64 = 0.2;

/// The time of a call, in classes: programs of equal classes have one plan, whatever their sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Cost {
    /// Less than another thread is worth.
    Short,
    /// So many nanoseconds on one thread, rounded down to three binary digits.
    Nanoseconds(u64),
    /// So long that the kernel divides the work among all threads.
    Divided,
}

impl Cost {
    /// Estimates the cost of a call.
    pub(super) fn of(
        args: &[ValueRef<'_>],
        forms: &[Option<Form>],
        evaluates: Option<&Evaluated>,
    ) -> Cost {
        let work = forms.iter().flatten().find_map(|form| form.work);
        Cost::of_work(work.unwrap_or_else(|| {
            let elements = |shape: &[usize]| shape.iter().map(|size| *size as f64).product::<f64>();
            let results: f64 = forms.iter().flatten().map(|form| elements(&form.shape)).sum();
            let mut moved = results;
            for arg in args {
                for_each_tensor(*arg, &mut |tensor| moved += elements(tensor.shape()));
            }
            let nodes =
                |own: &Evaluated| own.expr.nodes().len().saturating_sub(own.expr.inputs().len());
            let nodes = evaluates.map_or(0, nodes) as f64;
            Work { nanoseconds: ELEMENT * moved + NODE * nodes * results, divides: true }
        }))
    }

    fn of_work(work: Work) -> Cost {
        match work.nanoseconds {
            nanoseconds if work.divides && nanoseconds >= DIVIDED => Cost::Divided,
            // The cast saturates.
            nanoseconds if nanoseconds >= LEAST => {
                let nanoseconds = nanoseconds as u64;
                let unit = 1 << (nanoseconds.ilog2() - 2);
                Cost::Nanoseconds(nanoseconds / unit * unit)
            }
            _ => Cost::Short,
        }
    }

    /// Returns the cost of calls that are computed in one pass over memory.
    pub(super) fn together(members: impl Iterator<Item = Cost>) -> Cost {
        let mut nanoseconds = 0_u64;
        for member in members {
            match member {
                Cost::Short => {}
                Cost::Nanoseconds(own) => nanoseconds = nanoseconds.saturating_add(own),
                Cost::Divided => return Cost::Divided,
            }
        }
        Cost::of_work(Work { nanoseconds: nanoseconds as f64, divides: true })
    }

    /// Returns the nanoseconds of a call that is worth another thread.
    pub(super) fn nanoseconds(self) -> Option<u64> {
        match self {
            Cost::Nanoseconds(nanoseconds) => Some(nanoseconds),
            Cost::Short | Cost::Divided => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(nanoseconds: f64, divides: bool) -> Cost {
        Cost::of_work(Work { nanoseconds, divides })
    }

    #[test]
    fn costs_are_classes() {
        for divides in [false, true] {
            assert_eq!(cost(0.0, divides), Cost::Short);
            assert_eq!(cost(f64::NAN, divides), Cost::Short);
            assert_eq!(cost(4_095.0, divides), Cost::Short);
            assert_eq!(cost(4_096.0, divides), Cost::Nanoseconds(4_096));
            assert_eq!(cost(5_119.0, divides), Cost::Nanoseconds(4_096));
            assert_eq!(cost(20_000.0, divides), Cost::Nanoseconds(16_384));
            assert_eq!(cost(20_480.0, divides), Cost::Nanoseconds(20_480));
        }
        assert_eq!(cost(40_000.0, true), Cost::Divided);
        assert_eq!(cost(40_960.0, false), Cost::Nanoseconds(40_960));
        assert_eq!(cost(f64::INFINITY, false), Cost::Nanoseconds(7 << 61));
    }

    #[test]
    fn calls_in_one_pass_cost_the_sum() {
        let together = |members: &[Cost]| Cost::together(members.iter().copied());
        let long = Cost::Nanoseconds(20_480);
        assert_eq!(together(&[Cost::Short, Cost::Short]), Cost::Short);
        assert_eq!(together(&[Cost::Short, long]), long);
        assert_eq!(together(&[long, long]), Cost::Divided);
        assert_eq!(together(&[long, Cost::Divided, Cost::Short]), Cost::Divided);
    }
}
