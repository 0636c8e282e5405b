//! Casts by category, and the categories of the built-in operators.

use keyfold::dispatcher;
use keyfold::ops::aten;
use keyfold_core::{DType, ErrorKind, Result};
use keyfold_dispatch::{DispatchKey, Dispatcher, Kernel, Override, Value as _, exclude_keys};
use keyfold_layers::autocast::{self, Category, Settings, current, register_rule, scope};
use keyfold_tensor::{Tensor, Value, ValueRef};

fn tensor(dtype: DType) -> Tensor {
    keyfold::init();
    let x = Tensor::from_slice(&[1.0_f64, 2.0, 3.0, 4.0], &[2, 2]).unwrap();
    aten::to(&x, dtype).unwrap()
}

/// Returns the dtype of the arguments that a kernel below the layer receives.
fn seen(category: Category, scope: DType, given: [DType; 2]) -> Vec<DType> {
    let d = Dispatcher::<Value>::new();
    d.define("f(Tensor x, Tensor[] y, Tensor? z=None, int n=1) -> ScalarType[]").unwrap();
    let probe = Kernel::boxed(|_, args: &[ValueRef<'_>]| {
        let x = args[0].tensor()?.dtype();
        let y = args[1].items().map(|y| Ok(Value::DType(y.tensor()?.dtype())));
        let list = [Ok(Value::DType(x))].into_iter().chain(y).collect::<Result<Vec<_>>>()?;
        Ok(Value::List(list))
    });
    d.implement("f", DispatchKey::CPU, probe, Override::Error).unwrap();
    keyfold_layers::register(&d).unwrap();
    register_rule(&d, "f", category).unwrap();
    let [x, y] = given.map(tensor);
    let _scope = autocast::scope(scope).unwrap();
    let result = d.call("f", &[(&x).into(), ValueRef::Tensors(&[y])]).unwrap();
    let dtypes = result.as_ref().items().map(|item| match item {
        ValueRef::DType(dtype) => dtype,
        other => panic!("{}", Value::describe(other)),
    });
    dtypes.collect()
}

#[test]
fn each_category_casts_as_it_says() {
    use DType::{BF16, Bool, F16, F32, F64, I64};
    let cases = [
        (Category::LowerPrecision, [F32, F16], [BF16, BF16]),
        (Category::LowerPrecision, [F32, F64], [F32, F64]),
        (Category::LowerPrecision, [F32, I64], [BF16, I64]),
        (Category::FullPrecision, [F16, BF16], [F32, F32]),
        (Category::FullPrecision, [F64, BF16], [F64, F32]),
        (Category::FullPrecision, [Bool, I64], [Bool, I64]),
        (Category::Widest, [F16, F32], [F32, F32]),
        (Category::Widest, [BF16, F16], [F32, F32]),
        (Category::Widest, [F32, F64], [F64, F64]),
        (Category::Widest, [BF16, I64], [BF16, I64]),
        (Category::Leave, [F16, F32], [F16, F32]),
        (Category::To(F16), [F32, BF16], [F16, F16]),
        (Category::To(F16), [F64, F32], [F64, F16]),
        (Category::To(F64), [F16, F32], [F64, F64]),
    ];
    for (category, given, expected) in cases {
        assert_eq!(seen(category, BF16, given), expected, "{category:?} of {given:?}");
    }
    assert_eq!(seen(Category::LowerPrecision, F32, [F16, F32]), [F32, F32]);
}

#[test]
fn built_in_operators_have_their_categories() {
    let (x, h) = (tensor(DType::F32), tensor(DType::F16));
    let _scope = scope(DType::F16).unwrap();
    assert_eq!(aten::matmul(&x, &x).unwrap().dtype(), DType::F16);
    assert_eq!(aten::exp(&h).unwrap().dtype(), DType::F32);
    assert_eq!(aten::sum_all(&h).unwrap().dtype(), DType::F32);
    // 3^12 exceeds the range of float16.
    let twelve = aten::mul_scalar(&h, 3.0).unwrap();
    let args = [(&twelve).into(), ValueRef::Float(3.0)];
    let power = dispatcher().call("aten::rpow.Scalar", &args).unwrap();
    let power = power.into_tensor().unwrap();
    assert_eq!(power.dtype(), DType::F32);
    assert_eq!(power.to_vec::<f32>().unwrap()[3], 531_441.0);
    assert_eq!(aten::add(&x, &h).unwrap().dtype(), DType::F32);
    assert_eq!(aten::tanh(&h).unwrap().dtype(), DType::F16);
    let joined = aten::stack(&[x, h], 0).unwrap();
    assert_eq!(joined.dtype(), DType::F32);
}

#[test]
fn the_innermost_scope_counts() {
    let x = tensor(DType::F32);
    let product = || aten::matmul(&x, &x).unwrap().dtype();
    assert_eq!(current(), None);
    let outer = scope(DType::F16).unwrap();
    {
        let inner = scope(DType::BF16).unwrap();
        assert_eq!(product(), DType::BF16);
        let off = Settings::new(DType::BF16).unwrap().disabled().enter();
        assert_eq!((product(), current()), (DType::F32, None));
        let on = scope(DType::F16).unwrap();
        assert_eq!(product(), DType::F16);
        drop((on, off, inner));
    }
    assert_eq!(current(), Some(Settings { dtype: DType::F16, enabled: true }));
    let excluded = exclude_keys(DispatchKey::Autocast.into());
    assert_eq!((product(), current()), (DType::F32, None));
    drop(excluded);
    drop(outer);
    assert_eq!(product(), DType::F32);
}

#[test]
fn the_key_without_a_scope_casts_nothing() {
    let x = tensor(DType::F32);
    let _keys = keyfold_dispatch::include_keys(DispatchKey::Autocast.into());
    assert_eq!(aten::matmul(&x, &x).unwrap().dtype(), DType::F32);
    assert_eq!(current(), None);
}

#[test]
fn what_is_written_or_viewed_is_never_a_copy() {
    let d = Dispatcher::<Value>::new();
    d.define("into_(Tensor(a!) x, Tensor y) -> Tensor(a!)").unwrap();
    let write = Kernel::boxed(|_, args: &[ValueRef<'_>]| {
        assert_eq!(args[1].tensor()?.dtype(), DType::BF16);
        aten::copy_(args[0].tensor()?, args[1].tensor()?)?;
        Ok(Value::Argument(0))
    });
    d.implement("into_", DispatchKey::CPU, write, Override::Error).unwrap();
    keyfold_layers::register(&d).unwrap();
    register_rule(&d, "into_", Category::LowerPrecision).unwrap();
    let (x, y) = (tensor(DType::F32), aten::neg(&tensor(DType::F32)).unwrap());
    let _scope = scope(DType::BF16).unwrap();
    d.call("into_", &[(&x).into(), (&y).into()]).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [-1.0, -2.0, -3.0, -4.0]);
}

#[test]
fn dtypes_and_names_that_make_no_sense_are_refused() {
    for dtype in [DType::F64, DType::I32, DType::Bool, DType::C64] {
        let error = scope(dtype).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::DType);
        assert!(error.message().contains("float16, bfloat16, float32"), "{error}");
        assert!(error.message().contains(dtype.name()), "{error}");
    }
    assert_eq!(Category::exactly(DType::I64).unwrap_err().kind(), ErrorKind::DType);
    let error = "lowest".parse::<Category>().unwrap_err();
    assert!(error.message().contains("\"lower\", \"full\", \"widest\", \"leave\""), "{error}");
    for (name, category) in Category::NAMES {
        assert_eq!(name.parse::<Category>().unwrap(), category);
        assert_eq!(category.to_string(), name);
    }
}

#[test]
fn an_operator_has_one_category() {
    let d = dispatcher();
    let error = register_rule(d, "aten::matmul", Category::Leave).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Registration);
    assert!(error.message().contains("autocast as lower"), "{error}");
    let error = register_rule(d, "aten::matmull", Category::Leave).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownOperator);
}

#[test]
fn a_fallback_at_the_key_lets_calls_pass() {
    let x = tensor(DType::F32);
    let _scope = scope(DType::F16).unwrap();
    // A composite isn't cast itself; the operators that it calls are autocast.
    let d = dispatcher();
    let operator = d.operator("aten::neg").unwrap();
    assert!(!operator.has_kernel(keyfold_dispatch::RegistrationKey::Key(DispatchKey::Autocast)));
    assert_eq!(aten::neg(&x).unwrap().dtype(), DType::F32);
}
