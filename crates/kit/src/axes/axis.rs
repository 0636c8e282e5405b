//! Axes: the traits of an axis and of its values, and the macro that declares one.

use std::fmt::Debug;

use super::type_bool::{AxisId, TypeBool};
use super::type_list::ValueList;

/// An axis: a closed set of values that a kernel can be chosen by.
///
/// [`axis!`](crate::axis) declares an enum and everything that belongs to it.
pub trait Axis: Copy + Eq + Debug + Send + Sync + 'static {
    /// The axis's name in messages, such as `dtype`.
    const NAME: &'static str;
    /// Every value, in order of [`index`](Self::index).
    const ALL: &'static [Self];
    /// The axis's identity at compile time: [`axis_id!`](crate::axis_id).
    type Id: AxisId;
    /// The types of all values, in the order of [`ALL`](Self::ALL).
    type Values: ValueList;

    /// The position of this value in [`ALL`](Self::ALL).
    fn index(self) -> usize;

    /// The value's name in messages, such as `float32`.
    fn label(self) -> &'static str;
}

/// One value of an axis as a zero-sized type, known at compile time.
pub trait AxisValue: Copy + Default + Send + Sync + 'static {
    /// The axis of the value.
    type Axis: Axis;
    /// The value.
    const VALUE: Self::Axis;
    /// The value's position in [`Axis::ALL`].
    const INDEX: usize;

    /// Returns the value as the axis's enum.
    #[inline(always)]
    fn value(self) -> Self::Axis {
        Self::VALUE
    }
}

/// A coordinate: a value of an axis, known at run time (the enum) or at compile time (the zero-sized
/// type).
pub trait Coordinate: Copy {
    /// The axis.
    type Axis: Axis;

    /// The value on that axis.
    fn coordinate(self) -> Self::Axis;
}

/// Whether two axes are the same axis, as a type.
pub type Same<A, B> = <<A as Axis>::Id as AxisId>::Same<<B as Axis>::Id>;

/// Whether two axes are the same axis, as a value.
pub const fn is_same<A: Axis, B: Axis>() -> bool {
    <Same<A, B> as TypeBool>::VALUE
}

/// Declares an axis: an enum, and a zero-sized type for each of its values.
///
/// ```
/// keyfold_kit::axis! {
///     /// Threads of a block on a GPU.
///     pub enum BlockSize("block size") {
///         /// 128 threads.
///         Block128 = "128",
///         /// 256 threads.
///         Block256 = "256",
///     }
/// }
/// use keyfold_kit::axes::{Axis, AxisValue};
/// assert_eq!(BlockSize::ALL, [BlockSize::Block128, BlockSize::Block256]);
/// assert_eq!(Block256::VALUE, BlockSize::Block256);
/// assert_eq!(BlockSize::Block256.label(), "256");
/// ```
///
/// The first text is the axis's name in messages; the other texts are the names of its values.
#[macro_export]
macro_rules! axis {
    (
        $(#[$meta:meta])*
        $vis:vis enum $axis:ident ($name:literal) { $($values:tt)+ }
    ) => {
        $crate::axis! {
            @ $crate::axis_id!(concat!(module_path!(), "::", stringify!($axis)));
            $(#[$meta])*
            $vis enum $axis ($name) { $($values)+ }
        }
    };
    (
        @ $id:ty;
        $(#[$meta:meta])*
        $vis:vis enum $axis:ident ($name:literal) {
            $($(#[$value_meta:meta])* $value:ident = $label:literal),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        $vis enum $axis {
            $($(#[$value_meta])* $value,)+
        }

        impl $crate::axes::Axis for $axis {
            const NAME: &'static str = $name;
            const ALL: &'static [Self] = &[$($axis::$value),+];
            type Id = $id;
            type Values = $crate::values!($($value),+);

            #[inline(always)]
            fn index(self) -> usize {
                self as usize
            }

            fn label(self) -> &'static str {
                match self {
                    $($axis::$value => $label,)+
                }
            }
        }

        impl $crate::axes::Coordinate for $axis {
            type Axis = $axis;
            #[inline(always)]
            fn coordinate(self) -> $axis {
                self
            }
        }

        $(
            $(#[$value_meta])*
            #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
            $vis struct $value;

            impl $crate::axes::AxisValue for $value {
                type Axis = $axis;
                const VALUE: $axis = $axis::$value;
                const INDEX: usize = $axis::$value as usize;
            }

            impl $crate::axes::Coordinate for $value {
                type Axis = $axis;
                #[inline(always)]
                fn coordinate(self) -> $axis {
                    $axis::$value
                }
            }
        )+
    };
}
