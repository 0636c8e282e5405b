//! Name resolution.

use keyfold_core::{Error, ErrorKind, Failure, Result, did_you_mean};
use rustc_hash::FxHashMap;

use super::lex::{excerpt, failure, is_name};
use crate::graph::{Expr, Id, Input};
use crate::{DTYPES, functions};

/// Keywords of the language, which can't be names.
pub(super) const WORDS: [&str; 10] =
    ["if", "else", "and", "or", "not", "True", "False", "true", "false", "index"];

/// Named constants.
pub(super) const CONSTANTS: [(&str, f64); 4] = [
    ("pi", std::f64::consts::PI),
    ("e", std::f64::consts::E),
    ("inf", f64::INFINITY),
    ("nan", f64::NAN),
];

/// Keywords of Python that expressions don't use.
const PYTHON: [&str; 26] = [
    "None", "as", "assert", "async", "await", "break", "class", "continue", "def", "del", "elif",
    "except", "finally", "for", "from", "global", "import", "in", "is", "lambda", "nonlocal",
    "pass", "raise", "return", "while", "yield",
];

/// Returns the reason why a name is invalid, if it is.
pub(crate) fn refuse_name(name: &str) -> Option<String> {
    let what = if WORDS.contains(&name) {
        "is a word of the language"
    } else if CONSTANTS.iter().any(|(constant, _)| *constant == name) {
        "is a constant"
    } else if DTYPES.contains(&name) {
        "is a dtype, which converts: name(x)"
    } else if PYTHON.contains(&name) {
        "is a word of Python"
    } else if !is_name(name) {
        return Some(format!("'{}' isn't a name", excerpt(name)));
    } else {
        return None;
    };
    Some(format!("'{name}' {what}, so nothing can be named so"))
}

/// How an input is read.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Rank {
    /// Element by element.
    Elementwise,
    /// At that many computed indices.
    Ranked(u32),
    /// Determined by the first use in the text.
    Open,
}

/// The names that a text may use: inputs and parameters, in the order of the caller's arguments.
///
/// ```
/// use keyfold_expr::{Expr, Names};
///
/// let names = Names::new().input("x").ranked("table", 1).param("scale");
/// let expr = Expr::parse_with("scale * table[int64(x)]", &names).unwrap();
/// assert_eq!(expr.inputs()[1].name, "table");
/// ```
#[derive(Clone, Default, Debug)]
pub struct Names {
    inputs: Vec<(String, Rank)>,
    params: Vec<String>,
}

impl Names {
    /// Returns no names.
    pub fn new() -> Names {
        Names::default()
    }

    /// Adds an input that is read element by element.
    #[must_use]
    pub fn input(mut self, name: impl Into<String>) -> Names {
        self.inputs.push((name.into(), Rank::Elementwise));
        self
    }

    /// Adds an input that is read at `rank` computed indices: `table[i, j]`.
    #[must_use]
    pub fn ranked(mut self, name: impl Into<String>, rank: u32) -> Names {
        self.inputs.push((name.into(), Rank::Ranked(rank)));
        self
    }

    /// Adds an input that is ranked if the text reads it at indices, else elementwise.
    #[must_use]
    pub fn tensor(mut self, name: impl Into<String>) -> Names {
        self.inputs.push((name.into(), Rank::Open));
        self
    }

    /// Adds a parameter: a number.
    #[must_use]
    pub fn param(mut self, name: impl Into<String>) -> Names {
        self.params.push(name.into());
        self
    }

    /// Returns the names of an expression, with which its text parses to it.
    pub fn of(expr: &Expr) -> Names {
        let rank = |input: &Input| input.rank.map_or(Rank::Elementwise, Rank::Ranked);
        Names {
            inputs: expr.inputs().iter().map(|i| (i.name.clone(), rank(i))).collect(),
            params: expr.params().to_vec(),
        }
    }
}

/// The meaning of a name.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Meaning {
    Input(u32),
    Param(u32),
    Local { value: Id, at: usize, used: bool },
}

/// An input with the rank known so far.
struct KnownInput {
    name: String,
    rank: Rank,
}

/// The names in scope while a text is parsed.
pub(super) struct NameScope {
    meanings: FxHashMap<String, Meaning>,
    inputs: Vec<KnownInput>,
    params: Vec<String>,
    /// Whether undeclared names become inputs.
    free: bool,
}

/// The meaning of a name used as a value.
pub(super) enum NameValue {
    Node(Id),
    Input(u32),
    Param(u32),
}

impl NameScope {
    /// Returns a scope with these names, or, without any, one in which undeclared names become
    /// inputs.
    pub(super) fn new(names: Option<&Names>) -> Result<NameScope> {
        let mut scope = NameScope {
            meanings: FxHashMap::default(),
            inputs: Vec::new(),
            params: Vec::new(),
            free: names.is_none(),
        };
        let Some(names) = names else { return Ok(scope) };
        for (number, (name, rank)) in names.inputs.iter().enumerate() {
            scope.declare(name, Meaning::Input(number as u32))?;
            scope.inputs.push(KnownInput { name: name.clone(), rank: *rank });
        }
        for (number, name) in names.params.iter().enumerate() {
            scope.declare(name, Meaning::Param(number as u32))?;
            scope.params.push(name.clone());
        }
        Ok(scope)
    }

    fn declare(&mut self, name: &str, meaning: Meaning) -> Result<()> {
        let what = match meaning {
            Meaning::Param(_) => "parameter",
            _ => "input",
        };
        let wrong = match refuse_name(name) {
            Some(why) => why,
            None if self.meanings.insert(name.to_owned(), meaning).is_some() => {
                "another input or parameter has the same name".into()
            }
            None => return Ok(()),
        };
        let name = excerpt(name);
        Err(Error::new(ErrorKind::Value, format!("expression, {what} '{name}': {wrong}")))
    }

    /// Returns the value of a name without brackets.
    pub(super) fn value(&mut self, name: &str, at: usize) -> Result<NameValue, Failure> {
        match self.meanings.get_mut(name) {
            Some(Meaning::Local { value, used, .. }) => {
                *used = true;
                Ok(NameValue::Node(*value))
            }
            Some(Meaning::Param(number)) => Ok(NameValue::Param(*number)),
            Some(Meaning::Input(number)) => {
                let number = *number;
                let input = &mut self.inputs[number as usize];
                match input.rank {
                    Rank::Ranked(rank) => {
                        let indices = example_indices(rank);
                        failure(at, format!("'{name}' is read at indices; write {name}[{indices}]"))
                    }
                    _ => {
                        input.rank = Rank::Elementwise;
                        Ok(NameValue::Input(number))
                    }
                }
            }
            None => self.add_unknown(name, at, Rank::Elementwise).map(NameValue::Input),
        }
    }

    /// Returns the index of an input that is read at `count` indices; `opened` is the position of
    /// their bracket.
    pub(super) fn ranked(&mut self, name: &str, at: usize, opened: usize) -> Result<u32, Failure> {
        match self.meanings.get(name) {
            Some(Meaning::Input(number)) => match self.inputs[*number as usize].rank {
                Rank::Elementwise => failure(
                    opened,
                    format!(
                        "'{name}' is read element by element, so it takes no indices; only an \
                         input that is always written with them has them"
                    ),
                ),
                _ => Ok(*number),
            },
            Some(Meaning::Param(_)) => failure(
                opened,
                format!("'{name}' is a parameter, one number, so it takes no indices"),
            ),
            Some(Meaning::Local { .. }) => failure(
                opened,
                format!("'{name}' is a value, so it takes no indices; only inputs do"),
            ),
            None => self.add_unknown(name, at, Rank::Open),
        }
    }

    /// Sets the number of indices an input is read at.
    pub(super) fn set_rank(&mut self, input: u32, count: u32, at: usize) -> Result<(), Failure> {
        let KnownInput { name, rank } = &mut self.inputs[input as usize];
        match *rank {
            Rank::Ranked(known) if known != count => failure(
                at,
                format!(
                    "'{name}' is read at {}, here at {}; write {name}[{}]",
                    indices(known),
                    indices(count),
                    example_indices(known)
                ),
            ),
            // Its rank was open at the bracket: it may have been read elementwise in its own index.
            Rank::Elementwise => failure(
                at,
                format!("'{name}' is read with and without indices; an input has one way"),
            ),
            _ => {
                *rank = Rank::Ranked(count);
                Ok(())
            }
        }
    }

    /// Adds an undeclared name as an input, or refuses it.
    fn add_unknown(&mut self, name: &str, at: usize, rank: Rank) -> Result<u32, Failure> {
        if PYTHON.contains(&name) {
            let hint = match name {
                "None" => "; expressions are made of numbers",
                "lambda" => "; write what follows the colon alone",
                "return" => "; the last line is the result as it is",
                _ => "",
            };
            return failure(at, format!("'{name}' is a word of Python without meaning here{hint}"));
        }
        if let Some(function) = functions::find(name) {
            let call = function.call();
            return failure(at, format!("'{name}' is a function; write {call}"));
        }
        if DTYPES.contains(&name) {
            return failure(at, format!("'{name}' is a dtype; write {name}(x) to convert x"));
        }
        if !self.free {
            let near = did_you_mean(name, self.value_names());
            return failure(
                at,
                format!(
                    "unknown name '{}'{}",
                    excerpt(name),
                    or_declared(near, || self.declared())
                ),
            );
        }
        let number = self.inputs.len() as u32;
        self.inputs.push(KnownInput { name: name.to_owned(), rank });
        self.meanings.insert(name.to_owned(), Meaning::Input(number));
        Ok(number)
    }

    /// Assigns a name to a value.
    pub(super) fn assign(&mut self, name: &str, value: Id, at: usize) -> Result<(), Failure> {
        match self.meanings.get(name) {
            Some(Meaning::Local { .. }) => {
                failure(at, format!("'{name}' has a value already; take another name"))
            }
            Some(Meaning::Input(_)) => {
                failure(at, format!("'{name}' is an input already; take another name"))
            }
            Some(Meaning::Param(_)) => {
                failure(at, format!("'{name}' is a parameter already; take another name"))
            }
            None => {
                let meaning = Meaning::Local { value, at, used: false };
                self.meanings.insert(name.to_owned(), meaning);
                Ok(())
            }
        }
    }

    /// Refuses a text with an unused assignment.
    pub(super) fn check_used(&self) -> Result<(), Failure> {
        let unused = self.meanings.iter().filter_map(|(name, meaning)| match meaning {
            Meaning::Local { at, used: false, .. } => Some((*at, name)),
            _ => None,
        });
        match unused.min() {
            Some((at, name)) => failure(at, format!("'{name}' isn't used; remove the line")),
            None => Ok(()),
        }
    }

    /// Describes a name that is called as a function.
    pub(super) fn describe(&self, name: &str) -> Option<&'static str> {
        self.meanings.get(name).map(|meaning| match meaning {
            Meaning::Input(_) => "an input",
            Meaning::Param(_) => "a parameter",
            Meaning::Local { .. } => "a value",
        })
    }

    /// Returns all names that have a value without brackets.
    fn value_names(&self) -> Vec<&str> {
        let mut known: Vec<&str> = self.meanings.keys().map(String::as_str).collect();
        known.sort_unstable();
        known.extend(CONSTANTS.iter().map(|(name, _)| *name));
        known.extend(["index", "True", "False"]);
        known.extend(functions::names().map(|name| -> &str { name }));
        known
    }

    fn declared(&self) -> Vec<&str> {
        let inputs = self.inputs.iter().map(|input| input.name.as_str());
        inputs.chain(self.params.iter().map(String::as_str)).collect()
    }

    /// Returns the inputs and parameters, after parsing.
    pub(super) fn into_parts(self) -> (Vec<Input>, Vec<String>) {
        let rank = |rank| match rank {
            Rank::Ranked(rank) => Some(rank),
            Rank::Elementwise | Rank::Open => None,
        };
        let inputs = self.inputs.into_iter().map(|i| Input { name: i.name, rank: rank(i.rank) });
        (inputs.collect(), self.params)
    }
}

/// Returns the suggestion, or the declared names if there is none.
fn or_declared<'a>(near: String, declared: impl Fn() -> Vec<&'a str>) -> String {
    const MOST: usize = 8;
    if !near.is_empty() {
        return near;
    }
    let names = declared();
    let mut list: Vec<String> = names.iter().take(MOST).map(|name| excerpt(name)).collect();
    if names.len() > MOST {
        list.push("…".into());
    }
    if list.is_empty() { String::new() } else { format!("; declared are {}", list.join(", ")) }
}

fn indices(count: u32) -> String {
    if count == 1 { "1 index".into() } else { format!("{count} indices") }
}

/// Returns an example of indices: `i, j`.
fn example_indices(rank: u32) -> String {
    const LETTERS: [&str; 6] = ["i", "j", "k", "l", "m", "n"];
    match rank {
        1..=6 => LETTERS[..rank as usize].join(", "),
        _ => "i, j, ...".into(),
    }
}
