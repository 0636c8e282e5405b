//! Every batching rule against the loop.

mod networks;
#[path = "../support/mod.rs"]
mod support;

use keyfold::dispatcher;
use keyfold::ops::{aten, rows};
use keyfold_core::{DType, Device, Error, ErrorKind, Scalar};
use keyfold_dispatch::{DispatchKey, Value as _};
use keyfold_layers::vmap;
use keyfold_layers::vmap::Randomness;
use keyfold_tensor::{Tensor, Value, ValueRef};
use support::{POSITIVE_ONLY, unary_rows};

/// Distinct nonzero numbers that aren't sorted.
fn numbers(shape: &[usize], seed: usize) -> Tensor {
    keyfold::init();
    let count = shape.iter().product::<usize>();
    let item = |i: usize| ((i * 37 + seed * 11) % 101) as f64 / 25.0 - 2.013;
    Tensor::from_vec((0..count).map(item).collect(), shape).unwrap()
}

fn positive(shape: &[usize], seed: usize) -> Tensor {
    aten::add_scalar(&aten::abs(&numbers(shape, seed)).unwrap(), 0.25).unwrap()
}

fn whole(shape: &[usize], below: i64, seed: usize) -> Tensor {
    let count = shape.iter().product::<usize>();
    let item = |i: usize| ((i * 7 + seed) as i64) % below;
    Tensor::from_vec((0..count).map(item).collect(), shape).unwrap()
}

fn bools(shape: &[usize], seed: usize) -> Tensor {
    aten::gt_scalar(&numbers(shape, seed), 0.0).unwrap()
}

/// An argument: batched along a dimension, or the same for all examples.
#[derive(Clone)]
enum Arg {
    /// A physical tensor and its batch dimension.
    At(Tensor, usize),
    /// The same for all examples.
    All(Tensor),
    Other(Value),
    Items(Vec<Arg>),
}

fn build(arg: &Arg) -> Value {
    match arg {
        Arg::At(tensor, dim) => Value::Tensor(vmap::wrap(tensor.copy().unwrap(), *dim, 1).unwrap()),
        Arg::All(tensor) => Value::Tensor(tensor.clone()),
        Arg::Other(value) => value.clone(),
        Arg::Items(items) => Value::List(items.iter().map(build).collect()),
    }
}

/// Returns the elements of a result with the batch dimension at the front, with shape and dtype.
fn elements(value: &Value) -> (Vec<usize>, DType, Vec<Scalar>) {
    let tensor = value.as_ref().tensor().unwrap();
    let (physical, level, dim) = vmap::physical(tensor).expect("the result is an example");
    assert_eq!(level, 1);
    let mut dims: Vec<i64> = (0..physical.ndim() as i64).collect();
    let batch = dims.remove(dim);
    dims.insert(0, batch);
    let front = physical.permute(&dims).unwrap().copy().unwrap();
    assert_eq!(**tensor.shape(), front.shape()[1..], "the example's shape");
    let flat = front.reshape(&[-1]).unwrap();
    let items = (0..flat.numel()).map(|i| flat.get_scalar(&[i]).unwrap()).collect();
    (front.shape().to_vec(), front.dtype(), items)
}

fn close(a: Scalar, b: Scalar) -> bool {
    let (a, b) = (a.as_f64(), b.as_f64());
    a == b || (a - b).abs() <= 1e-12 * a.abs().max(b.abs()) || (a.is_nan() && b.is_nan())
}

/// Returns the results that are there.
fn several(result: Value) -> Vec<Value> {
    match result {
        Value::Tuple(items) | Value::List(items) => {
            items.into_iter().filter(|item| !matches!(item, Value::None)).collect()
        }
        one => vec![one],
    }
}

/// Calls with the rule, then with the loop, and compares the results and the written arguments.
fn check(name: &str, args: &[Arg]) {
    let operator = dispatcher().operator(name).unwrap();
    let defaults = (args.len()..operator.schema().arguments.len())
        .map(|place| operator.default_value(place).expect("a default").clone());
    let given = || args.iter().map(build).chain(defaults.clone()).collect::<Vec<Value>>();
    let (by_rule, by_loop) = (given(), given());
    let call = |values: &[Value], looped: bool| -> Result<Value, Error> {
        let refs: Vec<ValueRef<'_>> = values.iter().map(Value::as_ref).collect();
        if !looped {
            return operator.call(&refs);
        }
        vmap::call_by_loop(&operator, &refs)
    };
    let rule = call(&by_rule, false);
    let general = call(&by_loop, true);
    match (rule, general) {
        (Ok(rule), Ok(general)) => {
            let (rule, general) = (several(rule), several(general));
            assert_eq!(rule.len(), general.len(), "{name}: results");
            for (rule, general) in rule.iter().zip(&general) {
                let (a, b) = (elements(rule), elements(general));
                assert_eq!((&a.0, a.1), (&b.0, b.1), "{name}: shape and dtype");
                for (i, (x, y)) in a.2.iter().zip(&b.2).enumerate() {
                    assert!(close(*x, *y), "{name}: element {i}: {x} by rule, {y} by loop");
                }
            }
            for (x, y) in by_rule.iter().zip(&by_loop) {
                if let (Value::Tensor(x), Value::Tensor(_)) = (x, y)
                    && vmap::physical(x).is_some()
                {
                    let y = y.clone();
                    assert_eq!(elements(&Value::Tensor(x.clone())).2, elements(&y).2, "{name}");
                }
            }
        }
        (Err(rule), Err(general)) => assert_eq!(rule.kind(), general.kind(), "{name}: {rule}"),
        (rule, general) => panic!("{name}: {rule:?} by rule, {general:?} by loop"),
    }
}

fn int(n: i64) -> Arg {
    Arg::Other(Value::Int(n))
}

fn list(items: &[i64]) -> Arg {
    Arg::Other(Value::List(items.iter().map(|n| Value::Int(*n)).collect()))
}

fn float(x: f64) -> Arg {
    Arg::Other(Value::Float(x))
}

fn bool_arg(b: bool) -> Arg {
    Arg::Other(Value::Bool(b))
}

fn none() -> Arg {
    Arg::Other(Value::None)
}

/// Returns the tensor with the batch of 3 examples along each of its dimensions.
fn everywhere(shape: &[usize], make: impl Fn(&[usize]) -> Tensor) -> Vec<Arg> {
    (0..=shape.len())
        .map(|dim| {
            let mut with = shape.to_vec();
            with.insert(dim, 3);
            Arg::At(make(&with), dim)
        })
        .collect()
}

#[test]
fn operators_of_one_tensor() {
    let others = "clone detach alias contiguous sum mean max min";
    let others = others.split_whitespace().map(|name| format!("aten::{name}"));
    for name in unary_rows().map(|row| row.schema().name.to_string()).chain(others) {
        for shape in [&[][..], &[4], &[2, 5], &[1, 3, 2]] {
            for x in everywhere(shape, |s| match &*name {
                "aten::bitwise_not" => whole(s, 9, 1),
                name if POSITIVE_ONLY.contains(&name) => positive(s, 1),
                _ => numbers(s, 1),
            }) {
                check(&name, &[x]);
            }
        }
    }
}

#[test]
fn operators_of_a_tensor_and_a_number() {
    let bits = "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift \
                rbitwise_left_shift rbitwise_right_shift ";
    for name in bits.split_whitespace() {
        for x in everywhere(&[2, 5], |s| whole(s, 9, 2)) {
            check(&format!("aten::{name}.Scalar"), &[x, int(3)]);
        }
    }
    let names = "add sub mul div maximum minimum rsub rdiv pow rpow floor_divide remainder rfloor_divide rremainder eq ne \
                 lt le gt ge ";
    for name in names.split_whitespace() {
        for shape in [&[][..], &[2, 5]] {
            for x in everywhere(shape, |s| positive(s, 2)) {
                check(&format!("aten::{name}.Scalar"), &[x, float(1.5)]);
            }
        }
    }
    for x in everywhere(&[2, 5], |s| numbers(s, 1)) {
        for name in ["aten::leaky_relu", "aten::elu"] {
            check(name, &[x.clone(), float(0.3)]);
        }
        for name in ["aten::clamp", "aten::hardtanh"] {
            check(name, &[x.clone(), float(-0.5), float(0.7)]);
        }
        check("aten::clamp", &[x, none(), float(0.7)]);
    }
    for condition in everywhere(&[2, 2], |s| bools(s, 1)) {
        check("aten::where.Scalar", &[condition, float(1.0), float(2.0)]);
    }
    for x in everywhere(&[2, 2], |s| numbers(s, 1)) {
        check("aten::to", &[x.clone(), Arg::Other(Value::DType(DType::F32))]);
        check("aten::to.device", &[x.clone(), Arg::Other(Value::Device(Device::CPU))]);
        check("aten::fill_.Scalar", &[x.clone(), float(3.0)]);
        check("aten::dropout", &[x, float(0.5), bool_arg(false)]);
    }
}

#[test]
fn operators_of_two_tensors_broadcast_examples_and_not_batches() {
    let bits = "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift ";
    for name in bits.split_whitespace() {
        for x in everywhere(&[4, 3], |s| whole(s, 9, 2)) {
            check(&format!("aten::{name}"), &[x, Arg::All(whole(&[3], 4, 3))]);
        }
    }
    let names = "add sub mul div maximum minimum floor_divide remainder eq ne lt le gt ge pow \
                 sigmoid_backward tanh_backward gelu_backward gelu_tanh_backward gelu_sigmoid_backward ";
    let shapes: [&[usize]; 6] = [&[], &[3], &[4, 3], &[4, 1], &[2, 1, 3], &[1]];
    for name in names.split_whitespace() {
        let name = format!("aten::{name}");
        for a in shapes {
            for b in shapes {
                let (left, right) =
                    (everywhere(a, |s| positive(s, 1)), everywhere(b, |s| positive(s, 5)));
                for (i, x) in left.iter().enumerate() {
                    check(&name, &[x.clone(), right[i % right.len()].clone()]);
                    check(&name, &[x.clone(), Arg::All(positive(b, 3))]);
                }
                for y in right {
                    check(&name, &[Arg::All(positive(a, 3)), y]);
                }
            }
        }
    }
}

#[test]
fn choices_broadcast_three_ways() {
    for condition in everywhere(&[4, 3], |s| bools(s, 1)) {
        for x in everywhere(&[3], |s| numbers(s, 2)) {
            check("aten::where", &[condition.clone(), x.clone(), Arg::All(numbers(&[4, 1], 3))]);
            check("aten::where.ScalarOther", &[condition.clone(), x.clone(), float(1.0)]);
            let scale = float(1.5);
            check("aten::native_dropout_backward", &[x.clone(), condition.clone(), scale]);
            check("aten::where.ScalarSelf", &[condition.clone(), float(1.0), x.clone()]);
            let (mask, number) = (condition.clone(), float(0.5));
            check("aten::masked_fill.Scalar", &[x.clone(), mask.clone(), number.clone()]);
            check("keyfold::masked_zero", &[x.clone(), mask.clone()]);
            let values = Arg::All(numbers(&[4, 1], 3));
            check("aten::masked_fill.Tensor", &[x.clone(), mask, values.clone()]);
            check("aten::threshold_backward", &[x.clone(), values, number]);
            let plain = Arg::All(bools(&[4, 3], 4));
            check("aten::where", &[plain, x.clone(), x]);
        }
    }
}

#[test]
fn reductions_spare_the_batch() {
    for x in everywhere(&[2, 4, 5], |s| numbers(s, 1)) {
        for name in ["sum.dim", "mean.dim", "amax", "amin", "all", "any"] {
            let name = format!("aten::{name}");
            let dims = [
                none(),
                list(&[]),
                list(&[0]),
                list(&[-1]),
                list(&[0, 2]),
                list(&[3]),
                list(&[1, 1]),
            ];
            for dim in dims {
                for keepdim in [false, true] {
                    check(&name, &[x.clone(), dim.clone(), bool_arg(keepdim)]);
                }
            }
        }
        for name in ["aten::argmax", "aten::argmin"] {
            for dim in [none(), int(0), int(-1), int(5)] {
                for keepdim in [false, true] {
                    check(name, &[x.clone(), dim.clone(), bool_arg(keepdim)]);
                }
            }
        }
        for name in ["aten::softmax", "aten::log_softmax", "aten::cumsum", "aten::cumprod"] {
            for dim in [0, 1, -1, 3] {
                check(name, &[x.clone(), int(dim)]);
            }
        }
        check("keyfold::has_inf_nan", std::slice::from_ref(&x));
        let other = Arg::All(numbers(&[2, 4, 5], 2));
        for name in ["aten::_softmax_backward_data", "aten::_log_softmax_backward_data"] {
            for dim in [1, -1, 3] {
                let dtype = Arg::Other(Value::DType(DType::F64));
                check(name, &[x.clone(), other.clone(), int(dim), dtype]);
            }
        }
        check("aten::cumsum", &[x.clone(), int(0), Arg::Other(Value::DType(DType::F32))]);
    }
    for x in everywhere(&[], |s| numbers(s, 1)) {
        check("aten::sum.dim", &[x.clone(), none(), bool_arg(true)]);
        check("aten::argmax", &[x.clone(), none(), bool_arg(true)]);
        check("aten::softmax", &[x.clone(), int(0)]);
        check("aten::sum.dim", &[x, list(&[0]), bool_arg(true)]);
    }
    for x in everywhere(&[3], |s| bools(s, 1)) {
        check("aten::sum", std::slice::from_ref(&x));
        check("aten::sum", &[x.clone(), Arg::Other(Value::DType(DType::F32))]);
        check("aten::mean", &[x]);
    }
}

#[test]
fn products_of_all_ranks() {
    let lefts: [&[usize]; 5] = [&[4], &[2, 4], &[5, 2, 4], &[2, 5, 2, 4], &[]];
    let rights: [&[usize]; 6] = [&[4], &[4, 3], &[5, 4, 3], &[1, 4, 3], &[3], &[]];
    for a in lefts {
        for b in rights {
            let (left, right) =
                (everywhere(a, |s| numbers(s, 1)), everywhere(b, |s| numbers(s, 2)));
            for (i, x) in left.iter().enumerate() {
                check("aten::matmul", &[x.clone(), right[i % right.len()].clone()]);
                check("aten::matmul", &[x.clone(), Arg::All(numbers(b, 3))]);
            }
            for y in right {
                check("aten::matmul", &[Arg::All(numbers(a, 3)), y]);
            }
        }
    }
}

#[test]
fn views_keep_the_batch_apart() {
    for x in everywhere(&[2, 1, 4], |s| numbers(s, 1)) {
        for shape in [&[8][..], &[-1], &[4, -1], &[2, 2, 2], &[3, 3], &[-1, -1], &[-1, 3]] {
            check("aten::reshape", &[x.clone(), list(shape)]);
        }
        for (a, b) in [(0, 1), (-1, 0), (2, 2), (0, 3)] {
            check("aten::transpose", &[x.clone(), int(a), int(b)]);
        }
        for dims in [&[2, 0, 1][..], &[-1, -2, -3], &[0, 1], &[0, 0, 1]] {
            check("aten::permute", &[x.clone(), list(dims)]);
        }
        for dim in -5..5 {
            check("aten::unsqueeze", &[x.clone(), int(dim)]);
            check("aten::squeeze.dim", &[x.clone(), int(dim)]);
            check("aten::select.int", &[x.clone(), int(dim), int(-1)]);
            check("aten::slice.Tensor", &[x.clone(), int(dim), int(1), none(), int(2)]);
        }
        check("aten::squeeze", std::slice::from_ref(&x));
        check("aten::slice.Tensor", &[x.clone(), int(2), none(), none(), int(-1)]);
        check("aten::select.int", &[x.clone(), int(0), int(7)]);
        for size in
            [&[2, 5, 4][..], &[3, 2, 1, 4], &[-1, 2, -1], &[6, -1, -1, -1], &[-1, 2, 1, 4], &[4]]
        {
            check("aten::expand", &[x.clone(), list(size)]);
        }
        for dims in [&[0][..], &[0, -1], &[], &[1, 1], &[5]] {
            check("aten::flip", &[x.clone(), list(dims)]);
        }
    }
    // The dimension of a batch of one example isn't squeezed.
    let one = Arg::At(numbers(&[1, 1, 2], 1), 0);
    check("aten::squeeze", &[one]);
}

#[test]
fn joins_repeat_what_has_no_batch() {
    let plain = Arg::All(numbers(&[2, 4], 9));
    for x in everywhere(&[2, 4], |s| numbers(s, 1)) {
        for y in everywhere(&[2, 4], |s| numbers(s, 2)) {
            for dim in [0, 1, -1, 2, 5] {
                let items = Arg::Items(vec![x.clone(), plain.clone(), y.clone()]);
                check("aten::stack", &[items.clone(), int(dim)]);
                check("aten::cat", &[items, int(dim)]);
            }
        }
        for (dim, part) in [(0, &[4][..]), (1, &[2]), (-1, &[2]), (2, &[2])] {
            for source in everywhere(part, |s| numbers(s, 3)) {
                check("aten::select_scatter", &[x.clone(), source.clone(), int(dim), int(1)]);
                check("aten::select_scatter", &[plain.clone(), source, int(dim), int(1)]);
            }
            let source = Arg::All(numbers(part, 4));
            check("aten::select_scatter", &[x.clone(), source, int(dim), int(1)]);
        }
        for source in everywhere(&[2, 2], |s| numbers(s, 3)) {
            let places = [int(1), int(0), none(), int(2)];
            let args = [&[x.clone(), source.clone()], &places[..]].concat();
            check("aten::slice_scatter", &args);
        }
    }
}

#[test]
fn positions_are_those_of_one_example() {
    let plain = Arg::All(numbers(&[4, 5], 9));
    for x in everywhere(&[4, 5], |s| numbers(s, 1)) {
        for index in everywhere(&[2], |s| whole(s, 4, 1)) {
            for dim in [0, 1, -1, 2] {
                check("aten::index_select", &[x.clone(), int(dim), index.clone()]);
                check("aten::index_select", &[plain.clone(), int(dim), index.clone()]);
                let one = Arg::All(whole(&[3], 4, 2));
                check("aten::index_select", &[x.clone(), int(dim), one]);
            }
        }
        for rows in everywhere(&[2, 3], |s| whole(s, 4, 1)) {
            let table = Arg::All(numbers(&[4, 3], 5));
            check("aten::embedding", &[table, rows]);
        }
        // The index is out of range for an example, but not for the physical tensor.
        let far = Arg::At(whole(&[3, 2], 5, 1), 0);
        check("aten::index_select", &[x.clone(), int(0), far]);
        for index in everywhere(&[2, 5], |s| whole(s, 4, 1)) {
            for dim in [0, 1, -1, 2] {
                check("aten::gather", &[x.clone(), int(dim), index.clone()]);
                check("aten::gather", &[plain.clone(), int(dim), index.clone()]);
                for source in everywhere(&[2, 5], |s| numbers(s, 6)) {
                    let args = [x.clone(), int(dim), index.clone(), source.clone()];
                    check("aten::scatter_add", &args);
                    check("aten::scatter_add", &[plain.clone(), int(dim), index.clone(), source]);
                }
            }
            check("aten::gather", &[x.clone(), int(0), Arg::All(whole(&[1, 3], 4, 2))]);
        }
        for source in everywhere(&[2, 5], |s| numbers(s, 6)) {
            let one = Arg::All(whole(&[2], 4, 2));
            check("aten::index_add", &[x.clone(), int(0), one.clone(), source.clone()]);
            check("aten::index_add", &[plain.clone(), int(0), one, source.clone()]);
            let each = Arg::At(whole(&[3, 2], 4, 2), 0);
            check("aten::index_add", &[x.clone(), int(0), each, source]);
        }
    }
}

#[test]
fn indexing_by_tensors_puts_the_group_where_an_example_has_it() {
    let plain = Arg::All(numbers(&[4, 5, 6], 9));
    let none = || Arg::Other(Value::None);
    let all = |shape: &[usize]| Arg::All(whole(shape, 4, 2));
    for x in everywhere(&[4, 5, 6], |s| numbers(s, 1)) {
        for i in everywhere(&[3], |s| whole(s, 4, 1)) {
            let patterns = [
                vec![i.clone()],
                vec![none(), i.clone()],
                vec![none(), none(), i.clone()],
                vec![i.clone(), i.clone()],
                vec![i.clone(), none(), i.clone()],
                vec![none(), i.clone(), all(&[2, 3])],
                vec![all(&[2, 1]), none(), i.clone()],
                vec![all(&[2, 1]), all(&[3])],
                vec![none(), all(&[2])],
                vec![all(&[2]), none(), all(&[])],
                vec![i.clone(), i.clone(), i.clone(), i.clone()],
            ];
            for pattern in patterns {
                check("aten::index.Tensor", &[x.clone(), Arg::Items(pattern.clone())]);
                let uses_batch = pattern.iter().any(|arg| matches!(arg, Arg::At(..)));
                if uses_batch {
                    check("aten::index.Tensor", &[plain.clone(), Arg::Items(pattern)]);
                }
            }
        }
        let mask = Arg::All(bools(&[4], 1));
        check("aten::index.Tensor", &[x, Arg::Items(vec![mask])]);
    }
}

#[test]
fn sources_are_written_into_each_example() {
    for x in everywhere(&[2, 4], |s| numbers(s, 1)) {
        for shape in [&[2, 4][..], &[4], &[2, 1], &[], &[3], &[1, 2, 4]] {
            check("aten::copy_", &[x.clone(), Arg::All(numbers(shape, 2))]);
            for source in everywhere(shape, |s| numbers(s, 3)) {
                check("aten::copy_", &[x.clone(), source]);
            }
        }
    }
}

#[test]
fn random_numbers_are_drawn_as_the_caller_chose() {
    let ones = Tensor::from_vec(vec![1.0_f64; 3 * 64], &[3, 64]).unwrap();
    for name in ["rand", "randn", "dropout"] {
        let operator = dispatcher().operator(&format!("aten::{name}")).unwrap();
        let draw = |x: &[Tensor]| {
            let first = match name {
                "dropout" => ValueRef::Tensor(&x[0]),
                _ => ValueRef::Ints(&[64]),
            };
            let defaults: Vec<Value> = (1..operator.schema().arguments.len())
                .map(|place| operator.default_value(place).expect("a default").clone())
                .collect();
            let args = [first].into_iter().chain(defaults.iter().map(Value::as_ref));
            Ok(vec![operator.call(&args.collect::<Vec<_>>())?.into_tensor()?])
        };
        let run = |randomness| {
            let inputs = std::slice::from_ref(&ones);
            vmap::vmap_with(randomness, draw, &[Some(0)], &[Some(0)], inputs)
        };
        assert_eq!(run(Randomness::Error).unwrap_err().kind(), ErrorKind::Value, "{name}");
        let rows = |randomness| -> [Vec<f64>; 3] {
            let drawn = run(randomness).unwrap().remove(0);
            let number = |i, j| drawn.get_scalar(&[i, j]).unwrap().as_f64();
            [0, 1, 2].map(|i| (0..64).map(|j| number(i, j)).collect())
        };
        let [first, second, third] = rows(Randomness::Same);
        assert!(first == second && first == third, "{name}");
        let [first, second, third] = rows(Randomness::Different);
        assert!(first != second && second != third && first != third, "{name}");
    }
}

#[test]
fn parts_of_examples() {
    for x in everywhere(&[4, 3], |s| numbers(s, 1)) {
        for dim in [0, 1, -1, 2] {
            for count in [1, 2, 0] {
                for name in ["aten::split.Tensor", "aten::chunk", "aten::tensor_split.sections"] {
                    check(name, &[x.clone(), int(count), int(dim)]);
                }
            }
            check("aten::split_with_sizes", &[x.clone(), list(&[1, 2, 0]), int(dim)]);
            check("aten::tensor_split.indices", &[x.clone(), list(&[1, -1]), int(dim)]);
            check("aten::unbind.int", &[x.clone(), int(dim)]);
        }
    }
}

#[test]
fn tables_and_caches_that_differ_from_example_to_example() {
    for table in everywhere(&[4, 3], |s| numbers(s, 1)) {
        for rows in everywhere(&[2], |s| whole(s, 4, 1)) {
            check("aten::embedding", &[table.clone(), rows]);
        }
        check("aten::embedding", &[table, Arg::All(whole(&[2], 4, 1))]);
    }
    for cache in everywhere(&[2, 4, 3], |s| numbers(s, 1)) {
        for length in [0, 3, 4, 5, -1] {
            check("keyfold::slice_read", &[cache.clone(), int(length)]);
        }
        for source in everywhere(&[2, 3], |s| numbers(s, 2)) {
            check("keyfold::slice_write_", &[cache.clone(), source, int(1)]);
        }
    }
    check("keyfold::slice_read", &[Arg::At(numbers(&[3, 4], 1), 1), int(1)]);
}

#[test]
fn every_rule_is_tested_here() {
    let source = concat!(include_str!("main.rs"), include_str!("networks.rs"));
    let is_composite = |name: &str| {
        rows().iter().any(|row| row.is_composite() && row.schema().name.to_string() == name)
    };
    for operator in dispatcher().operators() {
        let rule = operator.schema().name.namespace == "aten"
            && operator.has_kernel(DispatchKey::Vmap.into())
            && !is_composite(operator.name());
        let name = operator.name().trim_start_matches("aten::");
        let short = name.trim_end_matches(".Scalar");
        let word = |text: &str| {
            source.contains(&format!("{text}\"")) || source.contains(&format!("{text} "))
        };
        let is_unary = unary_rows().any(|row| row.schema().name.to_string() == operator.name());
        assert!(!rule || is_unary || word(name) || word(short), "no test of the rule of {name}");
    }
}

#[test]
fn errors_speak_of_one_example() {
    let stand_in = |shape: &[usize]| vmap::wrap(numbers(shape, 1), 0, 1).unwrap();
    let error = aten::add(&stand_in(&[7, 3]), &stand_in(&[7, 4])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape);
    assert!(!error.message().contains('7'), "{error}");
    let error = aten::select(&stand_in(&[7, 3]), 1, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Index);
    assert!(error.message().contains("axis 1"), "{error}");
}
