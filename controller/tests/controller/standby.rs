//! Several controllers for one fabric: one leads, others stand by and take over, and one that is cut off does no harm.

use std::time::{Duration, Instant};

use ultima_controller::api::membership_event::Kind;
use ultima_controller::api::{self, MemberState};
use ultima_controller::client::Client;
use ultima_controller::job::JobSpec;
use ultima_controller::p4rt::Term;
use ultima_controller::server::{Group, JobRequestError, Listen};
use ultima_controller::store::Store;

use crate::chaos;
use crate::chaos::wire::Wire;
use crate::crew;
use crate::group;
use crate::group::{Bed, GRACE, Node, names, until};
use crate::target::Target;

/// What is promised is known to who takes over, switches keep what they have, and the first one follows when it is back.
#[tokio::test]
async fn one_that_stands_by_takes_over_and_the_first_follows() {
    let bed = Bed::new(2).await;
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
    // Nothing is promised that nobody else knows.
    let refused = client.create_job(&group::spec("three")).await.unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains("only 0 of 1 other controllers follow after 3 s"),
        "{text}"
    );
    assert_eq!(bed.held(), held_of(&bed, &second).await);
    assert_eq!(names(&client).await, ["one", "two"]);

    let first = bed.start(0).await;
    second.followers(1).await;
    client.create_job(&group::spec("three")).await.unwrap();
    let standing = first.standing().await;
    assert_eq!(
        standing.primary,
        bed.address(0, 1),
        "it says where the primary is"
    );
    drop(second);
    first.leads().await;
    assert_eq!(names(&first.client().await).await, ["one", "two", "three"]);
    first.is_whole().await;
}

/// A primary ends with the answer to who has got a rank: the next one gives it the same.
#[tokio::test]
async fn a_rank_whose_answer_was_lost_is_given_again() {
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
    // Of the same epoch it tells the same key.
    assert_eq!((keys[0].len(), &seat.key), (16, &keys[0]));
    assert_eq!(keys[1], keys[0]);
    assert!(second.is_primary());
}

/// What the switches hold once the primary has looked at them.
async fn held_of(bed: &Bed, node: &Node) -> Vec<chaos::Held> {
    node.is_whole().await;
    bed.held()
}

/// A primary that reaches nobody promises nothing; when it does again, another one leads and it follows.
#[tokio::test]
async fn one_that_is_cut_off_does_no_harm() {
    for swallow in [true, false] {
        let bed = Bed::new(2).await;
        let [old, new] = bed.pair().await;
        let client = old.client().await;
        client.create_job(&group::spec("before")).await.unwrap();

        bed.part(0, swallow);
        // It does not know yet that it leads no more: what it is asked now it cannot promise.
        let controller = old.handle().primary().unwrap();
        let asked =
            tokio::spawn(async move { controller.join("before", ("h1", 0), None).await.map(drop) });
        new.leads().await;
        let client = new.client().await;
        assert_eq!(names(&client).await, ["before"]);
        // As nobody stands by any more, what needs a copy waits.
        client.create_job(&group::spec("early")).await.unwrap_err();
        asked.await.unwrap().unwrap_err();

        bed.heal(0);
        new.followers(1).await;
        client.create_job(&group::spec("after")).await.unwrap();
        new.is_whole().await;
        assert_eq!(names(&client).await, ["before", "after"]);
        until(async || old.standing().await.primary == bed.address(0, 1)).await;
        assert!(old.handle().primary().is_none());
        // It has what the other one has, and nothing of its own.
        until(async || old.standing().await.history == new.standing().await.history).await;
    }
}

/// An old primary's controller object, held by whoever was in the middle of something, changes nothing after others have gone on.
#[tokio::test]
async fn who_has_stepped_down_changes_nothing() {
    let bed = Bed::new(2).await;
    let [old, new] = bed.pair().await;
    let controller = old.handle().primary().unwrap();
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
                JobRequestError::Stopping | JobRequestError::NotPrimary
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

/// However often they end, of three one leads at a time, and all that was promised is there.
#[tokio::test]
async fn they_take_turns_and_forget_nothing() {
    let bed = Bed::new(3).await;
    let mut nodes = [bed.start(0).await, bed.start(1).await, bed.start(2).await];
    let mut promised = Vec::new();
    for round in 0..4 {
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

/// One that comes late gets all that there is; one that was left behind gets it before it leads.
#[tokio::test]
async fn who_was_left_behind_learns_before_it_leads() {
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
    // The third does not get what comes next, and the second has it on its disk alone.
    bed.part_peers(leader, 2);
    client.create_job(&group::spec("two")).await.unwrap();
    first.stop();
    second.stop();
    // It alone may not know all that was promised, and does not lead.
    third.says("1 of 2 controllers").await;
    assert!(third.handle().primary().is_none());
    // It has not claimed a term for that, which would cost the next primary its own.
    assert_eq!(third.standing().await.term.unwrap().number, 1);
    bed.heal_peers(leader, 2);
    let second = bed.start(1 - leader).await;
    let leader = group::only_leader_of(&[&second, &third]).await;
    let client = leader.client().await;
    assert_eq!(names(&client).await, ["one", "two"]);
    leader.is_whole().await;
}

/// Where nothing is promised to be on two disks, the last primary may be the only one that knows: an older one does not lead
/// by itself.
#[tokio::test]
async fn an_older_store_leads_only_when_it_is_told_to() {
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
    // The other one has nothing to say against that any more.
    let second = bed.start(1).await;
    first.followers(1).await;
    until(async || second.standing().await.history == first.standing().await.history).await;
}

/// One that has led alone gets another one beside it, and ends before that has copied anything: its jobs are not given up.
#[tokio::test]
async fn a_new_store_does_not_lead_where_somebody_has_led() {
    let bed = Bed::new(2).await;
    let alone = bed.serve_alone(0).await.unwrap();
    let created = alone.controller().create_job(&group::spec("one")).await;
    created.unwrap();
    let held = bed.held();
    let second = bed.start(1).await;
    alone.stop().await;
    second.says("all that answer are empty").await;
    assert_eq!(bed.held(), held);
    // With the first one, whichever leads knows its job.
    let first = bed.start(0).await;
    let leader = group::only_leader_of(&[&first, &second]).await;
    assert_eq!(names(&leader.client().await).await, ["one"]);
    leader.is_whole().await;
}

/// A disk that has replaced another one does not count: what was on that may have been promised.
#[tokio::test]
async fn who_has_lost_its_disk_does_not_vouch() {
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
    // Neither of these two knows the job.
    nodes[behind] = bed.start(behind).await;
    nodes[replaced] = bed.start(replaced).await;
    nodes[behind].says("its store is empty").await;
    assert!(nodes.iter().all(|node| !node.is_primary()));
    nodes[leader] = bed.start(leader).await;
    let leader = group::settled(&nodes).await;
    assert_eq!(names(&nodes[leader].client().await).await, ["one"]);
}

/// Whoever has accepted a new primary's term copies from that one, also where the old one still speaks to it.
#[tokio::test]
async fn who_follows_goes_over_to_the_new_primary() {
    // Of two that know the same the one with the greater number goes first, unless this machine holds it up.
    for _ in 0..5 {
        if the_expected_one_leads_and_is_followed().await {
            return;
        }
    }
    panic!("the one with the smaller number went first each time");
}

/// False: the other one leads.
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
    // The old one hears nothing of the new one, and keeps the other one.
    bed.part_peers(old, new);
    bed.part_from_switches(old);
    while !nodes[new].is_primary() {
        if nodes[other].is_primary() {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    nodes[new].followers(1).await;
    let client = nodes[new].client().await;
    client.create_job(&group::spec("one")).await.unwrap();
    true
}

/// A primary that reaches no switch for a moment leads on, or another one does: nothing is lost, and it is not in doubt who.
#[tokio::test]
async fn a_moment_without_switches_is_survived() {
    let bed = Bed::new(2).await;
    let nodes = [bed.start(0).await, bed.start(1).await];
    let leader = group::settled(&nodes).await;
    let client = nodes[leader].client().await;
    client.create_job(&group::spec("one")).await.unwrap();
    bed.shake(leader);
    loop {
        let leader = &nodes[group::only_leader(&nodes).await];
        let client = leader.client().await;
        // What was asked too early is asked again.
        let is_there = match client.create_job(&group::spec("two")).await {
            Ok(_) => true,
            Err(error) => error.to_string().contains("already exists"),
        };
        if is_there && leader.is_whole_now().await {
            let jobs = client.jobs().await.unwrap_or_default();
            let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
            if leader.is_primary() {
                assert_eq!(names, ["one", "two"]);
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Most switches are gone for a moment in the middle of a move: whoever asked for it is not told that it is done, and what is left of it is
/// done as soon as that may be, also where nothing else is repaired.
#[tokio::test]
async fn a_move_that_loses_the_lead_half_way_is_finished_later() {
    let bed = Bed::ring(|config| {
        config.repair = false;
        // Nothing moves but what is drained.
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
    // It waits for the first one; the last one has its first part.
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

/// A term that nobody can have claimed would be the last one: no other would come after it.
#[tokio::test]
async fn absurd_terms_use_nothing_up() {
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
    assert!(first.is_primary());
    first.stop();
    second.leads().await;
    assert_eq!(second.standing().await.term.unwrap().number, 2);
}

/// What one promises is known to the next only if all count alike.
#[tokio::test]
async fn who_counts_otherwise_is_none_of_the_group() {
    let bed = Bed::new(2).await;
    let [mut first, mut second] = bed.pair().await;
    second.stop();
    let second = bed.start_with(1, |group| group.copies = 0).await;
    second
        .says("the groups differ, 2 controllers with --copies 1 and 2 controllers with --copies 0")
        .await;
    assert_eq!(first.standing().await.followers, []);
    // Neither leads while the other one is there, whatever it knows.
    first.stop();
    let first = bed.start(0).await;
    first
        .says("the groups differ, 2 controllers with --copies 0")
        .await;
    second.says("does not lead: ").await;
    assert!(!first.is_primary() && !second.is_primary());
}

/// Who takes over rewrites the fabric to what it knows of it, so all are to know the same.
#[tokio::test]
async fn who_has_another_fabric_is_none_of_the_group() {
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
    assert!(first.is_primary());
    // The primary last.
    first.stop();
    second.leads().await;
    let first = bed.start(0).await;
    second.followers(1).await;
    until(async || second.standing().await.problem.is_empty()).await;
    drop(first);
}

/// A store that was copied, file and all, makes two controllers of one number: neither counts on the other.
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
        assert!(!node.is_primary());
    }
}

#[tokio::test]
async fn every_other_controller_is_named_once() {
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

/// Switches may not notice that their primary's machine is gone. An operator does.
#[tokio::test]
async fn one_that_is_told_to_takes_over_from_a_ghost() {
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
    // That was for once: another one that is outranked is not helped again.
    bed.part_from_switches(0);
    until(async || !first.leads_at_most().await).await;
    let by = Term { number: 5, by: 7 };
    let request = api::ClaimRequest {
        term: Some(by.into()),
        history: None,
        controllers: 2,
        copies: 1,
        ..Default::default()
    };
    first.replication().await.claim(request).await.unwrap();
    until(async || !first.is_primary()).await;
    let _ghosts = [
        bed.ghost(0, by).await,
        bed.ghost(1, by).await,
        bed.ghost(2, by).await,
    ];
    bed.heal(0);
    until(async || first.standing().await.switches_told == 0).await;
    assert!(!first.is_primary());
}

/// A switch that answers everything but what it holds is waited for by itself.
#[tokio::test]
async fn one_stuck_switch_does_not_delay_the_others() {
    let bed = Bed::new(2).await;
    let [mut first, second] = bed.pair().await;
    bed.switches[2].state().stalls_reads = true;
    first.stop();
    second.leads().await;
    // Whoever had waited for an answer would have lost the switch for that.
    let switches = second.client().await.switches().await.unwrap();
    assert!(
        switches[2].problem.contains("not brought up within"),
        "{switches:?}"
    );
    bed.switches[2].state().stalls_reads = false;
    second.is_whole().await;
}

/// Members do not find a new primary all at once: who comes later than others is not suspected for that.
#[tokio::test]
async fn who_finds_the_new_primary_late_is_not_suspected() {
    let bed = Bed::new(2).await;
    let [mut first, second] = bed.pair().await;
    let client = first.client().await;
    client.create_job(&group::spec("train")).await.unwrap();
    let mut attendances = Vec::new();
    for host in ["h1", "h2", "h3"] {
        let seat = client.join("train", host, Duration::ZERO).await.unwrap();
        attendances.push(api::Attendance {
            job: "train".into(),
            epoch: seat.epoch,
            rank: seat.rank,
            slot_bytes: 1408,
            job_id: seat.job_id,
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
    // Who was here before, and has gone, is suspected sooner.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let job = client.job("train").await.unwrap();
    let states = job.members.iter().map(api::Member::state);
    assert!(states.eq([MemberState::Joined; 3]), "{:?}", job.members);
}

/// A controller with a store of one of several does not lead alone by mistake.
#[tokio::test]
async fn a_store_of_several_is_not_led_alone() {
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

/// What could not be promised, as nobody stood by, has used nothing up: ranks of members that were told nothing are free again.
#[tokio::test]
async fn members_join_once_somebody_stands_by_again() {
    let bed = Bed::new(2).await;
    let [first, mut second] = bed.pair().await;
    let client = first.client().await;
    client.create_job(&group::spec("one")).await.unwrap();
    second.stop();
    let join = async |host: &str| client.join("one", host, Duration::from_secs(30)).await;
    // All three are there, and none can be told so.
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

/// The switches alone decide: with another store and no peers, a later term is in the way.
#[tokio::test]
async fn who_never_heard_of_the_others_is_outranked() {
    let bed = Bed::new(2).await;
    let mut first = bed.start(0).await;
    first.leads().await;
    // While one leads, another is refused as ever.
    let refused = bed.serve_alone(2).await.err().unwrap().to_string();
    assert!(
        refused.contains("had a later primary, in term 1 of controller"),
        "{refused}"
    );
    first.stop();
    // And after it as well: what it has promised is not known to who begins anew.
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
async fn more_copies_than_others_are_refused() {
    let bed = Bed::with(2, |group| group.copies = 2).await;
    let refused = bed.try_start(0, |_: &mut Group| {}).await.err().unwrap();
    assert_eq!(
        refused.to_string(),
        "--copies 2: only 1 other controllers are named; name more with --peers, or lower --copies"
    );
}
