//! Which known names an unknown one was probably meant to be.

/// Longer names are no typing mistakes, and comparing them would cost time on an error path that
/// anyone can reach with any text.
const LONGEST: usize = 128;

/// How many candidates an error message offers.
const OFFERED: usize = 3;

/// Up to three `candidates` that are close to `name`, the best first; equally close ones stay in
/// the order given.
///
/// Close means: at most one edit (insertion, deletion, replacement, swap of neighbours) per three
/// characters of the longer name. Case doesn't count, except to rank. A candidate equal to `name`
/// is no suggestion and is left out.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let Some(wanted) = folded(name) else { return Vec::new() };
    let mut close: Vec<(usize, &'a str)> = Vec::new();
    for candidate in candidates {
        if candidate == name || close.iter().any(|&(_, known)| known == candidate) {
            continue;
        }
        let Some(letters) = folded(candidate) else { continue };
        let longer = wanted.len().max(letters.len());
        let limit = (longer / 3).max(1);
        if longer < 2 || wanted.len().abs_diff(letters.len()) > limit {
            continue;
        }
        let distance = edits(&wanted, &letters);
        if distance <= limit {
            close.push((distance, candidate));
        }
    }
    close.sort_by_key(|&(distance, _)| distance);
    close.into_iter().take(OFFERED).map(|(_, candidate)| candidate).collect()
}

/// The end of an error message that offers the [`nearest`] names: `; did you mean 'a' or 'b'?`,
/// or nothing.
pub fn did_you_mean<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> =
        nearest(name, candidates).iter().map(|near| format!("'{near}'")).collect();
    match quoted.as_slice() {
        [] => String::new(),
        [only] => format!("; did you mean {only}?"),
        [first @ .., last] => format!("; did you mean {} or {last}?", first.join(", ")),
    }
}

/// The lower-case characters of `name`, or nothing if there are too many to compare.
fn folded(name: &str) -> Option<Vec<char>> {
    let letters: Vec<char> = name.chars().flat_map(char::to_lowercase).take(LONGEST + 1).collect();
    (letters.len() <= LONGEST).then_some(letters)
}

/// The optimal string alignment distance: edits that turn `a` into `b`, where no stretch is edited
/// twice. The textbook table, of which three rows are kept.
fn edits(a: &[char], b: &[char]) -> usize {
    let mut before_last: Vec<usize> = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    let mut row = last.clone();
    for i in 1..=a.len() {
        row[0] = i;
        for j in 1..=b.len() {
            let replace = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replace.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before_last[j - 2] + 1);
            }
        }
        std::mem::swap(&mut before_last, &mut last);
        std::mem::swap(&mut last, &mut row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distance(a: &str, b: &str) -> usize {
        edits(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>())
    }

    #[test]
    fn edits_counts_each_kind_of_edit_once() {
        let table = [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("abc", "abc", 0),
            ("abc", "abd", 1),
            ("abc", "acb", 1),
            ("abc", "abxc", 1),
            ("abc", "bc", 1),
            ("ca", "abc", 3),
            ("kitten", "sitting", 3),
        ];
        for (a, b, expected) in table {
            assert_eq!(distance(a, b), expected, "{a} to {b}");
            assert_eq!(distance(b, a), expected, "{b} to {a}");
        }
    }

    #[test]
    fn nearest_offers_the_best_first_and_at_most_three() {
        let known = ["alpha1", "alpha22", "beta", "alphas", "alpah"];
        assert_eq!(nearest("alpha", known), ["alpha1", "alphas", "alpah"]);
        assert_eq!(nearest("tensor", ["sensors", "Tensor"]), ["Tensor", "sensors"]);
        assert_eq!(nearest("alpha", ["alpha", "alphb", "alphb"]), ["alphb"]);
    }

    #[test]
    fn nearest_offers_nothing_for_names_far_off_short_or_endless() {
        assert!(nearest("quite_other", ["add", "mul"]).is_empty());
        assert!(nearest("x", ["y", "z"]).is_empty());
        assert!(nearest("", ["y", ""]).is_empty());
        let long = "a".repeat(1_000_000);
        assert!(nearest(&long, [&long[1..], "a"]).is_empty());
    }

    #[test]
    fn did_you_mean_reads_as_a_sentence() {
        assert_eq!(did_you_mean("dimm", ["dim"]), "; did you mean 'dim'?");
        let three = did_you_mean("size", ["sizes", "sine", "side"]);
        assert_eq!(three, "; did you mean 'sizes', 'sine' or 'side'?");
        assert_eq!(did_you_mean("size", ["other"]), "");
    }
}
