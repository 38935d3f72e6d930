use futures_util::FutureExt as _;

use super::testing::leader_of_two;
use super::*;

/// The journal of a controller that leads.
fn journal() -> Arc<Journal> {
    leader_of_two(|| true)
}

fn change() -> Change {
    Change::Update(vec![])
}

#[tokio::test]
async fn a_write_during_a_takeover_has_an_unknown_result() {
    let journal = journal();
    let mut feed = journal.follow(7, History::default()).await.unwrap();
    let writing = tokio::spawn({
        let journal = Arc::clone(&journal);
        async move { journal.write(change()).await }
    });
    // The change is on its way to the follower, which may lead next.
    let entry = feed.changes.recv().await.unwrap();
    assert_eq!(entry.at.changes, 1);
    journal.outrank(Term { number: 4, by: 7 });
    let error = writing.await.unwrap().unwrap_err();
    assert!(matches!(error, KeepError::Unknown), "{error}");
    // After this, nothing is on its way.
    journal.close();
    let error = journal.write(change()).await.unwrap_err();
    assert!(matches!(error, KeepError::NotLeader), "{error}");
    assert_eq!(journal.history().unwrap().changes, 1);
}

#[tokio::test]
async fn no_change_begins_without_enough_followers() {
    let journal = journal();
    let feed = journal.follow(7, History::default()).await.unwrap();
    journal.followed().await.unwrap();
    // The follower has gone.
    drop(feed);
    let error = journal.followed().await.unwrap_err();
    let none = |error| matches!(error, KeepError::Followers { following, copies, .. } if (following, copies) == (0, 1));
    assert!(none(error));
    assert_eq!(journal.history().unwrap(), History::default());
    // A follower that arrives meanwhile ends the wait.
    let again = journal.follow(7, History::default());
    let (followed, again) = tokio::join!(journal.followed(), again);
    followed.unwrap();
    drop(again);
    // A deposed leader does not wait for followers.
    journal.outrank(Term { number: 4, by: 7 });
    journal.followed().await.unwrap();
}

/// A leader that has lost its switches also has too few followers; the loss of the switches is the
/// error to report.
#[tokio::test]
async fn a_deposed_leader_reports_that_first() {
    let leads = Arc::new(AtomicBool::new(true));
    let journal = leader_of_two({
        let leads = Arc::clone(&leads);
        move || leads.load(Ordering::Relaxed)
    });
    let waits = journal.followed();
    let mut waits = pin!(waits);
    assert!(waits.as_mut().now_or_never().is_none());
    // This sends no notification to the journal.
    leads.store(false, Ordering::Relaxed);
    waits.await.unwrap();
}

#[tokio::test]
async fn no_more_controllers_follow_than_the_group_has() {
    let journal = journal();
    let first = journal.follow(7, History::default()).await.unwrap();
    let crowded = journal.follow(8, History::default()).await.err().unwrap();
    assert!(matches!(crowded, FollowRefusal::Crowded { followers: 1 }));
    // The same controller again, and another one once it has gone.
    let again = journal.follow(7, History::default()).await.unwrap();
    drop((first, again));
    assert!(journal.follow(8, History::default()).await.is_ok());
}

#[tokio::test]
async fn a_forged_term_deposes_no_leader() {
    let journal = journal();
    journal.outrank(Term {
        number: u64::MAX,
        by: 7,
    });
    assert!(journal.leads());
    journal.outrank(Term { number: 4, by: 7 });
    assert!(!journal.leads());
}
