//! Parameters as named values, for backends in other languages.

/// The value of a parameter, in a form that every language has.
#[derive(Clone, Debug, PartialEq)]
pub enum Field {
    /// A whole number; 1 or 0 of a flag.
    Int(i64),
    /// A whole number of 64 bits without a sign, such as a seed.
    Bits(u64),
    /// Any other number.
    Float(f64),
    /// Whole numbers, such as the sizes of a window.
    Ints(Vec<i64>),
    /// A name, such as that of an activation.
    Text(&'static str),
}

impl From<bool> for Field {
    fn from(flag: bool) -> Field {
        Field::Int(flag.into())
    }
}

impl From<u32> for Field {
    fn from(number: u32) -> Field {
        Field::Int(number.into())
    }
}

impl From<u64> for Field {
    fn from(bits: u64) -> Field {
        Field::Bits(bits)
    }
}

impl From<i64> for Field {
    fn from(number: i64) -> Field {
        Field::Int(number)
    }
}

impl From<f64> for Field {
    fn from(number: f64) -> Field {
        Field::Float(number)
    }
}

impl<T: Copy + Into<i64>, const N: usize> From<[T; N]> for Field {
    fn from(numbers: [T; N]) -> Field {
        Field::Ints(numbers.map(Into::into).to_vec())
    }
}

impl From<&'static str> for Field {
    fn from(name: &'static str) -> Field {
        Field::Text(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files of the groups whose parameters are fields.
    const FILES: [&str; 9] = [
        include_str!("norm.rs"),
        include_str!("linear.rs"),
        include_str!("convolution.rs"),
        include_str!("pool.rs"),
        include_str!("attention.rs"),
        include_str!("recurrent.rs"),
        include_str!("optim.rs"),
        include_str!("decomposition.rs"),
        include_str!("dropout.rs"),
    ];

    /// A parameter that `fields` leaves out would be one that backends in other languages ignore.
    #[test]
    fn all_parameters_are_fields() {
        for file in FILES {
            let (_, rest) = file.split_once("Params {\n").unwrap();
            let (fields, _) = rest.split_once("\n}\n").unwrap();
            let (_, body) = file.split_once("fn fields(&self)").unwrap();
            let names = fields.lines().filter_map(|line| line.strip_prefix("    pub "));
            let names: Vec<&str> = names.filter_map(|line| Some(line.split_once(':')?.0)).collect();
            assert_eq!(names[0], "op", "{file}");
            for name in &names[1..] {
                assert!(body.contains(&format!("\"{name}")), "fields lacks {name}: {file}");
                assert!(body.contains(&format!("self.{name}")), "fields lacks {name}: {file}");
            }
        }
    }

    #[test]
    fn values_keep_their_kind() {
        assert_eq!(Field::from(true), Field::Int(1));
        assert_eq!(Field::from(7_u32), Field::Int(7));
        assert_eq!(Field::from(-7_i64), Field::Int(-7));
        assert_eq!(Field::from(u64::MAX), Field::Bits(u64::MAX));
        assert_eq!(Field::from(0.5), Field::Float(0.5));
        assert_eq!(Field::from([true, false]), Field::Ints(vec![1, 0]));
        assert_eq!(Field::from([3_u32, 4]), Field::Ints(vec![3, 4]));
        assert_eq!(Field::from("relu"), Field::Text("relu"));
    }
}
