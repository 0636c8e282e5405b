//! The languages of kernels: the words that differ between them.
//!
//! The emitter writes one text for all targets, in which `$` marks a word that the target spells:
//! `$U64`, `$DEVICE`, `$exp32`. No name that a user chooses has a `$`.

use keyfold_core::DType;

use super::numbers::computed;

/// The language of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Target {
    /// CUDA C, for NVRTC.
    #[default]
    CudaC,
    /// OpenCL C 1.2.
    OpenClC,
}

impl Target {
    /// All targets.
    pub const ALL: [Target; 2] = [Target::CudaC, Target::OpenClC];

    /// Returns the name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Target::CudaC => "CUDA C",
            Target::OpenClC => "OpenCL C",
        }
    }

    /// Returns the compiler's options with which sums and products are rounded as on the CPU,
    /// besides CUDA's architecture. OpenCL's text says so itself, by a pragma.
    pub fn options(self) -> &'static [&'static str] {
        match self {
            Target::CudaC => &["--std=c++17", "--fmad=false"],
            Target::OpenClC => &["-cl-std=CL1.2"],
        }
    }

    /// Returns the text before the helpers.
    pub(super) fn header(self, uses_float64: bool) -> &'static str {
        match (self, uses_float64) {
            (Target::CudaC, _) => "",
            (Target::OpenClC, false) => "#pragma OPENCL FP_CONTRACT OFF\n\n",
            (Target::OpenClC, true) => {
                "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n#pragma OPENCL FP_CONTRACT OFF\n\n"
            }
        }
    }

    /// Returns the bytes of parameters that every device takes.
    pub(super) fn parameter_bytes(self) -> usize {
        match self {
            Target::CudaC => 4096,
            Target::OpenClC => 1024,
        }
    }

    /// Returns whether pointers come with an offset in elements: a buffer of OpenCL is passed whole.
    pub(super) fn has_offsets(self) -> bool {
        self == Target::OpenClC
    }

    /// Returns the spelling of a word, which may have words itself.
    fn word(self, word: &str) -> Option<&'static str> {
        let (cuda, opencl) = match word {
            "U8" => ("unsigned char", "uchar"),
            "U16" => ("unsigned short", "ushort"),
            "U32" => ("unsigned", "uint"),
            "U64" => ("unsigned long long", "ulong"),
            "I8" => ("signed char", "char"),
            "I64" => ("long long", "long"),
            // The suffix of 64-bit literals.
            "L" => ("ll", "l"),
            // An integer that holds an address.
            "ADDRESS" => ("unsigned long long", "uintptr_t"),
            "DEVICE" => ("__device__ __forceinline__", "static inline"),
            "KERNEL" => ("extern \"C\" __global__ void __launch_bounds__(512)", "__kernel void"),
            "GLOBAL" => ("", "__global"),
            // In OpenCL a work-item reads its elements before it writes one, so that the result may be
            // an input, without another program for that.
            "RESTRICT" => ("__restrict__", ""),
            "LANE" => {
                ("(unsigned long long)blockIdx.x * blockDim.x + threadIdx.x", "get_global_id(0)")
            }
            "LANES" => ("(unsigned long long)gridDim.x * blockDim.x", "get_global_size(0)"),
            "ATOMICMAX" => ("atomicMax", "atomic_max"),
            "MULHI32" => ("__umulhi", "mul_hi"),
            "MULHI64" => ("__umul64hi", "mul_hi"),
            "ASFLOAT" => ("__uint_as_float", "as_float"),
            "ASUINT" => ("__float_as_uint", "as_uint"),
            "ASDOUBLE" => ("__longlong_as_double", "as_double"),
            // The float16 with these bits, shifted by 13, without its sign. The product of CUDA is
            // exact for subnormal numbers; a device of OpenCL may flush those of float32 to 0.
            "SCALEDHALF" => (
                "$ASFLOAT(bits) * 0x1p112f",
                "bits < 0x00800000u ? $ASFLOAT(bits + 0x38800000u) - 0x1p-14f \
                 : $ASFLOAT(bits + 0x38000000u)",
            ),
            _ => return None,
        };
        Some(if self == Target::CudaC { cuda } else { opencl })
    }

    /// Returns the name of a function of floats: CUDA has one per type.
    fn function(self, name: &str, dtype: DType) -> String {
        match (self, dtype) {
            (Target::CudaC, DType::F32) => format!("{name}f"),
            _ => name.into(),
        }
    }
}

/// The words of a text that is written for many dtypes: letters that are dtypes, and constants.
#[derive(Clone, Debug, Default)]
pub(super) struct Words {
    /// `$T` is the dtype's type in C, `name_$T` ends in its name.
    pub(super) dtypes: Vec<(&'static str, DType)>,
    /// Numbers, as text.
    pub(super) constants: Vec<(&'static str, String)>,
}

/// Returns the text with its words spelled. A word begins with `$` and has letters and digits. In
/// lower case it is a function of floats, and its last two digits are the type's width; without
/// digits, the type is that of `$F`.
pub(super) fn spell(text: &str, target: Target, words: &Words) -> String {
    let mut spelled = String::with_capacity(text.len() + text.len() / 4);
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        spelled.push_str(before);
        let end = after.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(after.len());
        let (word, after) = after.split_at(end);
        rest = after;
        let dtype = |letter: &str| words.dtypes.iter().find(|(name, _)| *name == letter);
        if let Some((_, dtype)) = dtype(word) {
            match spelled.ends_with('_') {
                true => spelled.push_str(dtype.name()),
                false => spelled += &spell(computed(*dtype), target, words),
            }
        } else if let Some((_, constant)) = words.constants.iter().find(|(name, _)| *name == word) {
            spelled += &spell(constant, target, words);
        } else if let Some(spelling) = target.word(word) {
            spelled += &spell(spelling, target, words);
            if spelling.is_empty() {
                rest = rest.strip_prefix(' ').unwrap_or(rest);
            }
        } else if let Some(name) = word.strip_suffix("32") {
            spelled += &target.function(name, DType::F32);
        } else if let Some(name) = word.strip_suffix("64") {
            spelled += &target.function(name, DType::F64);
        } else {
            let dtype = dtype("F").map_or(DType::F64, |(_, dtype)| *dtype);
            spelled += &target.function(word, dtype);
        }
    }
    spelled + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_spelled_for_the_target() {
        let words = Words {
            dtypes: vec![("F", DType::F32), ("T", DType::U64)],
            constants: vec![("END", "5u$L".into())],
        };
        let text =
            "$DEVICE $T kf_$T_$F($GLOBAL const $F* x) { $exp(x) $log264(y) $log232(y) $END; }";
        assert_eq!(
            spell(text, Target::CudaC, &words),
            "__device__ __forceinline__ unsigned long long kf_uint64_float32(const float* x) \
             { expf(x) log2(y) log2f(y) 5ull; }"
        );
        assert_eq!(
            spell(text, Target::OpenClC, &words),
            "static inline ulong kf_uint64_float32(__global const float* x) \
             { exp(x) log2(y) log2(y) 5ul; }"
        );
    }
}
