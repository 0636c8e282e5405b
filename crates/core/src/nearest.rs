//! Suggestions for misspelled names.

/// Names above this length get no suggestion: they are rarely misspelled, and the edit distance
/// takes quadratic time on an error path that any input reaches.
const LONGEST: usize = 128;

/// The most suggestions in an error message.
const OFFERED: usize = 3;

/// Returns up to three `candidates` close to `name`, the closest first; ties keep their order.
///
/// A candidate is close if its edit distance is at most one edit (insertion, deletion, replacement,
/// transposition) per three characters of the longer name. Case only breaks ties. A candidate equal
/// to `name` is left out.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let Some(wanted) = lowercase_chars(name) else { return Vec::new() };
    let mut close: Vec<(usize, &'a str)> = Vec::new();
    for candidate in candidates {
        if candidate == name || close.iter().any(|&(_, known)| known == candidate) {
            continue;
        }
        let Some(letters) = lowercase_chars(candidate) else { continue };
        let longer = wanted.len().max(letters.len());
        let limit = (longer / 3).max(1);
        if longer < 2 || wanted.len().abs_diff(letters.len()) > limit {
            continue;
        }
        let distance = edit_distance(&wanted, &letters);
        if distance <= limit {
            close.push((distance, candidate));
        }
    }
    close.sort_by_key(|&(distance, _)| distance);
    close.into_iter().take(OFFERED).map(|(_, candidate)| candidate).collect()
}

/// Returns the end of an error message that suggests the [`nearest`] names: `; did you mean 'a' or
/// 'b'?`, or an empty string.
///
/// ```
/// let end = keyfold_core::did_you_mean("flaot32", ["float32", "int32"]);
/// assert_eq!(end, "; did you mean 'float32'?");
/// ```
pub fn did_you_mean<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> =
        nearest(name, candidates).iter().map(|near| format!("'{near}'")).collect();
    match quoted.as_slice() {
        [] => String::new(),
        [only] => format!("; did you mean {only}?"),
        [first @ .., last] => format!("; did you mean {} or {last}?", first.join(", ")),
    }
}

/// Returns the lower-case characters of `name`; `None` above [`LONGEST`].
fn lowercase_chars(name: &str) -> Option<Vec<char>> {
    let letters: Vec<char> = name.chars().flat_map(char::to_lowercase).take(LONGEST + 1).collect();
    (letters.len() <= LONGEST).then_some(letters)
}

/// Returns the optimal string alignment distance: the fewest edits from `a` to `b` in which no
/// substring is edited twice. Dynamic programming over three rows of the table.
fn edit_distance(a: &[char], b: &[char]) -> usize {
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
        edit_distance(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>())
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
