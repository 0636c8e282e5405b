//! The page about the kit has its symptoms, verdicts, modes and groups; each row has a case.

use keyfold_conformance::case::{CASES, Case, Change};
use keyfold_conformance::{Mode, Symptom, Verdict, groups};
use keyfold_core::{DType, Device};
use keyfold_ops::rows;

const PAGE: &str = include_str!("../../../docs/conformance.md");

#[test]
fn the_page_explains_what_a_report_says() {
    for symptom in Symptom::ALL {
        let row = format!("| {} | {} |\n", symptom.name(), symptom.means());
        assert!(PAGE.contains(&row), "docs/conformance.md lacks {row}");
    }
    for verdict in Verdict::ALL {
        assert!(PAGE.contains(&format!("\n| {} | ", verdict.name())), "{}", verdict.name());
    }
    for mode in Mode::ALL {
        assert!(PAGE.contains(&format!("| `--mode {}` | ", mode.name())), "{}", mode.name());
    }
    let families = keyfold_ops::families();
    for group in groups(Mode::Test) {
        let is_family = families.iter().any(|(family, _)| *family == group);
        assert!(is_family || PAGE.contains(&format!("`{group}`")), "{group}");
    }
}

/// The cases of a row are those that its samples, its inference and its model agree on.
#[test]
fn each_row_has_cases() {
    keyfold::init();
    let mut all = 0;
    for row in rows() {
        let cases = DType::ALL.map(|dtype| Case { row, dtype, number: 0, seed: 0 });
        let taken: Vec<Case> = cases.into_iter().filter(Case::is_taken).collect();
        // Any dtype can be first; a third of the variants is the fewest that a row has.
        assert!(!taken.is_empty(), "{} has no case", row.schema());
        let first = taken[0];
        let plans = (0..CASES).filter_map(|number| {
            Case { number, ..first }.plan(Device::CPU, &Change::default()).unwrap()
        });
        let plans = plans.count();
        assert!(plans > CASES / 3, "{} has {plans} cases of {CASES}", row.schema());
        all += taken.len();
    }
    assert!(all > 1800, "{all} operations");
}
