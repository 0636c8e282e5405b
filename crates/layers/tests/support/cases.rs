//! The table of operators with derivatives, with their arguments.

mod decomposition;
mod networks;
mod pooling;
mod recurrent;

use keyfold::dispatcher;
use keyfold::ops::{Rule, aten};
use keyfold_core::{DType, Device, Result};
use keyfold_tensor::{Tensor, Value, ValueRef as V};

use crate::support::{Function, POSITIVE_ONLY, call, data, unary_rows};

/// A call of an operator.
pub(crate) struct Case {
    pub(crate) op: &'static str,
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) constants: Vec<Tensor>,
    pub(crate) function: Box<Function>,
}

impl Case {
    pub(crate) fn label(&self) -> String {
        let shapes: Vec<_> = self.inputs.iter().map(|x| format!("{:?}", x.shape())).collect();
        format!("{} of {}", self.op, shapes.join(", "))
    }

    /// Whether the shape of a result depends on a mask, so that there is no kernel for Meta.
    pub(crate) fn has_mask(&self) -> bool {
        let is_pointwise = ["aten::where", "aten::masked_fill", "keyfold::masked_zero"];
        !is_pointwise.iter().any(|name| self.op.starts_with(name))
            && self.constants.iter().any(|c| c.dtype() == DType::Bool)
    }
}

/// The table under construction.
#[derive(Default)]
struct Table(Vec<Case>);

impl Table {
    fn add(
        &mut self,
        op: &'static str,
        inputs: Vec<Tensor>,
        constants: Vec<Tensor>,
        function: impl Fn(&[Tensor], &[Tensor]) -> Result<Tensor> + 'static,
    ) {
        self.0.push(Case { op, inputs, constants, function: Box::new(function) });
    }

    /// Adds an operator of one tensor and other arguments.
    fn plain(&mut self, op: &'static str, shapes: &[&[usize]], args: Vec<V<'static>>) {
        for shape in shapes {
            let args = args.clone();
            self.add(op, vec![data(shape, 0, 0.25, 1.9)], vec![], move |x, _| {
                let all: Vec<V<'_>> = [V::Tensor(&x[0])].into_iter().chain(args.clone()).collect();
                call(op, &all)
            });
        }
    }

    /// Adds an operator of numbers between two bounds.
    fn unary(&mut self, op: &'static str, low: f64, high: f64) {
        for shape in [&[][..], &[3], &[2, 3], &[0, 3]] {
            self.add(op, vec![data(shape, 0, low, high)], vec![], move |x, _| {
                call(op, &[V::Tensor(&x[0])])
            });
        }
    }

    /// Adds an operator of two tensors that broadcast.
    fn binary(&mut self, op: &'static str, low: f64, high: f64) {
        let pairs: [(&[usize], &[usize]); 7] = [
            (&[2, 3], &[2, 3]),
            (&[2, 3], &[3]),
            (&[2, 1], &[1, 3]),
            (&[], &[2]),
            (&[3], &[]),
            (&[], &[]),
            (&[0, 3], &[1, 3]),
        ];
        for (a, b) in pairs {
            let inputs = vec![data(a, 0, low, high), data(b, 1, low, high)];
            self.add(op, inputs, vec![], move |x, _| {
                call(op, &[V::Tensor(&x[0]), V::Tensor(&x[1])])
            });
        }
    }
}

fn ints(items: &[i64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(items, shape).unwrap()
}

fn bools(items: &[bool], shape: &[usize]) -> Tensor {
    Tensor::from_slice(items, shape).unwrap()
}

/// Returns a call of every operator that has a derivative.
pub(crate) fn cases() -> Vec<Case> {
    keyfold::init();
    let mut table = Table::default();
    pointwise(&mut table);
    activations(&mut table);
    masked(&mut table);
    reductions(&mut table);
    networks::norms(&mut table);
    scans(&mut table);
    products(&mut table);
    networks::convolutions(&mut table);
    shapes(&mut table);
    indexing(&mut table);
    joins(&mut table);
    parts(&mut table);
    writes(&mut table);
    pooling::pooling(&mut table);
    dropout(&mut table);
    decomposition::add(&mut table);
    recurrent::add(&mut table);
    table.0
}

fn pointwise(table: &mut Table) {
    for op in ["aten::add", "aten::sub", "aten::mul", "aten::maximum", "aten::minimum"] {
        table.binary(op, -1.5, 1.9);
    }
    for op in ["aten::div", "aten::pow", "aten::remainder", "aten::floor_divide"] {
        table.binary(op, 0.4, 1.9);
    }
    for row in unary_rows() {
        if !matches!(row.layers().derivative, Rule::Refused(_)) {
            let op: &'static str = Box::leak(row.schema().name.to_string().into_boxed_str());
            table.unary(op, if POSITIVE_ONLY.contains(&op) { 0.4 } else { -1.49 }, 1.9);
        }
    }
    let plain: &[&[usize]] = &[&[], &[4], &[2, 3]];
    for op in ["add", "sub", "mul", "div", "maximum", "minimum", "rsub", "rdiv", "pow", "rpow"] {
        let op: &'static str = Box::leak(format!("aten::{op}.Scalar").into_boxed_str());
        for number in [V::Float(1.3), V::Int(2)] {
            table.plain(op, plain, vec![number]);
        }
    }
    let rests = "remainder floor_divide rremainder rfloor_divide";
    for op in rests.split_whitespace() {
        let op: &'static str = Box::leak(format!("aten::{op}.Scalar").into_boxed_str());
        table.plain(op, plain, vec![V::Float(1.3)]);
    }
    for number in [V::Int(0), V::Int(1), V::Int(3), V::Int(-2), V::Float(0.5), V::Bool(true)] {
        table.plain("aten::pow.Scalar", plain, vec![number]);
    }
    let mask = || bools(&[true, false, true, false, false, true], &[2, 3]);
    for (a, b) in [(&[2, 3][..], &[2, 3][..]), (&[3], &[2, 1]), (&[], &[1])] {
        let inputs = vec![data(a, 0, -1.0, 1.0), data(b, 1, -1.0, 1.0)];
        table.add("aten::where", inputs, vec![mask()], |x, c| aten::where_(&c[0], &x[0], &x[1]));
    }
    for shape in [&[2, 3][..], &[3], &[]] {
        table.add(
            "aten::where.ScalarOther",
            vec![data(shape, 0, -1.0, 1.0)],
            vec![mask()],
            |x, c| aten::where_scalar_other(&c[0], &x[0], 0.5),
        );
        table.add(
            "aten::where.ScalarSelf",
            vec![data(shape, 0, -1.0, 1.0)],
            vec![mask()],
            |x, c| aten::where_scalar_self(&c[0], 0.5, &x[0]),
        );
    }
}

fn activations(table: &mut Table) {
    let shapes: &[&[usize]] = &[&[], &[4], &[2, 3], &[0, 3]];
    let (low, high) = (V::Float(-0.375), V::Float(1.25));
    for bounds in [[low, high], [low, V::None], [V::None, high]] {
        table.plain("aten::clamp", shapes, bounds.to_vec());
    }
    table.plain("aten::hardtanh", shapes, vec![]);
    table.plain("aten::hardtanh", shapes, vec![low, high]);
    for op in ["aten::leaky_relu", "aten::elu"] {
        for shape in shapes {
            table.add(op, vec![data(shape, 0, -1.49, 1.9)], vec![], move |x, _| {
                call(op, &[V::Tensor(&x[0]), V::Float(0.3)])
            });
        }
    }
    for op in ["sigmoid", "tanh", "gelu", "gelu_tanh", "gelu_sigmoid"] {
        let op: &'static str = Box::leak(format!("aten::{op}_backward").into_boxed_str());
        table.binary(op, -1.5, 1.9);
    }
    for (a, b) in [(&[2, 3][..], &[2, 3][..]), (&[3], &[2, 1]), (&[], &[2])] {
        let inputs = vec![data(a, 0, -1.5, 1.9), data(b, 1, -1.5, 1.9)];
        table.add("aten::threshold_backward", inputs, vec![], |x, _| {
            aten::threshold_backward(&x[0], &x[1], 0.25)
        });
    }
}

fn masked(table: &mut Table) {
    let mask = || bools(&[true, false, true, false, false, true], &[2, 3]);
    for shape in [&[2, 3][..], &[3], &[]] {
        let x = || data(shape, 0, -1.0, 1.0);
        table.add("aten::masked_fill.Scalar", vec![x()], vec![mask()], |x, c| {
            call("aten::masked_fill.Scalar", &[V::Tensor(&x[0]), V::Tensor(&c[0]), V::Float(0.5)])
        });
        table.add("keyfold::masked_zero", vec![x()], vec![mask()], |x, c| {
            aten::masked_zero(&x[0], &c[0])
        });
        for values in [&[][..], &[2, 1]] {
            let inputs = vec![x(), data(values, 1, -1.0, 1.0)];
            table.add("aten::masked_fill.Tensor", inputs, vec![mask()], |x, c| {
                let args = [V::Tensor(&x[0]), V::Tensor(&c[0]), V::Tensor(&x[1])];
                call("aten::masked_fill.Tensor", &args)
            });
        }
    }
}

fn reductions(table: &mut Table) {
    let shapes: &[&[usize]] = &[&[], &[4], &[2, 3], &[2, 2, 3]];
    for op in ["aten::sum", "aten::mean", "aten::max", "aten::min"] {
        table.plain(op, shapes, vec![]);
    }
    table.plain("aten::sum", &[&[0, 2]], vec![]);
    let wide = V::DType(DType::F64);
    for op in ["aten::sum", "aten::mean"] {
        table.plain(op, shapes, vec![wide]);
    }
    for op in ["aten::sum.dim", "aten::mean.dim"] {
        table.plain(op, &[&[2, 3]], vec![V::Ints(&[0]), V::Bool(false), wide]);
    }
    let dims: [&'static [i64]; 4] = [&[-1], &[0, 2], &[], &[1, -1, 0]];
    for keepdim in [false, true] {
        for op in ["aten::sum.dim", "aten::mean.dim", "aten::amax", "aten::amin"] {
            for dims in dims {
                table.plain(op, &[&[2, 3, 2]], vec![V::Ints(dims), V::Bool(keepdim)]);
            }
            table.plain(op, &[&[], &[2, 3]], vec![V::None, V::Bool(keepdim)]);
            table.plain(op, &[&[0, 2]], vec![V::Ints(&[1]), V::Bool(keepdim)]);
        }
    }
    for op in ["aten::softmax", "aten::log_softmax"] {
        for dim in [0, -1] {
            table.plain(op, &[&[4], &[2, 3], &[2, 2, 3], &[0, 2]], vec![V::Int(dim)]);
        }
    }
}

fn scans(table: &mut Table) {
    for op in ["aten::cumsum", "aten::cumprod"] {
        for dim in [0, -1] {
            let shapes: &[&[usize]] = &[&[4], &[1], &[2, 3], &[2, 5, 2], &[0, 2]];
            table.plain(op, shapes, vec![V::Int(dim)]);
        }
        table.plain(op, &[&[2, 3]], vec![V::Int(0), V::DType(DType::F64)]);
    }
    // A lane without zeros, and lanes with one, two, and three.
    let items = [0.5, 0.0, 0.0, 0.0, -1.5, 0.7, 0.0, 0.0, 2.0, 1.2, -0.6, 0.0, 0.8, 1.1, 1.3, 0.9];
    let items = Tensor::from_slice(&items, &[4, 4]).unwrap();
    table.add("aten::cumprod", vec![items], vec![], |x, _| aten::cumprod(&x[0], 0));
}

fn products(table: &mut Table) {
    let pairs: [(&[usize], &[usize]); 14] = [
        (&[3], &[3]),
        (&[2, 3], &[3]),
        (&[3], &[3, 2]),
        (&[2, 3], &[3, 2]),
        (&[2, 2, 3], &[3]),
        (&[3], &[2, 3, 2]),
        (&[2, 2, 3], &[3, 2]),
        (&[2, 3], &[2, 3, 2]),
        (&[2, 2, 3], &[2, 3, 1]),
        (&[2, 1, 2, 3], &[1, 2, 3, 2]),
        (&[2, 1, 2, 3], &[2, 3, 1]),
        (&[1, 2, 3], &[2, 3, 2]),
        (&[2, 0], &[0, 3]),
        (&[0, 2, 3], &[3, 2]),
    ];
    for (a, b) in pairs {
        let inputs = vec![data(a, 0, -1.5, 1.9), data(b, 1, -1.5, 1.9)];
        table.add("aten::matmul", inputs, vec![], |x, _| aten::matmul(&x[0], &x[1]));
    }
    let ranked: [(&'static str, &[usize], &[usize]); 4] = [
        ("aten::mm", &[2, 3], &[3, 4]),
        ("aten::bmm", &[2, 2, 3], &[2, 3, 1]),
        ("aten::mv", &[2, 3], &[3]),
        ("aten::dot", &[3], &[3]),
    ];
    for (op, a, b) in ranked {
        let inputs = vec![data(a, 0, -1.5, 1.9), data(b, 1, -1.5, 1.9)];
        table.add(op, inputs, vec![], move |x, _| call(op, &[V::Tensor(&x[0]), V::Tensor(&x[1])]));
    }
    type Sum = (&'static str, &'static [usize], &'static [usize], &'static [usize]);
    let sums: [Sum; 5] = [
        ("aten::addmm", &[2, 4], &[2, 3], &[3, 4]),
        ("aten::addmm", &[4], &[2, 3], &[3, 4]),
        ("aten::addmm", &[], &[2, 0], &[0, 4]),
        ("aten::baddbmm", &[2, 1, 4], &[2, 2, 3], &[2, 3, 4]),
        ("aten::baddbmm", &[2, 1], &[2, 2, 3], &[2, 3, 4]),
    ];
    for (op, addend, a, b) in sums {
        let inputs = vec![data(addend, 2, -1.5, 1.9), data(a, 0, -1.5, 1.9), data(b, 1, -1.5, 1.9)];
        table.add(op, inputs, vec![], move |x, _| {
            let all = [V::Tensor(&x[0]), V::Tensor(&x[1]), V::Tensor(&x[2])];
            call(op, &[&all[..], &[V::Float(0.5), V::Float(-1.5)]].concat())
        });
    }
    type Layer = (&'static [usize], &'static [usize], Option<&'static [usize]>);
    let layers: [Layer; 6] = [
        (&[2, 3], &[4, 3], Some(&[4])),
        (&[2, 2, 3], &[4, 3], Some(&[4])),
        (&[3], &[4, 3], None),
        (&[2, 3], &[3], Some(&[])),
        (&[0, 3], &[4, 3], Some(&[4])),
        (&[2, 0], &[4, 0], Some(&[4])),
    ];
    for (x, weight, bias) in layers {
        let mut inputs = vec![data(x, 0, -1.5, 1.9), data(weight, 1, -1.5, 1.9)];
        inputs.extend(bias.map(|shape| data(shape, 2, -1.5, 1.9)));
        table.add("aten::linear", inputs, vec![], |x, _| {
            call("aten::linear", &x.iter().map(V::Tensor).collect::<Vec<_>>())
        });
    }
    for activation in ["none", "relu", "gelu", "gelu_tanh", "gelu_sigmoid", "sigmoid", "tanh"] {
        let inputs = [&[2, 3][..], &[4, 3], &[4]];
        let inputs = inputs.into_iter().enumerate();
        let inputs = inputs.map(|(at, shape)| data(shape, at, -1.5, 1.9)).collect();
        table.add("keyfold::linear_activation", inputs, vec![], move |x, _| {
            let all = [V::Tensor(&x[0]), V::Tensor(&x[1]), V::Tensor(&x[2])];
            call("keyfold::linear_activation", &[&all[..], &[V::Str(activation)]].concat())
        });
    }
}

fn shapes(table: &mut Table) {
    let all: &[&[usize]] = &[&[], &[3], &[2, 3], &[0, 2]];
    for op in ["aten::contiguous", "aten::clone", "aten::alias"] {
        table.plain(op, all, vec![]);
    }
    table.plain("aten::to", all, vec![V::DType(DType::F64)]);
    table.plain("aten::to.device", all, vec![V::Device(Device::CPU)]);
    table.plain("aten::squeeze", &[&[1, 2, 1], &[1], &[2, 3]], vec![]);
    table.plain("aten::squeeze.dim", &[&[2, 1, 3]], vec![V::Int(1)]);
    table.plain("aten::unsqueeze", all, vec![V::Int(-1)]);
    table.plain("aten::reshape", &[&[2, 3], &[6], &[3, 1, 2]], vec![V::Ints(&[3, -1])]);
    table.plain("aten::transpose", &[&[2, 3], &[2, 2, 3]], vec![V::Int(0), V::Int(-1)]);
    table.plain("aten::permute", &[&[2, 3, 2], &[1, 2, 3]], vec![V::Ints(&[2, 0, -2])]);
    table.plain("aten::expand", &[&[3], &[1, 3], &[2, 1], &[]], vec![V::Ints(&[2, 2, 3])]);
    table.plain("aten::expand", &[&[1, 3]], vec![V::Ints(&[2, -1])]);
    table.plain("aten::flip", &[&[2, 3], &[2, 2, 2]], vec![V::Ints(&[0, -1])]);
    table.plain("aten::select.int", &[&[2, 3], &[2, 2, 2]], vec![V::Int(-1), V::Int(-2)]);
    let (one, five) = (V::Int(1), V::Int(5));
    table.plain("aten::slice.Tensor", &[&[6], &[7, 2]], vec![V::Int(0), one, five, V::Int(2)]);
    let (none, back) = (V::None, V::Int(-2));
    table.plain("aten::slice.Tensor", &[&[2, 3]], vec![V::Int(-1), none, back, V::Int(1)]);
    table.plain("aten::slice.Tensor", &[&[3]], vec![V::Int(0), five, none, V::Int(1)]);
}

fn indexing(table: &mut Table) {
    let x = || vec![data(&[3, 2, 3], 0, -1.5, 1.9)];
    let at = || ints(&[0, -1, 0, 1], &[2, 2]);
    let along = || ints(&[1, 0], &[2]);
    let mask = || bools(&[true, false, false, true, true, false], &[3, 2]);
    type Pick = fn(&[Tensor]) -> Vec<Option<Tensor>>;
    let picks: [(Vec<Tensor>, Pick); 7] = [
        (vec![at()], |c| vec![Some(c[0].clone())]),
        (vec![at()], |c| vec![None, Some(c[0].clone())]),
        (vec![at(), along()], |c| vec![Some(c[0].clone()), Some(c[1].clone())]),
        (vec![at(), along()], |c| vec![Some(c[0].clone()), None, Some(c[1].clone())]),
        (vec![mask()], |c| vec![Some(c[0].clone())]),
        (vec![mask(), ints(&[2, 0, 1], &[3])], |c| vec![Some(c[0].clone()), Some(c[1].clone())]),
        (vec![bools(&[false, true, true], &[3])], |c| vec![None, None, Some(c[0].clone())]),
    ];
    for (constants, pick) in picks {
        table.add("aten::index.Tensor", x(), constants.clone(), move |x, c| {
            aten::index(&x[0], &pick(c))
        });
        let picked = aten::index(&x()[0], &pick(&constants)).unwrap();
        for shape in [&**picked.shape(), &[]] {
            for adds in [false, true] {
                let inputs = || vec![x().remove(0), data(shape, 1, -1.0, 1.0)];
                table.add("aten::index_put", inputs(), constants.clone(), move |x, c| {
                    aten::index_put(&x[0], &pick(c), &x[1], adds)
                });
                table.add("aten::index_put_", inputs(), constants.clone(), move |x, c| {
                    let target = aten::mul(&x[0], &x[0])?;
                    let indices = pick(c);
                    let indices: Vec<V<'_>> =
                        indices.iter().map(|i| i.as_ref().map_or(V::None, V::Tensor)).collect();
                    let (target, values) = (V::Tensor(&target), V::Tensor(&x[1]));
                    call("aten::index_put_", &[target, V::Refs(&indices), values, V::Bool(adds)])
                });
            }
        }
    }
    let rows = || ints(&[1, -3, 1, 0], &[4]);
    table.add("aten::index_select", x(), vec![rows()], |x, c| aten::index_select(&x[0], 0, &c[0]));
    table.add("aten::index_select", x(), vec![rows()], |x, c| aten::index_select(&x[0], -1, &c[0]));
    let source = data(&[3, 2, 4], 1, -1.0, 1.0);
    table.add("aten::index_add", vec![x().remove(0), source], vec![rows()], |x, c| {
        aten::index_add(&x[0], 2, &c[0], &x[1])
    });
    let masks: [(&[usize], Tensor); 4] = [
        (&[3, 2], mask()),
        (&[2], mask()),
        (&[3, 2], bools(&[true, false], &[2])),
        (&[], bools(&[true], &[])),
    ];
    for (shape, mask) in masks {
        let inputs = vec![data(shape, 0, -1.0, 1.0)];
        table.add("aten::masked_select", inputs, vec![mask], |x, c| {
            call("aten::masked_select", &[V::Tensor(&x[0]), V::Tensor(&c[0])])
        });
    }
    caches(table);
    for numbers in [ints(&[2, 0, 2, 2], &[2, 2]), ints(&[1], &[]), ints(&[], &[0])] {
        let weight = vec![data(&[3, 2], 0, -1.0, 1.0)];
        table.add("aten::embedding", weight, vec![numbers.clone()], |x, c| {
            aten::embedding(&x[0], &c[0])
        });
        let shape = [&numbers.shape()[..], &[2]].concat();
        let grad = vec![data(&shape, 0, -1.0, 1.0)];
        table.add("aten::embedding_dense_backward", grad, vec![numbers], |x, c| {
            aten::embedding_dense_backward(&x[0], &c[0], 4, 2)
        });
    }
    let index = || ints(&[0, 1, 0, 1, 0, 0, 1, -1], &[2, 2, 2]);
    table.add("aten::gather", x(), vec![index()], |x, c| aten::gather(&x[0], 1, &c[0]));
    table.add("aten::gather", x(), vec![index()], |x, c| aten::gather(&x[0], 0, &c[0]));
    for shape in [&[2, 2, 2][..], &[3, 2, 4]] {
        let inputs = vec![x().remove(0), data(shape, 1, -1.0, 1.0)];
        table.add("aten::scatter_add", inputs, vec![index()], |x, c| {
            aten::scatter_add(&x[0], 2, &c[0], &x[1])
        });
    }
}

fn caches(table: &mut Table) {
    for shape in [&[2, 3][..], &[2, 2, 3], &[2, 0, 3]] {
        let inputs = vec![data(&[2, 4, 3], 0, -1.0, 1.0), data(shape, 1, -1.0, 1.0)];
        table.add("keyfold::slice_write_", inputs, vec![], |x, _| {
            let target = aten::mul(&x[0], &x[0])?;
            call("keyfold::slice_write_", &[V::Tensor(&target), V::Tensor(&x[1]), V::Int(2)])
        });
    }
    table.plain("keyfold::slice_read", &[&[2, 4, 3], &[1, 2]], vec![V::Int(2)]);
}

/// Adds operators that return parts, of which all but the second contribute to the result.
fn parts(table: &mut Table) {
    let (two, dims) = (V::Int(2), [0, -1]);
    let lists: [(&'static str, V<'static>); 5] = [
        ("aten::split.Tensor", two),
        ("aten::chunk", two),
        ("aten::tensor_split.sections", V::Int(3)),
        ("aten::split_with_sizes", V::Ints(&[1, 0, 2])),
        ("aten::tensor_split.indices", V::Ints(&[1, 1, 5])),
    ];
    let mut add = |op: &'static str, args: Vec<V<'static>>| {
        table.add(op, vec![data(&[3, 3], 0, -1.0, 1.0)], vec![], move |x, _| {
            let all: Vec<V<'_>> = [V::Tensor(&x[0])].into_iter().chain(args.clone()).collect();
            let Value::List(parts) = dispatcher().call(op, &all)? else { panic!("{op}") };
            let used = parts.into_iter().enumerate().filter(|(i, _)| *i != 1);
            let weighted = used.map(|(i, part)| {
                aten::reshape(&aten::mul_scalar(&part.into_tensor()?, i as i64 + 1)?, &[-1])
            });
            aten::cat(&weighted.collect::<Result<Vec<_>>>()?, 0)
        });
    };
    for dim in dims {
        for (op, argument) in lists {
            add(op, vec![argument, V::Int(dim)]);
        }
        add("aten::unbind.int", vec![V::Int(dim)]);
    }
}

fn joins(table: &mut Table) {
    let inputs = |shapes: [&[usize]; 3]| -> Vec<Tensor> {
        shapes.iter().enumerate().map(|(i, shape)| data(shape, i, -1.0, 1.0)).collect()
    };
    let join = |op: &'static str, dim: i64| {
        move |x: &[Tensor], _: &[Tensor]| call(op, &[V::Tensors(x), V::Int(dim)])
    };
    for dim in [0, -1] {
        table.add("aten::stack", inputs([&[2, 3]; 3]), vec![], join("aten::stack", dim));
        table.add("aten::stack", inputs([&[]; 3]), vec![], join("aten::stack", dim));
    }
    table.add("aten::cat", inputs([&[2, 3], &[1, 3], &[0, 3]]), vec![], join("aten::cat", 0));
    table.add("aten::cat", inputs([&[2, 1], &[2, 2], &[2, 2]]), vec![], join("aten::cat", -1));
    let pair = |a: &[usize], b: &[usize]| vec![data(a, 0, -1.0, 1.0), data(b, 1, -1.0, 1.0)];
    table.add("aten::select_scatter", pair(&[2, 3], &[2]), vec![], |x, _| {
        aten::select_scatter(&x[0], &x[1], 1, -2)
    });
    table.add("aten::slice_scatter", pair(&[5, 2], &[2, 2]), vec![], |x, _| {
        aten::slice_scatter(&x[0], &x[1], 0, V::Int(1), V::Int(4), 2)
    });
    table.add("aten::slice_scatter", pair(&[2, 3], &[2, 2]), vec![], |x, _| {
        aten::slice_scatter(&x[0], &x[1], -1, V::None, V::Int(-1), 1)
    });
}

fn writes(table: &mut Table) {
    for shape in [&[2, 3][..], &[3], &[]] {
        let inputs = vec![data(&[2, 3], 0, -1.0, 1.0), data(shape, 1, -1.0, 1.0)];
        table.add("aten::copy_", inputs, vec![], |x, _| {
            let target = aten::mul(&x[0], &x[0])?;
            let before = aten::mul_scalar(&target, 3)?;
            aten::copy_(&target, &x[1])?;
            aten::add(&before, &aten::mul(&target, &target)?)
        });
    }
    table.add("aten::fill_.Scalar", vec![data(&[2, 3], 0, -1.0, 1.0)], vec![], |x, _| {
        let target = aten::mul_scalar(&x[0], 2)?;
        let before = aten::mul_scalar(&target, 3)?;
        aten::fill_(&target, 0.5)?;
        aten::add(&aten::mul(&before, &before)?, &target)
    });
}

fn dropout(table: &mut Table) {
    let x = || data(&[2, 3], 0, -1.0, 1.0);
    // The dropped elements follow from random numbers while training, so that calls differ.
    table.add("aten::native_dropout", vec![x()], vec![], |x, _| {
        let args = [V::Tensor(&x[0]), V::Float(0.5), V::Bool(false)];
        let Value::Tuple(mut results) = dispatcher().call("aten::native_dropout", &args)? else {
            unreachable!("it has two results")
        };
        results.swap_remove(0).into_tensor()
    });
    table.add("aten::native_dropout_backward", vec![x()], vec![], |x, _| {
        let mask = call("aten::gt.Scalar", &[V::Tensor(&x[0]), V::Float(0.0)])?;
        aten::native_dropout_backward(&x[0], &mask, 1.5)
    });
}
