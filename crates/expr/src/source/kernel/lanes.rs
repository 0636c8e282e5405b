//! Arithmetic on vectors, for OpenCL: a CPU computes a function such as `exp` of eight floats in
//! the time of one. It is for contiguous expressions of one float dtype and bools.

use keyfold_core::{DType, DTypeKind, Scalar};

use super::element::ValueScope;
use super::{Writer, line, write_all};
use crate::graph::{Binary, Unary};
use crate::lower::{Lowered, StepId, StepOp};
use crate::source::numbers::{computed, literal, stored};
use crate::source::{Layout, Options, Target};

/// The bytes of a vector.
const BYTES: usize = 32;

/// Vectors of floats of one dtype. A vector of bools has whole numbers of the floats' size: -1 for
/// true, 0 for false, as OpenCL's comparisons give.
#[derive(Clone, Copy)]
pub(super) struct Lanes {
    float: DType,
    pub(super) width: u32,
}

impl Lanes {
    /// Returns the vectors in which an expression can be computed.
    pub(super) fn of(lowered: &Lowered, options: &Options, loaded: &[u32]) -> Option<Lanes> {
        let steps = lowered.steps();
        let last = steps.last()?;
        let inputs = loaded.iter().map(|input| lowered.inputs()[*input as usize]);
        let mut dtypes = steps.iter().map(|step| step.dtype).chain(inputs.clone());
        let float = dtypes.find(|dtype| matches!(dtype, DType::F32 | DType::F64))?;
        let width = options.vector.unwrap_or(16).min((BYTES / float.size()) as u32);
        let lanes = Lanes { float, width };
        let fits = |dtype: DType| dtype == float || dtype == DType::Bool;
        let chosen = options.target == Target::OpenClC
            && options.layout == Layout::Contiguous
            && width > 1
            && !last.uniform
            && last.dtype == lowered.result()
            && inputs.clone().all(fits);
        let computes = |id: usize| {
            let step = &steps[id];
            let mut fit = fits(step.dtype);
            step.op.operands(|operand| fit &= fits(steps[operand.index()].dtype));
            let known = matches!(step.op, StepOp::Input(_))
                || lanes.value(lowered, StepId(id as u32), |_| String::new()).is_some();
            fit && known
        };
        (chosen && (0..steps.len()).all(|id| steps[id].uniform || computes(id))).then_some(lanes)
    }

    /// Returns the type of a vector.
    fn ty(self, dtype: DType) -> String {
        let item = match (dtype, self.float) {
            (DType::Bool, DType::F32) => "int",
            (DType::Bool, _) => "long",
            (dtype, _) => computed(dtype),
        };
        format!("{item}{}", self.width)
    }

    /// Returns the value of a step, of the texts of its operands; `None` for one that isn't
    /// computed on vectors.
    fn value(
        self,
        lowered: &Lowered,
        id: StepId,
        text: impl Fn(StepId) -> String,
    ) -> Option<String> {
        let from = |id: StepId| lowered.steps()[id.index()].dtype;
        let float = self.ty(self.float);
        Some(match &lowered.steps()[id.index()].op {
            StepOp::Unary(op, a) => self.unary(*op, from(*a), &text(*a))?,
            StepOp::Binary(op, a, b) => binary(*op, from(*a), &text(*a), &text(*b))?,
            StepOp::Where(c, a, b) => format!("select({}, {}, {})", text(*b), text(*a), text(*c)),
            StepOp::Cast(a) => match (from(*a), from(id)) {
                (DType::Bool, DType::F32 | DType::F64) => {
                    format!("convert_{float}(-{})", text(*a))
                }
                (DType::F32 | DType::F64, DType::Bool) => format!("{} != ({float})(0)", text(*a)),
                _ => return None,
            },
            _ => return None,
        })
    }

    fn unary(self, op: Unary, from: DType, a: &str) -> Option<String> {
        if from == DType::Bool {
            return (op == Unary::Not).then(|| format!("~{a}"));
        }
        let (ty, bits) = (self.ty(from), 8 * from.size());
        let number = |number: f64| format!("({ty})({})", literal(Scalar::Float(number), from));
        let function = |name: &str| format!("${name}{bits}({a})");
        Some(match op {
            Unary::Neg => format!("-{a}"),
            Unary::Abs => function("fabs"),
            Unary::Sign => {
                let (zero, one, less) = (number(0.0), number(1.0), number(-1.0));
                format!(
                    "select(select($fabs{bits}({a}), {less}, {a} < {zero}), {one}, {a} > {zero})"
                )
            }
            Unary::IsNan => format!("{a} != {a}"),
            Unary::IsFinite => {
                let greatest = if from == DType::F32 { f32::MAX.into() } else { f64::MAX };
                format!("$fabs{bits}({a}) <= {}", number(greatest))
            }
            Unary::Sigmoid => {
                let (one, part) = (number(1.0), format!("$exp{bits}(-$fabs{bits}({a}))"));
                format!("select({part}, {one}, {a} >= {}) / ({one} + {part})", number(0.0))
            }
            Unary::Exp => function("exp"),
            Unary::Log => function("log"),
            Unary::Sqrt => function("sqrt"),
            Unary::Rsqrt => function("rsqrt"),
            Unary::Tanh => function("tanh"),
            Unary::Expm1 => function("expm1"),
            Unary::Log2 => function("log2"),
            Unary::Log10 => function("log10"),
            Unary::Log1p => function("log1p"),
            Unary::Erf => function("erf"),
            Unary::Erfc => function("erfc"),
            Unary::Floor => function("floor"),
            Unary::Ceil => function("ceil"),
            Unary::Round => function("rint"),
            Unary::Trunc => function("trunc"),
            // Sines and cosines too: pocl 3.0's of vectors are wrong for tiny elements beside huge ones.
            _ => return None,
        })
    }
}

fn binary(op: Binary, from: DType, a: &str, b: &str) -> Option<String> {
    let infix = |sign: &str| Some(format!("{a} {sign} {b}"));
    match (op, from.kind()) {
        (Binary::Add | Binary::Max | Binary::Or, DTypeKind::Bool) => infix("|"),
        (Binary::Mul | Binary::Min | Binary::And, DTypeKind::Bool) => infix("&"),
        (Binary::Xor, DTypeKind::Bool) => infix("^"),
        (_, DTypeKind::Bool) => None,
        (Binary::Add, _) => infix("+"),
        (Binary::Sub, _) => infix("-"),
        (Binary::Mul, _) => infix("*"),
        (Binary::Div, _) => infix("/"),
        (Binary::Pow, _) => Some(format!("$pow{}({a}, {b})", 8 * from.size())),
        (Binary::Min, _) => Some(format!("select({b}, {a}, ({a} < {b}) | ({a} != {a}))")),
        (Binary::Max, _) => Some(format!("select({b}, {a}, ({a} > {b}) | ({a} != {a}))")),
        (Binary::Eq | Binary::Ne | Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge, _) => {
            infix(op.name())
        }
        _ => None,
    }
}

impl Writer<'_> {
    fn lane_operand(&self, lanes: Lanes, id: StepId) -> String {
        let step = self.step(id);
        let (value, ty) = (self.operand(id, ValueScope::Element), lanes.ty(step.dtype));
        match (step.uniform, step.dtype) {
            (false, _) => value,
            (true, DType::Bool) => format!("({ty})({value} ? -1 : 0)"),
            (true, _) => format!("({ty})({value})"),
        }
    }

    /// Writes the functions that load and store vectors, and the one that computes a vector.
    pub(super) fn lane_functions(&self, lanes: Lanes, text: &mut String) {
        let width = lanes.width;
        let mut accessed: Vec<DType> = vec![self.lowered.result()];
        accessed.extend(self.loaded.iter().map(|input| self.lowered.inputs()[*input as usize]));
        accessed.sort_by_key(|dtype| dtype.name());
        accessed.dedup();
        for dtype in accessed {
            let (ty, item, float) = (lanes.ty(dtype), stored(dtype), lanes.float);
            let suffix = format!("{dtype}x{width}_{float}");
            let (value, bytes) = match dtype {
                DType::Bool => (
                    format!("convert_{ty}(VECTOR != (uchar{width})(0))"),
                    format!("convert_uchar{width}(value & ({ty})(1))"),
                ),
                _ => ("VECTOR".into(), "value".into()),
            };
            let whole = value.replace("VECTOR", &format!("vload{width}(0, data)"));
            let part = value.replace("VECTOR", &format!("vload{width}(0, part)"));
            write_all(
                text,
                format_args!(
                    "#ifndef KF_LANES_{suffix}
#define KF_LANES_{suffix}
static inline {ty} kf_load_{suffix}(__global const {item}* data, ulong left) {{
    if (left >= {width}) return {whole};
    {item} part[{width}];
    for (uint k = 0; k < {width}; ++k) part[k] = k < left ? data[k] : ({item})0;
    return {part};
}}

static inline void kf_store_{suffix}(__global {item}* data, {ty} value, ulong left) {{
    if (left >= {width}) {{
        vstore{width}({bytes}, 0, data);
        return;
    }}
    {item} part[{width}];
    vstore{width}({bytes}, 0, part);
    for (uint k = 0; k < left; ++k) data[k] = part[k];
}}
#endif

"
                ),
            );
        }
        let mut parameters = Vec::new();
        if !self.context().is_empty() {
            parameters.push(format!("const {}_context* context", self.options.name));
        }
        for input in &self.loaded {
            let ty = lanes.ty(self.lowered.inputs()[*input as usize]);
            parameters.push(format!("const {ty} {}", self.values[*input as usize]));
        }
        let result = lanes.ty(self.lowered.result());
        let (name, parameters) = (&self.options.name, parameters.join(", "));
        write_all(text, format_args!("$DEVICE {result} {name}_elements({parameters}) {{\n"));
        for (at, step) in self.lowered.steps().iter().enumerate() {
            let id = StepId(at as u32);
            let value = lanes.value(self.lowered, id, |id| self.lane_operand(lanes, id));
            if let (false, Some(value)) = (step.uniform, value) {
                line(text, 1, format_args!("const {} s{at} = {value};", lanes.ty(step.dtype)));
            }
        }
        let last = StepId(self.lowered.steps().len() as u32 - 1);
        line(text, 1, format_args!("return {};", self.lane_operand(lanes, last)));
        text.push_str("}\n\n");
    }

    /// Writes the loop over vectors, the last of which may have fewer elements.
    pub(super) fn lane_loop(&self, lanes: Lanes, text: &mut String) {
        let width = lanes.width;
        let access = |verb: &str, dtype: DType, data: &str| {
            let place = self.offset("", data, "place");
            format!("kf_{verb}_{dtype}x{width}_{}({data} + ({place})", lanes.float)
        };
        line(text, 1, format_args!("const ulong vectors = (count + {}) / {width};", width - 1));
        line(text, 1, format_args!("for (ulong i = lane; i < vectors; i += lanes) {{"));
        line(text, 2, format_args!("const long place = (long)(first + i * {width});"));
        line(text, 2, format_args!("const ulong left = count - i * {width};"));
        let mut given = Vec::new();
        if !self.context().is_empty() {
            given.push("&context".to_owned());
        }
        for input in &self.loaded {
            let dtype = self.lowered.inputs()[*input as usize];
            given.push(format!("{}, left)", access("load", dtype, self.pointer(*input))));
        }
        let name = &self.options.name;
        let ty = lanes.ty(self.lowered.result());
        line(text, 2, format_args!("const {ty} results = {name}_elements({});", given.join(", ")));
        let store = access("store", self.lowered.result(), "out_data");
        line(text, 2, format_args!("{store}, results, left);"));
        line(text, 1, format_args!("}}"));
    }
}
