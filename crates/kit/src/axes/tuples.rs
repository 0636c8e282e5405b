//! Tuples as spaces, points, sub-spaces and sets of values.

use super::axis::{Axis, AxisValue, Coordinate};
use super::space::{Axes, AxisPosition, Query};
use super::type_list::{OneOf, Subset, Subspace};

macro_rules! tuple {
    // A macro, since Rust has no generics over the length of a tuple.
    ($($a:ident)+) => {
        impl<$($a: Axis),+> Axes for ($($a,)+) {
            type List = $crate::values!($($a),+);
            const NAMES: &'static [&'static str] = &[$($a::NAME),+];

            #[inline]
            fn point(index: usize) -> Self {
                ($($a::ALL[index / <Self::List as AxisPosition<$a>>::STRIDE % $a::ALL.len()],)+)
            }

            #[inline]
            fn index(self) -> usize {
                #[allow(non_snake_case, reason = "the variables are called as their types")]
                let ($($a,)+) = self;
                0 $(+ $a.index() * <Self::List as AxisPosition<$a>>::STRIDE)+
            }

            fn labels(self) -> Vec<&'static str> {
                #[allow(non_snake_case, reason = "the variables are called as their types")]
                let ($($a,)+) = self;
                vec![$($a.label()),+]
            }
        }

        impl<S: Axes, $($a: Coordinate),+> Query<S> for ($($a,)+)
        where
            $(S::List: AxisPosition<$a::Axis>,)+
        {
            const COMPLETE: () = {
                let mut seen = 0_u64;
                $(
                    let place = <S::List as AxisPosition<$a::Axis>>::POSITION;
                    assert!(place != usize::MAX, "a coordinate of an axis that the table hasn't");
                    assert!(seen & (1 << place) == 0, "two coordinates of one axis");
                    seen |= 1 << place;
                )+
                assert!(seen + 1 == 1 << S::NAMES.len(), "a coordinate is missing");
            };

            #[inline(always)]
            fn index(self) -> usize {
                const { <Self as Query<S>>::COMPLETE };
                #[allow(non_snake_case, reason = "the variables are called as their types")]
                let ($($a,)+) = self;
                0 $(+ $a.coordinate().index() * <S::List as AxisPosition<$a::Axis>>::STRIDE)+
            }
        }

        impl<$($a: Subset + 'static),+> Subspace for ($($a,)+) {
            type List = $crate::values!($($a),+);
        }
    };
}

tuple!(A);
tuple!(A B);
tuple!(A B C);
tuple!(A B C D);
tuple!(A B C D E);
tuple!(A B C D E F);
tuple!(A B C D E F G);
tuple!(A B C D E F G H);

macro_rules! set {
    // A macro, as above.
    ($first:ident $($rest:ident)*) => {
        impl<X: Axis, $first: AxisValue<Axis = X>, $($rest: AxisValue<Axis = X>),*> Subset
            for OneOf<($first, $($rest,)*)>
        {
            type Axis = X;
            type Values = $crate::values!($first $(, $rest)*);
        }
    };
}

set!(A);
set!(A B);
set!(A B C);
set!(A B C D);
set!(A B C D E);
set!(A B C D E F);
set!(A B C D E F G);
set!(A B C D E F G H);
set!(A B C D E F G H I);
set!(A B C D E F G H I J);
set!(A B C D E F G H I J K);
set!(A B C D E F G H I J K L);
set!(A B C D E F G H I J K L M);
