//! membarrier(2) denied to a process that relies on it. In child processes, since a seccomp filter
//! can't be removed.

#![allow(clippy::print_stdout, reason = "what the harness would print")]

#[path = "support/child.rs"]
mod child;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use keyfold_dispatch::{DispatchKey as K, Handle, Kernel, Override};
use support::{Context, D, Ref, Val, list, said, word};

/// Makes membarrier fail with this error, on all threads or on the calling one.
fn deny(errno: libc::c_int, everywhere: bool) {
    let line = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut lines = [
        line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        line(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_membarrier as u32),
        line(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        line(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: lines.len() as u16, filter: lines.as_mut_ptr() };
    let flags = if everywhere { libc::SECCOMP_FILTER_FLAG_TSYNC } else { 0 };
    // SAFETY: integers, then a filter that lives until the call, which copies it, returns.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        assert_eq!(libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program), 0);
        assert_eq!(libc::syscall(libc::SYS_membarrier, 0, 0, 0), -1);
    }
}

fn in_child(check: impl FnOnce()) {
    assert!(child::in_child(|| {
        check();
        true
    }));
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn register(d: &D, dropped: &Arc<AtomicUsize>) -> Handle<Val> {
    let counted = Counted(Arc::clone(dropped));
    let kernel = Kernel::boxed(move |_: &Context<'_>, _: &[Ref<'_>]| {
        let _ = &counted;
        Ok(word("cpu", K::CPU))
    });
    let operator = d.operator("op").unwrap();
    d.register_with(&operator, K::CPU, kernel, Override::Replace).unwrap()
}

fn dispatcher() -> (D, Arc<AtomicUsize>) {
    let (d, dropped) = (D::new(), Arc::default());
    d.define("op(Tensor[] inputs) -> Tensor").unwrap();
    register(&d, &dropped);
    call(&d);
    (d, dropped)
}

fn call(d: &D) {
    assert_eq!(said(d.call("op", &[list(K::CPU).r()]).unwrap()), "cpu");
}

/// A thread that makes a call for each message and ends when this is dropped.
struct Reader(Option<mpsc::Sender<()>>, mpsc::Receiver<()>, Option<std::thread::JoinHandle<()>>);

impl Reader {
    fn new(d: &D) -> Reader {
        let (d, (tell, told), (answer, answers)) = (d.clone(), mpsc::channel(), mpsc::channel());
        let thread = std::thread::spawn(move || {
            while told.recv().is_ok() {
                call(&d);
                answer.send(()).unwrap();
            }
        });
        Reader(Some(tell), answers, Some(thread))
    }

    fn calls(&self) {
        self.0.as_ref().unwrap().send(()).unwrap();
        self.1.recv().unwrap();
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0 = None;
        self.2.take().unwrap().join().unwrap();
    }
}

fn changes_happen_with_their_handles() {
    for errno in [libc::EPERM, libc::EINVAL, libc::ENOSYS] {
        in_child(|| {
            let (d, dropped) = dispatcher();
            deny(errno, true);
            for count in 1..5 {
                let handle = register(&d, &dropped);
                assert!(handle.is_active());
                assert_eq!(dropped.load(Ordering::SeqCst), count);
                call(&d);
            }
        });
    }
}

fn memory_waits_for_readers_of_before() {
    in_child(|| {
        let (d, dropped) = dispatcher();
        let count = || dropped.load(Ordering::SeqCst);
        let (first, second) = (Reader::new(&d), Reader::new(&d));
        first.calls();
        second.calls();
        deny(libc::EPERM, true);
        register(&d, &dropped);
        assert_eq!(count(), 0, "nobody knows what the readers do");
        first.calls();
        register(&d, &dropped);
        assert_eq!(count(), 0, "one is left");
        // The end of the thread counts as its confirmation.
        drop(second);
        register(&d, &dropped);
        assert_eq!(count(), 3);
        first.calls();
        register(&d, &dropped);
        assert_eq!(count(), 4, "everybody fences now");
    });
}

fn the_last_reader_to_pass_on_frees() {
    in_child(|| {
        let (d, dropped) = dispatcher();
        let reader = Reader::new(&d);
        reader.calls();
        deny(libc::ENOSYS, true);
        register(&d, &dropped);
        assert_eq!(dropped.load(Ordering::SeqCst), 0);
        reader.calls();
        // At the end of its call, or a moment after its answer.
        register(&d, &dropped);
        assert_eq!(dropped.load(Ordering::SeqCst), 2);
    });
}

fn another_threads_barrier_still_works() {
    in_child(|| {
        let (d, dropped) = dispatcher();
        let idle = Reader::new(&d);
        idle.calls();
        std::thread::scope(|scope| {
            let denied = scope.spawn(|| {
                deny(libc::EPERM, false);
                register(&d, &dropped);
                assert_eq!(dropped.load(Ordering::SeqCst), 0);
            });
            denied.join().unwrap();
        });
        register(&d, &dropped);
        assert_eq!(dropped.load(Ordering::SeqCst), 2);
    });
}

fn main() {
    let tests: [(&str, fn()); 4] = [
        ("changes_happen_with_their_handles", changes_happen_with_their_handles),
        ("memory_waits_for_readers_of_before", memory_waits_for_readers_of_before),
        ("the_last_reader_to_pass_on_frees", the_last_reader_to_pass_on_frees),
        ("another_threads_barrier_still_works", another_threads_barrier_still_works),
    ];
    for (name, test) in tests {
        test();
        println!("test {name} ... ok");
    }
}
