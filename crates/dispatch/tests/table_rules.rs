//! The rules of the computed table against a model that is written from the design's text, without
//! the engine's code: every subset of eight registration keys, in shuffled orders.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use keyfold_core::ErrorKind;
use keyfold_dispatch::{DispatchKeySet, Handle, Kernel, Operator, Override, RegistrationKey, Rule};
use support::{D, Random, Val, list, said, says};

const REGISTRATION_KEYS: [&str; 8] = [
    "CPU",
    "CUDA",
    "Meta",
    "AutogradCPU",
    "AutogradCUDA",
    "Autograd",
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
];
const BACKENDS: [&str; 3] = ["CPU", "CUDA", "Meta"];
/// Functionality keys, highest first; `true` if calls may skip them.
const FUNCTIONALITIES: [(&str, bool); 9] = [
    ("Tracer", true),
    ("Profiler", true),
    ("Pipeline", true),
    ("Vmap", false),
    ("Autograd", true),
    ("Autocast", true),
    ("Nested", false),
    ("Quantized", false),
    ("Sparse", false),
];

/// The registration keys of an operator's kernels and of the fallbacks.
#[derive(Clone, Default)]
struct Model {
    own: BTreeSet<&'static str>,
    fallbacks: BTreeSet<&'static str>,
}

impl Model {
    /// Returns the winner at a functionality ("" for none) over a backend: its registration key and
    /// the number of the design's rule (1 to 6).
    fn winner(&self, functionality: &str, backend: &str) -> Option<(String, u8)> {
        let runtime = format!("{functionality}{backend}");
        let has = |key: &str| self.own.contains(key);
        let is_backend = functionality.is_empty();
        let is_autograd = functionality == "Autograd";
        // 1. A kernel registered at exactly this key.
        if has(&runtime) {
            return Some((runtime, 1));
        }
        // 2. For functionality keys without an alias: the kernel registered without a backend.
        if !is_backend && !is_autograd && has(functionality) {
            return Some((functionality.to_owned(), 2));
        }
        // 3. CompositeExplicitAutograd, where the key is a backend.
        if is_backend && has("CompositeExplicitAutograd") {
            return Some(("CompositeExplicitAutograd".to_owned(), 3));
        }
        // 4. CompositeImplicitAutograd, at a backend or an autograd key, if there is neither a
        //    direct kernel for that autograd key's backend nor an explicit composite.
        let stands_back = is_autograd && (has(backend) || has("CompositeExplicitAutograd"));
        if (is_backend || is_autograd) && !stands_back && has("CompositeImplicitAutograd") {
            return Some(("CompositeImplicitAutograd".to_owned(), 4));
        }
        // 5. The Autograd alias, where the key is an autograd key.
        if is_autograd && has("Autograd") {
            return Some(("Autograd".to_owned(), 5));
        }
        // 6. The key's fallback: for exactly this key, or for the functionality.
        for key in [runtime.as_str(), functionality] {
            if self.fallbacks.contains(key) {
                return Some((key.to_owned(), 6));
            }
        }
        None
    }

    fn table(&self) -> BTreeMap<String, (String, u8)> {
        let mut table = BTreeMap::new();
        for backend in BACKENDS {
            for functionality in [""].into_iter().chain(FUNCTIONALITIES.map(|(name, _)| name)) {
                if let Some(entry) = self.winner(functionality, backend) {
                    table.insert(format!("{functionality}{backend}"), entry);
                }
            }
        }
        table
    }

    /// Returns the registration key of the kernel that a call with these keys runs.
    fn answer(&self, set: &[&str]) -> Option<String> {
        let backend = BACKENDS.into_iter().rev().find(|b| set.contains(b)).unwrap_or("CPU");
        for (functionality, skippable) in FUNCTIONALITIES {
            if set.contains(&functionality) {
                match self.winner(functionality, backend) {
                    Some((at, _)) => return Some(at),
                    None if skippable => {}
                    None => return None,
                }
            }
        }
        if !set.contains(&backend) {
            return None;
        }
        Some(self.winner("", backend)?.0)
    }
}

fn number(rule: Rule) -> u8 {
    match rule {
        Rule::Direct => 1,
        Rule::Functionality => 2,
        Rule::CompositeExplicitAutograd => 3,
        Rule::CompositeImplicitAutograd => 4,
        Rule::AutogradAlias => 5,
        Rule::Fallback => 6,
    }
}

/// Returns the operator's table in the model's terms. Each kernel is named after its registration
/// key.
fn table(operator: &Operator<Val>, fallbacks: bool) -> BTreeMap<String, (String, u8)> {
    let entries = operator.entries(fallbacks);
    entries
        .into_iter()
        .map(|entry| {
            assert_eq!(entry.kernel.provenance().name, entry.registered_at.to_string());
            (entry.runtime_key, (entry.registered_at.to_string(), number(entry.rule)))
        })
        .collect()
}

fn key(name: &str) -> RegistrationKey {
    name.parse().unwrap()
}

fn set(names: &[&str]) -> DispatchKeySet {
    names.iter().fold(DispatchKeySet::EMPTY, |set, name| set | DispatchKeySet::parse(name).unwrap())
}

fn subset(bits: usize) -> Vec<&'static str> {
    (0..8).filter(|i| bits & (1 << i) != 0).map(|i| REGISTRATION_KEYS[i]).collect()
}

#[test]
fn every_subset_in_shuffled_orders_matches_the_model_and_ends_empty() {
    let mut random = Random(20260917);
    let mut steps = 0;
    for bits in 0..256 {
        let d = D::new();
        d.define("op(Tensor[] inputs) -> Tensor").unwrap();
        let operator = d.operator("op").unwrap();
        let mut keys = subset(bits);
        for _ in 0..4 {
            let mut model = Model::default();
            let mut handles: Vec<(&str, Handle<Val>)> = Vec::new();
            random.shuffle(&mut keys);
            for name in &keys {
                let kernel = says(name);
                let handle = d.register_with(&operator, key(name), kernel, Override::Error);
                handles.push((name, handle.unwrap()));
                model.own.insert(name);
                assert_eq!(table(&operator, false), model.table(), "{keys:?} up to {name}");
                steps += 1;
            }
            random.shuffle(&mut handles);
            for (name, handle) in &handles {
                assert!(handle.remove());
                model.own.remove(name);
                assert_eq!(table(&operator, false), model.table(), "{keys:?} less {name}");
                steps += 1;
            }
            assert!(table(&operator, true).is_empty());
            assert_eq!(operator.kernel_count(), 0);
        }
    }
    assert_eq!(steps, 256 * 4 * 4 * 2, "four keys on average, four orders, there and back");
}

#[test]
fn calls_run_the_kernel_that_the_model_says() {
    let sets: [&[&str]; 12] = [
        &["CPU"],
        &["CUDA"],
        &["Meta"],
        &["Autograd", "CPU"],
        &["Autograd", "CUDA"],
        &["Autograd", "Meta"],
        &["CPU", "CUDA"],
        &["Autograd", "CPU", "CUDA"],
        &["Autograd"],
        &["Tracer", "Autograd", "CPU"],
        &["Tracer", "Autocast", "Meta"],
        &["Sparse", "Autograd", "CPU"],
    ];
    for bits in 0..256 {
        let d = D::new();
        let mut model = Model::default();
        for name in subset(bits) {
            d.register("op", key(name), says(name)).unwrap();
            model.own.insert(name);
        }
        let Ok(operator) = d.operator("op") else { continue };
        for names in sets {
            let answer = operator.redispatch(set(names), &[list(set(names)).r()]);
            match model.answer(names) {
                Some(at) => assert_eq!(said(answer.unwrap()), at, "{names:?} of {bits:08b}"),
                None => {
                    let error = answer.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::MissingKernel, "{names:?}: {error}");
                }
            }
        }
    }
}

#[test]
fn the_designs_table() {
    // Columns CPU, CUDA, AutogradCPU, AutogradCUDA.
    let rows = [
        ("I", "I I I I"),
        ("I CPU", "cpu I - I"),
        ("A", "- - A A"),
        ("I CPU A", "cpu I A I"),
        ("E CPU", "cpu E - -"),
        ("E CPU A", "cpu E A A"),
        ("E I CPU A", "cpu E A A"),
        ("I CPU A AutogradCPU", "cpu I acpu I"),
    ];
    for (registered, expected) in rows {
        let d = D::new();
        for short in registered.split(' ') {
            let (at, label) = match short {
                "I" => ("CompositeImplicitAutograd", "I"),
                "E" => ("CompositeExplicitAutograd", "E"),
                "A" => ("Autograd", "A"),
                "CPU" => ("CPU", "cpu"),
                other => (other, "acpu"),
            };
            d.register("op", key(at), says(label)).unwrap();
        }
        let found: BTreeMap<_, _> = d
            .operator("op")
            .unwrap()
            .entries(false)
            .into_iter()
            .map(|entry| (entry.runtime_key, entry.kernel.provenance().name.clone()))
            .collect();
        let columns = ["CPU", "CUDA", "AutogradCPU", "AutogradCUDA"]
            .map(|name| found.get(name).map_or("-", String::as_str));
        assert_eq!(columns.join(" "), expected, "{registered}");
    }
}

#[test]
fn functionality_kernels_and_fallbacks_match_the_model() {
    const OWN: [&str; 8] = [
        "CPU",
        "Autograd",
        "Autocast",
        "AutocastCUDA",
        "Sparse",
        "Tracer",
        "CompositeImplicitAutograd",
        "SparseCPU",
    ];
    const FALLBACKS: [&str; 6] =
        ["Autograd", "AutogradCUDA", "Sparse", "Profiler", "CUDA", "VmapMeta"];
    let mut random = Random(7);
    for _ in 0..200 {
        let d = D::new();
        d.define("op(Tensor[] inputs) -> Tensor").unwrap();
        let operator = d.operator("op").unwrap();
        let mut model = Model::default();
        let mut handles = Vec::new();
        for _ in 0..24 {
            let own = random.below(2) == 0;
            let name = if own { OWN[random.below(8)] } else { FALLBACKS[random.below(6)] };
            let taken = if own { &mut model.own } else { &mut model.fallbacks };
            if taken.insert(name) {
                let handle = if own {
                    d.register("op", key(name), says(name))
                } else {
                    d.fallback(key(name), says(name), Override::Error)
                };
                handles.push((own, name, handle.unwrap()));
            } else {
                taken.remove(name);
                let at = handles.iter().position(|(o, n, _)| (*o, *n) == (own, name)).unwrap();
                assert!(handles.remove(at).2.remove());
            }
            assert_eq!(table(&operator, true), model.table());
            let without = table(&operator, false);
            assert!(without.values().all(|(_, rule)| *rule != 6));
            let both = operator.redispatch(set(&["Autograd", "CUDA"]), &[list(set(&["CUDA"])).r()]);
            assert_eq!(both.ok().map(said), model.answer(&["Autograd", "CUDA"]));
        }
        for (_, _, handle) in handles {
            assert!(handle.remove());
        }
        assert!(table(&operator, true).is_empty());
    }
}

#[test]
fn a_fallthrough_passes_the_key_by_and_covers_a_fallback() {
    let d = D::new();
    d.register("op", key("CPU"), says("cpu")).unwrap();
    let fallback = d.fallback(key("Autograd"), says("fallback"), Override::Error).unwrap();
    let both = set(&["Autograd", "CPU"]);
    let call = || said(d.redispatch("op", both, &[list(both).r()]).unwrap());
    assert_eq!(call(), "fallback");
    let through = d.register("op", key("Autograd"), Kernel::fallthrough()).unwrap();
    assert_eq!(call(), "cpu");
    assert!(!d.has_kernel("op", key("Autograd")), "a fallthrough is no kernel");
    let operator = d.operator("op").unwrap();
    let entries = operator.entries(false);
    let entry = entries.iter().find(|entry| entry.runtime_key == "AutogradCPU").unwrap();
    assert!(entry.kernel.is_fallthrough());
    assert_eq!(entry.rule, Rule::AutogradAlias);
    assert!(through.remove());
    assert_eq!(call(), "fallback");
    assert!(fallback.remove());
    assert_eq!(call(), "cpu");
}

#[test]
fn a_fallthrough_fallback_lets_operators_have_their_own_kernel() {
    let d = D::new();
    d.register("plain", key("CPU"), says("cpu")).unwrap();
    d.register("traced", key("CPU"), says("cpu")).unwrap();
    d.register("traced", key("Tracer"), says("tracer")).unwrap();
    d.fallback(key("Tracer"), Kernel::fallthrough(), Override::Error).unwrap();
    let keys = set(&["Tracer", "CPU"]);
    assert_eq!(said(d.call("plain", &[list(keys).r()]).unwrap()), "cpu");
    assert_eq!(said(d.call("traced", &[list(keys).r()]).unwrap()), "tracer");
}

#[test]
fn a_shadowed_kernel_comes_back_in_the_table() {
    let d = D::new();
    let first = d.register("op", key("CPU"), says("CPU").named("first")).unwrap();
    let operator = d.operator("op").unwrap();
    let second = d.register_with(
        &operator,
        key("CPU"),
        Kernel::boxed(|_, _| Ok(Val::Nil)).named("second"),
        Override::Shadow,
    );
    let second = second.unwrap();
    let name = || operator.entries(false)[0].kernel.provenance().name.clone();
    assert_eq!(name(), "second");
    let stack = operator.shadow_stack(key("CPU"));
    assert_eq!(stack.len(), 2);
    assert!(first.is_active() && second.is_active());
    assert!(second.remove());
    assert_eq!(name(), "first");
    assert!(!second.remove(), "removed already");
    // Removing a kernel from the middle of the stack has no effect on calls.
    assert!(first.remove());
    assert!(operator.entries(false).is_empty());
}
