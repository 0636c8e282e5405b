//! OpenCL devices for keyfold, as a plugin: `device="opencl"`.
//!
//! - `api`, `loader`: OpenCL's functions, found at run time, and the devices behind them
//! - `device`, `stream`, `event`: a device's queues, launches, and errors of what ran late
//! - `program`, `cache`: programs compiled at first use, kept in memory and on disk
//! - `types`, `layout`, `tensor`: elements and loops in OpenCL C
//! - `memory`, `strided`: copies and fills
//! - `expression`: expressions, compiled from the host's OpenCL C; `reduce`, ...: the operations of
//!   the other groups

mod activation;
mod api;
mod attention;
mod cache;
mod convolution;
mod dense;
mod device;
mod dropout;
mod event;
mod expression;
mod index;
mod layout;
mod loader;
mod matmul;
mod memory;
mod norm;
mod optim;
mod pool;
mod positions;
mod program;
mod random;
mod recurrent;
mod reduce;
mod rows;
mod scan;
mod stream;
mod strided;
mod tensor;
mod types;

use std::sync::atomic::Ordering;

use keyfold_plugin::{
    Backend, Content, DType, DeviceTensor, Error, Execution, Groups, Operation, Registrar, Result,
};

use crate::device::{Buffer, Device, STREAMS};
use crate::event::Event;
use crate::types::Type;

keyfold_plugin::plugin!(register, needs = devices);

fn register(host: &mut Registrar<'_>) -> Result<()> {
    // Its functions are called as long as a buffer exists, so it is never freed.
    let api: &'static api::Api = Box::leak(Box::new(loader::open()?));
    let devices = loader::devices(api)?;
    let (mut usable, mut refused) = (Vec::new(), None);
    for found in devices {
        match Device::new(api, found) {
            Ok(device) => usable.push(device),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    match refused {
        Some(error) if usable.is_empty() => Err(error),
        _ => host.compiler("opencl", OpenCl { devices: usable }),
    }
}

/// The device type `opencl`.
struct OpenCl {
    devices: Vec<Device>,
}

impl OpenCl {
    /// Makes a call on a device, unless an earlier one lost it.
    fn on<T>(&self, number: u32, call: impl FnOnce(&Device) -> Result<T>) -> Result<T> {
        let device = &self.devices[number as usize];
        if device.lost.load(Ordering::Relaxed) {
            return Err(loader::lost(&device.name));
        }
        call(device).inspect_err(|error| {
            if loader::tells_loss(error) {
                device.lost.store(true, Ordering::Relaxed);
            }
        })
    }

    /// Returns whether all devices compute in float64.
    ///
    /// # Errors
    /// The first that doesn't.
    fn has_float64(&self) -> Result<()> {
        match self.devices.iter().find(|device| !device.float64) {
            None => Ok(()),
            Some(device) => Err(Error::not_supported(format!("{} has no float64", device.name))),
        }
    }
}

impl Backend for OpenCl {
    type Buffer = Buffer;
    type Event = Event;

    fn device_count(&self) -> u32 {
        self.devices.len() as u32
    }

    fn stream_count(&self) -> u32 {
        STREAMS as u32
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
            | Groups::NORM
            | Groups::LINEAR
            | Groups::CONVOLUTION
            | Groups::POOL
            | Groups::ATTENTION
            | Groups::RECURRENT
            | Groups::OPTIM
            | Groups::DROPOUT
    }

    fn allocate(&self, device: u32, bytes: usize, content: Content) -> Result<Buffer> {
        self.on(device, |device| {
            let buffer = device.allocate(bytes)?;
            if content == Content::Zeros {
                // Usable at once on any stream, so this waits, for nothing else.
                let stream = device.stream(STREAMS as u32);
                memory::fill_bytes(device, stream, &buffer, (0, bytes), &[0])?;
                Event::record(device, stream)?.time()?;
            }
            Ok(buffer)
        })
    }

    fn upload(&self, bytes: &[u8], target: &DeviceTensor<'_, Buffer>, stream: u32) -> Result<()> {
        self.on(target.device(), |device| match bytes {
            [] => Ok(()),
            _ => device.stream(stream).write(bytes, target.buffer().handle, target.byte_offset()),
        })
    }

    fn download(
        &self,
        source: &DeviceTensor<'_, Buffer>,
        bytes: &mut [u8],
        stream: u32,
    ) -> Result<()> {
        self.on(source.device(), |device| {
            let stream = device.stream(stream);
            device.faults(stream)?;
            match bytes {
                [] => Ok(()),
                _ => stream.read(source.buffer().handle, source.byte_offset(), bytes),
            }
        })
    }

    fn copy(
        &self,
        source: &DeviceTensor<'_, Buffer>,
        target: &DeviceTensor<'_, Buffer>,
        stream: u32,
    ) -> Result<()> {
        let number = target.device();
        if source.buffer().context == self.devices[number as usize].context {
            return self.on(number, |device| {
                memory::copy((device, device.stream(stream)), source, source.buffer(), 0, target)
            });
        }
        // Platforms don't know each other's memory: the bytes go through the host.
        let (start, bytes) = memory::span(source);
        if bytes == 0 {
            return Ok(());
        }
        let mut moved = vec![0; bytes];
        self.synchronize(source.device())?;
        self.on(source.device(), |device| {
            device.stream(stream).read(source.buffer().handle, start, &mut moved)
        })?;
        self.on(number, |device| {
            let on = (device, device.stream(stream));
            let buffer = device.allocate(bytes)?;
            on.1.write(&moved, buffer.handle, 0)?;
            memory::copy(on, source, &buffer, start, target)
        })
    }

    fn fill(&self, target: &DeviceTensor<'_, Buffer>, element: &[u8], stream: u32) -> Result<()> {
        self.on(target.device(), |device| {
            memory::fill(device, device.stream(stream), target, element)
        })
    }

    fn synchronize(&self, device: u32) -> Result<()> {
        self.on(device, |device| {
            let waited: Vec<Result<()>> =
                device.streams.iter().map(stream::Stream::finish).collect();
            waited.into_iter().collect::<Result<()>>()?;
            device.streams.iter().try_for_each(stream::Stream::faults)
        })
    }

    fn record(&self, device: u32, stream: u32) -> Result<Event> {
        self.on(device, |device| Event::record(device, device.stream(stream)))
    }

    fn wait(&self, device: u32, stream: u32, event: &Event) -> Result<()> {
        self.on(device, |device| event.hold(device, device.stream(stream)))
    }

    fn is_done(&self, event: &Event) -> Result<bool> {
        event.is_done()
    }

    fn elapsed(&self, start: &Event, end: &Event) -> Result<i64> {
        Ok(end.time()? - start.time()?)
    }

    fn support(&self, operation: &Operation<'_>) -> Result<()> {
        if operation.group() == "pointwise" {
            return expression::support(self, operation);
        }
        let real = |dtype: DType| {
            let known = Type::of(dtype)
                .ok_or_else(|| Error::not_supported(format!("it has no operations on {dtype}")))?;
            if known == Type::F64 {
                self.has_float64()?;
            }
            Ok(known)
        };
        let inputs = operation.inputs().map(real).collect::<Result<Vec<Type>>>()?;
        let output = real(operation.output())?;
        let (name, first) = (operation.name(), inputs.first().copied().unwrap_or(output));
        let outputs = || operation.outputs().map(real).collect::<Result<Vec<Type>>>();
        match operation.group() {
            "reduce" => reduce::support(name, first, output),
            "rows" => rows::support(name, first, output),
            "scan" => scan::support(name, first, output),
            "linalg" => matmul::support(name, first, output),
            "index" => index::support(name),
            "random" => random::support(name, output),
            "norm" => norm::support(name, &inputs, &outputs()?),
            "linear" => matmul::support_linear(name, &inputs, &outputs()?),
            "convolution" => convolution::support(name, &inputs, &outputs()?),
            "attention" => attention::support(name, &inputs, &outputs()?),
            "pool" => pool::support(name, &inputs, &outputs()?),
            "recurrent" => recurrent::support(name, &inputs, &outputs()?),
            "optim" => optim::support(name, &inputs, &outputs()?),
            "dropout" => dropout::support(name, &inputs, &outputs()?),
            group => {
                Err(Error::not_supported(format!("it has no operations of the group {group}")))
            }
        }
    }

    fn execute(&self, call: &Execution<'_, Buffer>) -> Result<()> {
        self.on(call.output(0)?.device(), |device| {
            let stream = device.stream(call.stream());
            stream.note(call.operator());
            match (call.group(), call.name()) {
                ("reduce", _) => reduce::execute(device, stream, call),
                ("rows", _) => rows::execute(device, stream, call),
                ("scan", _) => scan::execute(device, stream, call),
                ("linalg" | "linear", "matmul") => matmul::execute(device, stream, call),
                ("index", "positions") => positions::execute(device, stream, call),
                ("index", _) => index::execute(device, stream, call),
                ("random", _) => random::execute(device, stream, call),
                ("norm", _) => norm::execute((device, stream), call),
                ("convolution", _) => convolution::execute((device, stream), call),
                ("attention", _) => attention::execute((device, stream), call),
                ("pool", _) => pool::execute((device, stream), call),
                ("recurrent", _) => recurrent::execute((device, stream), call),
                ("optim", _) => optim::execute((device, stream), call),
                ("dropout", _) => dropout::execute((device, stream), call),
                (group, name) => Err(Error::not_supported(format!("it has no {name} of {group}"))),
            }
        })
    }

    fn count_true(&self, mask: &DeviceTensor<'_, Buffer>, stream: u32) -> Result<u64> {
        self.on(mask.device(), |device| positions::count(device, device.stream(stream), mask))
    }
}
