//! What must hold for any text that is given as a schema.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use keyfold_core::{DType, Device, ErrorKind};
use keyfold_dispatch::schema::{ArgumentSource, Literal, OperatorName, Schema, Type};
use keyfold_dispatch::{Dispatcher, Value as _};
use keyfold_tensor::{Tensor, Value, ValueRef};

use crate::dice::Dice;
use crate::text::{LONGEST_MESSAGE, check_error};

/// Parses a text, and checks the schema or the error that comes of it.
pub fn check_text(text: &str) -> Option<Schema> {
    if let Err(error) = OperatorName::parse(text) {
        check_error(text, "operator name", &error);
    }
    match Schema::parse(text) {
        Err(error) => {
            check_error(text, "schema", &error);
            None
        }
        Ok(schema) => {
            check_printing(&schema);
            Some(schema)
        }
    }
}

fn hash(schema: &Schema) -> u64 {
    let mut hasher = DefaultHasher::new();
    schema.hash(&mut hasher);
    hasher.finish()
}

/// What a schema prints parses to an equal one, which prints the same.
fn check_printing(schema: &Schema) {
    let printed = schema.to_string();
    let again = Schema::parse(&printed).unwrap_or_else(|error| panic!("{printed}\n{error}"));
    assert_eq!(&again, schema, "{printed}");
    assert_eq!(again.to_string(), printed);
    assert_eq!(hash(&again), hash(schema));
    assert!(printed.ends_with(&schema.returns_text()), "{printed}");
    let name = schema.name.to_string();
    assert_eq!(OperatorName::parse(&name).unwrap(), schema.name, "{name}");
    assert_eq!(schema.name.require_namespace().is_ok(), !schema.name.namespace.is_empty());
    for argument in &schema.arguments {
        match (argument.default_value(), argument.ty.without_optional()) {
            (Some(Literal::List(items)), Type::List(_, Some(size))) => {
                assert!(Type::takes_length(Some(*size), items.len()), "{argument}");
            }
            (Some(Literal::List(_)), ty) => assert!(matches!(ty, Type::List(..)), "{argument}"),
            (given, _) => assert_eq!(given, argument.default, "{argument}"),
        }
        assert!(argument.alias.is_none() || argument.ty.carries_tensors(), "{argument}");
    }
}

/// Binds a call that the dice make up, and compares with a naive model.
pub fn check_binding(schema: &Schema, dice: &mut Dice) {
    let names: Vec<&str> = schema.arguments.iter().map(|a| a.name.as_str()).collect();
    let positional = dice.below(schema.positional_count() + 2);
    let mut keywords: Vec<&str> = Vec::new();
    match dice.below(4) {
        // What the positional values leave open, so that many calls succeed.
        0 | 1 => keywords.extend(names.iter().skip(positional.min(schema.positional_count()))),
        2 if !names.is_empty() => {
            for _ in 0..dice.below(4) {
                keywords.push(*dice.pick(&names));
            }
        }
        2 => {}
        _ => keywords.push("stranger"),
    }
    let bound = schema.bind(positional, &keywords);
    if let Err(error) = &bound {
        assert_eq!(error.kind(), ErrorKind::Binding);
        assert!(error.message().starts_with(&format!("{}() ", schema.name)), "{error}");
    }
    assert_eq!(bound.ok(), naive_bind(schema, positional, &keywords), "{schema} {keywords:?}");
    assert!(schema.required_positional() <= schema.positional_count());
    assert_eq!(schema.has_kwarg_only(), schema.positional_count() < names.len());
}

/// Binding as a beginner would write it: fill a list of maybes, then look for holes.
fn naive_bind(
    schema: &Schema,
    positional: usize,
    keywords: &[&str],
) -> Option<Vec<ArgumentSource>> {
    let mut given: Vec<(&str, ArgumentSource)> = Vec::new();
    let mut takers = schema.arguments.iter().filter(|argument| !argument.kwarg_only);
    for index in 0..positional {
        given.push((&takers.next()?.name, ArgumentSource::Positional(index)));
    }
    for (index, keyword) in keywords.iter().enumerate() {
        given.push((keyword, ArgumentSource::Keyword(index)));
    }
    let mut sources = Vec::new();
    for argument in &schema.arguments {
        let mut found = given.iter().filter(|(name, _)| *name == argument.name).map(|(_, s)| *s);
        match (found.next(), found.next(), &argument.default) {
            (Some(one), None, _) => sources.push(one),
            (None, None, Some(_)) => sources.push(ArgumentSource::Default),
            _ => return None,
        }
    }
    let known = |name: &str| schema.arguments.iter().any(|argument| argument.name == name);
    given.iter().all(|(name, _)| known(name)).then_some(sources)
}

/// Defines the operator in a dispatcher of its own, checks values that the dice make up against its
/// types, and calls it: it has no kernel, so that every call is refused.
pub fn check_operator(schema: &Schema, dice: &mut Dice) {
    let dispatcher: Dispatcher<Value> = Dispatcher::new();
    let handle = match dispatcher.define_with(schema.clone(), Default::default()) {
        Ok(handle) => handle,
        // A device that isn't there has a literal, but no value.
        Err(error) => {
            let message = error.message();
            assert!(schema.arguments.iter().any(|a| *a.ty.base() == Type::Device), "{message}");
            assert_eq!(error.kind(), ErrorKind::Schema, "{message}");
            assert!(message.len() <= LONGEST_MESSAGE, "{} bytes: {message}", message.len());
            return;
        }
    };
    let operator = handle.operator().unwrap();
    assert_eq!(operator.schema(), schema);
    for (index, argument) in schema.arguments.iter().enumerate() {
        let default = operator.default_value(index);
        assert_eq!(default.is_some(), argument.default.is_some(), "{argument}");
        if let Some(default) = default {
            assert!(Value::conforms(default.as_ref(), &argument.ty), "{argument}: {default:?}");
        }
    }
    let tensor = Tensor::meta(&[2], DType::F32).unwrap();
    let items = [ValueRef::Tensor(&tensor), ValueRef::None, ValueRef::Int(3)];
    let ints = [dice.roll() as i64, 1];
    let count = dice.below(schema.arguments.len() + 2);
    let values: Vec<ValueRef<'_>> = (0..count)
        .map(|index| {
            let fitting = schema.arguments.get(index).filter(|_| dice.below(4) > 0);
            fitting.map_or_else(
                || any_value(dice, &tensor, &items, &ints),
                |argument| fitting_value(&argument.ty, &tensor, &items, &ints),
            )
        })
        .collect();
    if let Err(error) = operator.check_types(&values) {
        assert_eq!(error.kind(), ErrorKind::Binding);
        assert!(error.message().contains("must be"), "{error}");
    }
    assert!(operator.call(&values).is_err(), "{schema} has no kernel");
    handle.remove();
    assert!(operator.is_removed());
}

fn fitting_value<'a>(
    ty: &Type,
    tensor: &'a Tensor,
    items: &'a [ValueRef<'a>],
    ints: &'a [i64],
) -> ValueRef<'a> {
    match ty {
        Type::Tensor => ValueRef::Tensor(tensor),
        Type::Scalar | Type::Float => ValueRef::Float(0.5),
        Type::Complex | Type::Int | Type::Any => ValueRef::Int(2),
        Type::Bool => ValueRef::Bool(true),
        Type::Str => ValueRef::Str("a"),
        Type::Device => ValueRef::Device(Device::CPU),
        Type::ScalarType => ValueRef::DType(DType::I8),
        Type::Layout => ValueRef::Str("strided"),
        Type::MemoryFormat => ValueRef::Str("channels_last"),
        Type::Generator => ValueRef::None,
        Type::Optional(_) => ValueRef::None,
        Type::List(element, _) if **element == Type::Int => ValueRef::Ints(ints),
        Type::List(..) => ValueRef::Refs(&items[..1]),
    }
}

fn any_value<'a>(
    dice: &mut Dice,
    tensor: &'a Tensor,
    items: &'a [ValueRef<'a>],
    ints: &'a [i64],
) -> ValueRef<'a> {
    match dice.below(11) {
        0 => ValueRef::None,
        1 => ValueRef::Tensor(tensor),
        2 => ValueRef::Bool(false),
        3 => ValueRef::Int(dice.roll() as i64),
        4 => ValueRef::UInt(dice.roll()),
        5 => ValueRef::Float(f64::from_bits(dice.roll())),
        6 => ValueRef::Str(
            "漢 a text that is longer than the sixty characters that a message shows of it",
        ),
        7 => ValueRef::DType(*dice.pick(&DType::ALL)),
        8 => ValueRef::Device(Device::cuda(dice.roll() as u8)),
        9 => ValueRef::Refs(items),
        _ => ValueRef::Ints(ints),
    }
}
