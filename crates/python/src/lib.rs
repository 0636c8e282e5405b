//! The extension module `keyfold._core`: extract, release the GIL, call, wrap.
//!
//! - keys and sets: `keys`, `guards`; other `with` blocks: `block`
//! - what counts as a tensor, and how each library's arrays are read and made: `arrays`; `dtype`
//! - `keyfold.Tensor`: `tensor`, `tensor_ops`, `tensor_methods`, `tensor_to`, `indexing`,
//!   `exchange`, `text`, and `aten`, the operators that they call
//! - the call: `params` (bind and look), `call` (select and finish), `pykernel` and `native`
//!   (the two kinds of kernels), `foreign` and `results` (objects there and back)
//! - functions that layers call for every call they see, without PyO3's packing: `fastcalls`
//! - the layers: `autocast`, `autograd`, `derivative` (derivatives written in Python), `meta`,
//!   `vmap`
//! - devices: `devices`, and `backend`, those that are written in Python; random numbers: `random`
//! - threads and memory: `threads`, `memory`, `attach`, `forced_unwind` (threads that the interpreter
//!   ends)
//! - what users hold: `operator`, `packet`, `dispatcher`, `handle`, `explain`, `nativekernel`, `plugin`

mod argument;
mod arrays;
mod aten;
mod attach;
mod autocast;
mod autograd;
mod backend;
mod block;
mod call;
mod convert;
mod delayed;
mod derivative;
mod devices;
mod dispatcher;
mod dtype;
mod errors;
mod exchange;
mod explain;
mod expression;
mod fastcalls;
mod forced_unwind;
mod foreign;
mod guards;
mod handle;
mod indexing;
mod keys;
mod memory;
mod meta;
mod native;
mod nativekernel;
mod operator;
mod packet;
mod params;
mod plugin;
mod profiler;
mod pykernel;
mod random;
mod readable;
mod refusal;
mod results;
mod schema;
mod tensor;
mod tensor_methods;
mod tensor_ops;
mod tensor_to;
mod tensor_whole_ops;
mod testing;
mod text;
mod threads;
mod tracer;
mod tvmffi;
#[cfg(not(feature = "abi3"))]
mod vectorcall;
mod vmap;

use pyo3::prelude::*;

// Caches here are guarded by the GIL; a free-threaded interpreter turns it on for us.
#[pymodule(gil_used = true)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    forced_unwind::init();
    let py = module.py();
    arrays::init(py);
    keys::init(py);
    operator::init(py);
    module.add_class::<tensor::PyTensor>()?;
    module.add_class::<expression::PyExpression>()?;
    module.add_function(wrap_pyfunction!(expression::_elementwise, module)?)?;
    module.add_function(wrap_pyfunction!(expression::_out_schema, module)?)?;
    module.add_function(wrap_pyfunction!(expression::_rebuild_expression, module)?)?;
    module.add_class::<indexing::PyTensorIterator>()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    dtype::add_dtypes(module)?;
    module.add_function(wrap_pyfunction!(exchange::from_numpy, module)?)?;
    module.add_function(wrap_pyfunction!(exchange::from_dlpack, module)?)?;
    module.add_function(wrap_pyfunction!(exchange::_rebuild_tensor, module)?)?;
    module.add_function(wrap_pyfunction!(random::manual_seed, module)?)?;
    module.add_function(wrap_pyfunction!(random::get_rng_state, module)?)?;
    module.add_function(wrap_pyfunction!(random::set_rng_state, module)?)?;
    module.add_function(wrap_pyfunction!(random::_random_state, module)?)?;
    module.add_function(wrap_pyfunction!(random::_set_random_state, module)?)?;
    module.add_function(wrap_pyfunction!(threads::get_num_threads, module)?)?;
    module.add_function(wrap_pyfunction!(threads::set_num_threads, module)?)?;
    module.add_function(wrap_pyfunction!(threads::_check_environment, module)?)?;
    module.add_function(wrap_pyfunction!(memory::memory_stats, module)?)?;
    module.add_function(wrap_pyfunction!(devices::_devices, module)?)?;
    module.add_function(wrap_pyfunction!(devices::synchronize, module)?)?;
    module.add_function(wrap_pyfunction!(memory::trim_memory, module)?)?;
    module.add_function(wrap_pyfunction!(memory::set_cache_limit, module)?)?;
    module.add_class::<dtype::PyDType>()?;
    module.add_class::<dtype::PyDevice>()?;
    module.add_class::<keys::PyKey>()?;
    module.add_class::<keys::PyKeySet>()?;
    module.add_class::<guards::PyGuard>()?;
    module.add_class::<block::PyBlock>()?;
    module.add_class::<operator::PyOperator>()?;
    module.add_class::<operator::PyTableEntry>()?;
    module.add_class::<operator::PyKernelHandle>()?;
    module.add_class::<packet::PyPacket>()?;
    module.add_class::<dispatcher::PyDispatcher>()?;
    module.add_class::<handle::PyHandle>()?;
    module.add_class::<nativekernel::PyNativeKernel>()?;
    module.add_class::<plugin::PyPlugin>()?;
    module.add_function(wrap_pyfunction!(plugin::load_plugin, module)?)?;
    module.add("fallthrough", Bound::new(py, dispatcher::PyFallthrough)?)?;
    module.add_function(wrap_pyfunction!(keys::_set_key_class, module)?)?;
    module.add_function(wrap_pyfunction!(keys::_key, module)?)?;
    module.add_function(wrap_pyfunction!(keys::_keys, module)?)?;
    module.add_function(wrap_pyfunction!(keys::register_key, module)?)?;
    module.add_class::<backend::PyBackendHandle>()?;
    module.add_function(wrap_pyfunction!(backend::register_backend, module)?)?;
    module.add_function(wrap_pyfunction!(backend::_backends, module)?)?;
    module.add_function(wrap_pyfunction!(backend::fallback::allow_fallback, module)?)?;
    module.add_function(wrap_pyfunction!(backend::fallback::_fallbacks, module)?)?;
    module.add_function(wrap_pyfunction!(guards::include_keys, module)?)?;
    module.add_function(wrap_pyfunction!(guards::exclude_keys, module)?)?;
    module.add_function(wrap_pyfunction!(arrays::register_array_type, module)?)?;
    module.add_function(wrap_pyfunction!(arrays::kind::_is_array, module)?)?;
    module.add_function(wrap_pyfunction!(arrays::kind::_is_registered, module)?)?;
    module.add_function(wrap_pyfunction!(arrays::kind::_view, module)?)?;
    module.add_function(wrap_pyfunction!(arrays::kind::_in_kind, module)?)?;
    module.add_function(wrap_pyfunction!(dispatcher::_default_dispatcher, module)?)?;
    module.add_function(wrap_pyfunction!(testing::_register_testing_kernels, module)?)?;
    module.add_function(wrap_pyfunction!(testing::_register_testing_layer, module)?)?;
    module.add_class::<delayed::PyDelayedDevice>()?;
    module.add_class::<autocast::PyAutocast>()?;
    module.add_function(wrap_pyfunction!(autocast::_autocast_dtype, module)?)?;
    module.add_function(wrap_pyfunction!(autocast::_register_autocast, module)?)?;
    module.add_function(wrap_pyfunction!(meta::_infer_meta, module)?)?;
    module.add_function(wrap_pyfunction!(meta::_overload_for, module)?)?;
    module.add_function(wrap_pyfunction!(schema::_schema_parts, module)?)?;
    module.add_function(wrap_pyfunction!(schema::_canonical_schema, module)?)?;
    module.add_class::<autograd::PyNode>()?;
    module.add_class::<autograd::PyHookHandle>()?;
    module.add_function(wrap_pyfunction!(autograd::_grad, module)?)?;
    module.add_function(wrap_pyfunction!(derivative::_register_autograd, module)?)?;
    module.add_function(wrap_pyfunction!(autograd::_grad_variable, module)?)?;
    module.add_function(wrap_pyfunction!(autograd::_checkpoint, module)?)?;
    module.add_function(wrap_pyfunction!(autograd::_enable_grad, module)?)?;
    module.add_class::<autograd::PyNoGrad>()?;
    module.add_function(wrap_pyfunction!(autograd::_call_recorded, module)?)?;
    module.add_function(wrap_pyfunction!(autograd::_is_differentiated, module)?)?;
    module.add_function(wrap_pyfunction!(autograd::_leads_outside, module)?)?;
    module.add_function(wrap_pyfunction!(autograd::is_grad_enabled, module)?)?;
    // The tracer's.
    module.add_class::<tracer::PyTraceSession>()?;
    module.add_class::<tracer::PyGraph>()?;
    module.add_class::<tracer::PyGraphValue>()?;
    module.add_class::<tracer::PyGraphNode>()?;
    module.add_function(wrap_pyfunction!(tracer::_is_tracing, module)?)?;
    module.add_class::<vmap::PyFrame>()?;
    module.add_class::<vmap::PyVmapInfo>()?;
    module.add_function(wrap_pyfunction!(vmap::_register_vmap, module)?)?;
    module.add_function(wrap_pyfunction!(vmap::_vmap_depends, module)?)?;
    module.add_class::<profiler::PyProfileSession>()?;
    module.add_class::<profiler::PyProfileRange>()?;
    module.add_function(wrap_pyfunction!(tvmffi::_tvm_ffi_export, module)?)?;
    fastcalls::init(module)?;
    #[cfg(not(feature = "abi3"))]
    {
        let packet =
            Bound::new(py, packet::PyPacket::new(py, keyfold::dispatcher(), "aten::add")?)?;
        let operator = keyfold::dispatcher().operator("aten::add");
        let operator = operator.map_err(|error| errors::to_pyerr(py, error))?;
        let expression = Bound::new(py, expression::PyExpression::parse(py, "x")?)?;
        vectorcall::init(&operator::object_of(py, &operator)?, &packet, &expression);
    }
    Ok(())
}
