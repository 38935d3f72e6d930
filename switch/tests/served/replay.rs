//! Ports on pcap files.

use std::fs::{self, File};
use std::future::pending;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::served::common::{Controller, bare, names, probe, program};
use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use tempfile::TempDir;
use ultima_p4runtime::bytestring::Bytestring;
use ultima_switch::proto::AddPortRequest;
use ultima_switch::proto::port_control_client::PortControlClient;
use ultima_switch::{PortSpec, Switch, SwitchConfig, WireConfig};

const DST: u64 = 0x0200_0000_0002;

/// A folder with a capture `in.pcap` of these frames, a millisecond apart.
fn captured(link: DataLink, frames: &[Vec<u8>]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("in.pcap");
    let header = PcapHeader {
        datalink: link,
        ..PcapHeader::default()
    };
    let file = File::create(&path).expect("created");
    let mut writer = PcapWriter::with_header(file, header).expect("a header");
    for (millis, frame) in (1_700_000_000_000..).zip(frames) {
        let len = u32::try_from(frame.len()).expect("frames are short");
        let packet = PcapPacket::new(Duration::from_millis(millis), len, frame);
        writer.write_packet(&packet).expect("written");
    }
    (folder, path)
}

fn probes(count: u32) -> Vec<Vec<u8>> {
    (0..count)
        .map(|n| probe(DST, 0, n, 19 + n as usize))
        .collect()
}

fn frames_of(path: &Path) -> Vec<Vec<u8>> {
    let mut reader = PcapReader::new(File::open(path).expect("there")).expect("pcap");
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.expect("a packet").data.into_owned());
    }
    frames
}

fn port(spec: String) -> ultima_switch::PortConfig {
    let spec: PortSpec = spec.parse().expect("a port");
    spec.with_wire(WireConfig::default())
}

/// A switch that replays the file at port 1 and ends.
fn only_replay(path: &Path) -> SwitchConfig {
    SwitchConfig {
        program: Some(program()),
        ports: vec![port(format!("1@pcap:{}", path.display()))],
        exit_when_done: true,
        ..bare()
    }
}

/// From one file to another, the first added when the tables are filled; the switch ends by itself.
async fn crosses(how: &str) {
    let frames = probes(1000);
    let (folder, input) = captured(DataLink::ETHERNET, &frames);
    let output = folder.path().join("out.pcap");
    let config = SwitchConfig {
        program: Some(program()),
        ports: vec![port(format!("2@pcap:,{}", output.display()))],
        exit_when_done: true,
        ..bare()
    };
    let switch = Switch::start(config).await.expect("starts");
    let address = switch.grpc_addr();
    let names = names();
    let table = names.table("IngressPipe.forward").expect("table");
    let entry = table.entry().exact("hdr.ethernet.dst", DST).expect("key");
    let entry = entry.action("IngressPipe.send", &[("port", Bytestring::from(2u16))]);
    Controller::primary(address, 1)
        .await
        .insert(vec![entry.expect("action").build().expect("entry").into()])
        .await;
    let mut control = PortControlClient::connect(format!("http://{address}"))
        .await
        .expect("connects");
    let attachment = format!("{how}:{}", input.display());
    let request = AddPortRequest {
        number: 1,
        attachment,
        ..AddPortRequest::default()
    };
    control.add(request).await.expect("added");
    switch.run_until(pending()).await.expect("ends by itself");
    assert!(frames_of(&output) == frames);
}

#[tokio::test]
async fn from_one_file_to_another() {
    crosses("pcap").await;
}

#[tokio::test]
async fn at_the_times_of_the_file() {
    crosses("pcap-timed").await;
}

#[tokio::test]
async fn a_file_that_is_damaged_ends_its_replay_with_the_record() {
    let (_folder, path) = captured(DataLink::ETHERNET, &probes(3));
    let whole = fs::read(&path).expect("read");
    fs::write(&path, &whole[..whole.len() - 1]).expect("written");
    let switch = Switch::start(only_replay(&path)).await.expect("starts");
    let error = switch.run_until(pending()).await.expect_err("damaged");
    let text = error.to_string();
    assert!(text.contains("in.pcap: record 3 is cut off"), "{text}");

    // The second record's length: 24 bytes of header, a record of 16 + 19, and 8 of the next.
    let mut huge = whole;
    huge[24 + 35 + 8..][..4].copy_from_slice(&u32::MAX.to_be_bytes());
    fs::write(&path, &huge).expect("written");
    let switch = Switch::start(only_replay(&path)).await.expect("starts");
    let text = switch
        .run_until(pending())
        .await
        .expect_err("damaged")
        .to_string();
    assert!(text.contains("in.pcap: record 2"), "{text}");
}

#[tokio::test]
async fn other_files_are_refused_at_once() {
    let (_folder, raw_ip) = captured(DataLink::RAW, &probes(1));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (empty, text) = (folder.path().join("empty"), folder.path().join("text"));
    fs::write(&empty, "").expect("written");
    fs::write(&text, "This is no capture at all, however long it is.").expect("written");
    for (path, part) in [
        (raw_ip.as_path(), "expected Ethernet"),
        (&empty, "not a pcap file"),
        (&text, "not a pcap file"),
        (Path::new("/nonexistent.pcap"), "No such file"),
    ] {
        let Err(error) = Switch::start(only_replay(path)).await else {
            panic!("{} is accepted", path.display());
        };
        let error = error.to_string();
        assert!(error.contains(part), "{}: {error}", path.display());
        assert!(
            error.starts_with("port 1: ") && !error.contains('\n'),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_file_that_is_read_or_written_is_nobody_elses() {
    let (folder, input) = captured(DataLink::ETHERNET, &probes(3));
    let whole = fs::read(&input).expect("read");
    let output = folder.path().join("out.pcap");
    let alias = folder.path().join("alias.pcap");
    std::os::unix::fs::symlink(&input, &alias).expect("linked");
    // What the captures of port 1 are called.
    let seen = folder.path().join("1_in.pcap");
    fs::hard_link(&input, &seen).expect("linked");
    let [input, output, alias, seen] =
        [&input, &output, &alias, &seen].map(|path| path.display().to_string());
    let refused = async |ports: &[String], pcaps: bool| {
        let config = SwitchConfig {
            ports: ports.iter().cloned().map(port).collect(),
            pcap_dir: pcaps.then(|| folder.path().to_owned()),
            ..bare()
        };
        let Err(error) = Switch::start(config).await else {
            panic!("{ports:?} is accepted");
        };
        let text = error.to_string();
        assert!(text.contains("give another file"), "{ports:?}: {text}");
        assert!(!text.contains('\n'), "{text}");
        let left = fs::read(&input).expect("the file is there");
        assert!(left == whole, "{ports:?} changes the file");
        assert!(!Path::new(&output).exists(), "{ports:?} leaves a file");
    };
    refused(&[format!("1@pcap:{input},{input}")], false).await;
    refused(&[format!("1@pcap:{input},{alias}")], false).await;
    let reads = format!("1@pcap:{input},{output}");
    refused(&[reads.clone(), format!("2@pcap:,{alias}")], false).await;
    refused(
        &[format!("1@pcap:,{alias}"), format!("2@pcap:{input}")],
        false,
    )
    .await;
    refused(&[reads, format!("2@pcap:,{output}")], false).await;
    refused(&[format!("1@pcap:{seen}")], true).await;
    refused(
        &[format!("2@pcap:,{seen}"), format!("1@pcap:,{output}")],
        true,
    )
    .await;

    // Two may read one.
    let config = SwitchConfig {
        ports: [
            format!("1@pcap:{input}"),
            format!("2@pcap:{input},{output}"),
        ]
        .map(port)
        .into(),
        exit_when_done: true,
        ..bare()
    };
    let switch = Switch::start(config).await.expect("starts");
    switch.run_until(pending()).await.expect("ends by itself");
}

#[test]
fn specs_name_files() {
    for (spec, shown) in [
        ("3@pcap:a.pcap", "pcap:a.pcap"),
        ("3@pcap:a.pcap,b.pcap", "pcap:a.pcap,b.pcap"),
        ("3@pcap:,b.pcap", "pcap:,b.pcap"),
        ("3@pcap-timed:a.pcap,b", "pcap-timed:a.pcap,b"),
    ] {
        let config = port(spec.to_owned());
        assert_eq!(config.attach.to_string(), shown);
    }
    for wrong in ["3@pcap:", "3@pcap:,", "3@pcap-timed:"] {
        let error = wrong.parse::<PortSpec>().expect_err("no file").to_string();
        assert!(
            error.contains(wrong) && error.contains("expected"),
            "{error}"
        );
    }
}
