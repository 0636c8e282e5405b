//! Interrupts of long flushes: between tiles, with nothing lost.

#[path = "support/pipelines.rs"]
mod pipelines;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use keyfold::ops::aten;
use keyfold_core::{DType, Error, ErrorKind, Result};
use keyfold_layers::pipeline::{Host, Options, Session, set_host};
use keyfold_tensor::Tensor;

use pipelines::{bits, numbers, within};

/// The looks for an interrupt until there is one; 0 for none.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// The threads that looked.
static LOOKED: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());

const INTERRUPT: &str = "interrupted by the test";

fn looked() -> MutexGuard<'static, Vec<ThreadId>> {
    LOOKED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn interrupted() -> Result<()> {
    looked().push(std::thread::current().id());
    let before = LEFT.load(Ordering::Relaxed);
    LEFT.store(before.saturating_sub(1), Ordering::Relaxed);
    match before {
        1 => Err(Error::new(ErrorKind::Value, INTERRUPT)),
        _ => Ok(()),
    }
}

/// Sets the host language's functions; other tests wait.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let is_interrupt = |error: &Error| error.message().contains(INTERRUPT);
    let (site, without_lock, annotate) =
        (|| None, |f: &mut dyn FnMut()| f(), |_: &Error, _: &str| ());
    set_host(Host { site, without_lock, interrupted, is_interrupt, annotate });
    guard
}

/// Makes the host language interrupt the second look from now on.
fn interrupt_the_second_look() {
    looked().clear();
    LEFT.store(2, Ordering::Relaxed);
}

/// A group whose elements take long, and a reduction: of rows, or of everything.
fn program(x: &Tensor, rows: bool) -> Result<Tensor> {
    let mut y = aten::tanh(x)?;
    for _ in 0..6 {
        y = aten::tanh(&aten::exp(&y)?)?;
    }
    if rows { aten::sum(&y, &[1], true) } else { aten::sum_all(&y) }
}

#[test]
fn a_long_run_of_tiles_is_interrupted_and_can_be_flushed_again() {
    for rows in [true, false] {
        let _alone = alone();
        // One step looks once before it, so a second look is one between tiles: a run that is long enough.
        for count in (0..).map(|power| 500 << power) {
            let x = numbers(&[count, 400], DType::F32);
            interrupt_the_second_look();
            let ((y, interrupted), ended, counted) = within(Options::default(), |session| {
                let y = program(&x, rows).unwrap();
                let plan = session.explain();
                assert!(plan.groups.len() == 1 && plan.groups[0].tiles, "{plan}");
                let waiting = session.pending_count();
                let flushed = session.flush();
                let is_interrupted = flushed.is_err();
                if let Err(error) = flushed {
                    assert!(error.message().contains(INTERRUPT), "{error}");
                    assert!(y.is_pending() && session.pending_count() == waiting);
                    session.flush().unwrap();
                }
                assert_eq!((y.is_pending(), session.pending_count()), (false, 0));
                LEFT.store(0, Ordering::Relaxed);
                (y, is_interrupted)
            });
            ended.unwrap();
            assert!(bits(&y) == bits(&program(&x, rows).unwrap()));
            assert_eq!(counted.failed, 0);
            if interrupted {
                break;
            }
        }
        let here = std::thread::current().id();
        assert!(looked().len() >= 2 && looked().iter().all(|thread| *thread == here));
    }
}

#[test]
fn a_replay_is_interrupted_between_tiles() {
    for rows in [true, false] {
        let _alone = alone();
        for count in (0..).map(|power| 500 << power) {
            let x = numbers(&[count, 400], DType::F32);
            interrupt_the_second_look();
            let session = Session::recorder();
            let placeholder = session.placeholder(&x).unwrap();
            let guard = session.enter();
            let made = program(&placeholder, rows).unwrap();
            guard.close().unwrap();
            let recording = session.finish(&[placeholder], &[made]).unwrap();
            let replay = || recording.replay(std::slice::from_ref(&x));
            let Err(error) = replay() else { continue };
            assert!(error.message().contains(INTERRUPT), "{error}");
            assert!(bits(&replay().unwrap()[0]) == bits(&program(&x, rows).unwrap()));
            break;
        }
    }
}
