//! Checks a file's ELF header before it is loaded: for a library of another machine the loader only
//! says that it can't be found.

use std::io::Read;
use std::path::Path;

/// The ELF machine numbers with names.
const MACHINES: [(u16, &str); 8] = [
    (3, "x86"),
    (20, "powerpc"),
    (21, "powerpc64"),
    (22, "s390x"),
    (40, "arm"),
    (62, "x86_64"),
    (183, "aarch64"),
    (243, "riscv64"),
];

/// Returns the reason why the file can't be loaded here; `None` if the loader may try.
pub(super) fn refusal(path: &Path) -> Option<String> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let mut header = [0; 20];
    let mut file = std::fs::File::open(path).ok()?;
    if path.is_dir() {
        return Some("it is a folder".to_owned());
    }
    match file.read_exact(&mut header) {
        Ok(()) => refusal_of(&header, std::env::consts::ARCH),
        Err(_) => Some("it is too short for a shared library".to_owned()),
    }
}

/// As [`refusal`], for an ELF file's first bytes.
fn refusal_of(header: &[u8; 20], here: &str) -> Option<String> {
    if header[..4] != *b"\x7fELF" {
        return Some("it is not a shared library (no ELF header)".to_owned());
    }
    let pair = [header[18], header[19]];
    let big = header[5] == 2;
    let machine = if big { u16::from_be_bytes(pair) } else { u16::from_le_bytes(pair) };
    let expected = MACHINES.iter().find(|(_, name)| *name == here)?.0;
    if machine == expected {
        return None;
    }
    let built = match MACHINES.iter().find(|(number, _)| *number == machine) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("the machine of ELF number {machine}"),
    };
    Some(format!("it was built for {built}, and this process runs on {here}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(machine: u16, order: u8) -> [u8; 20] {
        let mut header = [0; 20];
        header[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, order]);
        let bytes = if order == 2 { machine.to_be_bytes() } else { machine.to_le_bytes() };
        header[18..].copy_from_slice(&bytes);
        header
    }

    #[test]
    fn only_this_machines_libraries_reach_the_loader() {
        assert_eq!(refusal_of(&header(62, 1), "x86_64"), None);
        let said = |machine, order| refusal_of(&header(machine, order), "x86_64").unwrap();
        assert!(said(183, 1).contains("built for aarch64"));
        assert!(said(22, 2).contains("built for s390x"));
        assert!(said(999, 1).contains("ELF number 999"));
        assert!(refusal_of(&[0; 20], "x86_64").unwrap().contains("not a shared library"));
    }

    #[test]
    fn a_machine_without_a_number_here_is_left_to_the_loader() {
        assert_eq!(refusal_of(&header(258, 1), "loongarch64"), None);
    }
}
