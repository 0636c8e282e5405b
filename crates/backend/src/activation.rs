//! Functions that a kernel applies to its results before it stores them.

/// A function of one element, which the kernels of fused operations apply to a result while it is in the
/// cache: to a product with its bias, or to a convolution with its bias.
///
/// NaN stays. `relu` gives 0 for -0. The forms of `gelu` are finite for infinite `x` below 0, where they are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Activation {
    /// `x`
    #[default]
    None = 0,
    /// `max(x, 0)`
    Relu = 1,
    /// `x` times the distribution function of the normal distribution.
    Gelu = 2,
    /// The approximation of [`Activation::Gelu`] by `tanh`.
    GeluTanh = 3,
    /// The approximation of [`Activation::Gelu`] by `x sigmoid(1.702 x)`.
    GeluSigmoid = 4,
    /// `1 / (1 + exp(-x))`
    Sigmoid = 5,
    /// `tanh(x)`
    Tanh = 6,
}

impl Activation {
    /// Every activation; its number is its place.
    pub const ALL: [Activation; 7] = [
        Activation::None,
        Activation::Relu,
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::GeluSigmoid,
        Activation::Sigmoid,
        Activation::Tanh,
    ];

    /// Returns the name that operators take: `gelu_tanh`.
    pub const fn name(self) -> &'static str {
        match self {
            Activation::None => "none",
            Activation::Relu => "relu",
            Activation::Gelu => "gelu",
            Activation::GeluTanh => "gelu_tanh",
            Activation::GeluSigmoid => "gelu_sigmoid",
            Activation::Sigmoid => "sigmoid",
            Activation::Tanh => "tanh",
        }
    }

    /// Returns the activation of a name.
    pub fn from_name(name: &str) -> Option<Activation> {
        Activation::ALL.into_iter().find(|activation| activation.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_lead_back_to_the_activation() {
        for (number, activation) in Activation::ALL.into_iter().enumerate() {
            assert_eq!(activation as usize, number);
            assert_eq!(Activation::from_name(activation.name()), Some(activation));
        }
        assert_eq!(Activation::from_name("Relu"), None);
    }
}
