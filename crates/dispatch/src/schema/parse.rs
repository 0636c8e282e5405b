//! A recursive descent parser for schemas, whose errors carry the column.

use std::collections::HashSet;
use std::str::FromStr;

use keyfold_core::{Error, ErrorKind, Result};

use super::check::check_default;
use super::scan::{Parsed, Scanner, short};
use super::types::{Alias, Argument, Literal, OperatorName, Return, Schema, Type};
use keyfold_core::Failure;
use keyfold_core::did_you_mean;

/// The longest list of fixed size, since a default is expanded to that length.
const LONGEST_LIST: usize = 1024;

/// Other systems' names of types, with the names to write here.
const FOREIGN_TYPES: [(&[&str], &str); 7] = [
    (&["string", "String"], "str"),
    (&["double", "float32", "float64", "f32", "f64"], "float"),
    (&["int32", "int64", "int64_t", "i32", "i64", "long"], "int"),
    (&["number", "Number"], "Scalar"),
    (&["dtype", "DType"], "ScalarType"),
    (&["Array", "ndarray"], "Tensor"),
    (&["any", "object", "Object"], "Any"),
];

impl Schema {
    /// Parses a schema.
    ///
    /// ```
    /// use keyfold_dispatch::schema::Schema;
    /// let schema = Schema::parse("demo::scale(Tensor x, float k=2) -> Tensor")?;
    /// assert_eq!(schema.arguments[1].name, "k");
    /// assert_eq!(schema.to_string(), "demo::scale(Tensor x, float k=2.0) -> Tensor");
    /// # Ok::<(), keyfold_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`keyfold_core::ErrorKind::Schema`], with the expected and the found text, then the line,
    /// then a caret under the column.
    pub fn parse(text: &str) -> Result<Schema> {
        let mut scanner = Scanner { text, at: 0 };
        scanner.schema().map_err(|failure| failure.into_error(ErrorKind::Schema, "schema", text))
    }
}

impl OperatorName {
    /// Parses `ns::name.overload`, `ns::name`, `name.overload` or `name`. The overload `default`
    /// means none.
    ///
    /// # Errors
    /// [`keyfold_core::ErrorKind::Schema`], as [`Schema::parse`].
    pub fn parse(text: &str) -> Result<OperatorName> {
        let mut scanner = Scanner { text, at: 0 };
        let name = scanner.operator_name().and_then(|name| {
            scanner.end(if name.overload.is_empty() {
                "`::`, `.` or the end"
            } else {
                "the end"
            })?;
            Ok(name)
        });
        name.map_err(|failure| failure.into_error(ErrorKind::Schema, "operator name", text))
    }
}

impl FromStr for Schema {
    type Err = Error;
    fn from_str(text: &str) -> Result<Schema> {
        Schema::parse(text)
    }
}

impl FromStr for OperatorName {
    type Err = Error;
    fn from_str(text: &str) -> Result<OperatorName> {
        OperatorName::parse(text)
    }
}

/// Names the alias sets of arguments written `Tensor!`, a separate one each: `a0` for the first
/// argument, `a1` for the second, as PyTorch does. Names that the schema uses are skipped.
fn name_written(arguments: &mut [Argument]) {
    let named = |arguments: &[Argument], name: &String| {
        let mut aliases = arguments.iter().filter_map(|argument| argument.alias.as_ref());
        aliases.any(|alias| alias.sets.contains(name) || alias.after.contains(name))
    };
    for at in 0..arguments.len() {
        if arguments[at].alias.as_ref().is_some_and(|alias| alias.sets.is_empty()) {
            let name = (at..).map(|n| format!("a{n}")).find(|name| !named(arguments, name));
            if let Some(alias) = &mut arguments[at].alias {
                alias.sets.extend(name);
            }
        }
    }
}

impl<'t> Scanner<'t> {
    fn schema(&mut self) -> Parsed<Schema> {
        let name = self.operator_name()?;
        if !self.eat("(") {
            return Err(self.expected("`(` and the arguments after the operator's name"));
        }
        let mut arguments = self.arguments()?;
        name_written(&mut arguments);
        if !self.eat("->") {
            let extra = if self.sees(')') { " (one `)` too many)" } else { "" };
            return Err(self.expected(&format!("`->` and the returns{extra}")));
        }
        let returns = self.returns()?;
        Ok(Schema { name, arguments, returns })
    }

    /// Parses `ns::name.overload`, without blanks inside.
    fn operator_name(&mut self) -> Parsed<OperatorName> {
        self.blanks();
        if self.text[self.at..].starts_with("::") {
            return Err(self.expected("a namespace before `::`"));
        }
        let mut name = self.ident("an operator name such as `ns::name`")?.to_owned();
        let mut namespace = String::new();
        if self.next_is(':') {
            if !self.text[self.at..].starts_with("::") {
                return Err(self.expected("`::` between namespace and name"));
            }
            self.at += 2;
            namespace = name;
            name = self.ident("the operator's name after `::`")?.to_owned();
            if self.next_is(':') {
                return Err(self.failure("a name has one `::`, between namespace and name"));
            }
        }
        let mut overload = "";
        if self.next_is('.') {
            self.at += 1;
            overload = self.ident("an overload name after `.`")?;
            if self.next_is('.') {
                return Err(self.failure("a name has one `.`, before the overload"));
            }
            if self.next_is(':') {
                return Err(self.failure("`::` comes before the overload: `ns::name.overload`"));
            }
        }
        let overload = if overload == "default" { String::new() } else { overload.to_owned() };
        Ok(OperatorName { namespace, name, overload })
    }

    /// Parses arguments, from after `(` to after `)`.
    fn arguments(&mut self) -> Parsed<Vec<Argument>> {
        let opened = self.at - 1;
        let mut arguments: Vec<Argument> = Vec::new();
        let mut names: HashSet<&'t str> = HashSet::new();
        let mut kwarg_only = false;
        if self.eat(")") {
            return Ok(arguments);
        }
        loop {
            self.blanks();
            if self.sees('*') {
                if kwarg_only {
                    return Err(self.failure("a second `*`: keyword-only arguments began already"));
                }
                kwarg_only = true;
                self.at += 1;
                if !self.eat(",") {
                    return Err(self.expected("`,` and a keyword-only argument after `*`"));
                }
                continue;
            }
            if self.sees(')') && (kwarg_only || !arguments.is_empty()) {
                return Err(self.expected("an argument after `,`"));
            }
            let (argument, name, name_at) = self.argument(kwarg_only)?;
            if !names.insert(name) {
                let message = format!("a second argument named `{name}`");
                return Err(Failure { at: name_at, message });
            }
            if let Some(before) = arguments.last()
                && !kwarg_only
                && argument.default.is_none()
                && before.default.is_some()
            {
                let message = format!(
                    "argument `{name}` has no default but follows `{}`, which has one: give it a \
                     default, move it forward, or put it after `*`",
                    before.name
                );
                return Err(Failure { at: name_at, message });
            }
            arguments.push(argument);
            if self.eat(")") {
                return Ok(arguments);
            }
            if !self.eat(",") {
                return Err(self.unfinished(opened, &format!("argument `{name}`")));
            }
        }
    }

    fn argument(&mut self, kwarg_only: bool) -> Parsed<(Argument, &'t str, usize)> {
        let (ty, alias) = self.annotated_type("an argument such as `Tensor x`")?;
        self.blanks();
        let name_at = self.at;
        let name = self.ident(&format!("the argument's name after its type `{ty}`"))?;
        if matches!(name, "None" | "True" | "False") {
            let message = format!("`{name}` is a value and can't name an argument");
            return Err(Failure { at: name_at, message });
        }
        let mut default = None;
        if self.eat("=") {
            self.blanks();
            let at = self.at;
            let literal = self.literal(name)?;
            default =
                Some(check_default(name, &ty, literal).map_err(|message| Failure { at, message })?);
        }
        Ok((Argument { name: name.to_owned(), ty, default, kwarg_only, alias }, name, name_at))
    }

    /// Parses returns, from after `->` to the end of the text.
    fn returns(&mut self) -> Parsed<Vec<Return>> {
        let mut returns = Vec::new();
        if !self.eat("(") {
            returns.push(self.one_return()?.0);
            self.blanks();
            if self.sees(',') {
                return Err(self.failure("several returns stand in parentheses: `-> (A, B)`"));
            }
            self.end("the end of the schema after its return")?;
            return Ok(returns);
        }
        let opened = self.at - 1;
        let mut names: HashSet<&'t str> = HashSet::new();
        while !self.eat(")") {
            if !returns.is_empty() && !self.eat(",") {
                return Err(self.unfinished(opened, "a return"));
            }
            let (value, name, name_at) = self.one_return()?;
            if !name.is_empty() && !names.insert(name) {
                let message = format!("a second return named `{name}`");
                return Err(Failure { at: name_at, message });
            }
            returns.push(value);
        }
        self.end("the end of the schema after its returns")?;
        Ok(returns)
    }

    /// Parses one return. Returns it with its name (or "") and its position.
    fn one_return(&mut self) -> Parsed<(Return, &'t str, usize)> {
        self.blanks();
        let at = self.at;
        let (ty, alias) =
            self.annotated_type("a return type such as `Tensor`, or `()` for none")?;
        if alias.as_ref().is_some_and(|alias| alias.sets.is_empty()) {
            let message = "`Tensor!` in a return doesn't say which argument it is: name the set \
                           there and here, as in `Tensor(a!)`";
            return Err(Failure { at, message: message.into() });
        }
        self.blanks();
        let name_at = self.at;
        let named = self.peek().is_some_and(|c| c.is_alphanumeric() || c == '_');
        let name = if named { self.ident("a name")? } else { "" };
        Ok((Return { name: named.then(|| name.to_owned()), ty, alias }, name, name_at))
    }

    /// Parses a base type, its alias annotation, and suffixes: `?`, `[]`, `[n]`.
    fn annotated_type(&mut self, expected: &str) -> Parsed<(Type, Option<Alias>)> {
        let mut ty = self.base_type(expected)?;
        let mut alias = None;
        if self.eat("(") {
            if ty != Type::Tensor {
                self.at -= 1;
                let message = format!("only a Tensor has an alias annotation, not `{ty}`");
                return Err(self.failure(&message));
            }
            alias = Some(self.alias()?);
        } else if ty == Type::Tensor && self.eat("!") {
            // `name_written` names its set once all arguments are parsed.
            alias = Some(Alias { sets: Vec::new(), write: true, after: Vec::new() });
        }
        let mut listed = false;
        loop {
            self.blanks();
            match self.peek() {
                Some('?') if ty.is_optional() => {
                    return Err(self.failure(&format!("`{ty}` is optional already")));
                }
                Some('?') => {
                    self.at += 1;
                    ty = Type::Optional(Box::new(ty));
                }
                Some('[') if listed => {
                    return Err(
                        self.failure(&format!("`{ty}` is a list already: lists don't nest"))
                    );
                }
                Some('[') => {
                    self.at += 1;
                    ty = Type::List(Box::new(ty), self.list_size()?);
                    listed = true;
                }
                Some('(') if alias.is_some() => {
                    return Err(self.failure("a second alias annotation"));
                }
                Some('(') => {
                    let message = "an alias annotation stands directly after `Tensor`, as in \
                                   `Tensor(a!)[]`";
                    return Err(self.failure(message));
                }
                Some('!') => {
                    let message = match (&ty, &alias) {
                        (_, Some(alias)) if alias.sets.is_empty() => "`!` stands there already",
                        (_, Some(_)) => "`!` stands in the alias annotation: `Tensor(a!)`",
                        (ty, None) if ty.carries_tensors() => {
                            "`!` stands directly after `Tensor`, as in `Tensor![]`"
                        }
                        (ty, None) => {
                            &format!("only a Tensor is written in place, not `{}`", ty.base())
                        }
                    };
                    return Err(self.failure(message));
                }
                _ => return Ok((ty, alias)),
            }
        }
    }

    fn base_type(&mut self, expected: &str) -> Parsed<Type> {
        self.blanks();
        let at = self.at;
        if self.sees('/') {
            return Err(self.failure(
                "`/` isn't supported: any argument before `*` may be passed by \
                                     position or by name",
            ));
        }
        if self.text[at..].starts_with("..") {
            return Err(self.failure(
                "variable arguments aren't supported: take a list, as in \
                                     `Tensor[] inputs`",
            ));
        }
        let name = self.ident(expected)?;
        if name == "SymInt" {
            return Ok(Type::Int);
        }
        if let Some((_, ty)) = Type::BASES.into_iter().find(|(known, _)| *known == name) {
            return Ok(ty);
        }
        let known = || Type::BASES.iter().map(|(name, _)| *name);
        let hint = match FOREIGN_TYPES.iter().find(|(foreign, _)| foreign.contains(&name)) {
            Some((_, here)) => format!("; here it is `{here}`"),
            None if name == "None" => "; an operator without returns has `-> ()`".into(),
            None if self.sees(':') => "; the type comes before the name, as in `Tensor x`".into(),
            None => did_you_mean(name, known()),
        };
        let hint = if hint.is_empty() {
            let known = known().collect::<Vec<_>>().join(", ");
            format!("; a type is one of {known}, and stands before the name")
        } else {
            hint
        };
        Err(Failure { at, message: format!("unknown type `{name}`{hint}") })
    }

    /// Parses a list's size, from after `[` to after `]`.
    fn list_size(&mut self) -> Parsed<Option<usize>> {
        if self.eat("]") {
            return Ok(None);
        }
        self.blanks();
        let at = self.at;
        let digits = self.run(|c| c.is_ascii_digit());
        let size = digits.parse::<usize>();
        if digits.is_empty() {
            return Err(self.expected("the list's length, or `]`"));
        }
        if !self.eat("]") {
            return Err(self.expected("`]` after the list's length"));
        }
        match size {
            Ok(size @ 1..=LONGEST_LIST) => Ok(Some(size)),
            _ => {
                let message = format!(
                    "a list's length is a number from 1 to {LONGEST_LIST}, not {}",
                    short(digits)
                );
                Err(Failure { at, message })
            }
        }
    }

    /// Parses an alias annotation, from after `(` to after `)`.
    fn alias(&mut self) -> Parsed<Alias> {
        let sets = self.alias_sets()?;
        let write = self.eat("!");
        let after = if self.eat("->") { self.alias_sets()? } else { Vec::new() };
        if !self.eat(")") {
            let expected = match (write, after.is_empty()) {
                (_, false) => "`)` at the end of the alias annotation",
                (true, true) => "`->` or `)` in the alias annotation",
                (false, true) => "`!`, `|`, `->` or `)` in the alias annotation",
            };
            return Err(self.expected(expected));
        }
        Ok(Alias { sets, write, after })
    }

    fn alias_sets(&mut self) -> Parsed<Vec<String>> {
        if self.eat("*") {
            if self.sees('|') {
                return Err(self.failure("`*` is any set already and stands alone"));
            }
            return Ok(vec!["*".into()]);
        }
        let mut sets: Vec<String> = Vec::new();
        let mut known: HashSet<&'t str> = HashSet::new();
        loop {
            self.blanks();
            let at = self.at;
            if !sets.is_empty() && self.sees('*') {
                return Err(self.failure("`*` is any set already and stands alone"));
            }
            let set = self.ident("an alias set such as `a`, or `*`")?;
            if !known.insert(set) {
                return Err(Failure { at, message: format!("alias set `{set}` is named twice") });
            }
            sets.push(set.to_owned());
            if !self.eat("|") {
                return Ok(sets);
            }
        }
    }

    /// Parses the default of argument `name`.
    fn literal(&mut self, name: &str) -> Parsed<Literal> {
        let opened = self.at;
        if !self.eat("[") {
            return self.item(&format!("a default for `{name}` after `=`"));
        }
        let mut items = Vec::new();
        while !self.eat("]") {
            if !items.is_empty() && !self.eat(",") {
                return Err(self.unfinished(opened, "a list item"));
            }
            self.blanks();
            if self.sees('[') {
                return Err(self.failure("a default list holds no lists"));
            }
            items.push(self.item("a list item, or `]`")?);
        }
        Ok(Literal::List(items))
    }

    /// Parses a literal that isn't a list.
    fn item(&mut self, expected: &str) -> Parsed<Literal> {
        self.blanks();
        match self.peek() {
            Some('"' | '\'') => self.string(),
            Some('-' | '.' | '0'..='9') => self.number(),
            Some('+') => Err(self.failure("a number is written without `+`")),
            _ => Ok(match self.ident(expected)? {
                "None" => Literal::None,
                "True" => Literal::Bool(true),
                "False" => Literal::Bool(false),
                "inf" => Literal::Float(f64::INFINITY),
                "nan" => Literal::Float(f64::NAN),
                other => Literal::Ident(other.to_owned()),
            }),
        }
    }
}
