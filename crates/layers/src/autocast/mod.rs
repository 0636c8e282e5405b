//! Autocast: matrix products in a short dtype, sums and exponentials in a long one, without a
//! change to the code that calls them.
//!
//! Inside a [`scope`] each operator's tensor arguments are cast by its [`Category`]. An operator
//! without one is left as it is: the fallback at the key is a fallthrough, so that calls pass the
//! key by, a foreign argument reaches the kernel as the caller's own object, and what a composite
//! operator calls itself is autocast in its turn. A rule runs with its own key excluded, so casts
//! (`aten::to`, through the process's dispatcher) aren't autocast again; and below Autograd, which
//! records the operator with the arguments that the caller gave.
//!
//! A weight is cast anew by every call that uses it. A cache of casts would have to know when the
//! weight's memory is written, which memory shared with another library doesn't tell.
//!
//! The categories follow what mixed-precision training found to be safe (Micikevicius et al.,
//! "Mixed Precision Training", 2018).

mod cast;
mod category;

use std::sync::Arc;

use keyfold_core::{DType, Error, ErrorKind, Result};
use keyfold_dispatch::{
    DispatchKey, Dispatcher, Handle, Kernel, LocalGuard, LocalKeys, Override, include_keys_with,
    local_data,
};
use keyfold_tensor::Value;

pub use category::Category;

/// The dtypes that a scope can have.
pub const SUPPORTED: [DType; 3] = [DType::F16, DType::BF16, DType::F32];

/// What an autocast scope says: the local data of the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What operators of lower precision compute in. With float32 everything is in full precision.
    pub dtype: DType,
    /// Whether anything is cast: not inside a scope that switches an outer one off.
    pub enabled: bool,
}

impl Settings {
    /// Casts to that dtype.
    ///
    /// # Errors
    /// [`ErrorKind::DType`] for a dtype that isn't in [`SUPPORTED`].
    pub fn new(dtype: DType) -> Result<Settings> {
        if SUPPORTED.contains(&dtype) {
            return Ok(Settings { dtype, enabled: true });
        }
        let names = SUPPORTED.map(DType::name).join(", ");
        Err(Error::new(
            ErrorKind::DType,
            format!("autocast: dtype {dtype} isn't supported; use one of {names}"),
        ))
    }

    /// The same dtype, with nothing cast.
    #[must_use]
    pub fn disabled(self) -> Settings {
        Settings { enabled: false, ..self }
    }

    /// Makes these settings those of the calls on this thread while the guard lives. The innermost
    /// scope counts.
    pub fn enter(self) -> LocalGuard {
        include_keys_with(DispatchKey::Autocast.into(), Arc::new(self))
    }
}

/// Calls on this thread are autocast while the guard lives.
///
/// ```
/// use keyfold_core::DType;
/// use keyfold::ops::aten;
/// use keyfold_layers::autocast;
/// use keyfold_tensor::Tensor;
/// keyfold::init();
///
/// let a = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// let scope = autocast::scope(DType::BF16)?;
/// assert_eq!(aten::matmul(&a, &a)?.dtype(), DType::BF16);
/// drop(scope);
/// assert_eq!(aten::matmul(&a, &a)?.dtype(), DType::F32);
/// # Ok::<(), keyfold_core::Error>(())
/// ```
///
/// # Errors
/// As [`Settings::new`].
pub fn scope(dtype: DType) -> Result<LocalGuard> {
    Ok(Settings::new(dtype)?.enter())
}

/// What applies to calls on this thread now: `None` outside of every scope, inside one that is
/// switched off, and while an autocast rule runs.
pub fn current() -> Option<Settings> {
    let keys = LocalKeys::current();
    let is_on = (keys.included() - keys.excluded()).contains(DispatchKey::Autocast);
    let settings = local_data::<Settings>().filter(|settings| is_on && settings.enabled);
    settings.as_deref().copied()
}

/// The kernel at Autocast of an operator of this category.
#[track_caller]
pub fn kernel(category: Category) -> Kernel<Value> {
    cast::kernel(category)
}

/// Gives an operator a category: a kernel at (operator, Autocast).
///
/// # Errors
/// [`ErrorKind::UnknownOperator`], and [`ErrorKind::Registration`] where it has a category already.
#[track_caller]
pub fn register_rule(
    dispatcher: &Dispatcher<Value>,
    operator: &str,
    category: Category,
) -> Result<Handle<Value>> {
    dispatcher.implement(operator, DispatchKey::Autocast, kernel(category), Override::Error)
}

pub(crate) fn register(dispatcher: &Dispatcher<Value>) -> Result<()> {
    dispatcher.fallback(DispatchKey::Autocast, Kernel::fallthrough(), Override::Error).map(drop)
}
