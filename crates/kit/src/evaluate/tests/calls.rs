//! Calls that are allowed, and calls that are refused.

use keyfold_core::{DType, Device, Shape, Strides};
use keyfold_expr::{Binary, Expr, Graph, Id, Input, Literal, Lowered, Node, Unary};

use super::super::*;
use super::cases::{check, inputs, on_all_levels};
use super::samples;
use crate::pool::set_num_threads;

fn binary(op: Binary) -> Expr {
    let mut graph = Graph::default();
    let (x, y) = (graph.add(Node::Input(0)), graph.add(Node::Input(1)));
    let root = graph.add(Node::Binary(op, x, y));
    Expr::new(&graph, root, inputs(2), vec![])
}

fn lower(expr: &Expr, dtypes: &[DType]) -> Lowered {
    Lowered::new(expr, dtypes, &[], None).unwrap()
}

fn program(expr: &Expr, dtypes: &[DType]) -> Program {
    Program::new(&lower(expr, dtypes)).unwrap()
}

pub(super) fn view(memory: &Tensor, shape: &[usize], strides: &[isize], offset: usize) -> Tensor {
    let (shape, strides) = (Shape::new(shape).unwrap(), Strides::new(strides).unwrap());
    Tensor::from_parts(memory.buffer().clone(), shape, strides, offset).unwrap()
}

/// Returns the error of a call.
///
/// # Panics
/// If the call succeeds.
fn refused(program: &Program, inputs: &[&Tensor], params: &[Scalar], out: &Tensor) -> Error {
    // SAFETY: the test alone uses the memory.
    unsafe { evaluate(program, inputs, params, out) }.unwrap_err()
}

#[test]
fn an_input_may_be_the_output() {
    let sub = lower(&binary(Binary::Sub), &[DType::F32; 2]);
    on_all_levels(|| {
        for n in [1, 7, 1000, 5000] {
            let y = samples::samples(&[n], DType::F32, 3);
            for which in 0..2 {
                let out = samples::samples(&[n], DType::F32, 4);
                let before = out.copy().unwrap();
                let expected = result(&sub, [[&before, &y], [&y, &before]][which], &[n]);
                let inputs = [[&out, &y], [&y, &out]][which];
                // SAFETY: the test alone uses the memory.
                unsafe { evaluate(&Program::new(&sub).unwrap(), &inputs, &[], &out) }.unwrap();
                assert_same(&out, &expected);
            }
            // Both inputs are the output, whose strides are negative and transposed.
            let memory = samples::samples(&[2 * n], DType::F32, 8);
            let out = view(&memory, &[2, n], &[-1, -2], 2 * n - 1);
            let copy = out.copy().unwrap();
            let expected = result(&sub, [&copy, &copy], &[2, n]);
            // SAFETY: as above.
            unsafe { evaluate(&Program::new(&sub).unwrap(), &[&out, &out], &[], &out) }.unwrap();
            assert_same(&out, &expected);
        }
    });
}

fn result(lowered: &Lowered, inputs: [&Tensor; 2], shape: &[usize]) -> Tensor {
    let out = Tensor::zeros(shape, lowered.result(), Device::CPU).unwrap();
    check(lowered, &inputs, &[], &out);
    out
}

fn assert_same(a: &Tensor, b: &Tensor) {
    for index in samples::indices(a.shape()) {
        assert!(samples::get(a, &index).same(samples::get(b, &index)), "{index:?}");
    }
}

#[test]
fn an_output_that_overlaps_an_input_otherwise_is_refused() {
    let add = program(&binary(Binary::Add), &[DType::F32; 2]);
    let memory = samples::samples(&[100], DType::F32, 1);
    let other = samples::samples(&[50], DType::F32, 2);
    let out = view(&memory, &[50], &[1], 0);
    let shifted = view(&memory, &[50], &[1], 1);
    let error = refused(&add, &[&other, &shifted], &[], &out);
    assert_eq!(error.kind(), ErrorKind::Value);
    assert!(error.message().contains("input 1") && error.message().contains("copy"), "{error}");
    assert_eq!(overlap(&out, &shifted).unwrap(), Overlap::Partial);
    assert_eq!(overlap(&out, &out).unwrap(), Overlap::Exact);
    assert_eq!(overlap(&out, &view(&memory, &[50], &[-1], 49)).unwrap(), Overlap::Partial);
    assert_eq!(overlap(&out, &view(&memory, &[50], &[1], 50)).unwrap(), Overlap::None);
    assert_eq!(overlap(&out, &view(&memory, &[0], &[1], 3)).unwrap(), Overlap::None);
    // Even and odd elements don't overlap, although their address ranges do.
    let (even, odd) = (view(&memory, &[50], &[2], 0), view(&memory, &[50], &[2], 1));
    assert_eq!(overlap(&even, &odd).unwrap(), Overlap::None);
    let square = view(&memory, &[10, 10], &[10, 1], 0);
    let turned = view(&memory, &[10, 10], &[1, 10], 0);
    assert_eq!(overlap(&square, &turned).unwrap(), Overlap::Partial);
    let repeated = view(&memory, &[50], &[0], 0);
    let error = refused(&add, &[&other, &other], &[], &repeated);
    assert_eq!(error.kind(), ErrorKind::Value);
    assert!(error.message().contains("share memory"), "{error}");
}

#[test]
fn wrong_operands_are_typed_errors() {
    let add = program(&binary(Binary::Add), &[DType::F32; 2]);
    let x = samples::samples(&[4], DType::F32, 1);
    let out = samples::samples(&[4], DType::F32, 1);
    let cases: [(&[&Tensor], &Tensor, ErrorKind, &str); 6] = [
        (&[&x], &out, ErrorKind::Binding, "2 inputs, but 1"),
        (&[&x, &samples::samples(&[4], DType::F64, 1)], &out, ErrorKind::DType, "input 1"),
        (&[&x, &x], &samples::samples(&[4], DType::F64, 1), ErrorKind::DType, "output"),
        (&[&x, &samples::samples(&[3], DType::F32, 1)], &out, ErrorKind::Shape, "input 1"),
        (&[&x, &Tensor::meta(&[4], DType::F32).unwrap()], &out, ErrorKind::NotSupported, "meta"),
        (&[&x, &x], &out.clone().into_read_only(), ErrorKind::ReadOnly, "read-only"),
    ];
    for (inputs, out, kind, text) in cases {
        let error = refused(&add, inputs, &[], out);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(text), "{error}");
    }
    let wide = samples::samples(&[1, 4], DType::F32, 1);
    assert_eq!(refused(&add, &[&x, &wide], &[], &out).kind(), ErrorKind::Shape);
    assert_eq!(add.signature().broadcast_shape(&[&[4, 1], &[3]]).unwrap(), [4, 3]);
    assert_eq!(
        add.signature().broadcast_shape(&[&[4], &[3]]).unwrap_err().kind(),
        ErrorKind::Shape
    );
    assert_eq!(add.signature().broadcast_shape(&[&[4]]).unwrap_err().kind(), ErrorKind::Binding);
}

#[test]
fn many_inputs_are_summed_and_more_refused() {
    for count in [64, 65] {
        let mut graph = Graph::default();
        let mut sum = graph.add(Node::Input(0));
        for i in 1..count {
            let x = graph.add(Node::Input(i));
            sum = graph.add(Node::Binary(Binary::Add, sum, x));
        }
        let expr = Expr::new(&graph, sum, inputs(count as usize), vec![]);
        let lowered = lower(&expr, &vec![DType::I32; count as usize]);
        let tensors: Vec<Tensor> = (0..count)
            .map(|i| samples::samples(&[i as usize % 2 * 9 + 1, 8], DType::I32, 1))
            .collect();
        let tensors: Vec<&Tensor> = tensors.iter().collect();
        let out = Tensor::zeros(&[10, 8], DType::I32, Device::CPU).unwrap();
        if count <= MAX_INPUTS as u32 {
            check(&lowered, &tensors, &[], &out);
        } else {
            let error = refused(&Program::new(&lowered).unwrap(), &tensors, &[], &out);
            assert_eq!(error.kind(), ErrorKind::Value);
            assert!(error.message().contains("64"), "{error}");
        }
    }
}

#[test]
fn a_chain_of_ten_thousand_steps_needs_few_registers() {
    let mut graph = Graph::default();
    let x = graph.add(Node::Input(0));
    let mut last = x;
    for i in 0..10_000 {
        let number = graph.add(Node::Literal(Literal::Int(i % 100)));
        let product = graph.add(Node::Binary(Binary::Mul, last, x));
        last = graph.add(Node::Binary(Binary::Xor, product, number));
    }
    let expr = Expr::new(&graph, last, inputs(1), vec![]);
    let lowered = lower(&expr, &[DType::U16]);
    assert!(Program::new(&lowered).unwrap().slots() < 120);
    let x = samples::samples(&[40], DType::U16, 1);
    check(&lowered, &[&x], &[], &Tensor::zeros(&[40], DType::U16, Device::CPU).unwrap());
    // The same number of steps, with all values alive at once.
    let mut nodes: Vec<Id> = vec![x_node(&mut graph)];
    for i in 1..2000_i64 {
        let number = graph.add(Node::Literal(Literal::Int(i)));
        let before = nodes[nodes.len() - 1];
        nodes.push(graph.add(Node::Binary(Binary::Add, before, number)));
    }
    let mut sum = nodes[0];
    for id in nodes.iter().rev() {
        sum = graph.add(Node::Binary(Binary::Mul, sum, *id));
    }
    let expr = Expr::new(&graph, sum, inputs(1), vec![]);
    let lowered = lower(&expr, &[DType::I64]);
    let x = samples::samples(&[40], DType::I64, 1);
    check(&lowered, &[&x], &[], &Tensor::zeros(&[40], DType::I64, Device::CPU).unwrap());
}

fn x_node(graph: &mut Graph) -> Id {
    graph.add(Node::Input(0))
}

/// `table[i0, i1]`
fn gather() -> Expr {
    let mut graph = Graph::default();
    let indices = [graph.add(Node::Input(1)), graph.add(Node::Input(2))];
    let root = graph.add(Node::At { input: 0, indices: indices.into_iter().collect() });
    let mut all = inputs(3);
    all[0] = Input { name: "table".into(), rank: Some(2) };
    Expr::new(&graph, root, all, vec![])
}

#[test]
fn ranked_inputs_are_read_at_computed_indices() {
    let expr = gather();
    let rows = Tensor::from_vec((0..600).map(|i| i % 7 - 3).collect::<Vec<i64>>(), &[600]).unwrap();
    let cols = Tensor::from_vec(vec![-5_i8, 0, 4], &[3, 1]).unwrap();
    for dtype in DType::ALL {
        let lowered = lower(&expr, &[dtype, DType::I64, DType::I8]);
        let memory = samples::samples(&[40], dtype, 1);
        for table in [view(&memory, &[4, 5], &[5, 1], 0), view(&memory, &[4, 5], &[-1, 8], 3)] {
            let out = Tensor::zeros(&[3, 600], dtype, Device::CPU).unwrap();
            check(&lowered, &[&table, &rows, &cols], &[], &out);
        }
    }
}

#[test]
fn indices_out_of_range_are_errors_and_read_no_memory() {
    let program = program(&gather(), &[DType::F32, DType::I64, DType::I64]);
    let table = samples::samples(&[4, 5], DType::F32, 1);
    let out = Tensor::zeros(&[3], DType::F32, Device::CPU).unwrap();
    for (wrong, dim) in [(4, 0), (-5, 0), (5, 1), (i64::MIN, 1), (i64::MAX, 1)] {
        let fine = Tensor::from_vec(vec![0_i64, 1, 2], &[3]).unwrap();
        let bad = Tensor::from_vec(vec![0, wrong, 1], &[3]).unwrap();
        let inputs = if dim == 0 { [&table, &bad, &fine] } else { [&table, &fine, &bad] };
        let error = refused(&program, &inputs, &[], &out);
        assert_eq!(error.kind(), ErrorKind::Index);
        let text = format!("index {wrong} is out of range for dimension {dim} of '");
        assert!(error.message().contains(&text), "{error}");
    }
    let empty = Tensor::zeros(&[0, 5], DType::F32, Device::CPU).unwrap();
    let index = Tensor::from_vec(vec![0_i64], &[1]).unwrap();
    let one = Tensor::zeros(&[1], DType::F32, Device::CPU).unwrap();
    let error = refused(&program, &[&empty, &index, &index], &[], &one);
    assert_eq!(error.kind(), ErrorKind::Index);
    let flat = samples::samples(&[4], DType::F32, 1);
    assert_eq!(refused(&program, &[&flat, &index, &index], &[], &one).kind(), ErrorKind::Shape);
    // The table is the output, and is read at other indices than are written.
    let square = samples::samples(&[3], DType::F32, 1);
    let table = view(&square, &[1, 3], &[3, 1], 0);
    let error = refused(&program, &[&table, &index, &index], &[], &square);
    assert_eq!(error.kind(), ErrorKind::Value);
}

#[test]
fn negative_powers_of_integers_are_errors() {
    let power = program(&binary(Binary::Pow), &[DType::I32; 2]);
    let x = Tensor::from_vec((0..3000).collect::<Vec<i32>>(), &[3000]).unwrap();
    let y = Tensor::from_vec((0..3000).map(|i| 2990 - i).collect::<Vec<i32>>(), &[3000]).unwrap();
    let out = Tensor::zeros(&[3000], DType::I32, Device::CPU).unwrap();
    let error = refused(&power, &[&x, &y], &[], &out);
    assert_eq!(error.kind(), ErrorKind::Value);
    assert!(error.message().contains("negative power"), "{error}");
}

#[test]
fn expressions_of_numbers_fill_the_output() {
    let mut graph = Graph::default();
    let (a, b) = (graph.add(Node::Param(0)), graph.add(Node::Param(1)));
    let root = graph.add(Node::Binary(Binary::Add, a, b));
    let root = graph.add(Node::Cast(DType::BF16, root));
    let expr = Expr::new(&graph, root, vec![], vec!["a".into(), "b".into()]);
    let numbers = [Scalar::Float(1.5), Scalar::Int(2)];
    let kinds = numbers.map(Scalar::kind);
    let lowered = Lowered::new(&expr, &[], &kinds, None).unwrap();
    let memory = Tensor::zeros(&[3000], DType::BF16, Device::CPU).unwrap();
    for out in [view(&memory, &[3000], &[1], 0), view(&memory, &[20, 30], &[1, 40], 0)] {
        check(&lowered, &[], &numbers, &out);
    }
    let program = Program::new(&lowered).unwrap();
    let out = view(&memory, &[], &[], 0);
    assert_eq!(refused(&program, &[], &numbers[..1], &out).kind(), ErrorKind::Binding);
}

#[test]
fn a_parameter_that_a_dtype_cannot_hold_is_refused() {
    let mut graph = Graph::default();
    let (x, p) = (graph.add(Node::Input(0)), graph.add(Node::Param(0)));
    let root = graph.add(Node::Binary(Binary::Mul, x, p));
    let compiled = Compiled::new(Expr::new(&graph, root, inputs(1), vec!["p".into()]));
    let small = compiled.program(&[DType::U8], &[Scalar::Int(3)], None).unwrap();
    let x = samples::samples(&[5], DType::U8, 1);
    let error = refused(&small, &[&x], &[Scalar::Int(300)], &x);
    assert_eq!(error.kind(), ErrorKind::Value);
    let again = compiled.program(&[DType::U8], &[Scalar::UInt(u64::MAX)], None).unwrap();
    assert!(std::sync::Arc::ptr_eq(&small, &again));
    let wide = compiled.program(&[DType::U8], &[Scalar::Float(0.5)], None).unwrap();
    assert_eq!(wide.result(), DType::F64);
    let narrow = compiled.program(&[DType::U8], &[Scalar::Float(0.5)], Some(DType::F32)).unwrap();
    assert_eq!(narrow.result(), DType::F32);
}

#[test]
fn any_byte_except_0_is_true() {
    let bytes = samples::samples(&[2000], DType::U8, 1);
    // SAFETY: the bytes are initialised. The test reads them as elements of dtype bool, of which most
    // aren't 0 or 1.
    let buffer = unsafe { as_bools(&bytes) };
    let bools = Tensor::from_parts(buffer, [2000].into(), [1].into(), 0).unwrap();
    let mut graph = Graph::default();
    let x = graph.add(Node::Input(0));
    let same = Expr::new(&graph, x, inputs(1), vec![]);
    let not = graph.add(Node::Unary(Unary::Not, x));
    let not = Expr::new(&graph, not, inputs(1), vec![]);
    on_all_levels(|| {
        for expr in [&same, &not] {
            let out = Tensor::zeros(&[2000], DType::Bool, Device::CPU).unwrap();
            check(&lower(expr, &[DType::Bool]), &[&bools], &[], &out);
            out.as_slice::<bool>().unwrap();
        }
    });
}

/// Returns the tensor's memory as a buffer of bools.
///
/// # Safety
/// The tensor has one-byte elements.
unsafe fn as_bools(tensor: &Tensor) -> keyfold_tensor::BufferHandle {
    let bytes = tensor.as_slice::<u8>().unwrap().to_vec();
    let bools = Tensor::zeros(&[bytes.len()], DType::Bool, Device::CPU).unwrap();
    // SAFETY: as many bytes, of a fresh tensor.
    unsafe { bools.raw_data_ptr().unwrap().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    bools.into_buffer()
}

#[test]
fn one_thread_and_several_have_equal_results() {
    let mut graph = Graph::default();
    let (x, i) = (graph.add(Node::Input(0)), graph.add(Node::Index));
    let row = graph.add(Node::Coordinate(1));
    let places = graph.add(Node::Binary(Binary::Add, i, row));
    let sum = graph.add(Node::Binary(Binary::Add, x, places));
    let root = graph.add(Node::Unary(Unary::Exp, sum));
    let expr = Expr::new(&graph, root, inputs(1), vec![]);
    let program = program(&expr, &[DType::F32]);
    let n = 700;
    let memory = samples::samples(&[n * n], DType::F32, 1);
    on_all_levels(|| {
        for strides in [[n as isize, 1], [1, n as isize], [0, 1], [1, 0]] {
            let x = view(&memory, &[n, n], &strides, 0);
            let results = [1, 2, 5].map(|threads| {
                set_num_threads(threads).unwrap();
                let out = Tensor::zeros(&[n, n], DType::F32, Device::CPU).unwrap();
                // SAFETY: the test alone uses the output's memory.
                unsafe { evaluate(&program, &[&x], &[], &out) }.unwrap();
                out.to_vec::<f32>().unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            });
            assert!(results[0] == results[1] && results[0] == results[2]);
        }
    });
}

#[test]
fn large_outputs_past_the_caches_are_right() {
    for dtype in [DType::F32, DType::BF16, DType::Bool, DType::C128] {
        let mut graph = Graph::default();
        let x = graph.add(Node::Input(0));
        let expr = Expr::new(&graph, x, inputs(1), vec![]);
        let program = program(&expr, &[dtype]);
        let n = NON_TEMPORAL_BYTES / dtype.size() + 1001;
        let (x, memory) = (samples::samples(&[n], dtype, 1), samples::samples(&[n + 3], dtype, 9));
        // The output begins 3 elements behind a cache line.
        let out = view(&memory, &[n], &[1], 3);
        // SAFETY: the test alone uses the output's memory.
        unsafe { evaluate(&program, &[&x], &[], &out) }.unwrap();
        for at in (0..n).step_by(997).chain(n - 40..n).chain(0..40) {
            assert!(samples::get(&out, &[at]).same(samples::get(&x, &[at])), "{dtype} {at}");
        }
        assert!(
            samples::get(&memory, &[2]).same(samples::get(&samples::samples(&[3], dtype, 9), &[2]))
        );
    }
}

#[test]
fn arithmetic_around_a_function_keeps_signed_zeros() {
    let text = ["erf(x) * max(y, 0.0)", "tanh(x) * max(0.0, y)", "erf(x) * max(y, -0.0)"];
    for text in text {
        let lowered =
            Lowered::new(&Expr::parse(text).unwrap(), &[DType::F32; 2], &[], None).unwrap();
        let x = Tensor::from_vec(vec![1.0_f32; 4], &[4]).unwrap();
        let y = Tensor::from_vec(vec![0.0_f32, -0.0, 2.0, -2.0], &[4]).unwrap();
        let out = Tensor::zeros(&[4], DType::F32, Device::CPU).unwrap();
        on_all_levels(|| check(&lowered, &[&x, &y], &[], &out));
    }
}
