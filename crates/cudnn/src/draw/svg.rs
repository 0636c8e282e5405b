//! A graph as SVG.

use std::collections::HashMap;
use std::fmt::Write;

use super::layout::{Item, arrange};
use super::picture::{Kind, Picture, clean};
use crate::GraphSpec;

/// The height of a line of text.
const LINE: f64 = 15.0;
/// The width of a letter of the fixed-width font, at 12 and at 10 pixels.
const LETTER: f64 = 7.3;
const SMALL_LETTER: f64 = 6.1;
const MARGIN: f64 = 12.0;

fn width_of(lines: &[String]) -> f64 {
    lines.iter().map(|line| clean(line).chars().count()).max().unwrap_or(0) as f64 * LETTER
}

impl GraphSpec {
    /// Returns the graph as a picture in SVG, with the boxes of [`GraphSpec::to_dot`], laid out here.
    ///
    /// It has no script and nothing from elsewhere.
    pub fn to_svg(&self) -> String {
        let picture = Picture::of(self);
        let mut items: Vec<Item> = picture
            .nodes
            .iter()
            .map(|node| {
                let height = node.lines.len() as f64 * LINE + 12.0;
                Item::new(width_of(&node.lines) + 22.0, height)
            })
            .collect();
        widen_for_ports(&mut items, &picture);
        let mut routes = Vec::new();
        let mut texts = Vec::new();
        for arrow in &picture.arrows {
            let mut route = vec![arrow.from, arrow.to];
            if !arrow.lines.is_empty() {
                route.insert(1, items.len());
                texts.push((items.len(), &arrow.lines));
                let height = arrow.lines.len() as f64 * LINE + 4.0;
                items.push(Item::new(width_of(&arrow.lines) + 12.0, height));
            }
            routes.push(route);
        }
        let [width, height] = arrange(&mut items, &mut routes);
        let [width, height] = [width + 2.0 * MARGIN, height + 2.0 * MARGIN];

        let title = if self.name.is_empty() { "graph" } else { &self.name };
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" \
             font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" \
             font-size=\"12\" text-anchor=\"middle\">\n<title>{}</title>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <g transform=\"translate({MARGIN} {MARGIN})\">\n",
            escaped(title)
        );
        // Writing to a String can't fail.
        let ends = spread(&items, &routes);
        for ((arrow, route), ends) in picture.arrows.iter().zip(&routes).zip(&ends) {
            let dashes = if arrow.is_dashed { " stroke-dasharray=\"5 4\"" } else { "" };
            let path = path(&items, route, *ends);
            let _ = writeln!(
                text,
                "<path d=\"{path}\" fill=\"none\" stroke=\"#78909c\" stroke-width=\"1.3\"{dashes}/>"
            );
            let upwards = items[route[0]].y > items[route[route.len() - 1]].y;
            for (at, port) in [(0, &arrow.written_at), (1, &arrow.read_at)] {
                let [x, y] = ends[at];
                let below = (at == 0) != upwards;
                if at == 1 {
                    let back = if below { 7.0 } else { -7.0 };
                    let _ = writeln!(
                        text,
                        "<path d=\"M{x:.1} {y:.1}l-4 {back}h8z\" fill=\"#78909c\"/>"
                    );
                }
                if !port.is_empty() {
                    let [x, y] = [x + 6.0, if below { y + 12.0 } else { y - 9.0 }];
                    let port = escaped(port);
                    // A line that it lies on is painted over first.
                    for style in [" stroke=\"#ffffff\" stroke-width=\"3\"", ""] {
                        let _ = writeln!(
                            text,
                            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"10\" fill=\"#546e7a\" \
                             text-anchor=\"start\"{style}>{port}</text>"
                        );
                    }
                }
            }
        }
        for (item, lines) in texts {
            boxed(&mut text, &items[item], lines, None);
        }
        for (item, node) in items.iter().zip(&picture.nodes) {
            boxed(&mut text, item, &node.lines, Some(node.kind));
        }
        text + "</g>\n</svg>\n"
    }
}

/// Gives operations the width that the names of their ports need.
fn widen_for_ports(items: &mut [Item], picture: &Picture) {
    let mut needed: HashMap<(usize, bool), (f64, f64)> = HashMap::new();
    for arrow in &picture.arrows {
        for (node, port, reads) in
            [(arrow.from, &arrow.written_at, false), (arrow.to, &arrow.read_at, true)]
        {
            let (count, widest) = needed.entry((node, reads)).or_default();
            *count += 1.0;
            *widest = widest.max(port.chars().count() as f64 * SMALL_LETTER + 14.0);
        }
    }
    for ((node, _), (count, widest)) in needed {
        // n arrows divide a side into n + 1 parts.
        items[node].width = items[node].width.max((count + 1.0) * widest.min(90.0));
    }
}

/// An end of a route at the side of a box.
struct End {
    /// Where the route comes from or goes to.
    beside: f64,
    route: usize,
    /// 0 where it begins, 1 where it ends.
    which: usize,
}

/// The ends of each route: side by side at each box, in the order of where they come from or go to.
fn spread(items: &[Item], routes: &[Vec<usize>]) -> Vec<[[f64; 2]; 2]> {
    let mut sides: HashMap<(usize, bool), Vec<End>> = HashMap::new();
    for (at, route) in routes.iter().enumerate() {
        let last = route.len() - 1;
        let ends = [[route[0], route[1]], [route[last], route[last - 1]]];
        for (which, [own, other]) in ends.into_iter().enumerate() {
            let below = items[other].y > items[own].y;
            let end = End { beside: items[other].x, route: at, which };
            sides.entry((own, below)).or_default().push(end);
        }
    }
    let mut ends = vec![[[0.0; 2]; 2]; routes.len()];
    for ((own, below), mut there) in sides {
        there.sort_by(|a, b| a.beside.total_cmp(&b.beside).then(a.route.cmp(&b.route)));
        let item = &items[own];
        let step = item.width / (there.len() + 1) as f64;
        for (place, end) in there.into_iter().enumerate() {
            let x = item.x - item.width / 2.0 + step * (place + 1) as f64;
            ends[end.route][end.which] = [x, if below { item.bottom() } else { item.top() }];
        }
    }
    ends
}

/// The curve of a route: upright where it leaves, arrives and goes through a layer.
fn path(items: &[Item], route: &[usize], [start, end]: [[f64; 2]; 2]) -> String {
    let down = end[1] > start[1];
    let mut path = format!("M{:.1} {:.1}", start[0], start[1]);
    let mut from = start;
    let between = route[1..route.len() - 1].iter().map(|at| &items[*at]);
    let stops = between.map(|item| {
        let [near, far] = [item.top(), item.bottom()];
        let [near, far] = if down { [near, far] } else { [far, near] };
        ([item.x, near], [item.x, far])
    });
    for (to, next) in stops.chain([(end, end)]) {
        let middle = (from[1] + to[1]) / 2.0;
        // Writing to a String can't fail.
        let _ = write!(
            path,
            "C{:.1} {middle:.1} {:.1} {middle:.1} {:.1} {:.1}",
            from[0], to[0], to[0], to[1]
        );
        if next != to {
            let _ = write!(path, "L{:.1} {:.1}", next[0], next[1]);
        }
        from = next;
    }
    path
}

/// Lines of text in the middle of an item, in the box of a kind, or on paper.
fn boxed(text: &mut String, item: &Item, lines: &[String], kind: Option<Kind>) {
    let [fill, stroke] = kind.map_or(["#ffffff", "none"], Kind::colours);
    let dashes = if kind.is_some_and(Kind::is_dashed) { " stroke-dasharray=\"4 3\"" } else { "" };
    let round = if kind == Some(Kind::Operation) { 4.0 } else { 12.0 };
    // Writing to a String can't fail.
    let _ = writeln!(
        text,
        "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"{round}\" \
         fill=\"{fill}\" stroke=\"{stroke}\" stroke-width=\"1.2\"{dashes}/>",
        item.x - item.width / 2.0,
        item.top(),
        item.width,
        item.height
    );
    let first = item.y - lines.len() as f64 * LINE / 2.0 + LINE - 3.5;
    for (at, line) in lines.iter().enumerate() {
        let style = match (at, kind) {
            (0, Some(_)) => " font-weight=\"600\" fill=\"#263238\"",
            _ => " fill=\"#455a64\"",
        };
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\"{style}>{}</text>",
            item.x,
            first + at as f64 * LINE,
            escaped(&clean(line))
        );
    }
}

/// Text in XML, which has no control characters and two code points that are none.
fn escaped(text: &str) -> String {
    let text: String = text
        .chars()
        .map(|c| if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') { ' ' } else { c })
        .collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
