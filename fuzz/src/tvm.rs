//! Values of TVM FFI's ABI as the input wants them: indices and payloads say anything, and what is an
//! address leads to something that is there.

use std::ffi::{c_int, c_void};
use std::ptr::null;

use keyfold_core::{DType, Device};
use keyfold_dispatch::schema::Type;
use keyfold_ffi::abi::{self, Any, ByteArray, ErrorCell, SeqCell, ShapeCell};
use keyfold_tensor::dlpack::{DLDataType, DLDevice, DLTensor};
use keyfold_tensor::{Value, ValueRef};
use libfuzzer_sys::arbitrary::{self, Arbitrary, Unstructured};

use crate::dlpack::{Model, Producer, Producing, device_of, dtype_of};

/// What must come of a value; `Any` where it depends on more than is modelled.
#[derive(Debug)]
pub enum Expected {
    None,
    Int(i64),
    Bool(bool),
    Float(u64),
    DType(DType),
    Device(Device),
    Text(String),
    Tensor(Model),
    List(Vec<Expected>),
    Refused,
}

#[derive(Arbitrary, Debug)]
enum Kind {
    Plain(u8, u64),
    Tensor,
    NullTensor,
    OddTensor,
    RawText(Vec<u8>),
    NullText,
    SmallText(u8, [u8; 8]),
    Object,
    NullObject(u8),
    OddObject(u8),
    /// An object that isn't of the kind that the value says.
    Misnamed(i32),
}

#[derive(Arbitrary, Debug)]
enum Cell {
    Text(Vec<u8>),
    NullText,
    Shape(Vec<i64>),
    NullShape(u8),
    Tensor,
    List(bool, u8),
    /// A list that says that it has fewer items than none, or some at no address.
    BrokenList(bool, i64),
    /// A list that holds itself.
    Itself(bool),
    Error,
    Other(i32),
}

/// The layout of an object: the header, then the cell.
#[repr(C)]
struct Object<C> {
    references: u64,
    type_index: i32,
    padding: u32,
    deleter: unsafe extern "C" fn(*mut c_void, c_int),
    cell: C,
}

unsafe extern "C" fn never(_: *mut c_void, _: c_int) {
    panic!("an object was released more often than retained");
}

/// Objects, texts and tensors that values lead to. All of it stays where it is until the world ends.
#[derive(Default)]
pub struct World {
    keep: Vec<Box<dyn std::any::Any>>,
    objects: Vec<*mut u64>,
    producers: Vec<Producing>,
    unreadable: bool,
}

impl World {
    fn keep<T: 'static>(&mut self, thing: T) -> *mut T {
        let mut boxed = Box::new(thing);
        let address = &raw mut *boxed;
        self.keep.push(boxed);
        address
    }

    fn object<C: 'static>(&mut self, type_index: i32, cell: C) -> *mut Object<C> {
        let object =
            self.keep(Object { references: 1, type_index, padding: 0, deleter: never, cell });
        self.objects.push(object.cast());
        object
    }

    /// Whether a tensor describes memory that isn't there, which nobody may read.
    pub fn is_unreadable(&self) -> bool {
        self.unreadable
    }

    /// One reference more to a value's object, for who takes it over.
    pub fn retain(&self, any: &Any) {
        let address = any.address::<u64>();
        if any.is_object() && self.objects.contains(&address) {
            // SAFETY: one of the live objects, which begin with their count.
            unsafe { *address += 1 };
        }
    }

    /// Ends it: every reference was given back, and nobody called a tensor's deleter.
    pub fn end(self) {
        for object in &self.objects {
            // SAFETY: alive until `keep` goes.
            assert_eq!(unsafe { **object }, 1, "references kept, or given back twice");
        }
        self.producers.into_iter().for_each(Producing::refused);
    }

    fn tensor(&mut self, input: &mut Unstructured<'_>) -> arbitrary::Result<(DLTensor, Expected)> {
        let producing = Producer::from_input(input)?;
        let array = *producing.array();
        let expected = match producing.model() {
            Some(model) => {
                self.unreadable |= model.elements.is_none();
                Expected::Tensor(model)
            }
            None => Expected::Refused,
        };
        self.producers.push(producing);
        Ok((array, expected))
    }

    /// A value, and what reading it must give. `nested`: inside that many lists.
    pub fn value(
        &mut self,
        input: &mut Unstructured<'_>,
        nested: usize,
    ) -> arbitrary::Result<(Any, Expected)> {
        let kind: Kind = input.arbitrary()?;
        let (mut any, expected) = match kind {
            Kind::Plain(index, payload) => plain(index, payload),
            Kind::Tensor => {
                let (array, expected) = self.tensor(input)?;
                let address = self.keep(array);
                match nested {
                    0 => (Any::pointer(abi::DL_TENSOR, address), expected),
                    // Borrowed things aren't kept by lists.
                    _ => (Any::pointer(abi::DL_TENSOR, address), Expected::Refused),
                }
            }
            Kind::NullTensor => (Any::new(abi::DL_TENSOR, 0), Expected::Refused),
            Kind::OddTensor => {
                let address = self.keep([0_u64; 8]).cast::<u8>().wrapping_add(4);
                (Any::pointer(abi::DL_TENSOR, address), Expected::Refused)
            }
            Kind::RawText(mut bytes) => {
                bytes.retain(|byte| *byte != 0);
                let expected = if nested == 0 { text(&bytes) } else { Expected::Refused };
                bytes.push(0);
                let bytes = bytes.into_boxed_slice();
                let any = Any::pointer(abi::RAW_STR, bytes.as_ptr());
                self.keep.push(Box::new(bytes));
                (any, expected)
            }
            Kind::NullText => (Any::new(abi::RAW_STR, 0), Expected::Refused),
            Kind::SmallText(length, bytes) => {
                let mut any = Any::new(abi::SMALL_STR, u64::from_ne_bytes(bytes));
                let length = length % 10;
                any.small_len = match length {
                    9 => u32::MAX,
                    n => n.into(),
                };
                let expected = match length {
                    ..=7 => text(&bytes[..usize::from(length)]),
                    _ => Expected::Refused,
                };
                (any, expected)
            }
            Kind::Object => self.an_object(input, nested)?,
            Kind::NullObject(index) => {
                (Any::new(abi::OBJECTS + i32::from(index % 16), 0), Expected::Refused)
            }
            Kind::OddObject(index) if nested == 0 => {
                let address = self.keep([0_u64; 8]).cast::<u8>().wrapping_add(4);
                let index = abi::OBJECTS + i32::from(index % 16);
                (Any::pointer(index, address), Expected::Refused)
            }
            Kind::OddObject(_) => (Any::NONE, Expected::None),
            Kind::Misnamed(index) => {
                let (mut any, expected) = self.an_object(input, nested)?;
                let said = abi::OBJECTS + index.rem_euclid(16);
                if said == any.type_index {
                    (any, expected)
                } else {
                    any.type_index = said;
                    (any, Expected::Refused)
                }
            }
        };
        if any.type_index != abi::SMALL_STR && input.ratio(1, 16)? {
            any.small_len = input.arbitrary()?;
        }
        Ok((any, expected))
    }

    fn an_object(
        &mut self,
        input: &mut Unstructured<'_>,
        nested: usize,
    ) -> arbitrary::Result<(Any, Expected)> {
        let cell: Cell = input.arbitrary()?;
        let list = |changes: bool| if changes { abi::LIST } else { abi::ARRAY };
        Ok(match cell {
            Cell::Text(bytes) => {
                let expected = text(&bytes);
                let bytes = bytes.into_boxed_slice();
                let cell = ByteArray { data: bytes.as_ptr(), size: bytes.len() };
                self.keep.push(Box::new(bytes));
                (Any::pointer(abi::STR, self.object(abi::STR, cell)), expected)
            }
            Cell::NullText => {
                let cell = ByteArray { data: null(), size: 0 };
                (Any::pointer(abi::STR, self.object(abi::STR, cell)), text(&[]))
            }
            Cell::Shape(numbers) => {
                let expected = numbers.iter().map(|n| Expected::Int(*n)).collect();
                let numbers = numbers.into_boxed_slice();
                let cell = ShapeCell { data: numbers.as_ptr(), size: numbers.len() };
                self.keep.push(Box::new(numbers));
                let object = self.object(abi::SHAPE, cell);
                (Any::pointer(abi::SHAPE, object), Expected::List(expected))
            }
            Cell::NullShape(size) => {
                let cell = ShapeCell { data: null(), size: size.into() };
                let object = self.object(abi::SHAPE, cell);
                (Any::pointer(abi::SHAPE, object), Expected::List(Vec::new()))
            }
            Cell::Tensor => {
                let (array, expected) = self.tensor(input)?;
                (Any::pointer(abi::TENSOR, self.object(abi::TENSOR, array)), expected)
            }
            Cell::List(changes, count) => {
                let mut items = Vec::new();
                let mut expected = Vec::new();
                // Few items, so that lists in lists don't take the whole input.
                for _ in 0..if nested > 3 { 0 } else { count % 4 } {
                    let (any, one) = self.value(input, nested + 1)?;
                    items.push(any);
                    expected.push(one);
                }
                let refused = expected.iter().any(|one| matches!(one, Expected::Refused));
                let items = items.into_boxed_slice();
                let size = items.len() as i64;
                let cell = SeqCell { data: items.as_ptr(), size, capacity: size };
                self.keep.push(Box::new(items));
                let object = self.object(list(changes), cell);
                let any = Any::pointer(list(changes), object);
                (any, if refused { Expected::Refused } else { Expected::List(expected) })
            }
            Cell::BrokenList(changes, size) => {
                let cell = SeqCell { data: null(), size, capacity: size };
                let any = Any::pointer(list(changes), self.object(list(changes), cell));
                match size {
                    0 => (any, Expected::List(Vec::new())),
                    _ => (any, Expected::Refused),
                }
            }
            Cell::Itself(changes) => {
                let slot = self.keep([Any::NONE; 2]);
                let cell = SeqCell { data: slot.cast(), size: 2, capacity: 2 };
                let any = Any::pointer(list(changes), self.object(list(changes), cell));
                // SAFETY: kept, and nobody else uses it now.
                unsafe { *slot = [any; 2] };
                (any, Expected::Refused)
            }
            Cell::Error => {
                let none = ByteArray { data: null(), size: 0 };
                let cell = ErrorCell { kind: none, message: none, backtrace: none };
                (Any::pointer(abi::ERROR, self.object(abi::ERROR, cell)), Expected::Refused)
            }
            Cell::Other(index) => {
                // Kinds that there aren't, or that keyfold doesn't read: their cells are nothing.
                let index = index.max(abi::LIST + 1);
                (Any::pointer(index, self.object(index, ())), Expected::Refused)
            }
        })
    }
}

fn text(bytes: &[u8]) -> Expected {
    match std::str::from_utf8(bytes) {
        Ok(text) => Expected::Text(text.to_owned()),
        Err(_) => Expected::Refused,
    }
}

/// A value without an address.
fn plain(index: u8, payload: u64) -> (Any, Expected) {
    let code = DLDataType {
        code: payload as u8,
        bits: (payload >> 8) as u8,
        lanes: (payload >> 16) as u16,
    };
    let device = DLDevice { device_type: payload as i32, device_id: (payload >> 32) as u32 as i32 };
    match index % 9 {
        0 => (Any::new(abi::NONE, payload), Expected::None),
        1 => (Any::new(abi::INT, payload), Expected::Int(payload as i64)),
        2 => (Any::new(abi::BOOL, payload), Expected::Bool(payload != 0)),
        3 => (Any::new(abi::FLOAT, payload), Expected::Float(payload)),
        4 => (
            Any::new(abi::DTYPE, payload),
            dtype_of(code).map_or(Expected::Refused, Expected::DType),
        ),
        5 => (
            Any::new(abi::DEVICE, payload),
            device_of(device).map_or(Expected::Refused, Expected::Device),
        ),
        6 => (Any::new(abi::OPAQUE_PTR, payload), Expected::Refused),
        // Kinds in place that there aren't.
        7 => (Any::new(12 + i32::from(index / 9), payload), Expected::Refused),
        _ => (Any::new(-1 - i32::from(index), payload), Expected::Refused),
    }
}

/// Checks that a value is the expected one.
pub fn check(value: ValueRef<'_>, expected: &Expected, ty: &Type) {
    let named = matches!(ty.without_optional(), Type::ScalarType | Type::Device);
    match (value, expected) {
        (ValueRef::None, Expected::None) => {}
        (ValueRef::Int(is), Expected::Int(wanted)) => assert_eq!(is, *wanted),
        (ValueRef::Bool(is), Expected::Bool(wanted)) => assert_eq!(is, *wanted),
        (ValueRef::Float(is), Expected::Float(wanted)) => assert_eq!(is.to_bits(), *wanted),
        (ValueRef::DType(is), Expected::DType(wanted)) => assert_eq!(is, *wanted),
        (ValueRef::Device(is), Expected::Device(wanted)) => assert_eq!(is, *wanted),
        (ValueRef::DType(_) | ValueRef::Device(_), Expected::Text(_)) => assert!(named),
        (ValueRef::Str(is), Expected::Text(wanted)) => assert_eq!(is, wanted),
        (ValueRef::Tensor(tensor), Expected::Tensor(model)) => {
            assert_eq!((tensor.dtype(), tensor.device()), (model.dtype, model.device));
            assert_eq!(tensor.shape()[..], model.shape);
            assert_eq!(tensor.strides()[..], model.strides);
            if let Some((low, high)) = model.span {
                assert_eq!(tensor.address(), model.first);
                assert_eq!(tensor.buffer().locate().unwrap().addr(), low);
                assert_eq!(tensor.buffer().len() * model.dtype.size(), high - low);
            }
            if model.elements.is_some() {
                assert_eq!(tensor.copy().unwrap().numel(), tensor.numel());
            }
        }
        (list, Expected::List(wanted)) if list.list_len() == Some(wanted.len()) => {
            for (item, wanted) in list.items().zip(wanted) {
                check(item, wanted, &Type::Tensor);
            }
        }
        (value, expected) => panic!("{value:?} where {expected:?} was expected"),
    }
}

/// [`check`] of an owned value.
pub fn check_value(value: &Value, expected: &Expected) {
    check(keyfold_dispatch::Value::as_ref(value), expected, &Type::Tensor);
}
