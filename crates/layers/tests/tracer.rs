//! Recording, printing, replay, and JSON round trips.

use std::sync::Arc;

use keyfold::dispatcher;
use keyfold::ops::aten;
use keyfold_backend::GpuBackend;
use keyfold_core::{DType, Device, DeviceType, Error, ErrorKind, Result, Scalar};
use keyfold_cpu::HostBackend;
use keyfold_dispatch::{DispatchKey, Dispatcher, Kernel, inside_layers};
use keyfold_layers::tracer::{Arg, Direction, Graph, Session, check_readable, is_recording, trace};
use keyfold_tensor::{SameAs, Tensor, TensorList, Value, ValueRef};

fn floats(items: &[f64]) -> Tensor {
    keyfold::init();
    Tensor::from_slice(items, &[items.len()]).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.clone().into_tensor().unwrap().to_vec().unwrap()
}

fn run(graph: &Graph, inputs: &[&Tensor]) -> Vec<Vec<f64>> {
    graph.run(dispatcher(), inputs).unwrap().iter().map(numbers).collect()
}

/// A layer: softmax(relu(x @ w + b)).
fn network() -> (Graph, Tensor, Tensor) {
    let b = floats(&[0.1, -0.2]);
    let w = Tensor::from_slice(&[0.5, -1.0, 2.0, 0.25, 1.0, -0.5], &[3, 2]).unwrap();
    let x = Tensor::from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]).unwrap();
    let graph = trace(&[&x], |x| {
        let hidden = aten::add(&aten::matmul(&x[0], &w)?, &b)?;
        let shown = dispatcher().call("aten::relu", &[(&hidden).into()])?.into_tensor()?;
        Ok(vec![aten::sum(&shown, &[1], false)?, shown])
    });
    (graph.unwrap(), w, b)
}

#[test]
fn a_graph_prints_one_aligned_line_per_call() {
    let (mut graph, ..) = network();
    graph.name_inputs(["x"]);
    let expected = "\
graph(%0 x: float64[2, 3]):
  %c0: float64[3, 2] = constant
  %c1: float64[2]    = constant
  %1:  float64[2, 2] = aten::matmul(%0, %c0)
  %2:  float64[2, 2] = aten::add(%1, %c1)
  %3:  float64[2, 2] = aten::relu(%2)
  %4:  float64[2]    = aten::sum.dim(%3, [1])
  return %4, %3
";
    assert_eq!(graph.to_string(), expected);
}

#[test]
fn a_replay_computes_what_the_function_would_on_other_inputs() {
    let (graph, w, b) = network();
    let x = Tensor::from_slice(&[-1.0, 0.5, 0.0, 2.0, -2.0, 1.0], &[2, 3]).unwrap();
    let hidden = aten::add(&aten::matmul(&x, &w).unwrap(), &b).unwrap();
    let shown = dispatcher().call("aten::relu", &[(&hidden).into()]).unwrap();
    let results = run(&graph, &[&x]);
    assert_eq!(results[1], numbers(&shown));
    assert_eq!(results[0].len(), 2);
}

#[test]
fn writing_in_place_is_in_order_and_reaches_views() {
    let x = floats(&[1.0, 2.0, 3.0]);
    let graph = trace(&[&x], |x| {
        let y = aten::mul_scalar(&x[0], 10.0)?;
        let first = aten::select(&y, 0, 0)?;
        let before = aten::clone(&first)?;
        aten::fill_(&first, 7.0)?;
        // The write through the view is visible in y and in the view.
        Ok(vec![aten::add(&y, &first)?, before, y])
    });
    let graph = graph.unwrap();
    let results = run(&graph, &[&floats(&[5.0, 6.0, 7.0])]);
    assert_eq!(results, [vec![14.0, 67.0, 77.0], vec![50.0], vec![7.0, 60.0, 70.0]]);
    let node = graph.nodes().iter().find(|node| node.operator == "aten::fill_.Scalar").unwrap();
    assert!(node.effects && node.args[0].written);
    // It stays in the graph even if its result isn't used.
    assert_eq!(graph.simplified().nodes().len(), graph.nodes().len());
}

#[test]
fn a_view_that_looks_like_its_base_is_told_apart_where_autograd_does() {
    let x = floats(&[1.0, 2.0]);
    x.set_requires_grad(true).unwrap();
    let graph = trace(&[&x], |x| {
        let cut = dispatcher().call("aten::contiguous", &[(&x[0]).into()])?.into_tensor()?;
        let plain = x[0].detach();
        let doubled = inside_layers(DispatchKey::Autograd.into(), || aten::add(&x[0], &cut))?;
        Ok(vec![doubled, plain])
    });
    let graph = graph.unwrap();
    assert_eq!(run(&graph, &[&floats(&[3.0, 4.0])])[0], [6.0, 8.0]);
    // A view without keys that no operator made is identified by its data.
    assert!(matches!(&graph.outputs()[1], Arg::Value(_)));
    assert!(graph.constants().is_empty());
}

#[test]
fn constants_are_held_by_reference_and_found_once() {
    let w = floats(&[1.0, 1.0]);
    let x = floats(&[1.0, 2.0]);
    let graph = trace(&[&x], |x| Ok(vec![aten::mul(&aten::mul(&x[0], &w)?, &w)?])).unwrap();
    assert_eq!(graph.constants().len(), 1);
    assert_eq!(run(&graph, &[&x]), [[1.0, 2.0]]);
    aten::fill_(&w, 3.0).unwrap();
    assert_eq!(run(&graph, &[&x]), [[9.0, 18.0]]);
    assert!(graph.to_json().is_ok());
}

#[test]
fn inputs_that_differ_from_the_recorded_ones_are_named() {
    let (mut graph, ..) = network();
    graph.name_inputs(["pixels"]);
    let fails = |inputs: &[&Tensor]| graph.run(dispatcher(), inputs).unwrap_err();
    let error = fails(&[]);
    assert_eq!(error.kind(), ErrorKind::Trace);
    assert!(error.message().contains("takes 1 input, and 0 were given"), "{error}");
    let wide = Tensor::zeros(&[2, 3], DType::F32, Device::CPU).unwrap();
    let error = fails(&[&wide]);
    assert_eq!(error.kind(), ErrorKind::DType);
    let parts = ["%0", "(pixels)", "float64[2, 3]", "float32[2, 3]"];
    assert!(parts.iter().all(|part| error.message().contains(part)), "{error}");
    let more = Tensor::zeros(&[5, 3], DType::F64, Device::CPU).unwrap();
    let error = fails(&[&more]);
    assert_eq!(error.kind(), ErrorKind::Trace);
    assert!(error.message().contains("any_shape"), "{error}");
    assert_eq!(fails(&[&floats(&[1.0])]).kind(), ErrorKind::Trace);
    let meta = Tensor::meta(&[2, 3], DType::F64).unwrap();
    assert_eq!(fails(&[&meta]).kind(), ErrorKind::Device);
    let results = graph.run_any_shape(dispatcher(), &[&more]).unwrap();
    assert_eq!(numbers(&results[0]).len(), 5);
    assert!(graph.run_any_shape(dispatcher(), &[&floats(&[1.0])]).is_err());
}

/// Makes a dispatcher with the layers and a user's operator.
fn with_operator(schema: &str, kernel: Kernel<Value>) -> Dispatcher<Value> {
    let dispatcher = Dispatcher::new();
    let cpu: Arc<dyn GpuBackend> = Arc::new(HostBackend);
    keyfold::ops::register(&dispatcher).unwrap();
    keyfold::ops::install(&dispatcher, DeviceType::CPU, &cpu).unwrap().keep();
    keyfold_layers::register(&dispatcher).unwrap();
    let name = dispatcher.define(schema).unwrap().name().to_owned();
    dispatcher.register(&name, DispatchKey::CPU, kernel).unwrap();
    dispatcher
}

#[test]
fn operators_with_several_results_lists_and_nothing_are_recorded() {
    let split = Kernel::typed(|x: &Tensor, sizes: keyfold_tensor::IntList| {
        let mut parts = Vec::new();
        let mut start = 0;
        for size in sizes.iter() {
            parts.push(x.slice(0, Some(start), Some(start + size), 1)?);
            start += size;
        }
        Ok::<_, Error>(parts)
    });
    let split = with_operator("t::split(Tensor x, int[] sizes) -> Tensor[]", split);
    let x = floats(&[1.0, 2.0, 3.0]);
    let graph = trace(&[&x], |x| {
        let parts = split.call("t::split", &[(&x[0]).into(), (&[1, 2][..]).into()])?;
        let Value::List(parts) = parts else { unreachable!() };
        Ok(vec![aten::neg(&parts[1].clone().into_tensor()?)?])
    });
    let graph = graph.unwrap();
    let text = graph.to_string();
    assert!(text.contains("[%1, %2]: [float64[1], float64[2]] = t::split(%0, [1, 2])"), "{text}");
    let results = graph.run(&split, &[&floats(&[4.0, 5.0, 6.0])]).unwrap();
    assert_eq!(numbers(&results[0]), [-5.0, -6.0]);
    let back = Graph::from_json(&graph.to_json().unwrap()).unwrap();
    assert_eq!(back.to_string(), text);

    let pair = Kernel::typed(|x: &Tensor| Ok::<_, Error>((x.copy()?, 7_i64)));
    let pair = with_operator("t::pair(Tensor x) -> (Tensor copy, int count)", pair);
    let graph = trace(&[&x], |x| {
        let value = pair.call("t::pair", &[(&x[0]).into()])?;
        let Value::Tuple(items) = value else { unreachable!() };
        let Value::Int(count) = items[1] else { unreachable!() };
        Ok(vec![aten::mul_scalar(&items[0].clone().into_tensor()?, count)?])
    });
    let graph = graph.unwrap();
    let text = graph.to_string();
    assert!(text.contains("(%1, 7):"), "{text}");
    assert!(text.contains("aten::mul.Scalar(%1, 7)"), "{text}");
    assert_eq!(numbers(&graph.run(&pair, &[&x]).unwrap()[0]), [7.0, 14.0, 21.0]);

    let touch = Kernel::typed(|x: &Tensor| -> Result<()> {
        // SAFETY: nothing else uses the memory of the test's tensor.
        unsafe { x.copy_from(&Tensor::full(&[3], Scalar::Int(9), DType::F64, Device::CPU)?) }
    });
    let touch = with_operator("t::touch(Tensor(a!) x) -> ()", touch);
    let y = floats(&[0.0; 3]);
    let graph = trace(&[&y], |y| {
        let copy = aten::clone(&y[0])?;
        touch.call("t::touch", &[(&copy).into()])?;
        Ok(vec![copy])
    });
    let graph = graph.unwrap();
    assert!(graph.to_string().contains("  t::touch(%1)\n"), "{graph}");
    assert_eq!(numbers(&graph.run(&touch, &[&y]).unwrap()[0]), [9.0; 3]);
}

#[test]
fn an_operator_that_returns_its_argument_is_a_node_like_others() {
    let same = Kernel::typed(|_: ValueRef<'_>| Ok::<_, Error>(SameAs(0)));
    let same = with_operator("t::same(Tensor(a) x) -> Tensor(a)", same);
    let x = floats(&[1.0]);
    let graph = trace(&[&x], |x| {
        let y = same.call("t::same", &[(&x[0]).into()])?.into_tensor()?;
        Ok(vec![aten::neg(&y)?])
    });
    let graph = graph.unwrap();
    assert_eq!(graph.nodes().len(), 2);
    assert_eq!(numbers(&graph.run(&same, &[&floats(&[3.0])]).unwrap()[0]), [-3.0]);
}

#[test]
fn lists_of_tensors_are_arguments() {
    let total = Kernel::typed(|items: TensorList<'_>| {
        let mut sum = 0.0;
        for item in items.iter() {
            sum += item?.to_vec::<f64>()?.iter().sum::<f64>();
        }
        Tensor::from_scalar(Scalar::Float(sum), DType::F64)
    });
    let total = with_operator("t::total(Tensor[] items) -> Tensor", total);
    let (x, w) = (floats(&[1.0, 2.0]), floats(&[10.0]));
    let graph = trace(&[&x], |x| {
        let items = [x[0].clone(), w.clone(), x[0].clone()];
        Ok(vec![total.call("t::total", &[(&items[..]).into()])?.into_tensor()?])
    });
    let graph = graph.unwrap();
    assert!(graph.to_string().contains("t::total([%0, %c0, %0])"), "{graph}");
    let results = graph.run(&total, &[&floats(&[0.5, 1.0])]).unwrap();
    assert_eq!(numbers(&results[0]), [13.0]);
}

#[test]
fn an_operator_that_is_gone_is_named() {
    let dispatcher =
        with_operator("t::gone(Tensor x) -> Tensor", Kernel::typed(|x: &Tensor| x.copy()));
    let x = floats(&[1.0]);
    let graph =
        trace(&[&x], |x| Ok(vec![dispatcher.call("t::gone", &[(&x[0]).into()])?.into_tensor()?]));
    let error = graph.unwrap().run(keyfold::dispatcher(), &[&x]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownOperator);
    assert!(error.message().contains("graph node %1 = t::gone"), "{error}");
}

#[test]
fn calls_that_nobody_needs_are_left_out_with_their_constants() {
    let (x, w) = (floats(&[1.0, 2.0]), floats(&[3.0, 4.0]));
    let graph = trace(&[&x], |x| {
        let _ = aten::mul(&aten::exp(&x[0])?, &w)?;
        Ok(vec![aten::neg(&x[0])?])
    });
    let graph = graph.unwrap();
    assert_eq!((graph.nodes().len(), graph.constants().len()), (3, 1));
    let simple = graph.simplified();
    assert_eq!((simple.nodes().len(), simple.constants().len()), (1, 0));
    assert_eq!(simple.value_count(), 2);
    assert_eq!(run(&simple, &[&w]), [[-3.0, -4.0]]);
}

#[test]
fn a_trace_inside_a_trace_records_in_both() {
    let x = floats(&[1.0, 2.0]);
    let mut inner = None;
    let outer = trace(&[&x], |x| {
        let y = aten::neg(&x[0])?;
        inner = Some(trace(&[&y], |y| Ok(vec![aten::exp(&y[0])?]))?);
        let z = aten::exp(&y)?;
        Ok(vec![z])
    });
    let (outer, inner) = (outer.unwrap(), inner.unwrap());
    assert_eq!((outer.nodes().len(), inner.nodes().len()), (3, 1));
    assert_eq!(run(&inner, &[&floats(&[0.0, 0.0])]), [[1.0, 1.0]]);
}

#[test]
fn one_tensor_given_twice_is_two_inputs() {
    let x = floats(&[1.0, 2.0]);
    let graph = trace(&[&x, &x], |x| Ok(vec![aten::sub(&x[0], &x[1])?])).unwrap();
    assert_eq!(run(&graph, &[&x, &floats(&[10.0, 20.0])]), [[-9.0, -18.0]]);
}

#[test]
fn a_function_that_fails_leaves_nothing_switched_on() {
    let x = floats(&[1.0, 2.0]);
    let failed = trace(&[&x], |x| Ok(vec![aten::add(&x[0], &floats(&[1.0, 2.0, 3.0]))?]));
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Shape);
    let _other = Session::begin();
    check_readable(&x, "item()").unwrap();
    assert!(is_recording());
}

#[test]
fn reading_what_follows_from_the_inputs_is_refused_and_other_things_are_not() {
    let (x, w) = (floats(&[1.0]), floats(&[2.0]));
    let mut seen = Vec::new();
    let _ = trace(&[&x], |x| {
        let y = aten::mul(&x[0], &w)?;
        let twice = aten::mul_scalar(&w, 2.0)?;
        let view = y.reshape(&[1, 1])?;
        for tensor in [&x[0], &y, &view, &w, &twice] {
            seen.push(check_readable(tensor, "bool()").map_err(|error| error.kind()));
        }
        // A written constant has other elements at the next replay.
        aten::fill_(&aten::select(&w, 0, 0)?, 3.0)?;
        seen.push(check_readable(&w, "bool()").map_err(|error| error.kind()));
        // A kernel may read its arguments.
        inside_layers(DispatchKey::Tracer.into(), || check_readable(&x[0], "bool()"))?;
        Ok(vec![y])
    });
    let refused = Err(ErrorKind::Trace);
    assert_eq!(seen, [refused, refused, refused, Ok(()), Ok(()), refused]);
    check_readable(&x, "bool()").unwrap();
}

#[test]
fn a_view_past_the_operators_is_an_error_and_not_a_constant() {
    let x = floats(&[1.0, 2.0, 3.0]);
    let error = trace(&[&x], |x| Ok(vec![aten::neg(&x[0].slice(0, Some(1), None, 1)?)?]));
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Trace);
    assert!(error.message().contains("aten::neg: argument"), "{error}");
    let error = trace(&[&x], |x| Ok(vec![x[0].slice(0, Some(1), None, 1)?])).unwrap_err();
    assert!(error.message().contains("without being made of it by an operator"), "{error}");
}

#[test]
fn other_parts_of_an_inputs_memory_are_constants() {
    let all = floats(&[1.0, 2.0, 3.0, 4.0]);
    let part = |from: i64| all.slice(0, Some(from), Some(from + 2), 1).unwrap();
    let graph = trace(&[&part(0)], |x| Ok(vec![aten::add(&x[0], &part(2))?])).unwrap();
    assert_eq!(run(&graph, &[&floats(&[10.0, 20.0])]), [[13.0, 24.0]]);
    let error = trace(&[&part(0)], |x| Ok(vec![aten::add(&x[0], &part(1))?])).unwrap_err();
    assert!(error.message().contains("shares memory"), "{error}");
}

#[test]
fn tensors_without_memory_are_told_apart() {
    let (a, b) = (Tensor::meta(&[2], DType::F64).unwrap(), Tensor::meta(&[2], DType::F64).unwrap());
    let graph = trace(&[&a, &b], |x| Ok(vec![aten::add(&x[0], &x[1])?, x[1].clone()])).unwrap();
    assert!(graph.to_string().contains("aten::add(%0, %1)"), "{graph}");
    assert!(graph.to_string().contains("return %2, %1"), "{graph}");
    let empty = || Tensor::zeros(&[0], DType::F64, Device::CPU).unwrap();
    let graph = trace(&[&empty(), &empty()], |x| Ok(vec![x[1].clone(), x[0].clone()])).unwrap();
    assert!(graph.to_string().contains("return %1, %0"), "{graph}");
}

#[test]
fn a_graph_in_json_comes_back_as_it_was() {
    let (mut graph, ..) = network();
    graph.name_inputs(["x\"\u{1f600}\\"]);
    graph.set_extra(serde_json::json!({"python": [1, "two"]}));
    let text = graph.to_json().unwrap();
    let back = Graph::from_json(&text).unwrap();
    assert_eq!(back.to_string(), graph.to_string());
    assert_eq!(back.to_json().unwrap(), text);
    let x = Tensor::from_slice(&[-1.0, 0.5, 0.0, 2.0, -2.0, 1.0], &[2, 3]).unwrap();
    assert_eq!(run(&back, &[&x]), run(&graph, &[&x]));
    assert_eq!(back.extra()["python"][1], "two");
}

#[test]
fn numbers_survive_json_to_the_last_bit() {
    let odd = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -0.0, 5e-324, 0.1, f64::MAX, 1.0];
    let x = floats(&[1.0]);
    for number in odd {
        let constant = floats(&[number]);
        let graph =
            trace(&[&x], |x| Ok(vec![aten::add(&aten::mul_scalar(&x[0], number)?, &constant)?]));
        let back = Graph::from_json(&graph.unwrap().to_json().unwrap()).unwrap();
        let Some(Value::Float(read)) = back.nodes()[0].args[1].arg.as_literal() else {
            panic!("{:?}", back.nodes()[0])
        };
        assert_eq!(read.to_bits(), number.to_bits(), "{number}");
        let read = back.constants()[0].tensor().unwrap().get::<f64>(&[0]).unwrap();
        assert_eq!(read.to_bits(), number.to_bits(), "{number}");
    }
}

#[test]
fn constants_of_every_dtype_and_layout_survive_json() {
    for dtype in DType::ALL {
        let one = Tensor::full(&[2, 3], Scalar::Bool(true), dtype, Device::CPU).unwrap();
        let constant = one.transpose(0, 1).unwrap();
        let x = floats(&[1.0]);
        let graph = trace(&[&x], |_| Ok(vec![constant.clone()])).unwrap();
        let back = Graph::from_json(&graph.to_json().unwrap()).unwrap();
        let read = back.constants()[0].tensor().unwrap();
        assert_eq!((read.dtype(), &**read.shape()), (dtype, &[3, 2][..]));
        assert_eq!(read.get_scalar(&[2, 1]).unwrap(), one.get_scalar(&[0, 0]).unwrap());
    }
}

#[test]
fn documents_that_are_no_graphs_are_refused_with_the_place() {
    let (graph, ..) = network();
    let text = graph.to_json().unwrap();
    let broken = [("{", "not JSON"), ("[]", "expected an object"), ("{}", "\"format\" is missing")];
    for (text, part) in broken {
        let error = Graph::from_json(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Trace);
        assert!(error.message().contains(part), "{error}");
    }
    let changes = [
        ("keyfold-graph", "other", "format"),
        ("\"version\":1", "\"version\":2", "version 2 is unknown"),
        ("\"version\":1", "\"version\":-1", "version"),
        ("float64", "float63", "values[0].dtype"),
        ("[3,2]", "[3,7]", "constants[0].data"),
        ("[3,2]", "[4611686018427387904,8]", "values[1].shape"),
        ("[3,2]", "[3,-2]", "values[1].shape[1]"),
        ("\"data\":\"", "\"data\":\"*", "constants[0].data"),
        ("{\"value\":0}", "{\"value\":3}", "before it is made"),
        ("{\"value\":0}", "{\"value\":99}", "there is no value 99"),
        ("{\"value\":0}", "{\"valve\":0}", "nodes[0].args[0].arg"),
        ("\"results\":[{\"value\":3}]", "\"results\":[{\"value\":0}]", "made twice"),
        ("\"outputs\":[", "\"outputs\":[1.5,", "outputs[0]"),
        ("\"cpu\"", "\"nowhere\"", "values[0].device"),
    ];
    for (from, to, part) in changes {
        assert!(text.contains(from), "{from} in {text}");
        let error = Graph::from_json(&text.replacen(from, to, 1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Trace);
        assert!(error.message().contains(part), "{from} -> {to}: {error}");
    }
}

#[test]
fn no_text_makes_reading_or_replaying_panic() {
    let (graph, ..) = network();
    let text = graph.to_json().unwrap();
    for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
        assert_eq!(Graph::from_json(&text[..end]).unwrap_err().kind(), ErrorKind::Trace);
    }
    let x = Tensor::zeros(&[2, 3], DType::F64, Device::CPU).unwrap();
    let mut state = 7_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let pieces = ["0", "1", "9", "null", "{}", "[]", "\"", "value", "-", "true", "float64", ","];
    let mut read = 0;
    for _ in 0..4000 {
        let at = random(text.len());
        let end = (at + random(4)).min(text.len());
        let mut changed = text.clone();
        changed.replace_range(at..end, pieces[random(pieces.len())]);
        match Graph::from_json(&changed) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Trace),
            Ok(graph) => {
                read += 1;
                let _ = graph.run_any_shape(dispatcher(), &[&x]);
                let _ = (graph.to_string(), graph.to_dot(Direction::Down), graph.simplified());
                let _ = (graph.to_mermaid(Direction::Right), graph.to_json());
            }
        }
    }
    assert!(read > 0, "some changes leave a graph a graph");
}

/// Splits DOT text into statements, checking that quotes and braces close.
fn dot_statements(text: &str) -> Vec<String> {
    let (mut depth, mut quoted, mut escaped) = (0_i32, false, false);
    let (mut all, mut now) = (Vec::new(), String::new());
    for c in text.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '{' if !quoted => depth += 1,
            '}' if !quoted => depth -= 1,
            ';' if !quoted => {
                all.push(std::mem::take(&mut now).trim().to_owned());
                continue;
            }
            _ => {}
        }
        assert!(depth >= 0 && !(quoted && c == '\n'));
        now.push(c);
    }
    assert!(depth == 0 && !quoted, "{text}");
    all
}

#[test]
fn drawings_have_a_box_for_each_part_and_an_arrow_for_each_use() {
    let (mut graph, ..) = network();
    graph.name_inputs(["a \"quoted\" \\ name\n#<b>"]);
    let dot = graph.to_dot(Direction::Right);
    let statements = dot_statements(&dot);
    let count = |part: &str| statements.iter().filter(|line| line.contains(part)).count();
    assert_eq!(count(" -> "), graph.nodes().iter().map(|n| n.reads().len()).sum::<usize>() + 2);
    assert_eq!(count("[label="), 1 + 2 + 4 + 2);
    assert!(dot.contains("rankdir=LR") && graph.to_dot(Direction::Down).contains("rankdir=TB"));
    assert!(dot.contains(r#"a \"quoted\" \\ name #<b>"#), "{dot}");
    assert!(dot.contains("cluster_constants") && dot.contains("dim=[1]"), "{dot}");
    let mermaid = graph.to_mermaid(Direction::Down);
    assert!(mermaid.starts_with("flowchart TD\n"));
    assert!(mermaid.contains("a #34;quoted#34; #92; name #35;#60;b#62;<br/>float64[2, 3]"));
    assert_eq!(mermaid.matches(" --> ").count(), count(" -> "));
}

#[test]
fn small_constants_are_shown_by_their_value() {
    let (x, half) = (floats(&[1.0]), Tensor::from_scalar(Scalar::Float(0.5), DType::F64).unwrap());
    let graph = trace(&[&x], |x| Ok(vec![aten::mul(&x[0], &half)?])).unwrap();
    assert!(graph.to_string().contains("%c0: float64[]  = constant 0.5\n"), "{graph}");
    assert!(graph.to_dot(Direction::Down).contains("\"0.5\\nfloat64[]\""));
}
