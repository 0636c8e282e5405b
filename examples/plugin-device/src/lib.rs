//! A plugin with a device: `late`, whose memory is hidden from the host and whose operations run on
//! a thread of its own, after their calls have returned.
//!
//! - `queue`: a device's stream and its events
//! - `memory`: buffers and their elements
//! - `operations`: all operations; `pointwise`, `reduce`, `rows`, `scan`, `linalg`, `index`, `random`:
//!   those of each group; `fused`: those with several outputs
//! - `late_demo::square`: an operator with a kernel for this device's tensors

mod fused;
mod index;
mod linalg;
mod memory;
mod operations;
mod pointwise;
mod queue;
mod random;
mod reduce;
mod rows;
mod scan;

use std::sync::Arc;

use keyfold_plugin::{
    Args, Backend, Content, DType, Device, DeviceTensor, Error, Execution, Groups, Host, Operation,
    OwnedTensor, Registrar, Result,
};

use crate::fused::Fused;
use crate::memory::{Buffer, View};
use crate::queue::{Event, Queue};

// Hosts without devices refuse it before anything runs.
keyfold_plugin::plugin!(register, needs = devices);

fn register(host: &mut Registrar<'_>) -> Result<()> {
    let queues: Queues = Arc::new([Queue::start(), Queue::start()]);
    host.device("late", Late(Arc::clone(&queues)))?;
    host.define("late_demo::square(Tensor x) -> Tensor")?;
    host.kernel("late_demo::square", "Meta", |args: &Args<'_>, host: &Host<'_>| {
        let x = args.tensor(0)?;
        host.empty(x.shape(), x.dtype(), Device::META)
    })?;
    // The device's key is its name in capitals.
    host.kernel("late_demo::square", "LATE", move |args: &Args<'_>, host: &Host<'_>| {
        square(&queues, args, host)
    })
}

/// The streams of both devices, one each.
type Queues = Arc<[Queue; 2]>;

/// The device type `late`.
struct Late(Queues);

impl Late {
    fn queue(&self, device: u32) -> &Queue {
        &self.0[device as usize]
    }
}

impl Backend for Late {
    type Buffer = Buffer;
    type Event = Arc<Event>;

    fn device_count(&self) -> u32 {
        2
    }

    fn is_asynchronous(&self) -> bool {
        true
    }

    fn groups(&self) -> Groups {
        Groups::POINTWISE
            | Groups::REDUCE
            | Groups::ROWS
            | Groups::SCAN
            | Groups::LINALG
            | Groups::INDEX
            | Groups::RANDOM
            | Groups::OPTIM
            | Groups::DROPOUT
    }

    // New memory is all zeros, so both kinds of content are the same.
    fn allocate(&self, _device: u32, bytes: usize, _content: Content) -> Result<Buffer> {
        memory::allocate(bytes)
    }

    fn upload(&self, bytes: &[u8], target: &DeviceTensor<'_, Buffer>, _stream: u32) -> Result<()> {
        let (bytes, view) = (bytes.to_vec(), View::new(target));
        self.queue(target.device()).push(move || {
            view.set_bytes(&bytes);
            Ok(())
        })
    }

    fn download(
        &self,
        source: &DeviceTensor<'_, Buffer>,
        bytes: &mut [u8],
        _stream: u32,
    ) -> Result<()> {
        self.queue(source.device()).finish()?;
        bytes.copy_from_slice(&View::new(source).bytes());
        Ok(())
    }

    fn copy(
        &self,
        source: &DeviceTensor<'_, Buffer>,
        target: &DeviceTensor<'_, Buffer>,
        _stream: u32,
    ) -> Result<()> {
        let (from, to) = (View::new(source), View::new(target));
        self.queue(target.device()).push(move || {
            to.set_bytes(&from.bytes());
            Ok(())
        })
    }

    fn fill(&self, target: &DeviceTensor<'_, Buffer>, element: &[u8], _stream: u32) -> Result<()> {
        let (view, element) = (View::new(target), element.to_vec());
        self.queue(target.device()).push(move || {
            view.set_bytes(&element.repeat(view.layout.numel()));
            Ok(())
        })
    }

    fn synchronize(&self, device: u32) -> Result<()> {
        self.queue(device).finish()
    }

    fn record(&self, device: u32, _stream: u32) -> Result<Arc<Event>> {
        self.queue(device).record()
    }

    fn wait(&self, device: u32, _stream: u32, event: &Arc<Event>) -> Result<()> {
        let event = Arc::clone(event);
        self.queue(device).push(move || {
            event.wait();
            Ok(())
        })
    }

    fn is_done(&self, event: &Arc<Event>) -> Result<bool> {
        Ok(event.is_reached())
    }

    fn elapsed(&self, start: &Arc<Event>, end: &Arc<Event>) -> Result<i64> {
        let (start, end) = (start.wait(), end.wait());
        let nanoseconds = end.max(start).duration_since(start.min(end)).as_nanos() as i64;
        Ok(if end < start { -nanoseconds } else { nanoseconds })
    }

    fn support(&self, operation: &Operation<'_>) -> Result<()> {
        match operations::has(operation) {
            true => Ok(()),
            false => Err(Error::not_supported(format!("it has no {operation:?}"))),
        }
    }

    fn execute(&self, call: &Execution<'_, Buffer>) -> Result<()> {
        let inputs: Vec<View> = call.inputs().map(|input| View::new(&input)).collect();
        let outs: Vec<View> = call.outputs().map(|out| View::new(&out)).collect();
        let (params, fused) = (call.params(), Fused::of(call)?);
        let [name, operator] = [call.name(), call.operator()].map(str::to_owned);
        self.queue(call.output(0)?.device()).push(move || match fused {
            Some(fused) => {
                fused.run(&inputs, &outs);
                Ok(())
            }
            None => operations::run(&name, params, &inputs, &outs)
                .map_err(|error| error.late(&operator)),
        })
    }

    fn count_true(&self, mask: &DeviceTensor<'_, Buffer>, _stream: u32) -> Result<u64> {
        self.queue(mask.device()).finish()?;
        Ok(View::new(mask).numbers().iter().filter(|number| number.is_true()).count() as u64)
    }
}

/// The kernel of `late_demo::square` for tensors on the device.
fn square(queues: &Queues, args: &Args<'_>, host: &Host<'_>) -> Result<OwnedTensor> {
    let x = args.tensor(0)?;
    if x.dtype() != DType::F32 {
        return Err(Error::dtype(format!("x is {} and must be float32", x.dtype())));
    }
    let made = host.empty(x.shape(), x.dtype(), x.device())?;
    if x.numel() > 0 {
        // SAFETY: the kernel is registered at the key of this plugin's device, whose backend is
        // `Late`.
        let (from, to) = unsafe { (x.on_backend::<Late>()?, made.view().on_backend::<Late>()?) };
        let (from, to) = (View::new(&from), View::new(&to));
        queues[x.device().index() as usize].push(move || {
            to.set(from.numbers().into_iter().map(|n| n * n));
            Ok(())
        })?;
    }
    Ok(made)
}
