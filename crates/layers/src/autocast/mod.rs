//! Autocast runs matrix products in a narrow dtype, and sums and exponentials in a wide one, without changes
//! to the calling code.
//!
//! Inside a [`scope`] each operator's tensor arguments are cast by its [`Category`]. For an operator without
//! a category the fallback at the key is a fallthrough: calls skip the key, a foreign argument reaches the
//! kernel unchanged, and the operators that a composite calls are autocast. A rule runs with its own key
//! excluded, so its casts (`aten::to`, through the process's dispatcher) aren't autocast again. Autocast is
//! below Autograd, which records the operator with the caller's arguments.
//!
//! Every call casts its weights again. A cache of casts would have to detect writes to a weight's memory, and
//! writes by other libraries that share the memory aren't detectable.
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

/// The dtypes of scopes.
pub const SUPPORTED: [DType; 3] = [DType::F16, DType::BF16, DType::F32];

/// The settings of an autocast scope: the local data of the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The dtype of operators of lower precision. With float32 all operators run in full precision.
    pub dtype: DType,
    /// Whether arguments are cast; false in a scope that disables an outer one.
    pub enabled: bool,
}

impl Settings {
    /// Makes settings that cast to that dtype.
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

    /// Disables casts and keeps the dtype.
    #[must_use]
    pub fn disabled(self) -> Settings {
        Settings { enabled: false, ..self }
    }

    /// Applies these settings to the calls on this thread while the guard lives. Of nested scopes the innermost
    /// applies.
    pub fn enter(self) -> LocalGuard {
        include_keys_with(DispatchKey::Autocast.into(), Arc::new(self))
    }
}

/// Autocasts the calls on this thread while the guard lives.
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

/// Returns the settings that apply to calls on this thread; `None` outside of scopes, in a disabled scope, and
/// while an autocast rule runs.
pub fn current() -> Option<Settings> {
    let keys = LocalKeys::current();
    let is_on = (keys.included() - keys.excluded()).contains(DispatchKey::Autocast);
    let settings = local_data::<Settings>().filter(|settings| is_on && settings.enabled);
    settings.as_deref().copied()
}

/// Makes the kernel at Autocast of an operator of this category.
#[track_caller]
pub fn kernel(category: Category) -> Kernel<Value> {
    cast::kernel(category)
}

/// Registers the category of an operator: a kernel at (operator, Autocast).
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
