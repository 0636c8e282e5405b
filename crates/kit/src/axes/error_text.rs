//! The texts of a table's errors.

use super::space::{Axes, Coverage, Space};

/// The number of covered points that a message lists.
const MAX_LISTED: usize = 6;

/// The message for a point outside the coverage; it lists the covered points that differ on the fewest
/// axes.
pub(super) fn uncovered<S: Axes>(table: &str, point: S, coverage: &Coverage<S>) -> String {
    let wanted = point.labels();
    let mut nearest: Vec<Vec<&'static str>> = Vec::new();
    let mut distance = usize::MAX;
    for covered in coverage.points() {
        let labels = covered.labels();
        let differs = labels.iter().zip(&wanted).filter(|(a, b)| a != b).count();
        if differs < distance {
            distance = differs;
            nearest.clear();
        }
        if differs == distance {
            nearest.push(labels);
        }
    }
    let mut text = format!("{table}: no kernel at {}", Space::<S>::describe(point));
    if nearest.is_empty() {
        text.push_str("; the table covers nothing");
        return text;
    }
    let axes = if distance == 1 { "axis differs" } else { "axes differ" };
    text.push_str(&format!("; nearest covered, where {distance} {axes}: "));
    let listed: Vec<_> = nearest
        .iter()
        .take(MAX_LISTED)
        .map(|labels| {
            let changes = S::NAMES.iter().zip(labels).zip(&wanted).filter(|((_, to), of)| to != of);
            let changes: Vec<_> = changes.map(|((name, to), _)| format!("{name}={to}")).collect();
            changes.join(", ")
        })
        .collect();
    text.push_str(&listed.join("; "));
    if nearest.len() > MAX_LISTED {
        text.push_str(&format!("; and {} more", nearest.len() - MAX_LISTED));
    }
    text
}

/// The message for two bodies that cover a point equally well.
pub(super) fn tie<S: Axes>(table: &str, point: S, bodies: [&String; 2], count: usize) -> String {
    let more = match count {
        1 => String::new(),
        2 => " and 1 more point".to_owned(),
        _ => format!(" and {} more points", count - 1),
    };
    format!(
        "{table}: the bodies {} and {} pin equally many axes at {}{more}; cover it by one of them, \
         or by a third that pins more",
        bodies[0],
        bodies[1],
        Space::<S>::describe(point),
    )
}
