//! Parameters under their names, of the groups of plugin ABI 1.2.

use std::marker::PhantomData;

use crate::abi::device as abi;
use crate::error::{Error, Result};

/// The value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Field<'a> {
    /// A whole number; 1 or 0 of a flag.
    Int(i64),
    /// A whole number without a sign, such as a seed.
    Bits(u64),
    /// Any other number.
    Float(f64),
    /// Whole numbers, such as the sizes of a window.
    Ints(&'a [i64]),
    /// A name, such as that of an activation.
    Text(&'a str),
}

/// The parameters of an operation, under the names that the host's documentation gives them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fields<'a> {
    fields: &'a [abi::Field],
    host: PhantomData<&'a abi::Fields>,
}

impl<'a> Fields<'a> {
    /// # Safety
    /// `fields` is null, or the host's and alive for `'a`.
    pub(super) unsafe fn new(fields: *const abi::Fields) -> Fields<'a> {
        // SAFETY: the contract.
        let Some(given) = (unsafe { fields.as_ref() }) else { return Fields::default() };
        let fields = match given.count {
            0 => &[],
            // SAFETY: the host provides that many.
            count => unsafe { std::slice::from_raw_parts(given.fields, count as usize) },
        };
        Fields { fields, host: PhantomData }
    }

    /// Returns each name with its value; those of a kind that this SDK doesn't know are left out.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, Field<'a>)> + use<'a> {
        self.fields.iter().filter_map(|field| {
            // SAFETY: texts and numbers of the call.
            let name = unsafe { field.name.get() };
            let value = match field.kind {
                abi::FIELD_INT => Field::Int(field.int),
                abi::FIELD_BITS => Field::Bits(field.int as u64),
                abi::FIELD_FLOAT => Field::Float(field.float),
                abi::FIELD_INTS if field.count == 0 => Field::Ints(&[]),
                // SAFETY: the host provides that many.
                abi::FIELD_INTS => Field::Ints(unsafe {
                    std::slice::from_raw_parts(field.ints, field.count as usize)
                }),
                // SAFETY: as for the name.
                abi::FIELD_TEXT => Field::Text(unsafe { field.text.get() }),
                _ => return None,
            };
            Some((name, value))
        })
    }

    /// Returns a value by its name, read by a function that returns `None` for another kind.
    fn find<T>(&self, name: &str, kind: &str, read: impl Fn(Field<'a>) -> Option<T>) -> Result<T> {
        let found = self.iter().find(|(known, _)| *known == name).map(|(_, value)| value);
        found.and_then(read).ok_or_else(|| {
            let given = match found {
                None => "isn't there".to_owned(),
                Some(value) => format!("is {value:?}"),
            };
            Error::value(format!("the parameter {name} is read as {kind}, and {given}"))
        })
    }

    /// Returns a whole number.
    ///
    /// # Errors
    /// There is none of that name, as for the next four.
    pub fn int(&self, name: &str) -> Result<i64> {
        self.find(name, "a whole number", |field| match field {
            Field::Int(number) => Some(number),
            _ => None,
        })
    }

    /// Returns a flag.
    ///
    /// # Errors
    /// As [`Fields::int`].
    pub fn flag(&self, name: &str) -> Result<bool> {
        self.int(name).map(|number| number != 0)
    }

    /// Returns a whole number without a sign.
    ///
    /// # Errors
    /// As [`Fields::int`].
    pub fn bits(&self, name: &str) -> Result<u64> {
        self.find(name, "64 bits", |field| match field {
            Field::Bits(bits) => Some(bits),
            _ => None,
        })
    }

    /// Returns a number.
    ///
    /// # Errors
    /// As [`Fields::int`].
    pub fn float(&self, name: &str) -> Result<f64> {
        self.find(name, "a number", |field| match field {
            Field::Float(number) => Some(number),
            _ => None,
        })
    }

    /// Returns whole numbers.
    ///
    /// # Errors
    /// As [`Fields::int`].
    pub fn ints(&self, name: &str) -> Result<&'a [i64]> {
        self.find(name, "whole numbers", |field| match field {
            Field::Ints(numbers) => Some(numbers),
            _ => None,
        })
    }

    /// Returns a name.
    ///
    /// # Errors
    /// As [`Fields::int`].
    pub fn text(&self, name: &str) -> Result<&'a str> {
        self.find(name, "a name", |field| match field {
            Field::Text(text) => Some(text),
            _ => None,
        })
    }
}
