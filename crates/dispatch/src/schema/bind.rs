//! Binding of a call's values to arguments, by Python's rules and with Python's messages.

use keyfold_core::{Error, ErrorKind, Result};

use super::types::{Argument, Schema};
use keyfold_core::nearest;

/// The source of the value of one declared argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArgumentSource {
    /// The call's positional argument of this index.
    Positional(usize),
    /// The call's keyword of this index.
    Keyword(usize),
    /// The declared default.
    Default,
}

/// Names that libraries use for the same argument.
const SYNONYMS: [&[&str]; 5] = [
    &["dim", "axis", "dims", "axes"],
    &["keepdim", "keepdims"],
    &["size", "shape"],
    &["self", "input", "x", "a"],
    &["other", "y", "b"],
];

impl Schema {
    /// Returns the arguments that results are written into, as PyTorch's `out`: keyword-only ones
    /// without a default that kernels write.
    pub fn outs(&self) -> impl Iterator<Item = &Argument> {
        self.arguments.iter().filter(|argument| {
            argument.kwarg_only
                && argument.default.is_none()
                && argument.alias.as_ref().is_some_and(|alias| alias.write)
        })
    }

    /// Returns the number of arguments that may be passed by position: those before the `*`.
    pub fn positional_count(&self) -> usize {
        self.arguments.partition_point(|argument| !argument.kwarg_only)
    }

    /// Returns the number of arguments before the `*` without a default.
    pub fn required_positional(&self) -> usize {
        self.positional().iter().filter(|argument| argument.default.is_none()).count()
    }

    /// Returns whether there are keyword-only arguments.
    pub fn has_kwarg_only(&self) -> bool {
        self.arguments.last().is_some_and(|argument| argument.kwarg_only)
    }

    /// Returns the index of an argument by name.
    pub fn argument_index(&self, name: &str) -> Option<usize> {
        self.arguments.iter().position(|argument| argument.name == name)
    }

    /// Returns the source of each declared argument, in declaration order, for a call with
    /// `positional` values by position and these keywords.
    ///
    /// ```
    /// use keyfold_dispatch::schema::{ArgumentSource, Schema};
    /// let schema = Schema::parse("demo::scale(Tensor x, float k=2, *, bool fast=False) -> Tensor")?;
    /// let sources = schema.bind(1, &["fast"])?;
    /// assert_eq!(sources[1], ArgumentSource::Default);
    /// assert_eq!(sources[2], ArgumentSource::Keyword(0));
    /// # Ok::<(), keyfold_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Binding`], with CPython's message for a function of that signature and the
    /// operator's name.
    pub fn bind(&self, positional: usize, keywords: &[&str]) -> Result<Vec<ArgumentSource>> {
        let mut sources = vec![ArgumentSource::Default; self.arguments.len()];
        self.bind_into(positional, keywords, &mut sources)?;
        Ok(sources)
    }

    /// As [`Schema::bind`], into the caller's memory: one slot per declared argument.
    ///
    /// # Errors
    /// As [`Schema::bind`]; the slots are unspecified then.
    ///
    /// # Panics
    /// If there are fewer slots than arguments.
    pub fn bind_into(
        &self,
        positional: usize,
        keywords: &[&str],
        sources: &mut [ArgumentSource],
    ) -> Result<()> {
        let sources = &mut sources[..self.arguments.len()];
        let taken = self.positional_count();
        for (index, source) in sources.iter_mut().enumerate() {
            let given = index < taken.min(positional);
            *source =
                if given { ArgumentSource::Positional(index) } else { ArgumentSource::Default };
        }
        // CPython's order: a bad keyword is reported before surplus positional values, and these
        // before missing arguments.
        for (index, keyword) in keywords.iter().enumerate() {
            let Some(argument) = self.argument_index(keyword) else {
                return Err(self.unexpected_keyword(keyword));
            };
            if sources[argument] != ArgumentSource::Default {
                return Err(self.unbound(&format!("got multiple values for argument '{keyword}'")));
            }
            sources[argument] = ArgumentSource::Keyword(index);
        }
        if positional > taken {
            return Err(self.too_many_positional(positional, taken, sources));
        }
        let (by_position, by_keyword) = sources.split_at(taken);
        self.check_complete(&self.arguments[..taken], by_position, "positional")?;
        self.check_complete(&self.arguments[taken..], by_keyword, "keyword-only")
    }

    fn positional(&self) -> &[Argument] {
        &self.arguments[..self.positional_count()]
    }

    /// Returns an error if one of `arguments` has neither a value nor a default.
    fn check_complete(
        &self,
        arguments: &[Argument],
        sources: &[ArgumentSource],
        kind: &str,
    ) -> Result<()> {
        let lacking = arguments.iter().zip(sources).filter(|(argument, source)| {
            **source == ArgumentSource::Default && argument.default.is_none()
        });
        let names: Vec<String> = lacking.map(|(a, _)| format!("'{}'", a.name)).collect();
        let listed = match names.as_slice() {
            [one] => one.clone(),
            [one, two] => format!("{one} and {two}"),
            [most @ .., last] => format!("{}, and {last}", most.join(", ")),
            [] => return Ok(()),
        };
        let (count, s) = (names.len(), plural(names.len()));
        Err(self.unbound(&format!("missing {count} required {kind} argument{s}: {listed}")))
    }

    /// Returns the error for too many positional values.
    #[cold]
    fn too_many_positional(&self, given: usize, taken: usize, sources: &[ArgumentSource]) -> Error {
        let required = self.required_positional();
        let takes = if required == taken {
            format!("{taken} positional argument{}", plural(taken))
        } else {
            format!("from {required} to {taken} positional arguments")
        };
        let named =
            sources[taken..].iter().filter(|source| **source != ArgumentSource::Default).count();
        let given = match (given, named) {
            (1, 0) => "1 was".to_owned(),
            (_, 0) => format!("{given} were"),
            _ => format!(
                "{given} positional argument{} (and {named} keyword-only argument{}) were",
                plural(given),
                plural(named)
            ),
        };
        self.unbound(&format!("takes {takes} but {given} given"))
    }

    /// Returns the error for an unknown keyword. The hint is CPython's from 3.13 on.
    #[cold]
    fn unexpected_keyword(&self, keyword: &str) -> Error {
        let mut message = format!("got an unexpected keyword argument '{keyword}'");
        let names = || self.arguments.iter().map(|argument| argument.name.as_str());
        let synonyms = SYNONYMS.iter().find(|group| group.contains(&keyword));
        let same = names().find(|name| synonyms.is_some_and(|group| group.contains(name)));
        if let Some(near) = same.or_else(|| nearest(keyword, names()).first().copied()) {
            message += &format!(". Did you mean '{near}'?");
        }
        self.unbound(&message)
    }

    #[cold]
    fn unbound(&self, message: &str) -> Error {
        Error::new(ErrorKind::Binding, format!("{}() {message}", self.name))
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(arguments: &str) -> Schema {
        Schema::parse(&format!("demo::f.o({arguments}) -> ()")).unwrap()
    }

    fn refusal(arguments: &str, positional: usize, keywords: &[&str]) -> String {
        let error = schema(arguments).bind(positional, keywords).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Binding);
        error.message().to_owned()
    }

    /// Arguments, positional values, keywords, and the messages of CPython 3.11, unedited.
    #[test]
    fn binding_mistakes_have_the_messages_of_cpython() {
        let table: &[(&str, usize, &[&str], &str)] = &[
            ("int a, int b", 1, &[], "missing 1 required positional argument: 'b'"),
            ("int a, int b", 0, &[], "missing 2 required positional arguments: 'a' and 'b'"),
            (
                "int a, int b, int c",
                0,
                &[],
                "missing 3 required positional arguments: 'a', 'b', and 'c'",
            ),
            (
                "int a, int b, int c, int d",
                1,
                &[],
                "missing 3 required positional arguments: 'b', 'c', and 'd'",
            ),
            (
                "int a, int b, int c, int d",
                0,
                &[],
                "missing 4 required positional arguments: 'a', 'b', 'c', and 'd'",
            ),
            ("int a, int b=1", 0, &[], "missing 1 required positional argument: 'a'"),
            ("int a, int b=1", 0, &["b"], "missing 1 required positional argument: 'a'"),
            ("int a, *, int k", 0, &[], "missing 1 required positional argument: 'a'"),
            ("int a, *, int k", 1, &[], "missing 1 required keyword-only argument: 'k'"),
            (
                "int a, *, int k, int j",
                1,
                &[],
                "missing 2 required keyword-only arguments: 'k' and 'j'",
            ),
            ("int a, *, int k, int j", 1, &["j"], "missing 1 required keyword-only argument: 'k'"),
            (
                "int a, *, int k, int j, int i",
                1,
                &[],
                "missing 3 required keyword-only arguments: 'k', 'j', and 'i'",
            ),
            ("int a, *, int k=1", 0, &["k"], "missing 1 required positional argument: 'a'"),
            ("*, int k", 0, &[], "missing 1 required keyword-only argument: 'k'"),
            ("int a, int b", 3, &[], "takes 2 positional arguments but 3 were given"),
            ("int a", 2, &[], "takes 1 positional argument but 2 were given"),
            ("", 1, &[], "takes 0 positional arguments but 1 was given"),
            ("", 2, &[], "takes 0 positional arguments but 2 were given"),
            ("int a, int b=1", 3, &[], "takes from 1 to 2 positional arguments but 3 were given"),
            ("int a=1", 2, &[], "takes from 0 to 1 positional arguments but 2 were given"),
            ("int a=1, int b=2", 3, &[], "takes from 0 to 2 positional arguments but 3 were given"),
            ("int a, *, int k", 2, &[], "takes 1 positional argument but 2 were given"),
            (
                "int a, *, int k",
                2,
                &["k"],
                "takes 1 positional argument but 2 positional arguments (and 1 keyword-only argument) were given",
            ),
            (
                "int a, *, int k, int j",
                2,
                &["k", "j"],
                "takes 1 positional argument but 2 positional arguments (and 2 keyword-only arguments) were given",
            ),
            (
                "int a, *, int k, int j=1",
                3,
                &["k"],
                "takes 1 positional argument but 3 positional arguments (and 1 keyword-only argument) were given",
            ),
            ("int a, *, int k=1", 2, &[], "takes 1 positional argument but 2 were given"),
            (
                "int a, int b=1, *, int k",
                3,
                &["k"],
                "takes from 1 to 2 positional arguments but 3 positional arguments (and 1 keyword-only argument) were given",
            ),
            (
                "int a, int b=1, *, int k",
                4,
                &["k"],
                "takes from 1 to 2 positional arguments but 4 positional arguments (and 1 keyword-only argument) were given",
            ),
            (
                "int a, int b=1, *, int k",
                3,
                &[],
                "takes from 1 to 2 positional arguments but 3 were given",
            ),
            (
                "*, int k",
                1,
                &["k"],
                "takes 0 positional arguments but 1 positional argument (and 1 keyword-only argument) were given",
            ),
            ("*, int k", 1, &[], "takes 0 positional arguments but 1 was given"),
            (
                "*, int k, int j",
                2,
                &["k", "j"],
                "takes 0 positional arguments but 2 positional arguments (and 2 keyword-only arguments) were given",
            ),
            ("*, int k=1", 1, &[], "takes 0 positional arguments but 1 was given"),
            ("int a, int b", 1, &["a"], "got multiple values for argument 'a'"),
            ("int a, int b", 3, &["a"], "got multiple values for argument 'a'"),
            ("int a, int b", 3, &["b"], "got multiple values for argument 'b'"),
            ("int a, *, int k=1", 2, &["a"], "got multiple values for argument 'a'"),
            ("int a, int b", 1, &["zoo"], "got an unexpected keyword argument 'zoo'"),
            ("int a, int b", 3, &["zoo"], "got an unexpected keyword argument 'zoo'"),
            ("int a, int b", 0, &["zoo"], "got an unexpected keyword argument 'zoo'"),
            ("int a, int b", 0, &["zoo", "moo"], "got an unexpected keyword argument 'zoo'"),
            ("int a, int b", 1, &["zoo", "a"], "got an unexpected keyword argument 'zoo'"),
            ("int a, int b", 1, &["a", "zoo"], "got multiple values for argument 'a'"),
            ("", 0, &["zoo"], "got an unexpected keyword argument 'zoo'"),
            (
                "int a, int b, *, int k",
                0,
                &[],
                "missing 2 required positional arguments: 'a' and 'b'",
            ),
            (
                "int a, int b, *, int k",
                0,
                &["k"],
                "missing 2 required positional arguments: 'a' and 'b'",
            ),
            ("int a, int b, *, int k", 3, &[], "takes 2 positional arguments but 3 were given"),
            (
                "int a=1, *, int k=1, int j=2",
                3,
                &["k"],
                "takes from 0 to 1 positional arguments but 3 positional arguments (and 1 keyword-only argument) were given",
            ),
            ("int a, int b, *, int k=1", 0, &["b"], "missing 1 required positional argument: 'a'"),
        ];
        for (arguments, positional, keywords, expected) in table {
            let message = refusal(arguments, *positional, keywords);
            assert_eq!(message, format!("demo::f.o() {expected}"), "{arguments}");
        }
    }

    #[test]
    fn a_keyword_that_is_nearly_a_name_gets_the_name() {
        let message = refusal("Tensor kernel, int dim=0", 1, &["dimm"]);
        let expected = "demo::f.o() got an unexpected keyword argument 'dimm'. Did you mean 'dim'?";
        assert_eq!(message, expected);
    }

    #[test]
    fn a_keyword_of_another_library_gets_the_name_here() {
        for (arguments, keyword, name) in [
            ("Tensor self, int dim=0", "axis", "dim"),
            ("Tensor x, int axis=0", "dim", "axis"),
            ("Tensor x, bool keepdim=False", "keepdims", "keepdim"),
        ] {
            let message = refusal(arguments, 1, &[keyword]);
            assert!(message.ends_with(&format!("Did you mean '{name}'?")), "{message}");
        }
        assert!(!refusal("Tensor x", 1, &["axis"]).contains("mean"));
    }

    #[test]
    fn a_keyword_given_twice_is_refused() {
        let message = refusal("int a", 0, &["a", "a"]);
        assert_eq!(message, "demo::f.o() got multiple values for argument 'a'");
    }

    #[test]
    fn each_argument_gets_its_source() {
        use ArgumentSource::{Default, Keyword, Positional};
        let schema = schema("Tensor a, Tensor b, int c=1, *, int k, int j=2");
        assert_eq!(
            schema.bind(2, &["k"]).unwrap(),
            [Positional(0), Positional(1), Default, Keyword(0), Default]
        );
        assert_eq!(
            schema.bind(1, &["j", "k", "b"]).unwrap(),
            [Positional(0), Keyword(2), Default, Keyword(1), Keyword(0)]
        );
        let mut slots = [Default; 6];
        schema.bind_into(3, &["k"], &mut slots).unwrap();
        assert_eq!(
            slots,
            [Positional(0), Positional(1), Positional(2), Keyword(0), Default, Default]
        );
    }

    #[test]
    fn a_schema_counts_its_arguments() {
        let counts = |arguments| {
            let schema = schema(arguments);
            (schema.positional_count(), schema.required_positional(), schema.has_kwarg_only())
        };
        assert_eq!(counts(""), (0, 0, false));
        assert_eq!(counts("int a, int b=1"), (2, 1, false));
        assert_eq!(counts("int a, int b=1, *, int c"), (2, 1, true));
        assert_eq!(counts("*, int c=1"), (0, 0, true));
        let schema = schema("int a, *, int c");
        assert_eq!(schema.argument_index("c"), Some(1));
        assert_eq!(schema.argument_index("b"), None);
    }
}
