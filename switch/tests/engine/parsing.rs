//! Parsers: operations, transitions and errors.

use ultima_switch::engine::{DropCause, IngressOutcome};

use super::program;

const NO_ERROR: u8 = 0;
const PACKET_TOO_SHORT: u8 = 1;
const STACK_OUT_OF_BOUNDS: u8 = 2;
const INVALID_ARGUMENT: u8 = 4;
const TOO_MANY: u8 = 6;

/// Sends a frame; returns the report (error, last label, labels, union member) and the rest.
fn report(frame: &[u8]) -> ([u8; 4], Vec<u8>) {
    let sent = program!("parsing").send(3, frame);
    assert_eq!(sent.len(), 1, "{frame:02x?}");
    let (report, rest) = sent[0].1.split_at(4);
    (report.try_into().expect("four bytes"), rest.to_vec())
}

#[test]
fn stacks_fill_until_the_last_label_or_their_end() {
    assert_eq!(
        report(&[1, 0, 0x02, 0x05, 0xff]),
        ([NO_ERROR, 2, 2, 0], vec![1, 0, 2, 5, 0xff])
    );
    let (full, rest) = report(&[1, 0, 0x02, 0x04, 0x07, 0xff]);
    assert_eq!(
        (full, rest),
        ([NO_ERROR, 3, 3, 0], vec![1, 0, 2, 4, 7, 0xff])
    );
    let (beyond, rest) = report(&[1, 0, 0x02, 0x04, 0x06, 0x09, 0xff]);
    assert_eq!(beyond, [STACK_OUT_OF_BOUNDS, 3, 3, 0]);
    assert_eq!(rest, [1, 0, 2, 4, 6, 9, 0xff]);
    assert_eq!(
        report(&[1, 0, 0x02]),
        ([PACKET_TOO_SHORT, 1, 1, 0], vec![1, 0, 2])
    );
}

#[test]
fn stacks_are_pushed_and_popped() {
    // The program sets the pushed element. The push removes the last element.
    let (report_full, rest) = report(&[1, 1, 0x02, 0x04, 0x07]);
    assert_eq!((report_full[2], rest), (3, vec![1, 1, 0xaa, 2, 4]));
    let (_, rest) = report(&[1, 1, 0x03, 0x99]);
    assert_eq!(rest, [1, 1, 0xaa, 3, 0x99]);
    let (_, rest) = report(&[1, 2, 0x02, 0x05, 0x99]);
    assert_eq!(rest, [1, 2, 5, 0x99]);
}

#[test]
fn variable_length_fields_are_deparsed_unchanged() {
    for length in 0..=8u8 {
        let mut frame = vec![2, 0, 0xa0 | length];
        frame.extend((0..length).map(|byte| byte | 0x40));
        frame.extend([0x77, 0x88, 0x99]);
        assert_eq!(
            report(&frame),
            ([NO_ERROR, 0, 0, 0], frame.clone()),
            "length {length}"
        );
        let cut = &frame[..frame.len() - 3];
        assert_eq!(report(cut), ([PACKET_TOO_SHORT, 0, 0, 0], cut.to_vec()));
    }
    // A length beyond the field's maximum is HeaderTooShort, as in BMv2.
    let frame = [[2, 0, 0xa9, 0].as_slice(), &[0x11; 20]].concat();
    assert_eq!(report(&frame), ([3, 0, 0, 0], frame.clone()));
}

#[test]
fn verify_raises_the_programs_own_error() {
    assert_eq!(
        report(&[3, 9, 0x77]),
        ([NO_ERROR, 0, 0, 0], vec![3, 9, 0x77])
    );
    assert_eq!(
        report(&[3, 10, 0x77]),
        ([TOO_MANY, 0, 0, 0], vec![3, 10, 0x77])
    );
}

#[test]
fn one_member_of_a_union_is_valid() {
    assert_eq!(
        report(&[4, 0, 0x0f, 0x12, 0x34]),
        ([NO_ERROR, 0, 0, 1], vec![4, 0, 15, 18, 52])
    );
    assert_eq!(
        report(&[4, 0, 0x1f, 0x12, 0x34]),
        ([NO_ERROR, 0, 0, 2], vec![4, 0, 31, 18, 52])
    );
    // Making the other member valid makes this one invalid.
    let (_, rest) = report(&[4, 1, 0x0f, 0x12]);
    assert_eq!(rest, [4, 1, 0xab, 0xcd, 0xef, 0x12]);
    // A lookahead beyond the packet's end.
    assert_eq!(
        report(&[4, 0, 0x0f]),
        ([PACKET_TOO_SHORT, 0, 0, 0], vec![4, 0, 15])
    );
}

#[test]
fn skipped_bytes_are_removed() {
    assert_eq!(
        report(&[5, 16, 1, 2, 3, 4]),
        ([NO_ERROR, 0, 0, 0], vec![5, 16, 3, 4])
    );
    assert_eq!(
        report(&[5, 12, 1, 2, 3]),
        ([INVALID_ARGUMENT, 0, 0, 0], vec![5, 12, 1, 2, 3])
    );
    assert_eq!(
        report(&[5, 32, 1, 2, 3]),
        ([PACKET_TOO_SHORT, 0, 0, 0], vec![5, 32, 1, 2, 3])
    );
}

#[test]
fn transitions_match_under_their_masks() {
    // The state `behind` extracts a byte that the frame lacks: the error shows that the transition matched.
    for (kind, number, taken) in [
        (0x85, 0x02, true),
        (0x8f, 0xf2, true),
        (0x85, 0x03, false),
        (0x95, 0x02, false),
        (7, 0x10, true),
        (9, 0x10, true),
        (7, 0x11, false),
        (10, 0x10, false),
    ] {
        let error = if taken { PACKET_TOO_SHORT } else { NO_ERROR };
        assert_eq!(report(&[kind, number]).0[0], error, "{kind:#x} {number:#x}");
    }
}

#[test]
fn an_endless_parser_meets_the_limit() {
    let mut testbed = program!("parsing");
    let (outcome, copies) = testbed.ingress(1, &[6, 0], 0);
    assert_eq!(outcome, IngressOutcome::Dropped(DropCause::ParserLimit));
    assert!(copies.is_empty());
}

#[test]
fn an_empty_frame_is_too_short() {
    assert_eq!(report(&[]), ([PACKET_TOO_SHORT, 0, 0, 0], vec![]));
}
