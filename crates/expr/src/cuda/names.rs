//! C identifiers for names of an expression.

use std::collections::BTreeSet;

/// Names that a kernel can't have: C++'s keywords, and CUDA's declarations.
const RESERVED: &[&str] = &[
    "alignas",
    "alignof",
    "and",
    "and_eq",
    "asm",
    "auto",
    "bitand",
    "bitor",
    "bool",
    "break",
    "case",
    "catch",
    "char",
    "class",
    "compl",
    "const",
    "const_cast",
    "constexpr",
    "continue",
    "decltype",
    "default",
    "delete",
    "do",
    "double",
    "dynamic_cast",
    "else",
    "enum",
    "explicit",
    "export",
    "extern",
    "false",
    "float",
    "for",
    "friend",
    "goto",
    "if",
    "inline",
    "int",
    "long",
    "main",
    "mutable",
    "namespace",
    "new",
    "noexcept",
    "not",
    "not_eq",
    "nullptr",
    "operator",
    "or",
    "or_eq",
    "private",
    "protected",
    "public",
    "register",
    "reinterpret_cast",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "static_assert",
    "static_cast",
    "struct",
    "switch",
    "template",
    "this",
    "thread_local",
    "throw",
    "true",
    "try",
    "typedef",
    "typeid",
    "typename",
    "union",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "wchar_t",
    "while",
    "xor",
    "xor_eq",
    "abs",
    "acos",
    "asin",
    "atan",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "exp",
    "expm1",
    "fabs",
    "floor",
    "fmod",
    "hypot",
    "log",
    "log10",
    "log1p",
    "log2",
    "max",
    "min",
    "pow",
    "printf",
    "rint",
    "round",
    "rsqrt",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
];

/// Returns whether a kernel can have that name.
pub(super) fn is_identifier(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && letters.all(|other| other.is_ascii_alphanumeric() || other == '_')
        && !RESERVED.contains(&name)
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
        assert!(is_identifier(&names.unique("float", "value")));
        for no in ["", "3x", "a-b", "float", "größe"] {
            assert!(!is_identifier(no), "{no}");
        }
    }
}
