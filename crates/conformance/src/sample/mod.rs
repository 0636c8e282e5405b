//! Sample arguments of every operator, derived from its schema: by the names and types of the
//! arguments, and by a table for the operators whose arguments depend on each other.
//!
//! Each family of operators has a file here with its [`Family`], which is listed in [`FAMILIES`]:
//! the shapes that its operators take, the arguments that don't follow from a name and a type, and
//! the elements that they don't take. An operator all of whose arguments are tensors of one shape, or
//! have defaults, needs none of it.

mod attention;
mod convolution;
mod decomposition;
mod factories;
mod index;
mod linalg;
mod norm;
mod optim;
mod pointwise;
mod pool;
mod recurrent;
mod reduce;
mod shape;

use keyfold_core::{DType, DTypeKind, Device};
use keyfold_dispatch::Value as _;
use keyfold_dispatch::schema::{Argument, Type};
use keyfold_ops::{Row, families};
use keyfold_tensor::Value;

use crate::array::{Arg, Layout};
use crate::elements::{Generator, Values};

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

/// The samples of a family, where they differ from those that follow from a schema. Each function is
/// called for every operator, and leaves those of other families alone. `..Family::PLAIN` has the
/// functions that a family doesn't need.
pub(crate) struct Family {
    /// Operators that add elements up: the greatest numbers would overflow in some orders only.
    pub(crate) sums: &'static [&'static str],
    /// Changes the sampler's shape to one that an operator takes; `None` if there is none like it. A
    /// shape that fits should stay as it is, since a failing case is shrunk from its fitted shape.
    pub(crate) fit_shape: fn(&mut Sampler, &str) -> Option<()>,
    /// Returns an argument that depends on others, which are those before it, or on the operator.
    pub(crate) argument: fn(&mut Sampler, &str, &Argument, &[Arg]) -> Option<Arg>,
    /// Changes elements that an operator doesn't take, or whose result depends on the order of a
    /// sum.
    pub(crate) fit_values: fn(&Sampler, &str, &mut [Arg]),
}

impl Family {
    /// A family whose samples follow from its schemas.
    pub(crate) const PLAIN: Family = Family {
        sums: &[],
        fit_shape: |_, _| Some(()),
        argument: |_, _, _, _| None,
        fit_values: |_, _, _| (),
    };
}

/// The families with samples of their own.
const FAMILIES: &[&Family] = &[
    &attention::FAMILY,
    &convolution::FAMILY,
    &decomposition::FAMILY,
    &factories::FAMILY,
    &index::FAMILY,
    &linalg::FAMILY,
    &norm::FAMILY,
    &optim::FAMILY,
    &pointwise::FAMILY,
    &pool::FAMILY,
    &recurrent::FAMILY,
    &reduce::FAMILY,
    &shape::FAMILY,
];

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

/// Returns whether an operator copies elements, and does nothing else with them.
fn only_copies(row: &Row) -> bool {
    let is_family = |(name, rows): &(&str, &[Row])| {
        matches!(*name, "shape" | "index") && rows.as_ptr_range().contains(&std::ptr::from_ref(row))
    };
    families().iter().any(is_family) && !adds_up(row) && row.expression().is_none()
}

/// Returns whether an operator adds elements up.
pub(crate) fn adds_up(row: &Row) -> bool {
    let name = row.schema().name.to_string();
    FAMILIES.iter().any(|family| family.sums.contains(&&*name))
}

/// Returns an argument that is no tensor.
pub(crate) fn plain(value: Value) -> Option<Arg> {
    Some(Arg::Plain(value))
}

/// Returns a list of sizes, strides or dimensions.
pub(crate) fn ints(items: &[usize]) -> Option<Arg> {
    plain(Value::List(items.iter().map(|i| Value::Int(*i as i64)).collect()))
}

/// Returns the shape of an argument, if that is a tensor.
pub(crate) fn shape_of(args: &[Arg], at: usize) -> Option<&[usize]> {
    match args.get(at) {
        Some(Arg::Tensor(operand)) => Some(&operand.array.shape),
        _ => None,
    }
}

impl Sampler {
    /// Returns the arguments of a call of a row; `None` if the operator takes no such shape.
    pub fn arguments(&mut self, row: &Row) -> Option<Vec<Arg>> {
        let name = row.schema().name.to_string();
        self.sums = adds_up(row);
        self.copies = only_copies(row);
        for family in FAMILIES {
            (family.fit_shape)(self, &name)?;
        }
        let writes = |argument: &Argument| argument.alias.as_ref().is_some_and(|a| a.write);
        if self.layout == Layout::Broadcast && row.schema().arguments.iter().any(writes) {
            // Elements that share memory can't be written.
            self.layout = Layout::Sliced;
        }
        let mut args = Vec::new();
        for argument in &row.schema().arguments {
            let known = FAMILIES
                .iter()
                .find_map(|family| (family.argument)(self, &name, argument, &args))
                .or_else(|| self.named_argument(&name, argument));
            args.push(match known {
                Some(arg) => arg,
                None => self.argument(&name, argument)?,
            });
        }
        for family in FAMILIES {
            (family.fit_values)(self, &name, &mut args);
        }
        Some(args)
    }

    /// Makes the shape one of at least so many dimensions.
    pub(crate) fn at_least(&mut self, rank: usize) {
        while self.shape.len() < rank {
            self.shape.insert(0, 3);
        }
    }

    /// Makes the shape one with elements.
    pub(crate) fn fill_empty(&mut self) {
        self.shape.iter_mut().filter(|n| **n == 0).for_each(|n| *n = 2);
    }

    /// Returns the dimension that the case is about, from the front.
    pub(crate) fn dim(&self) -> usize {
        self.choice % self.shape.len().max(1)
    }

    /// As [`Sampler::dim`], as an argument: every second one counts from the back.
    pub(crate) fn dim_argument(&self) -> Option<Arg> {
        let from = if self.choice.is_multiple_of(2) { self.shape.len() as i64 } else { 0 };
        plain(Value::Int(self.dim() as i64 - from))
    }

    /// Returns the arguments that have the same meaning in every operator.
    fn named_argument(&mut self, name: &str, argument: &Argument) -> Option<Arg> {
        let shape = self.shape.clone();
        match &*argument.name {
            "condition" | "mask" => Some(Arg::Tensor(self.mask(&shape))),
            "fill_value" | "value" if self.dtype == DType::Bool && argument.ty != Type::Tensor => {
                plain(Value::Bool(self.choice.is_multiple_of(2)))
            }
            "size" => ints(&shape),
            "dtype" => plain(Value::DType(match name {
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

    /// Returns an argument by its type.
    fn argument(&mut self, name: &str, argument: &Argument) -> Option<Arg> {
        let shape = self.shape.clone();
        let rank = shape.len();
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
}
