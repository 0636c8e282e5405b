//! Element types in OpenCL C.

use keyfold_plugin::DType;

/// A real element type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Type {
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F16,
    BF16,
    F32,
    F64,
}

use Type::{BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};

impl Type {
    /// Returns the type of a dtype; none for complex ones.
    pub fn of(dtype: DType) -> Option<Type> {
        Some(match dtype {
            DType::BOOL => Bool,
            DType::I8 => I8,
            DType::I16 => I16,
            DType::I32 => I32,
            DType::I64 => I64,
            DType::U8 => U8,
            DType::U16 => U16,
            DType::U32 => U32,
            DType::U64 => U64,
            DType::F16 => F16,
            DType::BF16 => BF16,
            DType::F32 => F32,
            DType::F64 => F64,
            _ => return None,
        })
    }

    pub fn is_float(self) -> bool {
        matches!(self, F16 | BF16 | F32 | F64)
    }

    /// Returns the type of the elements in memory.
    pub fn stored(self) -> &'static str {
        match self {
            F16 => "half",
            BF16 => "ushort",
            _ => self.computed(),
        }
    }

    /// Returns the type that elements are computed in. Halves are computed as float.
    pub fn computed(self) -> &'static str {
        match self {
            Bool | U8 => "uchar",
            I8 => "char",
            I16 => "short",
            I32 => "int",
            I64 => "long",
            U16 => "ushort",
            U32 => "uint",
            U64 => "ulong",
            F16 | BF16 | F32 => "float",
            F64 => "double",
        }
    }

    /// Returns definitions for elements of a name: `T_name` in memory, `C_name` computed, and the
    /// macros `LOAD_name(p, i)`, `STORE_name(p, i, value)`; for a vector of neighbouring elements
    /// `CV_name`, `LOADV_name(p, i)` and `STOREV_name(p, i, value)`.
    ///
    /// `from` is the type of the values to store. Those of halves are rounded once, so they may be
    /// double if `from` is.
    pub fn define(self, name: &str, from: Type) -> String {
        let (stored, computed) = (self.stored(), self.computed());
        let (load, loads, store, stores) = match self {
            F16 => (
                "vload_half(i, p)",
                "VECTOR(vload_half)(0, (p) + (i))",
                "vstore_half_rte(v, i, p)",
                "PASTE_VALUES(VECTOR(vstore_half), _rte)(v, 0, (p) + (i))",
            ),
            BF16 => (
                "from_bfloat16((p)[i])",
                "from_bfloat16s(VECTOR(vload)(0, (p) + (i)))",
                "(p)[i] = to_bfloat16(v)",
                "VECTOR(vstore)(to_bfloat16s(v), 0, (p) + (i))",
            ),
            _ => (
                "(p)[i]",
                "VECTOR(vload)(0, (p) + (i))",
                "(p)[i] = (v)",
                "VECTOR(vstore)(v, 0, (p) + (i))",
            ),
        };
        let value = if self == F16 && from == F64 { "double" } else { computed };
        format!(
            "typedef {stored} T_{name};\ntypedef {computed} C_{name};\n\
             typedef VECTOR({computed}) CV_{name};\ntypedef {value} V_{name};\n\
             #define LOAD_{name}(p, i) {load}\n#define LOADV_{name}(p, i) {loads}\n\
             #define STORE_{name}(p, i, v) {store}\n#define STOREV_{name}(p, i, v) {stores}\n"
        )
    }

    /// Returns the expression that converts a value `x` of a type to this one, as the primitive
    /// `cast` does, to the type `V_name` of [`Type::define`].
    pub fn convert(self, from: Type, x: &str) -> String {
        let to = self.computed();
        match (self, from) {
            (Bool, _) => format!("(uchar)({x} != 0)"),
            (F16, F64) => x.to_owned(),
            (BF16, F64) => format!("double_to_odd({x})"),
            (BF16, I64 | I32) => format!("long_to_odd({x})"),
            (BF16, U64 | U32) => format!("ulong_to_odd({x})"),
            (to_type, from) if from.is_float() && !to_type.is_float() => {
                format!("(isnan({x}) ? ({to})0 : convert_{to}_sat_rtz({x}))")
            }
            _ => format!("(({to})({x}))"),
        }
    }
}

/// What every program starts with.
pub fn prelude(float64: bool) -> String {
    let double = if float64 {
        "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n\
         inline float double_to_odd(double x) {\n\
         \x20   float f = convert_float_rtz(x);\n\
         \x20   return isfinite(x) && (double)f != x ? as_float(as_uint(f) | 1) : f;\n}\n"
    } else {
        ""
    };
    format!("#pragma OPENCL FP_CONTRACT OFF\n{double}{}", include_str!("kernels/prelude.cl"))
}
