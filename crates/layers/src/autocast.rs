//! The autocast layer.

use keyfold_core::Result;
use keyfold_dispatch::Dispatcher;
use keyfold_tensor::Value;

pub(crate) fn register(_dispatcher: &Dispatcher<Value>) -> Result<()> {
    Ok(())
}
