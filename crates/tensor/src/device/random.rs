//! Random state: the position of each device in its stream of random numbers.
//!
//! The stream is Philox4x32-10's, a function of a seed and a counter, which are a device's whole
//! state. A kernel reserves its part of the stream at once, so that concurrent calls never get the
//! same numbers; the order of the calls determines the parts.

use std::sync::OnceLock;

use keyfold_core::{Device, Result};
use keyfold_dispatch::forklock::{AtFork, ForkLock};

/// A device's position in its stream of random numbers. It implements serde's traits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// The device, including its index.
    pub device: Device,
    /// The seed, which selects the stream.
    pub seed: u64,
    /// The number of blocks of four 32-bit words taken so far.
    pub offset: u64,
}

struct Streams {
    /// The seed of devices without an entry, which are at the start of their stream.
    seed: u64,
    states: Vec<State>,
}

/// The seed is 0 until [`manual_seed`] sets one, so that programs are deterministic by default.
static STREAMS: ForkLock<Streams> = ForkLock::new(Streams { seed: 0, states: Vec::new() });
static AT_FORK: AtFork = AtFork::new();

/// See [`before_access`].
static BEFORE_ACCESS: OnceLock<fn() -> Result<()>> = OnceLock::new();

/// Sets the function that runs before a state is read or set: a layer that defers draws makes up for
/// them, since they are earlier in the stream. Returns false, without effect, if one is set already.
pub fn before_access(settle: fn() -> Result<()>) -> bool {
    BEFORE_ACCESS.set(settle).is_ok()
}

fn settle() -> Result<()> {
    BEFORE_ACCESS.get().map_or(Ok(()), |settle| settle())
}

unsafe extern "C" fn before_fork() {
    STREAMS.acquire();
}

unsafe extern "C" fn after_fork() {
    // SAFETY: `before_fork` acquired it, on this thread or on the one that it continues.
    unsafe { STREAMS.release() };
}

fn with<R>(f: impl FnOnce(&mut Streams) -> R) -> Result<R> {
    // SAFETY: the functions only use a lock of this module.
    unsafe { AT_FORK.register(before_fork, after_fork, after_fork)? };
    Ok(f(&mut STREAMS.lock()))
}

impl Streams {
    fn state(&mut self, device: Device) -> &mut State {
        let known = self.states.iter().position(|state| state.device == device);
        let place = known.unwrap_or_else(|| {
            self.states.push(State { device, seed: self.seed, offset: 0 });
            self.states.len() - 1
        });
        &mut self.states[place]
    }
}

/// Moves every device, including later ones, to the start of a seed's stream.
///
/// # Errors
/// [`keyfold_core::ErrorKind::Memory`] at the first use, if the C library can't register the fork
/// handlers. All functions here return it. All but [`take`] also return the error of
/// [`before_access`]'s function.
pub fn manual_seed(seed: u64) -> Result<()> {
    settle()?;
    with(|streams| {
        streams.seed = seed;
        streams.states.clear();
    })
}

/// Returns a device's state. [`set_state`] restores it to draw the same numbers again.
///
/// # Errors
/// As [`manual_seed`].
///
/// # Examples
/// ```
/// use keyfold_core::Device;
/// use keyfold_tensor::device::random;
///
/// random::manual_seed(7)?;
/// let first = random::take(Device::CPU, 3)?;
/// assert_eq!((first.seed, first.offset), (7, 0));
/// assert_eq!(random::state(Device::CPU)?.offset, 3);
/// assert_eq!(random::state(Device::cuda(1))?.offset, 0);
/// random::set_state(first)?;
/// assert_eq!(random::take(Device::CPU, 1)?, first);
/// # Ok::<(), keyfold_core::Error>(())
/// ```
pub fn state(device: Device) -> Result<State> {
    settle()?;
    with(|streams| *streams.state(device))
}

/// Returns the states of the CPU and of these devices, each once.
///
/// # Errors
/// As [`manual_seed`].
pub fn states(devices: impl IntoIterator<Item = Device>) -> Result<Vec<State>> {
    let mut states = vec![state(Device::CPU)?];
    for device in devices {
        if states.iter().all(|state| state.device != device) {
            states.push(state(device)?);
        }
    }
    Ok(states)
}

/// Restores a state on its device.
///
/// # Errors
/// As [`manual_seed`].
pub fn set_state(state: State) -> Result<()> {
    settle()?;
    with(|streams| *streams.state(state.device) = state)
}

/// Reserves that many blocks of a device's stream and returns the state at their start.
///
/// # Errors
/// As [`manual_seed`].
pub fn take(device: Device, blocks: u64) -> Result<State> {
    with(|streams| {
        let state = streams.state(device);
        let begin = *state;
        state.offset = begin.offset.wrapping_add(blocks);
        begin
    })
}
