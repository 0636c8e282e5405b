//! Unit tests of devices on the plugin's side, over small hosts defined here: one of today, and ones
//! without devices.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::null_mut;

use super::{Backend, Content, DeviceTensor, Execution, Groups, Operation, Params, Statistics};
use crate::abi::device::{self as abi, DeviceSpec, DeviceStatistics};
use crate::abi::{
    Any, CallFrame, DEVICE_USER, DLDataType, DLDevice, DLTensor, FEATURE_CUDA_C, FEATURE_DEVICES,
    FEATURE_GROUPS, HostError, HostRegistrar, HostTable, HostTable1, HostValue, KernelSpec, NONE,
    Text,
};
use crate::{DType, Error, ErrorKind, Registrar, Result};

thread_local! {
    /// The errors made through the table: kind and message, with " (late)" for marked ones.
    static ERRORS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static SPEC: RefCell<Option<DeviceSpec>> = const { RefCell::new(None) };
}

fn noted(text: String) -> *mut HostError {
    ERRORS.with_borrow_mut(|errors| errors.push(text));
    std::ptr::dangling_mut()
}

fn last_error() -> String {
    ERRORS.with_borrow_mut(|errors| errors.pop()).expect("no error was made")
}

unsafe extern "C" fn define(_: *mut HostRegistrar, _: Text) -> *mut HostError {
    null_mut()
}
unsafe extern "C" fn kernel(_: *mut HostRegistrar, _: *const KernelSpec) -> *mut HostError {
    null_mut()
}
unsafe extern "C" fn fallthrough(_: *mut HostRegistrar, _: Text, _: Text) -> *mut HostError {
    null_mut()
}
unsafe extern "C" fn call(
    _: *const CallFrame,
    _: Text,
    _: *const Any,
    _: i32,
    _: *mut *mut HostValue,
) -> *mut HostError {
    null_mut()
}
unsafe extern "C" fn redispatch(
    _: *const CallFrame,
    _: Text,
    _: u64,
    _: *const Any,
    _: i32,
    _: *mut *mut HostValue,
) -> *mut HostError {
    null_mut()
}
unsafe extern "C" fn empty(
    _: *const i64,
    _: i32,
    _: DLDataType,
    _: DLDevice,
    _: *mut *mut HostValue,
) -> *mut HostError {
    null_mut()
}
unsafe extern "C" fn keys(_: Text, _: *mut u64) -> *mut HostError {
    null_mut()
}
unsafe extern "C" fn give(_: *const CallFrame, _: *mut HostValue) {}
unsafe extern "C" fn fail(_: *const CallFrame, _: *mut HostError) {}
unsafe extern "C" fn value_get(_: *const HostValue) -> Any {
    Any::new(NONE, 0)
}
unsafe extern "C" fn value_len(_: *const HostValue) -> i64 {
    -1
}
unsafe extern "C" fn value_item(_: *const HostValue, _: i64) -> *mut HostValue {
    null_mut()
}
unsafe extern "C" fn value_release(_: *mut HostValue) {}
unsafe extern "C" fn error_new(kind: Text, message: Text) -> *mut HostError {
    // SAFETY: text of the SDK, valid for the call.
    noted(unsafe { format!("{}: {}", kind.get(), message.get()) })
}
unsafe extern "C" fn error_kind(_: *const HostError) -> Text {
    Text::new("Value")
}
unsafe extern "C" fn error_message(_: *const HostError) -> Text {
    Text::new("")
}
unsafe extern "C" fn error_release(_: *mut HostError) {}
unsafe extern "C" fn device(_: *mut HostRegistrar, spec: *const DeviceSpec) -> *mut HostError {
    // SAFETY: the SDK's spec.
    SPEC.set(Some(unsafe { spec.read() }));
    null_mut()
}
unsafe extern "C" fn fault(code: u32, operator: Text) -> *mut HostError {
    // SAFETY: text of the SDK, valid for the call.
    noted(format!("fault {code} of '{}'", unsafe { operator.get() }))
}
unsafe extern "C" fn late(error: *mut HostError) -> *mut HostError {
    ERRORS.with_borrow_mut(|errors| errors.last_mut().unwrap().push_str(" (late)"));
    error
}
unsafe extern "C" fn stream(_: DLDevice) -> u32 {
    0
}

/// The table of a host of 1.0.
const OLD: HostTable = HostTable {
    size: size_of::<HostTable>() as u32,
    abi_major: 1,
    abi_minor: 0,
    reserved: 0,
    define,
    kernel,
    fallthrough,
    call,
    redispatch,
    empty,
    keys,
    give,
    fail,
    value_get,
    value_len,
    value_item,
    value_release,
    error_new,
    error_kind,
    error_message,
    error_release,
};
static HOST_OLD: HostTable = OLD;

const fn host_1(features: u64) -> HostTable1 {
    let base = HostTable { size: size_of::<HostTable1>() as u32, abi_minor: 1, ..OLD };
    HostTable1 { base, features, device, fault, late, stream }
}
static HOST: HostTable1 = host_1(FEATURE_DEVICES);
static HOST_WITHOUT_DEVICES: HostTable1 = host_1(0);
static HOST_WITH_CUDA_C: HostTable1 = host_1(FEATURE_DEVICES | FEATURE_CUDA_C);

/// A backend whose calls depend on a number: the size that is allocated, or the stream.
struct Odd;

impl Backend for Odd {
    type Buffer = String;
    type Event = ();

    fn groups(&self) -> Groups {
        Groups::REDUCE | Groups::RANDOM
    }
    fn allocate(&self, device: u32, bytes: usize, content: Content) -> Result<String> {
        match bytes {
            13 => panic!("thirteen"),
            14 => Err(Error::new(ErrorKind::Memory, "no more")),
            _ => Ok(format!("{device} {bytes} {content:?}")),
        }
    }
    fn upload(&self, bytes: &[u8], to: &DeviceTensor<'_, String>, stream: u32) -> Result<()> {
        Err(Error::value(format!("{} bytes to {to:?} of {}, {stream}", bytes.len(), to.buffer())))
    }
    fn download(&self, _: &DeviceTensor<'_, String>, bytes: &mut [u8], _: u32) -> Result<()> {
        bytes.fill(7);
        Ok(())
    }
    fn copy(
        &self,
        _: &DeviceTensor<'_, String>,
        _: &DeviceTensor<'_, String>,
        stream: u32,
    ) -> Result<()> {
        if stream == 1 { Err(Error::fault(2).late("my::op")) } else { Err(Error::fault(2)) }
    }
    fn fill(&self, to: &DeviceTensor<'_, String>, element: &[u8], _: u32) -> Result<()> {
        Err(Error::value(format!("{:?}, {element:?}", to.byte_offsets().collect::<Vec<_>>())))
    }
    fn synchronize(&self, _: u32) -> Result<()> {
        Err(Error::new(ErrorKind::KernelFailed, "hot").late("my::op"))
    }
    fn support(&self, operation: &Operation<'_>) -> Result<()> {
        Err(Error::not_supported(format!("{} {operation:?}", operation.group())))
    }
    fn execute(&self, call: &Execution<'_, String>) -> Result<()> {
        let (inputs, outputs) = (call.inputs().count(), call.output_count());
        let beyond = call.input(inputs).unwrap_err();
        Err(Error::value(format!("{:?} {inputs} {outputs}: {beyond}", call.params())))
    }
}

fn register(host: &mut Registrar<'_>) -> Result<()> {
    host.device("odd", Odd)
}

/// Registers the backend with a host; returns whether it succeeded.
fn enter(table: *const HostTable) -> bool {
    // SAFETY: a table of this module, whose functions ignore the registrar.
    unsafe { crate::__enter(table, std::ptr::dangling_mut(), register) }.is_null()
}

fn spec() -> DeviceSpec {
    assert!(enter((&raw const HOST).cast()));
    SPEC.take().expect("no device was registered")
}

/// A tensor of a buffer, with sizes of the test's own.
fn tensor(buffer: &String, shape: &mut [i64], strides: &mut [i64], byte_offset: u64) -> DLTensor {
    DLTensor {
        data: std::ptr::from_ref(buffer).cast_mut().cast(),
        device: DLDevice { device_type: DEVICE_USER, device_id: 5 * 256 + 3 },
        ndim: shape.len() as i32,
        dtype: DType::U16.0,
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset,
    }
}

#[test]
fn a_host_without_devices_is_an_error_of_the_registration() {
    assert!(!enter(&raw const HOST_OLD));
    let error = last_error();
    assert!(
        error.starts_with("NotSupported: the device odd needs a host with the feature devices")
    );
    assert!(error.contains("this host has 1.0"), "{error}");
    assert!(!enter((&raw const HOST_WITHOUT_DEVICES).cast()));
    assert!(last_error().contains("this host has 1.1 without it"));
    assert!(SPEC.take().is_none());
}

#[test]
fn slots_pass_results_errors_and_panics() {
    let spec = spec();
    assert_eq!((spec.device_count, spec.stream_count, spec.flags), (1, 1, 0));
    assert_eq!(spec.groups, abi::GROUP_REDUCE | abi::GROUP_RANDOM);
    assert!(spec.record.is_none() && spec.event_release.is_none() && spec.execute.is_some());
    let mut handle: *mut c_void = null_mut();
    // SAFETY: the slots of the spec with its data, called as the ABI says.
    unsafe {
        let allocate = spec.allocate.unwrap();
        assert!(allocate(spec.data, 1, 8, abi::CONTENT_ZEROS, &raw mut handle).is_null());
        assert_eq!(*handle.cast::<String>(), "1 8 Zeros");
        assert!(!allocate(spec.data, 0, 13, 0, &raw mut handle).is_null());
        assert_eq!(last_error(), "KernelPanic: panicked: thirteen");
        assert!(!allocate(spec.data, 0, 14, 0, &raw mut handle).is_null());
        assert_eq!(last_error(), "Memory: no more");
        assert!(!(spec.synchronize.unwrap())(spec.data, 0).is_null());
        assert_eq!(last_error(), "KernelFailed: my::op: hot (late)");
        assert!((spec.set_limit.unwrap())(spec.data, 0, abi::LIMIT_DEFAULT).is_null());
        let (mask, mut count) = (tensor(&String::new(), &mut [], &mut [], 0), 0);
        assert!(
            !(spec.count_true.unwrap())(spec.data, &raw const mask, 0, &raw mut count).is_null()
        );
        assert!(last_error().contains("doesn't implement count_true"));
        let mut known = DeviceStatistics { in_use: 3, ..DeviceStatistics::default() };
        assert!((spec.statistics.unwrap())(spec.data, 0, &raw mut known).is_null());
        assert_eq!(known.in_use, Statistics { in_use: 3, ..Statistics::default() }.in_use);
        (spec.release.unwrap())(spec.data, handle);
        (spec.drop.unwrap())(spec.data);
    }
}

#[test]
fn tensors_are_views_of_the_hosts_structs() {
    let (spec, buffer) = (spec(), "its buffer".to_owned());
    let (mut shape, mut strides) = ([2, 3], [-1, 2]);
    let dl = tensor(&buffer, &mut shape, &mut strides, 2);
    // SAFETY: as above; the tensor's buffer is a `String`.
    unsafe {
        assert!(
            !(spec.upload.unwrap())(spec.data, [1_u8; 12].as_ptr().cast(), &raw const dl, 4)
                .is_null()
        );
        assert_eq!(last_error(), "Value: 12 bytes to uint16 [2, 3] on device 3 of its buffer, 4");
        assert!(
            !(spec.fill.unwrap())(spec.data, &raw const dl, [1_u8, 2].as_ptr().cast(), 0).is_null()
        );
        assert_eq!(last_error(), "Value: [2, 6, 10, 0, 4, 8], [1, 2]");
        let mut bytes = [0_u8; 12];
        let to = bytes.as_mut_ptr().cast();
        assert!((spec.download.unwrap())(spec.data, &raw const dl, to, 0).is_null());
        assert_eq!(bytes, [7; 12]);
        assert!(!(spec.copy.unwrap())(spec.data, &raw const dl, &raw const dl, 0).is_null());
        assert_eq!(last_error(), "fault 2 of ''");
        assert!(!(spec.copy.unwrap())(spec.data, &raw const dl, &raw const dl, 1).is_null());
        assert_eq!(last_error(), "fault 2 of 'my::op' (late)");
        let view = DeviceTensor::<String>::new(&dl);
        assert_eq!((view.numel(), view.is_contiguous(), view.byte_offset()), (6, false, 2));
        (spec.drop.unwrap())(spec.data);
    }
}

#[test]
fn no_bytes_may_be_at_a_null_pointer() {
    let (spec, buffer) = (spec(), String::new());
    let (mut shape, mut strides) = ([0], [1]);
    let dl = tensor(&buffer, &mut shape, &mut strides, 0);
    // SAFETY: as above.
    unsafe {
        for upload in [spec.upload.unwrap(), spec.upload_pinned.unwrap()] {
            assert!(!upload(spec.data, std::ptr::null(), &raw const dl, 0).is_null());
            assert_eq!(last_error(), "Value: 0 bytes to uint16 [0] on device 3 of , 0");
        }
        assert!((spec.download.unwrap())(spec.data, &raw const dl, null_mut(), 0).is_null());
        (spec.drop.unwrap())(spec.data);
    }
}

#[test]
fn operations_have_names_dtypes_and_parameters() {
    let (spec, buffer) = (spec(), String::new());
    let tensors = [tensor(&buffer, &mut [], &mut [], 0); 3];
    let dtypes = [DType::F32.0, DType::I64.0];
    let operation = abi::Operation {
        size: size_of::<abi::Operation>() as u32,
        inputs: 2,
        group: Text::new("reduce"),
        name: Text::new("sum"),
        input_dtypes: dtypes.as_ptr(),
        output: DType::BOOL.0,
        reserved: 0,
        output_dtypes: dtypes.as_ptr(),
        outputs: 2,
        reserved2: 0,
    };
    // That of a host of 1.1, whose struct ends before the dtypes of all outputs.
    let old_size = std::mem::offset_of!(abi::Operation, output_dtypes) as u32;
    let old = abi::Operation { size: old_size, output_dtypes: std::ptr::null(), ..operation };
    let reduce = abi::ReduceParams { size: 16, keepdim: 1, dims: 0b101 };
    let random = abi::RandomParams { size: 24, reserved: 0, seed: 9, offset: 4 };
    let index = abi::IndexParams { size: 16, at: 2, dims: 0b10 };
    let rows = abi::RowParams { size: 8, axis: 1 };
    let scan = abi::ScanParams { size: 8, axis: 2 };
    let pointwise = abi::PointwiseParams { size: 8, fault: 3 };
    // SAFETY: as above.
    unsafe {
        assert!(!(spec.support.unwrap())(spec.data, &raw const operation).is_null());
        assert_eq!(last_error(), "NotSupported: reduce sum(float32, int64) -> float32, int64");
        assert!(!(spec.support.unwrap())(spec.data, &raw const old).is_null());
        assert_eq!(last_error(), "NotSupported: reduce sum(float32, int64) -> bool");
        let said = |group: &str, params: *const c_void| {
            let call = abi::Execution {
                size: size_of::<abi::Execution>() as u32,
                inputs: 2,
                outputs: 1,
                stream: 0,
                group: Text::new(group),
                name: Text::new("op"),
                operator: Text::new(""),
                params,
                tensors: tensors.as_ptr(),
            };
            assert!(!(spec.execute.unwrap())(spec.data, &raw const call).is_null());
            let error = last_error();
            let error = error.strip_prefix("Value: ").unwrap();
            error.strip_suffix(" 2 1: op has 2 inputs; there is no 2").unwrap().to_owned()
        };
        let parameters = [
            ("reduce", (&raw const reduce).cast(), Params::Reduce { dims: 0b101, keepdim: true }),
            ("random", (&raw const random).cast(), Params::Random { seed: 9, offset: 4 }),
            ("index", (&raw const index).cast(), Params::Index { dims: 0b10, at: 2 }),
            ("rows", (&raw const rows).cast(), Params::Rows { axis: 1 }),
            ("scan", (&raw const scan).cast(), Params::Scan { axis: 2 }),
            ("pointwise", (&raw const pointwise).cast(), Params::Pointwise { fault: 3 }),
            ("linalg", std::ptr::null(), Params::None),
        ];
        for (group, params, meant) in parameters {
            assert_eq!(said(group, params), format!("{meant:?}"));
        }
        (spec.drop.unwrap())(spec.data);
    }
    assert_eq!(super::dims(0b1101).collect::<Vec<_>>(), [0, 2, 3]);
}

#[test]
fn parameters_of_the_groups_of_1_2_have_names() {
    let numbers = [3_i64, -1];
    let none = abi::Field {
        name: Text::new("flag"),
        kind: abi::FIELD_INT,
        count: 0,
        int: 1,
        float: 0.0,
        ints: std::ptr::null(),
        text: Text::new(""),
    };
    let fields = [
        none,
        abi::Field { name: Text::new("seed"), kind: abi::FIELD_BITS, int: -1, ..none },
        abi::Field { name: Text::new("eps"), kind: abi::FIELD_FLOAT, float: 0.5, ..none },
        abi::Field {
            name: Text::new("window"),
            kind: abi::FIELD_INTS,
            count: 2,
            ints: numbers.as_ptr(),
            ..none
        },
        abi::Field { name: Text::new("empty"), kind: abi::FIELD_INTS, ..none },
        abi::Field {
            name: Text::new("kind"),
            kind: abi::FIELD_TEXT,
            text: Text::new("relu"),
            ..none
        },
        abi::Field { name: Text::new("later"), kind: 99, ..none },
    ];
    let given = abi::Fields { size: 16, count: 7, fields: fields.as_ptr() };
    let call = |group: &str| abi::Execution {
        size: size_of::<abi::Execution>() as u32,
        inputs: 0,
        outputs: 0,
        stream: 0,
        group: Text::new(group),
        name: Text::new("op"),
        operator: Text::new(""),
        params: (&raw const given).cast(),
        tensors: std::ptr::null(),
    };
    let (norm, linalg) = (call("norm"), call("linalg"));
    // SAFETY: calls without tensors, whose parameters live as long as they do.
    let (call, other) =
        unsafe { (Execution::<String>::new(&norm), Execution::<String>::new(&linalg)) };
    let fields = call.fields();
    assert!(fields.flag("flag").unwrap());
    assert_eq!(fields.bits("seed").unwrap(), u64::MAX);
    assert_eq!(fields.float("eps").unwrap(), 0.5);
    assert_eq!(fields.ints("window").unwrap(), [3, -1]);
    assert!(fields.ints("empty").unwrap().is_empty());
    assert_eq!(fields.text("kind").unwrap(), "relu");
    assert_eq!(fields.iter().count(), 6);
    let wrong = fields.float("seed").unwrap_err().to_string();
    assert!(wrong.contains("seed is read as a number, and is Bits("), "{wrong}");
    let missing = fields.int("later").unwrap_err().to_string();
    assert!(missing.contains("later is read as a whole number, and isn't there"), "{missing}");
    assert_eq!(other.fields().iter().count(), 0);
}

/// A backend with a group of 1.2.
struct Normalizing;

impl Backend for Normalizing {
    type Buffer = ();
    type Event = ();

    fn groups(&self) -> Groups {
        Groups::REDUCE | Groups::NORM
    }
    fn allocate(&self, _: u32, _: usize, _: Content) -> Result<()> {
        Ok(())
    }
    fn upload(&self, _: &[u8], _: &DeviceTensor<'_, ()>, _: u32) -> Result<()> {
        Ok(())
    }
    fn download(&self, _: &DeviceTensor<'_, ()>, _: &mut [u8], _: u32) -> Result<()> {
        Ok(())
    }
    fn copy(&self, _: &DeviceTensor<'_, ()>, _: &DeviceTensor<'_, ()>, _: u32) -> Result<()> {
        Ok(())
    }
    fn fill(&self, _: &DeviceTensor<'_, ()>, _: &[u8], _: u32) -> Result<()> {
        Ok(())
    }
    fn synchronize(&self, _: u32) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_host_of_1_1_has_no_groups_with_several_outputs() {
    let enter = |table: &'static HostTable1| {
        let register = |host: &mut Registrar<'_>| host.device("norms", Normalizing);
        // SAFETY: a table of this module, whose functions ignore the registrar.
        unsafe {
            crate::__enter(std::ptr::from_ref(table).cast(), std::ptr::dangling_mut(), register)
        }
    };
    static HOST_OF_1_2: HostTable1 = host_1(FEATURE_DEVICES | FEATURE_GROUPS);
    assert!(!enter(&HOST).is_null());
    let error = last_error();
    assert!(
        error.contains("the feature groups with several outputs of plugin ABI 1.2")
            && error.contains("this host has 1.1 without it"),
        "{error}"
    );
    assert!(enter(&HOST_OF_1_2).is_null());
    let spec = SPEC.take().unwrap();
    assert_eq!(spec.groups, abi::GROUP_REDUCE | abi::GROUP_NORM);
    // SAFETY: the spec's drop with its data.
    unsafe { (spec.drop.unwrap())(spec.data) };
}

impl super::Compiler for Odd {
    type Program = String;

    fn language(&self) -> super::Language {
        super::Language::CudaC
    }

    fn compile(&self, source: &super::Source<'_>) -> Result<String> {
        let types: Vec<&str> = source.types().collect();
        let (name, device) = (source.name(), source.device());
        Ok(format!("{name} on {device}: {source:?} of {}", types.join(", ")))
    }

    fn launch(&self, launch: &super::Launch<'_, String, String>) -> Result<()> {
        let arguments: Vec<_> = launch.arguments().collect();
        let (program, operator) = (launch.program(), launch.operator());
        let place = (launch.device(), launch.stream());
        Err(Error::value(format!("{program}, {place:?}, {launch:?}, {arguments:?}")).late(operator))
    }
}

fn register_compiler(host: &mut Registrar<'_>) -> Result<()> {
    host.compiler("odd", Odd)
}

#[test]
fn expressions_are_sources_and_arguments() {
    let enter = |host: &'static HostTable1| {
        // SAFETY: a table of this module, whose functions ignore the registrar.
        unsafe {
            let table = std::ptr::from_ref(host).cast();
            crate::__enter(table, std::ptr::dangling_mut(), register_compiler)
        }
    };
    assert!(!enter(&HOST).is_null());
    assert!(last_error().contains("the feature expressions as CUDA C of plugin ABI 1.1"));
    assert!(enter(&HOST_WITH_CUDA_C).is_null());
    let (spec, buffer) = (SPEC.take().unwrap(), "its buffer".to_owned());
    assert_eq!(spec.flags, abi::DEVICE_CUDA_C);
    let types = [Text::new("float*"), Text::new("int")];
    let source = abi::Source {
        size: size_of::<abi::Source>() as u32,
        parameters: 2,
        device: 3,
        reserved: 0,
        name: Text::new("f"),
        text: Text::new("text"),
        types: types.as_ptr(),
    };
    let (bytes, mut program) = ([1_u8, 2], null_mut());
    let value = std::ptr::from_ref(&buffer).cast();
    let values = [
        abi::Argument { kind: abi::ARGUMENT_BUFFER, size: 0, value, offset: 8 },
        abi::Argument {
            kind: abi::ARGUMENT_BYTES,
            size: 2,
            value: bytes.as_ptr().cast(),
            offset: 0,
        },
    ];
    // SAFETY: the slots of the spec with its data, called as the ABI says.
    unsafe {
        assert!((spec.compile.unwrap())(spec.data, &raw const source, &raw mut program).is_null());
        let launch = abi::Launch {
            size: size_of::<abi::Launch>() as u32,
            arguments: 2,
            device: 3,
            stream: 4,
            program,
            operator: Text::new("my::op"),
            values: values.as_ptr(),
            elements: 5,
        };
        assert!(!(spec.launch.unwrap())(spec.data, &raw const launch).is_null());
        let said = "Value: my::op: f on 3: text of float*, int, (3, 4), Launch(5 elements), [Buffer { \
                    buffer: \"its buffer\", offset: 8 }, Bytes([1, 2])] (late)";
        assert_eq!(last_error(), said);
        (spec.program_release.unwrap())(spec.data, program);
        (spec.drop.unwrap())(spec.data);
    }
}
