//! `vectors/packets.json` against the parser, the emitter and the Wireshark dissector. The P4 parser reads
//! the same file in the workspace's `tests/`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use pcap_file::pcap::{PcapPacket, PcapWriter};
use serde::Deserialize;
use ultima_wire::{
    Auth, Credit, Dtype, Feedback, Header, HostFlags, Key, Kind, RepairRequest, Report, Sealer,
    SwitchFlags, Ticks, bitmap, frame, group_address,
};

#[derive(Deserialize)]
struct Vector {
    name: String,
    header: BTreeMap<String, u32>,
    auth: Option<AuthVector>,
    payload: String,
    report: Option<BTreeMap<String, u32>>,
    feedback: Option<BTreeMap<String, u32>>,
    /// The slots in a repair request.
    wanted: Option<Vec<u32>>,
    /// The fields of a grant of credit, or of a request for it.
    credit: Option<BTreeMap<String, u32>>,
    frame: String,
}

#[derive(Deserialize)]
struct AuthVector {
    key: String,
    payload_digest: String,
    tag: String,
}

fn vectors() -> Vec<Vector> {
    serde_json::from_str(include_str!("../vectors/packets.json")).unwrap()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

impl Vector {
    fn field(&self, name: &str) -> u32 {
        self.header[name]
    }

    fn header(&self) -> Header {
        let short = |name| self.field(name) as u16;
        Header {
            kind: Kind::ALL[self.field("kind") as usize - 1],
            switch_flags: SwitchFlags {
                trimmed: self.field("trimmed") == 1,
                late: self.field("late") == 1,
                congestion: self.field("congestion") == 1,
                hops: self.field("hops") as u8,
            },
            budget: Ticks(self.field("budget")),
            path_queue: Ticks(self.field("path_queue")),
            job: short("job"),
            epoch: short("epoch"),
            source: short("source_rank"),
            owner: short("owner_rank"),
            packet_number: self.field("packet_number"),
            step: self.field("step"),
            bucket: short("bucket"),
            host_flags: HostFlags {
                last: self.field("last") == 1,
                hadamard: self.field("hadamard") == 1,
                exact: self.field("exact") == 1,
            },
            length_check: self.field("length_check") as u8,
            dtype: [Dtype::None, Dtype::F32, Dtype::Bf16, Dtype::F16][self.field("dtype") as usize],
            incast: self.field("incast") as u8,
            slot: self.field("slot"),
            slots: self.field("slots"),
            contributions: short("contributions"),
            shared_tc: short("shared_tc"),
            sent_at: Ticks(self.field("sent_at")),
            echoed: Ticks(self.field("echoed")),
            auth: self.auth.as_ref().map(|auth| Auth {
                payload_digest: u64::from_str_radix(&auth.payload_digest, 16).unwrap(),
                tag: u64::from_str_radix(&auth.tag, 16).unwrap(),
            }),
        }
    }
}

#[test]
fn every_kind_has_a_vector() {
    let kinds: BTreeSet<u32> = vectors()
        .iter()
        .map(|vector| vector.field("kind"))
        .collect();
    assert_eq!(kinds, Kind::ALL.iter().map(|kind| *kind as u32).collect());
}

#[test]
fn rust_reads_the_vectors() {
    for vector in vectors() {
        let frame = bytes(&vector.frame);
        let (_, datagram) = frame::parse(&frame).unwrap();
        let (header, payload) = Header::parse(datagram).unwrap();
        assert_eq!(header, vector.header(), "{}", vector.name);
        assert_eq!(payload, bytes(&vector.payload), "{}", vector.name);
    }
}

/// FEEDBACK, in both directions.
#[test]
fn feedback_is_that_of_the_vectors() {
    let with_feedback: Vec<Vector> = vectors()
        .into_iter()
        .filter(|v| v.header["kind"] == Kind::Feedback as u32)
        .collect();
    assert!(!with_feedback.is_empty());
    for Vector {
        feedback, payload, ..
    } in with_feedback
    {
        let fields = feedback.expect("what the payload says");
        let expected = Feedback {
            wait: Ticks(fields["wait"]),
            queue: Some(Ticks(fields["queue"])),
            marked: fields["marked"] as u8,
            trimmed: fields["trimmed"] as u8,
            notice: fields["notice"] == 1,
        };
        let payload = bytes(&payload);
        assert_eq!(Feedback::parse(&payload), Some(expected));
        let mut written = vec![0; payload.len()];
        expected.emit(&mut written);
        assert_eq!(written, payload);
    }
}

/// REPORT, in both directions.
#[test]
fn reports_are_those_of_the_vectors() {
    let answers: Vec<Vector> = vectors()
        .into_iter()
        .filter(|v| v.report.is_some())
        .collect();
    assert!(!answers.is_empty());
    for Vector {
        report, payload, ..
    } in answers
    {
        let fields = report.unwrap();
        let expected = Report {
            port: fields["port"] as u16,
            known: fields["known"] == 1,
            sent: fields["sent"],
            trimmed: fields["trimmed"],
            late: fields["late"],
            upstream_lost: fields["upstream_lost"],
        };
        let mut payload = bytes(&payload);
        assert_eq!(Report::parse(&payload), Some(expected));
        let room = payload.clone();
        payload[..Report::LEN].fill(0xff);
        expected.emit(&mut payload);
        assert_eq!(payload, room);
    }
}

/// Repair requests, in both directions.
#[test]
fn requests_are_those_of_the_vectors() {
    let requests: Vec<Vector> = vectors()
        .into_iter()
        .filter(|v| v.wanted.is_some())
        .collect();
    assert!(!requests.is_empty());
    for Vector {
        wanted, payload, ..
    } in requests
    {
        let payload = bytes(&payload);
        let request = RepairRequest::parse(&payload).unwrap();
        let slots = bitmap::numbers(request.wanted).map(|slot| request.first + slot as u32);
        assert!(slots.eq(wanted.unwrap()));
        let mut written = vec![0; payload.len()];
        assert_eq!(request.emit(&mut written), payload.len());
        assert_eq!(written, payload);
    }
}

/// Grants of credit and requests for it, in both directions.
#[test]
fn credit_is_that_of_the_vectors() {
    let vectors = vectors();
    let credits: Vec<&Vector> = vectors.iter().filter(|v| v.credit.is_some()).collect();
    assert_eq!(credits.len(), 2);
    for vector in credits {
        let fields = vector.credit.as_ref().unwrap();
        let expected = match fields.get("window") {
            Some(window) => Credit::Grant {
                taken: fields["taken"],
                window: *window as u16,
                arrived: fields["arrived"],
            },
            None => Credit::Request {
                last: fields["last"],
            },
        };
        let payload = bytes(&vector.payload);
        assert_eq!(Credit::parse(&payload), Some(expected));
        let mut written = vec![0; payload.len()];
        expected.emit(&mut written);
        assert_eq!(written, payload);
    }
}

/// The bitmap after an aggregate's elements.
#[test]
fn counted_ranks_are_those_of_the_vector() {
    let vectors = vectors();
    let counted = vectors.iter().find(|v| v.name == "gather-counted").unwrap();
    let payload = bytes(&counted.payload);
    let (values, ranks) = payload.split_at(2 * Dtype::F32.size());
    assert_eq!(values.len() + bitmap::len(10), payload.len());
    assert!(bitmap::numbers(ranks).eq([0, 2, 8]));
    assert_eq!(
        bitmap::count(ranks),
        counted.field("contributions") as usize
    );
}

#[test]
fn rust_writes_the_vectors() {
    for vector in vectors() {
        let expected = bytes(&vector.frame);
        let (endpoints, _) = frame::parse(&expected).unwrap();
        let header = vector.header();
        let mut written = vec![0; frame::FRAME_OVERHEAD + header.len()];
        header.emit(&mut written[frame::FRAME_OVERHEAD..]);
        written.extend(bytes(&vector.payload));
        endpoints.emit(&mut written);
        // Switches write the time to live and IPv4's checksum; the parser has checked the latter.
        for at in [22, 24, 25] {
            written[at] = expected[at];
        }
        assert_eq!(written, expected, "{}", vector.name);
        if endpoints.dst.ip().is_multicast() {
            assert_eq!(*endpoints.dst.ip(), group_address(header.job));
            assert_eq!(endpoints.dst_mac, frame::group_mac(*endpoints.dst.ip()));
        }
    }
}

#[test]
fn tags_are_those_of_the_vectors() {
    let sealed: Vec<Vector> = vectors().into_iter().filter(|v| v.auth.is_some()).collect();
    assert!(!sealed.is_empty());
    for vector in sealed {
        let auth = vector.auth.as_ref().unwrap();
        let mut sealer = Sealer::new(&Key(bytes(&auth.key).try_into().unwrap()));
        let payload = bytes(&vector.payload);
        let expected = vector.header();
        let mut header = expected.clone();
        header.auth = None;
        header.seal(&mut sealer, &payload);
        assert_eq!(header, expected);
        let datagram = &bytes(&vector.frame)[frame::FRAME_OVERHEAD..];
        assert_eq!(sealer.verify(datagram), Ok(()));
    }
}

/// tshark with our dissector prints every field of every vector.
#[test]
fn wireshark_reads_the_vectors() {
    if Command::new("tshark").arg("--version").output().is_err() {
        ultima_testing::skipped("tshark is not on the PATH");
        return;
    }
    let vectors = vectors();
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("vectors.pcap");
    let mut writer = PcapWriter::new(std::fs::File::create(&capture).unwrap()).unwrap();
    for vector in &vectors {
        let frame = bytes(&vector.frame);
        let packet = PcapPacket::new(std::time::Duration::ZERO, frame.len() as u32, &frame);
        writer.write_packet(&packet).unwrap();
    }
    drop(writer);

    let fields: Vec<&String> = vectors[0].header.keys().collect();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("dissector/ultima.lua");
    let mut tshark = Command::new("tshark");
    tshark
        .arg("-X")
        .arg(format!("lua_script:{}", script.display()))
        .arg("-r")
        .arg(&capture);
    tshark.args(["-T", "fields", "-E", "separator=,"]);
    for field in &fields {
        tshark.arg("-e").arg(format!("ultima.{field}"));
    }
    tshark.args(["-e", "ultima.payload", "-e", "ultima.auth.tag"]);
    let report = ["port", "known", "sent", "trimmed", "late", "upstream_lost"];
    for field in report {
        tshark.arg("-e").arg(format!("ultima.report.{field}"));
    }
    let feedback = ["wait", "queue", "marked", "trimmed", "notice"];
    for field in feedback {
        tshark.arg("-e").arg(format!("ultima.feedback.{field}"));
    }
    for field in ["of", "first", "wanted"] {
        tshark.arg("-e").arg(format!("ultima.repair.{field}"));
    }
    let credit = ["taken", "window", "last"];
    for field in credit {
        tshark.arg("-e").arg(format!("ultima.credit.{field}"));
    }
    let output = tshark.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );

    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), vectors.len());
    for (vector, line) in vectors.iter().zip(lines) {
        let values: Vec<&str> = line.split(',').collect();
        for (field, value) in fields.iter().zip(&values) {
            let number = match *value {
                "True" => 1,
                "False" => 0,
                other => other
                    .parse()
                    .unwrap_or_else(|_| panic!("{field} is {other:?}")),
            };
            assert_eq!(number, vector.field(field), "{} of {}", field, vector.name);
        }
        assert_eq!(
            values[fields.len()],
            vector.payload,
            "payload of {}",
            vector.name
        );
        let tag = vector
            .auth
            .as_ref()
            .map_or(String::new(), |auth| format!("0x{}", auth.tag));
        assert_eq!(values[fields.len() + 1], tag, "tag of {}", vector.name);
        let request = vector.wanted.as_ref().map(|_| {
            let payload = bytes(&vector.payload);
            let request = RepairRequest::parse(&payload).unwrap();
            let of = (request.of as u8).to_string();
            let wanted = request.wanted.iter().map(|byte| format!("{byte:02x}"));
            [of, request.first.to_string(), wanted.collect::<String>()]
        });
        let shown = &values[fields.len() + 2 + report.len()..][..feedback.len()];
        for (field, value) in feedback.iter().zip(shown) {
            let expected = vector.feedback.as_ref();
            let expected = expected.map_or(String::new(), |fields| fields[*field].to_string());
            assert_eq!(*value, expected, "{field} of {}", vector.name);
        }
        let behind = fields.len() + 2 + report.len() + feedback.len();
        let (repair, credits) = values[behind..].split_at(3);
        for (field, value) in credit.iter().zip(credits) {
            let expected = vector.credit.as_ref().and_then(|credit| credit.get(*field));
            let expected = expected.map_or(String::new(), u32::to_string);
            assert_eq!(*value, expected, "{field} of {}", vector.name);
        }
        assert_eq!(
            repair,
            request.unwrap_or_default(),
            "request of {}",
            vector.name
        );
        for (field, value) in report.iter().zip(&values[fields.len() + 2..]) {
            if let Some(report) = &vector.report {
                let number = value.replace("True", "1");
                assert_eq!(
                    number,
                    report[*field].to_string(),
                    "{field} of {}",
                    vector.name
                );
            } else {
                // Only a REPORT's payload may fill these fields without being one of the vectors.
                let may_be = vector.header["kind"] == Kind::Report as u32;
                assert!(may_be || value.is_empty(), "{field} of {}", vector.name);
            }
        }
    }
}
