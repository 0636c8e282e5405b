//! The symbolic derivative.
//!
//! Forward accumulation: one pass over the nodes finds the derivative of each from those of its
//! operands, so a result is a constant factor larger than the expression, whatever is shared in it.
//! A choice chooses among finished derivatives, so that an infinite or NaN derivative of the branch
//! not taken never reaches the result, as it would if a gradient of 0 was multiplied with it. A
//! derivative that is 0 because a branch wasn't taken stays 0 whatever it is multiplied with later
//! ([`Slope`]), as Autograd's rules select 0 instead of multiplying by it: `sqrt(relu(x))` has the
//! derivative 0 where `x` is negative, and not `inf * 0`.
//!
//! Kinks are as in Autograd's rules: 0 for `abs` and `sign` at 0, equal operands of `min` and `max`
//! share evenly, a comparison, a rounding and a conversion to whole numbers have the derivative 0.

mod binary;
mod complex;
mod gelu;
mod lengths;
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
    /// The partial derivative with respect to an elementwise input, by number: an expression of the
    /// same inputs and parameters.
    ///
    /// The derivative is that of real numbers: of `conj(x)` and `real(x)` 1, of `imag(x)` 0. It holds
    /// for complex numbers, too, where none of `abs`, `sign`, `conj`, `real` and `imag` is used; see
    /// [`Expr::complex_gradient`].
    ///
    /// It is simplified, and shares what it has in common with itself. Where the derivative doesn't
    /// depend on the inputs it is a float, which is weak as all numbers are.
    ///
    /// ```
    /// use keyfold_expr::Expr;
    ///
    /// let expr = Expr::parse("log1p(exp(x))").unwrap();
    /// assert_eq!(expr.derivative(0).unwrap().to_string(), "sigmoid(x)");
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] for a ranked input, of which each element may have any number of
    /// uses; [`ErrorKind::Index`] for a number that no input has.
    pub fn derivative(&self, input: usize) -> Result<Expr> {
        let (mut pass, slope) = self.slope(input, Numbers::Real)?;
        let root = pass.settled_or_zero(slope);
        let derivative = Expr::new(&pass.g, root, self.inputs().to_vec(), self.params().to_vec());
        let simple = simplify(&derivative, &Assume::floating(self.inputs().len(), input));
        // A derivative that is a number alone is a float, whatever it was computed from.
        Ok(match simple.nodes() {
            [Node::Literal(literal)] => {
                let mut g = Graph::default();
                let root = float(&mut g, as_float(*literal));
                Expr::new(&g, root, self.inputs().to_vec(), self.params().to_vec())
            }
            _ => simple,
        })
    }

    /// The gradient with respect to an elementwise input: the derivative times the gradient of the
    /// result, an input that comes after this expression's; `None` if no float of the result depends on
    /// the input. Where a branch wasn't taken it is 0, whatever the gradient of the result is.
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
        let value = pass.times(slope.value, grad);
        let root = pass.settled(Slope { value, ..slope });
        let mut inputs = self.inputs().to_vec();
        inputs.push(Input { name, rank: None });
        let gradient = Expr::new(&pass.g, root, inputs, self.params().to_vec());
        Ok(Some(simplify(&gradient, &Assume::floating(self.inputs().len() + 1, input))))
    }

    /// The name, or a longer one, that no argument has.
    fn unused_name(&self, name: &str) -> String {
        let mut name = name.to_owned();
        while self.inputs().iter().any(|i| i.name == name) || self.params().contains(&name) {
            name.push('_');
        }
        name
    }

    /// The slope of the result, and the graph that it is in.
    fn slope(&self, input: usize, numbers: Numbers) -> Result<(Pass, Option<Slope>)> {
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
        let mut pass = Pass { g: self.to_graph(), input: input as u32, slopes, numbers, params };
        for (at, node) in self.nodes().iter().enumerate() {
            pass.visit(node, Id(at as u32));
        }
        let root = pass.slopes[self.root().index()];
        Ok((pass, root))
    }
}

/// The graph that grows, and the input in question.
struct Pass {
    g: Graph,
    input: u32,
    /// Of the nodes before the one in hand.
    slopes: Vec<Option<Slope>>,
    /// What the numbers are.
    numbers: Numbers,
    /// How many parameters the expression has.
    params: u32,
}

impl Pass {
    /// The derivative of the node `y`; nothing where it is 0 by the structure of the expression.
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
            Node::Unary(op, x) if self.reads_conjugate(op) => self.turned(op, x, y),
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
                // The slope of a real number may be complex itself.
                if !self.is_real() || matches!(self.g.node(dx.value), Node::Literal(_)) {
                    return Some(dx);
                }
                Some(Slope { value: self.g.add(Node::Cast(dtype, dx.value)), ..dx })
            }
            Node::Cast(..) => None,
        }
    }

    /// A product in which a factor 1 needs no multiplication.
    fn times(&mut self, a: Id, b: Id) -> Id {
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
            Unary::Log => return Some(self.relative(x, dx)),
            Unary::Log2 | Unary::Log10 => {
                let factor = if op == Unary::Log2 { LOG2_E } else { LOG10_E };
                let slope = self.relative(x, dx);
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

    /// `dx / x`. Of `exp(u)` and `1 + exp(u)` written so that large exponents cancel.
    fn relative(&mut self, x: Id, dx: Slope) -> Slope {
        if let Some((slope, du)) = self.relative_of_exponential(x, dx) {
            return self.scaled(slope, du);
        }
        self.over(dx, x)
    }

    /// The `u` of `1 + exp(u)`.
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

    /// `dx / x` as a slope and `du`, if `x` is `exp(u)` or `1 + exp(u)` and `dx` is its derivative
    /// as it is made here: `exp(u) * du`.
    fn relative_of_exponential(&mut self, x: Id, dx: Slope) -> Option<(Id, Slope)> {
        let one = float(&mut self.g, 1.0);
        if let Node::Unary(Unary::Exp, _) = *self.g.node(x) {
            return Some((one, self.without_factor(dx, x)?));
        }
        let u = self.one_plus_exponential(x)?;
        let exponential = unary(&mut self.g, Unary::Exp, u);
        let du = self.without_factor(dx, exponential)?;
        Some((unary(&mut self.g, Unary::Sigmoid, u), du))
    }

    /// The second factor of a product that has this first factor.
    fn without_factor(&mut self, product: Slope, factor: Id) -> Option<Slope> {
        let value = match *self.g.node(product.value) {
            _ if product.value == factor => float(&mut self.g, 1.0),
            Node::Binary(Binary::Mul, a, b) if a == factor => b,
            _ => return None,
        };
        Some(Slope { value, ..product })
    }

    /// `dx / (1 + x)`, with `sigmoid(u)` for `exp(u) / (1 + exp(u))`.
    fn log1p(&mut self, x: Id, dx: Slope) -> Slope {
        if let Node::Unary(Unary::Exp, u) = *self.g.node(x)
            && let Some(du) = self.without_factor(dx, x)
        {
            let slope = unary(&mut self.g, Unary::Sigmoid, u);
            return self.scaled(slope, du);
        }
        let one = int(&mut self.g, 1);
        let sum = add(&mut self.g, one, x);
        self.over(dx, sum)
    }
}

#[cfg(test)]
mod tests;
