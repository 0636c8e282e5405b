//! The cases: for each operator and dtype sixteen variants of layout, shape, elements, and result.

use keyfold_core::{DType, Device, Error, ErrorKind, Result};
use keyfold_dispatch::schema::Argument;
use keyfold_ops::Row;
use keyfold_tensor::device::random::State;
use keyfold_tensor::{Tensor, Value};

use crate::array::{Arg, Layout, Operand};
use crate::elements::{Generator, Values};
use crate::model::{self, Expected, Given};
use crate::sample::{Sampler, example};

/// Where the result goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Into new memory.
    Fresh,
    /// Into an `out` of this layout, between guard bytes.
    Out(Layout),
    /// Into new memory, with the first tensor given twice.
    Aliased,
    /// Into the first tensor, as `out`.
    InPlace,
}

/// A variant of a case.
struct Variant {
    shape: &'static [usize],
    layout: Layout,
    values: Values,
    way: Way,
}

const fn variant(shape: &'static [usize], layout: Layout, values: Values, way: Way) -> Variant {
    Variant { shape, layout, values, way }
}

/// The shapes: tails of vectors of every length, three dimensions, several blocks of a kernel.
const TAIL: &[usize] = &[7, 13];
const VECTOR: &[usize] = &[67];
const CUBE: &[usize] = &[4, 3, 5];
const LARGE: &[usize] = &[3, 1027];

/// The variants of each operator and dtype. Every pair of a layout with plain and special elements,
/// and each way, comes with several shapes.
const VARIANTS: [Variant; 16] = [
    variant(TAIL, Layout::Contiguous, Values::Plain, Way::Fresh),
    variant(CUBE, Layout::Transposed, Values::Plain, Way::Fresh),
    variant(VECTOR, Layout::Sliced, Values::Special, Way::Fresh),
    variant(LARGE, Layout::Contiguous, Values::Smooth, Way::Fresh),
    variant(&[0, 3], Layout::Contiguous, Values::Plain, Way::Fresh),
    variant(&[], Layout::Contiguous, Values::Special, Way::Fresh),
    variant(&[1, 1], Layout::Offset, Values::Special, Way::Out(Layout::Offset)),
    variant(TAIL, Layout::Negative, Values::Plain, Way::Fresh),
    variant(CUBE, Layout::Broadcast, Values::Plain, Way::Fresh),
    variant(TAIL, Layout::Offset, Values::Special, Way::Out(Layout::Contiguous)),
    variant(CUBE, Layout::Transposed, Values::Special, Way::Out(Layout::Transposed)),
    variant(VECTOR, Layout::Contiguous, Values::Plain, Way::Out(Layout::Sliced)),
    variant(LARGE, Layout::Sliced, Values::Plain, Way::Out(Layout::Contiguous)),
    variant(TAIL, Layout::Contiguous, Values::Plain, Way::Aliased),
    variant(VECTOR, Layout::Negative, Values::Special, Way::InPlace),
    variant(LARGE, Layout::Transposed, Values::Special, Way::Out(Layout::Negative)),
];

/// The variant whose sums show the dtype that accumulates: many positive numbers.
pub(crate) const LONG_SUM: usize = 3;

/// The number of cases of each operator and dtype.
pub const CASES: usize = VARIANTS.len();

/// One case: an operator, a dtype, and a variant.
#[derive(Clone, Copy)]
pub struct Case {
    /// The operator.
    pub row: &'static Row,
    /// The dtype of its first tensor.
    pub dtype: DType,
    /// The number of the variant, below [`CASES`].
    pub number: usize,
    /// The seed of the elements.
    pub seed: u64,
}

/// Changes to a case, to diagnose and to shrink it.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Another shape.
    pub shape: Option<Vec<usize>>,
    /// Another layout, also of an `out`.
    pub layout: Option<Layout>,
    /// Other elements.
    pub values: Option<Values>,
    /// Another way.
    pub way: Option<Way>,
    /// A number added to the one that selects dimensions and numbers.
    pub choice: usize,
}

/// A call with its expected results.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The arguments.
    pub args: Vec<Arg>,
    /// Where the result goes.
    pub way: Way,
    /// The results.
    pub expected: Vec<Expected>,
    /// The random numbers' state before the call.
    pub state: State,
}

/// Returns a number that depends on all bytes of a text (FNV-1a).
pub(crate) fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

impl Case {
    /// Returns the name by which the case is found again: `aten::add/float32/3`.
    pub fn id(&self) -> String {
        format!("{}/{}/{}", self.row.schema().name, self.dtype, self.number)
    }

    /// Makes the arguments and the expected results; `None` where the operator takes no such
    /// arguments.
    ///
    /// # Errors
    /// Of a sample that the model refuses, which would be an error of this crate.
    pub fn plan(&self, device: Device, change: &Change) -> Result<Option<Plan>> {
        let variant = &VARIANTS[self.number];
        let name = self.row.schema().name.to_string();
        let layout = change.layout.unwrap_or(variant.layout);
        let choice = hash(&format!("{name}{}", self.dtype)) as usize % 12 + self.number;
        let mut sampler = Sampler {
            dtype: self.dtype,
            shape: change.shape.clone().unwrap_or_else(|| variant.shape.to_vec()),
            layout,
            values: change.values.unwrap_or(variant.values),
            choice: choice + change.choice,
            device,
            random: Generator::new(self.seed ^ hash(&self.id())),
            sums: false,
            copies: false,
        };
        let Some(mut args) = sampler.arguments(self.row) else { return Ok(None) };
        let mut way = change.way.unwrap_or(variant.way);
        if let (Way::Out(_), Some(layout)) = (way, change.layout) {
            way = Way::Out(layout);
        }
        if way == Way::Aliased && writes_several(self.row) {
            // Tensors that a call writes to can't be one.
            way = Way::Fresh;
        }
        if way == Way::Aliased {
            alias(&mut args);
        }
        let state = State { device, seed: self.seed.wrapping_add(7), offset: 3 };
        let expected = model::expected(self.row, &Given::new(&args, state))
            .map_err(|error| error.at(&self.id()))?;
        if self.row.out_schema().is_none() {
            way = if way == Way::Aliased { way } else { Way::Fresh };
        }
        if way == Way::InPlace && !fits_in_place(&args, &expected) {
            way = Way::Out(Layout::Offset);
        }
        Ok(Some(Plan { args, way, expected, state }))
    }

    /// Returns whether the operator takes the dtype, by its inference.
    pub fn is_taken(&self) -> bool {
        let Some(args) = example(self.row, self.dtype, Device::META) else { return false };
        let on_meta = args.iter().map(meta).collect::<Result<Vec<_>>>();
        let inferred = on_meta.and_then(|args| {
            use keyfold_dispatch::Value as _;
            self.row.infer(&args.iter().map(Value::as_ref).collect::<Vec<_>>())
        });
        match inferred {
            Ok(_) => true,
            // The shape follows from elements, which no dtype prevents.
            Err(error) => error.kind() == ErrorKind::NotSupported,
        }
    }
}

/// Returns a tensor without elements for each tensor of an argument.
fn meta(arg: &Arg) -> Result<Value> {
    let of = |operand: &Operand| {
        Tensor::meta(&operand.array.shape, operand.array.dtype).map(Value::Tensor)
    };
    Ok(match arg {
        Arg::Tensor(operand) => of(operand)?,
        Arg::Tensors(all) => {
            let one = |one: &Option<_>| one.as_ref().map_or(Ok(Value::None), of);
            Value::List(all.iter().map(one).collect::<Result<_, Error>>()?)
        }
        Arg::Plain(value) => value.clone(),
    })
}

/// Replaces each tensor by the last one of its shape and dtype, which may be an exponent.
fn alias(args: &mut [Arg]) {
    let all: Vec<Operand> = args.iter().flat_map(Arg::operands).cloned().collect();
    for operand in args.iter_mut().flat_map(Arg::operands_mut) {
        let is_like = |other: &&Operand| {
            other.array.shape == operand.array.shape && other.array.dtype == operand.array.dtype
        };
        if let Some(last) = all.iter().rev().find(is_like) {
            *operand = last.clone();
        }
    }
}

/// Returns whether an operator writes to more than one of its arguments.
fn writes_several(row: &Row) -> bool {
    let writes = |argument: &&Argument| argument.alias.as_ref().is_some_and(|alias| alias.write);
    row.schema().arguments.iter().filter(writes).count() > 1
}

/// Returns whether the only result can be written into the first tensor.
fn fits_in_place(args: &[Arg], expected: &[Expected]) -> bool {
    let [expected] = expected else { return false };
    let first = args.iter().flat_map(Arg::operands).next();
    first.is_some_and(|first| {
        first.array.shape == expected.array.shape
            && first.array.dtype == expected.array.dtype
            && first.layout != Layout::Broadcast
    })
}
