//! Complex derivatives in Wirtinger's calculus: with respect to a variable and to its conjugate.
//!
//! The gradient of a real loss L is `dL/dRe + i dL/dIm`, as in PyTorch. For a result `y` with
//! gradient `g`, the gradient of a variable `z` is `conj(dy/dz) g + (dy/dz*) conj(g)`, and that of
//! a real variable `x` is `real(conj(dy/dx) g)` (K. Kreutz-Delgado, "The complex gradient operator
//! and the CR-calculus", 2009). For holomorphic functions `dy/dz*` is 0.

use keyfold_core::Result;

use super::Differentiator;
use super::slope::Slope;
use crate::derived_functions::{binary, choose, float, int, mul, unary};
use crate::graph::{Binary, Expr, Graph, Id, Input, Node, Unary};
use crate::simplify::{Assume, simplify};

/// The kind of a variable in an expression of complex numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Variable {
    /// A real number.
    Real,
    /// A complex number.
    Complex,
}

/// The gradient with respect to an input, or the tangent that follows from an input's, as an expression.
#[derive(Clone, PartialEq, Debug)]
pub struct ComplexGradient {
    /// An expression of the same inputs followed by the gradient of the result, or by the tangent of the
    /// input.
    pub expr: Expr,
    /// Whether it has an additional last parameter, to be set to the imaginary unit.
    pub takes_unit: bool,
}

/// Whether a gradient goes back through an expression, or a tangent forward.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Back,
    Forward,
}

/// The numbers of a differentiation pass.
pub(super) enum Numbers {
    /// All real.
    Real,
    /// Complex, with a real variable: the derivative of a conjugate is the conjugate of the
    /// derivative.
    RealVariable,
    /// Complex, with a complex variable. `others` has the nodes' derivatives with respect to the
    /// other one of the variable and its conjugate.
    Complex { others: Vec<Option<Slope>>, seeded: bool },
}

impl Expr {
    /// Returns the gradient with respect to an elementwise input of an expression with complex
    /// numbers; `None` if it is zero everywhere.
    ///
    /// # Errors
    /// As [`Expr::derivative`].
    pub fn complex_gradient(
        &self,
        input: usize,
        variable: Variable,
    ) -> Result<Option<ComplexGradient>> {
        self.times_slopes(input, variable, Direction::Back)
    }

    /// The tangent of the value from that of an elementwise input, `dy/dz t + (dy/dz*) conj(t)`, where the
    /// numbers are complex, or some are; `None` where it is zero everywhere.
    ///
    /// # Errors
    /// As [`Expr::derivative`].
    pub fn complex_tangent(
        &self,
        input: usize,
        variable: Variable,
    ) -> Result<Option<ComplexGradient>> {
        self.times_slopes(input, variable, Direction::Forward)
    }

    /// The slopes of the value times one more input.
    fn times_slopes(
        &self,
        input: usize,
        variable: Variable,
        direction: Direction,
    ) -> Result<Option<ComplexGradient>> {
        let numbers = match variable {
            Variable::Real => Numbers::RealVariable,
            Variable::Complex => Numbers::Complex { others: Vec::new(), seeded: true },
        };
        let (mut pass, slope) = self.slope(input, numbers)?;
        let other = match &pass.numbers {
            Numbers::Complex { others, .. } => others[self.root().index()],
            _ => None,
        };
        let grad = pass.g.add(Node::Input(self.inputs().len() as u32));
        let direct = slope.map(|slope| {
            let slope = match direction {
                Direction::Back => pass.conj_slope(slope),
                Direction::Forward => slope,
            };
            pass.scaled_by(slope, grad)
        });
        let turned = other.map(|other| {
            let grad = unary(&mut pass.g, Unary::Conj, grad);
            pass.scaled_by(other, grad)
        });
        let Some(whole) = pass.sum(direct, turned) else { return Ok(None) };
        let whole = pass.settled(whole);
        let whole = match (variable, direction) {
            (Variable::Real, Direction::Back) => unary(&mut pass.g, Unary::Real, whole),
            _ => whole,
        };
        let mut inputs = self.inputs().to_vec();
        inputs.push(Input { name: self.unused_name("grad"), rank: None });
        let takes_unit = uses_param(&pass.g, whole, self.params().len());
        let mut params = self.params().to_vec();
        if takes_unit {
            params.push(self.unused_name("i"));
        }
        let expr = Expr::new(&pass.g, whole, inputs, params);
        let expr = simplify(&expr, &Assume::floating(self.inputs().len() + 1, input));
        Ok(Some(ComplexGradient { expr, takes_unit }))
    }
}

/// Returns whether a node depends on a parameter.
fn uses_param(g: &Graph, root: Id, param: usize) -> bool {
    let mut uses = Vec::with_capacity(root.index() + 1);
    for node in &g.nodes()[..=root.index()] {
        let used = match node {
            Node::Param(index) => *index as usize == param,
            Node::Unary(_, a) | Node::Cast(_, a) => uses[a.index()],
            Node::Binary(_, a, b) => uses[a.index()] || uses[b.index()],
            Node::Where(c, a, b) => uses[c.index()] || uses[a.index()] || uses[b.index()],
            Node::At { indices, .. } => indices.iter().any(|id| uses[id.index()]),
            Node::Literal(_) | Node::Input(_) | Node::Index | Node::Coordinate(_) => false,
        };
        uses.push(used);
    }
    uses[root.index()]
}

impl Differentiator {
    pub(super) fn is_real(&self) -> bool {
        matches!(self.numbers, Numbers::Real)
    }

    /// Returns the derivative of the variable itself.
    pub(super) fn seed(&mut self) -> Option<Slope> {
        match self.numbers {
            Numbers::Complex { seeded: false, .. } => None,
            _ => Some(Slope::from(float(&mut self.g, 1.0))),
        }
    }

    /// Computes the slopes of a node from those of its operands.
    pub(super) fn visit(&mut self, node: &Node, y: Id) {
        let slope = self.slope(node, y);
        if matches!(self.numbers, Numbers::Complex { .. }) {
            self.exchange(false);
            let other = self.slope(node, y);
            self.slopes.push(other);
            self.exchange(true);
        }
        self.slopes.push(slope);
    }

    /// Exchanges the derivatives with respect to the variable and to its conjugate.
    fn exchange(&mut self, to_variable: bool) {
        if let Numbers::Complex { others, seeded } = &mut self.numbers {
            std::mem::swap(others, &mut self.slopes);
            *seeded = to_variable;
        }
    }

    fn conj(&mut self, x: Id) -> Id {
        match *self.g.node(x) {
            Node::Literal(_) => x,
            Node::Unary(Unary::Conj, x) => x,
            _ => unary(&mut self.g, Unary::Conj, x),
        }
    }

    fn conj_slope(&mut self, slope: Slope) -> Slope {
        Slope { value: self.conj(slope.value), ..slope }
    }

    /// Returns the derivative of the conjugate of `x`; `None` if it is 0.
    fn slope_of_conjugate(&mut self, x: Id) -> Option<Slope> {
        let slope = match &self.numbers {
            Numbers::Complex { others, .. } => others[x.index()],
            _ => self.slopes[x.index()],
        };
        slope.map(|slope| self.conj_slope(slope))
    }

    fn half(&mut self, slope: Slope) -> Slope {
        let half = float(&mut self.g, 0.5);
        self.scaled(half, slope)
    }

    /// Returns whether a function depends on the conjugate of its operand, and the operand isn't
    /// real.
    pub(super) fn reads_conjugate(&self, op: Unary) -> bool {
        use Unary::{Abs, Conj, Imag, Real, Sign};
        !self.is_real() && matches!(op, Conj | Real | Imag | Abs | Sign)
    }

    /// Returns the derivative of a function that [reads the conjugate](Self::reads_conjugate), `y`;
    /// `None` if it is 0.
    pub(super) fn conjugate_rule(&mut self, op: Unary, x: Id, y: Id) -> Option<Slope> {
        let (direct, turned) = (self.slopes[x.index()], self.slope_of_conjugate(x));
        match op {
            Unary::Conj => turned,
            Unary::Real => {
                let sum = self.sum(direct, turned)?;
                Some(self.half(sum))
            }
            Unary::Imag => {
                // (dx - dx*) / 2i, which is (dx* - dx) i / 2.
                let difference = self.difference(turned, direct)?;
                let half = self.half(difference);
                let unit = self.g.add(Node::Param(self.params));
                Some(self.scaled_by(half, unit))
            }
            Unary::Abs => {
                // Half of conj(s) dx + s dx*, where s = sign(x).
                let sign = unary(&mut self.g, Unary::Sign, x);
                let conj = self.conj(sign);
                let direct = direct.map(|direct| self.scaled(conj, direct));
                let turned = turned.map(|turned| self.scaled(sign, turned));
                let sum = self.sum(direct, turned)?;
                Some(self.half(sum))
            }
            // The sign: half of dx - s s dx*, divided by the absolute value; 0 at 0.
            _ => {
                let squared = mul(&mut self.g, y, y);
                let turned = turned.map(|turned| self.scaled(squared, turned));
                let difference = self.difference(direct, turned)?;
                let half = self.half(difference);
                let half = self.settled(half);
                let g = &mut self.g;
                let length = unary(g, Unary::Abs, x);
                let (zero, one) = (int(g, 0), int(g, 1));
                let none = binary(g, Binary::Eq, length, zero);
                let length = choose(g, none, one, length);
                let slope = self.divided(Slope::from(half), length).value;
                let zero = float(&mut self.g, 0.0);
                Some(Slope::from(choose(&mut self.g, none, zero, slope)))
            }
        }
    }

    /// Returns whether `x` is a nonnegative real number.
    pub(super) fn nonnegative(&mut self, x: Id) -> Id {
        let real = self.is_real();
        let g = &mut self.g;
        let zero = int(g, 0);
        if real {
            return binary(g, Binary::Ge, x, zero);
        }
        let (re, im) = (unary(g, Unary::Real, x), unary(g, Unary::Imag, x));
        let (above, flat) = (binary(g, Binary::Ge, re, zero), binary(g, Binary::Eq, im, zero));
        binary(g, Binary::And, above, flat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gradient(text: &str, variable: Variable) -> String {
        let found = Expr::parse(text).unwrap().complex_gradient(0, variable).unwrap();
        found.map_or_else(|| "0".to_owned(), |found| found.expr.to_string())
    }

    #[test]
    fn gradients_are_multiplied_with_the_conjugate_slope() {
        assert_eq!(gradient("exp(x)", Variable::Complex), "conj(exp(x)) * grad");
        assert_eq!(gradient("3 * x", Variable::Complex), "3 * grad");
        assert_eq!(gradient("conj(x)", Variable::Complex), "conj(grad)");
        assert_eq!(gradient("exp(x)", Variable::Real), "real(conj(exp(x)) * grad)");
        assert_eq!(gradient("isnan(x)", Variable::Complex), "0");
    }

    #[test]
    fn the_imaginary_unit_is_a_parameter() {
        for (text, takes) in [("imag(x)", true), ("real(x) + abs(x)", false)] {
            let expr = Expr::parse(text).unwrap();
            let found = expr.complex_gradient(0, Variable::Complex).unwrap().unwrap();
            assert_eq!(found.takes_unit, takes, "{text}");
            assert_eq!(found.expr.params().len(), usize::from(takes));
        }
    }
}
