//! Every kind of mistake in a schema's text: message and position of the error.

use keyfold_core::ErrorKind;

use crate::schema::{OperatorName, Schema};

/// Checks texts in which `^` marks the position of the error, with its message.
fn assert_mistakes(table: &[(&str, &str)]) {
    for (marked, expected) in table {
        let at = marked.find('^').unwrap();
        let text = marked.replacen('^', "", 1);
        let error = Schema::parse(&text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema);
        let lines: Vec<&str> = error.message().split('\n').collect();
        assert_eq!(lines[0], format!("schema, column {}: {expected}", at + 1), "{text}");
        assert_eq!(lines[1..], [text.trim_end(), &format!("{}^", " ".repeat(at))], "{error}");
    }
}

#[test]
fn mistakes_in_the_name() {
    assert_mistakes(&[
        ("^", "expected an operator name such as `ns::name`, found the end of the text"),
        ("^() -> ()", "expected an operator name such as `ns::name`, found `(`"),
        ("^::add() -> ()", "expected a namespace before `::`, found `:`"),
        ("a::^() -> ()", "expected the operator's name after `::`, found `(`"),
        ("a^:add() -> ()", "expected `::` between namespace and name, found `:`"),
        ("a::b^::c() -> ()", "a name has one `::`, between namespace and name"),
        ("a::b.^() -> ()", "expected an overload name after `.`, found `(`"),
        ("a::b.c^.d() -> ()", "a name has one `.`, before the overload"),
        ("a.b^::c() -> ()", "`::` comes before the overload: `ns::name.overload`"),
        ("a::b^-c() -> ()", "expected `(` and the arguments after the operator's name, found `-`"),
        (
            "a::b^",
            "expected `(` and the arguments after the operator's name, found the end of the text",
        ),
        ("a::b ^c() -> ()", "expected `(` and the arguments after the operator's name, found `c`"),
        (
            "a::^1b() -> ()",
            "expected the operator's name after `::`, found `1b`: a name has ASCII \
          letters, digits and `_`, and starts with no digit",
        ),
        (
            "a::^bé() -> ()",
            "expected the operator's name after `::`, found `bé`: a name has ASCII \
          letters, digits and `_`, and starts with no digit",
        ),
    ]);
}

#[test]
fn mistakes_in_a_type() {
    assert_mistakes(&[
        ("a::b(^Tensr x) -> ()", "unknown type `Tensr`; did you mean 'Tensor'?"),
        ("a::b(^tensor x) -> ()", "unknown type `tensor`; did you mean 'Tensor'?"),
        ("a::b(^string x) -> ()", "unknown type `string`; here it is `str`"),
        (
            "a::b(^x: Tensor) -> ()",
            "unknown type `x`; the type comes before the name, as in `Tensor x`",
        ),
        (
            "a::b(^x, y) -> ()",
            "unknown type `x`; a type is one of Tensor, Scalar, int, float, bool, \
          complex, str, Device, ScalarType, Layout, MemoryFormat, Generator, Any, and stands before the name",
        ),
        ("a::b() -> ^None", "unknown type `None`; an operator without returns has `-> ()`"),
        ("a::b(Tensor?^? x) -> ()", "`Tensor?` is optional already"),
        ("a::b(int[]?^? x) -> ()", "`int[]?` is optional already"),
        ("a::b(int[]^[] x) -> ()", "`int[]` is a list already: lists don't nest"),
        ("a::b(int[2]?^[] x) -> ()", "`int[2]?` is a list already: lists don't nest"),
        ("a::b(int[^0] x) -> ()", "a list's length is a number from 1 to 1024, not 0"),
        ("a::b(int[^1025] x) -> ()", "a list's length is a number from 1 to 1024, not 1025"),
        (
            "a::b(int[^99999999999999999999] x) -> ()",
            "a list's length is a number from 1 to 1024, not 99999999999999999999",
        ),
        ("a::b(int[^-1] x) -> ()", "expected the list's length, or `]`, found `-`"),
        ("a::b(int[^n] x) -> ()", "expected the list's length, or `]`, found `n`"),
        ("a::b(int[2 ^x) -> ()", "expected `]` after the list's length, found `x`"),
        ("a::b(int[^", "expected the list's length, or `]`, found the end of the text"),
    ]);
}

#[test]
fn mistakes_in_an_alias() {
    assert_mistakes(&[
        ("a::b(int^(a) x) -> ()", "only a Tensor has an alias annotation, not `int`"),
        ("a::b(Tensor[]^! x) -> ()", "`!` stands directly after `Tensor`, as in `Tensor![]`"),
        ("a::b(int^! x) -> ()", "only a Tensor is written in place, not `int`"),
        ("a::b(Tensor!^! x) -> ()", "`!` stands there already"),
        ("a::b(Tensor(a!)^! x) -> ()", "`!` stands in the alias annotation: `Tensor(a!)`"),
        (
            "a::b(Tensor! x) -> ^Tensor!",
            "`Tensor!` in a return doesn't say which argument it is: name the set there and here, as \
             in `Tensor(a!)`",
        ),
        ("a::b(Tensor(a)^(b) x) -> ()", "a second alias annotation"),
        (
            "a::b(Tensor[]^(a) x) -> ()",
            "an alias annotation stands directly after `Tensor`, as in `Tensor(a!)[]`",
        ),
        ("a::b(Tensor(^) x) -> ()", "expected an alias set such as `a`, or `*`, found `)`"),
        ("a::b(Tensor(^!) x) -> ()", "expected an alias set such as `a`, or `*`, found `!`"),
        ("a::b(Tensor(a|^) x) -> ()", "expected an alias set such as `a`, or `*`, found `)`"),
        ("a::b(Tensor(a -> ^) x) -> ()", "expected an alias set such as `a`, or `*`, found `)`"),
        ("a::b(Tensor(a|^a) x) -> ()", "alias set `a` is named twice"),
        ("a::b(Tensor(*^|a) x) -> ()", "`*` is any set already and stands alone"),
        ("a::b(Tensor(a|^*) x) -> ()", "`*` is any set already and stands alone"),
        (
            "a::b(Tensor(a ^b) x) -> ()",
            "expected `!`, `|`, `->` or `)` in the alias annotation, found `b`",
        ),
        ("a::b(Tensor(a!^!) x) -> ()", "expected `->` or `)` in the alias annotation, found `!`"),
        (
            "a::b(Tensor(a -> b^!) x) -> ()",
            "expected `)` at the end of the alias annotation, found `!`",
        ),
    ]);
}

#[test]
fn mistakes_in_the_arguments() {
    assert_mistakes(&[
        ("a::b(^", "expected an argument such as `Tensor x`, found the end of the text"),
        ("a::b(^, Tensor x) -> ()", "expected an argument such as `Tensor x`, found `,`"),
        ("a::b(Tensor^) -> ()", "expected the argument's name after its type `Tensor`, found `)`"),
        (
            "a::b(Tensor ^1x) -> ()",
            "expected the argument's name after its type `Tensor`, found `1x`: a \
          name has ASCII letters, digits and `_`, and starts with no digit",
        ),
        ("a::b(int ^None) -> ()", "`None` is a value and can't name an argument"),
        ("a::b(Tensor x, int ^x) -> ()", "a second argument named `x`"),
        ("a::b(Tensor x, *, int ^x) -> ()", "a second argument named `x`"),
        (
            "a::b(int x=1, int ^y) -> ()",
            "argument `y` has no default but follows `x`, which has one: \
          give it a default, move it forward, or put it after `*`",
        ),
        ("a::b(*, int x, ^*, int y) -> ()", "a second `*`: keyword-only arguments began already"),
        (
            "a::b(Tensor x, *^) -> ()",
            "expected `,` and a keyword-only argument after `*`, found `)`",
        ),
        ("a::b(Tensor x, *, ^) -> ()", "expected an argument after `,`, found `)`"),
        (
            "a::b(* ^Tensor x) -> ()",
            "expected `,` and a keyword-only argument after `*`, found `Tensor`",
        ),
        ("a::b(Tensor x,^) -> ()", "expected an argument after `,`, found `)`"),
        (
            "a::b(Tensor x, ^/, int y) -> ()",
            "`/` isn't supported: any argument before `*` may be \
          passed by position or by name",
        ),
        (
            "a::b(Tensor x, ^...) -> ()",
            "variable arguments aren't supported: take a list, as in \
          `Tensor[] inputs`",
        ),
        (
            "a::b(Tensor x ^Tensor y) -> ()",
            "expected `,` or `)` after argument `x`, found `Tensor`",
        ),
        ("a::b(Tensor x^; int y) -> ()", "expected `,` or `)` after argument `x`, found `;`"),
        (
            "a::b(Tensor x^",
            "expected `,` or `)` after argument `x`, found the end of the text; the `(` at \
          character 5 isn't closed",
        ),
        ("a::b(Tensor x ^-> ()", "expected `,` or `)` after argument `x`, found `->`"),
        ("a::b(Tensor x^] -> ()", "expected `,` or `)` after argument `x`, found `]`"),
    ]);
}

#[test]
fn mistakes_in_a_default() {
    assert_mistakes(&[
        ("a::b(int x=^) -> ()", "expected a default for `x` after `=`, found `)`"),
        ("a::b(int x=^, int y) -> ()", "expected a default for `x` after `=`, found `,`"),
        (
            "a::b(int x=^1.5) -> ()",
            "the default of `int x` must be a whole number such as 1, found the \
          float 1.5",
        ),
        (
            "a::b(int x=^9223372036854775808) -> ()",
            "9223372036854775808 is out of range: whole numbers \
          go from -9223372036854775808 to 9223372036854775807",
        ),
        (
            "a::b(int x=^-9223372036854775809) -> ()",
            "-9223372036854775809 is out of range: whole numbers \
          go from -9223372036854775808 to 9223372036854775807",
        ),
        ("a::b(float x=^1e999) -> ()", "1e999 is out of range for a float; write inf"),
        ("a::b(int x=^0x10) -> ()", "`0x10` isn't a number such as 1, -2 or 1e-5"),
        ("a::b(int x=^1_000) -> ()", "`1_000` isn't a number such as 1, -2 or 1e-5"),
        ("a::b(float x=^1.2.3) -> ()", "`1.2.3` isn't a number such as 1, -2 or 1e-5"),
        ("a::b(float x=^1e) -> ()", "`1e` isn't a number such as 1, -2 or 1e-5"),
        ("a::b(float x=^.) -> ()", "`.` isn't a number such as 1, -2 or 1e-5"),
        ("a::b(float x=^-) -> ()", "`-` isn't a number such as 1, -2 or 1e-5"),
        ("a::b(float x=^-nan) -> ()", "`-nan` isn't a number such as 1, -2 or 1e-5"),
        ("a::b(complex x=^1j) -> ()", "`1j` isn't a number such as 1, -2 or 1e-5"),
        ("a::b(int x=^+1) -> ()", "a number is written without `+`"),
        ("a::b(str x=^\"sum) -> ()", "a string isn't closed: expected `\"` on the same line"),
        ("a::b(str x=^'sum\") -> ()", "a string isn't closed: expected `'` on the same line"),
        (
            "a::b(str x=\"^\\q\") -> ()",
            "an unknown escape: expected \\n, \\r, \\t, \\0, \\\\, \\\", \\', \\x \
          and 2 hexadecimal digits, or \\u and 4",
        ),
        (
            "a::b(str x=\"^\\ud800\") -> ()",
            "an unknown escape: expected \\n, \\r, \\t, \\0, \\\\, \\\", \\', \\x \
          and 2 hexadecimal digits, or \\u and 4",
        ),
        ("a::b(int[] x=[1^) -> ()", "expected `,` or `]` after a list item, found `)`"),
        (
            "a::b(int[] x=[1, 2^",
            "expected `,` or `]` after a list item, found the end of the text; the \
          `[` at character 14 isn't closed",
        ),
        ("a::b(int[] x=[^, 1]) -> ()", "expected a list item, or `]`, found `,`"),
        ("a::b(int[] x=[^[1]]) -> ()", "a default list holds no lists"),
        ("a::b(int x=1 ^2) -> ()", "expected `,` or `)` after argument `x`, found `2`"),
        ("a::b(str x=\"a\"^\"b\") -> ()", "expected `,` or `)` after argument `x`, found a string"),
    ]);
}

#[test]
fn mistakes_in_the_returns() {
    assert_mistakes(&[
        ("a::b()^", "expected `->` and the returns, found the end of the text"),
        ("a::b() ^Tensor", "expected `->` and the returns, found `Tensor`"),
        ("a::b() ^- > Tensor", "expected `->` and the returns, found `-`"),
        ("a::b()^) -> ()", "expected `->` and the returns (one `)` too many), found `)`"),
        (
            "a::b() ->^",
            "expected a return type such as `Tensor`, or `()` for none, found the end of the \
          text",
        ),
        ("a::b() -> Tensor^, Tensor", "several returns stand in parentheses: `-> (A, B)`"),
        ("a::b() -> Tensor x ^y", "expected the end of the schema after its return, found `y`"),
        ("a::b() -> Tensor^;", "expected the end of the schema after its return, found `;`"),
        (
            "a::b() -> () ^Tensor",
            "expected the end of the schema after its returns, found `Tensor`",
        ),
        ("a::b() -> (Tensor)^)", "expected the end of the schema after its returns, found `)`"),
        (
            "a::b() -> (Tensor,^)",
            "expected a return type such as `Tensor`, or `()` for none, found `)`",
        ),
        ("a::b() -> (Tensor x, Tensor ^x)", "a second return named `x`"),
        ("a::b() -> (Tensor x^=1)", "expected `,` or `)` after a return, found `=`"),
        (
            "a::b() -> (Tensor^",
            "expected `,` or `)` after a return, found the end of the text; the `(` at \
          character 11 isn't closed",
        ),
        (
            "a::b() -> ^list",
            "unknown type `list`; a type is one of Tensor, Scalar, int, float, bool, \
          complex, str, Device, ScalarType, Layout, MemoryFormat, Generator, Any, and stands before the name",
        ),
    ]);
}

#[test]
fn the_line_and_the_column_of_a_text_with_tabs_and_wide_characters_are_right() {
    let error = Schema::parse("a::b(\n\tstr x=\"漢字\", inta y)\n -> ()").unwrap_err();
    assert_eq!(
        error.message(),
        "schema, line 2, column 14: unknown type `inta`; did you mean 'int'?\n \
         str x=\"漢字\", inta y)\n        \u{3000}\u{3000}   ^"
    );
}

#[test]
fn names_are_read_alone_too() {
    let name = OperatorName::parse(" a::b.default ").unwrap();
    assert_eq!((name.to_string(), name.overload.as_str()), ("a::b".into(), ""));
    assert_eq!("x.y".parse::<OperatorName>().unwrap().to_string(), "x.y");
    let table = [
        ("", "column 1: expected an operator name such as `ns::name`, found the end of the text"),
        ("a::b(x)", "column 5: expected `::`, `.` or the end, found `(`"),
        ("a::b.c d", "column 8: expected the end, found `d`"),
        ("a b", "column 3: expected `::`, `.` or the end, found `b`"),
    ];
    for (text, expected) in table {
        let error = text.parse::<OperatorName>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema);
        assert_eq!(error.message().lines().next().unwrap(), format!("operator name, {expected}"));
    }
}

#[test]
fn huge_texts_parse_or_fail_with_a_short_message() {
    let arguments: Vec<String> = (0..20_000).map(|index| format!("int x{index}=1")).collect();
    let text = format!("a::b({}) -> ()", arguments.join(", "));
    assert_eq!(text.parse::<Schema>().unwrap().arguments.len(), 20_000);
    let long = 1_000_000;
    let texts = [
        "(".repeat(long),
        "a".repeat(long),
        format!("a::b(int{}", "[]".repeat(long)),
        format!("a::b(Tensor{}", "?".repeat(long)),
        format!("a::b(int[] x={}", "[".repeat(long)),
        format!("a::b(int[{}] x", "9".repeat(long)),
        format!("a::b(int x={}", "9".repeat(long)),
        format!("a::b(float x={}e", "9".repeat(long)),
        format!("a::b(int {}) -> ()", "x".repeat(long)),
        format!("a::b(Tensor x{}", " ".repeat(long)),
        format!("a::b(str x=\"{}", "é".repeat(long)),
        format!("a::b({}", "*,".repeat(long)),
    ];
    for text in texts {
        let error = Schema::parse(&text).unwrap_err();
        assert!(error.message().len() < 1500, "{}", error.message().len());
    }
    let error = Schema::parse(&format!("{}() -> ()", "x".repeat(256))).unwrap_err();
    assert!(error.message().contains("a name of 256 characters: at most 255"), "{error}");
}
