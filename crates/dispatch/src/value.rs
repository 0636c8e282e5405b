//! What the engine asks of the values that travel through it.
//!
//! The engine is generic over one value type `V`: usually an enum that holds a
//! tensor, a number, a list and so on. It never looks inside; it asks for the
//! keys and devices that a value brings to a call, and whether it fits a type
//! of the schema.

use keyfold_core::{Device, Result};

use crate::keyset::DispatchKeySet;
use crate::schema::{Literal, Return, Type};

/// The keys and the device that one argument brings to a call.
///
/// Merging tags is the engine's inner loop. A device is packed into 16 bits, and a tag keeps the
/// bits that any of its devices has and those that all have: they differ where devices do, and
/// arguments without a device leave both as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    keys: DispatchKeySet,
    any: u16,
    all: u16,
    /// A 0-dim CPU tensor, which may stand beside tensors of another device.
    scalar: bool,
}

/// The only device that is packed into zero bits.
const CPU_BITS: u16 = pack(Device::CPU);

#[inline(always)]
const fn pack(device: Device) -> u16 {
    (device.index() as u16) << 8 | device.kind().index() as u16
}

impl Tag {
    /// An argument that brings nothing: a number, `None`, an empty list.
    pub const NONE: Tag = Tag::keys_only(DispatchKeySet::EMPTY);

    /// An argument with keys on a device; `zero_dim` tells a tensor without dimensions.
    #[inline]
    pub const fn new(keys: DispatchKeySet, device: Device, zero_dim: bool) -> Tag {
        let packed = pack(device);
        Tag { keys, any: packed, all: packed, scalar: zero_dim && packed == CPU_BITS }
    }

    /// An argument that brings keys without living on a device: a `Device?` argument.
    #[inline]
    pub const fn keys_only(keys: DispatchKeySet) -> Tag {
        Tag { keys, any: 0, all: u16::MAX, scalar: false }
    }

    /// The keys of both, and their common device or the mark that they differ.
    #[inline]
    #[must_use]
    pub const fn merge(self, other: Tag) -> Tag {
        Tag {
            keys: self.keys.union(other.keys),
            any: self.any | other.any,
            all: self.all & other.all,
            scalar: false,
        }
    }

    /// The keys.
    #[inline]
    pub const fn keys(self) -> DispatchKeySet {
        self.keys
    }

    /// Whether two devices met here.
    #[inline]
    pub const fn is_mixed(self) -> bool {
        self.any & !self.all != 0
    }

    /// Whether this is a 0-dim tensor on the CPU.
    pub const fn is_cpu_scalar(self) -> bool {
        self.scalar
    }

    /// The device, if there is exactly one.
    pub fn device(self) -> Option<Device> {
        if self.any != self.all {
            return None;
        }
        let kind = keyfold_core::DeviceType::from_index(self.any as u8)?;
        Some(Device::new(kind, (self.any >> 8) as u8))
    }
}

/// A value that calls pass and kernels take and return.
///
/// Boxed calls pass borrowed values, `V::Ref<'_>`, which are `Copy` and small:
/// passing an argument on costs no reference count.
pub trait Value: Sized + Send + Sync + 'static {
    /// A borrowed value.
    type Ref<'a>: Copy;

    /// The same borrowed value for a shorter time: the value itself, where `Ref` is covariant,
    /// which generic code can't know.
    fn shorten<'short, 'long: 'short>(value: Self::Ref<'long>) -> Self::Ref<'short>;

    /// Borrows the value.
    fn as_ref(&self) -> Self::Ref<'_>;

    /// Owns a borrowed value (for a layer that keeps an argument beyond the call).
    ///
    /// # Errors
    /// Where the value can't be kept, a foreign one whose owner refuses, say.
    fn from_ref(value: Self::Ref<'_>) -> Result<Self>;

    /// The keys and device that the argument brings to a call; a list brings its elements'.
    fn tag(value: Self::Ref<'_>) -> Tag;

    /// Shows each tag inside the argument (a list has one per element) with a short
    /// description of where it is, such as `[2]`. Used to word errors, never on the fast path.
    fn visit_tags(value: Self::Ref<'_>, visit: &mut dyn FnMut(&str, Tag)) {
        visit("", Self::tag(value));
    }

    /// Whether the value fits the schema's type.
    fn conforms(value: Self::Ref<'_>, ty: &Type) -> bool;

    /// Whether the value is the absent one: what an operator without results returns.
    fn is_none(value: Self::Ref<'_>) -> bool;

    /// What the value is, for an error message: `float 2.0`, `str 'sum'`, `None`.
    fn describe(value: Self::Ref<'_>) -> String;

    /// A default value of a schema. `None` where the literal has no meaning for the type.
    fn from_literal(literal: &Literal, ty: &Type) -> Option<Self>;

    /// The number of the argument that this result stands for, if it does: what a kernel says that
    /// returns an argument as it is, without taking a share in it. The engine puts the argument
    /// itself in its place.
    fn as_argument(&self) -> Option<usize> {
        None
    }

    /// Several results of one call as one value.
    fn tuple(items: Vec<Self>) -> Self;

    /// The results inside a value that [`Value::tuple`] made.
    fn as_tuple(&self) -> Option<&[Self]>;
}

/// A Rust type that a typed kernel takes as an argument; implemented for marker types
/// such as `&'static Tensor`, `f64` and `Option<f64>`, whose `Arg<'a>` is what is passed.
pub trait Arg<V: Value>: 'static {
    /// The argument as the kernel sees it.
    type Arg<'a>;

    /// How the type reads in error messages.
    const NAME: &'static str;

    /// Whether a kernel may take this type where the schema says `ty`.
    fn accepts(ty: &Type) -> bool;

    /// The keys and device that the argument brings; nothing for most types.
    #[inline]
    fn tag(_arg: &Self::Arg<'_>) -> Tag {
        Tag::NONE
    }

    /// Takes the argument out of a boxed value.
    ///
    /// # Errors
    /// When the value is of another kind, or a foreign tensor can't be viewed.
    fn unbox(value: V::Ref<'_>) -> Result<Self::Arg<'_>>;

    /// Puts the argument into a boxed value.
    fn boxed<'a>(arg: &'a Self::Arg<'_>) -> V::Ref<'a>;
}

/// A Rust type that a typed kernel returns.
pub trait Ret<V: Value>: Sized + 'static {
    /// How the type reads in error messages.
    const NAME: &'static str;

    /// Whether a kernel may return this type where the schema says `returns`.
    fn accepts(returns: &[Return]) -> bool;

    /// The result as a value.
    fn into_value(self) -> V;

    /// The result out of a boxed kernel's value.
    ///
    /// # Errors
    /// When the value is of another kind.
    fn from_value(value: V) -> Result<Self>;
}
