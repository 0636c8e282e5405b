//! Backends that compile whole expressions.

use std::fmt;
use std::marker::PhantomData;

use super::Backend;
use crate::abi::Text;
use crate::abi::device::{self as abi, ARGUMENT_BUFFER};
use crate::error::Result;

/// The language of a compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// CUDA C, for NVRTC.
    CudaC,
    /// OpenCL C 1.2. Buffers are arguments without offset, which is another parameter.
    OpenClC,
}

/// A backend that compiles whole expressions, for
/// [`Registrar::compiler`](crate::Registrar::compiler). The host hands it expressions instead of
/// primitives. Before, [`Backend::support`] is asked for `expression` of the group `pointwise`,
/// whose inputs are all dtypes in which elements are read or computed.
pub trait Compiler: Backend {
    /// A compiled program. Dropped when the host needs it no more, possibly before queued launches
    /// of it have run.
    type Program: Send + Sync + 'static;

    /// Returns the language. Read once, at registration.
    fn language(&self) -> Language;

    /// Compiles a kernel for one device. The host keeps the program; two threads that need it at
    /// once may both compile it.
    ///
    /// # Errors
    /// The compiler's messages.
    fn compile(&self, source: &Source<'_>) -> Result<Self::Program>;

    /// Runs a program, or queues it on the launch's stream.
    ///
    /// # Errors
    /// The device's errors.
    fn launch(&self, launch: &Launch<'_, Self::Buffer, Self::Program>) -> Result<()>;
}

/// The kernel of an expression as text.
pub struct Source<'a>(&'a abi::Source);

impl<'a> Source<'a> {
    pub(super) fn new(source: &'a abi::Source) -> Self {
        Source(source)
    }

    /// Returns the kernel's name, which has C linkage.
    pub fn name(&self) -> &'a str {
        // SAFETY: text of the call.
        unsafe { self.0.name.get() }
    }

    /// Returns the index of the device.
    pub fn device(&self) -> u32 {
        self.0.device
    }

    /// Returns the self-contained text.
    pub fn text(&self) -> &'a str {
        // SAFETY: text of the call.
        unsafe { self.0.text.get() }
    }

    /// Returns the types of the kernel's parameters in the text.
    pub fn types(&self) -> impl ExactSizeIterator<Item = &'a str> {
        let types: &'a [Text] = match self.0.parameters {
            0 => &[],
            // SAFETY: the host provides that many.
            count => unsafe { std::slice::from_raw_parts(self.0.types, count as usize) },
        };
        // SAFETY: text of the call.
        types.iter().map(|text| unsafe { text.get() })
    }
}

impl fmt::Debug for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The value of a kernel's parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Argument<'a, B> {
    /// Bytes, passed by value.
    Bytes(&'a [u8]),
    /// A pointer into a buffer.
    Buffer {
        /// The buffer.
        buffer: &'a B,
        /// The distance of the pointer from its start, in bytes.
        offset: u64,
    },
}

/// A call of a program. Its kernel computes all elements with any grid.
pub struct Launch<'a, B, P> {
    launch: &'a abi::Launch,
    types: PhantomData<(&'a B, &'a P)>,
}

impl<'a, B, P> Launch<'a, B, P> {
    /// # Safety
    /// `launch` is the host's, alive for `'a`; its program is a `P`, and its buffers are handles of
    /// a `B`.
    pub(super) unsafe fn new(launch: &'a abi::Launch) -> Self {
        Launch { launch, types: PhantomData }
    }

    /// Returns the program.
    pub fn program(&self) -> &'a P {
        // SAFETY: the contract of `new`.
        unsafe { &*self.launch.program.cast::<P>() }
    }

    /// Returns the index of the device.
    pub fn device(&self) -> u32 {
        self.launch.device
    }

    /// Returns the stream to queue the launch on.
    pub fn stream(&self) -> u32 {
        self.launch.stream
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> u64 {
        self.launch.elements
    }

    /// As [`Execution::operator`](crate::Execution::operator).
    pub fn operator(&self) -> &'a str {
        // SAFETY: text of the call.
        unsafe { self.launch.operator.get() }
    }

    /// Returns the arguments, in the order of the kernel's parameters.
    pub fn arguments(&self) -> impl ExactSizeIterator<Item = Argument<'a, B>> {
        let values: &'a [abi::Argument] = match self.launch.arguments {
            0 => &[],
            // SAFETY: the host provides that many.
            count => unsafe { std::slice::from_raw_parts(self.launch.values, count as usize) },
        };
        values.iter().map(|value| match value.kind {
            // SAFETY: the contract of `new`.
            ARGUMENT_BUFFER => unsafe {
                Argument::Buffer { buffer: &*value.value.cast::<B>(), offset: value.offset }
            },
            _ if value.size == 0 => Argument::Bytes(&[]),
            // SAFETY: the host provides that many bytes.
            _ => Argument::Bytes(unsafe {
                std::slice::from_raw_parts(value.value.cast(), value.size as usize)
            }),
        })
    }
}

impl<B, P> fmt::Debug for Launch<'_, B, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Launch({} elements)", self.elements())
    }
}
