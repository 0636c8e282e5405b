//! The libraries of a call's arrays: NumPy's, torch's, JAX's, keyfold's own. They decide what its results are
//! wrapped in, and which libraries may stand beside each other.

/// A set of array libraries.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Caller(u32);

/// The bits before those of the libraries in `classes::LIBRARIES`.
const UNLISTED: u32 = 3;

impl Caller {
    pub(crate) const NONE: Caller = Caller(0);
    /// keyfold's own tensors.
    pub(crate) const TENSOR: Caller = Caller(1);
    pub(crate) const NUMPY: Caller = Caller(2);
    /// Classes that users registered with `register_array_type`.
    pub(crate) const OTHER: Caller = Caller(4);
    /// Any class with `__dlpack__` of a library that isn't listed by name.
    pub(crate) const DLPACK: Caller = Caller::listed(0);

    /// The library at a place of `classes::LIBRARIES`.
    pub(crate) const fn listed(place: usize) -> Caller {
        Caller(1 << (UNLISTED as usize + place))
    }

    /// The place in `classes::LIBRARIES`, if it is one library of those.
    #[inline(always)]
    pub(crate) fn place(self) -> Option<usize> {
        if self.0 < Caller::DLPACK.0 || !self.is_one() {
            return None;
        }
        Some((self.0.trailing_zeros() - UNLISTED) as usize)
    }

    #[inline(always)]
    pub(crate) fn with(self, other: Caller) -> Caller {
        Caller(self.0 | other.0)
    }

    #[inline(always)]
    pub(crate) fn has(self, other: Caller) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether it is exactly one library.
    #[inline(always)]
    pub(crate) fn is_one(self) -> bool {
        self.0.is_power_of_two()
    }

    /// Whether results go back as NumPy arrays: NumPy beside keyfold's own gives keyfold's own.
    #[inline(always)]
    pub(crate) fn wants_numpy(self) -> bool {
        self == Caller::NUMPY
    }

    /// Whether there are NumPy's arrays and keyfold's tensors alone.
    #[inline(always)]
    pub(crate) fn is_plain(self) -> bool {
        self.0 & !(Caller::NUMPY.0 | Caller::TENSOR.0) == 0
    }

    /// Whether a `keyfold.Tensor` is what the caller gets for one.
    #[inline(always)]
    pub(crate) fn keeps_tensors(self) -> bool {
        self.is_plain() && !self.wants_numpy()
    }

    /// Whether it has to be looked at closer: several libraries, or one whose classes may differ.
    #[inline(always)]
    pub(crate) fn may_clash(self) -> bool {
        self.0 > 3 && (!self.is_one() || self == Caller::DLPACK)
    }

    /// Whether these are a single library's, or a combination that has a meaning of its own.
    pub(crate) fn is_uniform(self) -> bool {
        // A registered class's author decides how it mixes with other classes.
        let known = Caller(self.0 & !Caller::OTHER.0);
        known.is_plain() || known.is_one()
    }
}
