//! PROBEs and a switch's answers.

use std::time::Duration;

use ultima_host::{CheckPacket, Config, Core, Destination, OperationId, Time};
use ultima_wire::{HEADER_LEN, Header, KIND_AT, KIND_MASK, Kind, Report};

fn core(rank: u16) -> Core {
    Core::new(Config::new(7, 1, rank, 3, 1, Duration::from_secs(1))).expect("a configuration")
}

#[test]
fn a_report_is_the_ranks_own_probe_again() {
    let (mut asks, mut other) = (core(0), core(1));
    for payload in [0, 1000] {
        asks.check(CheckPacket {
            to: Destination::Rank(1),
            probe: true,
            about: OperationId { step: 5, bucket: 2 },
            token: 77,
            payload,
        });
    }
    let mut buf = vec![0; asks.max_datagram()];
    let mut lengths = Vec::new();
    while let Some(transmit) = asks.next_datagram(Time::ZERO, &mut buf) {
        let datagram = &mut buf[..transmit.len];
        let (header, payload) = Header::parse(datagram).expect("a packet");
        assert_eq!(header.kind, Kind::Probe);
        assert_eq!((header.step, header.bucket), (5, 2));
        assert_eq!(Report::parse(payload), Some(Report::default()));
        lengths.push(payload.len());
        // Members ignore it.
        other.handle_datagram(Time::ZERO, datagram);
        asks.handle_datagram(Time::ZERO, datagram);

        datagram[KIND_AT] = datagram[KIND_AT] & !KIND_MASK | Kind::Report as u8;
        let report = Report {
            port: 3,
            known: true,
            ..Report::default()
        };
        report.emit(&mut datagram[HEADER_LEN..]);
        asks.handle_datagram(Time::ZERO, datagram);
        other.handle_datagram(Time::ZERO, datagram);
        // Too short for the round's token.
        asks.handle_datagram(Time::ZERO, &datagram[..HEADER_LEN + Report::LEN + 7]);
    }
    assert_eq!(lengths, [Report::LEN + 8, 1000]);
    let heard = asks.heard(77);
    assert_eq!((heard.ranks.len(), heard.reports), (0, 2));
    let (about, report) = heard.report.expect("it came back");
    assert_eq!((about.step, about.bucket, report.port), (5, 2, 3));
    assert_eq!(asks.totals().rejected.total(), 4);
    assert_eq!(other.heard(77), Default::default());
    assert_eq!(other.totals().rejected.total(), 4);
}

#[test]
fn check_packets_to_unknown_ranks_are_not_sent() {
    let mut core = core(1);
    let mut buf = vec![0; core.max_datagram()];
    let mut sends = |to, probe| {
        core.check(CheckPacket {
            to,
            probe,
            about: OperationId::default(),
            token: 1,
            payload: 0,
        });
        core.next_datagram(Time::ZERO, &mut buf)
            .map(|transmit| transmit.to)
    };
    for probe in [false, true] {
        // Itself, and ranks outside a job of three.
        for rank in [1, 3, 4, u16::MAX] {
            assert_eq!(sends(Destination::Rank(rank), probe), None, "{rank}");
        }
        for to in [Destination::Rank(2), Destination::Group] {
            assert_eq!(sends(to, probe), Some(to));
        }
    }
}
