//! Several controllers of one fabric: one leads, the others stand by and take over, and a partitioned one commits nothing.

use std::time::{Duration, Instant};

use ultima_api::address::Listen;
use ultima_api::client::Client;
use ultima_api::v1::membership_event::Kind;
use ultima_api::v1::{self as api, MemberState};
use ultima_controller::job::JobSpec;
use ultima_controller::p4rt::Term;
use ultima_controller::server::{Group, JobRequestError};
use ultima_controller::store::Store;

use crate::bed::{TIMERS, until};
use crate::chaos;
use crate::chaos::wire::Wire;
use crate::crew;
use crate::group::{self, Bed, GRACE, Node, names};
use crate::target::Target;

/// The standby knows everything that was committed, and writes nothing to switches.
#[tokio::test]
async fn a_standby_takes_over_and_the_first_controller_follows() {
    let bed = Bed::with_short_ack_timeout(2).await;
    let [mut first, second] = bed.pair().await;
    let client = first.client().await;
    for name in ["one", "two", "gone"] {
        client.create_job(&group::spec(name)).await.unwrap();
    }
    client.join("one", "h2", Duration::ZERO).await.unwrap();
    client.delete_job("gone").await.unwrap();
    client.drain("s1", true).await.unwrap();
    let jobs = client.jobs().await.unwrap();
    let (held, updates) = (bed.held(), bed.updates());

    first.stop();
    let ended = Instant::now();
    second.leads().await;
    eprintln!(
        "takeover of 2 jobs on 3 switches: {:?}, of which {GRACE:?} grace",
        ended.elapsed()
    );
    let client = second.client().await;
    assert_eq!(client.jobs().await.unwrap(), jobs);
    assert_eq!(jobs[0].members[1].state(), MemberState::Joined);
    assert_eq!(client.switches().await.unwrap()[0].health, "drained");
    assert_eq!(
        (bed.held(), bed.updates()),
        (held, updates),
        "nothing is written"
    );
    // A leader without followers commits nothing.
    let refused = client.create_job(&group::spec("three")).await.unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains("only 0 of 1 other controllers follow after 1 s"),
        "{text}"
    );
    assert_eq!(bed.held(), held_of(&bed, &second).await);
    assert_eq!(names(&client).await, ["one", "two"]);

    let first = bed.start(0).await;
    second.followers(1).await;
    client.create_job(&group::spec("three")).await.unwrap();
    let standing = first.standing().await;
    assert_eq!(
        standing.leader,
        bed.address(0, 1),
        "it says where the leader is"
    );
    drop(second);
    first.leads().await;
    assert_eq!(names(&first.client().await).await, ["one", "two", "three"]);
    first.is_whole().await;
}

/// The leader stops before its answer arrives; the next leader assigns the same rank.
#[tokio::test]
async fn a_rank_whose_answer_was_lost_is_assigned_again() {
    let bed = Bed::new(2).await;
    let mut first = bed.start(0).await;
    first.leads().await;
    let second = bed.start(1).await;
    first.followers(1).await;
    let client = first.client().await;
    let sealed = JobSpec {
        sealed: true,
        ..group::spec("one")
    };
    client.create_job(&sealed).await.unwrap();
    let mut watch = client.watch_job("one").await.unwrap();

    let Listen::Tcp(address) = first.handle().address() else {
        panic!("an address")
    };
    let wire = Wire::start(*address).await;
    let both = format!("{},{}", wire.address(), second.handle().address());
    let member = Client::connect(&both).await.unwrap();
    let minute = Duration::from_secs(60);
    let joining = tokio::spawn(async move { member.join("one", "h1", minute).await });
    let rank = async || client.job("one").await.unwrap().members[0].state();
    until(async || rank().await != MemberState::Free).await;
    wire.swallow(true);
    let mut keys = Vec::new();
    for host in ["h2", "h3"] {
        let seat = client.join("one", host, Duration::ZERO).await.unwrap();
        keys.push(seat.key);
    }
    let mut joined = 0;
    while joined < 3 {
        let next = watch.next().await.unwrap().expect("more happens");
        joined += usize::from(next.event.is_some_and(|it| it.kind() == Kind::Joined));
    }
    first.stop();
    wire.refuse(true);
    let seat = joining.await.unwrap().unwrap();
    assert_eq!((seat.rank, seat.epoch), (0, 1));
    // The key of an epoch is the same.
    assert_eq!((keys[0].len(), &seat.key), (16, &keys[0]));
    assert_eq!(keys[1], keys[0]);
    assert!(second.is_leader());
}

/// The switches' entities after the leader's audit.
async fn held_of(bed: &Bed, node: &Node) -> Vec<chaos::Held> {
    node.is_whole().await;
    bed.held()
}

/// When the partition ends, it follows the new leader.
#[tokio::test]
async fn a_partitioned_leader_commits_nothing() {
    // A partition that breaks connections is noticed at once; one that holds back bytes is not.
    for &swallow in ultima_testing::per_run(&[true][..], &[true, false][..]) {
        let bed = Bed::with_short_ack_timeout(2).await;
        let [old, new] = bed.pair().await;
        let client = old.client().await;
        client.create_job(&group::spec("before")).await.unwrap();

        bed.part(0, swallow);
        // It does not know yet that it is deposed, but cannot commit requests.
        let controller = old.handle().leader().unwrap();
        let asked =
            tokio::spawn(async move { controller.join("before", ("h1", 0), None).await.map(drop) });
        new.leads().await;
        let client = new.client().await;
        assert_eq!(names(&client).await, ["before"]);
        // Without a standby nothing can be committed.
        client.create_job(&group::spec("early")).await.unwrap_err();
        asked.await.unwrap().unwrap_err();

        bed.heal(0);
        new.followers(1).await;
        client.create_job(&group::spec("after")).await.unwrap();
        new.is_whole().await;
        assert_eq!(names(&client).await, ["before", "after"]);
        until(async || old.standing().await.leader == bed.address(0, 1)).await;
        assert!(old.handle().leader().is_none());
        // Its store equals the leader's.
        until(async || old.standing().await.history == new.standing().await.history).await;
    }
}

/// A request that still holds the old leader's `Controller` changes nothing.
#[tokio::test]
async fn a_deposed_leader_changes_nothing() {
    let bed = Bed::new(2).await;
    let [old, new] = bed.pair().await;
    let controller = old.handle().leader().unwrap();
    controller.create_job(&group::spec("one")).await.unwrap();
    bed.part(0, false);
    new.leads().await;
    let (held, changes) = (bed.held(), new.standing().await.history);
    let refused = async || {
        for refused in [
            controller.create_job(&group::spec("late")).await.map(drop),
            controller.delete_job("one").await.map(drop),
            controller.join("one", ("h1", 0), None).await.map(drop),
        ] {
            let error = refused.unwrap_err();
            let is_so = matches!(
                error,
                JobRequestError::Stopping | JobRequestError::NotLeader
            );
            assert!(is_so, "{error}");
        }
        controller.drain("s1", true).await.unwrap_err();
    };
    refused().await;
    bed.heal(0);
    new.followers(1).await;
    refused().await;
    assert_eq!(bed.held(), held);
    assert_eq!(new.standing().await.history, changes);
}

/// One of three leads at a time, and all committed jobs are there.
#[tokio::test]
async fn repeated_takeovers_lose_no_job() {
    let bed = Bed::new(3).await;
    let mut nodes = [bed.start(0).await, bed.start(1).await, bed.start(2).await];
    let mut promised = Vec::new();
    for round in 0..ultima_testing::per_run(2, 4) {
        let leader = group::settled(&nodes).await;
        let client = nodes[leader].client().await;
        for part in ["a", "b"] {
            let name = format!("job{round}{part}");
            client.create_job(&group::spec(&name)).await.unwrap();
            promised.push(name);
        }
        if round > 0 {
            let gone = promised.remove(0);
            client.delete_job(&gone).await.unwrap();
        }
        assert_eq!(names(&client).await, promised);
        nodes[leader].stop();
        let next = group::only_leader(&nodes).await;
        assert_ne!(next, leader);
        nodes[leader] = bed.start(leader).await;
    }
    let leader = group::settled(&nodes).await;
    assert_eq!(names(&nodes[leader].client().await).await, promised);
    nodes[leader].is_whole().await;
}

#[tokio::test]
async fn a_follower_that_is_behind_catches_up_before_it_leads() {
    let bed = Bed::new(3).await;
    let nodes = [bed.start(0).await, bed.start(1).await];
    let leader = group::settled(&nodes).await;
    let [mut first, mut second] = match nodes {
        [second, first] if leader == 1 => [first, second],
        in_order => in_order,
    };
    let client = first.client().await;
    client.create_job(&group::spec("one")).await.unwrap();
    let third = bed.start(2).await;
    first.followers(2).await;
    // The third does not get the next job; the second has it in its store.
    bed.part_peers(leader, 2);
    client.create_job(&group::spec("two")).await.unwrap();
    first.stop();
    second.stop();
    // The third may miss commits, and does not lead alone.
    third.says("1 of 2 controllers").await;
    assert!(third.handle().leader().is_none());
    // It has claimed no term: that would depose the next leader.
    assert_eq!(third.standing().await.term.unwrap().number, 1);
    bed.heal_peers(leader, 2);
    let second = bed.start(1 - leader).await;
    let leader = group::only_leader_of(&[&second, &third]).await;
    let client = leader.client().await;
    assert_eq!(names(&client).await, ["one", "two"]);
    leader.is_whole().await;
}

/// Without copies only the last leader may know everything, so an older store does not lead by itself.
#[tokio::test]
async fn an_older_store_leads_only_when_forced() {
    let bed = Bed::with(2, |group| group.copies = 0).await;
    let [mut first, mut second] = bed.pair().await;
    first.stop();
    second.leads().await;
    let client = second.client().await;
    client.create_job(&group::spec("later")).await.unwrap();
    second.stop();

    let mut first = bed.start(0).await;
    first.says("changes are not stored here").await;
    first.stop();
    let first = bed.start_with(0, |group| group.lead_anyway = true).await;
    first.leads().await;
    assert_eq!(names(&first.client().await).await, [""; 0]);
    first.is_whole().await;
    // The other one accepts the new history.
    let second = bed.start(1).await;
    first.followers(1).await;
    until(async || second.standing().await.history == first.standing().await.history).await;
}

/// A controller that led alone gets a peer and stops before that has copied its jobs. They are not lost.
#[tokio::test]
async fn an_empty_store_does_not_lead_after_another_controller() {
    let bed = Bed::new(2).await;
    let alone = bed.serve_alone(0).await.unwrap();
    let created = alone.controller().create_job(&group::spec("one")).await;
    created.unwrap();
    let held = bed.held();
    let second = bed.start(1).await;
    alone.stop().await;
    second.says("all that answer are empty").await;
    assert_eq!(bed.held(), held);
    // With the first one, every leader knows its job.
    let first = bed.start(0).await;
    let leader = group::only_leader_of(&[&first, &second]).await;
    assert_eq!(names(&leader.client().await).await, ["one"]);
    leader.is_whole().await;
}

/// The lost store may have held committed jobs.
#[tokio::test]
async fn a_replaced_store_does_not_count_for_the_quorum() {
    let bed = Bed::new(3).await;
    let mut nodes = [bed.start(0).await, bed.start(1).await, bed.start(2).await];
    let leader = group::settled(&nodes).await;
    let [replaced, behind] = [1, 2].map(|more| (leader + more) % 3);
    nodes[behind].stop();
    let client = nodes[leader].client().await;
    client.create_job(&group::spec("one")).await.unwrap();
    nodes[leader].stop();
    nodes[replaced].stop();
    std::fs::remove_file(bed.state(replaced)).unwrap();
    // Neither of these controllers knows the job.
    nodes[behind] = bed.start(behind).await;
    nodes[replaced] = bed.start(replaced).await;
    nodes[behind].says("its store is empty").await;
    assert!(nodes.iter().all(|node| !node.is_leader()));
    nodes[leader] = bed.start(leader).await;
    let leader = group::settled(&nodes).await;
    assert_eq!(names(&nodes[leader].client().await).await, ["one"]);
}

/// A follower that accepted a new term copies from the new leader, even if the old one still sends.
#[tokio::test]
async fn followers_switch_to_the_new_leader() {
    // Of two equal stores the greater number claims first, except on a busy machine.
    for _ in 0..5 {
        if the_expected_one_leads_and_is_followed().await {
            return;
        }
    }
    panic!("the one with the smaller number went first each time");
}

/// Returns false if the other one leads.
async fn the_expected_one_leads_and_is_followed() -> bool {
    let bed = Bed::new(3).await;
    let nodes = [bed.start(0).await, bed.start(1).await, bed.start(2).await];
    let old = group::settled(&nodes).await;
    let mut others = [1, 2].map(|more| (old + more) % 3);
    let number = async |at: usize| nodes[at].standing().await.controller;
    if number(others[0]).await < number(others[1]).await {
        others.reverse();
    }
    let [new, other] = others;
    // The old leader does not reach the new one, and keeps its other follower.
    bed.part_peers(old, new);
    bed.part_from_switches(old);
    while !nodes[new].is_leader() {
        if nodes[other].is_leader() {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    nodes[new].followers(1).await;
    let client = nodes[new].client().await;
    client.create_job(&group::spec("one")).await.unwrap();
    true
}

/// The same leader goes on, or another one takes over.
#[tokio::test]
async fn a_short_loss_of_all_switches_is_survived() {
    let bed = Bed::new(2).await;
    let nodes = [bed.start(0).await, bed.start(1).await];
    let leader = group::settled(&nodes).await;
    let client = nodes[leader].client().await;
    client.create_job(&group::spec("one")).await.unwrap();
    bed.shake(leader);
    loop {
        let leader = &nodes[group::only_leader(&nodes).await];
        let client = leader.client().await;
        // Repeats a request that came too early.
        let is_there = match client.create_job(&group::spec("two")).await {
            Ok(_) => true,
            Err(error) => error.to_string().contains("already exists"),
        };
        if is_there && leader.is_whole_now().await {
            let jobs = client.jobs().await.unwrap_or_default();
            let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
            if leader.is_leader() {
                assert_eq!(names, ["one", "two"]);
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Most switches disconnect during a drain: it is not reported as done, and the rest of it is done later, also without
/// repairs.
#[tokio::test]
async fn a_reroute_interrupted_by_lost_leadership_is_finished_later() {
    let bed = Bed::ring(|config| {
        config.repair = false;
        // Only drains reroute.
        config.terms.grace = Duration::from_secs(600);
    })
    .await;
    let node = bed.start(0).await;
    node.leads().await;
    let client = node.client().await;
    for job in ["one", "two"] {
        client.create_job(&group::spec(job)).await.unwrap();
    }
    let held = bed.switches[2].held();
    let slow = &bed.switches[0];
    slow.state().stalls_writes = true;
    let link = Target::of_run().part("s2/8-s3/8");
    let draining = tokio::spawn({
        let (client, link) = (client.clone(), link.clone());
        async move { client.drain(&link, true).await }
    });
    // It waits for s1; s3 has its first entries.
    until(async || slow.state().stalled_writes > 0).await;
    until(async || bed.switches[2].held() != held).await;
    bed.part_from(0, &[0, 1], true);
    let refused = draining.await.unwrap().unwrap_err().to_string();
    assert!(
        refused.contains("not primary at more than half"),
        "{refused}"
    );
    slow.state().stalls_writes = false;
    bed.part_from(0, &[0, 1], false);
    node.is_whole().await;
    assert_ne!(bed.switches[2].held(), held);
    assert!(
        client
            .drain(&link, true)
            .await
            .unwrap()
            .pending_switches
            .is_empty()
    );
}

/// No term could follow the highest one.
#[tokio::test]
async fn implausible_terms_are_rejected() {
    let bed = Bed::new(2).await;
    let [mut first, second] = bed.pair().await;
    let absurd = api::Term {
        number: u64::MAX,
        controller: 7,
    };
    for node in [&first, &second] {
        let mut rpc = node.replication().await;
        let request = api::ClaimRequest {
            term: Some(absurd),
            history: None,
            controllers: 2,
            copies: 1,
            ..Default::default()
        };
        rpc.claim(request).await.unwrap_err();
        let following = api::Following {
            controller: 7,
            history: None,
            accepted: Some(absurd),
            controllers: 2,
            copies: 1,
            ..Default::default()
        };
        let following = api::FollowRequest {
            event: Some(api::follow_request::Event::Following(following)),
        };
        let refused = rpc.follow(tokio_stream::once(following)).await;
        assert!(refused.is_err(), "the place is another one's");
    }
    assert_eq!(first.standing().await.term.unwrap().number, 1);
    assert!(first.is_leader());
    first.stop();
    second.leads().await;
    assert_eq!(second.standing().await.term.unwrap().number, 2);
}

/// A commit reaches the next leader only if all use the same number of copies.
#[tokio::test]
async fn a_controller_with_another_copy_count_is_rejected() {
    let bed = Bed::new(2).await;
    let [mut first, mut second] = bed.pair().await;
    second.stop();
    let second = bed.start_with(1, |group| group.copies = 0).await;
    second
        .says("the groups differ, 2 controllers with --copies 1 and 2 controllers with --copies 0")
        .await;
    assert_eq!(first.standing().await.followers, []);
    // Neither leads while the other one runs.
    first.stop();
    let first = bed.start(0).await;
    first
        .says("the groups differ, 2 controllers with --copies 0")
        .await;
    second.says("does not lead: ").await;
    assert!(!first.is_leader() && !second.is_leader());
}

/// A takeover rewrites the switches for its own fabric, so all must have the same one.
#[tokio::test]
async fn a_controller_with_another_fabric_is_rejected() {
    let mut bed = Bed::new(2).await;
    let [mut first, mut second] = bed.pair().await;
    let created = first.client().await.create_job(&group::spec("train")).await;
    created.unwrap();
    second.stop();
    bed.close_the_ring();
    let second = bed.start(1).await;
    second.says("the fabrics differ, ").await;
    first.says("cannot follow: the fabrics differ, ").await;
    assert_eq!(first.standing().await.followers, []);
    assert!(first.is_leader());
    // The leader restarts last.
    first.stop();
    second.leads().await;
    let first = bed.start(0).await;
    second.followers(1).await;
    until(async || second.standing().await.problem.is_empty()).await;
    drop(first);
}

/// A copied store makes two controllers with the same number: neither leads.
#[tokio::test]
async fn a_copied_store_is_noticed() {
    let bed = Bed::new(2).await;
    let mut first = bed.start(0).await;
    first.leads().await;
    first.stop();
    std::fs::copy(bed.state(0), bed.state(1)).unwrap();
    let nodes = [bed.start(0).await, bed.start(1).await];
    for node in &nodes {
        node.says("has the same number as this one").await;
        assert!(!node.is_leader());
    }
}

#[tokio::test]
async fn a_repeated_peer_is_rejected() {
    let bed = Bed::new(2).await;
    let twice = |group: &mut Group| group.peers.push(group.peers[0].clone());
    let refused = bed.try_start(0, twice).await.err().unwrap();
    assert_eq!(
        refused.to_string(),
        format!(
            "--peers {}: name each other controller once, and not this one",
            bed.address(0, 1)
        )
    );
}

/// Switches may not notice that their primary's machine is gone. The operator forces a takeover.
#[tokio::test]
async fn a_forced_controller_replaces_a_dead_leader() {
    let bed = Bed::new(2).await;
    let ghost = Term { number: 3, by: 7 };
    let _ghosts = [
        bed.ghost(0, ghost).await,
        bed.ghost(1, ghost).await,
        bed.ghost(2, ghost).await,
    ];
    let first = bed.start_with(0, |group| group.lead_anyway = true).await;
    first.leads().await;
    assert_eq!(first.standing().await.term.unwrap().number, 4);
    // The force applies once: a later term deposes it again.
    bed.part_from_switches(0);
    until(async || !first.leads_at_most().await).await;
    let by = Term { number: 5, by: 7 };
    let same = first.standing().await;
    let request = api::ClaimRequest {
        term: Some(by.into()),
        history: None,
        controllers: 2,
        copies: 1,
        fabric: same.fabric,
        program: same.program,
    };
    first.replication().await.claim(request).await.unwrap();
    until(async || !first.is_leader()).await;
    let _ghosts = [
        bed.ghost(0, by).await,
        bed.ghost(1, by).await,
        bed.ghost(2, by).await,
    ];
    bed.heal(0);
    until(async || first.standing().await.supporting_switches == 0).await;
    assert!(!first.is_leader());
}

/// A switch that answers no reads does not delay the takeover of others.
#[tokio::test]
async fn a_stuck_switch_does_not_delay_a_takeover() {
    let bed = Bed::new(2).await;
    let [mut first, second] = bed.pair().await;
    bed.switches[2].state().stalls_reads = true;
    first.stop();
    second.leads().await;
    // A controller that had waited for the answer would have disconnected the switch.
    let switches = second.client().await.switches().await.unwrap();
    assert!(
        switches[2].problem.contains("not brought up within"),
        "{switches:?}"
    );
    bed.switches[2].state().stalls_reads = false;
    second.is_whole().await;
}

/// Members find a new leader at different times.
#[tokio::test]
async fn members_that_find_the_new_leader_late_are_not_suspected() {
    let bed = Bed::new(2).await;
    let [mut first, second] = bed.pair().await;
    let client = first.client().await;
    client.create_job(&group::spec("train")).await.unwrap();
    let mut attendances = Vec::new();
    for host in ["h1", "h2", "h3"] {
        let seat = client.join("train", host, Duration::ZERO).await.unwrap();
        attendances.push(api::Attendance {
            slot_bytes: 1408,
            ..seat.attendance("train")
        });
    }
    first.stop();
    second.leads().await;
    let client = second.client().await;
    attendances.pop();
    for attendance in attendances {
        let client = client.clone();
        tokio::spawn(async move { crew::attend(&client, attendance).await });
    }
    // A member that had a session is suspected by then. The new leader waits longer for one that had none.
    assert!(TIMERS.takeover / 2 > TIMERS.members.suspicion);
    tokio::time::sleep(TIMERS.takeover * 3 / 4).await;
    let job = client.job("train").await.unwrap();
    let states = job.members.iter().map(api::Member::state);
    assert!(states.eq([MemberState::Joined; 3]), "{:?}", job.members);
}

#[tokio::test]
async fn a_store_of_a_group_is_not_opened_alone() {
    let bed = Bed::new(2).await;
    let mut first = bed.start(0).await;
    first.leads().await;
    first.stop();
    let refused = bed.serve_alone(0).await.err().unwrap().to_string();
    assert!(
        refused.starts_with("the store belongs to one of several controllers"),
        "{refused}"
    );
}

/// Joins that could not be committed leave their ranks free.
#[tokio::test]
async fn members_join_once_a_standby_is_back() {
    let bed = Bed::with_short_ack_timeout(2).await;
    let [first, mut second] = bed.pair().await;
    let client = first.client().await;
    client.create_job(&group::spec("one")).await.unwrap();
    second.stop();
    let join = async |host: &str| client.join("one", host, Duration::from_secs(30)).await;
    // All three join, and none of the joins can be committed.
    let (a, b, c) = tokio::join!(join("h1"), join("h2"), join("h3"));
    for refused in [a, b, c] {
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("0 of 1 other controllers"), "{text}");
    }
    let _second = bed.start(1).await;
    first.followers(1).await;
    let (a, b, c) = tokio::join!(join("h1"), join("h2"), join("h3"));
    for joined in [a, b, c] {
        joined.unwrap();
    }
}

/// The switches reject a controller with another store and no peers: its term is lower.
#[tokio::test]
async fn a_controller_without_peers_is_outranked_by_the_groups_term() {
    let bed = Bed::new(2).await;
    let mut first = bed.start(0).await;
    first.leads().await;
    // It is rejected while the group's leader runs.
    let refused = bed.serve_alone(2).await.err().unwrap().to_string();
    assert!(
        refused.contains("had a later primary, in term 1 of controller"),
        "{refused}"
    );
    first.stop();
    // It is rejected after that, too: it does not know what was committed.
    let refused = bed.serve_alone(2).await.err().unwrap().to_string();
    assert!(
        refused.contains("had a later primary, in term 1 of controller"),
        "{refused}"
    );
    let store = Store::open(&bed.state(0)).unwrap();
    let (history, by) = (store.history().unwrap(), store.controller());
    assert_eq!(history.term, Term { number: 1, by });
}

#[tokio::test]
async fn more_copies_than_peers_are_rejected() {
    let bed = Bed::with(2, |group| group.copies = 2).await;
    let refused = bed.try_start(0, |_: &mut Group| {}).await.err().unwrap();
    assert_eq!(
        refused.to_string(),
        "--copies 2 exceeds the number of controllers in --peers (1); add controllers to --peers, or lower --copies"
    );
}
