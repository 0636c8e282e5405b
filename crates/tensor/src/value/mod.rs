//! The dispatcher's values: [`Value`], owned, and [`ValueRef`], borrowed.

mod args;
mod engine;
mod foreign;
mod lists;
mod returns;

use std::sync::Arc;

use keyfold_core::{Complex, DType, Device, Error, ErrorKind, Result, Scalar};

use crate::tensor::Tensor;

pub use foreign::ForeignObject;
pub use lists::{IntList, TensorList};

/// An argument or a result.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "most values are tensors, and a box costs more")]
pub enum Value {
    /// No value; also the result of an operator without results.
    None,
    /// A tensor.
    Tensor(Tensor),
    /// True or false.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer beyond the range of `i64`, for `Scalar` and `float` arguments only.
    UInt(u64),
    /// A float.
    Float(f64),
    /// A complex number.
    Complex(Complex<f64>),
    /// Text; layouts and memory formats are represented by their names, too.
    Str(Arc<str>),
    /// A dtype.
    DType(DType),
    /// A device.
    Device(Device),
    /// A list.
    List(Vec<Value>),
    /// The results of a call with several.
    Tuple(Vec<Value>),
    /// An object of another language.
    Foreign(Arc<dyn ForeignObject>),
    /// The result of a kernel that returns its argument of this index ([`SameAs`]). The engine
    /// replaces it by the argument before it is used.
    Argument(usize),
}

/// The result of a typed kernel that returns its argument of this index, as in-place operators do.
/// It takes no reference to the argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SameAs(pub usize);

/// A borrowed [`Value`], three words long.
///
/// Lists have the callers' different forms; [`ValueRef::list_len`] and [`ValueRef::item`] read them
/// all.
#[derive(Clone, Copy, Debug)]
pub enum ValueRef<'a> {
    /// No value.
    None,
    /// A tensor.
    Tensor(&'a Tensor),
    /// True or false.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer beyond the range of `i64`.
    UInt(u64),
    /// A float.
    Float(f64),
    /// A complex number.
    Complex(Complex<f64>),
    /// Text.
    Str(&'a str),
    /// A dtype.
    DType(DType),
    /// A device.
    Device(Device),
    /// A list of owned values.
    List(&'a [Value]),
    /// A list of borrowed values.
    Refs(&'a [ValueRef<'a>]),
    /// A list of tensors.
    Tensors(&'a [Tensor]),
    /// A list of integers.
    Ints(&'a [i64]),
    /// An object of another language.
    Foreign(&'a (dyn ForeignObject + 'static)),
}

impl Value {
    /// Returns the tensor in it: its own, or a view of a foreign object, which is kept alive.
    ///
    /// # Errors
    /// [`ErrorKind::Binding`] if it isn't a tensor, and as [`ForeignObject::tensor`].
    #[inline]
    pub fn into_tensor(self) -> Result<Tensor> {
        #[cold]
        fn of_foreign(value: &Value) -> Result<Tensor> {
            use keyfold_dispatch::Value as _;
            Ok(value.as_ref().tensor()?.clone())
        }
        match self {
            Value::Tensor(tensor) => Ok(tensor),
            other => of_foreign(&other),
        }
    }
}

#[cold]
fn expected(what: &str, value: ValueRef<'_>) -> Error {
    use keyfold_dispatch::Value as _;
    Error::new(ErrorKind::Binding, format!("expected {what}, not {}", Value::describe(value)))
}

impl<'a> ValueRef<'a> {
    /// Returns the tensor, its own or the view of a foreign one.
    ///
    /// # Errors
    /// [`ErrorKind::Binding`] if it isn't a tensor, and as [`ForeignObject::tensor`].
    #[inline]
    pub fn tensor(self) -> Result<&'a Tensor> {
        match self {
            ValueRef::Tensor(tensor) => Ok(tensor),
            ValueRef::Foreign(object) => object.tensor(),
            other => Err(expected("a Tensor", other)),
        }
    }

    /// Returns the number, if it is one.
    #[inline]
    pub fn scalar(self) -> Option<Scalar> {
        match self {
            ValueRef::Bool(b) => Some(Scalar::Bool(b)),
            ValueRef::Int(i) => Some(Scalar::Int(i)),
            ValueRef::UInt(u) => Some(Scalar::UInt(u)),
            ValueRef::Float(x) => Some(Scalar::Float(x)),
            ValueRef::Complex(c) => Some(Scalar::Complex(c)),
            _ => None,
        }
    }

    /// Returns the number of items of a list; `None` for other values.
    #[inline]
    pub fn list_len(self) -> Option<usize> {
        match self {
            ValueRef::List(items) => Some(items.len()),
            ValueRef::Refs(items) => Some(items.len()),
            ValueRef::Tensors(items) => Some(items.len()),
            ValueRef::Ints(items) => Some(items.len()),
            _ => None,
        }
    }

    /// Returns an item of a list; `None` for an index out of range and for other values.
    #[inline]
    pub fn item(self, index: usize) -> Option<ValueRef<'a>> {
        use keyfold_dispatch::Value as _;
        match self {
            ValueRef::List(items) => items.get(index).map(Value::as_ref),
            ValueRef::Refs(items) => items.get(index).copied(),
            ValueRef::Tensors(items) => items.get(index).map(ValueRef::Tensor),
            ValueRef::Ints(items) => items.get(index).copied().map(ValueRef::Int),
            _ => None,
        }
    }

    /// Iterates over the items of a list, in order; empty for other values.
    pub fn items(self) -> impl Iterator<Item = ValueRef<'a>> {
        (0..self.list_len().unwrap_or(0)).filter_map(move |i| self.item(i))
    }
}

impl From<Scalar> for ValueRef<'_> {
    fn from(scalar: Scalar) -> Self {
        match scalar {
            Scalar::Bool(b) => ValueRef::Bool(b),
            Scalar::Int(i) => ValueRef::Int(i),
            Scalar::UInt(u) => ValueRef::UInt(u),
            Scalar::Float(x) => ValueRef::Float(x),
            Scalar::Complex(c) => ValueRef::Complex(c),
        }
    }
}

impl From<Scalar> for Value {
    fn from(scalar: Scalar) -> Self {
        match scalar {
            Scalar::Bool(b) => Value::Bool(b),
            Scalar::Int(i) => Value::Int(i),
            Scalar::UInt(u) => Value::UInt(u),
            Scalar::Float(x) => Value::Float(x),
            Scalar::Complex(c) => Value::Complex(c),
        }
    }
}

macro_rules! conversions {
    // The same one-line impl for each variant's type.
    ($($type:ty => $value:ident),*; $($borrowed:ty => $by_ref:ident),*) => {
        $(impl From<$type> for Value {
            #[inline]
            fn from(value: $type) -> Self {
                Value::$value(value.into())
            }
        })*
        $(impl<'a> From<$borrowed> for ValueRef<'a> {
            #[inline]
            fn from(value: $borrowed) -> Self {
                ValueRef::$by_ref(value)
            }
        })*
    };
}

conversions! {
    Tensor => Tensor, bool => Bool, i64 => Int, f64 => Float, Complex<f64> => Complex, &str => Str,
    String => Str, DType => DType, Device => Device, Vec<Value> => List;
    &'a Tensor => Tensor, bool => Bool, i64 => Int, f64 => Float, Complex<f64> => Complex,
    &'a str => Str, DType => DType, Device => Device, &'a [Value] => List,
    &'a [ValueRef<'a>] => Refs, &'a [Tensor] => Tensors, &'a [i64] => Ints
}

#[cfg(test)]
mod tests {
    use keyfold_dispatch::schema::{Literal, Schema, Type};
    use keyfold_dispatch::{Arg, Ret, Tag, Value as Engine};

    use super::*;

    fn tensor() -> Tensor {
        Tensor::from_slice(&[1.0_f64, 2.0], &[2]).unwrap()
    }

    /// Returns the type of an argument, parsed from a schema.
    fn ty(text: &str) -> Type {
        let schema = Schema::parse(&format!("a::b({text} x) -> ()")).unwrap();
        schema.arguments[0].ty.clone()
    }

    #[test]
    fn a_borrowed_value_is_three_words() {
        assert_eq!(size_of::<ValueRef<'_>>(), 24);
        assert_eq!(size_of::<Option<ValueRef<'_>>>(), 24);
    }

    /// Found by fuzzing: the default was refused for its own type.
    #[test]
    fn an_operator_can_be_called_with_every_default_that_its_schema_may_have() {
        let dispatcher = keyfold_dispatch::Dispatcher::<Value>::new();
        let schema = "f(Tensor x, int[4] k=[], int[2]? n=None, Tensor?[] t=[None], int[2] s=1, \
                      float w=1, int r=Mean, ScalarType e=half) -> int";
        let handle = dispatcher.define(schema).unwrap();
        let kernel = keyfold_dispatch::Kernel::boxed(|_, args| Ok(Value::Int(args.len() as i64)));
        dispatcher.register("f", keyfold_dispatch::DispatchKey::CPU, kernel).unwrap();
        let operator = handle.operator().unwrap();
        let t = tensor();
        let result = operator.call(&[ValueRef::Tensor(&t)]).unwrap();
        assert!(matches!(result, Value::Int(8)), "{result:?}");
    }

    #[test]
    fn conforms_follows_the_stated_rules() {
        let t = tensor();
        let (one, ints) = ([ValueRef::Tensor(&t)], [1_i64, 2]);
        let mixed = [ValueRef::Tensor(&t), ValueRef::None];
        let empty: &[ValueRef<'_>] = &[];
        let i = Complex::new(0.0, 1.0);
        let cases: &[(ValueRef<'_>, &str, &str)] = &[
            (ValueRef::Tensor(&t), "Tensor Tensor?", "Tensor[] Scalar int"),
            (ValueRef::None, "Tensor? int? str? Tensor?[]?", "Tensor int Scalar Tensor[]"),
            (ValueRef::Bool(true), "bool bool? Scalar", "int float complex str"),
            (ValueRef::Int(1), "int float complex Scalar int[2] int?", "bool int[] str Tensor"),
            (ValueRef::UInt(u64::MAX), "Scalar float complex", "int bool"),
            (ValueRef::Float(1.5), "float complex Scalar float[3]", "int bool"),
            (ValueRef::Complex(i), "complex Scalar", "float int"),
            (ValueRef::Str("sum"), "str Layout MemoryFormat", "Device ScalarType int"),
            (ValueRef::DType(DType::F32), "ScalarType", "int str"),
            (ValueRef::Device(Device::CPU), "Device Device?", "str int"),
            (ValueRef::Refs(&one), "Tensor[] Tensor?[] Tensor[1]", "Tensor int[] Tensor[2]"),
            (ValueRef::Refs(&mixed), "Tensor?[]", "Tensor[]"),
            (ValueRef::Ints(&ints), "int[] int[2] float[]", "int[3] bool[] Tensor[]"),
            // An empty list of fixed size means that the kernel chooses, as a default of `[]` does.
            (ValueRef::Refs(empty), "Tensor[] int[] float[] int[2]", "int Tensor"),
            (ValueRef::Tensors(std::slice::from_ref(&t)), "Tensor[]", "int[]"),
        ];
        for (value, yes, no) in cases {
            for text in yes.split(' ') {
                assert!(Value::conforms(*value, &ty(text)), "{value:?} is a {text}");
            }
            for text in no.split(' ') {
                assert!(!Value::conforms(*value, &ty(text)), "{value:?} is no {text}");
            }
        }
    }

    #[test]
    fn tags_merge_over_lists_and_come_from_devices() {
        let (t, m) = (tensor(), Tensor::meta(&[1], DType::F32).unwrap());
        t.set_requires_grad(true).unwrap();
        let list = [ValueRef::Tensor(&t), ValueRef::None, ValueRef::Tensor(&m)];
        let tag = Value::tag(ValueRef::Refs(&list));
        assert_eq!(tag.keys().to_string(), "DispatchKeySet(Autograd, Meta, CPU)");
        assert!(tag.is_mixed());
        let mut seen = vec![];
        Value::visit_tags(ValueRef::Refs(&list), &mut |place, tag| {
            seen.push((place.to_owned(), tag.device()));
        });
        assert_eq!(
            seen,
            [
                ("[0]".into(), Some(Device::CPU)),
                ("[1]".into(), None),
                ("[2]".into(), Some(Device::META))
            ]
        );
        let device = Value::tag(ValueRef::Device(Device::META));
        assert_eq!((device.keys(), device.device()), (m.keys(), None));
        assert_eq!(Value::tag(ValueRef::Float(1.0)), Tag::NONE);
    }

    #[test]
    fn literals_become_defaults() {
        let value = |literal: Literal, text: &str| {
            Value::from_literal(&literal, &ty(text)).map(|v| Value::describe(v.as_ref()))
        };
        let cases = [
            (Literal::None, "Tensor?", Some("None")),
            (Literal::None, "Tensor", None),
            (Literal::Int(1), "Scalar", Some("int 1")),
            (Literal::Int(1), "float", Some("float 1.0")),
            (Literal::Float(0.5), "float?", Some("float 0.5")),
            (Literal::Int(1), "int[2]", Some("list of 2 (int 1, int 1)")),
            (Literal::List(vec![Literal::Int(1)]), "int[]", Some("list of 1 (int 1)")),
            (Literal::Str("sum".into()), "str", Some("str 'sum'")),
            (Literal::Ident("Mean".into()), "int", Some("int 1")),
            (Literal::Ident("float32".into()), "ScalarType", Some("dtype float32")),
            (Literal::Ident("nothing".into()), "ScalarType", None),
            (Literal::Ident("strided".into()), "Layout", Some("str 'strided'")),
            (Literal::Str("cuda:1".into()), "Device?", Some("device cuda:1")),
            (Literal::Bool(true), "bool", Some("bool True")),
            (Literal::Bool(true), "int", None),
            (Literal::Int(2), "complex", Some("complex (2+0j)")),
        ];
        for (literal, text, expected) in cases {
            assert_eq!(value(literal.clone(), text).as_deref(), expected, "{literal:?} as {text}");
        }
    }

    /// Boxes and unboxes one argument.
    fn round_trip<A: Arg<Value>, T>(arg: A::Arg<'_>, show: impl Fn(A::Arg<'_>) -> T) -> T {
        show(A::unbox(A::boxed(&arg)).unwrap())
    }

    #[test]
    fn arguments_round_trip_through_boxes() {
        let t = tensor();
        assert_eq!(round_trip::<&'static Tensor, _>(&t, |x| x.numel()), 2);
        assert!(round_trip::<Option<&'static Tensor>, _>(None, |x| x.is_none()));
        assert_eq!(round_trip::<f64, _>(2.5, |x| x), 2.5);
        assert_eq!(round_trip::<Option<i64>, _>(Some(3), |x| x), Some(3));
        assert_eq!(round_trip::<&'static str, _>("sum", str::len), 3);
        assert_eq!(round_trip::<Scalar, _>(Scalar::Bool(true), |x| x), Scalar::Bool(true));
        assert_eq!(round_trip::<DType, _>(DType::BF16, |x| x), DType::BF16);
        assert_eq!(round_trip::<Option<Device>, _>(Some(Device::META), |x| x), Some(Device::META));
        let ints: Vec<i64> = (0..100).collect();
        assert_eq!(round_trip::<IntList, _>(IntList::from(&ints[..]), |x| x.to_vec()), ints);
        let list = TensorList::from(std::slice::from_ref(&t));
        assert_eq!(round_trip::<TensorList<'static>, _>(list, |x| x.len()), 1);
        assert_eq!(<f64 as Arg<Value>>::unbox(ValueRef::Int(2)).unwrap(), 2.0);
        assert_eq!(*IntList::unbox(ValueRef::Int(2)).unwrap(), [2]);
    }

    #[test]
    fn wrong_kinds_are_binding_errors_that_say_what_was_given() {
        let kinds = [
            <&'static Tensor as Arg<Value>>::unbox(ValueRef::Float(1.0)).map(|_| ()),
            <i64 as Arg<Value>>::unbox(ValueRef::Float(1.0)).map(|_| ()),
            <bool as Arg<Value>>::unbox(ValueRef::Float(1.0)).map(|_| ()),
            IntList::unbox(ValueRef::Float(1.0)).map(|_| ()),
            <Option<i64> as Arg<Value>>::unbox(ValueRef::Float(1.0)).map(|_| ()),
            <TensorList<'static> as Arg<Value>>::unbox(ValueRef::Float(1.0)).map(|_| ()),
            <Tensor as Ret<Value>>::from_value(Value::Float(1.0)).map(|_| ()),
            <(Tensor, Tensor) as Ret<Value>>::from_value(Value::Float(1.0)).map(|_| ()),
            <() as Ret<Value>>::from_value(Value::Float(1.0)),
        ];
        for result in kinds {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Binding);
            assert!(error.message().contains("float 1.0"), "{error}");
        }
        let mixed = [ValueRef::Int(1), ValueRef::Bool(true)];
        assert!(IntList::unbox(ValueRef::Refs(&mixed)).is_err());
        let error = IntList::from(&[1, 2][..]).sized::<3>().unwrap_err();
        assert!(error.message().contains("3") && error.message().contains("2"), "{error}");
        assert_eq!(IntList::from(&[4][..]).sized::<3>().unwrap(), [4, 4, 4]);
    }

    #[test]
    fn returns_match_schemas_and_round_trip() {
        let returns = |text: &str| Schema::parse(&format!("a::b() -> {text}")).unwrap().returns;
        type Pair = (Tensor, Tensor);
        assert!(<Tensor as Ret<Value>>::accepts(&returns("Tensor")));
        assert!(!<Tensor as Ret<Value>>::accepts(&returns("Tensor?")));
        assert!(!<Tensor as Ret<Value>>::accepts(&returns("(Tensor, Tensor)")));
        assert!(<Pair as Ret<Value>>::accepts(&returns("(Tensor, Tensor)")));
        assert!(!<Pair as Ret<Value>>::accepts(&returns("(Tensor, int)")));
        assert!(<() as Ret<Value>>::accepts(&returns("()")));
        assert!(<Vec<Tensor> as Ret<Value>>::accepts(&returns("Tensor[]")));
        assert!(<Option<Tensor> as Ret<Value>>::accepts(&returns("Tensor?")));
        assert!(<i64 as Ret<Value>>::accepts(&returns("int")));
        let pair = Ret::<Value>::into_value((tensor(), tensor()));
        assert_eq!(pair.as_tuple().unwrap().len(), 2);
        let (a, b) = <Pair as Ret<Value>>::from_value(pair).unwrap();
        assert_eq!(a.numel() + b.numel(), 4);
        assert!(Value::is_none(Ret::<Value>::into_value(()).as_ref()));
        assert_eq!(<f64 as Ret<Value>>::from_value(Value::Int(2)).unwrap(), 2.0);
        let list = Ret::<Value>::into_value(vec![tensor(); 3]);
        assert_eq!(<Vec<Tensor> as Ret<Value>>::from_value(list).unwrap().len(), 3);
        assert!(<Option<Tensor> as Ret<Value>>::from_value(Value::None).unwrap().is_none());
    }

    /// A foreign array, whose object is a count of owners.
    #[derive(Debug)]
    struct Array(Tensor);

    impl ForeignObject for Array {
        fn tag(&self) -> Tag {
            self.0.tag()
        }
        fn is_tensor(&self) -> bool {
            true
        }
        fn tensor(&self) -> Result<&Tensor> {
            Ok(&self.0)
        }
        fn describe(&self) -> String {
            "array of 2".to_owned()
        }
        fn to_owned_value(&self) -> Result<Value> {
            Ok(Value::Foreign(Arc::new(Array(self.0.clone()))))
        }
        fn original(&self) -> *mut std::ffi::c_void {
            std::ptr::without_provenance_mut(0x1000)
        }
    }

    #[test]
    fn foreign_tensors_dispatch_unbox_and_keep_their_identity() {
        let array = Array(tensor());
        let borrowed = ValueRef::Foreign(&array);
        assert!(Value::conforms(borrowed, &Type::Tensor));
        assert!(!Value::conforms(borrowed, &Type::Generator));
        assert_eq!(Value::describe(borrowed), "array of 2");
        assert_eq!(Value::tag(borrowed), array.0.tag());
        let seen = <&'static Tensor as Arg<Value>>::unbox(borrowed).unwrap();
        assert_eq!(seen.address(), array.0.address());
        let owned = Value::from_ref(borrowed).unwrap();
        let ValueRef::Foreign(object) = owned.as_ref() else { panic!("{owned:?}") };
        assert_eq!(object.original().addr(), 0x1000);
        assert!(object.downcast_ref::<Array>().is_some());
        assert_eq!(<Tensor as Ret<Value>>::from_value(owned).unwrap().numel(), 2);
    }
}
