//! The packet trace service.

use std::time::Duration;

use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use ultima_grpc::fair::Origin;

use super::{ResponseStream, Service, no_pipeline};
use crate::datapath::Datapath;
use crate::forward::Handle;
use crate::proto::trace_request::Packets;
use crate::proto::trace_server::Trace;
use crate::proto::{self, PacketTrace, TraceRequest};
use crate::trace;
use crate::trace::tracer::{Pattern, Wanted, WatchId};

/// Largest number of requests at a time.
pub(super) const REQUESTS: usize = 16;
/// Largest number of traces that wait for a reader.
const BACKLOG: usize = 8;
/// Largest number of packets of one request.
const MAX_COUNT: u32 = 10_000;
const DEFAULT_LIMIT: Duration = Duration::from_secs(10);
const MAX_LIMIT: Duration = Duration::from_secs(3600);
/// Longest frame that a port accepts.
const MAX_FRAME: usize = u16::MAX as usize;

#[tonic::async_trait]
impl Trace for Service {
    type PacketsStream = ResponseStream<PacketTrace>;

    async fn packets(
        &self,
        request: Request<TraceRequest>,
    ) -> Result<Response<Self::PacketsStream>, Status> {
        let origin = Origin::of(&request);
        let request = request.into_inner();
        self.check_device_or_only(request.device_id)?;
        let limit = time_limit(request.time_limit_ms)?;
        let order = Order::new(request.packets)?;
        let mut place = self.traces.admit(origin).map_err(|_| too_many())?;
        let (traces, traced) = channel(BACKLOG);
        let begin = move |datapath: &mut Datapath| order.begin(datapath, request.port, traces);
        let watch = self.forwarder.call(begin).await??;
        let (messages, stream) = channel(1);
        let forwarder = self.forwarder.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = pass_on(traced, &messages, limit, &forwarder, watch) => {}
                () = place.evicted() => drop(messages.try_send(Err(too_many()))),
            }
            drop(forwarder.send(move |datapath: &mut Datapath| datapath.tracer().unwatch(watch)));
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}

/// Sends traces until the last one, the time limit, or the end of the client.
async fn pass_on(
    mut traced: Receiver<trace::PacketTrace>,
    messages: &Sender<Result<PacketTrace, Status>>,
    limit: Duration,
    forwarder: &Handle,
    watch: WatchId,
) {
    let end = sleep_until(Instant::now() + limit);
    tokio::pin!(end);
    let mut waiting = true;
    loop {
        let next = tokio::select! {
            next = traced.recv() => next,
            () = &mut end, if waiting => {
                waiting = false;
                // Packets under way are reported as they are, then the channel ends.
                let unwatch = move |datapath: &mut Datapath| datapath.tracer().unwatch(watch);
                drop(forwarder.send(unwatch));
                continue;
            }
            () = messages.closed() => None,
        };
        let Some(trace) = next else { break };
        let message = serde_json::to_vec(&trace)
            .map(|document| PacketTrace { document })
            .map_err(|error| {
                Status::internal(format!("writing the trace as JSON failed: {error}"))
            });
        if messages.send(message).await.is_err() {
            break;
        }
    }
}

fn too_many() -> Status {
    Status::resource_exhausted(format!(
        "{REQUESTS} requests wait for packets, which is the limit; try again when one has ended"
    ))
}

enum Order {
    Next(Pattern, u32),
    Frame(Vec<u8>),
}

impl Order {
    fn new(packets: Option<Packets>) -> Result<Order, Status> {
        match packets {
            None => Ok(Order::Next(Pattern::default(), 1)),
            Some(Packets::Next(next)) => {
                if next.count > MAX_COUNT {
                    let count = next.count;
                    return Err(Status::invalid_argument(format!(
                        "{count} packets: expected at most {MAX_COUNT}"
                    )));
                }
                let pattern = next.pattern.map(pattern).transpose()?;
                Ok(Order::Next(pattern.unwrap_or_default(), next.count.max(1)))
            }
            Some(Packets::Frame(frame)) if frame.is_empty() || frame.len() > MAX_FRAME => {
                let length = frame.len();
                Err(Status::invalid_argument(format!(
                    "a frame of {length} bytes: expected 1 to {MAX_FRAME}"
                )))
            }
            Some(Packets::Frame(frame)) => Ok(Order::Frame(frame)),
        }
    }

    fn begin(
        self,
        datapath: &mut Datapath,
        port: u32,
        traces: Sender<trace::PacketTrace>,
    ) -> Result<WatchId, Status> {
        let port = datapath.find(port)?;
        if datapath.active().is_none() {
            return Err(no_pipeline());
        }
        let (wanted, frame) = match self {
            Order::Next(pattern, count) => (Wanted::Next(pattern, count), None),
            Order::Frame(frame) => (Wanted::Injected, Some(frame)),
        };
        let watch = datapath.tracer().watch(port, wanted, traces);
        if let Some(frame) = frame {
            datapath.inject(port, &frame, watch);
        }
        Ok(watch)
    }
}

fn pattern(pattern: proto::Pattern) -> Result<Pattern, Status> {
    let proto::Pattern {
        offset,
        value,
        mask,
    } = pattern;
    let mask = match mask.len() {
        0 => vec![0xff; value.len()],
        length if length == value.len() => mask,
        length => {
            return Err(Status::invalid_argument(format!(
                "a mask of {length} bytes for a value of {}: expected as many, or none",
                value.len()
            )));
        }
    };
    Ok(Pattern {
        offset: offset as usize,
        value,
        mask,
    })
}

fn time_limit(milliseconds: u32) -> Result<Duration, Status> {
    match Duration::from_millis(u64::from(milliseconds)) {
        Duration::ZERO => Ok(DEFAULT_LIMIT),
        limit if limit <= MAX_LIMIT => Ok(limit),
        limit => Err(Status::invalid_argument(format!(
            "a time limit of {limit:?}: expected at most {MAX_LIMIT:?}"
        ))),
    }
}
