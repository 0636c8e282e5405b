//! C identifiers for names of an expression.

use std::collections::BTreeSet;

use super::target::Target;

/// C++'s keywords, and CUDA's functions.
const CUDA_C: &str = "\
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl \
    const const_cast constexpr continue decltype default delete do double dynamic_cast else enum \
    explicit export extern false float for friend goto if inline int long main mutable namespace \
    new noexcept not not_eq nullptr operator or or_eq private protected public register \
    reinterpret_cast return short signed sizeof static static_assert static_cast struct switch \
    template this thread_local throw true try typedef typeid typename union unsigned using \
    virtual void volatile wchar_t while xor xor_eq abs acos asin atan ceil cos cosh erf exp \
    expm1 fabs floor fmod hypot log log10 log1p log2 max min pow printf rint round rsqrt sin \
    sinh sqrt tan tanh trunc";

/// OpenCL C's keywords, types, constants and functions; vectors' types are these with a number.
const OPENCL_C: &str = "\
    auto break case char const continue default do double else enum extern float for goto if \
    inline int long register restrict return short signed sizeof static struct switch typedef \
    union unsigned void volatile while bool complex imaginary half quad uchar ushort uint ulong \
    size_t ptrdiff_t intptr_t uintptr_t global local constant private generic kernel uniform \
    pipe read_only write_only read_write image1d_t image1d_array_t image1d_buffer_t image2d_t \
    image2d_array_t image3d_t sampler_t event_t true false main template typename class \
    namespace operator this new delete INFINITY NAN HUGE_VAL HUGE_VALF MAXFLOAT NULL abs \
    abs_diff acos acosh acospi add_sat all any asin asinh asinpi atan atan2 atan2pi atanh atanpi \
    barrier bitselect cbrt ceil clamp clz copysign cos cosh cospi cross ctz degrees distance dot \
    erf erfc exp exp10 exp2 expm1 fabs fast_distance fast_length fast_normalize fdim floor fma \
    fmax fmin fmod fract frexp hadd hypot ilogb isequal isfinite isgreater isgreaterequal isinf \
    isless islessequal islessgreater isnan isnormal isnotequal isordered isunordered ldexp \
    length lgamma lgamma_r log log10 log1p log2 logb mad mad24 mad_hi mad_sat max maxmag \
    mem_fence min minmag mix modf mul24 mul_hi nan nextafter normalize popcount pow pown powr \
    prefetch printf radians read_mem_fence remainder remquo rhadd rint rootn rotate round rsqrt \
    select shuffle shuffle2 sign signbit sin sincos sinh sinpi smoothstep sqrt step sub_sat tan \
    tanh tanpi tgamma trunc upsample vec_step wait_group_events write_mem_fence";

/// Groups of OpenCL C's functions begin so.
const OPENCL_C_GROUPS: [&str; 12] = [
    "as_",
    "async_",
    "atom_",
    "atomic_",
    "convert_",
    "get_",
    "half_",
    "native_",
    "read_image",
    "vload",
    "vstore",
    "write_image",
];

/// Returns whether a kernel can have that name: an identifier that is no word of the language, and
/// doesn't begin as the helpers do.
pub(super) fn is_kernel_name(name: &str, target: Target) -> bool {
    let mut letters = name.chars();
    let is_identifier =
        letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
            && letters.all(|other| other.is_ascii_alphanumeric() || other == '_');
    let is_word = |words: &str, name: &str| words.split(' ').any(|word| word == name);
    is_identifier
        && !name.starts_with("__")
        && !name.starts_with("kf_")
        && match target {
            Target::CudaC => !is_word(CUDA_C, name),
            Target::OpenClC => {
                let plain = name.trim_end_matches(|c: char| c.is_ascii_digit());
                ![name, plain].iter().any(|name| is_word(OPENCL_C, name))
                    && !OPENCL_C_GROUPS.iter().any(|group| name.starts_with(group))
            }
        }
}

/// Makes unique names.
#[derive(Default)]
pub(super) struct UniqueNames {
    taken: BTreeSet<String>,
}

impl UniqueNames {
    /// Returns `name_role`, with invalid characters replaced, or a variant if it is taken. No
    /// keyword of C++ and no name of a step ends in a role.
    pub(super) fn unique(&mut self, name: &str, role: &str) -> String {
        let plain: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let first = if plain.starts_with(|c: char| c.is_ascii_digit()) { "_" } else { "" };
        let mut given = format!("{first}{plain}_{role}");
        let mut number = 2;
        while !self.taken.insert(given.clone()) {
            given = format!("{first}{plain}{number}_{role}");
            number += 1;
        }
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_identifiers_and_differ() {
        let mut names = UniqueNames::default();
        assert_eq!(names.unique("x", "data"), "x_data");
        assert_eq!(names.unique("x", "data"), "x2_data");
        assert_eq!(names.unique("größe", "value"), "gr__e_value");
        assert_eq!(names.unique("3d", "value"), "_3d_value");
        assert!(is_kernel_name(&names.unique("float", "value"), Target::CudaC));
        for target in Target::ALL {
            for no in ["", "3x", "a-b", "float", "größe", "kf_add", "__x", "exp"] {
                assert!(!is_kernel_name(no, target), "{no}");
            }
        }
        for no in ["kernel", "mix", "float4", "vload8", "convert_int", "half"] {
            assert!(!is_kernel_name(no, Target::OpenClC), "{no}");
            assert!(is_kernel_name(no, Target::CudaC), "{no}");
        }
    }
}
