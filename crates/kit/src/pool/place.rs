//! Where threads run.
//!
//! A system may wake a worker on the very processor where its caller is busy, and leave it there
//! while another processor is idle: seen on Linux virtual machines whose processors share no cache,
//! where whole series of jobs got no help. A worker that comes too late and finds itself in that
//! place asks to be put elsewhere.

/// The processor that the calling thread runs on now, if the system tells.
#[cfg(target_os = "linux")]
pub(super) fn processor() -> Option<u32> {
    // SAFETY: no arguments; -1 if it isn't known.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Has the calling thread go on elsewhere if it runs on that processor, and may use others.
#[cfg(target_os = "linux")]
pub(super) fn leave(busy: Option<u32>) {
    let Some(busy) = busy.filter(|_| processor() == busy) else { return };
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: a set of bits, of which none is a valid value.
    let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is as large as `size` says.
    if unsafe { libc::sched_getaffinity(0, size, &raw mut allowed) } != 0 {
        return;
    }
    let mut others = allowed;
    // SAFETY: both only look at and change the sets; a number beyond a set is ignored. Affinity is
    // that of the calling thread, a worker of ours.
    unsafe {
        if busy as usize >= 8 * size || libc::CPU_COUNT(&allowed) < 2 {
            return;
        }
        libc::CPU_CLR(busy as usize, &mut others);
        if libc::sched_setaffinity(0, size, &raw const others) == 0 {
            libc::sched_setaffinity(0, size, &raw const allowed);
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn processor() -> Option<u32> {
    None
}

#[cfg(not(target_os = "linux"))]
pub(super) fn leave(_busy: Option<u32>) {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_moves_and_keeps_the_processors_that_it_may_use() {
        let allowed = std::thread::available_parallelism();
        leave(processor());
        leave(None);
        assert_eq!(std::thread::available_parallelism().ok(), allowed.ok());
        assert!(processor().is_some());
    }
}
