//! `keyfold_plugin.h` beside the layouts of crate `keyfold-plugin`: a C compiler compares sizes,
//! offsets and constants.

use std::fmt::Write as _;
use std::path::Path;

use keyfold_plugin::abi::device::{
    self, Argument, DeviceSpec, DeviceStatistics, Execution, Field, Fields, IndexParams, Launch,
    Operation, PointwiseParams, RandomParams, ReduceParams, RowParams, ScanParams, Source,
};
use keyfold_plugin::abi::{
    self, CallFrame, Descriptor, HostTable, HostTable1, IntSlice, KernelSpec, Requirements, Text,
};

use crate::c_plugins::compile;

/// Compares a Rust struct with the C struct of that name: each field, under its name there.
macro_rules! same_layout {
    // A macro, since `offset_of!` needs the fields.
    ($out:ident, $rust:ty, $c:literal, $($field:ident $(. $inner:ident)? = $name:literal),* $(,)?) => {
        $(assert_offset(
            &mut $out,
            $c,
            $name,
            std::mem::offset_of!($rust, $field $(. $inner)?),
        );)*
        let _ = writeln!($out, "_Static_assert(sizeof({0}) == {1}, \"{0}\");", $c, size_of::<$rust>());
    };
}

fn assert_offset(out: &mut String, c: &str, field: &str, offset: usize) {
    let _ = writeln!(out, "_Static_assert(offsetof({c}, {field}) == {offset}, \"{c}.{field}\");");
}

fn layouts() -> String {
    let mut out = "#include \"keyfold_plugin.h\"\n".to_owned();
    same_layout!(out, Text, "KeyfoldText", data = "data", len = "len");
    same_layout!(out, IntSlice, "KeyfoldInts", data = "data", len = "len");
    same_layout!(
        out,
        Descriptor,
        "KeyfoldDescriptor",
        magic = "magic",
        abi_major = "abi_major",
        abi_minor = "abi_minor",
        name = "name",
        version = "version",
        register = "register_plugin"
    );
    same_layout!(
        out,
        Requirements,
        "KeyfoldRequirements",
        size = "size",
        minor_min = "minor_min",
        minor_max = "minor_max",
        reserved = "reserved",
        features = "features"
    );
    same_layout!(
        out,
        CallFrame,
        "KeyfoldCall",
        size = "size",
        inputs = "inputs",
        host = "host",
        data = "data",
        keyset = "keyset",
        key = "key",
        flags = "flags",
        operator = "op"
    );
    same_layout!(
        out,
        KernelSpec,
        "KeyfoldKernel",
        size = "size",
        returns = "returns",
        operator = "op",
        key = "key",
        name = "name",
        function = "function",
        data = "data",
        drop = "drop"
    );
    same_layout!(
        out,
        Operation,
        "KeyfoldOperation",
        size = "size",
        inputs = "inputs",
        group = "group",
        name = "name",
        input_dtypes = "input_dtypes",
        output = "output",
        reserved = "reserved",
        output_dtypes = "output_dtypes",
        outputs = "outputs",
        reserved2 = "reserved2"
    );
    same_layout!(
        out,
        Field,
        "KeyfoldField",
        name = "name",
        kind = "kind",
        count = "count",
        int = "integer",
        float = "number",
        ints = "integers",
        text = "text"
    );
    same_layout!(out, Fields, "KeyfoldFields", size = "size", count = "count", fields = "fields");
    same_layout!(
        out,
        Execution,
        "KeyfoldExecution",
        size = "size",
        inputs = "inputs",
        outputs = "outputs",
        stream = "stream",
        group = "group",
        name = "name",
        operator = "op",
        params = "params",
        tensors = "tensors"
    );
    same_layout!(out, PointwiseParams, "KeyfoldPointwiseParams", size = "size", fault = "fault");
    same_layout!(
        out,
        ReduceParams,
        "KeyfoldReduceParams",
        size = "size",
        keepdim = "keepdim",
        dims = "dims"
    );
    same_layout!(out, RowParams, "KeyfoldRowParams", size = "size", axis = "axis");
    same_layout!(out, ScanParams, "KeyfoldScanParams", size = "size", axis = "axis");
    same_layout!(out, IndexParams, "KeyfoldIndexParams", size = "size", at = "at", dims = "dims");
    same_layout!(
        out,
        RandomParams,
        "KeyfoldRandomParams",
        size = "size",
        reserved = "reserved",
        seed = "seed",
        offset = "offset"
    );
    same_layout!(
        out,
        DeviceStatistics,
        "KeyfoldStatistics",
        size = "size",
        reserved = "reserved",
        in_use = "in_use",
        cached = "cached",
        peak = "peak",
        allocations = "allocations",
        limit = "limit"
    );
    same_layout!(
        out,
        Source,
        "KeyfoldSource",
        size = "size",
        parameters = "parameters",
        device = "device",
        reserved = "reserved",
        name = "name",
        text = "text",
        types = "types"
    );
    same_layout!(
        out,
        Argument,
        "KeyfoldArgument",
        kind = "kind",
        size = "size",
        value = "value",
        offset = "offset"
    );
    same_layout!(
        out,
        Launch,
        "KeyfoldLaunch",
        size = "size",
        arguments = "arguments",
        device = "device",
        stream = "stream",
        program = "program",
        operator = "op",
        values = "values",
        elements = "elements"
    );
    same_layout!(
        out,
        DeviceSpec,
        "KeyfoldDevice",
        size = "size",
        flags = "flags",
        name = "name",
        data = "data",
        drop = "drop",
        device_count = "device_count",
        stream_count = "stream_count",
        groups = "groups",
        allocate = "allocate",
        release = "release",
        upload = "upload",
        upload_pinned = "upload_pinned",
        download = "download",
        copy = "copy",
        fill = "fill",
        synchronize = "synchronize",
        record = "record",
        event_release = "event_release",
        wait = "wait",
        is_done = "is_done",
        elapsed = "elapsed",
        statistics = "statistics",
        set_limit = "set_limit",
        support = "support",
        execute = "execute",
        count_true = "count_true",
        compile = "compile",
        program_release = "program_release",
        launch = "launch"
    );
    same_layout!(
        out,
        HostTable1,
        "KeyfoldHost",
        base.size = "size",
        base.abi_major = "abi_major",
        base.abi_minor = "abi_minor",
        base.reserved = "reserved",
        base.define = "define",
        base.kernel = "kernel",
        base.fallthrough = "fallthrough",
        base.call = "call",
        base.redispatch = "redispatch",
        base.empty = "empty",
        base.keys = "keys",
        base.give = "give",
        base.fail = "fail",
        base.value_get = "value_get",
        base.value_len = "value_len",
        base.value_item = "value_item",
        base.value_release = "value_release",
        base.error_new = "error_new",
        base.error_kind = "error_kind",
        base.error_message = "error_message",
        base.error_release = "error_release",
        features = "features",
        device = "device",
        fault = "fault",
        late = "late",
        stream = "stream"
    );
    for (name, value) in [
        ("KEYFOLD_PLUGIN_MAGIC", abi::MAGIC),
        ("KEYFOLD_PLUGIN_MAJOR", abi::ABI_MAJOR.into()),
        ("KEYFOLD_PLUGIN_MINOR", abi::ABI_MINOR.into()),
        ("KEYFOLD_FEATURE_DEVICES", abi::FEATURE_DEVICES),
        ("KEYFOLD_FEATURE_CUDA_C", abi::FEATURE_CUDA_C),
        ("KEYFOLD_FEATURE_OPENCL_C", abi::FEATURE_OPENCL_C),
        ("KEYFOLD_DEVICE_CUDA_C", device::DEVICE_CUDA_C.into()),
        ("KEYFOLD_DEVICE_OPENCL_C", device::DEVICE_OPENCL_C.into()),
        ("kKeyfoldArgumentBytes", device::ARGUMENT_BYTES.into()),
        ("kKeyfoldArgumentBuffer", device::ARGUMENT_BUFFER.into()),
        ("kDLExtDev", abi::DEVICE_USER as u64),
        ("kKeyfoldInts", abi::INTS as u64),
        ("kKeyfoldReturnsNothing", abi::RETURNS_NOTHING as u64),
        ("kKeyfoldReturnsInt", abi::RETURNS_INT as u64),
        ("kKeyfoldReturnsBool", abi::RETURNS_BOOL as u64),
        ("kKeyfoldReturnsFloat", abi::RETURNS_FLOAT as u64),
        ("kKeyfoldReturnsValues", abi::RETURNS_VALUES as u64),
        ("KEYFOLD_DEVICE_ASYNCHRONOUS", device::DEVICE_ASYNCHRONOUS.into()),
        ("KEYFOLD_GROUP_POINTWISE", device::GROUP_POINTWISE),
        ("KEYFOLD_GROUP_REDUCE", device::GROUP_REDUCE),
        ("KEYFOLD_GROUP_ROWS", device::GROUP_ROWS),
        ("KEYFOLD_GROUP_LINALG", device::GROUP_LINALG),
        ("KEYFOLD_GROUP_INDEX", device::GROUP_INDEX),
        ("KEYFOLD_GROUP_RANDOM", device::GROUP_RANDOM),
        ("KEYFOLD_GROUP_SCAN", device::GROUP_SCAN),
        ("KEYFOLD_FEATURE_GROUPS", abi::FEATURE_GROUPS),
        ("KEYFOLD_GROUP_NORM", device::GROUP_NORM),
        ("KEYFOLD_GROUP_LINEAR", device::GROUP_LINEAR),
        ("KEYFOLD_GROUP_CONVOLUTION", device::GROUP_CONVOLUTION),
        ("KEYFOLD_GROUP_POOL", device::GROUP_POOL),
        ("KEYFOLD_GROUP_ATTENTION", device::GROUP_ATTENTION),
        ("KEYFOLD_GROUP_RECURRENT", device::GROUP_RECURRENT),
        ("KEYFOLD_GROUP_OPTIM", device::GROUP_OPTIM),
        ("KEYFOLD_GROUP_DECOMPOSITION", device::GROUP_DECOMPOSITION),
        ("KEYFOLD_GROUP_DROPOUT", device::GROUP_DROPOUT),
        ("kKeyfoldFieldInt", device::FIELD_INT.into()),
        ("kKeyfoldFieldBits", device::FIELD_BITS.into()),
        ("kKeyfoldFieldFloat", device::FIELD_FLOAT.into()),
        ("kKeyfoldFieldInts", device::FIELD_INTS.into()),
        ("kKeyfoldFieldText", device::FIELD_TEXT.into()),
        ("kKeyfoldContentArbitrary", device::CONTENT_ARBITRARY.into()),
        ("kKeyfoldContentZeros", device::CONTENT_ZEROS.into()),
        ("KEYFOLD_LIMIT_DEFAULT", device::LIMIT_DEFAULT),
    ] {
        let _ = writeln!(out, "_Static_assert({name} == UINT64_C({value}), \"{name}\");");
    }
    out
}

#[test]
fn the_header_has_the_layouts_of_the_sdk() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = folder.join("plugin_layouts.c");
    std::fs::write(&source, layouts()).unwrap();
    compile(&source, &folder.join("libplugin_layouts.so"), &["-std=c11"]);
}

/// The offsets, sizes and constants of 1.1 with 64-bit pointers. This file is never edited, but for a
/// new major version: a later minor version appends only.
#[cfg(target_pointer_width = "64")]
#[test]
fn the_layouts_of_released_versions_are_frozen() {
    let now = layouts();
    let now: std::collections::BTreeSet<&str> = now.lines().collect();
    let may_grow = |line: &str| line.contains("sizeof(") || line.contains("PLUGIN_MINOR");
    for line in include_str!("layouts_1_1.c").lines().filter(|line| !may_grow(line)) {
        assert!(now.contains(line), "plugins that were built for 1.1 need: {line}");
    }
    assert_eq!((size_of::<HostTable>(), size_of::<Descriptor>()), (152, 56));
    assert_eq!((size_of::<Text>(), size_of::<IntSlice>(), size_of::<Argument>()), (16, 16, 24));
}
/// The declarations of `dlpack.h` and TVM FFI's `c_api.h` that keyfold's headers have, too.
const OTHER_HEADERS: &str = "
#include <stdint.h>
#define DLPACK_DLPACK_H_
#define TVM_FFI_C_API_H_
typedef enum { kDLCPU = 1, kDLCUDA = 2, kDLExtDev = 12 } DLDeviceType;
typedef struct { DLDeviceType device_type; int32_t device_id; } DLDevice;
typedef enum { kDLInt, kDLUInt, kDLFloat, kDLBfloat = 4, kDLComplex, kDLBool } DLDataTypeCode;
typedef struct { uint8_t code; uint8_t bits; uint16_t lanes; } DLDataType;
typedef struct {
    void *data; DLDevice device; int32_t ndim; DLDataType dtype;
    int64_t *shape; int64_t *strides; uint64_t byte_offset;
} DLTensor;
typedef enum { kTVMFFINone, kTVMFFIInt } TVMFFITypeIndex;
typedef struct { int32_t type_index; uint32_t zero_padding; union { int64_t v_int64; }; } TVMFFIAny;
typedef int (*TVMFFISafeCallType)(void *, const TVMFFIAny *, int32_t, TVMFFIAny *);
";

#[test]
fn the_header_goes_together_with_those_of_dlpack_and_tvm_ffi() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = folder.join("plugin_with_others.c");
    std::fs::write(&source, OTHER_HEADERS.to_owned() + &layouts()).unwrap();
    compile(&source, &folder.join("libplugin_with_others.so"), &["-std=c11"]);
}
