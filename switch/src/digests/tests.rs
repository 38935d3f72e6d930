use ultima_p4runtime::text;

use super::*;
use crate::p4info;
use ultima_engine::{DigestValue, Limits};

const JSON: &[u8] = include_bytes!("../../tests/programs/controller.json");
const P4INFO: &str = include_str!("../../tests/programs/controller.p4info.txtpb");

/// `sighting_t`: an address of 48 bits and a port of 9.
const SIGHTING: u32 = 396_012_910;

fn digests() -> Digests {
    let described = text::parse(P4INFO).expect("P4Info");
    let engine = p4info::load(JSON, &described, Limits::default()).expect("loads");
    Digests::new(engine.digests().clone())
}

fn enabled(max_timeout: Nanos, max_list_size: usize, ack_timeout: Nanos) -> Digests {
    let mut digests = digests();
    let config = DigestConfig {
        max_timeout,
        max_list_size,
        ack_timeout,
    };
    digests.enable(SIGHTING, config).expect("the digest exists");
    digests
}

/// The `n`th message.
fn message(n: u16) -> DigestMessage {
    let [high, low] = n.to_be_bytes();
    DigestMessage {
        digest: SIGHTING,
        values: [0, 0, 0, 0, high, low, 0, 3].into(),
    }
}

/// The numbers of the messages in a list.
fn numbers(list: Option<DigestList>) -> Option<Vec<u16>> {
    let number = |values: &Arc<[u8]>| u16::from_be_bytes([values[4], values[5]]);
    list.map(|list| list.messages.iter().map(number).collect())
}

#[test]
fn a_list_is_sent_when_it_is_full_or_its_first_message_is_old() {
    let mut digests = enabled(100, 3, 1000);
    for (n, at) in [(1, 0), (2, 10), (1, 20), (2, 30)] {
        assert_eq!(
            digests.learn(message(n), at),
            None,
            "a list needs three distinct messages"
        );
    }
    assert_eq!(digests.next_due(), Some(100));
    assert_eq!(
        numbers(digests.learn(message(3), 40)),
        Some(vec![1, 2, 3]),
        "full"
    );
    assert_eq!(digests.next_due(), None);
    assert_eq!(digests.learn(message(4), 50), None);
    assert_eq!(digests.next_due(), Some(150));
    assert_eq!(digests.due(149), None);
    assert_eq!(numbers(digests.due(150)), Some(vec![4]), "old");
    assert_eq!(digests.due(1000), None, "no message waits");
}

#[test]
fn sent_messages_are_not_repeated_before_acknowledgement_or_timeout() {
    let mut digests = enabled(0, 0, 100);
    let first = digests.learn(message(1), 0).expect("sent at once");
    let second = digests.learn(message(2), 10).expect("sent at once");
    assert!(second.id > first.id);
    assert_eq!(digests.learn(message(1), 20), None);
    digests
        .acknowledge(SIGHTING, first.id)
        .expect("a known digest");
    let third = digests.learn(message(1), 30);
    assert!(third.is_some(), "acknowledged");
    assert_eq!(digests.learn(message(2), 109), None);
    assert!(digests.learn(message(2), 110).is_some(), "too long ago");
    // An unknown list id is not an error. An unknown digest is.
    digests
        .acknowledge(SIGHTING, first.id)
        .expect("acknowledged before");
    digests.acknowledge(SIGHTING, 99).expect("never sent");
    let unknown = digests.acknowledge(7, first.id);
    assert_eq!(unknown.map_err(|error| error.code), Err(Code::NotFound));
    // A new controller gets all messages again.
    digests.forget_sent();
    assert!(digests.learn(message(2), 111).is_some());
}

#[test]
fn without_an_ack_timeout_everything_is_sent_again() {
    let mut digests = enabled(0, 1, 0);
    for at in 0..3 {
        assert_eq!(numbers(digests.learn(message(1), at)), Some(vec![1]));
    }
}

#[test]
fn a_list_is_bounded_for_any_configuration() {
    let mut digests = enabled(Nanos::MAX, i32::MAX as usize, Nanos::MAX);
    let list = (0..=u16::MAX).find_map(|n| digests.learn(message(n), 0));
    let length = list.expect("a list").messages.len();
    assert_eq!(length, MAX_LIST);
    // The lists that wait for acknowledgements are bounded too: one list too many replaces the first.
    let lists = (0..=u16::MAX).filter_map(|n| digests.learn(message(n), 0));
    assert_eq!(lists.count(), MAX_UNACKNOWLEDGED / MAX_LIST - 1);
    let other = |n| {
        let mut message = message(n);
        message.values[0] = 1;
        message
    };
    let list = (0..MAX_LIST as u16).find_map(|n| digests.learn(other(n), 0));
    assert!(list.is_some());
    let waits = |digests: &mut Digests, n: usize| {
        digests.learn(message(n as u16), 0);
        digests.next_due().is_some()
    };
    assert!(!waits(&mut digests, MAX_LIST), "of the second list");
    assert!(waits(&mut digests, 0), "of the first");
}

#[test]
fn only_enabled_digests_are_collected() {
    let mut digests = digests();
    assert_eq!(digests.learn(message(1), 0), None);
    let config = DigestConfig {
        max_timeout: 0,
        max_list_size: 0,
        ack_timeout: 0,
    };
    let code = |result: Result<(), Refusal>| result.expect_err("refused").code;
    assert_eq!(code(digests.enable(7, config)), Code::NotFound);
    assert_eq!(code(digests.configure(SIGHTING, config)), Code::NotFound);
    assert_eq!(code(digests.disable(SIGHTING)), Code::NotFound);
    digests.enable(SIGHTING, config).expect("the digest exists");
    assert_eq!(code(digests.enable(SIGHTING, config)), Code::AlreadyExists);
    let slow = DigestConfig {
        max_timeout: 50,
        ..config
    };
    digests
        .configure(SIGHTING, slow)
        .expect("the digest is enabled");
    assert_eq!(digests.get(SIGHTING), Ok(slow));
    assert_eq!(digests.learn(message(1), 0), None, "the message waits");
    digests.disable(SIGHTING).expect("the digest is enabled");
    assert_eq!(digests.due(1000), None);
    let missing = digests.get(SIGHTING).map_err(|error| error.code);
    assert_eq!(missing, Err(Code::NotFound));
}

#[test]
fn a_message_has_the_type_of_its_digest() {
    let digests = digests();
    let sighting = digests.find(SIGHTING).expect("the digest exists");
    let bits = |bytes: &[u8]| DigestValue::Bits(bytes.to_vec());
    assert_eq!(
        sighting.value(&message(0x0102).values),
        DigestValue::Struct(vec![bits(&[0x01, 0x02]), bits(&[3])])
    );
}
