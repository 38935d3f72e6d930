//! The algorithms of `hash` and of checksums.

use super::program;

/// Packets, and the results that simple_switch 1.15.5 puts in front of them, in hexadecimal.
const PACKETS: [(&str, &str); 6] = [
    (
        "0000000000000000000000000000",
        "d1bb79c7d1bb79c7000000000000000000000000ffff0000000003f700000007a193b1c2a1a3",
    ),
    (
        "764dc7072051159a0f89f2c6dacae344bb311245",
        "c1af6d07c1af6d0784b784b7764dc7070f89f2c6925095ac000003ea00000007a46054d2e21e",
    ),
    (
        "fd6f84df9ad7c5b3d076ac0e8f53a7356c88913f20f6f72db022d2",
        "eaed574deaed574d44f144f1fd6f84dfd076ac0eb778bd45000003e900000007a8a06922e711",
    ),
    (
        "0b1f0abd80e998a35aba5ea0bd87",
        "25bb100e25bb100ead45ad450b1f0abd5aba5ea0e3371cd5000003f400000007fe578498fe67",
    ),
    (
        "99c1350d439e71897aa75fde3134a4aa72e05628",
        "68a0d0ec68a0d0ec7943794399c1350d7aa75fde2322c963000003f2000000073649e9b0a822",
    ),
    (
        "ac6fe68a733d1161a15d8eae2bb042d7958aedb1d594d6d112d34f",
        "6261149362611493099e099eac6fe68aa15d8eae67612b19000003f6000000079bb57de5be68",
    ),
];

fn bytes(digits: &str) -> Vec<u8> {
    let pair = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal");
    (0..digits.len()).step_by(2).map(pair).collect()
}

#[test]
fn every_algorithm_agrees_with_simple_switch() {
    let mut testbed = program!("hashes");
    for (packet, results) in PACKETS {
        let sent = testbed.send(1, &bytes(packet));
        let expected = bytes(&format!("{results}{packet}"));
        assert_eq!(sent, [(1, expected)], "{packet}");
    }
}
