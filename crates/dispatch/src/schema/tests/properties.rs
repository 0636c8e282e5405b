//! Properties: a printed schema parses to an equal one; no text panics; binding agrees with a naive
//! model.

use proptest::prelude::*;

use crate::schema::{Alias, Argument, ArgumentSource, Literal, OperatorName, Return, Schema, Type};

fn ident() -> impl Strategy<Value = String> {
    "[A-Za-z_][A-Za-z0-9_]{0,8}"
}

fn base_type() -> impl Strategy<Value = Type> {
    proptest::sample::select(Type::BASES.map(|(_, ty)| ty).to_vec())
}

/// Base, optional, list, list of optionals, optional list, optional list of optionals.
fn any_type() -> impl Strategy<Value = Type> {
    let size = proptest::option::of(1..=4_usize);
    (base_type(), any::<bool>(), proptest::option::of(size), any::<bool>()).prop_map(
        |(base, inner, list, outer)| {
            let optional = |ty, yes| if yes { Type::Optional(Box::new(ty)) } else { ty };
            match list {
                Some(size) => optional(Type::List(Box::new(optional(base, inner)), size), outer),
                None => optional(base, inner),
            }
        },
    )
}

fn alias() -> impl Strategy<Value = Alias> {
    let sets = || {
        prop_oneof![
            Just(vec!["*".to_owned()]),
            proptest::collection::hash_set(ident(), 1..3)
                .prop_map(|sets| sets.into_iter().collect()),
        ]
    };
    (sets(), any::<bool>(), prop_oneof![Just(Vec::new()), sets()])
        .prop_map(|(sets, write, after)| Alias { sets, write, after })
}

/// Returns a default that fits `ty`, if one does.
fn default_for(ty: &Type) -> BoxedStrategy<Option<Literal>> {
    let float = any::<f64>().prop_map(|x| Literal::Float(if x.is_nan() { f64::NAN } else { x }));
    let one_of = |names: &'static [&'static str]| {
        proptest::sample::select(names).prop_map(|name| Literal::Ident(name.into())).boxed()
    };
    let some: BoxedStrategy<Literal> = match ty {
        Type::Tensor | Type::Generator => return Just(None).boxed(),
        Type::Any | Type::Scalar => prop_oneof![
            any::<bool>().prop_map(Literal::Bool),
            any::<i64>().prop_map(Literal::Int),
            float,
        ]
        .boxed(),
        Type::Int => {
            prop_oneof![any::<i64>().prop_map(Literal::Int), one_of(&["Mean", "Sum"])].boxed()
        }
        Type::Float | Type::Complex => float.boxed(),
        Type::Bool => any::<bool>().prop_map(Literal::Bool).boxed(),
        Type::Str | Type::Device => any::<String>().prop_map(Literal::Str).boxed(),
        Type::ScalarType => one_of(&["float32", "bool", "complex128"]),
        Type::Layout => one_of(&["strided", "jagged"]),
        Type::MemoryFormat => one_of(&["contiguous_format", "channels_last_3d"]),
        Type::Optional(inner) => {
            default_for(inner).prop_map(|d| d.unwrap_or(Literal::None)).boxed()
        }
        Type::List(element, size) => {
            let alone = size.is_some();
            let sizes = size.filter(|size| *size > 1).map_or(0..=3, |size| size..=size);
            return (proptest::collection::vec(default_for(element), sizes), any::<bool>())
                .prop_map(move |(items, one)| {
                    let items: Option<Vec<Literal>> = items.into_iter().collect();
                    match items?.as_slice() {
                        [first, ..] if alone && one && *first != Literal::None => {
                            Some(first.clone())
                        }
                        items => Some(Literal::List(items.to_vec())),
                    }
                })
                .boxed();
        }
    };
    some.prop_map(Some).boxed()
}

fn argument() -> impl Strategy<Value = Argument> {
    any_type().prop_flat_map(|ty| {
        let tensors = ty.carries_tensors();
        (ident(), default_for(&ty), any::<bool>(), any::<bool>(), proptest::option::of(alias()))
            .prop_map(move |(name, default, keep, kwarg_only, alias)| Argument {
                name,
                ty: ty.clone(),
                default: default.filter(|_| keep),
                kwarg_only,
                alias: alias.filter(|_| tensors),
            })
    })
}

fn returned() -> impl Strategy<Value = Return> {
    (any_type(), proptest::option::of(ident()), proptest::option::of(alias())).prop_map(
        |(ty, name, alias)| Return { name, alias: alias.filter(|_| ty.carries_tensors()), ty },
    )
}

/// Generates schemas that parsing can produce: keyword-only arguments last, defaults last before
/// them, distinct names, an overload other than default.
fn schema() -> impl Strategy<Value = Schema> {
    let overload = ident().prop_filter("canonical", |overload| overload != "default");
    let name = ("([a-z_][a-z0-9_]{0,5})?", ident(), prop_oneof![Just(String::new()), overload])
        .prop_map(|(namespace, name, overload)| OperatorName { namespace, name, overload });
    let arguments = proptest::collection::vec(argument(), 0..7);
    (name, arguments, proptest::collection::vec(returned(), 0..4)).prop_map(
        |(name, mut arguments, mut returns)| {
            arguments.sort_by_key(|a| (a.kwarg_only, !a.kwarg_only && a.default.is_some()));
            for (index, argument) in arguments.iter_mut().enumerate() {
                argument.name += &format!("_{index}");
            }
            for (index, value) in returns.iter_mut().enumerate() {
                value.name = value.name.take().map(|name| format!("{name}_{index}"));
            }
            Schema { name, arguments, returns }
        },
    )
}

/// Generates nearly valid schemas: a few characters of a valid one replaced, added or dropped.
fn nearly_a_schema() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[()\\[\\]*,=?!|:.\\->\"' \\\\\n\t0-9a-z]{0,3}",
        proptest::sample::select(vec![
            "::", "->", "Tensor", "Tensor!", "int[", "=[", "None", "é", "漢", "\u{0}"
        ])
        .prop_map(str::to_owned),
    ];
    let edit = (any::<proptest::sample::Index>(), 0..4_usize, piece);
    (schema(), proptest::collection::vec(edit, 1..4)).prop_map(|(schema, edits)| {
        let mut text: Vec<char> = schema.to_string().chars().collect();
        for (at, dropped, piece) in edits {
            let from = at.index(text.len() + 1);
            let to = (from + dropped).min(text.len());
            text.splice(from..to, piece.chars());
        }
        text.into_iter().collect()
    })
}

/// Checks that the text parses and its canonical text parses to the same schema, or that the error
/// points into it.
fn parses_or_points(text: &str) {
    match Schema::parse(text) {
        Ok(schema) => assert_eq!(Schema::parse(&schema.to_string()).unwrap(), schema),
        Err(error) => {
            let lines: Vec<&str> = error.message().split('\n').collect();
            let [_, shown, caret] = lines.as_slice() else { panic!("not three lines: {error}") };
            assert!(caret.ends_with('^'), "{error}");
            assert!(caret.chars().count() <= text.chars().count() + 1, "{error}");
            assert!(!shown.contains(|c: char| c.is_control()), "{error}");
        }
    }
    let _ = OperatorName::parse(text);
}

/// A naive model of binding: fill a list of options, then look for empty ones.
fn naive_bind(
    schema: &Schema,
    positional: usize,
    keywords: &[&str],
) -> Option<Vec<ArgumentSource>> {
    let mut given: Vec<(String, ArgumentSource)> = Vec::new();
    let mut takers = schema.arguments.iter().filter(|argument| !argument.kwarg_only);
    for index in 0..positional {
        given.push((takers.next()?.name.clone(), ArgumentSource::Positional(index)));
    }
    for (index, keyword) in keywords.iter().enumerate() {
        given.push(((*keyword).to_owned(), ArgumentSource::Keyword(index)));
    }
    let mut sources = Vec::new();
    for argument in &schema.arguments {
        let found: Vec<ArgumentSource> =
            given.iter().filter(|(name, _)| *name == argument.name).map(|(_, s)| *s).collect();
        match (found.as_slice(), &argument.default) {
            ([one], _) => sources.push(*one),
            ([], Some(_)) => sources.push(ArgumentSource::Default),
            _ => return None,
        }
    }
    let known = |name: &String| schema.arguments.iter().any(|argument| argument.name == *name);
    given.iter().all(|(name, _)| known(name)).then_some(sources)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..Default::default() })]

    #[test]
    fn what_is_printed_parses_to_the_same(schema in schema()) {
        let text = schema.to_string();
        match Schema::parse(&text) {
            Ok(parsed) => prop_assert_eq!(parsed, schema),
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    #[test]
    fn no_bytes_panic(bytes in any::<Vec<u8>>()) {
        parses_or_points(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn no_unicode_panics(text in any::<String>()) {
        parses_or_points(&text);
        parses_or_points(&format!("a::b(str {text}"));
        parses_or_points(&format!("a::b(str x=\"{text}"));
    }

    #[test]
    fn no_damaged_schema_panics(text in nearly_a_schema()) {
        parses_or_points(&text);
    }

    #[test]
    fn binding_agrees_with_a_naive_model(
        schema in schema(),
        positional in 0..8_usize,
        picks in proptest::collection::vec(any::<proptest::sample::Index>(), 0..8),
        stranger in proptest::bool::weighted(0.1),
        complete in any::<bool>(),
    ) {
        let names: Vec<&str> = schema.arguments.iter().map(|a| a.name.as_str()).collect();
        let mut keywords: Vec<&str> = Vec::new();
        if complete {
            // Keywords for the arguments without positional values, so that many calls succeed.
            keywords.extend(names.iter().skip(positional.min(schema.positional_count())));
        } else if !names.is_empty() {
            keywords.extend(picks.iter().map(|pick| names[pick.index(names.len())]));
        }
        if stranger {
            keywords.push("stranger");
        }
        let bound = schema.bind(positional, &keywords);
        prop_assert_eq!(bound.ok(), naive_bind(&schema, positional, &keywords));
    }
}
