//! Boxes in layers, each below those that it hangs on, with few crossings and short arrows
//! (Sugiyama, Tagawa and Toda, "Methods for Visual Understanding of Hierarchical System Structures", 1981).

/// The distance of layers, in which the names of ports are.
const BETWEEN_LAYERS: f64 = 44.0;
/// The distance of neighbours in a layer.
const BETWEEN: f64 = 22.0;
/// How often the order and the places of a layer follow those of its neighbours.
const SWEEPS: usize = 12;

/// A box, a text beside an arrow, or the place where an arrow goes through a layer.
#[derive(Clone, Debug, Default)]
pub(super) struct Item {
    pub(super) width: f64,
    pub(super) height: f64,
    /// The middle.
    pub(super) x: f64,
    pub(super) y: f64,
    layer: usize,
}

impl Item {
    pub(super) fn new(width: f64, height: f64) -> Item {
        Item { width, height, ..Item::default() }
    }

    pub(super) fn top(&self) -> f64 {
        self.y - self.height / 2.0
    }

    pub(super) fn bottom(&self) -> f64 {
        self.y + self.height / 2.0
    }
}

/// An arrow on its way through items, from its first to its last.
pub(super) type Route = Vec<usize>;

/// Gives each item a place, and adds items where routes go through layers. Returns width and height.
pub(super) fn arrange(items: &mut Vec<Item>, routes: &mut [Route]) -> [f64; 2] {
    assign_layers(items, routes);
    let links = pass_through_layers(items, routes);
    let depth = items.iter().map(|item| item.layer + 1).max().unwrap_or(0);
    let mut layers: Vec<Vec<usize>> = vec![Vec::new(); depth];
    for (at, item) in items.iter().enumerate() {
        layers[item.layer].push(at);
    }
    let neighbours =
        [neighbours(items.len(), &links, false), neighbours(items.len(), &links, true)];
    for layer in &layers {
        place(items, layer, |item, _| item as f64);
    }
    for sweep in 0..2 * SWEEPS {
        let down = sweep % 2 == 0;
        let near = &neighbours[usize::from(!down)];
        let along: Vec<usize> =
            if down { (0..depth).collect() } else { (0..depth).rev().collect() };
        for at in along {
            let wish =
                |item: usize, items: &[Item]| mean(items, &near[item]).unwrap_or(items[item].x);
            // First the order, then, when that is settled, the places alone.
            if sweep < SWEEPS {
                let wishes: Vec<f64> = layers[at].iter().map(|item| wish(*item, items)).collect();
                let mut order: Vec<usize> = (0..wishes.len()).collect();
                order.sort_by(|a, b| wishes[*a].total_cmp(&wishes[*b]));
                layers[at] = order.into_iter().map(|old| layers[at][old]).collect();
            }
            place(items, &layers[at], wish);
        }
    }
    let mut y = 0.0;
    for layer in &layers {
        let height = layer.iter().map(|at| items[*at].height).fold(0.0, f64::max);
        for &at in layer {
            items[at].y = y + height / 2.0;
        }
        y += height + BETWEEN_LAYERS;
    }
    let left = items.iter().map(|item| item.x - item.width / 2.0).fold(f64::INFINITY, f64::min);
    for item in items.iter_mut() {
        item.x -= left;
    }
    let right = items.iter().map(|item| item.x + item.width / 2.0).fold(0.0, f64::max);
    [right, (y - BETWEEN_LAYERS).max(0.0)]
}

/// Puts each item below those that lead to it, where no circle prevents that.
fn assign_layers(items: &mut [Item], routes: &[Route]) {
    let mut after = vec![Vec::new(); items.len()];
    let mut waiting = vec![0_usize; items.len()];
    for pair in routes.iter().flat_map(|route| route.windows(2)) {
        after[pair[0]].push(pair[1]);
        waiting[pair[1]] += 1;
    }
    let mut ready: Vec<usize> = (0..items.len()).filter(|at| waiting[*at] == 0).collect();
    let mut done = vec![false; items.len()];
    let mut order = Vec::with_capacity(items.len());
    let mut rest = 0..items.len();
    // In a circle, the first of the items that are left goes first.
    while let Some(next) = ready.pop().or_else(|| rest.find(|at| !done[*at])) {
        if std::mem::replace(&mut done[next], true) {
            continue;
        }
        order.push(next);
        for &to in &after[next] {
            waiting[to] -= 1;
            let below = items[next].layer + 1;
            if !done[to] {
                items[to].layer = items[to].layer.max(below);
                if waiting[to] == 0 {
                    ready.push(to);
                }
            }
        }
    }
    // What nothing leads to stands just above what it leads to.
    let mut has_before = vec![false; items.len()];
    after.iter().flatten().for_each(|to| has_before[*to] = true);
    for at in order.into_iter().filter(|at| !has_before[*at]) {
        let nearest = after[at].iter().map(|to| items[*to].layer).min();
        items[at].layer = nearest.map_or(0, |layer| layer.saturating_sub(1));
    }
}

/// Adds an item where a route crosses a layer; returns the neighbours in adjacent layers.
fn pass_through_layers(items: &mut Vec<Item>, routes: &mut [Route]) -> Vec<[usize; 2]> {
    let mut links = Vec::new();
    for route in routes {
        let mut whole = vec![route[0]];
        for pair in route.windows(2) {
            let [from, to] = [items[pair[0]].layer, items[pair[1]].layer];
            let between = from.min(to) + 1..from.max(to);
            let crossed: Vec<usize> =
                if from < to { between.collect() } else { between.rev().collect() };
            for layer in crossed {
                whole.push(items.len());
                items.push(Item { width: 4.0, layer, ..Item::default() });
            }
            whole.push(pair[1]);
        }
        links.extend(whole.windows(2).map(|pair| {
            match items[pair[0]].layer < items[pair[1]].layer {
                true => [pair[0], pair[1]],
                false => [pair[1], pair[0]],
            }
        }));
        *route = whole;
    }
    links
}

fn neighbours(items: usize, links: &[[usize; 2]], below: bool) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new(); items];
    for [upper, lower] in links {
        if below {
            all[*upper].push(*lower);
        } else {
            all[*lower].push(*upper);
        }
    }
    all
}

fn mean(items: &[Item], of: &[usize]) -> Option<f64> {
    let sum: f64 = of.iter().map(|at| items[*at].x).sum();
    (!of.is_empty()).then(|| sum / of.len() as f64)
}

/// Moves the items of a layer as near to their wishes as their order and widths allow: a regression
/// whose result doesn't decrease, by pooling neighbours that want to pass each other.
fn place(items: &mut [Item], layer: &[usize], wish: impl Fn(usize, &[Item]) -> f64) {
    // Each pool with its mean and size; `start` is an item's distance from the layer's left.
    let mut pools: Vec<(f64, usize)> = Vec::new();
    let mut starts = Vec::with_capacity(layer.len());
    let mut start = 0.0;
    for &at in layer {
        let half = items[at].width / 2.0;
        start += half;
        starts.push(start);
        let mut pool = (wish(at, items) - start, 1);
        while let Some(&(before, size)) = pools.last().filter(|last| last.0 > pool.0) {
            pools.pop();
            let both = size + pool.1;
            pool = ((before * size as f64 + pool.0 * pool.1 as f64) / both as f64, both);
        }
        pools.push(pool);
        start += half + BETWEEN;
    }
    let shifts = pools.into_iter().flat_map(|(shift, size)| std::iter::repeat_n(shift, size));
    for ((at, start), shift) in layer.iter().zip(starts).zip(shifts) {
        items[*at].x = start + shift;
    }
}
