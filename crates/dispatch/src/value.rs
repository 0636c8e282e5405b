//! The interface between the engine and the values that it passes.
//!
//! The engine is generic over one value type `V`: usually an enum of a tensor, a number, a list and
//! so on. It never inspects a value beyond its keys and devices, and whether it fits a type of the
//! schema.

use keyfold_core::{Device, Result};

use crate::keyset::DispatchKeySet;
use crate::schema::{Literal, Return, Type};

/// The keys and the device of one argument.
///
/// Merging tags is the engine's inner loop. A device is packed into 16 bits, and a tag keeps their
/// union and their intersection over all devices: the two differ if devices do, and arguments
/// without a device change neither.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    keys: DispatchKeySet,
    any: u16,
    all: u16,
    /// Whether it is a 0-dim CPU tensor, which is allowed beside tensors of another device.
    scalar: bool,
}

/// The only device that packs to zero bits.
const CPU_BITS: u16 = pack(Device::CPU);

#[inline(always)]
const fn pack(device: Device) -> u16 {
    (device.index() as u16) << 8 | device.kind().index() as u16
}

impl Tag {
    /// The tag of an argument without keys: a number, `None`, an empty list.
    pub const NONE: Tag = Tag::keys_only(DispatchKeySet::EMPTY);

    /// Returns the tag of an argument on a device; `zero_dim`: a tensor without dimensions.
    #[inline]
    pub const fn new(keys: DispatchKeySet, device: Device, zero_dim: bool) -> Tag {
        let packed = pack(device);
        Tag { keys, any: packed, all: packed, scalar: zero_dim && packed == CPU_BITS }
    }

    /// Returns the tag of an argument with keys and without a device, such as a `Device?` argument.
    #[inline]
    pub const fn keys_only(keys: DispatchKeySet) -> Tag {
        Tag { keys, any: 0, all: u16::MAX, scalar: false }
    }

    /// Returns the union of the keys, and the common device or the mark that devices differ.
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

    /// Returns the keys.
    #[inline]
    pub const fn keys(self) -> DispatchKeySet {
        self.keys
    }

    /// Returns whether devices differ.
    #[inline]
    pub const fn is_mixed(self) -> bool {
        self.any & !self.all != 0
    }

    /// Returns whether this is a 0-dim tensor on the CPU.
    pub const fn is_cpu_scalar(self) -> bool {
        self.scalar
    }

    /// Returns the device, if there is exactly one.
    pub fn device(self) -> Option<Device> {
        if self.any != self.all {
            return None;
        }
        let kind = keyfold_core::DeviceType::from_index(self.any as u8)?;
        Some(Device::new(kind, (self.any >> 8) as u8))
    }
}

/// A value that calls pass, and kernels take and return.
///
/// Boxed calls pass borrowed values, `V::Ref<'_>`, which are `Copy` and small, so that passing an
/// argument on costs no reference count.
pub trait Value: Sized + Send + Sync + 'static {
    /// A borrowed value.
    type Ref<'a>: Copy;

    /// Shortens the lifetime of a borrowed value: the identity if `Ref` is covariant, which generic
    /// code can't express.
    fn shorten<'short, 'long: 'short>(value: Self::Ref<'long>) -> Self::Ref<'short>;

    /// Borrows the value.
    fn as_ref(&self) -> Self::Ref<'_>;

    /// Makes an owned value, for a layer that keeps an argument beyond the call.
    ///
    /// # Errors
    /// If the value can't be kept, such as a foreign one whose owner refuses.
    fn from_ref(value: Self::Ref<'_>) -> Result<Self>;

    /// Returns the tag of an argument; a list's is merged from its elements'.
    fn tag(value: Self::Ref<'_>) -> Tag;

    /// Calls `visit` with each tag inside the argument (a list has one per element) and its place,
    /// such as `[2]`. Used for error messages only.
    fn visit_tags(value: Self::Ref<'_>, visit: &mut dyn FnMut(&str, Tag)) {
        visit("", Self::tag(value));
    }

    /// Returns whether the value fits the schema's type.
    fn conforms(value: Self::Ref<'_>, ty: &Type) -> bool;

    /// Returns whether it is the value of an operator without results.
    fn is_none(value: Self::Ref<'_>) -> bool;

    /// Describes the value for an error message: `float 2.0`, `str 'sum'`, `None`.
    fn describe(value: Self::Ref<'_>) -> String;

    /// Returns a default of a schema as a value. `None` if the literal isn't a value of the type.
    fn from_literal(literal: &Literal, ty: &Type) -> Option<Self>;

    /// Returns the index of the argument that this result represents, if it does. A kernel returns
    /// an argument this way without a reference count, and the engine substitutes the argument
    /// itself.
    fn as_argument(&self) -> Option<usize> {
        None
    }

    /// Returns several results as one value.
    fn tuple(items: Vec<Self>) -> Self;

    /// Returns the results in a value of [`Value::tuple`].
    fn as_tuple(&self) -> Option<&[Self]>;
}

/// A Rust type that a typed kernel takes as an argument. Marker types implement it, such as
/// `&'static Tensor`, `f64` and `Option<f64>`; `Arg<'a>` is the type that is passed.
pub trait Arg<V: Value>: 'static {
    /// The argument's type in the kernel.
    type Arg<'a>;

    /// The type's name in error messages.
    const NAME: &'static str;

    /// Returns whether a kernel may take this type for the schema's type `ty`.
    fn accepts(ty: &Type) -> bool;

    /// Returns the argument's tag; most types have no keys.
    #[inline]
    fn tag(_arg: &Self::Arg<'_>) -> Tag {
        Tag::NONE
    }

    /// Converts a boxed value to the argument.
    ///
    /// # Errors
    /// If the value is of another kind, or a foreign tensor can't be viewed.
    fn unbox(value: V::Ref<'_>) -> Result<Self::Arg<'_>>;

    /// Converts the argument to a boxed value.
    fn boxed<'a>(arg: &'a Self::Arg<'_>) -> V::Ref<'a>;
}

/// A Rust type that a typed kernel returns.
pub trait Ret<V: Value>: Sized + 'static {
    /// The type's name in error messages.
    const NAME: &'static str;

    /// Returns whether a kernel may return this type for the schema's `returns`.
    fn accepts(returns: &[Return]) -> bool;

    /// Converts the result to a value.
    fn into_value(self) -> V;

    /// Converts a boxed kernel's value to the result.
    ///
    /// # Errors
    /// If the value is of another kind.
    fn from_value(value: V) -> Result<Self>;
}
