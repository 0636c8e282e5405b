//! The loops over a block: sums in several accumulators, and normalized elements and gradients.

use keyfold_kit::isa::Isa;

use super::memory::Float;

/// Accumulators of a sum, so that additions don't wait for each other and round less.
const LANES: usize = 32;

/// Adds the second half to the first one.
#[inline(always)]
fn halved<A: Float, const N: usize, const HALF: usize>(sums: [A; N]) -> [A; HALF] {
    let mut half = [A::ZERO; HALF];
    for i in 0..HALF {
        half[i] = sums[i] + sums[i + HALF];
    }
    half
}

/// Adds up accumulators in pairs.
#[inline(always)]
fn total<A: Float>(sums: [A; LANES]) -> A {
    let sums: [A; 8] = halved::<A, 16, 8>(halved(sums));
    let [a, b] = halved::<A, 4, 2>(halved(sums));
    a + b
}

#[inline(always)]
pub(super) fn sum<A: Float>(x: &[A]) -> A {
    let mut sums = [A::ZERO; LANES];
    let chunks = x.chunks_exact(LANES);
    for (sum, x) in sums.iter_mut().zip(chunks.remainder()) {
        *sum = *x;
    }
    for x in chunks {
        for i in 0..LANES {
            sums[i] = sums[i] + x[i];
        }
    }
    total(sums)
}

/// The sum of the squared distances from a number.
#[inline(always)]
fn squared_distances<I: Isa, A: Float>(x: &[A], from: A) -> A {
    let mut sums = [A::ZERO; LANES];
    let chunks = x.chunks_exact(LANES);
    for (sum, x) in sums.iter_mut().zip(chunks.remainder()) {
        let distance = *x - from;
        *sum = distance * distance;
    }
    for x in chunks {
        for i in 0..LANES {
            let distance = x[i] - from;
            sums[i] = distance.mul_add::<I>(distance, sums[i]);
        }
    }
    total(sums)
}

/// The number of some elements, their mean, and the sum of their squared distances from it.
#[derive(Clone, Copy, Default)]
pub(super) struct Moments {
    pub(super) count: f64,
    pub(super) mean: f64,
    pub(super) squares: f64,
}

impl Moments {
    /// The moments of a block; about 0 if `centered` is false, as RMS norm has them. The mean is computed
    /// before the distances from it, so that nothing cancels.
    #[inline(always)]
    pub(super) fn of_block<I: Isa, A: Float>(x: &[A], centered: bool) -> Moments {
        let count = x.len() as f64;
        let mean = if centered { A::from_f64(sum(x).to_f64() / count) } else { A::ZERO };
        let squares = squared_distances::<I, A>(x, mean).to_f64();
        Moments { count, mean: mean.to_f64(), squares }
    }

    /// The moments of two sets of elements together (T. Chan, G. Golub, R. LeVeque, "Updating formulae and a
    /// pairwise algorithm for computing sample variances", 1979).
    #[inline(always)]
    pub(super) fn join(self, other: Moments) -> Moments {
        if self.count == 0.0 {
            return other;
        }
        let count = self.count + other.count;
        let distance = other.mean - self.mean;
        let share = other.count / count;
        // Beside an infinite mean the distance has no share.
        let mean = match distance.is_finite() {
            true => self.mean + distance * share,
            false => self.mean + other.mean,
        };
        Moments {
            count,
            mean,
            squares: self.squares + other.squares + distance * distance * self.count * share,
        }
    }

    /// As [`Moments::join`], of moments about 0 if `centered` is false.
    #[inline(always)]
    pub(super) fn join_as(self, other: Moments, centered: bool) -> Moments {
        match centered {
            true => self.join(other),
            false => Moments {
                count: self.count + other.count,
                mean: 0.0,
                squares: self.squares + other.squares,
            },
        }
    }

    /// The variance: the mean squared distance.
    #[inline(always)]
    pub(super) fn variance(self) -> f64 {
        self.squares / self.count
    }

    /// `1 / sqrt(variance + eps)`
    #[inline(always)]
    pub(super) fn reciprocal_deviation(self, eps: f64) -> f64 {
        1.0 / (self.variance() + eps).sqrt()
    }
}

/// `(x - mean) * rstd * w + b`, with one `w` and `b` for all elements.
#[inline(always)]
pub(super) fn normalize<I: Isa, A: Float>(
    x: &[A],
    y: &mut [A],
    (mean, rstd): (A, A),
    (w, b): (A, A),
) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = ((*x - mean) * rstd).mul_add::<I>(w, b);
    }
}

/// As [`normalize`], with a `w` and a `b` for each element.
#[inline(always)]
pub(super) fn normalize_each<I: Isa, A: Float>(
    x: &[A],
    y: &mut [A],
    (mean, rstd): (A, A),
    (w, b): (&[A], &[A]),
) {
    for (((y, x), w), b) in y.iter_mut().zip(x).zip(w).zip(b) {
        *y = ((*x - mean) * rstd).mul_add::<I>(*w, *b);
    }
}

/// The sums of `g`, and of `g * (x - mean)`.
#[inline(always)]
pub(super) fn gradient_sums<I: Isa, A: Float>(g: &[A], x: &[A], mean: A) -> (A, A) {
    let (mut sums, mut products) = ([A::ZERO; LANES], [A::ZERO; LANES]);
    let (g, x) = (g.chunks_exact(LANES), x.chunks_exact(LANES));
    for (i, (g, x)) in g.remainder().iter().zip(x.remainder()).enumerate() {
        sums[i] = *g;
        products[i] = *g * (*x - mean);
    }
    for (g, x) in g.zip(x) {
        for i in 0..LANES {
            sums[i] = sums[i] + g[i];
            products[i] = g[i].mul_add::<I>(x[i] - mean, products[i]);
        }
    }
    (total(sums), total(products))
}

/// As [`gradient_sums`], of `g * w` in place of `g`. Adds the gradients of `w` and `b` to the last two slices.
#[inline(always)]
pub(super) fn gradient_sums_each<I: Isa, A: Float>(
    (g, x, w): (&[A], &[A], &[A]),
    (mean, rstd): (A, A),
    (dw, db): (&mut [A], &mut [A]),
) -> (A, A) {
    let (mut sums, mut products) = ([A::ZERO; LANES], [A::ZERO; LANES]);
    let whole = g.len() / LANES * LANES;
    let chunks = g.chunks_exact(LANES).zip(x.chunks_exact(LANES)).zip(w.chunks_exact(LANES));
    let gradients = dw.chunks_exact_mut(LANES).zip(db.chunks_exact_mut(LANES));
    for (((g, x), w), (dw, db)) in chunks.zip(gradients) {
        for i in 0..LANES {
            let (distance, gw) = (x[i] - mean, g[i] * w[i]);
            sums[i] = sums[i] + gw;
            products[i] = gw.mul_add::<I>(distance, products[i]);
            dw[i] = g[i].mul_add::<I>(distance * rstd, dw[i]);
            db[i] = db[i] + g[i];
        }
    }
    let rest = g[whole..].iter().zip(&x[whole..]).zip(&w[whole..]);
    let gradients = dw[whole..].iter_mut().zip(&mut db[whole..]);
    let accumulators = sums.iter_mut().zip(&mut products);
    for ((((g, x), w), (dw, db)), (sum, product)) in rest.zip(gradients).zip(accumulators) {
        let (distance, gw) = (*x - mean, *g * *w);
        *sum = *sum + gw;
        *product = gw.mul_add::<I>(distance, *product);
        *dw = g.mul_add::<I>(distance * rstd, *dw);
        *db = *db + *g;
    }
    (total(sums), total(products))
}

/// As [`gradient_sums_each`], without the gradients of `w` and `b`.
#[inline(always)]
pub(super) fn weighted_gradient_sums<I: Isa, A: Float>(
    (g, x, w): (&[A], &[A], &[A]),
    mean: A,
) -> (A, A) {
    let (mut sums, mut products) = ([A::ZERO; LANES], [A::ZERO; LANES]);
    let whole = g.len() / LANES * LANES;
    let chunks = g.chunks_exact(LANES).zip(x.chunks_exact(LANES)).zip(w.chunks_exact(LANES));
    for ((g, x), w) in chunks {
        for i in 0..LANES {
            let gw = g[i] * w[i];
            sums[i] = sums[i] + gw;
            products[i] = gw.mul_add::<I>(x[i] - mean, products[i]);
        }
    }
    let rest = g[whole..].iter().zip(&x[whole..]).zip(&w[whole..]);
    for (((g, x), w), (sum, product)) in rest.zip(sums.iter_mut().zip(&mut products)) {
        let gw = *g * *w;
        *sum = *sum + gw;
        *product = gw.mul_add::<I>(*x - mean, *product);
    }
    (total(sums), total(products))
}

/// The factors of the gradient of an element: `of_grad * g + of_distance * (x - mean) + constant`.
#[derive(Clone, Copy)]
pub(super) struct Factors<A> {
    pub(super) of_grad: A,
    pub(super) of_distance: A,
    pub(super) constant: A,
}

impl<A: Float> Factors<A> {
    /// The factors for a lane of `count` elements with these sums of weighted gradients.
    ///
    /// The gradient is `rstd * (gw - mean(gw) - normal * mean(gw * normal))`, where `normal` is the normalized
    /// element `(x - mean) * rstd`. Without centering nothing depends on the mean.
    #[inline(always)]
    pub(super) fn new(rstd: f64, count: f64, (sum, product): (f64, f64), centered: bool) -> Self {
        Factors {
            of_grad: A::from_f64(rstd),
            of_distance: A::from_f64(-(rstd * rstd * rstd) * product / count),
            constant: A::from_f64(if centered { -rstd * sum / count } else { 0.0 }),
        }
    }

    /// The factors if the statistics are constants.
    #[inline(always)]
    pub(super) fn of_constants(rstd: f64) -> Self {
        Factors { of_grad: A::from_f64(rstd), of_distance: A::ZERO, constant: A::ZERO }
    }
}

/// The gradients of elements, with one weight for all.
#[inline(always)]
pub(super) fn gradient<I: Isa, A: Float>(
    (g, x): (&[A], &[A]),
    dx: &mut [A],
    (mean, w): (A, A),
    factors: Factors<A>,
) {
    let Factors { of_grad, of_distance, constant } = factors;
    let of_grad = of_grad * w;
    for ((dx, g), x) in dx.iter_mut().zip(g).zip(x) {
        *dx = of_grad.mul_add::<I>(*g, of_distance.mul_add::<I>(*x - mean, constant));
    }
}

/// The gradients of elements, with a weight for each.
#[inline(always)]
pub(super) fn gradient_each<I: Isa, A: Float>(
    (g, x, w): (&[A], &[A], &[A]),
    dx: &mut [A],
    mean: A,
    factors: Factors<A>,
) {
    let Factors { of_grad, of_distance, constant } = factors;
    for (((dx, g), x), w) in dx.iter_mut().zip(g).zip(x).zip(w) {
        *dx = of_grad.mul_add::<I>(*g * *w, of_distance.mul_add::<I>(*x - mean, constant));
    }
}
