//! Sample arguments of every operator, derived from its schema: by the names and types of the
//! arguments, and by a table for the operators whose arguments depend on each other.

use keyfold_core::{DType, DTypeKind, Device};
use keyfold_dispatch::Value as _;
use keyfold_dispatch::schema::{Argument, Type};
use keyfold_ops::pointwise::ELEMENTWISE;
use keyfold_ops::{Row, families};
use keyfold_tensor::Value;

use crate::array::{Arg, Layout, Operand};
use crate::elements::{Generator, Values};
use crate::number::Number;

/// Makes the samples of one case.
#[derive(Clone, Debug)]
pub struct Sampler {
    /// The dtype of the tensors.
    pub dtype: DType,
    /// The shape that the others follow from.
    pub shape: Vec<usize>,
    /// The layout of the first tensor; the others take turns.
    pub layout: Layout,
    /// The elements.
    pub values: Values,
    /// Selects among shapes that broadcast, dimensions, and numbers.
    pub choice: usize,
    /// The device of factories.
    pub device: Device,
    /// The source of the elements.
    pub random: Generator,
    /// Whether the operator adds elements up.
    pub(crate) sums: bool,
    /// Whether the operator only copies elements.
    pub(crate) copies: bool,
}

/// Products of several tiles of a kernel, with tails: the shape of `self`, and the columns of
/// `other`.
const PRODUCTS: [(&[usize], usize); 4] =
    [(&[70, 40], 130), (&[64, 64], 64), (&[37, 300], 33), (&[2, 40, 34], 35)];
/// The longest row of a sample of `matmul` that isn't among [`PRODUCTS`]: the reference is cubic.
const LONGEST_ROW: usize = 300;

/// Returns the arguments of a small call of a row with tensors of a dtype, contiguous ones of 2 by 3
/// elements where the operator needs no other shape.
pub fn example(row: &Row, dtype: DType, device: Device) -> Option<Vec<Arg>> {
    let mut sampler = Sampler {
        dtype,
        shape: vec![2, 3],
        layout: Layout::Contiguous,
        values: Values::Plain,
        choice: 0,
        device,
        random: Generator::new(0),
        sums: false,
        copies: false,
    };
    sampler.arguments(row)
}

/// Operators that add elements up: the greatest numbers would overflow in some orders only.
const SUMS: [&str; 13] = [
    "aten::sum",
    "aten::sum.dim",
    "aten::mean",
    "aten::mean.dim",
    "aten::matmul",
    "aten::softmax",
    "aten::log_softmax",
    "aten::cumsum",
    "aten::cumprod",
    "aten::index_add",
    "aten::scatter_add",
    "aten::index_put",
    "aten::index_put_",
];

/// Returns whether an operator copies elements, and does nothing else with them.
fn only_copies(row: &Row) -> bool {
    let is_family = |(name, rows): &(&str, &[Row])| {
        matches!(*name, "shape" | "index") && rows.as_ptr_range().contains(&std::ptr::from_ref(row))
    };
    families().iter().any(is_family) && !adds_up(row) && row.expression().is_none()
}

/// Returns whether an operator adds elements up.
pub(crate) fn adds_up(row: &Row) -> bool {
    SUMS.contains(&&*row.schema().name.to_string())
}

impl Sampler {
    /// Returns the arguments of a call of a row; `None` if the operator takes no such shape.
    pub fn arguments(&mut self, row: &Row) -> Option<Vec<Arg>> {
        let name = row.schema().name.to_string();
        self.sums = adds_up(row);
        self.copies = only_copies(row);
        self.fit_shape(&name)?;
        let writes = |argument: &Argument| argument.alias.as_ref().is_some_and(|a| a.write);
        if self.layout == Layout::Broadcast && row.schema().arguments.iter().any(writes) {
            // Elements that share memory can't be written.
            self.layout = Layout::Sliced;
        }
        let mut args = Vec::new();
        for argument in &row.schema().arguments {
            let known = self.special_argument(&name, argument, &args);
            args.push(match known {
                Some(arg) => arg,
                None => self.argument(&name, argument)?,
            });
        }
        self.fit_values(&name, &mut args);
        Some(args)
    }

    /// Changes the shape to one that an operator takes; `None` if there is none like it.
    fn fit_shape(&mut self, name: &str) -> Option<()> {
        let least = match name {
            "aten::transpose" | "aten::matmul" | "aten::gather" | "aten::scatter_add"
            | "aten::index_put" | "aten::index_put_" | "aten::index.Tensor" => 2,
            "aten::select.int"
            | "aten::slice.Tensor"
            | "aten::cat"
            | "aten::select_scatter"
            | "aten::slice_scatter"
            | "aten::index_add"
            | "aten::index_select"
            | "aten::softmax"
            | "aten::log_softmax"
            | "aten::cumsum"
            | "aten::cumprod"
            | "aten::squeeze.dim"
            | "aten::flip" => 1,
            _ => 0,
        };
        while self.shape.len() < least {
            self.shape.insert(0, 3);
        }
        let is_empty = self.shape.contains(&0);
        match name {
            "aten::squeeze" | "aten::squeeze.dim" => self.shape.insert(0, 1),
            "aten::expand" => self.shape.insert(0, 1),
            // The extremes of no elements don't exist, and nothing is selected among them.
            "aten::max"
            | "aten::min"
            | "aten::amax"
            | "aten::amin"
            | "aten::argmax"
            | "aten::argmin"
            | "aten::select.int"
            | "aten::select_scatter"
                if is_empty =>
            {
                self.shape.iter_mut().filter(|n| **n == 0).for_each(|n| *n = 2);
            }
            "aten::index.Tensor" | "aten::index_put" | "aten::index_put_" | "aten::index_add"
            | "aten::index_select" | "aten::gather" | "aten::scatter_add"
                if is_empty =>
            {
                return None;
            }
            "aten::matmul" if self.shape[self.shape.len() - 1] > LONGEST_ROW => {
                self.shape = PRODUCTS[self.choice % PRODUCTS.len()].0.to_vec();
            }
            _ => {}
        }
        Some(())
    }

    /// Returns the arguments that depend on others, or on the operator.
    fn special_argument(&mut self, name: &str, argument: &Argument, args: &[Arg]) -> Option<Arg> {
        let shape = self.shape.clone();
        let rank = shape.len();
        let first = match args.first() {
            Some(Arg::Tensor(first)) => first.array.shape.clone(),
            _ => shape.clone(),
        };
        let dim = self.choice % rank.max(1);
        let plain = |value: Value| Some(Arg::Plain(value));
        let ints = |items: &[usize]| {
            plain(Value::List(items.iter().map(|i| Value::Int(*i as i64)).collect()))
        };
        match (name, &*argument.name) {
            (ELEMENTWISE, "inputs") => {
                let all = [self.tensor(&shape), self.tensor(&shape[rank.saturating_sub(1)..])];
                Some(Arg::Tensors(all.map(Some).into()))
            }
            (ELEMENTWISE, "expression") => plain(Value::Str("a, b; c: a * b + c".into())),
            (ELEMENTWISE, "numbers") => {
                let number =
                    if self.dtype == DType::Bool { Value::Bool(true) } else { Value::Int(2) };
                plain(Value::List(vec![number]))
            }
            (_, "condition" | "mask") => Some(Arg::Tensor(self.mask(&shape))),
            ("aten::matmul", "self") => {
                let is_vector = self.choice % 4 == 3 && self.columns().is_none();
                let shape = if is_vector { shape[rank - 1..].to_vec() } else { shape };
                Some(Arg::Tensor(self.tensor(&shape)))
            }
            ("aten::matmul", "other") => {
                let inner = first[first.len() - 1];
                let shape = match (self.columns(), self.choice % 4) {
                    (Some(columns), _) => vec![inner, columns],
                    (None, 0) => vec![inner, 5],
                    (None, 1) if rank == 2 => vec![2, inner, 3],
                    (None, 1) => vec![inner, 3],
                    (None, 2) => vec![inner],
                    (None, _) => vec![inner, 33],
                };
                Some(Arg::Tensor(self.tensor(&shape)))
            }
            (
                "aten::gather"
                | "aten::scatter_add"
                | "aten::index_add"
                | "aten::index_select"
                | "aten::softmax"
                | "aten::log_softmax"
                | "aten::cumsum"
                | "aten::cumprod"
                | "aten::select.int"
                | "aten::select_scatter"
                | "aten::slice.Tensor"
                | "aten::slice_scatter"
                | "aten::cat",
                "dim",
            ) => plain(Value::Int(
                dim as i64 - if self.choice.is_multiple_of(2) { rank as i64 } else { 0 },
            )),
            ("aten::argmax" | "aten::argmin", "dim") => plain(match self.choice % 3 {
                0 => Value::None,
                _ if rank == 0 => Value::None,
                _ => Value::Int(dim as i64),
            }),
            ("aten::squeeze.dim", "dim") => plain(Value::Int(0)),
            ("aten::unsqueeze" | "aten::stack", "dim") => {
                plain(Value::Int((self.choice % (rank + 1)) as i64))
            }
            ("aten::gather" | "aten::scatter_add", "index") => {
                // Longer than `self` along the dimension, shorter along others.
                let mut shape: Vec<usize> = first.iter().map(|n| n.div_ceil(2)).collect();
                if name == "aten::gather" {
                    shape[dim] = 5;
                }
                Some(Arg::Tensor(self.positions(&shape, first[dim])))
            }
            ("aten::index_add" | "aten::index_select", "index") => {
                Some(Arg::Tensor(self.positions(&[4], first[dim])))
            }
            (_, "indices") => Some(self.indices(name, &first)),
            ("aten::index_put" | "aten::index_put_", "values") => {
                let Some(Arg::Tensors(indices)) = args.get(1) else { return None };
                // One of a group, broadcast over the dimensions behind it.
                let mask = indices.iter().flatten().any(|one| one.array.dtype == DType::Bool);
                let shape = if mask || self.choice.is_multiple_of(2) {
                    vec![]
                } else {
                    vec![first[rank - 1]]
                };
                let shape = if indices.len() == 1 { shape } else { vec![] };
                Some(Arg::Tensor(self.tensor(&shape)))
            }
            // Without it, of several values for one element any may stay.
            (_, "accumulate") => plain(Value::Bool(self.choice.is_multiple_of(2))),
            ("aten::scatter_add", "src") => Some(Arg::Tensor(self.tensor(&first))),
            ("aten::index_add", "source") => {
                let mut shape = first;
                shape[dim] = 4;
                Some(Arg::Tensor(self.tensor(&shape)))
            }
            ("aten::select_scatter", "src") => {
                let mut shape = first;
                shape.remove(dim);
                Some(Arg::Tensor(self.tensor(&shape)))
            }
            ("aten::slice_scatter", "src") => {
                let mut shape = first;
                shape[dim] = shape[dim].saturating_sub(1).div_ceil(2);
                Some(Arg::Tensor(self.tensor(&shape)))
            }
            (_, "start") if name != "aten::arange" => plain(Value::Int(1)),
            (_, "end") if name != "aten::arange" => plain(Value::None),
            (_, "step") if name != "aten::arange" => plain(Value::Int(2)),
            ("aten::arange", "start") => {
                plain(Value::Int(if self.dtype == DType::Bool { 0 } else { 1 }))
            }
            ("aten::arange", "end") => {
                let most = if self.dtype == DType::Bool { 2 } else { 40 };
                plain(Value::Int([most, 1, most - 1][self.choice % 3].min(most)))
            }
            ("aten::arange", "step") => plain(Value::Int(1)),
            ("aten::cat" | "aten::stack", "tensors") => {
                let mut all = vec![self.tensor(&shape), self.tensor(&shape)];
                if name == "aten::cat" {
                    let mut other = shape;
                    other[dim] = self.choice % 3;
                    all.push(self.tensor(&other));
                }
                Some(Arg::Tensors(all.into_iter().map(Some).collect()))
            }
            ("aten::reshape", "shape") => ints(&[first.iter().product::<usize>()]),
            ("aten::permute", "dims") => ints(&(0..rank).rev().collect::<Vec<_>>()),
            ("aten::flip", "dims") => ints(
                &(0..rank).filter(|d| d % 2 == self.choice % 2 || rank == 1).collect::<Vec<_>>(),
            ),
            ("aten::expand", "size") => {
                let mut shape = first;
                shape[0] = 3;
                ints(&shape)
            }
            (_, "dim0") => plain(Value::Int(0)),
            (_, "dim1") => plain(Value::Int(-1)),
            (_, "fill_value" | "value") if self.dtype == DType::Bool => {
                plain(Value::Bool(self.choice.is_multiple_of(2)))
            }
            ("aten::dropout", "p") => plain(Value::Float(0.25)),
            // Other dtypes are only passed through.
            ("aten::dropout", "train") => {
                plain(Value::Bool(self.choice % 4 != 3 && self.dtype.is_floating()))
            }
            (_, "size") => ints(&shape),
            (
                "aten::sum" | "aten::mean" | "aten::sum.dim" | "aten::mean.dim" | "aten::cumsum"
                | "aten::cumprod",
                "dtype",
            ) => plain(match (self.choice % 4, self.dtype.kind()) {
                (3, DTypeKind::Float) => Value::DType(DType::F64),
                (3, DTypeKind::Complex) => Value::DType(DType::C128),
                _ => Value::None,
            }),
            (_, "dtype") => plain(Value::DType(match name {
                // From each dtype to some others, and to the same.
                "aten::to" => {
                    let to = DType::ALL[(self.choice * 4 + self.dtype as usize) % DType::ALL.len()];
                    let narrows = self.dtype.is_complex() && !to.is_complex();
                    if narrows { self.dtype } else { to }
                }
                _ => self.dtype,
            })),
            _ => None,
        }
    }

    /// Returns the columns of `other` for one of [`PRODUCTS`].
    fn columns(&self) -> Option<usize> {
        PRODUCTS.iter().find(|(shape, _)| *shape == self.shape).map(|(_, columns)| *columns)
    }

    /// Returns an argument by its type.
    fn argument(&mut self, name: &str, argument: &Argument) -> Option<Arg> {
        let shape = self.shape.clone();
        let rank = shape.len();
        let plain = |value: Value| Some(Arg::Plain(value));
        match argument.ty.without_optional() {
            Type::Tensor => {
                let is_first = argument.name == "self" || argument.name == "input";
                let shape = if is_first { shape } else { self.second_shape(name) };
                Some(Arg::Tensor(self.tensor(&shape)))
            }
            Type::List(item, _) if **item == Type::Tensor => {
                let all = [self.tensor(&shape), self.tensor(&shape)];
                Some(Arg::Tensors(all.map(Some).into()))
            }
            Type::List(item, _) if **item == Type::Int => plain(match self.choice % 3 {
                _ if argument.name != "dim" => Value::None,
                _ if rank == 0 => Value::None,
                0 => Value::None,
                1 => Value::List(vec![Value::Int(-1)]),
                _ => Value::List(vec![Value::Int(0)]),
            }),
            Type::Scalar => plain(self.number(name)),
            Type::Bool => plain(Value::Bool(self.choice % 2 == 1)),
            Type::Int if argument.default.is_none() => plain(Value::Int(0)),
            Type::Device => plain(Value::Device(self.device)),
            _ => match &argument.default {
                Some(default) => plain(Value::from_literal(default, &argument.ty)?),
                None => plain(Value::None),
            },
        }
    }

    /// Returns the shape of a further tensor, which broadcasts.
    fn second_shape(&self, name: &str) -> Vec<usize> {
        let rank = self.shape.len();
        if name == "aten::where.ScalarSelf" {
            return self.shape.clone();
        }
        match self.choice % 3 {
            0 => self.shape.clone(),
            1 => self.shape[rank.min(1)..].to_vec(),
            _ => {
                let mut shape = self.shape.clone();
                shape.last_mut().filter(|n| **n > 0).into_iter().for_each(|n| *n = 1);
                shape
            }
        }
    }

    /// Returns a number beside tensors; halves represent it exactly.
    fn number(&self, name: &str) -> Value {
        let shifts = name.contains("shift") || name.contains("pow");
        match (self.dtype.kind(), self.choice % 3) {
            // Bools have no differences and remainders among themselves.
            (DTypeKind::Bool, choice) => Value::Int(if choice == 1 { 3 } else { 1 }),
            (DTypeKind::UInt | DTypeKind::Int, choice) if shifts => Value::Int(choice as i64),
            (_, 0) => Value::Int(3),
            (DTypeKind::UInt | DTypeKind::Int, 1) => Value::Int(7),
            (DTypeKind::UInt | DTypeKind::Int, _) => Value::Int(1),
            (_, 1) => Value::Float(1.5),
            _ => Value::Float(-0.75),
        }
    }

    /// Changes elements that an operator doesn't take, or whose result depends on the order of a
    /// sum.
    fn fit_values(&mut self, name: &str, args: &mut [Arg]) {
        let integers = self.dtype.is_integral();
        let operands: Vec<&mut Operand> =
            args.iter_mut().flat_map(|arg| arg.operands_mut()).collect();
        for (place, operand) in operands.into_iter().enumerate() {
            let array = &mut operand.array;
            if array.dtype != self.dtype {
                continue;
            }
            // Integers have no negative powers, and shifts are by few bits.
            let is_exponent = match name {
                "aten::pow" => place == 1,
                "aten::rpow.Scalar" => place == 0,
                _ => false,
            };
            if is_exponent && integers {
                let small = |item: &mut Number| *item = Number::Whole(item.whole().rem_euclid(5));
                array.items.iter_mut().for_each(small);
            }
            // Products of many stay in range.
            if name == "aten::cumprod" && !integers {
                let near_one = |x: f64| {
                    if x == 0.0 { x } else { (1.0 + (x.abs() - 1.0) / 64.0).copysign(x) }
                };
                for item in &mut array.items {
                    *item = match *item {
                        Number::Float(x) => Number::Float(near_one(x)),
                        Number::Complex(c) => Number::Complex(c / c.norm() * near_one(c.norm())),
                        whole => whole,
                    };
                    *item = item.cast(self.dtype);
                }
            }
            let is_shift = name.contains("_shift") && (place == 1 || name.contains("rbitwise"));
            if is_shift && integers && self.values == Values::Plain {
                let small = |item: &mut Number| *item = Number::Whole(item.whole().rem_euclid(7));
                array.items.iter_mut().for_each(small);
            }
        }
    }
}
