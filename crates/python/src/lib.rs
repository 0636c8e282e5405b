//! The extension module `keyfold._core`: extract, release the GIL, call, wrap.
//!
//! Three layers, each of which uses those before it only (`tests/packaging/test_binding_modules.py` looks):
//! - [`marshal`]: Python's objects as values of the engine and back
//! - [`call`]: arguments bound, a kernel chosen and run, results handed to the caller
//! - [`classes`]: what users hold, and the module's functions

mod call;
mod classes;
mod marshal;

use pyo3::prelude::*;

// Caches here are guarded by the GIL; a free-threaded interpreter turns it on for us.
#[pymodule(gil_used = true)]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::{
        call::operator::PyOperator,
        classes::{
            array_kind::{_in_kind, _is_array, _is_registered, _view},
            autocast::{_autocast_dtype, _register_autocast, PyAutocast},
            autograd::{
                _call_recorded, _checkpoint, _enable_grad, _grad, _grad_variable,
                _is_differentiated, _leads_outside, PyHookHandle, PyNoGrad, PyNode,
                is_grad_enabled,
            },
            backend::{
                _backends, PyBackendHandle,
                fallback::{_fallbacks, allow_fallback},
                register_backend,
            },
            block::PyBlock,
            conformance::{
                _conformance, _conformance_child, _conformance_groups, _conformance_is_child,
                _conformance_text,
            },
            cudnn::{
                cache::{
                    _cudnn_cache_clear, _cudnn_cache_set_capacity, _cudnn_cache_size,
                    _cudnn_cache_stats, _cudnn_prepare,
                },
                cards::{_cudnn_capture, _cudnn_card, _cudnn_cards, _cudnn_helpers, _cudnn_rank},
                graph::PyCudnnGraph,
                library::{_cudnn_helper, _cudnn_libraries},
                plan::{_cudnn_build, PyPlan},
            },
            delayed::PyDelayedDevice,
            derivative::_register_autograd,
            devices::{_devices, synchronize},
            dispatcher::{_default_dispatcher, PyDispatcher},
            expression::{_elementwise, _out_schema, _rebuild_expression, object::PyExpression},
            function::{_functions, PyFunction},
            fused::{_for_numpy, _fuse_mode, PyFused, PyRecorder, PyRecording},
            guards::{PyGuard, exclude_keys, include_keys},
            handle::PyHandle,
            jvp::{
                _has_registered_jvp, _has_tangent, _register_jvp, _without_graph, PyLevel,
                PyTangentHandle,
            },
            memory::{memory_stats, set_cache_limit, trim_memory},
            meta::{_infer_meta, _infer_meta_aliases, _resolved},
            nativekernel::PyNativeKernel,
            operator::{PyKernelHandle, PyTableEntry},
            packet::PyPacket,
            pipeline::{PyPipeline, flush},
            plugin::{PyPlugin, load_plugin},
            profiler::{PyProfileRange, PyProfileSession},
            random::{_random_state, _set_random_state, get_rng_state, manual_seed, set_rng_state},
            schema::{_canonical_schema, _schema_parts},
            tensor::{
                exchange::{_rebuild_tensor, from_dlpack, from_numpy},
                indexing::PyTensorIterator,
            },
            testing::{_register_testing_kernels, _register_testing_layer},
            threads::{_check_environment, _set_tile_cache, get_num_threads, set_num_threads},
            tracer::{_is_tracing, PyGraph, PyGraphNode, PyGraphValue, PyTraceSession},
            tvmffi::_tvm_ffi_export,
            vmap::{_register_vmap, _vmap_depends, PyFrame, PyVmapInfo},
        },
        marshal::{
            arrays::registered::register_array_type,
            dtype::{PyDType, PyDevice},
            keys::{_key, _keys, _set_key_class, PyKey, PyKeySet, register_key},
            tensor::PyTensor,
        },
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::init(module)
    }
}

fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    marshal::init(py)?;
    call::init(py);
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    marshal::dtype::add_dtypes(module)?;
    classes::init(module)
}
