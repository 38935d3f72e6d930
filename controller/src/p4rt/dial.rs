//! Connects to a switch and asks for the primary role.

use std::error::Error as _;
use std::time::Duration;

use backon::{ConstantBuilder, Retryable as _};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tonic::transport::Channel;
use tonic::{Code, Status};
use ultima_grpc::transport::{self, one_line, root_cause};
use ultima_p4runtime::batch;
use ultima_p4runtime::v1::p4_runtime_client::P4RuntimeClient;

use super::call::{BATCH, CALL_TIMEOUT};
use super::device::Device;
use super::election::is_elected;
use super::error::ConnectError;
use super::session::{self, Mastership, Stream};

/// Pause between attempts while a switch rejects connections.
pub(super) const RETRY: Duration = Duration::from_millis(100);
/// The largest message that is accepted; large reads come in smaller pieces.
const MAX_RESPONSE: usize = 64 << 20;
/// The error of a switch that accepts the connection but does not answer.
pub(super) const ARBITRATION: &str = "no answer to arbitration";
/// The error of a switch that does not answer the reads before arbitration.
pub(super) const READ: &str = "no answer to a read of its program or jobs";

/// The time limit of an attempt to connect. Errors name its length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    /// Its end.
    pub(crate) at: Instant,
    /// Its length.
    pub(super) limit: Duration,
}

impl Deadline {
    /// A deadline `limit` from now.
    pub(crate) fn after(limit: Duration) -> Self {
        Deadline {
            at: Instant::now() + limit,
            limit,
        }
    }
}

/// Connects to a switch. Retries until the deadline, because it may just be starting.
pub(super) async fn connect(
    device: &Device,
    deadline: Deadline,
) -> Result<P4RuntimeClient<Channel>, ConnectError> {
    let no_answer = |reason| no_answer(device, deadline, reason);
    let endpoint = transport::endpoint(&device.grpc, device.tls.as_ref())
        .map_err(|error| no_answer(error.to_string()))?
        .tcp_nodelay(true)
        .tcp_keepalive(Some(CALL_TIMEOUT))
        // A failed batch reports each of its updates in a trailer.
        .http2_max_header_list_size(batch::header_list_size(BATCH));
    // The last attempt may end by the deadline: the one before it has the reason.
    let (reasons, last) = watch::channel("no connection".to_owned());
    let connect = || async {
        match timeout_at(deadline.at, endpoint.connect()).await {
            Ok(connected) => connected.map_err(|error| {
                let reason = root_cause(&error);
                reasons.send_replace(reason.clone());
                reason
            }),
            Err(_) => Err(last.borrow().clone()),
        }
    };
    let pauses = ConstantBuilder::new().with_delay(RETRY).without_max_times();
    let is_early = |_: &String| Instant::now() + RETRY < deadline.at;
    let channel = connect.retry(pauses).when(is_early);
    let channel = channel.await.map_err(no_answer)?;
    Ok(P4RuntimeClient::new(channel).max_decoding_message_size(MAX_RESPONSE))
}

/// Opens a stream with `election_id`.
pub(super) async fn open(
    rpc: &mut P4RuntimeClient<Channel>,
    device_id: u64,
    election_id: u128,
) -> Result<Stream, Status> {
    let first = session::arbitration(device_id, election_id);
    let (requests, outgoing) = session::requests(first);
    let mut responses = rpc.stream_channel(outgoing).await?.into_inner();
    let mastership = session::next(&mut responses).await?;
    Ok(Stream {
        requests,
        responses,
        mastership,
        election_id,
    })
}

/// Opens a stream and asks for the primary role.
pub(super) async fn arbitrate(
    rpc: &mut P4RuntimeClient<Channel>,
    device_id: u64,
    election_id: u128,
) -> Result<Stream, Status> {
    let mut stream = open(rpc, device_id, election_id).await?;
    if let Mastership::Vacant { highest } = stream.mastership
        && !is_later(highest, election_id)
    {
        // Another client with a higher id was the primary and has disconnected.
        let again = session::arbitration(device_id, highest);
        // If sending fails, the stream has ended, which the next answer reports.
        let _ = stream.requests.send(again).await;
        stream.mastership = session::next(&mut stream.responses).await?;
        stream.election_id = highest;
    }
    Ok(stream)
}

/// True if the highest election id of a switch belongs to a controller that was elected later, whose
/// jobs may be unknown here.
pub(super) fn is_later(highest: u128, ours: u128) -> bool {
    highest > ours && is_elected(highest)
}

pub(super) fn no_answer(device: &Device, deadline: Deadline, reason: String) -> ConnectError {
    ConnectError::NoAnswer {
        switch: device.name.clone(),
        grpc: device.grpc.clone(),
        timeout: deadline.limit,
        reason,
    }
}

/// The error for a stream that the server ended with `status` in answer to arbitration (P4Runtime
/// §5.3).
pub(super) fn refused(device: &Device, status: &Status) -> ConnectError {
    let (switch, grpc) = (device.name.clone(), device.grpc.clone());
    if let Some(cause) = status.source() {
        // The transport failed.
        return ConnectError::Broken {
            switch,
            grpc,
            reason: root_cause(cause),
            hint: match device.tls {
                None => "if it serves TLS, set `tls` in the fabric file",
                Some(_) => "if it requires client certificates, set `cert` and `key` in its `tls`",
            },
        };
    }
    let message = one_line(status.message());
    match status.code() {
        Code::NotFound => ConnectError::NoDevice {
            switch,
            grpc,
            device_id: device.device_id,
            message,
        },
        // The election id is in use by another controller.
        Code::InvalidArgument => ConnectError::NotPrimary {
            switch,
            grpc,
            message,
        },
        _ => ConnectError::Refused {
            switch,
            grpc,
            message,
        },
    }
}
