//! Everything that a controller does, against switches that fail on purpose while it does it: they refuse, delay, do half of it,
//! disconnect, forget, and hang while a link is lost, so that what hangs is given up and done late; one of them or several. Whatever happens, in the end each job is whole or not there, as was answered, nothing
//! else is on any switch, and who is not concerned was left alone.

use std::time::Duration;

use ultima_controller::api::evict_member_request::Member;
use ultima_controller::client::Client;

use crate::bed::{Bed, Danger, SPINE1, is_whole_but, names, settle, spec, spec_on, until, whole};
use crate::chaos::{CALLS, Call, FAULTS, Fault};
use crate::crew::Crew;
use crate::several::several;

/// How often each thing is done with each fault at least, each time with it elsewhere; every other time in a storm.
const SEEDS: usize = 4;

/// What a change writes.
const WRITES: [Danger; 1] = [(Call::Update, 8)];
/// A look at switches, and what it mends.
const LOOKS: [Danger; 3] = [(Call::GetPipeline, 1), (Call::Read, 2), (Call::Update, 6)];
/// A switch that gets a controller.
const CONNECTS: [Danger; 4] = [
    (Call::Arbitration, 1),
    (Call::GetPipeline, 1),
    (Call::Read, 2),
    (Call::Update, 6),
];

/// What a job between hosts of one leaf is called, which nothing here concerns.
const KEPT: &str = "kept";

/// Does something with every fault, at places by seed. `act` says whether a fault came into it.
async fn with_every_fault(dangers: &[Danger], act: impl AsyncFn(Bed, Fault, Danger) -> bool) {
    let cases = FAULTS.into_iter().enumerate().flat_map(|(number, fault)| {
        (0..SEEDS.max(dangers.len())).map(move |seed| {
            // By turns, so that each of two rounds has each danger.
            (fault, seed, dangers[(number + seed) % dangers.len()])
        })
    });
    let act = &act;
    let done = several(cases.map(|(fault, seed, danger)| {
        let name = format!("{fault:?}, seed {seed}, at {danger:?}");
        let case = async move {
            let bed = Bed::new(seed as u64, seed % 2 == 1).await;
            (fault, act(bed, fault, danger).await)
        };
        (name, case)
    }));
    let done = done.await;
    for fault in FAULTS {
        assert!(done.contains(&(fault, true)), "{fault:?} never happened");
    }
}

/// A job that nothing here concerns.
async fn keep(bed: &mut Bed, client: &Client) {
    let before = bed.held();
    let local = spec_on(KEPT, &["h1", "h2"]);
    client.create_job(&local).await.unwrap();
    bed.leave_alone(&before);
}

#[tokio::test]
async fn a_job_is_created_or_not() {
    with_every_fault(&WRITES, async |mut bed, fault, danger| {
        let handle = bed.serve().await;
        let (client, base) = (bed.client("a").await, bed.held());
        keep(&mut bed, &client).await;
        bed.fail(fault, danger);
        let created = client.create_job(&spec("new")).await;
        let failed = bed.has_failed();
        let jobs = match created {
            Ok(_) => vec![KEPT, "new"],
            Err(_) => vec![KEPT],
        };
        assert!(failed || created.is_ok(), "{created:?}");
        settle(handle.controller(), &client, &jobs, &base, &bed).await;
        failed
    })
    .await;
}

/// As a grid's are: whatever fails, all of them are there or none.
#[tokio::test]
async fn jobs_are_created_together_or_not() {
    with_every_fault(&WRITES, async |mut bed, fault, danger| {
        let handle = bed.serve().await;
        let (client, base) = (bed.client("a").await, bed.held());
        keep(&mut bed, &client).await;
        bed.fail(fault, danger);
        let together = [
            spec("row0"),
            spec_on("row1", &["h2", "h7"]),
            spec_on("column0", &["h1", "h2"]),
        ];
        let created = client.create_jobs(&together).await;
        let failed = bed.has_failed();
        let mut jobs = vec![KEPT];
        if created.is_ok() {
            jobs.extend(together.iter().map(|job| job.name.as_str()));
        }
        assert!(failed || created.is_ok(), "{created:?}");
        settle(handle.controller(), &client, &jobs, &base, &bed).await;
        failed
    })
    .await;
}

#[tokio::test]
async fn a_job_is_deleted() {
    with_every_fault(&WRITES, async |mut bed, fault, danger| {
        let handle = bed.serve().await;
        let (client, base) = (bed.client("a").await, bed.held());
        keep(&mut bed, &client).await;
        client.create_job(&spec("old")).await.unwrap();
        bed.fail(fault, danger);
        // What is left on a switch goes when that is back.
        client.delete_job("old").await.unwrap();
        let failed = bed.has_failed();
        settle(handle.controller(), &client, &[KEPT], &base, &bed).await;
        failed
    })
    .await;
}

/// Waits until no job uses it.
async fn spine1_is_left(client: &Client) {
    until("jobs leave a spine", async || {
        let jobs = client.jobs().await.unwrap();
        !jobs
            .iter()
            .any(|job| job.switches.contains(&"spine1".into()))
    })
    .await;
}

#[tokio::test]
async fn jobs_move() {
    with_every_fault(&WRITES, async |mut bed, fault, danger| {
        let handle = bed.serve().await;
        let client = bed.client("a").await;
        client.drain("spine1", true).await.unwrap();
        let base = bed.held();
        client.drain("spine1", false).await.unwrap();
        keep(&mut bed, &client).await;
        for name in ["one", "two"] {
            client.create_job(&spec(name)).await.unwrap();
        }
        bed.fail(fault, danger);
        client.drain("spine1", true).await.unwrap();
        let failed = bed.has_failed();
        // Who was not there for a moment keeps old ways alive for as long.
        spine1_is_left(&client).await;
        let jobs = [KEPT, "one", "two"];
        settle(handle.controller(), &client, &jobs, &base, &bed).await;
        failed
    })
    .await;
}

#[tokio::test]
async fn a_spine_goes() {
    with_every_fault(&WRITES, async |mut bed, fault, danger| {
        let handle = bed.serve().await;
        let (client, base) = (bed.client("a").await, bed.held());
        keep(&mut bed, &client).await;
        for name in ["one", "two"] {
            client.create_job(&spec(name)).await.unwrap();
        }
        bed.fail(fault, danger);
        bed.switches[SPINE1].refuse(true);
        spine1_is_left(&client).await;
        until("all others hold what they should", async || {
            is_whole_but(handle.controller(), Some(SPINE1)).await
        })
        .await;
        let failed = bed.has_failed();
        bed.switches[SPINE1].refuse(false);
        let jobs = [KEPT, "one", "two"];
        settle(handle.controller(), &client, &jobs, &base, &bed).await;
        failed
    })
    .await;
}

#[tokio::test]
async fn what_others_changed_is_put_right() {
    with_every_fault(&LOOKS, async |mut bed, fault, danger| {
        let handle = bed.serve().await;
        let (client, base) = (bed.client("a").await, bed.held());
        keep(&mut bed, &client).await;
        client.create_job(&spec("other")).await.unwrap();
        bed.damage();
        bed.fail(fault, danger);
        client.sync_fabric().await.unwrap();
        let failed = bed.has_failed();
        // What was refused or lost is put right by itself.
        let jobs = [KEPT, "other"];
        settle(handle.controller(), &client, &jobs, &base, &bed).await;
        failed
    })
    .await;
}

/// A switch is at its beginning again, by any call that follows failing.
async fn begins_anew(begin: impl Fn(&Bed, usize)) {
    let dangers = CALLS.map(|call| (call, if call == Call::Update { 8 } else { 1 }));
    with_every_fault(&dangers, async |mut bed, fault, danger| {
        let handle = bed.serve().await;
        let (client, base) = (bed.client("a").await, bed.held());
        keep(&mut bed, &client).await;
        client.create_job(&spec("other")).await.unwrap();
        let at = bed.any_switch();
        let emptied = bed.switches[at].state().emptied;
        bed.fail_on(at, fault, danger);
        begin(&bed, at);
        until("a switch gets its program", async || {
            bed.switches[at].state().emptied > emptied + 1
        })
        .await;
        whole(handle.controller()).await;
        let failed = bed.has_failed();
        let jobs = [KEPT, "other"];
        settle(handle.controller(), &client, &jobs, &base, &bed).await;
        failed
    })
    .await;
}

#[tokio::test]
async fn a_switch_is_restarted() {
    begins_anew(|bed, at| bed.switches[at].reboot()).await;
}

#[tokio::test]
async fn a_switch_is_given_another_program() {
    begins_anew(|bed, at| bed.switches[at].replace_program()).await;
}

#[tokio::test]
async fn a_controller_starts_for_the_first_time() {
    let dangers = CALLS.map(|call| (call, 1));
    with_every_fault(&dangers, async |mut bed, fault, danger| {
        let handle = bed.serve().await;
        let base = bed.held();
        handle.stop().await;
        // Of an earlier life.
        for switch in &bed.switches {
            switch.replace_program();
        }
        bed.fail(fault, danger);
        // What passes is no reason to give up.
        let handle = bed.serve().await;
        let failed = bed.has_failed();
        let client = bed.client("a").await;
        settle(handle.controller(), &client, &[], &base, &bed).await;
        failed
    })
    .await;
}

/// Groups that another program has left go before ours is put to work: they are ours again then, or in the way of ours.
#[tokio::test]
async fn a_controller_finds_old_groups() {
    let dangers = [(Call::Read, 1), (Call::Update, 1)];
    with_every_fault(&dangers, async |mut bed, fault, danger| {
        let handle = bed.serve().await;
        let (client, base) = (bed.client("a").await, bed.held());
        client.create_job(&spec("other")).await.unwrap();
        handle.stop().await;
        for switch in &bed.switches {
            switch.replace_program_alone();
        }
        bed.fail(fault, danger);
        let handle = bed.serve().await;
        let failed = bed.has_failed();
        let client = bed.client("a").await;
        settle(handle.controller(), &client, &["other"], &base, &bed).await;
        failed
    })
    .await;
}

#[tokio::test]
async fn a_controller_comes_back() {
    with_every_fault(&CONNECTS, async |mut bed, fault, danger| {
        let handle = bed.serve().await;
        let base = bed.held();
        let client = bed.client("a").await;
        keep(&mut bed, &client).await;
        client.create_job(&spec("other")).await.unwrap();
        handle.stop().await;
        bed.damage();
        bed.fail(fault, danger);
        let handle = bed.serve().await;
        let failed = bed.has_failed();
        let client = bed.client("a").await;
        let jobs = [KEPT, "other"];
        settle(handle.controller(), &client, &jobs, &base, &bed).await;
        failed
    })
    .await;
}

#[tokio::test]
async fn another_controller_takes_over() {
    with_every_fault(&CONNECTS, async |mut bed, fault, danger| {
        let first = bed.serve_in("a", "b").await;
        let client = bed.client("a").await;
        // It leads as soon as most are.
        until("all switches hold what they should", async || {
            match first.primary() {
                Some(controller) => is_whole_but(&controller, None).await,
                None => false,
            }
        })
        .await;
        let base = bed.held();
        let second = bed.serve_in("b", "a").await;
        // Answered when the second has stored it.
        keep(&mut bed, &client).await;
        client.create_job(&spec("other")).await.unwrap();
        bed.damage();
        bed.fail(fault, danger);
        drop(first);
        let client = bed.client("b").await;
        let failed = bed.has_failed();
        // One that loses most switches again leads anew.
        let mut leading = None;
        until(
            "the other one leads, and all is as it should be",
            async || {
                leading = second.primary();
                match &leading {
                    Some(controller) => is_whole_but(controller, None).await,
                    None => false,
                }
            },
        )
        .await;
        let controller = leading.unwrap();
        assert_eq!(names(&client).await, [KEPT, "other"]);
        // The first one comes back, and the jobs go: only that needs both.
        let _first = bed.serve_in("a", "b").await;
        let jobs = [KEPT, "other"];
        settle(&controller, &client, &jobs, &base, &bed).await;
        failed
    })
    .await;
}

/// Waits until a job's only epoch is this one, with these members.
async fn is_in(client: &Client, epoch: u32, hosts: &[&str]) {
    until("a job is in its new epoch alone", async || {
        let job = client.job("train").await.unwrap();
        job.epoch == epoch && job.next.is_none()
    })
    .await;
    let members = client.job("train").await.unwrap().members;
    assert!(
        members
            .iter()
            .map(|member| &*member.host)
            .eq(hosts.iter().copied())
    );
}

#[tokio::test]
async fn members_come_and_go() {
    with_every_fault(&WRITES, async |mut bed, fault, danger| {
        let handle = bed.serve().await;
        let (client, base) = (bed.client("a").await, bed.held());
        keep(&mut bed, &client).await;
        let (old, new) = (["h1", "h4", "h5"], ["h1", "h4", "h8"]);
        client.create_job(&spec_on("train", &old)).await.unwrap();
        let mut crew = Crew::default();
        for host in old {
            crew.join(&client, host).await;
        }
        crew.run_in(1, &old).await;

        bed.fail(fault, danger);
        let members = new.map(String::from);
        let wait = (Duration::from_secs(60), false);
        let resized = client.resize_job(("train", None), &members, wait).await;
        let (mut epoch, mut now) = (1, old.to_vec());
        if resized.is_ok() {
            crew.join(&client, "h8").await;
            crew.run_in(2, &new).await;
            is_in(&client, 2, &new).await;
            (epoch, now) = (2, new.to_vec());
        }
        let mut failed = bed.has_failed();
        assert!(failed || resized.is_ok(), "{resized:?}");
        whole(handle.controller()).await;
        is_in(&client, epoch, &now).await;

        bed.fail(fault, danger);
        let evicted = client.evict("train", Member::Host("h4".into()), "").await;
        if evicted.is_ok() {
            (epoch, now) = (epoch + 1, [now[0], now[2]].to_vec());
            crew.run_in(epoch, &now).await;
            is_in(&client, epoch, &now).await;
        }
        let failed_again = bed.has_failed();
        assert!(failed_again || evicted.is_ok(), "{evicted:?}");
        failed |= failed_again;
        is_in(&client, epoch, &now).await;
        crew.epochs();
        drop(crew);
        let jobs = [KEPT, "train"];
        settle(handle.controller(), &client, &jobs, &base, &bed).await;
        failed
    })
    .await;
}
