//! Vmap from Rust: the loop for all kinds of operators, nesting, errors, users' rules.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use keyfold::dispatcher;
use keyfold::ops::aten;
use keyfold_core::{DType, ErrorKind, Result, Shape};
use keyfold_dispatch::{DispatchKey, Dispatcher, Kernel, Override};
use keyfold_layers::vmap::{self, BatchDim, vmap};
use keyfold_tensor::{Tensor, TensorList, Value, ValueRef};

fn numbers(shape: &[usize]) -> Tensor {
    keyfold::init();
    let count: usize = shape.iter().product();
    Tensor::from_vec((0..count).map(|i| i as f64 + 0.5).collect(), shape).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.copy().unwrap().to_vec().unwrap()
}

/// Maps a function of one tensor with one result over the first axis.
fn map(x: &Tensor, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let mut out = vmap(|x| Ok(vec![f(&x[0])?]), &[Some(0)], &[Some(0)], std::slice::from_ref(x))?;
    Ok(out.remove(0))
}

/// Makes a unique name for an operator of a test.
fn name(what: &str) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("vmap_tests::{what}_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Defines an operator with a CPU kernel.
fn define(what: &str, signature: &str, kernel: Kernel<Value>) -> String {
    let name = name(what);
    dispatcher().define(&format!("{name}{signature}")).unwrap();
    dispatcher().implement(&name, DispatchKey::CPU, kernel, Override::Error).unwrap();
    name
}

fn call(name: &str, args: &[ValueRef<'_>]) -> Result<Value> {
    dispatcher().call(name, args)
}

#[test]
fn an_operator_with_a_cpu_kernel_alone_is_called_once_per_example() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let kernel = Kernel::typed(|x: &Tensor, y: &Tensor| {
        CALLS.fetch_add(1, Ordering::Relaxed);
        assert_eq!(**x.shape(), [3]);
        aten::sum_all(&aten::mul(x, y)?)
    });
    let name = define("dot", "(Tensor x, Tensor y) -> Tensor", kernel);
    let (x, y) = (numbers(&[4, 3]), numbers(&[3]));
    let dots = map(&x, |x| call(&name, &[x.into(), (&y).into()])?.into_tensor()).unwrap();
    assert_eq!(CALLS.load(Ordering::Relaxed), 4);
    assert_eq!(values(&dots), values(&aten::matmul(&x, &y).unwrap()));
}

#[test]
fn several_results_lists_and_none_are_put_together() {
    let split = Kernel::boxed(|_, args: &[ValueRef<'_>]| {
        let x = args[0].tensor()?;
        Ok(Value::Tuple(vec![
            Value::Tensor(aten::sum_all(x)?),
            Value::List(vec![Value::Tensor(x.clone()), Value::Tensor(aten::neg(x)?)]),
            Value::None,
            Value::Int(7),
        ]))
    });
    let name = define("split", "(Tensor x) -> (Tensor, Tensor[], Tensor?, int)", split);
    let x = numbers(&[2, 3]);
    let results = vmap(
        |x| {
            let Value::Tuple(items) = call(&name, &[(&x[0]).into()])? else { panic!("a tuple") };
            let [Value::Tensor(sum), Value::List(list), Value::None, Value::Int(7)] = &items[..]
            else {
                panic!("{items:?}")
            };
            let list = list.iter().map(|item| item.clone().into_tensor());
            std::iter::once(Ok(sum.clone())).chain(list).collect()
        },
        &[Some(0)],
        &[Some(0)],
        std::slice::from_ref(&x),
    )
    .unwrap();
    assert_eq!(values(&results[0]), [4.5, 13.5]);
    assert_eq!(values(&results[1]), values(&x));
    assert_eq!(values(&results[2])[5], -5.5);
}

#[test]
fn lists_of_tensors_are_sliced_item_by_item() {
    let kernel = Kernel::typed(|items: TensorList<'_>| {
        let items: Result<Vec<&Tensor>> = items.iter().collect();
        items?.iter().try_fold(Tensor::zeros(&[2], DType::F64, Default::default())?, |sum, x| {
            aten::add(&sum, x)
        })
    });
    let name = define("total", "(Tensor[] items) -> Tensor", kernel);
    let (x, plain) = (numbers(&[3, 2]), numbers(&[2]));
    let total = map(&x, |x| {
        call(&name, &[(&[x.clone(), plain.clone(), x.clone()][..]).into()])?.into_tensor()
    })
    .unwrap();
    let expected = aten::add(&aten::mul_scalar(&x, 2.0).unwrap(), &plain).unwrap();
    assert_eq!(values(&total), values(&expected));
}

#[test]
fn results_that_examples_disagree_about_are_errors() {
    let value = Kernel::typed(|x: &Tensor| Ok(x.get_scalar(&[])?.as_f64()));
    let value = define("value", "(Tensor x) -> float", value);
    let error = map(&numbers(&[3]), |x| {
        call(&value, &[x.into()])?;
        Ok(x.clone())
    })
    .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Return);
    assert!(error.message().contains(&value) && error.message().contains("1.5"), "{error}");

    let ragged = Kernel::typed(|x: &Tensor| {
        Tensor::zeros(&[x.get_scalar(&[])?.as_f64() as usize], DType::F64, Default::default())
    });
    let ragged = define("ragged", "(Tensor x) -> Tensor", ragged);
    let error = map(&numbers(&[3]), |x| call(&ragged, &[x.into()])?.into_tensor()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Return);
    assert!(error.message().contains("shapes"), "{error}");

    let same = Kernel::typed(|x: &Tensor| Ok(x.ndim() as i64));
    let same = define("rank", "(Tensor x) -> int", same);
    map(&numbers(&[3, 2]), |x| {
        assert!(matches!(call(&same, &[x.into()])?, Value::Int(1)));
        Ok(x.clone())
    })
    .unwrap();
}

#[test]
fn writing_reaches_each_example_and_never_what_all_share() {
    let kernel = Kernel::boxed(|_, args: &[ValueRef<'_>]| {
        dispatcher().call("aten::copy_", &[args[0], args[1]])?;
        Ok(Value::Argument(0))
    });
    let name = define("set_", "(Tensor(a!) x, Tensor y) -> Tensor(a!)", kernel);
    let (x, y) = (numbers(&[3, 2]), aten::neg(&numbers(&[2, 3])).unwrap());
    let results = vmap(
        |x| Ok(vec![call(&name, &[(&x[0]).into(), (&x[1]).into()])?.into_tensor()?]),
        &[Some(0), Some(1)],
        &[Some(0)],
        &[x.clone(), y.clone()],
    )
    .unwrap();
    let expected = values(&aten::transpose(&y, 0, 1).unwrap());
    assert_eq!(values(&x), expected);
    assert_eq!(values(&results[0]), expected);
    for operator in [name.as_str(), "aten::copy_"] {
        let shared = numbers(&[2]);
        let error = map(&x, |x| call(operator, &[(&shared).into(), x.into()])?.into_tensor());
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Value);
        assert!(error.message().contains("write over"), "{error}");
        assert_eq!(values(&shared), [0.5, 1.5]);
    }
}

#[test]
fn a_write_that_gradients_would_miss_is_refused() {
    let weight = numbers(&[2]);
    keyfold_layers::autograd::set_requires_grad(&weight, true).unwrap();
    let refused = |x: &Tensor, f: &dyn Fn(&Tensor) -> Result<Tensor>, wanted: [&str; 3]| {
        let error = map(x, f).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gradient);
        assert!(wanted.iter().all(|text| error.message().contains(text)), "{error}");
    };
    // An operator without a rule runs on views of the batch.
    let product = |x: &Tensor| aten::mul(x, &weight);
    let twice = Kernel::typed(|x: &Tensor| aten::copy_(x, &aten::mul_scalar(x, 2.0)?));
    let twice = define("twice_", "(Tensor(a!) self) -> Tensor(a!)", twice);
    let looped = |x: &Tensor| call(&twice, &[(&product(x)?).into()])?.into_tensor();
    refused(&numbers(&[3, 2]), &looped, [&twice, "batch of 3", "new tensor"]);
    // The caller's tensor would keep its node.
    let outside = product(&numbers(&[3, 2])).unwrap();
    let write = |x: &Tensor| aten::fill_(x, 0.0);
    refused(&outside, &write, ["aten::fill_", "view of another tensor", "no_grad()"]);

    // It is written if nothing is recorded.
    let x = numbers(&[3, 2]);
    let plain = map(&x, |x| aten::fill_(&aten::mul_scalar(x, 2.0)?, 7.0)).unwrap();
    assert_eq!(values(&plain), [7.0; 6]);
    let off = keyfold_dispatch::exclude_keys(DispatchKey::Autograd.into());
    let unrecorded = map(&x, |x| aten::copy_(&aten::clone(x)?, &weight)).unwrap();
    assert_eq!(values(&unrecorded), [0.5, 1.5, 0.5, 1.5, 0.5, 1.5]);
    drop(off);
}

#[test]
fn a_batch_of_nothing_needs_a_rule_or_a_meta_kernel() {
    let none = numbers(&[0, 3]);
    let sums = map(&none, aten::sum_all).unwrap();
    assert_eq!(**sums.shape(), [0]);
    let kernel = || Kernel::typed(|x: &Tensor| x.select(0, 0));
    let name = define("first", "(Tensor x) -> Tensor", kernel());
    let error = map(&none, |x| call(&name, &[x.into()])?.into_tensor()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert!(error.message().contains(&name) && error.message().contains("Meta"), "{error}");
    dispatcher().implement(&name, DispatchKey::Meta, kernel(), Override::Error).unwrap();
    let firsts = map(&none, |x| call(&name, &[x.into()])?.into_tensor()).unwrap();
    assert_eq!((&**firsts.shape(), firsts.dtype()), (&[0][..], DType::F64));
}

#[test]
fn levels_nest_and_each_operator_sees_the_innermost_first() {
    let (x, y) = (numbers(&[2, 4]), numbers(&[3, 4]));
    // All pairs of rows: x over the outer level, y over the inner one.
    let pairs = map(&x, |x| {
        assert_eq!(vmap::current_level(), 1);
        map(&y, |y| {
            assert_eq!(vmap::current_level(), 2);
            assert_eq!(**x.shape(), [4]);
            aten::sum_all(&aten::mul(x, y)?)
        })
    })
    .unwrap();
    assert_eq!(vmap::current_level(), 0);
    let expected = aten::matmul(&x, &aten::transpose(&y, 0, 1).unwrap()).unwrap();
    assert_eq!(**pairs.shape(), [2, 3]);
    assert_eq!(values(&pairs), values(&expected));

    let kernel = Kernel::typed(|x: &Tensor, y: &Tensor| aten::sum_all(&aten::mul(x, y)?));
    let name = define("dot", "(Tensor x, Tensor y) -> Tensor", kernel);
    let by_loop = map(&x, |x| map(&y, |y| call(&name, &[x.into(), y.into()])?.into_tensor()));
    assert_eq!(values(&by_loop.unwrap()), values(&expected));
}

#[test]
fn what_does_not_depend_on_the_batch_is_repeated_or_stays() {
    let (x, c) = (numbers(&[3, 2]), numbers(&[2]));
    let run = |out| vmap(|_| Ok(vec![c.clone()]), &[Some(0)], &[out], std::slice::from_ref(&x));
    let repeated = run(Some(-1)).unwrap().remove(0);
    assert_eq!(**repeated.shape(), [2, 3]);
    assert_eq!(values(&repeated), [0.5, 0.5, 0.5, 1.5, 1.5, 1.5]);
    assert!(!repeated.may_overlap_itself());
    assert_eq!(**run(None).unwrap()[0].shape(), [2]);
    let error = vmap(|x| Ok(x.to_vec()), &[Some(0)], &[None], std::slice::from_ref(&x));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Value);
}

#[test]
fn axes_are_checked() {
    let (x, y) = (numbers(&[3, 2]), numbers(&[4]));
    let run =
        |dims: &[Option<i64>]| vmap(|x| Ok(x.to_vec()), dims, &[Some(0)], &[x.clone(), y.clone()]);
    let cases = [
        (&[Some(0), Some(0)][..], ErrorKind::Shape, "size 3"),
        (&[Some(2), None], ErrorKind::Index, "no axis 2"),
        (&[None, None], ErrorKind::Value, "no input"),
        (&[Some(0)], ErrorKind::Value, "1 axes for 2 inputs"),
    ];
    for (dims, kind, text) in cases {
        let error = run(dims).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(text), "{error}");
    }
    let swapped =
        vmap(|x| Ok(vec![aten::exp(&x[0])?]), &[Some(-1)], &[Some(0)], std::slice::from_ref(&x));
    assert_eq!(**swapped.unwrap()[0].shape(), [2, 3]);
}

#[test]
fn batches_of_one_level_have_one_size() {
    let one = |size: usize| vmap::wrap(numbers(&[size, 2]), 0, 1).unwrap();
    for name in ["aten::add", &define("two", "(Tensor self, Tensor other) -> Tensor", two())] {
        let error = call(name, &[(&one(3)).into(), (&one(4)).into()]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape);
        let parts = [name, "'self'", "'other'", "3 examples", "4"];
        assert!(parts.iter().all(|part| error.message().contains(part)), "{error}");
    }
}

fn two() -> Kernel<Value> {
    Kernel::typed(|x: &Tensor, _: &Tensor| Ok(x.clone()))
}

#[test]
fn an_example_that_outlives_its_vmap_is_refused() {
    let kept = Mutex::new(None);
    let x = numbers(&[3, 2]);
    map(&x, |x| {
        *kept.lock().unwrap() = Some(x.clone());
        Ok(x.clone())
    })
    .unwrap();
    let kept = kept.into_inner().unwrap().unwrap();
    let error = aten::neg(&kept).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Value);
    assert!(error.message().contains("ended"), "{error}");
    let error = map(&x, |x| aten::add(x, &kept)).unwrap_err();
    assert!(error.message().contains("'other'") && error.message().contains("ended"), "{error}");
}

#[test]
fn a_users_rule_takes_the_place_of_the_loop() {
    let name = define(
        "scale",
        "(Tensor x, Tensor w, float k) -> Tensor",
        Kernel::typed(|x: &Tensor, w: &Tensor, k: f64| aten::mul_scalar(&aten::mul(x, w)?, k)),
    );
    let operator = name.clone();
    let handle = vmap::register_rule(dispatcher(), &name, move |info, dims, args| {
        assert_eq!((info.size, info.level), (3, 1));
        assert_eq!(dims, [BatchDim::At(1), BatchDim::None, BatchDim::None]);
        let result = dispatcher().call(&operator, &[args[0], args[1], args[2]])?;
        Ok((result, BatchDim::At(1)))
    })
    .unwrap();
    let x = numbers(&[1, 3]);
    let w = numbers(&[1]);
    let run = || {
        let f = |x: &[Tensor]| {
            let w = ValueRef::Tensor(&w);
            Ok(vec![call(&name, &[(&x[0]).into(), w, 2.0.into()])?.into_tensor()?])
        };
        vmap(f, &[Some(1)], &[Some(0)], std::slice::from_ref(&x))
    };
    assert_eq!(values(&run().unwrap()[0]), [0.5, 1.5, 2.5]);
    assert!(handle.remove());
    let wrong = [
        (BatchDim::At(0), "size is 1"),
        (BatchDim::At(4), "isn't there"),
        (BatchDim::Each(vec![BatchDim::At(0)]), "1 batch dimensions"),
    ];
    for (dim, text) in wrong {
        let handle = vmap::register_rule(dispatcher(), &name, move |_, _, args| {
            Ok((Value::Tensor(args[0].tensor()?.clone()), dim.clone()))
        })
        .unwrap();
        let error = run().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Return);
        assert!(error.message().contains(text), "{error}");
        handle.remove();
    }
}

#[test]
fn stand_ins_are_made_for_whoever_differentiates() {
    let x = numbers(&[2]);
    assert!(vmap::batched_at(&x, 1).is_err());
    let outer = numbers(&[3, 2]);
    map(&outer, |_| {
        let batched = vmap::batched_at(&x, 1)?;
        let (physical, level, dim) = vmap::physical(&batched).expect("an example");
        assert_eq!((&**physical.shape(), level, dim), (&[3, 2][..], 1, 0));
        map(&numbers(&[4, 1]), |inner| {
            let both = vmap::batched_at(inner, 1)?;
            let (physical, level, _) = vmap::physical(&both).expect("an example");
            assert_eq!(level, 2);
            assert_eq!(vmap::physical(&physical).map(|(_, level, _)| level), Some(1));
            aten::add(&both, &vmap::batched_at(&x, 2)?)
        })
    })
    .unwrap();
}

#[test]
fn gradients_flow_through_the_physical_tensors() {
    let x = numbers(&[3, 2]);
    keyfold_layers::autograd::set_requires_grad(&x, true).unwrap();
    let out = map(&x, |x| {
        assert!(x.requires_grad());
        aten::sum_all(&aten::mul(x, x)?)
    })
    .unwrap();
    assert!(out.requires_grad());
    let options = keyfold_layers::autograd::Options { retain_graph: false, create_graph: false };
    let total = aten::sum_all(&out).unwrap();
    let grads = keyfold_layers::autograd::grad(
        &[total],
        std::slice::from_ref(&x),
        &[None],
        options,
        &|| Ok(()),
    )
    .unwrap();
    let grad = grads[0].clone().expect("a gradient");
    assert_eq!(values(&grad), values(&aten::mul_scalar(&x.detach(), 2.0).unwrap()));
}

#[test]
fn backward_of_a_checkpoint_whose_vmap_has_ended_is_refused_and_one_around_a_vmap_is_not() {
    use keyfold_layers::autograd::{Options, checkpoint, grad, set_requires_grad};

    let x = numbers(&[3, 2]);
    set_requires_grad(&x, true).unwrap();
    let squares = |x: &Tensor| aten::sum_all(&aten::mul(x, x)?);
    let inside = |x: &Tensor| {
        let again = x.clone();
        checkpoint(|| squares(x), move || squares(&again).map(drop), std::slice::from_ref(x))
    };
    let total = aten::sum_all(&map(&x, inside).unwrap()).unwrap();
    let options = Options { retain_graph: false, create_graph: false };
    let error = grad(&[total], std::slice::from_ref(&x), &[None], options, &|| Ok(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gradient);
    assert!(error.message().contains("checkpoint(vmap(f), x)"), "{error}");

    let again = x.clone();
    let mapped = checkpoint(
        || map(&x, squares),
        move || map(&again, squares).map(drop),
        std::slice::from_ref(&x),
    )
    .unwrap();
    let total = aten::sum_all(&mapped).unwrap();
    let options = Options { retain_graph: false, create_graph: false };
    let grads = grad(&[total], std::slice::from_ref(&x), &[None], options, &|| Ok(())).unwrap();
    let twice = aten::mul_scalar(&x.detach(), 2.0).unwrap();
    assert_eq!(values(grads[0].as_ref().unwrap()), values(&twice));
}

#[test]
fn other_keys_of_a_tensor_stay_with_its_examples() {
    let key = keyfold_dispatch::register_key("VmapTestKey", DispatchKey::Sparse, false);
    let key = key.unwrap();
    let x = numbers(&[3, 2]);
    x.insert_key(key).unwrap();
    let example = vmap::wrap(x, 0, 1).unwrap();
    assert!(example.keys().contains(key));
    assert_eq!(*example.shape(), Shape::new(&[2]).unwrap());
}

#[test]
fn isolated_dispatchers_can_have_the_layer_too() {
    let own = Dispatcher::<Value>::new();
    own.define("f(Tensor x) -> Tensor").unwrap();
    own.implement("f", DispatchKey::CPU, Kernel::typed(|x: &Tensor| aten::neg(x)), Override::Error)
        .unwrap();
    keyfold_layers::register(&own).unwrap();
    let out = map(&numbers(&[2]), |x| own.call("f", &[x.into()])?.into_tensor());
    assert_eq!(values(&out.unwrap()), [-0.5, -1.5]);
}
