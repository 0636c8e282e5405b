//! The canonical text of a schema, which parses to an equal one.

use std::fmt::{Display, Formatter, Result, Write};

use super::types::{Alias, Argument, Literal, OperatorName, Return, Schema, Type};

impl Display for Schema {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}(", self.name)?;
        let mut keywords_began = false;
        for (index, argument) in self.arguments.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            if argument.kwarg_only && !keywords_began {
                keywords_began = true;
                f.write_str("*, ")?;
            }
            write!(f, "{argument}")?;
        }
        write!(f, ") -> {}", Returns(&self.returns))
    }
}

impl Schema {
    /// Returns the canonical text after `->`: `Tensor`, `(Tensor, Tensor)`, `()`.
    pub fn returns_text(&self) -> String {
        Returns(&self.returns).to_string()
    }
}

struct Returns<'s>(&'s [Return]);

impl Display for Returns<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.0 {
            [only] if only.name.is_none() => write!(f, "{only}"),
            several => {
                f.write_char('(')?;
                separated(f, several, ", ")?;
                f.write_char(')')
            }
        }
    }
}

impl Display for OperatorName {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if !self.namespace.is_empty() {
            write!(f, "{}::", self.namespace)?;
        }
        f.write_str(&self.name)?;
        if !self.overload.is_empty() {
            write!(f, ".{}", self.overload)?;
        }
        Ok(())
    }
}

impl Display for Argument {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        annotated(f, &self.ty, self.alias.as_ref())?;
        write!(f, " {}", self.name)?;
        match &self.default {
            Some(default) => write!(f, "={default}"),
            None => Ok(()),
        }
    }
}

impl Display for Return {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        annotated(f, &self.ty, self.alias.as_ref())?;
        match &self.name {
            Some(name) => write!(f, " {name}"),
            None => Ok(()),
        }
    }
}

impl Display for Type {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        annotated(f, self, None)
    }
}

/// Prints a type with its alias annotation after the base, before `?` and `[]`.
fn annotated(f: &mut Formatter<'_>, ty: &Type, alias: Option<&Alias>) -> Result {
    match ty {
        Type::Optional(inner) => {
            annotated(f, inner, alias)?;
            f.write_char('?')
        }
        Type::List(inner, size) => {
            annotated(f, inner, alias)?;
            match size {
                Some(size) => write!(f, "[{size}]"),
                None => f.write_str("[]"),
            }
        }
        base => {
            let named = Type::BASES.iter().find(|(_, ty)| ty == base);
            f.write_str(named.map_or("", |(name, _)| name))?;
            match alias {
                Some(alias) => write!(f, "{alias}"),
                None => Ok(()),
            }
        }
    }
}

impl Display for Alias {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_char('(')?;
        separated(f, &self.sets, "|")?;
        if self.write {
            f.write_char('!')?;
        }
        if !self.after.is_empty() {
            f.write_str(" -> ")?;
            separated(f, &self.after, "|")?;
        }
        f.write_char(')')
    }
}

impl Display for Literal {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Literal::None => f.write_str("None"),
            Literal::Bool(true) => f.write_str("True"),
            Literal::Bool(false) => f.write_str("False"),
            Literal::Int(value) => write!(f, "{value}"),
            Literal::Float(value) if value.is_nan() => f.write_str("nan"),
            // `{:?}` prints the shortest text that parses to the same float, with a point or an
            // exponent, which distinguishes it from an integer.
            Literal::Float(value) => write!(f, "{value:?}"),
            Literal::Str(text) => quoted(f, text),
            Literal::Ident(name) => f.write_str(name),
            Literal::List(items) => {
                f.write_char('[')?;
                separated(f, items, ", ")?;
                f.write_char(']')
            }
        }
    }
}

/// Prints a string in double quotes, with Python's escapes for quotes and invisible characters.
fn quoted(f: &mut Formatter<'_>, text: &str) -> Result {
    f.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => {
                write!(f, "\\u{:04x}", u32::from(c))?;
            }
            c => f.write_char(c)?,
        }
    }
    f.write_char('"')
}

fn separated(f: &mut Formatter<'_>, items: &[impl Display], separator: &str) -> Result {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            f.write_str(separator)?;
        }
        write!(f, "{item}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        let schema = Schema::parse(text).unwrap_or_else(|error| panic!("{error}"));
        let printed = schema.to_string();
        assert_eq!(Schema::parse(&printed).unwrap(), schema, "{printed}");
        printed
    }

    #[test]
    fn canonical_text_prints_as_it_was_read() {
        let texts = [
            "demo::add(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
            "demo::add.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
            "add() -> ()",
            "a::b(Tensor self, Tensor(a!) out, *, Scalar alpha=1, int[2] stride=1, \
             Tensor? bias=None, str mode=\"sum\", Device? device=None, ScalarType? dtype=None, \
             Generator? g=None) -> (Tensor, Tensor)",
            "a::b(*, Tensor x) -> (Tensor values, Tensor indices)",
            "a::b(Tensor?[] x, int[]? y=None, Tensor(a!)[] z=[]) -> Tensor[]",
            "a::b(Tensor(a) x, Tensor(a|b) y, Tensor(a -> *) z, Tensor(a! -> b|c)? w) -> (Tensor(*) o)",
            "a::b(float a=1.0, float b=-1e-5, float c=inf, float d=-inf, float e=nan) -> bool",
            "a::b(int[2] a=[1, -2], bool[] b=[True, False], str[] c=[\"x\", \"\"]) -> Scalar",
            "a::b(ScalarType t=float32, Layout l=strided, MemoryFormat m=contiguous_format) -> int",
            "a::b(int reduction=Mean, complex c=1.5, Device d=\"cuda:1\", int from=0) -> complex",
            "a::b(Any x, Any? y=None, Any[] z=[1, \"b\"], int[1] dim=[-2, -1]) -> Any",
            "a::b(int low=-9223372036854775808, int high=9223372036854775807) -> str",
        ];
        for text in texts {
            assert_eq!(canonical(text), text);
        }
    }

    #[test]
    fn other_spellings_print_as_the_canonical_one() {
        let table = [
            (
                "  a::b.default (\n  SymInt[2]  x = 1 ,\r\n\t*,Tensor y)->( Tensor )  ",
                "a::b(int[2] x=1, *, Tensor y) -> Tensor",
            ),
            ("a::b(Tensor ( a | b ! -> * ) ? x)->()", "a::b(Tensor(a|b! -> *)? x) -> ()"),
            (
                "a::b(float x=3, float[] y=[1, 2.5], complex? z=-0) -> Tensor out",
                "a::b(float x=3.0, float[] y=[1.0, 2.5], complex? z=0.0) -> (Tensor out)",
            ),
            (
                "a::b(float x=.5, float y=5., float z=1E3) -> ()",
                "a::b(float x=0.5, float y=5.0, float z=1000.0) -> ()",
            ),
            (
                r#"a::b(str x='it\'s "so"', str y="\x41\u00e9\t\u001b", str z='é漢') -> ()"#,
                r#"a::b(str x="it's \"so\"", str y="Aé\t\u001b", str z="é漢") -> ()"#,
            ),
            (
                "a::b(ScalarType x=long, ScalarType?[] y=[half, None, bool], int[2] z=[]) -> ()",
                "a::b(ScalarType x=int64, ScalarType?[] y=[float16, None, bool], int[2] z=[]) -> ()",
            ),
            (
                "a::b(Tensor! x, Tensor (a) y, Tensor ! []? z, *, Tensor! out) -> ()",
                "a::b(Tensor(a0!) x, Tensor(a) y, Tensor(a2!)[]? z, *, Tensor(a3!) out) -> ()",
            ),
            (
                "a::b(Tensor! x, Tensor(a0) y, Tensor(a1 -> a2) z) -> Tensor(a0)",
                "a::b(Tensor(a3!) x, Tensor(a0) y, Tensor(a1 -> a2) z) -> Tensor(a0)",
            ),
            ("a::b(int x=007, int y=-0) -> ()", "a::b(int x=7, int y=0) -> ()"),
        ];
        for (text, expected) in table {
            assert_eq!(canonical(text), expected);
        }
    }

    #[test]
    fn the_returns_have_a_text_of_their_own() {
        for returns in ["Tensor", "()", "(Tensor, int)", "(Tensor(a!) out)", "Tensor?[]"] {
            let schema = Schema::parse(&format!("a::b() -> {returns}")).unwrap();
            assert_eq!(schema.returns_text(), returns);
        }
    }
}
