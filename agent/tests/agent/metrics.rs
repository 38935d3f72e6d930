//! The metrics of two ranks on loopback, as Prometheus scrapes them.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ultima_agent::{Exporter, Metrics};
use ultima_host::{Collective, Config, Gather, OperationId, UdpConfig};

const OPERATIONS: u32 = 5;

/// Two ranks of a job, without operations.
fn ranks(t_b: Duration) -> Vec<Collective> {
    let sockets = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").expect("loopback"));
    let peers = sockets.each_ref().map(|socket| match socket.local_addr() {
        Ok(SocketAddr::V4(address)) => address,
        other => panic!("an IPv4 socket: {other:?}"),
    });
    let group = SocketAddrV4::new(ultima_wire::group_address(1), ultima_wire::UDP_PORT);
    let collective = |(rank, socket)| {
        let mut config = Config::new(1, 1, rank, 2, 42, t_b);
        config.gather = Gather::Unicast;
        let peers = peers.to_vec();
        let udp = UdpConfig {
            socket,
            peers,
            group,
        };
        Collective::over_udp(config, udp).expect("a good configuration")
    };
    (0..).zip(sockets).map(collective).collect()
}

fn average(ranks: &mut [Collective]) {
    thread::scope(|scope| {
        for collective in ranks {
            scope.spawn(move || {
                for step in 0..OPERATIONS {
                    let id = OperationId { step, bucket: 0 };
                    collective
                        .allreduce(id, &mut vec![1.0; 5000])
                        .expect("it ends");
                }
            });
        }
    });
}

/// The answer to a request, head and body.
fn ask(address: SocketAddr, request: &str) -> (String, String) {
    let mut connection = TcpStream::connect(address).expect("it listens");
    connection.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("HTTP");
    (head.to_owned(), body.to_owned())
}

fn get(address: SocketAddr, path: &str) -> (String, String) {
    ask(
        address,
        &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    )
}

/// Samples by name and labels. Checks that every line is valid OpenMetrics.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let mut types = BTreeMap::new();
    let mut samples = BTreeMap::new();
    assert!(text.ends_with("# EOF\n"));
    for line in text.lines().filter(|line| *line != "# EOF") {
        if let Some(comment) = line.strip_prefix("# ") {
            let parts: Vec<&str> = comment.splitn(3, ' ').collect();
            if parts[0] == "TYPE" {
                let again = types.insert(parts[1].to_owned(), parts[2].to_owned());
                assert_eq!(again, None, "{line}");
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').expect("name and value");
        let name = series.split('{').next().expect("a name");
        let family = types.keys().find(|family| name.starts_with(*family));
        let family = family.unwrap_or_else(|| panic!("{line} has no type"));
        assert!(name.starts_with("ultima_"), "{line}");
        match types[family].as_str() {
            "counter" => assert!(name.ends_with("_total"), "{line}"),
            "histogram" => assert!(family.ends_with("_seconds"), "{line}"),
            "gauge" => assert_eq!(name, family),
            other => panic!("{other}"),
        }
        let value = value.parse().expect("a number");
        assert_eq!(samples.insert(series.to_owned(), value), None, "{line}");
    }
    samples
}

#[test]
fn scraped_metrics_match_the_report() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut collectives = ranks(Duration::from_secs(20));
    let metrics = Arc::new(Metrics::default());
    for (rank, collective) in (0..).zip(&collectives) {
        metrics.watch("train \"a\"", rank, collective.observer());
    }
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let exporter = runtime
        .block_on(Exporter::serve(loopback, metrics))
        .expect("loopback");
    let address = exporter.address();

    let (head, before) = get(address, "/metrics");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(
        head.contains("application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    let complete = |rank: u16, name: &str| {
        format!("ultima_{name}{{job=\"train \\\"a\\\"\",rank=\"{rank}\",closed_by=\"complete\"}}")
    };
    let ended = complete(1, "operation_duration_seconds_count");
    assert_eq!(parse(&before)[&ended], 0.0);

    average(&mut collectives);
    let samples = parse(&get(address, "/metrics").1);
    for (rank, collective) in (0u16..).zip(&mut collectives) {
        let report = collective.report().expect("it runs");
        let history = collective.observer().history();
        let sum_of = |name: &str, label: &str| -> f64 {
            let whose = format!("rank=\"{rank}\"");
            let of = samples.iter().filter(|(series, _)| {
                series.starts_with(&format!("ultima_{name}{{"))
                    && series.contains(&whose)
                    && series.contains(label)
            });
            of.map(|(_, value)| value).sum()
        };
        let operations = sum_of("operation_duration_seconds_count", "");
        assert_eq!(operations, f64::from(OPERATIONS));
        // The last bucket counts all of them.
        let all = sum_of("shard_duration_seconds_bucket", "le=\"+Inf\"");
        assert_eq!(all, operations);
        let durations = sum_of("operation_duration_seconds_sum", "");
        let expected = history.all(ultima_host::Span::Operation).sum();
        assert!((durations - expected.as_secs_f64()).abs() < 1e-9);
        let phases = report.totals.phases;
        assert_eq!(
            sum_of("sent_packets_total", "kind=\"scatter\""),
            phases.scatter.sent as f64
        );
        assert!(phases.scatter.sent > 0);
        assert_eq!(sum_of("owed_packets_total", ""), history.owed() as f64);
        assert_eq!(
            sum_of("lost_packets_total", "phase=\"gather\""),
            history.lost().gather.total() as f64
        );
    }

    // A rank that has ended keeps its counters.
    drop(collectives);
    let after = parse(&get(address, "/metrics").1);
    let ended = |samples: &BTreeMap<String, f64>| -> f64 {
        let of = samples
            .iter()
            .filter(|(s, _)| s.contains("operation_duration_seconds_count"));
        of.map(|(_, count)| count).sum()
    };
    assert_eq!(ended(&after), ended(&samples));
}

/// An absent rank is suspected after three operations, until a packet arrives from it.
#[test]
fn a_suspected_rank_is_reported_until_it_is_heard() {
    let mut collectives = ranks(Duration::from_millis(20));
    let mut gone = collectives.pop().expect("two");
    let mut here = collectives.pop().expect("two");
    let metrics = Metrics::default();
    metrics.watch("train", 0, here.observer());
    let series = "ultima_suspected{job=\"train\",rank=\"0\",peer=\"1\"}";
    let value = |metrics: &Metrics| parse(&metrics.text()).get(series).copied();
    assert_eq!(value(&metrics), None);
    let average = |collective: &mut Collective, step| {
        let id = OperationId { step, bucket: 0 };
        collective
            .allreduce(id, &mut [1.0; 100])
            .expect("it ends")
            .suspected
    };
    for step in 0..3 {
        average(&mut here, step);
    }
    assert_eq!(value(&metrics), Some(1.0));
    // Its contribution is stored at rank 0 before that starts.
    average(&mut gone, 3);
    assert!(average(&mut here, 3).is_empty());
    assert_eq!(value(&metrics), Some(0.0));
}

#[test]
fn other_requests_are_refused_and_long_ones_cut() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let exporter = runtime
        .block_on(Exporter::serve(loopback, Arc::<Metrics>::default()))
        .expect("loopback");
    let address = exporter.address();
    let (head, body) = get(address, "/");
    assert!(
        head.starts_with("HTTP/1.1 404") && body.contains("/metrics"),
        "{head} {body}"
    );
    let (head, _) = ask(
        address,
        "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    );
    assert!(head.starts_with("HTTP/1.1 405"), "{head}");
    let (head, _) = ask(address, "what?\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 400"), "{head}");
    let long = "x".repeat(20_000);
    let mut connection = TcpStream::connect(address).expect("it listens");
    // The server may close the connection before all of it is written.
    let _ = connection.write_all(format!("GET /{long} HTTP/1.1\r\n").as_bytes());
    let mut answer = Vec::new();
    let _ = connection.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(!answer.starts_with("HTTP/1.1 2"), "{answer}");
    // Silent connections lose their place, and others are served meanwhile.
    let silent: Vec<TcpStream> = (0..20)
        .map(|_| TcpStream::connect(address).expect("it listens"))
        .collect();
    assert!(get(address, "/metrics").0.starts_with("HTTP/1.1 200"));
    drop(silent);
}
