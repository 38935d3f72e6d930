use std::collections::HashSet;

use super::*;
use crate::fabric::{self, Fabric};

fn two_switches() -> Fabric {
    fabric::parse(
        include_str!("../../../topologies/two-switches.yaml"),
        "two.yaml",
    )
    .unwrap()
}

fn spec(members: &[&str]) -> JobSpec {
    JobSpec::new("train", members.iter().copied())
}

#[test]
fn reads_yaml() {
    assert_eq!(
        parse("name: train\nmembers: [h1, h2]\n", "j.yaml").unwrap(),
        JobRequest::Job(spec(&["h1", "h2"]))
    );
    let full = "name: train\nmembers: [h1, h2]\ngather: unicast\nseed: 7\nweight: 100\nevict_after_s: 5\nsealed: true\n";
    let expected = JobSpec {
        gather: Gather::Unicast,
        seed: Some(7),
        policy: JobPolicy {
            weight: Weight(100),
            eviction: Eviction::After(5),
            ..JobPolicy::default()
        },
        sealed: true,
        ..spec(&["h1", "h2"])
    };
    assert_eq!(parse(full, "j.yaml").unwrap(), JobRequest::Job(expected));
    let grid = "name: train\nmembers: [h1, h2, h3, h4]\ngroups: 2\n";
    let whole = spec(&["h1", "h2", "h3", "h4"]);
    let expected = GridSpec::new(whole, 2).map(JobRequest::Grid);
    assert_eq!(parse(grid, "j.yaml").unwrap(), expected.unwrap());
}

/// The output of `ultima get jobs -o yaml`: a list, with the state of each job.
#[test]
fn a_list_may_have_the_state_of_its_jobs() {
    let text = "\
- name: one
  members: [h1, h2]
  status: { id: 7, members: [{ rank: 0, host: h9 }], unfit: '' }
- name: two
  members: [h2, h1]
  weight: 2
";
    let jobs = parse_all(text, "j.yaml").unwrap();
    let [one, two] = &jobs[..] else {
        panic!("{jobs:?}")
    };
    assert_eq!(one.request.names(), ["one"]);
    let JobRequest::Job(spec) = &one.request else {
        panic!("no grid")
    };
    assert_eq!(spec.members, ["h1", "h2"]);
    assert!(two.has("weight") && !one.has("weight"));
    let places = [
        two.place(),
        two.place_of("members[1]"),
        two.place_of("seed"),
    ];
    let places = places.map(|place| place.to_string());
    assert_eq!(places, ["j.yaml:4:3", "j.yaml:5:17", "j.yaml:4:3"]);
    for (from, to, expected) in [
        (
            "weight: 2",
            "wait: 2",
            "j.yaml:6:3: [1]: unknown field `wait`",
        ),
        (
            "weight: 2",
            "weight: 0",
            "j.yaml:6:11: [1].weight: 0 is out of range",
        ),
        (
            "weight: 2",
            "weight: x",
            "j.yaml:6:11: [1].weight: expected a whole number",
        ),
    ] {
        let error = parse_all(&text.replace(from, to), "j.yaml").unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    assert!(
        parse_all("[]", "j.yaml")
            .unwrap_err()
            .to_string()
            .contains("no job")
    );
    let error = parse_all("train", "j.yaml").unwrap_err().to_string();
    assert!(
        error.contains("expected a job, or a list of jobs"),
        "{error}"
    );
    assert!(parse(text, "j.yaml").is_err() && parse("[]", "j.yaml").is_err());
}

#[test]
fn invalid_files_give_one_line_errors() {
    let cases = [
        (
            "nam: train\nmembers: [h1, h2]",
            "j.yaml:1:1: unknown field `nam`, expected one of name, members, gather, seed, loss_threshold, weight, evict_after_s, sealed, groups, status",
        ),
        (
            "name: a b\nmembers: [h1, h2]",
            "j.yaml:1:7: name: invalid name \"a b\"; use 1 to 63 letters, digits, '-', '_' or '.', starting with a letter or digit",
        ),
        (
            "name: train\nmembers: [h1]",
            "j.yaml:2:10: members: 1 members; a job has 2 to 65535",
        ),
        (
            "name: train\nmembers: [h1, h2]\ngather: broadcast",
            "j.yaml:3:9: gather: unknown value `broadcast`, expected one of multicast, unicast",
        ),
        (
            "name: train\nmembers: [h1, h2]\nseed: -1",
            "j.yaml:3:7: seed: expected a whole number from 0 to 18446744073709551615",
        ),
        (
            "name: train\nmembers: h1",
            "j.yaml:2:10: members: expected a list, such as [a, b], or a line with `- ` for each",
        ),
        (
            "name: train\nmembers: [[h1], h2]",
            "j.yaml:2:11: members[0]: expected one value, not a list or fields; quote a text that begins with [ or {",
        ),
        (
            "- train",
            "j.yaml:1:3: [0]: expected fields, such as { name: value }",
        ),
        (
            "name:\nmembers: [h1, h2]",
            "j.yaml:1:5: name: expected a text, found nothing",
        ),
        (
            "name: train\nmembers: [h1, h2]\ngather: [unicast]",
            "j.yaml:3:9: gather: expected one word",
        ),
        (
            "name: train\nmembers: [h1, h2]\nname: again",
            "j.yaml:3:1: duplicate field `name`",
        ),
        (
            "name: train\nmembers: [h1, h2]\n---\nname: again",
            "j.yaml:4:1: a second document begins; the file must have one",
        ),
        ("", "j.yaml:1:1: the file ends where a value is expected"),
        (
            "name: train\nmembers: [h1, h2]\nweight: 0",
            "j.yaml:3:9: weight: 0 is out of range; use a weight of 1 to 100",
        ),
        (
            "name: train\nmembers: [h1, h2]\nweight: 101",
            "j.yaml:3:9: weight: 101 is out of range; use a weight of 1 to 100",
        ),
        (
            "name: train\nmembers: [h1, h2]\nevict_after_s: 86401",
            "j.yaml:3:16: evict_after_s: 86401 s is out of range; use 1 to 86400, or 0 to never evict",
        ),
        (
            "name: train\nmembers: [h1, h2, h3]\ngroups: 2",
            "j.yaml:3:9: groups: cannot divide 3 members into 2 equal groups; a grid has 2 or more groups of 2 or more ranks each",
        ),
        (
            "name: train\nmembers: [h1, h2, h1, h3]\ngroups: 2",
            "j.yaml:2:10: members: host h1 has ranks in several groups; put all ranks of a host in one group",
        ),
    ];
    for (text, line) in cases {
        assert_eq!(parse(text, "j.yaml").unwrap_err().to_string(), line);
    }
}

#[test]
fn files_without_a_job_are_rejected() {
    for text in ["", "---\n", "# nothing\n--- # here\n"] {
        assert_eq!(
            parse_all(text, "j.yaml").unwrap_err().to_string(),
            "j.yaml: the file has no job; expected at least { name: train, members: [h1, h2] }"
        );
    }
    let both = "{ name: a, members: [h1, h2] }\n---\n---\n{ name: b, members: [h1, h2] }";
    assert_eq!(parse_all(both, "j.yaml").unwrap().len(), 2);
}

fn place(fabric: &Fabric, spec: &JobSpec, taken: &HashSet<Member>) -> Result<Vec<Member>, Refusal> {
    super::place(fabric, spec, Epoch(1), taken)
}

#[test]
fn ranks_of_one_host_get_consecutive_ports() {
    let fabric = two_switches();
    let members = place(&fabric, &spec(&["h1", "h2", "h1"]), &HashSet::new()).unwrap();
    let first = ultima_wire::UDP_PORT;
    assert_eq!(
        members
            .iter()
            .map(|member| member.udp_port)
            .collect::<Vec<_>>(),
        [first, first, first + 1]
    );
    assert_eq!(members[0].host, members[2].host);
}

#[test]
fn a_second_job_on_a_host_gets_other_ports() {
    let fabric = two_switches();
    let first = place(&fabric, &spec(&["h1", "h1", "h2"]), &HashSet::new()).unwrap();
    let second = place(
        &fabric,
        &spec(&["h2", "h1", "h3"]),
        &first.iter().copied().collect(),
    )
    .unwrap();
    assert!(second.iter().all(|member| !first.contains(member)));
    assert_eq!(second[1].udp_port, ultima_wire::UDP_PORT + 2);
}

#[test]
fn members_that_cannot_be_placed_are_named() {
    let fabric = two_switches();
    let line = |members: &[&str]| {
        place(&fabric, &spec(members), &HashSet::new())
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        line(&["h1", "h9"]),
        "members[1]: unknown host \"h9\" (the fabric has h1, h2, h3, h4)"
    );
    assert_eq!(
        line(&["h1", "h2", "h2"]),
        "members[2]: host h2 has room for 1 rank of a job (`ranks` in the fabric's file); list another host"
    );
    assert_eq!(line(&["h1"]), "1 members; a job has 2 to 65535");
    assert!(line(&[]).starts_with("no members; expected their hosts"));
}

#[test]
fn hosts_without_free_ports_are_named() {
    let text = include_str!("../../../topologies/two-switches.yaml")
        .replace("ip: 10.0.0.2 }", "ip: 10.0.0.2, udp_port: 65535 }");
    let fabric = fabric::parse(&text, "two.yaml").unwrap();
    let first = place(&fabric, &spec(&["h1", "h2"]), &HashSet::new()).unwrap();
    let line = place(
        &fabric,
        &spec(&["h1", "h2"]),
        &first.iter().copied().collect(),
    )
    .unwrap_err()
    .to_string();
    assert_eq!(
        line,
        "members[1]: host h2 has no free UDP port from 65535 up; delete a job, or lower the host's udp_port in the fabric's file"
    );
}
