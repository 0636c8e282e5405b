//! Formatting of numbers.

/// Formats nanoseconds with a suitable unit: `812 ns`, `4.20 us`, `1.235 s`.
pub(super) fn time(nanoseconds: u64) -> String {
    let ns = nanoseconds as f64;
    match nanoseconds {
        0..1_000 => format!("{nanoseconds} ns"),
        1_000..1_000_000 => format!("{:.2} us", ns / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns / 1e6),
        _ => format!("{:.3} s", ns / 1e9),
    }
}

/// Formats bytes with a suitable unit: `96 B`, `1.50 KiB`.
pub(super) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut size = bytes as f64 / 1024.0;
    let mut unit = 0;
    // A number that would print as 1024.00 takes the next unit.
    while size >= 1023.995 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{size:.2} {}", UNITS[unit])
}

/// Formats a count with thousands separators: `1,234,567`.
pub(super) fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_read_well() {
        let times = [0, 999, 1_000, 12_345, 999_999, 1_500_000, 2_000_000_000].map(super::time);
        let expected =
            ["0 ns", "999 ns", "1.00 us", "12.35 us", "1000.00 us", "1.50 ms", "2.000 s"];
        assert_eq!(times.each_ref().map(String::as_str), expected);
        let sizes = [0, 1023, 1024, 1536, (1 << 20) - 1, 5 << 30].map(super::bytes);
        let expected = ["0 B", "1023 B", "1.00 KiB", "1.50 KiB", "1.00 MiB", "5.00 GiB"];
        assert_eq!(sizes.each_ref().map(String::as_str), expected);
        let counts = [0, 999, 1000, 1_234_567].map(super::count);
        assert_eq!(counts.each_ref().map(String::as_str), ["0", "999", "1,000", "1,234,567"]);
    }
}
