//! Random state: which part of which stream of numbers each device draws next.
//!
//! The stream is that of Philox4x32-10, a function of a seed and of a counter, which is the device's
//! whole state. A kernel takes its part of the stream at once, so that calls from several threads
//! never get the same numbers; the order of the calls decides which gets which.

use keyfold_core::{Device, Result};
use keyfold_dispatch::forklock::{AtFork, ForkLock};

/// Where a device's random numbers are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// The device, index included.
    pub device: Device,
    /// Which stream it is.
    pub seed: u64,
    /// How many blocks of four 32-bit words were taken from it.
    pub offset: u64,
}

struct Streams {
    /// Of devices that aren't in the list, which are at the start of their stream.
    seed: u64,
    states: Vec<State>,
}

/// Until somebody gives a seed it is 0: a program does the same each time, unless it asks for
/// something else.
static STREAMS: ForkLock<Streams> = ForkLock::new(Streams { seed: 0, states: Vec::new() });
static AT_FORK: AtFork = AtFork::new();

unsafe extern "C" fn before_fork() {
    STREAMS.acquire();
}

unsafe extern "C" fn after_fork() {
    // SAFETY: `before_fork` took it, on this thread or on the one that it continues.
    unsafe { STREAMS.release() };
}

fn with<R>(f: impl FnOnce(&mut Streams) -> R) -> Result<R> {
    // SAFETY: the functions touch a lock of ours only.
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

/// Goes to the start of the stream of a seed on every device, those that come later included.
///
/// # Errors
/// [`keyfold_core::ErrorKind::Memory`] at the first use, if the C library has no room to note the
/// handlers of fork. So do all functions here.
pub fn manual_seed(seed: u64) -> Result<()> {
    with(|streams| {
        streams.seed = seed;
        streams.states.clear();
    })
}

/// Where a device's stream is now. With [`set_state`] the same numbers can be drawn again.
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
    with(|streams| *streams.state(device))
}

/// Where the streams of the CPU and of these devices are, each once.
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

/// Goes to a place in a stream, on the state's device.
///
/// # Errors
/// As [`manual_seed`].
pub fn set_state(state: State) -> Result<()> {
    with(|streams| *streams.state(state.device) = state)
}

/// Takes so many blocks from a device's stream, and returns where they begin.
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
