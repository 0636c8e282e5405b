//! Random state through serde: what is saved is restored, and what isn't a state is refused.

use keyfold_core::Device;
use keyfold_tensor::device::random::{self, State};

#[test]
fn a_state_is_saved_and_restored() {
    let state = State { device: Device::cuda(3), seed: u64::MAX, offset: 1 << 60 };
    let text = serde_json::to_string(&state).unwrap();
    assert_eq!(
        text,
        r#"{"device":"cuda:3","seed":18446744073709551615,"offset":1152921504606846976}"#
    );
    assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);
    let in_order = r#"["cuda:3", 18446744073709551615, 1152921504606846976]"#;
    assert_eq!(serde_json::from_str::<State>(in_order).unwrap(), state);

    random::manual_seed(7).unwrap();
    random::take(Device::CPU, 3).unwrap();
    let saved = serde_json::to_string(&random::state(Device::CPU).unwrap()).unwrap();
    let next = random::take(Device::CPU, 1).unwrap();
    random::set_state(serde_json::from_str(&saved).unwrap()).unwrap();
    assert_eq!(random::take(Device::CPU, 1).unwrap(), next);
}

#[test]
fn what_is_not_a_state_is_refused() {
    let cases = [
        (r#"{"device":"cpu","seed":1}"#, "missing field `offset`"),
        (r#"{"device":"cpu","seed":1,"offset":0,"place":2}"#, "unknown field `place`"),
        (r#"{"device":"cpu","seed":1,"offset":0,"seed":2}"#, "field 'seed' is there twice"),
        (r#"{"device":"cpu","seed":-1,"offset":0}"#, "invalid value: integer `-1`"),
        (r#"{"device":"abacus","seed":1,"offset":0}"#, "abacus"),
        (r#"["cpu", 1]"#, "invalid length 2, expected a random state"),
        ("7", "expected a random state: a device's name, a seed and an offset"),
    ];
    for (text, message) in cases {
        let error = serde_json::from_str::<State>(text).unwrap_err().to_string();
        assert!(error.contains(message), "{text}: {error}");
    }
}
