//! Symbolic derivatives.
//!
//! Forward accumulation: one pass computes the derivative of each node from those of its operands,
//! so that the result is larger than the expression by a constant factor, also if nodes are shared.
//! `where` selects among finished derivatives, so that an infinite or NaN derivative of the branch
//! not taken never reaches the result, as it would if it were multiplied with a gradient of 0. The
//! derivative 0 of a branch not taken stays 0 in later products ([`Slope`]), as Autograd's rules
//! select 0 instead of multiplying by it: `sqrt(relu(x))` has the derivative 0 where `x` is
//! negative, not `inf * 0`.
//!
//! Kinks follow Autograd's rules: the derivative of `abs` and `sign` is 0 at 0, equal operands of
//! `min` and `max` contribute half each, and comparisons, rounding and conversions to integers have
//! the derivative 0.

mod binary;
mod complex;
mod gelu;
mod hypot;
mod slope;

use std::f64::consts::{FRAC_2_SQRT_PI, LOG2_E, LOG10_E};

use keyfold_core::{Error, ErrorKind, Result};

use crate::derived_functions::{add, div, float, int, mul, sub, unary};
use crate::fold::as_float;
use crate::graph::{Binary, Expr, Graph, Id, Input, Literal, Node, Unary};
use crate::simplify::{Assume, simplify};
use complex::Numbers;
use slope::Slope;

pub use complex::{ComplexGradient, Variable};

impl Expr {
    /// Returns the partial derivative with respect to the elementwise input of that index: an
    /// expression of the same inputs and parameters.
    ///
    /// The derivative is that of real numbers: 1 for `conj(x)` and `real(x)`, 0 for `imag(x)`. It
    /// holds for complex numbers, too, if none of `abs`, `sign`, `conj`, `real` and `imag` is used;
    /// see [`Expr::complex_gradient`].
    ///
    /// It is simplified, and common subexpressions are shared. A derivative that doesn't depend on
    /// the inputs is a float literal, which is weak.
    ///
    /// ```
    /// use keyfold_expr::Expr;
    ///
    /// let expr = Expr::parse("log1p(exp(x))").unwrap();
    /// assert_eq!(expr.derivative(0).unwrap().to_string(), "sigmoid(x)");
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] for a ranked input, whose elements may have any number of uses;
    /// [`ErrorKind::Index`] for an input that doesn't exist.
    pub fn derivative(&self, input: usize) -> Result<Expr> {
        let (mut pass, slope) = self.slope(input, Numbers::Real)?;
        let root = pass.settled_or_zero(slope);
        let derivative = Expr::new(&pass.g, root, self.inputs().to_vec(), self.params().to_vec());
        let simple = simplify(&derivative, &Assume::floating(self.inputs().len(), input));
        // A constant derivative becomes a float, also if it was computed from integers.
        Ok(match simple.nodes() {
            [Node::Literal(literal)] => {
                let mut g = Graph::default();
                let root = float(&mut g, as_float(*literal));
                Expr::new(&g, root, self.inputs().to_vec(), self.params().to_vec())
            }
            _ => simple,
        })
    }

    /// Returns the gradient with respect to an elementwise input: the derivative times the gradient
    /// of the result, which is an additional input after this expression's; `None` if no float of
    /// the result depends on the input. It is 0 for branches not taken, whatever the gradient of
    /// the result.
    ///
    /// ```
    /// use keyfold_expr::Expr;
    ///
    /// let expr = Expr::parse("relu(x)").unwrap();
    /// let gradient = expr.gradient(0).unwrap().unwrap();
    /// assert_eq!(gradient.to_string(), "where(x <= 0, 0.0, grad)");
    /// ```
    ///
    /// # Errors
    /// As [`Expr::derivative`].
    pub fn gradient(&self, input: usize) -> Result<Option<Expr>> {
        let (mut pass, slope) = self.slope(input, Numbers::Real)?;
        let Some(slope) = slope else { return Ok(None) };
        let name = self.unused_name("grad");
        let grad = pass.g.add(Node::Input(self.inputs().len() as u32));
        let value = pass.product(slope.value, grad);
        let root = pass.settled(Slope { value, ..slope });
        let mut inputs = self.inputs().to_vec();
        inputs.push(Input { name, rank: None });
        let gradient = Expr::new(&pass.g, root, inputs, self.params().to_vec());
        Ok(Some(simplify(&gradient, &Assume::floating(self.inputs().len() + 1, input))))
    }

    /// Returns the name, or a longer one, that no input or parameter has.
    fn unused_name(&self, name: &str) -> String {
        let mut name = name.to_owned();
        while self.inputs().iter().any(|i| i.name == name) || self.params().contains(&name) {
            name.push('_');
        }
        name
    }

    /// Returns the pass with its graph, and the slope of the result.
    fn slope(&self, input: usize, numbers: Numbers) -> Result<(Differentiator, Option<Slope>)> {
        let Some(known) = self.inputs().get(input) else {
            let count = self.inputs().len();
            let message = format!(
                "derivative: there is no input {input}; the expression has {count}, counted from 0"
            );
            return Err(Error::new(ErrorKind::Index, message));
        };
        if known.rank.is_some() {
            let message = format!(
                "derivative: '{}' is read at computed indices, so its gradient is a sum over all \
                 elements that read the same place, which no scalar expression can say; only inputs \
                 that are read element by element have derivatives",
                known.name
            );
            return Err(Error::new(ErrorKind::NotSupported, message));
        }
        let slopes = Vec::with_capacity(self.nodes().len());
        let params = self.params().len() as u32;
        let mut pass =
            Differentiator { g: self.to_graph(), input: input as u32, slopes, numbers, params };
        for (at, node) in self.nodes().iter().enumerate() {
            pass.visit(node, Id(at as u32));
        }
        let root = pass.slopes[self.root().index()];
        Ok((pass, root))
    }
}

/// The differentiation pass: the growing graph, and the input.
struct Differentiator {
    g: Graph,
    input: u32,
    /// By node, up to the current one.
    slopes: Vec<Option<Slope>>,
    /// The kind of the numbers.
    numbers: Numbers,
    /// The number of the expression's parameters.
    params: u32,
}

impl Differentiator {
    /// Returns the derivative of the node `y`; `None` if it is 0 by the structure of the
    /// expression.
    fn slope(&mut self, node: &Node, y: Id) -> Option<Slope> {
        let of = |id: Id| self.slopes[id.index()];
        match *node {
            Node::Input(input) if input == self.input => self.seed(),
            Node::Literal(_)
            | Node::Input(_)
            | Node::Param(_)
            | Node::Index
            | Node::Coordinate(_)
            | Node::At { .. } => None,
            Node::Unary(op, x) if self.reads_conjugate(op) => self.conjugate_rule(op, x, y),
            Node::Unary(op, x) => {
                let dx = of(x)?;
                self.unary(op, x, dx, y)
            }
            Node::Binary(op, a, b) => match (of(a), of(b)) {
                (None, None) => None,
                (da, db) => self.binary(op, (a, da), (b, db), y),
            },
            Node::Where(condition, a, b) => self.choice(condition, of(a), of(b)),
            Node::Cast(dtype, x) if dtype.is_floating() || dtype.is_complex() => {
                let dx = of(x)?;
                // The slope of a real number may be complex.
                if !self.is_real() || matches!(self.g.node(dx.value), Node::Literal(_)) {
                    return Some(dx);
                }
                Some(Slope { value: self.g.add(Node::Cast(dtype, dx.value)), ..dx })
            }
            Node::Cast(..) => None,
        }
    }

    /// Returns a product; a factor 1 is dropped.
    fn product(&mut self, a: Id, b: Id) -> Id {
        if self.is_number(a, 1.0) {
            b
        } else if self.is_number(b, 1.0) {
            a
        } else {
            mul(&mut self.g, a, b)
        }
    }

    fn is_number(&self, id: Id, value: f64) -> bool {
        match *self.g.node(id) {
            Node::Literal(Literal::Float(bits)) => f64::from_bits(bits) == value,
            Node::Literal(Literal::Int(number)) => number as f64 == value,
            _ => false,
        }
    }

    fn unary(&mut self, op: Unary, x: Id, dx: Slope, y: Id) -> Option<Slope> {
        let g = &mut self.g;
        let slope = match op {
            Unary::Not
            | Unary::Sign
            | Unary::Imag
            | Unary::Floor
            | Unary::Ceil
            | Unary::Round
            | Unary::Trunc
            | Unary::IsNan
            | Unary::IsFinite => return None,
            Unary::Neg => return Some(self.negative(dx)),
            Unary::Conj | Unary::Real => return Some(dx),
            Unary::Abs => unary(g, Unary::Sign, x),
            Unary::Exp => y,
            // Not y + 1, which cancels below 0.
            Unary::Expm1 => unary(g, Unary::Exp, x),
            Unary::Log => return Some(self.log_derivative(x, dx)),
            Unary::Log2 | Unary::Log10 => {
                let factor = if op == Unary::Log2 { LOG2_E } else { LOG10_E };
                let slope = self.log_derivative(x, dx);
                let factor = float(&mut self.g, factor);
                return Some(self.scaled(factor, slope));
            }
            Unary::Log1p => return Some(self.log1p(x, dx)),
            Unary::Sqrt => {
                let half = float(g, 0.5);
                div(g, half, y)
            }
            Unary::Rsqrt => {
                let half = float(g, -0.5);
                let product = mul(g, half, y);
                div(g, product, x)
            }
            Unary::Sin => unary(g, Unary::Cos, x),
            Unary::Cos => {
                let sine = unary(g, Unary::Sin, x);
                let product = self.scaled(sine, dx);
                return Some(self.negative(product));
            }
            Unary::Tanh => {
                let squared = mul(g, y, y);
                let one = int(g, 1);
                sub(g, one, squared)
            }
            Unary::Sigmoid => {
                let one = int(g, 1);
                let rest = sub(g, one, y);
                mul(g, y, rest)
            }
            Unary::Erf | Unary::Erfc => {
                let squared = mul(g, x, x);
                let squared = unary(g, Unary::Neg, squared);
                let bell = unary(g, Unary::Exp, squared);
                let sign = if op == Unary::Erf { 1.0 } else { -1.0 };
                let factor = float(g, sign * FRAC_2_SQRT_PI);
                mul(g, factor, bell)
            }
        };
        Some(self.scaled(slope, dx))
    }

    /// Returns `dx / x`; for `exp(u)` and `1 + exp(u)` in a form in which large exponentials
    /// cancel.
    fn log_derivative(&mut self, x: Id, dx: Slope) -> Slope {
        if let Some((slope, du)) = self.log_derivative_of_exponential(x, dx) {
            return self.scaled(slope, du);
        }
        self.divided(dx, x)
    }

    /// Returns the `u` of `1 + exp(u)`.
    fn one_plus_exponential(&self, x: Id) -> Option<Id> {
        let Node::Binary(Binary::Add, a, b) = *self.g.node(x) else { return None };
        let exponential = if self.is_number(a, 1.0) {
            b
        } else if self.is_number(b, 1.0) {
            a
        } else {
            return None;
        };
        match *self.g.node(exponential) {
            Node::Unary(Unary::Exp, u) => Some(u),
            _ => None,
        }
    }

    /// Returns `dx / x` as a slope and `du`, if `x` is `exp(u)` or `1 + exp(u)` and `dx` is its
    /// derivative in the form made here, `exp(u) * du`.
    fn log_derivative_of_exponential(&mut self, x: Id, dx: Slope) -> Option<(Id, Slope)> {
        let one = float(&mut self.g, 1.0);
        if let Node::Unary(Unary::Exp, _) = *self.g.node(x) {
            return Some((one, self.without_factor(dx, x)?));
        }
        let u = self.one_plus_exponential(x)?;
        let exponential = unary(&mut self.g, Unary::Exp, u);
        let du = self.without_factor(dx, exponential)?;
        Some((unary(&mut self.g, Unary::Sigmoid, u), du))
    }

    /// Returns the second factor of a product with this first factor.
    fn without_factor(&mut self, product: Slope, factor: Id) -> Option<Slope> {
        let value = match *self.g.node(product.value) {
            _ if product.value == factor => float(&mut self.g, 1.0),
            Node::Binary(Binary::Mul, a, b) if a == factor => b,
            _ => return None,
        };
        Some(Slope { value, ..product })
    }

    /// Returns `dx / (1 + x)`, with `sigmoid(u)` for `exp(u) / (1 + exp(u))`.
    fn log1p(&mut self, x: Id, dx: Slope) -> Slope {
        if let Node::Unary(Unary::Exp, u) = *self.g.node(x)
            && let Some(du) = self.without_factor(dx, x)
        {
            let slope = unary(&mut self.g, Unary::Sigmoid, u);
            return self.scaled(slope, du);
        }
        let one = int(&mut self.g, 1);
        let sum = add(&mut self.g, one, x);
        self.divided(dx, sum)
    }
}

#[cfg(test)]
mod tests;
