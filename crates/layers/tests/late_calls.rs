//! Operators, derivatives and checkpoints in the destructor of a thread-local, after the destructors of the
//! engine's own thread-locals may have run.

mod support;

use std::cell::RefCell;
use std::sync::mpsc;

use keyfold::ops::aten;
use keyfold_core::Result;
use keyfold_layers::autograd;
use keyfold_tensor::{Tensor, ValueRef as V};
use support::{call, data, gradients_of, leaf};

/// The number of nodes in a chain: recursion over them would overflow the stack.
const CHAIN: usize = 100_000;

fn square(x: &Tensor) -> Result<Tensor> {
    aten::mul(x, &call("aten::exp", &[V::Tensor(x)])?)
}

fn everything() -> Result<()> {
    let x = leaf(&data(&[8], 0, 0.5, 2.0));
    let plain = gradients_of(&aten::sum_all(&square(&x)?)?, std::slice::from_ref(&x), false)?;
    let again = x.clone();
    let run = move || square(&again).map(|_| ());
    let kept = autograd::checkpoint(|| square(&x), run, &[])?;
    let later = gradients_of(&aten::sum_all(&kept)?, std::slice::from_ref(&x), false)?;
    assert_eq!(plain[0].to_vec::<f64>()?, later[0].to_vec::<f64>()?);
    let mut chain = leaf(&data(&[1], 0, 0.5, 2.0));
    let one = data(&[1], 1, 0.5, 2.0);
    for _ in 0..CHAIN {
        chain = aten::add(&chain, &one)?;
    }
    drop(chain);
    Ok(())
}

struct Late(mpsc::Sender<Result<()>>);

impl Drop for Late {
    fn drop(&mut self) {
        self.0.send(everything()).unwrap();
    }
}

#[test]
fn a_thread_locals_destructor_may_call_anything() {
    thread_local!(static LATE: RefCell<Option<Late>> = const { RefCell::new(None) });
    // Destructors run in the reverse order of the first uses, so both orders are tested.
    for first in [false, true] {
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            if first {
                everything().unwrap();
            }
            LATE.set(Some(Late(sender)));
            everything().unwrap();
        });
        thread.join().unwrap();
        receiver.recv().unwrap().unwrap();
    }
}
