//! The controller's metrics, and drawings of the fabric.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;

use crate::common::{output, refused, ultima};
use ultima_tests::fabric::Fabric;
use ultima_tests::stage::Target;

fn scrape(address: &str) -> String {
    let mut connection = TcpStream::connect(address).expect("it listens");
    let request = "GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n";
    connection.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("it answers");
    answer
}

/// `ultima controller serve` replaces the controller of the test.
#[test]
fn the_controller_serves_metrics() {
    Target::Sockets.run(Fabric::pair(), &[], |stage| {
        let folder = tempfile::tempdir().expect("a folder");
        let fabric = folder.path().join("fabric.yaml");
        let yaml = Fabric::pair().yaml(&stage.testbed.grpc());
        std::fs::write(&fabric, yaml).expect("written");
        drop(stage.controller);
        let fabric = fabric.to_str().expect("text");
        let serve = ["controller", "serve", "--fabric", fabric];
        let options = [
            "--listen",
            "127.0.0.1:0",
            "--metrics",
            "0",
            "--state",
            "memory",
        ];
        let mut child = ultima(&[&serve[..], &options].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let said = lines.find_map(|line| {
            let line = line.expect("text");
            let address = line
                .strip_prefix("metrics at http://")?
                .strip_suffix("/metrics")?;
            Some(address.to_owned())
        });
        let address = said.expect("it says where");
        let mut listening = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        stdout.read_line(&mut listening).expect("text");
        let controller = listening
            .trim()
            .strip_prefix("listening on ")
            .expect("an address");

        let job = folder.path().join("job.yaml");
        std::fs::write(&job, "{ name: train, members: [h1, h3] }").expect("written");
        let create = ["job", "create", "-f", job.to_str().expect("text")];
        let created = output(&[&create[..], &["--controller", controller]].concat());
        assert!(created.status.success(), "{created:?}");
        // Without TLS the address of the control API has them for the same clients.
        assert!(scrape(controller).contains("\nultima_controller_jobs 1\n"));
        let text = scrape(&address);
        for line in [
            "ultima_controller_jobs 1",
            r#"ultima_controller_switch_connected{switch="s2"} 1"#,
            r#"ultima_controller_used{switch="s1",of="multicast groups"} 1"#,
            r#"ultima_controller_limit{switch="s1",of="multicast groups"} 4096"#,
            r#"ultima_controller_job_creation_duration_seconds_count{result="created"} 1"#,
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line}: {text}");
        }
        let written = r#"ultima_controller_written_updates_total{switch="s1"} "#;
        let written = text.lines().find_map(|line| line.strip_prefix(written));
        let written: u64 = written.expect("a counter").parse().expect("a number");
        assert!(written > 10, "{written}");
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    });
}

#[test]
fn a_job_is_drawn_on_its_fabric() {
    let train = "{ name: train, members: [h1, h1, h3] }";
    Target::Sockets.run(Fabric::pair(), &[train], |stage| {
        let address = stage.controller.address();
        let show = ["fabric", "show", "--controller", &address];
        let draw = |options: &[&str]| {
            let output = output(&[&show[..], options].concat());
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).expect("text")
        };
        let text = draw(&["--dot", "--job", "train"]);
        let tree =
            r#""switch s1" -- "switch s2" [taillabel="9", headlabel="9", penwidth=3, color=blue];"#;
        assert!(text.contains(tree), "{text}");
        assert!(text.contains(r#"label="h1\nrank 0, 1""#), "{text}");
        assert!(text.contains(r#"label="h2"]"#), "{text}");
        assert!(!draw(&["--dot"]).contains("blue"));
        let text = refused(&[&show[..], &["--job", "train"]].concat());
        assert!(text.contains("--dot"), "{text}");
    });
}
