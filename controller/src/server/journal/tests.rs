use futures_util::FutureExt as _;

use super::testing::primary_of_two;
use super::*;

/// Of one that leads.
fn journal() -> Arc<Journal> {
    primary_of_two(|| true)
}

fn change() -> Change {
    Change::Update(vec![])
}

#[tokio::test]
async fn what_is_written_when_another_one_takes_over_is_not_known_to_be_refused() {
    let journal = journal();
    let mut feed = journal.follow(7, History::default()).await.unwrap();
    let writing = tokio::spawn({
        let journal = Arc::clone(&journal);
        async move { journal.write(change()).await }
    });
    // It is on its way to who follows, which may lead next.
    let entry = feed.changes.recv().await.unwrap();
    assert_eq!(entry.at.changes, 1);
    journal.outrank(Term { number: 4, by: 7 });
    let error = writing.await.unwrap().unwrap_err();
    assert!(matches!(error, KeepError::Unknown), "{error}");
    // From now on nothing is on its way.
    journal.close();
    let error = journal.write(change()).await.unwrap_err();
    assert!(matches!(error, KeepError::NotPrimary), "{error}");
    assert_eq!(journal.history().unwrap().changes, 1);
}

#[tokio::test]
async fn nothing_is_begun_where_too_few_follow() {
    let journal = journal();
    let feed = journal.follow(7, History::default()).await.unwrap();
    journal.followed().await.unwrap();
    // It has gone.
    drop(feed);
    let error = journal.followed().await.unwrap_err();
    let none = |error| matches!(error, KeepError::Followers { following, copies } if (following, copies) == (0, 1));
    assert!(none(error));
    assert_eq!(journal.history().unwrap(), History::default());
    // Whoever comes meanwhile is waited for.
    let again = journal.follow(7, History::default());
    let (followed, again) = tokio::join!(journal.followed(), again);
    followed.unwrap();
    drop(again);
    // One that does not lead any more says that instead.
    journal.outrank(Term { number: 4, by: 7 });
    journal.followed().await.unwrap();
}

/// Too few follow whoever has lost its switches, too, and there is nothing to be done about that.
#[tokio::test]
async fn one_that_does_not_lead_any_more_says_that_first() {
    let leads = Arc::new(AtomicBool::new(true));
    let journal = primary_of_two({
        let leads = Arc::clone(&leads);
        move || leads.load(Ordering::Relaxed)
    });
    let waits = journal.followed();
    let mut waits = pin!(waits);
    assert!(waits.as_mut().now_or_never().is_none());
    // Nobody tells the journal.
    leads.store(false, Ordering::Relaxed);
    waits.await.unwrap();
}

#[tokio::test]
async fn no_more_follow_than_there_are() {
    let journal = journal();
    let first = journal.follow(7, History::default()).await.unwrap();
    let crowded = journal.follow(8, History::default()).await.err().unwrap();
    assert!(matches!(crowded, FollowRefusal::Crowded { followers: 1 }));
    // The same one again, and another one once it has gone.
    let again = journal.follow(7, History::default()).await.unwrap();
    drop((first, again));
    assert!(journal.follow(8, History::default()).await.is_ok());
}

#[tokio::test]
async fn nobody_is_outranked_by_an_absurd_term() {
    let journal = journal();
    journal.outrank(Term {
        number: u64::MAX,
        by: 7,
    });
    assert!(journal.leads());
    journal.outrank(Term { number: 4, by: 7 });
    assert!(!journal.leads());
}
