//! Subscriptions: ONCE, and STREAM by sampling or on change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use ultima_gnmi::path::{join, path};
use ultima_gnmi::v0::subscribe_request::Request;
use ultima_gnmi::v0::subscribe_response::Response;
use ultima_gnmi::v0::subscription_list::Mode;
use ultima_gnmi::v0::{
    Encoding, Notification, PathElem, SubscribeRequest, SubscribeResponse, Subscription,
    SubscriptionList, SubscriptionMode,
};
use ultima_grpc::fair::Admitted;

use super::leaves::{self, COUNTERS, Leaf};
use super::{SUBSCRIBERS, check_paths, encoding, notification, now};
use crate::datapath::PortStatus;
use crate::grpc::{ResponseStream, Service};

/// Deadline for the client's first message.
const FIRST_WORD: Duration = Duration::from_secs(5);
/// Shortest interval of samples. Replaces a shorter or missing one.
const SHORTEST: Duration = Duration::from_millis(100);
/// Longest interval. Replaces a longer one.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Largest number of waiting messages. A slower client receives the latest values when it has read them.
const WAITING: usize = 8;

type Ports = watch::Receiver<Arc<[PortStatus]>>;
/// The client has disconnected.
struct Gone;

/// Reads the subscription and starts to respond.
pub(super) async fn open(
    mut requests: Streaming<SubscribeRequest>,
    service: Service,
    ports: Ports,
    mut place: Admitted,
) -> Result<ResponseStream<SubscribeResponse>, Status> {
    let first = timeout(FIRST_WORD, requests.message()).await;
    let first =
        first.map_err(|_| Status::deadline_exceeded("no SubscriptionList was received in time"))?;
    let Some(Request::Subscribe(list)) = first?.and_then(|it| it.request) else {
        return Err(Status::invalid_argument(
            "first message: expected a SubscriptionList",
        ));
    };
    let paths = list.subscription.iter().map(|it| it.path.as_ref());
    check_paths(list.prefix.as_ref(), paths)?;
    let streams = match Mode::try_from(list.mode) {
        Ok(Mode::Once) => false,
        Ok(Mode::Stream) => true,
        _ => return Err(Status::unimplemented("mode: expected STREAM or ONCE")),
    };
    let streamed = streamed(&list)?;
    let (answers, stream) = mpsc::channel(WAITING);
    let subscriber = Subscriber {
        encoding: encoding(list.encoding)?,
        ports,
        service,
        answers: answers.clone(),
    };
    tokio::spawn(async move {
        let serve = async {
            match streams {
                true => subscriber.stream(requests, streamed).await,
                false => subscriber.once(&streamed).await,
            }
        };
        // Its end is the end of the stream.
        tokio::select! {
            _ = serve => {}
            () = place.evicted() => drop(answers.try_send(Err(too_many()))),
        }
    });
    Ok(Box::pin(ReceiverStream::new(stream)))
}

pub(super) fn too_many() -> Status {
    Status::resource_exhausted(format!(
        "{SUBSCRIBERS} subscribers exist, which is the limit"
    ))
}

struct Streamed {
    pattern: Vec<PathElem>,
    /// Time of the next sample, and the interval; `None` for notifications on change.
    due: Option<(Instant, Duration)>,
    /// The values of the last notification.
    said: BTreeMap<String, Leaf>,
}

fn streamed(list: &SubscriptionList) -> Result<Vec<Streamed>, Status> {
    if list.updates_only {
        return Err(unsupported("updates_only"));
    }
    let pattern = |it: &Subscription| join(list.prefix.as_ref(), it.path.as_ref());
    let is_counter = |it: &Subscription| pattern(it).iter().any(|elem| elem.name == COUNTERS);
    let of = |it: &Subscription| {
        let on_change = match SubscriptionMode::try_from(it.mode) {
            Ok(SubscriptionMode::OnChange) if is_counter(it) => {
                return Err(Status::invalid_argument(
                    "counters change with each packet: subscribe to them with SAMPLE",
                ));
            }
            Ok(SubscriptionMode::TargetDefined) => !is_counter(it),
            Ok(SubscriptionMode::OnChange) => true,
            Ok(SubscriptionMode::Sample) => false,
            Err(_) => {
                return Err(Status::invalid_argument(
                    "mode of a subscription: expected TARGET_DEFINED, ON_CHANGE or SAMPLE",
                ));
            }
        };
        if it.suppress_redundant {
            return Err(unsupported("suppress_redundant"));
        }
        if it.heartbeat_interval > 0 {
            return Err(unsupported("heartbeat_interval"));
        }
        let every = Duration::from_nanos(it.sample_interval).clamp(SHORTEST, LONGEST);
        Ok(Streamed {
            pattern: pattern(it),
            due: (!on_change).then(|| (Instant::now() + every, every)),
            said: BTreeMap::new(),
        })
    };
    list.subscription.iter().map(of).collect()
}

fn unsupported(field: &str) -> Status {
    Status::unimplemented(format!("{field} is not supported: expected it unset"))
}

struct Subscriber {
    encoding: Encoding,
    ports: Ports,
    service: Service,
    answers: mpsc::Sender<Result<SubscribeResponse, Status>>,
}

impl Subscriber {
    /// Sends all values and the end of the initial sync.
    async fn once(self, all: &[Streamed]) -> Result<(), Gone> {
        let patterns: Vec<_> = all.iter().map(|it| it.pattern.clone()).collect();
        let ports = self.ports.borrow().clone();
        let mut leaves = leaves::select(&ports, &patterns);
        leaves.extend(self.counted(&patterns).await?);
        self.say(notification(&leaves, self.encoding)).await?;
        self.synced().await
    }

    async fn stream(
        mut self,
        mut requests: Streaming<SubscribeRequest>,
        mut all: Vec<Streamed>,
    ) -> Result<(), Gone> {
        for it in &mut all {
            let found = self.leaves_of(it).await?;
            let notification = it.changes(found, self.encoding, false);
            self.say(notification).await?;
        }
        self.synced().await?;
        // A client that has no more to say goes on listening.
        let mut talks = true;
        loop {
            let due = all.iter().filter_map(|it| it.due).map(|(at, _)| at).min();
            let wait = async {
                match due {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let mut changed = false;
            tokio::select! {
                change = self.ports.changed() => match change {
                    Ok(()) => changed = true,
                    // The switch stops.
                    Err(_) => return Ok(()),
                },
                () = wait => {}
                () = self.answers.closed() => return Err(Gone),
                request = requests.message(), if talks => match request {
                    Ok(Some(_)) => return self.refuse("a subscription stands; open another stream for another").await,
                    Ok(None) => talks = false,
                    Err(_) => return Ok(()),
                },
            }
            for it in &mut all {
                let is_due = it.pass(Instant::now());
                if is_due || (changed && it.due.is_none()) {
                    let found = self.leaves_of(it).await?;
                    let notification = it.changes(found, self.encoding, is_due);
                    self.say(notification).await?;
                }
            }
        }
    }

    /// Returns the current leaves of a subscription. On-change subscriptions have no counters.
    async fn leaves_of(&mut self, it: &Streamed) -> Result<Vec<Leaf>, Gone> {
        let pattern = std::slice::from_ref(&it.pattern);
        let ports = self.ports.borrow_and_update().clone();
        let mut found = leaves::select(&ports, pattern);
        if it.due.is_some() {
            found.extend(self.counted(pattern).await?);
        }
        Ok(found)
    }

    async fn counted(&self, patterns: &[Vec<PathElem>]) -> Result<Vec<Leaf>, Gone> {
        // A switch that does not answer has stopped.
        self.service.counters(patterns).await.map_err(|_| Gone)
    }

    /// Sends a notification that is not empty.
    async fn say(&self, notification: Notification) -> Result<(), Gone> {
        if notification.update.is_empty() && notification.delete.is_empty() {
            return Ok(());
        }
        self.send(Ok(Response::Update(notification))).await
    }

    async fn synced(&self) -> Result<(), Gone> {
        self.send(Ok(Response::SyncResponse(true))).await
    }

    async fn refuse(&self, why: &str) -> Result<(), Gone> {
        self.send(Err(Status::invalid_argument(why))).await
    }

    async fn send(&self, answer: Result<Response, Status>) -> Result<(), Gone> {
        let answer = answer.map(|response| SubscribeResponse {
            response: Some(response),
        });
        self.answers.send(answer).await.map_err(|_| Gone)
    }
}

impl Streamed {
    /// True if the subscription is due. Then sets its next time.
    fn pass(&mut self, now: Instant) -> bool {
        let Some((at, every)) = &mut self.due else {
            return false;
        };
        let is_due = *at <= now;
        if is_due {
            *at = now + *every;
        }
        is_due
    }

    /// Returns the changes since the last notification, or all values if a sample is due.
    fn changes(&mut self, found: Vec<Leaf>, encoding: Encoding, is_due: bool) -> Notification {
        let before = std::mem::take(&mut self.said);
        let mut changed = Vec::new();
        for leaf in found {
            let key = ultima_gnmi::path::text(&leaf.path);
            let is_said = before
                .get(&key)
                .is_some_and(|said| said.value == leaf.value);
            if is_due || !is_said {
                changed.push(leaf.clone());
            }
            self.said.insert(key, leaf);
        }
        let gone = before
            .iter()
            .filter(|(key, _)| !self.said.contains_key(*key));
        let gone = gone
            .map(|(_, leaf)| path(leaf.path.iter().cloned()))
            .collect();
        Notification {
            timestamp: now(),
            delete: gone,
            ..notification(&changed, encoding)
        }
    }
}
